"""Nodes, the scheduler and the life of a pod: bound, started, ready, asked to go, gone; evicted, broken, stuck, or on a lost node.

A pod on a node that is asked to go stays until its containers have ended, at the latest after its grace period; on a node
that does not answer it stays for as long as that lasts. A pod without a node goes at once, and so does one that has ended.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from dev.virtual.store import Json, Store, rfc3339
from dev.virtual.workloads import with_condition

UNREACHABLE = "node.kubernetes.io/unreachable"

EVICT_AFTER_S = 300.0
"""How long pods tolerate a node that does not answer: what admission writes into every pod."""

FORGET_AFTER_S = 40.0
"""How long after a node's deletion its pods are removed by the garbage collector of pods."""


@dataclass(frozen=True)
class Pace:
    """How long things take, in seconds; each is asked anew for every pod."""

    schedule_s: Callable[[], float] = lambda: 0.05
    start_s: Callable[[Json], float] = lambda _pod: 5.0
    """From bound to ready."""
    stop_s: Callable[[Json], float] = lambda _pod: 2.0
    """From the deletion of a pod to the end of its containers; cut off by its grace period."""


def gpus_asked(pod_spec: Mapping[str, Any]) -> dict[str, int]:
    """Devices that a pod asks for, by extended resource (those with a slash in their name)."""
    asked: dict[str, int] = defaultdict(int)
    for container in pod_spec.get("containers") or ():
        resources = container.get("resources") or {}
        for name, amount in {**(resources.get("limits") or {}), **(resources.get("requests") or {})}.items():
            if "/" in name:
                asked[name] += int(amount)
    return dict(asked)


