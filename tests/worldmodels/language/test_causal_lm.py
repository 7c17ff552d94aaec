"""Language models of the transformers library: sampling, likelihoods, loading; and as world models of text games."""

from __future__ import annotations

import json

import pytest
import torch

from tests.worldmodels.language.tiny_lms import (
    COLD,
    FULL,
    HOT,
    WON,
    tiny_lm,
    tiny_net,
    toy_prompt,
    toy_tokenizer,
    toy_turns,
)
from worldmodels.api import History, Predictions, WorldModel
from worldmodels.language.answers import write_answer
from worldmodels.language.causal_lm import CausalLM, LMAnswers
from worldmodels.language.causal_lm_files import load_causal_lm, save_causal_lm
from worldmodels.language.causal_lm_world import CausalLMWorldModel

SEEDS = torch.arange(5) + 7


def prompts(lm):
    return [lm.encode(toy_prompt(turn.before, turn.action)) for turn in toy_turns()]


@pytest.fixture(scope="module", params=["llama", "qwen2"])
def lm(request):
    return tiny_lm(request.param)


@pytest.mark.parametrize("temperature", [1.0, 0.7, 0.0])
def test_a_row_says_the_same_alone_and_in_a_batch(lm, temperature):
    asked = prompts(lm)
    assert len({len(prompt) for prompt in asked}) > 2
    together = lm.answer(asked, seeds=SEEDS, temperature=temperature, max_new_tokens=24)
    for row, prompt in enumerate(asked):
        alone = lm.answer([prompt], seeds=SEEDS[[row]], temperature=temperature, max_new_tokens=24)
        width = alone.tokens.shape[1]
        assert together.tokens[row, :width].tolist() == alone.tokens[0].tolist()
        assert together.mask[row].sum() == alone.mask.sum() == width
        torch.testing.assert_close(together.logprobs[row, :width], alone.logprobs[0], atol=1e-4, rtol=1e-4)


def test_small_batches_and_shared_prompts_change_nothing(lm):
    asked = prompts(lm)
    seeds = torch.arange(15) * 31
    shared = lm.answer(asked, seeds=seeds, num_samples=3, max_new_tokens=20)
    repeated = lm.answer([p for p in asked for _ in range(3)], seeds=seeds, max_new_tokens=20)
    lm.rows_at_once = 6
    try:
        chunked = lm.answer(asked, seeds=seeds, num_samples=3, max_new_tokens=20)
    finally:
        lm.rows_at_once = 64
    for other in (repeated, chunked):
        assert torch.equal(shared.mask, other.mask)
        assert torch.equal(shared.tokens, other.tokens)


def test_draws_depend_on_seed_and_step(lm):
    asked = prompts(lm)
    one = lm.answer(asked, seeds=SEEDS, max_new_tokens=16)
    assert torch.equal(one.tokens, lm.answer(asked, seeds=SEEDS, steps=0, max_new_tokens=16).tokens)
    for other in (
        lm.answer(asked, seeds=SEEDS + 100, max_new_tokens=16),
        lm.answer(asked, seeds=SEEDS, steps=torch.arange(5) + 1, max_new_tokens=16),
    ):
        assert one.tokens.shape != other.tokens.shape or not torch.equal(one.tokens, other.tokens)


def test_greedy_is_that_of_transformers(lm):
    asked = prompts(lm)
    width = max(len(prompt) for prompt in asked)
    ids = torch.tensor([[0] * (width - len(prompt)) + prompt for prompt in asked])
    seen = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in asked])
    theirs = lm.net.generate(ids, attention_mask=seen, do_sample=False, max_new_tokens=24, pad_token_id=0)
    ours = lm.answer(asked, seeds=SEEDS, temperature=0.0, max_new_tokens=24)
    said = ours.tokens.where(ours.mask, 0)
    assert said.tolist() == theirs[:, width:].tolist()


def test_answers_stop_at_the_end_token(lm):
    asked = prompts(lm)
    said = lm.answer(asked * 20, seeds=torch.arange(100), temperature=1.0, max_new_tokens=64)
    rows = lm.texts(said.tokens, said.mask)
    lengths = said.mask.sum(1)
    assert {ended for _, ended in rows} == {True, False}
    for row, (text, ended) in enumerate(rows):
        tokens = said.tokens[row, : lengths[row]].tolist()
        assert ended == (tokens[-1] in lm.end_ids)
        assert not set(tokens[:-1]) & set(lm.end_ids)
        assert ended or lengths[row] == 64
        assert "<end>" not in text


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_teacher_forced_likelihoods_are_those_of_sampling(lm, temperature):
    asked, group = prompts(lm), 2
    said = lm.answer(
        asked, seeds=torch.arange(10), num_samples=group, temperature=temperature, max_new_tokens=20
    )
    lm.rows_at_once = 4
    try:
        logprobs, entropies = lm.logprobs(
            asked, said.tokens, said.mask, temperature=temperature, with_entropies=True
        )
    finally:
        lm.rows_at_once = 64
    torch.testing.assert_close(logprobs, said.logprobs, atol=1e-4, rtol=1e-4)
    assert (entropies[said.mask] > 0).all()
    assert (entropies[~said.mask] == 0).all()
    assert lm.logprobs(asked, said.tokens, said.mask)[1] is None


