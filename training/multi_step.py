"""Maximum likelihood of the multi-step world model: a context frame, then frames and actions in turn.

Special: episodes are tokenised once, with their first frame as the context, as an environment does it;
training then touches no picture. Likelihoods are over the code book of frames only, because nothing else is
ever sampled. The gates are measured here on validation episodes: loss on ids that change, and the gap when
actions are shuffled between episodes (a model that ignores actions has none).

Shapes: N episodes, T actions, C ids of a context frame, K ids of every other frame, A action bins.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn import functional as F
from torch.nn.utils import parametrize
from tqdm import tqdm

from training.data import tensor_of, to_float
from training.fit import FitConfig, fit
from training.frame_data import FrameData
from training.run import Run
from worldmodels.nets.bfloat16 import autocast
from worldmodels.nets.llama import Llama
from worldmodels.nets.shared_past import SharedPast
from worldmodels.video.action_bins import ActionBins
from worldmodels.video.compressive_tokenizer import ENCODERS, CompressiveTokenizer
from worldmodels.video.layouts import IGNORED, MultiStepLayout

_AT_ONCE = 8  # frames that are encoded together


@dataclass(frozen=True)
class FrameTokens:
    """Tokenised episodes of equal length.

    Attributes:
        context: ``(N, C)`` int64 ids of the first frame.
        frames: ``(N, T+1, K)`` int64 ids of every frame, seen from that context.
        actions: ``(N, T, A)`` int64 bins.
    """

    context: Tensor
    frames: Tensor
    actions: Tensor

    def __len__(self) -> int:
        return len(self.context)

    def window(self, episodes: Tensor, starts: Tensor, num_frames: int) -> tuple[Tensor, Tensor, Tensor]:
        """Context ``(E, 1, C)``, frames ``(B, num_frames, K)`` and the action taken in each ``(B, num_frames, A)``.

        The last frame's action leads out of the window and may lie outside the episode; it is then repeated.

        Args:
            episodes: ``(E,)``.
            starts: ``(B,)``; B is a multiple of E, and B / E windows after each other are of one episode.
            num_frames: Of a window.
        """
        times = starts[:, None] + torch.arange(num_frames)
        rows = episodes.repeat_interleave(len(starts) // len(episodes))[:, None]
        taken = times.clamp(max=self.actions.shape[1] - 1)
        return self.context[episodes][:, None], self.frames[rows, times], self.actions[rows, taken]


@torch.no_grad()
def tokenise_frames(
    tokenizer: CompressiveTokenizer, bins: ActionBins, data: FrameData, *, cache: Path | None = None
) -> FrameTokens:
    """Encode all frames of a split, in float32: the ids must be those that environments see.

    Args:
        tokenizer: Encodes the frames.
        bins: Of the actions.
        data: The split.
        cache: A folder in which ids are kept, named by a hash of the tokenizer's encoders and the data.
    """
    kept = None if cache is None else cache / f"ids-{_fingerprint(tokenizer, data)}.safetensors"
    if kept is not None and kept.exists():
        ids = load_file(kept)
    else:
        device = next(tokenizer.parameters()).device
        times = np.arange(data.steps + 1)
        contexts, frames = [], []
        for row in tqdm(range(len(data)), desc="tokenise", unit="episode", disable=None):
            images = to_float(data.pixels(np.full_like(times, row), times)).to(device)
            context, features = tokenizer.encode_context(images[:1])
            contexts.append(context)
            # Few frames at a time stay in the processor's cache, which is a quarter faster.
            parts = [tokenizer.encode(features, part[None]) for part in images.split(_AT_ONCE)]
            frames.append(torch.cat(parts, 1))
        ids = {"context": torch.cat(contexts).int().cpu(), "frames": torch.cat(frames).int().cpu()}
        if kept is not None:
            kept.parent.mkdir(parents=True, exist_ok=True)
            save_file(ids, kept.with_suffix(".tmp"))
            os.replace(kept.with_suffix(".tmp"), kept)
    device = torch.get_default_device()
    return FrameTokens(
        context=ids["context"].long().to(device),
        frames=ids["frames"].long().to(device),
        actions=tensor_of(bins.encode(data.actions)),
    )


def _fingerprint(tokenizer: CompressiveTokenizer, data: FrameData) -> str:
    text = f"{data.store.digest()} {len(data)} {data.ids[0]} {data.ids[-1]} {encoders_sha256(tokenizer)}"
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def encoders_sha256(tokenizer: CompressiveTokenizer) -> str:
    """Hash of the weights that decide ids: better paint on the same ids leaves a world model as it is."""
    sha = hashlib.sha256()
    for name, tensor in sorted(tokenizer.state_dict().items()):
        if name.startswith(ENCODERS):
            sha.update(name.encode() + tensor.cpu().contiguous().numpy().tobytes())
    return sha.hexdigest()


@dataclass(frozen=True, kw_only=True)
class MultiStepRecipe:
    """One training run of the transformer.

    Attributes:
        fit: Optimisation.
        batch: Windows per step.
        windows_per_episode: So many of them are of one episode, whose context is then computed once.
        autocast: Whether the transformer computes in bfloat16, where the device has it.
    """

    fit: FitConfig = field(default_factory=lambda: FitConfig(steps=450_000, learning_rate=5e-5))
    batch: int = 32
    windows_per_episode: int = 1
    autocast: bool = False

    def __post_init__(self) -> None:
        if self.batch % self.windows_per_episode:
            raise ValueError(
                f"a batch of {self.batch} windows cannot be {self.windows_per_episode} of each episode; give a divisor"
            )


def frame_nll(llama: Llama, layout: MultiStepLayout, window: tuple[Tensor, Tensor, Tensor]) -> Tensor:
    """Negative log-likelihoods ``(B, num_frames - 1, K)`` of the frames after the first of a window.

    Rows that share a context (fewer contexts than rows, see ``FrameTokens.window``) share its computation.
    """
    context, frames, actions = window
    rows_each = len(frames) // len(context)
    sequences = layout.build(context.repeat_interleave(rows_each, 0), frames, actions)
    ids, labels = sequences.input_ids[:, :-1], sequences.labels[:, 1:]
    if rows_each > 1:
        past = SharedPast(len(context))
        llama.hidden(ids[::rows_each, : layout.context_tokens], past)
        labels = labels[:, layout.context_tokens :]
        hidden = llama.hidden(ids[:, layout.context_tokens :], past.repeat(rows_each))
    else:
        hidden = llama.hidden(ids)
    trained = labels != IGNORED
    logits = llama.logits(hidden[trained], layout.dynamic).float()
    losses = F.cross_entropy(logits, labels[trained], reduction="none")
    return losses.view(len(labels), layout.num_frames - 1, layout.dynamic_tokens)


def train_multi_step(
    run: Run,
    llama: Llama,
    layout: MultiStepLayout,
    train: FrameTokens,
    validation: FrameTokens,
    recipe: MultiStepRecipe,
    *,
    seed: int,
) -> None:
    """Train ``llama`` in place; an interrupted run goes on from its newest checkpoint."""
    last_start = train.frames.shape[1] - layout.num_frames

    def loss(step: int, generator: np.random.Generator) -> tuple[Tensor, dict[str, float | Tensor]]:
        episodes = tensor_of(generator.integers(0, len(train), recipe.batch // recipe.windows_per_episode))
        starts = tensor_of(generator.integers(0, last_start + 1, recipe.batch))
        window = train.window(episodes, starts, layout.num_frames)
        # A table that is made of parts (see ``shared_tables``) is made once a pass.
        with (
            autocast(episodes.device, recipe.autocast),
            parametrize.cached(),
        ):
            losses = frame_nll(llama, layout, window)
        return losses.mean(), {}

    def evaluate() -> dict[str, float]:
        return multi_step_gates(llama, layout, validation)

    fit(run, llama, loss, recipe.fit, seed=seed, evaluate=evaluate)


@torch.no_grad()
def multi_step_gates(
    llama: Llama, layout: MultiStepLayout, data: FrameTokens, *, limit: int = 64
) -> dict[str, float]:
    """``action_gates`` of evenly spread windows."""
    episodes = torch.arange(min(limit, len(data)))
    last_start = data.frames.shape[1] - layout.num_frames
    starts = (episodes * 7) % (last_start + 1)
    context, frames, actions = data.window(episodes, starts, layout.num_frames)
    return action_gates(
        lambda rows, used: frame_nll(llama, layout, (context[rows], frames[rows], used)),
        actions,
        frames[:, 1:] != frames[:, :-1],
    )


def action_gates(
    nll: Callable[[Tensor, Tensor], Tensor], actions: Tensor, changed: Tensor
) -> dict[str, float]:
    """Likelihoods in nats per id: all, ids that change, and both with another episode's actions.

    Args:
        nll: (rows, their actions) -> losses of these rows.
        actions: Of all rows.
        changed: Which ids differ from the frame before, in the shape of the losses.
    """
    rows = torch.arange(len(actions))
    results: dict[str, float] = {"kept_ids": float((~changed).float().mean())}
    for name, used in (("", actions), ("shuffled_", actions.roll(1, 0))):
        losses = torch.cat([nll(part, used[part]) for part in rows.split(16)])
        results[f"{name}nll"] = float(losses.mean())
        if changed.any():
            results[f"{name}changed_nll"] = float(losses[changed].mean())
    return results
