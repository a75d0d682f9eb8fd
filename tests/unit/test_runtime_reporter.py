"""The metrics contract: names, kinds, and that unknown is absent."""

from __future__ import annotations

import urllib.request

import pytest
from prometheus_client.exposition import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from rljob_runtime import Reporter

CONTRACT = {
    "rljob_policy_version": "gauge",
    "rljob_queue_depth_groups": "gauge",
    "rljob_inflight_samples": "gauge",
    "rljob_sample_staleness_versions": "histogram",
    "rljob_sample_staleness_max_versions": "gauge",
    "rljob_environment_seconds": "histogram",
    "rljob_train_step_seconds": "histogram",
    "rljob_trainer_wait_seconds_total": "counter",
    "rljob_weight_sync_seconds": "histogram",
    "rljob_trained_samples_total": "counter",
    "rljob_trained_tokens_total": "counter",
    "rljob_dropped_groups_total": "counter",
    "rljob_response_tokens": "histogram",
    "rljob_layout_generation": "gauge",
}


def exported(reporter: Reporter) -> dict[str, str]:
    """Name as Prometheus stores it → kind, without the creation times that the client adds."""
    families = text_string_to_metric_families(generate_latest(reporter.registry).decode())
    return {
        (f.name + "_total" if f.type == "counter" else f.name): f.type
        for f in families
        if not f.name.endswith("_created")
    }


def value(reporter: Reporter, name: str, **labels: str) -> float | None:
    return reporter.registry.get_sample_value(name, labels)


def test_every_metric_of_the_contract_and_no_other() -> None:
    reporter = Reporter()
    reporter.resumed(0)
    reporter.queue(1)
    reporter.in_flight(1)
    reporter.step_started([1])
    reporter.acknowledged(1)
    assert exported(reporter) == CONTRACT


def test_unknown_is_absent_not_zero() -> None:
    assert not {name for name, kind in exported(Reporter()).items() if kind == "gauge"}


def test_a_restarted_trainer_says_the_version_it_loaded() -> None:
    before = Reporter()
    before.resumed(0)
    before.step_finished(version=41, samples=512, tokens=90_000, seconds=3.0)
    after = Reporter()
    assert value(after, "rljob_policy_version") is None
    after.resumed(40)
    assert value(after, "rljob_policy_version") == 40
    assert value(after, "rljob_trained_samples_total") == 0


def test_a_step_is_counted() -> None:
    reporter = Reporter()
    reporter.step_started([0, 1, 1, 3])
    reporter.step_finished(version=7, samples=4, tokens=1200, seconds=2.5)
    reporter.waited(0.5)
    reporter.waited(0.25)
    reporter.synced(0.2)
    reporter.dropped(2)
    reporter.environment(12.0)
    assert value(reporter, "rljob_policy_version") == 7
    assert value(reporter, "rljob_sample_staleness_max_versions") == 3
    assert value(reporter, "rljob_sample_staleness_versions_sum") == 5
    assert value(reporter, "rljob_sample_staleness_versions_count") == 4
    assert value(reporter, "rljob_sample_staleness_versions_bucket", le="1.0") == 3
    assert value(reporter, "rljob_trained_samples_total") == 4
    assert value(reporter, "rljob_trained_tokens_total") == 1200
    assert value(reporter, "rljob_train_step_seconds_sum") == 2.5
    assert value(reporter, "rljob_trainer_wait_seconds_total") == 0.75
    assert value(reporter, "rljob_weight_sync_seconds_count") == 1
    assert value(reporter, "rljob_dropped_groups_total") == 2
    assert value(reporter, "rljob_environment_seconds_sum") == 12.0


def test_the_largest_staleness_is_that_of_the_last_step() -> None:
    reporter = Reporter()
    reporter.step_started([5, 2])
    reporter.step_started([1, 0])
    reporter.step_started([])
    assert value(reporter, "rljob_sample_staleness_max_versions") == 1


@pytest.mark.parametrize("cap", [4096, 8192, 16384, 32768, 65536, 131072])
def test_a_common_cap_on_responses_has_its_own_bucket(cap: int) -> None:
    reporter = Reporter()
    reporter.response(cap)
    assert value(reporter, "rljob_response_tokens_bucket", le=f"{float(cap)}") == 1
    reporter.response(cap + 1)
    assert value(reporter, "rljob_response_tokens_bucket", le=f"{float(cap)}") == 1


def test_other_ranks_report_the_generation_alone() -> None:
    worker = Reporter(main=False)
    worker.resumed(3)
    worker.step_started([1])
    worker.step_finished(4, 8, 100, 1.0)
    worker.waited(1)
    worker.synced(1)
    worker.queue(1)
    worker.in_flight(1)
    worker.response(1)
    worker.dropped(1)
    worker.environment(1)
    worker.acknowledged(5)
    assert exported(worker) == {"rljob_layout_generation": "gauge"}
    assert value(worker, "rljob_layout_generation") == 5


def test_two_reporters_do_not_meet() -> None:
    first, second = Reporter(), Reporter()
    first.queue(3)
    assert value(second, "rljob_queue_depth_groups") is None


def test_the_metrics_are_served() -> None:
    reporter = Reporter()
    reporter.resumed(12)
    server, thread = reporter.serve(0, "127.0.0.1")
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{server.server_port}/metrics", timeout=30) as response:
            assert "rljob_policy_version 12.0" in response.read().decode()
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
