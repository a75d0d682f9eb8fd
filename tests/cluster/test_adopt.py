"""Workloads that exist already, on a real API server: watched, told what would be better, and never touched."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml

from tests.cluster.jobs import drifting_job, emulation
from tests.cluster.rig import GPU, Rig, eventually

Json = dict[str, Any]

SAMPLERS, TRAINERS = 8, 2
"""Replicas of 1 and of 4 GPUs: as many as the budget of 16, and not the best split once responses are long."""

pytestmark = pytest.mark.cluster


def workload(rig: Rig, kind: str, name: str, role: str, replicas: int, gpus: int) -> Json:
    """A workload as somebody had it before there was an operator; its labels let the scrape and the emulator find it."""
    labels = {"app": name, "rljob.dev/name": "job", "rljob.dev/role": role}
    container = {"name": "main", "image": "example.com/none:1", "resources": {"limits": {GPU: gpus}}}
    template = {
        "metadata": {"labels": labels, "annotations": {"dev.rljob.dev/start-delay": "500ms"}},
        "spec": {
            "nodeSelector": {"dev.rljob.dev/test": rig.namespace},
            "tolerations": [{"key": "kwok.x-k8s.io/node", "operator": "Exists"}],
            "containers": [container],
        },
    }
    spec = {"replicas": replicas, "selector": {"matchLabels": {"app": name}}, "template": template}
    extra = {"serviceName": name, "podManagementPolicy": "Parallel"} if kind == "StatefulSet" else {}
    metadata = {"name": name, "namespace": rig.namespace}
    return {"apiVersion": "apps/v1", "kind": kind, "metadata": metadata, "spec": {**spec, **extra}}


def adopting(rig: Rig) -> Json:
    """The drifting job, run by workloads of its own framework."""
    found = drifting_job(rig.namespace, rebalance={"mode": "Recommend", "interval": "2s"})
    found["spec"]["sampler"] = {"targetRef": {"kind": "Deployment", "name": "rollout"}}
    found["spec"]["trainer"] = {"targetRef": {"kind": "StatefulSet", "name": "learner"}, "gpusPerReplica": 4}
    return found


def framework_layout(rig: Rig, in_flight: int) -> Json:
    """What the framework's own launcher tells its containers; the emulated ones read it where the operator's would be."""
    pods = [p["metadata"]["name"] for p in rig.objects("pods", "rljob.dev/role=sampler")]
    layout = {
        "generation": 1,
        "phase": "steady",
        "samplers": {
            "replicas": SAMPLERS,
            "gpusPerReplica": 1,
            "tensorParallel": 1,
            "maxRunning": 64,
            "endpoints": [{"pod": pod, "url": f"http://{pod}:8000"} for pod in pods],
        },
        "trainers": {
            "replicas": TRAINERS,
            "gpusPerReplica": 4,
            "dp": 8,
            "tp": 1,
            "pp": 1,
            "ep": 1,
            "rendezvous": "x:1",
        },
        "inFlightCap": in_flight,
        "maxStaleness": 4,
        "draining": [],
        "checkpoint": False,
    }
    metadata = {"name": "job-layout", "namespace": rig.namespace}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"layout.json": json.dumps(layout)}}


def writers(obj: Json) -> set[str]:
    return {entry["manager"] for entry in obj["metadata"].get("managedFields", ())}


def test_adopted_workloads_are_told_what_would_be_better_and_never_touched(rig: Rig) -> None:
    rig.start_prometheus()
    rig.start_operator()
    rig.apply(adopting(rig))
    missing = rig.wait_condition("job", "Planned", "False", "TargetMissing")
    assert "Deployment rollout" in missing["message"]
    for each in (
        workload(rig, "Deployment", "rollout", "sampler", SAMPLERS, 1),
        workload(rig, "StatefulSet", "learner", "trainer", TRAINERS, 4),
    ):
        rig.plane.apply(yaml.safe_dump(each))
    told = rig.wait_condition("job", "Planned", "True", "Adopted", timeout_s=90)
    assert (
        "Deployment rollout and StatefulSet learner run 8×1 samplers + 2×4 trainers and are left alone"
        in told["message"]
    )
    rig.wait_condition("job", "Ready", "True")
    status = rig.wait_phase("job", "Running")
    assert (status["samplers"], status["trainers"]) == ("8/8", "2/2")
    assert status["decisions"][0]["code"] == "InitialPlan"

    rig.plane.apply(yaml.safe_dump(framework_layout(rig, status["split"]["inFlight"])))
    before = {kind: rig.get(kind, name) for kind, name in (("deployment", "rollout"), ("statefulset", "learner"))}
    rig.start_emulator("job", emulation())
    rig.wait_condition("job", "MetricsAvailable", "True", "MetricsFound", timeout_s=90)

    def recommended() -> Json | None:
        said = rig.status("job").get("decisions", ())
        return next((d for d in said if d["code"] == "RecommendOnly" and "to" in d), None)

    wish = eventually(
        recommended,
        f"a recommendation; decisions {[d['code'] for d in rig.status('job').get('decisions', ())]}",
        timeout_s=120,
    )
    assert wish["from"]["trainers"]["replicas"] == TRAINERS
    assert wish["to"]["trainers"]["replicas"] < TRAINERS
    assert wish["predictedGain"] > 0.0
    status = rig.status("job")
    assert status["observed"]["policyVersion"] > 0
    assert status.get("rebalance") is None
    assert "layoutGeneration" not in status or status["layoutGeneration"] == 0
    assert any(e["reason"] == "Adopted" for e in rig.events("job"))

    # Nothing but the RLJob's status and events was ever written by the operator.
    for kind, was in before.items():
        assert was is not None
        now = rig.get(kind, was["metadata"]["name"])
        assert now is not None
        assert now["metadata"]["resourceVersion"] == was["metadata"]["resourceVersion"]
    for kind in ("deployments", "statefulsets", "replicasets", "pods", "configmaps", "services"):
        for obj in rig.objects(kind):
            assert "rljob-operator" not in writers(obj), f"{kind} {obj['metadata']['name']}"
            assert "ownerReferences" not in obj["metadata"] or all(
                owner["kind"] != "RLJob" for owner in obj["metadata"]["ownerReferences"]
            )
    assert {o["metadata"]["name"] for o in rig.objects("configmaps")} <= {"job-layout", "kube-root-ca.crt"}
    assert rig.recorder.peak <= 16
