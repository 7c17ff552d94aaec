"""The compressive tokenizer against golden data, and its promises about contexts at toy size."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from worldmodels.checkpoints import load_tokenizer
from worldmodels.nets.bfloat16 import has_bfloat16
from worldmodels.nets.cross_attention import CrossAttention
from worldmodels.video.compressive_tokenizer import (
    CompressiveTokenizer,
    CompressiveTokenizerConfig,
    ContextFeatures,
)

SMALL = CompressiveTokenizerConfig(
    image_size=(32, 48),
    block_out_channels=(32, 32, 32),
    layers_per_block=1,
    latent_channels=8,
    norm_num_groups=4,
    patch_size=2,
    max_att_resolution=16,
    context_levels=(5, 5),
    dynamic_levels=(4, 4, 3),
)

DRAWER = CompressiveTokenizerConfig(  # the size at which drawer frames are learnt on a CPU
    image_size=(64, 80),
    block_out_channels=(32, 64, 64, 64),
    layers_per_block=1,
    latent_channels=16,
    patch_size=2,
    max_att_resolution=16,
)


@pytest.fixture(scope="module")
def small() -> CompressiveTokenizer:
    return CompressiveTokenizer(SMALL, seed=1).eval()


def frames(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.rand(*shape, 3, 32, 48, generator=torch.Generator().manual_seed(seed))


def channels_last(pixels: torch.Tensor) -> torch.Tensor:
    """The same frames ``(..., 3, H, W)`` in the memory order of ``(..., H, W, 3)``, as permuted pictures have it."""
    permuted = pixels.movedim(-3, -1).contiguous().movedim(-1, -3)
    assert not permuted.is_contiguous()
    return permuted


def test_keys_and_shapes_of_the_full_size(conformance):
    golden = json.loads(conformance("video/compressive_tokenizer/keys_full.json").read_text())
    (keys,) = [entry for entry in golden.values() if isinstance(entry, dict) and len(entry) > 100]
    with torch.device("meta"):
        model = CompressiveTokenizer(CompressiveTokenizerConfig())
    assert {key: list(value.shape) for key, value in model.state_dict().items()} == keys
    assert len(keys) == 506
    assert sum(parameter.numel() for parameter in model.parameters()) == 129_448_016
    assert CompressiveTokenizerConfig.from_diffusers(golden["config"]) == model.config
    assert (model.context_tokens, model.dynamic_tokens) == (1280, 80)
    assert (model.context_codebook_size, model.dynamic_codebook_size) == (4375, 4375)


def test_equals_the_published_code(conformance):
    folder = conformance("video/compressive_tokenizer/config.json").parent
    tokenizer, io = CompressiveTokenizer.from_folder(folder), load_file(folder / "io.safetensors")
    pixels = io["pixels_u8"].float() / 255
    ids, seen = tokenizer.encode_context(pixels[:, 0])
    assert torch.equal(ids[:, None], io["ctx_tokens"].long())
    assert torch.equal(tokenizer.encode(seen, pixels[:, 1:]), io["dyn_tokens"].long())
    with torch.no_grad():
        latents = tokenizer.dynamic_latents(pixels[0, 1:], seen)
        context_latents = tokenizer.quant_conv(tokenizer.encoder.features(pixels[:, 0])[0])
    torch.testing.assert_close(latents, io["z_dyn"], atol=5e-4, rtol=0)
    torch.testing.assert_close(context_latents, io["z_ctx"], atol=5e-4, rtol=0)
    context, features = tokenizer.decode_context(ids)
    decoded = torch.cat([context, tokenizer.decode(features, io["dyn_tokens"][0].long())])
    torch.testing.assert_close(decoded, io["recon_f16"][0].float(), atol=4e-3, rtol=0)
    torch.testing.assert_close(decoded[:, :, ::4, ::4], io["recon_every4_f32"][0], atol=5e-4, rtol=0)
    torch.testing.assert_close(decoded.mean((1, 2, 3)), io["recon_mean"][0], atol=5e-4, rtol=0)
    torch.testing.assert_close(decoded.std((1, 2, 3)), io["recon_std"][0], atol=5e-4, rtol=0)
    # Decoding one frame with the features of its context kept: the published cache.
    alone = tokenizer.decode(features, io["dyn_tokens"][0, 1:].long())
    golden = io["cached_last_frame_every4_f32"][0, 1:]
    torch.testing.assert_close(alone[:, :, ::4, ::4], golden, atol=5e-4, rtol=0)


def test_memory_order_does_not_matter(conformance, small):
    """GroupNorm loses precision on channels-last frames: at the full size that changed one of 160 published ids."""
    folder = conformance("video/compressive_tokenizer/config.json").parent
    tokenizer, io = CompressiveTokenizer.from_folder(folder), load_file(folder / "io.safetensors")
    pixels = channels_last(io["pixels_u8"].float() / 255)
    ids, seen = tokenizer.encode_context(pixels[:, 0])
    assert torch.equal(ids[:, None], io["ctx_tokens"].long())
    assert torch.equal(tokenizer.encode(seen, pixels[:, 1:]), io["dyn_tokens"].long())
    contexts, videos = frames(2), frames(2, 3, seed=1)
    for of_model, permuted in zip(
        small(contexts, videos), small(channels_last(contexts), channels_last(videos)), strict=True
    ):
        assert torch.equal(of_model, permuted)


def test_attention_is_dropped_in_training_mode_alone():
    pixels, videos = frames(2), frames(2, 3, seed=1)
    plain = CompressiveTokenizer(SMALL, seed=1)
    dropping = CompressiveTokenizer(dataclasses.replace(SMALL, attention_dropout=0.1), seed=1)
    assert all(torch.equal(value, plain.state_dict()[key]) for key, value in dropping.state_dict().items())
    assert dropping.state_dict().keys() == plain.state_dict().keys()
    assert all(map(torch.equal, dropping.eval()(pixels, videos), plain.eval()(pixels, videos)))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        first, second = (dropping.train()(pixels, videos)[1] for _ in range(2))
        assert not torch.equal(first, second)  # other weights are dropped every time
        assert all(map(torch.equal, plain.train()(pixels, videos), plain.eval()(pixels, videos)))


def test_a_tenth_of_the_attention_weights_is_dropped_and_the_rest_weighs_more():
    attend = CrossAttention(32, 4, dropout=0.1).train()
    for parameter in attend.parameters():
        torch.nn.init.zeros_(parameter)
    attend.att.in_proj_bias.data[64:] = 1.0  # all values are 1, and each of the 4 positions weighs a quarter
    attend.att.out_proj.weight.data.copy_(torch.eye(32))
    maps = torch.zeros(500, 32, 2, 2)
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        found = attend(maps, attend.keys_values(maps[:1]))
    levels = torch.nn.functional.silu(torch.arange(5) / 4 / 0.9)  # of 0 to 4 positions that were kept
    kept = (found[..., None] - levels).abs().argmin(-1)
    torch.testing.assert_close(found, levels[kept], atol=1e-5, rtol=0)
    assert kept.float().mean() / 4 == pytest.approx(0.9, abs=0.01)


def test_a_frame_is_the_same_alone_in_a_batch_and_with_shared_features(small):
    contexts, videos = frames(3), frames(3, 4, seed=1)
    ids, seen = small.encode_context(contexts)
    assert ids.shape == (3, 8 * 12)
    codes = small.encode(seen, videos)
    assert codes.shape == (3, 4, 4 * 6)
    for row in range(3):
        single_ids, single_seen = small.encode_context(contexts[row : row + 1])
        assert torch.equal(single_ids, ids[row : row + 1])
        for time in range(4):
            single = small.encode(single_seen, videos[row : row + 1, time])
            assert torch.equal(single, codes[row : row + 1, time])
    _, features = small.decode_context(ids)
    rows = torch.arange(3).repeat_interleave(4)
    decoded = small.decode(features, codes.flatten(0, 1), rows=rows)
    assert decoded.shape == (12, 3, 32, 48)
    shared = small.decode(features.select([1]), codes[1])  # one context for all frames, no copies
    for mixed in ([0, 0, 1], [2, 0, 2], [1, 1, 1], [2, 2, 0, 0]):  # uneven, out of order, shared
        of, at = torch.tensor(mixed), torch.arange(len(mixed))
        torch.testing.assert_close(
            small.decode(features, codes[of, at], rows=of), decoded[of * 4 + at], atol=1e-5, rtol=1e-5
        )
    torch.testing.assert_close(shared, decoded[4:8], atol=1e-5, rtol=1e-5)
    copied = small.decode(features.select([1]).repeat(4), codes[1])
    torch.testing.assert_close(copied, shared, atol=1e-5, rtol=1e-5)
    again = ContextFeatures.concatenate([features.select([0]), features.select([1, 2])])
    assert len(again) == 3
    torch.testing.assert_close(small.decode(again, codes[:, 0]), decoded[::4], atol=1e-5, rtol=1e-5)


def test_features_of_frames_that_lie_together_are_not_copied(small):
    _, features = small.decode_context(small.encode_context(frames(2))[0])
    assert features.for_frames(torch.tensor([0, 0, 0, 1, 1, 1])) is features
    one = features.select([1])
    assert one.for_frames([0, 0, 0]) is one
    assert len(features.for_frames([1, 1, 1])) == 1
    assert len(features.for_frames([0, 0, 1])) == 3


def test_cross_attention_is_that_of_torch_after_norms_and_positions():
    generator = torch.Generator().manual_seed(0)
    attend = CrossAttention(64, 6)
    for parameter in attend.parameters():
        parameter.data.normal_(0, 0.3, generator=generator)
    reference = torch.nn.MultiheadAttention(64, 4, batch_first=True)
    reference.load_state_dict(attend.att.state_dict())
    contexts, maps = (torch.randn(n, 64, 2, 3, generator=generator) for n in (2, 6))
    queries = attend.q_norm(maps).flatten(2).transpose(1, 2) + attend.q_pos_emb
    seen = attend.kv_norm(contexts).flatten(2).transpose(1, 2) + attend.kv_pos_emb
    seen = seen.repeat_interleave(3, 0)  # the slow path: a copy for every frame
    found = reference(queries, seen, seen, need_weights=False)[0].transpose(1, 2).view_as(maps)
    expected = torch.nn.functional.silu(maps + found)
    torch.testing.assert_close(attend(maps, attend.keys_values(contexts)), expected, atol=1e-5, rtol=1e-5)


def test_kept_features_equal_features_made_for_every_frame(small):
    """The slow path runs the context's network again for every frame, and copies what it saw."""
    contexts, videos = frames(2), frames(2, 3, seed=1)
    flat, repeated = videos.flatten(0, 1), contexts.repeat_interleave(3, 0)
    ids, seen = small.encode_context(contexts)
    slow_ids, slow_seen = small.encode_context(repeated)
    codes = small.encode(seen, videos).flatten(0, 1)
    assert torch.equal(codes, small.encode(slow_seen, flat))
    assert torch.equal(codes, small.encode(seen.repeat(3), flat))
    _, features = small.decode_context(ids)
    _, slow_features = small.decode_context(slow_ids)
    fast = small.decode(features, codes, rows=torch.arange(2).repeat_interleave(3))
    torch.testing.assert_close(fast, small.decode(slow_features, codes), atol=1e-5, rtol=1e-5)


