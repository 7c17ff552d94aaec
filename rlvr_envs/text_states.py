"""What truth and dream of text games share: how long their texts may be, and a state shown to people.

Absent: rules, starts and models.
"""

from __future__ import annotations

from worldmodels.language.game_state import GameState

MAX_ACTION_CHARACTERS = 1_000
MAX_STATE_CHARACTERS = 100_000


def state_lines(state: GameState) -> list[str]:
    """Each object with its properties, indented below what holds it; the score at the end."""
    by_name = {item["name"]: item for item in state.objects.values()}
    inner = {name for item in state.objects.values() for name in item["contains"]}

    def below(name: str, depth: int, above: frozenset[str]) -> list[str]:
        if (
            name in above or name not in by_name
        ):  # a dream may put a thing into itself, or hold what is not there
            return ["  " * depth + f"{name} (?)"]
        item = by_name[name]
        said = ", ".join(f"{key} {value}" for key, value in item["properties"].items())
        line = "  " * depth + name + (f": {said}" if said else "")
        return [line, *(text for held in item["contains"] for text in below(held, depth + 1, above | {name}))]

    lines = [text for name in by_name if name not in inner for text in below(name, 0, frozenset())]
    return [*lines, f"score {state.score}" + (", game over" if state.game_over else "")]
