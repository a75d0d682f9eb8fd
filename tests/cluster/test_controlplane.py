"""The local control plane behaves like a real one where the operator depends on it."""

from __future__ import annotations

import datetime
import json
from functools import partial
from typing import Any

import pytest
import yaml

from dev.controlplane import ApiError, ControlPlane, KubectlError
from dev.controlplane.components import KWOK
from dev.controlplane.stages import COMPLETE_AFTER, HANG_TERMINATING, START_DELAY, STOP_DELAY
from tests.cluster.conftest import TEST_LABEL, GpuNodes


def pod(namespace: str, name: str, *, gpus: int = 1, grace_s: int = 30, **extra: Any) -> dict[str, Any]:
    annotations = extra.pop("annotations", {})
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace, "annotations": annotations},
        "spec": {
            "nodeSelector": {TEST_LABEL: namespace},
            "terminationGracePeriodSeconds": grace_s,
            "containers": [
                {"name": "main", "image": "none", "resources": {"limits": {"nvidia.com/gpu": gpus}}},
            ],
            **extra,
        },
    }


class Pods:
    """Pods of one namespace."""

    def __init__(self, plane: ControlPlane, namespace: str) -> None:
        self.plane = plane
        self.path = f"/api/v1/namespaces/{namespace}/pods"
        self.namespace = namespace

    def create(self, name: str, **kwargs: Any) -> None:
        self.plane.api.request("POST", self.path, pod(self.namespace, name, **kwargs))

    def get(self, name: str) -> dict[str, Any] | None:
        try:
            return self.plane.api.request("GET", f"{self.path}/{name}")
        except ApiError as error:
            if error.status == 404:
                return None
            raise

    def condition(self, name: str, kind: str) -> dict[str, Any]:
        found = self.get(name)
        assert found is not None, f"{name} has gone"
        conditions = found["status"].get("conditions", [])
        return next((c for c in conditions if c["type"] == kind), {"status": "absent"})

    def is_ready(self, name: str) -> bool:
        return bool(self.condition(name, "Ready")["status"] == "True")

    def is_gone(self, name: str) -> bool:
        return self.get(name) is None

    def wait_ready(self, *names: str) -> None:
        for name in names:
            self.plane.wait_until(f"{name} to be Ready", partial(self.is_ready, name))

    def wait_gone(self, *names: str) -> None:
        for name in names:
            self.plane.wait_until(f"{name} to be gone", partial(self.is_gone, name))

    def delete(self, name: str, **options: Any) -> None:
        self.plane.api.request("DELETE", f"{self.path}/{name}", options)

    def annotate(self, name: str, key: str, value: str | None) -> None:
        patch = {"metadata": {"annotations": {key: value}}}
        self.plane.api.request("PATCH", f"{self.path}/{name}", patch, content_type="application/merge-patch+json")


@pytest.fixture
def pods(plane: ControlPlane, namespace: str) -> Pods:
    return Pods(plane, namespace)


def test_gpu_pods_are_placed_by_capacity_and_become_ready(plane: ControlPlane, pods: Pods, gpu_nodes: GpuNodes) -> None:
    nodes = gpu_nodes(2, 8, zones=("east", "west"), product="NVIDIA-H200")
    for name in ("a", "b", "c", "d"):
        pods.create(name, gpus=4)
    pods.wait_ready("a", "b", "c", "d")

    found = [p for name in "abcd" if (p := pods.get(name)) is not None]
    placed = [p["spec"]["nodeName"] for p in found]
    assert sorted(placed) == sorted(nodes * 2), "eight GPUs of each node, no more and no less"
    assert len({p["status"]["podIP"] for p in found}) == 4, "no two pods share an address, whatever their nodes"
    assert {p["status"]["phase"] for p in found} == {"Running"}

    pods.create("one-too-many", gpus=1)
    plane.wait_until(
        "the scheduler to refuse", lambda: pods.condition("one-too-many", "PodScheduled")["status"] == "False"
    )
    assert "Insufficient nvidia.com/gpu" in pods.condition("one-too-many", "PodScheduled")["message"]

    labels = [plane.api.request("GET", f"/api/v1/nodes/{name}")["metadata"]["labels"] for name in nodes]
    assert [label["topology.kubernetes.io/zone"] for label in labels] == ["east", "west"]
    assert {label["nvidia.com/gpu.product"] for label in labels} == {"NVIDIA-H200"}


def test_tainted_nodes_repel(plane: ControlPlane, pods: Pods, gpu_nodes: GpuNodes) -> None:
    gpu_nodes(1, taints=("nvidia.com/gpu=present:NoSchedule",))
    pods.create("plain")
    pods.create("tolerant", tolerations=[{"key": "nvidia.com/gpu", "operator": "Exists"}])
    pods.wait_ready("tolerant")
    assert "untolerated taint" in pods.condition("plain", "PodScheduled")["message"]


