"""How far imagined outcomes are from a goal: physical state, pixels, LPIPS features, DINOv2 patch features.

Special: goals are encoded once per call, not once per candidate. Costs add up: the published PushT
objective is ``lambda predictions, goals: dino(predictions, goals) + proprio(predictions, goals)``.

Absent on purpose: when in a rollout a cost counts (see :func:`planners.imagine`), caches of goal features,
and any knowledge of the true environment.

Shapes: G goals, B = G * n predictions of which row b is compared with goal b // n.
"""

from __future__ import annotations

import math
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from worldmodels.api import Observation, Predictions
from worldmodels.nets.perceptual import Perceptual

# Means and deviations of ImageNet's RGB values in 0..1: what DINOv2 was trained with (transforms of its
# repository).
_IMAGENET_MEAN = (0.485, 0.456, 0.406)
_IMAGENET_STD = (0.229, 0.224, 0.225)
_HUB_TIMEOUT_SECONDS = 5.0


class GoalCost(Protocol):
    """Compares predictions with goals."""

    def __call__(self, predictions: Predictions, goals: Sequence[Any]) -> Tensor:
        """``(B,)`` costs, lower is better; row b belongs to goal ``b // (B // len(goals))``.

        What a goal looks like is the cost's own business: a state vector or an observation.
        """
        ...


@dataclass(frozen=True, kw_only=True)
class StateCostConfig:
    """Weights of :class:`StateCost`.

    Attributes:
        agent_weight: Weight of the squared agent distance.
        block_weight: Weight of the squared block distance.
        angle_weight: Weight of the squared block angle difference.
        position_scale_px: Distance that costs 1; PushT's success rule asks for less (agent and block
            together).
        angle_scale_rad: Angle difference that costs 1; PushT's success rule asks for less.
    """

    agent_weight: float = 1.0
    block_weight: float = 1.0
    angle_weight: float = 1.0
    position_scale_px: float = 20.0
    angle_scale_rad: float = math.pi / 9


@dataclass(frozen=True)
class StateCost:
    """Distance of PushT states; a goal is (agent x, y, block x, y in px, block angle in rad, ...)."""

    config: StateCostConfig = field(default_factory=StateCostConfig)

    def __call__(self, predictions: Predictions, goals: Sequence[Any]) -> Tensor:
        """``(B,)`` float64; angles are compared on the circle, numbers after the fifth are ignored.

        Raises:
            ValueError: if the world model does not say which state it predicts, or a vector is too short.
        """
        states = predictions.states()
        if states is None:
            raise ValueError(
                "this world model does not read states from its predictions (Predictions.states() is None);"
                " plan with PixelCost, PerceptualCost or DinoCost"
            )
        state, goal = _by_goal(torch.as_tensor(np.asarray(states, dtype=np.float64)), goals, lambda g: g)
        if min(state.shape[-1], goal.shape[-1]) < 5:
            raise ValueError(
                f"predicted states have {state.shape[-1]} numbers and goals {goal.shape[-1]}; PushT states"
                " have at least 5: agent x, y, block x, y, block angle"
            )
        difference = state[..., :5] - goal[..., :5]
        agent, block = difference[..., :2].square().sum(-1), difference[..., 2:4].square().sum(-1)
        angle = torch.remainder(difference[..., 4] + math.pi, 2 * math.pi) - math.pi
        config = self.config
        position = (config.agent_weight * agent + config.block_weight * block) / config.position_scale_px**2
        return (position + config.angle_weight * (angle / config.angle_scale_rad).square()).flatten()


@dataclass(frozen=True)
class ProprioCost:
    """Mean squared difference of proprioception in units of ``scale`` (DINO-WM's second term, alpha = 1).

    Attributes:
        scale: One number per proprioceptive value, for example the data set's standard deviations.
    """

    scale: tuple[float, ...]

    def __call__(self, predictions: Predictions, goals: Sequence[Any]) -> Tensor:
        """``(B,)`` float64; a goal is an observation with ``"proprio"``."""
        values = torch.as_tensor(np.asarray(_entry(predictions.observations(), "proprio"), dtype=np.float64))
        value, goal = _by_goal(values, goals, lambda g: _entry(g, "proprio"))
        if value.shape[-1] != len(self.scale):
            raise ValueError(f"proprioception has {value.shape[-1]} numbers but scale has {len(self.scale)}")
        return ((value - goal) / torch.tensor(self.scale, dtype=value.dtype)).square().mean(-1).flatten()


@dataclass(frozen=True)
class PixelCost:
    """Mean squared difference of pixels in 0..1; a goal is an observation."""

    def __call__(self, predictions: Predictions, goals: Sequence[Any]) -> Tensor:
        """``(B,)`` float32."""
        images, targets = _images(predictions.observations()), _goal_images(goals)
        _check_sizes(images, targets)
        return _mean_squares(images, targets)


@dataclass(frozen=True)
class PerceptualCost:
    """LPIPS between predicted and goal image; a goal is an observation.

    Attributes:
        perceptual: For example ``Perceptual(net="alex")``.
        device: Where its weights are.
    """

    perceptual: Perceptual
    device: torch.device | str = "cpu"

    @torch.no_grad()
    def __call__(self, predictions: Predictions, goals: Sequence[Any]) -> Tensor:
        """``(B,)`` float32."""
        images, targets = (
            _images(predictions.observations()).to(self.device),
            _goal_images(goals).to(self.device),
        )
        _check_sizes(images, targets)
        return self.perceptual.distance_to(self.perceptual.features(targets), images)