class Machines:
    """All nodes of a cluster with their kubelets, and the scheduler."""

    def __init__(self, store: Store, pace: Pace, rng: random.Random, *, pack: bool = True) -> None:
        self.pace = pace
        self._store = store
        self._rng = rng
        self._pack = pack
        self._bound: dict[str, dict[tuple[str, str], dict[str, int]]] = defaultdict(dict)
        self._waiting: dict[tuple[str, str], None] = {}
        self._scheduling = False
        self._stuck: set[str] = set()
        self._broken: set[str] = set()
        self._lost: set[str] = set()
        self._addresses = 0
        store.graceful = self._graceful
        store.watch(self._seen)

    # What tests and faults do to machines.

    def add_node(
        self,
        name: str,
        gpus: int = 8,
        *,
        resource: str = "nvidia.com/gpu",
        product: str = "NVIDIA-H100-80GB-HBM3",
        labels: Mapping[str, str] | None = None,
        taints: tuple[Json, ...] = (),
    ) -> None:
        """A ready node with GPUs."""
        amounts = {resource: str(gpus), "cpu": "128", "memory": "1024Gi", "pods": "110"}
        status: Json = {"allocatable": amounts, "capacity": amounts}
        self._store.create(
            "nodes",
            {
                "metadata": {
                    "name": name,
                    "labels": {"kubernetes.io/hostname": name, "nvidia.com/gpu.product": product, **(labels or {})},
                },
                "spec": {"taints": list(taints)} if taints else {},
                "status": with_condition(status, "Ready", "True", "KubeletReady", "", rfc3339(self._store.clock.now_s)),
            },
        )

    def cordon(self, name: str, *, on: bool = True) -> None:
        """Lets no new pods onto a node, or lets them again."""
        self._store.merge("nodes", None, name, {"spec": {"unschedulable": True if on else None}})

    def lose(self, name: str) -> None:
        """The node's kubelet falls silent: its pods are no longer ready, and after a while asked to go, which nobody hears."""
        node = self._store.get("nodes", None, name)
        if node is None or name in self._lost:
            return
        self._lost.add(name)
        now = rfc3339(self._store.clock.now_s)
        status = with_condition(
            node["status"], "Ready", "Unknown", "NodeStatusUnknown", "Kubelet stopped posting node status.", now
        )
        taints = [
            *(node["spec"].get("taints") or ()),
            *({"key": UNREACHABLE, "effect": e} for e in ("NoSchedule", "NoExecute")),
        ]
        self._store.replace("nodes", {**node, "spec": {**node["spec"], "taints": taints}, "status": status})
        for pod in self._on(name):
            self._ready(pod, "False")
        self._store.clock.after(EVICT_AFTER_S, self._evict_lost, name, node["metadata"]["uid"])

    def restore(self, name: str) -> None:
        """The node answers again: its pods are ready as before, and those that were asked to go now do."""
        node = self._store.get("nodes", None, name)
        if node is None or name not in self._lost:
            return
        self._lost.discard(name)
        now = rfc3339(self._store.clock.now_s)
        taints = [t for t in node["spec"].get("taints") or () if t["key"] != UNREACHABLE]
        status = with_condition(node["status"], "Ready", "True", "KubeletReady", "", now)
        self._store.replace("nodes", {**node, "spec": {**node["spec"], "taints": taints}, "status": status})
        for pod in self._on(name):
            if pod["metadata"].get("deletionTimestamp"):
                self._store.clock.after(self.pace.stop_s(pod), self._gone, _place(pod), pod["metadata"]["uid"])
            else:
                self._store.clock.after(1.0, self._started, _place(pod), pod["metadata"]["uid"])
        self._schedule_soon()

    def remove_node(self, name: str) -> None:
        """The node is deleted; its pods are removed a while after, whatever became of their containers."""
        pods = self._on(name)
        self._store.remove("nodes", None, name)
        for pod in pods:
            self._store.clock.after(FORGET_AFTER_S, self._forget, _place(pod), pod["metadata"]["uid"])
        self._store.clock.after(FORGET_AFTER_S, self._lost.discard, name)

    def evict(self, namespace: str, name: str) -> None:
        """The kubelet ends a pod under pressure: it stays as Failed, and no longer counts on the node."""
        pod = self._store.get("pods", namespace, name)
        if pod is None or not pod["spec"].get("nodeName") or pod["metadata"].get("deletionTimestamp"):
            return
        status = {
            **pod["status"],
            "phase": "Failed",
            "reason": "Evicted",
            "message": "The node was low on resource: memory.",
        }
        now = rfc3339(self._store.clock.now_s)
        self._store.replace("pods", {**pod, "status": with_condition(status, "Ready", "False", "PodFailed", "", now)})

    def stick(self, uid: str) -> None:
        """From now on the pod does not go, however often it is asked."""
        self._stuck.add(uid)

    def unstick(self) -> None:
        """Whatever was stuck goes on."""
        stuck, self._stuck = self._stuck, set()
        for pod in self._store.all("pods"):
            if pod["metadata"]["uid"] in stuck and pod["metadata"].get("deletionTimestamp"):
                self._store.clock.after(0.1, self._gone, _place(pod), pod["metadata"]["uid"])

    def break_pod(self, namespace: str, name: str) -> None:
        """The pod's container crashes again and again."""
        pod = self._store.get("pods", namespace, name)
        if pod is None or not pod["spec"].get("nodeName"):
            return
        self._broken.add(pod["metadata"]["uid"])
        waiting = {"name": pod["spec"]["containers"][0]["name"], "state": {"waiting": {"reason": "CrashLoopBackOff"}}}
        pod = self._store.replace("pods", {**pod, "status": {**pod["status"], "containerStatuses": [waiting]}})
        self._ready(pod, "False")

    def mend_pods(self) -> None:
        """Broken pods run again."""
        broken, self._broken = self._broken, set()
        for pod in self._store.all("pods"):
            if pod["metadata"]["uid"] in broken:
                self._store.clock.after(1.0, self._started, _place(pod), pod["metadata"]["uid"])

    # The scheduler.

    def _schedule_soon(self) -> None:
        if self._waiting and not self._scheduling:
            self._scheduling = True
            self._store.clock.after(self.pace.schedule_s(), self._schedule)

    def _schedule(self) -> None:
        self._scheduling = False
        for place in list(self._waiting):
            pod = self._store.get("pods", *place)
            if pod is None or pod["spec"].get("nodeName") or pod["spec"].get("schedulingGates"):
                self._waiting.pop(place, None)
                continue
            node = self._fitting(pod)
            now = rfc3339(self._store.clock.now_s)
            if node is None:
                status = with_condition(
                    pod["status"], "PodScheduled", "False", "Unschedulable", "no node has room for it", now
                )
                # A reason can change without the condition's value.
                self._store.replace("pods", {**pod, "status": status})
                continue
            self._waiting.pop(place, None)
            self._addresses += 1
            address = f"10.{self._addresses >> 16 & 255}.{self._addresses >> 8 & 255}.{self._addresses & 255}"
            status = with_condition({**pod["status"], "podIP": address}, "PodScheduled", "True", "", "", now)
            bound = self._store.replace("pods", {**pod, "spec": {**pod["spec"], "nodeName": node}, "status": status})
            self._store.clock.after(self.pace.start_s(bound), self._started, place, bound["metadata"]["uid"])

    def _fitting(self, pod: Json) -> str | None:
        asked = gpus_asked(pod["spec"])
        best: list[tuple[float, str]] = []
        for node in self._store.all("nodes"):
            name = node["metadata"]["name"]
            free = self.free(name)
            if not _admits(node, pod) or any(amount > free.get(resource, 0) for resource, amount in asked.items()):
                continue
            left = sum(free.get(resource, 0) for resource in asked)
            best.append((left if self._pack else -left, name))
        return min(best)[1] if best else None

    def free(self, name: str) -> dict[str, int]:
        """Devices of a node that no pod holds, by extended resource."""
        node = self._store.get("nodes", None, name)
        if node is None:
            return {}
        amounts = {r: int(a) for r, a in node["status"]["allocatable"].items() if "/" in r}
        for held in self._bound[name].values():
            for resource, amount in held.items():
                if resource in amounts:
                    amounts[resource] -= amount
        return amounts

    # Kubelets.

    def _seen(self, event: str, plural: str, obj: Json) -> None:
        if plural == "nodes":
            self._schedule_soon()
            return
        if plural != "pods":
            return
        place, node = _place(obj), obj["spec"].get("nodeName")
        ended = (obj.get("status") or {}).get("phase") in ("Succeeded", "Failed")
        if event == "DELETED" or ended:
            self._waiting.pop(place, None)
            if node and self._bound[node].pop(place, None) is not None:
                self._schedule_soon()
        elif node:
            if place not in self._bound[node]:
                self._bound[node][place] = gpus_asked(obj["spec"])
        elif obj["spec"].get("schedulingGates") or obj["metadata"].get("deletionTimestamp"):
            return
        elif place not in self._waiting:
            self._waiting[place] = None
            self._schedule_soon()

    def _graceful(self, pod: Json) -> float:
        """Seconds until a pod that is deleted now is gone; sees to it that it goes."""
        node = pod["spec"].get("nodeName")
        if not node or (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed"):
            return 0.0
        if self._store.get("nodes", None, node) is None:
            return float("inf")
        grace_s = float(pod["spec"].get("terminationGracePeriodSeconds", 30))
        stop_s = max(0.01, min(grace_s, self.pace.stop_s(pod)))
        self._store.clock.after(stop_s, self._gone, _place(pod), pod["metadata"]["uid"])
        return stop_s

    def _gone(self, place: tuple[str, str], uid: str) -> None:
        pod = self._store.get("pods", *place)
        if pod is None or pod["metadata"]["uid"] != uid or uid in self._stuck or pod["spec"]["nodeName"] in self._lost:
            return
        self._forget(place, uid)

    def _forget(self, place: tuple[str, str], uid: str) -> None:
        pod = self._store.get("pods", *place)
        if pod is not None and pod["metadata"]["uid"] == uid:
            self._store.remove("pods", *place)

    def _started(self, place: tuple[str, str], uid: str) -> None:
        pod = self._store.get("pods", *place)
        if pod is None or pod["metadata"]["uid"] != uid or uid in self._broken:
            return
        if pod["spec"]["nodeName"] in self._lost or (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed"):
            return
        status = {key: value for key, value in pod["status"].items() if key != "containerStatuses"}
        if pod["metadata"].get("deletionTimestamp"):
            return
        self._ready(self._store.replace("pods", {**pod, "status": {**status, "phase": "Running"}}), "True")

    def _ready(self, pod: Json, value: str) -> None:
        now = rfc3339(self._store.clock.now_s)
        status = with_condition(pod["status"], "Ready", value, "", "", now)
        self._store.replace("pods", {**pod, "status": status})

    def _on(self, node: str) -> list[Json]:
        found = (self._store.get("pods", *place) for place in list(self._bound[node]))
        return [pod for pod in found if pod is not None]

    def _evict_lost(self, name: str, uid: str) -> None:
        node = self._store.get("nodes", None, name)
        if node is None or node["metadata"]["uid"] != uid or name not in self._lost:
            return
        for pod in self._on(name):
            if not pod["metadata"].get("deletionTimestamp"):
                self._store.delete("pods", *_place(pod))


def _admits(node: Json, pod: Json) -> bool:
    spec, labels = node.get("spec") or {}, node["metadata"].get("labels") or {}
    if spec.get("unschedulable"):
        return False
    if any(labels.get(key) != value for key, value in (pod["spec"].get("nodeSelector") or {}).items()):
        return False
    tolerations = pod["spec"].get("tolerations") or ()
    return all(
        taint["effect"] == "PreferNoSchedule" or any(_tolerates(t, taint) for t in tolerations)
        for taint in spec.get("taints") or ()
    )


def _tolerates(toleration: Json, taint: Json) -> bool:
    if toleration.get("effect") and toleration["effect"] != taint["effect"]:
        return False
    if toleration.get("key") and toleration["key"] != taint["key"]:
        return False
    return toleration.get("operator") == "Exists" or toleration.get("value", "") == taint.get("value", "")


def _place(pod: Json) -> tuple[str, str]:
    return pod["metadata"].get("namespace", ""), pod["metadata"]["name"]