def test_a_gated_pod_waits_for_its_gate(plane: ControlPlane, pods: Pods, gpu_nodes: GpuNodes) -> None:
    gpu_nodes(1)
    pods.create("gated", schedulingGates=[{"name": "rljob.dev/gpus"}])
    pods.create("plain")
    pods.wait_ready("plain")
    assert pods.condition("gated", "PodScheduled")["reason"] == "SchedulingGated"
    gated = pods.get("gated")
    assert gated is not None
    assert "nodeName" not in gated["spec"]
    assert "podIP" not in gated["status"]

    patch = [{"op": "remove", "path": "/spec/schedulingGates"}]
    plane.api.request("PATCH", f"{pods.path}/gated", patch, content_type="application/json-patch+json")
    pods.wait_ready("gated")


def test_a_gated_pod_is_deleted_at_once(pods: Pods) -> None:
    pods.create("gated", grace_s=3600, schedulingGates=[{"name": "rljob.dev/gpus"}])
    pods.delete("gated")
    assert pods.get("gated") is None


def test_the_start_delay_is_kept(pods: Pods, gpu_nodes: GpuNodes) -> None:
    gpu_nodes(1)
    pods.create("slow", annotations={START_DELAY: "4s"})
    pods.create("quick", annotations={START_DELAY: "0s"})
    pods.wait_ready("quick", "slow")
    slow = pods.get("slow")
    assert slow is not None
    started = datetime.datetime.fromisoformat(slow["status"]["startTime"])
    ready = datetime.datetime.fromisoformat(pods.condition("slow", "Ready")["lastTransitionTime"])
    # Both times were cut to whole seconds.
    assert (ready - started).total_seconds() >= 3.0


def test_an_unreadable_delay_falls_back_to_the_default(pods: Pods, gpu_nodes: GpuNodes) -> None:
    gpu_nodes(1)
    pods.create("odd", annotations={START_DELAY: "soon", STOP_DELAY: "later"})
    pods.wait_ready("odd")
    pods.delete("odd")
    pods.wait_gone("odd")


def test_pods_stop_in_the_order_of_their_delays(plane: ControlPlane, pods: Pods, gpu_nodes: GpuNodes) -> None:
    gpu_nodes(1)
    pods.create("slow", grace_s=600, annotations={STOP_DELAY: "5s"})
    pods.create("quick", grace_s=600)
    pods.create("capped", grace_s=2, annotations={STOP_DELAY: "1h"})
    pods.wait_ready("slow", "quick", "capped")
    for name in ("slow", "quick", "capped"):
        pods.delete(name)
    # Neither an update that arrives meanwhile, nor the grace period, changes when the pod goes.
    pods.annotate("slow", "example.com/touched", "true")
    gone: list[str] = []

    def all_gone() -> bool:
        names = {item["metadata"]["name"] for item in plane.api.request("GET", pods.path)["items"]}
        gone.extend(sorted({"slow", "quick", "capped"} - names - set(gone)))
        return not names

    plane.wait_until("all pods to be gone", all_gone, poll_s=0.02)
    assert gone[-1] == "slow"


def test_a_hanging_pod_stays_until_it_may_go(pods: Pods, gpu_nodes: GpuNodes) -> None:
    gpu_nodes(1)
    for name in ("hangs", "forced"):
        pods.create(name, grace_s=1, annotations={HANG_TERMINATING: "true"})
    pods.create("late", grace_s=600, annotations={STOP_DELAY: "3s"})
    pods.create("witness", grace_s=600, annotations={STOP_DELAY: "4s"})
    pods.wait_ready("hangs", "forced", "late", "witness")
    for name in ("hangs", "forced", "late"):
        pods.delete(name)
    # Annotated while the deletion is already under way.
    pods.annotate("late", HANG_TERMINATING, "true")
    pods.delete("witness")
    pods.wait_gone("witness")
    for name in ("hangs", "forced", "late"):
        found = pods.get(name)
        assert found is not None, f"{name} went"
        assert found["status"]["phase"] == "Running"

    pods.delete("forced", gracePeriodSeconds=0)
    assert pods.get("forced") is None
    for name in ("hangs", "late"):
        pods.annotate(name, HANG_TERMINATING, None)
    pods.wait_gone("hangs", "late")


def test_a_pod_completes_when_it_is_told_to(plane: ControlPlane, pods: Pods, gpu_nodes: GpuNodes) -> None:
    gpu_nodes(1, 1)
    pods.create("first", restartPolicy="Never", annotations={COMPLETE_AFTER: "1s"})
    pods.create("second", restartPolicy="Never")
    plane.wait_until("the first to complete", lambda: (pods.get("first") or {})["status"]["phase"] == "Succeeded")
    pods.wait_ready("second")  # on the GPU that the first has given back


