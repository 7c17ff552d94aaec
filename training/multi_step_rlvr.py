"""GRPO of the multi-step world model on decoded frames: G futures of every question, scored against what was
recorded.

Special: a future is all frames of a window at once (7 with the published layout), sampled with the recorded
actions forced in between; the reward is the mean of -(L1 + LPIPS) over its frames, and a penalty on repeated
frames may be added. Likelihoods are over the code book of frames, which is what is sampled from.

Absent: the loop (``training.grpo_loop``) and the arithmetic of rewards (``training.rewards.frames``).

Shapes: P questions, G samples of each, R = P * G rows, H = num_frames - 1 predicted frames, K ids of a frame.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from training.data import to_float
from training.frame_data import FrameData
from training.grpo_config import GRPOConfig
from training.grpo_loop import Rollout
from training.grpo_task import validation_answers
from training.multi_step import FrameTokens, frame_nll, multi_step_gates
from training.rewards.frames import FrameRewardConfig, frame_scores
from worldmodels.generate import Forced, Sampled, generate
from worldmodels.nets.bfloat16 import autocast
from worldmodels.nets.llama import Llama
from worldmodels.nets.perceptual import Perceptual
from worldmodels.video.compressive_tokenizer import CompressiveTokenizer
from worldmodels.video.layouts import MultiStepLayout


@dataclass(frozen=True, kw_only=True)
class MultiStepRLVRRecipe:
    """One post-training run; the defaults are the published numbers.

    Attributes:
        grpo: Settings of the loop.
        reward: Weights of its parts.
        network: Backbone of LPIPS.
        validation_windows: Questions of an evaluation.
        decode_rows: Frames decoded at once.
        decode_autocast: Whether frames are decoded in bfloat16, where the device has it, to be scored.
    """

    grpo: GRPOConfig = field(default_factory=GRPOConfig)
    reward: FrameRewardConfig = field(default_factory=FrameRewardConfig)
    network: Literal["alex", "vgg"] = "vgg"
    validation_windows: int = 64
    decode_rows: int = 256
    decode_autocast: bool = False


@dataclass(frozen=True)
class Window:
    """A question: the frame at ``start`` of an episode is known, the next H are asked for."""

    episode: int
    start: int


def windows_of(tokens: FrameTokens, layout: MultiStepLayout) -> list[Window]:
    """All questions of a split."""
    starts = range(tokens.frames.shape[1] - layout.num_frames + 1)
    return [Window(episode, start) for episode in range(len(tokens)) for start in starts]


class MultiStepTask:
    """Questions, answers and scores over one split.

    Args:
        tokenizer: Decodes frames; frozen.
        layout: Of the sequences.
        frames: The split with its pictures.
        tokens: The same split tokenised.
        recipe: Reward and sizes.
        perceptual: Needed where the reward contains LPIPS.
    """

    def __init__(
        self,
        tokenizer: CompressiveTokenizer,
        layout: MultiStepLayout,
        frames: FrameData,
        tokens: FrameTokens,
        recipe: MultiStepRLVRRecipe,
        perceptual: Perceptual | None,
    ) -> None:
        self.tokenizer = tokenizer.eval().requires_grad_(False)
        self.layout, self.frames, self.tokens, self.recipe = layout, frames, tokens, recipe
        self.perceptual = perceptual
        self.questions = windows_of(tokens, layout)

    @property
    def horizon(self) -> int:
        """H."""
        return self.layout.num_frames - 1

    def _window(self, asked: Sequence[Window]) -> tuple[Tensor, Tensor, Tensor]:
        episodes = torch.tensor([question.episode for question in asked])
        starts = torch.tensor([question.start for question in asked])
        return self.tokens.window(episodes, starts, self.layout.num_frames)

    def sample(
        self,
        model: Any,
        prompts: Sequence[Window],
        *,
        group_size: int,
        seeds: Sequence[int],
        temperature: float,
    ) -> Rollout:
        """G futures of every question; ``tokens`` holds the frames' ids only, ``(R, H * K)``."""
        context, frames, actions = self._window(prompts)
        sequences = self.layout.build(context, frames, actions)
        segments: list[Forced | Sampled] = []
        for step in range(self.horizon):
            segments.append(Sampled(self.layout.dynamic_tokens, self.layout.dynamic))
            if step + 1 < self.horizon:
                segments.append(Forced(actions[:, step + 1] + self.layout.action_offset))
        completions = generate(
            model,
            sequences.input_ids[:, self.layout.prompt],
            seeds=torch.tensor(list(seeds), dtype=torch.int64),
            segments=segments,
            num_samples=group_size,
            temperature=temperature,
        )
        chosen = completions.mask[0]
        drawn, logprobs = completions.tokens[:, chosen], completions.logprobs[:, chosen]
        return Rollout(tokens=drawn, logprobs=logprobs, mask=torch.ones_like(drawn, dtype=torch.bool))

    @torch.no_grad()
    def decode(self, prompts: Sequence[Window], tokens: Tensor) -> Tensor:
        """Frames ``(R, H, 3, h, w)`` in [0, 1] of ids ``(R, H * K)``."""
        group = len(tokens) // len(prompts)
        _, features = self.tokenizer.decode_context(self._window(prompts)[0][:, 0])
        ids = tokens.reshape(-1, self.layout.dynamic_tokens)
        rows = torch.arange(len(prompts)).repeat_interleave(group * self.horizon)
        size = self.recipe.decode_rows
        with autocast(ids.device, self.recipe.decode_autocast):
            parts = [
                self.tokenizer.decode(features, part, rows=of)
                for part, of in zip(ids.split(size), rows.split(size), strict=True)
            ]
        return torch.cat(parts).float().clamp(0, 1).unflatten(0, (len(tokens), self.horizon))

    def targets(self, prompts: Sequence[Window]) -> Tensor:
        """Recorded frames ``(P, H, 3, h, w)``."""
        episodes = np.array([[question.episode] for question in prompts])
        times = np.array([[question.start] for question in prompts]) + 1 + np.arange(self.horizon)
        return to_float(self.frames.pixels(episodes, times))

    def score(self, prompts: Sequence[Window], rollout: Rollout) -> tuple[Tensor, dict[str, Tensor]]:
        """Rewards ``(R, H)`` of decoded frames."""
        return frame_scores(
            self.decode(prompts, rollout.tokens),
            self.targets(prompts),
            config=self.recipe.reward,
            perceptual=self.perceptual,
        )

    def logprobs(
        self, model: Any, prompts: Sequence[Window], rollout: Rollout, *, temperature: float
    ) -> Tensor:
        """Teacher-forced log-probabilities ``(R, H * K)``."""
        if temperature != 1.0:
            raise ValueError(f"temperature is {temperature}; this task trains at temperature 1")
        group = len(rollout.tokens) // len(prompts)
        context, *asked = self._window(prompts)
        frames, actions = (x.repeat_interleave(group, 0) for x in asked)
        answer = rollout.tokens.unflatten(1, (self.horizon, self.layout.dynamic_tokens))
        filled = torch.cat([frames[:, :1], answer], 1)
        return -frame_nll(model, self.layout, (context, filled, actions)).flatten(1)

    @torch.no_grad()
    def validate(self, llama: Llama) -> dict[str, float]:
        """Reward parts and repetition, sampled and greedy, on evenly spread questions with fixed seeds."""
        results: dict[str, float] = {}
        count = self.recipe.validation_windows
        for name, _, rollout, means in validation_answers(self, llama, count=count):
            ids = rollout.tokens.unflatten(1, (self.horizon, self.layout.dynamic_tokens))
            results |= means
            results[f"{name}_repeated"] = float((ids[:, -1] == ids[:, -2]).all(-1).float().mean())
        return results | multi_step_gates(llama, self.layout, self.tokens)
