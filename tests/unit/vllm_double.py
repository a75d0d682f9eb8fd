"""A stand-in for a vLLM server where none can run: the behaviour that drains and clients depend on, over real HTTP.

Requests take no processor time: each is finished when the test says so (``finish``), or after ``token_s`` a token. What it does is what
vLLM 0.32 was seen to do; the contract tests ask a real server and this one the same questions:

- ``/health`` is 200 while the engine is paused, asleep or shutting down, and 503 when it is dead.
- While the engine is halted nothing runs on, requests queue silently, and the metrics keep their last values.
- ``/load`` counts requests in every state, but only with load tracking.
- The endpoints of training (pause, sleep) are there in dev mode alone.
- SIGTERM with a shutdown timeout lets requests finish while new ones get 500; without one they end at once, as ``abort``, and the port closes.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

DEAD = {"error": {"message": "EngineCore encountered an issue.", "type": "InternalServerError", "code": 500}}

NONE = "none"
"""In place of a reason: the stream ends without one."""

LABELS = '{engine="0",model_name="tiny"}'


@dataclass
class Request:
    """One request that the double holds."""

    max_tokens: int
    generated: int = 0
    reason: str = ""
    """Why it ended; empty while it has not."""
    asked: bool = False
    """Whether somebody waits for its answer over HTTP."""


@dataclass
class Engine:
    """The state of the double; every method may be called from a test while requests come in."""

    seats: int = 4
    """Most running requests."""
    token_s: float | None = None
    """Seconds of a token of every running request; None: a request ends by ``finish`` alone."""
    dev_mode: bool = True
    tracks_load: bool = False
    delay_s: float = 0.0
    """How long every answer takes."""
    paused: bool = False
    asleep: bool = False
    dead: bool = False
    stopping: bool = False
    mute: bool = False
    """Whether connections are accepted and never answered."""
    failing: bool = False
    """Whether /metrics answers 500."""
    requests: list[Request] = field(default_factory=list)
    """Those that have not ended."""
    tokens: int = 0
    iterations: int = 0
    rejected: int = 0
    """Requests that were answered with an error."""

    def __post_init__(self) -> None:
        self.changed = threading.Condition(threading.RLock())
        self._shown = (0, 0, 0, 0)

    @property
    def halted(self) -> bool:
        return self.paused or self.asleep

    def _publish(self) -> None:
        """What the engine counts at the end of an iteration; a halted one has none."""
        if not self.halted and not self.dead:
            running = min(self.seats, len(self.requests))
            self._shown = (running, len(self.requests) - running, self.tokens, self.iterations)

    def submit(self, number: int = 1, max_tokens: int = 16, *, asked: bool = False) -> list[Request]:
        """Take requests, as from clients; what they wait for is up to ``finish``."""
        with self.changed:
            made = [Request(max_tokens, asked=asked) for _ in range(number)]
            self.requests += made
            self._publish()
            self.changed.notify_all()
            return made

    def finish(self, number: int | None = None, reason: str = "stop") -> None:
        """End the oldest running requests, all if None. A halted engine ends nothing."""
        with self.changed:
            if self.halted or self.dead:
                raise AssertionError("a halted engine finishes nothing")
            for request in self.requests[:number]:
                self._end(request, reason)
            self._iterate()

    def _end(self, request: Request, reason: str) -> None:
        request.reason = reason
        self.requests.remove(request)

    def _iterate(self) -> None:
        self.iterations += 1
        self._publish()
        self.changed.notify_all()

    def step(self) -> None:
        """One iteration: each running request gets a token."""
        with self.changed:
            if self.halted or self.dead or not self.requests:
                return
            for request in list(self.requests[: self.seats]):
                request.generated += 1
                self.tokens += 1
                if request.generated >= request.max_tokens:
                    self._end(request, "length")
            self._iterate()

    def lose_clients(self, *, stale: bool = False) -> None:
        """All clients go away at once. With ``stale`` the gauges keep what they showed, as versions before 0.32 do."""
        with self.changed:
            for request in list(self.requests):
                self._end(request, "abort")
            if not stale:
                self._publish()
            self.changed.notify_all()

    def halt(self, what: str, halted: bool, mode: str = "keep") -> None:
        """``paused`` or ``asleep``, or no longer; mode ``abort`` ends what is there, ``wait`` waits for its end."""
        with self.changed:
            if halted and mode == "wait":
                self.changed.wait_for(lambda: not self.requests)
            if halted and mode == "abort":
                for request in list(self.requests):
                    self._end(request, "abort")
                self._iterate()
            setattr(self, what, halted)
            self._publish()
            self.changed.notify_all()

    def metrics(self) -> str:
        with self.changed:
            running, waiting, tokens, iterations = self._shown
        lines = []
        for name, kind, value in (
            ("vllm:num_requests_running", "gauge", running),
            ("vllm:num_requests_waiting", "gauge", waiting),
            ("vllm:generation_tokens_total", "counter", tokens),
            ("vllm:prompt_tokens_total", "counter", 0),
            ("vllm:iteration_tokens_total_count", "", iterations),
        ):
            lines += [f"# TYPE {name} {kind}"] if kind else []
            lines.append(f"{name}{LABELS} {float(value)}")
        return "\n".join([*lines, ""])

    def load(self) -> int:
        with self.changed:
            return len(self.requests) if self.tracks_load else 0


class Double:
    """The HTTP server around an engine."""

    def __init__(self, engine: Engine, port: int = 0) -> None:
        self.engine = engine
        self._asked: dict[str, int] = {}
        double = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                double._get(self)

            def do_POST(self) -> None:
                double._post(self)

            def log_message(self, *_: object) -> None:
                pass

        self._http = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self._http.daemon_threads = True
        self.port = self._http.server_port
        self.url = f"http://127.0.0.1:{self.port}"
        self._closed = False
        self._thread = threading.Thread(target=lambda: self._http.serve_forever(0.01), daemon=True)
        self._thread.start()
        if engine.token_s is not None:
            threading.Thread(target=self._run, daemon=True).start()

    def asked(self, path: str) -> int:
        """How often ``path`` was asked for."""
        return self._asked.get(path, 0)

    def wait_asked(self, path: str, times: int, timeout_s: float = 60.0) -> None:
        """Wait until ``path`` was asked for so often."""
        with self.engine.changed:
            if not self.engine.changed.wait_for(lambda: self.asked(path) >= times, timeout_s):
                raise TimeoutError(f"{path} was asked for {self.asked(path)} times in {timeout_s} s, not {times}")

    def _run(self) -> None:
        while not self._closed and not self.engine.dead:
            time.sleep(self.engine.token_s or 0.0)
            self.engine.step()

    def close(self) -> None:
        """The port refuses from now on; what is asked has no answer any more."""
        if not self._closed:
            self._closed = True
            self._http.shutdown()
            self._http.server_close()
            self._thread.join()

    def kill_engine(self, *, closes: bool = False) -> None:
        """kill -9 of the engine: /health answers 503, and with ``closes`` the process goes, as vLLM's does within seconds."""
        with self.engine.changed:
            self.engine.dead = True
            for request in list(self.engine.requests):
                self.engine._end(request, "error")
            self.engine.changed.notify_all()
        if closes:
            self.close()

    def terminate(self, shutdown_timeout_s: float = 0.0) -> None:
        """SIGTERM: with a timeout, requests finish first, and new ones are refused; returns when the port is closed."""
        engine = self.engine
        with engine.changed:
            engine.stopping = True
            if shutdown_timeout_s > 0.0:
                engine.changed.wait_for(lambda: not engine.requests, shutdown_timeout_s)
            for request in list(engine.requests):
                engine._end(request, "abort")
            engine.changed.notify_all()
        self.close()

    def _get(self, asked: BaseHTTPRequestHandler) -> None:
        engine, path = self.engine, urlsplit(asked.path).path
        with engine.changed:
            self._asked[path] = self._asked.get(path, 0) + 1
            engine.changed.notify_all()
        if engine.mute:
            # Until the test is over, or the client gives up.
            with engine.changed:
                engine.changed.wait_for(lambda: not engine.mute, 60)
            asked.close_connection = True
            return
        time.sleep(engine.delay_s)
        if path == "/health":
            _answer(asked, 503 if engine.dead else 200, "")
        elif path == "/metrics":
            _answer(asked, 500 if engine.failing else 200, engine.metrics())
        elif path == "/load":
            _answer(asked, 200, {"server_load": engine.load()})
        elif path == "/version":
            _answer(asked, 200, {"version": "0.32.0+double"})
        elif path == "/is_paused" and engine.dev_mode:
            # An engine that sleeps says that it is paused, too, and one that is paused that it sleeps.
            _answer(asked, 200, {"is_paused": engine.halted})
        elif path == "/is_sleeping" and engine.dev_mode:
            _answer(asked, 200, {"is_sleeping": engine.halted})
        else:
            _answer(asked, 404, {"detail": "Not Found"})

    def _post(self, asked: BaseHTTPRequestHandler) -> None:
        engine, url = self.engine, urlsplit(asked.path)
        body = asked.rfile.read(int(asked.headers.get("Content-Length") or 0))
        mode = parse_qs(url.query).get("mode", ["abort"])[0]
        if url.path == "/v1/completions":
            self._complete(asked, json.loads(body))
        elif not engine.dev_mode:
            _answer(asked, 404, {"detail": "Not Found"})
        elif url.path == "/pause":
            engine.halt("paused", True, mode)
            _answer(asked, 200, {"status": "paused"})
        elif url.path == "/resume":
            engine.halt("paused", False)
            _answer(asked, 200, {"status": "resumed"})
        elif url.path == "/sleep":
            engine.halt("asleep", True, mode)
            _answer(asked, 200, {"status": "sleeping", "level": 1})
        elif url.path == "/wake_up":
            engine.halt("asleep", False)
            _answer(asked, 200, {"status": "awake", "tags": None})
        else:
            _answer(asked, 404, {"detail": "Not Found"})

    def _complete(self, asked: BaseHTTPRequestHandler, body: dict[str, Any]) -> None:
        engine = self.engine
        if engine.dead:
            engine.rejected += 1
            _answer(asked, 500, DEAD)
            return
        if engine.stopping:
            engine.rejected += 1
            # What refuses requests is the tokenizer. Token ids pass it, and the engine drops them.
            if isinstance(body.get("prompt"), list) and body.get("stream"):
                self._stream(asked, Request(0, reason=NONE))
                return
            if isinstance(body.get("prompt"), list):
                choice = {"index": 0, "text": "", "finish_reason": "abort"}
                _answer(asked, 200, {"choices": [choice], "usage": {"completion_tokens": 0}})
                return
            _answer(asked, 500, {"error": {"message": "cannot schedule new futures after shutdown", "code": 500}})
            return
        (request,) = engine.submit(max_tokens=int(body.get("max_tokens", 16)), asked=True)
        if body.get("stream"):
            self._stream(asked, request)
            return
        with engine.changed:
            engine.changed.wait_for(lambda: request.reason)
        if request.reason == "error":
            _answer(asked, 500, DEAD)
            return
        choice = {"index": 0, "text": "x" * request.generated, "finish_reason": request.reason}
        _answer(asked, 200, {"choices": [choice], "usage": {"completion_tokens": request.generated}})

    def _stream(self, asked: BaseHTTPRequestHandler, request: Request) -> None:
        """Tell tokens as they come. How a stream ended says its last reason alone: [DONE] comes after an error as well."""
        engine, told = self.engine, 0
        asked.send_response(200)
        asked.send_header("Content-Type", "text/event-stream")
        asked.send_header("Connection", "close")
        asked.end_headers()
        asked.close_connection = True
        try:
            while True:
                with engine.changed:
                    engine.changed.wait_for(lambda seen=told: request.reason or request.generated > seen)
                    reason, fresh = request.reason, request.generated - told
                    told = request.generated
                if reason == "error":
                    _event(asked, DEAD)
                    break
                if reason != NONE:
                    _event(asked, {"choices": [{"index": 0, "text": "x" * fresh, "finish_reason": reason or None}]})
                if reason:
                    _event(asked, {"choices": [], "usage": {"completion_tokens": told}})
                    break
            asked.wfile.write(b"data: [DONE]\n\n")
        except OSError:
            with engine.changed:  # the client has gone
                if request in engine.requests:
                    engine._end(request, "abort")
                engine._publish()
                engine.changed.notify_all()


def _answer(asked: BaseHTTPRequestHandler, status: int, body: object) -> None:
    data = (body if isinstance(body, str) else json.dumps(body)).encode()
    try:
        asked.send_response(status)
        asked.send_header("Content-Type", "text/plain" if isinstance(body, str) else "application/json")
        asked.send_header("Content-Length", str(len(data)))
        asked.end_headers()
        asked.wfile.write(data)
    except OSError:
        asked.close_connection = True


def _event(asked: BaseHTTPRequestHandler, event: object) -> None:
    asked.wfile.write(f"data: {json.dumps(event)}\n\n".encode())
    asked.wfile.flush()


@contextmanager
def double(**of_engine: Any) -> Iterator[Double]:
    """A double that listens at a free port."""
    found = Double(Engine(**of_engine))
    try:
        yield found
    finally:
        found.engine.mute = False
        with found.engine.changed:
            found.engine.changed.notify_all()
        found.close()