def test_a_lost_node_keeps_its_pods_terminating(plane: ControlPlane, pods: Pods, gpu_nodes: GpuNodes) -> None:
    (node,) = gpu_nodes(1)
    pods.create("stranded", grace_s=1)
    pods.wait_ready("stranded")
    plane.lose_node(node)
    (other,) = gpu_nodes(1)
    pods.create("witness", grace_s=1)
    pods.wait_ready("witness")
    pods.delete("stranded")
    pods.delete("witness")
    pods.wait_gone("witness")
    assert pods.get("stranded") is not None
    assert other != node


def test_addresses_stay_unique_when_kwok_starts_again(plane: ControlPlane, pods: Pods, gpu_nodes: GpuNodes) -> None:
    gpu_nodes(1)
    pods.create("before")
    pods.wait_ready("before")
    plane.restart(KWOK)
    pods.create("after")
    pods.wait_ready("after")
    before, after = pods.get("before"), pods.get("after")
    assert before is not None
    assert after is not None
    assert before["status"]["podIP"] != after["status"]["podIP"]
    pods.delete("before")
    pods.wait_gone("before")


def test_a_service_account_has_its_roles_rights_and_no_more(plane: ControlPlane, namespace: str) -> None:
    plane.kubectl("create", "serviceaccount", "worker", "-n", namespace)
    kubeconfig = plane.service_account_kubeconfig(namespace, "worker")
    with pytest.raises(KubectlError, match="forbidden"):
        plane.kubectl("get", "pods", "-n", namespace, kubeconfig=kubeconfig)
    plane.kubectl("create", "role", "reader", "--verb=list", "--resource=pods", "-n", namespace)
    plane.kubectl("create", "rolebinding", "reader", "--role=reader", f"--serviceaccount={namespace}:worker",
                  "-n", namespace)  # fmt: skip

    def can_list() -> bool:
        return plane.kubectl("get", "pods", "-n", namespace, kubeconfig=kubeconfig, check=False).returncode == 0

    plane.wait_until("the role to take effect", can_list)
    for refused in (("get", "pods", "-n", "default"), ("delete", "pod", "any", "-n", namespace), ("get", "nodes")):
        done = plane.kubectl(*refused, kubeconfig=kubeconfig, check=False)
        assert done.returncode != 0
        assert "forbidden" in done.stderr


def test_a_missing_service_account_is_named(plane: ControlPlane, namespace: str) -> None:
    with pytest.raises(ApiError, match='"nobody" not found') as caught:
        plane.service_account_kubeconfig(namespace, "nobody")
    assert caught.value.status == 404


def test_a_resource_quota_is_enforced(plane: ControlPlane, namespace: str, pods: Pods) -> None:
    quota = {"metadata": {"name": "gpus"}, "spec": {"hard": {"requests.nvidia.com/gpu": "4"}}}
    path = f"/api/v1/namespaces/{namespace}/resourcequotas"
    plane.api.request("POST", path, quota)
    plane.wait_until("the quota to be counted", lambda: "hard" in plane.api.request("GET", f"{path}/gpus")["status"])
    pods.create("fits", gpus=3)
    with pytest.raises(ApiError, match="exceeded quota: gpus") as caught:
        pods.create("exceeds", gpus=2)
    assert caught.value.status == 403


def test_controllers_make_and_the_garbage_collector_takes(
    plane: ControlPlane, namespace: str, gpu_nodes: GpuNodes
) -> None:
    gpu_nodes(1)
    template = pod(namespace, "unused")
    deployment = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "samplers", "namespace": namespace},
        "spec": {
            "replicas": 3,
            "selector": {"matchLabels": {"app": "samplers"}},
            "template": {"metadata": {"labels": {"app": "samplers"}}, "spec": template["spec"]},
        },
    }
    plane.apply(yaml.safe_dump(deployment))
    plane.kubectl("rollout", "status", "deployment/samplers", "-n", namespace, "--timeout=120s")

    owner = json.loads(plane.kubectl("get", "deployment", "samplers", "-n", namespace, "-o", "json").stdout)
    dependent = {
        "metadata": {
            "name": "layout",
            "ownerReferences": [
                {"apiVersion": "apps/v1", "kind": "Deployment", "name": "samplers", "uid": owner["metadata"]["uid"]}
            ],
        }
    }
    plane.api.request("POST", f"/api/v1/namespaces/{namespace}/configmaps", dependent)

    plane.kubectl("delete", "deployment", "samplers", "-n", namespace, "--wait=false")

    def left() -> bool:
        listed = plane.kubectl("get", "deployments,replicasets,pods,configmaps", "-n", namespace, "-o", "name").stdout
        return listed.split() == ["configmap/kube-root-ca.crt"]

    plane.wait_until("the garbage collector", left)


def test_kubectl_leaves_its_cache_with_the_plane(plane: ControlPlane) -> None:
    plane.kubectl("get", "namespaces")
    assert (plane.data_dir / "kubectl-cache" / "discovery").is_dir()
