"""The virtual controllers, scheduler and kubelets against what Kubernetes documents of the real ones."""

from __future__ import annotations

from typing import Any

import pytest

from dev.virtual.cluster import NAMESPACE, VirtualCluster
from dev.virtual.ledger import Ledger
from dev.virtual.machines import EVICT_AFTER_S, FORGET_AFTER_S, Pace
from dev.virtual.workloads import condition, is_ready
from rljob_operator.cluster import ClusterError

Json = dict[str, Any]

PACE = Pace(schedule_s=lambda: 0.1, start_s=lambda _pod: 5.0, stop_s=lambda _pod: 10.0)


def cluster(nodes: int = 2, gpus: int = 4, **options: Any) -> VirtualCluster:
    made = VirtualCluster(pace=PACE, **options)
    made.add_nodes(nodes, gpus)
    return made


def workload(
    plural: str, replicas: int, *, gpus: int = 1, gated: bool = False, image: str = "one", **spec: Any
) -> Json:
    pod: Json = {
        "containers": [{"name": "main", "image": image, "resources": {"limits": {"nvidia.com/gpu": str(gpus)}}}],
        "terminationGracePeriodSeconds": 30,
        **spec,
    }
    if gated:
        pod["schedulingGates"] = [{"name": "rljob.dev/budget"}]
    labels = {"app": "w", "rljob.dev/uid": "job", "rljob.dev/role": "sampler"}
    rolling = {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": "25%"}}
    return {
        "metadata": {"name": "w", "namespace": NAMESPACE, "labels": labels},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": {"app": "w"}},
            "template": {"metadata": {"labels": labels}, "spec": pod},
            **({"strategy": rolling} if plural == "deployments" else {"podManagementPolicy": "Parallel"}),
        },
    }


def started(plural: str, replicas: int, made: VirtualCluster | None = None, **spec: Any) -> VirtualCluster:
    made = made or cluster()
    made.store.create(plural, workload(plural, replicas, **spec))
    made.clock.run_for(10.0)
    return made


def pods(made: VirtualCluster) -> list[Json]:
    return made.store.matching("pods", NAMESPACE, {})


def names(found: list[Json]) -> list[str]:
    return [pod["metadata"]["name"] for pod in found]


def scale(made: VirtualCluster, plural: str, replicas: int) -> None:
    made.store.merge(plural, NAMESPACE, "w", {"spec": {"replicas": replicas}})


def leaving(made: VirtualCluster) -> list[Json]:
    return [pod for pod in pods(made) if pod["metadata"].get("deletionTimestamp")]


def test_pods_are_bound_started_and_ready_and_the_workload_counts_them() -> None:
    made = started("deployments", 3)
    assert all(is_ready(pod) and pod["spec"]["nodeName"] and pod["status"]["podIP"] for pod in pods(made))
    status = made.store.get("deployments", NAMESPACE, "w")["status"]  # type: ignore[index]
    assert (status["replicas"], status["readyReplicas"], status["observedGeneration"]) == (3, 3, 1)


def test_a_gated_pod_is_not_bound_and_goes_at_once_when_it_is_deleted() -> None:
    made = started("deployments", 2, gated=True)
    assert [condition(pod, "PodScheduled") for pod in pods(made)] == ["False", "False"]
    assert not any(pod["spec"].get("nodeName") for pod in pods(made))
    first = pods(made)[0]["metadata"]["name"]
    made.store.delete("pods", NAMESPACE, first)
    assert first not in names(pods(made))


def test_a_deleted_pod_is_replaced_at_once_while_it_still_holds_its_gpus() -> None:
    made = started("deployments", 2)
    made.store.delete("pods", NAMESPACE, names(pods(made))[0])
    made.clock.run_for(1.0)
    assert len(pods(made)) == 3
    assert len(leaving(made)) == 1
    assert sum(made.machines.free(f"node-{i}")["nvidia.com/gpu"] for i in range(2)) == 8 - 3
    made.clock.run_for(10.0)
    assert len(pods(made)) == 2


def test_the_grace_period_cuts_off_a_pod_that_stops_slowly() -> None:
    made = started("deployments", 1, terminationGracePeriodSeconds=3)
    scale(made, "deployments", 0)
    made.clock.run_for(2.0)
    assert len(leaving(made)) == 1
    made.clock.run_for(2.0)
    assert not pods(made)


