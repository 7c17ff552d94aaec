"""The single-step world model of RT-1 frames: per-frame tokenizer + Llama behind ``start``, ``step``, ``fork``,
``select``.

Special: each frame is predicted from the last four and the actions taken in them. Every position moves with
each step, so no keys and values outlive it; rows that have seen and done the same (forks, candidates of a
planner) share the prefill of all but the present action. Only visual ids can be drawn, and draws depend on
(seed, step, token) only.

Absent: gradients (training uses ``SingleStepLayout.build``), and reading physical states from frames.

Shapes: B rows, F frames of history, K ids of a frame, A action numbers.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from worldmodels.api import History, Observation, RolloutState
from worldmodels.nets.bfloat16 import advise, painter
from worldmodels.nets.kv_cache import KVCache
from worldmodels.nets.llama import Llama
from worldmodels.sampling import derive, uniforms
from worldmodels.video.action_bins import ActionBins
from worldmodels.video.decoded_frames import DecodedFrames, checked_bins, checked_frames, frames_at_once
from worldmodels.video.frame_ids import Expected, frame_ids
from worldmodels.video.frame_tokenizer import FrameTokenizer
from worldmodels.video.layouts import SingleStepLayout
from worldmodels.video.rollout_rows import GroupedRows, checked_state, threads_for


@dataclass(frozen=True, eq=False)
class _Rows:
    """All rows of a state: their windows are always equally long.

    Attributes:
        frames: ``(B, F, K)`` ids.
        actions: ``(B, F - 1, A)`` bins, taken in all frames but the last.
        seeds: ``(B,)`` int64.
        steps: ``(B,)`` int64, steps since each row's start: the counter of its draws.
        expected: Of the next frame, if there is a single row that has made one.
    """

    frames: Tensor
    actions: Tensor
    seeds: Tensor
    steps: Tensor
    expected: Expected | None = None

    @property
    def place(self) -> int:
        return 0

    def take(self, rows: Tensor) -> _Rows:
        expected = self.expected if len(rows) == 1 else None
        return _Rows(self.frames[rows], self.actions[rows], self.seeds[rows], self.steps[rows], expected)

    def repeated(self, n: int) -> _Rows:
        return _Rows(
            frames=self.frames.repeat_interleave(n, 0),
            actions=self.actions.repeat_interleave(n, 0),
            seeds=derive(self.seeds[:, None], torch.arange(n, device=self.seeds.device)).flatten(),
            steps=self.steps.repeat_interleave(n, 0),
            expected=self.expected if n == 1 else None,
        )

    def joined(self, others: Sequence[_Rows]) -> _Rows:
        groups = [self, *others]
        return _Rows(
            frames=torch.cat([group.frames for group in groups]),
            actions=torch.cat([group.actions for group in groups]),
            seeds=torch.cat([group.seeds for group in groups]),
            steps=torch.cat([group.steps for group in groups]),
        )

    def reseeded(self, seeds: Tensor) -> _Rows:
        return replace(self, seeds=seeds)


class SingleStepWorldModel:
    """See ``worldmodels.api.WorldModel``. Observations are RGB frames ``(H, W, 3)`` uint8.

    A history shorter than the model's is filled up with its first frame, in which nothing was done (all numbers
    of the action 0, or the nearest in range).

    Args:
        tokenizer: Frames <-> ids.
        llama: Ids -> next id.
        layout: Where ids stand; must fit both.
        action_bins: Actions -> bins.
        image_size: Height and width of frames, px.
        protocol: What the model was trained for (environment, image size); an environment that asks for something
            else refuses it.
        top_k: Sample from the k likeliest ids only; None for all.

    Raises:
        ValueError: The parts do not fit each other.
    """

    def __init__(
        self,
        tokenizer: FrameTokenizer,
        llama: Llama,
        layout: SingleStepLayout,
        action_bins: ActionBins,
        *,
        image_size: tuple[int, int] = (256, 320),
        protocol: Mapping[str, Any] | None = None,
        top_k: int | None = None,
    ) -> None:
        side = tokenizer.config.downscale
        if any(size % side or size < side for size in image_size):
            raise ValueError(
                f"image_size is {image_size}; the tokenizer takes multiples of {side} px along each side"
            )
        self._grid = (image_size[0] // side, image_size[1] // side)
        wanted = {
            "visual_tokens": self._grid[0] * self._grid[1],
            "visual_vocab": tokenizer.fsq.codebook_size,
            "vocab_size": llama.config.vocab_size,
            "action_dim": len(action_bins.low),
            "action_bins": action_bins.num_bins,
        }
        for name, value in wanted.items():
            if getattr(layout, name) != value:
                raise ValueError(
                    f"layout has {name} {getattr(layout, name)}, but tokenizer, transformer or action bins have {value}"
                )
        self._positions = layout.prompt.stop + layout.visual_tokens
        if llama.config.max_position_embeddings < self._positions:
            raise ValueError(
                f"a prompt and a frame have {self._positions} positions, but the transformer only "
                f"{llama.config.max_position_embeddings}"
            )
        self.tokenizer, self.llama = tokenizer.eval(), llama.eval()
        self._painter = self.tokenizer  # decodes; see in_bfloat16
        self.layout, self.action_bins, self.image_size = layout, action_bins, image_size
        self.protocol = dict(protocol or {})
        self.top_k = top_k
        self.history_length = layout.history
        self.action_shape: tuple[int, ...] | None = (layout.action_dim,)

    @property
    def device(self) -> torch.device:
        """Where ids live and are predicted. Which row is where is kept on the processor."""
        return self.llama.lm_head.weight.device

    def in_bfloat16(self) -> SingleStepWorldModel:
        """A copy that predicts and decodes in bfloat16, see ``MultiStepWorldModel.in_bfloat16``."""
        other = copy.copy(self)
        if advise(self.device):
            other.llama = self.llama.in_bfloat16()
            other._painter = painter(self.tokenizer)
        return other

    def encode(self, observations: Sequence[Observation]) -> Tensor:
        """Ids ``(B, K)`` of frames.

        Raises:
            ValueError: A frame of another size or type.
        """
        frames = checked_frames(observations, self.image_size)
        parts = frames.split(frames_at_once(self.image_size))
        with threads_for(len(frames), self.tokenizer):
            return torch.cat([self.tokenizer.encode(part.to(self.device)).flatten(1) for part in parts])

    def start(self, histories: Sequence[History], *, seeds: Sequence[int]) -> GroupedRows[_Rows]:
        """Begin one rollout per history; only the last ``history_length`` observations are used."""
        if len(histories) != len(seeds) or not len(seeds):
            raise ValueError(f"{len(histories)} histories and {len(seeds)} seeds; give one seed per history")
        kept = [list(history.observations)[-self.history_length :] for history in histories]
        if not all(kept):
            raise ValueError("a history holds no observation; give at least the present one")
        ids = self.encode([frame for seen in kept for frame in seen]).split([len(seen) for seen in kept])
        still = torch.from_numpy(self.action_bins.encode(np.zeros(self.layout.action_dim, np.float32)))
        frames, actions = [], []
        for history, seen in zip(histories, ids, strict=True):
            missing = self.history_length - len(seen)
            count = len(seen) - 1
            taken = checked_bins(self.action_bins, list(history.actions)[-count:] if count else [], count)
            frames.append(torch.cat([seen[:1].expand(missing, -1), seen]))
            actions.append(torch.cat([still.expand(missing, -1), taken]))
        own = torch.tensor(list(seeds), dtype=torch.int64, device=self.device)
        return self.start_tokens(torch.stack(frames), torch.stack(actions).to(self.device), own)

    def start_tokens(self, frames: Tensor, actions: Tensor, seeds: Tensor) -> GroupedRows[_Rows]:
        """Begin from ids ``(B, F, K)``, bins ``(B, F - 1, A)`` of the actions between, and int64 seeds ``(B,)``."""
        layout = self.layout
        expected = (layout.history, layout.visual_tokens), (layout.history - 1, layout.action_dim)
        if (frames.shape[1:], actions.shape[1:]) != expected or not len(frames) == len(actions) == len(seeds):
            raise ValueError(
                f"frames {tuple(frames.shape)}, actions {tuple(actions.shape)} and {len(seeds)} seeds; expected "
                f"(B, {layout.history}, {layout.visual_tokens}), (B, {layout.history - 1}, {layout.action_dim}) and B"
            )
        group = _Rows(frames, actions, seeds, torch.zeros_like(seeds))
        return GroupedRows.single(self, group)

    @torch.no_grad()
    def step(
        self, state: RolloutState, actions: Any, *, temperature: float = 1.0
    ) -> tuple[GroupedRows[_Rows], DecodedFrames]:
        """One action per row ``(B, A)``."""
        rows: GroupedRows[_Rows] = checked_state(self, state)
        bins = checked_bins(self.action_bins, actions, len(rows)).to(self.device)
        later, (drawn, likely) = rows.advanced(
            bins, lambda group, taken: self._advance(group, taken, temperature)
        )
        return later, DecodedFrames(drawn, likely, lambda: self.decode(drawn))

    def decode(self, ids: Tensor) -> Tensor:
        """Frames ``(B, 3, H, W)``, not clamped, of ids ``(B, K)``."""
        parts = ids.view(-1, *self._grid).split(frames_at_once(self.image_size))
        with threads_for(len(ids), self.tokenizer):
            return torch.cat([self._painter.decode(part) for part in parts]).float()

    def _advance(self, group: _Rows, bins: Tensor, temperature: float) -> tuple[_Rows, tuple[Tensor, Tensor]]:
        """Predict one frame: its ids ``(B, K)`` and their log-probabilities."""
        layout, llama = self.layout, self.llama
        index = torch.arange(layout.visual_tokens, device=self.device)
        draws = uniforms(group.seeds[:, None], group.steps[:, None], index)
        fed = torch.cat([bins + layout.visual_vocab, bins.new_full((len(bins), 1), layout.bos)], 1)
        with threads_for(len(bins), self.llama):
            cache = self._prefilled(group)
            frame, logprobs, expected = frame_ids(
                llama,
                cache,
                fed,
                group.frames,
                draws,
                layout.visual,
                temperature=temperature,
                top_k=self.top_k,
                expected=group.expected,
            )
        later = _Rows(
            frames=torch.cat([group.frames[:, 1:], frame[:, None]], 1),
            actions=torch.cat([group.actions, bins[:, None]], 1)[:, 1:],
            seeds=group.seeds,
            steps=group.steps + 1,
            expected=expected,
        )
        return later, (frame, logprobs)

    def _prefilled(self, group: _Rows) -> KVCache:
        """The cache of all frames and the actions between them, computed once for rows that have them in common."""
        before = torch.cat([group.frames[:, :-1], group.actions + self.layout.visual_vocab], 2)
        past = torch.cat([before.flatten(1), group.frames[:, -1]], 1)
        distinct, which = torch.unique(past, dim=0, return_inverse=True)
        if len(distinct) == len(past):
            cache = self.llama.new_cache(len(past), self._positions)
            self.llama.hidden(past, cache)
            return cache
        cache = self.llama.new_cache(len(distinct), past.shape[1])
        self.llama.hidden(distinct, cache)
        return cache.select(which, self._positions)
