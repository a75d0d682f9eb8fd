"""What a cluster and its people do to a move under way, on a real API server: pods, conditions, events and decision codes.

The moves are made by editing the budget, so that neither Prometheus nor a job is needed and each phase lasts as long as the test
wants.
"""

from __future__ import annotations

from typing import Any

from dev.controlplane.rest import MERGE_PATCH
from tests.cluster.moving import (
    annotate,
    budget_job,
    codes,
    condition,
    delete,
    edit,
    evict,
    pods,
    read,
    said,
    settled,
    status,
    staying,
    until,
    wait_move,
)
from tests.cluster.rig import Rig

Json = dict[str, Any]


def test_pods_that_never_get_ready_turn_a_move_round_and_one_that_hangs_is_named(rig: Rig) -> None:
    rig.start_operator(RLJOB_OPERATOR_READY_DEADLINE="6s", RLJOB_OPERATOR_GONE_DEADLINE="3s")
    slow = {"dev.rljob.dev/start-delay": "4s"}
    rig.apply(budget_job(rig.namespace, gpus=8, sampler={"template": {"metadata": {"annotations": slow}}}))
    settled(rig, 4, 1)
    old = staying(rig, "sampler")
    edit(rig, gpus=16)
    until(rig, lambda: staying(rig, "sampler") - old, "new samplers")
    assert "BudgetRaised" in codes(rig)

    def lost() -> bool:
        for name in staying(rig, "sampler") - old:
            annotate(rig, name, machine_lost="true")
        move = status(rig).get("rebalance") or {}
        return bool(move.get("rollingBack"))

    until(rig, lost, "the move turns round")
    assert said(rig, "MoveGrow", "Rolling back: Grow missed its deadline")()
    # A machine that does nothing lets no pod go, either.
    stuck = until(rig, lambda: condition(rig, "Degraded").get("reason") == "MoveStuck", "the move back is stuck")
    assert stuck
    # Of all that came, also after the first were seen, a few are named.
    new = {pod["metadata"]["name"] for pod in pods(rig, "sampler")} - old
    assert any(name in condition(rig, "Degraded")["message"] for name in new), condition(rig, "Degraded")
    assert "--force" in condition(rig, "Degraded")["message"]
    assert condition(rig, "Rebalancing")["status"] == "True"
    for pod in pods(rig, "sampler"):
        if pod["metadata"]["name"] not in old:
            annotate(rig, pod["metadata"]["name"], machine_lost=None)
    found = settled(rig, 4, 1)
    assert staying(rig, "sampler") == old
    assert found["moves"]["failures"] == 1
    assert found["moves"]["notBefore"] > found["moves"]["lastEndedAt"]
    assert "MoveRolledBack" in codes(rig)
    assert condition(rig, "Degraded")["status"] == "False"
    assert rig.recorder.peak <= 16


def test_pods_that_are_lost_in_each_phase_are_replaced_and_the_move_ends(rig: Rig) -> None:
    rig.start_operator()
    rig.apply(budget_job(rig.namespace))
    settled(rig, 12, 1)
    edit(rig, gpus=8)
    move = wait_move(rig, "Drain")
    victim = move["victims"][0]
    delete(rig, victim)
    again = until(
        rig,
        lambda: (
            (v := (status(rig).get("rebalance") or {}).get("victims", [])) and victim not in v and len(v) == 8 and v
        ),
        "another victim is named",
    )
    assert len(set(again) - set(move["victims"])) == 1
    until(rig, said(rig, "MoveDrain", "in place of a pod that was lost"), "an event says so")
    wait_move(rig, "Shrink")
    stays = sorted(staying(rig, "sampler") - set(again))[0]
    evict(rig, stays)
    found = settled(rig, 4, 1)
    assert said(rig, "OtherPodsGone", stays)()
    assert "SpecChanged" in codes(rig)
    assert "MoveCommitted" in codes(rig)
    assert found["moves"]["lostSamples"] == 0, "what ran there is unknown, and counted as nothing"
    assert rig.recorder.peak <= 16
    assert rig.recorder.history[-1][1] <= 8
    kept = staying(rig, "sampler")
    edit(rig, gpus=16)
    wait_move(rig, "Grow")
    lost = sorted(until(rig, lambda: staying(rig, "sampler") - kept, "new samplers"))[-1]
    delete(rig, lost)
    settled(rig, 12, 1)
    assert kept <= staying(rig, "sampler")
    assert lost not in staying(rig, "sampler")
    assert "BudgetRaised" in codes(rig)
    assert codes(rig).count("MoveCommitted") == 2
    assert condition(rig, "Rebalancing")["status"] == "False"
    assert rig.recorder.peak <= 16


