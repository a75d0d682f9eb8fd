"""The drain as a sidecar, for a sampler's image in which this package is not installed.

The sampler's container has an ``httpGet`` preStop hook that asks the sidecar for ``/drain``. The kubelet waits for the answer, as long as the grace
period lasts, before it stops the sampler; a native sidecar lives until the sampler's container is gone.
"""

from __future__ import annotations

from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Lock


def server(port: int, run: Callable[[], str], say: Callable[[str], None], address: str = "") -> ThreadingHTTPServer:
    """A server that drains by ``run`` when it is asked for ``/drain``, and answers how it ended. OSError if the port is taken."""
    one_at_a_time = Lock()
    ended: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path.split("?")[0] == "/health":
                self._answer(200, "ok")
            elif self.path.split("?")[0] == "/drain":
                # A hook that is sent again (a kubelet that restarted) waits for the same drain.
                with one_at_a_time:
                    if not ended:
                        ended.append(run())
                self._answer(200, ended[0])
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

    found = ThreadingHTTPServer((address, port), Handler)
    found.daemon_threads = True
    return found


def serve(port: int, run: Callable[[], str], say: Callable[[str], None]) -> None:
    """Answer until the process is stopped."""
    with server(port, run, say) as listening:
        say(f"ready for /drain on port {port}")
        listening.serve_forever()
