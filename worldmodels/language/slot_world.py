"""A small language model as a world model of text games: states and actions in, next states out.

Special: the model writes differences, which are applied to the state that it was asked about; an answer that cannot
be read is an error in words and the state stays. Rollout states hold parsed states and counters only, so forking
and going back cost nothing.

Absent: rules of any game, and the valid actions, which a world model does not know.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from worldmodels.api import History, Observation, Prediction, RolloutState
from worldmodels.language.answers import Answer
from worldmodels.language.compact_answers import read_compact
from worldmodels.language.compact_questions import Question, Schema, ask
from worldmodels.language.game_state import GameState, parse_state
from worldmodels.language.renumbering import another_numbering, renumbered, renumbered_text
from worldmodels.language.slot_model import SlotModel
from worldmodels.language.words import Vocabulary
from worldmodels.nets.slot_transformer import SlotTransformerConfig
from worldmodels.sampling import derive
from worldmodels.video.rollout_rows import threads_for

_AT_ONCE = 256  # questions in one batch


@dataclass(frozen=True, eq=False)
class TextRollouts:
    """See ``worldmodels.api.RolloutState``: where B imagined games stand.

    Attributes:
        model: The world model that it belongs to.
        states: B game states.
        games: Names of the games, as far as histories told.
        seeds: ``(B,)`` int64.
        steps: ``(B,)`` int64, turns since each row's start: the counter of its draws.
    """

    model: object
    states: tuple[GameState, ...]
    games: tuple[str, ...]
    seeds: torch.Tensor
    steps: torch.Tensor

    def __len__(self) -> int:
        return len(self.states)

    def fork(self, n: int) -> TextRollouts:
        """Every row n times, each copy with a derived seed; the first keeps its own."""
        if n < 1:
            raise ValueError(f"cannot fork into {n} copies; give at least 1")
        return replace(
            self,
            states=tuple(state for state in self.states for _ in range(n)),
            games=tuple(game for game in self.games for _ in range(n)),
            seeds=derive(self.seeds[:, None], torch.arange(n)).flatten(),
            steps=self.steps.repeat_interleave(n),
        )

    def select(self, rows: Sequence[int]) -> TextRollouts:
        """The given rows, in the given order."""
        chosen = [int(row) for row in rows]
        if any(not -len(self) <= row < len(self) for row in chosen):
            raise IndexError(f"rows {chosen} of a state with {len(self)} rows")
        index = torch.tensor(chosen, dtype=torch.int64)
        return replace(
            self,
            states=tuple(self.states[row] for row in chosen),
            games=tuple(self.games[row] for row in chosen),
            seeds=self.seeds[index],
            steps=self.steps[index],
        )

    def append(self, other: RolloutState) -> TextRollouts:
        """The rows of both, these first."""
        theirs = checked_rollouts(self.model, other)
        return replace(
            self,
            states=self.states + theirs.states,
            games=self.games + theirs.games,
            seeds=torch.cat([self.seeds, theirs.seeds]),
            steps=torch.cat([self.steps, theirs.steps]),
        )


def begun(model: object, histories: Sequence[History], seeds: Sequence[int]) -> TextRollouts:
    """One rollout of a model per history; only the last observation counts.

    Raises:
        ValueError: An observation is no state, or seeds do not fit.
    """
    if len(histories) != len(seeds) or not len(seeds):
        raise ValueError(f"{len(histories)} histories and {len(seeds)} seeds; give one seed per history")
    last = [history.observations[-1] for history in histories]
    return TextRollouts(
        model=model,
        states=tuple(seen if isinstance(seen, GameState) else parse_state(seen) for seen in last),
        games=tuple(history.instruction for history in histories),
        seeds=torch.tensor([int(seed) for seed in seeds], dtype=torch.int64),
        steps=torch.zeros(len(seeds), dtype=torch.int64),
    )


def checked_rollouts(model: object, state: RolloutState) -> TextRollouts:
    """The state, if it belongs to the model.

    Raises:
        TypeError: It is something else, or belongs to another model.
    """
    if not isinstance(state, TextRollouts) or state.model is not model:
        whose = "of another model" if isinstance(state, TextRollouts) else f"a {type(state).__name__}"
        raise TypeError(f"state is {whose}; give one that start or step of this model returned")
    return state


class StatePredictions:
    """See ``worldmodels.api.Predictions``: next states as canonical JSON texts.

    Attributes:
        answers: What each row's model said.
    """

    def __init__(self, befores: Sequence[GameState], answers: Sequence[Answer]) -> None:
        self._befores, self.answers = befores, answers

    def __len__(self) -> int:
        return len(self.answers)

    def __getitem__(self, row: int) -> Prediction:
        """The answer of one row; its reward is the change of the score."""
        answer, before = self.answers[row], self._befores[row]
        if answer.state is None:
            return Prediction(observation=None, error=answer.error)
        return Prediction(
            observation=answer.state.to_text(),
            reward=float(answer.state.score - before.score),
            terminated=answer.state.game_over,
            probability=answer.probability,
        )

    def observations(self) -> list[Observation]:
        """Texts of all next states, of the present ones where an answer was an error."""
        return [
            (answer.state or before).to_text()
            for answer, before in zip(self.answers, self._befores, strict=True)
        ]

    def states(self) -> NDArray[np.float32] | None:
        """None: a game's state is no vector."""
        return None


