"""Training of single-step frame models at toy size."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.training.tiny_frames import BINS
from tests.training.toy_frames import STEPS, toy_store
from training.fit import FitConfig
from training.frame_data import FrameData
from training.grpo_config import GRPOConfig
from training.grpo_task import train_task
from training.multi_step import MultiStepRecipe
from training.multi_step_rlvr import MultiStepRLVRRecipe, Window
from training.rewards.frames import FrameRewardConfig
from training.run import Run
from training.single_step import (
    SingleStepTask,
    SingleStepTokens,
    single_step_gates,
    tokenise_single,
    train_single_step,
)
from worldmodels.api import History
from worldmodels.nets.llama import Llama, LlamaConfig
from worldmodels.video.frame_tokenizer import FrameTokenizer, FrameTokenizerConfig
from worldmodels.video.layouts import SingleStepLayout
from worldmodels.video.single_step_world import SingleStepWorldModel

LAYOUT = SingleStepLayout(visual_tokens=8, history=3, visual_vocab=20, action_bins=BINS.num_bins)
RECIPE = MultiStepRLVRRecipe(
    grpo=GRPOConfig(
        group_size=3, prompts_per_step=2, minibatches=1, steps=2, eval_every=2, checkpoint_every=1
    ),
    reward=FrameRewardConfig(lpips=0.0),
    validation_windows=4,
    decode_rows=4,
)


@pytest.fixture(scope="module")
def tokenizer() -> FrameTokenizer:
    sizes = FrameTokenizerConfig(
        block_out_channels=(8, 8, 8, 8),
        layers_per_block=1,
        latent_channels=8,
        norm_num_groups=4,
        fsq_levels=(5, 4),
    )
    return FrameTokenizer(sizes).eval()


@pytest.fixture(scope="module")
def data(tmp_path_factory, tokenizer) -> tuple[FrameData, SingleStepTokens]:
    frames = FrameData.load(toy_store(tmp_path_factory.mktemp("toy")), "train")
    return frames, tokenise_single(tokenizer, BINS, frames)


def tiny_llama(seed: int = 0) -> Llama:
    config = LlamaConfig(
        vocab_size=LAYOUT.vocab_size,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=LAYOUT.response.stop,
        initializer_range=0.2,
    )
    return Llama(config, seed=seed)


def test_likelihood_of_samples_is_what_the_sampler_says(tokenizer, data):
    llama = tiny_llama()
    task = SingleStepTask(tokenizer, LAYOUT, *data, RECIPE, None)
    assert len(task.questions) == len(data[0]) * (STEPS + 1 - LAYOUT.history)
    asked = [Window(0, 0), task.questions[-1]]
    with torch.no_grad():
        rollout = task.sample(llama, asked, group_size=2, seeds=range(4), temperature=1.0)
        recomputed = task.logprobs(llama, asked, rollout, temperature=1.0)
    torch.testing.assert_close(recomputed, rollout.logprobs, atol=1e-4, rtol=1e-4)


def test_greedy_answers_and_rewards_are_those_of_the_world_model(tokenizer, data):
    llama = tiny_llama()
    task = SingleStepTask(tokenizer, LAYOUT, *data, RECIPE, None)
    model = SingleStepWorldModel(tokenizer, llama, LAYOUT, BINS, image_size=(16, 32))
    question = Window(2, 4)
    rollout = task.sample(llama, [question], group_size=1, seeds=[0], temperature=0.0)
    times = np.arange(4, 4 + LAYOUT.history)
    seen = list(data[0].pixels(np.full_like(times, 2), times))
    actions = data[0].actions[2]
    state = model.start([History(observations=seen, actions=list(actions[times[:-1]]))], seeds=[0])
    _, predictions = model.step(state, actions[times[-1]][None], temperature=0.0)
    assert torch.equal(predictions.tokens, rollout.tokens)
    rewards, _ = task.score([question], rollout)
    target = data[0].pixels(np.array([2]), np.array([4 + LAYOUT.history]))
    error = np.abs(predictions.observations().astype(float) - target).mean() / 255
    assert float(rewards[0]) == pytest.approx(-error, abs=3e-3)  # the environment rounds to 8 bits


def test_maximum_likelihood_and_grpo_run(tmp_path, tokenizer, data):
    llama = tiny_llama(seed=1)
    recipe = MultiStepRecipe(
        fit=FitConfig(steps=40, learning_rate=5e-3, warmup_steps=5, evaluate_every=40), batch=16
    )
    before = single_step_gates(llama, LAYOUT, data[1])
    train_single_step(Run(tmp_path / "mle", recipe, 0), llama, LAYOUT, data[1], data[1], recipe, seed=0)
    after = single_step_gates(llama, LAYOUT, data[1])
    assert after["nll"] < 0.7 * before["nll"]
    task = SingleStepTask(tokenizer, LAYOUT, *data, RECIPE, None)
    run = Run(tmp_path / "rlvr", RECIPE, 0)
    start = {name: value.clone() for name, value in llama.state_dict().items()}
    train_task(run, llama, task, task, RECIPE.grpo, seed=0)
    assert {"eval/sampled_mae", "eval/greedy_reward", "eval/nll", "reward_mean"} <= set(run.metrics()[-1])
    assert any(not torch.equal(value, start[name]) for name, value in llama.state_dict().items())
