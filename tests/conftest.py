"""Say at the end of each run how much of it was real.

A suite that quietly stops reaching the API server looks just as green as one that does not.
"""

from __future__ import annotations

import pytest

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


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    terminalreporter.write_line(f"{len(config.stash[_real])} tests ran against the real API server")
