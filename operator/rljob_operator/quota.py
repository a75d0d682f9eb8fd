"""What ResourceQuotas leave to a job.

A pod that a quota refuses is never created, and its ReplicaSet retries in silence; so the quota is part of the budget before
anything is planned. Every quota of the namespace that covers the job's pods counts, and the smallest wins. A quota counts a
pod when it is created, gated or not, and until it is terminal or gone; so does this module when it gives the job's own usage
back to it.

A quota that is lowered below what is in use stops nobody's pods; the jobs of the namespace follow it down in order. The last job gives
way first, as far as its minima; the others keep what they have until that is not enough.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rljob_operator.census import Census
from rljob_operator.gate import Pod, is_terminal, pod_gpus
from rljob_operator.quantity import QuantityError, whole


@dataclass(frozen=True)
class QuotaRoom:
    """What a ResourceQuota leaves to a job."""

    name: str
    """The quota's name."""
    gpus: int
    """GPUs that the job may hold under this quota, its own usage included."""
    keeps: int | None = None
    """GPUs that the job may keep if it has them: what pods of no job and the jobs before it leave, the minima of those after it left out.
    It rests on splits in force, so that no pod which comes or goes makes it smaller. None if that is not known."""


@dataclass(frozen=True)
class Neighbour:
    """Another job of the namespace that has a split."""

    uid: str
    """The uid of the RLJob."""
    split_gpus: int
    """GPUs of its split in force."""
    minima_gpus: int
    """GPUs of its smallest split: what nobody asks it to give."""
    behind: bool
    """Whether it comes after the job in question."""


def quota_rooms(
    quotas: Iterable[Mapping[str, Any]],
    *,
    templates: Mapping[str, Mapping[str, Any]],
    resources: Iterable[str],
    uid: str,
    census: Census,
    neighbours: Sequence[Neighbour] = (),
) -> tuple[tuple[QuotaRoom, ...], tuple[str, ...]]:
    """What each quota leaves to the job with ``uid``, and notes for people.

    ``quotas`` are those of the job's namespace, ``templates`` the pod template of each role, ``resources`` the extended
    resources that count GPUs, ``census`` counts all pods of the cluster, ``neighbours`` are the other RLJobs of the namespace.
    A quota that covers only one role bounds the whole job here, which is safe, and a note says so; so does a scope that is not known.

    The room is ``hard`` less what others use. That is the smaller of two readings: ``used`` less the job's own pods, and the
    others' pods of the namespace. ``used`` alone lags behind a pod that has just gone, and the budget would dip in every
    move. Where that is less than the job has, those behind it give way first.
    """
    rooms: list[QuotaRoom] = []
    notes: list[str] = []
    for quota in quotas:
        name = str((quota.get("metadata") or {}).get("name", ""))
        covered = {role: covers(quota, template.get("spec") or {}) for role, template in templates.items()}
        hard = (quota.get("status") or {}).get("hard") or (quota.get("spec") or {}).get("hard") or {}
        keys = [(r, f"requests.{r}") for r in sorted(set(resources)) if f"requests.{r}" in hard]
        if not keys or all(answer is False for answer in covered.values()):
            continue
        if any(answer is None for answer in covered.values()):
            notes.append(
                f"quota {name} has a scope that the operator doesn't know, and is taken to cover the job's pods"
            )
        elif not all(covered.values()):
            roles = ", ".join(role for role, answer in covered.items() if answer)
            notes.append(f"quota {name} covers only {roles} pods, and is taken to bound the whole job")
        for resource, key in keys:
            try:
                room, note = _room(quota, resource, key, whole(hard[key]), uid, census, neighbours)
            except QuantityError as error:
                note = f"quota {name}: {key} can't be read ({error}), so nothing is promised under it"
                room = QuotaRoom(name, 0)
            rooms.append(room)
            if note:
                notes.append(note)
    return tuple(rooms), tuple(notes)


