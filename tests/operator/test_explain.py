"""``rljob explain``, ``status.summary`` and ``status.next``: the limit that binds, the move in mind, what comes next."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from rljob_operator import story
from rljob_operator.cli import app
from rljob_operator.explain import OF_CODE, explain, explanation_of
from rljob_operator.explanation import Limit
from rljob_operator.holders import Holder, in_words
from rljob_operator.metrics import OperatorMetrics
from rljob_operator.observation import epoch_s
from rljob_planner.api.spec import RLJobSpec
from rljob_planner.api.status import (
    CalibrationStatus,
    Condition,
    ConditionType,
    DecisionCode,
    DecisionStatus,
    LengthPoint,
    MoveHistory,
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
from tests.operator.objects import job_dict
from tests.operator.situations import spec, split

BEFORE, AFTER = split(48, 2), split(40, 3)
AT = "2026-01-01T00:00:00Z"


def plan(**changes: Any) -> PlanStatus:
    return PlanStatus(
        split=BEFORE,
        period=Spread(mean=10.0, p10=9.0, p50=10.0, p90=11.0),
        staleness=StalenessSummary(mean=2.0, p95=3.0, max=4.0),
        run_time=RunTime(p10=1.0, p50=2.0, p90=3.0),
        bottleneck="samplers",
        placeable_gpus=64,
        planned_at=AT,
    ).model_copy(update=changes)


def decision(code: DecisionCode, **fields: Any) -> DecisionStatus:
    return DecisionStatus(at=AT, code=code, message=f"said {code.value}", from_split=BEFORE, **fields)


def wished(code: DecisionCode) -> DecisionStatus:
    return decision(code, to_split=AFTER, predicted_gain=0.2, cost_seconds=60.0, period_seconds=10.0)


def condition(kind: ConditionType, status: str, reason: str, message: str) -> Condition:
    return Condition(
        type=kind, status=status, reason=reason, message=message, last_transition_time=AT, observed_generation=1
    )


def running(*decisions: DecisionStatus, **changes: Any) -> RLJobStatus:
    base = RLJobStatus(
        phase=Phase.RUNNING,
        plan=plan(),
        split=BEFORE,
        observed=ObservedStatus(at=AT, policy_version=100, period_seconds=10.5, response_tokens_mean=900.0),
        calibration=CalibrationStatus(observations=5, residual=0.03),
        decisions=decisions,
    )
    return base.model_copy(update=changes)


def binding(status: RLJobStatus, of: RLJobSpec | None = None) -> Limit | None:
    limits = explain("job", "rl", of or spec(), status).limits
    assert sum(limit.binds for limit in limits) <= 1
    assert not limits or limits[0].binds == any(limit.binds for limit in limits), "the binding one comes first"
    return next((limit.limit for limit in limits if limit.binds), None)


@pytest.mark.parametrize("code", DecisionCode)
def test_every_decision_has_a_limit_and_something_that_comes_next(code: DecisionCode) -> None:
    assert code in OF_CODE
    status = running(wished(code))
    assert binding(status) is OF_CODE[code][0]
    said = story.next_step(spec(), status)
    assert said == story.NEXT[code].format(wish=AFTER.label()) + "; decides again every 60s"


def test_a_job_that_nobody_looked_at_says_how_to_find_the_operator() -> None:
    assert "no operator has got to it yet" in story.summary(spec(), RLJobStatus())
    assert "-l app.kubernetes.io/name=rljob-operator" in story.next_step(spec(), RLJobStatus())


@pytest.mark.parametrize("reason", sorted(story.UNREAD))
@pytest.mark.parametrize("decisions", [(), (decision(DecisionCode.INITIAL_PLAN),)])
def test_a_job_without_metrics_is_promised_no_decision(reason: str, decisions: tuple[DecisionStatus, ...]) -> None:
    unread = condition(ConditionType.METRICS_AVAILABLE, "False", reason, "no Prometheus")
    said = story.next_step(spec(), running(*decisions, conditions=(unread,)))
    assert "no decisions" in said
    assert "MetricsAvailable" in said
    late = unread.model_copy(update={"reason": "NoSamples"})
    assert "first decision" in story.next_step(spec(), running(*decisions, conditions=(late,)))


@pytest.mark.parametrize(
    ("mode", "code"), [("Recommend", DecisionCode.RECOMMEND_ONLY), ("Initial", DecisionCode.INITIAL_ONLY)]
)
def test_a_wish_for_another_cap_alone_is_told_as_such(mode: str, code: DecisionCode) -> None:
    cap = wished(code).model_copy(update={"to_split": None, "message": "the best in-flight cap is 480 samples"})
    said = story.next_step(spec(rebalance={"mode": mode}), running(cap))
    assert (
        f"rebalance.mode is {mode}: in Auto it would change the in-flight cap (the best in-flight cap is 480 samples)"
        in said
    )


@pytest.mark.parametrize(
    ("kind", "status", "reason", "limit"),
    [
        (ConditionType.PLANNED, "False", "DoesNotFit", Limit.PLACEMENT),
        (ConditionType.PLANNED, "False", "InvalidTemplate", Limit.SPEC),
        (ConditionType.SCHEDULED, "False", "Unschedulable", Limit.PLACEMENT),
        (ConditionType.SCHEDULED, "False", "QuotaExceeded", Limit.PLACEMENT),
        (ConditionType.DEGRADED, "True", "PodsBroken", Limit.BROKEN_SIDE),
        (ConditionType.DEGRADED, "True", "AnotherAutoscaler", Limit.AUTOSCALER),
        (ConditionType.METRICS_AVAILABLE, "False", "MetricsMissing", Limit.METRICS),
    ],
)
def test_a_condition_that_is_not_as_wished_binds_before_any_decision(
    kind: ConditionType, status: str, reason: str, limit: Limit
) -> None:
    found = running(wished(DecisionCode.COOLDOWN), conditions=(condition(kind, status, reason, "it is so: do this"),))
    assert binding(found) is limit
    first = explain("job", "rl", spec(), found).limits[0]
    assert first.unblock == "do this"
    assert "it is so" in first.why


def test_another_job_that_has_the_gpus_is_the_limit_by_name() -> None:
    words = in_words((Holder("rl/other", 48, 8),))
    short = condition(ConditionType.PLANNED, "False", "DoesNotFit", f"needs 16 GPUs, 8 are free{words}: add nodes")
    status = RLJobStatus(conditions=(short,))
    first = explain("job", "rl", spec(), status).limits[0]
    assert (first.limit, first.binds, first.unblock) == (Limit.OTHER_JOB, True, "add nodes")
    assert "RLJob rl/other holds 48 GPUs" in first.why
    assert binding(RLJobStatus(conditions=(short.model_copy(update={"message": "needs 16 GPUs"}),))) is Limit.PLACEMENT


def test_conditions_that_every_start_passes_through_bind_nothing() -> None:
    waiting = condition(ConditionType.SCHEDULED, "False", "WaitingForPods", "2 pods are not bound to a node yet")
    assert binding(running(decision(DecisionCode.NOT_READY), conditions=(waiting,))) is Limit.BROKEN_SIDE


def test_a_pegged_factor_is_said_beside_the_decision() -> None:
    pegged = condition(ConditionType.DEGRADED, "True", "CalibrationPegged", "measured speed differs: check the spec")
    found = explain("job", "rl", spec(), running(decision(DecisionCode.AT_OPTIMUM), conditions=(pegged,)))
    assert found.limits[0].limit is Limit.BALANCE
    assert any(limit.limit is Limit.UNCERTAINTY and limit.unblock == "check the spec" for limit in found.limits[1:])


def test_stopped_jobs_say_how_they_go_on() -> None:
    suspended = explain("job", "rl", spec(suspend=True), running(phase=Phase.SUSPENDED))
    assert suspended.limits[0].limit is Limit.STOPPED
    assert suspended.limits[0].unblock == "set spec.suspend to false"
    assert suspended.next == "nothing until spec.suspend is false"
    complete = explain("job", "rl", spec(), running(phase=Phase.COMPLETE, moves=MoveHistory(moves=2)))
    assert complete.limits[0].limit is Limit.STOPPED
    assert complete.summary == f"All 1000 steps are made, the last ones with {BEFORE.label()}, after 2 moves."


def test_what_shapes_the_split_is_listed_behind_what_binds() -> None:
    status = running(
        decision(DecisionCode.AT_OPTIMUM),
        plan=plan(staleness=StalenessSummary(mean=3.98, p95=5.0, max=6.0), placeable_gpus=56),
        observed=ObservedStatus(at=AT, policy_version=10, kv_usage=0.97),
    )
    found = explain("job", "rl", spec(trainer__maxReplicas=2, trainer__resize="fixed"), status)
    shapes = [limit.limit for limit in found.limits if not limit.binds]
    assert shapes[:3] == [Limit.STALENESS, Limit.KV_ROOM, Limit.PLACEMENT]
    assert shapes.count(Limit.MINIMA) == 2
    words = {limit.limit: limit.why for limit in found.limits}
    assert "97% full" in words[Limit.KV_ROOM]
    assert "56 GPUs of the budget of 64" in words[Limit.PLACEMENT]


def test_a_wished_move_says_what_it_gains_costs_and_needs() -> None:
    found = explain("job", "rl", spec(), running(wished(DecisionCode.COOLDOWN), moves=MoveHistory(last_ended_at=AT)))
    assert found.move is not None
    assert (found.move.from_split, found.move.to_split) == (BEFORE.label(), AFTER.label())
    assert found.move.gain == 0.2
    assert found.move.saving_seconds == pytest.approx(0.2 * 10.0 * 900)
    assert found.move.pays_back_steps == 31
    assert found.move.needs == [
        f"the pause since the last move, which ended at {AT}",
        "8 GPUs that samplers give up, drained for at most 15m",
    ]


def test_no_move_is_in_mind_at_the_optimum() -> None:
    assert explain("job", "rl", spec(), running(decision(DecisionCode.AT_OPTIMUM))).move is None


def test_a_move_under_way_says_what_it_waits_for() -> None:
    move = MoveStatus(
        id="m1", phase=MovePhase.DRAIN, from_split=BEFORE, to_split=AFTER, reason="longer responses", predicted_gain=0.2,
        generation=2, started_at=AT, phase_since=AT, deadline=AT, waiting_for="job-samplers-1 to finish 3 samples",
    )  # fmt: skip
    status = running(decision(DecisionCode.MOVE, to_split=AFTER), phase=Phase.REBALANCING, rebalance=move)
    found = explain("job", "rl", spec(), status)
    assert found.limits[0].limit is Limit.MOVE
    assert found.limits[0].unblock == move.waiting_for
    assert found.summary == f"Moves: {BEFORE.label()} to {AFTER.label()}: longer responses."
    assert "is in Drain and waits for job-samplers-1 to finish 3 samples" in found.next


def test_the_summary_tells_what_the_last_move_gained() -> None:
    status = running(
        decision(DecisionCode.MOVE, to_split=AFTER),
        decision(
            DecisionCode.MOVE_COMMITTED, to_split=AFTER, predicted_gain=0.2, measured_gain=0.183, cost_seconds=61.0
        ),
        decision(DecisionCode.AT_OPTIMUM),
        split=AFTER,
        plan=plan(split=AFTER),
    )
    assert story.summary(spec(), status) == (
        f"Runs {AFTER.label()}, a step takes 10.5 s, 10.0 s expected of the steps to come, 100 of 1000 steps are made. The last move, "
        f"{BEFORE.label()} to {AFTER.label()}, gained 18% of the period, 20% was predicted, cost 61.0 s."
    )
    (past,) = explain("job", "rl", spec(), status).moves
    assert past.why == "said Move"
    assert (past.predicted_gain, past.measured_gain) == (0.2, 0.183)


@pytest.mark.parametrize(("first", "told"), [(200.0, True), (880.0, False)])
def test_the_summary_tells_what_a_move_was_made_for(first: float, told: bool) -> None:
    ended = decision(DecisionCode.MOVE_COMMITTED, to_split=AFTER, response_tokens_mean=918.0)
    status = running(ended, split=AFTER, lengths=(LengthPoint(step=1, mean=first),))
    words = ", made as responses went from 200 to 918 tokens, is not measured yet."
    assert (words in story.summary(spec(), status)) is told


def test_what_a_move_gained_is_said_once() -> None:
    ended = decision(DecisionCode.MOVE_COMMITTED, to_split=AFTER, predicted_gain=0.2)
    gained = ended.model_copy(update={"measured_gain": 0.183})
    said = story.measured(running(ended), running(gained))
    assert said == f"the move from {BEFORE.label()} to {AFTER.label()} gained 18% of the period (20% was predicted)"
    assert story.measured(running(gained), running(gained, decision(DecisionCode.AT_OPTIMUM))) is None
    lost = story.measured(running(ended), running(ended.model_copy(update={"measured_gain": -0.05})))
    assert lost is not None
    assert "lost 5.0%" in lost


def test_a_roll_back_is_told_with_its_cause() -> None:
    status = running(decision(DecisionCode.MOVE_ROLLED_BACK, to_split=BEFORE))
    assert story.summary(spec(), status).endswith("The last move ended where it began: said MoveRolledBack.")


def test_a_job_without_a_plan_says_why() -> None:
    missing = condition(ConditionType.PLANNED, "False", "DoesNotFit", "needs 16 GPUs: add nodes")
    status = RLJobStatus(conditions=(missing,))
    assert story.summary(spec(), status) == "Not planned: needs 16 GPUs: add nodes."
    assert binding(status) is Limit.PLACEMENT
    assert explain("job", None, spec(), RLJobStatus()).summary.startswith("Waits to be planned")


def test_a_job_that_nobody_looks_at_says_so_first() -> None:
    check = "check that the operator runs and watches this namespace, and look at its log"
    nobody = explain("job", "rl", spec(), RLJobStatus()).limits[0]
    assert (nobody.limit, nobody.binds, nobody.unblock) == (Limit.OPERATOR, True, check)
    attended = running(wished(DecisionCode.COOLDOWN), observed_generation=2)
    edited = explain("job", "rl", spec(), attended, generation=3).limits[0]
    assert (edited.limit, edited.why) == (Limit.OPERATOR, "the last edit of the spec has not been seen yet")
    seen_s = epoch_s(AT)
    late = explain("job", "rl", spec(), attended, generation=2, now_s=seen_s + 301.0).limits[0]
    assert (late.limit, late.why) == (Limit.OPERATOR, "nobody has looked at this job's metrics for 301 s")
    assert explain("job", "rl", spec(), attended, generation=2, now_s=seen_s + 200.0).limits[0].limit is Limit.COOLDOWN
    assert explain("job", "rl", spec(), attended, generation=2).limits[0].limit is Limit.COOLDOWN


def test_nothing_in_the_sentences_moves_by_itself() -> None:
    """They are written into the status, so the same status gives the same sentence at any time."""
    status = running(wished(DecisionCode.COOLDOWN))
    assert story.summary(spec(), status) == story.summary(spec(), status.model_copy(deep=True))


def document(status: RLJobStatus) -> dict[str, Any]:
    return job_dict(status=status.model_dump(mode="json", by_alias=True, exclude_none=True))


def test_the_command_explains_a_file(tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(yaml.safe_dump(document(running(wished(DecisionCode.COOLDOWN)))))
    shown = CliRunner().invoke(app, ["explain", str(file)])
    assert shown.exit_code == 0, shown.output
    words = " ".join(shown.stdout.split())
    assert "rl/mine: Running, mode Auto" in words
    assert "→ Cooldown" in words
    assert f"Move to {AFTER.label()}" in words
    printed = CliRunner().invoke(app, ["explain", str(file), "-o", "json"])
    assert json.loads(printed.stdout)["limits"][0]["limit"] == "Cooldown"
    assert json.loads(printed.stdout) == explanation_of(document(running(wished(DecisionCode.COOLDOWN)))).model_dump(
        mode="json", by_alias=True
    )


def test_the_command_takes_what_kubectl_prints_on_stdin() -> None:
    text = yaml.safe_dump({"kind": "List", "items": [document(running(decision(DecisionCode.AT_OPTIMUM)))]})
    shown = CliRunner().invoke(app, ["explain", "-"], input=text)
    assert shown.exit_code == 0, shown.output
    assert "→  Balance" in shown.stdout


def test_a_status_of_another_version_is_said_in_a_line(tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(yaml.safe_dump(job_dict(status={"phase": "Resting"})))
    shown = CliRunner().invoke(app, ["explain", str(file)])
    assert shown.exit_code == 2
    assert "phase" in shown.stderr
    assert "another version" in shown.stderr


def test_the_recommended_split_is_the_wish_where_it_is_worth_a_move_and_else_the_one_in_force() -> None:
    assert story.recommended(RLJobStatus()) is None
    assert story.recommended(running(wished(DecisionCode.RECOMMEND_ONLY))) == AFTER
    assert story.recommended(running(wished(DecisionCode.COOLDOWN))) == AFTER
    assert story.recommended(running(wished(DecisionCode.GAIN_TOO_SMALL))) == BEFORE
    assert story.recommended(running(decision(DecisionCode.AT_OPTIMUM))) == BEFORE


def test_the_recommendation_is_exported_and_goes_when_there_is_none() -> None:
    metrics = OperatorMetrics()

    def value(name: str, side: str) -> float | None:
        labels = {"rljob_namespace": "rl", "rljob_name": "job", "side": side}
        return metrics.registry.get_sample_value(f"rljob_operator_recommended_{name}", labels)

    metrics.recommended("rl", "job", AFTER)
    assert (value("replicas", "samplers"), value("gpus", "samplers")) == (40, 40)
    assert (value("replicas", "trainers"), value("gpus", "trainers")) == (3, 24)
    metrics.recommended("rl", "job", None)
    assert value("replicas", "samplers") is None