def test_gradients_do_not_depend_on_checkpointing():
    gradients = []
    for again in (False, True):
        lm = tiny_lm("qwen2", gradient_checkpointing=again)
        asked = prompts(lm)
        said = lm.answer(asked, seeds=SEEDS, max_new_tokens=12)
        logprobs, _ = lm.logprobs(asked, said.tokens, said.mask)
        assert not lm.net.training
        logprobs.sum().backward()
        gradients.append([p.grad.clone() for p in lm.net.parameters()])
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other)


def test_checkpointing_refuses_dropout():
    net = tiny_net("llama")
    net.config.attention_dropout = 0.1
    lm = CausalLM(net, toy_tokenizer(), gradient_checkpointing=True)
    with pytest.raises(ValueError, match=r"dropout of 0\.1"):
        lm.logprobs(prompts(lm)[:1], torch.tensor([[3]]), torch.tensor([[True]]))


def test_bfloat16_arithmetic_is_an_option():
    lm = tiny_lm("llama", autocast=True)
    asked = prompts(lm)
    said = lm.answer(asked, seeds=SEEDS, max_new_tokens=8)
    gap = (lm.logprobs(asked, said.tokens, said.mask)[0] - said.logprobs).abs().max()
    assert gap < 0.5
    assert next(lm.net.parameters()).dtype == torch.float32


def test_prompts_become_the_users_turn_where_there_is_a_template():
    plain, chat = tiny_lm(chat=False), tiny_lm(chat=True)
    assert plain.tokenizer.decode(plain.encode("wait")) == "wait"
    assert chat.tokenizer.decode(chat.encode("wait")) == "<user>wait<end><assistant>"
    assert CausalLM(chat.net, chat.tokenizer, chat=False).encode("wait") == plain.encode("wait")
    with pytest.raises(ValueError, match="no chat template"):
        CausalLM(plain.net, plain.tokenizer, chat=True)


def test_what_is_asked_must_make_sense(lm):
    with pytest.raises(ValueError, match="2 seeds"):
        lm.answer([[1]], seeds=SEEDS[:1], num_samples=2, max_new_tokens=4)
    with pytest.raises(ValueError, match="exceed the model's 512"):
        lm.answer([[1] * 500], seeds=SEEDS[:1], max_new_tokens=13)
    with pytest.raises(ValueError, match="multiple of the prompts"):
        lm.logprobs([[1], [2]], torch.ones(3, 2, dtype=torch.int64), torch.ones(3, 2, dtype=torch.bool))
    for text in ("", "\ud800"):
        with pytest.raises(ValueError, match="prompt"):
            lm.encode(text)
    with pytest.raises(ValueError, match="rows_at_once"):
        CausalLM(lm.net, lm.tokenizer, rows_at_once=0)


def test_broken_weights_are_named():
    lm = tiny_lm()
    with torch.no_grad():
        next(lm.net.parameters()).fill_(float("nan"))
    with pytest.raises(ValueError, match="NaN"):
        lm.answer(prompts(lm), seeds=SEEDS, max_new_tokens=4)


class TestLoading:
    @pytest.fixture
    def folder(self, tmp_path):
        return save_causal_lm(tmp_path / "lm", tiny_lm("qwen2", chat=True), card="A toy.")

    def test_what_was_saved_is_loaded(self, folder):
        loaded, lm = load_causal_lm(folder, rows_at_once=3), tiny_lm("qwen2", chat=True)
        assert loaded.rows_at_once == 3
        assert loaded.chat
        asked = prompts(lm)
        assert prompts(loaded) == asked
        ask = {"seeds": SEEDS, "max_new_tokens": 16}
        assert torch.equal(loaded.answer(asked, **ask).tokens, lm.answer(asked, **ask).tokens)
        assert load_causal_lm(folder, dtype=torch.bfloat16).net.dtype == torch.bfloat16

    def test_a_folder_is_replaced_whole(self, folder):
        assert save_causal_lm(folder, tiny_lm("llama"), card="Another.") == folder
        assert (folder / "README.md").read_text() == "Another."
        assert load_causal_lm(folder).net.config.model_type == "llama"
        assert not folder.with_name("lm.partial").exists()

    def test_no_pickles(self, folder):
        (folder / "model.safetensors").unlink()
        torch.save(tiny_net().state_dict(), folder / "pytorch_model.bin")
        with pytest.raises(FileNotFoundError, match="safetensors"):
            load_causal_lm(folder)

    def test_weights_that_are_not_there_are_named(self, folder):
        config = json.loads((folder / "config.json").read_text())
        config["num_hidden_layers"] = 3
        config.pop("layer_types", None)
        (folder / "config.json").write_text(json.dumps(config))
        with pytest.raises(ValueError, match=r"missing keys.*layers\.2"):
            load_causal_lm(folder)
        config["num_hidden_layers"] = 1
        (folder / "config.json").write_text(json.dumps(config))
        with pytest.raises(ValueError, match=r"unexpected keys.*layers\.1"):
            load_causal_lm(folder)

    def test_nothing_there(self, tmp_path):
        with pytest.raises(FileNotFoundError, match="hub id"):
            load_causal_lm(tmp_path / "nowhere")