def test_the_context_matters(small):
    ids, _ = small.encode_context(frames(2))
    _, features = small.decode_context(ids)
    codes = torch.zeros(1, small.dynamic_tokens, dtype=torch.int64)
    first, second = (small.decode(features.select([row]), codes) for row in (0, 1))
    assert (first - second).abs().max() > 1e-3


def test_training_reaches_every_weight_and_equals_inference(small):
    context_frames, videos = frames(2), frames(2, 3, seed=1)
    model = CompressiveTokenizer(SMALL, seed=1)
    context, again, codes = model(context_frames, videos)
    assert torch.equal(codes, model.codes(context_frames, videos)[1])
    ids = model.dynamic_fsq.codes_to_indices(codes)
    assert (context.shape, again.shape) == ((2, 3, 32, 48), (2, 3, 3, 32, 48))
    context_ids, seen = small.encode_context(context_frames)
    assert torch.equal(ids, small.encode(seen, videos))
    expected, features = small.decode_context(context_ids)
    torch.testing.assert_close(context, expected, atol=1e-5, rtol=1e-5)
    decoded = small.decode(features.repeat(3), ids.flatten(0, 1)).unflatten(0, (2, 3))
    torch.testing.assert_close(again, decoded, atol=1e-5, rtol=1e-5)
    ((context - context_frames).square().mean() + (again - videos).square().mean()).backward()
    no_gradient_by_nature = ("to_k.bias",)  # softmax ignores a shift of all keys
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().max() > 0 or name.endswith(no_gradient_by_nature), name


