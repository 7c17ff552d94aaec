"""The ids of a frame from a decoder that has seen all before it, several at a time where they were guessed.

Special: most ids of a frame are those of the frame before, so for a single row they are fed as guesses along with
the known ones: one pass through the decoder, which costs little more than that of one id, then tells a whole run.
A draw depends on seed and place only and not on how an id was found, so a guess is right exactly if the draw gives
it, and the ids are those of one at a time (speculative decoding, Leviathan et al. 2023, arXiv:2211.17192, but with
common random numbers instead of its rejection test).

Absent on purpose: guesses for several rows, whose runs end at different places.

Shapes: B rows, K ids of a frame, V ids that a frame may have.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from worldmodels.nets.kv_cache import KVCache
from worldmodels.nets.llama import Llama
from worldmodels.sampling import sample

_MOST_GUESSES = 31
_WORTH_GUESSING = 0.2  # share of right guesses from which they are quicker, at the released size


def frame_ids(
    llama: Llama,
    cache: KVCache,
    fed: Tensor,
    frames: Tensor,
    draws: Tensor,
    vocab: slice,
    *,
    temperature: float,
    top_k: int | None = None,
    repetition_penalty: float = 1.0,
) -> tuple[Tensor, Tensor]:
    """Draw the next frame's ids.

    Args:
        llama: The decoder.
        cache: Keys and values of all positions before ``fed``; afterwards of all but the last id.
        fed: ``(B, n)`` int64, the given positions before the frame that the cache does not hold.
        frames: ``(B, F, K)`` int64, the frames before, the last one last.
        draws: ``(B, K)`` of :func:`worldmodels.sampling.uniforms`.
        vocab: Slice of the vocabulary that the frame's ids are of; returned ids count from its start, which must be 0.
        temperature: See :func:`worldmodels.sampling.sample`.
        top_k: Ditto.
        repetition_penalty: Logits of ids that stand in ``frames``, or in this frame so far, are divided by this if
            positive, multiplied if negative; 1 for none.

    Returns:
        ids ``(B, K)`` int64 and their log-probabilities ``(B, K)`` float32.
    """
    B, K = draws.shape
    previous = frames[:, -1]
    guesses = _guesses(frames) if B == 1 else 0
    seen = None
    if repetition_penalty != 1.0:
        seen = torch.zeros(B, vocab.stop, dtype=torch.bool, device=fed.device)
        seen.scatter_(1, frames.flatten(1), True)
    ids, logprobs = torch.empty_like(draws, dtype=torch.int64), torch.empty_like(draws, dtype=torch.float32)
    cache.reserve(0)  # whatever memory it needs of its own must be usual memory
    at = 0
    with torch.inference_mode():  # a tenth of a small model's time
        while at < K:
            more = min(guesses, K - at - 1)
            asked = torch.cat([fed, previous[:, at : at + more]], 1) if more else fed
            # One row per id asked for: with guesses there is a single row of ids.
            states = llama.hidden(asked, cache)[:, -1 - more :].flatten(0, 1)
            logits = llama.logits(states, vocab)
            if seen is not None:
                less = torch.where(logits < 0, logits * repetition_penalty, logits / repetition_penalty)
                logits = torch.where(seen, less, logits)
            drawn, likely = sample(
                logits, draws[:, at : at + 1 + more].flatten(), temperature=temperature, top_k=top_k
            )
            drawn, likely = drawn.view(B, -1), likely.view(B, -1)
            right = _leading(drawn[:, :more] == previous[:, at : at + more]) if more else 0
            cache.retract(more - right)
            ids[:, at : at + right + 1] = drawn[:, : right + 1]
            logprobs[:, at : at + right + 1] = likely[:, : right + 1]
            fed = drawn[:, right : right + 1]
            if seen is not None:
                seen.scatter_(1, fed, True)  # right guesses stand in the frame before
            at += right + 1
    return ids, logprobs


def _leading(hits: Tensor) -> int:
    """How many of one row are right before the first wrong one."""
    return int(hits[0].long().cumprod(0).sum())


def _guesses(frames: Tensor) -> int:
    """How many guesses to feed at once, by how many would have been right in the last frame."""
    if frames.shape[1] < 2:
        return 3
    share = float((frames[:, -1] == frames[:, -2]).float().mean())
    if share < _WORTH_GUESSING:
        return 0
    return _MOST_GUESSES if share == 1 else min(_MOST_GUESSES, math.ceil(2 / (1 - share)) - 1)
