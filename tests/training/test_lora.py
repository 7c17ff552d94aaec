"""Adapters: around a model, switched off, on disk, merged; and what a checkpoint of them holds."""

from __future__ import annotations

import json
import sys

import pytest
import torch

from tests.worldmodels.language.tiny_lms import tiny_lm, toy_prompt, toy_turns
from training.lora import LoRASettings, add_lora, load_adapter, merge_lora, save_adapter
from training.provenance import weights_sha256
from training.trained_weights import BeforeTraining, TrainedWeights, reference_of
from worldmodels.language.causal_lm_files import load_causal_lm, save_causal_lm

pytest.importorskip("peft")
SMALL = LoRASettings(rank=4, alpha=8)


def adapted(*, seed=0, moved=True, **settings):
    """A tiny model with adapters that already do something."""
    lm = tiny_lm(**settings)
    add_lora(lm, SMALL, seed=seed)
    if moved:
        generator = torch.Generator().manual_seed(5)
        with torch.no_grad():
            for name, weight in lm.named_parameters():
                if "lora_B" in name:
                    weight += 0.1 * torch.randn(weight.shape, generator=generator)
    return lm


def question(lm):
    prompts = [lm.encode(toy_prompt(turn.before, turn.action)) for turn in toy_turns()]
    said = tiny_lm().answer(prompts, seeds=torch.arange(10), num_samples=2, max_new_tokens=12)
    return prompts, said.tokens, said.mask


def likelihoods(lm):
    with torch.no_grad():
        return lm.logprobs(*question(lm))[0]


@pytest.mark.parametrize("kind", ["qwen2", "llama"])
def test_fresh_adapters_change_nothing_and_are_all_that_is_trained(kind):
    bare, lm = tiny_lm(kind), tiny_lm(kind)
    before = torch.random.get_rng_state()
    add_lora(lm, SMALL, seed=3)
    assert torch.equal(torch.random.get_rng_state(), before)
    torch.testing.assert_close(likelihoods(lm), likelihoods(bare))
    trained = [name for name, weight in lm.named_parameters() if weight.requires_grad]
    assert len(trained) == 2 * 7 * 2  # two factors, seven linear layers in each of two blocks
    assert all("lora_" in name for name in trained)
    again, other = tiny_lm(kind), tiny_lm(kind)
    add_lora(again, SMALL, seed=3)
    add_lora(other, SMALL, seed=4)
    assert weights_sha256(again) == weights_sha256(lm) != weights_sha256(other)


def test_published_size():
    lm = tiny_lm()
    add_lora(lm, LoRASettings(), seed=0)
    layer = lm.net.base_model.model.model.layers[0].self_attn.q_proj
    assert (layer.r["default"], layer.scaling["default"]) == (32, 0.5)


def test_adapters_of_bfloat16_weights_are_float32(tmp_path):
    lm = load_causal_lm(save_causal_lm(tmp_path / "base", tiny_lm(), card=""), dtype=torch.bfloat16)
    add_lora(lm, SMALL, seed=0)
    kinds = {("lora_" in name, weight.dtype) for name, weight in lm.named_parameters()}
    assert kinds == {(True, torch.float32), (False, torch.bfloat16)}
    TrainedWeights(lm, rows_per_pass=1).logprobs(*question(lm))[0].sum().backward()
    assert all(weight.grad.dtype == torch.float32 for weight in lm.parameters() if weight.requires_grad)
    merge_lora(lm)
    assert {weight.dtype for weight in lm.parameters()} == {torch.bfloat16}


def test_merged_equals_adapted_and_loads_as_an_ordinary_model(tmp_path):
    lm = adapted()
    wanted = likelihoods(lm)
    assert (wanted - likelihoods(tiny_lm())).abs().max() > 0.01
    with pytest.raises(ValueError, match="merge_lora"):
        save_causal_lm(tmp_path / "model", lm, card="")
    merge_lora(lm)
    torch.testing.assert_close(likelihoods(lm), wanted, atol=1e-4, rtol=1e-4)
    merge_lora(lm)  # nothing to do
    loaded = load_causal_lm(save_causal_lm(tmp_path / "model", lm, card="A toy."))
    torch.testing.assert_close(likelihoods(loaded), wanted, atol=1e-4, rtol=1e-4)


def test_adapters_are_loaded_as_adapters(tmp_path):
    lm = adapted()
    save_adapter(tmp_path / "adapter", tiny_lm_with_other_adapters())
    folder = save_adapter(tmp_path / "adapter", lm)  # replaces the folder
    assert {path.name for path in tmp_path.iterdir()} == {"adapter"}
    base = save_causal_lm(tmp_path / "base", tiny_lm(), card="")
    loaded = load_causal_lm(base)
    state = torch.random.get_rng_state()
    load_adapter(folder, loaded)
    assert torch.equal(torch.random.get_rng_state(), state)
    torch.testing.assert_close(likelihoods(loaded), likelihoods(lm), atol=0, rtol=0)
    assert weights_sha256(TrainedWeights(loaded)) == weights_sha256(TrainedWeights(lm))
    merge_lora(loaded)
    torch.testing.assert_close(likelihoods(loaded), likelihoods(lm), atol=1e-4, rtol=1e-4)


