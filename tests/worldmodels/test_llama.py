from __future__ import annotations

import dataclasses
import json

import pytest
import torch
from safetensors.torch import load_file

from worldmodels.nets.kv_cache import KVCache
from worldmodels.nets.llama import Llama, LlamaConfig

SMALL = LlamaConfig(
    vocab_size=50,
    hidden_size=32,
    intermediate_size=64,
    num_hidden_layers=3,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=64,
    initializer_range=0.2,
)


@pytest.fixture
def model() -> Llama:
    return Llama(SMALL, seed=1).eval()


def _tokens(*shape: int, seed: int = 0, vocab: int = 50) -> torch.Tensor:
    return torch.randint(vocab, shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("kv_heads", [1, 2, 4])
@pytest.mark.parametrize("tied", [False, True])
def test_equals_transformers_on_the_same_weights(kv_heads, tied):
    transformers = pytest.importorskip("transformers")
    config = dataclasses.replace(
        SMALL, num_key_value_heads=kv_heads, tie_word_embeddings=tied, rope_theta=500.0
    )
    ours = Llama(config, seed=3).eval()
    with torch.random.fork_rng(devices=[]):
        theirs = transformers.LlamaForCausalLM(transformers.LlamaConfig(**config.to_hf())).eval()
    theirs.load_state_dict(ours.state_dict(), strict=True)
    tokens = _tokens(3, 40)
    with torch.no_grad():
        torch.testing.assert_close(ours(tokens), theirs(tokens).logits, atol=1e-5, rtol=1e-5)
    assert LlamaConfig.from_hf(theirs.config.to_dict()) == config
    loss = ours(tokens).square().mean()
    expected = theirs(tokens).logits.square().mean()
    ours_grad = torch.autograd.grad(loss, ours.model.layers[0].self_attn.k_proj.weight)[0]
    their_grad = torch.autograd.grad(expected, theirs.model.layers[0].self_attn.k_proj.weight)[0]
    torch.testing.assert_close(ours_grad, their_grad, atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize("name", ["llama_small", "ctx_llama_small", "llama"])
def test_full_size_keys_and_shapes(conformance, name):
    golden = json.loads(conformance("video/transformer/keys_full.json").read_text())[name]
    with torch.device("meta"):
        model = Llama(LlamaConfig.from_hf({**golden["config"], "rope_theta": golden["rope_theta"]}))
    assert {k: list(v.shape) for k, v in model.state_dict().items()} == golden["keys"]
    assert sum(p.numel() for p in model.parameters()) == golden["total_params"]


@torch.no_grad()
def test_released_format_rollout(conformance):
    config = LlamaConfig.from_hf(json.loads(conformance("video/transformer/config.json").read_text()))
    weights = load_file(conformance("video/transformer/model.safetensors"))
    golden = load_file(conformance("video/transformer/rollout.safetensors"))
    model = Llama(config).eval()
    model.load_state_dict({k: v.float() for k, v in weights.items()}, strict=True)

    cache = model.new_cache(1, 2011)
    logits = model(golden["prompt"].long(), cache, last_only=True)
    frames, logprobs = [], []
    for t in range(7):
        logits = model(golden["action_tokens"][t : t + 1].long(), cache, last_only=True)
        if t == 0:
            torch.testing.assert_close(
                logits[0, 0], golden["logits_last_prompt_token"].float(), atol=1e-3, rtol=0
            )
        for _ in range(80):
            token = logits[:, -1].argmax(-1)
            frames.append(token)
            logprobs.append(logits[0, -1].log_softmax(-1)[token])
            if cache.length < 2010:
                logits = model(token[:, None], cache)
    assert torch.equal(torch.cat(frames).view(7, 80), golden["generated"].long())
    torch.testing.assert_close(
        torch.cat(logprobs).view(7, 80), golden["generated_logprob"].float(), atol=1e-3, rtol=0
    )

    full = model(golden["full_sequence"].long()).log_softmax(-1)[0]
    at = golden["generated_positions"].long() - 1
    taught = full[at].gather(-1, golden["generated"].long()[..., None]).squeeze(-1)
    torch.testing.assert_close(taught, golden["generated_logprob"].float(), atol=1e-3, rtol=0)


@torch.no_grad()
@pytest.mark.parametrize("chunks", [[1] * 20, [20], [7, 1, 5, 1, 1, 5]])
def test_cached_equals_full(model, chunks):
    tokens = _tokens(4, 20)
    cache = model.new_cache(4, 30)
    parts = [model(part, cache) for part in tokens.split(chunks, dim=1)]
    torch.testing.assert_close(torch.cat(parts, 1), model(tokens), atol=1e-5, rtol=1e-5)
    assert cache.length == 20


@torch.no_grad()
def test_the_future_is_not_seen(model):
    tokens = _tokens(2, 12)
    changed = tokens.clone()
    changed[:, 7:] = (changed[:, 7:] + 1) % 50
    torch.testing.assert_close(model(tokens)[:, :7], model(changed)[:, :7])
    cache = model.new_cache(2, 12)
    model(tokens[:, :3], cache)
    first = model(tokens[:, 3:], cache)
    cache.truncate(3)
    second = model(changed[:, 3:], cache)
    torch.testing.assert_close(first[:, :4], second[:, :4])
    assert not torch.allclose(first[:, 4:], second[:, 4:])


@torch.no_grad()
def test_batched_equals_single(model):
    tokens = _tokens(6, 15)
    together = model(tokens)
    for i in range(6):
        torch.testing.assert_close(model(tokens[i : i + 1])[0], together[i], atol=1e-5, rtol=1e-5)


@torch.no_grad()
def test_hidden_embeddings_and_a_slice_of_the_vocabulary(model):
    tokens = _tokens(2, 9)
    logits = model(tokens)
    torch.testing.assert_close(model(None, embeddings=model.model.embed_tokens(tokens)), logits)
    hidden = model.hidden(tokens)
    assert hidden.shape == (2, 9, 32)
    torch.testing.assert_close(model.logits(hidden), logits)
    torch.testing.assert_close(model.logits(hidden, vocab=slice(10, 30)), logits[..., 10:30])
    torch.testing.assert_close(model(tokens, last_only=True), logits[:, -1:])


@torch.no_grad()
def test_cache_copies_are_independent_and_keep_rows(model):
    tokens = _tokens(3, 8)
    cache = model.new_cache(3, 16)
    model(tokens, cache)
    following = _tokens(6, 1, seed=1)
    expected = model(torch.cat([tokens.repeat_interleave(2, 0), following], 1))[:, -1:]

    repeated = cache.repeat(2)
    torch.testing.assert_close(model(following, repeated), expected, atol=1e-5, rtol=1e-5)
    grown = cache.repeat(2, max_length=9)
    torch.testing.assert_close(model(following, grown), expected, atol=1e-5, rtol=1e-5)
    rows = [2, 0, 2]
    selected = cache.select(rows)
    torch.testing.assert_close(
        model(following[rows], selected),
        model(torch.cat([tokens[rows], following[rows]], 1))[:, -1:],
        atol=1e-5,
        rtol=1e-5,
    )
    copy = cache.clone()
    model(following[:3], copy)
    assert (cache.length, repeated.length, copy.length) == (8, 9, 9)
    again = cache.repeat(2)
    torch.testing.assert_close(model(following, again), expected, atol=1e-5, rtol=1e-5)


@torch.no_grad()
def test_branches_do_not_harm_each_other_and_copy_only_the_second_time(model):
    tokens = _tokens(2, 6)
    a, b, c = (_tokens(2, 3, seed=seed) for seed in (1, 2, 3))

    def alone(*parts: torch.Tensor) -> torch.Tensor:
        return model(torch.cat([tokens, *parts], 1))[:, -3:]

    old = model.new_cache(2, 16)
    model(tokens, old)
    first, second = old.branch(), old.branch()
    torch.testing.assert_close(model(a, first), alone(a), atol=1e-5, rtol=1e-5)
    assert first.keys.data_ptr() == old.keys.data_ptr()  # the first continuation is free
    torch.testing.assert_close(model(b, second), alone(b), atol=1e-5, rtol=1e-5)
    assert second.keys.data_ptr() != old.keys.data_ptr()
    torch.testing.assert_close(model(c, first), alone(a, c), atol=1e-5, rtol=1e-5)
    again = old.branch()
    torch.testing.assert_close(model(c, again), alone(c), atol=1e-5, rtol=1e-5)
    back = first.branch()
    back.truncate(6)
    torch.testing.assert_close(model(b, back), alone(b), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(model(b, first), alone(a, c, b), atol=1e-5, rtol=1e-5)
    assert old.length == 6


@torch.no_grad()
def test_bfloat16_keeps_far_positions_apart():
    model = Llama(SMALL, seed=1).eval()
    tokens = _tokens(1, 60)
    reference = model(tokens)
    difference = (model.to(torch.bfloat16)(tokens).float() - reference).abs().max()
    assert difference < 0.05 * reference.abs().max()


@torch.no_grad()
def test_bfloat16_cached_equals_full():
    # One position at a time takes another path through attention than a whole sequence does.
    model = Llama(SMALL, seed=1).eval()
    tokens = _tokens(3, 60)
    reference = model(tokens)
    half = model.to(torch.bfloat16)
    cache = half.new_cache(3, 60)
    single = torch.cat([half(part, cache) for part in tokens.split(1, dim=1)], 1).float()
    for answer in (single, half(tokens).float()):
        assert (answer - reference).abs().max() < 0.05 * reference.abs().max()


@torch.no_grad()
@pytest.mark.parametrize("kv_heads", [None, 1])
def test_layers_read_together_give_what_they_give_alone(kv_heads):
    model = Llama(dataclasses.replace(SMALL, num_key_value_heads=kv_heads), seed=1).eval()
    half = model.in_bfloat16()
    assert model.lm_head.weight.dtype == torch.float32
    assert half.state_dict().keys() == model.state_dict().keys()
    tokens = _tokens(2, 9)
    torch.testing.assert_close(half(tokens), model.to(torch.bfloat16)(tokens), atol=0.01, rtol=0.02)
    assert all(
        torch.equal(a, b)
        for a, b in zip(half.state_dict().values(), model.state_dict().values(), strict=True)
    )


def test_weights_come_from_the_seed_and_no_global_generator_moves():
    before = torch.get_rng_state()
    a, b, c = Llama(SMALL, seed=1), Llama(SMALL, seed=1), Llama(SMALL, seed=2)
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(x, y) for x, y in zip(a.parameters(), b.parameters(), strict=True))
    assert not torch.equal(a.lm_head.weight, c.lm_head.weight)
    assert abs(a.lm_head.weight.std().item() - SMALL.initializer_range) < 0.01


def test_training_after_inference():
    model = Llama(dataclasses.replace(SMALL, rope_theta=77.0))  # so that its rotary table is made here
    with torch.inference_mode():
        model(_tokens(1, 5))
    model(_tokens(1, 5)).sum().backward()
    assert model.lm_head.weight.grad is not None


@torch.no_grad()
def test_positions_are_taken_back(model):
    tokens = _tokens(1, 9)
    old = model.new_cache(1, 20)
    model(tokens[:, :4], old)
    cache, expected = old.branch(), old.clone()
    model(tokens[:, 4:7], cache)
    cache.retract(2)
    model(tokens[:, 4:5], expected)
    memory = cache.keys.data_ptr()
    torch.testing.assert_close(model(tokens[:, 7:], cache), model(tokens[:, 7:], expected))
    assert cache.keys.data_ptr() == memory == old.keys.data_ptr()  # nothing was copied
    with pytest.raises(ValueError, match="take back 0 of 4 positions, of 7 that are written"):
        old.retract(0)
    with pytest.raises(ValueError, match="take back 8 of 7"):
        cache.retract(8)


def test_bad_input(model):
    with pytest.raises(ValueError, match="either tokens or embeddings"):
        model(None)
    with pytest.raises(ValueError, match="65 more exceed max_position_embeddings 64"):
        model(_tokens(1, 65))
    with pytest.raises(ValueError, match="no gradients"):
        model(_tokens(1, 5), model.new_cache(1, 8))
    with pytest.raises(ValueError, match="no gradients"):
        model(None, model.new_cache(1, 8), embeddings=torch.zeros(1, 5, 32))
    with torch.no_grad():
        cache = model.new_cache(2, 6)
        model(_tokens(2, 5), cache)
        with pytest.raises(ValueError, match="5 positions and 2 more exceed the cache's max_length 6"):
            model(_tokens(2, 2), cache)
        with pytest.raises(ValueError, match="holds 2 rows, the input 3"):
            model(_tokens(3, 1), cache)
        with pytest.raises(ValueError, match="does not fit"):
            cache.clone(max_length=4)
        with pytest.raises(ValueError, match="truncate"):
            cache.truncate(6)
        with pytest.raises(ValueError, match="1 or more"):
            cache.repeat(0)
    assert isinstance(cache, KVCache)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "qwen2"}, "qwen2"),
        ({"attention_bias": True}, "attention_bias"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, "llama3"),
        ({"num_key_value_heads": 3}, "num_key_value_heads 3"),
        ({"hidden_size": 33}, "hidden_size 33"),
    ],
)
def test_unsupported_configs(change, message):
    with pytest.raises(ValueError, match=message):
        LlamaConfig.from_hf({**SMALL.to_hf(), **change})
    with pytest.raises(ValueError, match="hidden_size"):
        LlamaConfig.from_hf({"vocab_size": 3})
