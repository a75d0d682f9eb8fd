"""Several RLJobs on the same nodes of a real control plane: an order, nobody's pods taken, nothing moved because of another, GPUs picked up."""

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


def small(rig: Rig, name: str, gpus: int = 8, **spec: Any) -> Json:
    """A job that fills ``gpus`` GPUs: one trainer of four, and samplers of one."""
    samplers = {"minReplicas": 1, "maxReplicas": gpus - 4}
    return job(rig.namespace, name, gpus=gpus, sampler=samplers, trainer={"maxReplicas": 1}, **spec)


def apply_together(rig: Rig, *jobs: Json) -> None:
    rig.plane.kubectl("apply", "--server-side", "-f", "-", input=yaml.safe_dump_all(jobs))


def pods_of(rig: Rig, name: str) -> dict[str, Json]:
    return {p["metadata"]["uid"]: p for p in rig.objects("pods", f"rljob.dev/name={name}")}


def gpus_of(pods: dict[str, Json]) -> int:
    return sum(int(p["spec"]["containers"][0]["resources"]["requests"][GPU]) for p in pods.values())


def codes(rig: Rig, name: str) -> list[str]:
    return [d["code"] for d in rig.status(name).get("decisions", ())]


def reasons(rig: Rig, name: str) -> set[str]:
    return {e["reason"] for e in rig.events(name)}


def test_two_jobs_applied_together_are_both_placed_if_both_fit(rig: Rig, gpu_nodes: GpuNodes) -> None:
    gpu_nodes(2, product="NVIDIA-H100-80GB-HBM3")
    rig.start_operator()
    apply_together(rig, small(rig, "one"), small(rig, "two"))
    for name in ("one", "two"):
        rig.wait_phase(name, "Running")
        rig.wait_condition(name, "Scheduled", "True")
        assert gpus_of(pods_of(rig, name)) == 8
        assert "MoveStarted" not in reasons(rig, name)
        assert codes(rig, name) == ["InitialPlan"]
    assert rig.recorder.peak == 16


def test_the_higher_priority_plans_first_nobody_is_evicted_and_freed_gpus_are_picked_up(
    rig: Rig, gpu_nodes: GpuNodes
) -> None:
    gpu_nodes(1, product="NVIDIA-H100-80GB-HBM3")
    # Both wait for the operator, the lower one longer.
    apply_together(rig, small(rig, "low"))
    apply_together(rig, small(rig, "high", priority=10))
    # Woken by nothing but what happens: the tick is longer than any wait.
    rig.start_operator(RLJOB_OPERATOR_IDLE_TICK="2m")
    rig.wait_phase("high", "Running")
    told = rig.wait_condition("low", "Planned", "False", "DoesNotFit")["message"]
    # Whether the pods of the other are there already is a matter of moments.
    assert f"RLJob {rig.namespace}/high" in told
    assert "others hold 8" in told
    assert pods_of(rig, "low") == {}
    running = set(pods_of(rig, "high"))

    apply_together(rig, small(rig, "urgent", priority=1000))
    told = rig.wait_condition("urgent", "Planned", "False", "DoesNotFit")["message"]
    assert f"RLJob {rig.namespace}/high holds 8 GPUs" in told
    assert set(pods_of(rig, "high")) == running

    rig.plane.kubectl("delete", "rljob", "high", "-n", rig.namespace, "--wait=false")
    rig.wait_phase("urgent", "Running")
    assert rig.condition("low", "Planned")["status"] == "False"  # type: ignore[index]
    rig.plane.kubectl("delete", "rljob", "urgent", "-n", rig.namespace, "--wait=false")
    rig.wait_phase("low", "Running")
    assert gpus_of(pods_of(rig, "low")) == 8
    for name in ("low", "urgent"):
        assert {"DoesNotFit", "InitialPlan"} <= reasons(rig, name)
    assert codes(rig, "low") == ["InitialPlan"]
    rig.wait_condition("low", "Planned", "True")
    assert rig.recorder.peak <= 8


def test_minima_are_kept_for_the_job_that_waits_first_and_no_job_moves_for_another(
    rig: Rig, gpu_nodes: GpuNodes
) -> None:
    gpu_nodes(2, product="NVIDIA-H100-80GB-HBM3")
    rig.start_operator()
    # Six GPUs on one node are left to those that come later.
    apply_together(rig, small(rig, "first", gpus=10))
    rig.wait_phase("first", "Running")
    first = set(pods_of(rig, "first"))
    # Needs a whole node: it waits, and what is free adds up for it.
    apply_together(rig, job(rig.namespace, "wide", gpus=12, priority=5, trainer={"gpusPerReplica": 8}))
    rig.wait_condition("wide", "Planned", "False", "DoesNotFit")
    narrow = job(rig.namespace, "narrow", gpus=5, sampler={"maxReplicas": 1}, trainer={"maxReplicas": 1})
    apply_together(rig, narrow)
    eventually(lambda: rig.condition("narrow", "Planned"), "the narrow job is planned or refused")
    rig.plane.kubectl("delete", "rljob", "first", "-n", rig.namespace, "--wait=false")
    rig.wait_phase("wide", "Running")
    eventually(lambda: rig.status("narrow").get("phase") == "Running", "the narrow job gets what is left")
    assert gpus_of(pods_of(rig, "wide")) >= 9
    assert first.isdisjoint(pods_of(rig, "wide"))
    for name in ("wide", "narrow"):
        assert "MoveStarted" not in reasons(rig, name)
        assert codes(rig, name)[0] == "InitialPlan"
        assert not {"Move", "MoveCommitted", "SpecChanged"} & set(codes(rig, name))
    assert rig.recorder.peak <= 16


def test_a_quota_lowered_below_what_is_in_use_is_followed_by_the_last_job(rig: Rig, gpu_nodes: GpuNodes) -> None:
    gpu_nodes(2, product="NVIDIA-H100-80GB-HBM3")

    def quota(gpus: int) -> str:
        hard = {f"requests.{GPU}": str(gpus)}
        meta = {"name": "team", "namespace": rig.namespace}
        return yaml.safe_dump({"apiVersion": "v1", "kind": "ResourceQuota", "metadata": meta, "spec": {"hard": hard}})

    rig.plane.apply(quota(16))
    rig.start_operator()
    apply_together(rig, small(rig, "one"))
    rig.wait_phase("one", "Running")
    apply_together(rig, small(rig, "two"))
    rig.wait_phase("two", "Running")
    kept = set(pods_of(rig, "one"))
    assert gpus_of(pods_of(rig, "two")) == 8
    rig.plane.apply(quota(13))
    eventually(lambda: gpus_of(pods_of(rig, "two")) == 5, "the last job follows the quota down", timeout_s=90)
    eventually(lambda: rig.status("two").get("rebalance") is None, "its move ends", timeout_s=60)
    assert set(pods_of(rig, "one")) == kept
    assert "MoveStarted" not in reasons(rig, "one")
    assert "MoveStarted" in reasons(rig, "two")
    started = next(e for e in rig.events("two") if e["reason"] == "MoveStarted")
    assert "ResourceQuota team leaves 5" in started["message"]
    rig.wait_condition("two", "Ready", "True")
    rig.wait_condition("two", "Rebalancing", "False")
    assert rig.condition("one", "Ready")["status"] == "True"  # type: ignore[index]
    assert {"SpecChanged", "MoveCommitted"} <= set(codes(rig, "two"))
    assert codes(rig, "one")[0] == "InitialPlan"
    assert "MoveCommitted" not in codes(rig, "one")
