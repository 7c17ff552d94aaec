"""GRPO of causal language models on game states: questions, rewards, selection, and who draws the answers."""

from __future__ import annotations

import copy
import dataclasses
import sys
from types import ModuleType, SimpleNamespace

import pytest
import torch

from tests.worldmodels.language.tiny_lms import COLD, HOT, tiny_lm, toy_prompt, toy_turns
from training.best_weights import BestWeights
from training.fit import FitConfig
from training.grpo_config import GRPOConfig
from training.grpo_loop import Rollout
from training.grpo_task import train_task
from training.lora import LoRASettings, add_lora, load_adapter
from training.provenance import weights_sha256
from training.run import Run
from training.text_engines import OwnEngine, best_engine
from training.text_lm_rlvr import (
    TextRLVRRecipe,
    TextTask,
    train_text_rlvr,
    validation_questions,
)
from training.text_questions import questions_of
from training.text_sft import SFTExample, SFTRecipe, SFTRows, train_sft
from training.trained_weights import TrainedWeights
from training.vllm_engine import VLLMEngine
from worldmodels.language.answers import write_answer
from worldmodels.language.causal_lm_files import save_causal_lm

pytest.importorskip("peft")
QUESTIONS = questions_of(toy_turns(), toy_prompt)
OTHERS = [dataclasses.replace(one, id=f"other/0/{n}", game="other") for n, one in enumerate(QUESTIONS)]
RECIPE = TextRLVRRecipe(
    grpo=GRPOConfig(
        group_size=5,
        prompts_per_step=4,
        minibatches=2,
        microbatch_prompts=1,
        learning_rate=2e-3,
        steps=4,
        eval_every=2,
        checkpoint_every=3,
    ),
    validation_games=("other",),
    max_new_tokens=70,
)


@pytest.fixture(scope="module")
def learnt(tmp_path_factory):
    """A tiny model that is sometimes right."""
    lm = tiny_lm(hidden_size=64)
    examples = [
        SFTExample(prompt=one.prompt, target=write_answer(one.before, one.after)) for one in QUESTIONS
    ]
    rows = SFTRows.of(lm, examples, max_length=512)
    recipe = SFTRecipe(
        fit=FitConfig(steps=16, learning_rate=5e-3, warmup_steps=5, evaluate_every=100), batch=5, microbatch=5
    )
    train_sft(Run(tmp_path_factory.mktemp("sft"), recipe, 0), lm, rows, None, recipe, seed=0)
    return lm


def student(learnt, *, lora=True):
    lm = copy.deepcopy(learnt)
    if lora:
        add_lora(lm, LoRASettings(rank=4, alpha=8), seed=0)
    return lm


def run_in(folder, *, resume=False):
    return Run(folder, RECIPE, 0, resume=resume)


def rollout_of(lm, texts, *, ended=True):
    rows = [lm.encode(text) + [lm.end_id] * ended for text in texts]
    tokens = torch.full((len(rows), max(map(len, rows))), 5)
    mask = torch.zeros_like(tokens, dtype=torch.bool)
    for place, row in enumerate(rows):
        tokens[place, : len(row)], mask[place, : len(row)] = torch.tensor(row), True
    return Rollout(tokens=tokens, logprobs=torch.zeros(tokens.shape), mask=mask)


@pytest.mark.parametrize("lora", [True, False], ids=["adapters", "all weights"])
def test_steps_of_grpo(learnt, tmp_path, lora):
    lm = student(learnt, lora=lora)
    start = {name: weight.detach().clone() for name, weight in lm.named_parameters()}
    run = run_in(tmp_path)
    facts = train_text_rlvr(run, lm, QUESTIONS, QUESTIONS + OTHERS, RECIPE, engine=OwnEngine(), seed=0)
    lines = run.metrics()
    assert [line["step"] for line in lines] == [0, 1, 2, 3]
    assert sum(line["informative_groups"] for line in lines) > 0
    assert abs(lines[0]["kl"]) < lines[-1]["kl"] < 1
    assert {"reward/exact", "reward/property", "reward/unread", "reward/cut"} <= set(lines[0])
    changed = {name for name, weight in lm.named_parameters() if not torch.equal(weight, start[name])}
    assert changed
    assert not lora or all("lora_" in name for name in changed)
    best = max(line["eval/selection"] for line in lines if "eval/selection" in line)
    assert facts["selection"] == best
    assert facts["exact_new_games"] == facts["exact_known_games"]  # the same questions under another name


def test_a_resumed_run_ends_the_same(learnt, tmp_path):
    ends = []
    for name in ("whole", "parts"):
        lm, run = student(learnt), run_in(tmp_path / name)
        if name == "parts":
            engine = Failing(calls=5)
            with pytest.raises(ZeroDivisionError):
                train_text_rlvr(run, lm, QUESTIONS, OTHERS, RECIPE, engine=engine, seed=0)
            assert len(run.checkpoints()) == 1
            lm, run = student(learnt), run_in(tmp_path / name, resume=True)
        facts = train_text_rlvr(run, lm, QUESTIONS, OTHERS, RECIPE, engine=OwnEngine(), seed=0)
        ends.append((weights_sha256(lm), facts, [line["reward_mean"] for line in run.metrics()]))
    assert ends[0] == ends[1]


