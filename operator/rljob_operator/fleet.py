"""Reads a job's pods and workloads: how many are there, bound, ready, gated, and what is wrong with the rest. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from rljob_operator import kept, queueing
from rljob_operator.gate import has_ended, is_gated, is_ready, is_terminating, role_of
from rljob_operator.rebalance import PodView
from rljob_operator.status import Fleet

Json = Mapping[str, Any]

_BROKEN_REASONS = frozenset(
    {
        "CrashLoopBackOff",
        "ImagePullBackOff",
        "ErrImagePull",
        "InvalidImageName",
        "CreateContainerConfigError",
        "RunContainerError",
    }
)


def condition_of(obj: Json, kind: str) -> Mapping[str, Any] | None:
    """A condition of an object by type."""
    for condition in obj.get("status", {}).get("conditions") or ():
        if condition.get("type") == kind:
            return dict(condition)
    return None


def view(pod: Json) -> PodView:
    """What a move needs to know of a pod."""
    meta = pod["metadata"]
    created = datetime.fromisoformat(meta["creationTimestamp"].replace("Z", "+00:00")).timestamp()
    index = meta.get("labels", {}).get("apps.kubernetes.io/pod-index")
    return PodView(
        name=meta["name"],
        role=role_of(pod),
        ready=is_ready(pod),
        terminating=is_terminating(pod),
        created_s=created,
        ordinal=int(index) if index is not None and str(index).isdigit() else None,
        node=pod["spec"].get("nodeName"),
        pool=meta.get("labels", {}).get("rljob.dev/pool"),
        waits_at=queueing.waits_at(pod),
    )


def views(pods: Iterable[Json]) -> tuple[PodView, ...]:
    """The pods that exist for a move: those that have ended hold no GPUs and do not count."""
    return tuple(view(pod) for pod in pods if not has_ended(pod))


def fleet(role: str, wanted: int, pods: Iterable[Json], workload: Json | None) -> Fleet:
    """The state of one role's pods; terminating ones count as existing, never as ready."""
    mine = [pod for pod in pods if role_of(pod) == role and not has_ended(pod)]
    staying = [pod for pod in mine if not is_terminating(pod)]
    return Fleet(
        wanted=wanted,
        existing=len(mine),
        bound=sum(pod["spec"].get("nodeName") is not None for pod in staying),
        ready=sum(is_ready(pod) for pod in staying),
        gated=sum(is_gated(pod) for pod in staying),
        unschedulable=_unschedulable(staying),
        refused=_refused(workload),
        leaving=tuple(
            str(pod["metadata"]["name"])
            for pod in mine
            if is_terminating(pod) and (pod["spec"].get("nodeName") or not is_gated(pod))
        ),
        broken=tuple(_broken(staying)),
        queued=tuple(gate for pod in staying if (gate := queueing.waits_at(pod)) is not None),
    )


def _unschedulable(pods: Iterable[Json]) -> str | None:
    for pod in pods:
        condition = condition_of(pod, "PodScheduled")
        if condition is not None and condition.get("status") == "False" and condition.get("reason") == "Unschedulable":
            return f"{pod['metadata']['name']}: {condition.get('message', 'the scheduler gives no reason')}"
    return None


def _refused(workload: Json | None) -> str | None:
    if workload is None:
        return None
    condition = condition_of(workload, "ReplicaFailure")
    if condition is None or condition.get("status") != "True":
        return None
    return str(condition.get("message", condition.get("reason", "no reason given")))


def _broken(pods: Iterable[Json]) -> Iterable[str]:
    for pod in pods:
        for container in pod.get("status", {}).get("containerStatuses") or ():
            reason = (container.get("state", {}).get("waiting") or {}).get("reason")
            if reason in _BROKEN_REASONS:
                yield f"{pod['metadata']['name']} is in {reason}"
                break


def trimmed(pod: Json) -> dict[str, Any]:
    """What the operator keeps of a pod, see ``kept``."""
    return kept.pod(pod)
