"""A job over two node pools in virtual time: the real passes and the real planner, with a pool that is lost and comes back."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from dev.virtual import jobs
from dev.virtual.cluster import VirtualCluster
from dev.virtual.ledger import Ledger
from dev.virtual.operator import VirtualOperator
from rljob_operator.config import Config

Json = dict[str, Any]


class World:
    """Trainers on nodes of their own, samplers near (H200, up to four) and far (A100, four there)."""

    def __init__(self, **spec: Any) -> None:
        self.cluster = VirtualCluster()
        self.ledger = Ledger(self.cluster)
        machines = self.cluster.machines
        machines.add_node("train", 8, labels={"pool": "train"})
        machines.add_node("near", 8, labels={"pool": "near"}, product="NVIDIA-H200")
        machines.add_node("far", 4, labels={"pool": "far"}, product="NVIDIA-A100-SXM4-80GB")
        pools = [
            {"name": "near", "selector": {"pool": "near"}, "maxGPUs": 4},
            {"name": "far", "selector": {"pool": "far"}},
        ]
        sides: Json = {
            "sampler": {"minReplicas": 2, "pools": pools, **spec.pop("sampler", {})},
            "trainer": {"maxReplicas": 1, "nodes": {"selector": {"pool": "train"}}},
        }
        self.uid = self.cluster.create_job(jobs.job(gpus=12, **sides, **spec))
        # Nothing is measured: what the operator does here rests on what the API server shows.
        self.operator = VirtualOperator(self.cluster, config=Config(pool_lost_s=60.0)).start()
        self.run(120)

    def run(self, seconds: float) -> None:
        self.cluster.clock.run_for(seconds)
        assert self.operator.failures == []
        assert self.ledger.violations == []

    @property
    def status(self) -> Json:
        found = self.cluster.job("run")
        assert found is not None
        return dict(found["status"])

    def by_pool(self) -> Counter[str]:
        """Samplers that stay, by the pool that they were sent to; they must run on its node."""
        found: Counter[str] = Counter()
        for pod in self.cluster.pods(self.uid, "sampler"):
            if pod["metadata"].get("deletionTimestamp"):
                continue
            pool = pod["metadata"]["labels"].get("rljob.dev/pool", "none")
            assert pod["spec"].get("nodeName", pool).startswith(pool)
            found[pool] += 1
        return found

    def planned(self) -> dict[str, int]:
        return {p["name"]: p["replicas"] for p in self.status["split"]["samplers"]["pools"]}

    def degraded(self) -> tuple[str, str]:
        (found,) = [c for c in self.status["conditions"] if c["type"] == "Degraded"]
        return found["reason"], found["message"]


def test_samplers_go_where_the_plan_wants_them() -> None:
    world = World()
    assert world.planned() == {"near": 4, "far": 4}
    assert world.by_pool() == {"near": 4, "far": 4}
    assert any("samplers: 4 in near, 4 in far" in c["message"] for c in world.status["conditions"])
    # One that is lost is made anew in its pool.
    victim = next(p for p in world.cluster.pods(world.uid, "sampler") if p["spec"]["nodeName"] == "far")
    world.cluster.store.delete("pods", victim["metadata"]["namespace"], victim["metadata"]["name"])
    world.run(180)
    assert world.by_pool() == {"near": 4, "far": 4}
    assert world.degraded()[0] == "AsExpected"


def test_a_lost_pool_is_given_up_after_a_while_and_used_again_when_it_is_back() -> None:
    world = World()
    world.cluster.machines.lose("near")
    world.run(45)
    assert world.planned() == {"near": 4, "far": 4}, "a hiccup changes nothing"
    reason, message = world.degraded()
    assert reason == "PoolLost"
    assert "given up 60 s after it was lost" in message
    world.run(120)
    assert world.planned() == {"near": 0, "far": 4}
    assert world.by_pool() == {"far": 4}
    assert world.status["phase"] == "Running"
    assert world.status["decisions"][-1]["code"] == "PoolLost"
    leaving = [p for p in world.cluster.pods(world.uid) if p["metadata"].get("deletionTimestamp")]
    assert len(leaving) == 4, "nobody can end them, and they still count"
    world.run(1800)
    assert world.planned() == {"near": 0, "far": 4}, "nothing is tried while the lost pods hold the budget"
    world.cluster.machines.restore("near")
    world.run(600)
    assert world.by_pool() == {"near": 4, "far": 4}
    assert world.degraded()[0] == "AsExpected"


def test_samplers_that_run_on_a_node_whose_label_is_taken_off_are_left_alone() -> None:
    world = World()
    store = world.cluster.store
    there = {p["metadata"]["name"] for p in world.cluster.pods(world.uid, "sampler")}
    node = store.get("nodes", None, "near")
    assert node is not None
    store.replace("nodes", {**node, "metadata": {**node["metadata"], "labels": {}}})
    world.run(300)
    assert {p["metadata"]["name"] for p in world.cluster.pods(world.uid, "sampler")} == there
    assert world.planned() == {"near": 4, "far": 4}


def test_new_nodes_take_the_place_of_lost_ones_that_are_removed() -> None:
    world = World()
    world.cluster.machines.lose("near")
    world.run(300)
    assert world.by_pool() == {"far": 4}
    world.cluster.machines.remove_node("near")
    world.run(900)
    assert world.by_pool() == {"far": 4}, "there is no other room"
    assert world.degraded()[0] == "AsExpected", "a pool without nodes that nobody uses is none to worry about"
    world.cluster.machines.add_node("near-2", 8, labels={"pool": "near"}, product="NVIDIA-H200")
    world.run(600)
    assert world.by_pool() == {"near": 4, "far": 4}


@pytest.mark.parametrize("back", [False, True])
def test_a_pool_that_answers_again_in_time_is_left_alone(back: bool) -> None:
    world = World()
    world.cluster.machines.lose("near")
    world.run(30)
    if back:
        world.cluster.machines.restore("near")
        world.run(300)
        assert world.planned() == {"near": 4, "far": 4}
        assert all(d["code"] != "PoolLost" for d in world.status["decisions"])
    else:
        world.run(300)
        assert world.planned()["near"] == 0


def test_the_last_samplers_are_never_given_up() -> None:
    world = World()
    world.cluster.machines.lose("near")
    world.cluster.machines.lose("far")
    world.run(900)
    assert sum(world.planned().values()) == 8
    reason, message = world.degraded()
    assert reason == "PoolLost"
    assert "no other sampler is left" in message
