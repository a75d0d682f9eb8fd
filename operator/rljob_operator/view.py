"""What the operator has seen of the cluster: kopf's indexes, read as plain collections.

The indexes are filled before the first handler runs and follow the watches afterwards, so a pass reads them without a request.
They may lag behind the API server by a moment. What must not rest on a lagging view (lifting a budget gate) reads
the API server itself; everything else is level-based and corrects itself at the next event.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from rljob_operator.census import Census
from rljob_operator.cluster import ClusterError, Json
from rljob_operator.fence import HELD_BY_ANOTHER, held_by_another
from rljob_operator.promises import Promises


class Index(Protocol):
    """The part of kopf's index that is used: a read-only mapping of keys to the values under it."""

    def values(self) -> Iterable[Iterable[Json]]:
        """The values under all keys."""

    def get(self, key: Any, default: Any = None, /) -> Any:
        """The values under a key."""


_EMPTY: Mapping[str, Any] = {}


@dataclass
class View:
    """The indexes, once kopf has handed them out."""

    pods: Any = field(default_factory=lambda: _EMPTY)
    """Pods (trimmed) by the uid of the RLJob that they belong to, empty string for pods of others."""
    nodes: Any = field(default_factory=lambda: _EMPTY)
    """Nodes by name."""
    quotas: Any = field(default_factory=lambda: _EMPTY)
    """ResourceQuotas by namespace."""
    jobs: Any = field(default_factory=lambda: _EMPTY)
    """RLJobs by uid."""
    autoscalers: Any = field(default_factory=lambda: _EMPTY)
    """HorizontalPodAutoscalers by namespace."""
    children: Any = field(default_factory=lambda: _EMPTY)
    """Deployments, StatefulSets, Services and ConfigMaps of the operator by (job uid, kind, name)."""

    token: str | None = None
    """The holding under which this process writes, None without leader election.

    What a pass reads of its own job through ``pods_of`` and ``child`` it may write back. So an object that carries the mark of another
    holding ends the pass with a conflict: either the view lags behind our own take-over, or we were deposed.
    """

    promises: Promises = field(default_factory=Promises)
    """What this process has written of jobs and the indexes do not show yet."""
    waiting: set[str] = field(default_factory=set)
    """Uids of the jobs that wait for GPUs or for their turn to plan: whom freed GPUs concern."""
    _changes: int | None = None
    _census: tuple[int, Census] | None = None

    def pods_changed(self) -> None:
        """Says that the pods are others than before; whoever fills the indexes calls it, or the pods are counted anew each time."""
        self._changes = (self._changes or 0) + 1

    def census(self) -> Census:
        """The count of all pods of the cluster: made once for all jobs for as long as no pod changes."""
        if self._changes is None:
            return Census(self.all_pods(), self._homes())
        if self._census is None or self._census[0] != self._changes:
            self._census = (self._changes, Census(self.all_pods(), self._homes()))
        return self._census[1]

    def _homes(self) -> dict[str, str]:
        """The namespace of each job, by uid."""
        jobs = (job["metadata"] for store in self.jobs.values() for job in store)
        return {str(meta["uid"]): str(meta.get("namespace", "")) for meta in jobs}

    def all_pods(self) -> list[Json]:
        """All pods of the cluster."""
        return [pod for store in self.pods.values() for pod in store]

    def pods_of(self, uid: str, namespace: str) -> list[Json]:
        """The pods of a job in its ``namespace``, by name.

        Labels are free to write: a pod elsewhere that carries the job's uid is none of its pods, whoever made it.
        """
        pods = (pod for pod in self.pods.get(uid, ()) if pod["metadata"]["namespace"] == namespace)
        return [self._ours("pod", pod) for pod in sorted(pods, key=lambda pod: str(pod["metadata"]["name"]))]

    def node(self, name: str) -> Json | None:
        """A node by its name, None if there is none."""
        return next(iter(self.nodes.get(name, ())), None)

    def all_nodes(self) -> list[Json]:
        """All nodes."""
        return [node for store in self.nodes.values() for node in store]

    def quotas_of(self, namespace: str) -> list[Json]:
        """The quotas of a namespace."""
        return list(self.quotas.get(namespace, ()))

    def autoscalers_of(self, namespace: str) -> list[Json]:
        """The HorizontalPodAutoscalers of a namespace."""
        return list(self.autoscalers.get(namespace, ()))

    def other_jobs(self, uid: str) -> list[Json]:
        """All RLJobs but one, as this process wrote them last."""
        others = (job for store in self.jobs.values() for job in store if job["metadata"]["uid"] != uid)
        return [self.promises.shown(job) for job in others]

    def child(self, uid: str, kind: str, name: str, namespace: str) -> Json | None:
        """A child of a job in its ``namespace``, None if it is not there (yet)."""
        labelled = self.children.get((uid, kind, name), ())
        found = next((each for each in labelled if each["metadata"]["namespace"] == namespace), None)
        return None if found is None else self._ours(kind, found)

    def _ours(self, kind: str, obj: Json) -> Json:
        if held_by_another(obj, self.token):
            words = f"{kind} {obj['metadata']['name']} carries the mark of another holding than {self.token}"
            raise ClusterError(409, HELD_BY_ANOTHER, words)
        return obj
