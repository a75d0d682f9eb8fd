"""What the operator says of a job: phase, conditions, decisions, the printer columns.

Everything here is a pure function from what was observed to what is written, so that the words a user reads can be tested
without a cluster. A message always ends in what a person can do; a condition whose status is as wished says what holds.
Numbers are rounded before they are written: a status that changes in its seventh digit at every tick would wake every
watcher for nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rljob_operator import queueing
from rljob_operator.rebalance import Targets, timestamp
from rljob_operator.situation import StalenessCheck
from rljob_planner.api.spec import Bound
from rljob_planner.api.status import (
    Condition,
    ConditionType,
    DecisionStatus,
    MoveStatus,
    Phase,
    StalenessSummary,
)

MAX_DECISIONS = 10
"""How many decisions the status keeps."""


@dataclass(frozen=True)
class Verdict:
    """The content of a condition before it gets its times."""

    status: bool | None
    """None is unknown."""
    reason: str
    message: str


def conditions(
    previous: Sequence[Condition], verdicts: dict[ConditionType, Verdict], *, generation: int, now_s: float
) -> tuple[Condition, ...]:
    """The conditions after this pass: a transition time moves only when the status does, unmentioned conditions stay."""
    known = {condition.type: condition for condition in previous}
    for kind, verdict in verdicts.items():
        text = "Unknown" if verdict.status is None else str(verdict.status)
        old = known.get(kind)
        known[kind] = Condition(
            type=kind,
            status=text,
            reason=verdict.reason,
            message=verdict.message,
            last_transition_time=(
                old.last_transition_time if old is not None and old.status == text else timestamp(now_s)
            ),
            observed_generation=generation,
        )
    return tuple(known[kind] for kind in ConditionType if kind in known)


BAD_WHEN_TRUE = frozenset({ConditionType.DEGRADED, ConditionType.REBALANCING})
"""Conditions whose wished status is False."""

PROGRESS = frozenset(
    {
        "WaitingForPods",
        "WaitingForBudget",
        "PodsNotReady",
        "Stopped",
        "Starting",
        "StalenessUnknown",
        queueing.WAITING,
    }
)
"""Reasons that every job passes through: they stand in the conditions and are no event."""


def holds(current: Iterable[Condition], kind: ConditionType) -> bool:
    """Whether a condition is there and True."""
    return any(condition.type is kind and condition.status == "True" for condition in current)


def without_pods(current: Iterable[Condition]) -> dict[ConditionType, Verdict]:
    """What the conditions that rest on metrics become once a stopped job has no pods: what they said is over."""
    measured = (ConditionType.METRICS_AVAILABLE, ConditionType.WITHIN_STALENESS)
    gone = Verdict(None, "Stopped", "the job holds no pods, so there is nothing to measure")
    return {condition.type: gone for condition in current if condition.type in measured}


def is_good(condition: Condition) -> bool:
    """Whether a condition has its wished status."""
    return condition.status == ("False" if condition.type in BAD_WHEN_TRUE else "True")


def events(previous: Iterable[Condition], current: Iterable[Condition]) -> tuple[Condition, ...]:
    """The conditions that are worth an event: what went wrong, for another reason than before, and what is right again.

    Moves post events of their own.
    """
    known = {condition.type: condition for condition in previous}
    worth: list[Condition] = []
    for condition in current:
        old = known.get(condition.type)
        if condition.type is ConditionType.REBALANCING or condition.reason in PROGRESS:
            continue
        if is_good(condition):
            if old is not None and old.status != condition.status and old.reason not in PROGRESS:
                worth.append(condition)
        elif condition.status != "Unknown" and (old is None or old.reason != condition.reason):
            worth.append(condition)
    return tuple(worth)


def remember(decisions: Sequence[DecisionStatus], new: DecisionStatus) -> tuple[DecisionStatus, ...]:
    """The last decisions with ``new`` among them; the same decision again only counts up and brings its numbers up to date."""
    if decisions and _alike(decisions[-1], new):
        last = decisions[-1]
        return (*decisions[:-1], new.model_copy(update={"count": last.count + 1}))
    return (*decisions, new)[-MAX_DECISIONS:]


def _alike(one: DecisionStatus, other: DecisionStatus) -> bool:
    return one.code is other.code and _replicas(one) == _replicas(other)


def _replicas(decision: DecisionStatus) -> tuple[int, int] | None:
    split = decision.to_split
    return None if split is None else (split.samplers.replicas, split.trainers.replicas)


def rounded(value: float | None, digits: int = 4) -> float | None:
    """A number with ``digits`` significant digits; None and what is not finite stay unknown."""
    if value is None or not math.isfinite(value):
        return None
    return float(f"{value:.{digits}g}")


@dataclass(frozen=True)
class Fleet:
    """How many pods of a role are wished, there, bound and ready."""

    wanted: int
    existing: int
    bound: int
    ready: int
    gated: int = 0
    unschedulable: str | None = None
    """The scheduler's words on the first pod that it can't place."""
    refused: str | None = None
    """The API server's words on pods that the workload can't create (quota, admission)."""
    leaving: tuple[str, ...] = ()
    """Pods that are being deleted and still hold their GPUs."""
    broken: tuple[str, ...] = ()
    """Pods that crash or can't start, with the reason."""
    queued: tuple[str, ...] = ()
    """The gates of others, such as Kueue's, at which pods wait that the budget lets go: one entry a pod."""

    def column(self) -> str:
        """The printer column: ready of wished."""
        return f"{self.ready}/{self.wanted}"


