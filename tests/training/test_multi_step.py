"""Training of multi-step frame models at toy size: tokens, likelihood, gates, GRPO's three callables."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from tests.training.tiny_frames import BINS, tiny_model
from tests.training.toy_frames import STEPS, toy_store
from training.data import to_float
from training.fit import FitConfig
from training.frame_data import FrameData
from training.grpo_config import GRPOConfig
from training.grpo_task import train_task
from training.multi_step import (
    FrameTokens,
    MultiStepRecipe,
    frame_nll,
    multi_step_gates,
    tokenise_frames,
    train_multi_step,
)
from training.multi_step_rlvr import (
    MultiStepRLVRRecipe,
    MultiStepTask,
    Window,
    windows_of,
)
from training.rewards.frames import FrameRewardConfig
from training.run import Run
from worldmodels.api import History
from worldmodels.nets import bfloat16
from worldmodels.video.multi_step_world import MultiStepWorldModel

REWARD = FrameRewardConfig(lpips=0.0)


@pytest.fixture(scope="module")
def model() -> MultiStepWorldModel:
    return tiny_model()


@pytest.fixture(scope="module")
def data(tmp_path_factory, model) -> tuple[FrameData, FrameTokens]:
    store = toy_store(tmp_path_factory.mktemp("toy"))
    frames = FrameData.load(store, "train")
    return frames, tokenise_frames(model.tokenizer, BINS, frames)


def task_of(model: MultiStepWorldModel, data, recipe: MultiStepRLVRRecipe) -> MultiStepTask:
    return MultiStepTask(model.tokenizer, model.layout, data[0], data[1], recipe, None)


def test_tokens_are_those_of_the_world_model(model, data, tmp_path):
    frames, tokens = data
    pixels = frames.pixels(np.array([[2]]), np.array([[0, 5]]))[0]
    context, frame = model.encode([pixels[0]], [pixels[1]])
    assert torch.equal(context[0], tokens.context[2])
    assert torch.equal(frame[0], tokens.frames[2, 5])
    np.testing.assert_array_equal(tokens.actions, BINS.encode(frames.actions))
    first = tokenise_frames(model.tokenizer, BINS, frames, cache=tmp_path)
    (kept,) = tmp_path.iterdir()
    stamp = kept.stat().st_mtime_ns
    again = tokenise_frames(model.tokenizer, BINS, frames, cache=tmp_path)
    assert kept.stat().st_mtime_ns == stamp
    for name in ("context", "frames", "actions"):
        assert torch.equal(getattr(first, name), getattr(tokens, name))
        assert torch.equal(getattr(again, name), getattr(tokens, name))


def test_windows_repeat_the_last_action_only_where_there_is_none(model, data):
    _, tokens = data
    _, frames, actions = tokens.window(torch.tensor([1, 1]), torch.tensor([0, STEPS - 3]), 4)
    assert torch.equal(frames[1], tokens.frames[1, STEPS - 3 :])
    assert torch.equal(actions[0], tokens.actions[1, :4])
    assert torch.equal(actions[1, :3], tokens.actions[1, STEPS - 3 :])
    assert torch.equal(actions[1, 3], tokens.actions[1, STEPS - 1])
    # Nothing is predicted after the last action, so it cannot matter.
    changed = actions.clone()
    changed[:, -1] = 0
    window = (tokens.context[[1, 1]][:, None], frames)
    with torch.no_grad():
        losses = [frame_nll(model.llama, model.layout, (*window, a)) for a in (actions, changed)]
    torch.testing.assert_close(losses[0], losses[1], atol=1e-6, rtol=0)


def test_windows_of_one_episode_share_their_context(model, data):
    _, tokens = data
    starts = torch.tensor([0, 2, 1, 1])
    together = tokens.window(torch.tensor([1, 4]), starts, 4)
    apart = tokens.window(torch.tensor([1, 1, 4, 4]), starts, 4)
    assert [len(part) for part in together] == [2, 4, 4]
    assert torch.equal(together[1], apart[1])
    with torch.no_grad():
        losses = [frame_nll(model.llama, model.layout, window) for window in (together, apart)]
    torch.testing.assert_close(losses[0], losses[1], atol=1e-5, rtol=1e-5)
    with pytest.raises(ValueError, match="6 windows cannot be 4 of each episode"):
        MultiStepRecipe(batch=6, windows_per_episode=4)


def test_likelihood_of_samples_is_what_the_sampler_says(model, data):
    task = task_of(model, data, MultiStepRLVRRecipe(reward=REWARD))
    asked = [Window(0, 0), Window(3, 2)]
    with torch.no_grad():
        rollout = task.sample(model.llama, asked, group_size=3, seeds=range(6), temperature=1.0)
        recomputed = task.logprobs(model.llama, asked, rollout, temperature=1.0)
    assert rollout.tokens.shape == (6, 3 * model.layout.dynamic_tokens)
    torch.testing.assert_close(recomputed, rollout.logprobs, atol=1e-4, rtol=1e-4)


def test_decoded_futures_equal_the_world_models(model, data):
    """The same ids through training's decoder and through the environment's."""
    task = task_of(model, data, MultiStepRLVRRecipe(reward=REWARD, decode_rows=4))
    asked = [Window(0, 0), Window(3, 2)]
    rollout = task.sample(model.llama, asked, group_size=2, seeds=range(4), temperature=0.0)
    decoded = task.decode(asked, rollout.tokens)
    for row, question in enumerate(asked):
        pixels = data[0].pixels(np.array([question.episode] * 2), np.array([0, question.start]))
        state = model.start([History(observations=list(pixels), actions=[np.zeros(13)])], seeds=[0])
        for step in range(task.horizon):
            action = data[0].actions[question.episode, question.start + step]
            state, predictions = model.step(state, action[None], temperature=0.0)
            first = rollout.tokens.unflatten(1, (task.horizon, -1))[2 * row, step]
            assert torch.equal(predictions.tokens[0], first)
            ours = (decoded[2 * row, step] * 255).round()
            theirs = to_float(predictions.observations())[0] * 255
            assert (ours - theirs).abs().max() <= 1


def test_frames_decoded_in_bfloat16_are_nearly_the_same(model, data, monkeypatch):
    monkeypatch.setattr(bfloat16, "has_bfloat16", lambda device: True)  # slow without, but computed alike
    asked = [Window(0, 0), Window(3, 2)]
    recipes = [MultiStepRLVRRecipe(reward=REWARD, decode_autocast=half) for half in (False, True)]
    exact, rounded = (task_of(model, data, recipe) for recipe in recipes)
    rollout = exact.sample(model.llama, asked, group_size=2, seeds=range(4), temperature=1.0)
    frames = exact.decode(asked, rollout.tokens)
    other = rounded.decode(asked, rollout.tokens)
    assert other.dtype == torch.float32
    assert 0 < (frames - other).abs().max() < 0.02


def test_the_reward_prefers_the_recorded_future(model, data):
    task = task_of(model, data, MultiStepRLVRRecipe(reward=REWARD))
    asked = [Window(1, 1)]
    rollout = task.sample(model.llama, asked, group_size=2, seeds=[0, 1], temperature=1.0)
    rewards, parts = task.score(asked, rollout)
    errors = (task.decode(asked, rollout.tokens) - task.targets(asked)).abs().mean((2, 3, 4))
    torch.testing.assert_close(rewards, -errors, atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(parts["mae"], errors.mean(1), atol=1e-6, rtol=1e-5)


def test_maximum_likelihood_learns_to_listen_to_actions(tmp_path, data):
    model = tiny_model(seed=1)
    frames, _ = data
    tokens = tokenise_frames(model.tokenizer, BINS, frames)
    recipe = MultiStepRecipe(
        fit=FitConfig(steps=60, learning_rate=5e-3, warmup_steps=5, evaluate_every=60),
        batch=16,
        windows_per_episode=2,
    )
    before = multi_step_gates(model.llama, model.layout, tokens)
    run = Run(tmp_path / "run", recipe, 0)
    train_multi_step(run, model.llama, model.layout, tokens, tokens, recipe, seed=0)
    after = multi_step_gates(model.llama, model.layout, tokens)
    assert after["nll"] < 0.7 * before["nll"]
    assert 0 <= after["kept_ids"] <= 1
    assert run.metrics()[-1]["validation/nll"] == pytest.approx(after["nll"], rel=1e-4)


def test_grpo_runs_resumes_exactly_and_reports(tmp_path, data):
    recipe = MultiStepRLVRRecipe(
        grpo=GRPOConfig(
            group_size=3,
            prompts_per_step=4,
            minibatches=2,
            steps=4,
            eval_every=4,
            checkpoint_every=2,
            learning_rate=1e-3,
        ),
        reward=dataclasses.replace(REWARD, repetition=0.1),
        validation_windows=4,
    )

    def trained(folder, **kwargs):
        model = tiny_model()
        task = task_of(model, data, kwargs.pop("recipe", recipe))
        run = Run(folder, recipe, 0, **kwargs)
        train_task(run, model.llama, task, task, task.recipe.grpo, seed=0)
        return model.llama.state_dict(), run.metrics()

    whole, lines = trained(tmp_path / "whole")
    assert {"eval/sampled_mae", "eval/greedy_repeated", "eval/nll", "reward/repetition"} <= set(lines[-1])
    short = dataclasses.replace(recipe, grpo=dataclasses.replace(recipe.grpo, steps=2))
    trained(tmp_path / "parts", recipe=short)
    resumed, _ = trained(tmp_path / "parts", resume=True)
    for name, value in whole.items():
        assert torch.equal(value, resumed[name]), name
    fresh = tiny_model().llama.state_dict()
    assert not all(torch.equal(value, fresh[name]) for name, value in whole.items())


def test_questions_cover_the_split(model, data):
    found = windows_of(data[1], model.layout)
    assert len(found) == len(data[0]) * (STEPS - 2)
    assert found[-1] == Window(len(data[0]) - 1, STEPS - 3)
