"""What a framework does not tell stays unknown, and a report that fails is passed over."""

from __future__ import annotations

import logging
import math

import pytest
from prometheus_client.exposition import generate_latest

from rljob_runtime import Reporter
from tests.unit.test_runtime_reporter import CONTRACT, exported, value

STALENESS = "rljob_sample_staleness_versions"


def test_a_step_of_which_only_the_version_is_known() -> None:
    reporter = Reporter(strict=True)
    reporter.step_finished(3)
    assert value(reporter, "rljob_policy_version") == 3
    assert value(reporter, "rljob_train_step_seconds_count") == 0
    assert value(reporter, "rljob_trained_samples_total") == 0


def test_a_mean_gives_sum_and_count_but_no_buckets() -> None:
    reporter = Reporter(strict=True)
    reporter.staleness_summary(mean=1.5, largest=4, samples=8)
    reporter.staleness_summary(mean=0.5, largest=2, samples=24)
    assert value(reporter, f"{STALENESS}_sum") == 24
    assert value(reporter, f"{STALENESS}_count") == 32
    assert value(reporter, "rljob_sample_staleness_max_versions") == 2
    assert exported(reporter)[STALENESS] == "summary"
    assert f"{STALENESS}_bucket" not in generate_latest(reporter.registry).decode()


def test_a_mean_of_unknown_many_counts_as_one() -> None:
    reporter = Reporter(strict=True)
    for mean in (1.0, 3.0):
        reporter.staleness_summary(mean=mean)
    assert (value(reporter, f"{STALENESS}_sum"), value(reporter, f"{STALENESS}_count")) == (4, 2)
    assert value(reporter, "rljob_sample_staleness_max_versions") is None


def test_the_largest_alone_leaves_the_mean_unknown() -> None:
    reporter = Reporter(strict=True)
    reporter.staleness_summary(largest=3)
    assert value(reporter, f"{STALENESS}_count") == 0
    assert value(reporter, "rljob_sample_staleness_max_versions") == 3


@pytest.mark.parametrize(
    ("name", "one", "mean"),
    [
        (STALENESS, lambda r: r.step_started([2]), lambda r: r.staleness_summary(mean=2)),
        ("rljob_response_tokens", lambda r: r.response(2), lambda r: r.response_summary(mean=2)),
        ("rljob_environment_seconds", lambda r: r.environment(2), lambda r: r.environment_summary(mean=2)),
    ],
)
def test_what_came_first_decides_whether_samples_or_means_are_counted(name: str, one, mean) -> None:  # type: ignore[no-untyped-def]
    for first, second, kind in ((one, mean, "histogram"), (mean, one, "summary")):
        reporter = Reporter()
        first(reporter)
        second(reporter)
        assert value(reporter, f"{name}_count") == 1
        assert exported(reporter)[name] == kind
        assert reporter.problem is not None
        assert "by one method alone" in reporter.problem


def test_running_totals_are_counted_from_where_they_are_first_seen() -> None:
    reporter = Reporter(strict=True)
    for samples in (4000, 4512, 5024):
        reporter.counted_to(samples=samples)
    assert value(reporter, "rljob_trained_samples_total") == 1024


def test_a_total_that_is_fresh_counts_whole_and_one_that_fell_started_again() -> None:
    reporter = Reporter(strict=True)
    for tokens in (100.0, 250.0, 30.0, 40.0):
        reporter.counted_to(tokens=tokens, dropped_groups=None, waited_s=tokens / 10, fresh=True)
    assert value(reporter, "rljob_trained_tokens_total") == 290
    assert value(reporter, "rljob_trainer_wait_seconds_total") == 29
    assert value(reporter, "rljob_dropped_groups_total") == 0


def test_many_responses_count_as_each_of_them() -> None:
    together, apart = Reporter(strict=True), Reporter(strict=True)
    lengths = [1, 5, 5, 700, 4096, 200_000]
    together.responses(lengths)
    for length in lengths:
        apart.response(length)
    assert generate_latest(together.registry) == generate_latest(apart.registry)
    assert value(together, "rljob_response_tokens_count") == 6


def test_arrays_and_numbers_of_other_libraries() -> None:
    numpy = pytest.importorskip("numpy")
    reporter = Reporter(strict=True)
    reporter.step_started(numpy.array([0, 1, 3], dtype=numpy.int32))
    reporter.step_finished(numpy.int64(2), numpy.int64(3), numpy.float32(12.0), numpy.float64(0.5))
    assert value(reporter, "rljob_sample_staleness_max_versions") == 3
    assert value(reporter, "rljob_trained_tokens_total") == 12


@pytest.mark.parametrize("bad", [math.nan, math.inf, -1, "many", None, object()])
def test_a_report_that_is_no_number_is_passed_over_and_said_once(bad, caplog: pytest.LogCaptureFixture) -> None:  # type: ignore[no-untyped-def]
    reporter = Reporter()
    with caplog.at_level(logging.WARNING, logger="rljob_runtime"):
        for _ in range(3):
            reporter.waited(bad)
            reporter.step_started([1, bad, 2])
    assert value(reporter, "rljob_trainer_wait_seconds_total") == 0
    assert value(reporter, f"{STALENESS}_count") == 6
    assert value(reporter, "rljob_sample_staleness_max_versions") == 2
    expected = 0 if bad is None else 2
    assert len(caplog.records) == expected
    assert (reporter.problem is None) == (bad is None)


def test_a_step_with_one_number_that_is_none_keeps_the_others() -> None:
    reporter = Reporter()
    reporter.step_finished(5, samples=8, tokens=math.nan, seconds=1.0)
    assert value(reporter, "rljob_policy_version") == 5
    assert value(reporter, "rljob_trained_samples_total") == 8
    assert value(reporter, "rljob_trained_tokens_total") == 0
    assert reporter.problem == "trained: rljob_trained_tokens_total must be finite and not negative, not nan"


def test_a_mistake_in_a_call_never_reaches_the_training_loop() -> None:
    reporter = Reporter()
    reporter.step_finished(samples=3)  # type: ignore[call-arg]
    reporter.step_started(7)  # type: ignore[arg-type]
    reporter.queue()  # type: ignore[call-arg]
    assert reporter.problem is not None
    assert reporter.problem.startswith("queue: ")


def test_strict_raises_what_would_be_passed_over() -> None:
    reporter = Reporter(strict=True)
    with pytest.raises(ValueError, match="not negative, not -1"):
        reporter.dropped(-1)
    with pytest.raises(TypeError):
        reporter.queue()  # type: ignore[call-arg]


def test_summaries_are_no_other_metrics() -> None:
    reporter = Reporter(strict=True)
    reporter.resumed(0)
    reporter.queue(1)
    reporter.in_flight(1)
    reporter.acknowledged(1)
    reporter.staleness_summary(mean=1, largest=1)
    assert set(exported(reporter)) == set(CONTRACT)


def test_a_sparse_reporter_shows_what_was_reported_and_no_more() -> None:
    reporter = Reporter(strict=True, sparse=True)
    assert exported(reporter) == {}
    reporter.waited(0)
    reporter.trained(samples=3)
    reporter.trained_for(1.5)
    reporter.published(2)
    assert set(exported(reporter)) == {
        "rljob_trainer_wait_seconds_total",
        "rljob_trained_samples_total",
        "rljob_train_step_seconds",
        "rljob_policy_version",
    }
