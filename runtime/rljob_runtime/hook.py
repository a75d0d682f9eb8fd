"""The drain as a sidecar, for a sampler's image in which this package is not installed.

The sampler's container has an ``httpGet`` preStop hook that asks the sidecar for ``/drain``. The kubelet waits for the answer, as long as the grace
period lasts, before it stops the sampler; a native sidecar lives until the sampler's container is gone.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from concurrent.futures import Future
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Lock


class Drains:
    """One drain at a time: who asks while one is under way waits for that one, as a kubelet does that has restarted.

    An outcome is not kept: whoever asks later, a hook after somebody who was only curious, gets a drain of its own.
    """

    def __init__(self, run: Callable[[], str]) -> None:
        """Drain by ``run``, which says how it ended."""
        self._run = run
        self._lock = Lock()
        self._under_way: Future[str] | None = None
        self.waiting = 0
        """How many wait for the drain that is under way."""

    def ask(self) -> str:
        """Drain, or wait for the drain that is under way; returns how it ended."""
        with self._lock:
            self.waiting += 1
            mine = self._under_way is None
            if self._under_way is None:
                self._under_way = Future()
            drained = self._under_way
        try:
            if mine:
                self._finish(drained)
            return drained.result()
        finally:
            with self._lock:
                self.waiting -= 1

    def _finish(self, drained: Future[str]) -> None:
        try:
            outcome = self._run()
        except BaseException as error:
            with self._lock:
                self._under_way = None
            drained.set_exception(error)
            return
        with self._lock:
            self._under_way = None
        drained.set_result(outcome)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    # A pod may have an IPv6 address alone, or both kinds.
    address_family = socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET

    def server_bind(self) -> None:
        if self.address_family == socket.AF_INET6:
            self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        super().server_bind()


def server(port: int, drains: Drains, say: Callable[[str], None]) -> ThreadingHTTPServer:
    """A server that drains when it is asked for ``/drain``, and answers how it ended. OSError if the port is taken."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            path = self.path.partition("?")[0]
            if path == "/health":
                self._answer(200, "ok")
            elif path == "/drain":
                self._answer(200, drains.ask())
            else:
                self._answer(404, "ask for /drain")

        def _answer(self, status: int, text: str) -> None:
            body = f"{text}\n".encode()
            try:
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)
            except OSError as error:
                say(f"whoever asked for {self.path} did not wait for the answer: {error}")

        def log_message(self, *_: object) -> None:
            """Not one line for each probe."""

    return _Server(("", port), Handler)


def serve(port: int, run: Callable[[], str], say: Callable[[str], None]) -> None:
    """Answer until the process is stopped."""
    with server(port, Drains(run), say) as listening:
        say(f"ready for /drain on port {port}")
        listening.serve_forever()
