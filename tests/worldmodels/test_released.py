"""Released RT-1 checkpoints load as they are, ours go round, and a clear error for everything else."""

import json
import shutil

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import worldmodels
from tests.worldmodels.frame_worlds import (
    PROTOCOL,
    multi_step_world,
    random_actions,
    random_frames,
    single_step_world,
)
from worldmodels.api import History
from worldmodels.checkpoints import (
    load_tokenizer,
    save,
    tokenizer_config,
    world_config,
)
from worldmodels.nets.llama import Llama, LlamaConfig
from worldmodels.released import RT1_BINS, load_released_world
from worldmodels.video.compressive_config import CompressiveTokenizerConfig
from worldmodels.video.compressive_tokenizer import CompressiveTokenizer
from worldmodels.video.frame_tokenizer import FrameTokenizer, FrameTokenizerConfig
from worldmodels.video.layouts import MultiStepLayout, SingleStepLayout
from worldmodels.video.multi_step_world import MultiStepWorldModel
from worldmodels.video.single_step_world import SingleStepWorldModel


def transformer_folder(path, vocab_size, **changes):
    """A small transformer as Hugging Face stores it, in half precision."""
    sizes = {
        "vocab_size": vocab_size,
        "hidden_size": 16,
        "intermediate_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "max_position_embeddings": 2048,
    }
    llama = Llama(LlamaConfig(**sizes))
    path.mkdir()
    (path / "config.json").write_text(json.dumps({**llama.config.to_hf(), **changes}))
    save_file({key: value.half() for key, value in llama.state_dict().items()}, path / "model.safetensors")
    return path


def test_released_multi_step_world(conformance):
    model = worldmodels.load(
        conformance("video/transformer"), tokenizer=conformance("video/compressive_tokenizer")
    )
    assert isinstance(model, MultiStepWorldModel)
    assert model.layout == MultiStepLayout()
    assert model.protocol == {"environment": "RT1", "image_size": [256, 320]}
    assert model.llama.lm_head.weight.dtype == torch.float32
    frames = np.load(conformance("video/rt1_clip.npz"))["image"]
    state = model.start([History(observations=[frames[0], frames[5]], actions=random_actions(1))], seeds=[0])
    golden = load_file(conformance("video/compressive_tokenizer/io.safetensors"))
    group = state.groups[0]
    assert torch.equal(group.contexts[0].ids, golden["ctx_tokens"][0, 0].long())
    assert torch.equal(group.frames[0, 0], golden["dyn_tokens"][0, 0].long())
    state, predictions = model.step(state, random_actions(1))
    assert predictions.tokens.shape == (1, 80)
    assert predictions[0].observation.shape == (256, 320, 3)


def test_released_single_step_world(conformance, tmp_path):
    folder = transformer_folder(tmp_path / "transformer", 4633)
    model = worldmodels.load(folder, tokenizer=conformance("video/frame_tokenizer"))
    assert isinstance(model, SingleStepWorldModel)
    assert model.layout == SingleStepLayout()
    stored = load_file(folder / "model.safetensors")["lm_head.weight"]
    assert torch.equal(model.llama.lm_head.weight, stored.float())
    # Encoding at the published size is measured elsewhere; ids of a frame are enough to begin.
    visual = torch.zeros(1, 4, 320, dtype=torch.int64)
    state = model.start_tokens(visual, torch.zeros(1, 3, 13, dtype=torch.int64), torch.zeros(1).long())
    _, predictions = model.step(state, random_actions(1))
    assert predictions.tokens.shape == (1, 320)


@pytest.mark.parametrize(("name", "vocab_size"), [("ctx_llama_small", 9008), ("llama_small", 4633)])
def test_released_sizes_have_the_published_keys_and_shapes(conformance, name, vocab_size):
    known = json.loads(conformance("video/transformer/keys_full.json").read_text())[name]
    with torch.device("meta"):
        llama = Llama(LlamaConfig.from_hf({**known["config"], "rope_theta": known["rope_theta"]}))
    assert llama.config.vocab_size == vocab_size
    assert {key: list(value.shape) for key, value in llama.state_dict().items()} == known["keys"]
    assert sum(parameter.numel() for parameter in llama.parameters()) == known["total_params"]


