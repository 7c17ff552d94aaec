import dataclasses
import signal

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from training.grpo import (
    entropy,
    group_advantages,
    kl_k3,
    policy_loss,
    returns_to_go,
    token_logprobs,
    token_mean,
)
from training.grpo_config import GRPOConfig
from training.grpo_loop import GRPOTrainer, Rollout
from training.run import Run, RunInterrupted
from worldmodels.sampling import sample, uniforms


@pytest.fixture(params=["case0", "case1", "case2"])
def golden(request, conformance) -> dict[str, torch.Tensor]:
    arrays = np.load(conformance("language/grpo.npz"))
    prefix = request.param + "/"
    return {
        name[len(prefix) :]: torch.from_numpy(arrays[name])
        for name in arrays.files
        if name.startswith(prefix)
    }


def test_golden_advantages_include_the_group_of_one(golden):
    advantages = group_advantages(golden["token_level_rewards"].sum(1), group_index=golden["group_index"])
    torch.testing.assert_close(
        advantages[:, None] * golden["mask"], golden["grpo_advantages"], atol=1e-5, rtol=1e-5
    )


@pytest.mark.parametrize("clip", [0.2, 0.1])
def test_golden_policy_loss_and_gradient(golden, clip):
    logprobs = golden["log_prob"].clone().requires_grad_()
    result = policy_loss(
        logprobs, golden["old_log_prob"], golden["grpo_advantages"], golden["mask"], clip=clip
    )
    result.loss.backward()
    torch.testing.assert_close(result.loss.detach(), golden[f"pg_loss_clip{clip}"], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(result.clip_fraction, golden[f"pg_clipfrac_clip{clip}"], atol=1e-6, rtol=0)
    torch.testing.assert_close(result.approximate_kl, golden[f"ppo_kl_clip{clip}"], atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(logprobs.grad, golden[f"pg_grad_logprob_clip{clip}"], atol=1e-6, rtol=1e-5)


def test_golden_kl_and_gradient(golden):
    logprobs = golden["log_prob"].clone().requires_grad_()
    values = kl_k3(logprobs, golden["ref_log_prob"])
    mean = token_mean(values, golden["mask"])
    mean.backward()
    torch.testing.assert_close(values.detach(), golden["kl_low_var_kl_token"], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(mean.detach(), golden["kl_low_var_kl_masked_mean"], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(logprobs.grad, golden["kl_low_var_kl_grad_logprob"], atol=1e-5, rtol=1e-5)


def test_golden_entropy_log_probabilities_and_total_loss(golden):
    mask, spread = golden["mask"], entropy(golden["logits"])
    torch.testing.assert_close(spread, golden["entropy_token"], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(token_mean(spread, mask), golden["entropy_masked_mean"], atol=1e-5, rtol=1e-5)
    chosen = token_logprobs(golden["logits"], golden["labels"])
    torch.testing.assert_close(chosen, golden["logprobs_from_logits"], atol=1e-5, rtol=1e-5)
    policy = policy_loss(golden["log_prob"], golden["old_log_prob"], golden["grpo_advantages"], mask)
    total = policy.loss + 1e-3 * token_mean(kl_k3(golden["log_prob"], golden["ref_log_prob"]), mask)
    torch.testing.assert_close(total, golden["total_loss_klcoef0.001_entropy0"], atol=1e-5, rtol=1e-5)
    with_bonus = total - 1e-3 * token_mean(spread, mask)
    torch.testing.assert_close(
        with_bonus, golden["total_loss_klcoef0.001_entropy0.001"], atol=1e-5, rtol=1e-5
    )


def test_equal_rewards_that_the_published_code_gets_wrong_give_exact_zeros(conformance):
    arrays = np.load(conformance("language/grpo.npz"))
    rewards = torch.from_numpy(arrays["identical/token_level_rewards"]).sum(1)
    index = torch.from_numpy(arrays["identical/group_index"])
    assert np.abs(arrays["identical/grpo_advantages"]).max() > 0.1
    assert (group_advantages(rewards, group_index=index) == 0).all()


rewards_lists = st.lists(st.floats(-100, 100, width=32), min_size=2, max_size=12)


@settings(deadline=None)
@given(rewards_lists, st.floats(-100, 100), st.floats(0.5, 100))
def test_advantages_sum_to_zero_and_ignore_shift_and_scale(rewards, shift, scale):
    values = torch.tensor(rewards, dtype=torch.float64)
    advantages = group_advantages(values, group_size=len(rewards))
    assert abs(float(advantages.sum())) < 1e-6
    if float(values.std()) > 1:  # where the 1e-6 does not matter
        moved = group_advantages(values * scale + shift, group_size=len(rewards))
        torch.testing.assert_close(moved, advantages, atol=1e-4, rtol=1e-4)
        order = values.argsort()
        assert (advantages[order].diff() >= 0).all()


@settings(deadline=None)
@given(st.floats(-1e6, 1e6, width=32), st.integers(2, 16))
def test_equal_rewards_always_give_exact_zeros(reward, size):
    assert (group_advantages(torch.full((size,), reward), group_size=size) == 0).all()


@settings(deadline=None)
@given(st.lists(rewards_lists, min_size=1, max_size=4), st.randoms(use_true_random=False))
def test_groups_do_not_see_each_other(groups, random):
    index = torch.tensor([g for g, group in enumerate(groups) for _ in group])
    rewards = torch.tensor([reward for group in groups for reward in group])
    order = list(range(len(rewards)))
    random.shuffle(order)
    together = group_advantages(rewards[order], group_index=index[order])
    alone = torch.cat([group_advantages(torch.tensor(group), group_size=len(group)) for group in groups])
    torch.testing.assert_close(together, alone[order])


@settings(deadline=None)
@given(st.integers(0, 2**32), st.floats(0.05, 0.5))
def test_policy_loss_is_plain_policy_gradient_on_policy_and_flat_when_clipped(seed, clip):
    generator = torch.Generator().manual_seed(seed)
    old, advantages = torch.randn(3, 4, generator=generator), torch.randn(3, generator=generator)
    mask = torch.rand(3, 4, generator=generator) < 0.7
    logprobs = old.clone().requires_grad_()
    policy_loss(logprobs, old, advantages, mask, clip=clip).loss.backward()
    expected = -advantages[:, None] * mask / mask.sum().clamp(min=1)
    torch.testing.assert_close(logprobs.grad, expected)
    beyond = (
        old + advantages.sign()[:, None] * 1.0
    ).requires_grad_()  # already moved the way the reward asks
    policy_loss(beyond, old, advantages, mask, clip=clip).loss.backward()
    assert (beyond.grad == 0).all()


@settings(deadline=None)
@given(st.floats(-15, 0), st.floats(-15, 0))
def test_kl_is_not_negative_and_zero_on_the_diagonal(a, b):
    first, second = torch.tensor([[a]]), torch.tensor([[b]])
    assert 0 <= float(kl_k3(first, second)) + 1e-6 <= 10 + 1e-5
    assert float(kl_k3(first, first)) == 0


def test_masked_tokens_never_count_even_if_they_are_nan():
    logprobs = torch.tensor([[-1.0, float("nan")]], requires_grad=True)
    result = policy_loss(logprobs, torch.tensor([[-1.0, 0.0]]), torch.tensor([2.0]), torch.tensor([[1, 0]]))
    result.loss.backward()
    assert float(result.loss.detach()) == -2.0
    assert logprobs.grad.tolist() == [[-2.0, 0.0]]


def test_bad_arguments_are_named():
    with pytest.raises(ValueError, match="sample 1 is nan"):
        group_advantages(torch.tensor([1.0, float("nan")]), group_size=2)
    with pytest.raises(ValueError, match="groups of 2"):
        group_advantages(torch.zeros(3), group_size=2)
    with pytest.raises(ValueError, match="either"):
        group_advantages(torch.zeros(3))
    with pytest.raises(ValueError, match=r"\(R, N\)"):
        policy_loss(torch.zeros(2, 3), torch.zeros(2, 3), torch.zeros(2), torch.zeros(2, 2))
    for settings_, message in [
        ({"group_size": 1}, "group of one"),
        ({"minibatches": 3, "prompts_per_step": 4}, "multiple of minibatches"),
        ({"learning_rate": 0.0}, "learning_rate"),
        ({"kl_coefficient": -1.0}, "kl_coefficient"),
        ({"microbatch_prompts": 0}, "microbatch_prompts"),
    ]:
        with pytest.raises(ValueError, match=message):
            GRPOConfig(**settings_)


# The loop, on a toy whose answer to prompt k is a row of tokens, drawn from one table of logits per prompt.
PROMPTS, LENGTH, VOCABULARY = 6, 3, 5


class Table(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(7)
        self.embedding = nn.Parameter(0.1 * torch.randn(PROMPTS, 8, generator=generator))
        self.head = nn.Parameter(0.1 * torch.randn(8, LENGTH * VOCABULARY, generator=generator))

    def forward(self, prompts):
        return (self.embedding[list(prompts)] @ self.head).view(len(prompts), LENGTH, VOCABULARY)


def roll_out(model, prompts, *, group_size, seeds, temperature) -> Rollout:
    logits = model(prompts).repeat_interleave(group_size, 0)
    columns = [
        sample(logits[:, i], uniforms(torch.tensor(seeds), 0, i), temperature=temperature)
        for i in range(LENGTH)
    ]
    tokens, logprobs = (torch.stack(column, 1) for column in zip(*columns, strict=True))
    mask = torch.ones_like(tokens, dtype=torch.bool)
    mask[1::2, -1] = False  # rows of different length
    return Rollout(tokens=tokens, logprobs=logprobs, mask=mask, opaque=list(prompts))


def log_probabilities(model, prompts, rollout, *, temperature):
    assert len(rollout.tokens) % len(prompts) == 0
    logits = model(prompts).repeat_interleave(len(rollout.tokens) // len(prompts), 0) / temperature
    return token_logprobs(logits, rollout.tokens), entropy(logits)


def score(prompts, rollout):
    target = (
        torch.tensor(prompts).repeat_interleave(len(rollout.tokens) // len(prompts))[:, None] % VOCABULARY
    )
    right = ((rollout.tokens == target) & rollout.mask).sum(1) / rollout.mask.sum(1)
    return right, {"right": right}


CONFIG = GRPOConfig(
    group_size=8, prompts_per_step=4, minibatches=2, learning_rate=0.02, steps=40, checkpoint_every=5
)


def trainer(config=CONFIG, **replaced) -> GRPOTrainer:
    callables = {"rollout": roll_out, "score": score, "logprobs": log_probabilities, **replaced}
    return GRPOTrainer(Table(), range(PROMPTS), config=config, seed=3, **callables)


def weights(of: GRPOTrainer) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in of.model.state_dict().items()}


def assert_equal_weights(a, b):
    assert all(torch.equal(a[name], b[name]) for name in a)


def test_it_learns_and_says_what_it_did(tmp_path):
    def evaluate(model):
        return {
            "right": float(
                (model(range(PROMPTS)).argmax(-1) == torch.arange(PROMPTS)[:, None] % 5).float().mean()
            )
        }

    config = dataclasses.replace(CONFIG, eval_every=20)
    run = Run(tmp_path / "run", config, seed=3)
    trainer(config, evaluate=evaluate).train(run)
    lines = run.metrics()
    assert len(lines) == config.steps
    early, late = (np.mean([line["reward_mean"] for line in part]) for part in (lines[:4], lines[-4:]))
    assert early < 0.35
    assert late > 0.8
    assert [line["step"] for line in lines if "eval/right" in line] == [19, 39]
    assert lines[-1]["eval/right"] == 1.0
    first = lines[0]
    assert first["tokens"] == 4 * 8 * LENGTH - 16
    assert first["reward/right"] == pytest.approx(first["reward_mean"])
    assert first["updates"] == 2
    assert first["logprob_gap"] < 0.1
    assert 0 < lines[-1]["kl"] < 10
    assert lines[-1]["entropy"] < first["entropy"] <= np.log(VOCABULARY) + 1e-6
    assert all(line["seconds"] > 0 and 0 <= line["clip_fraction"] <= 1 for line in lines)


def gradient(config: GRPOConfig) -> dict[str, torch.Tensor]:
    one = trainer(config)
    one.optimiser.step = lambda: None  # keeps the accumulated gradient readable
    one.step(0)
    return {name: parameter.grad.clone() for name, parameter in one.model.named_parameters()}


@pytest.mark.parametrize("microbatch", [1, 3])
def test_accumulated_gradients_equal_one_batch(microbatch):
    config = dataclasses.replace(CONFIG, minibatches=1, entropy_coefficient=0.01, max_grad_norm=1e9)
    whole, parts = gradient(config), gradient(dataclasses.replace(config, microbatch_prompts=microbatch))
    for name in whole:
        assert whole[name].abs().max() > 1e-4
        torch.testing.assert_close(parts[name], whole[name], atol=1e-7, rtol=1e-5)


def test_equal_rewards_change_no_weight_at_all():
    one = trainer(score=lambda prompts, rollout: torch.full((len(rollout.tokens),), 1.3))
    before = weights(one)
    metrics = one.step(0)
    assert_equal_weights(before, weights(one))
    assert metrics["informative_groups"] == metrics["updates"] == 0


def test_an_uninformative_group_gives_no_gradient_but_its_tokens_count():
    def only_first_prompt(prompts, rollout):
        rewards, _ = score(prompts, rollout)
        rewards[8:] = 0.5
        return rewards

    config = dataclasses.replace(CONFIG, minibatches=1, kl_coefficient=0.0, max_grad_norm=1e9)
    one = trainer(config, score=only_first_prompt)
    one.optimiser.step = lambda: None
    one.step(0)
    order = one.prompt_order(0)
    found = one.model.embedding.grad.clone()
    assert all(bool(found[i].any()) == (i == order[0]) for i in range(PROMPTS))

    rollout = roll_out(one.model, order, group_size=8, seeds=one.seeds(0), temperature=1.0)
    first = rollout.select(torch.arange(8))
    advantages = group_advantages(only_first_prompt(order, rollout)[:8], group_size=8)
    logprobs, _ = log_probabilities(one.model, order[:1], first, temperature=1.0)
    one.model.zero_grad()
    all_tokens = rollout.mask.sum()
    policy_loss(logprobs, first.logprobs, advantages, first.mask, total_tokens=all_tokens).loss.backward()
    torch.testing.assert_close(found, one.model.embedding.grad)


def score_tokens(prompts, rollout):
    """A reward for every token of the toy's answers; their mean is the answer's."""
    target = torch.tensor(prompts).repeat_interleave(len(rollout.tokens) // len(prompts))[:, None]
    return (rollout.tokens == target % VOCABULARY).float()


def test_returns_to_go_are_discounted_sums():
    rewards = torch.tensor([[1.0, 2.0, 4.0]])
    assert returns_to_go(rewards, 0.5).tolist() == [[3.0, 4.0, 4.0]]
    assert returns_to_go(rewards, 1.0).tolist() == [[7.0, 6.0, 4.0]]
    assert returns_to_go(rewards, 0.0).tolist() == rewards.tolist() == [[1.0, 2.0, 4.0]]


def test_rewards_of_parts_without_credit_train_as_their_mean():
    config = dataclasses.replace(CONFIG, kl_coefficient=0.0)
    by_part = trainer(config, score=score_tokens)
    whole = trainer(config, score=lambda *answers: score_tokens(*answers).mean(1))
    assert by_part.step(0)["reward_mean"] == whole.step(0)["reward_mean"]
    assert_equal_weights(weights(by_part), weights(whole))


def test_with_credit_a_part_is_trained_on_what_it_can_change():
    config = dataclasses.replace(
        CONFIG, minibatches=1, kl_coefficient=0.0, max_grad_norm=1e9, credit_discount=0.0
    )
    gradients = {}
    for name, columns in {"all": [0, 1, 2], "second": [1]}.items():
        keep = torch.zeros(LENGTH).index_fill(0, torch.tensor(columns), 1.0)
        one = trainer(config, score=lambda *answers, keep=keep: score_tokens(*answers) * keep)
        one.optimiser.step = lambda: None
        one.step(0)
        gradients[name] = one.model.head.grad.view(8, LENGTH, VOCABULARY).clone()
    torch.testing.assert_close(gradients["all"][:, 1], gradients["second"][:, 1])
    assert gradients["all"][:, 0].abs().max() > 1e-4
    assert (gradients["second"][:, [0, 2]] == 0).all()


def test_it_learns_with_credit_too(tmp_path):
    config = dataclasses.replace(CONFIG, credit_discount=0.5)
    run = Run(tmp_path / "run", config, seed=3)
    trainer(config, score=score_tokens).train(run)
    rewards = [line["reward_mean"] for line in run.metrics()]
    assert np.mean(rewards[:4]) < 0.35
    assert np.mean(rewards[-4:]) > 0.8


def test_credit_without_rewards_of_parts_is_named():
    with pytest.raises(ValueError, match="credit_discount needs rewards of the parts"):
        trainer(dataclasses.replace(CONFIG, credit_discount=0.5)).step(0)
    with pytest.raises(ValueError, match=r"credit_discount is 1\.5"):
        dataclasses.replace(CONFIG, credit_discount=1.5)


def test_a_reward_that_is_not_finite_names_step_prompt_and_sample():
    def broken(prompts, rollout):
        rewards, _ = score(prompts, rollout)
        rewards[13] = float("nan")
        return rewards

    one = trainer(score=broken)
    with pytest.raises(
        ValueError, match=rf"step 2: sample 13 \(prompt {one.prompt_order(2)[1]}, its sample 5\)"
    ):
        one.step(2)


def test_broken_rollouts_and_scores_are_named():
    def nan_logprobs(*arguments, **settings_):
        rollout = roll_out(*arguments, **settings_)
        rollout.logprobs[5, 0] = float("nan")
        return rollout

    def too_few(*arguments, **settings_):
        return roll_out(*arguments, **settings_).select(torch.arange(7))

    with pytest.raises(ValueError, match=r"sample 5 .*log-probability"):
        trainer(rollout=nan_logprobs).step(0)
    with pytest.raises(ValueError, match="R = 32"):
        trainer(rollout=too_few).step(0)
    with pytest.raises(ValueError, match="one reward per sample"):
        trainer(score=lambda prompts, rollout: torch.zeros(3)).step(0)
    config = dataclasses.replace(CONFIG, entropy_coefficient=0.1)
    with pytest.raises(ValueError, match="entropy_coefficient"):
        trainer(config, logprobs=lambda *a, **k: log_probabilities(*a, **k)[0]).step(0)
    with pytest.raises(ValueError, match="evaluate"):
        trainer(dataclasses.replace(CONFIG, eval_every=1))


@pytest.mark.parametrize("stop_at", [3, 12])
def test_a_resumed_run_equals_an_uninterrupted_one_bit_for_bit(tmp_path, stop_at):
    config = dataclasses.replace(CONFIG, steps=17)
    straight, straight_run = trainer(config), Run(tmp_path / "straight", config, seed=3)
    straight.train(straight_run)

    def crash(prompts, rollout):
        crash.calls += 1
        if crash.calls > stop_at:
            raise RuntimeError("power cut")
        return score(prompts, rollout)

    crash.calls = 0
    with pytest.raises(RuntimeError, match="power cut"):
        trainer(config, score=crash).train(Run(tmp_path / "broken", config, seed=3))
    resumed, resumed_run = trainer(config), Run(tmp_path / "broken", config, seed=3, resume=True)
    resumed.train(resumed_run)
    assert_equal_weights(weights(straight), weights(resumed))

    def without_times(run):
        return [{k: v for k, v in line.items() if not k.startswith("seconds")} for line in run.metrics()]

    assert without_times(straight_run) == without_times(resumed_run)


def test_an_interrupted_run_saves_its_last_step_and_goes_on_exactly(tmp_path):
    config = dataclasses.replace(CONFIG, steps=9)
    straight = trainer(config)
    straight.train(Run(tmp_path / "straight", config, seed=3))

    def press_ctrl_c(prompts, rollout):
        press_ctrl_c.calls += 1
        if press_ctrl_c.calls == 3:
            signal.raise_signal(signal.SIGINT)
        return score(prompts, rollout)

    press_ctrl_c.calls = 0
    with pytest.raises(RunInterrupted, match=r"after step 3 of 9.*step-00000003"):
        trainer(config, score=press_ctrl_c).train(Run(tmp_path / "stopped", config, seed=3))
    resumed = trainer(config)
    resumed.train(Run(tmp_path / "stopped", config, seed=3, resume=True))
    assert_equal_weights(weights(straight), weights(resumed))


def test_resuming_from_another_initial_model_is_refused(tmp_path):
    config = dataclasses.replace(CONFIG, steps=2)
    one = trainer(config)
    snapshot = one.snapshot()
    other = Table()
    with torch.no_grad():
        other.head += 1
    with pytest.raises(ValueError, match="give the original model"):
        GRPOTrainer(
            other,
            range(PROMPTS),
            rollout=roll_out,
            score=score,
            logprobs=log_probabilities,
            config=config,
            seed=3,
        ).restore(snapshot)


def test_every_epoch_uses_every_prompt_once_and_seeds_never_repeat():
    one = trainer()
    epochs = [index for step in range(6) for index in one.prompt_order(step)]
    for start in range(0, len(epochs), PROMPTS):
        assert sorted(epochs[start : start + PROMPTS]) == list(range(PROMPTS))
    seeds = [seed for step in range(6) for seed in one.seeds(step)]
    assert len(set(seeds)) == len(seeds)
    assert all(0 <= seed < 2**63 for seed in seeds)
