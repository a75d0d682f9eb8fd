"""Two replicas of the operator on a real API server: killed, told to stop, suspended, and both at work at once.

Each replica goes through an address of its own of the fault-injecting proxy, whose record says who wrote what and when.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from dev.controlplane import ControlPlane
from dev.controlplane.proxy import Fault, Proxy, Rule, Write, effective
from tests.cluster.conftest import GpuNodes
from tests.cluster.jobs import job
from tests.cluster.rig import ELECTED, SYSTEM, Operator, Rig, eventually, holder, install, rig_of

Json = dict[str, Any]

DRAINS_LONG: Json = {"drainTimeout": "4s"}
LEASES = "/leases"


@pytest.fixture(scope="module")
def account(plane: ControlPlane) -> Path:
    return install(plane)


@pytest.fixture
def rig(plane: ControlPlane, namespace: str, account: Path, tmp_path: Path, gpu_nodes: GpuNodes) -> Iterator[Rig]:
    gpu_nodes(4, product="NVIDIA-H100-80GB-HBM3")
    yield from rig_of(plane, namespace, account, tmp_path)


@pytest.fixture
def proxy(plane: ControlPlane) -> Iterator[Proxy]:
    plane.kubectl("delete", "leases", "rljob-operator", "-n", SYSTEM, "--ignore-not-found")
    with Proxy.start(plane.server, plane.ca_file, seed=1) as running:
        yield running


def replica(rig: Rig, proxy: Proxy, account: Path, tmp_path: Path, name: str, **env: str) -> Operator:
    kubeconfig = proxy.kubeconfig(name, account, tmp_path / f"{name}.kubeconfig")
    return rig.start_operator(name, kubeconfig, RLJOB_OPERATOR_IDENTITY=name, **{**ELECTED, **env})


def leads(rig: Rig, name: str, *, timeout_s: float = 60.0) -> None:
    eventually(lambda: holder(rig) == name, f"{name} leads", timeout_s=timeout_s)


def in_phase(rig: Rig, phase: str) -> None:
    eventually(lambda: (rig.status("job").get("rebalance") or {}).get("phase") == phase, f"the move is in {phase}")


def committed(rig: Rig, name: str = "job") -> Json:
    """Waits for the end of the move into a budget of 8 GPUs; returns the status."""

    def ended() -> Json | None:
        found = rig.status(name)
        return (
            found
            if found.get("rebalance") is None and found.get("moves", {}).get("lastOutcome") == "Committed"
            else None
        )

    status: Json = eventually(ended, f"the move of {name} is committed", timeout_s=90)
    assert status["split"]["samplers"]["replicas"] + 4 * status["split"]["trainers"]["replicas"] <= 8
    return status


def told(rig: Rig, name: str = "job") -> None:
    """Asserts that pods, conditions, events and decisions tell the move into a budget of 8 GPUs, whoever ended it."""
    rig.wait_condition(name, "Ready", "True")
    rig.wait_condition(name, "Rebalancing", "False")
    status = rig.status(name)
    wanted = status["split"]["samplers"]["replicas"] + status["split"]["trainers"]["replicas"]
    eventually(lambda: len(rig.objects("pods", f"rljob.dev/name={name}")) == wanted, "the pods are those of the split")
    assert {"SpecChanged", "MoveCommitted"} <= {d["code"] for d in status["decisions"]}
    eventually(lambda: "MoveVerify" in {e["reason"] for e in rig.events(name)}, "an event tells the end")


def seen(rig: Rig, name: str) -> bool:
    """Whether the operator has looked at the latest edit of a job."""
    found = rig.get("rljob", name)
    return found is not None and found.get("status", {}).get("observedGeneration") == found["metadata"]["generation"]


def taken(writes: list[Write], name: str) -> float:
    """When a replica took the Lease last, on the proxy's clock."""
    return max(
        w.forwarded_s
        for w in writes
        if w.client == name and w.took_effect and w.forwarded_s is not None and _spec(w).get("acquireTime")
    )


def given_back(writes: list[Write], name: str) -> float:
    """When a replica gave the Lease back."""
    return max(
        w.forwarded_s
        for w in writes
        if w.client == name and w.took_effect and w.forwarded_s is not None and _spec(w).get("holderIdentity") == ""
    )


def _spec(write: Write) -> Json:
    return dict((write.body or {}).get("spec") or {})


def marked(rig: Rig, name: str) -> None:
    """Asserts that the job and all its children carry the mark of a replica."""
    assert rig.status("job")["holder"].startswith(f"{name}_")
    for kind in ("deployments", "services", "configmaps"):
        for child in rig.objects(kind, "rljob.dev/name=job"):
            assert child["metadata"]["annotations"]["rljob.dev/holder"].startswith(f"{name}_"), (
                kind,
                child["metadata"]["name"],
            )


def test_a_leader_killed_in_mid_move_is_followed_by_one_that_ends_the_move(
    rig: Rig, proxy: Proxy, account: Path, tmp_path: Path
) -> None:
    first = replica(rig, proxy, account, tmp_path, "first")
    leads(rig, "first")
    replica(rig, proxy, account, tmp_path, "second")
    rig.apply(job(rig.namespace, sampler=DRAINS_LONG))
    rig.wait_condition("job", "Ready", "True")
    marked(rig, "first")
    rig.apply(job(rig.namespace, sampler=DRAINS_LONG, gpus=8))
    in_phase(rig, "Drain")
    first.kill()
    leads(rig, "second")
    committed(rig)
    told(rig)
    marked(rig, "second")
    writes = proxy.writes("second")
    took_s = taken(writes, "second")
    early = [w for w in effective(writes) if w.forwarded_s is not None and w.forwarded_s < took_s]
    assert early == [], "whoever stands by writes nothing"
    assert rig.recorder.peak <= 16
    assert rig.recorder.history[-1][1] <= 8
    assert "InitialPlan" in {e["reason"] for e in rig.events("job")}


