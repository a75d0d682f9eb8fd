"""The event loop without what numba and llvmlite keep private: slower to start, never wrong and never a traceback."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from rljob_planner import _jit, _loop, _native
from rljob_planner.lengths import LengthDistribution
from rljob_planner.simulate import DecodeCost, SimulationInput, TrainCost, simulate

_SLOTS = np.arange(9.0)
JOB = SimulationInput(
    mode="async", replicas=2, max_running=8, kv_tokens=10_000, train=TrainCost(0.3, 1e-5), weight_sync_s=0.05,
    decode=DecodeCost(np.full(9, 0.01), 1e-4 * _SLOTS, 0 * _SLOTS, 1e-7, 0.0), prompts_per_step=4, samples_per_prompt=4,
    prompt_tokens=20, lengths=LengthDistribution.lognormal(40, 0.8, 300), in_flight_cap=16, steps=60, warmup=10,
)  # fmt: skip


@pytest.fixture
def fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """As in a process that has neither compiled nor loaded anything; where the machine code would be kept."""
    path = tmp_path / "code.bin"
    monkeypatch.setattr(_native, "_machines", [])
    monkeypatch.setattr(_native, "_paths", lambda: (path,))
    return path


class Library:
    """What numba gives of the compiled event loop, with calls that another release may lack."""

    def __init__(self, address: int, arguments: int, error: Exception | None = None, gone: str = "") -> None:
        self._address, self._arguments, self._error, self._gone = address, arguments, error, gone

    def get_pointer_to_function(self, name: str) -> Any:
        return self._given("get_pointer_to_function", self._address)

    def serialize_using_object_code(self) -> Any:
        return self._given("serialize_using_object_code", ("", "", (b"code", b"")))

    @property
    def _final_module(self) -> Any:
        function = SimpleNamespace(name="run", is_declaration=False, arguments=range(self._arguments))
        return self._given("_final_module", SimpleNamespace(functions=[function], get_function=lambda name: function))

    def _given(self, name: str, value: Any) -> Any:
        if self._error is not None and name == self._gone:
            raise self._error
        return value


@pytest.fixture(scope="module")
def address() -> int:
    """Of the event loop's machine code."""
    simulate(JOB, rho=1.0)
    return _native._load(next(path for path in _native._paths() if path.is_file()).read_bytes())


ERRORS = [AttributeError("gone"), NotImplementedError("not here"), RuntimeError("no"), TypeError("other arguments")]


@pytest.mark.parametrize("error", ERRORS, ids=lambda e: type(e).__name__)
@pytest.mark.parametrize(
    ("gone", "by"),
    [("serialize_using_object_code", "address"), ("_final_module", "numba"), ("get_pointer_to_function", "numba")],
)
def test_without_numbas_internals_nothing_is_kept_and_the_loop_runs(
    fresh: Path, monkeypatch: pytest.MonkeyPatch, address: int, error: Exception, gone: str, by: str
) -> None:
    called: list[str] = []

    def by_numba() -> Any:
        called.append("numba")
        return lambda world: _native._callable(address, world)(world)

    monkeypatch.setattr(_native, "_called_by_numba", by_numba)
    monkeypatch.setattr(_loop, "compiled", lambda w: (Library(address, len(_native._types(w)), error, gone), "run"))
    mean = simulate(JOB, rho=1.0).period.mean
    assert (called or ["address"]) == [by]
    assert not fresh.exists()
    monkeypatch.undo()
    assert simulate(JOB, rho=1.0).period.mean == mean


def test_a_numba_that_gives_all_of_it_is_kept(fresh: Path, monkeypatch: pytest.MonkeyPatch, address: int) -> None:
    monkeypatch.setattr(_loop, "compiled", lambda w: (Library(address, len(_native._types(w))), "run"))
    simulate(JOB, rho=1.0)
    assert fresh.read_bytes().endswith(b"code")


def test_a_function_of_other_arguments_is_not_called_by_its_address(
    fresh: Path, monkeypatch: pytest.MonkeyPatch, address: int
) -> None:
    monkeypatch.setattr(_loop, "compiled", lambda w: (Library(address, len(_native._types(w)) + 1), "run"))
    monkeypatch.setattr(_native, "_called_by_numba", lambda: lambda world: 7)
    world: Any = (np.zeros(1),)
    assert _native.run(world) == 7
    assert not fresh.exists()


@pytest.mark.parametrize("error", ERRORS, ids=lambda e: type(e).__name__)
def test_where_the_code_cannot_be_had_numba_calls_it(
    fresh: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def refuse(*_: object) -> Any:
        raise error

    monkeypatch.setattr(_loop, "compiled", refuse)
    called: list[Any] = []

    def dispatched(world: Any) -> Any:
        called.append(world)
        return np.int64(7)

    def entry(function: Any) -> Any:
        assert function is _loop.run.py_func  # type: ignore[attr-defined]
        return dispatched

    monkeypatch.setattr(_jit, "entry", entry)
    world: Any = object()
    assert _native.run(world) == 7
    assert _native.run(world) == 7
    assert called == [world, world]
    assert not fresh.exists()


def test_numba_itself_runs_the_event_loop(fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> Any:
        raise AttributeError("gone")

    with monkeypatch.context() as patch:
        patch.setattr(_loop, "compiled", refuse)
        by_numba = simulate(JOB, rho=1.0)
    assert not fresh.exists()
    _native._machines.clear()
    monkeypatch.undo()
    by_address = simulate(JOB, rho=1.0)
    assert by_numba.period == by_address.period
    assert by_numba.staleness == by_address.staleness


@pytest.mark.parametrize("error", ERRORS, ids=lambda e: type(e).__name__)
def test_a_file_that_cannot_be_loaded_is_compiled_again(
    fresh: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def refuse(_: bytes) -> int:
        raise error

    fresh.write_bytes(b"code")
    monkeypatch.setattr(_native, "_load", refuse)
    monkeypatch.setattr(_native, "_compiled", lambda world: lambda world: 7)
    world: Any = ()
    assert _native.run(world) == 7
