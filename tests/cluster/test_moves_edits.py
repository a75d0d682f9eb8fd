"""Edits that take the ground of a move under way away, and pods that find no node: pods, conditions, events and decision codes.

The moves are made by edits of the spec or asked for by hand, so that neither Prometheus nor a job is needed. A budget that was raised
stands for what a decision would move for: a mode forbids both alike.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Iterator
from typing import Any

import pytest

from dev.controlplane import ControlPlane
from dev.controlplane.rest import MERGE_PATCH
from rljob_operator.byhand import ANNOTATION
from rljob_operator.observation import timestamp
from tests.cluster.conftest import TEST_LABEL, GpuNodes
from tests.cluster.moving import (
    DELAYS,
    budget_job,
    codes,
    condition,
    delete,
    edit,
    pods,
    read,
    replicas,
    said,
    settled,
    status,
    staying,
    until,
    wait_move,
)
from tests.cluster.rig import GPU, Rig

Json = dict[str, Any]

AT_REST = {
    # The templates have a port and no probe.
    "Planned": "WorkAtRisk",
    "Scheduled": "AllBound",
    "Ready": "AllReady",
    "Rebalancing": "NoMove",
    "Degraded": "AsExpected",
}
"""Reasons of the conditions of a job that runs as it should."""

QUICK: Json = {"drainTimeout": "6s", "template": {"metadata": {"annotations": DELAYS}}}
"""Samplers that nobody waits for longer than a test needs."""

SHORT = {"responseTokens": {"mean": 100, "cv": 0.5, "max": 256}}
"""A workload of short steps, three of which are waited for until a layout is acknowledged; samplers bind it."""

TRAIN_BOUND = {
    "promptsPerStep": 8,
    "promptTokens": {"mean": 2000},
    "responseTokens": {"mean": 50, "cv": 0.5, "max": 128},
}
"""The same with a second trainer that is worth its GPUs."""


@pytest.fixture
def strangers(plane: ControlPlane) -> Iterator[str]:
    """A namespace of somebody else, whose pods hold GPUs of the job's nodes."""
    name = f"t-{secrets.token_hex(4)}"
    plane.create_namespace(name)
    yield name
    plane.api.request("DELETE", f"/api/v1/namespaces/{name}")
    leave(plane, name)


def occupy(rig: Rig, strangers: str, pod: str, node: str) -> None:
    """A pod of strangers takes a GPU of a node, before the scheduler gives it to anybody else."""
    body = {
        "metadata": {"name": pod},
        "spec": {
            "nodeName": node,
            "tolerations": [{"operator": "Exists"}],
            "containers": [{"name": "c", "image": "i", "resources": {"limits": {GPU: "1"}}}],
        },
    }
    rig.plane.api.request("POST", f"/api/v1/namespaces/{strangers}/pods", body)


def leave(plane: ControlPlane, strangers: str) -> None:
    """The strangers' pods are gone."""
    plane.api.request("DELETE", f"/api/v1/namespaces/{strangers}/pods", {"gracePeriodSeconds": 0})


def job_path(rig: Rig) -> str:
    return f"/apis/rljob.dev/v1alpha1/namespaces/{rig.namespace}/rljobs/job"


def heard(rig: Rig) -> Json:
    """Waits until the operator has looked at the last edit; returns the status that it wrote then."""

    def wrote() -> Json | None:
        job = read(rig, job_path(rig)) or {}
        found = job.get("status") or {}
        return found if found.get("observedGeneration") == job["metadata"]["generation"] else None

    return dict(until(rig, wrote, "the operator has looked at the last edit"))


def ask_for(rig: Rig, samplers: int, trainers: int) -> None:
    """Asks for a move by hand."""
    wished = {"id": secrets.token_hex(4), "samplers": samplers, "trainers": trainers, "at": timestamp(time.time())}
    body = {"metadata": {"annotations": {ANNOTATION: json.dumps(wished)}}}
    rig.plane.api.request("PATCH", job_path(rig), body, content_type=MERGE_PATCH)


