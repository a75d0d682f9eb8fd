"""The ports that the operator listens on: for both families, and unmoved by connections that say nothing."""

from __future__ import annotations

import http.client
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest

from rljob_operator import listening


def hello(environ: Any, start: Any) -> list[bytes]:
    start("200 OK", [("Content-Type", "text/plain")])
    return [b"hello"]


@contextmanager
def served(address: str | None = "127.0.0.1") -> Iterator[int]:
    server, thread = listening.serve(0, hello, address)
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def ask(port: int, host: str = "127.0.0.1") -> bytes:
    connection = http.client.HTTPConnection(host, port, timeout=10)
    try:
        connection.request("GET", "/")
        return connection.getresponse().read()
    finally:
        connection.close()


def has_ipv6_loopback() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as tried:
            tried.bind(("::1", 0))
    except OSError:
        return False
    return True


def test_a_connection_that_says_nothing_is_closed_without_a_word(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(listening, "IDLE_S", 0.05)
    with served() as port:
        with socket.create_connection(("127.0.0.1", port), timeout=10) as silent:
            assert silent.recv(1) == b"", "closed by the server"
        assert ask(port) == b"hello"
    assert capsys.readouterr().err == ""
    assert caplog.records == []


def test_a_connection_beyond_the_limit_is_closed_at_once_and_a_place_is_given_again(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(listening, "MOST_CONNECTIONS", 2)
    held: list[threading.Event] = []
    begun = threading.Semaphore(0)

    def waiting(environ: Any, start: Any) -> list[bytes]:
        if environ["PATH_INFO"] == "/wait":
            held.append(threading.Event())
            begun.release()
            assert held[-1].wait(10)
        return hello(environ, start)

    server, thread = listening.serve(0, waiting, "127.0.0.1")
    with ExitStack() as stack:
        stack.callback(thread.join)
        stack.callback(server.server_close)
        stack.callback(server.shutdown)
        open_ones = [socket.create_connection(("127.0.0.1", server.server_port), timeout=10) for _ in range(2)]
        for connection in open_ones:
            stack.enter_context(connection)
            connection.sendall(b"GET /wait HTTP/1.0\r\n\r\n")
            assert begun.acquire(timeout=10)
        with socket.create_connection(("127.0.0.1", server.server_port), timeout=10) as further:
            assert further.recv(1) == b""
        for event in held:
            event.set()
        for connection in open_ones:
            while connection.recv(1000):
                pass
        # Each place is free once its connection is closed, or a moment later: the two that are asked for here may come before.
        free = server._places  # type: ignore[attr-defined]
        assert free.acquire(timeout=10)
        assert free.acquire(timeout=10)
        free.release()
        free.release()
        assert ask(server.server_port) == b"hello"
    assert capsys.readouterr().err == ""


def test_many_may_wait_to_be_let_in() -> None:
    server, thread = listening.serve(0, hello, "127.0.0.1")
    try:
        assert server.request_queue_size == listening.MOST_CONNECTIONS == 64
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def test_a_port_is_open_to_both_families() -> None:
    with served(None) as port:
        assert ask(port) == b"hello"
        if has_ipv6_loopback():
            assert ask(port, "::1") == b"hello"


@pytest.mark.parametrize("known", [True, False])
def test_without_ipv6_the_port_is_open_to_ipv4(monkeypatch: pytest.MonkeyPatch, known: bool) -> None:
    """Whether the kernel was built without it, or a setting turned it off so that no address can be bound."""

    def refused(self: Any) -> None:
        raise OSError(99, "Cannot assign requested address")

    monkeypatch.setattr(socket, "has_dualstack_ipv6", lambda: known)
    monkeypatch.setattr(listening._DualStack, "server_bind", refused)
    with served(None) as port:
        assert ask(port) == b"hello"


def test_a_port_that_is_taken_is_said_to_be() -> None:
    with served(None) as port, pytest.raises(OSError, match="in use"):
        listening.serve(port, hello)


@pytest.mark.parametrize(
    ("routes", "url", "found"),
    [
        ({socket.AF_INET}, "http://0.0.0.0:8080/healthz", "http://0.0.0.0:8080/healthz"),
        ({socket.AF_INET, socket.AF_INET6}, "http://0.0.0.0:8080/healthz", "http://0.0.0.0:8080/healthz"),
        ({socket.AF_INET6}, "http://0.0.0.0:8080/healthz", "http://[::]:8080/healthz"),
        ({socket.AF_INET6}, "http://127.0.0.1:8080/healthz", "http://127.0.0.1:8080/healthz"),
        (set(), "http://0.0.0.0:8080/healthz", "http://0.0.0.0:8080/healthz"),
    ],
)
def test_the_probe_s_port_is_open_where_only_ipv6_is(
    monkeypatch: pytest.MonkeyPatch, routes: set[socket.AddressFamily], url: str, found: str
) -> None:
    monkeypatch.setattr(listening, "has_route", routes.__contains__)
    assert listening.reachable(url) == found


def test_a_family_that_the_machine_lacks_has_no_route(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: Any) -> None:
        raise OSError(97, "Address family not supported by protocol")

    monkeypatch.setattr(socket, "socket", missing)
    assert not listening.has_route(socket.AF_INET6)
