"""What a job should have in each phase of a move: pods, and what its layout says. Pure.

All of it follows from the persisted move alone, so that an operator that starts anywhere does what the one before it was about to do.
"""

from __future__ import annotations

from dataclasses import dataclass

from rljob_operator.victims import leaves
from rljob_planner.api.status import MovePhase, MoveStatus
from rljob_planner.split import Split


@dataclass(frozen=True)
class Targets:
    """Replicas that the two workloads should have."""

    samplers: int
    trainers: int


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


def touches_pods(phase: MovePhase) -> bool:
    """Whether pods have gone or come by a phase; before it, a move can be dropped without a trace."""
    return phase in (MovePhase.SHRINK, MovePhase.GROW, MovePhase.VERIFY)


def targets(split: Split, move: MoveStatus | None) -> Targets:
    """The replicas that both workloads should have now.

    Until the victims are drained nothing changes; then both sides are held at the smaller of the two splits, and only when
    that is reached do they go to the new one.
    """
    if move is None:
        return Targets(split.samplers.replicas, split.trainers.replicas)
    before, after = move.from_split, move.to_split
    if not touches_pods(move.phase):
        least = min(before.samplers.replicas, after.samplers.replicas)
        return Targets(max(least, before.samplers.replicas - len(move.drained)), before.trainers.replicas)
    if move.phase is MovePhase.SHRINK:
        smaller = _smaller(before, after)
        return Targets(smaller.samplers, 0) if move.restart else smaller
    return Targets(after.samplers.replicas, after.trainers.replicas)


def announced(split: Split, move: MoveStatus | None) -> Targets:
    """The replicas that the layout tells the job: what it may use in the present phase, never more than what is there.

    A trainer that restarts is told of no smaller one: the old one trains on whole until it goes, the new one starts whole.
    """
    if move is None:
        return Targets(split.samplers.replicas, split.trainers.replicas)
    if move.phase is MovePhase.VERIFY:
        return Targets(move.to_split.samplers.replicas, move.to_split.trainers.replicas)
    smaller = _smaller(move.from_split, move.to_split)
    if move.restart:
        whole = move.to_split if move.phase is MovePhase.GROW else move.from_split
        return Targets(smaller.samplers, whole.trainers.replicas)
    return smaller


def wants_checkpoint(move: MoveStatus | None) -> bool:
    """Whether the layout asks for a checkpoint, which the trainer writes before it acknowledges.

    Not while samplers drain: what is trained meanwhile would be lost.
    """
    if move is None or not move.restart:
        return False
    if move.phase in (MovePhase.ANNOUNCE, MovePhase.DRAIN):
        return not leaves(move, "sampler")
    # To the end of the old trainers, lest a further generation be published that nobody lives to read.
    return move.phase in (MovePhase.CHECKPOINT, MovePhase.SHRINK)


def _smaller(before: Split, after: Split) -> Targets:
    return Targets(
        min(before.samplers.replicas, after.samplers.replicas), min(before.trainers.replicas, after.trainers.replicas)
    )


def present_split(move: MoveStatus) -> Split:
    """The split that the workloads have been told in the present phase of a move.

    Trainers that restart are nobody's in between: of the two splits, the smaller number is what may come again.
    """
    now_targets = targets(move.from_split, move)
    if move.restart and move.phase is MovePhase.SHRINK:
        now_targets = _smaller(move.from_split, move.to_split)
    for split in (move.to_split, move.from_split):
        if now_targets == Targets(split.samplers.replicas, split.trainers.replicas):
            return split
    return with_replicas(move.to_split, now_targets.samplers, now_targets.trainers)