def test_gradients_pass_through_the_rounding_of_both_code_books(small):
    """A future frame's picture teaches the networks before both roundings, through context and own ids."""
    _, again, _ = small(frames(1), frames(1, 1, seed=1))
    names = (
        "encoder.conv_in.weight",
        "quant_conv.weight",
        "cond_encoder.conv_in.weight",
        "quant_linear.weight",
    )
    grads = torch.autograd.grad(again.square().mean(), [small.get_parameter(name) for name in names])
    assert all(grad.abs().max() > 0 for grad in grads)


def test_a_training_step_at_the_size_of_drawer_frames():
    model = CompressiveTokenizer(DRAWER)
    assert (model.context_tokens, model.dynamic_tokens) == (80, 20)
    pixels = torch.rand(1, 3, 3, 64, 80, generator=torch.Generator().manual_seed(0))
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    losses = []
    for _ in range(3):
        context, again, codes = model(pixels[:, 0], pixels[:, 1:])
        loss = (context - pixels[:, 0]).abs().mean() + (again - pixels[:, 1:]).abs().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]
    assert codes.shape == (1, 2, 20, 5)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_real_frames_pass_through_the_full_size(conformance):
    clip = np.load(conformance("video/rt1_clip.npz"), allow_pickle=False)["image"]
    pixels = torch.from_numpy(clip).movedim(-1, 1).float() / 255
    tokenizer = CompressiveTokenizer(CompressiveTokenizerConfig()).eval()
    if has_bfloat16(
        torch.device("cpu")
    ):  # half the time there; where it has to be emulated, two hundred times
        tokenizer = tokenizer.to(torch.bfloat16)
    ids, seen = tokenizer.encode_context(pixels[:1])
    assert ids.shape == (1, 1280)
    codes = tokenizer.encode(seen, pixels[None, 1:])
    assert codes.shape == (1, 11, 80)
    first, features = tokenizer.decode_context(ids)
    decoded = torch.cat([first, *(tokenizer.decode(features, code) for code in codes[0].split(1))])
    assert decoded.shape == (12, 3, 256, 320)
    assert torch.isfinite(decoded).all()


