"""A stand-in for the part of vLLM that the tiny GRPO job talks to: token-in, token-out generation, and the calls of a weight update.

It answers at once unless it is held, with the tokens that it is told (the end token alone), and stamps answers with the weight version that it was told. ``calls`` is what
it was asked, in order.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

EOS = 1


class Double:
    """One sampler."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.version = "default"
        self.weights = ""
        self.paused = False
        self.free = threading.Event()
        self.free.set()
        self.breaks: set[str] = set()
        """Paths that are answered with 500."""
        self.held: dict[str, threading.Event] = {}
        """Paths whose answer waits for an event; what they do is done before."""
        self.answer_with: tuple[int, str] | None = None
        """Status and text of the next generations, in place of an answer."""
        self.finish_reason = "stop"
        self.tokens: Callable[[], list[int]] = lambda: [EOS]
        self.hang_up = False
        """Whether a generation ends with a closed connection."""
        self.waiting = 0
        self.changed = threading.Condition()
        self.url = ""

    def start_anew(self) -> None:
        """As after a crash of its container: its first weights, at the same address."""
        self.version, self.weights, self.paused = "default", "", False

    def wait_until(self, what: Any, timeout_s: float = 20.0) -> None:
        with self.changed:
            assert self.changed.wait_for(what, timeout_s), (self.calls[-20:], self.waiting)

    def _note(self, call: str) -> None:
        with self.changed:
            self.calls.append(call)
            self.changed.notify_all()

    def handle(self, path: str, body: Any) -> tuple[int, Any] | None:
        """The answer to a POST; None closes the connection."""
        if path == "/inference/v1/generate":
            return self._generate()
        self._note(path)
        if path in self.breaks:
            return 500, {"error": "broken"}
        if path.startswith("/pause"):
            self.paused = True
        elif path == "/resume":
            self.paused = False
        elif path == "/collective_rpc":
            assert self.paused, "weights change while tokens are written"
            self.weights = body["kwargs"]["weights_path"]
        elif path == "/update_weight_version":
            self.version = body["new_version"]
        with self.changed:
            self.changed.notify_all()
        if path in self.held:
            self.held[path].wait()
        return 200, {}

    def _generate(self) -> tuple[int, Any] | None:
        version = self.version
        with self.changed:
            self.calls.append(f"generate by {version}")
            self.waiting += 1
            self.changed.notify_all()
        self.free.wait()
        with self.changed:
            self.waiting -= 1
            self.changed.notify_all()
        if self.hang_up:
            return None
        if self.answer_with is not None:
            return self.answer_with
        tokens = self.tokens()
        spans = [{"version": version, "start": 0, "end": len(tokens)}]
        return 200, {
            "choices": [
                {
                    "finish_reason": self.finish_reason,
                    "token_ids": tokens,
                    "weight_versions": spans,
                    "logprobs": {"content": [{"logprob": -0.5} for _ in tokens]},
                }
            ]
        }


@contextmanager
def double() -> Iterator[Double]:
    """A double that listens on the loopback."""
    made = Double()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self._answer(200, {})

        def do_POST(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            answer = made.handle(self.path, json.loads(self.rfile.read(length) or b"null"))
            if answer is None:
                self.close_connection = True
                return
            self._answer(*answer)

        def _answer(self, status: int, value: Any) -> None:
            text = (value if isinstance(value, str) else json.dumps(value)).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(text)))
            self.send_header("Content-Type", "application/json")
            self.end_headers()
            with suppress(OSError):  # the client may have given up
                self.wfile.write(text)

        def log_message(self, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    made.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield made
    finally:
        made.free.set()
        server.shutdown()
        server.server_close()
        thread.join()
