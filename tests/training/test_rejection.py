"""Rejection sampling from a real server: what is kept, and what happens when something goes wrong."""

from __future__ import annotations

import json

import pytest

from tests.training.chat_server import chat_server, fails, says
from tests.worldmodels.language.tiny_lms import toy_prompt, toy_turns
from training.chat_endpoint import ChatEndpoint, EndpointError, QuestionRefusedError
from training.rejection import ACCEPTED, ANSWERS, RejectionConfig, reject
from training.text_questions import questions_of
from training.text_sft import read_examples
from worldmodels.language.answers import write_answer

QUESTIONS = questions_of(toy_turns(), toy_prompt)
TRUTH = {question.prompt: write_answer(question.before, question.after) for question in QUESTIONS}
CONFIG = RejectionConfig(samples=4, concurrency=2)


def endpoint(server, **settings):
    return ChatEndpoint(base_url=server.base_url, model="toy", retries=0, backoff_s=0.01, **settings)


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def right(prompt, reasoning="It follows."):
    return says(f"The final answer is: {TRUTH[prompt]}", reasoning=reasoning)


def test_only_right_answers_are_kept(tmp_path):
    wrong = {0: says("I do not know"), 1: says("", finish="length"), 2: says('{"modified": []')}

    def answer(prompt, before):
        place = list(TRUTH).index(prompt)
        return right(prompt) if before >= place else wrong[min(before, 2)]

    with chat_server(answer) as server:
        counts = reject(QUESTIONS, endpoint(server), CONFIG, tmp_path)
    # Question n is right at try n (counted from 0); the fifth would be at try 4, but gets 4 tries.
    assert counts == {"questions": 5, "refused": 0, "accepted": 4, "right": 4, "wrong": 7, "cut": 3}
    assert len(server.requests) == 1 + 2 + 3 + 4 + 4
    accepted = lines(tmp_path / ACCEPTED)
    assert [line["id"] for line in accepted] == [question.id for question in QUESTIONS[:4]]
    assert [line["changed"] for line in accepted] == [True, True, True, False]
    examples = read_examples(tmp_path / ACCEPTED)
    assert examples[0].prompt == QUESTIONS[0].prompt
    assert examples[0].target.startswith("<think>\nIt follows.\n</think>\n\nThe final answer is: {")
    assert (examples[0].id, examples[0].game) == (QUESTIONS[0].id, "kettle")


def test_cut_answers_are_never_kept(tmp_path):
    with chat_server(lambda prompt, _: says(TRUTH[prompt], finish="length")) as server:
        counts = reject(QUESTIONS[:1], endpoint(server), CONFIG, tmp_path)
    assert counts == {"questions": 1, "refused": 0, "accepted": 0, "cut": 4}
    assert (tmp_path / ACCEPTED).read_text() == ""


def test_text_that_no_file_holds_is_not_kept(tmp_path):
    with chat_server(lambda prompt, _: right(prompt, reasoning="\ud800")) as server:
        counts = reject(QUESTIONS[:1], endpoint(server), CONFIG, tmp_path)
    assert (counts["accepted"], counts["no text"]) == (0, 4)


def test_a_run_goes_on_and_asks_nothing_twice(tmp_path):
    def answer(prompt, _):
        return fails(401) if prompt == QUESTIONS[3].prompt and broken else right(prompt)

    broken, whole, parts = True, tmp_path / "whole", tmp_path / "parts"
    with chat_server(answer) as server:
        with pytest.raises(EndpointError, match="HTTP 401"):
            reject(QUESTIONS, endpoint(server), RejectionConfig(concurrency=1), parts)
        asked = len(server.requests)
        assert [line["id"] for line in lines(parts / ANSWERS)[1:]] == [q.id for q in QUESTIONS[:3]]
        with (parts / ANSWERS).open("a") as file:
            file.write('{"id": "torn')  # killed while writing
        broken = False
        reject(QUESTIONS, endpoint(server), RejectionConfig(concurrency=3), parts)
        assert sorted(server.prompts[asked:]) == sorted(q.prompt for q in QUESTIONS[3:])
        reject(QUESTIONS, endpoint(server), RejectionConfig(), whole)
        asked = len(server.requests)
        reject(QUESTIONS, endpoint(server), RejectionConfig(), whole)
        assert len(server.requests) == asked
    assert (whole / ACCEPTED).read_bytes() == (parts / ACCEPTED).read_bytes()


def test_other_questions_or_settings_want_another_folder(tmp_path):
    with chat_server(lambda prompt, _: right(prompt)) as server:
        ask = endpoint(server)
        reject(QUESTIONS, ask, CONFIG, tmp_path)
        with pytest.raises(ValueError, match="temperature was 1.0"):
            reject(QUESTIONS, ask, RejectionConfig(samples=4, temperature=0.5), tmp_path)
        others = questions_of(toy_turns(), lambda *asked: "Now: " + toy_prompt(*asked))
        with pytest.raises(ValueError, match="answers to another prompt"):
            reject(others, ask, CONFIG, tmp_path)
        with pytest.raises(ValueError, match="same id"):
            reject(QUESTIONS + QUESTIONS, ask, CONFIG, tmp_path)
        (tmp_path / ANSWERS).write_text("[1]\n[2]\n")
        with pytest.raises(ValueError, match="is damaged"):
            reject(QUESTIONS, ask, CONFIG, tmp_path)


def test_refused_questions_are_passed_over_but_not_all(tmp_path):
    def answer(prompt, _):
        return fails(400, "too long") if refuse_all or prompt == QUESTIONS[1].prompt else right(prompt)

    refuse_all = False
    with chat_server(answer) as server:
        counts = reject(QUESTIONS, endpoint(server), CONFIG, tmp_path / "one")
        assert (counts["refused"], counts["accepted"]) == (1, 4)
        refuse_all = True
        with pytest.raises(QuestionRefusedError, match="3 questions were refused.*too long"):
            reject(QUESTIONS, endpoint(server), RejectionConfig(max_refused=2), tmp_path / "all")


def test_more_than_one_answer_and_the_balance(tmp_path):
    with chat_server(lambda prompt, before: right(prompt, f"Way {before}")) as server:
        config = RejectionConfig(keep=3, unchanged_per_100=50)
        counts = reject(QUESTIONS, endpoint(server), config, tmp_path)
    assert (counts["right"], counts["accepted"]) == (15, 9 + 4)  # half of nine, rounded
    assert [line["reasoning"] for line in lines(tmp_path / ACCEPTED)][:3] == ["Way 0", "Way 1", "Way 2"]


def test_settings_are_checked():
    with pytest.raises(ValueError, match="samples is 0"):
        RejectionConfig(samples=0)
    with pytest.raises(ValueError, match="'property'"):
        RejectionConfig(reward="property")
