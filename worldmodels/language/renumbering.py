"""The same state with other numbers for its objects: a question that means the same and looks different.

Special: which uuid an object has says nothing about a game, so whatever a model answers should not depend on it. Where
it does, the model guesses.

Absent: models.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from worldmodels.language.game_state import GameObject, GameState

_ID = re.compile(r"\(ID: (\d+)\)")
_FIRST = 3  # objects that are at the same place in every state of our games: player, world and task


def another_numbering(state: GameState, seed: int) -> dict[int, int]:
    """Old -> new uuids: those of all objects but the first three change places, as a function of the seed."""
    own = sorted(state.objects)[_FIRST:]
    return {own[i]: own[j] for i, j in enumerate(np.random.default_rng([seed, 7]).permutation(len(own)))}


def renumbered(state: GameState, numbers: Mapping[int, int]) -> GameState:
    """The state with other uuids, in names and wherever names are mentioned too; objects without one keep theirs."""
    objects: dict[int, GameObject] = {}
    for uuid, item in state.objects.items():
        changed: Any = {**_renumbered(item, numbers), "uuid": numbers.get(uuid, uuid)}
        objects[changed["uuid"]] = changed
    return GameState(
        objects={uuid: objects[uuid] for uuid in sorted(objects)},
        score=state.score,
        game_over=state.game_over,
        game_won=state.game_won,
    )


def renumbered_text(text: str, numbers: Mapping[int, int]) -> str:
    """The same for an action or a name: every ``(ID: n)`` in it."""
    return _ID.sub(lambda found: f"(ID: {numbers.get(int(found[1]), int(found[1]))})", text)


def _renumbered(value: Any, numbers: Mapping[int, int]) -> Any:
    if isinstance(value, str):
        return renumbered_text(value, numbers)
    if isinstance(value, Mapping):
        return {key: _renumbered(inner, numbers) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_renumbered(inner, numbers) for inner in value]
    return value