def answered(rig: Rig) -> str:
    """What became of the last move that was asked for."""
    requests = status(rig).get("moves", {}).get("requests") or [{"outcome": "none"}]
    return str(requests[-1]["outcome"])


def nodes(rig: Rig) -> list[str]:
    """Names of the test's nodes."""
    found = read(rig, f"/api/v1/nodes?labelSelector={TEST_LABEL.replace('/', '%2F')}%3D{rig.namespace}") or {}
    return [node["metadata"]["name"] for node in found["items"]]


def cordon(rig: Rig, names: list[str], *, on: bool = True) -> None:
    """Cordons nodes, or lets new pods there again."""
    for name in names:
        body = {"spec": {"unschedulable": True if on else None}}
        rig.plane.api.request("PATCH", f"/api/v1/nodes/{name}", body, content_type=MERGE_PATCH)


def node_of(rig: Rig, pod: str) -> str:
    """The node of a pod of the job; empty if it has none."""
    return next(str(p["spec"].get("nodeName") or "") for p in pods(rig) if p["metadata"]["name"] == pod)


def reasons(rig: Rig) -> dict[str, str]:
    """The reasons of the job's conditions."""
    return {c["type"]: c["reason"] for c in status(rig).get("conditions", ())}


def at_rest(rig: Rig, samplers: int, trainers: int) -> Json:
    """Waits until a split is settled and every condition says that all is well; returns the status."""
    found = settled(rig, samplers, trainers)
    until(rig, lambda: AT_REST.items() <= reasons(rig).items(), "all conditions are as wished")
    assert condition(rig, "Planned")["status"] == "True"
    return found


def test_a_mode_that_is_switched_in_mid_move_ends_what_has_touched_no_pod_and_nothing_else(rig: Rig) -> None:
    rig.start_operator(RLJOB_OPERATOR_ACKNOWLEDGE_DEADLINE="6s")
    # Trainers that restart are asked for a checkpoint before any pod goes or comes, also in a move that only adds.
    restarts = {
        "minReplicas": 1,
        "maxReplicas": 2,
        "resize": "restart",
        "template": {"metadata": {"annotations": DELAYS}},
    }
    fixed = {"minReplicas": 4, "maxReplicas": 4}
    rig.apply(budget_job(rig.namespace, gpus=8, sampler=fixed, trainer=restarts, workload=TRAIN_BOUND))
    at_rest(rig, 4, 1)
    samplers, trainers = staying(rig, "sampler"), staying(rig, "trainer")
    edit(rig, gpus=12)
    for mode in ("Recommend", "Initial"):
        move = wait_move(rig, "Announce")
        assert (replicas(move["from"]), replicas(move["to"])) == ((4, 1), (4, 2))
        assert condition(rig, "Rebalancing")["reason"] == "Announce"
        edit(rig, rebalance={"mode": mode})
        until(
            rig,
            said(
                rig, "MoveGivenUp", f"in Announce at 4×1 samplers + 1×4 trainers, because rebalance.mode is now {mode}"
            ),
            "it is given up",
        )
        at_rest(rig, 4, 1)
        assert (staying(rig, "sampler"), staying(rig, "trainer")) == (samplers, trainers)
        assert codes(rig)[-2:] == ["BudgetRaised", "MoveRolledBack"]
        assert rig.recorder.peak <= 8, "nothing came"
        edit(rig, rebalance={"mode": "Auto"})
    assert not said(rig, "MoveAnnounce")()
    # Trainers that are gone come back in their new number: half a move is worse than either split.
    wait_move(rig, "Shrink")
    edit(rig, rebalance={"mode": "Recommend"})
    move = heard(rig)["rebalance"]
    assert move["phase"] in ("Shrink", "Grow", "Verify")
    assert replicas(move["to"]) == (4, 2)
    at_rest(rig, 4, 2)
    assert staying(rig, "sampler") == samplers
    assert not staying(rig, "trainer") & trainers
    assert said(rig, "MoveAnnounce", "Went on without an acknowledgement")()
    assert rig.recorder.peak <= 12
    # What the spec demands is done in every mode.
    edit(rig, gpus=8)
    wait_move(rig, "Announce")
    edit(rig, rebalance={"mode": "Initial"})
    assert replicas(heard(rig)["rebalance"]["to"]) == (4, 1)
    at_rest(rig, 4, 1)
    assert staying(rig, "sampler") == samplers
    assert len(said(rig, "MoveGivenUp")()) == 2
    assert codes(rig) == [
        "InitialPlan", "BudgetRaised", "MoveRolledBack", "BudgetRaised", "MoveRolledBack", "BudgetRaised", "MoveCommitted",
        "SpecChanged", "MoveCommitted",
    ]  # fmt: skip
    assert rig.recorder.peak <= 12


