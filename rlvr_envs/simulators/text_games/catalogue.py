"""All games by name."""

from __future__ import annotations

from collections.abc import Mapping

from rlvr_envs.simulators.text_games import (
    bake_bread,
    balance_scale,
    boil_water,
    call_help,
    cut_planks,
    grow_plant,
    light_lamp,
    measure_water,
    mix_paint,
    open_vault,
    wash_clothes,
)
from rlvr_envs.simulators.text_games.engine import Game

_ALL = (
    bake_bread,
    balance_scale,
    boil_water,
    call_help,
    cut_planks,
    grow_plant,
    light_lamp,
    measure_water,
    mix_paint,
    open_vault,
    wash_clothes,
)
GAMES: Mapping[str, Game] = {module.GAME.name: module.GAME for module in _ALL}


def game_named(name: str) -> Game:
    """The game of a name.

    Raises:
        ValueError: There is none; lists those there are.
    """
    if not isinstance(name, str) or name not in GAMES:
        raise ValueError(f"there is no game {str(name)[:80]!r}; the games are {', '.join(GAMES)}")
    return GAMES[name]
