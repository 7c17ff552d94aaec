"""The multi-step world model of RT-1 frames: compressive tokenizer + Llama behind ``start``, ``step``, ``fork``,
``select``.

Special: a window is the context frame, then frames and actions in turn; after ``num_frames - 1`` predicted
frames it restarts from the same context and the last frame. The context is prefilled and seen by the decoder
once an episode, and all forks share that; within a window keys and values live on from step to step. Only ids
of the frames' own code book can be drawn, and draws depend on (seed, step, token) only.

Absent: gradients (training uses ``MultiStepLayout.build``).

Shapes: B rows, C ids of a context frame, K ids of every other frame, A action numbers.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from worldmodels.api import History, Observation, RolloutState
from worldmodels.nets.bfloat16 import advise, painter
from worldmodels.nets.kv_cache import KVCache
from worldmodels.nets.llama import Llama
from worldmodels.sampling import derive, uniforms
from worldmodels.video.action_bins import ActionBins
from worldmodels.video.compressive_tokenizer import CompressiveTokenizer, ContextFeatures
from worldmodels.video.decoded_frames import DecodedFrames, checked_bins, checked_frames, frames_at_once
from worldmodels.video.frame_ids import Expected, frame_ids
from worldmodels.video.layouts import MultiStepLayout
from worldmodels.video.rollout_rows import GroupedRows, checked_state, threads_for
from worldmodels.video.state_reader import StateReader


@dataclass(eq=False)
class _Context:
    """A context frame, shared by all rows that see it.

    Attributes:
        ids: ``(C,)`` int64.
        cache: Keys and values of its C positions, one row.
        features: What the decoder sees of it; made when a frame is first asked for.
    """

    ids: Tensor
    cache: KVCache
    features: ContextFeatures | None = None


@dataclass(frozen=True, eq=False)
class _Rows:
    """Rows whose windows are equally long.

    Attributes:
        contexts: B of them.
        frames: ``(B, place + 1, K)``, ids of the window's frames.
        seeds: ``(B,)`` int64.
        steps: ``(B,)`` int64, steps since each row's start: the counter of its draws.
        cache: Keys and values of all positions but the last frame's last; None in a window without actions, whose
            past is that of its context.
        expected: Of the next frame, if there is a single row that has made one.
    """

    contexts: tuple[_Context, ...]
    frames: Tensor
    seeds: Tensor
    steps: Tensor
    cache: KVCache | None = None
    expected: Expected | None = None

    @property
    def place(self) -> int:
        """Predicted frames in the window."""
        return self.frames.shape[1] - 1

    def take(self, rows: Tensor) -> _Rows:
        return _Rows(
            contexts=tuple(self.contexts[row] for row in rows.tolist()),
            frames=self.frames[rows],
            seeds=self.seeds[rows],
            steps=self.steps[rows],
            cache=None if self.cache is None else self.cache.select(rows),
            expected=self.expected if len(rows) == 1 else None,
        )

    def repeated(self, n: int) -> _Rows:
        return _Rows(
            contexts=tuple(context for context in self.contexts for _ in range(n)),
            frames=self.frames.repeat_interleave(n, 0),
            seeds=derive(self.seeds[:, None], torch.arange(n, device=self.seeds.device)).flatten(),
            steps=self.steps.repeat_interleave(n, 0),
            cache=None if self.cache is None else self.cache.repeat(n),
            expected=self.expected if n == 1 else None,
        )

    def joined(self, others: Sequence[_Rows]) -> _Rows:
        groups = [self, *others]
        caches = [group.cache for group in groups if group.cache is not None]
        return _Rows(
            contexts=tuple(context for group in groups for context in group.contexts),
            frames=torch.cat([group.frames for group in groups]),
            seeds=torch.cat([group.seeds for group in groups]),
            steps=torch.cat([group.steps for group in groups]),
            cache=KVCache.concatenate(caches) if caches else None,
        )

    def reseeded(self, seeds: Tensor) -> _Rows:
        return replace(self, seeds=seeds)


class MultiStepWorldModel:
    """See ``worldmodels.api.WorldModel``. Observations are RGB frames ``(H, W, 3)`` uint8.

    A history's last frame but one is the context, or its only frame is both; a model trained on episodes whose
    context is their first frame is best started from one frame.

    Args:
        tokenizer: Frames <-> ids.
        llama: Ids -> next id.
        layout: Where ids stand; must fit both.
        action_bins: Actions -> bins.
        protocol: What the model was trained for (environment, image size); an environment that asks for something
            else refuses it.
        top_k: Sample from the k likeliest ids only; None for all.
        repetition_penalty: Logits of ids that stand in the window are divided by this if positive, multiplied if
            negative (Keskar et al. 2019, arXiv:1909.05858, in the form of transformers); 1 for none.
        reader: Reads physical states from decoded frames (``Predictions.states``); None: they are not known.

    Raises:
        ValueError: The parts do not fit each other.
    """

    history_length = 2

    def __init__(
        self,
        tokenizer: CompressiveTokenizer,
        llama: Llama,
        layout: MultiStepLayout,
        action_bins: ActionBins,
        *,
        protocol: Mapping[str, Any] | None = None,
        top_k: int | None = None,
        repetition_penalty: float = 1.0,
        reader: StateReader | None = None,
    ) -> None:
        wanted = {
            "context_tokens": tokenizer.context_tokens,
            "dynamic_tokens": tokenizer.dynamic_tokens,
            "context_vocab": tokenizer.context_codebook_size,
            "dynamic_vocab": tokenizer.dynamic_codebook_size,
            "vocab_size": llama.config.vocab_size,
            "action_dim": len(action_bins.low),
            "action_bins": action_bins.num_bins,
        }
        for name, value in wanted.items():
            if getattr(layout, name) != value:
                raise ValueError(
                    f"layout has {name} {getattr(layout, name)}, but tokenizer, transformer or action bins have {value}"
                )
        if layout.num_frames < 2 or llama.config.max_position_embeddings < layout.response.stop:
            raise ValueError(
                f"a window of {layout.num_frames} frames has {layout.response.stop} positions; the transformer "
                f"has {llama.config.max_position_embeddings}, and at least 2 frames are needed"
            )
        if not repetition_penalty > 0:
            raise ValueError(
                f"repetition_penalty is {repetition_penalty}; give a positive number, 1 for none"
            )
        if reader is not None and (
            reader.config.frames != 1 or max(tokenizer.config.image_size) > reader.config.side
        ):
            raise ValueError(
                f"the reader takes {reader.config.frames} frame(s) of at most {reader.config.side} px, the model's are "
                f"{tokenizer.config.image_size} px; give a reader that was trained on single frames of this size"
            )
        self.tokenizer, self.llama = tokenizer.eval(), llama.eval()
        self.reader = None if reader is None else reader.eval()
        self._painter = self.tokenizer  # decodes; see in_bfloat16
        self.layout, self.action_bins = layout, action_bins
        self.protocol = dict(protocol or {})
        self.top_k, self.repetition_penalty = top_k, repetition_penalty
        self.action_shape: tuple[int, ...] | None = (layout.action_dim,)

    @property
    def device(self) -> torch.device:
        """Where ids live and are predicted. Which row is where is kept on the processor."""
        return self.llama.lm_head.weight.device

    def in_bfloat16(self) -> MultiStepWorldModel:
        """A copy that predicts and decodes in bfloat16, at half the memory traffic.

        Frames are still encoded in float32, so that their ids are exact; predicted ids are those of the rounded
        transformer, and pixels differ a little. Old states belong to the old model. On a processor that has no
        bfloat16 instructions the copy stays in float32, which is faster there, with a warning.
        """
        other = copy.copy(self)
        if advise(self.device):
            other.llama = self.llama.in_bfloat16()
            other._painter = painter(self.tokenizer)
        return other

    def encode(self, contexts: Sequence[Observation], frames: Sequence[Observation]) -> tuple[Tensor, Tensor]:
        """Ids of context frames ``(B, C)`` and of a frame seen from each ``(B, K)``.

        Raises:
            ValueError: A frame of another size or type.
        """
        size = self.tokenizer.config.image_size
        first, last = checked_frames(contexts, size), checked_frames(frames, size)
        found = []
        at_once = frames_at_once(size)
        with threads_for(len(first), self.tokenizer):
            for context, frame in zip(first.split(at_once), last.split(at_once), strict=True):
                ids, features = self.tokenizer.encode_context(context.to(self.device))
                found.append((ids, self.tokenizer.encode(features, frame.to(self.device))))
        return torch.cat([ids for ids, _ in found]), torch.cat([ids for _, ids in found])

    def start(self, histories: Sequence[History], *, seeds: Sequence[int]) -> GroupedRows[_Rows]:
        """Begin one rollout per history; only the last two observations are used, and no action between them."""
        if len(histories) != len(seeds) or not len(seeds):
            raise ValueError(f"{len(histories)} histories and {len(seeds)} seeds; give one seed per history")
        kept = [list(history.observations)[-self.history_length :] for history in histories]
        if not all(kept):
            raise ValueError("a history holds no observation; give at least the present one")
        contexts, frames = self.encode([seen[0] for seen in kept], [seen[-1] for seen in kept])
        own = torch.tensor(list(seeds), dtype=torch.int64, device=self.device)
        return self.start_tokens(contexts, frames, own)

    @torch.no_grad()
    def start_tokens(self, contexts: Tensor, frames: Tensor, seeds: Tensor) -> GroupedRows[_Rows]:
        """Begin from context ids ``(B, C)`` (without offset), frame ids ``(B, K)`` and int64 seeds ``(B,)``.

        Rows with the same context ids share one context, as the forks of one row do.
        """
        expected = (self.layout.context_tokens,), (self.layout.dynamic_tokens,)
        if (contexts.shape[1:], frames.shape[1:]) != expected or not len(contexts) == len(frames) == len(
            seeds
        ):
            raise ValueError(
                f"contexts {tuple(contexts.shape)}, frames {tuple(frames.shape)} and {len(seeds)} seeds; expected "
                f"(B, {self.layout.context_tokens}), (B, {self.layout.dynamic_tokens}) and B"
            )
        distinct, which = torch.unique(contexts, dim=0, return_inverse=True)
        prefilled: list[_Context] = []
        for part in distinct.split(frames_at_once(self.tokenizer.config.image_size)):
            cache = self.llama.new_cache(len(part), part.shape[1])
            with threads_for(len(part), self.llama):
                self.llama.hidden(part + self.layout.dynamic_vocab, cache)
            rows = [cache] if len(part) == 1 else [cache.select([row]) for row in range(len(part))]
            prefilled += [_Context(ids, one) for ids, one in zip(part, rows, strict=True)]
        group = _Rows(
            contexts=tuple(prefilled[number] for number in which.tolist()),
            frames=frames[:, None],
            seeds=seeds,
            steps=torch.zeros_like(seeds),
        )
        return GroupedRows.single(self, group)

    @torch.no_grad()
    def step(
        self, state: RolloutState, actions: Any, *, temperature: float = 1.0
    ) -> tuple[GroupedRows[_Rows], DecodedFrames]:
        """One action per row ``(B, A)``."""
        rows: GroupedRows[_Rows] = checked_state(self, state)
        bins = checked_bins(self.action_bins, actions, len(rows)).to(self.device)
        placed = [context for group in rows.groups for context in group.contexts]
        contexts = [placed[row] for row in rows.order.tolist()]
        later, (drawn, likely) = rows.advanced(
            bins, lambda group, taken: self._advance(group, taken, temperature)
        )
        return later, DecodedFrames(drawn, likely, lambda: self.decode(contexts, drawn), self.reader)

    @torch.no_grad()
    def decode(self, contexts: Sequence[_Context], ids: Tensor) -> Tensor:
        """Frames ``(B, 3, H, W)``, not clamped, of ids ``(B, K)`` seen from B contexts."""
        at_once = frames_at_once(self.tokenizer.config.image_size)
        starts = range(0, len(ids), at_once)
        with threads_for(len(ids), self.tokenizer):
            return torch.cat([self._decoded(contexts[i : i + at_once], ids[i : i + at_once]) for i in starts])

    def _decoded(self, contexts: Sequence[_Context], ids: Tensor) -> Tensor:
        distinct = {context: number for number, context in enumerate(dict.fromkeys(contexts))}
        unseen = [context for context in distinct if context.features is None]
        if unseen:
            _, made = self._painter.decode_context(torch.stack([context.ids for context in unseen]))
            for row, context in enumerate(unseen):
                context.features = made if len(unseen) == 1 else made.select([row])
        seen = [context.features for context in distinct if context.features is not None]
        features = seen[0] if len(seen) == 1 else ContextFeatures.concatenate(seen)
        rows = torch.tensor([distinct[context] for context in contexts], device=ids.device)
        return self._painter.decode(features, ids, rows=rows)

    def _advance(self, group: _Rows, bins: Tensor, temperature: float) -> tuple[_Rows, tuple[Tensor, Tensor]]:
        """Predict one frame: its ids ``(B, K)`` and their log-probabilities."""
        previous = group.frames[:, -1]
        with threads_for(len(bins), self.llama):
            if group.cache is None:
                cache, given = self._window(group.contexts), previous
            else:
                cache, given = group.cache.branch(), previous[:, -1:]
            fed = torch.cat([given, bins + self.layout.action_offset], 1)
            frame, logprobs, expected = self._decode_ids(group, cache, fed, temperature)
        later = replace(
            group,
            frames=torch.cat([group.frames, frame[:, None]], 1),
            steps=group.steps + 1,
            cache=cache,
            expected=expected,
        )
        if later.place == self.layout.num_frames - 1:  # the window is full
            later = replace(later, frames=frame[:, None], cache=None)
        return later, (frame, logprobs)

    def _decode_ids(
        self, group: _Rows, cache: KVCache, fed: Tensor, temperature: float
    ) -> tuple[Tensor, Tensor, Expected | None]:
        index = torch.arange(self.layout.dynamic_tokens, device=self.device)
        return frame_ids(
            self.llama,
            cache,
            fed,
            group.frames,
            uniforms(group.seeds[:, None], group.steps[:, None], index),
            self.layout.dynamic,
            temperature=temperature,
            top_k=self.top_k,
            repetition_penalty=self.repetition_penalty,
            expected=group.expected,
        )

    def _window(self, contexts: Sequence[_Context]) -> KVCache:
        """A cache with room for a window that holds the contexts."""
        layout = self.layout
        cache = self.llama.new_cache(len(contexts), layout.response.stop - layout.action_dim)
        cache.reserve(layout.context_tokens)
        alike = all(context is contexts[0] for context in contexts)
        sources = [contexts[0].cache] if alike else [context.cache for context in contexts]
        for layer in range(self.llama.config.num_hidden_layers):
            keys = torch.cat([source.keys[layer] for source in sources])
            values = torch.cat([source.values[layer] for source in sources])
            cache.append(layer, keys, values)  # one context is spread over all rows
        cache.advance(layout.context_tokens)
        return cache
