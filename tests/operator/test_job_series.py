"""The series that repeat a job's status: what is unknown has none, and the last move says why it was made."""

from __future__ import annotations

from typing import Any

import pytest
from prometheus_client import generate_latest

from rljob_operator.last_move import LONGEST_REASON, last_move
from rljob_operator.metrics import OperatorMetrics
from rljob_operator.rebalance import epoch_s
from rljob_planner.api.status import (
    CalibrationStatus,
    DecisionCode,
    DecisionStatus,
    MoveCause,
    MovePhase,
    MoveStatus,
    ObservedStatus,
    Phase,
    PlanStatus,
    RLJobStatus,
    RunTime,
    Spread,
    StalenessSummary,
)
from tests.operator.situations import spec, split

BEFORE, AFTER = split(48, 2), split(40, 3)
JOB = {"rljob_namespace": "team", "rljob_name": "math"}
WHY = "48×1 → 40×3 saves 12% of the period (responses 900 tokens)"
START = DecisionStatus(
    at="2026-01-01T00:00:00Z",
    code=DecisionCode.MOVE,
    message=WHY,
    from_split=BEFORE,
    to_split=AFTER,
    predicted_gain=0.12,
    saving_seconds=500.0,
    cost_seconds=30.0,
)
END = DecisionStatus(
    at="2026-01-01T00:01:00Z",
    code=DecisionCode.MOVE_COMMITTED,
    message="Committed",
    from_split=BEFORE,
    to_split=AFTER,
    predicted_gain=0.12,
    measured_gain=0.1,
    cost_seconds=25.0,
)


def running(**changes: Any) -> RLJobStatus:
    base = RLJobStatus(
        phase=Phase.RUNNING,
        split=BEFORE,
        plan=PlanStatus(
            split=BEFORE,
            period=Spread(mean=10.0, p10=9.0, p50=10.0, p90=11.0),
            staleness=StalenessSummary(mean=2.0, p95=3.0, max=4.0),
            run_time=RunTime(p10=1.0, p50=2.0, p90=3.0),
            bottleneck="samplers",
            placeable_gpus=56,
            planned_at="2026-01-01T00:00:00Z",
        ),
        observed=ObservedStatus(
            at="2026-01-01T00:00:00Z", policy_version=100, staleness_mean=1.5, response_tokens_mean=900.0
        ),
        calibration=CalibrationStatus(observations=5, residual=0.03),
    )
    return base.model_copy(update=changes)


def under_way(reason: str = WHY) -> MoveStatus:
    return MoveStatus(
        id="m1",
        phase=MovePhase.DRAIN,
        from_split=BEFORE,
        to_split=AFTER,
        reason=reason,
        predicted_gain=0.12,
        generation=3,
        started_at="2026-01-01T00:00:00Z",
        phase_since="2026-01-01T00:00:10Z",
        deadline="2026-01-01T00:02:00Z",
    )


@pytest.fixture
def metrics() -> OperatorMetrics:
    return OperatorMetrics()


def value(metrics: OperatorMetrics, name: str, **labels: str) -> float | None:
    return metrics.registry.get_sample_value(f"rljob_operator_{name}", JOB | labels)


def moves_told(metrics: OperatorMetrics) -> list[dict[str, str]]:
    return [
        dict(sample.labels)
        for family in metrics.registry.collect()
        for sample in family.samples
        if sample.name == "rljob_operator_last_move_info"
    ]


def test_a_running_job_shows_its_split_its_limits_and_what_the_plan_says(metrics: OperatorMetrics) -> None:
    metrics.reported("team", "math", spec(), running())
    assert value(metrics, "phase", phase="Running") == 1
    assert value(metrics, "split_replicas", side="samplers") == 48
    assert value(metrics, "split_gpus", side="trainers") == 16
    assert value(metrics, "inflight_cap_samples") == 1000
    assert value(metrics, "placeable_gpus") == 56
    assert value(metrics, "steps") == 1000
    assert value(metrics, "policy_version") == 100
    assert value(metrics, "staleness_limit_versions") == 4
    assert value(metrics, "observed_staleness_versions", stat="mean") == 1.5
    assert value(metrics, "predicted_staleness_versions", stat="p95") == 3
    assert value(metrics, "predicted_period_quantile_seconds", at="0.9") == 11
    assert value(metrics, "observed_response_tokens") == 900
    assert value(metrics, "calibration_residual_ratio") == 0.03