def test_a_scale_down_takes_what_is_least_worth() -> None:
    made = started("deployments", 4)
    unready, cheap, *_ = names(pods(made))
    made.store.merge(
        "pods", NAMESPACE, cheap, {"metadata": {"annotations": {"controller.kubernetes.io/pod-deletion-cost": "-1000"}}}
    )
    made.machines.break_pod(NAMESPACE, unready)
    scale(made, "deployments", 3)
    made.clock.run_for(1.0)
    assert names(leaving(made)) == [unready]
    scale(made, "deployments", 2)
    made.clock.run_for(1.0)
    assert sorted(names(leaving(made))) == sorted([unready, cheap])


def test_a_stateful_set_takes_its_highest_ordinals_and_gives_a_name_again_only_when_it_is_free() -> None:
    made = started("statefulsets", 3)
    assert names(pods(made)) == ["w-0", "w-1", "w-2"]
    made.store.delete("pods", NAMESPACE, "w-0")
    made.clock.run_for(1.0)
    assert len(pods(made)) == 3
    assert names(leaving(made)) == ["w-0"]
    made.clock.run_for(20.0)
    assert len(pods(made)) == 3
    assert not leaving(made)
    scale(made, "statefulsets", 1)
    made.clock.run_for(1.0)
    assert names(leaving(made)) == ["w-1", "w-2"]


@pytest.mark.parametrize("plural", ["deployments", "statefulsets"])
def test_an_evicted_pod_lies_about_as_failed_or_is_made_anew_and_holds_nothing(plural: str) -> None:
    made = started(plural, 2)
    first = names(pods(made))[0]
    made.machines.evict(NAMESPACE, first)
    made.clock.run_for(20.0)
    assert sum(is_ready(pod) for pod in pods(made)) == 2
    failed = [pod for pod in pods(made) if pod["status"]["phase"] == "Failed"]
    assert names(failed) == ([first] if plural == "deployments" else [])
    assert sum(made.machines.free(f"node-{i}")["nvidia.com/gpu"] for i in range(2)) == 6


def test_a_rolling_update_replaces_pods_a_quarter_at_a_time_without_surge() -> None:
    made = started("deployments", 4)
    most = fewest = 4

    def look(*_: object) -> None:
        nonlocal most, fewest
        there = [pod for pod in pods(made) if not pod["metadata"].get("deletionTimestamp")]
        most, fewest = max(most, len(there)), min(fewest, sum(map(is_ready, there)))

    made.store.watch(look)
    made.store.merge("deployments", NAMESPACE, "w", {"spec": {"template": {"metadata": {"annotations": {"a": "b"}}}}})
    made.clock.run_for(120.0)
    assert all(pod["metadata"]["annotations"] == {"a": "b"} for pod in pods(made))
    assert (len(pods(made)), most, fewest) == (4, 4, 3)


def test_a_node_holds_no_more_than_it_has_and_what_does_not_fit_says_so() -> None:
    made = cluster()
    ledger = Ledger(made)
    started("deployments", 5, made, gpus=2)
    waiting = [pod for pod in pods(made) if not pod["spec"].get("nodeName")]
    assert len(waiting) == 1
    assert [c["reason"] for c in waiting[0]["status"]["conditions"]] == ["Unschedulable"]
    made.machines.add_node("more", 2)
    made.clock.run_for(10.0)
    assert all(map(is_ready, pods(made)))
    assert not ledger.violations


def test_pods_keep_to_selectors_taints_and_cordons() -> None:
    made = cluster(nodes=0)
    made.machines.add_node("plain", 4)
    made.machines.add_node(
        "tainted", 4, labels={"pool": "a"}, taints=({"key": "t", "value": "v", "effect": "NoSchedule"},)
    )
    made.machines.add_node("cordoned", 4, labels={"pool": "a"})
    made.machines.cordon("cordoned")
    started("deployments", 1, made, nodeSelector={"pool": "a"})
    assert not pods(made)[0]["spec"].get("nodeName")
    made.machines.cordon("cordoned", on=False)
    made.clock.run_for(1.0)
    assert pods(made)[0]["spec"]["nodeName"] == "cordoned"


def test_a_lost_node_keeps_its_pods_and_their_gpus_until_it_is_back() -> None:
    made = started("deployments", 2, cluster(nodes=1, gpus=2))
    made.machines.lose("node-0")
    made.clock.run_for(1.0)
    assert not any(map(is_ready, pods(made)))
    made.clock.run_for(EVICT_AFTER_S + 100.0)
    assert len(leaving(made)) == 2
    assert len(pods(made)) == 4
    made.machines.restore("node-0")
    made.clock.run_for(30.0)
    assert len(pods(made)) == 2
    assert all(map(is_ready, pods(made)))


def test_pods_of_a_node_that_is_removed_are_forgotten_after_a_while() -> None:
    made = started("deployments", 1, cluster(nodes=1))
    made.machines.remove_node("node-0")
    first = names(pods(made))[0]
    made.clock.run_for(FORGET_AFTER_S - 1.0)
    assert first in names(pods(made))
    made.clock.run_for(2.0)
    assert first not in names(pods(made))


