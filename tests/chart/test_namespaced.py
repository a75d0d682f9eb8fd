"""An operator that serves some namespaces alone, under exactly the rights that the chart then gives it: it runs the jobs there, and no others.

Its own namespace enforces the Pod Security Standard "restricted", as that of a careful platform does.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dev.chart import render
from dev.controlplane import ApiError, ControlPlane, NodeSpec, ensure_built
from dev.installed import SYSTEM, WITHOUT_PODS, Installed, install
from tests.cluster.jobs import job

pytestmark = pytest.mark.cluster

TEAM, OTHERS = "team-a", "team-b"
JOBS = "/apis/rljob.dev/v1alpha1/namespaces/{}/rljobs"


@pytest.fixture(scope="module")
def plane() -> Iterator[ControlPlane]:
    """A plane of its own, since the CRDs of a plane belong to one release."""
    ensure_built()
    with ControlPlane.start(nodes=NodeSpec(count=2, labels={"dev.rljob.dev/test": TEAM})) as running:
        for namespace in (TEAM, OTHERS):
            running.create_namespace(namespace)
        running.create_namespace(SYSTEM, labels={"pod-security.kubernetes.io/enforce": "restricted"})
        yield running


@pytest.fixture(scope="module")
def found(plane: ControlPlane) -> Installed:
    """The release."""
    return install(plane, {**WITHOUT_PODS, "watchNamespaces": [TEAM], "replicas": 2})


def test_its_pods_are_admitted_where_the_restricted_standard_is_enforced(plane: ControlPlane, found: Installed) -> None:
    pods = f"/api/v1/namespaces/{SYSTEM}/pods"
    # The controller manager makes the operator's, and would be refused in silence; helm makes that of the test.
    plane.wait_until("both replicas to be admitted", lambda: len(plane.api.request("GET", pods)["items"]) == 2)
    (test,) = (obj for obj in render({"watchNamespaces": [TEAM]}, templates=["templates/tests/installed.yaml"]))
    test["spec"]["serviceAccountName"] = found.account
    plane.api.request("POST", f"{pods}?dryRun=All", test)
    test["spec"]["containers"][0]["securityContext"]["allowPrivilegeEscalation"] = True
    with pytest.raises(ApiError, match="restricted"):
        plane.api.request("POST", f"{pods}?dryRun=All", test)


def test_it_runs_the_jobs_of_its_namespaces_and_leaves_others_alone(
    plane: ControlPlane, found: Installed, tmp_path: Path
) -> None:
    # Nothing is mounted and no cluster-wide role is left over that could stand in for a missing right.
    assert not found.mounts
    log = tmp_path / "operator.log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            found.local_command, env={**os.environ, **found.local_env(found.local_ports())}, stdout=out, stderr=out
        )
    try:
        # The foreign one first: once the other has come so far, an operator that saw this one would have planned it.
        for namespace in (OTHERS, TEAM):
            body = job(namespace, nodes={"selector": {"dev.rljob.dev/test": TEAM}})
            plane.api.request("POST", JOBS.format(namespace), body)

        def running() -> bool:
            assert process.poll() is None, log.read_text()[-4000:]
            pods = plane.api.request("GET", f"/api/v1/namespaces/{TEAM}/pods")["items"]
            ready = [pod for pod in pods if pod["status"].get("phase") == "Running"]
            return sum(gpus(pod) for pod in ready) == 16

        plane.wait_until("all GPUs of the team's job to be at work", running, timeout_s=120)
        status = plane.api.request("GET", f"{JOBS.format(TEAM)}/job")["status"]
        assert status["split"]
        assert "status" not in plane.api.request("GET", f"{JOBS.format(OTHERS)}/job")
        assert plane.api.request("GET", f"/api/v1/namespaces/{OTHERS}/pods")["items"] == []
    finally:
        process.terminate()
        assert process.wait(timeout=30) == 0
    refused = [
        line for line in log.read_text().splitlines() if re.search(r"forbidden|permission|403", line, re.IGNORECASE)
    ]
    assert refused == []


def gpus(pod: dict[str, Any]) -> int:
    return sum(
        int(c.get("resources", {}).get("limits", {}).get("nvidia.com/gpu", 0)) for c in pod["spec"]["containers"]
    )
