"""GRPO on decoded frames, at toy size: sampled log-probabilities are the trained ones, scores see frames, it
runs.
"""

import dataclasses

import pytest
import torch

from tests.training.tiny_pusht import tiny_data, tiny_model
from training.fit import FitConfig
from training.grpo_config import GRPOConfig
from training.grpo_task import train_task
from training.mle import MLERecipe, gates, tokenise, train_mle
from training.pusht_rlvr import FrameTask, RLVRRecipe, questions
from training.rewards.frames import FrameRewardConfig
from training.run import Run

RECIPE = RLVRRecipe(
    grpo=GRPOConfig(
        group_size=4, prompts_per_step=4, minibatches=2, learning_rate=1e-4, steps=2, eval_every=2
    ),
    reward=FrameRewardConfig(mae=1.0, lpips=0.0, proprio=1.0, proprio_scale=(100.0,) * 4),
    horizon=2,
    validation_windows=8,
)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return tiny_data(tmp_path_factory.mktemp("store"), episodes=12)


@pytest.fixture
def task(data):
    model = tiny_model(seed=0)
    tokens = tokenise(model.tokenizer, model.dynamics.layout, data)
    return FrameTask(model, data, tokens, RECIPE, perceptual=None)


def sample(task, prompts, group=4):
    seeds = range(len(prompts) * group)
    return task.sample(task.model.dynamics, prompts, group_size=group, seeds=seeds, temperature=1.0)


def test_recomputed_logprobs_equal_the_sampled_ones(task):
    prompts = task.questions[:3]
    rollout = sample(task, prompts)
    with torch.no_grad():
        again = task.logprobs(task.model.dynamics, prompts, rollout, temperature=1.0)
    assert torch.allclose(again, rollout.logprobs, atol=1e-3)


def test_the_truth_scores_best(task):
    prompts = task.questions[:3]
    rollout = sample(task, prompts)
    rewards, parts = task.score(prompts, rollout)
    assert set(parts) == {"mae", "proprio"}
    rows, times = task._window(prompts)
    true_tokens = task.tokens.tokens[rows, times[:, 3:]].flatten(1)
    truth = dataclasses.replace(rollout, tokens=true_tokens.repeat_interleave(4, 0))
    best, best_parts = task.score(prompts, truth)
    assert best_parts["proprio"].max() < 1e-3
    assert (best >= rewards).float().mean() > 0.9


def test_equal_answers_get_equal_rewards(task):
    prompts = task.questions[:2]
    rollout = sample(task, prompts)
    same = dataclasses.replace(rollout, tokens=rollout.tokens[::4].repeat_interleave(4, 0))
    rewards, _ = task.score(prompts, same)
    assert rewards.view(2, 4, -1).std(dim=1).max() == 0


def test_questions_leave_room_for_history_and_horizon(task):
    asked = questions(task.tokens, history=3, horizon=2)
    frames = task.tokens.tokens.shape[1]
    assert {q.time for q in asked} == set(range(3, frames - 1))


def test_two_steps_change_the_weights_and_log_validation(task, tmp_path):
    before = {name: value.clone() for name, value in task.model.dynamics.state_dict().items()}
    run = Run(tmp_path / "run", RECIPE, 0)
    train_task(run, task.model.dynamics, task, task, RECIPE.grpo, seed=0)
    assert any(not torch.equal(before[k], v) for k, v in task.model.dynamics.state_dict().items())
    last = run.metrics()[-1]
    assert last["logprob_gap"] < 0.1
    assert {"eval/sampled_reward", "eval/greedy_moved_px", "eval/nll_code_nll"} <= set(last)


def test_mle_learns_and_uses_the_actions(task, tmp_path):
    recipe = MLERecipe(
        fit=FitConfig(steps=60, learning_rate=3e-3, warmup_steps=5, evaluate_every=60), batch=8
    )
    first = gates(task.model.dynamics, task.tokens, window_frames=8)
    train_mle(Run(tmp_path / "run", recipe, 0), task.model.dynamics, task.tokens, task.tokens, recipe, seed=0)
    after = gates(task.model.dynamics.eval(), task.tokens, window_frames=8)
    assert after["proprio_nll"] < first["proprio_nll"] - 0.5
    assert after["shuffled_proprio_nll"] > after["proprio_nll"]


def test_codes_are_kept_on_disk(data, tmp_path):
    model = tiny_model(seed=0)
    first = tokenise(model.tokenizer, model.dynamics.layout, data, cache=tmp_path)
    (kept,) = tmp_path.glob("codes-*.safetensors")
    stamp = kept.stat().st_mtime_ns
    again = tokenise(model.tokenizer, model.dynamics.layout, data, cache=tmp_path)
    assert torch.equal(first.tokens, again.tokens)
    assert kept.stat().st_mtime_ns == stamp
    other = tiny_model(seed=0, tokenizer_seed=1)
    tokenise(other.tokenizer, other.dynamics.layout, data, cache=tmp_path)
    assert len(list(tmp_path.glob("codes-*.safetensors"))) == 2


def test_a_horizon_beyond_the_window_is_refused(task, data):
    recipe = dataclasses.replace(RECIPE, horizon=6)
    with pytest.raises(ValueError, match="window of 8 frames"):
        FrameTask(task.model, data, task.tokens, recipe, perceptual=None)
