"""Logs of frameworks as they were recorded, and modules that stand where the frameworks' own would, to play them through."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from rljob_runtime import Reporter
from rljob_runtime.bridges import Bridge, bridge

DATA = Path(__file__).parent / "data" / "bridges"


def recorded(name: str) -> dict[str, Any]:
    """The recording in ``data/bridges/<name>.json``."""
    found: dict[str, Any] = json.loads((DATA / f"{name}.json").read_text())
    return found


def stand_in(monkeypatch: pytest.MonkeyPatch, name: str, **contents: object) -> ModuleType:
    """A module of that name, imported already, with ``contents``; packages above it are empty."""
    *above, _ = name.split(".")
    for depth in range(1, len(above) + 1):
        package = ".".join(above[:depth])
        monkeypatch.setitem(sys.modules, package, ModuleType(package))
    module = ModuleType(name)
    vars(module).update(contents)
    monkeypatch.setitem(sys.modules, name, module)
    return module


class Heard:
    """What a bridge made of what it heard."""

    def __init__(self, made: Bridge, registry: CollectorRegistry) -> None:
        self.bridge = made
        self.registry = registry

    def value(self, name: str, **labels: str) -> float | None:
        """A sample; None if there is none."""
        return self.registry.get_sample_value(name, labels)

    @property
    def metrics(self) -> frozenset[str]:
        """The job's metrics that there are, without the bridge's own."""
        found = set()
        for family in self.registry.collect():
            if family.samples and not family.name.startswith("rljob_bridge_"):
                found.add(f"{family.name}_total" if family.type == "counter" else family.name)
        return frozenset(found)


@contextmanager
def listening(name: str, **settings: Any) -> Iterator[Heard]:
    """A bridge to the framework ``name`` that feeds a reporter nobody serves; without an error at the end."""
    reporter = Reporter(CollectorRegistry(), sparse=True, strict=True)
    made = bridge(name, reporter=reporter, **settings)
    try:
        yield Heard(made, reporter.registry)
        assert reporter.registry.get_sample_value("rljob_bridge_errors_total", {"bridge": name}) == 0
    finally:
        made.remove()


def played(log: Callable[..., object], calls: list[dict[str, Any]]) -> None:
    """Make the recorded calls."""
    for call in calls:
        log(**call)
