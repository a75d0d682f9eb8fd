"""A bridge is in every process of a job: no fork, thread, import or tracker may fare worse for it, and no setting is lost."""

from __future__ import annotations

import asyncio
import copy
import inspect
import logging
import signal
import sys
import threading
import types
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from rljob_runtime import Reporter, bridge, bridges
from rljob_runtime.bridges import imports, mirror
from rljob_runtime.bridges.dialect import Dialect, Framework, Logged, Tap
from rljob_runtime.bridges.health import Health
from rljob_runtime.bridges.mirror import Mirror
from rljob_runtime.bridges.rules import queue, staleness_mean, train_seconds
from rljob_runtime.bridges.sink import Sink
from rljob_runtime.bridges.taps import GENERAL, listening
from rljob_runtime.shared import shared_registry
from tests.unit.bridge_logs import reported, samples
from tests.unit.test_runtime_reporter_processes import forked

LONG_S = 60.0
PLAIN = Dialect(
    "plain",
    "1",
    ("lag",),
    (
        staleness_mean("lag", "s:1"),
        queue("queued", "s:2", always=False),
        train_seconds("fit", optional=("prepare",), source="s:3"),
    ),
)
SKYRL = {"async/staleness_mean": 0.5, "async/staleness_max": 1.0}


def mirror_of(awake: Any = lambda: None, shared: Path | None = None) -> Mirror:
    reporter, health = Reporter(sparse=True), Health("plain", shared)
    reporter.registry.register(health)
    return Mirror(Framework("plain", (PLAIN,)), Sink(reporter), health, awake)


@contextmanager
def held(*locks: Any) -> Iterator[None]:
    """Another thread holds the locks."""
    taken, release = threading.Event(), threading.Event()

    def hold() -> None:
        for lock in locks:
            lock.acquire()
        taken.set()
        release.wait()
        for lock in locks:
            lock.release()

    thread = threading.Thread(target=hold)
    thread.start()
    taken.wait()
    try:
        yield
    finally:
        release.set()
        thread.join()


def module_in(folder: Path, monkeypatch: pytest.MonkeyPatch, name: str, code: str) -> None:
    """A module that can be imported until the test is over."""
    (folder / f"{name}.py").write_text(code)
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.delitem(sys.modules, name, raising=False)


@pytest.fixture
def standing() -> Iterator[bridges.Bridge]:
    """What the environment sets up."""
    made = bridge("skyrl", port=0, address="127.0.0.1")
    try:
        yield made
    finally:
        for each in list(bridges._active):
            each.remove()


# Forks and threads.


def test_a_fork_while_another_thread_imports_and_logs_blocks_nothing_in_the_child(
    standing: bridges.Bridge, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module_in(tmp_path, monkeypatch, "imported_in_a_child", "")

    def work() -> None:
        signal.alarm(int(LONG_S))
        __import__("imported_in_a_child")
        standing.mirror.take(Logged(SKYRL, 1))
        assert samples(standing.reporter)["rljob_bridge_errors_total"] == 0
        assert samples(standing.reporter)["rljob_bridge_known"] == 1
        assert reported(standing.reporter)["rljob_sample_staleness_max_versions"] == 1
        assert bridge("skyrl") is standing
        imports.when_imported("imported_by_nobody", lambda _: None)()
        standing.remove()

    with held(imports._lock, standing.mirror._lock, standing.mirror._health._lock, bridges._lock):
        forked(work)


def test_a_child_of_a_process_that_serves_may_remove_its_bridge(standing: bridges.Bridge) -> None:
    standing.mirror.take(Logged(SKYRL, 1))
    assert standing.exporter is not None
    assert standing.exporter.port is not None

    def work() -> None:
        signal.alarm(int(LONG_S))
        standing.remove()

    forked(work)


def test_a_child_counts_its_own_errors() -> None:
    made = mirror_of()
    made.failed(ValueError("x"), "here")

    def work() -> None:
        assert samples(made.sink.reporter)["rljob_bridge_errors_total"] == 0

    forked(work)
    assert samples(made.sink.reporter)["rljob_bridge_errors_total"] == 1


def test_whoever_holds_the_bridge_for_long_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mirror, "LOCK_PATIENCE_S", 0.01)
    made = mirror_of()
    with held(made._lock):
        made.take(Logged({"lag": 1.0}, 1))
    assert samples(made.sink.reporter)["rljob_bridge_errors_total"] == 1
    made.take(Logged({"lag": 1.0}, 2))
    assert reported(made.sink.reporter)["rljob_sample_staleness_versions_count"] == 1


