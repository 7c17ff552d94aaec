"""Training of the single-step world model: four frames and their actions, then the next frame; maximum likelihood, and
GRPO on the decoded frame.

Special: likelihoods are over the code book of frames only, because nothing else is ever sampled (the published
code trains the ids before and after a frame, too). The reward is -(L1 + LPIPS) of the one predicted frame.

Absent: the loop of GRPO (``training.grpo_loop``) and the arithmetic of rewards (``training.rewards.frames``).

Shapes: N episodes, T actions, K ids of a frame, A action bins, F frames of history, P questions, R answers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F
from tqdm import tqdm

from training.data import tensor_of, to_float
from training.fit import fit
from training.frame_data import FrameData
from training.grpo_loop import Rollout
from training.grpo_task import validation_answers
from training.multi_step import MultiStepRecipe, action_gates
from training.multi_step_rlvr import MultiStepRLVRRecipe, Window
from training.rewards.frames import frame_scores
from training.run import Run
from worldmodels.generate import Sampled, generate
from worldmodels.nets.bfloat16 import autocast
from worldmodels.nets.llama import Llama
from worldmodels.nets.perceptual import Perceptual
from worldmodels.video.action_bins import ActionBins
from worldmodels.video.frame_tokenizer import FrameTokenizer
from worldmodels.video.layouts import SingleStepLayout


@dataclass(frozen=True)
class SingleStepTokens:
    """Tokenised episodes of equal length.

    Attributes:
        frames: ``(N, T+1, K)`` int64 ids.
        actions: ``(N, T, A)`` int64 bins.
    """

    frames: Tensor
    actions: Tensor

    def __len__(self) -> int:
        return len(self.frames)

    def window(self, episodes: Tensor, starts: Tensor, history: int) -> tuple[Tensor, Tensor]:
        """Frames ``(B, history + 1, K)`` from ``starts`` on, and actions ``(B, history, A)`` in all but the last."""
        times, rows = starts[:, None] + torch.arange(history + 1), episodes[:, None]
        return self.frames[rows, times], self.actions[rows, times[:, :-1]]


@torch.no_grad()
def tokenise_single(tokenizer: FrameTokenizer, bins: ActionBins, data: FrameData) -> SingleStepTokens:
    """Encode all frames of a split."""
    device, times = next(tokenizer.parameters()).device, np.arange(data.steps + 1)
    frames = [
        tokenizer.encode(to_float(data.pixels(np.full_like(times, row), times)).to(device)).flatten(1)
        for row in tqdm(range(len(data)), desc="tokenise", unit="episode", disable=None)
    ]
    return SingleStepTokens(
        torch.stack(frames).to(torch.get_default_device()), tensor_of(bins.encode(data.actions))
    )


def next_frame_nll(llama: Llama, layout: SingleStepLayout, frames: Tensor, actions: Tensor) -> Tensor:
    """Negative log-likelihoods ``(B, K)`` of the last of the frames ``(B, F + 1, K)``."""
    ids = layout.build(frames, actions).input_ids
    where = slice(layout.prompt.stop - 1, layout.prompt.stop - 1 + layout.visual_tokens)
    hidden = llama.hidden(ids[:, : where.stop])[:, where]
    logits = llama.logits(hidden, layout.visual).float()
    return F.cross_entropy(logits.flatten(0, 1), frames[:, -1].flatten(), reduction="none").view(len(ids), -1)


def train_single_step(
    run: Run,
    llama: Llama,
    layout: SingleStepLayout,
    train: SingleStepTokens,
    validation: SingleStepTokens,
    recipe: MultiStepRecipe,
    *,
    seed: int,
) -> None:
    """Train ``llama`` in place; an interrupted run goes on from its newest checkpoint."""
    last_start = train.frames.shape[1] - layout.history - 1

    def loss(step: int, generator: np.random.Generator) -> tuple[Tensor, dict[str, float | Tensor]]:
        episodes = tensor_of(generator.integers(0, len(train), recipe.batch))
        starts = tensor_of(generator.integers(0, last_start + 1, recipe.batch))
        window = train.window(episodes, starts, layout.history)
        with autocast(episodes.device, recipe.autocast):
            return next_frame_nll(llama, layout, *window).mean(), {}

    fit(
        run, llama, loss, recipe.fit, seed=seed, evaluate=lambda: single_step_gates(llama, layout, validation)
    )


@torch.no_grad()
def single_step_gates(
    llama: Llama, layout: SingleStepLayout, data: SingleStepTokens, *, limit: int = 64
) -> dict[str, float]:
    """``action_gates`` of evenly spread windows."""
    episodes = torch.arange(min(limit, len(data)))
    starts = (episodes * 7) % (data.frames.shape[1] - layout.history)
    frames, actions = data.window(episodes, starts, layout.history)
    return action_gates(
        lambda rows, used: next_frame_nll(llama, layout, frames[rows], used),
        actions,
        frames[:, -1] != frames[:, -2],
    )


class SingleStepTask:
    """Questions, answers and scores over one split; a ``Window`` names an episode and its first frame of history.

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
        tokenizer: FrameTokenizer,
        layout: SingleStepLayout,
        frames: FrameData,
        tokens: SingleStepTokens,
        recipe: MultiStepRLVRRecipe,
        perceptual: Perceptual | None,
    ) -> None:
        self.tokenizer = tokenizer.eval().requires_grad_(False)
        self.layout, self.frames, self.tokens, self.recipe = layout, frames, tokens, recipe
        self.perceptual = perceptual
        starts = range(tokens.frames.shape[1] - layout.history)
        self.questions = [Window(episode, start) for episode in range(len(tokens)) for start in starts]
        side = tokenizer.config.downscale
        self._grid = (frames.image_size[0] // side, frames.image_size[1] // side)

    def _window(self, asked: Sequence[Window]) -> tuple[Tensor, Tensor]:
        episodes = torch.tensor([question.episode for question in asked])
        starts = torch.tensor([question.start for question in asked])
        return self.tokens.window(episodes, starts, self.layout.history)

    def sample(
        self,
        model: Any,
        prompts: Sequence[Window],
        *,
        group_size: int,
        seeds: Sequence[int],
        temperature: float,
    ) -> Rollout:
        """G next frames of every question, ``(R, K)`` ids."""
        sequences = self.layout.build(*self._window(prompts))
        completions = generate(
            model,
            sequences.input_ids[:, self.layout.prompt],
            seeds=torch.tensor(list(seeds), dtype=torch.int64),
            segments=[Sampled(self.layout.visual_tokens, self.layout.visual)],
            num_samples=group_size,
            temperature=temperature,
        )
        return Rollout(tokens=completions.tokens, logprobs=completions.logprobs, mask=completions.mask)

    @torch.no_grad()
    def score(self, prompts: Sequence[Window], rollout: Rollout) -> tuple[Tensor, dict[str, Tensor]]:
        """Rewards ``(R, 1)`` of decoded frames."""
        parts = rollout.tokens.view(-1, *self._grid).split(self.recipe.decode_rows)
        decoded = torch.cat([self.tokenizer.decode(part) for part in parts]).clamp(0, 1)
        episodes = np.array([question.episode for question in prompts])
        times = np.array([question.start for question in prompts]) + self.layout.history
        targets = self.frames.images(episodes, times).to(decoded.device)
        return frame_scores(
            decoded[:, None], targets[:, None], config=self.recipe.reward, perceptual=self.perceptual
        )

    def logprobs(
        self, model: Any, prompts: Sequence[Window], rollout: Rollout, *, temperature: float
    ) -> Tensor:
        """Teacher-forced log-probabilities ``(R, K)``."""
        if temperature != 1.0:
            raise ValueError(f"temperature is {temperature}; this task trains at temperature 1")
        group = len(rollout.tokens) // len(prompts)
        frames, actions = (x.repeat_interleave(group, 0) for x in self._window(prompts))
        filled = torch.cat([frames[:, :-1], rollout.tokens[:, None]], 1)
        return -next_frame_nll(model, self.layout, filled, actions)

    @torch.no_grad()
    def validate(self, llama: Llama) -> Mapping[str, float]:
        """Reward parts, sampled and greedy, on evenly spread questions with fixed seeds."""
        results: dict[str, float] = {}
        for _, _, _, means in validation_answers(self, llama, count=self.recipe.validation_windows):
            results |= means
        return results | single_step_gates(llama, self.layout, self.tokens)
