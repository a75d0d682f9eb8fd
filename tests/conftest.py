"""Say at the end of each run how much of it was real.

A suite that quietly stops reaching the API server looks just as green as one that does not.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import contextmanager

import pytest

from dev.kubetools import OtherMajorError

pytest_plugins = ("tests.audited",)

MARKER = "cluster"
"""Marks the tests that need a control plane; those that use the session's get it by themselves."""

VLLM_MARKER = "vllm"
"""Marks the tests that need a real vLLM, likewise."""

_real = pytest.StashKey[dict[str, set[str]]]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_real] = {MARKER: set(), VLLM_MARKER: set()}


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> None:
    # Reached only if every fixture was set up, so the plane, or the server, was there.
    for marker, ran in item.config.stash[_real].items():
        if item.get_closest_marker(marker) is not None:
            ran.add(item.nodeid)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup() -> Generator[None, object, object]:
    with _one_helm_is_enough():
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call() -> Generator[None, object, object]:
    with _one_helm_is_enough():
        return (yield)


@contextmanager
def _one_helm_is_enough() -> Iterator[None]:
    """Skips what needs the other major version of helm, where the machine can have only the one on its PATH."""
    try:
        yield
    except OtherMajorError as error:
        pytest.skip(str(error))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    ran = config.stash[_real]
    terminalreporter.write_line(f"{len(ran[MARKER])} tests ran against the real API server")
    if ran[VLLM_MARKER]:
        terminalreporter.write_line(f"{len(ran[VLLM_MARKER])} tests ran with a real vLLM")
