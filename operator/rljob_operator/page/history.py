"""What passed by: how the split, the period and the staleness of each job went, which moves and which decisions there were.

An RLJob keeps its last ten decisions and no curve, and Prometheus may be elsewhere; so this keeps what the operator sees of its
jobs anyway, in memory, from the start of the process on. It reads the RLJobs alone, by the same events that wake the passes, so every replica
shows the same, whether it leads or not.

Memory is bounded whatever runs: a curve that gets long loses every other point, so that it always reaches back to its beginning, and many
jobs have fewer points each.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from pydantic import ValidationError

from rljob_operator.observation import epoch_s
from rljob_operator.page.model import (
    UNREADABLE,
    ConditionJson,
    DecisionJson,
    FleetJson,
    JobHistoryJson,
    JobJson,
    MoveJson,
    PointJson,
    SplitJson,
)
from rljob_operator.rebalance import timestamp
from rljob_operator.status import is_good
from rljob_planner.api.status import DecisionStatus, MoveStatus, RLJobStatus
from rljob_planner.split import Split

Json = Mapping[str, Any]

MOST_POINTS = 24_000
"""Points that are kept of all jobs together; one takes about 400 bytes."""

LONGEST_CURVE = 240
"""Points that are kept of a job: more than a screen can tell apart."""

SHORTEST_CURVE = 40
"""Points that each job may have however many there are."""

MOST_MOVES = 30
"""Moves that are kept of a job."""

MOST_DECISIONS = 40
"""Decisions that are kept of a job."""


@dataclass(frozen=True, slots=True)
class Point:
    """What was known of a job at one time; None is unknown."""

    at_s: float
    """When, in seconds since the epoch."""
    sampler_gpus: int | None = None
    trainer_gpus: int | None = None
    gpus_held: int | None = None
    policy_version: int | None = None
    period_s: float | None = None
    predicted_s: float | None = None
    staleness_mean: float | None = None
    staleness_max: float | None = None
    queue_groups: float | None = None
    in_flight_samples: float | None = None
    in_flight_cap: int | None = None
    response_tokens_mean: float | None = None

    def as_json(self) -> PointJson:
        """The point as it is shown."""
        return PointJson(
            at=timestamp(self.at_s),
            sampler_gpus=self.sampler_gpus,
            trainer_gpus=self.trainer_gpus,
            gpus_held=self.gpus_held,
            policy_version=self.policy_version,
            period_seconds=self.period_s,
            predicted_period_seconds=self.predicted_s,
            staleness_mean=self.staleness_mean,
            staleness_max=self.staleness_max,
            queue_groups=self.queue_groups,
            in_flight_samples=self.in_flight_samples,
            in_flight_cap=self.in_flight_cap,
            response_tokens_mean=self.response_tokens_mean,
        )


@dataclass(frozen=True)
class Curve:
    """Points over time, never more than a given number of them, that always reach back to the first."""

    points: tuple[Point, ...] = ()
    spacing_s: float = 0.0
    """Points nearer to each other than this are one, the newer."""

    def with_point(self, point: Point, most: int) -> Curve:
        """The curve with one more point."""
        points = self.points
        if points and point.at_s <= points[-1].at_s:
            if replace(point, at_s=points[-1].at_s) == points[-1]:
                return self
            points = points[:-1]
        elif len(points) > 1 and (self._near(point) or _level(*points[-2:], point)):
            points = points[:-1]
        return replace(self, points=(*points, point)).thinned(most)

    def _near(self, point: Point) -> bool:
        """Whether the point says nothing that its neighbours do not: it comes soon, and the split is the same."""
        before, last = self.points[-2:]
        same = (point.sampler_gpus, point.trainer_gpus) == (last.sampler_gpus, last.trainer_gpus)
        return same and point.at_s - before.at_s < self.spacing_s

    def thinned(self, most: int) -> Curve:
        """The curve with at most so many points, the first and the last among them."""
        found = self
        while len(found.points) > max(2, most):
            *before, last = found.points
            kept = (*before[::2], last)
            # A spacing that fills the curve half, so that it is thinned again only when it is twice as long.
            span_s = last.at_s - kept[0].at_s
            found = Curve(kept, span_s / max(1, most // 2))
        return found


@dataclass
class _Record:
    job: JobJson
    curve: Curve = field(default_factory=Curve)
    moves: tuple[MoveJson, ...] = ()
    decisions: tuple[DecisionJson, ...] = ()


class Recorder:
    """Keeps what was seen of all jobs; written by the event loop, read by the threads of the server."""

    def __init__(self, *, clock: Callable[[], float] = time.time) -> None:
        """Begin now, by ``clock`` in seconds since the epoch."""
        self._clock = clock
        self._lock = threading.Lock()
        self._records: dict[str, _Record] = {}
        self.since_s = clock()
        """When it began, in seconds since the epoch."""

    def saw(self, body: Json) -> None:
        """An RLJob as a watch shows it."""
        job, status = _job(body, self._clock())
        with self._lock:
            record = self._records.setdefault(job.uid, _Record(job))
            record.job = job
            if status is None:
                return
            most = min(LONGEST_CURVE, max(SHORTEST_CURVE, MOST_POINTS // len(self._records)))
            record.curve = record.curve.with_point(_point(status, self._clock()), most)
            record.moves = _moves(record.moves, status)
            record.decisions = _decisions(record.decisions, status)

    def forgot(self, uid: str) -> None:
        """A job is gone."""
        with self._lock:
            self._records.pop(uid, None)

    def jobs(self) -> tuple[JobJson, ...]:
        """All jobs as they are now, by namespace and name."""
        with self._lock:
            found = [record.job for record in self._records.values()]
        return tuple(sorted(found, key=lambda job: (job.namespace, job.name)))

    def curves(self) -> dict[str, tuple[Point, ...]]:
        """The curve of each job, by uid."""
        with self._lock:
            return {uid: record.curve.points for uid, record in self._records.items()}

    def job(self, namespace: str, name: str) -> JobHistoryJson | None:
        """A job with all that was seen of it, None if there is none of that name."""
        with self._lock:
            found = [r for r in self._records.values() if (r.job.namespace, r.job.name) == (namespace, name)]
            if not found:
                return None
            job, points, moves, decisions = found[-1].job, found[-1].curve.points, found[-1].moves, found[-1].decisions
        fields = {key: getattr(job, key) for key in JobJson.model_fields}
        history = tuple(point.as_json() for point in points)
        return JobHistoryJson(**fields, history=history, moves=moves, decisions=decisions)


def _level(first: Point, *others: Point) -> bool:
    """Whether points differ in their time alone."""
    return all(replace(other, at_s=first.at_s) == first for other in others)


def _job(body: Json, now_s: float) -> tuple[JobJson, RLJobStatus | None]:
    """The job as it is shown, and its status, None if this version can't read it."""
    meta, spec = body["metadata"], _mapping(body.get("spec"))
    status: RLJobStatus | None
    try:
        status = RLJobStatus.model_validate(dict(body.get("status") or {}))
        _check_times(status)
    except (ValidationError, ValueError):
        status = None
    known = status or RLJobStatus()
    staleness, workload = _mapping(spec.get("staleness")), _mapping(spec.get("workload"))
    job = JobJson(
        namespace=str(meta.get("namespace", "")),
        name=str(meta["name"]),
        uid=str(meta["uid"]),
        created_at=_text(meta.get("creationTimestamp")),
        phase=UNREADABLE if status is None else known.phase.value,
        mode=_text(_mapping(spec.get("rebalance")).get("mode")) or "Auto",
        model=_text(_mapping(spec.get("model")).get("name")),
        gpus=_whole(spec.get("gpus")),
        steps=_whole(workload.get("steps")),
        staleness_limit=_whole(staleness.get("max")),
        bound=_text(staleness.get("bound")),
        samplers=known.samplers,
        trainers=known.trainers,
        split=_split(known.split),
        now=_point(known, now_s).as_json(),
        summary=known.summary,
        next=known.next,
        conditions=tuple(
            ConditionJson(type=c.type.value, status=c.status, reason=c.reason, message=c.message, good=is_good(c))
            for c in known.conditions
        ),
        move=None if known.rebalance is None else _move(known.rebalance),
        last_decision=_decision(known.decisions[-1]) if known.decisions else None,
    )
    return job, status