def scheduled(
    samplers: Fleet, trainers: Fleet, budget: int, held: int, *, namespace: str = "", queue: str | None = None
) -> Verdict:
    """Whether all wished pods have a node; ``queue`` is the Kueue queue that the job is in, in its ``namespace``."""
    for name, fleet in (("sampler", samplers), ("trainer", trainers)):
        if fleet.refused:
            quota = "exceeded quota" in fleet.refused
            remedy = (
                "raise the ResourceQuota or lower spec.gpus"
                if quota
                else "make the template fit what the namespace admits"
            )
            return Verdict(
                False,
                "QuotaExceeded" if quota else "PodsRefused",
                f"{name} pods are refused: {fleet.refused}; {remedy}",
            )
    for name, fleet in (("sampler", samplers), ("trainer", trainers)):
        if fleet.unschedulable:
            return Verdict(
                False,
                "Unschedulable",
                f"a {name} pod has no node: {fleet.unschedulable}; free GPUs on matching nodes, add nodes, or lower spec.gpus",
            )
    if samplers.queued or trainers.queued:
        return Verdict(False, *queueing.words((*samplers.queued, *trainers.queued), namespace, queue))
    gated = samplers.gated + trainers.gated
    if gated:
        leaving = (*samplers.leaving, *trainers.leaving)
        if leaving:
            shown = ", ".join(leaving[:3]) + (f" and {len(leaving) - 3} more" if len(leaving) > 3 else "")
            remedy = (
                f"{shown} {'is' if len(leaving) == 1 else 'are'} still terminating; if that does not end, look at the node, and "
                "delete with --force only once the containers are known to be dead"
            )
        else:
            remedy = "if that does not change, look for pods that carry the job's labels and are none of its own"
        return Verdict(
            False,
            "WaitingForBudget",
            f"{gated} {'pod waits' if gated == 1 else 'pods wait'} behind the budget gate: {held} of {budget} GPUs are held by "
            f"pods that are not gone yet; {remedy}",
        )
    missing = max(0, samplers.wanted - samplers.bound) + max(0, trainers.wanted - trainers.bound)
    if missing:
        return Verdict(False, "WaitingForPods", f"{missing} pods are not bound to a node yet")
    if samplers.wanted + trainers.wanted == 0:
        return Verdict(False, "Stopped", "no pods are wished")
    return Verdict(True, "AllBound", f"{samplers.wanted} samplers and {trainers.wanted} trainers are bound")


def ready(samplers: Fleet, trainers: Fleet, job: str) -> Verdict:
    """Whether all wished pods are ready."""
    if samplers.wanted + trainers.wanted == 0:
        return Verdict(False, "Stopped", "no pods are wished")
    if samplers.ready >= samplers.wanted and trainers.ready >= trainers.wanted:
        return Verdict(True, "AllReady", f"{samplers.wanted} samplers and {trainers.wanted} trainers are ready")
    return Verdict(
        False,
        "PodsNotReady",
        f"{samplers.column()} samplers and {trainers.column()} trainers are ready: kubectl get pods -l rljob.dev/name={job}",
    )


