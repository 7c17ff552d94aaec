"""The rewards on game states in the shapes that TRL and verl call: thin, and without importing either.

Both take the published answer format and the columns of the published records. For TRL the data set needs the
columns ``data_state`` and ``ground_truth`` (JSON texts) beside ``prompt``; for verl the records are used as they
are, with ``custom_reward_function.path`` set to this file and ``.name`` to ``compute_score``.

Absent on purpose: GRPO itself (``training.grpo``), data sets and prompts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from training.rewards.states import StateRewardName, score_answer


def trl_reward(reward: StateRewardName = "exact") -> Callable[..., list[float]]:
    """A reward function for ``trl.GRPOTrainer(reward_funcs=...)``, named after the reward in TRL's logs.

    It is called with ``completions`` (texts, or lists of chat messages of which the last one counts) and, one
    entry each, the data set's columns ``data_state`` and ``ground_truth``; other arguments are ignored.

    Raises:
        ValueError: When called: a column is missing or is not a state, or the counts differ.
    """

    def state_reward(
        completions: Sequence[Any],
        data_state: Sequence[str] | None = None,
        ground_truth: Sequence[str] | None = None,
        **_: Any,
    ) -> list[float]:
        if data_state is None or ground_truth is None:
            raise ValueError(
                "the TRL data set needs the columns 'data_state' and 'ground_truth' (JSON texts of the state "
                "before and after); do not let the trainer remove them"
            )
        if not len(completions) == len(data_state) == len(ground_truth):
            raise ValueError(
                f"{len(completions)} completions for {len(data_state)} data_state and {len(ground_truth)} "
                "ground_truth: give one each"
            )
        return [
            score_answer(_text(completion), data_state=before, ground_truth=after, reward=reward)
            for completion, before, after in zip(completions, data_state, ground_truth, strict=True)
        ]

    state_reward.__name__ = f"{reward}_state_reward"
    return state_reward


def compute_score(
    data_source: str,
    solution_str: str,
    ground_truth: str,
    extra_info: Mapping[str, Any] | None = None,
    *,
    reward: StateRewardName = "exact",
) -> float:
    """The ``compute_score`` of verl for records of text games.

    Args:
        data_source: Ignored; verl passes the record's name of the data set.
        solution_str: The decoded response.
        ground_truth: ``reward_model.ground_truth`` of the record: JSON of the next state.
        extra_info: The record's ``extra_info`` with ``data_state``: JSON of the state before.
        reward: Which reward (``custom_reward_function.reward_kwargs``).

    Raises:
        ValueError: ``extra_info`` has no ``data_state``, or a state cannot be read.
    """
    if not extra_info or "data_state" not in extra_info:
        raise ValueError("extra_info has no 'data_state' (JSON of the state before the action)")
    return score_answer(
        solution_str, data_state=extra_info["data_state"], ground_truth=ground_truth, reward=reward
    )


def _text(completion: Any) -> str:
    if isinstance(completion, str):
        return completion
    content = completion[-1]["content"] if completion else ""
    return content if isinstance(content, str) else ""
