"""What people and their tools do to a job that runs: said on the job, and over once it is mended."""

from __future__ import annotations

from typing import Any

from tests.cluster.jobs import job
from tests.cluster.rig import Rig, eventually

Json = dict[str, Any]


def test_a_template_that_is_refused_in_a_run_is_said_and_the_pods_stay(rig: Rig) -> None:
    rig.start_operator()
    rig.apply(job(rig.namespace))
    rig.wait_condition("job", "Ready", "True")
    pods = {p["metadata"]["uid"] for p in rig.objects("pods")}
    bad = {"spec": {"containers": [{"name": "Not_A_Name", "image": "i"}]}}
    rig.apply(job(rig.namespace, sampler={"template": bad}))
    found = rig.wait_condition("job", "Planned", "False", "InvalidTemplate")
    assert "Not_A_Name" in found["message"]
    assert rig.status("job")["phase"] == "Running"
    assert {p["metadata"]["uid"] for p in rig.objects("pods")} == pods
    rig.apply(job(rig.namespace))
    rig.wait_condition("job", "Planned", "True")
    assert {p["metadata"]["uid"] for p in rig.objects("pods")} == pods


def test_a_layout_that_somebody_spoils_comes_back(rig: Rig) -> None:
    rig.start_operator()
    rig.apply(job(rig.namespace))
    rig.wait_condition("job", "Ready", "True")
    for text in ("{}", "nonsense"):
        patch = f'{{"data": {{"layout.json": "{text}"}}}}'
        rig.plane.kubectl("patch", "cm", "job-layout", "-n", rig.namespace, "--type=merge", "-p", patch)

        def restored() -> bool:
            layout = rig.get("configmap", "job-layout")
            return layout is not None and '"generation"' in layout["data"]["layout.json"]

        eventually(restored, f"a layout instead of {text}")


def test_what_an_earlier_job_left_is_named_until_it_is_gone(rig: Rig) -> None:
    rig.start_operator()
    rig.apply(job(rig.namespace, gpus=8))
    rig.wait_condition("job", "Ready", "True")
    rig.plane.kubectl("delete", "rljob", "job", "-n", rig.namespace, "--cascade=orphan", "--timeout=20s")
    rig.apply(job(rig.namespace, gpus=8))
    found = rig.wait_condition("job", "Planned", "False", "NameTaken")
    assert "job-samplers" in found["message"]
    rig.plane.kubectl("delete", "deployments,services,configmaps", "-l", "rljob.dev/name=job", "-n", rig.namespace)
    rig.wait_condition("job", "Ready", "True")
    assert rig.condition("job", "Planned")["status"] == "True"  # type: ignore[index]


def test_a_lowered_budget_is_kept_also_by_a_job_without_metrics(rig: Rig) -> None:
    rig.start_operator(RLJOB_OPERATOR_ACKNOWLEDGE_DEADLINE="1s")
    quick: Json = {"drainTimeout": "1s"}
    rig.apply(job(rig.namespace, sampler=quick))
    rig.wait_condition("job", "Ready", "True")
    before = {p["metadata"]["uid"] for p in rig.objects("pods")}
    rig.apply(job(rig.namespace, sampler=quick, gpus=8))

    def kept() -> bool:
        status = rig.status("job")
        return status.get("rebalance") is None and status["moves"].get("lastOutcome") == "Committed"

    eventually(kept, "the move into the budget is committed")
    split = rig.status("job")["split"]
    assert split["samplers"]["replicas"] + 4 * split["trainers"]["replicas"] <= 8
    after = {p["metadata"]["uid"] for p in rig.objects("pods")}
    assert len(after) == split["samplers"]["replicas"] + split["trainers"]["replicas"]
    assert after < before, "some were taken, and none came"
    rig.wait_condition("job", "Ready", "True")
    rig.wait_condition("job", "Rebalancing", "False")
    assert {"SpecChanged", "MoveCommitted"} <= {d["code"] for d in rig.status("job")["decisions"]}
    assert {"MoveStarted", "MoveDrain", "MoveShrink", "MoveVerify"} <= {e["reason"] for e in rig.events("job")}
    assert rig.recorder.history[-1][1] <= 8
