"""GPUs that older jobs have been promised and don't hold yet.

Two jobs that plan on the same free nodes would both be right alone and both be stuck together. So a job leaves alone what an
older one (by creation, then name) still has to get: a replacement that waits for its gate, or the growing side of a move.
The younger job's running pods are never counted against it: nothing takes them away.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from rljob_operator.eligibility import selects, untolerated_taints
from rljob_operator.gate import SAMPLER, TRAINER, Pod, is_terminal, pod_gpus, role_of
from rljob_planner.api.spec import RLJobSpec

_SIDES = {SAMPLER: "samplers", TRAINER: "trainers"}
_ENDED = ("Suspended", "Complete", "Failed")


@dataclass(frozen=True)
class Claim:
    """Replicas of one role of an older job that have no node yet."""

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


def older_jobs(jobs: Iterable[Mapping[str, Any]], uid: str) -> tuple[Mapping[str, Any], ...]:
    """The jobs that come before the one with ``uid``, oldest first; all of them if it is not among ``jobs``."""
    ranked = sorted(jobs, key=_age)
    own = next((job for job in ranked if _uid(job) == uid), None)
    return tuple(job for job in ranked if _uid(job) != uid and (own is None or _age(job) < _age(own)))


def claims_of(job: Mapping[str, Any], pods: Sequence[Pod]) -> tuple[tuple[Claim, ...], tuple[str, ...]]:
    """What a job has been promised and has no node for, and notes for people; ``pods`` are the job's own.

    Promised is the larger of the split in force and both ends of a move under way. A job that is suspended or has ended is
    promised nothing. If its spec can't be read (it was written for another version of the API), its pods are taken to fit
    everywhere, and a note says so.
    """
    status = job.get("status") or {}
    raw = job.get("spec") or {}
    if raw.get("suspend") or status.get("phase") in _ENDED:
        return (), ()
    move = status.get("rebalance") or {}
    splits = [s for s in (status.get("split"), move.get("from"), move.get("to")) if s]
    missing = {role: shape for role in _SIDES if (shape := _missing(raw, role, splits, pods))[1]}
    if not missing:
        return (), ()
    name = f"{job['metadata'].get('namespace', '')}/{job['metadata'].get('name', '')}"
    notes: tuple[str, ...] = ()
    spec: RLJobSpec | None = None
    try:
        spec = RLJobSpec.model_validate(raw)
    except ValidationError:
        notes = (f"the spec of job {name} can't be read, so what it still needs is set aside on any node",)
    claims = (
        Claim(name, _resource(raw, role), width, replicas, _allows(spec, role))
        for role, (width, replicas) in missing.items()
    )
    return tuple(claims), notes


def _missing(
    raw: Mapping[str, Any], role: str, splits: Sequence[Mapping[str, Any]], pods: Sequence[Pod]
) -> tuple[int, int]:
    """GPUs of a replica, and replicas that are promised and have no node."""
    sides = [split[_SIDES[role]] for split in splits]
    width = max((int(side["gpusPerReplica"]) for side in sides), default=0)
    promised = max((int(side["replicas"]) * int(side["gpusPerReplica"]) for side in sides), default=0)
    if not width or not promised:
        return width, 0
    resource = _resource(raw, role)
    bound = sum(
        pod_gpus(p, resource)
        for p in pods
        if role_of(p) == role and (p.get("spec") or {}).get("nodeName") and not is_terminal(p)
    )
    return width, -(-max(0, promised - bound) // width)


def _allows(spec: RLJobSpec | None, role: str) -> Callable[[Mapping[str, Any]], bool]:
    if spec is None:
        return lambda _node: True
    known = spec
    return lambda node: selects(known, role, node) and not untolerated_taints(known, role, node)


def _resource(spec: Mapping[str, Any], role: str) -> str:
    nodes = (spec.get(role) or {}).get("nodes") or spec.get("nodes") or {}
    return str(nodes.get("gpuResource") or "nvidia.com/gpu")


def _uid(job: Mapping[str, Any]) -> str:
    return str((job.get("metadata") or {}).get("uid", ""))


def _age(job: Mapping[str, Any]) -> tuple[str, str, str]:
    metadata = job.get("metadata") or {}
    return str(metadata.get("creationTimestamp", "")), str(metadata.get("name", "")), str(metadata.get("namespace", ""))
