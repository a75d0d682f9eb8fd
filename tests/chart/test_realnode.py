"""The chart's own Deployment as pods that a kubelet runs: the image of the Containerfile, read-only, as nobody, probed, elected.

Not part of a run that does not ask for it with RLJOB_REALNODE=1: it needs root, and changes kernel settings and network interfaces of the
machine for as long as it runs. NetworkPolicies are rendered elsewhere, and enforced by nothing here.
"""

from __future__ import annotations

import json
import os
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from dev.controlplane import ControlPlane, NodeSpec
from dev.installed import RELEASE, SYSTEM, install, run_helm
from dev.realnode import RealNode, machine, missing
from dev.realnode.image import stored
from dev.realnode.requirements import program
from dev.trial import IMAGE, JOB, LABEL, TAG, VALUES, planned_job, wait_planned

VARIABLE = "RLJOB_REALNODE"
ARCHIVE_VARIABLE = "RLJOB_REALNODE_IMAGE"
"""Names an archive in the OCI layout that holds the image under the trial's name already; else it is built."""


def _reason() -> str | None:
    if os.environ.get(VARIABLE) != "1":
        return f"changes kernel settings and networks of this machine while it runs: ask for it with {VARIABLE}=1, or make test-realnode"
    return missing()


pytestmark = [pytest.mark.cluster, pytest.mark.realnode, pytest.mark.skipif(bool(_reason()), reason=str(_reason()))]


def rules() -> str:
    """The machine's packet filter, without counters and comments."""
    text = subprocess.run([program("iptables") + "-save"], capture_output=True, text=True, check=True).stdout
    return "\n".join(line for line in text.splitlines() if line.startswith("-A"))


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if given := os.environ.get(ARCHIVE_VARIABLE):
        return Path(given)
    folder = tmp_path_factory.mktemp("image")
    return stored(folder / "build", f"{IMAGE}:{TAG}", folder / "image.tar")


@pytest.fixture(scope="module")
def plane(image: Path) -> Iterator[ControlPlane]:
    """A plane whose one node is this machine, with the chart installed and its pods ready."""
    before = (machine.settings(), rules(), Path("/proc/self/mountinfo").read_text().count("\n"))
    with ControlPlane.start() as running, RealNode.start(running, images=[image]) as node:
        install(running, VALUES)
        try:
            running.kubectl("rollout", "status", f"deployment/{RELEASE}", "-n", SYSTEM, "--timeout=240s")
        except subprocess.CalledProcessError as error:
            pods = running.kubectl("describe", "pods", "-n", SYSTEM).stdout
            raise AssertionError(f"{error}\n{pods[-6000:]}\n{node.logs()}") from error
        yield running
    after = (machine.settings(), rules(), Path("/proc/self/mountinfo").read_text().count("\n"))
    assert after == before, "the machine is not as it was before the node"
    assert not Path("/sys/class/net", machine.BRIDGE).exists()


def pods(plane: ControlPlane) -> list[dict[str, Any]]:
    path = f"/api/v1/namespaces/{SYSTEM}/pods?labelSelector=app.kubernetes.io%2Fname%3Drljob-operator"
    return [p for p in plane.api.request("GET", path)["items"] if "deletionTimestamp" not in p["metadata"]]


def inside(plane: ControlPlane, pod: str, code: str) -> str:
    """What a piece of Python prints in a pod."""
    return plane.kubectl("exec", "-n", SYSTEM, pod, "--", "python", "-c", code).stdout


def metrics(pod: dict[str, Any]) -> str:
    with urllib.request.urlopen(f"http://{pod['status']['podIP']}:9090/metrics", timeout=20) as answer:
        return str(answer.read().decode())


def holder(plane: ControlPlane) -> str:
    lease = plane.api.request("GET", f"/apis/coordination.k8s.io/v1/namespaces/{SYSTEM}/leases/{RELEASE}")
    return str(lease["spec"].get("holderIdentity") or "")


def test_two_replicas_run_as_nobody_on_a_read_only_root(plane: ControlPlane) -> None:
    found = pods(plane)
    assert len(found) == 2
    look = """
import json, os
status = dict(line.split(":", 1) for line in open("/proc/1/status"))
def writes(path):
    try:
        open(path, "w").close()
    except OSError as error:
        return error.strerror
    return "written"
print(json.dumps({
    "uid": status["Uid"].split()[0], "gid": status["Gid"].split()[0], "capabilities": status["CapEff"].strip(),
    "seccomp": status["Seccomp"].strip(), "noNewPrivileges": status["NoNewPrivs"].strip(),
    "root": writes("/x"), "environment": writes("/opt/rljob/x"), "tmp": writes("/tmp/x"),
    "command": open("/proc/1/cmdline").read().split(chr(0))[:3],
}))
"""
    for pod in found:
        seen = json.loads(inside(plane, pod["metadata"]["name"], look))
        assert seen == {
            "uid": "65532", "gid": "65532", "capabilities": "0000000000000000", "seccomp": "2", "noNewPrivileges": "1",
            "root": "Read-only file system", "environment": "Read-only file system", "tmp": "Read-only file system",
            "command": ["python", "-m", "rljob_operator"],
        }  # fmt: skip
        (status,) = pod["status"]["containerStatuses"]
        assert (status["ready"], status["started"], status["restartCount"]) == (True, True, 0)


def test_the_simulator_comes_compiled(plane: ControlPlane) -> None:
    """Were its machine code not found, numba would be loaded to compile it, at every start."""
    code = """
import sys
from rljob_planner._native import is_compiled
from rljob_planner.simulate import warm_up
before = is_compiled()
warm_up()
print(before, "numba" in sys.modules)
"""
    assert inside(plane, pods(plane)[0]["metadata"]["name"], code).split() == ["True", "False"]


def test_helm_test_passes_through_the_service(plane: ControlPlane) -> None:
    said = run_helm(plane, "test", RELEASE, "--namespace", SYSTEM, "--logs", "--timeout", "3m").stdout
    for line in ("the API server serves RLJobs", "the operator is well", "the operator exports its metrics"):
        assert f"ok: {line}" in said, said


def test_one_leads_plans_a_job_and_hands_over_when_its_pod_goes(plane: ControlPlane) -> None:
    names = {pod["metadata"]["name"]: pod for pod in pods(plane)}
    plane.wait_until("a leader", lambda: holder(plane).partition("_")[0] in names)
    leader = holder(plane).partition("_")[0]
    (standby,) = set(names) - {leader}
    assert "rljob_operator_leader 1.0" in metrics(names[leader])
    assert "rljob_operator_leader 0.0" in metrics(names[standby])

    plane.add_nodes(NodeSpec(count=2, gpus_per_node=8, name_prefix="trial", labels={LABEL: "true"}))
    plane.create_namespace(JOB)
    plane.apply(yaml.safe_dump(planned_job(JOB)))
    assert wait_planned(plane, JOB)
    assert f'rljob_name="{JOB}"' in metrics(names[leader])

    plane.api.request("DELETE", f"/api/v1/namespaces/{SYSTEM}/pods/{leader}")
    plane.wait_until("the other to lead", lambda: holder(plane).partition("_")[0] == standby)
    plane.wait_until("the other's metrics of the job", lambda: f'rljob_name="{JOB}"' in metrics(names[standby]))
    plane.wait_until("two replicas again", lambda: len(pods(plane)) == 2)
    log = plane.kubectl("logs", "-n", SYSTEM, standby).stdout
    assert "Traceback" not in log, log[-4000:]
