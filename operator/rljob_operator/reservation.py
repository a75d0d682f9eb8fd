"""GPUs that other jobs have been promised and don't hold yet.

Two jobs that plan on the same free nodes would both be right alone and both be stuck together. So what a job has been promised is
kept for it by everybody:

- The split in force of a job and the target of its move belong to it, whoever comes first: a pod that is replaced, or a move that has
  freed GPUs and not yet taken others, is no gap to plan into. No job moves because another one wobbles.
- A job that has no split yet gets nothing but its turn. Who comes first (``spec.priority``, then age, then uid) plans first; the minima
  of a job that waits for GPUs are kept free for it by those behind it, so that what is freed adds up, as long as they would fit on
  nodes that are empty: a job that can never run must not stop those that can.

Running pods are never counted against the job that has them: nothing takes them away, however high the priority of another.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from rljob_operator.census import Census
from rljob_operator.eligibility import nodes_of, selects, untolerated_taints
from rljob_operator.gate import SAMPLER, TRAINER
from rljob_operator.quantity import QuantityError, whole
from rljob_planner.api.spec import RLJobSpec
from rljob_planner.placement import Room, packs

Job = Mapping[str, Any]
"""An RLJob as the API server returns it."""

_SIDES = {SAMPLER: "samplers", TRAINER: "trainers"}
_ENDED = ("Suspended", "Complete", "Failed")


@dataclass(frozen=True)
class Claim:
    """Replicas of one role of another job that have no node yet."""

    job: str
    """``namespace/name`` of the job."""
    resource: str
    """The extended resource that counts its GPUs."""
    gpus_per_replica: int
    """GPUs of one replica."""
    replicas: int
    """Replicas without a node."""
    allows: Callable[[Mapping[str, Any]], bool]
    """Whether a replica may run on a node."""


def rank(job: Job) -> tuple[int, str, str]:
    """What jobs are ordered by: those with the highest ``spec.priority`` come first, then the oldest, then the smallest uid."""
    metadata = job.get("metadata") or {}
    priority = (job.get("spec") or {}).get("priority")
    height = priority if isinstance(priority, int) and not isinstance(priority, bool) else 0
    return -height, str(metadata.get("creationTimestamp", "")), _uid(job)


def ahead(jobs: Iterable[Job], uid: str) -> tuple[Job, ...]:
    """The jobs that come before the one with ``uid``, the first first; all of them if it is not among ``jobs``."""
    ranked = sorted(jobs, key=rank)
    own = next((i for i, job in enumerate(ranked) if _uid(job) == uid), len(ranked))
    return tuple(ranked[:own])


def name_of(job: Job) -> str:
    """``namespace/name`` of a job."""
    metadata = job.get("metadata") or {}
    return f"{metadata.get('namespace', '')}/{metadata.get('name', '')}"


def has_split(job: Job) -> bool:
    """Whether a split of the job is in force."""
    return bool((job.get("status") or {}).get("split"))


def split_gpus(job: Job) -> int:
    """GPUs of the split in force; 0 if there is none."""
    split = (job.get("status") or {}).get("split") or {}
    sides = (split.get(side) or {} for side in _SIDES.values())
    return sum(int(side.get("replicas", 0)) * int(side.get("gpusPerReplica", 0)) for side in sides)


def wants_gpus(job: Job) -> bool:
    """Whether the operator may make pods for a job: not if it is suspended, has ended, or only watches workloads that exist already."""
    spec, status = job.get("spec") or {}, job.get("status") or {}
    adopts = any((spec.get(role) or {}).get("targetRef") for role in _SIDES)
    return not (spec.get("suspend") or status.get("phase") in _ENDED or adopts)


def has_its_turn(job: Job) -> bool:
    """Whether a job still has its first turn to plan before it: it wants GPUs, and nobody has said yet whether it gets them."""
    conditions = (job.get("status") or {}).get("conditions") or ()
    return wants_gpus(job) and not has_split(job) and not any(c.get("type") == "Planned" for c in conditions)


def others_plan_first(own: Job, jobs: Iterable[Job], nodes: Sequence[Mapping[str, Any]]) -> bool:
    """Whether one of ``jobs`` that may use the same nodes comes before ``own`` and still has its first turn to plan.

    It is asked by every job that waits for its turn, again and again: most often the first node tells.
    """
    spec = spec_of(own)
    return any(
        _share_nodes(spec, spec_of(job), nodes)
        for job in jobs
        if has_its_turn(job) and rank(job) < rank(own) and _uid(job) != _uid(own)
    )


def _share_nodes(one: RLJobSpec | None, other: RLJobSpec | None, nodes: Sequence[Mapping[str, Any]]) -> bool:
    if one is None or other is None:
        return True
    return any(all(any(selects(spec, role, node) for role in _SIDES) for spec in (one, other)) for node in nodes)


def claims_of(job: Job, census: Census) -> tuple[tuple[Claim, ...], tuple[str, ...]]:
    """What a job has been promised and has no node for, and notes for people.

    Promised is the larger of the split in force and both ends of a move under way; nothing before there is a split. If its spec can't be
    read (it was written for another version of the API), its pods are taken to fit everywhere, and a note says so.
    """
    if not wants_gpus(job):
        return (), ()
    status, raw = job.get("status") or {}, job.get("spec") or {}
    move = status.get("rebalance") or {}
    splits = [s for s in (status.get("split"), move.get("from"), move.get("to")) if s]
    missing = {role: shape for role in _SIDES if (shape := _missing(job, role, splits, census))[1]}
    if not missing:
        return (), ()
    name = name_of(job)
    notes: tuple[str, ...] = ()
    spec = spec_of(job)
    if spec is None:
        notes = (f"the spec of job {name} can't be read, so what it still needs is set aside on any node",)
    claims = (
        Claim(name, _resource(raw, role), width, replicas, _allows(spec, role))
        for role, (width, replicas) in missing.items()
    )
    return _widest_first(claims), notes


def minima_of(job: Job, nodes: Iterable[Mapping[str, Any]]) -> tuple[Claim, ...]:
    """What is kept free for a job that waits for its first split: its minima, if they would fit on ``nodes`` were these empty."""
    if not wants_gpus(job) or has_split(job) or (spec := spec_of(job)) is None:
        return ()
    shapes = {
        SAMPLER: (spec.sampler.gpus_per_replica or 1, spec.sampler.min_replicas),
        TRAINER: (spec.trainer.gpus_per_replica, spec.trainer.min_replicas),
    }
    if sum(width * replicas for width, replicas in shapes.values()) > spec.gpus:
        return ()
    rooms = [_empty(spec, node) for node in nodes]
    if not packs(rooms, *shapes[SAMPLER], *shapes[TRAINER]):
        return ()
    name = name_of(job)
    return _widest_first(
        Claim(name, nodes_of(spec, role).gpu_resource, width, replicas, _allows(spec, role))
        for role, (width, replicas) in shapes.items()
        if replicas
    )


def spec_of(job: Job) -> RLJobSpec | None:
    """The spec of a job; None if it can't be read. Specs that don't change are read once."""
    key = (_uid(job), (job.get("metadata") or {}).get("generation"))
    if key[1] is not None and key in _specs:
        return _specs[key]
    try:
        found: RLJobSpec | None = RLJobSpec.model_validate(job.get("spec") or {})
    except ValidationError:
        found = None
    if key[1] is not None:
        if len(_specs) >= _SPECS_KEPT:
            _specs.clear()
        _specs[key] = found
    return found


_SPECS_KEPT = 1024
_specs: dict[tuple[str, Any], RLJobSpec | None] = {}


def _widest_first(claims: Iterable[Claim]) -> tuple[Claim, ...]:
    """In the order in which they are set aside: narrow replicas find room beside wide ones, and not the other way round."""
    return tuple(sorted(claims, key=lambda claim: -claim.gpus_per_replica))


def _empty(spec: RLJobSpec, node: Mapping[str, Any]) -> Room:
    """A node as it would be without pods."""
    roles = {role: _allows(spec, role)(node) for role in _SIDES}
    allocatable = (node.get("status") or {}).get("allocatable") or {}
    gpus = 0
    for role, allowed in roles.items():
        if allowed:
            try:
                gpus = max(gpus, whole(allocatable.get(nodes_of(spec, role).gpu_resource, 0)))
            except QuantityError:
                continue
    return Room("", gpus, samplers=roles[SAMPLER], trainers=roles[TRAINER])


def _missing(job: Job, role: str, splits: list[Mapping[str, Any]], census: Census) -> tuple[int, int]:
    """GPUs of a replica, and replicas that are promised and have no node."""
    sides = [split[_SIDES[role]] for split in splits]
    width = max((int(side["gpusPerReplica"]) for side in sides), default=0)
    promised = max((int(side["replicas"]) * int(side["gpusPerReplica"]) for side in sides), default=0)
    if not width or not promised:
        return width, 0
    bound = census.bound_gpus(_uid(job), role, _resource(job.get("spec") or {}, role))
    return width, -(-max(0, promised - bound) // width)


def _allows(spec: RLJobSpec | None, role: str) -> Callable[[Mapping[str, Any]], bool]:
    if spec is None:
        return lambda _node: True
    known = spec
    return lambda node: selects(known, role, node) and not untolerated_taints(known, role, node)


def _resource(spec: Mapping[str, Any], role: str) -> str:
    nodes = (spec.get(role) or {}).get("nodes") or spec.get("nodes") or {}
    return str(nodes.get("gpuResource") or "nvidia.com/gpu")


def _uid(job: Job) -> str:
    return str((job.get("metadata") or {}).get("uid", ""))
