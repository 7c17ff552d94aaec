"""The published text-game recipes: their numbers, and the same lines from data to a model with a tiny network."""

from __future__ import annotations

import dataclasses
import gzip
import json

import pytest
import torch

from tests.worldmodels.language.tiny_lms import tiny_lm, toy_turns
from training import paper_text_recipes as paper
from training.jobs import Job
from training.lora import LoRASettings, load_adapter
from training.provenance import weights_sha256
from training.recipes import RECIPES
from training.run import Run
from training.text_questions import balanced, held_out, read_questions
from worldmodels.language.answers import write_answer
from worldmodels.language.causal_lm_files import load_causal_lm, save_causal_lm
from worldmodels.language.prompts import PromptTemplate, rules_by_game
from worldmodels.language.transitions import write_transitions

EPISODES = 30


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Transitions of two games, one of them held out, and answers to imitate."""
    folder = tmp_path_factory.mktemp("data")
    turns = [
        dataclasses.replace(turn, id=f"{game}/{number}/{place}", game=game)
        for game in ("kettle", paper.VALIDATION_GAMES[0])
        for number in range(EPISODES)
        for place, turn in enumerate(toy_turns())
    ]
    write_transitions(folder / "train.jsonl.gz", turns)
    questions, _ = read_questions(folder, "train")
    lines = [
        {
            "id": one.id,
            "game": one.game,
            "prompt": one.prompt[:200],
            "answer": write_answer(one.before, one.after),
            "reasoning": "Hm.",
        }
        for one in questions[:150]
    ]
    (folder / "accepted.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    lm = tiny_lm()
    lm.net.config.max_position_embeddings = 1024
    return str(save_causal_lm(tmp_path_factory.mktemp("base") / "model", lm, card="A toy."))


def test_the_published_numbers():
    assert {name for name in RECIPES if name.startswith("paper-textgame")} == {
        "paper-textgame-sft-1.5b",
        "paper-textgame-sft-7b",
        "paper-textgame-rlvr-1.5b",
        "paper-textgame-rlvr-7b",
        "paper-textgame-rlvr-task-specific-1.5b",
        "paper-textgame-more-sft-1.5b",
        "paper-textgame-more-sft-7b",
    }
    assert paper.BASES["1.5b"] == "deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B"
    assert LoRASettings(rank=32, alpha=16) == paper.LORA
    assert (paper.SFT.batch, paper.SFT.fit.learning_rate, paper.SFT_EPOCHS) == (16, 1e-5, 10)
    grpo = paper.RLVR.grpo
    assert (grpo.group_size, grpo.prompts_per_step, grpo.minibatches) == (5, 128, 2)
    assert (grpo.learning_rate, grpo.kl_coefficient, grpo.clip) == (1e-6, 1e-3, 0.2)
    assert (paper.RLVR.max_prompt, paper.RLVR.max_new_tokens) == (7192, 4096)
    assert (paper.RLVR.reward, paper.RLVR.unchanged_per_100) == ("official_binary", 40)
    assert (paper.TASK_SPECIFIC.reward, paper.TASK_SPECIFIC.unchanged_per_100) == (
        "official_task_specific",
        5,
    )


def test_imitation_from_data_to_a_model(data, base, tmp_path):
    recipe = dataclasses.replace(paper.SFT, batch=4, max_length=1024, validation_rows=4)
    job = Job(folder=tmp_path / "run", data=data, base=base, steps=2)
    folder = paper.text_sft(job, "unused", recipe)
    manifest = json.loads((tmp_path / "run" / "manifest.json").read_text())
    assert manifest["config"]["lora"] == {"rank": 32, "alpha": 16, "targets": "all-linear"}
    assert manifest["config"]["sft"]["fit"]["steps"] == 2
    merged, adapted = load_causal_lm(folder), load_causal_lm(base)
    load_adapter(tmp_path / "run" / "adapter", adapted)
    ids = torch.tensor([[5, 6, 7]])
    torch.testing.assert_close(merged.net(ids).logits, adapted.net(ids).logits, atol=1e-4, rtol=1e-4)
    assert weights_sha256(merged.net) != weights_sha256(load_causal_lm(base).net)
    card = (folder / "README.md").read_text()
    assert "the licences of that model" in card
    assert "own simulator" not in card
    other = save_causal_lm(tmp_path / "other", tiny_lm(seed=1), card="")
    with pytest.raises(ValueError, match="cannot resume.*base"):
        paper.text_sft(dataclasses.replace(job, base=str(other), resume=True), "unused", recipe)


def test_post_training_from_data_to_a_model(data, base, tmp_path):
    recipe = dataclasses.replace(
        paper.RLVR,
        grpo=dataclasses.replace(paper.RLVR.grpo, prompts_per_step=2, group_size=2, learning_rate=1e-3),
        reward="property",
        max_prompt=800,
        max_new_tokens=8,
        validation_rows=4,
    )
    job = Job(folder=tmp_path / "run", data=data, base=base, steps=2)
    folder = paper.text_rlvr(job, "unused", recipe)
    assert load_causal_lm(folder).net.config.model_type == "qwen2"
    manifest = json.loads((tmp_path / "run" / "manifest.json").read_text())
    assert manifest["notes"]["engine"] == "transformers"
    assert manifest["data_hash"].endswith("compact")
    last = Run(job.folder, manifest["config"], 0, data_hash=manifest["data_hash"], resume=True).metrics()[-1]
    assert {"eval/selection", "eval/exact_known_games", "eval/exact_new_games"} <= set(last)
    saved = json.loads((tmp_path / "run" / "manifest.json").read_text())
    saved["notes"]["engine"] = "vllm"
    (tmp_path / "run" / "manifest.json").write_text(json.dumps(saved))
    with pytest.raises(ValueError, match="another engine than 'transformers'"):
        paper.text_rlvr(dataclasses.replace(job, resume=True), "unused", recipe)


def test_a_model_that_is_not_there(data, tmp_path):
    with pytest.raises(FileNotFoundError, match="hub id"):
        RECIPES["paper-textgame-rlvr-1.5b"].run(Job(folder=tmp_path, data=data, steps=1))
    with pytest.raises(FileNotFoundError, match=r"training\.rejection"):
        paper.text_sft(Job(folder=tmp_path, data=tmp_path, steps=1), "unused")


def test_what_is_held_out_is_a_matter_of_names(data):
    questions, _ = read_questions(data, "train")
    out = {one.id for one in questions if held_out(one.id, one.game, paper.VALIDATION_GAMES)}
    games = [one for one in questions if one.game == paper.VALIDATION_GAMES[0]]
    assert {one.id for one in games} <= out
    known = {name.rpartition("/")[0] for name in out if name.startswith("kettle")}
    assert 0 < len(known) < EPISODES / 4
    assert len([name for name in out if name.startswith("kettle")]) == 5 * len(known)  # whole episodes


def test_the_balance():
    changed = [True, False, False, True, False, False]
    assert balanced(changed, None) == list(range(6))
    assert balanced(changed, 0) == [0, 3]
    assert balanced(changed, 50) == [0, 1, 3]
    assert balanced(changed, 200) == list(range(6))
    assert balanced(changed, 400) == [0, 1, 2, 4, 5]  # too few are unchanged: fewer changed ones are kept
    assert balanced([True, True], 50) == [0, 1]
    with pytest.raises(ValueError, match="-1"):
        balanced(changed, -1)


def test_questions_with_the_published_prompt(conformance, tmp_path, caplog):
    """The prompts of a data folder with a template are those of the published records."""

    def lines(name):
        return [json.loads(line) for line in gzip.open(conformance(name), "rt")]

    test = lines("language/bytesized32_test.jsonl.gz")
    examples = [line["record"] for line in lines("language/text_game_prompts.jsonl.gz")]
    example = next(one for one in examples if one["extra_info"]["split"] == "test")
    record = test[example["extra_info"]["index"]]
    (assets,) = lines("language/text_game_prompt_assets.json.gz")
    template = PromptTemplate.extract(example, record, rules_by_game(assets["human_written_rules"]))
    template.save(tmp_path / "prompt.json")
    broken = b'{"game": "nothing"}\n', b'{"game": "\xff"}\n'
    with gzip.open(tmp_path / "some_train.jsonl.gz", "wb") as file:
        file.write(json.dumps(record).encode() + b"\n" + b"".join(broken))
    (question,), data_hash = read_questions(tmp_path, "train")
    assert question.prompt == example["prompt"][0]["content"]
    assert json.loads(question.ground_truth) == json.loads(example["reward_model"]["ground_truth"])
    assert data_hash.endswith("published")
    for message, found in zip(caplog.messages, (":2: the record", ":3: 'utf-8'"), strict=True):
        assert f"some_train.jsonl.gz{found}" in message
    (tmp_path / "some_train.jsonl.gz").write_bytes(gzip.compress(broken[0]))
    with pytest.raises(ValueError, match=r"nothing usable of the split 'train': .*some_train\.jsonl\.gz:1"):
        read_questions(tmp_path, "train")
