"""Several jobs on the same nodes, in virtual time: who plans first, who waits, and who is left alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from dev.virtual.cluster import VirtualCluster
from dev.virtual.jobs import job
from dev.virtual.operator import VirtualOperator
from rljob_operator.planning import Answers
from rljob_operator.situation import Planner
from rljob_planner.api.spec import RLJobSpec
from rljob_planner.calibrate import Calibration
from rljob_planner.placement import Room
from rljob_planner.search import Plan
from tests.operator.objects import spec, template

Json = dict[str, Any]


def filling(name: str, gpus: int = 8, **changes: Any) -> Json:
    """A job that fills ``gpus`` GPUs: one trainer of four, and samplers of one."""
    return job(
        name,
        gpus=gpus,
        sampler={"minReplicas": 1, "maxReplicas": gpus - 4},
        trainer={"maxReplicas": 1},
        accelerator="H100-SXM",
        **changes,
    )


def status(cluster: VirtualCluster, name: str) -> Json:
    found = cluster.job(name)
    assert found is not None
    return cast(Json, found.get("status") or {})


def split_gpus(cluster: VirtualCluster, name: str) -> int:
    split = status(cluster, name).get("split")
    if split is None:
        return 0
    return sum(split[side]["replicas"] * split[side]["gpusPerReplica"] for side in ("samplers", "trainers"))


def planned(cluster: VirtualCluster, name: str) -> Json:
    return cast(Json, next(c for c in status(cluster, name)["conditions"] if c["type"] == "Planned"))


def codes(cluster: VirtualCluster, name: str) -> Counter[str]:
    return Counter(d["code"] for d in status(cluster, name)["decisions"])


@pytest.mark.parametrize("order", [("low", "high"), ("high", "low")])
def test_of_jobs_applied_together_the_higher_priority_plans_first(order: Sequence[str]) -> None:
    cluster = VirtualCluster()
    cluster.add_nodes(1, 8)
    for name in order:
        cluster.create_job(filling(name, priority={"low": 0, "high": 10}[name]))
    VirtualOperator(cluster).start()
    cluster.clock.run_for(120)
    assert (split_gpus(cluster, "high"), split_gpus(cluster, "low")) == (8, 0)
    assert status(cluster, "high")["phase"] == "Running"
    told = planned(cluster, "low")
    assert (told["status"], told["reason"]) == ("False", "DoesNotFit")
    assert "RLJob rl/high" in told["message"]


def test_two_jobs_share_what_both_want_in_their_order_and_neither_is_stuck() -> None:
    cluster = VirtualCluster()
    cluster.add_nodes(2, 8)
    uids = [cluster.create_job(job(name, gpus=16, accelerator="H100-SXM")) for name in ("first", "second")]
    VirtualOperator(cluster).start()
    cluster.clock.run_for(300)
    # The first plans as if it were alone but for the minima of nobody; the second gets what is left, or waits for its minima.
    first, second = (split_gpus(cluster, name) for name in ("first", "second"))
    assert first >= 12
    assert first + second <= 16
    for uid in uids:
        assert all(pod["spec"].get("nodeName") for pod in cluster.pods(uid))


def test_nobody_is_evicted_and_freed_gpus_go_to_who_comes_first() -> None:
    cluster = VirtualCluster()
    cluster.add_nodes(1, 8)
    running = cluster.create_job(filling("running"))
    VirtualOperator(cluster).start()
    cluster.clock.run_for(120)
    before = {pod["metadata"]["uid"] for pod in cluster.pods(running)}
    cluster.create_job(filling("later"))
    cluster.clock.run_for(60)
    cluster.create_job(filling("urgent", priority=100))
    cluster.clock.run_for(600)
    assert {pod["metadata"]["uid"] for pod in cluster.pods(running)} == before
    assert codes(cluster, "running")["Move"] == 0
    assert split_gpus(cluster, "later") == split_gpus(cluster, "urgent") == 0
    cluster.delete_job("running")
    cluster.clock.run_for(240)
    assert (split_gpus(cluster, "urgent"), split_gpus(cluster, "later")) == (8, 0)
    assert status(cluster, "urgent")["phase"] == "Running"


@pytest.mark.parametrize(("hard", "left"), [(13, [8, 5]), (12, [7, 5])])
def test_a_lowered_quota_is_followed_down_in_order_and_not_by_more_than_it_must(hard: int, left: list[int]) -> None:
    cluster = VirtualCluster()
    cluster.add_nodes(2, 8)
    for name in ("one", "two"):
        cluster.create_job(filling(name))
    VirtualOperator(cluster).start()
    cluster.clock.run_for(200)
    assert [split_gpus(cluster, name) for name in ("one", "two")] == [8, 8]
    key = "requests.nvidia.com/gpu"
    quota = {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "team", "namespace": "rl"},
        "spec": {"hard": {key: str(hard)}},
        "status": {"hard": {key: str(hard)}, "used": {key: "16"}},
    }
    cluster.store.create("resourcequotas", quota)
    # Each move waits in vain for an acknowledgement first. The last job goes down to its minima; what that does not give, the first gives.
    cluster.clock.run_for(1800)
    assert [split_gpus(cluster, name) for name in ("one", "two")] == left
    assert [codes(cluster, name)["SpecChanged"] for name in ("one", "two")] == [int(left[0] < 8), 1]


@dataclass
class Counted:
    """A planner that counts what it is asked."""

    asked: list[RLJobSpec] = field(default_factory=list)

    def plan(self, of: RLJobSpec, rooms: Sequence[Room], **_: Any) -> Plan:
        self.asked.append(of)
        return cast(Plan, object())


def test_the_same_first_question_is_answered_once() -> None:
    counted = Counted()
    planner, answers = Planner(plan=counted.plan), Answers(kept=2)

    def ask(of: RLJobSpec, rooms: Sequence[Room], calibration: Calibration | None = None) -> object:
        return answers.plan(planner, of, rooms, calibration or Calibration())

    rooms = tuple(Room(f"n{i}", 8, "H100-SXM") for i in range(4))
    first = ask(spec(), rooms)
    again = spec(priority=3, sampler={"template": {"spec": {"containers": [{"name": "other"}]}}})
    assert ask(again, tuple(Room(f"m{i}", 8, "H100-SXM") for i in range(4))) is first
    assert ask(spec(), rooms[:3]) is not first
    assert ask(spec(gpus=16), rooms) is not first
    assert len(counted.asked) == 3
    # More equal rooms than the budget could fill change nothing.
    many = tuple(Room(f"n{i}", 8, "H100-SXM") for i in range(100))
    assert ask(spec(), many[:50]) is ask(spec(), many)
    wide = tuple(Room(f"n{i}", 64, "H100-SXM") for i in range(100))
    narrow = spec(sampler={"template": template(), "gpusPerReplica": 1})
    assert ask(narrow, wide[:3]) is ask(narrow, wide)
    assert ask(narrow, wide[:1]) is not ask(narrow, wide)
    assert ask(spec(), many, Calibration(sampler_factor=1.1)) is not ask(spec(), many)