def test_a_stuck_pod_stays_until_it_is_released() -> None:
    made = started("deployments", 1)
    made.machines.stick(pods(made)[0]["metadata"]["uid"])
    scale(made, "deployments", 0)
    made.clock.run_for(10_000.0)
    assert len(leaving(made)) == 1
    made.machines.unstick()
    made.clock.run_for(1.0)
    assert not pods(made)


def test_what_an_owner_leaves_is_collected_and_so_is_what_comes_after_it() -> None:
    made = started("deployments", 2)
    owner = made.store.get("deployments", NAMESPACE, "w")
    assert owner is not None
    made.store.delete("deployments", NAMESPACE, "w")
    made.clock.run_for(30.0)
    assert not pods(made)
    assert not list(made.store.all("replicasets"))
    reference = {"uid": owner["metadata"]["uid"], "controller": True}
    made.store.create(
        "configmaps", {"metadata": {"name": "late", "namespace": NAMESPACE, "ownerReferences": [reference]}}
    )
    made.clock.run_for(1.0)
    assert made.store.get("configmaps", NAMESPACE, "late") is None


def test_pods_of_an_earlier_workload_of_the_same_name_keep_their_names_until_they_are_gone() -> None:
    made = started("statefulsets", 2)
    made.store.delete("statefulsets", NAMESPACE, "w")
    made.clock.run_for(1.0)
    assert len(leaving(made)) == 2
    made.store.create("statefulsets", workload("statefulsets", 2))
    made.clock.run_for(40.0)
    assert names(pods(made)) == ["w-0", "w-1"]
    assert all(map(is_ready, pods(made)))


def test_the_ledger_sees_one_gpu_too_many() -> None:
    made = cluster()
    ledger = Ledger(made)
    uid = made.create_job({"metadata": {"name": "w"}, "spec": {"gpus": 2}})
    spec = workload("deployments", 3)
    spec["spec"]["template"]["metadata"]["labels"]["rljob.dev/uid"] = uid
    made.store.create("deployments", spec)
    made.clock.run_for(10.0)
    assert [v.rule for v in ledger.violations] == ["budget"]
    assert ledger.held(uid) == 3


def test_the_ledger_counts_terminating_pods_and_not_gated_ones() -> None:
    made = cluster()
    ledger = Ledger(made)
    uid = made.create_job({"metadata": {"name": "w"}, "spec": {"gpus": 2}})
    spec = workload("deployments", 2, gated=True)
    spec["spec"]["template"]["metadata"]["labels"]["rljob.dev/uid"] = uid
    made.store.create("deployments", spec)
    made.clock.run_for(1.0)
    assert ledger.held(uid) == 0
    for name in names(pods(made)):
        made.store.merge("pods", NAMESPACE, name, {"spec": {"schedulingGates": []}})
    made.clock.run_for(10.0)
    made.store.delete("pods", NAMESPACE, names(pods(made))[0])
    made.clock.run_for(1.0)
    assert ledger.held(uid) == 2
    assert not ledger.violations
    gated = next(p for p in pods(made) if p["spec"].get("schedulingGates"))
    made.store.merge("pods", NAMESPACE, gated["metadata"]["name"], {"spec": {"schedulingGates": []}})
    assert [v.rule for v in ledger.violations] == ["budget"]


def test_a_cut_budget_is_no_violation_until_something_is_added() -> None:
    made = cluster()
    ledger = Ledger(made)
    uid = made.create_job({"metadata": {"name": "w"}, "spec": {"gpus": 3}})
    spec = workload("deployments", 3, gated=True)
    spec["spec"]["template"]["metadata"]["labels"]["rljob.dev/uid"] = uid
    made.store.create("deployments", spec)
    made.clock.run_for(1.0)
    first, second, _ = names(pods(made))
    made.store.merge("pods", NAMESPACE, first, {"spec": {"schedulingGates": []}})
    made.edit_job("w", {"gpus": 1})
    made.clock.run_for(10.0)
    assert not ledger.violations
    made.store.merge("pods", NAMESPACE, second, {"spec": {"schedulingGates": []}})
    assert [v.rule for v in ledger.violations] == ["budget"]


def test_a_pod_can_not_be_bound_while_it_is_gated() -> None:
    made = started("deployments", 1, gated=True)
    pod = pods(made)[0]
    with pytest.raises(ClusterError):
        made.store.replace("pods", {**pod, "spec": {**pod["spec"], "nodeName": "node-0"}})
