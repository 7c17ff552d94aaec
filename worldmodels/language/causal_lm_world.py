"""Any causal language model as a world model of text games: prompted, read, and never believed blindly.

Special: how a question is worded is a plain function from state and action to text; what comes back is read as the
published answer format, and whatever is wrong with it (unreadable, endless, a question too long for the model) is an
error in words, and the state stays. Rollout states hold parsed states and counters only, as for slot models.

Absent: training, prompts (``prompts``), and a cache between turns: each turn is a new question.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import torch

from worldmodels.api import History, RolloutState
from worldmodels.language.answers import Answer, read_answer
from worldmodels.language.causal_lm import CausalLM
from worldmodels.language.game_state import GameState
from worldmodels.language.slot_world import StatePredictions, TextRollouts, begun, checked_rollouts
from worldmodels.video.rollout_rows import threads_for

Prompt: TypeAlias = Callable[[GameState, str, str], str]
"""(state, action, name of the game or "") -> the question as text: ``prompts.compact_prompt``, or one of
``published_prompt``."""


class CausalLMWorldModel:
    """See ``worldmodels.api.WorldModel``. Observations are states as JSON text, actions are texts.

    Args:
        lm: Speaks.
        prompt: Words the question. A ValueError that it raises becomes the error of that row.
        max_new_tokens: An answer that has not ended by then is an error.
        protocol: What the model was trained for; an environment that asks for something else refuses it.

    Raises:
        ValueError: ``max_new_tokens`` is not positive.
    """

    history_length = 1
    action_shape: tuple[int, ...] | None = None

    def __init__(
        self,
        lm: CausalLM,
        prompt: Prompt,
        *,
        max_new_tokens: int = 4096,
        protocol: Mapping[str, Any] | None = None,
    ) -> None:
        if max_new_tokens < 1:
            raise ValueError(f"max_new_tokens is {max_new_tokens}; it must be at least 1")
        self.lm = lm.eval()
        self.prompt, self.max_new_tokens = prompt, max_new_tokens
        self.protocol = dict(protocol or {})

    def asked_by(self, prompt: Prompt) -> CausalLMWorldModel:
        """The same model with questions in other words."""
        return CausalLMWorldModel(self.lm, prompt, max_new_tokens=self.max_new_tokens, protocol=self.protocol)

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
        answers = [Answer(state=before) for before in rows.states]
        asked: list[int] = []
        prompts: list[list[int]] = []
        for row, (before, action) in enumerate(zip(rows.states, actions, strict=True)):
            if before.game_over:
                continue
            try:
                prompts.append(self._encoded(before, action, rows.games[row]))
                asked.append(row)
            except ValueError as error:  # a question that cannot be put has an answer all the same
                answers[row] = Answer(error=str(error))
        if asked:
            index = torch.tensor(asked, dtype=torch.int64, device=rows.seeds.device)
            with threads_for(len(asked), self.lm):
                said = self.lm.answer(
                    prompts,
                    seeds=rows.seeds[index],
                    steps=rows.steps[index],
                    temperature=temperature,
                    max_new_tokens=self.max_new_tokens,
                )
            for row, (text, ended) in zip(asked, self.lm.texts(said.tokens, said.mask), strict=True):
                answers[row] = read_ended(text, ended, rows.states[row], max_new_tokens=self.max_new_tokens)
        later = replace(
            rows,
            states=tuple(answer.state or before for answer, before in zip(answers, rows.states, strict=True)),
            steps=rows.steps + 1,
        )
        return later, StatePredictions(rows.states, answers)

    def _encoded(self, before: GameState, action: str, game: str) -> list[int]:
        tokens = self.lm.encode(self.prompt(before, action, game))
        context = self.lm.context
        if context is not None and len(tokens) + self.max_new_tokens > context:
            raise ValueError(
                f"the question has {len(tokens)} tokens; the model holds {context}, of which an answer may take "
                f"{self.max_new_tokens}"
            )
        return tokens


def read_ended(text: str, ended: bool, before: GameState, *, max_new_tokens: int) -> Answer:
    """The next state according to an answer; one that was cut is an error, whatever it holds. Never raises."""
    if not ended:
        return Answer(error=f"the answer had not ended after {max_new_tokens} tokens")
    return read_answer(text, before)
