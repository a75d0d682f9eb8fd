"""Why the split is what it is: which limit binds now, what a move would gain, cost and need, and what would unblock it. Pure.

Everything is read from the RLJob alone, spec and status, since that is what a person has at hand when the cluster is in trouble:
no Prometheus and no planner is asked. What the status does not say is left out rather than guessed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from rljob_operator import story
from rljob_operator.explanation import ExplanationJson, KnownJson, Limit, LimitJson
from rljob_operator.explanation_moves import outlook, past
from rljob_operator.observation import epoch_s
from rljob_planner.api.spec import Bound, RebalanceMode, Resize, RLJobSpec
from rljob_planner.api.status import Condition, ConditionType, DecisionCode, Phase, RLJobStatus
from rljob_planner.durations import seconds

OF_CODE: Mapping[DecisionCode, tuple[Limit, str | None]] = {
    DecisionCode.INITIAL_PLAN: (Limit.START, None),
    DecisionCode.MOVE: (Limit.MOVE, None),
    DecisionCode.MOVE_COMMITTED: (Limit.UNCERTAINTY, None),
    DecisionCode.MOVE_ROLLED_BACK: (
        Limit.COOLDOWN,
        "remove what the roll-back names; the move is tried again by itself",
    ),
    DecisionCode.SPEC_CHANGED: (Limit.SPEC, None),
    DecisionCode.POOL_LOST: (Limit.PLACEMENT, "bring the nodes of the lost pool back; it is then used again"),
    DecisionCode.BUDGET_RAISED: (Limit.MOVE, None),
    DecisionCode.MOVE_BY_HAND: (Limit.MOVE, None),
    DecisionCode.LOWER_CAP: (Limit.STALENESS, "nothing, if staleness.max is what the method tolerates; else raise it"),
    DecisionCode.RAISE_CAP: (Limit.STALENESS, None),
    DecisionCode.AT_OPTIMUM: (Limit.BALANCE, None),
    DecisionCode.GAIN_TOO_SMALL: (
        Limit.UNCERTAINTY,
        "nothing; state rebalance.minGain to move for less (or only for more)",
    ),
    DecisionCode.UNCERTAIN: (Limit.UNCERTAINTY, "nothing: more steps are being measured"),
    DecisionCode.NOT_WORTH_COST: (Limit.COST, "nothing: a move would come too late in the run, or costs too much"),
    DecisionCode.NOT_PERSISTED: (Limit.UNCERTAINTY, "nothing: it moves if the next decisions agree"),
    DecisionCode.COOLDOWN: (Limit.COOLDOWN, "nothing: it ends by itself; rebalance.cooldown states another pause"),
    DecisionCode.BACK_OFF: (Limit.COOLDOWN, "remove what the roll-back names; the move is tried again by itself"),
    DecisionCode.METRICS_UNKNOWN: (Limit.METRICS, "what the condition MetricsAvailable says"),
    DecisionCode.NOT_READY: (Limit.BROKEN_SIDE, "what the conditions Ready and Scheduled say"),
    DecisionCode.SETTLING: (Limit.UNCERTAINTY, None),
    DecisionCode.RECOMMEND_ONLY: (Limit.MODE, "set rebalance.mode to Auto, to let the operator do it"),
    DecisionCode.INITIAL_ONLY: (Limit.MODE, "set rebalance.mode to Auto, to let the operator do it"),
    DecisionCode.TRAINER_FIXED: (Limit.MINIMA, "set trainer.resize to elastic, or restart, if the trainer can follow"),
    DecisionCode.SIDE_BROKEN: (Limit.BROKEN_SIDE, "repair the pods that the condition Degraded names"),
    DecisionCode.NOTHING_PLACEABLE: (
        Limit.PLACEMENT,
        "what the decision names: free GPUs, or lower what the spec asks for",
    ),
}
"""Which limit a decision shows, and what a person can do about it."""

OF_REASON: Mapping[str, Limit] = {
    "Unschedulable": Limit.PLACEMENT,
    "QuotaExceeded": Limit.PLACEMENT,
    "DoesNotFit": Limit.PLACEMENT,
    "NothingFeasible": Limit.PLACEMENT,
    "WaitingForBudget": Limit.PLACEMENT,
    "WaitingForKueue": Limit.PLACEMENT,
    "WaitingForGate": Limit.PLACEMENT,
    "WiderThanANode": Limit.PLACEMENT,
    "PodsBroken": Limit.BROKEN_SIDE,
    "SideBroken": Limit.BROKEN_SIDE,
    "MoveStuck": Limit.MOVE,
    "CalibrationPegged": Limit.UNCERTAINTY,
}
"""Which limit the reason of a condition shows; of others their message says enough."""

_OF_ANOTHER_JOB = re.compile(r"RLJob \S+/\S+ holds|kept for RLJob ")
"""How a message names another job that has the GPUs."""

_NEAR = 0.95
"""Share of a limit from which on it is said to shape the split."""

_SILENT_INTERVALS = 5.0
"""Intervals between decisions, of at least a minute, without a look at the metrics from which on the operator seems to be away."""

_FULL_KV = 0.9
"""Share of the KV room in use from which on samples wait for room or are preempted."""


def explain(
    name: str,
    namespace: str | None,
    spec: RLJobSpec,
    status: RLJobStatus,
    *,
    generation: int | None = None,
    now_s: float | None = None,
) -> ExplanationJson:
    """Why the split of a job is what it is, from its spec and its status.

    ``generation`` is that of the spec, ``now_s`` the time in epoch seconds of a status that was read just now: they tell whether
    an operator looks at the job at all.
    """
    found = _once((*_unattended(spec, status, generation, now_s), *_limits(spec, status)))
    first = next((limit for limit in found if limit.binds), None)
    # One limit binds: what comes after it would bind only once it is gone.
    limits = [
        *([first] if first else []),
        *(each.model_copy(update={"binds": False}) for each in found if each is not first),
    ]
    plan, observed, calibration = status.plan, status.observed, status.calibration
    measured = calibration is not None and calibration.observations > 0
    inputs = next((d.inputs for d in reversed(status.decisions) if d.inputs is not None), None)
    return ExplanationJson(
        name=name,
        namespace=namespace,
        phase=status.phase,
        mode=spec.rebalance.mode,
        split=None if status.split is None else status.split.label(),
        summary=story.summary(spec, status),
        next=story.next_step(spec, status),
        limits=limits,
        move=outlook(spec, status),
        moves=[past(status, d) for d in status.decisions if d.code in _ENDS],
        known=KnownJson(
            sampler_factor=calibration.sampler_factor if calibration and measured else None,
            trainer_factor=calibration.trainer_factor if calibration and measured else None,
            sampler_uncertainty=None if inputs is None else inputs.sampler_uncertainty,
            trainer_uncertainty=None if inputs is None else inputs.trainer_uncertainty,
            residual=None if calibration is None else calibration.residual,
            response_tokens_mean=None if observed is None else observed.response_tokens_mean,
            growth_per_step=None if inputs is None else inputs.growth_per_step,
            steps_made=None if observed is None else observed.policy_version,
            steps_total=spec.workload.steps,
            period_seconds=None if observed is None else observed.period_seconds,
            planned_period_seconds=None if plan is None else plan.period.mean,
            sources=[
                *(() if plan is None else plan.sources),
                *((None if observed is None else observed.stand_ins) or ()),
            ],
        ),
    )


_ENDS = (DecisionCode.MOVE_COMMITTED, DecisionCode.MOVE_ROLLED_BACK)


def _once(limits: Iterable[LimitJson]) -> list[LimitJson]:
    """Each limit that could bind once: where a condition and a decision name the same, the condition says what to do."""
    found: list[LimitJson] = []
    for each in limits:
        if not (each.binds and any(other.limit is each.limit and other.binds for other in found)):
            found.append(each)
    return found


def _limits(spec: RLJobSpec, status: RLJobStatus) -> Iterator[LimitJson]:
    """What holds the split, in the order in which it would be asked: what stops everything first, what only shapes it last."""
    yield from _stopped(spec, status)
    yield from _of_conditions(status)
    move = status.rebalance
    if move is not None:
        why = f"a move to {move.to_split.label()} is under way, in {move.phase.value} since {move.phase_since}"
        yield _binding(Limit.MOVE, why, move.waiting_for or None)
    last = story.last_decision(status)
    if last is not None and status.split is not None:
        limit, unblock = OF_CODE.get(last.code, (Limit.BALANCE, None))
        yield _binding(limit, last.message, unblock)
    yield from _shaping(spec, status)


def _unattended(
    spec: RLJobSpec, status: RLJobStatus, generation: int | None, now_s: float | None
) -> Iterator[LimitJson]:
    """Whether nobody looks at the job: then nothing else that its status says is of today."""
    check = "check that the operator runs and watches this namespace, and look at its log"
    seen = status.observed
    if status.observed_generation == 0 and not status.conditions and status.split is None:
        yield _binding(Limit.OPERATOR, "no operator has looked at this job yet", check)
    elif generation is not None and status.observed_generation < generation:
        yield _binding(
            Limit.OPERATOR, "the last edit of the spec has not been seen yet", f"wait a moment; if it lasts, {check}"
        )
    elif now_s is not None and seen is not None and status.phase in (Phase.RUNNING, Phase.REBALANCING):
        silent_s = now_s - epoch_s(seen.at)
        if silent_s > _SILENT_INTERVALS * max(spec.rebalance.interval_s, 60.0):
            yield _binding(Limit.OPERATOR, f"nobody has looked at this job's metrics for {seconds(silent_s)}", check)


def _stopped(spec: RLJobSpec, status: RLJobStatus) -> Iterator[LimitJson]:
    if status.phase is Phase.COMPLETE:
        yield _binding(
            Limit.STOPPED, "the run has made all its steps", "raise workload.steps to go on, or delete the job"
        )
    elif spec.suspend:
        yield _binding(Limit.STOPPED, "spec.suspend is true, so the job holds no GPUs", "set spec.suspend to false")


def _of_conditions(status: RLJobStatus) -> Iterator[LimitJson]:
    """Conditions that are not as wished, in the order of harm; each message ends in what to do."""
    for kind, fallback in (
        (ConditionType.PLANNED, Limit.SPEC),
        (ConditionType.DEGRADED, Limit.BROKEN_SIDE),
        (ConditionType.SCHEDULED, Limit.PLACEMENT),
        (ConditionType.METRICS_AVAILABLE, Limit.METRICS),
        (ConditionType.WITHIN_STALENESS, Limit.STALENESS),
    ):
        found = story.condition_of(status, kind)
        if found is None or found.status != ("True" if kind is ConditionType.DEGRADED else "False"):
            continue
        if found.reason in ("WaitingForPods", "Stopped", "Suspending"):
            continue
        what, _, remedy = found.message.partition(": ")
        limit = _limit_of(found, fallback)
        # A pegged factor is said beside the decision, which goes on; staleness over its limit ends in a decision of its own.
        binds = found.reason != "CalibrationPegged" and kind is not ConditionType.WITHIN_STALENESS
        yield LimitJson(
            limit=limit,
            binds=binds,
            why=f"{kind.value}={found.status} ({found.reason}): {what}",
            unblock=remedy or None,
        )


def _limit_of(found: Condition, fallback: Limit) -> Limit:
    if "Autoscaler" in found.reason:
        return Limit.AUTOSCALER
    limit = OF_REASON.get(found.reason, fallback)
    if limit is Limit.PLACEMENT and _OF_ANOTHER_JOB.search(found.message):
        return Limit.OTHER_JOB
    return limit


def _shaping(spec: RLJobSpec, status: RLJobStatus) -> Iterator[LimitJson]:
    """Limits that shape which split is best, whether or not one is being changed."""
    split, plan, observed = status.split, status.plan, status.observed
    if (
        plan is not None
        and spec.staleness.bound is not Bound.NONE
        and plan.staleness.mean >= _NEAR * spec.staleness.mean_limit > 0
    ):
        yield _shape(
            Limit.STALENESS,
            f"planned mean staleness {plan.staleness.mean:.2f} is at its limit of {spec.staleness.mean_limit:g}, so the in-flight cap "
            f"is {plan.split.in_flight} samples",
            "raise staleness.max, if the method tolerates it: more samples in flight keep samplers fuller",
        )
    if observed is not None and observed.kv_usage is not None and observed.kv_usage >= _FULL_KV:
        yield _shape(
            Limit.KV_ROOM,
            f"the samplers' KV room is {observed.kv_usage:.0%} full, so samples wait for room",
            "use wider sampler replicas (sampler.gpusPerReplica), or an fp8 KV cache (model.kvCache)",
        )
    if plan is not None and plan.placeable_gpus < spec.gpus:
        yield _shape(
            Limit.PLACEMENT,
            f"the nodes can hold {plan.placeable_gpus} GPUs of the budget of {spec.gpus}",
            "free or add nodes that spec.nodes selects, or lower spec.gpus",
        )
    if split is not None:
        yield from _minima(spec, split.samplers.replicas, split.trainers.replicas)
    calibration = status.calibration
    if split is not None and (calibration is None or calibration.observations == 0):
        yield _shape(
            Limit.UNCERTAINTY, "nothing of this run is measured yet, so the plan rests on the model alone", None
        )
    elif calibration is not None and calibration.residual is not None and calibration.residual > 0.1:
        yield _shape(
            Limit.UNCERTAINTY,
            f"the calibrated model is still off by {calibration.residual:.0%}, so small gains can't be told from noise",
            "look with rljob diagnose where the time goes",
        )
    if spec.rebalance.mode is not RebalanceMode.AUTO:
        yield _shape(
            Limit.MODE,
            f"rebalance.mode is {spec.rebalance.mode.value}, so the operator moves nothing by itself",
            "give templates instead of targetRef, and write rebalance.mode: Auto"
            if spec.adopts
            else "write rebalance.mode: Auto",
        )
    if plan is not None and plan.bottleneck:
        yield _shape(Limit.BALANCE, f"the planned period is bound by {plan.bottleneck}", None)


def _minima(spec: RLJobSpec, samplers: int, trainers: int) -> Iterator[LimitJson]:
    for role, replicas, side in (("sampler", samplers, spec.sampler), ("trainer", trainers, spec.trainer)):
        if replicas <= side.min_replicas and side.min_replicas > 1:
            yield _shape(Limit.MINIMA, f"{replicas} {role}s are {role}.minReplicas", f"lower {role}.minReplicas")
        if side.max_replicas is not None and replicas >= side.max_replicas:
            yield _shape(Limit.MINIMA, f"{replicas} {role}s are {role}.maxReplicas", f"raise {role}.maxReplicas")
    if spec.trainer.resize is Resize.FIXED:
        yield _shape(
            Limit.MINIMA,
            "trainer.resize is fixed, so only samplers and the in-flight cap may change",
            "set trainer.resize to elastic or restart, if the trainer can follow",
        )


def _binding(limit: Limit, why: str, unblock: str | None) -> LimitJson:
    return LimitJson(limit=limit, binds=True, why=why, unblock=unblock)


def _shape(limit: Limit, why: str, unblock: str | None) -> LimitJson:
    return LimitJson(limit=limit, binds=False, why=why, unblock=unblock)


def explanation_of(document: Mapping[str, Any], now_s: float | None = None) -> ExplanationJson:
    """The explanation of an RLJob as the API server shows it; ``now_s``: when, if it was just now.

    Raises InvalidJobError if its spec can't be read, pydantic.ValidationError if its status is of another version.
    """
    from rljob_planner.api.reading import read_job

    job = read_job({key: document[key] for key in document if key != "status"})
    status: RLJobStatus = RLJobStatus.model_validate(document.get("status") or {})
    metadata = document.get("metadata") or {}
    generation = metadata.get("generation")
    return explain(
        str(metadata.get("name", "")),
        metadata.get("namespace"),
        job.spec,
        status,
        generation=int(generation) if isinstance(generation, int) else None,
        now_s=now_s,
    )
