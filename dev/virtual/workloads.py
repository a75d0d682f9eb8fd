"""The controllers of kube-controller-manager that a job's children need: Deployments, ReplicaSets, StatefulSets, garbage collection.

Each acts a moment after what it watches has changed, as the real ones do, so that others can act in between. A ReplicaSet
replaces a pod as soon as its deletion is asked for, while the old one still holds its GPUs: that is what a budget has to
stand. On a scale-down it removes what is least worth first, in the documented order: without a node, not running, not
ready, cheaper to delete, ready for less long, younger.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any

from dev.virtual.store import KINDS, PLURALS, Json, Store

HASH = "pod-template-hash"
REVISION = "controller-revision-hash"

_RETRY_S = 2.0
"""How soon a controller tries again what was refused."""

_CONTROLLED = ("deployments", "replicasets", "statefulsets")


def is_ready(pod: Json) -> bool:
    """Whether the kubelet reports a pod as ready."""
    return condition(pod, "Ready") == "True"


def condition(obj: Json, kind: str) -> str | None:
    """The status of a condition, None if it is absent."""
    for entry in (obj.get("status") or {}).get("conditions") or ():
        if entry["type"] == kind:
            return str(entry["status"])
    return None


def with_condition(status: Json, kind: str, value: str, reason: str, message: str, since: str) -> Json:
    """A status with a condition set; its transition time moves when the value does."""
    others = [c for c in status.get("conditions") or () if c["type"] != kind]
    old = next((c for c in status.get("conditions") or () if c["type"] == kind), None)
    if old is not None and old["status"] == value:
        since = old["lastTransitionTime"]
    new = {"type": kind, "status": value, "reason": reason, "message": message, "lastTransitionTime": since}
    return {**status, "conditions": sorted([*others, new], key=lambda c: str(c["type"]))}


def controller_of(obj: Json) -> str | None:
    """The uid of the controlling owner."""
    for owner in obj["metadata"].get("ownerReferences") or ():
        if owner.get("controller"):
            return str(owner["uid"])
    return None


class Workloads:
    """The controllers, woken by the store's watch."""

    def __init__(self, store: Store, delay_s: Callable[[], float]) -> None:
        self._store = store
        self._delay_s = delay_s
        self._due: set[tuple[str, str, str]] = set()
        self._owned: dict[str, dict[str, tuple[str, str, str]]] = defaultdict(dict)
        self._alive: set[str] = set()
        self._place: dict[str, tuple[str, str, str]] = {}
        store.watch(self._seen)

    def owned(self, uid: str, plural: str) -> list[Json]:
        """The objects of a kind that an owner controls, in the order of their creation."""
        found = (self._store.get(*place) for place in self._owned.get(uid, {}).values() if place[0] == plural)
        return [obj for obj in found if obj is not None]

    def _seen(self, event: str, plural: str, obj: Json) -> None:
        meta = obj["metadata"]
        uid, place = meta["uid"], (plural, meta.get("namespace", ""), meta["name"])
        owners = meta.get("ownerReferences") or ()
        if event == "DELETED":
            self._alive.discard(uid)
            self._place.pop(uid, None)
            for owner in owners:
                self._owned[owner["uid"]].pop(uid, None)
            if uid in self._owned:
                self._store.clock.after(self._delay_s(), self._collect, uid)
        else:
            self._alive.add(uid)
            if plural in _CONTROLLED:
                self._place[uid] = place
            for owner in owners:
                self._owned[owner["uid"]][uid] = place
                if event == "ADDED" and owner["uid"] not in self._alive:
                    # Written by somebody who did not know yet that the owner is gone.
                    self._store.clock.after(self._delay_s(), self._collect, owner["uid"])
            if plural in _CONTROLLED:
                self._wake(place)
        for owner in owners:
            if owner["uid"] in self._place:
                self._wake(self._place[owner["uid"]])

    def _wake(self, place: tuple[str, str, str]) -> None:
        if place not in self._due:
            self._due.add(place)
            self._store.clock.after(self._delay_s(), self._sync, place)

    def _collect(self, owner: str) -> None:
        for plural, namespace, name in list(self._owned.pop(owner, {}).values()):
            if self._store.get(plural, namespace, name) is not None:
                self._store.delete(plural, namespace, name)

    def _sync(self, place: tuple[str, str, str]) -> None:
        self._due.discard(place)
        obj = self._store.get(*place)
        if obj is None or obj["metadata"].get("deletionTimestamp"):
            return
        {"deployments": self._deployment, "replicasets": self._replica_set, "statefulsets": self._stateful_set}[
            place[0]
        ](obj)

    # Deployments

    def _deployment(self, deployment: Json) -> None:
        uid, wanted = deployment["metadata"]["uid"], int(deployment["spec"].get("replicas", 1))
        digest = _digest(deployment["spec"]["template"])
        sets = self.owned(uid, "replicasets")
        new = next((s for s in sets if s["metadata"]["labels"][HASH] == digest), None)
        if new is None:
            meta = deployment["metadata"]
            if self._store.get("replicasets", meta["namespace"], f"{meta['name']}-{digest}") is not None:
                # That of a deployment of this name that is being collected.
                self._store.clock.after(_RETRY_S, self._wake, ("deployments", meta["namespace"], meta["name"]))
                return
            new = self._new_replica_set(deployment, digest)
            sets.append(new)
        olds = [s for s in sets if s is not new]
        sizes = {s["metadata"]["uid"]: int(s["spec"]["replicas"]) for s in sets}
        before = dict(sizes)
        self._roll(deployment, new, olds, sizes, wanted)
        for replica_set in sets:
            size = sizes[replica_set["metadata"]["uid"]]
            if size != before[replica_set["metadata"]["uid"]]:
                spec = {**replica_set["spec"], "replicas": size}
                self._store.replace("replicasets", {**replica_set, "spec": spec})
        pods = [pod for s in sets for pod in self._active(s)]
        self._report("deployments", deployment["metadata"], pods, len(self._active(new)))

    def _roll(self, deployment: Json, new: Json, olds: list[Json], sizes: dict[str, int], wanted: int) -> None:
        """The sizes of the ReplicaSets: the new one alone, or a step of a rolling update without surge."""
        me = new["metadata"]["uid"]
        surge, slack = _rolling(deployment["spec"].get("strategy") or {}, wanted)
        excess = sum(sizes.values()) - (wanted + surge)
        for replica_set in [*olds, new]:
            cut = max(0, min(excess, sizes[replica_set["metadata"]["uid"]]))
            sizes[replica_set["metadata"]["uid"]] -= cut
            excess -= cut
        sizes[me] = min(wanted, sizes[me] + max(0, wanted + surge - sum(sizes.values())))
        ready = {s["metadata"]["uid"]: sum(is_ready(p) for p in self._active(s)) for s in [*olds, new]}
        # Old pods that are not ready cost nothing; of the ready ones as many as may be missing.
        spare = sum(sizes.values()) - (wanted - slack) - (sizes[me] - min(sizes[me], ready[me]))
        for replica_set in olds:
            uid = replica_set["metadata"]["uid"]
            cut = max(0, min(spare, sizes[uid]))
            sizes[uid] -= cut
            spare -= cut

    def _new_replica_set(self, deployment: Json, digest: str) -> Json:
        meta, template = deployment["metadata"], deployment["spec"]["template"]
        labels = {**template["metadata"]["labels"], HASH: digest}
        return self._store.create(
            "replicasets",
            {
                "metadata": {
                    "namespace": meta["namespace"],
                    "name": f"{meta['name']}-{digest}",
                    "labels": labels,
                    "ownerReferences": [_owner("deployments", deployment)],
                },
                "spec": {
                    "replicas": 0,
                    "selector": {"matchLabels": {**deployment["spec"]["selector"]["matchLabels"], HASH: digest}},
                    "template": {**template, "metadata": {**template["metadata"], "labels": labels}},
                },
            },
        )

    # ReplicaSets

    def _active(self, replica_set: Json) -> list[Json]:
        return [pod for pod in self.owned(replica_set["metadata"]["uid"], "pods") if _is_active(pod)]

    def _replica_set(self, replica_set: Json) -> None:
        active = self._active(replica_set)
        missing = int(replica_set["spec"]["replicas"]) - len(active)
        for _ in range(missing):
            self._new_pod("replicasets", replica_set, {"generateName": f"{replica_set['metadata']['name']}-"}, {})
        for pod in sorted(active, key=_worth)[: max(0, -missing)]:
            self._store.delete("pods", pod["metadata"]["namespace"], pod["metadata"]["name"])
        active = self._active(replica_set)
        self._report("replicasets", replica_set["metadata"], active, len(active))

    def _new_pod(self, plural: str, owner: Json, name: Json, labels: dict[str, str]) -> None:
        template = owner["spec"]["template"]
        meta = template.get("metadata") or {}
        gated = bool(template["spec"].get("schedulingGates"))
        scheduled = [
            {
                "type": "PodScheduled",
                "status": "False",
                "reason": "SchedulingGated",
                "message": "",
                "lastTransitionTime": None,
            }
        ]
        self._store.create(
            "pods",
            {
                "metadata": {
                    **name,
                    "namespace": owner["metadata"]["namespace"],
                    "labels": {**(meta.get("labels") or {}), **labels},
                    "annotations": dict(meta.get("annotations") or {}),
                    "ownerReferences": [_owner(plural, owner)],
                },
                "spec": template["spec"],
                "status": {"phase": "Pending", "conditions": scheduled if gated else []},
            },
        )

    # StatefulSets, with podManagementPolicy Parallel

    def _stateful_set(self, stateful_set: Json) -> None:
        meta, digest = stateful_set["metadata"], _digest(stateful_set["spec"]["template"])
        wanted = int(stateful_set["spec"].get("replicas", 1))
        pods = {
            int(p["metadata"]["labels"]["apps.kubernetes.io/pod-index"]): p for p in self.owned(meta["uid"], "pods")
        }
        for index in sorted(pods, reverse=True):
            pod = pods[index]
            if not pod["metadata"].get("deletionTimestamp") and (index >= wanted or not _is_active(pod)):
                self._store.delete("pods", meta["namespace"], pod["metadata"]["name"])
        for index in range(wanted):
            name = f"{meta['name']}-{index}"
            # A name is free only once the pod that had it is gone; the end of one that belonged to another wakes nobody here.
            there = self._store.get("pods", meta["namespace"], name)
            if there is not None and controller_of(there) != meta["uid"]:
                self._store.clock.after(_RETRY_S, self._wake, ("statefulsets", meta["namespace"], meta["name"]))
            if there is None:
                labels = {
                    "apps.kubernetes.io/pod-index": str(index),
                    "statefulset.kubernetes.io/pod-name": name,
                    REVISION: f"{meta['name']}-{digest}",
                }
                self._new_pod("statefulsets", stateful_set, {"name": name}, labels)
        self._roll_stateful_set(stateful_set, f"{meta['name']}-{digest}", wanted)
        active = [p for p in self.owned(meta["uid"], "pods") if _is_active(p)]
        self._report("statefulsets", meta, active, len(active))

    def _roll_stateful_set(self, stateful_set: Json, revision: str, wanted: int) -> None:
        """One pod at a time from the highest ordinal; one of the new revision that is not ready holds up the rest."""
        meta = stateful_set["metadata"]
        for index in reversed(range(wanted)):
            pod = self._store.get("pods", meta["namespace"], f"{meta['name']}-{index}")
            if pod is None or pod["metadata"].get("deletionTimestamp"):
                return
            if pod["metadata"]["labels"].get(REVISION) != revision:
                self._store.delete("pods", meta["namespace"], pod["metadata"]["name"])
                return
            if not is_ready(pod):
                return

    def _report(self, plural: str, meta: Json, active: Iterable[Json], updated: int) -> None:
        obj = self._store.get(plural, meta["namespace"], meta["name"])
        if obj is None:
            return
        pods = list(active)
        ready = sum(is_ready(pod) for pod in pods)
        status = {
            **(obj.get("status") or {}),
            "observedGeneration": obj["metadata"]["generation"],
            "replicas": len(pods),
            "readyReplicas": ready,
            "availableReplicas": ready,
            "updatedReplicas": updated,
        }
        self._store.replace(plural, {**obj, "status": status})


