"""Checkpoints: round trip, and one clear error for every way a folder can be wrong."""

import hashlib
import json

import numpy as np
import pytest
import torch

import worldmodels
from tests.worldmodels.object_models import random_window, tiny_model
from worldmodels.checkpoints import bundled, find, load, save, tokenizer_config, world_config


@pytest.fixture
def folder(tmp_path):
    model = tiny_model()
    path = tmp_path / "world"
    config = world_config(model, tokenizer="tokenizer", protocol={"frame_skip": 5})
    save(path, model.dynamics, config, card="test\n", dtype=torch.float32)
    save(
        path / "tokenizer",
        model.tokenizer,
        tokenizer_config(model.tokenizer),
        card="test\n",
        dtype=torch.float32,
    )
    return path


def test_round_trip_gives_the_same_tokens(folder):
    model, loaded = tiny_model(), worldmodels.load(folder)
    tokens, actions = random_window(model, 4, 3)
    action = np.zeros((4, 10), np.float32)
    for one in (model, loaded):
        one.state = one.start_tokens(tokens, actions, torch.arange(4))
    expected = model.step(model.state, action)[1].tokens
    assert torch.equal(loaded.step(loaded.state, action)[1].tokens, expected)


def test_every_bundled_checkpoint_loads_and_has_a_card():
    names = bundled()
    assert "pusht-tokenizer" in names
    for name in names:
        card = (find(name) / "card.md").read_text()
        assert "recipe" in card
        assert "seed" in card
        if json.loads((find(name) / "config.json").read_text())["kind"] == "object_world":
            load(name)


def test_unknown_names_list_what_exists():
    with pytest.raises(FileNotFoundError, match=r"pusht-tokenizer.*did you mean 'pusht-tokenizer'"):
        load("pusht-tokeniser")


def test_a_hub_id_without_network_names_the_alternative(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(FileNotFoundError, match="local folder"):
        load("nobody/no-such-model-here")


def test_truncated_weights(folder):
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    with pytest.raises(ValueError, match=r"model\.safetensors has sha256"):
        load(folder)


def rewrite(folder, change):
    """Change the weights, and the hash with them."""
    from safetensors.torch import load_file, save_file

    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors")
    config = json.loads((folder / "config.json").read_text())
    config["weights_sha256"] = hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()
    (folder / "config.json").write_text(json.dumps(config))


def test_missing_key(folder):
    rewrite(folder, lambda tensors: tensors.pop("slot"))
    with pytest.raises(ValueError, match="ObjectDynamics: slot is missing"):
        load(folder)


def test_wrong_shape(folder):
    rewrite(folder, lambda tensors: tensors.update(slot=tensors["slot"][:1].clone()))
    with pytest.raises(ValueError, match="slot has shape"):
        load(folder)


def test_config_of_another_kind_or_format(folder):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "format": 99}))
    with pytest.raises(ValueError, match="format 99"):
        load(folder)
    (folder / "config.json").write_text("{not json")
    with pytest.raises(ValueError, match="cannot be read"):
        load(folder)
    with pytest.raises(ValueError, match="not a world model"):
        load("pusht-tokenizer")


def test_a_tokenizer_that_does_not_fit(folder):
    config = json.loads((folder / "config.json").read_text())
    config["layout"]["num_codes"] = 3
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match="was trained on 3 tokens"):
        load(folder)


def test_the_decoder_loads_in_transformers(folder):
    from safetensors.torch import load_file
    from transformers import LlamaConfig, LlamaForCausalLM

    loaded = load(folder)
    llama = loaded.dynamics.llama
    theirs = LlamaForCausalLM(LlamaConfig(**{k: v for k, v in llama.config.to_hf().items() if v is not None}))
    prefix = "llama."
    weights = load_file(folder / "model.safetensors")
    theirs.load_state_dict({k[len(prefix) :]: v for k, v in weights.items() if k.startswith(prefix)})
    tokens = torch.arange(12)[None]
    assert torch.allclose(theirs(tokens).logits, llama(tokens), atol=1e-4)


def test_one_flipped_byte_is_noticed(folder):
    weights = folder / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-100] ^= 1
    weights.write_bytes(bytes(content))
    with pytest.raises(ValueError, match="sha256"):
        load(folder)


def test_another_tokenizer_of_the_same_sizes_is_refused(folder):
    other = tiny_model(seed=5).tokenizer
    save(folder / "tokenizer", other, tokenizer_config(other), card="test\n", dtype=torch.float32)
    with pytest.raises(ValueError, match="another tokenizer"):
        load(folder)


def test_an_incomplete_config_names_the_file(folder):
    config = json.loads((folder / "config.json").read_text())
    config.pop("dynamics")
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match=r"config\.json is incomplete.*dynamics"):
        load(folder)


def test_a_folder_of_the_same_name_does_not_shadow_a_bundled_checkpoint(folder, tmp_path, monkeypatch):
    folder.rename(tmp_path / "pusht-base")
    monkeypatch.chdir(tmp_path)
    assert find("pusht-base") != tmp_path / "pusht-base"
    assert find("./pusht-base").resolve() == (tmp_path / "pusht-base").resolve()
