"""One question to a chat endpoint that speaks the OpenAI protocol: a hosted model, or a server of one's own.

Special: what may pass is tried again, later each time and not before the server wants it; what will not pass is an
error in words at once. A redirect is an error, too: the key goes to the address that was given and nowhere else. The
key is read from an environment variable and stands in no message and no file.

Absent: streaming, tools, several answers per request (many servers know only one), and any opinion about answers.
"""

from __future__ import annotations

import json
import os
import time
import urllib.error
import urllib.request
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from http.client import HTTPException
from typing import Any
from urllib.parse import urlsplit

_PASSING = (408, 409, 425, 429)  # and all of 5xx
_ABOUT_THE_QUESTION = (400, 413, 422)
_LONGEST_WAIT_S = 60.0
_MAX_BODY_BYTES = 1 << 24


class EndpointError(OSError):
    """The endpoint cannot be used as it was asked to."""


class QuestionRefusedError(EndpointError):
    """The endpoint does not take this question; it may take others."""


@dataclass(frozen=True, kw_only=True)
class ChatAnswer:
    """What a model said.

    Attributes:
        text: The answer; empty where there is none.
        reasoning: What it thought before, where the server keeps that apart.
        cut: The answer did not end within ``max_tokens``.
    """

    text: str
    reasoning: str | None = None
    cut: bool = False


@dataclass(frozen=True, kw_only=True)
class ChatEndpoint:
    """Where to ask.

    Attributes:
        base_url: Up to and with the version, for example ``http://localhost:8000/v1``.
        model: Name of the model, as the server knows it.
        key_variable: Environment variable that holds the key; None sends no key.
        timeout_s: Seconds without a byte after which a request has failed.
        retries: How often a request that failed is tried again.
        backoff_s: Seconds before the first new try; twice as many before each further one, at most a minute.
        extra: More entries of the request, for example ``{"reasoning_effort": "high"}``.
    """

    base_url: str
    model: str
    key_variable: str | None = None
    timeout_s: float = 600.0
    retries: int = 6
    backoff_s: float = 1.0
    extra: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        parts = urlsplit(self.base_url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.username or parts.query:
            raise ValueError(
                "base_url must be http(s)://host[:port]/path without a name or key in it, for example "
                "http://localhost:8000/v1"
            )
        if self.timeout_s <= 0 or self.retries < 0 or self.backoff_s < 0:
            raise ValueError(
                f"timeout_s {self.timeout_s}, retries {self.retries} and backoff_s {self.backoff_s} must not be "
                "negative, and the timeout not 0"
            )
        if self.key_variable is not None and not os.environ.get(self.key_variable):
            raise ValueError(
                f"the environment variable {self.key_variable!r} that should hold the key is not set; set it, or use "
                "key_variable=None for a server that wants none"
            )

    @property
    def url(self) -> str:
        """Where requests go."""
        return self.base_url.rstrip("/") + "/chat/completions"

    def ask(self, prompt: str, *, temperature: float, top_p: float, max_tokens: int) -> ChatAnswer:
        """One answer to a prompt that is the user's only turn.

        Raises:
            QuestionRefusedError: This question is not taken (too long, for example).
            EndpointError: No answer after all retries, or the endpoint will never answer (key, name, address).
        """
        body = {
            "model": self.model,
            "messages": [{"role": "user", "content": prompt}],
            "temperature": temperature,
            "top_p": top_p,
            "max_tokens": max_tokens,
            **self.extra,
        }
        for attempt in range(self.retries + 1):
            try:
                return _read(self._post(json.dumps(body).encode()))
            except _PassingError as error:
                if attempt == self.retries:
                    raise EndpointError(
                        f"{self.url} gave no answer in {attempt + 1} tries; the last: {error}"
                    ) from error
                # Clients that failed together come back one by one.
                spread = 0.5 + zlib.crc32(f"{attempt} {prompt}".encode(errors="replace")) / 2**33
                wait = min(_LONGEST_WAIT_S, self.backoff_s * 2**attempt * spread)
                time.sleep(max(wait, min(_LONGEST_WAIT_S, error.wait_s)))
        raise AssertionError("unreachable")

    def _post(self, body: bytes) -> bytes:
        headers = {"Content-Type": "application/json", "Accept": "application/json"}
        if self.key_variable is not None:
            headers["Authorization"] = f"Bearer {os.environ[self.key_variable].strip()}"
        request = urllib.request.Request(self.url, data=body, headers=headers, method="POST")
        try:
            with _OPENER.open(request, timeout=self.timeout_s) as response:
                found: bytes = response.read(_MAX_BODY_BYTES + 1)
        except urllib.error.HTTPError as error:
            raise self._problem(error) from None  # its headers hold the key
        except (OSError, HTTPException) as error:
            reason = getattr(error, "reason", error)
            raise _PassingError(f"{type(error).__name__}: {reason}") from None
        if len(found) > _MAX_BODY_BYTES:
            raise EndpointError(f"{self.url} sent more than {_MAX_BODY_BYTES} bytes")
        return found

    def _problem(self, error: urllib.error.HTTPError) -> Exception:
        try:
            said = error.read(2000).decode(errors="replace").strip()[:300]
        except (OSError, HTTPException):
            said = ""
        if self.key_variable is not None:  # some servers repeat what they were sent
            said = said.replace(os.environ[self.key_variable].strip(), "[key]")
        what = f"HTTP {error.code} {error.reason}: {said}"
        if error.code in _PASSING or error.code >= 500:
            after = (error.headers.get("Retry-After") or "").strip()
            return _PassingError(what, float(after) if after.isascii() and after.isdecimal() else 0.0)
        if error.code in _ABOUT_THE_QUESTION:
            return QuestionRefusedError(f"{self.url} does not take this question: {what}")
        hints = {
            401: "; is the key right (key_variable)?",
            403: "; may this key use this model?",
            404: "; are base_url and the model's name right?",
        }
        hint = "; give the address that it leads to" if 300 <= error.code < 400 else hints.get(error.code, "")
        return EndpointError(f"{self.url} with model {self.model!r} answers {what}{hint}")


class _PassingError(Exception):
    """What may be over in a while."""

    def __init__(self, message: str, wait_s: float = 0.0) -> None:
        super().__init__(message)
        self.wait_s = wait_s


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None


_OPENER = urllib.request.build_opener(_NoRedirect)


def _read(body: bytes) -> ChatAnswer:
    try:
        choice = json.loads(body)["choices"][0]
        message = choice["message"]
        found = {key: message.get(key) for key in ("content", "reasoning_content", "reasoning")}
    except (ValueError, KeyError, IndexError, TypeError, AttributeError, RecursionError) as error:
        raise _PassingError(f"no chat completion ({type(error).__name__}): {body[:200]!r}") from error
    content, *thoughts = (value if isinstance(value, str) else None for value in found.values())
    return ChatAnswer(
        text=content or "",
        reasoning=next((thought for thought in thoughts if thought), None),
        cut=choice.get("finish_reason") == "length",
    )
