"""Whether all has come to rest: what a job must look like once nothing disturbs it any more.

It says what is missing rather than whether, since a history that does not come to rest is of use only with a reason.
"""

from __future__ import annotations

import json

from dev.bench.histories.byhand import unanswered
from dev.virtual.cluster import VirtualCluster
from dev.virtual.store import Json
from dev.virtual.workloads import condition, is_ready

_SIDES = {"sampler": "samplers", "trainer": "trainers"}


def unrest(cluster: VirtualCluster) -> str | None:
    """The first thing that is not as it should be in the end, None if all is."""
    alive = {job["metadata"]["uid"]: job for job in cluster.store.all("rljobs")}
    for job in alive.values():
        found = _of_job(cluster, job)
        if found is not None:
            return f"{job['metadata']['name']}: {found}"
    for plural in ("pods", "deployments", "statefulsets", "replicasets", "configmaps", "services"):
        for obj in cluster.store.all(plural):
            uid = (obj["metadata"].get("labels") or {}).get("rljob.dev/uid")
            if uid is not None and uid not in alive:
                return f"{plural[:-1]} {obj['metadata']['name']} is left of a job that is gone"
    return None


def _of_job(cluster: VirtualCluster, job: Json) -> str | None:
    spec, status, uid = job["spec"], job.get("status") or {}, job["metadata"]["uid"]
    pods = [p for p in cluster.pods(uid) if not _ended(p)]
    if status.get("observedGeneration") != job["metadata"]["generation"]:
        return "the spec is not observed"
    waiting = unanswered(job)
    if waiting is not None:
        return waiting
    if status.get("rebalance") is not None and _honestly_waits(job, pods):
        return None
    if status.get("rebalance") is not None:
        return f"a move is left: {status['rebalance']['phase']}, waits for {status['rebalance'].get('waitingFor')}"
    if spec.get("suspend") or status.get("phase") == "Complete":
        return f"{len(pods)} pods of a job that should hold none" if pods else None
    split = status.get("split")
    planned = next((c for c in status.get("conditions") or () if c["type"] == "Planned"), None)
    if split is None or _breaks(spec, split):
        # A spec that no split can keep on these nodes is a person's to change: it only has to be said.
        if planned is not None and planned["status"] == "False":
            return f"no split, although one fits: {planned['message']}" if _surely_fits(cluster, job) else None
        return (
            "no split in force keeps the spec, and nobody says why"
            if split is None
            else f"the split breaks the spec: {_breaks(spec, split)}"
        )
    return _fleets(job, split, pods) or _layout(cluster, job, split)


def _honestly_waits(job: Json, pods: list[Json]) -> bool:
    """Whether a move can't end since nodes have no room for its pods, and the job says that it needs a person."""
    overdue = condition(job, "Degraded") == "True" and condition(job, "Scheduled") == "False"
    return overdue and any(
        condition(p, "PodScheduled") == "False" and not p["spec"].get("schedulingGates") for p in pods
    )


def _breaks(spec: Json, split: Json) -> str | None:
    gpus = 0
    for role, side in _SIDES.items():
        replicas = int(split[side]["replicas"])
        gpus += replicas * int(split[side]["gpusPerReplica"])
        most = spec[role].get("maxReplicas")
        if replicas < int(spec[role].get("minReplicas", 1)) or (most is not None and replicas > most):
            return f"{replicas} {side}"
    return f"{gpus} GPUs of {spec['gpus']}" if gpus > spec["gpus"] else None


def _fleets(job: Json, split: Json, pods: list[Json]) -> str | None:
    waiting = 0
    for role, side in _SIDES.items():
        mine = [p for p in pods if p["metadata"]["labels"]["rljob.dev/role"] == role]
        wanted = int(split[side]["replicas"])
        leaving = [p for p in mine if p["metadata"].get("deletionTimestamp")]
        if leaving or len(mine) != wanted:
            return f"{len(mine)} {side} are there, {len(leaving)} of them leaving, {wanted} are wished"
        waiting += sum(map(_has_no_node, mine))
        gated = [p["metadata"]["name"] for p in mine if p["spec"].get("schedulingGates")]
        if gated:
            return f"{', '.join(gated)} still gated"
    unready = [p["metadata"]["name"] for p in pods if not is_ready(p)]
    scheduled, ready = condition(job, "Scheduled"), condition(job, "Ready")
    if waiting:
        # Nodes without room are no fault of the operator's, as long as it says so.
        said = scheduled == "False" and ready == "False"
        return (
            None
            if said and len(unready) == waiting
            else f"{waiting} pods wait for a node, and the conditions don't say so"
        )
    if unready:
        return f"{', '.join(unready)} not ready"
    return (
        None
        if scheduled == ready == "True"
        else f"all pods are ready, and the conditions say Scheduled {scheduled}, Ready {ready}"
    )


def _layout(cluster: VirtualCluster, job: Json, split: Json) -> str | None:
    meta = job["metadata"]
    found = cluster.store.get("configmaps", meta["namespace"], f"{meta['name']}-layout")
    if found is None:
        return "there is no layout"
    layout = json.loads(found["data"]["layout.json"])
    if not layout or layout["phase"] != "steady" or layout["draining"]:
        return f"the layout is not steady: {layout}"
    samplers = [
        p for p in cluster.pods(meta["uid"], "sampler") if is_ready(p) and not p["metadata"].get("deletionTimestamp")
    ]
    told = {endpoint["pod"] for endpoint in layout["samplers"]["endpoints"]}
    there = {p["metadata"]["name"] for p in samplers}
    all_there = len(there) == int(split["samplers"]["replicas"]) and condition(job, "Ready") == "True"
    if told - there or (all_there and told != there):
        return f"the layout names {sorted(told)}, there are {sorted(there)}"
    return None


def _surely_fits(cluster: VirtualCluster, job: Json) -> bool:
    """Whether the minima of a job fit its nodes beyond doubt: it has them for itself, and its trainers may change."""
    spec = job["spec"]
    if len(list(cluster.store.all("rljobs"))) > 1 or spec["trainer"].get("resize") == "fixed":
        return False
    free = [int(node["status"]["allocatable"]["nvidia.com/gpu"]) for node in cluster.store.all("nodes")]
    pods = [
        int(spec[role]["gpusPerReplica"])
        for role in ("trainer", "sampler")
        for _ in range(int(spec[role].get("minReplicas", 1)))
    ]
    if sum(pods) > spec["gpus"]:
        return False
    for width in sorted(pods, reverse=True):
        place = next((i for i, left in enumerate(free) if left >= width), None)
        if place is None:
            return False
        free[place] -= width
    return True


def _has_no_node(pod: Json) -> bool:
    """Whether the scheduler says that no node has room for the pod."""
    conditions = (pod.get("status") or {}).get("conditions") or ()
    return any(c["type"] == "PodScheduled" and c["reason"] == "Unschedulable" for c in conditions)


def _ended(pod: Json) -> bool:
    return (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed") and not pod["metadata"].get(
        "deletionTimestamp"
    )