def test_weights_are_a_function_of_the_seed():
    state = torch.get_rng_state()
    first, same, other = (CompressiveTokenizer(SMALL, seed=seed).state_dict() for seed in (3, 3, 4))
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(value, same[key]) for key, value in first.items())
    assert any(not torch.equal(value, other[key]) for key, value in first.items())


def test_bfloat16_decodes(small):
    half = CompressiveTokenizer(SMALL, seed=1).eval().to(torch.bfloat16)
    ids, _ = small.encode_context(frames(1))
    codes = torch.full((1, small.dynamic_tokens), 7)
    (_, features), (_, halved) = small.decode_context(ids), half.decode_context(ids)
    torch.testing.assert_close(
        half.decode(halved, codes).float(), small.decode(features, codes), atol=0.05, rtol=0.1
    )


def test_bfloat16_encodes_and_trains(small):
    half = CompressiveTokenizer(SMALL, seed=1).to(torch.bfloat16)
    pixels, videos = frames(1), frames(1, 2, seed=1)
    ids, seen = half.encode_context(pixels)
    same = (half.encode(seen, videos) == small.encode(small.encode_context(pixels)[1], videos)).float().mean()
    assert same > 0.8  # pixels in eight bits of mantissa: a few codes change
    assert (ids == small.encode_context(pixels)[0]).float().mean() > 0.8
    again = half(pixels, videos)[1]
    assert again.dtype == torch.bfloat16
    assert torch.autograd.grad(again.float().mean(), half.quant_linear.weight)[0].abs().max() > 0


