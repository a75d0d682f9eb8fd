"""What frameworks really log, played back to a bridge: recordings in ``data/bridges`` and a tracker that stands in for the framework's own.

A recording names the keys that a framework logged, call by call, and where they were recorded or read; the numbers are made up, so
that what a bridge must report can be worked out by hand. The stand-in has the module, class and parameters of the real tracker: a bridge patches it as it would
the real one, when it is imported.
"""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from rljob_runtime import Reporter, bridge
from rljob_runtime.bridges import Bridge

DATA = Path(__file__).parent / "data" / "bridges"
NAMES = sorted(path.stem for framework in ("prime-rl", "skyrl", "verl") for path in DATA.glob(f"{framework}-*.json"))
"""Recordings of this form."""


@dataclass(frozen=True)
class Recording:
    """One file of ``data/bridges``."""

    framework: str
    dialect: str
    version: str
    provenance: str
    """How the keys came to be known."""
    tracker: dict[str, Any]
    """``module``, ``attribute`` and ``signature`` of what the framework logs through; its ``call`` is ``async`` or absent, ``objects``
    are the parameters that are objects, here with the attributes that a mapping names."""
    settings: dict[str, int]
    """What the user says of the job."""
    calls: list[dict[str, Any]]
    """Arguments of each call of the tracker, by name."""
    reported: dict[str, float]
    """What must have been reported after all calls, by the names of samples."""

    def keys(self) -> set[str]:
        """All keys that were logged."""
        return {key for call in self.calls for given in call.values() if isinstance(given, dict) for key in given}


def recording(name: str) -> Recording:
    return Recording(**json.loads((DATA / f"{name}.json").read_text(encoding="utf-8")))


def samples(reporter: Reporter) -> dict[str, float]:
    """Everything that is shown, by name; of several with one name, the last."""
    return {sample.name: sample.value for family in reporter.registry.collect() for sample in family.samples}


def reported(reporter: Reporter) -> dict[str, float]:
    """What is shown of the job, without buckets and times of creation."""
    aside = ("_bucket", "_created")
    return {
        name: value
        for name, value in samples(reporter).items()
        if not name.startswith("rljob_bridge_") and not name.endswith(aside)
    }


@contextmanager
def listening(name: str, **settings: Any) -> Iterator[Bridge]:
    """A bridge that feeds a reporter which nobody serves, and is gone afterwards."""
    standing = bridge(name, reporter=Reporter(sparse=True), **settings)
    try:
        yield standing
    finally:
        standing.remove()


@contextmanager
def stand_in(
    tmp_path: Path, module: str, attribute: str, signature: str, *, asynchronous: bool = False
) -> Iterator[Any]:
    """The function or method ``attribute`` of a module that is written for the occasion and not yet imported; yields how to get it.

    The module's ``seen`` lists the arguments that the original got.
    """
    *owner, function = attribute.split(".")
    definition = f"{'async ' if asynchronous else ''}def {function}({signature}):"
    body = "seen.append(dict(locals()))"
    lines = ["seen = []"]
    lines += [f"class {owner[0]}:", f"    {definition}", f"        {body}"] if owner else [definition, f"    {body}"]
    path = tmp_path.joinpath(*module.split("."))
    path.mkdir(parents=True)
    for parent in [path, *path.parents]:
        if parent == tmp_path:
            break
        (parent / "__init__.py").touch()
    (path / "__init__.py").write_text("\n".join(lines) + "\n", encoding="utf-8")
    names = [module.rsplit(".", n)[0] for n in range(module.count(".") + 1)]
    hidden = {name: sys.modules.pop(name) for name in list(sys.modules) if name.split(".")[0] == names[-1]}
    sys.path.insert(0, str(tmp_path))
    importlib.invalidate_caches()
    try:
        yield lambda: importlib.import_module(module)
    finally:
        sys.path.remove(str(tmp_path))
        for name in [name for name in sys.modules if name.split(".")[0] == names[-1]]:
            del sys.modules[name]
        sys.modules.update(hidden)


@contextmanager
def logging_to(found: Recording, tmp_path: Path) -> Iterator[Any]:
    """The recording's tracker, standing in: what it logs through."""
    tracker = found.tracker
    owner, _, method = tracker["attribute"].rpartition(".")
    asynchronous = tracker.get("call") == "async"
    with stand_in(
        tmp_path, tracker["module"], tracker["attribute"], tracker["signature"], asynchronous=asynchronous
    ) as load:
        module = load()
        yield getattr(getattr(module, owner)() if owner else module, method)


def value(standing: Bridge, name: str, **labels: str) -> float | None:
    """A sample that the bridge shows; None if there is none."""
    return standing.reporter.registry.get_sample_value(name, labels)


def stems(standing: Bridge) -> set[str]:
    """The metrics of the job that were fed."""
    return {name.removesuffix("_sum").removesuffix("_count") for name in reported(standing.reporter)}


def play(found: Recording, tmp_path: Path, *, renamed: dict[str, str] | None = None) -> tuple[Bridge, list[Any]]:
    """Log a recording through the stand-in of its tracker, with some keys ``renamed``; returns the bridge, and what the tracker got."""
    tracker = found.tracker
    asynchronous = tracker.get("call") == "async"
    with (
        listening(found.framework, **found.settings) as standing,
        stand_in(
            tmp_path, tracker["module"], tracker["attribute"], tracker["signature"], asynchronous=asynchronous
        ) as load,
    ):
        module = load()
        owner, _, method = tracker["attribute"].rpartition(".")
        log = getattr(getattr(module, owner)() if owner else module, method)
        for call in found.calls:
            done = log(
                **{name: _handed(name, _with_names(given, renamed or {}), found) for name, given in call.items()}
            )
            if asynchronous:
                _run(done)
        return standing, module.seen


def _run(coroutine: Any) -> None:
    try:
        coroutine.send(None)
    except StopIteration:
        return
    raise AssertionError("the stand-in waits for nothing")


def _handed(name: str, given: Any, found: Recording) -> Any:
    """An argument as the tracker gets it: settings and the like are objects."""
    return SimpleNamespace(**given) if name in found.tracker.get("objects", ()) else given


def _with_names(given: Any, renamed: dict[str, str]) -> Any:
    return {renamed.get(key, key): value for key, value in given.items()} if isinstance(given, dict) else given