class SlotWorldModel:
    """See ``worldmodels.api.WorldModel``. Observations are states as JSON text, actions are texts.

    Args:
        model: Speaks.
        protocol: What the model was trained for; an environment that asks for something else refuses it.
        views: An answer that promises points is asked for again in so many other numberings of the state's objects,
            and its probability is the share of all that agree; 0 leaves it at the model's own probability. A search
            tries thousands of actions and finds the luckiest mistakes, and many do not survive renumbering.

    Raises:
        ValueError: ``views`` is negative.
    """

    history_length = 1
    action_shape: tuple[int, ...] | None = None

    def __init__(
        self,
        model: SlotModel,
        *,
        protocol: Mapping[str, Any] | None = None,
        views: int = 0,
    ) -> None:
        if views < 0:
            raise ValueError(f"views is {views}; it must be 0 or more")
        self.model = model.eval()
        self.protocol = dict(protocol or {})
        self.views = views

    def start(self, histories: Sequence[History], *, seeds: Sequence[int]) -> TextRollouts:
        """Begin one rollout per history; only the last observation counts.

        Raises:
            ValueError: An observation is no state.
        """
        return begun(self, histories, seeds)

    def step(
        self, state: RolloutState, actions: Sequence[str], *, temperature: float = 1.0
    ) -> tuple[TextRollouts, StatePredictions]:
        """One action per row. Where the game is over, nothing changes.

        Raises:
            ValueError: Another number of actions, or one that is no text.
        """
        rows = checked_rollouts(self, state)
        if len(actions) != len(rows) or not all(isinstance(action, str) for action in actions):
            raise ValueError(f"{len(actions)} actions for {len(rows)} rows; give one text each")
        answers: list[Answer] = [Answer(state=before) for before in rows.states]
        asked = [row for row, before in enumerate(rows.states) if not before.game_over]
        with threads_for(len(asked), self.model):
            for first in range(0, len(asked), _AT_ONCE):
                part = asked[first : first + _AT_ONCE]
                for row, answer in zip(part, self._answers(rows, actions, part, temperature), strict=True):
                    answers[row] = answer
        later = replace(
            rows,
            states=tuple(answer.state or before for answer, before in zip(answers, rows.states, strict=True)),
            steps=rows.steps + 1,
        )
        return later, StatePredictions(rows.states, answers)

    def _answers(
        self, rows: TextRollouts, actions: Sequence[str], part: Sequence[int], temperature: float
    ) -> list[Answer]:
        questions, places, answers = [], [], {}
        for row in part:
            try:
                questions.append(ask(rows.states[row], actions[row], self.model.schema))
                places.append(row)
            except ValueError as error:  # more objects than a question holds: an answer all the same
                answers[row] = Answer(error=str(error))
        if questions:
            index = torch.tensor(places, dtype=torch.int64)
            said = self.model.answer(
                questions, seeds=rows.seeds[index], steps=rows.steps[index], temperature=temperature
            )
            sure = said.logprobs.sum(1).exp().tolist()
            for row, tokens, probability in zip(places, said.tokens.tolist(), sure, strict=True):
                answer = read_compact(tokens, rows.states[row], self.model.vocabulary)
                answers[row] = replace(answer, probability=probability)
            if self.views:
                answers.update(self._seconded(rows, actions, answers))
        return [answers[row] for row in part]

    def _seconded(
        self, rows: TextRollouts, actions: Sequence[str], answers: Mapping[int, Answer]
    ) -> dict[int, Answer]:
        """The answers that promise points, with the share of views that agree as their probability."""
        asked: list[tuple[int, GameState, GameState]] = []  # row, what is asked about, what was promised
        questions: list[Question] = []
        for row, answer in answers.items():
            before, promised = rows.states[row], answer.state
            if promised is None or not (promised.score > before.score or promised.game_won):
                continue
            for view in range(self.views):
                numbers = another_numbering(before, view)
                asked.append((row, renumbered(before, numbers), renumbered(promised, numbers)))
                questions.append(ask(asked[-1][1], renumbered_text(actions[row], numbers), self.model.schema))
        agreeing = Counter({row: 1 for row, _, _ in asked})
        for first in range(0, len(asked), _AT_ONCE):
            part = asked[first : first + _AT_ONCE]
            seeds = torch.zeros(len(part), dtype=torch.int64)
            said = self.model.answer(questions[first : first + _AT_ONCE], seeds=seeds, temperature=0.0)
            for (row, before, promised), tokens in zip(part, said.tokens.tolist(), strict=True):
                agreeing[row] += read_compact(tokens, before, self.model.vocabulary).state == promised
        return {
            row: replace(answers[row], probability=count / (1 + self.views))
            for row, count in agreeing.items()
        }


def slot_config(model: SlotModel) -> dict[str, Any]:
    """What a checkpoint's config holds of a slot model, besides its protocol."""
    return {
        "kind": "slot_world",
        "network": asdict(model.net.config),
        "words": list(model.vocabulary.words),
        "varied": {type_: sorted(keys) for type_, keys in sorted(model.schema.varied.items())},
    }


def slot_model(config: Mapping[str, Any]) -> SlotModel:
    """A model of these sizes and this language, its weights not read yet."""
    varied = {type_: frozenset(keys) for type_, keys in config["varied"].items()}
    return SlotModel(
        SlotTransformerConfig(**config["network"]), Vocabulary(config["words"]), Schema(varied=varied)
    )
