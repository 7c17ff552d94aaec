"""A weighted sum of verifiable rewards, with every part kept under its own name.

Absent on purpose: schedules, normalisation and gating; a reward that needs those is a reward of its own.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from worldmodels.api import Prediction, Score, Transition, VerifiableReward


class CombinedReward:
    """``value = sum of weight * reward``; parts are ``"<name>"`` and ``"<name>/<part>"``, unweighted.

    Args:
        rewards: Named rewards with their finite weights, for example ``{"frames": (FrameReward(...), 1.0)}``.
    """

    def __init__(self, rewards: Mapping[str, tuple[VerifiableReward, float]]) -> None:
        if not rewards:
            raise ValueError("no rewards to combine: give at least one")
        if bad := {name: weight for name, (_, weight) in rewards.items() if not math.isfinite(weight)}:
            raise ValueError(f"reward weights must be finite: got {bad}")
        self.rewards = dict(rewards)

    def __call__(
        self, predictions: Sequence[Sequence[Prediction]], transitions: Sequence[Transition]
    ) -> list[Score]:
        """One score per transition.

        Raises:
            ValueError: A reward returns another number of scores, or a score that is not finite.
        """
        values = [0.0] * len(transitions)
        parts: list[dict[str, float]] = [{} for _ in transitions]
        for name, (reward, weight) in self.rewards.items():
            scores = reward(predictions, transitions)
            if len(scores) != len(transitions):
                raise ValueError(
                    f"reward {name!r} gave {len(scores)} scores for {len(transitions)} transitions"
                )
            for row, score in enumerate(scores):
                if not math.isfinite(score.value):
                    raise ValueError(
                        f"reward {name!r} of sample {row} is {score.value} (parts {dict(score.parts)})"
                    )
                values[row] += weight * score.value
                parts[row][name] = score.value
                parts[row].update({f"{name}/{part}": value for part, value in score.parts.items()})
        return [Score(value=value, parts=part) for value, part in zip(values, parts, strict=True)]
