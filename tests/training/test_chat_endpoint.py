"""The chat endpoint, against a real server on this machine."""

from __future__ import annotations

import time

import pytest

from tests.training.chat_server import Reply, chat_server, fails, says
from training.chat_endpoint import ChatEndpoint, EndpointError, QuestionRefusedError

SAMPLING = {"temperature": 0.7, "top_p": 0.9, "max_tokens": 50}


def endpoint(server, **settings):
    return ChatEndpoint(
        base_url=server.base_url, model="toy", **{"retries": 3, "backoff_s": 0.01, **settings}
    )


def test_a_question_and_its_answer(monkeypatch):
    monkeypatch.setenv("TOY_KEY", "secret\n")
    with chat_server(lambda *_: says("été", reasoning="hm")) as server:
        answer = endpoint(server, key_variable="TOY_KEY", extra={"top_k": 3}).ask("Où?", **SAMPLING)
    assert (answer.text, answer.reasoning, answer.cut) == ("été", "hm", False)
    assert server.requests == [
        {"model": "toy", "messages": [{"role": "user", "content": "Où?"}], **SAMPLING, "top_k": 3}
    ]
    assert server.paths == ["/v1/chat/completions"]
    assert server.headers[0]["Authorization"] == "Bearer secret"


def test_answers_that_lack_something():
    replies = {"cut": says("half", finish="length"), "none": says(None), "parts": says([{"type": "text"}])}
    with chat_server(lambda prompt, _: replies[prompt]) as server:
        said = {name: endpoint(server).ask(name, **SAMPLING) for name in replies}
    assert (said["cut"].text, said["cut"].cut) == ("half", True)
    assert said["none"].text == said["parts"].text == ""
    assert "Authorization" not in server.headers[0]


@pytest.mark.parametrize(
    "first",
    [
        fails(500, "busy"),
        fails(429),
        Reply(body=b"<html>a proxy</html>"),
        Reply(body=b'{"choices": []}'),
        Reply(body=b'{"choices": [{"mess', cut=True),
    ],
    ids=["server error", "too many", "no JSON", "no choice", "broken off"],
)
def test_what_may_pass_is_tried_again(first):
    with chat_server(lambda _, before: says("yes") if before else first) as server:
        assert endpoint(server).ask("?", **SAMPLING).text == "yes"
    assert len(server.requests) == 2


def test_it_waits_as_long_as_the_server_wants():
    with chat_server(lambda _, n: says("yes") if n else fails(503, headers={"Retry-After": "1"})) as server:
        started = time.perf_counter()
        assert endpoint(server).ask("?", **SAMPLING).text == "yes"
    assert time.perf_counter() - started >= 1


def test_it_gives_up_in_the_end():
    with (
        chat_server(lambda *_: fails(502, "no model")) as server,
        pytest.raises(EndpointError, match=r"3 tries; the last: HTTP 502.*no model"),
    ):
        endpoint(server, retries=2).ask("?", **SAMPLING)
    assert len(server.requests) == 3


def test_a_server_that_is_too_slow_or_not_there():
    with (
        chat_server(lambda *_: says("late", delay_s=0.5)) as server,
        pytest.raises(EndpointError, match=r"no answer in 2 tries.*timed out"),
    ):
        endpoint(server, retries=1, timeout_s=0.1).ask("?", **SAMPLING)
    with pytest.raises(EndpointError, match="refused"):
        endpoint(server, retries=0).ask("?", **SAMPLING)


def test_what_will_not_pass_is_an_error_at_once(monkeypatch):
    monkeypatch.setenv("TOY_KEY", "secret")
    replies = {
        "key": fails(401, "bad key secret"),
        "name": fails(404),
        "moved": fails(307, headers={"Location": "http://127.0.0.1:9/v1"}),
        "long": fails(400, "too many tokens"),
    }
    errors = {}
    with chat_server(lambda prompt, _: replies[prompt]) as server:
        for prompt in replies:
            with pytest.raises(EndpointError) as found:
                endpoint(server, key_variable="TOY_KEY").ask(prompt, **SAMPLING)
            errors[prompt] = found.value
    assert len(server.requests) == 4  # none twice
    assert "is the key right" in str(errors["key"])
    assert "secret" not in str(errors["key"])
    assert "model's name" in str(errors["name"])
    assert "give the address that it leads to" in str(errors["moved"])
    assert isinstance(errors["long"], QuestionRefusedError)
    assert "too many tokens" in str(errors["long"])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"base_url": "localhost:8000"}, "base_url must be"),
        ({"base_url": "https://me:key@host/v1"}, "without a name or key"),
        ({"timeout_s": 0}, "timeout"),
        ({"key_variable": "NO_SUCH_KEY"}, "'NO_SUCH_KEY'"),
    ],
)
def test_settings_are_checked(settings, message):
    with pytest.raises(ValueError, match=message):
        ChatEndpoint(**{"base_url": "http://localhost:1/v1", "model": "toy", **settings})
