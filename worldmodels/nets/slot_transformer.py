"""Encoder and decoder over objects: a bag of facts per position in, a sequence of words and pointers out.

Special: positions of the question see each other whatever their order; an answer's token may be a pointer to one
of them, scored by the position's own features, so that which object is meant does not depend on its number. What
the decoder sees of a question is computed once and shared by all answers to it.

Absent on purpose: dropout, and the meaning of facts, words and pointers (``worldmodels.language``).

Shape legend: B questions, P positions (padded), O objects (the first positions), L answer tokens, D width, H heads,
V words.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F


@dataclass(frozen=True, kw_only=True)
class SlotTransformerConfig:
    """Sizes.

    Attributes:
        vocab_size: V.
        num_features: Buckets of hashed facts.
        num_relations: Buckets of hashed kinds of relation.
        max_objects: O at most.
        max_answer: Tokens of an answer, at most.
        hidden_size: D.
        intermediate_size: Width of the feed-forward layers.
        num_heads: H; must divide D.
        encoder_layers, decoder_layers: Number of layers of each.
    """

    vocab_size: int
    num_features: int = 8192
    num_relations: int = 256
    max_objects: int = 64
    max_answer: int = 256
    hidden_size: int = 128
    intermediate_size: int = 320
    num_heads: int = 4
    encoder_layers: int = 4
    decoder_layers: int = 2

    def __post_init__(self) -> None:
        if self.hidden_size % self.num_heads:
            raise ValueError(
                f"hidden_size {self.hidden_size} must be a multiple of num_heads {self.num_heads}"
            )


@dataclass(frozen=True)
class QuestionBatch:
    """Questions as tensors.

    Attributes:
        facts: ``(K,)`` int64, all facts of all positions, one after the other.
        starts: ``(N,)`` int64, where each position's facts begin.
        positions: ``(N,)`` int64, its place in the padded ``B x P`` grid.
        relations: ``(M, 3)`` int64: place in that grid, kind, place in it of the object that it is about.
        objects: ``(B,)`` int64.
        valid: ``(B, P)`` bool.
    """

    facts: Tensor
    starts: Tensor
    positions: Tensor
    relations: Tensor
    objects: Tensor
    valid: Tensor


class _Attention(nn.Module):
    """Attention of tokens to themselves or to a question."""

    def __init__(self, config: SlotTransformerConfig) -> None:
        super().__init__()
        self.heads = config.num_heads
        width = config.hidden_size
        self.queries = nn.Linear(width, width, bias=False)
        self.keys_values = nn.Linear(width, 2 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)

    def project(self, x_BLD: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values ``(B, H, L, E)``."""
        keys, values = self.keys_values(x_BLD).chunk(2, dim=-1)
        return self._split(keys), self._split(values)

    def look(
        self,
        x_BLD: Tensor,
        keys_values: tuple[Tensor, Tensor],
        *,
        mask: Tensor | None = None,
        causal: bool = False,
    ) -> Tensor:
        found = F.scaled_dot_product_attention(
            self._split(self.queries(x_BLD)), *keys_values, attn_mask=mask, is_causal=causal
        )
        out: Tensor = self.out(found.transpose(1, 2).flatten(2))
        return out

    def _split(self, x_BLD: Tensor) -> Tensor:
        return x_BLD.unflatten(2, (self.heads, -1)).transpose(1, 2)


class _FeedForward(nn.Module):
    """SwiGLU."""

    def __init__(self, config: SlotTransformerConfig) -> None:
        super().__init__()
        self.up = nn.Linear(config.hidden_size, 2 * config.intermediate_size, bias=False)
        self.down = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        gate, value = self.up(x).chunk(2, dim=-1)
        out: Tensor = self.down(F.silu(gate) * value)
        return out


class _EncoderLayer(nn.Module):
    def __init__(self, config: SlotTransformerConfig) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.RMSNorm(config.hidden_size), nn.RMSNorm(config.hidden_size)
        self.attention, self.mlp = _Attention(config), _FeedForward(config)

    def forward(self, x_BPD: Tensor, mask: Tensor) -> Tensor:
        normed = self.norm1(x_BPD)
        x_BPD = x_BPD + self.attention.look(normed, self.attention.project(normed), mask=mask)
        out: Tensor = x_BPD + self.mlp(self.norm2(x_BPD))
        return out