def test_a_cut_budget_that_is_given_back_takes_no_pod_before_the_shrink_and_is_used_again_after_it(rig: Rig) -> None:
    rig.start_operator()
    rig.apply(budget_job(rig.namespace, sampler=QUICK))
    at_rest(rig, 12, 1)
    samplers, trainers = staying(rig, "sampler"), staying(rig, "trainer")
    edit(rig, gpus=8)
    assert len(wait_move(rig, "Drain")["victims"]) == 8
    assert condition(rig, "Rebalancing")["reason"] == "Drain"
    edit(rig, gpus=16)
    until(rig, said(rig, "MoveGivenUp", "in Drain at 12×1"), "the move is given up")
    assert said(rig, "MoveGivenUp", "the spec allows the split before it again")()
    # The plan for the cut budget gives way to one for all of it, and nothing follows from that.
    until(rig, lambda: status(rig)["plan"]["placeableGpus"] == 16, "the whole budget is planned with")
    at_rest(rig, 12, 1)
    assert (staying(rig, "sampler"), staying(rig, "trainer")) == (samplers, trainers)
    assert not said(rig, "MoveDrain")()
    assert codes(rig) == ["InitialPlan", "SpecChanged", "MoveRolledBack"]
    edit(rig, gpus=8)
    victims = set(wait_move(rig, "Shrink")["victims"])
    edit(rig, gpus=16)
    assert heard(rig)["rebalance"]["phase"] in ("Shrink", "Grow", "Verify"), (
        "pods have gone for it, so it is brought to its end"
    )
    until(rig, lambda: "BudgetRaised" in codes(rig), "the budget is used again")
    at_rest(rig, 12, 1)
    assert len(victims) == 8
    assert staying(rig, "sampler") & samplers == samplers - victims
    assert staying(rig, "trainer") == trainers
    assert said(rig, "MoveDrain", "Drain timed out")()
    assert len(said(rig, "MoveGivenUp")()) == 1
    assert not said(rig, "OtherPodsGone")()
    assert codes(rig) == [
        "InitialPlan", "SpecChanged", "MoveRolledBack", "SpecChanged", "MoveCommitted", "BudgetRaised", "MoveCommitted",
    ]  # fmt: skip
    assert rig.recorder.peak <= 16


