"""The text games themselves as a world model: the row of a table in which every prediction is true.

Special: what a planner sees of it is what it sees of a learned model, states as canonical JSON and errors in words,
so the two take each other's place. The game is read from the state's task, so one batch may hold many games.
There is no chance in the games: seeds and temperature change nothing.

Absent on purpose: torch, and the valid actions, which a world model does not know.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rlvr_envs.simulators.text_games.catalogue import game_named
from rlvr_envs.simulators.text_games.engine import checked_start, step
from rlvr_envs.spaces import Document
from rlvr_envs.text_states import MAX_ACTION_CHARACTERS
from worldmodels.api import History, Observation, Prediction, RolloutState
from worldmodels.language.game_state import GameState, parse_state

_ACTIONS = Document(max_characters=MAX_ACTION_CHARACTERS)


@dataclass(frozen=True, kw_only=True, eq=False)
class GameRollouts:
    """See ``worldmodels.api.RolloutState``: where B games stand. Copies of a row are the same row.

    Attributes:
        games: B names.
        states: B game states.
    """

    games: tuple[str, ...]
    states: tuple[GameState, ...]

    def __len__(self) -> int:
        return len(self.states)

    def fork(self, n: int) -> GameRollouts:
        """Every row n times, side by side.

        Raises:
            ValueError: ``n`` is less than 1.
        """
        if n < 1:
            raise ValueError(f"cannot fork into {n} copies; give at least 1")
        return self.select([row for row in range(len(self)) for _ in range(n)])

    def select(self, rows: Sequence[int]) -> GameRollouts:
        """The given rows, in the given order.

        Raises:
            IndexError: There is no such row.
        """
        chosen = [int(row) for row in rows]
        if any(not -len(self) <= row < len(self) for row in chosen):
            raise IndexError(f"rows {chosen} of a state with {len(self)} rows")
        return GameRollouts(
            games=tuple(self.games[row] for row in chosen), states=tuple(self.states[row] for row in chosen)
        )

    def append(self, other: RolloutState) -> GameRollouts:
        """The rows of both, these first."""
        theirs = _checked(other)
        return GameRollouts(games=self.games + theirs.games, states=self.states + theirs.states)


class GamePredictions:
    """See ``worldmodels.api.Predictions``: what happened, or why an action could not be carried out.

    Args:
        befores: B states.
        afters: B states, the ones before where there was an error.
        errors: What was wrong with an action, or None.
    """

    def __init__(
        self, befores: Sequence[GameState], afters: Sequence[GameState], errors: Sequence[str | None]
    ) -> None:
        self._befores, self._afters, self._errors = befores, afters, errors

    def __len__(self) -> int:
        return len(self._afters)

    def __getitem__(self, row: int) -> Prediction:
        """The answer of one row; its reward is the change of the score."""
        after, error = self._afters[row], self._errors[row]
        if error is not None:
            return Prediction(observation=None, error=error)
        return Prediction(
            observation=after.to_text(),
            reward=float(after.score - self._befores[row].score),
            terminated=after.game_over,
        )

    def observations(self) -> list[Observation]:
        """Texts of all next states, of the present ones where there was an error."""
        return [after.to_text() for after in self._afters]

    def states(self) -> NDArray[np.float32] | None:
        """None: a game's state is no vector."""
        return None


class TextGameWorld:
    """See ``worldmodels.api.WorldModel``. Observations are states as JSON text, actions are texts."""

    history_length = 1
    action_shape: tuple[int, ...] | None = None

    def start(self, histories: Sequence[History], *, seeds: Sequence[int]) -> GameRollouts:
        """Begin one rollout per history; only the last observation counts.

        Raises:
            ValueError: An observation is no state, or none that its game can go on from.
        """
        if len(histories) != len(seeds) or not len(seeds):
            raise ValueError(f"{len(histories)} histories and {len(seeds)} seeds; give one seed per history")
        begun = [_begun(history.observations[-1]) for history in histories]
        return GameRollouts(games=tuple(name for name, _ in begun), states=tuple(state for _, state in begun))

    def step(
        self, state: RolloutState, actions: Sequence[str], *, temperature: float = 1.0
    ) -> tuple[GameRollouts, GamePredictions]:
        """One action per row.

        An action that the environment would refuse (too long, not valid unicode) is a prediction's error, and the
        row stays. A text that is no action of the game changes nothing, as in the environment.

        Raises:
            ValueError: Another number of actions, or one that is no text.
        """
        rows = _checked(state)
        if (
            isinstance(actions, str)
            or len(actions) != len(rows)
            or not all(isinstance(a, str) for a in actions)
        ):
            raise ValueError(f"{len(actions)} actions for {len(rows)} rows; give one text each")
        afters: list[GameState] = []
        errors: list[str | None] = []
        for name, before, action in zip(rows.games, rows.states, actions, strict=True):
            fault = _ACTIONS.fault(action)
            afters.append(before if fault else step(game_named(name), before, action).state)
            errors.append(f"the action {fault}" if fault else None)
        later = GameRollouts(games=rows.games, states=tuple(afters))
        return later, GamePredictions(rows.states, afters, errors)


def _begun(observation: Observation) -> tuple[str, GameState]:
    """A state and the name of its game."""
    state = observation if isinstance(observation, GameState) else parse_state(observation)
    tasks = [item["properties"].get("game") for item in state.objects.values() if item["type"] == "Task"]
    if len(tasks) != 1:
        raise ValueError(f"the state has {len(tasks)} objects of type 'Task'; one says what game it is")
    game = game_named(tasks[0])
    return game.name, checked_start(game, state)


def _checked(state: RolloutState) -> GameRollouts:
    if not isinstance(state, GameRollouts):
        raise TypeError(
            f"state is a {type(state).__name__}; give one that start or step of a TextGameWorld returned"
        )
    return state
