"""The operator's own metrics, as a scrape sees them."""

from __future__ import annotations

import platform
import urllib.request

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from rljob_operator.metrics import OperatorMetrics
from rljob_planner import __version__
from rljob_planner.api.status import CalibrationStatus, ConditionType, DecisionCode, MovePhase

OF_THE_PROCESS = (
    "leader ", "takeovers_", "reconcile_seconds", "plan_seconds", "api_requests", "jobs ", "woken_jobs", "waiting_jobs",
    "build_info", "loop_age_seconds", "watch_lost",
)  # fmt: skip
"""Metrics that no job has for itself."""

JOB = {"rljob_namespace": "team", "rljob_name": "math"}


@pytest.fixture
def metrics() -> OperatorMetrics:
    return OperatorMetrics(clock=lambda: 1_700_000_000.0)


def value(metrics: OperatorMetrics, name: str, **labels: str) -> float | None:
    return metrics.registry.get_sample_value(f"rljob_operator_{name}", JOB | labels)


def test_a_pass_is_timed(metrics: OperatorMetrics) -> None:
    metrics.reconciled("team", "math", 0.3)
    metrics.reconciled("team", "code", 0.01)
    found = metrics.registry.get_sample_value
    assert found("rljob_operator_reconcile_seconds_count") == 2
    assert found("rljob_operator_reconcile_seconds_sum") == 0.31
    assert found("rljob_operator_reconcile_seconds_bucket", {"le": "0.2"}) == 1
    assert found("rljob_operator_reconcile_seconds_bucket", {"le": "0.5"}) == 2
    assert value(metrics, "last_reconcile_timestamp_seconds") == 1_700_000_000.0


def test_a_failed_pass_is_counted_and_is_no_pass(metrics: OperatorMetrics) -> None:
    metrics.reconcile_failed("team", "math")
    assert value(metrics, "reconcile_errors_total") == 1
    assert value(metrics, "last_reconcile_timestamp_seconds") is None


def test_one_decision_code_holds_at_a_time(metrics: OperatorMetrics) -> None:
    metrics.decided("team", "math", DecisionCode.COOLDOWN, 0.12)
    metrics.decided("team", "math", DecisionCode.AT_OPTIMUM)
    assert value(metrics, "decision_total", code="Cooldown") == 1
    assert value(metrics, "decision_code", code="Cooldown") == 0
    assert value(metrics, "decision_code", code="AtOptimum") == 1
    assert sum(value(metrics, "decision_code", code=code.value) or 0.0 for code in DecisionCode) == 1
    assert value(metrics, "predicted_gain_ratio") is None


def test_holding_more_than_the_budget_is_counted(metrics: OperatorMetrics) -> None:
    metrics.held("team", "math", budget=64, held=64)
    assert value(metrics, "budget_violations_total") == 0
    metrics.held("team", "math", budget=64, held=65)
    assert value(metrics, "budget_violations_total") == 1
    assert value(metrics, "budget_gpus") == 64
    assert value(metrics, "held_gpus") == 65


def test_moves(metrics: OperatorMetrics) -> None:
    metrics.move_phase("team", "math", MovePhase.DRAIN)
    assert value(metrics, "move_phase", phase="Drain") == 1
    metrics.drain_timed_out("team", "math")
    metrics.move_phase("team", "math", None)
    metrics.move_ended("team", "math", "Committed")
    assert value(metrics, "move_phase", phase="Drain") == 0
    assert value(metrics, "moves_total", outcome="Committed") == 1
    assert value(metrics, "drain_timeouts_total") == 1


def test_a_phase_of_a_move_has_a_beginning_and_a_deadline_while_it_lasts(metrics: OperatorMetrics) -> None:
    metrics.move_phase("team", "math", MovePhase.SHRINK, since_s=100.0, deadline_s=700.0)
    assert value(metrics, "move_phase_start_timestamp_seconds") == 100.0
    assert value(metrics, "move_phase_deadline_timestamp_seconds") == 700.0
    metrics.move_phase("team", "math", MovePhase.SHRINK, since_s=100.0)
    assert value(metrics, "move_phase_deadline_timestamp_seconds") is None
    metrics.move_phase("team", "math", None)
    assert value(metrics, "move_phase_start_timestamp_seconds") is None


def test_what_should_not_happen_is_counted_from_zero(metrics: OperatorMetrics) -> None:
    metrics.held("team", "math", budget=64, held=8)
    for name in ("reconcile_errors_total", "drain_timeouts_total", "lost_samples_total", "budget_violations_total"):
        assert value(metrics, name) == 0, name
    for outcome in ("Committed", "RolledBack"):
        assert value(metrics, "moves_total", outcome=outcome) == 0


