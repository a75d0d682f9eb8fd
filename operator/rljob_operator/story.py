"""What happened to a job and what comes next, in a sentence or two each: ``status.summary`` and ``status.next``. Pure.

A status full of numbers answers every question but the first one: is this right, and do I have to do anything? So beside the
numbers stands what a colleague would say. Everything here follows from the rest of the status, so that it can't disagree with it,
and nothing in it counts seconds: a sentence that changes by itself would wake every watcher for nothing.
"""

from __future__ import annotations

from collections.abc import Mapping

from rljob_planner.api.spec import RebalanceMode, RLJobSpec
from rljob_planner.api.status import (
    Condition,
    ConditionType,
    DecisionCode,
    DecisionStatus,
    MoveStatus,
    Phase,
    PlanStatus,
    RLJobStatus,
)
from rljob_planner.durations import seconds
from rljob_planner.split import Split

NEXT: Mapping[DecisionCode, str] = {
    DecisionCode.INITIAL_PLAN: "the first decision follows once the pods run and some steps are measured",
    DecisionCode.MOVE: "the move to {wish} starts",
    DecisionCode.MOVE_COMMITTED: "what the move gained is measured over the next steps, then decisions go on",
    DecisionCode.MOVE_ROLLED_BACK: "the split stays until the pause after the roll-back is over, then it is decided anew",
    DecisionCode.SPEC_CHANGED: "the split is brought back into the spec",
    DecisionCode.POOL_LOST: "the job goes on with what is left; the lost pool is used again once it is back",
    DecisionCode.BUDGET_RAISED: "the move to {wish} puts the raised budget to use",
    DecisionCode.MOVE_BY_HAND: "the move to {wish} starts, as somebody asked",
    DecisionCode.LOWER_CAP: "staleness is watched until samples of the old in-flight cap are trained",
    DecisionCode.RAISE_CAP: "staleness is watched until samples of the old in-flight cap are trained",
    DecisionCode.AT_OPTIMUM: "nothing to do: the split stays until another one is better by more than what is uncertain",
    DecisionCode.GAIN_TOO_SMALL: "nothing to do: {wish} would be better by too little to move for",
    DecisionCode.NOT_WORTH_COST: "nothing to do: {wish} would not pay for the move in the steps that remain",
    DecisionCode.UNCERTAIN: "more steps are measured: whether {wish} is better is not certain yet",
    DecisionCode.NOT_PERSISTED: "the move to {wish} starts if the next decisions agree",
    DecisionCode.COOLDOWN: "the move to {wish} starts when the cooldown of the last move is over, if it still gains",
    DecisionCode.BACK_OFF: "the move to {wish} is tried again when the pause after the roll-back is over",
    DecisionCode.METRICS_UNKNOWN: "nothing is resized until the metrics are back: the condition MetricsAvailable says what to do",
    DecisionCode.NOT_READY: "decisions wait until all pods are ready",
    DecisionCode.SETTLING: "decisions wait until the present layout has been measured for some steps",
    DecisionCode.RECOMMEND_ONLY: "nothing by itself, since rebalance.mode is Recommend: {wish} is yours to choose",
    DecisionCode.INITIAL_ONLY: "nothing by itself, since rebalance.mode is Initial: write Auto to let the operator move to {wish}",
    DecisionCode.TRAINER_FIXED: "nothing: {wish} would be better, but trainer.resize is fixed",
    DecisionCode.SIDE_BROKEN: "decisions wait until the side that is broken works again: the condition Degraded says what to do",
    DecisionCode.NOTHING_PLACEABLE: "the split stays, since no other can be planned: the last decision says why",
}
"""What follows a decision; ``{wish}`` is the split that was wished."""

UNREAD = frozenset({"NoPrometheus", "PrometheusNotAllowed"})
"""Reasons of the condition MetricsAvailable under which no Prometheus is asked at all."""


def summary(spec: RLJobSpec, status: RLJobStatus) -> str:
    """What the job does now and what was done to its split, why, and what that gained."""
    if status.phase is Phase.PENDING or status.split is None:
        planned = condition_of(status, ConditionType.PLANNED)
        if planned is None:
            return "Waits to be planned: no operator has got to it yet, or other jobs on the same nodes come first."
        return f"Not planned: {planned.message}." if planned.status == "False" else f"{planned.message}."
    sentences = [_now(spec, status), *_moved(status)]
    return " ".join(s for s in sentences if s)


