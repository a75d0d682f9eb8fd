"""Serving what a bridge found: by whichever process of the job logs, and only by that one.

Under Ray every worker of a pod has the environment that switches the bridge on, but only one of them runs the framework's
logger. So no port is taken until something was logged that the bridge has to say something about.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from wsgiref.simple_server import WSGIServer

from rljob_runtime.reporter import Reporter

LOG = logging.getLogger("rljob_runtime.bridges")

PORT = 9100
"""Where the metrics are served if nothing else is said: the port of the samples' trainers."""


def port_of(environment: Mapping[str, str]) -> int:
    """The port that ``RLJOB_BRIDGE_PORT`` says; ValueError if it says no port."""
    text = environment.get("RLJOB_BRIDGE_PORT", str(PORT))
    if not text.isdigit() or int(text) > 65535:
        raise ValueError(f"RLJOB_BRIDGE_PORT is {text!r}: write the number of a port, e.g. {PORT}")
    return int(text)


class Exporter:
    """Serves a reporter once it is asked to."""

    def __init__(self, reporter: Reporter, port: int, address: str) -> None:
        """Serve ``reporter`` at ``address`` and ``port`` (0 takes a free one) from the first ``wake`` on."""
        self._reporter, self._port, self._address = reporter, port, address
        self._server: WSGIServer | None = None
        self._pid = 0

    @property
    def port(self) -> int | None:
        """Where it serves; None while it does not."""
        return None if self._server is None else self._server.server_port

    def wake(self) -> None:
        """Serve. OSError, with what to do, if the port is taken."""
        if self._server is not None:
            return
        try:
            self._server, _ = self._reporter.serve(self._port, self._address)
        except OSError as error:
            raise OSError(error.errno, f"{error.strerror}; another port is taken with RLJOB_BRIDGE_PORT") from error
        self._pid = os.getpid()
        LOG.info("metrics of the bridge are served on port %d", self._server.server_port)

    def stop(self) -> None:
        """Serve no more."""
        if self._server is not None:
            # In a forked process nobody serves, and who waits for the end of it waits for ever.
            if os.getpid() == self._pid:
                self._server.shutdown()
            self._server.server_close()
            self._server = None
