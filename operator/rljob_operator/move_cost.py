"""What a move takes and costs: as this job's own moves have shown it, phase by phase, else as such jobs usually take.

A move is felt twice. The GPUs that change sides do nothing from the moment that their samplers take no new samples until
the new pods serve; and the whole job stands still while its process groups form anew. So the estimate is made of the phases, and each
phase that the job has been through replaces its assumption.
"""

from __future__ import annotations

from rljob_planner.api.evidence import MeasuredMove, PhaseSeconds
from rljob_planner.api.spec import RLJobSpec
from rljob_planner.api.status import MoveHistory, MovePhase, MoveStatus
from rljob_planner.split import Split

START_S = 180.0
"""Assumed time from a pod's creation to a loaded engine, in seconds."""

GONE_S = 30.0
"""Assumed time from a scale-down until the pods are gone, in seconds."""

REGROUP_S = 30.0
"""Assumed time in which the whole job stands still while process groups form anew, in seconds."""


def duration_s(history: MoveHistory, spec: RLJobSpec, longest_response_s: float, period_s: float) -> float:
    """What a move is expected to take from its decision to its commit, in seconds."""
    known = history.phases
    drain_s = min(spec.sampler.drain_timeout_s, longest_response_s)
    return (
        _or(known.announce, 0.5 * period_s)
        + _or(known.drain, drain_s)
        + (known.checkpoint or 0.0)
        + _or(known.shrink, GONE_S)
        + _or(known.grow, START_S)
        + _or(known.verify, 0.5 * period_s + REGROUP_S)
    )


def lost_s(history: MoveHistory, before: Split, after: Split, move_s: float, period_s: float) -> float:
    """What a move from ``before`` to ``after`` costs, in seconds of lost progress."""
    share = max(taken_gpus(before, after), 1) / before.gpus
    standstill_s = min(_or(history.phases.verify, REGROUP_S), REGROUP_S + 0.5 * period_s)
    return share * move_s + standstill_s


def _or(known: float | None, assumed: float) -> float:
    return assumed if known is None else known


def with_phase(phases: PhaseSeconds, phase: MovePhase, took_s: float) -> PhaseSeconds:
    """The phases of a move with one more that is over."""
    return phases.model_copy(update={phase.value.lower(): round(took_s, 1)})


def averaged(before: PhaseSeconds, latest: PhaseSeconds) -> PhaseSeconds:
    """What phases take after one more move: half what was known, half what it showed."""
    found = {}
    for name in PhaseSeconds.model_fields:
        old, new = getattr(before, name), getattr(latest, name)
        found[name] = old if new is None else new if old is None else round(0.5 * (old + new), 1)
    return PhaseSeconds(**found)


def left_behind(move: MoveStatus, at: str) -> MeasuredMove | None:
    """What to compare with, once the new layout is measured; None where the split before it was not measured."""
    if move.period_at_start is None:
        return None
    return MeasuredMove(left=move.from_split, left_period_seconds=move.period_at_start, left_at=move.inputs, at=at)


def taken_gpus(before: Split, after: Split) -> int:
    """GPUs that the side which shrinks more gives up; all of a side whose replicas change their shape."""

    def given(old: int, new: int, old_width: int, new_width: int) -> int:
        return max(0, old - new) * old_width if old_width == new_width else old * old_width

    b, a = before, after
    return max(
        given(b.samplers.replicas, a.samplers.replicas, b.samplers.gpus_per_replica, a.samplers.gpus_per_replica),
        given(b.trainers.replicas, a.trainers.replicas, b.trainers.gpus_per_replica, a.trainers.gpus_per_replica),
    )
