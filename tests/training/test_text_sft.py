"""Imitation of prompts and answers by causal language models."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from tests.worldmodels.language.tiny_lms import tiny_lm, toy_prompt, toy_turns
from training.fit import FitConfig
from training.lora import LoRASettings, add_lora
from training.provenance import weights_sha256
from training.run import Run
from training.text_sft import (
    SFTExample,
    SFTRecipe,
    SFTRows,
    answer_nll,
    mean_nll,
    read_examples,
    think_then_answer,
    train_sft,
)
from worldmodels.language.answers import write_answer

EXAMPLES = [
    SFTExample(
        prompt=toy_prompt(turn.before, turn.action),
        target=think_then_answer(f"Say {turn.action}.", write_answer(turn.before, turn.after)),
    )
    for turn in toy_turns()
]


def fit(steps, **settings):
    return FitConfig(
        steps=steps, learning_rate=1e-2, warmup_steps=1, log_every=1, evaluate_every=steps, **settings
    )


def student(lora):
    lm = tiny_lm()
    if lora:
        pytest.importorskip("peft")
        add_lora(lm, LoRASettings(rank=4, alpha=8), seed=0)
    return lm


@pytest.mark.parametrize("lora", [False, True], ids=["all weights", "adapters"])
def test_the_loss_falls_and_an_interrupted_run_ends_the_same(tmp_path, lora):
    recipe = SFTRecipe(fit=fit(8, checkpoint_every=3), batch=2, microbatch=1)
    ends = []
    for name, broken in (("whole", False), ("parts", True)):
        lm = student(lora)
        frozen = {n: w.detach().clone() for n, w in lm.named_parameters() if not w.requires_grad}
        rows = SFTRows.of(lm, EXAMPLES, max_length=512)
        first = mean_nll(lm, rows, count=5)
        run = Run(tmp_path / name, recipe, 0)
        if broken:
            with pytest.raises(ZeroDivisionError):
                train_sft(stopped(run, at=5), lm, rows, rows, recipe, seed=0)
            lm = student(lora)  # another process
            run = Run(tmp_path / name, recipe, 0, resume=True)
        train_sft(run, lm, rows, rows, recipe, seed=0)
        assert mean_nll(lm, rows, count=5) < 0.8 * first
        assert frozen.keys() == {n for n, w in lm.named_parameters() if not w.requires_grad}
        own = dict(lm.named_parameters())
        assert all(torch.equal(weight, own[n]) for n, weight in frozen.items())
        losses = [line["loss"] for line in run.metrics()]
        assert len(losses) == 8
        ends.append((weights_sha256(lm), losses, run.metrics()[-1]["validation/nll"]))
    assert ends[0] == ends[1]


def test_it_ends_with_the_weights_that_are_best_on_held_out_examples(tmp_path):
    recipe = SFTRecipe(fit=FitConfig(steps=30, learning_rate=0.1, warmup_steps=1, evaluate_every=3), batch=2)
    lm = tiny_lm()
    rows = SFTRows.of(lm, EXAMPLES[:2], max_length=512)
    others = SFTRows.of(lm, EXAMPLES[2:], max_length=512)
    run = Run(tmp_path, recipe, 0)
    facts = train_sft(run, lm, rows, others, recipe, seed=0)
    found = [line["validation/nll"] for line in run.metrics() if "validation/nll" in line]
    assert facts == {"nll": min(found)}
    assert found[-1] > min(found)  # two examples by heart
    assert mean_nll(lm, others, count=5) == pytest.approx(min(found), rel=1e-5)


def stopped(run, *, at):
    """The run, but its machine fails."""
    log = run.log

    def failing(step, metrics):
        if step == at:
            raise ZeroDivisionError
        log(step, metrics)

    run.log = failing
    return run


def test_gradients_do_not_depend_on_the_micro_batch(tmp_path):
    weights = []
    for microbatch in (1, 2, 4):
        lm = tiny_lm()
        rows = SFTRows.of(lm, EXAMPLES, max_length=512)
        recipe = SFTRecipe(fit=fit(1), batch=4, microbatch=microbatch)
        run = Run(tmp_path / str(microbatch), recipe, 0)
        train_sft(run, lm, rows, None, recipe, seed=1)
        weights.append((run.metrics()[0]["loss"], run.metrics()[0]["grad_norm"]))
    np.testing.assert_allclose(weights[1:], [weights[0]] * 2, rtol=1e-4)


def test_only_answers_are_learnt():
    lm = tiny_lm()
    rows = SFTRows.of(lm, EXAMPLES[:1], max_length=512)
    prompt, target = rows.prompts[0].tolist(), rows.targets[0].tolist()
    logits = lm.net(torch.tensor([prompt + target])).logits[0].log_softmax(-1)
    places = range(len(prompt) - 1, len(prompt) + len(target) - 1)
    wanted = -sum(logits[place, token] for place, token in zip(places, target, strict=True))
    torch.testing.assert_close(answer_nll(lm, rows, [0]), wanted, atol=1e-3, rtol=1e-4)


def test_what_a_target_says():
    lm = tiny_lm()
    rows = SFTRows.of(lm, EXAMPLES, max_length=512)
    text = lm.tokenizer.decode(rows.targets[0])
    assert text.startswith("<think>\nSay heat the pot.\n</think>\n\n{")
    assert rows.targets[0][-1] == lm.end_id
    assert think_then_answer(None, "x") == think_then_answer("", "x") == "x"


def test_thinking_that_the_template_began_is_not_begun_twice():
    lm = tiny_lm(chat=True)
    template = lm.tokenizer.chat_template
    try:
        lm.tokenizer.chat_template = template.replace("<assistant>", "<assistant><think>\n")
        rows = SFTRows.of(lm, EXAMPLES[:1], max_length=512)
    finally:
        lm.tokenizer.chat_template = template  # it is shared
    whole = lm.tokenizer.decode([*rows.prompts[0], *rows.targets[0]])
    assert whole.count("<think>") == 1
    assert "<assistant><think>\nSay heat" in whole


def test_long_examples_are_left_out():
    lm = tiny_lm()
    lengths = [len(lm.encode(one.prompt + one.target)) + 1 for one in EXAMPLES]
    rows = SFTRows.of(lm, EXAMPLES, max_length=min(lengths) + 4)
    assert 0 < len(rows) < 5
    assert rows.left_out == 5 - len(rows)
    with pytest.raises(ValueError, match="none of 5 examples is left"):
        SFTRows.of(lm, EXAMPLES, max_length=3)


def test_examples_are_read(tmp_path, caplog):
    path = tmp_path / "accepted.jsonl"
    good = {"prompt": "p", "answer": "a", "reasoning": "r", "id": "g/1/2", "game": "g"}
    path.write_text(json.dumps(good) + "\n" + json.dumps({"prompt": "p", "answer": "a", "reasoning": None}))
    first, second = read_examples(path)
    assert first == SFTExample(prompt="p", target="<think>\nr\n</think>\n\na", id="g/1/2", game="g")
    assert second == SFTExample(prompt="p", target="a")
    for line, message in [
        (b'{"prompt": "p"}', "this is no example.*'answer'"),
        (b"[]", "this is no example"),
        (b"{", "Expecting property name"),
        (b'{"prompt": "p", "answer": 3}', r"\['answer'\] must be texts"),
        (b'{"prompt": "p", "answer": "\xff"}', "can't decode byte 0xff"),
        (b'{"prompt": "\\ud800", "answer": "a"}', "surrogates not allowed"),
    ]:
        path.write_bytes(line)
        with pytest.raises(ValueError, match=rf"holds no example: .*accepted\.jsonl:1: .*{message}"):
            read_examples(path)
        caplog.clear()
        path.write_bytes(json.dumps(good).encode() + b"\n" + line + b"\n" + json.dumps(good).encode())
        assert read_examples(path) == [first, first]
        assert len(caplog.messages) == 1
        assert "accepted.jsonl:2: " in caplog.messages[0]
    path.write_text("\n")
    with pytest.raises(ValueError, match="it is empty"):
        read_examples(path)
    with pytest.raises(FileNotFoundError, match=r"training\.rejection"):
        read_examples(tmp_path / "nothing")