class Failing(OwnEngine):
    """An engine whose machine fails."""

    def __init__(self, *, calls):
        self.calls = calls

    def __call__(self, *arguments, **settings):
        self.calls -= 1
        if self.calls == 0:
            raise ZeroDivisionError
        return super().__call__(*arguments, **settings)


def test_switched_off_adapters_and_a_frozen_copy_train_the_same(learnt, tmp_path):
    weights = []
    for copied in (False, True):
        lm, run = student(learnt), run_in(tmp_path / str(copied))
        if copied:
            model = TrainedWeights(lm)
            tasks = [TextTask(lm, part, RECIPE, OwnEngine()) for part in (QUESTIONS, OTHERS)]
            train_task(run, model, tasks[0], tasks[1], RECIPE.grpo, seed=0)
        else:
            train_text_rlvr(run, lm, QUESTIONS, OTHERS, RECIPE, engine=OwnEngine(), seed=0)
        weights.append([(line["kl"], line["grad_norm"]) for line in run.metrics() if line["updates"]])
    assert weights[0]
    torch.testing.assert_close(torch.tensor(weights[0]), torch.tensor(weights[1]), atol=1e-4, rtol=1e-3)


def test_entropies_reach_the_loop(learnt, tmp_path):
    recipe = dataclasses.replace(
        RECIPE,
        grpo=dataclasses.replace(RECIPE.grpo, entropy_coefficient=1e-3, steps=1, prompts_per_step=2),
        rows_per_pass=2,
    )
    run = run_in(tmp_path)
    train_text_rlvr(run, student(learnt), QUESTIONS, OTHERS, recipe, engine=OwnEngine(), seed=0)
    assert run.metrics()[0]["informative_groups"] > 0
    assert run.metrics()[0]["entropy"] > 0
    task = TextTask(student(learnt), QUESTIONS, recipe, OwnEngine())
    model = TrainedWeights(task.lm)
    rollout = task.sample(model, QUESTIONS[:2], group_size=2, seeds=range(4), temperature=1.0)
    found, entropies = task.logprobs(model, QUESTIONS[:2], rollout, temperature=1.0)
    torch.testing.assert_close(found.detach(), rollout.logprobs, atol=1e-4, rtol=1e-4)
    assert (entropies[rollout.mask] > 0).all()


@pytest.mark.parametrize(
    ("reward", "wanted"),
    [("exact", 1), ("property", 1), ("official_binary", 1), ("official_task_specific", 1.3)],
)
def test_answers_are_scored(reward, wanted):
    lm = tiny_lm()
    task = TextTask(lm, QUESTIONS, dataclasses.replace(RECIPE, reward=reward), OwnEngine())
    right, idle = write_answer(COLD, HOT), write_answer(COLD, COLD)
    texts = [f"<think>Hm.</think>{right}", idle, "never", "{"]
    rewards, parts = task.score(QUESTIONS[:1], rollout_of(lm, texts))
    assert rewards[0] == pytest.approx(wanted)
    assert rewards[1] < 0.5 * wanted
    assert rewards[2:].tolist() == [0, 0]
    assert parts["exact"].tolist() == [1, 0, 0, 0]
    assert parts["unread"].tolist() == [0, 0, 1, 1]
    assert parts["cut"].tolist() == [0, 0, 0, 0]
    rewards, parts = task.score(QUESTIONS[:1], rollout_of(lm, [right], ended=False))
    assert (rewards.tolist(), parts["cut"].tolist()) == ([0], [1])  # whatever it holds


def test_rows_belong_to_their_questions():
    lm = tiny_lm()
    task = TextTask(lm, QUESTIONS, RECIPE, OwnEngine())
    asked = [QUESTIONS[0], QUESTIONS[1]]
    texts = [write_answer(one.before, one.after) for one in asked]
    rewards, _ = task.score(asked, rollout_of(lm, [texts[0], texts[1], texts[0], texts[1]]))
    assert rewards.tolist() == [1, 0, 0, 1]


def test_long_questions_are_left_out():
    lm = tiny_lm()
    lengths = [len(lm.encode(one.prompt)) for one in QUESTIONS]
    recipe = dataclasses.replace(RECIPE, max_prompt=sorted(lengths)[2])
    task = TextTask(lm, QUESTIONS, recipe, OwnEngine())
    assert len(task.questions) + task.left_out == 5
    assert max(len(lm.encode(one.prompt)) for one in task.questions) == sorted(lengths)[2]
    with pytest.raises(ValueError, match="none of 5 questions is left"):
        TextTask(lm, QUESTIONS, dataclasses.replace(RECIPE, max_prompt=1), OwnEngine())


def test_validation_asks_half_of_new_games():
    many = QUESTIONS * 4 + OTHERS
    chosen = validation_questions(many, ("other",), 8)
    assert [one.game for one in chosen] == ["kettle"] * 4 + ["other"] * 4
    assert len(validation_questions(QUESTIONS, ("other",), 4)) == 4
    assert validation_questions([], ("other",), 4) == []


