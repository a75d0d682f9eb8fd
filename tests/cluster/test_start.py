"""From ``kubectl apply`` to running pods, and every reason why a job can't start: said, and nothing half-created."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from dev.controlplane import ControlPlane
from tests.cluster.conftest import GpuNodes
from tests.cluster.jobs import job
from tests.cluster.rig import GPU, Rig, eventually, install, rig_of

Json = dict[str, Any]


@pytest.fixture(scope="module")
def account(plane: ControlPlane) -> Path:
    return install(plane)


@pytest.fixture
def rig(plane: ControlPlane, namespace: str, account: Path, tmp_path: Path, gpu_nodes: GpuNodes) -> Iterator[Rig]:
    yield from rig_of(plane, namespace, account, tmp_path)


def nothing_was_created(rig: Rig) -> None:
    for kind in ("deployments", "statefulsets", "pods", "services"):
        assert rig.objects(kind) == [], kind
    assert [m["metadata"]["name"] for m in rig.objects("configmaps")] == ["kube-root-ca.crt"]


def blocker(namespace: str, name: str, gpus: int, node: str) -> str:
    """A pod of somebody else that holds GPUs on a node."""
    return yaml.safe_dump(
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "namespace": namespace},
            "spec": {
                "nodeName": node,
                "tolerations": [{"operator": "Exists"}],
                "containers": [{"name": "c", "image": "i", "resources": {"limits": {GPU: str(gpus)}}}],
            },
        }
    )


def test_a_job_is_planned_placed_and_ready_and_kubectl_shows_it(rig: Rig, gpu_nodes: GpuNodes) -> None:
    gpu_nodes(2, product="NVIDIA-H100-80GB-HBM3")
    rig.start_operator()
    rig.apply(job(rig.namespace))
    rig.plane.kubectl("wait", "--for=condition=Planned", "rljob/job", "-n", rig.namespace, "--timeout=30s")
    rig.plane.kubectl("wait", "--for=condition=Ready", "rljob/job", "-n", rig.namespace, "--timeout=30s")
    status = rig.wait_phase("job", "Running")
    split = status["split"]
    used = split["samplers"]["replicas"] + 4 * split["trainers"]["replicas"]
    assert 5 <= used <= 16
    assert rig.recorder.peak <= 16
    pods = rig.objects("pods")
    assert len(pods) == split["samplers"]["replicas"] + split["trainers"]["replicas"]
    assert all(p["spec"].get("nodeName") and not p["spec"].get("schedulingGates") for p in pods)
    header, row = rig.plane.kubectl("get", "rljobs", "-n", rig.namespace).stdout.splitlines()
    assert header.split() == ["NAME", "PHASE", "GPUS", "SAMPLERS", "TRAINERS", "PERIOD", "STALENESS", "AGE"]
    samplers, trainers = split["samplers"]["replicas"], split["trainers"]["replicas"]
    assert row.split()[:5] == ["job", "Running", "16", f"{samplers}/{samplers}", f"{trainers}/{trainers}"]
    assert rig.objects("configmaps", "rljob.dev/name=job")
    assert any(e["reason"] == "InitialPlan" for e in rig.events("job"))
    owners = {o["kind"] for d in rig.objects("deployments") for o in d["metadata"]["ownerReferences"]}
    assert owners == {"RLJob"}
    assert "finalizers" not in (rig.get("rljob", "job") or {})["metadata"]


def test_a_job_larger_than_the_cluster_says_what_is_missing(rig: Rig, gpu_nodes: GpuNodes) -> None:
    gpu_nodes(1, gpus_per_node=2, product="NVIDIA-H100-80GB-HBM3")
    rig.start_operator()
    rig.apply(job(rig.namespace))
    found = rig.wait_condition("job", "Planned", "False", "WiderThanANode")
    assert "trainer" in found["message"]
    assert rig.status("job")["phase"] == "Pending"
    nothing_was_created(rig)
    eventually(lambda: any(e["reason"] == "WiderThanANode" for e in rig.events("job")), "an event says it")
    # Nodes come: the job starts by itself.
    gpu_nodes(1, gpus_per_node=8, product="NVIDIA-H100-80GB-HBM3")
    rig.wait_phase("job", "Running")


def test_a_budget_that_is_not_placeable_is_used_as_far_as_it_goes(rig: Rig, gpu_nodes: GpuNodes) -> None:
    gpu_nodes(1, product="NVIDIA-H100-80GB-HBM3")
    rig.start_operator()
    rig.apply(job(rig.namespace))
    found = rig.wait_condition("job", "Planned", "True")
    assert "budget 16, placeable 8" in found["message"]
    assert rig.wait_phase("job", "Running")["plan"]["placeableGpus"] == 8
    assert rig.recorder.peak <= 8


def test_gpus_of_other_pods_are_left_alone(rig: Rig, gpu_nodes: GpuNodes) -> None:
    first, _ = gpu_nodes(2, product="NVIDIA-H100-80GB-HBM3")
    rig.plane.apply(blocker(rig.namespace, "other", 6, first))
    rig.start_operator()
    rig.apply(job(rig.namespace))
    rig.wait_phase("job", "Running")
    mine = [p for p in rig.objects("pods", "rljob.dev/name=job") if p["spec"]["nodeName"] == first]
    assert sum(int(p["spec"]["containers"][0]["resources"]["requests"][GPU]) for p in mine) <= 2
    assert rig.status("job")["plan"]["placeableGpus"] == 10


def test_a_quota_below_the_budget_lowers_the_plan_and_one_below_the_minima_stops_it(
    rig: Rig, gpu_nodes: GpuNodes
) -> None:
    gpu_nodes(2, product="NVIDIA-H100-80GB-HBM3")
    quota = {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "team", "namespace": rig.namespace},
        "spec": {"hard": {f"requests.{GPU}": "4"}},
    }
    rig.plane.apply(yaml.safe_dump(quota))
    rig.start_operator()
    rig.apply(job(rig.namespace))
    found = rig.wait_condition("job", "Planned", "False", "DoesNotFit")
    assert "team" in found["message"]
    nothing_was_created(rig)
    quota["spec"]["hard"][f"requests.{GPU}"] = "8"
    rig.plane.apply(yaml.safe_dump(quota))
    found = rig.wait_condition("job", "Planned", "True")
    assert "quota team leaves 8 GPUs of the budget of 16" in found["message"]
    rig.wait_phase("job", "Running")
    assert rig.recorder.peak <= 8


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"spec": {"containers": [{"name": "Not_A_Name", "image": "i"}]}}, "Not_A_Name"),
        ({"spec": {"priorityClassName": "none-such"}}, "none-such"),
        ({"spec": {"nodeName": "here"}}, "nodeName"),
    ],
)
def test_a_bad_template_is_refused_before_anything_is_made(
    rig: Rig, gpu_nodes: GpuNodes, change: Json, words: str
) -> None:
    gpu_nodes(2, product="NVIDIA-H100-80GB-HBM3")
    rig.start_operator()
    rig.apply(job(rig.namespace, sampler={"template": change}))
    found = rig.wait_condition("job", "Planned", "False", "InvalidTemplate")
    assert words in found["message"]
    nothing_was_created(rig)
    eventually(lambda: any(e["reason"] == "InvalidTemplate" for e in rig.events("job")), "an event says it")


def test_a_deleted_samplers_replacement_waits_for_its_gpus(rig: Rig, gpu_nodes: GpuNodes) -> None:
    gpu_nodes(1, product="NVIDIA-H100-80GB-HBM3")
    rig.start_operator()
    slow = {"metadata": {"annotations": {"dev.rljob.dev/hang-terminating": "true"}}}
    # Eight GPUs for one trainer of four and four samplers: nothing is left over for a ninth.
    rig.apply(job(rig.namespace, gpus=8, sampler={"template": slow, "minReplicas": 4}))
    rig.wait_phase("job", "Running")
    assert rig.status("job")["split"]["samplers"]["replicas"] == 4
    victim = rig.objects("pods", "rljob.dev/role=sampler")[0]["metadata"]["name"]
    rig.plane.kubectl("delete", "pod", victim, "-n", rig.namespace, "--wait=false")

    def replacement() -> Json | None:
        return next(
            (p for p in rig.objects("pods", "rljob.dev/role=sampler") if p["spec"].get("schedulingGates")), None
        )

    name = eventually(replacement, "a replacement behind the gate")["metadata"]["name"]
    found = rig.wait_condition("job", "Scheduled", "False", "WaitingForBudget")
    assert "8 of 8 GPUs" in found["message"]
    still = rig.get("pod", name)
    assert still is not None
    assert still["spec"]["schedulingGates"] == [{"name": "rljob.dev/budget"}]
    assert rig.get("pod", victim) is not None, "the old pod still holds its GPU"
    rig.plane.kubectl("annotate", "pod", victim, "-n", rig.namespace, "dev.rljob.dev/hang-terminating-")
    rig.wait_condition("job", "Ready", "True")
    assert rig.recorder.peak <= 8


def test_deleting_a_job_takes_its_children_along_also_without_the_operator(rig: Rig, gpu_nodes: GpuNodes) -> None:
    gpu_nodes(2, product="NVIDIA-H100-80GB-HBM3")
    operator = rig.start_operator()
    for alive in (True, False):
        rig.apply(job(rig.namespace))
        rig.wait_condition("job", "Ready", "True")
        if not alive:
            operator.kill()
        rig.plane.kubectl("delete", "rljob", "job", "-n", rig.namespace, "--timeout=20s")
        eventually(lambda: not rig.objects("pods") and not rig.objects("deployments"), "the children are gone")
        assert rig.objects("configmaps", "rljob.dev/name=job") == []
        assert rig.objects("services", "rljob.dev/name=job") == []


def test_a_suspended_job_is_planned_and_holds_nothing_until_it_is_resumed(rig: Rig, gpu_nodes: GpuNodes) -> None:
    gpu_nodes(2, product="NVIDIA-H100-80GB-HBM3")
    rig.start_operator()
    rig.apply(job(rig.namespace, suspend=True))
    rig.wait_condition("job", "Planned", "True")
    status = rig.wait_phase("job", "Suspended")
    assert status["plan"]["split"]["samplers"]["replicas"] >= 1
    nothing_was_created(rig)
    rig.apply(job(rig.namespace, suspend=False))
    rig.wait_phase("job", "Running")
    rig.apply(job(rig.namespace, suspend=True))
    # Without metrics nobody knows when the samplers are drained: the drain timeout ends the wait.
    eventually(lambda: not rig.objects("pods"), "all GPUs are freed", timeout_s=60)
    assert rig.status("job")["phase"] == "Suspended"


def test_an_edited_child_is_reported_and_restored(rig: Rig, gpu_nodes: GpuNodes) -> None:
    gpu_nodes(2, product="NVIDIA-H100-80GB-HBM3")
    rig.start_operator()
    rig.apply(job(rig.namespace))
    status = rig.wait_phase("job", "Running")
    rig.plane.kubectl("scale", "deployment/job-samplers", "--replicas=1", "-n", rig.namespace)
    eventually(lambda: any(e["reason"] == "ChildEdited" for e in rig.events("job")), "the edit is reported")
    rig.wait_condition("job", "Ready", "True")
    child = rig.get("deployment", "job-samplers")
    assert child is not None
    assert child["spec"]["replicas"] == status["split"]["samplers"]["replicas"]
    samplers = rig.objects("pods", "rljob.dev/name=job,rljob.dev/role=sampler")
    assert len(samplers) == status["split"]["samplers"]["replicas"]
    assert next(d["code"] for d in rig.status("job")["decisions"]) == "InitialPlan"
    assert rig.status("job")["split"] == status["split"]
