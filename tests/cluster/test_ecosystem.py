"""Jobs in a cluster that others manage too, on a real API server.

Kueue itself can't run here: its controller and webhook need pods that run code. Its two deeds are done in its place: an admission policy
puts its gate on pods that carry a queue's label, at the moment when its webhook would, and the test takes the gate off, as its
controller does once a pod's quota is there.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from dev.controlplane import ApiError, ControlPlane
from tests.cluster.conftest import GpuNodes
from tests.cluster.jobs import job
from tests.cluster.rig import Rig, eventually, install, rig_of

Json = dict[str, Any]

KUEUE = "kueue.x-k8s.io/admission"
QUEUE = "kueue.x-k8s.io/queue-name"
H100 = "NVIDIA-H100-80GB-HBM3"

pytestmark = pytest.mark.cluster


@pytest.fixture
def rig(plane: ControlPlane, namespace: str, tmp_path: Path) -> Iterator[Rig]:
    yield from rig_of(plane, namespace, install(plane), tmp_path)


@pytest.fixture
def kueue(plane: ControlPlane, namespace: str) -> Iterator[None]:
    """The gate of Kueue's webhook, for pods of the namespace that carry a queue's label."""
    served = plane.api.request("GET", "/apis/admissionregistration.k8s.io/v1")["resources"]
    if not any(resource["name"] == "mutatingadmissionpolicies" for resource in served):
        pytest.skip("this API server has no MutatingAdmissionPolicy to stand in for Kueue's webhook")
    name = f"kueue-{namespace}"
    head = {"apiVersion": "admissionregistration.k8s.io/v1", "metadata": {"name": name}}
    policy = {
        **head,
        "kind": "MutatingAdmissionPolicy",
        "spec": {
            "failurePolicy": "Fail",
            "reinvocationPolicy": "Never",
            "matchConstraints": {
                "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}},
                "resourceRules": [
                    {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}
                ],
            },
            "matchConditions": [
                {"name": "queued", "expression": f"has(object.metadata.labels) && '{QUEUE}' in object.metadata.labels"}
            ],
            "mutations": [
                {
                    "patchType": "ApplyConfiguration",
                    "applyConfiguration": {
                        "expression": (
                            'Object{spec: Object.spec{schedulingGates: [Object.spec.schedulingGates{name: "'
                            + KUEUE
                            + '"}]}}'
                        )
                    },
                }
            ],
        },
    }
    binding = {**head, "kind": "MutatingAdmissionPolicyBinding", "spec": {"policyName": name}}
    plane.apply(yaml.safe_dump_all([policy, binding]))
    probe = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "probe", "labels": {QUEUE: "team"}},
        "spec": {"containers": [{"name": "c", "image": "example.com/none:1"}]},
    }

    def gated() -> bool:
        made = plane.api.request("POST", f"/api/v1/namespaces/{namespace}/pods?dryRun=All", probe)
        return KUEUE in gates(made)

    eventually(gated, "the policy is in force")
    yield
    for kind in ("mutatingadmissionpolicybindings", "mutatingadmissionpolicies"):
        plane.api.request("DELETE", f"/apis/admissionregistration.k8s.io/v1/{kind}/{name}")


def gates(pod: Json) -> list[str]:
    return [gate["name"] for gate in pod["spec"].get("schedulingGates") or ()]


def queued(namespace: str, **spec: Any) -> Json:
    made = job(namespace, **spec)
    made["metadata"]["labels"] = {QUEUE: "team"}
    return made


def waiting(rig: Rig) -> list[Json]:
    """The pods that wait at Kueue's gate alone, by name."""
    found = [pod for pod in rig.objects("pods", "rljob.dev/name=job") if gates(pod) == [KUEUE]]
    return sorted(found, key=lambda pod: str(pod["metadata"]["name"]))


def admit(rig: Rig, pods: list[Json]) -> None:
    """Takes Kueue's gate off, and only Kueue's."""
    for pod in pods:
        meta = pod["metadata"]
        patch = {
            "metadata": {"uid": meta["uid"], "resourceVersion": meta["resourceVersion"]},
            "spec": {"schedulingGates": [g for g in pod["spec"].get("schedulingGates") or () if g["name"] != KUEUE]},
        }
        path = f"/api/v1/namespaces/{rig.namespace}/pods/{meta['name']}"
        try:
            rig.plane.api.request("PATCH", path, patch, content_type="application/merge-patch+json")
        except ApiError as error:
            if error.status != 409:
                raise


def admit_all(rig: Rig, condition: str = "Ready") -> None:
    """Quota for everybody, until the job's condition holds."""

    def holds() -> bool:
        admit(rig, [pod for pod in rig.objects("pods", "rljob.dev/name=job") if KUEUE in gates(pod)])
        found = rig.condition("job", condition)
        return found is not None and found["status"] == "True"

    eventually(holds, f"{condition} with quota for all")


