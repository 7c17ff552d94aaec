"""A chat server on this machine that speaks the OpenAI protocol, and says what a test wants."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Reply:
    """What the server sends; ``cut`` promises more bytes than it sends."""

    body: bytes
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    delay_s: float = 0.0
    cut: bool = False


@dataclass
class Server:
    """Where it listens, and what it was asked."""

    base_url: str
    requests: list[dict[str, Any]] = field(default_factory=list)
    headers: list[Mapping[str, str]] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)

    @property
    def prompts(self) -> list[str]:
        return [request["messages"][0]["content"] for request in self.requests]


def says(content: Any, *, reasoning: str | None = None, finish: str = "stop", **more: Any) -> Reply:
    message = {"role": "assistant", "content": content, "reasoning_content": reasoning}
    choice = {"index": 0, "message": message, "finish_reason": finish}
    return Reply(body=json.dumps({"object": "chat.completion", "choices": [choice]}).encode(), **more)


def fails(status: int, text: str = "", **more: Any) -> Reply:
    return Reply(body=json.dumps({"error": {"message": text}}).encode(), status=status, **more)


@contextmanager
def chat_server(answer: Callable[[str, int], Reply]) -> Iterator[Server]:
    """``answer`` gets the prompt and how often it was asked before."""
    lock = threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            prompt = body["messages"][0]["content"]
            with lock:
                before = server.prompts.count(prompt)
                server.requests.append(body)
                server.headers.append(dict(self.headers))
                server.paths.append(self.path)
            reply = answer(prompt, before)
            time.sleep(reply.delay_s)
            try:
                self.send_response(reply.status)
                for name, value in reply.headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(reply.body) + 100 * reply.cut))
                self.end_headers()
                self.wfile.write(reply.body)
            except OSError:
                pass  # the client did not wait

        def log_message(self, *_: Any) -> None:
            pass

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    http.daemon_threads = True
    server = Server(f"http://127.0.0.1:{http.server_port}/v1")
    thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        http.shutdown()
        http.server_close()
        thread.join()
