"""The transaction that moves a job from one split to another, as a pure state machine.

At no instant may a job's pods exceed its budget, and a side must never grow on GPUs that the other has not given up yet.
So a move walks through fixed phases, each written to the RLJob's status before anything is done for it::

    Announce  the layout names the pods that leave; wait until the trainer acknowledged it at a step boundary
    Drain     wait until the leaving samplers run nothing, or the drain timeout
    Shrink    the donor's workload is scaled down; wait until those pods are *gone*
    Grow      the receiver's workload is scaled up; wait until its pods are ready
    Verify    the layout names the new endpoints and trainers; wait until the trainer acknowledged it
    (commit)  the new split is the split in force

What is done in a phase follows from the phase alone (``targets``, ``announced``), so an operator that is killed anywhere goes on from
what the API server holds. A phase that misses its deadline turns the move round: ``roll_back`` makes a move back to the
split before, which walks through the same phases and is therefore as safe. A move back has nowhere further to fall: it waits,
and says for what.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime

from rljob_planner.api.status import MovePhase, MoveStatus
from rljob_planner.split import Split


@dataclass(frozen=True)
class PodView:
    """What a move needs to know of one pod."""

    name: str
    role: str
    """``sampler`` or ``trainer``."""
    ready: bool
    terminating: bool = False
    created_s: float = 0.0
    """Creation time in epoch seconds."""
    ordinal: int | None = None
    """The ordinal of a StatefulSet's pod, None for a Deployment's."""


@dataclass(frozen=True)
class Observation:
    """What the API server and the metrics show of a move under way. None is unknown."""

    now_s: float
    pods: tuple[PodView, ...]
    published_generation: int
    """Generation of the layout that the API server holds."""
    acknowledged_generation: int | None
    """Smallest generation that the trainer pods acknowledged."""
    running_by_pod: Mapping[str, float | None] = field(default_factory=dict)
    """Running samples of each sampler pod."""
    metrics_flow: bool = False
    """Whether every sampler and trainer pod's metrics are there."""

    def of(self, role: str) -> tuple[PodView, ...]:
        """The pods of a role, terminating ones included."""
        return tuple(pod for pod in self.pods if pod.role == role)


@dataclass(frozen=True)
class Deadlines:
    """How long each phase may take, in seconds, before a move turns round (a drain goes on instead)."""

    acknowledge_s: float = 300.0
    drain_s: float = 900.0
    gone_s: float = 1200.0
    ready_s: float = 1800.0

    def of(self, phase: MovePhase) -> float:
        """The deadline of a phase, in seconds from its start."""
        return {
            MovePhase.ANNOUNCE: self.acknowledge_s,
            MovePhase.DRAIN: self.drain_s,
            MovePhase.SHRINK: self.gone_s,
            MovePhase.GROW: self.ready_s,
            MovePhase.VERIFY: self.acknowledge_s,
        }[phase]


@dataclass(frozen=True)
class Targets:
    """Replicas that the two workloads should have."""

    samplers: int
    trainers: int


@dataclass(frozen=True)
class Step:
    """What one look at a move yields: the move as it should be persisted, or its end."""

    move: MoveStatus | None
    """The move after this look; None when it ended."""
    split: Split | None = None
    """The split in force once the move ended."""
    outcome: str | None = None
    """``Committed`` or ``RolledBack`` when the move ended."""
    note: str = ""
    """What happened, for an event; empty if nothing did."""
    drain_timed_out: bool = False
    """Whether samplers are removed although they still ran samples."""


