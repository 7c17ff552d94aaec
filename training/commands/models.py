"""The world models that tables compare, and which of them are tested against each other."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from worldmodels.language.slot_world import SlotWorldModel
    from worldmodels.video.multi_step_world import MultiStepWorldModel
    from worldmodels.video.object_world import ObjectWorldModel

# The hoped-for better one first.
PAIRS = (("pusht-rlvr", "pusht-base"), ("pusht-rlvr", "pusht-more-mle"))
DRAWER_PAIRS = (
    ("drawer-rlvr", "drawer-base"),
    ("drawer-rlvr", "drawer-more-mle"),
    ("drawer-rlvr-no-repeats", "drawer-base"),
)
TEXT_PAIRS = (("textgame-rlvr", "textgame-base"), ("textgame-rlvr", "textgame-more-mle"))


def load_object_worlds(names: Sequence[str]) -> dict[str, ObjectWorldModel]:
    """World models by the names they were asked for.

    Raises:
        FileNotFoundError: Nothing of that name.
        ValueError: Another kind of model.
    """
    from worldmodels.checkpoints import load
    from worldmodels.video.object_world import ObjectWorldModel

    loaded: dict[str, ObjectWorldModel] = {}
    for name in names:
        model = load(name)
        if not isinstance(model, ObjectWorldModel):
            raise ValueError(
                f"{name!r} is a {type(model).__name__}; this command works on an ObjectWorldModel"
            )
        loaded[name] = model
    return loaded


def load_multi_step_worlds(names: Sequence[str]) -> dict[str, MultiStepWorldModel]:
    """World models of drawer frames by the names they were asked for; errors as for ``load_object_worlds``."""
    from worldmodels.checkpoints import load
    from worldmodels.video.multi_step_world import MultiStepWorldModel

    loaded: dict[str, MultiStepWorldModel] = {}
    for name in names:
        model = load(name)
        if not isinstance(model, MultiStepWorldModel):
            raise ValueError(
                f"{name!r} is a {type(model).__name__}; this command works on a MultiStepWorldModel"
            )
        loaded[name] = model
    return loaded


def load_slot_worlds(names: Sequence[str]) -> dict[str, SlotWorldModel]:
    """World models of text games by the names they were asked for; errors as for ``load_object_worlds``."""
    from worldmodels.checkpoints import load
    from worldmodels.language.slot_world import SlotWorldModel

    loaded: dict[str, SlotWorldModel] = {}
    for name in names:
        model = load(name)
        if not isinstance(model, SlotWorldModel):
            raise ValueError(f"{name!r} is a {type(model).__name__}; this command works on a SlotWorldModel")
        loaded[shown_name(name)] = model
    return loaded


def shown_name(name: str) -> str:
    """What tables call a checkpoint: its run, if it is the ``model`` folder of one."""
    path = Path(name)
    return path.resolve().parent.name if path.name == "model" and path.is_dir() else name