def covers(quota: Mapping[str, Any], pod_spec: Mapping[str, Any]) -> bool | None:
    """Whether a quota's scopes cover a pod; None if one of them is not known and the others do."""
    spec = quota.get("spec") or {}
    answers = [_in_scope(str(scope), {"operator": "Exists"}, pod_spec) for scope in spec.get("scopes") or ()]
    for expression in (spec.get("scopeSelector") or {}).get("matchExpressions") or ():
        answers.append(_in_scope(str(expression.get("scopeName")), expression, pod_spec))
    if any(answer is False for answer in answers):
        return False
    return None if any(answer is None for answer in answers) else True


def _room(
    quota: Mapping[str, Any],
    resource: str,
    key: str,
    hard: int,
    uid: str,
    census: Census,
    neighbours: Sequence[Neighbour],
) -> tuple[QuotaRoom, str]:
    metadata = quota.get("metadata") or {}
    name = str(metadata.get("name", ""))
    own_gpus = _counted(quota, census.pods_of(uid), resource)
    used = ((quota.get("status") or {}).get("used") or {}).get(key)
    if used is None:
        # Until its controller has counted, the API server admits no pod under the quota.
        note = f"quota {name} has not reported its usage yet, so nothing more is promised under it"
        return QuotaRoom(name, min(hard, own_gpus)), note
    taken = max(0, whole(used) - own_gpus)
    if metadata.get("namespace"):
        taken = min(taken, _counted(quota, census.in_namespace(str(metadata["namespace"])), resource) - own_gpus)
    room = max(0, hard - taken)
    if room < own_gpus:
        behind = (job for job in neighbours if job.behind)
        spare = (_counted(quota, census.pods_of(job.uid), resource) - job.minima_gpus for job in behind)
        room = min(own_gpus, room + sum(gpus for gpus in spare if gpus > 0))
    return QuotaRoom(name, room, _keeps(quota, resource, hard, uid, census, neighbours)), ""


def _keeps(
    quota: Mapping[str, Any],
    resource: str,
    hard: int,
    uid: str,
    census: Census,
    neighbours: Sequence[Neighbour],
) -> int | None:
    namespace = (quota.get("metadata") or {}).get("namespace")
    if not namespace:
        return None
    held = {job.uid: _counted(quota, census.pods_of(job.uid), resource) for job in neighbours}
    jobs = sum(held.values()) + _counted(quota, census.pods_of(uid), resource)
    foreign = max(0, _counted(quota, census.in_namespace(str(namespace)), resource) - jobs)
    # A job whose pods the quota does not cover holds nothing under it.
    covered = (job for job in neighbours if held[job.uid])
    others = sum(min(job.split_gpus, job.minima_gpus) if job.behind else job.split_gpus for job in covered)
    return max(0, hard - foreign - others)


def _counted(quota: Mapping[str, Any], pods: Iterable[Pod], resource: str) -> int:
    return sum(
        pod_gpus(pod, resource)
        for pod in pods
        if not is_terminal(pod) and covers(quota, pod.get("spec") or {}) is not False
    )


def _in_scope(scope: str, expression: Mapping[str, Any], pod_spec: Mapping[str, Any]) -> bool | None:
    match scope:
        case "Terminating":
            return pod_spec.get("activeDeadlineSeconds") is not None
        case "NotTerminating":
            return pod_spec.get("activeDeadlineSeconds") is None
        case "BestEffort":
            return _is_best_effort(pod_spec)
        case "NotBestEffort":
            return not _is_best_effort(pod_spec)
        case "PriorityClass":
            return _matches_class(expression, str(pod_spec.get("priorityClassName") or ""))
        case _:
            return None


def _matches_class(expression: Mapping[str, Any], priority_class: str) -> bool | None:
    values = expression.get("values") or ()
    match expression.get("operator"):
        case "In":
            return priority_class in values
        case "NotIn":
            return priority_class not in values
        case "Exists":
            return priority_class != ""
        case "DoesNotExist":
            return priority_class == ""
        case _:
            return None


def _is_best_effort(pod_spec: Mapping[str, Any]) -> bool:
    containers = [*(pod_spec.get("containers") or ()), *(pod_spec.get("initContainers") or ()), pod_spec]
    for container in containers:
        resources = container.get("resources") or {}
        for kind in ("requests", "limits"):
            if any(name in ("cpu", "memory") for name in resources.get(kind) or {}):
                return False
    return True
