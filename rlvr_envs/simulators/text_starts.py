"""Makes the bundled first states of text-game dreams: ``python -m rlvr_envs.simulators.text_starts``."""

from __future__ import annotations

import logging
from collections.abc import Iterator

from rlvr_envs.contexts import TEXT_STARTS
from rlvr_envs.simulators.text_games.catalogue import GAMES
from rlvr_envs.simulators.text_games.engine import start, step, valid_actions
from worldmodels.language.transitions import GameTransition, write_transitions

FIRST_VARIATION = 500_000  # training, validation and test data have lower ones


def make_text_starts(*, per_game: int = 40) -> Iterator[GameTransition]:
    """First states of every game, each with its first valid action: the form in which states are recorded."""
    for name, game in GAMES.items():
        for number in range(per_game):
            state = start(game, FIRST_VARIATION + number)
            action = valid_actions(game, state)[0]
            yield GameTransition(
                id=f"{name}/{FIRST_VARIATION + number}/0",
                game=name,
                before=state,
                action=action,
                after=step(game, state, action).state,
            )


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    count = write_transitions(TEXT_STARTS, make_text_starts())
    logging.getLogger(__name__).info("wrote %d states to %s", count, TEXT_STARTS)
