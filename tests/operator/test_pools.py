"""Samplers over node pools: which node belongs to which, where a pod is sent, and what becomes of a pool that is lost."""

from __future__ import annotations

from typing import Any

import pytest

from rljob_operator.eligibility import nodes_of, pool_of, selects, tolerations_of, untolerated_taints
from rljob_operator.gate import lift_patch
from rljob_operator.inventory import take_inventory
from rljob_operator.observation import Observation, PodView, epoch_s
from rljob_operator.pools import POOL_LABEL, given_up, lost_pools, pins, without
from rljob_operator.template import pod_template
from rljob_operator.victims import victims
from rljob_planner.api.spec import RLJobSpec
from rljob_planner.split import PoolSplit, SamplerSplit, Split, TrainerSplit
from tests.operator.objects import UID, job, node, pod, spec, template

NEAR: dict[str, Any] = {"name": "near", "selector": {"zone": "a"}}
FAR: dict[str, Any] = {
    "name": "far",
    "selector": {"zone": "b"},
    "tolerations": [{"key": "spot", "operator": "Exists"}],
}


def pooled(*pools: dict[str, Any], **sampler: Any) -> RLJobSpec:
    return spec(
        nodes={"selector": {"team": "rl"}, "tolerations": [{"key": "team", "operator": "Exists"}]},
        sampler={"gpusPerReplica": 1, "pools": list(pools or (NEAR, FAR)), "template": template(), **sampler},
    )


def split(near: int, far: int, trainers: int = 1) -> Split:
    pools = (PoolSplit(name="near", replicas=near), PoolSplit(name="far", replicas=far))
    return Split(
        mode="async",
        samplers=SamplerSplit(replicas=near + far, gpus_per_replica=1, tensor_parallel=1, max_running=64, pools=pools),
        trainers=TrainerSplit(replicas=trainers, gpus_per_replica=8, dp=8 * trainers, tp=1, pp=1, ep=1),
        in_flight=64,
    )


def sampler(name: str, pool: str | None = None, *, gated: bool = False, **changes: Any) -> dict[str, Any]:
    made = pod(name, 1, uid=UID, gated=gated, node=None if gated else f"node-{pool}", **changes)
    made["metadata"]["uid"] = f"uid-{name}"
    if pool is not None:
        made["metadata"]["labels"][POOL_LABEL] = pool
    return made


def test_a_node_is_of_the_first_pool_whose_labels_it_carries() -> None:
    of = pooled(NEAR, {"name": "any", "selector": {"team": "rl"}})
    assert getattr(pool_of(of, node("n", labels={"zone": "a", "team": "rl"})), "name", None) == "near"
    assert getattr(pool_of(of, node("n", labels={"zone": "b", "team": "rl"})), "name", None) == "any"
    assert pool_of(of, node("n", labels={"zone": "b"})) is None
    assert not selects(of, "sampler", node("n", labels={"zone": "b"}))
    assert selects(of, "sampler", node("n", labels={"zone": "a"})), "a pool stands in place of spec.nodes.selector"
    assert not selects(of, "trainer", node("n", labels={"zone": "a"})), "trainers go by spec.nodes"


def test_samplers_tolerate_what_any_pool_asks_for_and_have_no_selector_of_their_own() -> None:
    of = pooled()
    assert nodes_of(of, "sampler").selector == {}
    keys = [t["key"] for t in tolerations_of(of, "sampler")]
    assert keys == ["team", "spot", "nvidia.com/gpu"]
    assert untolerated_taints(of, "sampler", node("n", taints=("spot:NoSchedule",))) == ()
    made = job(sampler={"pools": [NEAR, FAR], "template": template(nodeSelector={"disk": "fast"})})
    assert pod_template(made, "sampler", split(1, 1).model_copy())["spec"]["nodeSelector"] == {"disk": "fast"}


def test_rooms_name_their_pool_and_gpus_on_lost_nodes_leave_the_budget() -> None:
    of = pooled()
    nodes = [
        node("a", labels={"zone": "a"}),
        node("b", labels={"zone": "b"}, ready="Unknown"),
        node("t", labels={"team": "rl"}),
    ]
    held = [pod(f"s-{i}", 1, uid=UID, node="b") for i in range(3)]
    found = take_inventory(of, UID, nodes, held, (), ())
    assert {(room.node, room.pool, room.samplers, room.trainers) for room in found.rooms} == {
        ("a", "near", True, False),
        ("t", None, False, True),
    }
    assert found.budget == of.gpus - 3, "whether the lost node still computes nobody knows"


def test_a_pod_goes_where_the_split_wants_most_more() -> None:
    waiting = [sampler(f"w-{i}", gated=True) for i in range(4)]
    pods = [sampler("s-0", "near"), sampler("s-1", "near"), *waiting]
    found = pins(pooled(), split(near=3, far=3), pods, {f"uid-w-{i}" for i in range(4)}, ())
    assert [found[f"uid-w-{i}"].name for i in range(4)] == ["far", "far", "far", "near"] or sorted(
        pool.name for pool in found.values()
    ) == ["far", "far", "far", "near"]
    some = pins(pooled(), split(near=3, far=3), pods, {"uid-w-2"}, ())
    assert set(some) == {"uid-w-2"}
    assert pins(spec(), split(1, 1), pods, {"uid-w-0"}, ()) == {}


