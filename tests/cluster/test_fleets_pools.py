"""Samplers over node pools on the real scheduler: each where its pool is, and a lost pool that does not stop the job."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dev.controlplane import ControlPlane
from tests.cluster.conftest import TEST_LABEL, GpuNodes
from tests.cluster.jobs import job
from tests.cluster.rig import Rig, eventually, install, rig_of

Json = dict[str, Any]


@pytest.fixture(scope="module")
def account(plane: ControlPlane) -> Path:
    return install(plane)


@pytest.fixture
def rig(plane: ControlPlane, namespace: str, account: Path, tmp_path: Path, gpu_nodes: GpuNodes) -> Iterator[Rig]:
    yield from rig_of(plane, namespace, account, tmp_path)


def pooled_job(namespace: str) -> Json:
    mine = {TEST_LABEL: namespace}
    return job(
        namespace,
        gpus=12,
        sampler={
            "minReplicas": 2,
            "pools": [
                {"name": "near", "selector": {**mine, "pool": "near"}, "maxGPUs": 4},
                {"name": "far", "selector": {**mine, "pool": "far"}},
            ],
        },
        trainer={
            "maxReplicas": 1,
            "nodes": {"selector": {**mine, "pool": "train"}, "tolerations": [{"operator": "Exists"}]},
        },
    )


def samplers(rig: Rig) -> list[Json]:
    return [p for p in rig.objects("pods", "rljob.dev/role=sampler") if not p["metadata"].get("deletionTimestamp")]


def by_pool(rig: Rig) -> Counter[str]:
    return Counter(p["metadata"]["labels"].get("rljob.dev/pool", "none") for p in samplers(rig))


def planned(rig: Rig) -> dict[str, int]:
    return {p["name"]: p["replicas"] for p in rig.status("job")["split"]["samplers"]["pools"]}


def test_a_lost_pool_is_given_up_and_used_again_once_it_is_back(
    rig: Rig, plane: ControlPlane, gpu_nodes: GpuNodes
) -> None:
    gpu_nodes(1, labels={"pool": "train"}, product="NVIDIA-H100-80GB-HBM3")
    (near,) = gpu_nodes(1, labels={"pool": "near"}, product="NVIDIA-H200")
    (far,) = gpu_nodes(1, 4, labels={"pool": "far"}, product="NVIDIA-A100-SXM4-80GB")
    rig.start_operator(RLJOB_OPERATOR_POOL_LOST_AFTER="2s")
    rig.apply(pooled_job(rig.namespace))
    rig.wait_phase("job", "Running")
    assert planned(rig) == {"near": 4, "far": 4}, "the faster pool up to its limit, then the other"
    assert by_pool(rig) == planned(rig)
    for pod in samplers(rig):
        assert pod["spec"]["nodeName"] == {"near": near, "far": far}[pod["metadata"]["labels"]["rljob.dev/pool"]]
    layout = rig.get("configmap", "job-layout")
    assert layout is not None
    endpoints = json.loads(layout["data"]["layout.json"])["samplers"]["endpoints"]
    assert {e["pod"] for e in endpoints} == {p["metadata"]["name"] for p in samplers(rig)}

    plane.lose_node(near)
    found = rig.wait_condition("job", "Degraded", "True", "PoolLost")
    assert "near" in found["message"]
    eventually(lambda: planned(rig) == {"near": 0, "far": 4}, "the split is without the lost pool")
    rig.wait_condition("job", "Ready", "True")
    status = rig.status("job")
    assert [d["code"] for d in status["decisions"]][-1] == "PoolLost"
    assert any(e["reason"] == "PoolLost" and e["type"] == "Warning" for e in rig.events("job"))
    eventually(lambda: by_pool(rig) == {"far": 4}, "only what is left is wished")
    leaving = [p for p in rig.objects("pods") if p["metadata"].get("deletionTimestamp")]
    assert len(leaving) == 4, "nobody can end what runs on a lost node"
    assert status["phase"] == "Running"
    found = rig.wait_condition("job", "Degraded", "True", "PoolLost")
    assert "still count in the budget" in found["message"]

    # Another machine takes the place of the lost one, which a person removes.
    plane.remove_nodes([near])
    gpu_nodes(1, labels={"pool": "near"}, product="NVIDIA-H200")
    plane.api.request(
        "DELETE",
        f"/api/v1/namespaces/{rig.namespace}/pods?fieldSelector=spec.nodeName={near}",
        {"gracePeriodSeconds": 0},
    )
    rig.wait_condition("job", "Degraded", "False", timeout_s=90)
    eventually(lambda: by_pool(rig) == {"near": 4, "far": 4}, "the pool is used again", timeout_s=90)
    rig.wait_condition("job", "Ready", "True")
    assert rig.recorder.peak <= 12
