"""Plain-token generation: prefill a prompt once, let G rows read it together, decode with forced tokens in
between.

Special: a completion is a list of segments, sampled from a slice of the vocabulary or forced (the actions of
an action-conditioned video model). Tokens wait until a prediction needs them, so a run of forced tokens and
the sampled one before it cost a single forward. Draws are functions of (seed, position): neither the batch
nor the number of completions changes a row's tokens.

Absent on purpose: stopping at a token (the released formats have fixed lengths), beam search, repetition
penalties.

Shape legend: B prompts, G completions of each, R = B * G rows (row b*G + g is completion g of prompt b), L
prompt positions, N completion positions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from worldmodels.nets.llama import Llama
from worldmodels.nets.shared_past import SharedPast
from worldmodels.sampling import sample, uniforms


@dataclass(frozen=True)
class Forced:
    """Tokens that are given: ``(R, n)`` int64, or ``(B, n)``, the same for all completions of a prompt."""

    tokens: Tensor


@dataclass(frozen=True)
class Sampled:
    """``n`` tokens drawn from the slice ``vocab`` of the vocabulary (None: all of it), normalised over it."""

    n: int
    vocab: slice | None = None


@dataclass(frozen=True)
class Completions:
    """What was generated.

    Attributes:
        tokens: ``(R, N)`` int64, forced ones included.
        logprobs: ``(R, N)`` float32, as :func:`worldmodels.sampling.sample` defines them; 0 on forced tokens.
        mask: ``(R, N)`` bool, True on sampled tokens.
    """

    tokens: Tensor
    logprobs: Tensor
    mask: Tensor


@torch.no_grad()
def generate(
    model: Llama,
    prompt: Tensor,
    *,
    seeds: Tensor,
    segments: Sequence[Forced | Sampled],
    num_samples: int = 1,
    temperature: float = 1.0,
    top_k: int | None = None,
) -> Completions:
    """Complete every prompt ``num_samples`` times.

    Args:
        model: The decoder, in eval mode.
        prompt: ``(B, L)`` int64 on the model's device.
        seeds: ``(R,)`` int64, for example ``derive(prompt_seeds[:, None], torch.arange(G)).flatten()``.
        segments: What the completions consist of, in order.
        num_samples: G.
        temperature: 0 takes the likeliest tokens.
        top_k: See :func:`worldmodels.sampling.sample`.

    Returns:
        R rows of N tokens, N being the segments' total length.

    Raises:
        ValueError: on shapes that do not fit each other, a sequence longer than the model's
            ``max_position_embeddings``, an empty vocabulary slice, or a model that returns NaN.
    """
    B, L = prompt.shape
    R = B * num_samples
    if seeds.shape != (R,):
        raise ValueError(
            f"need one seed per row, {B} prompts x {num_samples} samples, got {tuple(seeds.shape)}"
        )
    widths = [_checked_width(segment, B, R, model.config.vocab_size) for segment in segments]
    N = sum(widths)
    if model.config.max_position_embeddings < L + N:
        raise ValueError(
            f"prompt of {L} and completion of {N} exceed max_position_embeddings "
            f"{model.config.max_position_embeddings}"
        )
    draws_RN = uniforms(seeds[:, None], 0, torch.arange(N, device=seeds.device), device=prompt.device)
    tokens_RN = prompt.new_zeros(R, N)
    logprobs_RN = torch.zeros(R, N, dtype=torch.float32, device=prompt.device)
    mask_RN = torch.zeros(R, N, dtype=torch.bool, device=prompt.device)

    past = SharedPast(B)
    state_RD = model.hidden(prompt, past)[:, -1].repeat_interleave(num_samples, dim=0)
    cache = past.repeat(num_samples, room=N)
    fed = at = 0  # completion positions in the cache, and filled so far
    for segment, width in zip(segments, widths, strict=True):
        if isinstance(segment, Forced):
            rows = segment.tokens.to(tokens_RN)
            tokens_RN[:, at : at + width] = (
                rows if len(rows) == R else rows.repeat_interleave(num_samples, dim=0)
            )
            at += width
            continue
        first_id = 0 if segment.vocab is None else segment.vocab.indices(model.config.vocab_size)[0]
        mask_RN[:, at : at + width] = True
        for _ in range(width):
            if fed < at:
                state_RD = model.hidden(tokens_RN[:, fed:at], cache)[:, -1]
                fed = at
            logits_RV = model.logits(state_RD, segment.vocab)
            tokens_R, logprobs_RN[:, at] = sample(
                logits_RV, draws_RN[:, at], temperature=temperature, top_k=top_k
            )
            tokens_RN[:, at] = tokens_R + first_id
            at += 1
    if not torch.isfinite(logprobs_RN).all():
        row = int((~torch.isfinite(logprobs_RN)).any(dim=1).nonzero()[0])
        raise ValueError(
            f"the model returned NaN or infinite logits (first in row {row}): are its weights finite?"
        )
    return Completions(tokens_RN, logprobs_RN, mask_RN)


def _checked_width(segment: Forced | Sampled, B: int, R: int, vocab_size: int) -> int:
    """Number of tokens of a segment, after checking its shape."""
    if isinstance(segment, Sampled):
        start, stop, step = (segment.vocab or slice(None)).indices(vocab_size)
        if step != 1 or stop <= start or segment.n < 0:
            raise ValueError(
                f"cannot sample {segment.n} tokens from {segment.vocab} of a vocabulary of {vocab_size}: "
                "n must be at least 0 and the slice a non-empty range of step 1"
            )
        return segment.n
    tokens = segment.tokens
    if tokens.ndim != 2 or len(tokens) not in (B, R) or tokens.is_floating_point():
        raise ValueError(
            f"forced tokens must be integers, ({R}, n) or ({B}, n), got {tokens.dtype} {tuple(tokens.shape)}"
        )
    return tokens.shape[1]
