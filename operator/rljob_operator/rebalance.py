"""The transaction that moves a job from one split to another, as a pure state machine.

At no instant may a job's pods exceed its budget, and a side must never grow on GPUs that the other has not given up yet.
So a move walks through fixed phases, each written to the RLJob's status before anything is done for it::

    Announce    the layout names the pods that leave; wait until the trainer acknowledged it at a step boundary
    Drain       wait until the leaving samplers run nothing, or the drain timeout
    Checkpoint  only where trainers restart and samplers had to drain first: wait until the trainer acknowledged that it has
                written a checkpoint. Where no sampler leaves, Announce asks for it
    Shrink      the donor's workload is scaled down; wait until those pods are *gone*. Trainers that restart are scaled to
                nothing, so that an old and a new one never meet
    Grow        the receiver's workload is scaled up; wait until its pods are ready
    Verify      the layout names the new endpoints and trainers; wait until the trainer acknowledged it
    (commit)    the new split is the split in force

What is done in a phase follows from the phase alone (``targets``, ``announced``), so an operator that is killed anywhere goes on from
what the API server holds. A phase that misses its deadline turns the move round: ``roll_back`` makes a move back to the
split before, which walks through the same phases and is therefore as safe. A move back has nowhere further to fall: it waits,
and says for what.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass

from rljob_operator.move_cost import with_phase
from rljob_operator.observation import Observation, PodView, epoch_s, timestamp
from rljob_operator.phases import (
    Targets,
    announced,
    present_split,
    targets,
    touches_pods,
    wants_checkpoint,
    with_replicas,
)
from rljob_operator.victims import Aftermath, aftermath, drained, kept, leaves, renamed, replicas, victims
from rljob_operator.waits import Wait, wait_of
from rljob_planner.api.evidence import DecisionInputs, PhaseSeconds
from rljob_planner.api.status import MoveCause, MovePhase, MoveStatus
from rljob_planner.split import Split

__all__ = [
    "Deadlines",
    "Observation",
    "PodView",
    "Step",
    "Targets",
    "advance",
    "announced",
    "epoch_s",
    "hold",
    "present_split",
    "release",
    "roll_back",
    "start",
    "targets",
    "timestamp",
    "touches_pods",
    "victims",
    "wants_checkpoint",
    "with_replicas",
]


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
            MovePhase.CHECKPOINT: self.acknowledge_s,
            MovePhase.SHRINK: self.gone_s,
            MovePhase.GROW: self.ready_s,
            MovePhase.VERIFY: self.acknowledge_s,
        }[phase]


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
    aftermath: Aftermath | None = None
    """Who went in a shrink that has just ended, where it was not as named."""


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
    cause: MoveCause = MoveCause.DECISION,
    restart: bool = False,
    inputs: DecisionInputs | None = None,
    request: str | None = None,
) -> MoveStatus:
    """A new move in its first phase; nothing has been done for it yet.

    ``restart`` says that trainers follow a change of their number by restarting. A move that only adds pods has nothing to
    announce and begins with Shrink, which finds nothing to do.
    """
    now = timestamp(observation.now_s)
    seed = f"{before.label()}>{after.label()}@{now}".encode()
    restart = restart and before.trainers.replicas != after.trainers.replicas
    shrinks = restart or any(replicas(before, role) > replicas(after, role) for role in ("sampler", "trainer"))
    phase = MovePhase.ANNOUNCE if shrinks else MovePhase.SHRINK
    return MoveStatus(
        id=hashlib.sha256(seed).hexdigest()[:8],
        phase=phase,
        from_split=before,
        to_split=after,
        reason=reason,
        predicted_gain=predicted_gain,
        generation=observation.published_generation + 1,
        started_at=now,
        phase_since=now,
        deadline=timestamp(observation.now_s + deadlines.of(phase)),
        victims=victims(before, after, observation, restart=restart),
        policy_version_at_start=policy_version,
        period_at_start=period_s,
        cause=cause,
        request=request,
        restart=restart,
        inputs=inputs,
        unmeasured=observation.acknowledged_generation is None,
    )


def roll_back(move: MoveStatus, observation: Observation, deadlines: Deadlines, why: str) -> MoveStatus:
    """The move back to the split before ``move``, from wherever it stands; as safe as any move, since it is one."""
    here, back = present_split(move), move.from_split
    # Trainers that have not been touched need no restart to stay what they are.
    restart = move.restart and touches_pods(move.phase)
    shrinks = any(replicas(here, role) > replicas(back, role) for role in ("sampler", "trainer"))
    phase = MovePhase.ANNOUNCE if shrinks or (restart and move.phase is not MovePhase.SHRINK) else MovePhase.SHRINK
    return move.model_copy(
        update={
            "phase": phase,
            "from_split": here,
            "to_split": back,
            "reason": why,
            "rolling_back": True,
            "restart": restart,
            "generation": observation.published_generation + 1,
            "phase_since": timestamp(observation.now_s),
            "deadline": timestamp(observation.now_s + deadlines.of(phase)),
            "victims": victims(here, back, observation, restart=restart),
            "drained": (),
            "kept": (),
            "waiting_for": "",
        }
    )


def advance(
    move: MoveStatus,
    observation: Observation,
    deadlines: Deadlines,
    *,
    goal: Targets | None = None,
    may_roll_back: bool = True,
    over_budget: bool = False,
    keeps: Callable[[Split], bool] = lambda _split: False,
) -> Step:
    """Looks once at a move: whether its phase is done, waits on, or has missed its deadline.

    At most one phase is left per call, so that each is persisted before it is acted on. ``goal`` are the replicas that the workloads are
    held at, where those are not the phase's own: no side is scaled below its minimum, so nobody waits for that either. A move may not roll back where the
    split before it breaks the spec, as after a cut of the budget; it then waits and goes on as a move back does. With
    ``over_budget`` that split holds more than the budget, and nothing waits longer than what runs on the pods that go needs.
    ``keeps`` says whether a split keeps the spec: where there is no way back and not all pods find a place, those that did are enough.
    """
    if not touches_pods(move.phase):
        named = renamed(move, observation)
        if named is not None:
            return _named_anew(move, observation, deadlines, named)
    if over_budget and move.phase is MovePhase.DRAIN:
        empty = drained(move, observation)
        if len(empty) > len(move.drained):
            going = f"{len(empty)} of {len(move.victims)} drained pods go at once: the job holds more than its budget"
            return Step(move.model_copy(update={"drained": empty}), note=going)
    wait = wait_of(move, observation, goal or targets(move.from_split, move), over_budget=over_budget)
    if wait.done:
        return _next(move, observation, deadlines)
    if observation.now_s <= epoch_s(move.deadline):
        return Step(_waiting(move, wait.words))
    less = _what_is_there(move, observation)
    # The pods of the split before would wait in the same queue, behind those that wait there now.
    no_way_back = move.rolling_back or not may_roll_back or observation.only_queued
    if no_way_back and less is not None and keeps(less):
        deadline = timestamp(observation.now_s + deadlines.of(move.phase))
        update: dict[str, object] = {"to_split": less, "deadline": deadline}
        if not move.rolling_back and less.same_shape(move.from_split):
            # Nothing was gained: an end as after a roll-back, so that the queue is not asked again at once.
            update |= {"rolling_back": True, "reason": f"{move.phase.value} missed its deadline: {wait.words}"}
        return Step(
            move.model_copy(update=update),
            note=f"Settled for {less.label()}, since it waits for {wait.words}",
        )
    return _late(move, observation, deadlines, wait, may_roll_back)


def _what_is_there(move: MoveStatus, observation: Observation) -> Split | None:
    """The split that those pods make which got ready in Grow; None in other phases, and where there is none.

    Trainers that restart were told how many they are, and run as that many or not at all.
    """
    if move.phase is not MovePhase.GROW:
        return None
    found = Targets(
        *(
            min(replicas(move.to_split, role), sum(pod.ready for pod in observation.staying(role)))
            for role in ("sampler", "trainer")
        )
    )
    whole = not move.restart or found.trainers == move.to_split.trainers.replicas
    return (
        with_replicas(move.to_split, found.samplers, found.trainers)
        if min(found.samplers, found.trainers) and whole
        else None
    )


def _late(move: MoveStatus, observation: Observation, deadlines: Deadlines, wait: Wait, may_roll_back: bool) -> Step:
    if move.phase is MovePhase.DRAIN:
        step = _next(move, observation, deadlines)
        return Step(step.move, note=f"Drain timed out: {wait.words}; going on", drain_timed_out=wait.busy)
    stays = move.rolling_back or not may_roll_back
    if wait.only_word and (stays or move.unmeasured):
        step = _next(move, observation, deadlines)
        return Step(step.move, step.split, step.outcome, note=f"Went on without an acknowledgement: {wait.words}")
    if stays:
        return Step(_waiting(move, f"{wait.words} (overdue)"))
    why = f"{move.phase.value} missed its deadline: {wait.words}"
    return Step(roll_back(move, observation, deadlines, why), note=f"Rolling back: {why}")


def _named_anew(move: MoveStatus, observation: Observation, deadlines: Deadlines, named: tuple[str, ...]) -> Step:
    """The move with other victims, announced once more: the job has heard of none but the old ones."""
    new = sorted(set(named) - set(move.victims))
    began = MovePhase.ANNOUNCE
    update: dict[str, object] = {"victims": named, "generation": observation.published_generation + 1}
    if move.phase is not began:
        update |= {
            "phase": began,
            "phase_since": timestamp(observation.now_s),
            "deadline": timestamp(observation.now_s + deadlines.of(began)),
            "waiting_for": "",
        }
    return Step(
        move.model_copy(update=update),
        note=f"{', '.join(new)} to go in place of a pod that was lost before its time",
    )


def hold(move: MoveStatus, now_s: float, why: str) -> MoveStatus:
    """The move standing still where it is; its deadline stands still with it."""
    update = {"waiting_for": why}
    if move.held_since is None:
        update["held_since"] = timestamp(now_s)
    return move.model_copy(update=update)


def release(move: MoveStatus, now_s: float) -> MoveStatus:
    """The move going on after it was held."""
    if move.held_since is None:
        return move
    moved_s = epoch_s(move.deadline) + max(0.0, now_s - epoch_s(move.held_since))
    return move.model_copy(update={"held_since": None, "deadline": timestamp(moved_s), "waiting_for": ""})


def _waiting(move: MoveStatus, waiting_for: str) -> MoveStatus:
    return move if move.waiting_for == waiting_for else move.model_copy(update={"waiting_for": waiting_for})


def _after(move: MoveStatus) -> MovePhase:
    order = list(MovePhase)
    phase = order[order.index(move.phase) + 1]
    asked_late = move.restart and leaves(move, "sampler")
    return MovePhase.SHRINK if phase is MovePhase.CHECKPOINT and not asked_late else phase


def phases_so_far(move: MoveStatus, now_s: float) -> PhaseSeconds:
    """What the phases of a move took, the present one counted as over; a move back keeps what the way out took."""
    if move.rolling_back:
        return move.phases
    return with_phase(move.phases, move.phase, now_s - epoch_s(move.phase_since))


def _next(move: MoveStatus, observation: Observation, deadlines: Deadlines) -> Step:
    if move.phase is MovePhase.VERIFY:
        outcome = "RolledBack" if move.rolling_back else "Committed"
        return Step(None, split=move.to_split, outcome=outcome, note=f"{outcome}: {move.to_split.label()}")
    phase = _after(move)
    publishes = phase in (MovePhase.CHECKPOINT, MovePhase.VERIFY)
    found = aftermath(move, observation) if move.phase is MovePhase.SHRINK else None
    return Step(
        move.model_copy(
            update={
                "phase": phase,
                "generation": observation.published_generation + 1 if publishes else move.generation,
                "phase_since": timestamp(observation.now_s),
                "deadline": timestamp(observation.now_s + deadlines.of(phase)),
                "waiting_for": "",
                "phases": phases_so_far(move, observation.now_s),
                "kept": kept(move, observation) if phase is MovePhase.SHRINK else (),
            }
        ),
        note=f"{move.phase.value} done, {phase.value} begins",
        aftermath=found if found is not None and found.words() else None,
    )
