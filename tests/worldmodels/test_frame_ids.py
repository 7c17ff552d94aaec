"""Ids of a frame with and without guesses: the same ids, in fewer passes."""

import pytest
import torch

from worldmodels.nets.llama import Llama, LlamaConfig
from worldmodels.sampling import uniforms
from worldmodels.video.frame_ids import frame_ids

K, VOCAB, FIRST = 24, 40, 30
SIZES = LlamaConfig(
    vocab_size=60,
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=2,
    num_attention_heads=2,
    max_position_embeddings=400,
    initializer_range=0.3,  # decided logits, so that some of them repeat
)


class Counting(Llama):
    """Counts the passes."""

    passes = 0

    def hidden(self, *args, **kwargs):
        self.passes += 1
        return super().hidden(*args, **kwargs)


@pytest.fixture(scope="module")
def llama():
    return Counting(SIZES, seed=3).eval().double().requires_grad_(False)


def rolled(llama, frames, *, steps, seed=5, **settings):
    """Several frames after each other, as a rollout does: each follows an action and the last id before it.

    All rows see the same; a single one is guessed, several are not.
    """
    cache = llama.new_cache(len(frames), 400)
    llama.hidden(torch.arange(7).expand(len(frames), 7), cache)
    given, found = frames[:, -1], []
    for step in range(steps):
        draws = uniforms(torch.full((len(frames), 1), seed), step, torch.arange(K))
        fed = torch.cat([given, torch.full((len(frames), 1), 50)], 1)
        ids, logprobs = frame_ids(llama, cache, fed, frames, draws, slice(0, VOCAB), **settings)
        frames, given = torch.cat([frames, ids[:, None]], 1), ids[:, -1:]
        found.append(logprobs)
    return frames, torch.cat(found, 1), cache.length


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    "settings",
    [
        {"temperature": 0.0},
        {"temperature": 1.0},
        {"temperature": 0.3, "top_k": 5},
        {"temperature": 0.3, "repetition_penalty": 1.3},
    ],
    ids=str,
)
def test_guesses_change_nothing(llama, seed, settings):
    first = uniforms(torch.tensor([seed])[:, None], 0, torch.arange(K)).mul(VOCAB).long()[:, None]
    two, logprobs_two, length_two = rolled(llama, first.repeat(2, 1, 1), steps=6, seed=seed, **settings)
    one, logprobs_one, length_one = rolled(llama, first, steps=6, seed=seed, **settings)
    assert torch.equal(one, two[:1])
    assert torch.equal(one, two[1:])
    torch.testing.assert_close(logprobs_one, logprobs_two[:1], rtol=1e-5, atol=1e-6)
    assert length_one == length_two


def test_right_guesses_save_passes(llama):
    frames, _, _ = rolled(llama, torch.zeros(1, 1, K, dtype=torch.int64), steps=1, temperature=0)
    same = frames[:, -1:].repeat(1, 2, 1)
    draws = torch.zeros(1, K, dtype=torch.float64)

    def passes(before):
        cache = llama.new_cache(1, 400)
        llama.hidden(torch.arange(7)[None], cache)
        llama.passes = 0
        fed = torch.cat([torch.zeros(1, K, dtype=torch.int64), torch.full((1, 1), 50)], 1)
        ids, _ = frame_ids(llama, cache, fed, before, draws, slice(0, VOCAB), temperature=0)
        assert torch.equal(ids, frames[:, -1])
        return llama.passes

    assert passes(same) == 1  # all at once
    differing = (same + torch.arange(2)[:, None]) % VOCAB  # no id is that of the frame before: no guesses
    assert passes(differing) == K
    wrong = (same + 1) % VOCAB  # a still picture so far, and all is different now
    assert passes(wrong) == K


def test_rows_of_a_batch_are_not_guessed(llama):
    first = torch.zeros(2, 1, K, dtype=torch.int64)
    llama.passes = 0
    frames, _, _ = rolled(llama, first, steps=2, temperature=0.0)
    assert llama.passes == 1 + 2 * K
    alone, _, _ = rolled(llama, first[:1], steps=2, temperature=0.0)
    assert torch.equal(frames[:1], alone)