def test_a_log_of_the_job_that_raises_stays_outside_of_the_loop() -> None:
    def refuse(_: logging.LogRecord) -> bool:
        raise ZeroDivisionError

    log = logging.getLogger("rljob_runtime.bridges")
    log.addFilter(refuse)
    try:
        mirror_of(awake=lambda: 1 / 0).take(Logged({"lag": 1.0}, 1))
    finally:
        log.removeFilter(refuse)


# Imports.


def test_an_import_takes_no_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module_in(tmp_path, monkeypatch, "waited_for", "")
    module_in(tmp_path, monkeypatch, "not_waited_for", "")
    heard: list[str] = []
    forget = imports.when_imported("waited_for", lambda module: heard.append(module.__name__))
    done = threading.Event()

    def load() -> None:
        __import__("not_waited_for")
        __import__("waited_for")
        done.set()

    with held(imports._lock):
        threading.Thread(target=load, daemon=True).start()
        assert done.wait(LONG_S)
    assert heard == ["waited_for"]
    forget()


def test_a_module_that_another_thread_is_importing_is_heard_afterwards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, go = threading.Event(), threading.Event()
    monkeypatch.setattr(sys, "test_bridges_gates", (begun, go), raising=False)
    module_in(
        tmp_path,
        monkeypatch,
        "slow_to_import",
        "import sys\nsys.test_bridges_gates[0].set()\nsys.test_bridges_gates[1].wait()\n",
    )
    module_in(tmp_path, monkeypatch, "imported_after_it", "")
    heard: list[str] = []
    other = threading.Thread(target=__import__, args=("slow_to_import",))
    other.start()
    begun.wait()
    forget = imports.when_imported("slow_to_import", lambda module: heard.append(module.__name__))
    go.set()
    other.join()
    __import__("imported_after_it")
    assert heard == ["slow_to_import"]
    forget()
    assert not imports._late


