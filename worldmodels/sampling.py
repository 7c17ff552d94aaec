"""Counter-based sampling: a draw is a pure function of (seed, step, index).

Special: no generator object and no hidden state, so row i of a batch of 64 draws exactly what the same row
draws alone, a fork can be replayed, and the order in which rows are computed does not matter. The integer
mixer is the finaliser of SplitMix64 (Steele, Lea and Flood 2014, constants of Stafford's variant 13), applied
once per counter.

Two ways to draw a token: ``sample`` inverts the cumulative distribution; ``race`` costs one number per id instead of
one, and draws the same from distributions that are alike, which makes guesses of a draw right more often.

Absent on purpose: torch's and numpy's global generators, beam search, and penalties on repeated tokens.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


def _signed(constant: int) -> int:
    """The int64 with the bits of an unsigned 64-bit constant (torch integers are signed and wrap around)."""
    return constant - (1 << 64) if constant >= 1 << 63 else constant


# Odd constants with well spread bits, one per kind of counter, so that step 1 of index 0 is not step 0 of
# index 1. SEED: 2^64 / golden ratio (SplitMix64's own increment). STEP, INDEX, CHILD: primes 2, 3 and 1 of
# xxHash64.
_SEED = _signed(0x9E3779B97F4A7C15)
_STEP = _signed(0xC2B2AE3D27D4EB4F)
_INDEX = _signed(0x165667B19E3779F9)
_CHILD = _signed(0x9E3779B185EBCA87)
_MULTIPLY_1 = _signed(0xBF58476D1CE4E5B9)
_MULTIPLY_2 = _signed(0x94D049BB133111EB)


def _shift_right(x: Tensor, bits: int) -> Tensor:
    """Logical right shift; torch's own keeps the sign."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def _mix(x: Tensor) -> Tensor:
    """A bijection of 64-bit integers that flips about half of the output bits for any flipped input bit."""
    x = (x ^ _shift_right(x, 30)) * _MULTIPLY_1
    x = (x ^ _shift_right(x, 27)) * _MULTIPLY_2
    return x ^ _shift_right(x, 31)


def uniforms(
    seeds: Tensor, step: int | Tensor, index: int | Tensor, device: torch.device | str | None = None
) -> Tensor:
    """Uniform numbers, one per (seed, step, index).

    The counters broadcast: ``uniforms(seeds[:, None], 0, torch.arange(n))`` is ``(B, n)``.

    Args:
        seeds: ``(B,)`` int64, any values.
        step: Which environment step.
        index: Which token of the step.
        device: Where to compute; by default where ``seeds`` are. All devices give the same numbers.

    Returns:
        ``(B,)`` float64 in [0, 1), multiples of 2^-53.

    Raises:
        ValueError: if ``seeds`` are not int64.
    """
    seeds = _checked_seeds(seeds).to(device=device)
    step = torch.as_tensor(step, dtype=torch.int64, device=seeds.device)
    index = torch.as_tensor(index, dtype=torch.int64, device=seeds.device)
    x = _mix(seeds + _SEED)
    x = _mix(x + step * _STEP)
    x = _mix(x + index * _INDEX)
    return _shift_right(x, 11).to(torch.float64) * 2.0**-53


def derive(seeds: Tensor, k: int | Tensor) -> Tensor:
    """Seed of child k of each seed; child 0 keeps the seed itself, so that a fork of one changes nothing.

    Args:
        seeds: int64 of any shape.
        k: Child number(s) >= 0; broadcasts: ``derive(seeds[:, None], torch.arange(n))`` is ``(B, n)``.

    Returns:
        int64; children other than 0 lie in [0, 2^63).

    Raises:
        ValueError: if ``seeds`` are not int64.
    """
    seeds = _checked_seeds(seeds)
    k = torch.as_tensor(k, dtype=torch.int64, device=seeds.device)
    # Mixed twice, the seed first: otherwise child k of seed s and child k - 1 of a neighbouring seed could
    # agree.
    child = _mix(_mix(seeds ^ _CHILD) + k * _SEED)
    return torch.where(k == 0, seeds, child & ((1 << 63) - 1))


def _checked_seeds(seeds: Tensor) -> Tensor:
    if seeds.dtype != torch.int64:
        raise ValueError(
            f"seeds must be int64, got {seeds.dtype}; use torch.as_tensor(seeds, dtype=torch.int64)"
        )
    return seeds


