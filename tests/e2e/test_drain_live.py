"""The drain before a real vLLM: what it waits for, and that nothing is cut when a server is stopped after it."""

from __future__ import annotations

import json
import math
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import rljob_runtime
from dev.vllm.server import Server
from rljob_runtime.drain import Outcome, Patience, drain
from rljob_runtime.sampler import Look, Sampler, State

pytestmark = pytest.mark.vllm

LONG_S = 240.0
"""Nothing here takes so long on two busy cores."""


def ask(url: str, tokens: int) -> dict[str, Any]:
    """A completion of exactly ``tokens`` tokens, whole; raises what the connection or the server says."""
    body = {"model": "tiny", "prompt": "1 2 3", "max_tokens": tokens, "ignore_eos": True}
    request = urllib.request.Request(
        f"{url}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=LONG_S) as answer:
        found: dict[str, Any] = json.load(answer)
        return found


def is_whole(answer: dict[str, Any], tokens: int) -> bool:
    return answer["choices"][0]["finish_reason"] == "length" and answer["usage"]["completion_tokens"] == tokens


def post(url: str) -> None:
    with urllib.request.urlopen(urllib.request.Request(url, b"", method="POST"), timeout=LONG_S) as answer:
        answer.read()


@pytest.fixture
def clients() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(64) as pool:
        yield pool


def seen(sampler: Sampler, wanted: Callable[[Look], bool]) -> Look:
    """Wait until a look is as wanted."""
    until = time.monotonic() + LONG_S
    while not wanted(look := sampler.look()):
        assert time.monotonic() < until, str(look)
        time.sleep(0.05)
    return look


def test_a_server_without_work_is_drained(live: str) -> None:
    assert drain(Sampler(live, timeout_s=30.0), Patience(LONG_S, settle_s=0.5, lag_s=0.0)) is Outcome.DRAINED


def test_a_burst_after_the_first_zero_is_waited_for(live: str, clients: ThreadPoolExecutor) -> None:
    sampler, asked = Sampler(live, timeout_s=30.0), list[Future[dict[str, Any]]]()
    asked += [clients.submit(ask, live, 400) for _ in range(8)]
    seen(sampler, lambda look: look.state is State.BUSY)
    times: list[float] = []

    class Watched(Sampler):
        def look(self, within_s: float = math.inf) -> Look:
            look = super().look(within_s)
            if look.state is State.IDLE and len(asked) == 8:
                asked.extend(clients.submit(ask, live, 400) for _ in range(4))
                seen(sampler, lambda look: look.state is State.BUSY)
                times.append(time.monotonic())
            return look

    assert drain(Watched(live, timeout_s=30.0), Patience(LONG_S, settle_s=1.0, lag_s=0.0)) is Outcome.DRAINED
    assert times, "the burst came"
    assert all(each.done() for each in asked), "nothing runs when it says that it is drained"
    assert all(is_whole(each.result(), 400) for each in asked)


def test_samples_that_a_paused_engine_holds_are_waited_for(live: str, clients: ThreadPoolExecutor) -> None:
    sampler = Sampler(live, timeout_s=30.0)
    asked: list[Future[dict[str, Any]]] = []
    post(f"{live}/pause?mode=keep")
    try:
        asked += [clients.submit(ask, live, 20) for _ in range(3)]
        held = seen(sampler, lambda look: look.load == 3)
        assert (held.state, held.halted) == (State.BUSY, "paused or asleep")
        assert (held.running, held.waiting) == (0, 0), "the metrics know nothing of them"
        blind = Sampler(live, timeout_s=30.0)
        blind._tracks_load = False
        assert blind.look().state is State.BLIND, "without the count of requests nothing is known"
        drained = clients.submit(drain, sampler, Patience(LONG_S, settle_s=0.5, lag_s=0.0))
        seen(blind, lambda look: look.state is State.BLIND)
        assert not drained.done()
    finally:
        post(f"{live}/resume")
    assert drained.result(LONG_S) is Outcome.DRAINED
    assert all(is_whole(each.result(LONG_S), 20) for each in asked)


def hook(url: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The preStop hook as a container runs it."""
    package = Path(rljob_runtime.__file__).parent.parent
    return subprocess.run(
        [sys.executable, "-m", "rljob_runtime", "drain", "--url", url, "--timeout", "30s", *arguments],
        env={"PYTHONPATH": str(package)},
        capture_output=True,
        text=True,
        timeout=LONG_S,
        check=False,
    )


@pytest.mark.timeout(900)
def test_nothing_is_cut_when_the_server_is_stopped_after_the_hook(
    serve: Callable[..., Server], clients: ThreadPoolExecutor
) -> None:
    server = serve("--shutdown-timeout", "60", "--enable-server-load-tracking", max_running=4)
    early = hook(server.url, "--deadline", "200s")
    assert early.returncode == 0
    assert "the server ended or never came up" in early.stderr, "a server that still loads has nothing to drain"
    server.wait_ready()
    sampler = Sampler(server.url, timeout_s=30.0, tracks_load=True)
    asked = [clients.submit(ask, server.url, 600) for _ in range(10)]
    seen(sampler, lambda look: look.load == 10)
    done = hook(server.url, "--deadline", "200s", "--settle", "1s", "--lag", "0", "--tracked")
    assert done.returncode == 0
    assert "drained after" in done.stderr, done.stderr
    assert all(each.done() and is_whole(each.result(), 600) for each in asked)

    # The deadline of another hook is over while work is left: the server's own timeout lets it finish, and refuses what is new.
    post(f"{server.url}/pause?mode=keep")
    asked = [clients.submit(ask, server.url, 1900) for _ in range(4)]
    seen(sampler, lambda look: look.load == 4)
    late = hook(server.url, "--deadline", "5s", "--settle", "1s", "--tracked")
    assert late.returncode == 0
    assert "the deadline is over" in late.stderr, late.stderr
    assert "with paused or asleep, 4 counted by /load" in late.stderr, late.stderr
    post(f"{server.url}/resume")
    server.signal(signal.SIGTERM)
    refused = _refused(server.url)
    assert all(is_whole(each.result(LONG_S), 1900) for each in asked)
    assert refused in (500, None), "not accepted, so it can be sent elsewhere"
    assert server.wait_exit(LONG_S) == 0
    gone = hook(server.url, "--deadline", "200s")
    assert gone.returncode == 0
    assert "the server ended or never came up" in gone.stderr


def _refused(url: str) -> int | None:
    """How a new request is refused while the server shuts down: its status, or None if the connection is; waits until it is."""
    until = time.monotonic() + LONG_S
    while time.monotonic() < until:
        try:
            ask(url, 1)
        except urllib.error.HTTPError as error:
            error.close()
            return error.code
        except OSError:
            return None
    raise AssertionError("it takes new requests for ever")
