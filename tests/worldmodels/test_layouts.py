from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from worldmodels.video.layouts import IGNORED, MultiStepLayout, SingleStepLayout


@pytest.fixture
def golden(conformance) -> dict[str, torch.Tensor]:
    with np.load(conformance("video/processor.npz")) as data:
        return {k: torch.from_numpy(v) for k, v in data.items()}


@pytest.mark.parametrize(("prefix", "predicted"), [("simple_", 1), ("simple_multi2_", 2)])
def test_single_step_equals_the_reference(golden, prefix, predicted):
    layout = SingleStepLayout(predicted=predicted)
    visual, bins = golden[prefix + "visual_tokens"], golden[prefix + "action_tokens"]
    before = visual.clone()
    sequences = layout.build(visual, bins[:, :4])
    assert torch.equal(sequences.input_ids, golden[prefix + "input_ids"])
    assert torch.equal(sequences.labels, golden[prefix + "labels"])
    assert torch.equal(visual, before)
    # The decoder counts positions itself and sees everything, which is what the reference asks for.
    assert (golden[prefix + "attention_mask"] == 1).all()
    assert (golden[prefix + "position_ids"] == torch.arange(sequences.input_ids.shape[1])).all()
    assert (layout.bos, layout.eos, layout.vocab_size) == (4631, 4632, 4633)
    assert layout.prompt == slice(0, 1333)
    assert layout.response == slice(1333, 1333 + 321 * predicted)
    response = sequences.input_ids[:, layout.response]
    assert torch.equal(layout.frames(response), visual[:, 4:].flatten(2).long())


def test_multi_step_equals_the_reference(golden):
    layout = MultiStepLayout()
    context, dynamic = golden["ctx_msp_ctx_tokens_raw"], golden["ctx_msp_dyn_tokens"]
    before = context.clone()
    sequences = layout.build(context, dynamic, golden["ctx_msp_action_ids"] - layout.action_offset)
    assert torch.equal(sequences.input_ids, golden["ctx_msp_input_ids"])
    assert torch.equal(sequences.labels, golden["ctx_msp_labels"])
    assert torch.equal(context, before)
    assert (golden["ctx_msp_position_ids"] == torch.arange(2024)).all()
    assert (layout.vocab_size, layout.prompt, layout.response) == (9008, slice(0, 1373), slice(1373, 2024))
    assert torch.equal(layout.frames(sequences.input_ids[:, layout.response]), dynamic[:, 1:].long())


def test_frames_of_generated_responses(conformance):
    with np.load(conformance("video/reward.npz")) as data:
        for prefix, layout in (("msp", MultiStepLayout()), ("ss", SingleStepLayout())):
            frames = layout.frames(torch.from_numpy(data[f"{prefix}_responses"])).clamp(0, 4374)
            expected = torch.from_numpy(data[f"{prefix}_decoded_tokens"])
            assert torch.equal(frames.flatten(1).long(), expected.flatten(1).long())


def test_other_sizes():
    single = SingleStepLayout(
        visual_tokens=2, action_dim=1, history=2, predicted=1, visual_vocab=10, action_bins=4
    )
    sequences = single.build(torch.arange(6).view(1, 3, 2), torch.tensor([[[0], [3]]]))
    assert sequences.input_ids.tolist() == [[0, 1, 10, 2, 3, 13, 14, 4, 5, 15]]
    assert sequences.labels.tolist() == [[IGNORED] * 6 + [14, 4, 5, 15]]
    multi = MultiStepLayout(
        context_tokens=2,
        dynamic_tokens=1,
        action_dim=1,
        num_frames=2,
        dynamic_vocab=10,
        context_vocab=5,
        action_bins=4,
    )
    sequences = multi.build(torch.tensor([[[3, 4]]]), torch.tensor([[[7], [8]]]), torch.tensor([[[0], [3]]]))
    assert sequences.input_ids.tolist() == [[13, 14, 7, 15, 8, 18]]
    assert sequences.labels.tolist() == [[IGNORED] * 4 + [8, IGNORED]]


def test_bad_input():
    layout = SingleStepLayout(visual_tokens=2, action_dim=1, history=1, visual_vocab=10, action_bins=4)
    visual, actions = torch.zeros(1, 2, 2, dtype=torch.int64), torch.zeros(1, 1, 1, dtype=torch.int64)
    layout.build(visual, actions)
    with pytest.raises(ValueError, match=r"\(B, 2, 2\)"):
        layout.build(visual[:, :1], actions)
    with pytest.raises(ValueError, match=r"\[0, 4\).*4\.\.4"):
        layout.build(visual, actions + 4)
    with pytest.raises(ValueError, match="integers"):
        layout.build(visual, actions.float())
    with pytest.raises(ValueError, match="integers"):
        MultiStepLayout().build(torch.zeros(1, 1, 1280), torch.zeros(1, 8, 80), torch.zeros(1, 8, 13))
    with pytest.raises(dataclasses.FrozenInstanceError):
        layout.history = 3  # type: ignore[misc]
