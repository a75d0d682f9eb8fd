"""Whole passes over a job, on a cluster in memory: what goes wrong is said on the job, and is over once it is mended."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, cast

import aiohttp
import pytest

from rljob_operator.cluster import Api, ClusterError, Resource
from rljob_operator.config import Config
from rljob_operator.edges import Edges
from rljob_operator.fleet import trimmed
from rljob_operator.layout import LAYOUT_FILE
from rljob_operator.metrics import OperatorMetrics
from rljob_operator.rebalance import Observation, start, with_replicas
from rljob_operator.reconcile import CONFLICT_S, STRANGE, Reconciler
from rljob_operator.view import View
from rljob_planner.api.status import MovePhase, MoveStatus
from rljob_planner.split import Split
from tests.operator.objects import SPLIT, UID, job_dict, node, pod

Json = dict[str, Any]


@dataclass
class Memory:
    """An API server that keeps what it is sent, and a view of it that never lags."""

    job: Json
    objects: dict[tuple[str, str], Json] = field(default_factory=dict)
    pods: list[Json] = field(default_factory=list)
    sent: list[tuple[str, str]] = field(default_factory=list)
    """Verb and name of every request but the first of a pass."""
    refuse: Callable[[str, str], ClusterError | None] = lambda verb, name: None
    version: int = 100

    def _stored(self, obj: Json) -> Json:
        self.version += 1
        kept = copy.deepcopy(obj)
        kept["metadata"] = {
            "uid": f"uid-{obj['metadata']['name']}",
            **kept["metadata"],
            "resourceVersion": str(self.version),
        }
        return kept

    def _send(self, verb: str, name: str) -> None:
        self.sent.append((verb, name))
        error = self.refuse(verb, name)
        if error is not None:
            raise error

    async def get(self, resource: Resource, namespace: str | None, name: str) -> Json | None:
        return copy.deepcopy(self.job)

    async def list(self, resource: Resource, namespace: str | None, label_selector: str) -> list[Json]:
        self._send("list", resource.plural)
        return copy.deepcopy(self.pods)

    async def apply(self, obj: Json, *, dry_run: bool = False) -> Json:
        self._send("apply", obj["metadata"]["name"])
        there = self.objects.get((obj["kind"], obj["metadata"]["name"]))
        asked = obj["metadata"].get("resourceVersion")
        if asked != (None if there is None else there["metadata"]["resourceVersion"]):
            raise ClusterError(409, "Conflict", "the object has been modified")
        self.objects[obj["kind"], obj["metadata"]["name"]] = self._stored(obj)
        return copy.deepcopy(self.objects[obj["kind"], obj["metadata"]["name"]])

    async def create(self, resource: Resource, namespace: str, obj: Json, *, dry_run: bool = False) -> Json:
        self._send("create", str(obj.get("reason", resource.plural)))
        return obj

    async def merge(self, resource: Resource, namespace: str, name: str, patch: Json) -> Json:
        self._send("merge", name)
        found = next(p for p in self.pods if p["metadata"]["name"] == name)
        found["spec"].update(patch.get("spec", {}))
        found["metadata"].update(patch.get("metadata", {}))
        return found

    async def put_status(self, resource: Resource, namespace: str, name: str, obj: Json) -> Json:
        self._send("put_status", name)
        self.job["status"] = copy.deepcopy(obj["status"])
        return obj

    @property
    def status(self) -> Json:
        return cast(Json, self.job["status"])

    def condition(self, kind: str) -> tuple[str, str, str]:
        found = next(c for c in self.status["conditions"] if c["type"] == kind)
        return found["status"], found["reason"], found["message"]

    @property
    def layout(self) -> Json:
        return cast(Json, json.loads(self.objects["ConfigMap", "mine-layout"]["data"][LAYOUT_FILE]))

    def reconciler(self) -> Reconciler:
        memory = self

        class Children:
            def get(self, key: Any, default: Any = None, /) -> Any:
                found = memory.objects.get((key[1], key[2]))
                return default if found is None else [found]

        class Pods:
            def values(self) -> Any:
                return [[trimmed(p) for p in memory.pods]]

            def get(self, key: Any, default: Any = None, /) -> Any:
                return [trimmed(p) for p in memory.pods]

        view = View(pods=Pods(), children=Children(), nodes={f"n{i}": [node(f"n{i}")] for i in range(4)})
        return Reconciler(
            cluster=cast(Api, self),
            edges=Edges.real(cast(aiohttp.ClientSession, None)),
            view=view,
            config=Config(),
            metrics=OperatorMetrics(),
            namespace="rl",
            name="mine",
            uid=UID,
        )


def memory(split: Any = SPLIT, move: MoveStatus | None = None, **spec: Any) -> Memory:
    status: Json = {"phase": "Running", "split": split.model_dump(mode="json", by_alias=True)}
    if move is not None:
        status["rebalance"] = move.model_dump(mode="json", by_alias=True, exclude_none=True)
    job = job_dict(status=status, accelerator="H100-SXM", **spec)
    job["metadata"] |= {"generation": 1, "resourceVersion": "1"}
    return Memory(job)


def waiting(name: str, **fields: Any) -> Json:
    found = pod(name, uid=UID, gated=True, phase="Pending", **fields)
    found["metadata"] |= {"uid": name, "resourceVersion": "1", "creationTimestamp": "2026-01-01T00:00:00Z"}
    return found


def move(phase: MovePhase, *, rolling_back: bool = False) -> MoveStatus:
    seen = Observation(now_s=4e9, pods=(), published_generation=1, acknowledged_generation=1)
    begun = start(
        before=SPLIT,
        after=with_replicas(SPLIT, 12, 1),
        reason="test",
        predicted_gain=0.1,
        observation=seen,
        deadlines=Config().deadlines,
    )
    return begun.model_copy(update={"phase": phase, "rolling_back": rolling_back})


@pytest.mark.parametrize(
    "text", ["", "nonsense", "{}", "[]", '{"generation": "x"}', '{"generation": 9, "samplers": {"endpoints": [1]}}']
)
async def test_a_layout_that_somebody_spoilt_is_written_anew(text: str) -> None:
    world = memory()
    reconciler = world.reconciler()
    await reconciler.run_pass()
    first = world.layout
    spoilt = copy.deepcopy(world.objects["ConfigMap", "mine-layout"])
    spoilt["data"] = {LAYOUT_FILE: text}
    world.objects["ConfigMap", "mine-layout"] = world._stored(spoilt)
    await reconciler.run_pass()
    assert world.layout == {**first, "generation": first["generation"] + 1}


async def test_an_edited_layout_is_restored_though_its_generation_looks_older() -> None:
    world = memory()
    reconciler = world.reconciler()
    await reconciler.run_pass()
    first = world.layout
    edited = copy.deepcopy(world.objects["ConfigMap", "mine-layout"])
    edited["data"] = {LAYOUT_FILE: json.dumps({**first, "generation": 0, "inFlightCap": 1})}
    world.objects["ConfigMap", "mine-layout"] = world._stored(edited)
    await reconciler.run_pass()
    assert world.layout == {**first, "generation": first["generation"] + 1}


async def test_a_layout_is_not_written_twice_while_the_view_lags() -> None:
    world = memory()
    reconciler = world.reconciler()
    await reconciler.run_pass()
    old = copy.deepcopy(world.objects["ConfigMap", "mine-layout"])
    world.job["spec"]["staleness"]["max"] = 3
    await reconciler.run_pass()
    assert world.layout["maxStaleness"] == 3
    world.objects["ConfigMap", "mine-layout"] = old
    world.sent.clear()
    await reconciler.run_pass()
    assert ("apply", "mine-layout") not in world.sent


async def test_children_that_the_api_refuses_are_said_and_over_once_they_are_mended() -> None:
    world = memory()
    world.pods = [waiting("new", gpus=2)]
    world.refuse = lambda verb, name: (
        ClusterError(422, "Invalid", "containers[0].name: Invalid value")
        if (verb, name) == ("apply", "mine-samplers")
        else None
    )
    reconciler = world.reconciler()
    for _ in range(2):
        await reconciler.run_pass()
    assert world.condition("Planned")[:2] == ("False", "InvalidTemplate")
    assert "containers[0].name" in world.condition("Planned")[2]
    assert world.status["phase"] == "Running", "what runs is not undone by a bad edit"
    assert world.pods[0]["spec"]["schedulingGates"] == [], "and is still kept whole"
    world.refuse = lambda verb, name: None
    await reconciler.run_pass()
    assert world.condition("Planned")[0] == "True"


async def test_a_child_whose_name_is_taken_is_said_and_tried_again_soon() -> None:
    world = memory()
    world.refuse = lambda verb, name: (
        ClusterError(422, "Invalid", "spec.selector: field is immutable")
        if (verb, name) == ("apply", "mine-samplers")
        else None
    )
    delay_s = await world.reconciler().run_pass()
    assert world.condition("Planned")[:2] == ("False", "NameTaken")
    assert delay_s is not None
    assert 1.0 <= delay_s <= 5.0


async def test_a_spec_that_was_corrected_is_planned_again() -> None:
    world = memory()
    good = copy.deepcopy(world.job["spec"])
    world.job["spec"]["gpus"] = "many"
    reconciler = world.reconciler()
    await reconciler.run_pass()
    assert world.condition("Planned")[:2] == ("False", "InvalidSpec")
    assert ("create", "InvalidSpec") in world.sent, "an event says it, too"
    world.job["spec"] = good
    await reconciler.run_pass()
    assert world.condition("Planned")[0] == "True"


async def test_nothing_is_made_of_a_first_plan_that_an_edit_has_overtaken() -> None:
    world = memory(trainer={"minReplicas": SPLIT.trainers.replicas + 1})
    world.status["phase"] = "Planned"
    reconciler = world.reconciler()
    await reconciler.run_pass()
    assert not world.objects, "the split breaks the spec, and there is nothing to move yet"
    assert world.status["split"]["trainers"]["replicas"] > SPLIT.trainers.replicas
    assert world.status["decisions"][-1]["code"] == "SpecChanged"
    assert "before the job's pods were made" in world.status["decisions"][-1]["message"]
    await reconciler.run_pass()
    made = world.objects["Deployment", "mine-trainers"]["spec"]["replicas"]
    assert made == world.status["split"]["trainers"]["replicas"]


async def test_a_first_plan_that_no_split_can_replace_makes_nothing_and_says_so() -> None:
    world = memory(gpus=64, trainer={"minReplicas": 5})
    world.status["phase"] = "Planned"
    await world.reconciler().run_pass()
    assert not world.objects
    assert world.condition("Planned")[0] == "False"
    assert "trainer.minReplicas 5" in world.condition("Planned")[2]


async def test_a_status_that_cant_be_read_changes_nothing_and_says_how_to_go_on() -> None:
    world = memory()
    world.job["status"]["phase"] = "Dancing"
    before = copy.deepcopy(world.job["status"])
    reconciler = world.reconciler()
    for _ in range(2):
        await reconciler.run_pass()
    kind, reason, message = world.condition("Degraded")
    assert (kind, reason) == ("True", "StatusUnreadable")
    assert "--subresource=status" in message
    assert {key: value for key, value in world.status.items() if key != "conditions"} == before
    assert world.sent == [("put_status", "mine"), ("create", "StatusUnreadable")], "said once, and nothing else done"


async def test_a_pass_that_keeps_failing_says_so_until_it_does_not() -> None:
    world = memory()
    reconciler = world.reconciler()
    world.refuse = lambda verb, name: ClusterError(405, "", "no such verb") if verb == "apply" else None
    for _ in range(2):
        with pytest.raises(ClusterError):
            await reconciler.run_pass()
    assert world.condition("Degraded")[:2] == ("True", "PassFailed")
    assert "no such verb" in world.condition("Degraded")[2]
    world.refuse = lambda verb, name: None
    await reconciler.run_pass()
    assert world.condition("Degraded")[0] == "False"


async def test_an_api_server_that_is_away_is_no_trouble_of_the_job() -> None:
    world = memory()
    world.refuse = lambda verb, name: ClusterError(0, "Unreachable", "gone") if verb == "apply" else None
    reconciler = world.reconciler()
    for _ in range(3):
        with pytest.raises(ClusterError):
            await reconciler.run_pass()
    assert all(verb == "apply" for verb, _ in world.sent)


async def test_a_status_that_somebody_else_wrote_first_is_no_failure() -> None:
    world = memory()
    world.refuse = lambda verb, name: ClusterError(409, "Conflict", "changed") if verb == "put_status" else None
    assert await world.reconciler().run_pass() == CONFLICT_S


async def test_a_mark_that_stays_strange_makes_the_job_be_taken_over_anew() -> None:
    world = memory(gpus=32)
    reconciler = world.reconciler()
    await reconciler.run_pass()
    asked: list[bool] = []

    async def claim(raw: Json, *, anew: bool = False) -> Json:
        asked.append(anew)
        if anew:
            for child in world.objects.values():
                child["metadata"].setdefault("annotations", {})["rljob.dev/holder"] = "me/1"
        return raw

    world.objects["Deployment", "mine-samplers"]["metadata"]["annotations"]["rljob.dev/holder"] = "kubectl"
    reconciler._claim = claim
    reconciler._view.token = "me/1"
    for _ in range(STRANGE):
        assert await reconciler.run_pass() == CONFLICT_S
    assert not any(asked)
    assert await reconciler.run_pass() != CONFLICT_S
    assert asked[-1]


async def test_a_gate_is_lifted_only_once_its_grant_is_in_the_status() -> None:
    world = memory(gpus=32)
    world.pods = [waiting("new", gpus=2)]
    reconciler = world.reconciler()
    assert await reconciler.run_pass() == 0.0, "at once, the second pass lifts"
    assert world.status["grants"] == ["new"]
    assert ("merge", "new") not in world.sent
    await reconciler.run_pass()
    assert world.pods[0]["spec"]["schedulingGates"] == []
    await reconciler.run_pass()
    assert world.status["grants"] == [], "it speaks for itself by now"


async def test_a_grant_that_was_not_written_lifts_nothing() -> None:
    world = memory(gpus=32)
    world.pods = [waiting("new", gpus=2)]
    world.refuse = lambda verb, name: ClusterError(409, "Conflict", "changed") if verb == "put_status" else None
    reconciler = world.reconciler()
    for _ in range(3):
        assert await reconciler.run_pass() == CONFLICT_S
    assert world.pods[0]["spec"]["schedulingGates"], "the gate stands"


async def test_what_another_granted_is_room_that_is_gone() -> None:
    world = memory(gpus=32)
    world.pods = [pod(f"old{i}", 8, uid=UID, role="trainer", node=f"n{i}") for i in range(3)]
    for old in world.pods:
        old["metadata"] |= {"uid": "old", "resourceVersion": "1", "creationTimestamp": "2026-01-01T00:00:00Z"}
    world.pods += [waiting("first", gpus=8, role="sampler"), waiting("second", gpus=8, role="sampler")]
    world.job["status"]["grants"] = ["second"]
    reconciler = world.reconciler()
    for _ in range(3):
        await reconciler.run_pass()
    gated = {p["metadata"]["name"] for p in world.pods if p["spec"].get("schedulingGates")}
    assert gated == {"first"}, "though the order would have been the other way round"


async def test_pods_are_not_listed_while_no_gate_can_be_lifted() -> None:
    world = memory(gpus=32)
    world.pods = [pod(f"old{i}", 8, uid=UID, role="trainer", node=f"n{i}", terminating=True) for i in range(4)]
    for old in world.pods:
        old["metadata"]["creationTimestamp"] = "2026-01-01T00:00:00Z"
    world.pods.append(waiting("new", gpus=2))
    reconciler = world.reconciler()
    delay_s = await reconciler.run_pass()
    assert ("list", "pods") not in world.sent
    assert delay_s is not None
    assert delay_s > 1.0
    status, reason, message = world.condition("Scheduled")
    assert (status, reason) == ("False", "WaitingForBudget")
    assert "old0, old1, old2 and 1 more are still terminating" in message


async def test_a_job_suspended_while_it_rolls_back_resumes_with_the_split_that_it_had() -> None:
    back = move(MovePhase.SHRINK, rolling_back=True).model_copy(
        update={"from_split": with_replicas(SPLIT, 8, 1), "to_split": SPLIT}
    )
    world = memory(split=SPLIT, move=back, suspend=True)
    await world.reconciler().run_pass()
    assert "rebalance" not in world.status
    assert Split.model_validate(world.status["split"]) == SPLIT
    assert ("create", "MoveGivenUp") in world.sent


async def test_a_suspended_job_without_pods_claims_nothing_of_its_metrics() -> None:
    world = memory(suspend=True)
    found = {
        "type": "MetricsAvailable",
        "status": "True",
        "reason": "MetricsFound",
        "message": "",
        "observedGeneration": 1,
    }
    world.job["status"]["conditions"] = [{**found, "lastTransitionTime": "2026-01-01T00:00:00Z"}]
    await world.reconciler().run_pass()
    assert world.condition("MetricsAvailable")[:2] == ("Unknown", "Stopped")


@pytest.mark.parametrize(
    ("phase", "samplers", "trainers"),
    [(MovePhase.ANNOUNCE, 8, 2), (MovePhase.SHRINK, 8, 1), (MovePhase.GROW, 12, 1)],
)
async def test_a_move_whose_target_breaks_an_edited_spec_is_given_up_where_it_stands(
    phase: MovePhase, samplers: int, trainers: int
) -> None:
    world = memory(move=move(phase), gpus=16)
    await world.reconciler().run_pass()
    assert "rebalance" not in world.status
    split = world.status["split"]
    assert (split["samplers"]["replicas"], split["trainers"]["replicas"]) == (samplers, trainers)
    assert "the budget is 16" in world.status["decisions"][-1]["message"]
    assert ("create", "MoveGivenUp") in world.sent


async def test_planned_speaks_of_the_split_in_force() -> None:
    world = memory(move=move(MovePhase.SHRINK), gpus=16)
    planned = {
        "type": "Planned",
        "status": "True",
        "reason": "Planned",
        "message": SPLIT.label(),
        "observedGeneration": 1,
    }
    world.job["status"]["conditions"] = [{**planned, "lastTransitionTime": "2026-01-01T00:00:00Z"}]
    await world.reconciler().run_pass()
    words = world.condition("Planned")[2]
    assert words.startswith(f"{with_replicas(SPLIT, 8, 1).label()} is in force and does not keep to the spec yet")
    assert "the budget is 16" in words


async def test_a_victim_of_an_earlier_move_is_none_any_more() -> None:
    world = memory(move=move(MovePhase.SHRINK).model_copy(update={"victims": ("b",)}))
    world.pods = [waiting(name, gpus=2) for name in "ab"]
    cost = "controller.kubernetes.io/pod-deletion-cost"
    world.pods[0]["metadata"]["annotations"] = {cost: "-1000"}
    await world.reconciler().run_pass()
    assert world.pods[0]["metadata"]["annotations"] == {cost: None}
    assert world.pods[1]["metadata"]["annotations"] == {cost: "-1000"}
