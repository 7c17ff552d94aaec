"""Maximum likelihood of the dynamics: next tokens of every frame of a window, plus two regressions for the stem.

Special: episodes are tokenised once; training then touches no picture. The gates of the project are measured
here on validation episodes: loss on tokens that change, and the gap when actions are shuffled between
episodes (a model that ignores actions has none).
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn import functional as F
from tqdm import tqdm

from training.data import PushTData, pose_of, tensor_of, to_float
from training.fit import FitConfig, fit
from training.run import Run
from worldmodels.video.global_tokenizer import GlobalTokenizer
from worldmodels.video.object_dynamics import FrameContext, ObjectDynamics
from worldmodels.video.slots import PROPRIO_SIZE, SlotLayout


@dataclass(frozen=True)
class TokenData:
    """Tokenised episodes of equal length.

    Attributes:
        tokens: ``(N, T+1, S)`` int64, slot-local.
        actions: ``(N, T, A)`` float32.
        poses: ``(N, T+1, 4)`` float32, read from the tokens.
        true_poses: The same from the simulator's states.
        proprio: ``(N, T+1, 4)`` float32, as observed.
    """

    tokens: Tensor
    actions: Tensor
    poses: Tensor
    true_poses: Tensor
    proprio: Tensor

    def __len__(self) -> int:
        return len(self.tokens)


def tokenise(
    tokenizer: GlobalTokenizer, layout: SlotLayout, data: PushTData, *, cache: Path | None = None
) -> TokenData:
    """Encode all frames of a split, in float32: the tokens must be those that environments see.

    Args:
        tokenizer: Encodes the frames.
        layout: Slots of a frame.
        data: The split.
        cache: A folder in which codes are kept, named by a hash of tokenizer and data.
    """
    kept = None
    if cache is not None:
        kept = cache / f"codes-{_fingerprint(tokenizer, data)}.safetensors"
    if kept is not None and kept.exists():
        ids = load_file(kept)["codes"].long().to(torch.get_default_device())
    else:
        ids = _encode_all(tokenizer, data)
        if kept is not None:
            kept.parent.mkdir(parents=True, exist_ok=True)
            save_file({"codes": ids.int().cpu()}, kept.with_suffix(".tmp"))
            os.replace(kept.with_suffix(".tmp"), kept)
    proprio = tensor_of(data.proprio)
    with torch.no_grad():
        poses = tokenizer.pose(tokenizer.codes(ids))
    return TokenData(
        tokens=torch.cat([layout.encode_proprio(proprio), ids], -1),
        actions=tensor_of(data.actions),
        poses=poses,
        true_poses=pose_of(tensor_of(data.states)),
        proprio=proprio,
    )


def _fingerprint(tokenizer: GlobalTokenizer, data: PushTData) -> str:
    sha = hashlib.sha256(f"{data.store.digest()} {len(data)} {data.ids[0]} {data.ids[-1]}".encode())
    for name, tensor in sorted(tokenizer.state_dict().items()):
        sha.update(name.encode() + tensor.cpu().contiguous().numpy().tobytes())
    return sha.hexdigest()[:16]


def _encode_all(tokenizer: GlobalTokenizer, data: PushTData) -> Tensor:
    """Codes ``(N, T+1, num_codes)``; two threads, each on its own episodes (torch releases the interpreter)."""

    @torch.no_grad()
    def encode(names: Sequence[str]) -> Tensor:
        images = np.stack([np.asarray(data.store.episode(name).observations["image"]) for name in names])
        return tokenizer.encode(to_float(images).flatten(0, 1).to(tokenizer.background.device)).unflatten(
            0, images.shape[:2]
        )

    chunks = [data.ids[i : i + 16] for i in range(0, len(data), 16)]
    with ThreadPoolExecutor(2) as pool:
        return torch.cat(
            list(tqdm(pool.map(encode, chunks), total=len(chunks), desc="tokenise", disable=None))
        )


@dataclass(frozen=True, kw_only=True)
class MLERecipe:
    """One training run of the dynamics.

    Attributes:
        fit: Optimisation.
        batch: Windows per step.
        window_frames: Frames of a window; every frame after the first carries loss.
        motion_weight: Weight of the stem's error in next proprioception and pose.
        code_weight: Weight of the error of the map from poses to codes.
    """

    fit: FitConfig = FitConfig(steps=20_000, learning_rate=2e-3)
    batch: int = 32
    window_frames: int = 8
    motion_weight: float = 1.0
    code_weight: float = 0.1


def token_losses(dynamics: ObjectDynamics, hidden: Tensor, context: FrameContext, tokens: Tensor) -> Tensor:
    """Negative log-likelihoods ``(B, T, S)`` of the tokens ``(B, T+1, S)`` after the first frame."""
    B, T = hidden.shape[:2]
    losses = []
    for slot in range(dynamics.layout.slots):
        proposal = None
        if context.proposals is not None:
            proposal = context.proposals[:, slot].unflatten(0, (B, T))
        logits = dynamics.slot_logits(hidden[:, :, slot], slot, proposal)
        losses.append(F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:, slot].flatten(), reduction="none"))
    return torch.stack(losses, -1).unflatten(0, (B, T))


def train_mle(
    run: Run,
    dynamics: ObjectDynamics,
    train: TokenData,
    validation: TokenData,
    recipe: MLERecipe,
    *,
    seed: int,
) -> None:
    """Train ``dynamics`` in place; an interrupted run goes on from its newest checkpoint."""
    length, window = train.tokens.shape[1], recipe.window_frames
    layout = dynamics.layout
    scale = torch.tensor(
        [1 / layout.reach_px] * 2 + [1 / layout.speed_px] * 2 + [1 / layout.reach_px] * 2 + [1.0] * 2
    )

    def loss(step: int, generator: np.random.Generator) -> tuple[Tensor, dict[str, float | Tensor]]:
        episodes = tensor_of(generator.integers(0, len(train), recipe.batch))
        starts = tensor_of(generator.integers(0, length - window + 1, recipe.batch))
        times = starts[:, None] + torch.arange(window)
        rows = episodes[:, None]
        tokens, poses = train.tokens[rows, times], train.poses[rows, times]
        hidden, context = dynamics(tokens, train.actions[rows, times[:, :-1]], poses)
        losses = token_losses(dynamics, hidden, context, tokens)
        total = losses.mean()
        numbers: dict[str, float | Tensor] = {
            "proprio_nll": losses[..., :PROPRIO_SIZE].detach().mean(),
            "code_nll": losses[..., PROPRIO_SIZE:].detach().mean(),
        }
        if context.motion is not None:
            truth = torch.cat([train.proprio[rows, times], train.true_poses[rows, times]], -1)[:, 1:]
            motion = F.smooth_l1_loss(
                context.motion.unflatten(0, truth.shape[:2]) * scale, truth * scale, beta=0.05
            )
            digits = layout.code_digits_of(tokens[..., PROPRIO_SIZE:]).float()
            middle = layout.code_middle
            codes = ((dynamics.stem.code_means(poses) - digits) / middle).square().mean()
            total = total + recipe.motion_weight * motion + recipe.code_weight * codes
            numbers |= {"motion": motion.detach(), "code_map": codes.detach()}
        return total, numbers

    def evaluate() -> dict[str, float]:
        return gates(dynamics, validation, window_frames=window)

    fit(run, dynamics, loss, recipe.fit, seed=seed, evaluate=evaluate)


@torch.no_grad()
def gates(
    dynamics: ObjectDynamics, data: TokenData, *, window_frames: int, limit: int = 256
) -> dict[str, float]:
    """Validation likelihoods: all codes, codes that change, and with actions of another episode."""
    tokens = data.tokens[:limit, :window_frames]
    actions = data.actions[:limit, : window_frames - 1]
    poses = data.poses[:limit, :window_frames]
    results: dict[str, float] = {}
    for name, used in (("", actions), ("shuffled_", actions.roll(1, 0))):
        hidden, context = dynamics(tokens, used, poses)
        losses = token_losses(dynamics, hidden, context, tokens)
        changed = tokens[:, 1:, PROPRIO_SIZE:] != tokens[:, :-1, PROPRIO_SIZE:]
        codes = losses[..., PROPRIO_SIZE:]
        results[f"{name}code_nll"] = float(codes.mean())
        results[f"{name}changed_nll"] = float(codes[changed].mean())
        results[f"{name}proprio_nll"] = float(losses[..., :PROPRIO_SIZE].mean())
    if context.motion is not None:
        _, context = dynamics(tokens, actions, poses)
        assert context.motion is not None
        moved = context.motion[:, 4:].unflatten(0, (len(tokens), window_frames - 1))
        truth = data.true_poses[:limit, 1:window_frames]
        before = data.true_poses[:limit, : window_frames - 1]
        moves = (truth[..., :2] - before[..., :2]).norm(dim=-1) > 10
        if moves.any():
            results["stem_moved_px"] = float((moved[..., :2] - truth[..., :2]).norm(dim=-1)[moves].mean())
            results["copy_moved_px"] = float((before[..., :2] - truth[..., :2]).norm(dim=-1)[moves].mean())
    return results