def next_step(spec: RLJobSpec, status: RLJobStatus) -> str:
    """What comes next, and what it waits for."""
    if status.phase is Phase.COMPLETE:
        return "nothing: the run is over, and its GPUs are freed once samplers have drained"
    if spec.suspend:
        return "nothing until spec.suspend is false"
    if status.rebalance is not None:
        return _of_move(status.rebalance)
    if status.split is None:
        if condition_of(status, ConditionType.PLANNED) is None:
            return (
                "its first plan, once the jobs before it have theirs, at the latest some seconds after its creation; where it stays away, "
                "see whether an operator runs and watches this namespace: kubectl get pods -A -l app.kubernetes.io/name=rljob-operator"
            )
        return "a plan, as soon as what stands in its way is gone: the condition Planned says what"
    for kind in (ConditionType.SCHEDULED, ConditionType.READY):
        found = condition_of(status, kind)
        if found is not None and found.status == "False" and status.phase is not Phase.RUNNING:
            return f"{kind.value}: {found.message}"
    last = last_decision(status)
    if last is None or last.code is DecisionCode.INITIAL_PLAN:
        metrics = condition_of(status, ConditionType.METRICS_AVAILABLE)
        if metrics is not None and metrics.reason in UNREAD:
            return "nothing: without a Prometheus to read there are no decisions; the condition MetricsAvailable says what to do"
    if last is None:
        return "the first decision"
    said = NEXT.get(last.code, last.message).format(wish=_SOME if last.to_split is None else last.to_split.label())
    if last.to_split is None and last.code in (DecisionCode.RECOMMEND_ONLY, DecisionCode.INITIAL_ONLY):
        # The split is the right one; what is wished is a cap, which nobody but the operator sets.
        said = f"nothing by itself, since rebalance.mode is {spec.rebalance.mode.value}: in Auto it would change the in-flight cap ({last.message})"
    every = (
        ""
        if spec.rebalance.mode is RebalanceMode.INITIAL and last.code is DecisionCode.INITIAL_ONLY
        else f"; decides again every {spec.rebalance.interval}"
    )
    return said + every


_SOME = "another split"
"""What a wish is called of which no split is known."""

_MUCH = 0.15
"""Change of the mean response length from which on it is named as what a move was made for."""

THIS_RUN = "this run"
"""How the source begins that a run itself is."""


def with_sources(before: RLJobStatus, now: RLJobStatus) -> PlanStatus | None:
    """The plan with what it rests on: what was known before the run, and what the run itself has measured."""
    plan, calibration = now.plan, now.calibration
    if plan is None or plan == before.plan:
        return plan
    known = plan.sources or (() if before.plan is None else before.plan.sources)
    sources = [source for source in known if not source.startswith(THIS_RUN)]
    if calibration is not None and calibration.observations > 0:
        sources.append(
            f"{THIS_RUN}: samplers {calibration.sampler_factor:.2f} and trainers {calibration.trainer_factor:.2f} times as fast as "
            "the model says"
        )
    return plan.model_copy(update={"sources": tuple(sources)})


WISHES = frozenset(
    {
        DecisionCode.INITIAL_PLAN,
        DecisionCode.MOVE,
        DecisionCode.NOT_PERSISTED,
        DecisionCode.COOLDOWN,
        DecisionCode.BACK_OFF,
        DecisionCode.RECOMMEND_ONLY,
        DecisionCode.INITIAL_ONLY,
        DecisionCode.TRAINER_FIXED,
        DecisionCode.SPEC_CHANGED,
        DecisionCode.BUDGET_RAISED,
        DecisionCode.MOVE_BY_HAND,
    }
)
"""Codes of a decision whose wished split is worth a move."""


def recommended(status: RLJobStatus) -> Split | None:
    """The split that the operator would choose now: the one in force where no other is worth a move; None before a plan."""
    last = last_decision(status)
    if last is not None and last.code in WISHES and last.to_split is not None:
        return last.to_split
    return status.split


def last_decision(status: RLJobStatus) -> DecisionStatus | None:
    """The newest decision."""
    return status.decisions[-1] if status.decisions else None


def condition_of(status: RLJobStatus, kind: ConditionType) -> Condition | None:
    """A condition by type."""
    return next((c for c in status.conditions if c.type is kind), None)


def last_move(status: RLJobStatus) -> DecisionStatus | None:
    """The newest end of a move that is kept, committed or rolled back."""
    ends = (DecisionCode.MOVE_COMMITTED, DecisionCode.MOVE_ROLLED_BACK)
    return next((d for d in reversed(status.decisions) if d.code in ends), None)


def of_start(move: MoveStatus) -> str:
    """From where to where a move leads, and why; a decision's reason says both by itself."""
    leads = f"{move.from_split.label()} to {move.to_split.label()}"
    return move.reason if move.to_split.label() in move.reason else f"{leads}: {move.reason}"


