"""What a search asks of a text game, and a sample of it that shows every kind of outcome.

Special: a planner that looks for ways in a learned model asks about hundreds of states that no way to a victory
visits, and believes every mistake there that looks like progress. So the same search is set loose on the true game,
from a moment of somebody's way, and its questions become training rows. They are sampled by kind (first word of the
action, and what kind of thing changes): rare kinds, such as points, side effects and near misses, come before
common ones.

Absent: files and splits (``text_data``), models, and rules of any game.
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np

from planners.tree import TreeSearch
from planners.tree_config import TreeConfig
from rlvr_envs.simulators.text_game_world import GamePredictions, GameRollouts, TextGameWorld
from rlvr_envs.simulators.text_games.engine import Game, advise, start, step, valid_actions
from worldmodels.api import History, RolloutState
from worldmodels.language.game_state import GameState, parse_state
from worldmodels.language.state_diff import difference
from worldmodels.language.transitions import GameTransition

_MARK = "-searched"


@dataclass(frozen=True, kw_only=True)
class SearchedConfig:
    """How the true game is searched.

    Attributes:
        budget: Questions of one search, at most; the sample is drawn from them.
        rows: Rows kept of one search, at most.
        moments: The search begins after less than so many steps of the way.
    """

    budget: int = 250
    rows: int = 32
    moments: int = 20


def searched_rows(
    game: Game, variation: int, config: SearchedConfig, *, random_share: float = 0.0
) -> list[GameTransition]:
    """Some of what a tree search asks of a variation of the true game, with the answers.

    Args:
        game: The rules.
        variation: The start; it also seeds the way and the sample.
        config: How much is searched and kept.
        random_share: Probability in [0, 1] that a step of the way before the search is a random valid action
            instead of the solver's.
    """
    generator = np.random.default_rng([variation, zlib.crc32(game.name.encode()), 3])
    first = moment_of(game, variation, generator, random_share, config.moments)
    world = _Recorder()
    # Nothing is postponed: so were the searches made that the bundled models learned from.
    search = TreeSearch(TreeConfig(budget_steps=config.budget, width=1, postpone=0))
    search.plan(
        world,
        History(observations=[first], instruction=game.name),
        lambda text: valid_actions(game, parse_state(text)),
    )
    rows = [
        GameTransition(
            id=f"{game.name}/{variation}{_MARK}/{number}",
            game=game.name,
            before=before,
            action=action,
            after=after,
        )
        for number, (before, action, after) in enumerate(world.asked)
    ]
    return [rows[number] for number in each_kind(rows, config.rows, generator)]


def is_searched(row: GameTransition) -> bool:
    """Whether a search asked for a row, and not somebody's way."""
    return row.episode.endswith(_MARK)


def each_kind(rows: Sequence[GameTransition], most: int, generator: np.random.Generator) -> list[int]:
    """Numbers of at most so many rows, in order: one of every kind, then a second one, the rare kinds first."""
    kinds: dict[Hashable, list[int]] = {}
    for number, row in enumerate(rows):
        kinds.setdefault(kind_of(row), []).append(number)
    groups = sorted(kinds.values(), key=len)
    for group in groups:
        generator.shuffle(group)
    turns = sorted((turn, place) for place, group in enumerate(groups) for turn in range(len(group)))
    return sorted(groups[place][turn] for turn, place in turns[:most])


def kind_of(row: GameTransition) -> Hashable:
    """The action's first word, points, and which properties of which types change, come or go."""
    change = difference(row.before, row.after)
    types = {uuid: item["type"] for state in (row.before, row.after) for uuid, item in state.objects.items()}
    touched = Counter(
        (types[fact[0]], *fact[1:]) if isinstance(fact[0], int) else fact
        for fact in (*change.changed, *change.dropped, *((uuid,) for uuid in change.removed))
    )
    added = sorted(item["type"] for item in change.added)
    word, points = row.action.partition(" ")[0], row.after.score - row.before.score
    return word, points, row.after.game_won, frozenset(touched.items()), tuple(added)


def moment_of(
    game: Game, variation: int, generator: np.random.Generator, random_share: float, moments: int
) -> GameState:
    """A state on a way through a game, before its end."""
    state = start(game, variation)
    for _ in range(int(generator.integers(moments))):
        actions = valid_actions(game, state)
        choice = actions[int(generator.integers(len(actions)))]
        advice = None if generator.random() < random_share else advise(game, state)
        after = step(game, state, choice if advice is None else advice).state
        if after.game_over:
            break
        state = after
    return state


class _Recorder(TextGameWorld):
    """The true games, and all that they were asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[GameState, str, GameState]] = []

    def step(
        self, state: RolloutState, actions: Sequence[str], *, temperature: float = 1.0
    ) -> tuple[GameRollouts, GamePredictions]:
        later, predictions = super().step(state, actions, temperature=temperature)
        assert isinstance(state, GameRollouts)
        self.asked += zip(state.states, actions, later.states, strict=True)
        return later, predictions
