"""The ids of a frame from a decoder that has seen all before it, several at a time where they were guessed.

Special: an id is drawn from a distribution that is often like the one at the same place of the frame before. So what
that one gives under the present draws is, for a single row, fed as a guess along with the known ids: one pass through
the decoder, which costs little more than that of one id, then tells a whole run. A draw depends on seed and place only
and not on how an id was found, so a guess is right exactly if the draw gives it, and the ids are those of one at a time
(speculative decoding, Leviathan et al. 2023, arXiv:2211.17192, but with common random numbers instead of its rejection
test).

Absent on purpose: guesses for several rows, whose runs end at different places.

Shapes: B rows, K ids of a frame, V ids that a frame may have.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from worldmodels.nets.kv_cache import KVCache
from worldmodels.nets.llama import Llama
from worldmodels.sampling import race

_MOST_GUESSES = 31
_UNKNOWN = 0.5  # share of right guesses before any was made
_WORTH_GUESSING = 0.2  # share of right guesses from which they are quicker, at the released size


@dataclass(frozen=True, eq=False)
class Expected:
    """What the last frame says about the next one.

    Attributes:
        logits: ``(K, V)`` float32, what its ids were drawn from.
        right: Share of its own ids that were guessed right, in [0, 1].
    """

    logits: Tensor
    right: float

    def guesses_at_once(self) -> int:
        """How many guesses to feed along with a known id."""
        if self.right < _WORTH_GUESSING:
            return 0
        return _MOST_GUESSES if self.right == 1 else min(_MOST_GUESSES, math.ceil(2 / (1 - self.right)) - 1)


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
    expected: Expected | None = None,
) -> tuple[Tensor, Tensor, Expected | None]:
    """Draw the next frame's ids.

    Args:
        llama: The decoder.
        cache: Keys and values of all positions before ``fed``; afterwards of all but the last id.
        fed: ``(B, n)`` int64, the given positions before the frame that the cache does not hold.
        frames: ``(B, F, K)`` int64, the frames before, the last one last.
        draws: ``(B, K)`` of :func:`worldmodels.sampling.uniforms`.
        vocab: Slice of the vocabulary that the frame's ids are of; returned ids count from its start, which must be 0.
        temperature: See :func:`worldmodels.sampling.race`.
        top_k: Ditto.
        repetition_penalty: Logits of ids that stand in ``frames``, or in this frame so far, are divided by this if
            positive, multiplied if negative; 1 for none.
        expected: Of the frame before, if there is a single row; it changes how long it takes, and nothing else.

    Returns:
        ids ``(B, K)`` int64, their log-probabilities ``(B, K)`` float32, and what a single row may expect of the next
        frame.
    """
    B, K = draws.shape
    guessed, at_once = frames[:, -1], 0
    if B == 1 and expected is not None:
        guessed = race(expected.logits, draws[0], temperature=temperature, top_k=top_k)[0][None]
        at_once = expected.guesses_at_once()
    seen = None
    if repetition_penalty != 1.0:
        seen = torch.zeros(B, vocab.stop, dtype=torch.bool, device=fed.device)
        seen.scatter_(1, frames.flatten(1), True)
    ids, logprobs = torch.empty_like(draws, dtype=torch.int64), torch.empty_like(draws, dtype=torch.float32)
    kept = torch.empty(K, vocab.stop, device=fed.device) if B == 1 else None
    cache.reserve(0)  # whatever memory it needs of its own must be usual memory
    at = 0
    with torch.inference_mode():  # a tenth of a small model's time
        while at < K:
            more = min(at_once, K - at - 1)
            asked = torch.cat([fed, guessed[:, at : at + more]], 1) if more else fed
            # One row per id asked for: with guesses there is a single row of ids.
            states = llama.hidden(asked, cache)[:, -1 - more :].flatten(0, 1)
            logits = llama.logits(states, vocab)
            if seen is not None:
                less = torch.where(logits < 0, logits * repetition_penalty, logits / repetition_penalty)
                logits = torch.where(_seen_with(seen, guessed[0, at : at + more]), less, logits)
            drawn, likely = race(
                logits, draws[:, at : at + 1 + more].flatten(), temperature=temperature, top_k=top_k
            )
            drawn, likely = drawn.view(B, -1), likely.view(B, -1)
            right = _leading(drawn[:, :more] == guessed[:, at : at + more]) if more else 0
            cache.retract(more - right)
            ids[:, at : at + right + 1] = drawn[:, : right + 1]
            logprobs[:, at : at + right + 1] = likely[:, : right + 1]
            if kept is not None:
                kept[at : at + right + 1] = logits[: right + 1]
            fed = drawn[:, right : right + 1]
            if seen is not None:
                seen.scatter_(1, drawn[:, : right + 1], True)
            at += right + 1
    if kept is None:
        return ids, logprobs, None
    # A first frame was guessed by the ids before it, which says little about the next guesses.
    share = _UNKNOWN if expected is None else float((ids == guessed).float().mean())
    return ids, logprobs, Expected(kept, share)


def _seen_with(seen: Tensor, guesses: Tensor) -> Tensor:
    """``(B, V)`` ids seen, and a row more after each guess if there are any."""
    if not len(guesses):
        return seen
    guessed = F.one_hot(guesses, seen.shape[1]).cumsum(0) > 0
    return torch.cat([seen, seen | guessed])


def _leading(hits: Tensor) -> int:
    """How many of one row are right before the first wrong one."""
    return int(hits[0].long().cumprod(0).sum())