def test_bounds_that_a_moves_target_breaks_end_it_where_it_stands_and_the_next_one_keeps_them(rig: Rig) -> None:
    rig.start_operator()
    slow = {"template": {"metadata": {"annotations": {**DELAYS, "dev.rljob.dev/start-delay": "5s"}}}}
    rig.apply(budget_job(rig.namespace, gpus=8, sampler={**QUICK, **slow}))
    at_rest(rig, 4, 1)
    old, trainers = staying(rig, "sampler"), staying(rig, "trainer")
    edit(rig, gpus=16)
    wait_move(rig, "Grow")
    came = until(rig, lambda: len(found := staying(rig, "sampler")) == 12 and found, "twelve samplers")
    assert condition(rig, "Rebalancing")["reason"] == "Grow"

    def given_up(at: str, why: str, **bounds: int) -> Json:
        edit(rig, sampler=bounds)
        until(
            rig, said(rig, "MoveGivenUp", f"in {at} at 12×1 samplers + 1×4 trainers, because {why}"), "it is given up"
        )
        return wait_move(rig, "Drain")

    move = given_up("Grow", "12 samplers are more than sampler.maxReplicas 8", maxReplicas=8)
    assert replicas(move["to"]) == (8, 1)
    assert not set(move["victims"]) & old, "who came last goes first"
    move = given_up("Drain", "8 samplers are more than sampler.maxReplicas 6", maxReplicas=6)
    assert replicas(move["to"]) == (6, 1)
    assert staying(rig, "sampler") == came
    move = given_up("Drain", "6 samplers are fewer than sampler.minReplicas 8", minReplicas=8, maxReplicas=8)
    assert replicas(move["to"]) == (8, 1)
    assert staying(rig, "sampler") == came
    assert condition(rig, "Rebalancing")["reason"] == "Drain"
    at_rest(rig, 8, 1)
    assert old < staying(rig, "sampler") < came, (
        "nobody went for a target that was given up, and nobody had to come again"
    )
    assert staying(rig, "trainer") == trainers
    assert len(said(rig, "MoveDrain")()) == 1
    assert not said(rig, "OtherPodsGone")()
    assert codes(rig) == [
        "InitialPlan", "BudgetRaised", "MoveRolledBack", "SpecChanged", "MoveRolledBack", "SpecChanged", "MoveRolledBack",
        "SpecChanged", "MoveCommitted",
    ]  # fmt: skip
    assert rig.recorder.peak <= 16


def test_a_move_into_cordoned_nodes_goes_back_and_settles_for_the_pods_that_found_a_node(
    rig: Rig, gpu_nodes: GpuNodes
) -> None:
    rig.start_operator(RLJOB_OPERATOR_READY_DEADLINE="6s", RLJOB_OPERATOR_ACKNOWLEDGE_DEADLINE="4s")
    rig.apply(budget_job(rig.namespace, sampler=QUICK, workload=SHORT))
    at_rest(rig, 12, 1)
    samplers, trainers, full = staying(rig, "sampler"), staying(rig, "trainer"), nodes(rig)
    (small,) = gpu_nodes(1, gpus_per_node=2, product="NVIDIA-H100-80GB-HBM3")
    edit(rig, trainer={"maxReplicas": 2})
    ask_for(rig, 8, 2)
    victims = set(wait_move(rig, "Drain")["victims"])
    cordon(rig, full)
    until(rig, said(rig, "Unschedulable", "a trainer pod has no node"), "an event says that the trainer finds no node")
    found = condition(rig, "Scheduled")
    assert (found["status"], found["reason"]) == ("False", "Unschedulable")
    assert "free GPUs on matching nodes, add nodes, or lower spec.gpus" in found["message"]
    assert reasons(rig)["Rebalancing"] == "Grow"
    assert staying(rig, "sampler") == samplers - victims
    until(rig, said(rig, "MoveGrow", "Rolling back: Grow missed its deadline"), "the move turns round")
    # The way back ends before cordoned nodes as well, but for the two that the small node takes.
    until(rig, said(rig, "Unschedulable", "a sampler pod has no node"), "an event says that samplers find no node")
    assert reasons(rig)["Ready"] == "PodsNotReady"
    until(rig, said(rig, "MoveGrow", "Settled for 10×1 samplers + 1×4 trainers"), "it settles for those that are there")
    found = at_rest(rig, 10, 1)
    new = staying(rig, "sampler") - samplers
    assert staying(rig, "sampler") == samplers - victims | new
    assert [node_of(rig, pod) for pod in new] == [small, small]
    assert staying(rig, "trainer") == trainers
    assert not said(rig, "MoveStuck")(), "what settles needs no person"
    assert codes(rig) == ["InitialPlan", "MoveByHand", "MoveRolledBack"]
    assert "Grow missed its deadline: pods to be ready: 1 of 2 trainers" in found["decisions"][-1]["message"]
    assert found["moves"]["failures"] == 1
    assert answered(rig) == "RolledBack"
    # A spec that nothing can be placed for takes no pod, and is followed once there is room.
    known = staying(rig, "sampler")
    edit(rig, sampler={"minReplicas": 12})
    until(
        rig,
        said(rig, "DoesNotFit", "10 samplers are fewer than sampler.minReplicas 12"),
        "an event says what is missing",
    )
    found = condition(rig, "Planned")
    assert found["status"] == "False"
    assert "the nodes have 14 free" in found["message"]
    assert {**AT_REST, "Planned": "DoesNotFit"}.items() <= reasons(rig).items()
    assert staying(rig, "sampler") == known
    assert codes(rig)[-1] == "MoveRolledBack"
    cordon(rig, full, on=False)
    until(rig, lambda: "SpecChanged" in codes(rig), "the spec is followed")
    at_rest(rig, 12, 1)
    told = [m for reason in ("Planned", "WorkAtRisk") for m in said(rig, reason, "10×1 samplers")()]
    assert not any("keeps to the spec" in m for m in told), "ten were too few"
    assert known < staying(rig, "sampler")
    assert staying(rig, "trainer") == trainers
    assert codes(rig) == ["InitialPlan", "MoveByHand", "MoveRolledBack", "SpecChanged", "MoveCommitted"]
    assert rig.recorder.peak <= 16


