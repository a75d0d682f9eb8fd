"""RLJobs as a watch shows them, for the status page: a run whose responses grow, two moves, and whatever a test changes."""

from __future__ import annotations

from typing import Any

from rljob_operator.page.history import Recorder
from rljob_operator.rebalance import timestamp
from rljob_planner.api.status import (
    Condition,
    ConditionType,
    DecisionCode,
    DecisionStatus,
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
from rljob_planner.split import Split
from tests.operator.objects import job_dict
from tests.operator.situations import split

Json = dict[str, Any]

BEGAN_S = 1_760_000_000.0
FIRST, SECOND, THIRD = split(32, 4), split(40, 3), split(48, 2)


class Clock:
    """A clock that a test sets."""

    def __init__(self, now_s: float = BEGAN_S) -> None:
        self.now_s = now_s

    def __call__(self) -> float:
        return self.now_s


def plan(of: Split, period_s: float) -> PlanStatus:
    return PlanStatus(
        split=of,
        period=Spread(mean=period_s, p10=period_s * 0.9, p50=period_s, p90=period_s * 1.2),
        staleness=StalenessSummary(mean=2.0, p95=3.0, max=4.0),
        run_time=RunTime(p10=1000.0, p50=1100.0, p90=1300.0),
        bottleneck="samplers",
        placeable_gpus=64,
        planned_at=timestamp(BEGAN_S),
    )


def decision(at_s: float, code: DecisionCode, message: str = "because", **fields: Any) -> DecisionStatus:
    return DecisionStatus(at=timestamp(at_s), code=code, message=message, **fields)


def move(of: Split, to: Split, started_s: float, phase: MovePhase = MovePhase.DRAIN, **fields: Any) -> MoveStatus:
    return MoveStatus(
        id=f"m-{started_s:.0f}",
        phase=phase,
        from_split=of,
        to_split=to,
        reason=fields.pop("reason", "responses got longer"),
        predicted_gain=0.12,
        generation=3,
        started_at=timestamp(started_s),
        phase_since=timestamp(started_s),
        deadline=timestamp(started_s + 600.0),
        waiting_for=fields.pop("waiting_for", "3 samplers to run empty"),
        **fields,
    )


def condition(kind: ConditionType, status: str, reason: str, message: str = "nothing to do") -> Condition:
    return Condition(
        type=kind,
        status=status,
        reason=reason,
        message=message,
        last_transition_time=timestamp(BEGAN_S),
        observed_generation=1,
    )


def status(**fields: Any) -> RLJobStatus:
    base: Json = {
        "phase": Phase.RUNNING,
        "summary": "Runs on 32×1 samplers + 4×8 trainers; nothing was moved yet.",
        "next": "The next decision is taken within a minute.",
        "samplers": "32/32",
        "trainers": "4/4",
        "split": FIRST,
        "plan": plan(FIRST, 10.0),
        "observed": ObservedStatus(
            at=timestamp(BEGAN_S),
            policy_version=12,
            period_seconds=11.5,
            staleness_mean=1.8,
            staleness_max=3.0,
            queue_groups=5.0,
            in_flight_samples=900.0,
            response_tokens_mean=1500.0,
            gpus_held=64,
        ),
        "conditions": (
            condition(ConditionType.READY, "True", "AllReady"),
            condition(ConditionType.DEGRADED, "False", "AsExpected"),
        ),
    }
    return RLJobStatus(**{**base, **fields})


def body(name: str = "math", namespace: str = "rl", *, shown: RLJobStatus | Json | None = None, **spec: Any) -> Json:
    """An RLJob with a status, its own uid by its name."""
    found = job_dict(name, uid=f"uid-{namespace}-{name}", **{"gpus": 64, **spec})
    found["metadata"]["namespace"] = namespace
    if shown is not None:
        found["status"] = (
            shown.model_dump(mode="json", by_alias=True, exclude_none=True) if isinstance(shown, RLJobStatus) else shown
        )
    return found


def observed(at_s: float, **fields: Any) -> ObservedStatus:
    known: Json = {
        "policy_version": 12,
        "period_seconds": 11.5,
        "staleness_mean": 1.8,
        "staleness_max": 3.0,
        "queue_groups": 5.0,
        "in_flight_samples": 900.0,
        "response_tokens_mean": 1500.0,
        "gpus_held": 64,
    }
    return ObservedStatus(at=timestamp(at_s), **{**known, **fields})


def run(recorder: Recorder, clock: Clock, *, name: str = "math", namespace: str = "rl") -> None:
    """A run of an hour: responses grow, and two moves follow them."""
    decided: list[DecisionStatus] = [decision(BEGAN_S, DecisionCode.INITIAL_PLAN, "the first plan, from the model")]
    history = MoveHistory()
    for minute in range(61):
        clock.now_s = now_s = BEGAN_S + 60.0 * minute
        of, to = (FIRST, SECOND) if minute < 23 else (SECOND, THIRD) if minute < 43 else (THIRD, THIRD)
        under_way = None
        if minute in (20, 21, 22, 40, 41, 42):
            began_s = BEGAN_S + 60.0 * (20 if minute < 40 else 40)
            under_way = move(of, to, began_s, (MovePhase.DRAIN, MovePhase.GROW, MovePhase.VERIFY)[minute % 20])
            if minute in (20, 40):
                decided.append(decision(now_s, DecisionCode.MOVE, "12 % shorter periods", from_split=of, to_split=to))
        if minute in (23, 43):
            history = MoveHistory(last_ended_at=timestamp(now_s), last_outcome="Committed", moves=1 + minute // 43)
            decided.append(decision(now_s, DecisionCode.MOVE_COMMITTED, "as wished", measured_gain=0.11))
        tokens = 1500.0 + 60.0 * minute
        period_s = (9.0 + tokens / 400.0) * (1.0 if minute < 23 else 0.9 if minute < 43 else 0.82)
        seen = observed(
            now_s,
            policy_version=12 + 5 * minute,
            period_seconds=None if under_way else period_s,
            staleness_mean=1.5 + 0.3 * (minute % 7) / 7,
            queue_groups=float(5 + minute % 4),
            response_tokens_mean=tokens,
            gpus_held=64 - (8 if under_way else 0),
        )
        shown = status(
            phase=Phase.REBALANCING if under_way else Phase.RUNNING,
            split=of,
            plan=plan(of, period_s * 0.97),
            observed=seen,
            rebalance=under_way,
            moves=history,
            decisions=tuple(decided[-10:]),
        )
        recorder.saw(body(name, namespace, shown=shown))
