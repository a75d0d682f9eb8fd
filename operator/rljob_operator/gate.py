"""The budget gate: which pods hold GPUs, and which waiting ones may start.

Every pod of a job is created with the scheduling gate ``rljob.dev/budget``, since a ReplicaSet replaces an evicted pod while
the old one still holds its GPUs: counting replicas can't keep a budget, only counting pods can. A pod holds its GPUs from the
moment when its gate is lifted (the scheduler may bind it at any time after) until it is terminal or gone, its whole grace
period included. The gate is lifted only while the sum stays within the budget; with the operator down, pods wait. Safe first.

All functions take pods as the API server returns them and decide on nothing else, so that a restart changes nothing.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from rljob_operator.quantity import whole

GATE = "rljob.dev/budget"
"""The scheduling gate that every pod of a job is created with."""

NAME_LABEL = "rljob.dev/name"
"""Label with the name of the RLJob."""

MANAGED_BY_LABEL = "app.kubernetes.io/managed-by"
"""Label that says whose an object is; the value is ``rljob-operator``."""

ROLE_LABEL = "rljob.dev/role"
"""Label with the role of a pod, ``sampler`` or ``trainer``."""

UID_LABEL = "rljob.dev/uid"
"""Label with the uid of the RLJob: names come again, uids don't."""

SAMPLER = "sampler"
"""The role of pods that generate rollouts."""

TRAINER = "trainer"
"""The role of pods that consume samples."""

Pod = Mapping[str, Any]
"""A pod as the API server returns it."""


def pod_gpus(pod: Pod, gpu_resource: str | Collection[str]) -> int:
    """GPUs that the scheduler sets aside for a pod (or for a pod template), in devices.

    ``gpu_resource`` is the extended resource that counts GPUs, or several where the roles use different ones; then their
    sum counts. As the scheduler does: containers run together and add up; init containers run one after the other, so the
    largest counts, each beside the sidecars (init containers that restart) started before it, which add up with the
    containers too. A request that is absent is the limit. Raises QuantityError on a request that is no whole number.
    """
    resources = (gpu_resource,) if isinstance(gpu_resource, str) else tuple(gpu_resource)
    return sum(_pod_request(pod.get("spec") or {}, resource) for resource in resources)


def is_gated(pod: Pod) -> bool:
    """Whether the budget gate still holds the pod back (other gates don't count: they are not ours to lift)."""
    return any(gate.get("name") == GATE for gate in (pod.get("spec") or {}).get("schedulingGates") or ())


