"""Whole passes over a job that adopts, in a cluster in memory and in virtual time: nothing but its own status is ever written."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from dev.virtual import jobs
from dev.virtual.cluster import VirtualCluster
from dev.virtual.operator import VirtualOperator
from rljob_operator.edges import Question
from rljob_operator.readings import Reading, Telemetry
from rljob_operator.situation import Planner
from rljob_planner.api.spec import RLJobSpec
from rljob_planner.errors import PlanningError
from rljob_planner.split import Split
from tests.operator.situations import sampler, telemetry
from tests.operator.situations import split as split_of

Json = dict[str, Any]
GPU = "nvidia.com/gpu"


def workload(kind: str, name: str, replicas: int, gpus: int) -> Json:
    template = jobs.template("main")
    template["metadata"] = {"labels": {"app": name}}
    template["spec"]["containers"][0]["resources"] = {"requests": {GPU: str(gpus)}, "limits": {GPU: str(gpus)}}
    return {
        "apiVersion": "apps/v1",
        "kind": kind,
        "metadata": {"name": name, "namespace": "rl"},
        "spec": {"replicas": replicas, "selector": {"matchLabels": {"app": name}}, "template": template},
    }


def adopting() -> Json:
    found = jobs.job(gpus=16, rebalance={"mode": "Recommend"})
    found["spec"]["sampler"] = {"targetRef": {"kind": "Deployment", "name": "rollout"}}
    found["spec"]["trainer"] = {"targetRef": {"kind": "StatefulSet", "name": "learner"}, "gpusPerReplica": 4}
    return found


class World:
    """A cluster with two workloads and the operator; what it is asked and what it writes is kept."""

    def __init__(self, planner: Planner | None = None) -> None:
        self.cluster = VirtualCluster(seed=1)
        self.cluster.add_nodes(2, 8)
        self.questions: list[Question] = []
        self.metrics: Telemetry | None = None
        self.operator = VirtualOperator(self.cluster, observe=self._observe, planner=planner or fake())

    async def _observe(self, url: str, question: Question) -> Telemetry:
        self.questions.append(question)
        if self.metrics is None:
            return Telemetry(question.now_s, 0.0, missing=("no rljob_* series",))
        pods = tuple(question.sampler_pods)
        return replace(
            self.metrics,
            at=question.now_s,
            samplers={pod: sampler() for pod in pods},
            ready_samplers=frozenset(pods),
        )

    def run(self, seconds: float = 60.0) -> Json:
        self.cluster.clock.run_for(seconds)
        found: Json = (self.cluster.job("run") or {}).get("status", {})
        return found

    def has(self, *workloads: Json) -> None:
        for each in workloads:
            self.cluster.store.create(f"{each['kind'].lower()}s", each)

    def versions(self) -> dict[str, str]:
        kinds = ("deployments", "statefulsets", "replicasets", "pods", "configmaps", "services")
        return {
            f"{kind}/{obj['metadata']['name']}": obj["metadata"]["resourceVersion"]
            for kind in kinds
            for obj in self.cluster.store.all(kind)
        }


def fake(best: tuple[int, int] = (12, 1), *, gain: float = 0.25) -> Planner:
    """A planner for which the trainers decide the period; asked about one split alone, it lays that one out."""

    def shaped(samplers: int, trainers: int) -> Split:
        found = split_of(samplers, trainers, in_flight=900)
        return found.model_copy(update={"trainers": found.trainers.model_copy(update={"gpus_per_replica": 4})})

    def period_s(split: Split) -> float:
        return 10.0 * (1.0 - gain) if split.trainers.replicas == best[1] else 10.0

    def plan(spec: RLJobSpec, rooms: Any, **asked: Any) -> Any:
        trainers = asked.get("trainer_replicas") or best[1]
        found = shaped(spec.gpus - 4 * trainers, trainers)
        if spec.sampler.max_replicas is not None and spec.trainer.max_replicas is not None:
            found = shaped(spec.sampler.max_replicas, spec.trainer.max_replicas)
        spread = SimpleNamespace(mean=period_s(found), p10=1.0, p50=1.0, p90=1.0, p95=1.0, max=1.0)
        return SimpleNamespace(
            split=found,
            period=spread,
            staleness=spread,
            run_time=spread,
            synchronous_period=None,
            bottleneck="samplers",
            confidence=None,
            placeable_gpus=16,
        )

    def evaluate(spec: RLJobSpec, split: Split, rooms: Any, **asked: Any) -> Any:
        return SimpleNamespace(period_s=period_s(split), period_error=0.001)

    return Planner(plan=plan, evaluate=evaluate)


def planned_by(world: World) -> tuple[str, str, str]:
    found = next(c for c in world.cluster.job("run")["status"]["conditions"] if c["type"] == "Planned")
    return found["status"], found["reason"], found["message"]


@pytest.fixture
def world() -> World:
    found = World()
    found.operator.start()
    return found


def test_missing_workloads_are_named_until_they_are_there(world: World) -> None:
    world.cluster.create_job(adopting())
    world.run()
    status, reason, message = planned_by(world)
    assert (status, reason) == ("False", "TargetMissing")
    assert "Deployment rollout" in message
    world.has(workload("Deployment", "rollout", 8, 1), workload("StatefulSet", "learner", 2, 4))
    world.run(120.0)
    assert planned_by(world)[:2] == ("True", "Adopted")
    assert world.operator.failures == []


def test_nothing_is_touched_and_everything_is_told(world: World) -> None:
    world.has(workload("Deployment", "rollout", 8, 1), workload("StatefulSet", "learner", 2, 4))
    world.run(120.0)
    before = world.versions()
    world.cluster.create_job(adopting())
    status = world.run(300.0)
    assert world.versions() == before
    assert (status["phase"], status["samplers"], status["trainers"]) == ("Running", "8/8", "2/2")
    assert status["split"]["trainers"]["replicas"] == 2
    first = status["decisions"][0]
    assert first["code"] == "InitialPlan"
    assert first["predictedGain"] == pytest.approx(0.25)
    assert "kubectl -n rl scale statefulset learner --replicas=1" in planned_by(world)[2]
    assert world.operator.failures == []
    # Their metrics are asked for by the names of their pods, since nobody put a label on them.
    assert world.questions[-1].series == 'namespace="rl",pod=~"rollout-[a-z0-9]+-[a-z0-9]+|learner-[0-9]+"'
    assert len(world.questions[-1].sampler_pods) == 8


def test_pods_that_carry_the_uid_are_asked_for_by_it(world: World) -> None:
    uid = world.cluster.create_job(adopting())
    samplers, trainers = workload("Deployment", "rollout", 8, 1), workload("StatefulSet", "learner", 2, 4)
    for each in (samplers, trainers):
        each["spec"]["template"]["metadata"]["labels"]["rljob.dev/uid"] = uid
    world.has(samplers, trainers)
    world.run(300.0)
    assert world.questions[-1].series is None
    assert world.operator.failures == []


def test_measured_metrics_make_a_recommendation_and_no_move(world: World) -> None:
    world.has(workload("Deployment", "rollout", 8, 1), workload("StatefulSet", "learner", 2, 4))
    world.metrics = telemetry(layout_generation=Reading.missing())
    world.cluster.create_job(adopting())
    world.run(200.0)
    before = world.versions()
    status = world.run(600.0)
    assert "RecommendOnly" in {d["code"] for d in status["decisions"]}, status["decisions"]
    assert status.get("rebalance") is None
    assert status["split"]["trainers"]["replicas"] == 2
    assert world.versions() == before
    assert status["summary"].startswith("Runs 8×1 samplers + 2×4 trainers")
    assert "Recommend" in status["next"]
    assert world.operator.failures == []


def test_a_person_who_scales_is_followed(world: World) -> None:
    world.has(workload("Deployment", "rollout", 8, 1), workload("StatefulSet", "learner", 2, 4))
    world.cluster.create_job(adopting())
    world.run(200.0)
    world.cluster.store.merge("statefulsets", "rl", "learner", {"spec": {"replicas": 1}})
    status = world.run(200.0)
    assert status["split"]["trainers"]["replicas"] == 1
    assert "the model would choose the same" in planned_by(world)[2] or "would take" in planned_by(world)[2]
    assert world.operator.failures == []


def test_a_split_that_nobody_can_plan_is_said_and_watched_on() -> None:
    def refuse(*_: Any, **__: Any) -> Any:
        raise PlanningError("NothingFeasible", "no split keeps to the staleness limit")

    world = World(Planner(plan=refuse, evaluate=refuse))
    world.operator.start()
    world.has(workload("Deployment", "rollout", 8, 1), workload("StatefulSet", "learner", 2, 4))
    world.cluster.create_job(adopting())
    status = world.run(300.0)
    assert planned_by(world)[:2] == ("False", "NothingFeasible")
    assert "are left alone" in planned_by(world)[2]
    assert status["split"]["trainers"]["dp"] == 8
    assert world.operator.failures == []


def test_a_run_that_ends_is_complete_and_frees_nothing(world: World) -> None:
    world.has(workload("Deployment", "rollout", 8, 1), workload("StatefulSet", "learner", 2, 4))
    world.metrics = telemetry(policy_version=Reading.of(1000))
    world.cluster.create_job(adopting())
    world.run(100.0)
    before = world.versions()
    status = world.run(300.0)
    assert status["phase"] == "Complete"
    assert world.versions() == before
    assert world.operator.failures == []
