"""The measurement of what reporting costs: that it measures what it says. How much it is, is for a machine at rest."""

from __future__ import annotations

from dev.bench.reporter import measured, slowest_during_scrapes, step
from rljob_runtime import Reporter
from tests.unit.test_runtime_reporter import value


def test_a_step_reports_all_of_its_samples() -> None:
    reporter = Reporter(strict=True)
    step(reporter, [0, 1, 1], [10, 20, 30])
    assert value(reporter, "rljob_sample_staleness_versions_count") == 3
    assert value(reporter, "rljob_response_tokens_sum") == 60
    assert value(reporter, "rljob_policy_version") == 3


def test_every_size_is_measured_against_the_one_before() -> None:
    first, second = measured((4, 64), tries=1)
    assert (first.samples, second.samples) == (4, 64)
    assert first.growth == 1.0
    assert second.growth == second.seconds / first.seconds
    assert second.times_cheaper == second.one_by_one_seconds / second.seconds


def test_reports_during_scrapes_come_to_an_end() -> None:
    found = slowest_during_scrapes(reports=100)
    assert 0 < found["median"] <= found["p99"]