def timestamp(now_s: float) -> str:
    """Epoch seconds as RFC 3339 in UTC with microseconds."""
    return datetime.fromtimestamp(now_s, UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def epoch_s(text: str) -> float:
    """RFC 3339 as epoch seconds."""
    return datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()


def with_replicas(split: Split, samplers: int, trainers: int) -> Split:
    """The same split with other replica counts; the trainer's data-parallel width follows its replicas."""
    old = split.trainers
    width = max(1, old.tp * old.pp)
    return split.model_copy(
        update={
            "samplers": split.samplers.model_copy(update={"replicas": samplers}),
            "trainers": old.model_copy(
                update={"replicas": trainers, "dp": max(1, trainers * old.gpus_per_replica // width)}
            ),
        }
    )


def targets(split: Split, move: MoveStatus | None) -> Targets:
    """The replicas that both workloads should have now.

    Until the victims are drained nothing changes; then both sides are held at the smaller of the two splits, and only when
    that is reached do they go to the new one.
    """
    if move is None:
        return Targets(split.samplers.replicas, split.trainers.replicas)
    before, after = move.from_split, move.to_split
    if move.phase in (MovePhase.ANNOUNCE, MovePhase.DRAIN):
        return Targets(before.samplers.replicas, before.trainers.replicas)
    if move.phase is MovePhase.SHRINK:
        return _smaller(before, after)
    return Targets(after.samplers.replicas, after.trainers.replicas)


def announced(split: Split, move: MoveStatus | None) -> Targets:
    """The replicas that the layout tells the job: what it may use in the present phase, never more than what is there."""
    if move is None:
        return Targets(split.samplers.replicas, split.trainers.replicas)
    if move.phase is MovePhase.VERIFY:
        return Targets(move.to_split.samplers.replicas, move.to_split.trainers.replicas)
    return _smaller(move.from_split, move.to_split)


def _smaller(before: Split, after: Split) -> Targets:
    return Targets(
        min(before.samplers.replicas, after.samplers.replicas), min(before.trainers.replicas, after.trainers.replicas)
    )


def victims(before: Split, after: Split, observation: Observation) -> tuple[str, ...]:
    """The pods that a move removes.

    Pods that are not ready go first, since a ReplicaSet removes those first whatever their deletion cost; then samplers with
    the fewest running samples, whose drain is shortest; then the youngest. A StatefulSet always removes its highest ordinals.
    """
    chosen: list[str] = []
    for role, surplus in (
        ("sampler", before.samplers.replicas - after.samplers.replicas),
        ("trainer", before.trainers.replicas - after.trainers.replicas),
    ):
        if surplus <= 0:
            continue
        candidates = [pod for pod in observation.of(role) if not pod.terminating]

        def order(pod: PodView) -> tuple[float, ...]:
            if pod.ordinal is not None:
                return (-pod.ordinal,)
            running = observation.running_by_pod.get(pod.name)
            return (float(pod.ready), float("inf") if running is None else running, -pod.created_s)

        surplus -= max(0, _replicas(before, role) - len(candidates))
        chosen += [pod.name for pod in sorted(candidates, key=lambda pod: (*order(pod), pod.name))[: max(0, surplus)]]
    return tuple(sorted(chosen))


def _replicas(split: Split, role: str) -> int:
    return split.samplers.replicas if role == "sampler" else split.trainers.replicas


def start(
    *,
    before: Split,
    after: Split,
    reason: str,
    predicted_gain: float,
    observation: Observation,
    deadlines: Deadlines,
    policy_version: int | None = None,
    period_s: float | None = None,
) -> MoveStatus:
    """A new move in its first phase; nothing has been done for it yet."""
    now = timestamp(observation.now_s)
    seed = f"{before.label()}>{after.label()}@{now}".encode()
    return MoveStatus(
        id=hashlib.sha256(seed).hexdigest()[:8],
        phase=MovePhase.ANNOUNCE,
        from_split=before,
        to_split=after,
        reason=reason,
        predicted_gain=predicted_gain,
        generation=observation.published_generation + 1,
        started_at=now,
        phase_since=now,
        deadline=timestamp(observation.now_s + deadlines.of(MovePhase.ANNOUNCE)),
        victims=victims(before, after, observation),
        policy_version_at_start=policy_version,
        period_at_start=period_s,
    )


def present_split(move: MoveStatus) -> Split:
    """The split that the workloads have been told in the present phase of a move."""
    now_targets = targets(move.from_split, move)
    for split in (move.to_split, move.from_split):
        if now_targets == Targets(split.samplers.replicas, split.trainers.replicas):
            return split
    return with_replicas(move.to_split, now_targets.samplers, now_targets.trainers)


def roll_back(move: MoveStatus, observation: Observation, deadlines: Deadlines, why: str) -> MoveStatus:
    """The move back to the split before ``move``, from wherever it stands; as safe as any move, since it is one."""
    here = present_split(move)
    shrinks = (
        here.samplers.replicas > move.from_split.samplers.replicas
        or here.trainers.replicas > move.from_split.trainers.replicas
    )
    phase = MovePhase.ANNOUNCE if shrinks else MovePhase.SHRINK
    return move.model_copy(
        update={
            "phase": phase,
            "from_split": here,
            "to_split": move.from_split,
            "reason": why,
            "rolling_back": True,
            "generation": observation.published_generation + 1,
            "phase_since": timestamp(observation.now_s),
            "deadline": timestamp(observation.now_s + deadlines.of(phase)),
            "victims": victims(here, move.from_split, observation),
            "waiting_for": "",
        }
    )


def advance(move: MoveStatus, observation: Observation, deadlines: Deadlines, *, may_roll_back: bool = True) -> Step:
    """Looks once at a move: whether its phase is done, waits on, or has missed its deadline.

    At most one phase is left per call, so that each is persisted before it is acted on. A move may not roll back where the
    split before it breaks the spec, as after a cut of the budget; it then waits and goes on as a move back does.
    """
    done, waiting_for = _PHASES[move.phase](move, observation)
    late = observation.now_s > epoch_s(move.deadline)
    if done:
        return _next(move, observation, deadlines)
    if late and move.phase is MovePhase.DRAIN:
        step = _next(move, observation, deadlines)
        return Step(step.move, note=f"Drain timed out: {waiting_for}; going on", drain_timed_out=True)
    if late and (move.rolling_back or not may_roll_back):
        if move.phase in (MovePhase.ANNOUNCE, MovePhase.VERIFY) and _only_acknowledgement(move, observation):
            step = _next(move, observation, deadlines)
            return Step(step.move, step.split, step.outcome, note=f"Went on without an acknowledgement: {waiting_for}")
        return Step(_waiting(move, f"{waiting_for} (overdue)"))
    if late:
        why = f"{move.phase.value} missed its deadline: {waiting_for}"
        return Step(roll_back(move, observation, deadlines, why), note=f"Rolling back: {why}")
    return Step(_waiting(move, waiting_for))


def _waiting(move: MoveStatus, waiting_for: str) -> MoveStatus:
    return move if move.waiting_for == waiting_for else move.model_copy(update={"waiting_for": waiting_for})


def _only_acknowledgement(move: MoveStatus, observation: Observation) -> bool:
    """Whether all that is missing is the job's word; for a move back the API server's word is enough in the end."""
    return move.phase is MovePhase.ANNOUNCE or _pods_ready(move, observation)[0]


def _next(move: MoveStatus, observation: Observation, deadlines: Deadlines) -> Step:
    order = list(MovePhase)
    if move.phase is MovePhase.VERIFY:
        outcome = "RolledBack" if move.rolling_back else "Committed"
        return Step(None, split=move.to_split, outcome=outcome, note=f"{outcome}: {move.to_split.label()}")
    phase = order[order.index(move.phase) + 1]
    generation = observation.published_generation + 1 if phase is MovePhase.VERIFY else move.generation
    return Step(
        move.model_copy(
            update={
                "phase": phase,
                "generation": generation,
                "phase_since": timestamp(observation.now_s),
                "deadline": timestamp(observation.now_s + deadlines.of(phase)),
                "waiting_for": "",
            }
        ),
        note=f"{move.phase.value} done, {phase.value} begins",
    )


def _acknowledged(move: MoveStatus, observation: Observation) -> tuple[bool, str]:
    if observation.published_generation < move.generation:
        return False, f"layout generation {move.generation} to be published"
    got = observation.acknowledged_generation
    if got is None or got < move.generation:
        seen = "unknown" if got is None else str(got)
        return False, (
            f"the trainer to acknowledge layout generation {move.generation} at a step boundary "
            f"(rljob_layout_generation is {seen}): check that its pods read /etc/rljob/layout.json and are scraped"
        )
    return True, ""


def _announce(move: MoveStatus, observation: Observation) -> tuple[bool, str]:
    return _acknowledged(move, observation)


def _drain(move: MoveStatus, observation: Observation) -> tuple[bool, str]:
    samplers = {pod.name for pod in observation.of("sampler")}
    busy: list[str] = []
    for name in move.victims:
        if name not in samplers:
            continue
        running = observation.running_by_pod.get(name)
        if running is None:
            busy.append(f"{name} (running unknown)")
        elif running > 0:
            busy.append(f"{name} ({running:.0f} running)")
    if busy:
        return False, f"samplers to finish their samples: {_some(busy)}"
    return True, ""


def _shrink(move: MoveStatus, observation: Observation) -> tuple[bool, str]:
    target = targets(move.from_split, move)
    lingering: list[str] = []
    for role, wanted in (("sampler", target.samplers), ("trainer", target.trainers)):
        pods = observation.of(role)
        if len(pods) > wanted:
            leaving = [pod.name for pod in pods if pod.terminating or pod.name in move.victims]
            lingering += leaving or [f"{len(pods) - wanted} {role} pods"]
    if lingering:
        return False, (
            f"pods to be gone: {_some(lingering)}. A pod that stays Terminating keeps its GPUs: look at its node, "
            "and delete it with --force only once its containers are known to be dead"
        )
    return True, ""


def _pods_ready(move: MoveStatus, observation: Observation) -> tuple[bool, str]:
    target = targets(move.from_split, move)
    missing: list[str] = []
    for role, wanted in (("sampler", target.samplers), ("trainer", target.trainers)):
        ready = sum(pod.ready and not pod.terminating for pod in observation.of(role))
        if ready < wanted:
            missing.append(f"{wanted - ready} of {wanted} {role}s")
    if missing:
        return False, f"pods to be ready: {', '.join(missing)}: kubectl describe the ones that are not"
    return True, ""


def _verify(move: MoveStatus, observation: Observation) -> tuple[bool, str]:
    for done, waiting_for in (_pods_ready(move, observation), _acknowledged(move, observation)):
        if not done:
            return done, waiting_for
    if not observation.metrics_flow:
        return False, "the new pods' metrics: check that they are scraped"
    return True, ""


_PHASES = {
    MovePhase.ANNOUNCE: _announce,
    MovePhase.DRAIN: _drain,
    MovePhase.SHRINK: _shrink,
    MovePhase.GROW: _pods_ready,
    MovePhase.VERIFY: _verify,
}


def _some(names: list[str], most: int = 4) -> str:
    shown = ", ".join(names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"
