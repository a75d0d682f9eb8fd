"""The watches of what jobs share: pods, nodes and quotas, and whom their changes wake.

A cluster changes all the time, and a pass is not free, so an event wakes only those whom it concerns: a pod its own job, a quota the jobs of
its namespace, and GPUs that have come free (a pod that is gone or has ended, a node that is new or ready again) the jobs that wait for
some. Those are woken once for a burst of events: a job of fifty pods that ends makes one wake, not fifty.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import kopf

from rljob_operator import kept
from rljob_operator.cluster import PODS, Json
from rljob_operator.eligibility import is_node_ready
from rljob_operator.gate import UID_LABEL, is_terminal
from rljob_operator.reflector import Reflector, Source, Store
from rljob_operator.view import View


class Wakes(Protocol):
    """Starts passes."""

    @property
    def view(self) -> View:
        """What passes look at."""

    def wake(self, uid: str) -> None:
        """Wakes one job."""

    def wake_namespace(self, namespace: str) -> None:
        """Wakes the jobs of a namespace."""

    def wake_waiting(self) -> None:
        """Wakes the jobs that wait for GPUs, soon and once for a burst."""


def watch(found: kopf.OperatorRegistry, wakes: Wakes) -> None:
    """Registers the indexes ``nodes`` and ``quotas`` and their events; pods are followed by ``Pods``."""
    room: dict[str, object] = {}

    @kopf.index("v1", "nodes", id="nodes", registry=found)
    def nodes(body: kopf.Body, name: str, **_: Any) -> dict[str, Json]:
        return {name: kept.node(body)}

    @kopf.index("v1", "resourcequotas", id="quotas", registry=found)
    def quotas(body: kopf.Body, namespace: str | None, **_: Any) -> dict[str, Json]:
        return {namespace or "": kept.whole(body)}

    @kopf.on.event("v1", "nodes", registry=found)
    async def on_node(body: kopf.Body, name: str, **event: Any) -> None:
        offers = None if event["type"] == "DELETED" else _offers(body)
        if offers != room.get(name):
            room[name] = offers
            if offers is not None:
                wakes.wake_waiting()

    @kopf.on.event("v1", "resourcequotas", registry=found)
    async def on_quota(namespace: str | None, **_: Any) -> None:
        wakes.wake_namespace(namespace or "")


class Pods:
    """All pods, followed until it is stopped."""

    def __init__(self, source: Source, namespaces: Sequence[str], wakes: Wakes) -> None:
        """Fills ``wakes.view.pods`` with the pods of the namespaces, or of all if there are none."""
        self._wakes = wakes
        store = Store(_uid, kept.pod)
        wakes.view.pods = store
        self._reflectors = [Reflector(source, PODS, each, store, self._seen) for each in namespaces or (None,)]
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Begins to follow, and returns once all pods are known."""
        self._tasks = [asyncio.create_task(each.run(), name="pods") for each in self._reflectors]
        await asyncio.gather(*(each.synced.wait() for each in self._reflectors))

    async def stop(self) -> None:
        """Ends it."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def lost(self) -> bool:
        """Whether one of them has ended although nobody stopped it: then no pass sees what happens any more."""
        return any(task.done() for task in self._tasks)

    def _seen(self, kind: str, pod: Json) -> None:
        self._wakes.view.pods_changed()
        uid = _uid(pod)
        if uid:
            self._wakes.wake(uid)
        if (kind == "DELETED" or is_terminal(pod)) and _holds(pod):
            self._wakes.wake_waiting()


def _uid(pod: Mapping[str, Any]) -> str:
    return str((pod["metadata"].get("labels") or {}).get(UID_LABEL, ""))


def _holds(body: Mapping[str, Any]) -> bool:
    """Whether a pod had a node and an extended resource, such as GPUs, there."""
    spec = body.get("spec") or {}
    if not spec.get("nodeName"):
        return False
    containers = [*(spec.get("containers") or ()), *(spec.get("initContainers") or ())]
    return any(
        "/" in name
        for container in containers
        for kind in ("requests", "limits")
        for name in (container.get("resources") or {}).get(kind) or ()
    )


def _offers(body: Mapping[str, Any]) -> object:
    """What of a node decides how many pods with GPUs it takes."""
    spec, status = body.get("spec") or {}, body.get("status") or {}
    extended = tuple(sorted((k, str(v)) for k, v in (status.get("allocatable") or {}).items() if "/" in k))
    return extended, bool(spec.get("unschedulable")), str(spec.get("taints") or ""), is_node_ready(body)
