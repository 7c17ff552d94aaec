"""A world model of one object and an agent: tokenizer + dynamics behind ``start``, ``step``, ``fork``,
``select``.

Special: a rollout state is a few groups of rows with equal window length, each with one key-value cache; a
state never changes, and stepping it twice gives the same answer twice. A window of ``window_frames`` frames
is filled with cached decoding; then it restarts from the last ``history_length`` frames. Draws depend on
(seed, step, slot) only.

Absent: gradients. Training uses ``ObjectDynamics.forward``; both must agree, and a test holds them to it.

Shapes: B rows, T frames in the window, S slots, A action numbers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from worldmodels.api import History, Observation, Prediction, RolloutState
from worldmodels.nets.kv_cache import KVCache
from worldmodels.sampling import derive, sample, uniforms
from worldmodels.video.global_tokenizer import GlobalTokenizer
from worldmodels.video.object_dynamics import FrameContext, ObjectDynamics
from worldmodels.video.rollout_rows import GroupedRows, checked_state, threads_for
from worldmodels.video.slots import PROPRIO_SIZE


@dataclass(frozen=True)
class _Group:
    """Rows whose windows are equally long.

    Attributes:
        tokens: ``(B, T, S)``.
        actions: ``(B, T-1, A)``.
        seeds: ``(B,)`` int64.
        steps: ``(B,)`` int64, steps since each row's start: the counter of its draws.
        cache: Keys and values of the T-1 frames after the first.
    """

    tokens: Tensor
    actions: Tensor
    seeds: Tensor
    steps: Tensor
    cache: KVCache

    @property
    def place(self) -> int:
        """Frames in the window."""
        return self.tokens.shape[1]

    def take(self, rows: Tensor) -> _Group:
        return _Group(
            tokens=self.tokens[rows],
            actions=self.actions[rows],
            seeds=self.seeds[rows],
            steps=self.steps[rows],
            cache=self.cache.select(rows),
        )

    def repeated(self, n: int) -> _Group:
        return _Group(
            tokens=self.tokens.repeat_interleave(n, 0),
            actions=self.actions.repeat_interleave(n, 0),
            seeds=derive(self.seeds[:, None], torch.arange(n)).flatten(),
            steps=self.steps.repeat_interleave(n, 0),
            cache=self.cache.repeat(n),
        )

    def joined(self, others: Sequence[_Group]) -> _Group:
        groups = [self, *others]
        return _Group(
            tokens=torch.cat([group.tokens for group in groups]),
            actions=torch.cat([group.actions for group in groups]),
            seeds=torch.cat([group.seeds for group in groups]),
            steps=torch.cat([group.steps for group in groups]),
            cache=KVCache.concatenate([group.cache for group in groups]),
        )

    def reseeded(self, seeds: Tensor) -> _Group:
        return replace(self, seeds=seeds)


class FramePredictions:
    """See ``worldmodels.api.Predictions``. Frames are decoded when asked for."""

    def __init__(
        self, tokenizer: GlobalTokenizer, dynamics: ObjectDynamics, tokens: Tensor, logprobs: Tensor
    ) -> None:
        self._tokenizer, self._dynamics = tokenizer, dynamics
        self.tokens = tokens
        self.logprobs = logprobs

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, row: int) -> Prediction:
        if not -len(self) <= row < len(self):
            raise IndexError(f"row {row} of {len(self)} predictions")
        stacked = self._observations
        return Prediction(observation={key: value[row] for key, value in stacked.items()})

    def observations(self) -> dict[str, NDArray[Any]]:
        """``{"image": (B, H, W, 3) uint8, "proprio": (B, 4) float32}``."""
        return self._observations

    @cached_property
    def _observations(self) -> dict[str, NDArray[Any]]:
        with threads_for(len(self), self._dynamics):
            frames = self.frames()
        image = (frames.clamp(0, 1) * 255).round().to(torch.uint8).movedim(1, -1).contiguous()
        return {
            "image": image.cpu().numpy(),
            "proprio": self._dynamics.layout.proprio(self.tokens).cpu().numpy(),
        }

    @torch.no_grad()
    def frames(self) -> Tensor:
        """Frames ``(B, 3, H, W)`` float32 in [0, 1]."""
        agent = self._dynamics.layout.proprio(self.tokens)[:, :2]
        parts = zip(self.tokens[:, PROPRIO_SIZE:].split(256), agent.split(256), strict=True)
        return torch.cat([self._tokenizer.decode(ids, place) for ids, place in parts])

    @torch.no_grad()
    def states(self) -> NDArray[np.float32]:
        """``(B, 7)``: agent x, y; object x, y, angle; agent velocity; in px, rad and px/s, read from the tokens."""
        proprio = self._dynamics.layout.proprio(self.tokens)
        pose = self._tokenizer.pose(self._tokenizer.codes(self.tokens[:, PROPRIO_SIZE:]))
        angle = torch.atan2(pose[:, 3:4], pose[:, 2:3]) % (2 * torch.pi)
        return torch.cat([proprio[:, :2], pose[:, :2], angle, proprio[:, 2:]], 1).cpu().numpy()


class ObjectWorldModel:
    """See ``worldmodels.api.WorldModel``.

    Args:
        tokenizer: Frames <-> tokens.
        dynamics: Tokens and actions -> next tokens.
        history_length: Frames kept when a window restarts.
        window_frames: Longest window in frames; what the dynamics was trained on.
        top_k: Sample from the k likeliest tokens only; None for all.
        protocol: What the model was trained for (environment, frame skip, image size, units); an environment that asks
            for something else refuses it.
    """

    def __init__(
        self,
        tokenizer: GlobalTokenizer,
        dynamics: ObjectDynamics,
        *,
        history_length: int = 3,
        window_frames: int = 8,
        top_k: int | None = None,
        protocol: Mapping[str, Any] | None = None,
    ) -> None:
        if not 1 <= history_length < window_frames <= dynamics.config.max_frames:
            raise ValueError(
                f"need 1 <= history_length < window_frames <= {dynamics.config.max_frames}, got "
                f"{history_length} and {window_frames}"
            )
        self.tokenizer = tokenizer.eval()
        self.dynamics = dynamics.eval()
        self.history_length = history_length
        self.window_frames = window_frames
        self.top_k = top_k
        self.protocol = dict(protocol or {})
        self.action_shape: tuple[int, ...] | None = (dynamics.config.action_size,)

    @property
    def device(self) -> torch.device:
        """Where tokens live and are predicted. Which row is where is kept on the processor."""
        return self.dynamics.slot.device

    @torch.no_grad()
    def encode(self, observations: Sequence[Observation]) -> Tensor:
        """Tokens ``(B, S)`` of observations ``{"image": (H, W, 3) uint8, "proprio": (4,)}``.

        Raises:
            ValueError: A part is missing or has the wrong shape.
        """
        side = self.tokenizer.config.image_size
        for row, observation in enumerate(observations):
            image = np.shape(observation["image"]) if "image" in observation else None
            proprio = np.shape(observation["proprio"]) if "proprio" in observation else None
            if image != (side, side, 3) or proprio != (PROPRIO_SIZE,):
                raise ValueError(
                    f"observation {row} has image {image} and proprio {proprio}; expected "
                    f"({side}, {side}, 3) uint8 and ({PROPRIO_SIZE},) float"
                )
        images = torch.from_numpy(np.stack([np.asarray(o["image"]) for o in observations])).to(self.device)
        frames = images.movedim(-1, 1).contiguous().float() / 255
        codes = torch.cat([self.tokenizer.encode(part) for part in frames.split(256)])
        stacked = np.stack([np.asarray(o["proprio"], np.float32) for o in observations])
        proprio = torch.from_numpy(stacked).to(self.device)
        return torch.cat([self.dynamics.layout.encode_proprio(proprio), codes], 1)

    def start(self, histories: Sequence[History], *, seeds: Sequence[int]) -> GroupedRows[_Group]:
        """Begin one rollout per history; only the last ``history_length`` observations are used."""
        if len(histories) != len(seeds) or not len(seeds):
            raise ValueError(f"{len(histories)} histories and {len(seeds)} seeds; give one seed per history")
        kept = [list(h.observations)[-self.history_length :] for h in histories]
        state: GroupedRows[_Group] | None = None
        places: list[int] = []
        for length in sorted({len(k) for k in kept}):
            rows = [i for i, k in enumerate(kept) if len(k) == length]
            between = [list(histories[i].actions)[-(length - 1) :] if length > 1 else [] for i in rows]
            actions = torch.stack([self._checked_actions(taken, length - 1) for taken in between])
            own = torch.tensor([seeds[i] for i in rows], dtype=torch.int64, device=self.device)
            with threads_for(len(rows), self.dynamics):
                tokens = self.encode([o for i in rows for o in kept[i]]).unflatten(0, (len(rows), length))
                part = self.start_tokens(tokens, actions, own)
            state = part if state is None else state.append(part)
            places += rows
        assert state is not None
        return state.select(np.argsort(places).tolist())

    def start_tokens(self, tokens: Tensor, actions: Tensor, seeds: Tensor) -> GroupedRows[_Group]:
        """Begin from tokens ``(B, T, S)``, the actions ``(B, T-1, A)`` between them, and int64 seeds ``(B,)``."""
        group = _Group(
            tokens=tokens,
            actions=actions,
            seeds=seeds,
            steps=torch.zeros_like(seeds),
            cache=self._prefilled(tokens, actions),
        )
        return GroupedRows.single(self, group)

    def _checked_actions(self, actions: Any, count: int) -> Tensor:
        array = (
            np.asarray(actions, dtype=np.float32).reshape(-1, self.dynamics.config.action_size)
            if count == 0
            else np.asarray(actions, dtype=np.float32)
        )
        if array.shape != (count, self.dynamics.config.action_size):
            raise ValueError(
                f"actions have shape {array.shape}, expected {(count, self.dynamics.config.action_size)}"
            )
        if not np.isfinite(array).all():
            raise ValueError("actions hold a value that is not finite; give finite numbers")
        return torch.from_numpy(array).to(self.device)

    def step(
        self, state: RolloutState, actions: Any, *, temperature: float = 1.0
    ) -> tuple[GroupedRows[_Group], FramePredictions]:
        """One action per row ``(B, A)``."""
        rows: GroupedRows[_Group] = checked_state(self, state)
        checked = self._checked_actions(actions, len(rows))
        with threads_for(len(rows), self.dynamics):
            later, (drawn, likely) = rows.advanced(
                checked, lambda group, taken: self._advance(group, taken, temperature)
            )
        return later, FramePredictions(self.tokenizer, self.dynamics, drawn, likely)

    def pose(self, tokens: Tensor) -> Tensor:
        """Object pose ``(..., 4)`` read from a frame's tokens ``(..., S)``."""
        return self.tokenizer.pose(self.tokenizer.codes(tokens[..., PROPRIO_SIZE:]))

    @torch.no_grad()
    def _prefilled(self, tokens: Tensor, actions: Tensor) -> KVCache:
        """The cache of a window: all its frames but the first, as if they had been predicted."""
        B, frames, S = tokens.shape
        cache = self.dynamics.llama.new_cache(B, (self.window_frames - 1) * S)
        if frames > 1:
            embeddings, _ = self.dynamics.window_inputs(tokens, actions, self.pose(tokens))
            self.dynamics.llama.hidden(None, cache, embeddings=embeddings)
        return cache

    @torch.no_grad()
    def _advance(
        self, group: _Group, actions: Tensor, temperature: float
    ) -> tuple[_Group, tuple[Tensor, Tensor]]:
        """Predict one frame: tokens ``(B, S)`` and their log-probabilities."""
        if group.tokens.shape[1] >= self.window_frames:
            keep = self.history_length
            kept = group.tokens[:, -keep:]
            between = group.actions[:, group.actions.shape[1] - keep + 1 :]
            group = replace(group, tokens=kept, actions=between, cache=self._prefilled(kept, between))
        cache = group.cache.branch()
        previous = group.tokens[:, -1]
        context = self.dynamics.frame_context(previous, actions, self.pose(previous))
        tokens, logprobs = self._decode(context, cache, group, temperature)
        advanced = _Group(
            tokens=torch.cat([group.tokens, tokens[:, None]], 1),
            actions=torch.cat([group.actions, actions[:, None]], 1),
            seeds=group.seeds,
            steps=group.steps + 1,
            cache=cache,
        )
        return advanced, (tokens, logprobs)

    def _decode(
        self, context: FrameContext, cache: KVCache, group: _Group, temperature: float
    ) -> tuple[Tensor, Tensor]:
        dynamics = self.dynamics
        slots = dynamics.layout.slots
        draws = uniforms(group.seeds[:, None], group.steps[:, None], torch.arange(slots))
        tokens: list[Tensor] = []
        logprobs: list[Tensor] = []
        for slot in range(slots):
            inputs = context.inputs[:, slot]
            if slot:
                inputs = inputs + dynamics.token_inputs(tokens[-1][:, None], slice(slot - 1, slot))[:, 0]
            hidden = dynamics.llama.hidden(None, cache, embeddings=inputs[:, None])[:, 0]
            proposal = None if context.proposals is None else context.proposals[:, slot]
            logits = dynamics.slot_logits(hidden, slot, proposal)
            token, logprob = sample(logits, draws[:, slot], temperature=temperature, top_k=self.top_k)
            tokens.append(token)
            logprobs.append(logprob)
        return torch.stack(tokens, 1), torch.stack(logprobs, 1)