def test_what_becomes_unknown_loses_its_series(metrics: OperatorMetrics) -> None:
    metrics.reported("team", "math", spec(), running())
    metrics.reported("team", "math", spec(), RLJobStatus(phase=Phase.PENDING))
    assert value(metrics, "phase", phase="Running") is None
    assert value(metrics, "phase", phase="Pending") == 1
    assert value(metrics, "split_gpus", side="samplers") is None
    assert value(metrics, "observed_staleness_versions", stat="mean") is None
    assert value(metrics, "predicted_staleness_versions", stat="mean") is None
    assert value(metrics, "inflight_cap_samples") is None
    assert value(metrics, "steps") == 1000


def test_a_move_under_way_says_why_and_then_what_it_gained(metrics: OperatorMetrics) -> None:
    metrics.reported("team", "math", spec(), running())
    assert moves_told(metrics) == []
    metrics.reported("team", "math", spec(), running(rebalance=under_way(), decisions=(START,)))
    said = JOB | {"from": BEFORE.label(), "to": AFTER.label(), "cause": "Decision", "reason": WHY}
    assert moves_told(metrics) == [said | {"outcome": "UnderWay"}]
    assert value(metrics, "last_move_gain_ratio", kind="predicted") == 0.12
    assert value(metrics, "last_move_gain_ratio", kind="measured") is None
    assert value(metrics, "last_move_saving_seconds") == 500
    assert value(metrics, "last_move_cost_seconds", kind="predicted") == 30
    metrics.reported("team", "math", spec(), running(decisions=(START, END)))
    assert moves_told(metrics) == [said | {"outcome": "Committed"}]
    assert value(metrics, "last_move_gain_ratio", kind="measured") == 0.1
    assert value(metrics, "last_move_cost_seconds", kind="measured") == 25
    assert value(metrics, "last_move_timestamp_seconds") == epoch_s(END.at)


def test_what_later_decisions_push_out_of_the_status_stays_told(metrics: OperatorMetrics) -> None:
    metrics.reported("team", "math", spec(), running(decisions=(START, END)))
    metrics.reported("team", "math", spec(), running())
    assert [move["reason"] for move in moves_told(metrics)] == [WHY]


def test_a_job_costs_a_scrape_few_series(metrics: OperatorMetrics) -> None:
    before = len(generate_latest(metrics.registry).decode().splitlines())
    for name in ("math", "code"):
        for phase in (Phase.STARTING, Phase.RUNNING):
            metrics.reported("team", name, spec(), running(phase=phase, decisions=(START, END)))
    assert (len(generate_latest(metrics.registry).decode().splitlines()) - before) / 2 < 30


def test_a_deleted_job_leaves_nothing(metrics: OperatorMetrics) -> None:
    for name in ("math", "code"):
        metrics.reported("team", name, spec(), running(decisions=(START, END)))
    metrics.forget("team", "math")
    text = generate_latest(metrics.registry).decode()
    assert 'rljob_name="math"' not in text
    assert 'rljob_name="code"' in text


def test_a_move_that_was_rolled_back_says_what_went_wrong() -> None:
    end = END.model_copy(
        update={
            "code": DecisionCode.MOVE_ROLLED_BACK,
            "message": "RolledBack: late",
            "predicted_gain": None,
            "measured_gain": None,
            "from_split": AFTER,
            "to_split": BEFORE,
        }
    )
    found = last_move(running(decisions=(START, end)))
    assert found is not None
    assert (found.outcome, found.to, found.reason, found.cause) == (
        "RolledBack", BEFORE.label(), "RolledBack: late", MoveCause.DECISION.value,
    )  # fmt: skip
    assert found.predicted_gain == 0.12


def test_a_move_whose_reason_is_no_longer_kept_claims_none() -> None:
    found = last_move(running(decisions=(END,)))
    assert found is not None
    assert (found.cause, found.reason, found.saving_s) == ("", "", None)
    assert found.predicted_gain == 0.12


def test_a_reason_of_any_length_makes_a_short_label() -> None:
    found = last_move(running(rebalance=under_way("x" * 5000)))
    assert found is not None
    assert len(found.reason) == LONGEST_REASON
