"""Which pods a move removes, and whether it was those that went. Pure.

Kubernetes lets nobody name the pods that a scale-down removes: a deletion cost is a wish, and pods that are not ready go
before it is asked. So victims are named such that the wish and the rule agree, they are named anew when one of them is lost
before its time, and after the scale-down the pods that went are compared with the ones that should have.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from rljob_operator.observation import Observation, PodView, epoch_s, some
from rljob_operator.vacating import Coming, Vacated, vacate
from rljob_planner.api.status import KeptPod, MoveStatus
from rljob_planner.split import Split


def replicas(split: Split, role: str) -> int:
    """The replicas of a role in a split."""
    return split.samplers.replicas if role == "sampler" else split.trainers.replicas


def surplus(before: Split, after: Split, role: str) -> int:
    """How many pods of a role a move removes."""
    return max(0, replicas(before, role) - replicas(after, role))


def victims(
    before: Split, after: Split, observation: Observation, *, restart: bool = False, already: Collection[str] = ()
) -> tuple[str, ...]:
    """The pods that a move removes.

    Pods that are not ready go first, since a ReplicaSet removes those first whatever their deletion cost; then those that
    leave enough free GPUs on one node for the pods that come; then samplers with the fewest running samples, whose drain is shortest;
    then the youngest. A StatefulSet always removes its highest ordinals. Those in ``already`` stay named as long as they are there. A
    trainer that restarts loses all of its pods.
    """
    chosen: list[str] = []
    for role in ("sampler", "trainer"):
        if restart and role == "trainer":
            chosen += [pod.name for pod in observation.staying(role)]
        else:
            chosen += [pod.name for pod in _vacated(before, after, observation, role, already).leaving]
    return tuple(sorted(chosen))


def unplaced(before: Split, after: Split, observation: Observation) -> int:
    """How many of the pods that a move adds would find no node, whichever pods leave; 0 where free GPUs are unknown."""
    return max(_vacated(before, after, observation, role, ()).unplaced for role in ("sampler", "trainer"))


def _vacated(before: Split, after: Split, observation: Observation, role: str, already: Collection[str]) -> Vacated:
    candidates = observation.staying(role)
    # A pod that is missing is one that need not be removed.
    wanted = surplus(before, after, role) - max(0, replicas(before, role) - len(candidates))
    if wanted <= 0:
        return Vacated((), 0)

    over = _over(after, candidates) if role == "sampler" else {}

    def order(pod: PodView) -> tuple[float, ...]:
        if pod.ordinal is not None:
            return (-pod.ordinal,)
        running = observation.running_by_pod.get(pod.name)
        return (
            float(pod.name not in already),
            float(pod.ready),
            float(-over.get(pod.pool, 0)),
            math.inf if running is None else running,
            -pod.created_s,
        )

    ordered = sorted(candidates, key=lambda pod: (*order(pod), pod.name))
    coming = None if already else _coming(before, after, observation, role)
    if coming is None or any(pod.ordinal is not None for pod in candidates):
        return Vacated(tuple(ordered[:wanted]), 0)
    return vacate(ordered, wanted, _width(before, role), coming)


def _over(after: Split, candidates: Sequence[PodView]) -> dict[str | None, int]:
    """By how many samplers each pool is over what a split wants there; empty for a job without pools."""
    if after.samplers.pools is None:
        return {}
    wanted = {pool.name: pool.replicas for pool in after.samplers.pools}
    live = Counter(pod.pool for pod in candidates)
    return {name: max(0, count - wanted.get(name or "", 0)) for name, count in live.items()}


def _coming(before: Split, after: Split, observation: Observation, role: str) -> Coming | None:
    """What the other side gains; None if nothing, or if nobody knows where there is room."""
    other = "trainer" if role == "sampler" else "sampler"
    added = replicas(after, other) - replicas(before, other)
    if added <= 0 or observation.free is None:
        return None
    return Coming(added, _width(after, other), observation.free(other))


def _width(split: Split, role: str) -> int:
    return split.samplers.gpus_per_replica if role == "sampler" else split.trainers.gpus_per_replica


def renamed(move: MoveStatus, observation: Observation) -> tuple[str, ...] | None:
    """The victims as they should be named now, None if those of the move will do.

    A victim that somebody deletes before its time is replaced by its workload, and the replacement is one too many. Pods that
    restart with the trainer need no naming: all of them go.
    """
    found = set(victims(move.from_split, move.to_split, observation, already=move.victims))
    if move.restart:
        trainers = {pod.name for pod in observation.of("trainer")}
        found = (found - trainers) | (trainers & set(move.victims))
    return tuple(sorted(found)) if found - set(move.victims) else None


def drained(move: MoveStatus, observation: Observation) -> tuple[str, ...]:
    """The samplers among the victims that run nothing, and those that did when they went."""
    there = {pod.name for pod in observation.of("sampler")}
    idle = {name for name in move.victims if name in there and observation.running_by_pod.get(name) == 0}
    return tuple(sorted(idle | set(move.drained)))


def leaves(move: MoveStatus, role: str) -> bool:
    """Whether pods of a role go in a move."""
    return surplus(move.from_split, move.to_split, role) > 0 or (move.restart and role == "trainer")


def others(move: MoveStatus, observation: Observation) -> tuple[PodView, ...]:
    """The pods of the sides that shrink which are to stay."""
    return tuple(
        pod
        for role in ("sampler", "trainer")
        if surplus(move.from_split, move.to_split, role) > 0 and not (move.restart and role == "trainer")
        for pod in observation.staying(role)
        if pod.name not in move.victims
    )


def kept(move: MoveStatus, observation: Observation) -> tuple[KeptPod, ...]:
    """The pods that are to stay, as they are when the shrink begins."""
    found = []
    for pod in others(move, observation):
        running = observation.running_by_pod.get(pod.name)
        found.append(KeptPod(pod=pod.name, running=None if running is None else round(running)))
    return tuple(found)


@dataclass(frozen=True)
class Aftermath:
    """Who went in a shrink, where it was not as named."""

    gone: tuple[KeptPod, ...]
    """Pods that went although they were to stay."""
    stayed: tuple[str, ...]
    """Victims that are still there and will be used again."""

    @property
    def lost_samples(self) -> int:
        """Samples that ran on pods which went wrongly, as far as known."""
        return sum(pod.running or 0 for pod in self.gone)

    def words(self) -> str:
        """What happened and what follows from it, for an event; empty if all went as named."""
        if not self.gone and not self.stayed:
            return ""
        said = []
        if self.gone:
            names = some([pod.pod for pod in self.gone])
            unknown = sum(pod.running is None for pod in self.gone)
            counted = f"{self.lost_samples} samples ran there and start anew"
            if unknown:
                counted += f" (unknown for {unknown} of {len(self.gone)} pods)"
            said.append(f"{names} went although not named to go ({counted})")
        if self.stayed:
            said.append(f"{some(self.stayed)} had been drained and stayed: used again once the move ends")
        return "; ".join(said) + (
            ". A pod that is not ready goes first in a scale-down, and one that somebody deletes or evicts goes anyway"
        )


def aftermath(move: MoveStatus, observation: Observation) -> Aftermath:
    """Compares the pods that went in a shrink with those that should have."""
    there = {pod.name: pod for role in ("sampler", "trainer") for pod in observation.staying(role)}
    since_s = epoch_s(move.phase_since)
    return Aftermath(
        gone=tuple(pod for pod in move.kept if pod.pod not in there),
        # A StatefulSet makes a pod of the same name anew: that one has not stayed.
        stayed=tuple(name for name in move.victims if name in there and there[name].created_s < since_s),
    )