def measured(before: RLJobStatus, now: RLJobStatus) -> str | None:
    """What the last move gained, in the pass in which that is first known; None in all others."""
    end = last_move(now)
    if end is None or end.measured_gain is None or end.from_split is None or end.to_split is None:
        return None
    if any(d.at == end.at and d.code is end.code and d.measured_gain is not None for d in before.decisions):
        return None
    predicted = "" if end.predicted_gain is None else f" ({percent(end.predicted_gain)} was predicted)"
    verb = f"gained {percent(end.measured_gain)}" if end.measured_gain >= 0 else f"lost {percent(-end.measured_gain)}"
    return f"the move from {end.from_split.label()} to {end.to_split.label()} {verb} of the period{predicted}"


def reason_of(status: RLJobStatus, end: DecisionStatus) -> str | None:
    """Why the move that ended so was started: the message of the decision before it."""
    before = [d for d in status.decisions if d.at <= end.at]
    starts = (DecisionCode.MOVE, DecisionCode.SPEC_CHANGED, DecisionCode.BUDGET_RAISED, DecisionCode.MOVE_BY_HAND)
    return next((d.message for d in reversed(before) if d.code in starts), None)


def percent(fraction: float) -> str:
    """A fraction in percent with as many digits as matter."""
    return f"{fraction:.1%}" if abs(fraction) < 0.1 else f"{fraction:.0%}"


def _now(spec: RLJobSpec, status: RLJobStatus) -> str:
    assert status.split is not None
    label, observed, plan = status.split.label(), status.observed, status.plan
    period_s = None if observed is None else observed.period_seconds
    if status.phase is Phase.COMPLETE:
        return (
            f"All {spec.workload.steps} steps are made, the last ones with {label}, after {_moves(status.moves.moves)}."
        )
    if status.phase is Phase.SUSPENDED or spec.suspend:
        return f"Suspended; {label} was in force and comes back."
    if status.rebalance is not None:
        move = status.rebalance
        return (
            f"Moves back to {move.to_split.label()}: {move.reason}."
            if move.rolling_back
            else f"Moves: {of_start(move)}."
        )
    words = [f"{'Runs' if status.phase is Phase.RUNNING else 'Starts with'} {label}"]
    if period_s is not None:
        words.append(f"a step takes {seconds(period_s)}")
    if plan is not None and plan.split.same_shape(status.split):
        words.append(_expected(status, plan, measured=period_s is not None))
    if observed is not None and observed.policy_version is not None:
        words.append(f"{observed.policy_version} of {spec.workload.steps} steps are made")
    return ", ".join(words) + "."


def _expected(status: RLJobStatus, plan: PlanStatus, *, measured: bool) -> str:
    """What the plan says of the split in force: of the start, or, once the run is measured, of the lengths of the steps to come."""
    expected = seconds(plan.period.mean)
    if status.calibration is not None and status.calibration.observations > 0:
        return f"{expected} expected of the steps to come"
    return f"{expected} planned" if measured else f"{expected} planned, bound by {plan.bottleneck}"


def _moved(status: RLJobStatus) -> list[str]:
    end = last_move(status)
    if end is None or end.from_split is None or end.to_split is None or status.phase is Phase.REBALANCING:
        return []
    if end.code is DecisionCode.MOVE_ROLLED_BACK:
        return [f"The last move ended where it began: {end.message}."]
    gains = []
    if end.measured_gain is not None:
        gains.append(f"gained {percent(end.measured_gain)} of the period")
    if end.predicted_gain is not None:
        gains.append(f"{percent(end.predicted_gain)} {'was' if gains else 'gain is'} predicted")
    if end.cost_seconds is not None:
        gains.append(
            f"cost {seconds(end.cost_seconds)}" if end.cost_seconds >= 0.5 else "cost nothing that was measured"
        )
    leads = f"{end.from_split.label()} to {end.to_split.label()}"
    return [f"The last move, {leads}{_drift(status, end)}, {', '.join(gains) or 'is not measured yet'}."]


def _drift(status: RLJobStatus, end: DecisionStatus) -> str:
    """How responses had changed since the start of the run when a move was made, where that was much."""
    tokens = end.response_tokens_mean
    if tokens is None or not status.lengths or end.from_split is None:
        return ""
    first = status.lengths[0].mean
    if abs(tokens / first - 1.0) < _MUCH:
        return ""
    return f", made as responses went from {first:,.0f} to {tokens:,.0f} tokens"


def _of_move(move: MoveStatus) -> str:
    where = "back to" if move.rolling_back else "to"
    waits = f" and waits for {move.waiting_for}" if move.waiting_for else ""
    return f"the move {where} {move.to_split.label()} is in {move.phase.value}{waits}; this phase is due by {move.deadline}"


def _moves(count: int) -> str:
    return {0: "no move", 1: "one move"}.get(count, f"{count} moves")