def _check_times(status: RLJobStatus) -> None:
    """Raises ValueError for a time that can't be read: who may write a status may write nonsense into it."""
    times = [decision.at for decision in status.decisions]
    times += [] if status.rebalance is None else [status.rebalance.started_at]
    times += [] if status.moves.last_ended_at is None else [status.moves.last_ended_at]
    for each in times:
        epoch_s(each)


def _point(status: RLJobStatus, now_s: float) -> Point:
    split, plan, seen = status.split, status.plan, status.observed
    if seen is None:
        point = Point(now_s)
    else:
        point = Point(
            now_s,
            gpus_held=seen.gpus_held,
            policy_version=seen.policy_version,
            period_s=seen.period_seconds,
            staleness_mean=seen.staleness_mean,
            staleness_max=seen.staleness_max,
            queue_groups=seen.queue_groups,
            in_flight_samples=seen.in_flight_samples,
            response_tokens_mean=seen.response_tokens_mean,
        )
    return replace(
        point,
        sampler_gpus=None if split is None else split.samplers.gpus,
        trainer_gpus=None if split is None else split.trainers.gpus,
        in_flight_cap=None if split is None else split.in_flight,
        predicted_s=None if plan is None or split is None else plan.period.mean,
    )


def _moves(known: tuple[MoveJson, ...], status: RLJobStatus) -> tuple[MoveJson, ...]:
    under_way = None if status.rebalance is None else _move(status.rebalance)
    moves = list(known)
    if moves and moves[-1].ended_at is None and (under_way is None or moves[-1].id != under_way.id):
        # The end of a move is written together with its removal from the status.
        over = {"ended_at": status.moves.last_ended_at, "outcome": status.moves.last_outcome}
        moves[-1] = moves[-1].model_copy(update={**over, "phase": None, "waiting_for": None})
    if under_way is not None:
        if moves and moves[-1].id == under_way.id:
            moves.pop()
        moves.append(under_way)
    return tuple(moves[-MOST_MOVES:])