def sample(
    logits: Tensor,
    uniforms: Tensor,
    *,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
) -> tuple[Tensor, Tensor]:
    """Draw one token per row by inverting the cumulative distribution, tokens in the order of their ids.

    Order by id, not by probability, keeps a draw stable: a small change of the logits moves it only to a
    neighbouring id, and most draws not at all. Each row is computed by itself, whatever the batch.

    The returned log-probability is that of ``softmax(logits / temperature)`` **before** ``top_k`` and
    ``top_p``; for ``temperature`` 0 it is that of ``softmax(logits)``. This is what a policy gradient at the
    same temperature needs. A row with NaN logits returns a NaN log-probability and no meaningful token: check
    it once per rollout.

    Args:
        logits: ``(B, V)`` float; -inf forbids a token.
        uniforms: ``(B,)`` in [0, 1), for example from :func:`uniforms`; ignored at temperature 0.
        temperature: 0 takes the likeliest token (the first of equals).
        top_k: Keep the k likeliest tokens, and those that tie with the last of them.
        top_p: Keep the likeliest tokens whose probabilities first add up to this, and ties; applied after
            ``top_k``.

    Returns:
        tokens ``(B,)`` int64 and log-probabilities ``(B,)`` float32.

    Raises:
        ValueError: on wrong shapes or settings out of range.
    """
    logits = _scaled(logits, uniforms, temperature)
    probabilities = torch.softmax(logits, dim=-1)
    if temperature == 0:
        tokens = logits.argmax(dim=-1, keepdim=True)
    else:
        kept = _truncate(logits, top_k, top_p)
        cdf = (probabilities if kept is logits else torch.softmax(kept, dim=-1)).cumsum(dim=-1)
        total = cdf[:, -1:].contiguous()
        # The first id whose cumulated probability exceeds the draw: never one of probability zero, except
        # that the product below may round up to the total itself, hence the limit to the last id that still
        # adds something.
        tokens = torch.searchsorted(cdf, (uniforms[:, None] * total).to(cdf.dtype), right=True)
        tokens = torch.minimum(tokens, torch.searchsorted(cdf, total))
        tokens = tokens.clamp(max=logits.shape[1] - 1)  # rows of NaN end up past the last id
    return tokens.squeeze(1), probabilities.gather(1, tokens).squeeze(1).log()


def race(
    logits: Tensor, uniforms: Tensor, *, temperature: float = 1.0, top_k: int | None = None
) -> tuple[Tensor, Tensor]:
    """Draw one token per row by a race: id v arrives at E_v / p_v, E_v exponentially distributed, the first one wins.

    The same distribution as :func:`sample`. E is a function of the draw and the id, so that two distributions p and q
    give the same id under the same draw with a probability of at least (1 - d) / (1 + d), d being their total
    variation (Daliri, Musco and Suresh 2024, arXiv:2408.07978), wherever in the order of ids they differ.

    Args:
        logits: ``(B, V)`` float; -inf forbids a token.
        uniforms: ``(B,)`` float64 in [0, 1), of :func:`uniforms`; ignored at temperature 0.
        temperature: 0 takes the likeliest token (the first of equals).
        top_k: As for :func:`sample`.

    Returns:
        tokens ``(B,)`` int64 and log-probabilities ``(B,)`` float32, as of :func:`sample`.

    Raises:
        ValueError: on wrong shapes or settings out of range.
    """
    logits = _scaled(logits, uniforms, temperature)
    if temperature == 0:
        tokens = logits.argmax(dim=-1, keepdim=True)
    else:
        numbers = torch.arange(logits.shape[1], dtype=torch.int64, device=logits.device) * _INDEX
        bits = _shift_right(_mix((uniforms * 2.0**53).long()[:, None] + numbers), 33)
        # 31 bits: float32 is finest near 0, where races are won. Rounded up to 1 an id never arrives.
        arrival = torch.log1p(bits.float().add_(0.5).mul_(-(2.0**-31))).neg_().log_()
        tokens = (_truncate(logits, top_k, None) - arrival).argmax(dim=-1, keepdim=True)
    return tokens.squeeze(1), torch.log_softmax(logits, dim=-1).gather(1, tokens).squeeze(1)


def _scaled(logits: Tensor, uniforms: Tensor, temperature: float) -> Tensor:
    """Logits over the temperature, float32; temperature 0 leaves them."""
    if logits.ndim != 2 or uniforms.shape != logits.shape[:1]:
        raise ValueError(
            f"logits must be (B, V) and uniforms (B,), got {tuple(logits.shape)} and {tuple(uniforms.shape)}"
        )
    if not (temperature >= 0 and math.isfinite(temperature)):
        raise ValueError(f"temperature must be finite and >= 0, got {temperature}")
    logits = logits.float()
    return logits if temperature in (0.0, 1.0) else logits / temperature


def _truncate(logits: Tensor, top_k: int | None, top_p: float | None) -> Tensor:
    """Logits with the tokens outside of top-k and top-p set to -inf."""
    if top_k is not None:
        if top_k < 1:
            raise ValueError(f"top_k must be at least 1, or None for all tokens, got {top_k}")
        lowest = logits.topk(min(top_k, logits.shape[-1]), dim=-1).values[:, -1:]
        logits = logits.masked_fill(logits < lowest, -torch.inf)
    if top_p is not None:
        if not 0 < top_p <= 1:
            raise ValueError(f"top_p must be in (0, 1], or None for all tokens, got {top_p}")
        ordered = logits.sort(dim=-1, descending=True).values
        probabilities = torch.softmax(ordered, dim=-1)
        before = probabilities.cumsum(dim=-1, dtype=torch.float64) - probabilities
        lowest = ordered.masked_fill(before >= top_p, torch.inf).amin(dim=-1, keepdim=True)
        logits = logits.masked_fill(logits < lowest, -torch.inf)
    return logits