def test_no_pod_goes_to_a_lost_pool_or_over_a_pools_limit() -> None:
    pods = [sampler("s-0", "near"), sampler("going", "near", terminating=True), sampler("w", gated=True)]
    assert pins(pooled(), split(near=5, far=0), pods, {"uid-w"}, {"near"})["uid-w"].name == "far"
    tight = pooled({**NEAR, "maxGPUs": 2}, FAR)
    assert pins(tight, split(near=5, far=0), pods, {"uid-w"}, ())["uid-w"].name == "far", "one still terminates there"
    assert pins(tight, split(near=5, far=0), pods, {"uid-w"}, {"far"})["uid-w"].name == "near", "better than nowhere"


def test_the_lift_says_where_the_pod_may_run() -> None:
    gated = {**sampler("w", gated=True)}
    gated["metadata"]["resourceVersion"] = "7"
    patch = lift_patch(gated, selector={"zone": "a"}, labels={POOL_LABEL: "near"})
    assert patch["spec"] == {"schedulingGates": [], "nodeSelector": {"zone": "a"}}
    assert patch["metadata"]["labels"] == {POOL_LABEL: "near"}
    assert "nodeSelector" not in lift_patch(gated)["spec"]
    assert "labels" not in lift_patch(gated)["metadata"]


def test_a_pool_is_lost_once_no_node_of_it_is_ready() -> None:
    gone = node("b-0", labels={"zone": "b"}, ready="Unknown")
    gone["status"]["conditions"][0]["lastTransitionTime"] = "2026-01-01T00:00:00Z"
    later = node("b-1", labels={"zone": "b"}, ready="False")
    later["status"]["conditions"][0]["lastTransitionTime"] = "2026-01-01T00:05:00Z"
    near = node("a", labels={"zone": "a"})
    lost = lost_pools(pooled(), lambda: [near, gone, later])
    assert set(lost) == {"far"}
    assert lost["far"].since_s == epoch_s("2026-01-01T00:05:00Z")
    assert "none of its 2 nodes is ready" in lost["far"].words()
    assert lost_pools(pooled(), lambda: [near, gone, node("b-2", labels={"zone": "b"})]) == {}
    assert set(lost_pools(pooled(), lambda: [near])) == {"far"}
    assert lost_pools(pooled(), list) == {}, "no node at all: nothing was seen"
    assert lost_pools(spec(), lambda: pytest.fail("a job without pools looks at no node")) == {}


def test_what_is_lost_leaves_the_split_and_nothing_waits_for_it() -> None:
    pods = [
        *(sampler(f"n-{i}", "near") for i in range(3)),
        sampler("f-0", "far"),
        sampler("f-1", "far", terminating=True),
        sampler("again", gated=True),
    ]
    smaller = without(split(near=3, far=2), pooled(), ["far"], pods)
    assert smaller is not None
    assert (smaller.samplers.replicas, smaller.samplers.pools) == (
        3,
        (PoolSplit(name="near", replicas=3), PoolSplit(name="far", replicas=0)),
    )
    assert smaller.trainers == split(3, 2).trainers
    assert given_up(pods, {"far"}) == {"f-1"}
    assert without(smaller, pooled(), ["far"], pods) is None, "there is nothing left to take out"
    assert without(split(3, 2), pooled(), [], pods) is None


def test_a_split_is_never_left_without_samplers_or_below_the_minima() -> None:
    pods = [sampler("n-0", "near"), sampler("f-0", "far")]
    kept = without(split(near=1, far=4), pooled(minReplicas=3), ["far"], pods)
    assert kept is not None
    assert kept.samplers.replicas == 3
    assert without(split(near=0, far=4), pooled(), ["far"], [sampler("f-0", "far")]) is None
    # More run elsewhere than the split says: none of those is taken.
    pods = [*(sampler(f"n-{i}", "near") for i in range(4)), sampler("f-0", "far")]
    more = without(split(near=3, far=2), pooled(), ["far"], pods)
    assert more is not None
    assert more.samplers.replicas == 4


def test_a_shrink_takes_from_the_pool_that_has_too_many() -> None:
    def seen(name: str, pool: str, created_s: float) -> PodView:
        return PodView(name=name, role="sampler", ready=True, created_s=created_s, node=f"node-{pool}", pool=pool)

    pods = tuple(seen(f"n-{i}", "near", 100.0 + i) for i in range(3)) + tuple(
        seen(f"f-{i}", "far", float(i)) for i in range(3)
    )
    observation = Observation(
        now_s=1000.0,
        pods=pods,
        published_generation=1,
        acknowledged_generation=1,
        running_by_pod={view.name: 5.0 for view in pods},
    )
    assert victims(split(3, 3), split(3, 1), observation) == ("f-1", "f-2")