def test_pods_whose_gpus_strangers_took_wait_go_first_and_come_again_once_there_is_room(
    rig: Rig, strangers: str
) -> None:
    rig.start_operator()
    rig.apply(budget_job(rig.namespace, sampler=QUICK))
    at_rest(rig, 12, 1)
    samplers, trainers = staying(rig, "sampler"), staying(rig, "trainer")
    lost = min(samplers)
    occupy(rig, strangers, "first", node_of(rig, lost))
    delete(rig, lost)
    until(
        rig, said(rig, "Unschedulable", "a sampler pod has no node"), "an event says that its successor finds no node"
    )
    (waiting,) = staying(rig, "sampler") - samplers
    found = condition(rig, "Scheduled")
    assert (found["status"], found["reason"]) == ("False", "Unschedulable")
    assert waiting in found["message"]
    assert reasons(rig)["Ready"] == "PodsNotReady"
    assert (reasons(rig)["Rebalancing"], reasons(rig)["Degraded"]) == ("NoMove", "AsExpected")
    assert staying(rig, "sampler") == samplers - {lost} | {waiting}
    assert codes(rig) == ["InitialPlan"]
    edit(rig, gpus=12)
    victims = set(wait_move(rig, "Drain")["victims"])
    assert waiting in victims, "a pod without a node costs nobody anything"
    assert reasons(rig)["Scheduled"] == "Unschedulable"
    running = sorted(victims - {waiting})
    for pod in running:
        occupy(rig, strangers, f"after-{pod}", node_of(rig, pod))
    at_rest(rig, 8, 1)
    rest = samplers - {lost, *running}
    assert staying(rig, "sampler") == rest
    assert said(rig, "AllBound", "8 samplers and 1 trainers are bound")()
    assert not said(rig, "OtherPodsGone")()
    assert codes(rig) == ["InitialPlan", "SpecChanged", "MoveCommitted"]
    assert rig.recorder.peak <= 16
    assert rig.recorder.history[-1][1] <= 12
    # A budget that finds no GPUs moves nothing, nor does anybody's wish.
    edit(rig, gpus=16)
    heard(rig)
    ask_for(rig, 12, 1)
    until(
        rig,
        said(rig, "MoveRefused", "12×1 samplers + 1×4 trainers find no place on the nodes as they are"),
        "it is refused",
    )
    assert answered(rig) == "Refused"
    at_rest(rig, 8, 1)
    assert (staying(rig, "sampler"), staying(rig, "trainer")) == (rest, trainers)
    assert codes(rig) == ["InitialPlan", "SpecChanged", "MoveCommitted"]
    leave(rig.plane, strangers)
    at_rest(rig, 12, 1)
    assert rest < staying(rig, "sampler")
    assert staying(rig, "trainer") == trainers
    assert codes(rig)[:3] == ["InitialPlan", "SpecChanged", "MoveCommitted"]
    assert codes(rig)[-2:] == ["BudgetRaised", "MoveCommitted"]
    assert rig.recorder.peak <= 16
