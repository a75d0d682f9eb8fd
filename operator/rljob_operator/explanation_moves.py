"""What an explanation says of moves: the one in mind, with what it would gain, cost and need, and those that are over. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from rljob_operator import story
from rljob_operator.explanation import OutlookJson, PastMoveJson
from rljob_planner.api.spec import RebalanceMode, RLJobSpec
from rljob_planner.api.status import DecisionCode, DecisionStatus, RLJobStatus
from rljob_planner.durations import seconds

_WAITS = frozenset(
    {
        DecisionCode.INITIAL_PLAN,
        DecisionCode.NOT_PERSISTED,
        DecisionCode.COOLDOWN,
        DecisionCode.BACK_OFF,
        DecisionCode.UNCERTAIN,
        DecisionCode.GAIN_TOO_SMALL,
        DecisionCode.NOT_WORTH_COST,
        DecisionCode.RECOMMEND_ONLY,
        DecisionCode.INITIAL_ONLY,
        DecisionCode.TRAINER_FIXED,
        DecisionCode.MOVE,
        DecisionCode.BUDGET_RAISED,
        DecisionCode.MOVE_BY_HAND,
        DecisionCode.SPEC_CHANGED,
    }
)
"""Codes of a decision that has another split in mind."""


def outlook(spec: RLJobSpec, status: RLJobStatus) -> OutlookJson | None:
    """The move that the operator has in mind or makes; None if there is none."""
    last = story.last_decision(status)
    move = status.rebalance
    if move is not None:
        return OutlookJson(
            from_split=move.from_split.label(),
            to_split=move.to_split.label(),
            gain=move.predicted_gain,
            gain_uncertainty=None,
            saving_seconds=None,
            cost_seconds=status.moves.cost_seconds,
            pays_back_steps=None,
            needs=[move.waiting_for] if move.waiting_for else [],
        )
    if last is None or last.code not in _WAITS or last.to_split is None or last.from_split is None:
        return None
    if last.to_split.same_shape(last.from_split):
        return None
    gain, cost_s = last.predicted_gain, last.cost_seconds
    period_s = last.period_seconds
    saved_a_step_s = gain * period_s if gain and period_s else None
    return OutlookJson(
        from_split=None if last.from_split is None else last.from_split.label(),
        to_split=last.to_split.label(),
        gain=gain,
        gain_uncertainty=_extra(last, "uncertainty"),
        saving_seconds=_saving_s(spec, status, last, saved_a_step_s),
        cost_seconds=cost_s,
        pays_back_steps=None
        if cost_s is None or not saved_a_step_s or saved_a_step_s <= 0
        else int(cost_s / saved_a_step_s) + 1,
        needs=list(_needs(spec, status, last)),
    )


def _extra(decision: DecisionStatus, field: str) -> float | None:
    value = getattr(decision, field, None)
    return None if value is None else float(value)


def _saving_s(spec: RLJobSpec, status: RLJobStatus, last: DecisionStatus, a_step_s: float | None) -> float | None:
    said = _extra(last, "saving_seconds")
    if said is not None:
        return said
    version = None if status.observed is None else status.observed.policy_version
    return None if a_step_s is None or version is None else a_step_s * max(0, spec.workload.steps - version)


def _needs(spec: RLJobSpec, status: RLJobStatus, last: DecisionStatus) -> Iterator[str]:
    """What has to happen before the wished move starts, and in it."""
    if spec.rebalance.mode is not RebalanceMode.AUTO:
        yield "somebody who does it: the operator only recommends in this mode"
    if last.code is DecisionCode.NOT_PERSISTED:
        yield f"more decisions that agree; they come every {spec.rebalance.interval}"
    if last.code is DecisionCode.COOLDOWN and status.moves.last_ended_at is not None:
        yield f"the pause since the last move, which ended at {status.moves.last_ended_at}"
    if last.code is DecisionCode.BACK_OFF and status.moves.not_before is not None:
        yield f"the pause after the roll-back, until {status.moves.not_before}"
    if last.from_split is not None and last.to_split is not None:
        for role, before, after in (
            ("sampler", last.from_split.samplers.gpus, last.to_split.samplers.gpus),
            ("trainer", last.from_split.trainers.gpus, last.to_split.trainers.gpus),
        ):
            if after < before:
                drained = f", drained for at most {spec.sampler.drain_timeout}" if role == "sampler" else ""
                yield f"{before - after} GPUs that {role}s give up{drained}"
    phases = getattr(status.moves, "phases", None)
    took = [v for v in phases.model_dump().values() if v is not None] if phases is not None else []
    if took:
        yield f"about {seconds(sum(took))}, as earlier moves of this job took"


def past(status: RLJobStatus, end: DecisionStatus) -> PastMoveJson:
    """A move that ended, by the decision that says so."""
    committed = end.code is DecisionCode.MOVE_COMMITTED
    return PastMoveJson(
        at=end.at,
        from_split=None if end.from_split is None else end.from_split.label(),
        to_split=None if end.to_split is None else end.to_split.label(),
        committed=committed,
        why=story.reason_of(status, end) if committed else end.message,
        predicted_gain=end.predicted_gain,
        measured_gain=end.measured_gain,
        cost_seconds=end.cost_seconds,
    )
