"""Attention of one feature map to another of the same size, in the weight layout of the released tokenizer.

Special: the side that is looked at (keys and values) is projected apart from the side that looks, so that the
features of a context frame are projected once however many frames look at them. Frames of one context are
laid behind each other as queries: keys and values are never copied. In training mode, and in no other, a share of
the attention weights may be dropped, as published; which ones, torch's global generator says.

Shapes: B contexts, R = n * B frames that look (n consecutive ones at each context), P positions of a map,
H heads, E head width, C = H * E channels.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from worldmodels.nets.conv import linear

NUM_HEADS = 4
NUM_GROUPS = (
    32  # unless a narrow tokenizer asks for fewer: groups of two channels forget which colour they had
)
NORM_EPS = 1e-5
"""Constants of the published cross attention, whatever the rest of the tokenizer is configured to."""

POSITION_STD = 1.5
"""Of fresh position embeddings (ours; those of the published ones are trained)."""

KeysValues: TypeAlias = tuple[Tensor, Tensor]
"""Keys and values, each ``(B, H, P, E)``."""


@dataclass(frozen=True, eq=False)
class ContextFeatures:
    """What frames see of B contexts: keys and values ``(B, heads, positions, width)`` of each cross attention.

    Everything that does not depend on the frames is in here; at the published size 8 MB per context for
    encoding and 5 MB for decoding, in float32.
    """

    maps: tuple[KeysValues, ...]

    def __len__(self) -> int:
        return len(self.maps[0][0])

    def select(self, rows: Sequence[int] | Tensor) -> ContextFeatures:
        """Some contexts, in the given order; a row may be taken twice.

        Raises:
            ValueError: A row that is not in ``range(len(self))``, or a mask in place of row numbers.
        """
        index = self._index(rows)
        return ContextFeatures(tuple((k[index], v[index]) for k, v in self.maps))

    def repeat(self, n: int) -> ContextFeatures:
        """Every context n times (b becomes rows b*n .. b*n+n-1). Copies: ``decode(..., rows=)`` needs no copies."""
        return ContextFeatures(
            tuple((k.repeat_interleave(n, 0), v.repeat_interleave(n, 0)) for k, v in self.maps)
        )

    @staticmethod
    def concatenate(parts: Sequence[ContextFeatures]) -> ContextFeatures:
        """The contexts of all parts."""
        return ContextFeatures(
            tuple(
                (torch.cat([k for k, _ in of_map]), torch.cat([v for _, v in of_map]))
                for of_map in zip(*(part.maps for part in parts), strict=True)
            )
        )

    def for_frames(self, rows: Sequence[int] | Tensor) -> ContextFeatures:
        """Contexts of ``len(rows)`` frames, where consecutive frames of one context share it if all share alike."""
        index = self._index(rows)
        used, counts = torch.unique_consecutive(index, return_counts=True)
        if (counts != counts[0]).any():
            return self.select(index)
        unchanged = len(used) == len(self) and bool(
            (used == torch.arange(len(self), device=used.device)).all()
        )
        return self if unchanged else self.select(used)

    def _index(self, rows: Sequence[int] | Tensor) -> Tensor:
        index = torch.as_tensor(rows, device=self.maps[0][0].device)
        if index.ndim != 1 or not len(index) or index.is_floating_point() or index.dtype == torch.bool:
            raise ValueError(f"rows must be one or more row numbers, got {index.dtype} {tuple(index.shape)}")
        low, high = (int(x) for x in torch.aminmax(index))
        if low < 0 or high >= len(self):
            raise ValueError(f"rows must be in [0, {len(self)}), the number of contexts, got {low}..{high}")
        return index.to(torch.int64)


class _Projections(nn.Module):
    """The parameters of torch's own multi-head attention, under its names."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.in_proj_weight = nn.Parameter(torch.empty(3 * channels, channels))
        self.in_proj_bias = nn.Parameter(torch.empty(3 * channels))
        self.out_proj = linear(channels, channels)


