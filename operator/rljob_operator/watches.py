"""The watches of what jobs share: pods, nodes and quotas, as indexes, and whom their changes wake.

A cluster changes all the time, and a pass is not free, so an event wakes only those whom it concerns: a pod its own job, a quota the jobs of
its namespace, and GPUs that have come free (a pod that is gone or has ended, a node that is new or ready again) the jobs that wait for
some. Those are woken once for a burst of events: a job of fifty pods that ends makes one wake, not fifty.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import kopf

from rljob_operator import kept
from rljob_operator.cluster import Json
from rljob_operator.eligibility import is_node_ready
from rljob_operator.gate import UID_LABEL, is_terminal
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
    """Registers the indexes ``pods``, ``nodes`` and ``quotas`` and the events."""
    room: dict[str, object] = {}

    @kopf.index("v1", "pods", id="pods", registry=found)
    def pods(body: kopf.Body, **_: Any) -> dict[str, Json]:
        wakes.view.pods_changed()
        return {(body["metadata"].get("labels") or {}).get(UID_LABEL, ""): kept.pod(body)}

    @kopf.index("v1", "nodes", id="nodes", registry=found)
    def nodes(body: kopf.Body, name: str, **_: Any) -> dict[str, Json]:
        return {name: kept.node(body)}

    @kopf.index("v1", "resourcequotas", id="quotas", registry=found)
    def quotas(body: kopf.Body, namespace: str | None, **_: Any) -> dict[str, Json]:
        return {namespace or "": kept.whole(body)}

    @kopf.on.event("v1", "pods", registry=found)
    async def on_pod(body: kopf.Body, labels: Mapping[str, str], **event: Any) -> None:
        if event["type"] == "DELETED":
            # The index forgets it without asking anybody.
            wakes.view.pods_changed()
        uid = labels.get(UID_LABEL)
        if uid is not None:
            wakes.wake(uid)
        if (event["type"] == "DELETED" or is_terminal(body)) and _holds(body):
            wakes.wake_waiting()

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