def is_terminal(pod: Pod) -> bool:
    """Whether the pod has ended (Succeeded or Failed): the scheduler has taken its GPUs back."""
    return (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed")


def is_terminating(pod: Pod) -> bool:
    """Whether the pod's deletion has been asked for."""
    return bool((pod.get("metadata") or {}).get("deletionTimestamp"))


def is_ready(pod: Pod) -> bool:
    """Whether the pod's Ready condition is True."""
    return _ready(pod) is not None


def ready_at(pod: Pod) -> str | None:
    """Since when the pod is ready, as its condition says; None if it isn't, or that isn't said."""
    found = (_ready(pod) or {}).get("lastTransitionTime")
    return None if found is None else str(found)


def _ready(pod: Pod) -> Mapping[str, Any] | None:
    conditions = (pod.get("status") or {}).get("conditions") or ()
    return next((c for c in conditions if c.get("type") == "Ready" and c.get("status") == "True"), None)


def is_held(pod: Pod) -> bool:
    """Whether the pod holds GPUs: bound or without our gate, and not ended.

    An ungated pod that is not bound yet counts, since nothing keeps the scheduler from binding it the next moment. A
    terminating pod counts until it is gone, also when its phase says that it has ended: whoever counts pods that exist must
    never see more than the budget. One that ended by itself (evicted, say) has given its GPUs back and may lie about for ever.
    """
    bound = bool((pod.get("spec") or {}).get("nodeName"))
    return (bound or not is_gated(pod)) and not has_ended(pod)


def has_ended(pod: Pod) -> bool:
    """Whether the pod is terminal and nobody is deleting it: an object without GPUs."""
    return is_terminal(pod) and not is_terminating(pod)


def role_of(pod: Pod) -> str:
    """The pod's role by its label, the empty string if it has none."""
    return str(((pod.get("metadata") or {}).get("labels") or {}).get(ROLE_LABEL, ""))


def name_of(pod: Pod) -> str:
    """The pod's name."""
    return str((pod.get("metadata") or {}).get("name", ""))


def uid_of(pod: Pod) -> str:
    """The pod's uid, the empty string if it has none."""
    return str((pod.get("metadata") or {}).get("uid", ""))


def held_gpus(pods: Iterable[Pod], gpu_resource: str | Collection[str]) -> int:
    """GPUs that the pods hold together, in devices: what the budget is compared with."""
    return sum(pod_gpus(pod, gpu_resource) for pod in pods if is_held(pod))


def committed_gpus(pods: Iterable[Pod], gpu_resource: str | Collection[str], granted: Collection[str]) -> int:
    """GPUs that the pods hold or may hold at any moment, since the lift of their gates has been granted (by pod uid)."""
    return sum(pod_gpus(pod, gpu_resource) for pod in pods if is_held(pod) or _is_promised(pod, granted))


def pods_to_lift(
    pods: Iterable[Pod],
    *,
    budget: int,
    gpu_resource: str | Collection[str],
    wanted: Mapping[str, int],
    granted: Collection[str] = (),
) -> tuple[str, ...]:
    """Names of the gated pods of one job whose gates may be lifted now, in the order in which to lift them.

    ``pods`` are all pods of the job, ``budget`` its GPUs, ``wanted`` the pods of each role that may live; a role that is
    absent wants none. After lifting all of them, the GPUs held stay within the budget, and no role has more live pods
    (held, not terminating) than wanted. Gated pods that are terminating or terminal are left alone. ``granted`` are the uids of
    pods whose lift is decided already, by whomever: they count as held and are not named again.

    Trainers go first, then samplers, then other roles: a trainer that lacks one of its pods usually can't run at all, while
    each sampler is useful alone. Within a role the oldest go first, and of the same second the lowest ordinal, so that a
    StatefulSet fills from 0. A pod that does not fit yet (its GPUs are still held by terminating pods) is passed over
    rather than waited for: what narrower pods take meanwhile is within ``wanted``, and a split fits the budget as a
    whole, so once the terminating pods are gone there is room for the wide one. Nobody starves.
    """
    pods = tuple(pods)
    room = budget - committed_gpus(pods, gpu_resource, granted)
    live: dict[str, int] = {}
    for pod in pods:
        if (is_held(pod) or _is_promised(pod, granted)) and not is_terminating(pod):
            live[role_of(pod)] = live.get(role_of(pod), 0) + 1
    waiting = [
        p
        for p in pods
        if is_gated(p) and not is_held(p) and not is_terminating(p) and not is_terminal(p) and uid_of(p) not in granted
    ]
    lifted = []
    for pod in sorted(waiting, key=_lift_order):
        role, gpus = role_of(pod), pod_gpus(pod, gpu_resource)
        if gpus <= room and live.get(role, 0) < wanted.get(role, 0):
            room -= gpus
            live[role] = live.get(role, 0) + 1
            lifted.append(name_of(pod))
    return tuple(lifted)


def lift_patch(
    pod: Pod, *, selector: Mapping[str, str] | None = None, labels: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """The JSON merge patch (``application/merge-patch+json``) that takes our gate off a pod, and only ours.

    It carries the pod's uid and resourceVersion, so the API server answers 409 if the pod has changed since it was read: a pod that was
    made anew under the same name is not lifted by an old decision. It does not by itself keep two operators from spending the same
    room on two different pods; that is why a lift is first granted in the job's status (``unlifted_grants``).

    ``selector`` narrows the nodes that the pod may run on, which only a pod that is still gated allows; ``labels`` are added.
    """
    metadata = pod["metadata"]
    gates = (pod.get("spec") or {}).get("schedulingGates") or ()
    patch: dict[str, Any] = {
        "metadata": {"uid": metadata["uid"], "resourceVersion": metadata["resourceVersion"]},
        "spec": {"schedulingGates": [dict(gate) for gate in gates if gate.get("name") != GATE]},
    }
    if selector:
        patch["spec"]["nodeSelector"] = dict(selector)
    if labels:
        patch["metadata"]["labels"] = dict(labels)
    return patch


def unlifted_grants(pods: Iterable[Pod], granted: Iterable[str]) -> tuple[str, ...]:
    """Of the uids ``granted``, those whose pods are there and still gated.

    A grant is written into the job's status, under the resourceVersion that it was decided on, before a gate is lifted by it. Of two
    who decide at once one fails and reads again, and whoever reads a status sees every lift that may still be under way. For that a
    grant is never taken back while its pod is there and gated: somebody may be lifting it at this moment. ``pods`` must have been read
    from the API server after the status.
    """
    gated = {uid_of(pod) for pod in pods if is_gated(pod)}
    return tuple(uid for uid in granted if uid in gated)


def _is_promised(pod: Pod, granted: Collection[str]) -> bool:
    return not is_held(pod) and not has_ended(pod) and uid_of(pod) in granted


def _lift_order(pod: Pod) -> tuple[int, str, tuple[str | int, ...]]:
    rank = {TRAINER: 0, SAMPLER: 1}.get(role_of(pod), 2)
    created = str((pod.get("metadata") or {}).get("creationTimestamp", ""))
    return rank, created, natural(name_of(pod))


def natural(name: str) -> tuple[str | int, ...]:
    """A sort key under which ``trainers-10`` comes after ``trainers-2``: texts and numbers alternate, text first."""
    return tuple(int(part) if i % 2 else part for i, part in enumerate(re.split(r"([0-9]+)", name)))


def _pod_request(spec: Mapping[str, Any], resource: str) -> int:
    together = sum(_container_request(c, resource) for c in spec.get("containers") or ())
    sidecars = 0
    largest_init = 0
    for container in spec.get("initContainers") or ():
        own = _container_request(container, resource)
        if container.get("restartPolicy") == "Always":
            sidecars += own
            largest_init = max(largest_init, sidecars)
        else:
            largest_init = max(largest_init, sidecars + own)
    overhead = (spec.get("overhead") or {}).get(resource)
    return max(together + sidecars, largest_init) + (0 if overhead is None else whole(overhead))


def _container_request(container: Mapping[str, Any], resource: str) -> int:
    resources = container.get("resources") or {}
    for kind in ("requests", "limits"):
        value = (resources.get(kind) or {}).get(resource)
        if value is not None:
            return whole(value)
    return 0
