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

_real = pytest.StashKey[set[str]]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_real] = set()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> None:
    # Reached only if every fixture was set up, so the plane was there.
    if item.get_closest_marker(MARKER) is not None:
        item.config.stash[_real].add(item.nodeid)


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
    terminalreporter.write_line(f"{len(config.stash[_real])} tests ran against the real API server")