def test_told_to_stop_in_mid_move_a_leader_hands_over_at_once(
    rig: Rig, proxy: Proxy, account: Path, tmp_path: Path
) -> None:
    # A Lease that nobody gave back would stand for longer than this test may take.
    slow = {"RLJOB_OPERATOR_LEASE_DURATION": "600s", "RLJOB_OPERATOR_RENEW_DEADLINE": "10s"}
    first = replica(rig, proxy, account, tmp_path, "first", **slow)
    leads(rig, "first")
    replica(rig, proxy, account, tmp_path, "second", **slow)
    rig.apply(job(rig.namespace, sampler=DRAINS_LONG))
    rig.wait_condition("job", "Ready", "True")
    rig.apply(job(rig.namespace, sampler=DRAINS_LONG, gpus=8))
    in_phase(rig, "Drain")
    assert first.terminate() == 0
    leads(rig, "second", timeout_s=30)
    committed(rig)
    told(rig)
    marked(rig, "second")
    writes = proxy.writes()
    gone_s = given_back(writes, "first")
    late = [w for w in writes if w.client == "first" and w.asked_s > gone_s]
    assert late == [], "after the Lease nothing more is written"
    assert taken(writes, "second") > gone_s
    assert rig.recorder.peak <= 16


def test_a_leader_that_wakes_after_it_was_deposed_writes_nothing(
    rig: Rig, proxy: Proxy, account: Path, tmp_path: Path
) -> None:
    first = replica(rig, proxy, account, tmp_path, "first")
    leads(rig, "first")
    replica(rig, proxy, account, tmp_path, "second")
    rig.apply(job(rig.namespace, sampler=DRAINS_LONG))
    rig.wait_condition("job", "Ready", "True")
    # Three jobs are caught in three writes that are on their way: a scale-down, the creation of a child, the lift of a gate.
    proxy.hold("first", "deployments/job-|deployments/made-|pods/lifted-[^/]*[?]")
    rig.apply(job(rig.namespace, sampler={"drainTimeout": "1s"}, gpus=8))
    rig.apply(job(rig.namespace, "made", gpus=8))
    rig.apply(job(rig.namespace, "lifted", gpus=8))
    caught = ("deployments/job-", "deployments/made-", "pods/lifted-")
    eventually(
        lambda: all(any(c in path for path in proxy.held("first")) for c in caught), "three writes are on their way"
    )
    first.pause()
    leads(rig, "second")
    committed(rig)
    for name in ("made", "lifted"):
        rig.wait_condition(name, "Ready", "True")
    took_s = taken(proxy.writes("second"), "second")
    before = {d["metadata"]["name"]: d["spec"]["replicas"] for d in rig.objects("deployments")}
    proxy.release("first")
    eventually(lambda: not proxy.held("first"), "the three writes arrive")
    first.resume()
    eventually(lambda: "the Lease was lost" in first.log(), "the first notices")
    # A pass of the new leader over each job, so that what the old one might have done would show.
    for name in ("job", "made", "lifted"):
        rig.apply(job(rig.namespace, name, gpus=8, rebalance={"interval": "3s"}))
        eventually(partial(seen, rig, name), f"the edit of {name} is seen")
    late = [w for w in proxy.writes("first") if w.forwarded_s is not None and w.forwarded_s > took_s]
    stale = [w for w in late if LEASES not in w.path]
    assert {w.status for w in stale} == {409}, [(w.method, w.path, w.status) for w in stale]
    assert {w.path.split("/")[-2] for w in stale} == {"deployments", "pods"}
    assert effective(late) == []
    assert {d["metadata"]["name"]: d["spec"]["replicas"] for d in rig.objects("deployments")} == before
    told(rig)
    for name in ("made", "lifted"):
        assert "InitialPlan" in {d["code"] for d in rig.status(name)["decisions"]}
        assert rig.recorder.peaks[name] <= 8
    assert rig.recorder.peaks["job"] <= 16


def test_two_operators_without_an_election_keep_the_budget(
    rig: Rig, proxy: Proxy, account: Path, tmp_path: Path
) -> None:
    alone = {"RLJOB_OPERATOR_LEADER_ELECTION": "false"}
    for name in ("one", "two"):
        replica(rig, proxy, account, tmp_path, name, **alone)
    # Requests that overtake each other, so that both decide on what the other is just changing.
    proxy.rules = (Rule(Fault.SLOW, 0.3, frozenset({"GET", "PUT", "PATCH"}), path="rljobs|pods", seconds=0.4),)
    rig.apply(job(rig.namespace, sampler=DRAINS_LONG))
    rig.wait_condition("job", "Ready", "True", timeout_s=90)
    assert rig.recorder.peak <= 16
    for _ in range(2):
        rig.plane.kubectl("delete", "pods", "-n", rig.namespace, "-l", "rljob.dev/role=sampler", "--wait=false")
        rig.wait_condition("job", "Ready", "False")
        rig.wait_condition("job", "Ready", "True", timeout_s=90)
    rig.apply(job(rig.namespace, sampler=DRAINS_LONG, gpus=8))
    committed(rig)
    proxy.rules = ()
    told(rig)
    assert rig.recorder.peak <= 16
    assert rig.recorder.history[-1][1] <= 8
    assert {w.client for w in effective(proxy.writes())} == {"one", "two"}, "both were at work"