def test_selection_needs_evaluations(tmp_path):
    recipe = dataclasses.replace(RECIPE, grpo=dataclasses.replace(RECIPE.grpo, eval_every=0))
    with pytest.raises(ValueError, match="eval_every is 0"):
        train_text_rlvr(run_in(tmp_path), tiny_lm(), QUESTIONS, OTHERS, recipe, engine=OwnEngine(), seed=0)


def test_the_best_weights_are_kept(tmp_path):
    model = torch.nn.Linear(1, 1, bias=False)
    best = BestWeights(run_in(tmp_path), lambda m: {"good": -abs(m.weight.item() - 3)}, "good")
    assert best.metrics is None
    with pytest.raises(FileNotFoundError, match="nothing was evaluated"):
        best.restore(model)
    for value in (0.0, 2.0, 4.0, 9.0):  # 2 and 4 are equally good
        torch.nn.init.constant_(model.weight, value)
        best(model)
    best = BestWeights(run_in(tmp_path, resume=True), lambda _: {"good": -1.0}, "good")
    assert best.metrics == {"good": -1}
    best(model)  # no better
    assert best.restore(model) == {"good": -1}
    assert model.weight.item() == 2
    assert not list(tmp_path.glob("*.partial"))
    with pytest.raises(KeyError):
        BestWeights(run_in(tmp_path, resume=True), lambda _: {}, "good")(model)


def test_of_a_loss_the_least_is_best(tmp_path):
    model = torch.nn.Linear(1, 1, bias=False)
    best = BestWeights(run_in(tmp_path), lambda m: {"loss": m.weight.item() ** 2}, "loss", less=True)
    for value in (3.0, -1.0, 2.0, 1.0):
        torch.nn.init.constant_(model.weight, value)
        best(model)
    assert best.restore(model) == {"loss": 1}
    assert model.weight.item() == -1


class TestVLLM:
    """Without vLLM itself: a stand-in with the parts of its interface that are used."""

    @pytest.fixture
    def calls(self, monkeypatch):
        calls: list = []

        class LLM:
            def __init__(self, **settings):
                calls.append(settings)

            def generate(self, prompts, settings, *, lora_request):
                lm = tiny_lm()
                load_adapter(lora_request.path, lm)  # the folder is there while it answers
                said = []
                for asked, how in zip(prompts, settings, strict=True):
                    found = lm.answer(
                        [asked["prompt_token_ids"]],
                        seeds=torch.tensor([how.seed]),
                        temperature=how.temperature,
                        max_new_tokens=how.max_tokens,
                    )
                    ids = found.tokens[0][found.mask[0]].tolist()
                    said.append(SimpleNamespace(outputs=[SimpleNamespace(token_ids=tuple(ids))]))
                calls.append((lora_request, settings))
                return said

        vllm, lora, request = ModuleType("vllm"), ModuleType("vllm.lora"), ModuleType("vllm.lora.request")
        vllm.LLM, vllm.SamplingParams = LLM, lambda **settings: SimpleNamespace(**settings)
        request.LoRARequest = lambda name, number, path: SimpleNamespace(name=name, number=number, path=path)
        for module in (vllm, lora, request):
            monkeypatch.setitem(sys.modules, module.__name__, module)
        return calls

    def test_it_answers_with_the_adapters_as_they_are_now(self, calls, tmp_path):
        lm = tiny_lm()
        add_lora(lm, LoRASettings(rank=4, alpha=8), seed=0)
        engine = VLLMEngine(save_causal_lm(tmp_path / "base", tiny_lm(), card=""), rank=4)
        assert calls[0]["model"] == str(tmp_path / "base")
        assert calls[0]["max_lora_rank"] == 4
        prompts = [lm.encode(one.prompt) for one in QUESTIONS[:2]]
        for number in (1, 2):
            with torch.no_grad():
                for name, weight in lm.named_parameters():
                    if "lora_B" in name:
                        weight += 0.2
            how = {
                "seeds": torch.arange(6) + 2**40,
                "num_samples": 3,
                "temperature": 1.0,
                "max_new_tokens": 24,
            }
            tokens, mask = engine(lm, prompts, **how)
            own_tokens, own_mask = OwnEngine()(lm, prompts, **how)
            assert torch.equal(mask, own_mask)
            assert torch.equal(tokens.where(mask, 0), own_tokens.where(own_mask, 0))
            asked, settings = calls[-1]
            assert asked.number == number  # another number, so that nothing old is kept
            assert settings[0].stop_token_ids == list(lm.end_ids)

    def test_where_it_is_missing(self, monkeypatch):
        monkeypatch.setitem(sys.modules, "vllm", None)
        with pytest.raises(ImportError, match="vLLM is not installed: pip install vllm, or use OwnEngine"):
            VLLMEngine("base", rank=4)

    def test_a_processor_answers_itself(self):
        assert best_engine(tiny_lm(), "base").name == "transformers"
