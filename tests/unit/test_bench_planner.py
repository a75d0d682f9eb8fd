"""The benchmark of the planner measures what it says; how fast anything is, is not asserted here."""

from __future__ import annotations

import json

import pytest

from dev.bench.planner import STAGES, main, peak_mib
from rljob_planner import search


def test_a_tiny_run_has_every_key_and_real_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--tiny", "-o", "json"]) == 0
    printed = capsys.readouterr()
    found = json.loads(printed.out)
    assert "searching 16 GPUs" in printed.err
    for key in ("samplesPerSecond", "obviousSamplesPerSecond", "speedup", "peakMiB"):
        assert found[key] > 0
    # Both simulators ran the same scenario with the same lengths.
    assert found["obviousPeriodDifference"] < 0.01
    assert [point["gpus"] for point in found["growth"]] == [16]
    assert all(point["seconds"] > 0 for point in found["growth"])
    assert {"search64Seconds", "search4096Seconds", "planProcessSeconds", "compileSeconds", "cachedLoadSeconds"} <= set(
        found
    )
    assert set(found["where"]) == {"import", "load", "rest", *STAGES}
    assert sum(value for value in found["where"].values() if value is not None) > 0
    assert main(["--tiny"]) == 0
    assert "search of 16 GPUs" in capsys.readouterr().out


def test_the_stages_are_functions_of_the_search() -> None:
    assert all(callable(getattr(search, name)) for name in STAGES.values())


def test_memory_is_that_of_this_process() -> None:
    assert 10 < peak_mib() < 100_000
