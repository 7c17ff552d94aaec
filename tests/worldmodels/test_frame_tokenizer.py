from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from worldmodels.video.frame_tokenizer import FrameTokenizer, FrameTokenizerConfig

TINY = FrameTokenizerConfig(
    block_out_channels=(8, 8, 16), layers_per_block=1, latent_channels=4, norm_num_groups=4, fsq_levels=(8, 5)
)


@pytest.fixture(scope="module")
def golden(conformance):
    folder = conformance("video/frame_tokenizer")
    return FrameTokenizer.from_folder(folder), load_file(folder / "io.safetensors")


@pytest.fixture(scope="module")
def tiny() -> FrameTokenizer:
    return FrameTokenizer(TINY, seed=1).eval()


def _pixels(*shape: int) -> torch.Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(0))


@torch.no_grad()
def test_equals_the_reference(golden):
    tokenizer, io = golden
    pixels = io["pixels_u8"].float() / 255
    torch.testing.assert_close(tokenizer.latents(pixels), io["z_prequant"], atol=5e-5, rtol=0)
    tokens = tokenizer.encode(pixels)
    assert tokens.dtype == torch.int64
    assert torch.equal(tokens, io["tokens"].long())
    torch.testing.assert_close(tokenizer.decode(io["tokens"]), io["recon"], atol=2e-4, rtol=0)
    torch.testing.assert_close(
        tokenizer.decode(io["random_tokens"]), io["random_tokens_decoded"], atol=2e-4, rtol=0
    )
    reconstruction, codes = tokenizer(pixels[0])
    torch.testing.assert_close(reconstruction, io["recon"][0], atol=2e-4, rtol=0)
    assert torch.equal(tokenizer.fsq.codes_to_indices(codes.movedim(1, -1)), io["tokens"][0].long())


def test_memory_order_does_not_matter(golden):
    tokenizer, io = golden
    frames_last = (io["pixels_u8"].float() / 255).movedim(2, -1).contiguous()
    assert torch.equal(tokenizer.encode(frames_last.movedim(-1, 2)), io["tokens"].long())
    a_frame = io["pixels_u8"][1].float().div(255).to(memory_format=torch.channels_last)
    assert torch.equal(tokenizer.encode(a_frame), io["tokens"][1].long())


def test_full_size_keys_and_shapes(conformance):
    golden = json.loads(conformance("video/frame_tokenizer/keys_full.json").read_text())
    with torch.device("meta"):
        tokenizer = FrameTokenizer(FrameTokenizerConfig())
        latents = tokenizer.latents(torch.zeros(1, 3, *golden["input_hw"]))
        assert list(latents.shape[-2:]) == golden["token_grid"]
    assert {k: list(v.shape) for k, v in tokenizer.state_dict().items()} == golden["keys"]
    assert FrameTokenizerConfig.from_diffusers(golden["config"]) == tokenizer.config
    assert tokenizer.fsq.codebook_size == golden["codebook_size"]


def test_leading_axes_and_batches(tiny):
    pixels = _pixels(2, 3, 3, 8, 12)
    ids = tiny.encode(pixels)
    assert ids.shape == (2, 3, 2, 3)
    assert torch.equal(tiny.encode(pixels[1, 2]), ids[1, 2])
    frames = tiny.decode(ids)
    assert frames.shape == pixels.shape
    torch.testing.assert_close(tiny.decode(ids[1, 2]), frames[1, 2], atol=1e-5, rtol=1e-5)


def test_gradients_reach_every_weight(tiny):
    reconstruction, codes = tiny(_pixels(2, 3, 8, 8))
    assert codes.shape == (2, 2, 2, 2)
    grads = torch.autograd.grad((reconstruction - 0.3).square().mean(), list(tiny.parameters()))
    no_gradient_by_nature = ("to_k.bias",)  # softmax ignores a shift of all keys
    for (name, _), grad in zip(tiny.named_parameters(), grads, strict=True):
        assert grad.abs().max() > 0 or name.endswith(no_gradient_by_nature), name


def test_weights_come_from_the_seed_and_no_global_generator_moves():
    before = torch.get_rng_state()
    a, b, c = FrameTokenizer(TINY, seed=1), FrameTokenizer(TINY, seed=1), FrameTokenizer(TINY, seed=2)
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(x, y) for x, y in zip(a.parameters(), b.parameters(), strict=True))
    assert not torch.equal(a.quant_linear.weight, c.quant_linear.weight)


def test_bad_pixels_and_ids(tiny):
    with pytest.raises(ValueError, match="divide bytes by 255"):
        tiny.encode(torch.zeros(1, 3, 8, 8, dtype=torch.uint8))
    with pytest.raises(ValueError, match="multiples of 4"):
        tiny.encode(torch.zeros(1, 3, 8, 10))
    with pytest.raises(ValueError, match=r"\(1, 8, 8, 3\)"):
        tiny.encode(torch.zeros(1, 8, 8, 3))
    with pytest.raises(ValueError, match="NaN"):
        tiny.encode(torch.full((1, 3, 8, 8), torch.nan))
    with pytest.raises(ValueError, match=r"\[0, 40\)"):
        tiny.decode(torch.full((1, 2, 2), 40))
    with pytest.raises(ValueError, match="bits"):
        FrameTokenizerConfig(fsq_levels=11)


@pytest.fixture
def folder(tmp_path, tiny):
    (tmp_path / "config.json").write_text(
        json.dumps(
            {
                "_class_name": "CNNFSQModel256",
                "block_out_channels": [8, 8, 16],
                "layers_per_block": 1,
                "latent_channels": 4,
                "norm_num_groups": 4,
                "fsq_levels": [8, 5],
            }
        )
    )
    save_file(
        {k: v.half() for k, v in tiny.state_dict().items()}, tmp_path / "diffusion_pytorch_model.safetensors"
    )
    return tmp_path


def test_half_precision_files_load_in_float32(folder, tiny):
    loaded = FrameTokenizer.from_folder(folder)
    assert loaded.config == TINY
    assert all(p.dtype == torch.float32 and not p.is_meta for p in loaded.parameters())
    torch.testing.assert_close(
        loaded.encoder.conv_in.weight, tiny.encoder.conv_in.weight.half().float(), atol=0, rtol=0
    )
    loaded.encode(_pixels(1, 3, 8, 8))


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda w: w.pop("decoder.conv_in.bias"), "decoder.conv_in.bias is missing"),
        (lambda w: w.update(spare=torch.zeros(1)), "spare is unexpected"),
        (lambda w: w.update({"quant_linear.bias": torch.zeros(3)}), r"quant_linear.bias has shape \(3,\)"),
    ],
)
def test_wrong_keys_are_named(folder, edit, message):
    path = folder / "diffusion_pytorch_model.safetensors"
    weights = load_file(path)
    edit(weights)
    save_file(weights, path)
    with pytest.raises(ValueError, match=message):
        FrameTokenizer.from_folder(folder)


def test_damaged_or_missing_files(folder):
    path = folder / "diffusion_pytorch_model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(ValueError, match="damaged"):
        FrameTokenizer.from_folder(folder)
    path.unlink()
    with pytest.raises(FileNotFoundError, match="does not exist"):
        FrameTokenizer.from_folder(folder)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("_class_name", "CompressiveVQModelFSQ"),
        ("norm_type", "spatial"),
        ("down_block_types", ["AttnDownBlock2D"]),
    ],
)
def test_other_models_configs_are_refused(name, value):
    with pytest.raises(ValueError, match=name):
        FrameTokenizerConfig.from_diffusers({name: value})
