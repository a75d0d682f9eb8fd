"""All pods of the cluster, counted once: who holds how many GPUs of which resource on which node, and who waits.

A pass that plans asks this of every pod of the cluster, and hundreds of jobs plan on the same pods. So the count is a value of its own:
made from the pods in one go, shared by all passes until a pod changes (``view.View`` sees to that), and read by node and by job.

A request that can't be read is kept as the error that it is: it takes its node out of every plan and never counts as zero.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from rljob_operator.gate import UID_LABEL, Pod, is_gated, is_terminal, pod_gpus, role_of
from rljob_operator.quantity import QuantityError

_NOBODY: Mapping[str, Share] = {}


@dataclass
class Share:
    """What the pods of one job (or those of no job, under the empty uid) hold on one node."""

    gpus: dict[str, int] = field(default_factory=dict)
    """GPUs by extended resource."""
    roles: set[str] = field(default_factory=set)
    """Roles of the pods."""
    unreadable: dict[str, str] = field(default_factory=dict)
    """Why a request can't be counted, by extended resource."""

    def of(self, resource: str) -> int:
        """GPUs of one resource; raises QuantityError if a pod's request for it can't be read."""
        if resource in self.unreadable:
            raise QuantityError(self.unreadable[resource])
        return self.gpus.get(resource, 0)


@dataclass(frozen=True)
class Waiting:
    """A pod without a node that nobody holds back."""

    uid: str
    """Uid of its RLJob, empty for pods of others."""
    gpus: Mapping[str, int]
    """GPUs that it asks for, by extended resource; what can't be read is left out."""

    def asks(self, resources: Iterable[str]) -> int:
        """GPUs of these resources."""
        return sum(self.gpus.get(resource, 0) for resource in resources)


class Census:
    """The count of a number of pods."""

    def __init__(self, pods: Iterable[Pod], homes: Mapping[str, str] | None = None) -> None:
        """Counts ``pods``, which must not change afterwards.

        ``homes``: the namespace of each job by its uid. A pod elsewhere that carries a job's uid in its labels is a pod of others; of a job
        that is not among them, the labels are believed.
        """
        self._homes = homes or {}
        self._nodes: dict[str, dict[str, Share]] = {}
        self._bound: dict[tuple[str, str], dict[str, int]] = {}
        self._pods: dict[str, list[Pod]] = {}
        self._namespaces: dict[str, list[Pod]] = {}
        self._with_claims: dict[str, dict[str, int]] = {}
        self.waiting: list[Waiting] = []
        """Pods that wait for the scheduler."""
        for pod in pods:
            self._count(pod)

    @classmethod
    def of(cls, pods: Iterable[Pod] | Census) -> Census:
        """The count of ``pods``, which may be one already."""
        return pods if isinstance(pods, Census) else cls(pods)

    def on_node(self, node: str) -> Mapping[str, Share]:
        """What is held on a node, by the uid of the job."""
        return self._nodes.get(node, _NOBODY)

    def bound_gpus(self, uid: str, role: str, resource: str) -> int:
        """GPUs of the pods of a job's role that have a node and have not ended."""
        return self._bound.get((uid, role), {}).get(resource, 0)

    def pods_of(self, uid: str) -> Sequence[Pod]:
        """The pods of a job; of no job for the empty uid."""
        return self._pods.get(uid, ())

    def in_namespace(self, namespace: str) -> Sequence[Pod]:
        """The pods of a namespace."""
        return self._namespaces.get(namespace, ())

    def with_claims(self, node: str, without: str) -> int:
        """Pods on a node that use resource claims, those of the job ``without`` left out."""
        return sum(count for uid, count in self._with_claims.get(node, {}).items() if uid != without)

    def _count(self, pod: Pod) -> None:
        meta, spec = pod.get("metadata") or {}, pod.get("spec") or {}
        uid = str((meta.get("labels") or {}).get(UID_LABEL, ""))
        if self._homes.get(uid, meta.get("namespace")) != meta.get("namespace"):
            uid = ""
        self._pods.setdefault(uid, []).append(pod)
        self._namespaces.setdefault(str(meta.get("namespace", "")), []).append(pod)
        if is_terminal(pod):
            return
        gpus, unreadable = _requests(pod, spec)
        node = spec.get("nodeName")
        if not node:
            if gpus and not is_gated(pod) and not spec.get("schedulingGates"):
                self.waiting.append(Waiting(uid, gpus))
            return
        if spec.get("resourceClaims"):
            here = self._with_claims.setdefault(str(node), {})
            here[uid] = here.get(uid, 0) + 1
        if not gpus and not unreadable:
            return
        role = role_of(pod)
        share = self._nodes.setdefault(str(node), {}).setdefault(uid, Share())
        share.roles.add(role)
        share.unreadable.update(unreadable)
        bound = self._bound.setdefault((uid, role), {}) if uid else {}
        for resource, count in gpus.items():
            share.gpus[resource] = share.gpus.get(resource, 0) + count
            bound[resource] = bound.get(resource, 0) + count


_Requests = tuple[Mapping[str, int], Mapping[str, str]]

_MOST_REQUESTS = 8192
_known: dict[tuple[int, int, int], tuple[object, _Requests]] = {}
"""Requests of the pods of a workload, by the parts of the spec that say them: ``kept`` shares these among all pods that have them equal. The
parts are held beside the answer, so that no other object can take their identity."""


def _requests(pod: Pod, spec: Mapping[str, object]) -> _Requests:
    """What a pod asks of each extended resource, and why a request can't be read."""
    parts = (spec.get("containers"), spec.get("initContainers"), spec.get("overhead"))
    key = (id(parts[0]), id(parts[1]), id(parts[2]))
    found = _known.get(key)
    if found is None:
        if len(_known) >= _MOST_REQUESTS:
            _known.clear()
        found = _known[key] = (parts, _read_requests(pod, spec))
    return found[1]


def _read_requests(pod: Pod, spec: Mapping[str, object]) -> _Requests:
    gpus: dict[str, int] = {}
    unreadable: dict[str, str] = {}
    for resource in _extended(spec):
        try:
            count = pod_gpus(pod, resource)
        except QuantityError as error:
            unreadable[resource] = str(error)
        else:
            if count:
                gpus[resource] = count
    return gpus, unreadable


def _extended(spec: Mapping[str, object]) -> Collection[str]:
    """Names of the extended resources that a pod spec asks for: all but the core's own have a domain."""
    found: set[str] = set()
    containers = [*_listed(spec.get("containers")), *_listed(spec.get("initContainers"))]
    for container in containers:
        resources = container.get("resources") or {}
        for kind in ("requests", "limits"):
            found.update(name for name in resources.get(kind) or () if "/" in name)
    overhead = spec.get("overhead")
    if isinstance(overhead, Mapping):
        found.update(name for name in overhead if "/" in name)
    return found


def _listed(value: object) -> Iterable[Pod]:
    return value if isinstance(value, (list, tuple)) else ()