def _is_active(pod: Json) -> bool:
    ended = (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed")
    return not ended and not pod["metadata"].get("deletionTimestamp")


def _worth(pod: Json) -> tuple[Any, ...]:
    """The order in which a ReplicaSet gives up pods, least worth first."""
    meta, status = pod["metadata"], pod.get("status") or {}
    cost = (meta.get("annotations") or {}).get("controller.kubernetes.io/pod-deletion-cost", "0")
    since = next((c["lastTransitionTime"] for c in status.get("conditions") or () if c["type"] == "Ready"), None)
    # Times as texts compare like times; what is younger goes first, so each character is turned round.
    return (
        bool(pod["spec"].get("nodeName")),
        status.get("phase") == "Running",
        is_ready(pod),
        int(cost),
        _later_first(since if is_ready(pod) else None),
        _later_first(meta["creationTimestamp"]),
        meta["name"],
    )


def _later_first(text: str | None) -> tuple[int, ...]:
    return tuple(-ord(character) for character in text or "")


def _rolling(strategy: Json, wanted: int) -> tuple[int, int]:
    """Surge and slack of a rolling update in pods; one pod may be missing where both come out as 0."""
    rolling = strategy.get("rollingUpdate") or {}

    def pods(value: Any, up: bool) -> int:
        if isinstance(value, str) and value.endswith("%"):
            share = int(value[:-1]) * wanted / 100
            return math.ceil(share) if up else math.floor(share)
        return int(value)

    surge = pods(rolling.get("maxSurge", "25%"), True)
    slack = pods(rolling.get("maxUnavailable", "25%"), False)
    return surge, slack if surge or slack else 1


def _owner(plural: str, obj: Json) -> Json:
    api_version, kind = KINDS[plural]
    assert PLURALS[kind] == plural
    return {
        "apiVersion": api_version,
        "kind": kind,
        "name": obj["metadata"]["name"],
        "uid": obj["metadata"]["uid"],
        "controller": True,
        "blockOwnerDeletion": True,
    }


def _digest(template: Json) -> str:
    return hashlib.sha256(json.dumps(template, sort_keys=True).encode()).hexdigest()[:10]
