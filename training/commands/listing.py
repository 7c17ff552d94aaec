"""``rlvr-world list``: environments, checkpoints and recipes that come with the package."""

from __future__ import annotations

import json
from pathlib import Path

from training.commands.console import console, show_table


def list_all() -> None:
    """List environments, bundled checkpoints and training recipes."""
    from rlvr_envs.table import ENVS
    from training.recipes import RECIPES
    from worldmodels.checkpoints import ASSETS, bundled

    show_table(
        "Environments (import rlvr_envs; gymnasium.make(ID))",
        ("id", "world", "ground truth", "steps"),
        [
            (
                env_id,
                str(entry.kwargs.get("world_model", "simulator")),
                entry.twin or "itself",
                entry.max_episode_steps or "any",
            )
            for env_id, entry in ENVS.items()
        ],
    )
    checkpoints = [_checkpoint(ASSETS / name) for name in bundled()]
    if checkpoints:
        show_table("Checkpoints (worldmodels.load(NAME))", ("name", "kind", "size", "card"), checkpoints)
    else:
        console.print("no bundled checkpoints; train some with the recipes below")
    show_table(
        "Recipes (rlvr-world train NAME)",
        ("name", "what it trains"),
        [(name, recipe.description) for name, recipe in RECIPES.items()],
    )


def _checkpoint(folder: Path) -> tuple[str, str, str, str]:
    """Name, kind, size of all files, and the title of the card."""
    kind = json.loads((folder / "config.json").read_text(encoding="utf-8"))["kind"]
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    card = folder / "card.md"
    title = card.read_text(encoding="utf-8").split("\n", 1)[0].lstrip("# ") if card.exists() else "(no card)"
    return folder.name, str(kind), f"{size / 1e6:.1f} MB", title
