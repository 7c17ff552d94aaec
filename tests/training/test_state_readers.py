import dataclasses

import numpy as np
import pytest
import torch

from tests.training.toy_frames import toy_store
from training.fit import FitConfig
from training.frame_data import FrameData
from training.run import Run
from training.state_readers import (
    StateReaderRecipe,
    state_reader_errors,
    train_state_reader,
    worsened,
)
from worldmodels.checkpoints import load_state_reader, save
from worldmodels.video.state_reader import StateReader, StateReaderConfig

RECIPE = StateReaderRecipe(
    fit=FitConfig(steps=200, learning_rate=3e-3, warmup_steps=10, evaluate_every=200), batch=24
)


def states(data: FrameData) -> np.ndarray:
    assert data.states is not None
    return data.states


def shifts(data: FrameData) -> np.ndarray:
    return np.diff(states(data), axis=1)


@pytest.mark.parametrize(("labels", "frames", "worst"), [(states, 1, 1.5), (shifts, 2, 1.0)])
def test_learns_to_read_states_and_actions(tmp_path, labels, frames, worst):
    store = toy_store(tmp_path / "data")
    train, validation = FrameData.load(store, "train"), FrameData.load(store, "validation")
    reader = train_state_reader(
        Run(tmp_path / "run", RECIPE, 0), train, validation, labels, ("x",), RECIPE, frames=frames, seed=0
    )
    error = state_reader_errors(reader, validation, labels, cases=30)["x"]
    guess = float(np.abs(labels(validation) - labels(train).mean()).mean())
    assert error < worst < guess
    config = {"kind": "state_reader", "reader": dataclasses.asdict(reader.config)}
    save(tmp_path / "model", reader, config, card="", dtype=torch.float32)
    again = load_state_reader(tmp_path / "model")
    assert state_reader_errors(again, validation, labels, cases=30) == {"x": error}


def test_refuses_frames_that_do_not_fit():
    with pytest.raises(ValueError, match="2 names, 1 centres"):
        StateReaderConfig(names=("a", "b"), centre=(0.0,), scale=(1.0,))
    reader = StateReader(StateReaderConfig(names=("a",), centre=(0.0,), scale=(1.0,), side=32))
    with pytest.raises(ValueError, match="48x32 px"):
        reader(torch.zeros(1, 3, 48, 32))


def test_worsened_frames_keep_their_light_and_lose_their_edges():
    edge = torch.zeros(4, 2, 3, 16, 16)
    edge[..., 8:] = 1.0
    recipe = dataclasses.replace(RECIPE, blur_px=1.5)
    blurred = worsened(edge, recipe, np.random.default_rng(0))
    assert blurred.shape == edge.shape
    torch.testing.assert_close(blurred.mean((1, 2, 3, 4)), edge.mean((1, 2, 3, 4)), atol=1e-5, rtol=0)
    torch.testing.assert_close(blurred[:, 0], blurred[:, 1])  # both frames of a case alike
    steepest = blurred.diff(dim=-1).amax((1, 2, 3, 4))
    assert steepest.min() < 0.6
    assert len(set(steepest.tolist())) >= 3  # each case has a blur of its own, some next to none
    rough = worsened(edge, dataclasses.replace(RECIPE, noise=0.1), np.random.default_rng(0))
    assert 0 < (rough - edge).abs().mean() < 0.1
    assert 0 <= rough.min() <= rough.max() <= 1
    assert torch.equal(worsened(edge, RECIPE, np.random.default_rng(0)), edge)
