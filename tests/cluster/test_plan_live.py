"""Planning a job as it stands in a cluster: the job and its nodes come from the real API server, by the rights of a kubeconfig."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from dev.controlplane import ControlPlane
from tests.cluster.conftest import GpuNodes
from tests.cluster.jobs import job

ROOT = Path(__file__).resolve().parents[2]
JOBS = "/apis/rljob.dev/v1alpha1/namespaces/{}/rljobs"

pytestmark = pytest.mark.cluster


@pytest.fixture
def applied(plane: ControlPlane, namespace: str, gpu_nodes: GpuNodes) -> str:
    """A namespace with a job of 16 GPUs that nobody works on, and two nodes for it."""
    plane.apply((ROOT / "crds" / "rljob.dev_rljobs.yaml").read_text(encoding="utf-8"))
    plane.wait_until(
        "the CRD to be served",
        lambda: plane.kubectl("get", "rljobs", "-n", namespace, check=False).returncode == 0,
    )
    gpu_nodes(2)
    plane.api.request("POST", JOBS.format(namespace), job(namespace))
    return namespace


def rljob(plane: ControlPlane, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"KUBECONFIG": str(plane.kubeconfig), "NO_COLOR": "1"}
    command = [sys.executable, "-m", "rljob_operator.cli", *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120, check=False)


def test_a_job_is_planned_on_the_nodes_that_its_cluster_has(plane: ControlPlane, applied: str) -> None:
    done = rljob(plane, "plan", "rljob/job", "-n", applied, "-o", "json")
    assert done.returncode == 0, done.stderr
    split: dict[str, Any] = json.loads(done.stdout)["split"]
    samplers, trainers = split["samplers"], split["trainers"]
    used = samplers["replicas"] * samplers["gpusPerReplica"] + trainers["replicas"] * trainers["gpusPerReplica"]
    assert 8 < used <= 16
    table = rljob(plane, "plan", "rljob/job", "-n", applied)
    assert "2 nodes of 8 GPUs" in " ".join(table.stdout.split())
    # Reading is all that a plan does.
    assert plane.api.request("GET", JOBS.format(applied))["items"][0].get("status") is None


def test_a_job_that_is_not_there_is_an_error_of_one_line(plane: ControlPlane, applied: str) -> None:
    done = rljob(plane, "plan", "rljob/other", "-n", applied)
    assert done.returncode == 2
    assert "other" in done.stderr
    assert "Traceback" not in done.stderr


def test_kubectl_finds_the_plugin(plane: ControlPlane, applied: str) -> None:
    if shutil.which("kubectl-rljob", path=str(Path(sys.executable).parent)) is None:
        pytest.skip("kubectl-rljob is not installed beside this Python: make setup does it")
    environment = os.environ | {
        "KUBECONFIG": str(plane.kubeconfig),
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "HOME": str(plane.data_dir),
    }
    command = [str(plane.bin("kubectl")), "rljob", "plan", "rljob/job", "-n", applied, "-o", "json"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["split"]["mode"] == "async"