def _decisions(known: tuple[DecisionJson, ...], status: RLJobStatus) -> tuple[DecisionJson, ...]:
    """What was known, gone on by what the status holds: its list is the newest part of ours."""
    shown = tuple(_decision(decision) for decision in status.decisions)
    if not shown:
        return known
    first = shown[0]
    older = [d for d in known if epoch_s(d.at) < epoch_s(first.at)]
    if (
        older
        and (older[-1].code, older[-1].from_split, older[-1].to_split)
        == (
            first.code,
            first.from_split,
            first.to_split,
        )
        and older[-1].count < first.count
    ):
        # The same decision, repeated since.
        older.pop()
    return (*older, *shown)[-MOST_DECISIONS:]


def _move(move: MoveStatus) -> MoveJson:
    from_split, to_split = _split(move.from_split), _split(move.to_split)
    assert from_split is not None
    assert to_split is not None
    return MoveJson(
        id=move.id,
        from_split=from_split,
        to_split=to_split,
        reason=move.reason,
        started_at=move.started_at,
        phase=move.phase.value,
        waiting_for=move.waiting_for or None,
        rolling_back=move.rolling_back,
        predicted_gain=move.predicted_gain,
    )


def _decision(decision: DecisionStatus) -> DecisionJson:
    return DecisionJson(
        at=decision.at,
        code=decision.code.value,
        message=decision.message,
        count=decision.count,
        from_split=None if decision.from_split is None else decision.from_split.label(),
        to_split=None if decision.to_split is None else decision.to_split.label(),
        predicted_gain=decision.predicted_gain,
        uncertainty=decision.uncertainty,
        measured_gain=decision.measured_gain,
        saving_seconds=decision.saving_seconds,
        cost_seconds=decision.cost_seconds,
    )


def _split(split: Split | None) -> SplitJson | None:
    if split is None:
        return None
    samplers, trainers = (
        FleetJson(replicas=side.replicas, gpus_per_replica=side.gpus_per_replica, gpus=side.gpus)
        for side in (split.samplers, split.trainers)
    )
    return SplitJson(samplers=samplers, trainers=trainers, in_flight=split.in_flight, label=split.label())


def _mapping(value: object) -> Json:
    return value if isinstance(value, Mapping) else {}


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