def tiny_lm_with_other_adapters():
    lm = tiny_lm()
    add_lora(lm, LoRASettings(rank=2, targets=("q_proj",)), seed=0)
    return lm


def test_adapters_that_do_not_fit_are_refused(tmp_path):
    folder = save_adapter(tmp_path / "adapter", adapted())
    wider = tiny_lm(hidden_size=64)
    with pytest.raises(ValueError, match="another network"):
        load_adapter(folder, wider)
    assert not hasattr(wider.net, "peft_config")
    torch.testing.assert_close(likelihoods(wider), likelihoods(tiny_lm(hidden_size=64)))
    with pytest.raises(ValueError, match="adapters already"):
        load_adapter(folder, adapted())
    config = json.loads((folder / "adapter_config.json").read_text())
    (folder / "adapter_config.json").write_text(json.dumps({**config, "target_modules": ["q_proj"]}))
    with pytest.raises(ValueError, match="do not fit"):
        load_adapter(folder, tiny_lm())
    (folder / "adapter_model.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match=r"adapter_model\.safetensors"):
        load_adapter(folder, tiny_lm())


def test_what_is_asked_must_make_sense(tmp_path, monkeypatch):
    with pytest.raises(ValueError, match="rank is 0"):
        LoRASettings(rank=0)
    with pytest.raises(ValueError, match="adapters already"):
        add_lora(adapted(), SMALL, seed=0)
    with pytest.raises(ValueError, match="no_such_layer"):
        add_lora(tiny_lm(), LoRASettings(targets=("no_such_layer",)), seed=0)
    with pytest.raises(ValueError, match="no adapters"):
        save_adapter(tmp_path, tiny_lm())
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(ImportError, match=r"rlvr-world-envs\[llm\]"):
        add_lora(tiny_lm(), SMALL, seed=0)


class TestTrainedWeights:
    def test_switched_off_adapters_are_a_frozen_copy(self):
        lm, frozen = adapted(), tiny_lm()
        trained = TrainedWeights(lm)
        reference = reference_of(trained)
        gradients = []
        for other in (reference, frozen):
            loss = lm.logprobs(*question(lm))[0]
            before = other.logprobs(*question(lm))[0].detach()
            torch.testing.assert_close(before, likelihoods(frozen), atol=1e-5, rtol=1e-5)
            trained.zero_grad()
            ((before - loss) ** 2).sum().backward()  # adapters were off and on again in between
            gradients.append([w.grad.clone() for w in lm.parameters() if w.requires_grad])
        assert len(gradients[0]) == 28
        for one, two in zip(*gradients, strict=True):
            torch.testing.assert_close(one, two, atol=1e-4, rtol=1e-4)
        assert list(reference.parameters()) == []

    @pytest.mark.parametrize("again", [False, True], ids=["plain", "activations computed again"])
    @pytest.mark.parametrize("rows", [1, 3])
    def test_passes_of_a_few_rows_change_nothing(self, rows, again):
        found = []
        for size in (None, rows):
            trained = TrainedWeights(adapted(gradient_checkpointing=again), rows_per_pass=size)
            logprobs, entropies = trained.logprobs(*question(trained.lm), with_entropies=True)
            (logprobs.sum() + 0.1 * entropies.sum()).backward()
            gradients = [w.grad for w in trained.parameters() if w.requires_grad]
            found.append([logprobs.detach(), entropies.detach(), *gradients])
            assert not trained.lm.net.training
        for one, two in zip(*found, strict=True):
            torch.testing.assert_close(one, two, atol=1e-3, rtol=1e-3)
        assert trained.logprobs(*question(trained.lm))[1] is None

    def test_checkpoints_hold_adapters_only(self):
        one, two = TrainedWeights(adapted()), TrainedWeights(adapted(seed=9, moved=False))
        kept = {name: weight.clone() for name, weight in one.state_dict().items()}
        assert len(kept) == 28
        two.load_state_dict(kept)
        torch.testing.assert_close(likelihoods(two.lm), likelihoods(one.lm), atol=0, rtol=0)
        name = next(iter(kept))
        for wrong in ({**kept, "more": torch.ones(1)}, {**kept, name: torch.ones(1)}):
            with pytest.raises(ValueError, match="other weights"):
                two.load_state_dict(wrong)

    def test_it_never_trains_with_dropout(self):
        assert not any(module.training for module in TrainedWeights(adapted()).train().modules())

    def test_what_it_cannot_be_made_of(self):
        frozen = tiny_lm()
        assert reference_of(TrainedWeights(frozen)) is None  # all weights are trained: copy them
        with pytest.raises(ValueError, match="no adapters"):
            BeforeTraining(TrainedWeights(frozen))
        mixed = adapted()
        mixed.net.get_input_embeddings().weight.requires_grad_(True)
        with pytest.raises(ValueError, match="frozen copy"):
            reference_of(TrainedWeights(mixed))
        with pytest.raises(ValueError, match="no weight"):
            TrainedWeights(frozen.requires_grad_(False))
        with pytest.raises(ValueError, match="rows_per_pass is 0"):
            TrainedWeights(adapted(), rows_per_pass=0)
