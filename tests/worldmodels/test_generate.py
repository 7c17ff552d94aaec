from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import load_file

from worldmodels.generate import Forced, Sampled, generate
from worldmodels.nets.llama import Llama, LlamaConfig
from worldmodels.sampling import derive

VISUAL = slice(0, 30)


@pytest.fixture(scope="module")
def model() -> Llama:
    config = LlamaConfig(
        vocab_size=50,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=64,
        initializer_range=0.2,
    )
    return Llama(config, seed=1).eval()


def _tokens(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(50, shape, generator=torch.Generator().manual_seed(seed))


def _segments(actions: torch.Tensor) -> list[Forced | Sampled]:
    return [Sampled(5, VISUAL), Forced(actions[:, :3]), Sampled(4, VISUAL), Forced(actions[:, 3:])]


def test_forks_equal_separate_prefills_in_any_batch(model):
    prompt, actions = _tokens(3, 7), _tokens(3, 5, seed=1)
    seeds = derive(torch.tensor([5, 6, 7])[:, None], torch.arange(4)).flatten()
    together = generate(model, prompt, num_samples=4, seeds=seeds, segments=_segments(actions))
    assert together.tokens.shape == together.logprobs.shape == together.mask.shape == (12, 14)

    apart = generate(
        model,
        prompt.repeat_interleave(4, 0),
        seeds=seeds,
        segments=_segments(actions.repeat_interleave(4, 0)),
    )
    assert torch.equal(together.tokens, apart.tokens)
    torch.testing.assert_close(together.logprobs, apart.logprobs, atol=1e-5, rtol=1e-5)
    for row in (0, 5, 11):
        b = row // 4
        alone = generate(
            model, prompt[b : b + 1], seeds=seeds[row : row + 1], segments=_segments(actions[b : b + 1])
        )
        assert torch.equal(alone.tokens[0], together.tokens[row])
    assert len(torch.unique(together.tokens, dim=0)) == 12
    other = generate(model, prompt, num_samples=4, seeds=seeds + 1, segments=_segments(actions))
    assert not torch.equal(other.tokens, together.tokens)


@torch.no_grad()
@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.0])
def test_logprobs_are_those_of_one_full_forward_and_forced_tokens_stand_where_they_should(model, temperature):
    prompt, actions = _tokens(2, 7), _tokens(6, 5, seed=1)  # an action of its own for every row
    out = generate(
        model,
        prompt,
        num_samples=3,
        seeds=torch.arange(6),
        segments=_segments(actions),
        temperature=temperature,
        top_k=10,
    )
    assert out.mask[0].tolist() == [True] * 5 + [False] * 3 + [True] * 4 + [False] * 2
    assert torch.equal(out.tokens[~out.mask].view(6, 5), actions)
    assert out.tokens[out.mask].max() < VISUAL.stop
    assert (out.logprobs[~out.mask] == 0).all()
    logits = model(torch.cat([prompt.repeat_interleave(3, 0), out.tokens], 1))[:, 6:-1, VISUAL]
    expected = (logits / (temperature or 1.0)).log_softmax(-1)
    expected = expected.gather(-1, out.tokens.clamp(max=29)[..., None]).squeeze(-1)
    torch.testing.assert_close(out.logprobs[out.mask], expected[out.mask], atol=1e-5, rtol=1e-5)


def test_a_slice_that_does_not_start_at_zero(model):
    out = generate(model, _tokens(2, 4), seeds=torch.arange(2), segments=[Sampled(20, slice(30, 35))])
    assert set(out.tokens.unique().tolist()) == {30, 31, 32, 33, 34}


def test_released_format_rollout(conformance):
    folder = conformance("video/transformer")
    model = Llama(LlamaConfig.from_hf(json.loads((folder / "config.json").read_text()))).eval()
    model.load_state_dict({k: v.float() for k, v in load_file(folder / "model.safetensors").items()})
    golden = load_file(folder / "rollout.safetensors")
    actions = golden["action_tokens"].long()
    segments: list[Forced | Sampled] = []
    for t in range(7):
        segments += [Forced(actions[None, t]), Sampled(80)]
    out = generate(
        model, golden["prompt"].long(), seeds=torch.zeros(1).long(), segments=segments, temperature=0.0
    )
    assert torch.equal(torch.cat([golden["prompt"].long(), out.tokens], 1), golden["full_sequence"].long())
    torch.testing.assert_close(
        out.logprobs[out.mask].view(7, 80), golden["generated_logprob"].float(), atol=1e-3, rtol=0
    )


def test_bad_input(model):
    prompt, seeds = _tokens(2, 4), torch.arange(4)
    with pytest.raises(ValueError, match="one seed per row"):
        generate(model, prompt, num_samples=3, seeds=seeds, segments=[Sampled(1)])
    with pytest.raises(ValueError, match=r"\(4, n\) or \(2, n\)"):
        generate(model, prompt, num_samples=2, seeds=seeds, segments=[Forced(_tokens(3, 1))])
    with pytest.raises(ValueError, match="max_position_embeddings 64"):
        generate(model, prompt, num_samples=2, seeds=seeds, segments=[Sampled(61)])
    with pytest.raises(ValueError, match="non-empty"):
        generate(model, prompt, num_samples=2, seeds=seeds, segments=[Sampled(1, slice(50, 60))])
    broken = Llama(model.config, seed=1).eval()
    with torch.no_grad():
        broken.lm_head.weight[3] = torch.nan
    with pytest.raises(ValueError, match="NaN"):
        generate(broken, prompt, num_samples=2, seeds=seeds, segments=[Sampled(1)])
