"""Counts what jobs hold at every change of the cluster, and says when that is more than they may.

Written against the API's objects alone, so that it can contradict the operator: it has its own count of a pod's GPUs and
its own idea of when a pod holds them, which is what a person would say who looks at ``kubectl get pods``: from the moment
when the scheduler may bind it until the object is gone, unless the pod has ended by itself and nobody is deleting it.

A spec that is edited can't bind what was already sent. So a write is judged by the specs that were in force between the last
one that its sender had been shown when it sent it, and now; and after a cut of the budget pods may stay, but none may be added.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass

from dev.virtual.cluster import Connection, VirtualCluster
from dev.virtual.machines import gpus_asked
from dev.virtual.store import Json

_UID = "rljob.dev/uid"
_ROLES = {"sampler": "samplers", "trainer": "trainers"}


@dataclass(frozen=True)
class Violation:
    """Something that must never happen, and did."""

    at_s: float
    """Virtual epoch seconds."""
    rule: str
    """``budget``, ``minimum`` or ``capacity``."""
    message: str


class Ledger:
    """Judges every change of a virtual cluster; also an operator's writes, once its connection is ``audit``-ed."""

    def __init__(self, cluster: VirtualCluster) -> None:
        self.violations: list[Violation] = []
        """What went wrong, oldest first."""
        self.most_held: dict[str, int] = defaultdict(int)
        """The most GPUs that each job ever held, by uid."""
        self._cluster = cluster
        self._held: dict[str, dict[str, int]] = defaultdict(dict)
        self._nodes: dict[str, dict[str, int]] = defaultdict(dict)
        self._specs: dict[str, list[tuple[float, Json]]] = defaultdict(list)
        self._written_replicas: dict[tuple[str, str], int] = {}
        self._known: tuple[float, dict[str, float]] | None = None
        cluster.store.watch(self._seen)

    def held(self, uid: str) -> int:
        """GPUs that a job's pods hold now."""
        return sum(self._held[uid].values())

    def audit(self, connection: Connection) -> None:
        """Judges what a connection writes by what its client knew."""
        connection.on_write = self._written

    def _written(
        self, connection: Connection, write: Callable[[], Json], sent_s: float, known: dict[str, float]
    ) -> Json:
        self._known = (sent_s, known)
        before = self._workloads()
        try:
            answer = write()
        finally:
            self._known = None
        if answer and answer.get("kind") in ("Deployment", "StatefulSet"):
            uid = (answer["metadata"].get("labels") or {}).get(_UID, "")
            self._judge_replicas(connection.client, before, answer, known.get(uid, sent_s))
        return answer

    def _workloads(self) -> dict[str, int]:
        store = self._cluster.store
        return {
            obj["metadata"]["uid"]: int(obj["spec"].get("replicas", 1))
            for plural in ("deployments", "statefulsets")
            for obj in store.all(plural)
        }

    def _judge_replicas(self, client: str, before: dict[str, int], now: Json, known_s: float) -> None:
        labels = now["metadata"].get("labels") or {}
        uid, role = labels.get(_UID, ""), labels.get("rljob.dev/role", "")
        was, replicas = before.get(now["metadata"]["uid"]), int(now["spec"].get("replicas", 1))
        own = self._written_replicas.get((uid, role))
        self._written_replicas[uid, role] = replicas
        if role not in _ROLES or not self._specs[uid] or (was is not None and replicas >= was):
            return
        if own is not None and replicas >= own:
            # Somebody else had scaled it up or deleted it, and it is restored to what it was before the minimum was raised.
            return
        specs = self._in_force(uid, known_s)
        job = next((j for j in self._cluster.store.all("rljobs") if j["metadata"]["uid"] == uid), None)
        status = {} if job is None else job.get("status") or {}
        if job is None or status.get("phase") == "Complete" or any(s.get("suspend") for s in specs):
            return
        if role == "trainer" and (status.get("rebalance") or {}).get("restart"):
            # Trainers that follow a resize by restarting all go before any comes again; the spec asks for it.
            return
        least = min(int(spec[role].get("minReplicas", 1)) for spec in specs)
        if replicas < least:
            self._say(
                "minimum",
                f"{client} scales {now['metadata']['name']} from {was} to {replicas} replicas, below its minimum of {least}",
            )

    def _seen(self, event: str, plural: str, obj: Json) -> None:
        if plural == "rljobs" and event != "DELETED":
            specs = self._specs[obj["metadata"]["uid"]]
            if not specs or specs[-1][1] != obj["spec"]:
                specs.append((self._cluster.clock.now_s, obj["spec"]))
        elif plural == "pods":
            self._count(event, obj)

    def _count(self, event: str, pod: Json) -> None:
        meta, spec = pod["metadata"], pod["spec"]
        asked = gpus_asked(spec)
        gpus = sum(asked.values())
        ended = (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed")
        node = spec.get("nodeName")
        if node:
            self._count_on_node(node, meta["uid"], 0 if event == "DELETED" or ended else gpus)
        uid = (meta.get("labels") or {}).get(_UID)
        if uid is None:
            return
        open_gate = not any(gate["name"] == "rljob.dev/budget" for gate in spec.get("schedulingGates") or ())
        holds = event != "DELETED" and (bool(node) or open_gate) and (not ended or bool(meta.get("deletionTimestamp")))
        pods = self._held[uid]
        before = pods.get(meta["uid"], 0)
        if holds:
            pods[meta["uid"]] = gpus
        else:
            pods.pop(meta["uid"], None)
        if not holds or gpus <= before:
            return
        total = sum(pods.values())
        self.most_held[uid] = max(self.most_held[uid], total)
        known_s = None if self._known is None else self._known[1].get(uid, self._known[0])
        budgets = [int(s["gpus"]) for s in self._in_force(uid, known_s)]
        if budgets and total > max(budgets):
            self._say("budget", f"{total} GPUs are held with {meta['name']}, the budget is {max(budgets)}")

    def _count_on_node(self, node: str, uid: str, gpus: int) -> None:
        held = self._nodes[node]
        more = gpus > held.get(uid, 0)
        held[uid] = gpus
        if not gpus:
            del held[uid]
        found = self._cluster.store.get("nodes", None, node)
        if more and found is not None:
            offered = sum(int(a) for r, a in found["status"]["allocatable"].items() if "/" in r)
            if sum(held.values()) > offered:
                self._say("capacity", f"pods hold {sum(held.values())} GPUs of node {node}, which has {offered}")

    def _in_force(self, uid: str, since_s: float | None) -> list[Json]:
        """The specs of a job that were in force at any time since then; the present one alone without a time."""
        specs = self._specs[uid]
        kept = [
            spec
            for i, (_, spec) in enumerate(specs)
            if i + 1 < len(specs) and since_s is not None and specs[i + 1][0] > since_s
        ]
        return kept + [spec for _, spec in specs[-1:]]

    def _say(self, rule: str, message: str) -> None:
        self.violations.append(Violation(self._cluster.clock.now_s, rule, message))


def gpus_of(pod: Json) -> int:
    """GPUs of a pod by the model's own count."""
    return sum(gpus_asked(pod["spec"]).values())
