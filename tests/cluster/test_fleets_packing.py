"""Jobs that share nodes leave each other whole ones: what the real scheduler makes of the pods' preferences."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from dev.controlplane import ControlPlane
from tests.cluster.conftest import GpuNodes
from tests.cluster.jobs import job
from tests.cluster.rig import GPU, Rig, install, rig_of


@pytest.fixture(scope="module")
def account(plane: ControlPlane) -> Path:
    return install(plane)


@pytest.fixture
def rig(plane: ControlPlane, namespace: str, account: Path, tmp_path: Path, gpu_nodes: GpuNodes) -> Iterator[Rig]:
    gpu_nodes(3, product="NVIDIA-H100-80GB-HBM3")
    yield from rig_of(plane, namespace, account, tmp_path)


@pytest.mark.parametrize("together", [False, True])
def test_two_jobs_that_fit_together_are_both_placed(rig: Rig, together: bool) -> None:
    # 4 + 8 GPUs and 8 + 4 on three nodes of 8: only a packed placement leaves a whole node to the second trainer.
    narrow = job(
        rig.namespace, "narrow", gpus=12, sampler={"minReplicas": 8, "maxReplicas": 8}, rebalance={"mode": "Initial"}
    )
    wide = job(
        rig.namespace,
        "wide",
        gpus=12,
        sampler={"minReplicas": 4, "maxReplicas": 4},
        trainer={"gpusPerReplica": 8},
        rebalance={"mode": "Initial"},
    )
    rig.start_operator()
    rig.apply(narrow)
    if not together:
        rig.wait_condition("narrow", "Ready", "True")
    rig.apply(wide)
    rig.wait_condition("narrow", "Ready", "True")
    rig.wait_condition("wide", "Ready", "True")
    held: Counter[str] = Counter()
    for pod in rig.objects("pods"):
        held[pod["spec"]["nodeName"]] += int(pod["spec"]["containers"][0]["resources"]["requests"][GPU])
    assert sorted(held.values()) == [8, 8, 8]