@pytest.mark.parametrize("single", [False, True])
def test_the_published_full_size_fits_together(tmp_path, single):
    """Layouts, vocabularies and grids of the 256x320 models, without weights."""
    folder = transformer_folder(tmp_path / "transformer", 4633 if single else 9008)
    with torch.device("meta"):
        tokenizer = (
            FrameTokenizer(FrameTokenizerConfig())
            if single
            else CompressiveTokenizer(CompressiveTokenizerConfig())
        )
    model = load_released_world(folder, json.loads((folder / "config.json").read_text()), tokenizer)
    assert model.layout == (SingleStepLayout() if single else MultiStepLayout())
    assert model.action_shape == (13,)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_real_frames_in_the_full_size_multi_step_world(conformance):
    """The published sizes with random weights: real frames in, seven frames out."""
    known = json.loads(conformance("video/transformer/keys_full.json").read_text())["ctx_llama_small"]
    clip = np.load(conformance("video/rt1_clip.npz"))["image"]
    tokenizer = CompressiveTokenizer(CompressiveTokenizerConfig())
    llama = Llama(LlamaConfig.from_hf(known["config"]))
    model = MultiStepWorldModel(tokenizer, llama, MultiStepLayout(), RT1_BINS)
    contexts, frames = model.encode([clip[0]] * len(clip), list(clip))
    assert (contexts == contexts[0]).all()
    assert len(torch.unique(frames, dim=0)) > 1
    state = model.start([History(observations=[clip[0], clip[-1]], actions=random_actions(1))], seeds=[0])
    assert torch.equal(state.groups[0].frames[0, 0], frames[-1])
    for action in random_actions(7, 1):
        state, predictions = model.step(state, action)
        assert predictions.tokens.shape == (1, 80)
        assert predictions[0].observation.shape == (256, 320, 3)
    assert state.groups[0].cache is None  # a new window begins


def test_a_transformer_alone_names_the_tokenizer(tmp_path):
    folder = transformer_folder(tmp_path / "multi", 9008)
    with pytest.raises(ValueError, match=r"give tokenizer=.*'thuml/rt1-compressive-tokenizer'"):
        worldmodels.load(folder)
    folder = transformer_folder(tmp_path / "single", 4633)
    with pytest.raises(ValueError, match=r"give tokenizer=.*'thuml/rt1-frame-tokenizer'"):
        worldmodels.load(folder)
    folder = transformer_folder(tmp_path / "other", 300)
    with pytest.raises(ValueError, match=r"multi-step.*thuml/rt1-frame-tokenizer"):
        worldmodels.load(folder)


def test_a_tokenizer_that_does_not_fit(conformance, tmp_path):
    with pytest.raises(ValueError, match="has 9008 ids, but a SingleStepLayout on this tokenizer has 4633"):
        worldmodels.load(conformance("video/transformer"), tokenizer=conformance("video/frame_tokenizer"))
    with pytest.raises(ValueError, match="no tokenizer of RT-1 frames"):
        worldmodels.load(conformance("video/transformer"), tokenizer="pusht-tokenizer")
    with pytest.raises(ValueError, match=r"give this as tokenizer=, or .*checkpoints\.load_tokenizer"):
        worldmodels.load(conformance("video/frame_tokenizer"))
    for name, loader in (
        ("drawer-tokenizer", "load_tokenizer"),
        ("pusht-tokenizer", "load_tokenizer"),
        ("drawer-reader", "load_state_reader"),
    ):
        with pytest.raises(
            ValueError, match=rf"not a world model; worldmodels\.checkpoints\.{loader} loads it"
        ):
            worldmodels.load(name)
        getattr(worldmodels.checkpoints, loader)(name)
    with pytest.raises(ValueError, match=r"holds a transformer \(llama\), which is not a tokenizer"):
        load_tokenizer(conformance("video/transformer"))
    (tmp_path / "config.json").write_text('{"_class_name": "VQModel"}')
    with pytest.raises(ValueError, match=r"VQModel.*known are CompressiveVQModelFSQ, CNNFSQModel256"):
        load_tokenizer(tmp_path)