class DinoCost:
    """Mean squared difference of DINOv2 patch features, as DINO-WM plans with; a goal is an observation.

    Images are resized to 14 x 14 patches (196 pixels with DINOv2's patches of 14), whatever their size.

    Args:
        model: Hub id, or a folder with ``config.json`` and ``model.safetensors``.
        device: Where to compute.
        batch_size: So many images go through the network at once.

    Raises:
        FileNotFoundError: neither cached nor reachable; says what to do.
    """

    PATCHES_PER_SIDE = 14

    def __init__(
        self,
        model: str | Path = "facebook/dinov2-small",
        *,
        device: torch.device | str = "cpu",
        batch_size: int = 64,
    ) -> None:
        self.network = _load_dinov2(str(model)).to(device).eval().requires_grad_(False)
        self.device = device
        self.batch_size = batch_size
        self.image_size = self.PATCHES_PER_SIDE * int(self.network.config.patch_size)

    def __call__(self, predictions: Predictions, goals: Sequence[Any]) -> Tensor:
        """``(B,)`` float32."""
        features = self.features(_images(predictions.observations()))
        return _mean_squares(features, self.features(_goal_images(goals)))

    @torch.no_grad()
    def features(self, images: Tensor) -> Tensor:
        """Patch features ``(B, 196, C)`` of ``(B, 3, H, W)`` images in 0..1."""
        shape = (1, 3, 1, 1)
        mean, std = (torch.tensor(x, device=self.device).view(shape) for x in (_IMAGENET_MEAN, _IMAGENET_STD))
        parts = []
        for part in images.split(self.batch_size):
            pixels = part.to(self.device)
            if pixels.shape[-2:] != (self.image_size, self.image_size):
                pixels = F.interpolate(pixels, size=(self.image_size,) * 2, mode="bilinear", antialias=True)
            hidden = self.network(pixel_values=(pixels - mean) / std).last_hidden_state
            parts.append(hidden[:, 1:])  # without the class token
        return torch.cat(parts)


def _load_dinov2(model: str) -> Any:
    """Weights from a folder, the hub's cache, or the hub; only safetensors are read."""
    from transformers import Dinov2Model

    local = Path(model).is_dir()
    try:
        return Dinov2Model.from_pretrained(model, local_files_only=True, use_safetensors=True)
    except OSError as error:
        if local:
            raise FileNotFoundError(
                f"no usable DINOv2 weights in {model} ({error}); the folder must hold config.json and"
                " model.safetensors"
            ) from error
    try:  # the hub's own client retries for minutes when there is no network, so ask once, first
        url = f"https://huggingface.co/{model}/resolve/main/config.json"
        urllib.request.urlopen(
            urllib.request.Request(url, method="HEAD"), timeout=_HUB_TIMEOUT_SECONDS
        ).close()
        return Dinov2Model.from_pretrained(model, use_safetensors=True)
    except (OSError, ValueError) as error:
        raise FileNotFoundError(
            f"DINOv2 weights {model!r} are neither in the hub's cache nor reachable ({error}); on a machine"
            f" with a network run `hf download {model} --local-dir FOLDER`, copy the local folder here and"
            " give its path as `model`"
        ) from error


def _entry(observation: Observation, key: str) -> Any:
    """One entry of a dict observation."""
    if not isinstance(observation, dict) or key not in observation:
        has = sorted(observation) if isinstance(observation, dict) else type(observation).__name__
        raise ValueError(f"this cost needs observations with {key!r}; this one has {has}")
    return observation[key]


def _images(observations: Observation) -> Tensor:
    """``(B, 3, H, W)`` float32 in 0..1 from uint8 ``(B, H, W, 3)`` arrays, alone or under ``"image"``."""
    pixels = np.asarray(_entry(observations, "image") if isinstance(observations, dict) else observations)
    if pixels.dtype != np.uint8 or pixels.ndim != 4 or pixels.shape[-1] != 3:
        raise ValueError(f"images must be uint8 (B, H, W, 3), got {pixels.dtype} {pixels.shape}")
    return torch.from_numpy(np.ascontiguousarray(pixels.transpose(0, 3, 1, 2))).float() / 255


def _goal_images(goals: Sequence[Any]) -> Tensor:
    """``(G, 3, H, W)`` float32 in 0..1."""
    return torch.cat(
        [_images({"image": np.asarray(g["image"] if isinstance(g, dict) else g)[None]}) for g in goals]
    )


def _mean_squares(values: Tensor, targets: Tensor) -> Tensor:
    """``(B,)`` mean squared difference of each ``(B, ...)`` value from its ``(G, ...)`` target."""
    grouped = values.view(len(targets), -1, *values.shape[1:])
    return (grouped - targets[:, None]).square().flatten(2).mean(2).flatten()


def _check_sizes(images: Tensor, targets: Tensor) -> None:
    if images.shape[1:] != targets.shape[1:]:
        raise ValueError(
            f"goal images have {tuple(targets.shape[2:])} pixels but the world model predicts"
            f" {tuple(images.shape[2:])}; resize the goal"
        )


def _by_goal(values: Tensor, goals: Sequence[Any], read: Callable[[Any], Any]) -> tuple[Tensor, Tensor]:
    """``(B, D)`` values as ``(G, n, D)``, and what ``read`` finds in the goals as ``(G, 1, D)``."""
    targets = torch.as_tensor(np.stack([np.asarray(read(goal), dtype=np.float64) for goal in goals]))
    return values.view(len(goals), -1, values.shape[-1]), targets[:, None]