class CrossAttention(nn.Module):
    """Adds to a feature map what it finds in another one.

    Args:
        channels: C, a multiple of 4 and of the number of groups.
        positions: P, height times width of both maps.
        groups: Of both norms.
        dropout: Share of the attention weights that is dropped in training mode, in [0, 1).
    """

    def __init__(
        self, channels: int, positions: int, *, groups: int = NUM_GROUPS, dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.dropout = dropout
        if channels % NUM_HEADS or channels % groups:
            raise ValueError(
                f"cross attention has {NUM_HEADS} heads and {groups} norm groups, which must divide the "
                f"channels of every map that looks at the context, got {channels}: choose other "
                f"block_out_channels, or a max_att_resolution that leaves out this map"
            )
        self.kv_pos_emb = nn.Parameter(torch.empty(positions, channels))
        self.q_pos_emb = nn.Parameter(torch.empty(positions, channels))
        self.att = _Projections(channels)
        self.kv_norm = nn.GroupNorm(groups, channels, eps=NORM_EPS)
        self.q_norm = nn.GroupNorm(groups, channels, eps=NORM_EPS)

    @torch.no_grad()
    def initialise(self, generator: torch.Generator) -> None:
        """Fresh position embeddings and projections; the linear layer is drawn with all others.

        Both sides get the same embeddings, and queries and keys the same rotation: every place of a frame begins
        by looking at the same place of its context, where most of it is found (ours; learning this alignment from
        nothing takes thousands of steps).
        """
        channels = self.q_pos_emb.shape[1]
        self.q_pos_emb.normal_(0.0, POSITION_STD, generator=generator)
        self.kv_pos_emb.copy_(self.q_pos_emb)
        limit = math.sqrt(6 / (4 * channels))  # Xavier, as torch's own multi-head attention
        self.att.in_proj_weight.uniform_(-limit, limit, generator=generator)
        self.att.in_proj_bias.zero_()
        queries, keys, _ = self.att.in_proj_weight.chunk(3)
        rotation, _ = torch.linalg.qr(queries)
        queries.copy_(rotation)
        keys.copy_(rotation)

    def keys_values(self, context: Tensor) -> KeysValues:
        """What is looked at, of features ``(B, C, h, w)``."""
        tokens = self.kv_norm(context).flatten(2).transpose(1, 2) + self.kv_pos_emb
        channels = tokens.shape[-1]
        both = F.linear(tokens, self.att.in_proj_weight[channels:], self.att.in_proj_bias[channels:])
        keys, values = both.unflatten(2, (2, NUM_HEADS, -1)).permute(2, 0, 3, 1, 4)
        return keys.contiguous(), values.contiguous()

    def forward(self, x: Tensor, context: KeysValues) -> Tensor:
        """``(R, C, h, w)`` to the same shape; each of the B contexts is for R / B consecutive rows."""
        tokens = self.q_norm(x).flatten(2).transpose(1, 2) + self.q_pos_emb
        channels = tokens.shape[-1]
        queries = F.linear(tokens, self.att.in_proj_weight[:channels], self.att.in_proj_bias[:channels])
        keys, values = context
        # (R, P, C) -> (B, H, n * P, E): all frames of a context are one long sequence of queries.
        queries = queries.reshape(len(keys), -1, NUM_HEADS, channels // NUM_HEADS).transpose(1, 2)
        dropped = self.dropout if self.training else 0.0
        found = F.scaled_dot_product_attention(queries, keys, values, dropout_p=dropped)
        found = found.transpose(1, 2).reshape(tokens.shape)
        return F.silu(x + self.att.out_proj(found).transpose(1, 2).reshape(x.shape))


class CrossAttentions(nn.ModuleList):
    """The cross attentions of a network, each after a numbered place in it.

    Args:
        sizes: place -> (channels, positions) of each, in order.
        groups: Of their norms.
        dropout: Of each.
    """

    def __init__(
        self, sizes: Mapping[int, tuple[int, int]], *, groups: int = NUM_GROUPS, dropout: float = 0.0
    ) -> None:
        super().__init__(
            CrossAttention(channels, positions, groups=groups, dropout=dropout)
            for channels, positions in sizes.values()
        )
        self._index = {place: index for index, place in enumerate(sizes)}

    def keys_values(self, seen: Mapping[int, Tensor]) -> tuple[KeysValues, ...]:
        """What each looks at, of the context's features by place."""
        pairs = ((cast(CrossAttention, self[index]), seen[place]) for place, index in self._index.items())
        return tuple(attend.keys_values(features) for attend, features in pairs)

    def look(self, place: int, x: Tensor, context: Sequence[KeysValues]) -> Tensor:
        """``x`` after the attention at this place, or as it is where there is none."""
        if place not in self._index:
            return x
        index = self._index[place]
        out: Tensor = self[index](x, context[index])
        return out