def test_a_job_in_a_queue_starts_pod_by_pod_as_its_quota_comes(rig: Rig, gpu_nodes: GpuNodes, kueue: None) -> None:
    gpu_nodes(2, product=H100)
    rig.start_operator()
    rig.apply(queued(rig.namespace, sampler={"drainTimeout": "2s"}))
    found = rig.wait_condition("job", "Scheduled", "False", "WaitingForKueue")
    assert "in queue team" in found["message"]
    split = rig.status("job")["split"]
    wanted = split["samplers"]["replicas"] + split["trainers"]["replicas"]
    everybody = eventually(lambda: len(waiting(rig)) == wanted and waiting(rig), "the budget lets all pods go")
    assert not [pod for pod in everybody if pod["spec"].get("nodeName")]
    for kind, name in (("deployment", "job-samplers"), ("deployment", "job-trainers")):
        child = rig.get(kind, name)
        assert child is not None
        assert child["metadata"]["labels"][QUEUE] == "team"
        assert child["spec"]["template"]["metadata"]["labels"][QUEUE] == "team"

    admit(rig, everybody[:-1])
    eventually(lambda: "1 pod waits" in (rig.condition("job", "Scheduled") or {}).get("message", ""), "one still waits")
    assert rig.status("job")["phase"] == "Starting"
    assert not [e for e in rig.events("job") if e["reason"] in ("WaitingForKueue", "ChildEdited", "BudgetExceeded")]
    admit_all(rig)
    rig.wait_phase("job", "Running")
    assert rig.recorder.peak <= 16

    # Suspended, the job gives its quota back with its pods, and asks for it anew when it resumes.
    rig.apply(queued(rig.namespace, sampler={"drainTimeout": "2s"}, suspend=True))
    eventually(lambda: not rig.objects("pods", "rljob.dev/name=job"), "all pods are gone")
    rig.wait_phase("job", "Suspended")
    rig.apply(queued(rig.namespace, sampler={"drainTimeout": "2s"}, suspend=False))
    rig.wait_condition("job", "Scheduled", "False", "WaitingForKueue")
    assert rig.recorder.peak <= 16


def test_a_move_whose_pods_wait_in_a_queue_says_so_and_goes_on_with_what_it_got(
    rig: Rig, gpu_nodes: GpuNodes, kueue: None
) -> None:
    gpu_nodes(2, product=H100)
    rig.start_operator(RLJOB_OPERATOR_READY_DEADLINE="6s")
    rig.apply(queued(rig.namespace, gpus=8, trainer={"maxReplicas": 1}))
    admit_all(rig)
    before = rig.wait_phase("job", "Running")["split"]["samplers"]["replicas"]
    rig.apply(queued(rig.namespace, gpus=16, trainer={"maxReplicas": 1}))

    def held_up() -> Json | None:
        move = rig.status("job").get("rebalance") or {}
        return move if "Kueue's gate" in move.get("waitingFor", "") else None

    move = eventually(held_up, "the move says what it waits for")
    assert move["phase"] == "Grow"
    admit(rig, waiting(rig)[:2])

    def smaller() -> bool:
        return bool(rig.status("job")["split"]["samplers"]["replicas"] == before + 2)

    eventually(smaller, "the two that were admitted are the split")
    assert not [e for e in rig.events("job") if "Rolling back" in e["message"]]
    assert [e for e in rig.events("job") if "Settled for" in e["message"] and "Kueue's gate" in e["message"]]
    ended = [d["code"] for d in rig.status("job")["decisions"] if d["code"].startswith("Move")]
    assert "MoveRolledBack" not in ended
    assert rig.recorder.peak <= 16


def test_what_no_queue_and_no_node_can_hold_is_refused_before_anything_is_made(rig: Rig, gpu_nodes: GpuNodes) -> None:
    gpu_nodes(4, product=H100)
    rig.start_operator()
    rig.apply(queued(rig.namespace, trainer={"kind": "StatefulSet"}))
    rig.apply(job(rig.namespace, "wide", gpus=32, sampler={"gpusPerReplica": 16}))
    found = rig.wait_condition("job", "Planned", "False", "InvalidTemplate")
    assert "trainer.resize: restart" in found["message"]
    found = rig.wait_condition("wide", "Planned", "False", "WiderThanANode")
    assert "the widest has 8" in found["message"]
    assert "LeaderWorkerSet" in found["message"]
    event = eventually(lambda: [e for e in rig.events("wide") if e["reason"] == "WiderThanANode"], "an event says it")
    assert event[0]["type"] == "Warning"
    assert rig.objects("pods") == []
    rig.apply(queued(rig.namespace, trainer={"kind": "StatefulSet", "resize": "restart"}))
    rig.wait_condition("job", "Planned", "True")


def test_shared_gpus_and_claimed_ones_are_not_counted(rig: Rig, gpu_nodes: GpuNodes, plane: ControlPlane) -> None:
    shared = {"nvidia.com/gpu.sharing-strategy": "time-slicing", "nvidia.com/gpu.replicas": "4"}
    gpu_nodes(1, gpus_per_node=32, product=f"{H100}-SHARED", labels=shared)
    (claimed,) = gpu_nodes(1, product=H100)
    claim = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": "device", "namespace": rig.namespace},
        "spec": {"devices": {"requests": [{"name": "one", "exactly": {"deviceClassName": "gpu.nvidia.com"}}]}},
    }
    user = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "claims", "namespace": rig.namespace},
        "spec": {
            "nodeName": claimed,
            "resourceClaims": [{"name": "device", "resourceClaimName": "device"}],
            "containers": [{"name": "c", "image": "example.com/none:1", "resources": {"claims": [{"name": "device"}]}}],
        },
    }
    plane.apply(yaml.safe_dump_all([claim, user]))
    rig.start_operator()
    rig.apply(job(rig.namespace, gpus=8))
    found = rig.wait_condition("job", "Planned", "False", "DoesNotFit")
    assert "counts shared GPUs (time-slicing, 4 times each) as nvidia.com/gpu" in found["message"]
    assert "has pods of others with resource claims" in found["message"]
    assert rig.objects("pods", "rljob.dev/name=job") == []
    patch = {"metadata": {"labels": {"rljob.dev/resource-claims": "no-gpus"}}}
    plane.api.request("PATCH", f"/api/v1/nodes/{claimed}", patch, content_type="application/merge-patch+json")
    rig.wait_condition("job", "Planned", "True")
    eventually(lambda: rig.objects("pods", "rljob.dev/name=job"), "pods are made")
    assert rig.status("job")["split"]["samplers"]["replicas"] == 4
