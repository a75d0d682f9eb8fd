"""Has the API server note what the operator asks for in all tests of a session, and the check of its rights come last.

A right can only be called unused once everything that might use it has run. So this keeps, beside the folder of the audit logs, what
of the cluster tests ran: after half of them an unused right says nothing.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from dev.controlplane.audit import FOLDER_VARIABLE
from dev.rights import Request, Right, read

RIGHTS_SUFFIX = ".rights.json"
"""Of the file beside an audit log that holds what the operator of that plane may do."""

CHECK = Path(__file__).parent / "chart" / "test_rights.py"
SUITE = Path(__file__).parent / "cluster"


@dataclass
class Record:
    """What a test run has of the cluster tests."""

    begun: set[Path] = field(default_factory=set)
    """Files of which a test began."""
    left_out: int = 0
    """Tests that the command line deselected, or would have if it had named files and not tests."""

    def partly(self) -> str | None:
        """Why this is less than the whole suite; None if it is not."""
        missing = sorted(path.name for path in SUITE.glob("test_*.py") if path not in self.begun)
        if missing:
            return f"{len(missing)} files of tests/cluster did not run: {', '.join(missing)}"
        return "not all tests of tests/cluster were selected" if self.left_out else None


@dataclass(frozen=True)
class Plane:
    """One plane that the tests' operator was installed on, as its API server noted it."""

    rights: frozenset[Right]
    """What the operator may do there."""
    requests: list[Request]
    """What it asked for there, until now."""


@dataclass(frozen=True)
class Audited:
    """The notes of a session."""

    folder: Path
    record: Record

    def planes(self) -> list[Plane]:
        """The planes of the session with an operator of the chart, those that are gone too."""
        found = []
        for path in sorted(self.folder.glob(f"*{RIGHTS_SUFFIX}")):
            kept = json.loads(path.read_text(encoding="utf-8"))
            rights = frozenset(Right.from_json(each) for each in kept["rights"])
            found.append(Plane(rights, read(Path(kept["log"]), kept["user"])))
        return found


_record = pytest.StashKey[Record]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_record] = Record()
    if any("::" in argument and "cluster" in argument for argument in config.args):
        config.stash[_record].left_out += 1


def pytest_deselected(items: list[pytest.Item]) -> None:
    for item in items:
        if SUITE in item.path.parents:
            item.config.stash[_record].left_out += 1


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.path == CHECK)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    if SUITE in item.path.parents:
        item.config.stash[_record].begun.add(item.path)


@pytest.fixture(scope="session", autouse=True)
def audited(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Audited]:
    """The notes of one test run; every plane of it writes there, those of child processes too."""
    folder = tmp_path_factory.mktemp("audit")
    before = os.environ.get(FOLDER_VARIABLE)
    os.environ[FOLDER_VARIABLE] = str(folder)
    yield Audited(folder, request.config.stash[_record])
    if before is None:
        del os.environ[FOLDER_VARIABLE]
    else:
        os.environ[FOLDER_VARIABLE] = before
