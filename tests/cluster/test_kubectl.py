"""``kubectl rljob`` by the real kubectl, as somebody who holds the chart's edit role in one namespace and nothing else."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dev.chart import render
from dev.controlplane import ControlPlane
from tests.cluster.moving import budget_job, codes, pods, read, settled, status, until
from tests.cluster.rig import Rig

Json = dict[str, Any]

RBAC = "/apis/rbac.authorization.k8s.io/v1"
PLUGINS = Path(sys.executable).parent
"""Where the package puts kubectl-rljob."""

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.skipif(
        shutil.which("kubectl-rljob", path=str(PLUGINS)) is None,
        reason="kubectl-rljob is not installed beside this Python: make setup does it",
    ),
]


@pytest.fixture
def editor(plane: ControlPlane, namespace: str) -> Iterator[Path]:
    """The kubeconfig of a user of the namespace, bound to the chart's edit role alone."""
    named = {"fullnameOverride": namespace, "crds": {"install": False}}
    role = next(
        each
        for each in render(named)
        if each["kind"] == "ClusterRole" and each["metadata"]["name"] == f"{namespace}-edit"
    )
    # It must not reach other tests' users through the cluster's own roles.
    role["metadata"].pop("labels", None)
    plane.api.request("POST", f"{RBAC}/clusterroles", role)
    plane.api.request("POST", f"/api/v1/namespaces/{namespace}/serviceaccounts", {"metadata": {"name": "anna"}})
    binding = {
        "metadata": {"name": "anna"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": f"{namespace}-edit"},
        "subjects": [{"kind": "ServiceAccount", "name": "anna", "namespace": namespace}],
    }
    plane.api.request("POST", f"{RBAC}/namespaces/{namespace}/rolebindings", binding)
    yield plane.service_account_kubeconfig(namespace, "anna")
    plane.api.request("DELETE", f"{RBAC}/clusterroles/{namespace}-edit")


class Kubectl:
    """The plugin as the user runs it."""

    def __init__(self, rig: Rig, kubeconfig: Path) -> None:
        self._command = [str(rig.plane.bin("kubectl")), "rljob"]
        self._namespace = rig.namespace
        self._env = os.environ | {
            "KUBECONFIG": str(kubeconfig),
            "PATH": f"{PLUGINS}{os.pathsep}{os.environ['PATH']}",
            "HOME": str(rig.plane.data_dir),
            "NO_COLOR": "1",
        }

    def __call__(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Runs it to its end."""
        return subprocess.run(
            [*self._command, *arguments], capture_output=True, text=True, env=self._env, timeout=120, check=False
        )

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """Starts it; what it says comes in a pipe."""
        return subprocess.Popen(
            [*self._command, *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=self._env
        )


def said(done: subprocess.CompletedProcess[str]) -> str:
    return " ".join((done.stdout + done.stderr).split())


def test_an_editor_looks_at_a_job_moves_it_pauses_it_and_resumes_it(rig: Rig, editor: Path) -> None:
    kubectl = Kubectl(rig, editor)
    rig.start_operator()
    # Eight of twelve possible samplers, and mode Recommend: nothing moves but by hand.
    rig.apply(
        budget_job(
            rig.namespace,
            sampler={"maxReplicas": 8},
            trainer={"minReplicas": 1, "maxReplicas": 2},
            rebalance={"mode": "Recommend"},
        )
    )
    until(rig, lambda: status(rig).get("phase") == "Running", "the job runs")
    found = status(rig)["split"]
    there = (found["samplers"]["replicas"], found["trainers"]["replicas"])
    settled(rig, *there)

    shown = kubectl("status", "job")
    assert shown.returncode == 0, shown.stderr
    assert f"{there[0]}/{there[0]} samplers of 1 GPU and {there[1]}/{there[1]} trainers of 4 GPUs ready" in said(shown)
    everything = json.loads(kubectl("status", "-o", "json").stdout)
    assert [(job["name"], job["phase"]) for job in everything["items"]] == [("job", "Running")]

    watching = kubectl.start("status", "job", "-w")
    assert watching.stdout is not None
    # It is there before the move begins.
    assert "job" in watching.stdout.readline()
    target = (4, 2) if there != (4, 2) else (6, 1)
    try:
        moved = kubectl("move", "job", "--samplers", str(target[0]), "--trainers", str(target[1]))
    finally:
        watching.send_signal(signal.SIGINT)
    assert moved.returncode == 0, said(moved)
    assert f"done. Runs {target[0]}×1 samplers + {target[1]}×4 trainers" in said(moved)
    lines = watching.stdout.read()
    assert watching.wait(timeout=60) == 0
    assert "by hand" in lines
    assert "waits for" in lines
    settled(rig, *target)
    assert "MoveByHand" in codes(rig)
    (answer,) = status(rig)["moves"]["requests"]
    assert answer["outcome"] == "Done"
    assert answer["by"] == f"system:serviceaccount:{rig.namespace}:anna"
    assert rig.recorder.peak <= 16

    # What the operator alone can know is refused by it, what the spec says already by the command.
    beyond = kubectl("move", "job", "--samplers", "9", "--trainers", "1")
    assert beyond.returncode == 4
    assert "9 samplers are more than sampler.maxReplicas 8: with 1 trainer ask for 8 samplers at most" in said(beyond)
    path = f"/apis/rljob.dev/v1alpha1/namespaces/{rig.namespace}/rljobs/job"
    text = json.dumps({"id": "old", "samplers": 8, "trainers": 1, "at": "2020-01-01T00:00:00Z"})
    rig.plane.kubectl("-n", rig.namespace, "annotate", "rljob", "job", "--overwrite", f"rljob.dev/move={text}")
    until(rig, lambda: len(status(rig)["moves"]["requests"]) == 2, "an answer to an old request")
    assert status(rig)["moves"]["requests"][-1]["outcome"] == "Refused"
    settled(rig, *target)

    paused = kubectl("pause", "job", "--yes")
    assert paused.returncode == 0, said(paused)
    assert f"frees {target[0] + 4 * target[1]} GPUs" in said(paused)
    assert paused.stdout.splitlines()[-1] == "rljob/job: all GPUs are free"
    assert pods(rig) == []
    assert "resume it first (rljob resume NAME)" in said(kubectl("move", "job", "--samplers", "8", "--trainers", "1"))
    resumed = kubectl("resume", "job")
    assert resumed.returncode == 0, said(resumed)
    settled(rig, *target)

    # The role is enough for all of that, and for nothing else.
    managers = {each["manager"] for each in (read(rig, path) or {})["metadata"]["managedFields"]}
    assert "rljob" in managers
    denied = kubectl("status", "-A")
    assert denied.returncode == 2
    assert "forbidden" in said(denied)
