"""What a search in a learned text game asks, with the answers of the true one: lessons from a model's own mistakes.

Special: a planner believes whatever looks like progress, so a model's rare mistakes are what it follows. Searches of
the true game do not ask about them. Here the search runs in the model, from a moment of somebody's way, and its
questions are answered by the game, whose rules hold in imagined states, too; most of what is kept are questions that
the model answered wrongly. A model that is trained on them again has different mistakes, and fewer.

Absent: files and splits (``text_data``), training, and rules of any game.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from planners.tree import TreeSearch
from planners.tree_config import TreeConfig
from rlvr_envs.simulators.text_games.engine import Game, step, valid_actions
from training.text_searched import each_kind, moment_of
from worldmodels.api import History, RolloutState
from worldmodels.language.game_state import GameState, parse_state
from worldmodels.language.slot_world import SlotWorldModel, StatePredictions, TextRollouts
from worldmodels.language.transitions import GameTransition

_MARK = "-mistaken"


@dataclass(frozen=True, kw_only=True)
class MistakenConfig:
    """How a model is searched.

    Attributes:
        budget: Questions of one search, at most.
        wrong: Rows kept of those that the model answered wrongly, at most, see ``text_searched.each_kind``.
        right: Rows kept of the others, at most, so that a lesson says what to go on doing.
        moments: The search begins after less than so many steps of the way.
    """

    budget: int = 400
    wrong: int = 32
    right: int = 8
    moments: int = 20


def is_mistaken(row: GameTransition) -> bool:
    """Whether the row is a lesson from a model's mistakes."""
    return row.episode.endswith(_MARK)


def mistaken_rows(
    game: Game, variation: int, world: SlotWorldModel, config: MistakenConfig, *, random_share: float = 0.0
) -> list[GameTransition]:
    """Some of what a tree search asks of a model, with what truly happens.

    Args:
        game: The rules.
        variation: The start; it also seeds the way and the sample.
        world: The model.
        config: How much is searched and kept.
        random_share: Probability in [0, 1] that a step of the way before the search is a random valid action
            instead of the solver's.
    """
    generator = np.random.default_rng([variation, zlib.crc32(game.name.encode()), 6])
    first = moment_of(game, variation, generator, random_share, config.moments)
    listener = _Listener(world)
    # Nothing is postponed: so were the searches made that the bundled models learned from.
    search = TreeSearch(TreeConfig(budget_steps=config.budget, postpone=0))
    search.plan(
        listener,
        History(observations=[first], instruction=game.name),
        lambda text: valid_actions(game, parse_state(text)),
    )
    rows: list[GameTransition] = []
    wrong: list[bool] = []
    for number, (before, action, said) in enumerate(listener.asked):
        try:
            after = step(game, before, action).state
        except (LookupError, TypeError, ValueError):  # the model imagined a state that the rules do not know
            continue
        row_id = f"{game.name}/{variation}{_MARK}/{number}"
        rows.append(GameTransition(id=row_id, game=game.name, before=before, action=action, after=after))
        wrong.append(said != after)
    kept: list[int] = []
    for is_wrong, most in ((True, config.wrong), (False, config.right)):
        numbers = [number for number in range(len(rows)) if wrong[number] == is_wrong]
        kept += [numbers[place] for place in each_kind([rows[n] for n in numbers], most, generator)]
    return [rows[number] for number in sorted(kept)]


class _Listener(SlotWorldModel):
    """A model, and all that it was asked and said."""

    def __init__(self, world: SlotWorldModel) -> None:
        super().__init__(world.model, protocol=world.protocol)
        self.asked: list[tuple[GameState, str, GameState | None]] = []

    def step(
        self, state: RolloutState, actions: Sequence[str], *, temperature: float = 1.0
    ) -> tuple[TextRollouts, StatePredictions]:
        later, predictions = super().step(state, actions, temperature=temperature)
        assert isinstance(state, TextRollouts)
        said = [answer.state for answer in predictions.answers]
        self.asked += zip(state.states, actions, said, strict=True)
        return later, predictions