def test_edits_of_the_job_and_of_its_children_in_mid_move(rig: Rig) -> None:
    rig.start_operator()
    rig.apply(budget_job(rig.namespace, sampler={"drainTimeout": "18s"}))
    settled(rig, 12, 1)
    edit(rig, gpus=8)
    wait_move(rig, "Drain")
    deployment = f"/apis/apps/v1/namespaces/{rig.namespace}/deployments/job-samplers"
    rig.plane.api.request("PATCH", deployment, {"spec": {"replicas": 30}}, content_type=MERGE_PATCH)
    until(rig, said(rig, "ChildEdited", "spec.replicas"), "the edit is said")
    until(rig, lambda: (read(rig, deployment) or {})["spec"]["replicas"] == 12, "and undone")
    hpas = f"/apis/autoscaling/v2/namespaces/{rig.namespace}/horizontalpodautoscalers"
    rival = {
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": {"name": "theirs"},
        "spec": {
            "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "job-samplers"},
            "minReplicas": 1,
            "maxReplicas": 40,
        },
    }
    rig.plane.api.request("POST", hpas, rival)
    until(rig, lambda: condition(rig, "Degraded").get("reason") == "AnotherAutoscaler", "the rival is named")
    assert "delete hpa theirs" in condition(rig, "Degraded")["message"]
    until(rig, lambda: condition(rig, "Rebalancing").get("reason") == "Held", "the move stands still")
    image = "example.com/none:2"
    template = budget_job(rig.namespace)["spec"]["sampler"]["template"]
    template["spec"]["containers"][0]["image"] = image
    edit(rig, sampler={"template": template})
    until(rig, said(rig, "TemplateHeld", "job-samplers"), "the template waits")
    assert status(rig)["rebalance"]["phase"] == "Drain"
    rig.plane.api.request("DELETE", f"{hpas}/theirs")
    wait_move(rig, "Shrink")
    settled(rig, 4, 1)
    until(
        rig,
        lambda: {p["spec"]["containers"][0]["image"] for p in pods(rig, "sampler")} == {image},
        "the new template is applied",
    )
    until(rig, lambda: condition(rig, "Degraded").get("status") == "False", "nothing needs a person")
    assert "MoveCommitted" in codes(rig)
    assert rig.recorder.peak <= 16


def test_a_job_is_suspended_and_then_deleted_in_mid_move(rig: Rig) -> None:
    rig.start_operator()
    rig.apply(budget_job(rig.namespace))
    settled(rig, 12, 1)
    edit(rig, gpus=8)
    wait_move(rig, "Drain")
    edit(rig, suspend=True)
    until(rig, said(rig, "MoveGivenUp", "spec.suspend"), "the move is given up")
    until(rig, lambda: "no metric shows" in condition(rig, "Ready").get("message", ""), "it says what it waits for")
    assert len(pods(rig)) == 13
    until(rig, lambda: not pods(rig), "all GPUs are freed")
    until(rig, lambda: condition(rig, "Ready").get("reason") == "Suspended", "and it says so")
    until(rig, lambda: "SpecChanged" in codes(rig), "the budget that was cut meanwhile counts")
    edit(rig, suspend=False)
    settled(rig, 4, 1)
    edit(rig, gpus=5)
    wait_move(rig, "Drain")
    path = f"/apis/rljob.dev/v1alpha1/namespaces/{rig.namespace}/rljobs/job"
    rig.plane.api.request("DELETE", path)
    until(rig, lambda: not pods(rig) and read(rig, path) is None, "nothing is left")
    deployment = f"/apis/apps/v1/namespaces/{rig.namespace}/deployments/job-samplers"
    until(rig, lambda: read(rig, deployment) is None, "no child is left")
    assert len(said(rig, "MoveStarted")()) >= 2, "what was under way is still told when all is gone"
    assert rig.operator is not None
    assert "Traceback" not in rig.operator.log()
    assert rig.recorder.peak <= 16


def test_objects_of_strangers_are_not_taken_over(rig: Rig) -> None:
    rig.start_operator()
    theirs = f"/api/v1/namespaces/{rig.namespace}/configmaps"
    rig.plane.api.request("POST", theirs, {"metadata": {"name": "job-layout"}, "data": {"theirs": "kept"}})
    rig.apply(budget_job(rig.namespace, gpus=8))
    found = rig.wait_condition("job", "Planned", "False", "NameTaken", timeout_s=120)
    assert "ConfigMap job-layout" in found["message"]
    assert "delete it or give the job another name" in found["message"]
    assert (read(rig, f"{theirs}/job-layout") or {})["data"] == {"theirs": "kept"}
    assert not pods(rig)
    rig.plane.api.request("DELETE", f"{theirs}/job-layout")
    settled(rig, 4, 1)
    assert codes(rig) == ["InitialPlan"]