class _DecoderLayer(nn.Module):
    def __init__(self, config: SlotTransformerConfig) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.RMSNorm(config.hidden_size), nn.RMSNorm(config.hidden_size)
        self.norm3 = nn.RMSNorm(config.hidden_size)
        self.attention, self.cross, self.mlp = _Attention(config), _Attention(config), _FeedForward(config)

    def forward(self, x_BLD: Tensor, seen: tuple[Tensor, Tensor], mask: Tensor, past: _Past | None) -> Tensor:
        normed = self.norm1(x_BLD)
        own = self.attention.project(normed)
        if past is not None:
            own = past.append(*own)
        x_BLD = x_BLD + self.attention.look(normed, own, causal=past is None)
        x_BLD = x_BLD + self.cross.look(self.norm2(x_BLD), seen, mask=mask)
        out: Tensor = x_BLD + self.mlp(self.norm3(x_BLD))
        return out


class _Past:
    """Keys and values of an answer so far, in one decoder layer."""

    def __init__(self, keys: Tensor, values: Tensor, length: int = 0) -> None:
        self.keys, self.values, self.length = keys, values, length

    def append(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """One more position; all of them."""
        self.keys[:, :, self.length : self.length + 1] = keys
        self.values[:, :, self.length : self.length + 1] = values
        self.length += 1
        return self.keys[:, :, : self.length], self.values[:, :, : self.length]


@dataclass
class Seen:
    """What the decoder sees of B questions (or, after ``take``, of any rows of them).

    Attributes:
        memory: ``(B, P, D)``, the encoder's output.
        mask: ``(B, 1, 1, P)`` bool.
        layers: Keys and values of each decoder layer's cross attention.
        pointers: ``(B, O, D)``, what pointers are compared with.
        inputs: ``(B, O, D)``, what a pointer is when it is read.
        pointable: ``(B, O)`` bool.
    """

    memory: Tensor
    mask: Tensor
    layers: list[tuple[Tensor, Tensor]]
    pointers: Tensor
    inputs: Tensor
    pointable: Tensor

    def take(self, rows: Tensor) -> Seen:
        """Some rows, in the given order; a row may be taken more than once."""
        return Seen(
            memory=self.memory[rows],
            mask=self.mask[rows],
            layers=[(keys[rows], values[rows]) for keys, values in self.layers],
            pointers=self.pointers[rows],
            inputs=self.inputs[rows],
            pointable=self.pointable[rows],
        )


class SlotTransformer(nn.Module):
    """Questions to answers, token by token."""

    def __init__(self, config: SlotTransformerConfig) -> None:
        super().__init__()
        self.config = config
        width = config.hidden_size
        self.facts = nn.EmbeddingBag(config.num_features, width, mode="sum")
        self.relations = nn.Embedding(config.num_relations, width)
        self.tags = nn.Embedding(config.max_objects, width)  # only to tell objects of one state apart
        self.enter = nn.Linear(width, width, bias=False)
        self.encoder = nn.ModuleList(_EncoderLayer(config) for _ in range(config.encoder_layers))
        self.encoded = nn.RMSNorm(width)
        self.words = nn.Embedding(config.vocab_size, width)
        self.places = nn.Embedding(config.max_answer, width)
        self.read_pointer = nn.Linear(width, width, bias=False)
        self.decoder = nn.ModuleList(_DecoderLayer(config) for _ in range(config.decoder_layers))
        self.decoded = nn.RMSNorm(width)
        self.point_from = nn.Linear(width, width, bias=False)
        self.point_to = nn.Linear(width, width, bias=False)
        for embedding in (self.facts, self.relations, self.tags, self.words, self.places):
            nn.init.normal_(embedding.weight, std=0.05 if embedding is self.words else 0.5)

    def encode(self, batch: QuestionBatch) -> Seen:
        """Look at questions."""
        B, P = batch.valid.shape
        grid = self.facts.weight.new_zeros(B * P, self.config.hidden_size)
        grid = grid.index_add(0, batch.positions, self.facts(batch.facts, batch.starts))
        # Tags are positions in the state, the same for whoever names the object.
        tags = self.tags.weight[: min(P, self.config.max_objects)]
        padded = F.pad(tags, (0, 0, 0, P - len(tags))).expand(B, P, -1).reshape(B * P, -1)
        is_object = (torch.arange(P, device=grid.device) < batch.objects[:, None]).flatten()
        grid = grid + padded * is_object[:, None]
        at, kinds, others = batch.relations.unbind(1)
        grid = grid.index_add(0, at, (1 + self.relations(kinds)) * padded[others])
        x_BPD = grid.view(B, P, -1)
        x_BPD = x_BPD + self.enter(F.silu(F.rms_norm(x_BPD, x_BPD.shape[-1:])))
        mask = batch.valid[:, None, None]
        for layer in self.encoder:
            x_BPD = layer(x_BPD, mask)
        memory = self.encoded(x_BPD)
        objects = memory[:, : self.config.max_objects]
        reach = torch.arange(objects.shape[1], device=grid.device)
        return Seen(
            memory=memory,
            mask=mask,
            layers=[layer.cross.project(memory) for layer in self._decoder_layers()],
            pointers=self.point_to(objects),
            inputs=self.read_pointer(objects),
            pointable=reach < batch.objects[:, None],
        )

    def forward(self, seen: Seen, answers: Tensor) -> Tensor:
        """Logits ``(B, L, V + O)`` of every token of answers ``(B, L)``, given those before it."""
        before = F.pad(answers[:, :-1], (1, 0))  # an answer begins after padding
        x_BLD = self._embed(seen, before) + self.places.weight[: answers.shape[1]]
        for layer, keys_values in zip(self._decoder_layers(), seen.layers, strict=True):
            x_BLD = layer(x_BLD, keys_values, seen.mask, None)
        return self._logits(seen, self.decoded(x_BLD))

    def new_past(self, rows: int) -> list[_Past]:
        """Room for ``rows`` answers that are written token by token."""
        weight, config = self.words.weight, self.config
        shape = (rows, config.num_heads, config.max_answer, config.hidden_size // config.num_heads)
        return [_Past(weight.new_empty(shape), weight.new_empty(shape)) for _ in range(config.decoder_layers)]

    def next_logits(self, seen: Seen, last: Tensor, past: Sequence[_Past]) -> Tensor:
        """Logits ``(B, V + O)`` after the last tokens ``(B,)``, which are added to ``past``; 0 begins an answer."""
        x_BLD = self._embed(seen, last[:, None]) + self.places.weight[past[0].length]
        for layer, keys_values, own in zip(self._decoder_layers(), seen.layers, past, strict=True):
            x_BLD = layer(x_BLD, keys_values, seen.mask, own)
        return self._logits(seen, self.decoded(x_BLD))[:, 0]

    def _decoder_layers(self) -> list[_DecoderLayer]:
        return [layer for layer in self.decoder if isinstance(layer, _DecoderLayer)]

    def _embed(self, seen: Seen, tokens_BL: Tensor) -> Tensor:
        size = self.config.vocab_size
        pointed = (tokens_BL - size).clamp(0, seen.inputs.shape[1] - 1)
        objects = seen.inputs.gather(1, pointed[..., None].expand(-1, -1, self.config.hidden_size))
        return torch.where(
            (tokens_BL >= size)[..., None], objects, self.words(tokens_BL.clamp(max=size - 1)) * 10
        )

    def _logits(self, seen: Seen, x_BLD: Tensor) -> Tensor:
        pointed = self.point_from(x_BLD) @ seen.pointers.transpose(1, 2) * x_BLD.shape[-1] ** -0.5
        pointed = pointed.masked_fill(~seen.pointable[:, None], float("-inf"))
        words = F.pad((x_BLD @ self.words.weight.T)[..., 1:], (1, 0), value=float("-inf"))  # never padding
        return torch.cat([words, pointed], dim=-1)
