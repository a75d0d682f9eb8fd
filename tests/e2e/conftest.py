"""A real vLLM for the tests of what it does: one server that all share, and servers of a test's own, to be ended.

``RLJOB_TEST_VLLM=http://…`` names a server in place of the shared one, say of another version or on a GPU; it has to run with ``SHARED`` and
``VLLM_SERVER_DEV_MODE=1``, serve a model as ``tiny``, and have nothing else to do.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dev.vllm import device
from dev.vllm.install import UnsupportedMachineError, ensure
from dev.vllm.model import write_model
from dev.vllm.server import Server

MARKER = "vllm"

SHARED = (
    "--enable-server-load-tracking",
    "--enable-mfu-metrics",
    *("--max-num-queued-reqs", "20"),
    *("--weight-transfer-config", '{"backend":"ipc"}'),
)
"""Options of the shared server: everything that it can count, and a short queue."""

PACE_S = 0.02
"""Least time of an iteration of servers that are looked at while they work: else they take all cores, and answer no look before all is over."""

SEATS = 16
"""Samples that the shared server runs at once."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if {"live", "vllm_python"} & set(getattr(item, "fixturenames", ())):
            item.add_marker(MARKER)


@pytest.fixture(scope="session")
def vllm_python(request: pytest.FixtureRequest) -> Path:
    """The Python of an environment with vLLM, installed if need be."""
    capture = request.config.pluginmanager.getplugin("capturemanager")
    # A first installation takes minutes: its progress must be seen.
    with capture.global_and_fixture_disabled() if capture else contextlib.nullcontext():
        try:
            return ensure()
        except UnsupportedMachineError as error:
            pytest.skip(str(error))


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("model") / "tiny")


@pytest.fixture(scope="session")
def live(request: pytest.FixtureRequest) -> Iterator[str]:
    """The address of the shared server. A test leaves it as it was: running, awake, not paused, with nothing to do."""
    given = os.environ.get("RLJOB_TEST_VLLM")
    if given:
        yield given.rstrip("/")
        return
    python, model = request.getfixturevalue("vllm_python"), request.getfixturevalue("tiny_model")
    with Server(python, model, more=SHARED, max_running=SEATS, env=device.environment(PACE_S)) as server:
        yield server.url


@pytest.fixture
def serve(vllm_python: Path, tiny_model: Path) -> Iterator[Callable[..., Server]]:
    """Starts a paced server of the test's own, which is ended with the test: ``serve("--shutdown-timeout", "30", max_running=4)``."""
    servers: list[Server] = []

    def start(*more: str, **fields: object) -> Server:
        server = Server(vllm_python, tiny_model, more=more, env=device.environment(PACE_S), **fields)  # type: ignore[arg-type]
        servers.append(server)
        server.start()
        return server

    yield start
    for server in servers:
        server.close()
