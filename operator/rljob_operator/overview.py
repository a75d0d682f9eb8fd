"""How a job stands, as values: what ``rljob status`` shows, and the source of its JSON and of the schema. Pure.

A status holds what the operator needs to go on; a person asks fewer things, and in another order: which split runs, is it as it should be,
what happens just now and what does that wait for, what was decided, and does anybody have to do anything.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from rljob_operator import at_risk, story
from rljob_operator.status import is_good
from rljob_planner.api.reading import read_job
from rljob_planner.api.requests import RequestOutcome
from rljob_planner.api.spec import Bound, RebalanceMode, RLJobSpec
from rljob_planner.api.status import Condition, MoveCause, MovePhase, MoveStatus, Phase, RLJobStatus

MODE_BEFORE_PAUSE = "rljob.dev/mode-before-pause"
"""Annotation that keeps the mode that a pause of the rebalancing replaced."""

UNTOUCHED = frozenset({"Stopped", "Suspended", "Complete", "NoMove"})
"""Reasons of conditions that say that a job rests as it was told to, and ask nothing of a person."""


class _Json(BaseModel):
    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, extra="forbid", frozen=True)


class SideJson(_Json):
    """One side of a split."""

    replicas: int = Field(description="Replicas wished.")
    gpus_per_replica: int = Field(description="GPUs of each.")
    ready: str | None = Field(description="Ready and wished pods, such as 6/8; null: unknown.")


class SplitJson(_Json):
    """A split."""

    label: str = Field(description="Its short name.")
    samplers: SideJson = Field(description="The samplers.")
    trainers: SideJson = Field(description="The trainers.")
    in_flight_cap: int = Field(description="Cap on samples submitted and not finished.")


class MoveJson(_Json):
    """A move under way."""

    from_split: str = Field(alias="from", description="The split before it.")
    to_split: str = Field(alias="to", description="The split that it leads to.")
    phase: MovePhase = Field(description="Its phase.")
    phases: list[MovePhase] = Field(description="The phases that it walks through, in order.")
    since: str = Field(description="When the phase began.")
    deadline: str = Field(description="When the phase gives up.")
    started_at: str = Field(description="When the move started.")
    waits_for: str | None = Field(description="What the phase waits for; null: nothing that is known.")
    rolling_back: bool = Field(description="Whether it leads back to the split before.")
    cause: MoveCause = Field(description="What it was started for.")
    reason: str = Field(description="Why, in words.")


class DecisionJson(_Json):
    """One decision."""

    at: str = Field(description="When it was taken, or last repeated.")
    code: str = Field(description="Its reason in one word.")
    message: str = Field(description="Its reason with the numbers.")
    count: int = Field(description="How often it was taken in a row.")


class RequestJson(_Json):
    """A move that somebody asked for."""

    id: str = Field(description="Name of the request.")
    split: str | None = Field(description="Replicas asked for, samplers + trainers; null: can't be read.")
    by: str = Field(description="Who asked, as the request says.")
    at: str = Field(description="When the operator first saw it.")
    outcome: RequestOutcome = Field(description="What became of it.")
    message: str = Field(description="Why.")


class AttentionJson(_Json):
    """A condition that is not as wished, or says that work is at risk."""

    condition: str = Field(description="Its type.")
    reason: str = Field(description="Why, in one word.")
    message: str = Field(description="Why, and what to do.")
    since: str = Field(description="Since when.")


class OverviewJson(_Json):
    """How a job stands."""

    name: str = Field(description="Name of the RLJob.")
    namespace: str | None = Field(description="Its namespace.")
    phase: Phase = Field(description="Where it stands in its life.")
    mode: RebalanceMode = Field(description="What the operator may do to the split.")
    suspended: bool = Field(description="Whether spec.suspend is true.")
    rebalancing_paused: bool = Field(description="Whether rljob pause --rebalancing-only holds its split.")
    gpus: int = Field(description="Its budget in GPUs.")
    gpus_held: int | None = Field(description="GPUs that its pods held last; null: unknown.")
    split: SplitJson | None = Field(description="The split in force; null: there is none yet.")
    recommended: str | None = Field(description="The split that the operator would choose; null: none is known.")
    period_seconds: float | None = Field(description="Measured seconds between two policy versions.")
    planned_period_seconds: float | None = Field(
        description="What the plan expects of the split in force; null: the plan is of another split."
    )
    staleness_mean: float | None = Field(description="Measured mean staleness in policy versions.")
    staleness_max: float | None = Field(description="Measured largest staleness in policy versions.")
    staleness_limit: int = Field(description="spec.staleness.max.")
    bound: Bound = Field(description="How it is enforced.")
    queue_groups: float | None = Field(description="Complete groups that wait for the trainer.")
    in_flight_samples: float | None = Field(description="Samples submitted and not finished.")
    response_tokens_mean: float | None = Field(description="Mean response length in tokens.")
    steps_made: int | None = Field(description="Policy version published last.")
    steps_total: int = Field(description="Steps of the run.")
    remaining_seconds: float | None = Field(description="Steps to go times the measured period.")
    observed_at: str | None = Field(description="When the metrics were read last.")
    move: MoveJson | None = Field(description="The move under way; null: none.")
    decisions: list[DecisionJson] = Field(description="The last decisions, the newest last.")
    requests: list[RequestJson] = Field(description="The last moves that people asked for, the newest last.")
    attention: list[AttentionJson] = Field(
        description="Conditions that are not as wished, or say that work is at risk."
    )
    summary: str = Field(description="What the job does, and what was done to its split.")
    next: str = Field(description="What comes next, and what it waits for.")


def parsed(document: Mapping[str, Any]) -> tuple[RLJobSpec, RLJobStatus]:
    """Spec and status of an RLJob as the API server shows it; raises InvalidJobError, or ValidationError for its status."""
    status: RLJobStatus = RLJobStatus.model_validate(document.get("status") or {})
    return read_job({key: document[key] for key in document if key != "status"}).spec, status


def overview_of(meta: Mapping[str, Any], spec: RLJobSpec, status: RLJobStatus) -> OverviewJson:
    """How a job stands, from its metadata, spec and status."""
    paused = MODE_BEFORE_PAUSE in (meta.get("annotations") or {}) and spec.rebalance.mode is RebalanceMode.RECOMMEND
    seen, plan, recommended = status.observed, status.plan, story.recommended(status)
    version, period_s = (None, None) if seen is None else (seen.policy_version, seen.period_seconds)
    to_go = None if version is None else max(0, spec.workload.steps - version)
    running = status.phase in (Phase.RUNNING, Phase.REBALANCING)
    return OverviewJson(
        name=str(meta["name"]),
        namespace=meta.get("namespace"),
        phase=status.phase,
        mode=spec.rebalance.mode,
        suspended=spec.suspend,
        rebalancing_paused=paused,
        gpus=spec.gpus,
        gpus_held=None if seen is None else seen.gpus_held,
        split=_split(status),
        recommended=None if recommended is None else recommended.label(),
        period_seconds=period_s,
        planned_period_seconds=plan.period.mean
        if plan is not None and status.split is not None and plan.split.same_shape(status.split)
        else None,
        staleness_mean=None if seen is None else seen.staleness_mean,
        staleness_max=None if seen is None else seen.staleness_max,
        staleness_limit=spec.staleness.max,
        bound=spec.staleness.bound,
        queue_groups=None if seen is None else seen.queue_groups,
        in_flight_samples=None if seen is None else seen.in_flight_samples,
        response_tokens_mean=None if seen is None else seen.response_tokens_mean,
        steps_made=version,
        steps_total=spec.workload.steps,
        remaining_seconds=to_go * period_s if running and to_go is not None and period_s else None,
        observed_at=None if seen is None else seen.at,
        move=None if status.rebalance is None else _move(status.rebalance),
        decisions=[
            DecisionJson(at=d.at, code=d.code.value, message=d.message, count=d.count) for d in status.decisions
        ],
        requests=[
            RequestJson(
                id=r.id,
                split=None if r.samplers is None or r.trainers is None else f"{r.samplers} + {r.trainers}",
                by=r.by,
                at=r.at,
                outcome=r.outcome,
                message=r.message,
            )
            for r in status.moves.requests
        ],
        attention=[
            AttentionJson(
                condition=c.type.value,
                reason=c.reason,
                message=at_risk.said(c.message) or c.message,
                since=c.last_transition_time,
            )
            for c in status.conditions
            if _asks_for_somebody(c)
        ],
        summary=story.summary(spec, status),
        next=story.next_step(spec, status),
    )


def _asks_for_somebody(condition: Condition) -> bool:
    if condition.reason == at_risk.WORK_AT_RISK:
        return True
    return not is_good(condition) and condition.type.value != "Rebalancing" and condition.reason not in UNTOUCHED


def _split(status: RLJobStatus) -> SplitJson | None:
    split = status.split
    if split is None:
        return None
    return SplitJson(
        label=split.label(),
        samplers=SideJson(
            replicas=split.samplers.replicas,
            gpus_per_replica=split.samplers.gpus_per_replica,
            ready=status.samplers,
        ),
        trainers=SideJson(
            replicas=split.trainers.replicas,
            gpus_per_replica=split.trainers.gpus_per_replica,
            ready=status.trainers,
        ),
        in_flight_cap=split.in_flight,
    )


def _move(move: MoveStatus) -> MoveJson:
    phases = [phase for phase in MovePhase if phase is not MovePhase.CHECKPOINT or move.restart]
    return MoveJson(
        from_split=move.from_split.label(),
        to_split=move.to_split.label(),
        phase=move.phase,
        phases=phases,
        since=move.phase_since,
        deadline=move.deadline,
        started_at=move.started_at,
        waits_for=move.waiting_for or None,
        rolling_back=move.rolling_back,
        cause=move.cause,
        reason=move.reason,
    )
