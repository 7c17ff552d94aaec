"""Trains the global PushT tokenizer: reconstruction, pose, and still tokens while the object is still.

Special: *swap training*. The tokens of one frame are decoded with the agent of another frame in which the
object has the same pose, so the agent never gets into the tokens. The encoder starts from a pose reader:
through a narrow quantised bottleneck, orientation is found very late from scratch.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from training.data import PushTData, pose_errors, tensor_of
from training.fit import FitConfig, fit, seeded
from training.readers import PoseReader
from training.run import Run
from worldmodels.nets.bfloat16 import autocast
from worldmodels.video.global_tokenizer import GlobalTokenizer, GlobalTokenizerConfig

# Frames differ from the background by more than this where something is painted.
PAINTED = 0.02


@dataclass(frozen=True, kw_only=True)
class GlobalTokenizerRecipe:
    """One training run.

    Attributes:
        tokenizer: Sizes.
        fit: Optimisation.
        batch: Frames per step.
        soft_until: Share of the steps with codes bounded but not rounded yet.
        pixel_weight, painted_weight: Weight of the absolute pixel error (L1: squares blur edges), and how much more a
            painted pixel counts.
        pose_weight: Weight of the pose read from the codes.
        still_weight: Weight of the difference between the codes of two frames with the same object pose.
    """

    tokenizer: GlobalTokenizerConfig = GlobalTokenizerConfig()
    fit: FitConfig = FitConfig(steps=5000, learning_rate=2e-3)
    batch: int = 48
    soft_until: float = 0.15
    pixel_weight: float = 4.0
    painted_weight: float = 10.0
    pose_weight: float = 20.0
    still_weight: float = 0.02


def background_of(data: PushTData, *, frames: int = 300) -> Tensor:
    """What never moves: the median frame ``(3, H, W)`` in [0, 1]."""
    episodes = np.linspace(0, len(data) - 1, min(frames, len(data))).astype(np.int64)
    return data.images(episodes, np.zeros(len(episodes), dtype=np.int64)).median(0).values


def swap_partners(
    data: PushTData, episodes: NDArray[np.int64], times: NDArray[np.int64], generator: np.random.Generator
) -> NDArray[np.int64]:
    """For each frame another time of its episode with the same object pose, or the same time if there is none."""
    length = data.states.shape[1]
    partners = times.copy()
    candidates = [
        generator.integers(0, length, len(times)),
        np.clip(times + generator.choice([-1, 1], len(times)), 0, length - 1),
    ]
    for other in candidates:
        same = np.abs(data.states[episodes, times, 2:5] - data.states[episodes, other, 2:5]).max(1) < 1e-6
        partners = np.where(same & (partners == times), other, partners)
    return partners


def train_global_tokenizer(
    run: Run,
    train: PushTData,
    validation: PushTData,
    recipe: GlobalTokenizerRecipe,
    *,
    seed: int,
    reader: PoseReader | None = None,
) -> GlobalTokenizer:
    """Train a tokenizer; an interrupted run goes on from its newest checkpoint."""
    model: GlobalTokenizer = seeded(lambda: GlobalTokenizer(recipe.tokenizer), seed)
    model.background.copy_(background_of(train))
    if reader is not None:
        model.encoder.load_state_dict(reader.encoder.state_dict())
    half = recipe.tokenizer.arena_px / 2

    def encode(images: Tensor) -> Tensor:
        with autocast(images.device):
            features = model.encoder(images.contiguous(memory_format=torch.channels_last))
        shape = (-1, recipe.tokenizer.num_tokens, len(recipe.tokenizer.levels))
        return model.to_codes(features.float()).reshape(shape)

    def loss(step: int, generator: np.random.Generator) -> tuple[Tensor, dict[str, float | Tensor]]:
        episodes = generator.integers(0, len(train), recipe.batch)
        times = generator.integers(0, train.states.shape[1], recipe.batch)
        partners = swap_partners(train, episodes, times, generator)
        source, target = train.images(episodes, times), train.images(episodes, partners)
        z = encode(source)
        if step < recipe.soft_until * recipe.fit.steps:
            codes = model.fsq.soft(z).flatten(1)
        else:
            codes = model.fsq.quantize(z).flatten(1)
        agent = tensor_of(train.states[episodes, partners, :2]).float()
        frame = model.decode_codes(codes, agent)
        painted = ((target - model.background).abs().amax(1, keepdim=True) > PAINTED).float()
        pixel = ((frame - target).abs() * (1 + recipe.painted_weight * painted)).mean()
        truth, pose = train.poses(episodes, times), model.pose(codes)
        scale = torch.tensor([1 / half, 1 / half, 1.0, 1.0])
        posed = F.smooth_l1_loss(pose * scale, truth * scale, beta=0.02)
        total = recipe.pixel_weight * pixel + recipe.pose_weight * posed
        swapped = tensor_of(partners != times)
        still = torch.zeros(())
        if swapped.any():
            bound = model.fsq.bound
            still = (bound(encode(target[swapped])) - bound(z[swapped])).square().mean()
            total = total + recipe.still_weight * still
        return total, {"pixel": pixel.detach(), "pose": posed.detach(), "still": still.detach()}

    def evaluate() -> dict[str, float]:
        return tokenizer_errors(model, validation, episodes=50)

    fit(run, model, loss, recipe.fit, seed=seed, evaluate=evaluate)
    return model


@torch.no_grad()
def tokenizer_errors(model: GlobalTokenizer, data: PushTData, *, episodes: int) -> dict[str, float]:
    """Pose read from the tokens, squared pixel error, and how many tokens change while the object is still."""
    episodes = min(episodes, len(data))
    length = data.states.shape[1]
    rows, times = (a.ravel() for a in np.mgrid[:episodes, :length])
    images = data.images(rows, times)
    ids = torch.cat([model.encode(part) for part in images.split(256)])
    distance, angle = pose_errors(model.pose(model.codes(ids)), data.poses(rows, times))
    agent = tensor_of(data.states[rows, times, :2]).float()
    frames = torch.cat([model.decode(i, a) for i, a in zip(ids.split(256), agent.split(256), strict=True)])
    per_episode = ids.unflatten(0, (episodes, length))
    kept = (per_episode[:, 1:] == per_episode[:, :-1]).float().mean(-1)
    moves = np.abs(np.diff(data.states[:episodes, :, 2:5], axis=1)).max(-1)
    still = tensor_of(moves < 1e-6)
    return {
        "mse": float((frames - images).square().mean()),
        "block_px": float(distance.mean()),
        "block_px_median": float(distance.median()),
        "angle_deg": float(angle.mean()),
        "angle_deg_median": float(angle.median()),
        "tokens_kept_when_still": float(kept[still].mean()),
        "codes_used": float(np.mean([len(ids[:, s].unique()) for s in range(ids.shape[1])])),
    }
