"""What is read of a job's pods."""

from __future__ import annotations

from typing import Any

from rljob_operator import fleet

Json = dict[str, Any]


def pod(name: str, role: str = "sampler", **changes: Any) -> Json:
    return {
        "metadata": {
            "name": name,
            "labels": {"rljob.dev/role": role},
            "creationTimestamp": "2026-01-01T00:00:00Z",
            **changes.get("metadata", {}),
        },
        "spec": {
            "nodeName": "n",
            "containers": [{"name": "c", "image": "i", "env": [{"name": "A"}]}],
            **changes.get("spec", {}),
        },
        "status": {
            "phase": "Running",
            "conditions": [{"type": "Ready", "status": "True"}],
            **changes.get("status", {}),
        },
    }


def test_a_terminating_pod_exists_and_is_neither_bound_nor_ready() -> None:
    pods = [pod("a"), pod("b", metadata={"deletionTimestamp": "2026-01-01T00:00:00Z"}), pod("t", "trainer")]
    found = fleet.fleet("sampler", 2, pods, None)
    assert (found.existing, found.bound, found.ready, found.column()) == (2, 1, 1, "1/2")


def test_finished_pods_do_not_count() -> None:
    assert fleet.fleet("sampler", 1, [pod("a", status={"phase": "Failed"})], None).existing == 0
    assert fleet.views([pod("a", status={"phase": "Succeeded"})]) == ()


def test_the_schedulers_and_the_workloads_words_are_kept() -> None:
    waiting = pod(
        "a",
        spec={"nodeName": None},
        status={
            "conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "no room"}]
        },
    )
    workload = {
        "status": {"conditions": [{"type": "ReplicaFailure", "status": "True", "message": "exceeded quota: q"}]}
    }
    found = fleet.fleet("sampler", 1, [waiting], workload)
    assert (found.unschedulable, found.refused) == ("a: no room", "exceeded quota: q")


def test_a_crash_loop_is_broken() -> None:
    crashing = pod("a", status={"containerStatuses": [{"state": {"waiting": {"reason": "CrashLoopBackOff"}}}]})
    assert fleet.fleet("sampler", 1, [crashing], None).broken == ("a is in CrashLoopBackOff",)


def test_a_trimmed_pod_gives_the_same_answers() -> None:
    whole = pod(
        "a",
        metadata={"labels": {"rljob.dev/uid": "u", "rljob.dev/role": "trainer", "apps.kubernetes.io/pod-index": "3"}},
    )
    kept = fleet.trimmed(whole)
    assert "image" not in kept["spec"]["containers"][0]
    assert fleet.view(kept) == fleet.view(whole)
    assert fleet.view(kept).ordinal == 3
