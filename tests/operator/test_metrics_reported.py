"""What passes and their tasks bring into the operator's metrics: conditions wherever one is written, the age of the loop."""

from __future__ import annotations

import time

import pytest

from rljob_operator.cluster import ClusterError
from rljob_operator.config import Config
from rljob_operator.metrics import OperatorMetrics
from rljob_operator.reconcile import Reconciler
from rljob_operator.tasks import JobTask, Memo
from rljob_planner.api.status import ConditionType, MovePhase
from tests.operator.test_reconcile import memory, move

JOB = {"rljob_namespace": "rl", "rljob_name": "mine"}


def metrics_of(reconciler: Reconciler) -> OperatorMetrics:
    return reconciler._metrics


def conditions(metrics: OperatorMetrics) -> dict[str, tuple[str, float]]:
    """Reason and value by condition; a condition with two reasons is an error."""
    found: dict[str, tuple[str, float]] = {}
    for family in metrics.registry.collect():
        for sample in family.samples:
            if sample.name == "rljob_operator_condition":
                assert sample.labels["condition"] not in found
                found[sample.labels["condition"]] = (sample.labels["reason"], sample.value)
    return found


async def test_the_conditions_of_the_status_are_shown_with_their_reasons() -> None:
    world = memory()
    reconciler = world.reconciler()
    await reconciler.run_pass()
    shown = conditions(metrics_of(reconciler))
    values = {"True": 1.0, "False": 0.0, "Unknown": -1.0}
    assert shown == {c["type"]: (c["reason"], values[c["status"]]) for c in world.status["conditions"]}
    assert set(shown) <= {kind.value for kind in ConditionType}
    assert len(shown) >= 5


async def test_a_spec_that_cant_be_read_shows_and_passes_when_it_is_corrected() -> None:
    world = memory()
    good = world.job["spec"] | {}
    world.job["spec"] = good | {"gpus": "many"}
    reconciler = world.reconciler()
    await reconciler.run_pass()
    assert conditions(metrics_of(reconciler))["Planned"] == ("InvalidSpec", 0.0)
    world.job["spec"] = good
    await reconciler.run_pass()
    assert conditions(metrics_of(reconciler))["Planned"] == ("Planned", 1.0)


async def test_trouble_shows_though_the_status_cant_be_written() -> None:
    world = memory()
    world.job["status"]["phase"] = "Dancing"
    world.refuse = lambda verb, name: ClusterError(500, "", "no") if verb == "put_status" else None
    reconciler = world.reconciler()
    await reconciler.run_pass()
    assert conditions(metrics_of(reconciler))["Degraded"] == ("StatusUnreadable", 1.0)


async def test_a_move_shows_when_its_phase_began_and_gives_up() -> None:
    world = memory(move=move(MovePhase.DRAIN))
    reconciler = world.reconciler()
    await reconciler.run_pass()
    found = metrics_of(reconciler).registry.get_sample_value
    began = found("rljob_operator_move_phase_start_timestamp_seconds", JOB)
    deadline = found("rljob_operator_move_phase_deadline_timestamp_seconds", JOB)
    assert began is not None
    assert deadline is not None
    assert deadline > began > 1e9


async def test_counters_of_what_should_not_happen_are_there_after_the_first_pass() -> None:
    reconciler = memory().reconciler()
    await reconciler.run_pass()
    found = metrics_of(reconciler).registry.get_sample_value
    for name in ("reconcile_errors", "budget_violations", "drain_timeouts", "lost_samples"):
        assert found(f"rljob_operator_{name}_total", JOB) == 0, name


def test_the_loop_is_as_old_as_its_oldest_job_and_a_standby_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    memo = Memo(Config())
    assert memo.loop_age_s() == 0.0
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now)
    for name, age_s in (("one", 5.0), ("two", 250.0)):
        memo.jobs[name] = JobTask("rl", name, name, last_pass_s=now - age_s)
    assert memo.loop_age_s() == pytest.approx(250.0)
    memo.leading = False
    assert memo.loop_age_s() == 0.0
