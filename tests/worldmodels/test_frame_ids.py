"""Ids of a frame with and without guesses: the same ids, in fewer passes."""

import pytest
import torch

from worldmodels.nets.llama import Llama, LlamaConfig
from worldmodels.sampling import uniforms
from worldmodels.video.frame_ids import Expected, frame_ids

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
    given, found, expected = frames[:, -1], [], None
    for step in range(steps):
        draws = uniforms(torch.full((len(frames), 1), seed), step, torch.arange(K))
        fed = torch.cat([given, torch.full((len(frames), 1), 50)], 1)
        ids, logprobs, expected = frame_ids(
            llama, cache, fed, frames, draws, slice(0, VOCAB), expected=expected, **settings
        )
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


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_right_guesses_save_passes(llama, temperature):
    before = torch.zeros(1, 1, K, dtype=torch.int64)
    draws = uniforms(torch.tensor([[4]]), 0, torch.arange(K))

    def run(expected):
        cache = llama.new_cache(1, 400)
        llama.hidden(torch.arange(7)[None], cache)
        llama.passes = 0
        fed = torch.cat([before[:, -1], torch.full((1, 1), 50)], 1)
        ids, _, later = frame_ids(
            llama, cache, fed, before, draws, slice(0, VOCAB), temperature=temperature, expected=expected
        )
        return ids, later, llama.passes

    ids, found, passes = run(None)
    assert K / 4 <= passes <= K  # three guesses at a time, and they are hardly ever right
    again, same, passes = run(Expected(found.logits, right=1.0))  # the very distributions it will draw from
    assert (passes, same.right) == (1, 1.0)
    torch.testing.assert_close(same.logits, found.logits)
    assert torch.equal(again, ids)
    wrong = Expected(-found.logits, right=1.0)
    again, after, passes = run(wrong)
    assert passes > K / 2
    assert after.right < 0.2
    assert torch.equal(again, ids)
    _, _, passes = run(Expected(-found.logits, right=0.1))  # not worth guessing
    assert passes == K


@pytest.mark.parametrize(
    ("right", "at_once"), [(0.0, 0), (0.19, 0), (0.5, 3), (0.75, 7), (0.99, 31), (1.0, 31)]
)
def test_guesses_at_once(right, at_once):
    assert Expected(torch.zeros(1, 1), right).guesses_at_once() == at_once


def test_rows_of_a_batch_are_not_guessed(llama):
    first = torch.zeros(2, 1, K, dtype=torch.int64)
    llama.passes = 0
    frames, _, _ = rolled(llama, first, steps=2, temperature=0.0)
    assert llama.passes == 1 + 2 * K
    alone, _, _ = rolled(llama, first[:1], steps=2, temperature=0.0)
    assert torch.equal(frames[:1], alone)
