"""Rewards on predicted game states: is the next state right, or how much of what changes is right.

Special: all but the published two are in 0..1, and *the metric in a table is the reward function*.

- ``exact``: 1 if the predicted state equals the recorded one (names, types, added and removed objects, score and
  all), else 0.
- ``property``: F1 between the predicted and the true difference, fact by fact (a property, ``contains``, a name,
  a type, a score field, an object that goes; a new object counts once for each thing it says). Nothing predicted
  where nothing changes is 1; otherwise an empty difference earns 0, an invented object costs precision and a
  forgotten removal costs recall. It is 1 only where ``exact`` is.
- ``official_binary`` and ``official_task_specific``: the published rewards (``training.rewards.official_states``).

An answer that cannot be read earns 0 from every one of them. Both rewards of our own look at the state that an
answer leads to, never at its wording.

Absent on purpose: length or format bonuses.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Literal, get_args

from training.rewards.official_states import (
    official_answer_scores,
    official_binary,
    official_question,
    official_scores,
    official_task_specific,
)
from worldmodels.api import Observation, Prediction, Score, Transition
from worldmodels.language.answers import answer_value, read_answer
from worldmodels.language.game_state import GameState, parse_state, same_names, same_value
from worldmodels.language.state_diff import GONE, Fact, StateDifference, difference
from worldmodels.language.state_texts import read_state

__all__ = [
    "StateReward",
    "StateRewardName",
    "exact",
    "official_binary",
    "official_task_specific",
    "property_f1",
    "published_state",
    "score_answer",
    "state_scores",
]

StateRewardName = Literal["exact", "property", "official_binary", "official_task_specific"]


def exact(predicted: GameState | None, *, target: GameState) -> float:
    """1.0 if the predicted state says what the target says, else 0.0; None (no readable answer) is 0.0."""
    return float(predicted is not None and predicted == target)


def property_f1(predicted: GameState | None, *, before: GameState, target: GameState) -> float:
    """F1 in 0..1 between the predicted difference and the true one; None (no readable answer) is 0.0."""
    return state_scores(predicted, before=before, target=target)["property"]


def state_scores(predicted: GameState | None, *, before: GameState, target: GameState) -> dict[str, float]:
    """``exact``, ``property`` and what it is made of, ``precision`` and ``recall``, each in 0..1."""
    if predicted is None:
        return dict.fromkeys(("exact", "property", "precision", "recall"), 0.0)
    return _compare(difference(before, predicted), difference(before, target))


def score_answer(
    text: str, *, data_state: str, ground_truth: str, reward: StateRewardName = "exact"
) -> float:
    """Score what a model wrote, in the published answer format.

    Args:
        text: All that the model wrote; unreadable text earns 0.
        data_state: JSON of the state before, as ``worldmodels.language.game_state.parse_state`` reads it (the
            published rewards want the published form).
        ground_truth: JSON of the true next state.
        reward: Which reward.

    Raises:
        ValueError: Unknown reward, or ``data_state`` or ``ground_truth`` is not a state.
    """
    if reward in ("official_binary", "official_task_specific"):
        scores = official_scores(text, official_question(data_state, ground_truth))
        return scores.binary if reward == "official_binary" else scores.task_specific
    _check_name(reward)
    before, target = read_state(data_state), read_state(ground_truth)
    predicted = read_answer(text, before).state
    if reward == "exact":
        return exact(predicted, target=target)
    return property_f1(predicted, before=before, target=target)


class StateReward:
    """A reward on states as a ``worldmodels.api.VerifiableReward``.

    Observations are states as JSON text or ``GameState``. With H > 1 steps, each prediction is compared with its
    own target, as a change of the recorded state before it, and the value is the mean over H. A prediction without
    an observation, or with one that is not a state, earns 0; the part ``"undecoded"`` is the share of those.

    Args:
        reward: What ``value`` is. ``exact``, ``property``, ``precision`` and ``recall`` are always among the parts.
    """

    def __init__(self, reward: StateRewardName = "exact") -> None:
        _check_name(reward)
        self.reward = reward

    def __call__(
        self, predictions: Sequence[Sequence[Prediction]], transitions: Sequence[Transition]
    ) -> list[Score]:
        """One score per transition. See ``worldmodels.api.VerifiableReward``.

        Raises:
            ValueError: A target is missing or is not a state, or counts differ.
        """
        if len(predictions) != len(transitions):
            raise ValueError(
                f"{len(predictions)} predictions for {len(transitions)} transitions: give one each"
            )
        return [self._one(row, *pair) for row, pair in enumerate(zip(predictions, transitions, strict=True))]

    def _one(self, row: int, answers: Sequence[Prediction], transition: Transition) -> Score:
        targets = transition.targets or ()
        if not len(answers) == len(targets) > 0:
            raise ValueError(
                f"sample {row} has {len(answers)} predictions and {len(targets)} targets: give H >= 1 of each"
            )
        befores = [transition.history.observations[-1], *targets[:-1]]
        steps = [
            self._step(answer, _state(before), _state(target))
            for answer, before, target in zip(answers, befores, targets, strict=True)
        ]
        parts = {name: sum(step[name] for step in steps) / len(steps) for name in steps[0]}
        return Score(value=parts[self.reward], parts=parts)

    def _step(self, answer: Prediction, before: GameState, target: GameState) -> dict[str, float]:
        predicted = _predicted(answer.observation)
        parts = state_scores(predicted, before=before, target=target)
        parts["undecoded"] = float(predicted is None)
        if self.reward.startswith("official"):
            question = official_question(published_state(before), published_state(target))
            said = {} if predicted is None else answer_value(before, predicted)  # {} earns 0
            scores = official_answer_scores(said, question)
            parts["official_binary"] = scores.binary
            parts["official_task_specific"] = scores.task_specific
        return parts


def _compare(guess: StateDifference, truth: StateDifference) -> dict[str, float]:
    guessed, true = guess.facts(), truth.facts()
    if not guessed and not true:
        return dict.fromkeys(("exact", "property", "precision", "recall"), 1.0)
    hits = sum(fact in true and _agree(fact, value, true[fact]) for fact, value in guessed.items())
    return {
        "exact": float(hits == len(guessed) == len(true)),
        "property": 2 * hits / (len(guessed) + len(true)),
        "precision": hits / len(guessed) if guessed else 0.0,
        "recall": hits / len(true) if true else 0.0,
    }


def _agree(fact: Fact, one: Any, other: Any) -> bool:
    if one is GONE or other is GONE:
        return one is other
    return same_names(one, other) if fact[1:] == ("contains",) else same_value(one, other)


def _state(observation: Observation) -> GameState:
    return observation if isinstance(observation, GameState) else read_state(observation)


def _predicted(observation: Observation | None) -> GameState | None:
    if observation is None or isinstance(observation, GameState):
        return observation
    try:
        return parse_state(observation)
    except ValueError:
        return None


def published_state(state: GameState) -> str:
    """JSON of a state in the published form (the score is the last element): what the published rewards want."""
    return json.dumps({"game_state": [*map(dict, state.objects.values()), state.scores()]})


def _check_name(reward: str) -> None:
    if reward not in get_args(StateRewardName):
        raise ValueError(f"unknown state reward {reward!r}; choose one of {list(get_args(StateRewardName))}")