def test_hub_ids_without_network_name_the_alternative(monkeypatch, conformance):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(FileNotFoundError, match="nobody/no-such-tokenizer.*local folder"):
        worldmodels.load(conformance("video/transformer"), tokenizer="nobody/no-such-tokenizer")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda w: w.pop("model.norm.weight"), r"model\.norm\.weight is missing"),
        (lambda w: w.update(bias=torch.zeros(2)), "bias is unexpected"),
        (
            lambda w: w.update({"model.norm.weight": torch.zeros(3)}),
            r"model\.norm\.weight has shape \(3,\), not \(16,\)",
        ),
    ],
)
def test_keys_that_do_not_fit(conformance, tmp_path, change, message):
    folder = transformer_folder(tmp_path / "transformer", 9008)
    weights = load_file(folder / "model.safetensors")
    change(weights)
    save_file(weights, folder / "model.safetensors")
    with pytest.raises(ValueError, match=message):
        worldmodels.load(folder, tokenizer=conformance("video/compressive_tokenizer"))


def test_truncated_absent_or_unusual_transformers(conformance, tmp_path):
    tokenizer = conformance("video/compressive_tokenizer")
    folder = transformer_folder(tmp_path / "transformer", 9008)
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    with pytest.raises(ValueError, match=r"model\.safetensors is damaged"):
        worldmodels.load(folder, tokenizer=tokenizer)
    weights.rename(folder / "pytorch_model.bin")
    with pytest.raises(FileNotFoundError, match="pickled"):
        worldmodels.load(folder, tokenizer=tokenizer)
    folder = transformer_folder(tmp_path / "biased", 9008, attention_bias=True)
    with pytest.raises(ValueError, match="attention_bias"):
        worldmodels.load(folder, tokenizer=tokenizer)


WORLDS = {"multi_step_world": multi_step_world, "single_step_world": single_step_world}


@pytest.fixture(params=WORLDS)
def saved(request, tmp_path):
    """A world model, and the folder it was saved in."""
    options = {"repetition_penalty": 1.2} if request.param == "multi_step_world" else {}
    model = WORLDS[request.param](top_k=7, **options)
    config = world_config(model, tokenizer="tokenizer", protocol=PROTOCOL)
    assert config["kind"] == request.param
    path = tmp_path / "world"
    save(path, model.llama, config, card="test\n", dtype=torch.float32)
    save(
        path / "tokenizer",
        model.tokenizer,
        tokenizer_config(model.tokenizer),
        card="test\n",
        dtype=torch.float32,
    )
    return model, path


def drawn(model):
    frames = random_frames(3)
    state = model.start([History(observations=[frame]) for frame in frames], seeds=[1, 2, 3])
    tokens = []
    for action in random_actions(4, 3):
        state, predictions = model.step(state, action)
        tokens.append(predictions.tokens)
    return torch.stack(tokens)


def test_ours_go_round(saved, tmp_path):
    model, folder = saved
    loaded = worldmodels.load(folder)
    assert torch.equal(drawn(loaded), drawn(model))
    assert (loaded.protocol, loaded.top_k) == (PROTOCOL, 7)
    assert loaded.action_bins.num_bins == 8
    # The tokenizer may lie elsewhere.
    shutil.move(folder / "tokenizer", tmp_path / "elsewhere")
    with pytest.raises(FileNotFoundError, match="'tokenizer'"):
        worldmodels.load(folder)
    assert torch.equal(drawn(worldmodels.load(folder, tokenizer=tmp_path / "elsewhere")), drawn(model))


def test_transformers_loads_the_saved_folder_as_it_is(saved):
    from transformers import LlamaForCausalLM

    model, folder = saved
    theirs, report = LlamaForCausalLM.from_pretrained(folder, output_loading_info=True)
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    tokens = torch.arange(24)[None]
    with torch.no_grad():
        torch.testing.assert_close(theirs.eval()(tokens).logits, model.llama(tokens), atol=1e-5, rtol=1e-4)


def test_another_tokenizer_is_refused(saved):
    model, folder = saved
    other = type(model.tokenizer)(model.tokenizer.config, seed=5)
    save(folder / "tokenizer", other, tokenizer_config(other), card="test\n", dtype=torch.float32)
    with pytest.raises(ValueError, match="another tokenizer"):
        worldmodels.load(folder)


def test_an_incomplete_config_names_the_file(saved):
    _, folder = saved
    config = json.loads((folder / "config.json").read_text())
    config.pop("layout")
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match=r"config\.json is incomplete.*layout"):
        worldmodels.load(folder)
