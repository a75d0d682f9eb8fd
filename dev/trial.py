"""The installation that is tried where pods really run: on kind, and on a node of this machine.

Two replicas, so that one leads and one stands by; an image that was put on the node by hand; a job of simulated nodes that the pods
plan and start.
"""

from __future__ import annotations

from typing import Any

from dev.controlplane import ControlPlane

IMAGE = "localhost/rljob-operator"
"""Name of the image that is built for this."""
TAG = "trial"
"""Its tag."""
LABEL = "dev.rljob.dev/trial"
"""Label of the nodes of the trial's job."""
JOB = "trial"
"""Name of the job and of its namespace."""

VALUES: dict[str, Any] = {
    "replicas": 2,
    "image": {"repository": IMAGE, "tag": TAG, "pullPolicy": "Never"},
    # Simulated nodes would say that the pods are ready, and run nothing of them.
    "affinity": {
        "nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {
                "nodeSelectorTerms": [{"matchExpressions": [{"key": "type", "operator": "NotIn", "values": ["kwok"]}]}]
            }
        }
    },
}
"""Values of the chart beside its defaults. The nodes of ``trial_nodes`` are to be added once all pods of the release are there."""


def planned_job(namespace: str) -> dict[str, Any]:
    """A job of 16 GPUs that is planned within seconds."""

    def template(name: str, port: int) -> dict[str, Any]:
        container = {"name": name, "image": "example.com/none:1", "ports": [{"containerPort": port}]}
        return {"spec": {"terminationGracePeriodSeconds": 30, "containers": [container]}}

    return {
        "apiVersion": "rljob.dev/v1alpha1",
        "kind": "RLJob",
        "metadata": {"name": JOB, "namespace": namespace},
        "spec": {
            "gpus": 16,
            "nodes": {"selector": {LABEL: "true"}},
            "model": {"name": "Qwen/Qwen3-8B"},
            "workload": {
                "promptsPerStep": 32,
                "samplesPerPrompt": 4,
                "steps": 1000,
                "promptTokens": {"mean": 100},
                "responseTokens": {"mean": 400, "cv": 0.8, "max": 4096},
            },
            "staleness": {"max": 4, "bound": "admission"},
            "sampler": {"gpusPerReplica": 1, "drainTimeout": "20s", "template": template("vllm", 8000)},
            "trainer": {"gpusPerReplica": 4, "template": template("trainer", 9400)},
            "rebalance": {"mode": "Recommend"},
        },
    }


def wait_planned(plane: ControlPlane, namespace: str) -> str:
    """Wait until the job is planned and its pods run on the simulated nodes; returns what the condition says of the plan."""
    said: list[str] = []

    def running() -> bool:
        job = plane.api.request("GET", f"/apis/rljob.dev/v1alpha1/namespaces/{namespace}/rljobs/{JOB}")
        conditions = (job.get("status") or {}).get("conditions") or ()
        said[:] = [c["message"] for c in conditions if c["type"] == "Planned" and c["status"] == "True"]
        pods = plane.api.request("GET", f"/api/v1/namespaces/{namespace}/pods")["items"]
        return bool(said) and bool(pods) and all(pod["status"].get("phase") == "Running" for pod in pods)

    plane.wait_until("the job to be planned, and its pods to run", running, timeout_s=180.0)
    return said[0]