def test_clear_errors(small, tmp_path: Path):
    ids, seen = small.encode_context(frames(2))
    with pytest.raises(ValueError, match=r"divide bytes by 255"):
        small.encode_context(torch.zeros(1, 3, 32, 48, dtype=torch.uint8))
    with pytest.raises(ValueError, match=r"\(B, 3, 32, 48\), got \(1, 3, 48, 32\)"):
        small.encode_context(torch.zeros(1, 3, 48, 32))
    with pytest.raises(ValueError, match="NaN"):
        small.encode_context(torch.full((1, 3, 32, 48), torch.nan))
    with pytest.raises(ValueError, match="3 rows of frames for 2 contexts"):
        small.encode(seen, frames(3))
    with pytest.raises(ValueError, match=r"\(rows, 96\)"):
        small.decode_context(ids[:, 1:])
    with pytest.raises(ValueError, match=r"\[0, 48\)"):
        small.decode(small.decode_context(ids)[1], torch.full((2, 24), 48))
    with pytest.raises(ValueError, match="3 frames for 2 contexts"):
        small.decode(small.decode_context(ids)[1], torch.zeros(3, 24, dtype=torch.int64))
    features, codes = small.decode_context(ids)[1], torch.zeros(3, 24, dtype=torch.int64)
    with pytest.raises(ValueError, match="3 frames for 2 contexts and 2 rows"):
        small.decode(features, codes, rows=torch.tensor([0, 1]))
    with pytest.raises(ValueError, match=r"\[0, 2\), the number of contexts, got -1\.\.0"):
        small.decode(features, codes, rows=torch.tensor([0, 0, -1]))
    with pytest.raises(ValueError, match=r"torch\.bool"):
        small.decode(features, codes, rows=torch.tensor([True, False, True]))
    with pytest.raises(ValueError, match="number of contexts, got 2"):
        features.select([2])
    with pytest.raises(ValueError, match="decode_context"):
        small.decode(seen, codes[:2])
    with pytest.raises(ValueError, match="encode_context"):
        small.encode(features, frames(2))
    with pytest.raises(ValueError, match=r"\[0, 25\)"):
        small.decode_context(torch.full((1, 96), 25))
    with pytest.raises(ValueError, match="3 rows of frames for 2 contexts"):
        small(frames(2), frames(3, 1))
    with pytest.raises(ValueError, match=r"\(B, T, 3, 32, 48\)"):
        small(frames(2), frames(2))
    with pytest.raises(ValueError, match="no frame would see its context"):
        CompressiveTokenizerConfig(max_att_resolution=16)
    with pytest.raises(ValueError, match="max_att_resolution that leaves out this map"):
        CompressiveTokenizer(dataclasses.replace(SMALL, block_out_channels=(32, 32, 48)))
    with pytest.raises(ValueError, match=r"attention_dropout is 1\.0; give a share in \[0, 1\)"):
        CompressiveTokenizerConfig(attention_dropout=1.0)
    with pytest.raises(ValueError, match="multiples of 32"):
        CompressiveTokenizerConfig(image_size=(250, 320))
    with pytest.raises(ValueError, match="mid_block_add_attention"):
        CompressiveTokenizerConfig.from_diffusers({"mid_block_add_attention": True})
    with pytest.raises(ValueError, match=r"vq_fsq_levels = \[5, 5\]"):
        CompressiveTokenizerConfig.from_diffusers({"vq_fsq_levels": [5, 5]})
    with pytest.raises(ValueError, match="_class_name"):
        CompressiveTokenizerConfig.from_diffusers({"_class_name": "CNNFSQModel256"})
    with pytest.raises(FileNotFoundError, match=r"config\.json"):
        CompressiveTokenizer.from_folder(tmp_path)
    config = {
        "block_out_channels": [32, 32, 32],
        "patch_size": 2,
        "max_att_resolution": 16,
        "layers_per_block": 1,
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    save_file({"quant_conv.weight": torch.zeros(1)}, tmp_path / "diffusion_pytorch_model.safetensors")
    with pytest.raises(ValueError, match="is missing"):
        CompressiveTokenizer.from_folder(tmp_path, image_size=(32, 48))


def test_truncated_weights_are_one_error_that_names_the_file(tmp_path: Path):
    config = {"block_out_channels": [32] * 5, "layers_per_block": 1, "latent_channels": 8, "patch_size": 2}
    (tmp_path / "config.json").write_text(json.dumps({"_class_name": "CompressiveVQModelFSQ", **config}))
    path = tmp_path / "diffusion_pytorch_model.safetensors"
    whole = CompressiveTokenizer(CompressiveTokenizerConfig.from_diffusers(config)).state_dict()
    save_file({key: value.half() for key, value in whole.items()}, path)
    assert load_tokenizer(tmp_path).state_dict().keys() == whole.keys()
    content = path.read_bytes()
    for kept in (0, 4, 1000, len(content) - 100):
        path.write_bytes(content[:kept])
        for load in (CompressiveTokenizer.from_folder, load_tokenizer):
            with pytest.raises(ValueError, match=r"diffusion_pytorch_model\.safetensors is damaged.*again"):
                load(tmp_path)