def degraded(
    samplers: Fleet,
    trainers: Fleet,
    move: MoveStatus | None,
    *,
    pegged: bool,
    overdue: bool,
    rivals: str = "",
    others: Sequence[tuple[str, str]] = (),
) -> Verdict:
    """Whether something needs a person although the job may run on; ``rivals`` says which other autoscalers there are.

    ``others``: reason and message of what is wrong beside the two sides, the worst first.
    """
    if rivals:
        return Verdict(True, "AnotherAutoscaler", rivals)
    broken = (*samplers.broken, *trainers.broken)
    if broken:
        return Verdict(
            True, "PodsBroken", f"{'; '.join(broken[:3])}: look at their logs; the split is left alone meanwhile"
        )
    if move is not None and overdue:
        return Verdict(
            True,
            "MoveStuck",
            f"the move {move.id} is overdue in {move.phase.value} since {move.deadline}: it waits for {move.waiting_for}",
        )
    if others:
        return Verdict(True, *others[0])
    if pegged:
        return Verdict(
            True,
            "CalibrationPegged",
            "measured speed differs from the model by more than twofold: check spec.accelerator, spec.model and the templates' engine arguments",
        )
    return Verdict(False, "AsExpected", "nothing needs a person")


def suspended(*, some_exist: bool, waits_for: str = "") -> Verdict:
    """What a job that should hold no GPU says: until its samplers have drained it still holds some."""
    if not some_exist:
        return Verdict(False, "Suspended", "spec.suspend is true: set it to false to resume")
    return Verdict(
        False,
        "Suspending",
        f"spec.suspend is true, and all GPUs are freed in order: samplers drain, the trainer writes a checkpoint, then all pods go. "
        f"It waits for {waits_for}",
    )


def rebalancing(move: MoveStatus | None) -> Verdict:
    """Whether a move is under way, and what it waits for."""
    if move is None:
        return Verdict(False, "NoMove", "no move is under way")
    direction = "back to" if move.rolling_back else "to"
    due = f"held since {move.held_since}" if move.held_since else f"due by {move.deadline}"
    message = f"{move.phase.value} since {move.phase_since}, {due}: from {move.from_split.label()} {direction} {move.to_split.label()}"
    if move.waiting_for:
        message += f"; waits for {move.waiting_for}"
    return Verdict(True, "Held" if move.held_since else move.phase.value, message)


def within_staleness(check: StalenessCheck, bound: Bound, planned: StalenessSummary | None) -> Verdict:
    """Whether staleness keeps to what the bound promises: the mean under ``admission``, the largest trained sample under ``drop``."""
    if check.observed is None:
        return Verdict(
            None, "StalenessUnknown", "no staleness is reported yet: rljob_sample_staleness_versions is missing"
        )
    numbers = f"{check.statistic} staleness {check.observed:.2f}, limit {check.limit:g} under bound {bound.value}"
    if not check.clearly_over:
        return Verdict(True, "WithinLimit", numbers)
    hint = "" if planned is None else f" (planned mean {planned.mean:.2f})"
    return Verdict(
        False,
        "OverLimit",
        f"{numbers}{hint}: in mode Auto the in-flight cap is lowered; if that does not help, check that the framework enforces the bound",
    )


def phase_of(
    *,
    previous: Phase,
    planned: bool,
    suspended: bool,
    move: MoveStatus | None,
    all_ready: bool,
    children_exist: bool,
    complete: bool,
) -> Phase:
    """The phase, derived from what holds; ``complete`` is the only one that is remembered, since its evidence vanishes with the pods."""
    if complete:
        return Phase.COMPLETE
    if suspended:
        return Phase.SUSPENDED
    if not planned:
        return Phase.PENDING
    if move is not None:
        return Phase.REBALANCING
    if not children_exist:
        return Phase.PLANNED
    if all_ready or previous in (Phase.RUNNING, Phase.REBALANCING):
        return Phase.RUNNING
    return Phase.STARTING


def nothing_wished(targets: Targets) -> bool:
    """Whether both workloads should be empty."""
    return targets.samplers == 0 and targets.trainers == 0