def test_a_hook_that_raises_breaks_nobodys_import(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    module_in(tmp_path, monkeypatch, "hooked", "value = 7")

    def hook(_: types.ModuleType) -> None:
        raise ZeroDivisionError("of nothing")

    forget = imports.when_imported("hooked", hook)
    assert __import__("hooked").value == 7
    imports.when_imported("hooked", hook)
    assert [record.getMessage() for record in caplog.records] == [
        "what was to be done when hooked is imported failed: of nothing"
    ] * 2
    forget()


def test_a_loader_that_is_wrapped_can_be_copied() -> None:
    assert copy.copy(imports._Loader("loader"))._loader == "loader"


# What is wrapped.


class Tracker:
    """A tracker with every kind of method."""

    @staticmethod
    def static(data: dict[str, float]) -> str:
        return "static"

    @classmethod
    def of_class(cls, data: dict[str, float]) -> str:
        return cls.__name__

    async def later(self, data: dict[str, float]) -> str:
        await asyncio.sleep(0)
        return "later"


class Special(Tracker):
    """Inherits them."""


def taken(arguments: Any) -> Logged:
    return Logged(arguments["data"], len(arguments["data"]))


@pytest.mark.parametrize("kind", ["static", "of_class", "later"])
def test_a_method_stays_of_its_kind(kind: str) -> None:
    module = types.ModuleType("trackers_of_all_kinds")
    module.Tracker = Tracker  # type: ignore[attr-defined]
    before = inspect.getattr_static(Tracker, kind)
    made = mirror_of()
    from rljob_runtime.bridges.taps import Listening

    sys.modules[module.__name__] = module
    listener = Listening(made)
    listener.to(Tap(module.__name__, f"Tracker.{kind}", taken))
    try:
        assert inspect.iscoroutinefunction(getattr(Tracker, kind)) is (kind == "later")
        answer = getattr(Special(), kind)({"lag": 1.0})
        assert (asyncio.run(answer) if kind == "later" else answer) == {"of_class": "Special"}.get(kind, kind)
        assert reported(made.sink.reporter)["rljob_sample_staleness_versions_count"] == 1
    finally:
        listener.stop()
        del sys.modules[module.__name__]
    assert inspect.getattr_static(Tracker, kind) is before


def test_what_is_logged_while_another_call_waits_is_a_call_of_its_own() -> None:
    made = mirror_of()
    go = asyncio.Event()

    async def log(data: dict[str, float]) -> None:
        await go.wait()

    later = listening(log, Tap("m", "log", taken), made)
    now = listening(lambda data: None, Tap("m", "now", taken), made)

    async def both() -> None:
        waits = asyncio.create_task(later({"lag": 1.0}))
        await asyncio.sleep(0)
        now({"lag": 1.0, "queued": 3.0})
        go.set()
        await waits

    asyncio.run(both())
    assert reported(made.sink.reporter)["rljob_sample_staleness_versions_count"] == 2


def test_wandb_completes_a_step_that_is_logged_in_several_calls_with_its_number() -> None:
    made, (wandb, *_) = mirror_of(), GENERAL
    for data, commit in (({"lag": 1.0, "fit": 4.0}, False), ({"prepare": 1.0}, None)):
        logged = wandb.read({"data": data, "step": 1, "commit": commit})
        assert logged is not None
        made.take(logged)
    assert reported(made.sink.reporter)["rljob_train_step_seconds_sum"] == 5.0


# What is read.


def test_a_number_that_is_too_large_costs_no_other() -> None:
    made = mirror_of()
    made.take(Logged({"lag": 1.0, "queued": 10**400}, 1))
    assert reported(made.sink.reporter)["rljob_sample_staleness_versions_count"] == 1
    assert samples(made.sink.reporter)["rljob_bridge_errors_total"] == 0


def test_an_old_step_that_is_logged_again_is_not_counted_again() -> None:
    made = mirror_of()
    for step in range(20):
        made.take(Logged({"lag": 1.0}, step))
    made.take(Logged({"lag": 1.0}, 0))
    assert reported(made.sink.reporter)["rljob_sample_staleness_versions_count"] == 20
    made.take(Logged({"lag": 1.0}, -1))
    assert reported(made.sink.reporter)["rljob_sample_staleness_versions_count"] == 21, "late, but new"


def test_a_port_that_is_taken_is_tried_once_a_step() -> None:
    tries: list[int] = []

    def taken_port() -> None:
        tries.append(1)
        raise OSError(98, "the port is taken")

    made = mirror_of(awake=taken_port)
    for step in range(3):
        made.take(Logged({"lag": 1.0, "queued": 1.0, "fit": 1.0}, step))
    assert len(tries) == 3
    assert samples(made.sink.reporter)["rljob_bridge_errors_total"] == 3


def test_processes_that_share_a_page_show_how_their_bridges_fare(tmp_path: Path) -> None:
    made = mirror_of(shared=tmp_path)
    made.take(Logged({"lag": 1.0}, 1))
    made.failed(ValueError("x"), "here")

    def work() -> None:
        made.failed(ValueError("x"), "there")

    forked(work)
    page = {
        (sample.name, sample.labels.get("dialect")): sample.value
        for family in shared_registry(tmp_path).collect()
        for sample in family.samples
    }
    assert page["rljob_bridge_known", "plain"] == 1
    assert page["rljob_bridge_errors_total", None] == 2


# Settings.


def test_settings_reach_a_bridge_of_the_environment(standing: bridges.Bridge) -> None:
    standing.mirror.take(Logged({"config/seed": 1.0}, 0))
    reporter = Reporter(sparse=True)
    made = bridge("skyrl", samples_per_prompt=8, reporter=reporter)
    assert bridge("skyrl", samples_per_prompt=8) is made
    assert bridge("skyrl") is made
    assert made.mirror.sink.samples_per_prompt == 8
    assert made.exporter is None
    made.mirror.take(Logged(SKYRL, 1))
    assert reported(reporter)["rljob_sample_staleness_max_versions"] == 1
    with pytest.raises(ValueError, match="prompts_per_step is '0'"):
        bridge("skyrl", prompts_per_step=0)
    assert bridge("skyrl") is made


def test_the_one_that_gives_way_hears_no_more(
    standing: bridges.Bridge, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "tensorboardX"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "writer.py").write_text(
        "class SummaryWriter:\n    def add_scalar(self, tag, scalar_value, global_step=None):\n        pass\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in ("tensorboardX", "tensorboardX.writer"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    writer = __import__("tensorboardX.writer").writer.SummaryWriter()
    made = bridge("skyrl", reporter=Reporter(sparse=True))
    for key, value in SKYRL.items():
        writer.add_scalar(key, value, 1)
    assert reported(made.reporter)["rljob_sample_staleness_max_versions"] == 1
    assert reported(standing.reporter) == {}
    made.remove()
    assert not imports._waiting, "nothing of the other is left"


def test_settings_that_come_too_late_are_said(standing: bridges.Bridge, caplog: pytest.LogCaptureFixture) -> None:
    standing.mirror.take(Logged(SKYRL, 1))
    assert bridge("skyrl", samples_per_prompt=8, port=9200) is standing
    (said,) = [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]
    assert "so these are passed over: port, samples_per_prompt; call bridge() before anything is logged" in said
    assert bridge("skyrl", address="127.0.0.1") is standing
    assert len([r for r in caplog.records if r.levelno >= logging.WARNING]) == 1