class Scripted(CausalLM):
    """Says what it is told to, whatever it is asked."""

    def __init__(self, texts: list[str], *, endless: bool = False) -> None:
        super().__init__(tiny_net(), toy_tokenizer())
        self.scripted, self.endless = texts, endless

    def answer(self, prompts, **_):
        rows = [self.tokenizer(text)["input_ids"] + ([] if self.endless else [0]) for text in self.scripted]
        assert len(rows) == len(prompts)
        width = max(map(len, rows))
        tokens = torch.tensor([row + [1] * (width - len(row)) for row in rows])
        mask = torch.tensor([[True] * len(row) + [False] * (width - len(row)) for row in rows])
        return LMAnswers(tokens, torch.zeros(tokens.shape), mask)


def begin(model, states):
    return model.start([History(observations=[one.to_text()]) for one in states], seeds=range(len(states)))


class TestWorld:
    def test_contract(self):
        model = CausalLMWorldModel(tiny_lm(), toy_prompt, max_new_tokens=12)
        assert isinstance(model, WorldModel)
        state = begin(model, [COLD, FULL, HOT])
        actions = ["wait", "heat the pot", "look"]

        def seen(state, turns=2, rows=(0, 1, 2)):
            texts = []
            for _ in range(turns):
                state, predictions = model.step(state, [actions[row] for row in rows])
                assert isinstance(predictions, Predictions)
                texts.append([(predictions[n].observation, predictions[n].error) for n in range(len(rows))])
            return texts

        first = seen(state)
        assert seen(state) == first  # an old state stays as it was
        assert seen(state.fork(1)) == first
        assert [t[::2] for t in seen(state.fork(2), rows=(0, 0, 1, 1, 2, 2))] == first
        assert seen(state.select([2, 0]), rows=(2, 0)) == [[turn[2], turn[0]] for turn in first]
        later, _ = model.step(state, actions)
        mixed = seen(later.append(state), turns=1, rows=(0, 1, 2, 0, 1, 2))
        assert mixed[0][3:] == first[0]
        assert mixed[0][:3] == seen(later, turns=1)[0]
        with pytest.raises(TypeError, match="another model"):
            CausalLMWorldModel(tiny_lm(), toy_prompt).step(state, actions)

    def test_a_right_answer_is_read(self):
        lm = Scripted([f"<think>hm</think> {write_answer(HOT, WON)}", write_answer(COLD, COLD)])
        model = CausalLMWorldModel(lm, toy_prompt, max_new_tokens=200)
        state, predictions = model.step(begin(model, [HOT, COLD]), ["heat the pot", "wait"])
        assert predictions[0].observation == WON.to_text()
        assert (predictions[0].reward, predictions[0].terminated, predictions[0].error) == (1.0, True, None)
        assert (predictions[1].observation, predictions[1].reward) == (COLD.to_text(), 0.0)
        assert state.states == (WON, COLD)
        lm.scripted = ["nonsense"]  # only the second row is asked: the first game is over
        later, predictions = model.step(state, ["wait", "wait"])
        assert predictions[0].observation == WON.to_text()
        assert predictions[1].observation is None
        assert "no JSON" in predictions[1].error or "holds" in predictions[1].error
        assert later.states == (WON, COLD)
        assert predictions.observations() == [WON.to_text(), COLD.to_text()]

    def test_an_answer_that_never_ends_is_an_error(self):
        model = CausalLMWorldModel(
            Scripted([write_answer(COLD, HOT)], endless=True), toy_prompt, max_new_tokens=99
        )
        state, predictions = model.step(begin(model, [COLD]), ["heat the pot"])
        assert predictions[0].error == "the answer had not ended after 99 tokens"
        assert state.states == (COLD,)

    def test_questions_that_cannot_be_put_are_errors_too(self):
        def prompt(before, action, game):
            if action == "break":
                raise ValueError("there is no such thing")
            return toy_prompt(before, action)

        model = CausalLMWorldModel(tiny_lm(), prompt, max_new_tokens=400)
        _, predictions = model.step(begin(model, [COLD] * 3), ["break", "x" * 300, "\ud800"])
        errors = [predictions[row].error for row in range(3)]
        assert errors[0] == "there is no such thing"
        assert "the model holds 512" in errors[1]
        assert "UTF-8" in errors[2]

    def test_input_is_checked(self):
        model = CausalLMWorldModel(tiny_lm(), toy_prompt)
        with pytest.raises(ValueError, match="1 actions for 2 rows"):
            model.step(begin(model, [COLD, HOT]), ["wait"])
        with pytest.raises(ValueError, match="one seed per history"):
            model.start([], seeds=[])
        with pytest.raises(ValueError, match="max_new_tokens is 0"):
            CausalLMWorldModel(tiny_lm(), toy_prompt, max_new_tokens=0)