def test_a_condition_has_one_series_with_its_reason(metrics: OperatorMetrics) -> None:
    metrics.conditions("team", "math", [("Ready", "False", "PodsNotReady"), ("Planned", "True", "Planned")])
    metrics.conditions("team", "math", [("Ready", "Unknown", "Starting"), ("Planned", "True", "Planned")])
    assert value(metrics, "condition", condition="Ready", reason="PodsNotReady") is None
    assert value(metrics, "condition", condition="Ready", reason="Starting") == -1
    assert value(metrics, "condition", condition="Planned", reason="Planned") == 1
    metrics.conditions("team", "math", [("Ready", "False", "PodsNotReady")])
    assert value(metrics, "condition", condition="Ready", reason="PodsNotReady") == 0
    assert value(metrics, "condition", condition="Planned", reason="Planned") is None
    metrics.forget("team", "math")
    assert value(metrics, "condition", condition="Ready", reason="PodsNotReady") is None


def test_what_is_unknown_has_no_series(metrics: OperatorMetrics) -> None:
    metrics.periods("team", "math", predicted_s=9.0, observed_s=10.0)
    metrics.calibration("team", "math", CalibrationStatus(sampler_factor=0.8, observations=2))
    assert value(metrics, "observed_period_seconds") == 10.0
    assert value(metrics, "calibration_factor", side="samplers") == 0.8
    assert value(metrics, "calibration_pegged") == 0
    metrics.periods("team", "math", predicted_s=9.0, observed_s=None)
    metrics.calibration("team", "math", CalibrationStatus())
    assert value(metrics, "predicted_period_seconds") == 9.0
    assert value(metrics, "observed_period_seconds") is None
    assert value(metrics, "calibration_factor", side="samplers") is None
    assert value(metrics, "calibration_pegged") is None


def test_a_deleted_job_leaves_no_series(metrics: OperatorMetrics) -> None:
    for name in ("math", "code"):
        metrics.reconciled("team", name, 0.1)
        metrics.reconcile_failed("team", name)
        metrics.decided("team", name, DecisionCode.MOVE, 0.2)
        metrics.held("team", name, budget=8, held=8)
        metrics.move_phase("team", name, MovePhase.GROW)
        metrics.move_ended("team", name, "RolledBack")
        metrics.drain_timed_out("team", name)
        metrics.periods("team", name, predicted_s=1.0, observed_s=1.0)
        metrics.calibration("team", name, CalibrationStatus(observations=1))
        metrics.metrics_available("team", name, False)
        metrics.conditions("team", name, [("Ready", "True", "AllReady")])
    metrics.forget("team", "math")
    text = generate_latest(metrics.registry).decode()
    assert 'rljob_name="math"' not in text
    assert text.count('rljob_name="code"') == 20
    metrics.forget("team", "never-seen")


def test_every_series_names_its_job(metrics: OperatorMetrics) -> None:
    metrics.reconciled("team", "math", 0.1)
    metrics.decided("team", "math", DecisionCode.MOVE)
    for line in generate_latest(metrics.registry).decode().splitlines():
        if not line.startswith(("#", "process_")):
            assert line.startswith("rljob_operator_")
            if line.startswith(tuple(f"rljob_operator_{name}" for name in OF_THE_PROCESS)):
                continue
            assert 'rljob_namespace="team"' in line


def test_a_job_costs_a_scrape_few_series(metrics: OperatorMetrics) -> None:
    before = len(generate_latest(metrics.registry).decode().splitlines())
    for name in ("math", "code"):
        for code in (DecisionCode.SETTLING, DecisionCode.AT_OPTIMUM):
            metrics.reconciled("team", name, 0.1)
            metrics.decided("team", name, code)
        metrics.held("team", name, budget=8, held=8)
        metrics.periods("team", name, predicted_s=1.0, observed_s=1.0)
        metrics.calibration("team", name, CalibrationStatus(observations=1))
        metrics.metrics_available("team", name, True)
        metrics.conditions("team", name, [(kind.value, "True", "AsItShould") for kind in ConditionType])
    text = generate_latest(metrics.registry).decode()
    assert "_created" not in text
    assert (len(text.splitlines()) - before) / 2 < 35


def test_what_the_process_does_is_counted(metrics: OperatorMetrics) -> None:
    metrics.requested("PATCH", 200)
    metrics.requested("PATCH", 409)
    metrics.requested("PATCH", 409)
    metrics.planned(0.3)
    waiting = {"one"}
    metrics.count_by(waiting_jobs=lambda: len(waiting))
    found = metrics.registry.get_sample_value
    assert found("rljob_operator_api_requests_total", {"verb": "PATCH", "code": "409"}) == 2
    assert found("rljob_operator_plan_seconds_count") == 1
    assert found("rljob_operator_waiting_jobs") == 1
    waiting.clear()
    assert found("rljob_operator_waiting_jobs") == 0


def test_the_version_is_told(metrics: OperatorMetrics) -> None:
    labels = {"version": __version__, "python": platform.python_version()}
    assert metrics.registry.get_sample_value("rljob_operator_build_info", labels) == 1


def test_metrics_are_served() -> None:
    metrics = OperatorMetrics(CollectorRegistry())
    metrics.metrics_available("team", "math", True)
    server, thread = metrics.serve(0, "127.0.0.1")
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{server.server_port}/metrics", timeout=10) as answer:
            body = answer.read().decode()
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
    assert 'rljob_operator_metrics_available{rljob_name="math",rljob_namespace="team"} 1.0' in body
