"""Trainers that are a StatefulSet, on a real API server: started, and made fewer from the highest ordinal down."""

from __future__ import annotations

from typing import Any

from tests.cluster.jobs import job
from tests.cluster.rig import Rig, eventually

Json = dict[str, Any]


def test_trainers_of_a_stateful_set_start_and_become_fewer(rig: Rig) -> None:
    rig.start_operator(RLJOB_OPERATOR_ACKNOWLEDGE_DEADLINE="1s")
    trainer = {"kind": "StatefulSet", "minReplicas": 1}
    # More trainers than a budget of 8 has room for beside a sampler.
    rig.apply(job(rig.namespace, sampler={"drainTimeout": "1s"}, trainer={**trainer, "minReplicas": 2}))
    rig.wait_condition("job", "Ready", "True")
    (before,) = rig.objects("statefulsets")
    assert [owner["kind"] for owner in before["metadata"]["ownerReferences"]] == ["RLJob"]
    assert before["spec"]["replicas"] >= 2
    rig.apply(job(rig.namespace, gpus=8, sampler={"drainTimeout": "1s"}, trainer=trainer))

    def fewer() -> bool:
        left = sorted(pod["metadata"]["name"] for pod in rig.objects("pods", "rljob.dev/role=trainer"))
        return left == [f"{before['metadata']['name']}-0"]

    eventually(fewer, "only the trainer with ordinal 0 is left", timeout_s=90)
    eventually(lambda: rig.status("job").get("rebalance") is None, "the move has ended", timeout_s=90)
    (after,) = rig.objects("statefulsets")
    assert (after["metadata"]["uid"], after["spec"]["replicas"]) == (before["metadata"]["uid"], 1)
    assert rig.recorder.peak <= 16
