"""A sidecar's drains: one at a time, none kept."""

from __future__ import annotations

import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from rljob_runtime.hook import Drains, server

LONG_S = 60.0


def until(condition) -> None:  # type: ignore[no-untyped-def]
    end = time.monotonic() + LONG_S
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.001)


@contextmanager
def listening(drains: Drains) -> Iterator[int]:
    with server(0, drains, lambda _: None) as found:
        thread = threading.Thread(target=found.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield found.server_port
        finally:
            found.shutdown()
            thread.join()


def get(port: int, path: str, host: str = "127.0.0.1") -> str:
    with urllib.request.urlopen(f"http://{host}:{port}{path}", timeout=LONG_S) as answer:
        text: str = answer.read().decode()
        return text


def test_who_asks_while_a_drain_is_under_way_waits_for_that_one() -> None:
    begun, release = [], threading.Event()

    def run() -> str:
        begun.append(1)
        assert release.wait(LONG_S)
        return "drained"

    drains = Drains(run)
    with listening(drains) as port, ThreadPoolExecutor() as pool:
        hooks = [pool.submit(get, port, "/drain") for _ in range(2)]
        until(lambda: drains.waiting == 2)
        assert get(port, "/health") == "ok\n"
        assert not any(each.done() for each in hooks)
        release.set()
        assert [each.result(LONG_S) for each in hooks] == ["drained\n", "drained\n"]
    assert begun == [1]


def test_an_outcome_is_not_kept() -> None:
    outcomes = iter(["drained", "deadline"])
    with listening(Drains(lambda: next(outcomes))) as port:
        assert get(port, "/drain?early") == "drained\n"
        assert get(port, "/drain") == "deadline\n"


def test_both_kinds_of_addresses_are_answered() -> None:
    with listening(Drains(lambda: "drained")) as port:
        assert get(port, "/health") == "ok\n"
        try:
            assert get(port, "/health", "[::1]") == "ok\n"
        except urllib.error.URLError as error:
            if isinstance(error.reason, OSError) and error.reason.errno in (97, 99):
                pytest.skip("this machine has no IPv6")
            raise


def test_another_path_says_which_one_to_ask_for() -> None:
    with listening(Drains(lambda: "drained")) as port, pytest.raises(urllib.error.HTTPError) as found:
        get(port, "/")
    assert found.value.code == 404
    assert found.value.read() == b"ask for /drain\n"
    found.value.close()


def test_a_drain_that_fails_does_not_block_the_next() -> None:
    outcomes = iter([RuntimeError("no"), "drained"])

    def run() -> str:
        found = next(outcomes)
        if isinstance(found, Exception):
            raise found
        return str(found)

    drains = Drains(run)
    with pytest.raises(RuntimeError, match="no"):
        drains.ask()
    assert drains.ask() == "drained"
    assert drains.waiting == 0
