"""Workloads that exist already, read as a split, and told to nobody."""

from __future__ import annotations

import re
from typing import Any

import pytest

from rljob_operator import adopt
from rljob_operator.adopt import Side
from rljob_operator.inventory import take_inventory
from rljob_operator.status import Verdict
from rljob_planner.api.spec import RLJob, RLJobSpec, TargetRef
from tests.operator.objects import GPU, UID, job_dict, node, pod, spec_dict
from tests.operator.situations import split

SAMPLERS = TargetRef(kind="Deployment", name="rollout")
TRAINERS = TargetRef(kind="StatefulSet", name="learner")


def spec(**changes: Any) -> RLJobSpec:
    document = spec_dict(**changes)
    document["sampler"] = {"targetRef": {"kind": "Deployment", "name": "rollout"}}
    document["trainer"] = {"targetRef": {"kind": "StatefulSet", "name": "learner"}}
    document["rebalance"] = {"mode": "Recommend"}
    return RLJobSpec.model_validate(document)


def workload(app: str, replicas: int = 2, gpus: int | None = 4, **container: Any) -> dict[str, Any]:
    resources = {} if gpus is None else {"resources": {"limits": {GPU: gpus}}}
    return {
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": {"app": app}},
            "template": {"spec": {"containers": [{"name": "c", "image": "i", **resources, **container}]}},
        }
    }


def side(role: str = "sampler", **fields: Any) -> Side:
    ref = SAMPLERS if role == "sampler" else TRAINERS
    found = adopt.read_side(spec(), role, ref, workload("rollout" if role == "sampler" else "learner", **fields))
    assert isinstance(found, Side)
    return found


def of_app(name: str, app: str, namespace: str = "rl", **fields: Any) -> dict[str, Any]:
    found = pod(name, 4, namespace=namespace, **fields)
    found["metadata"]["labels"] = {"app": app}
    return found


def test_replicas_and_gpus_are_those_of_the_workload() -> None:
    found = side(replicas=3, gpus=2)
    assert (found.replicas, found.gpus, found.kind, found.name) == (3, 2, "Deployment", "rollout")


@pytest.mark.parametrize(
    ("live", "reason", "remedy"),
    [
        (None, "TargetMissing", "or correct sampler.targetRef"),
        (workload("rollout", gpus=None), "TargetWithoutGPUs", "sampler.nodes.gpuResource"),
        (workload("rollout", resources={"limits": {GPU: "half"}}), "TargetWithoutGPUs", "correct its resources"),
    ],
)
def test_what_is_no_side_of_a_split_is_said_with_a_remedy(live: Any, reason: str, remedy: str) -> None:
    found = adopt.read_side(spec(), "sampler", SAMPLERS, live)
    assert isinstance(found, Verdict)
    assert found.status is False
    assert found.reason == reason
    assert remedy in found.message


@pytest.mark.parametrize(
    ("arguments", "width", "running"),
    [
        ({"args": ["--tensor-parallel-size=2", "--max-num-seqs=96"]}, 2, 96),
        ({"command": ["vllm", "serve", "-tp", "2"], "args": ["--max-num-seqs", "96"]}, 2, 96),
        ({"args": ["--tensor-parallel-size=$(WIDTH)"]}, None, None),
        ({}, None, None),
    ],
)
def test_what_the_engine_was_told_is_read_from_its_arguments(
    arguments: dict[str, Any], width: int | None, running: int | None
) -> None:
    found = side(**arguments)
    assert found.argument("--tensor-parallel-size", "-tp") == width
    assert found.argument("--max-num-seqs") == running
    described = adopt.described(spec(), found, side("trainer"))
    assert described.sampler.max_running == running
    assert adopt.split_of(described, found, side("trainer"), None).samplers.tensor_parallel == (width or 4)


def test_the_split_in_force_is_that_of_the_workloads() -> None:
    laid_out = split(2, 2, in_flight=300)
    found = adopt.split_of(spec(), side(replicas=2), side("trainer", replicas=3, gpus=8), laid_out)
    assert found.label() == "2×4 samplers + 3×8 trainers"
    assert found.in_flight == 300
    assert found.trainers.dp == laid_out.trainers.dp
    plain = adopt.split_of(spec(), side(replicas=2), side("trainer", replicas=3, gpus=8), None)
    assert plain.trainers.dp == 24
    assert plain.samplers.max_running == adopt.MAX_RUNNING


def test_the_planner_is_asked_about_the_shapes_that_run() -> None:
    described = adopt.described(spec(), side(gpus=4), side("trainer", gpus=2))
    assert (described.sampler.gpus_per_replica, described.trainer.gpus_per_replica) == (4, 2)
    pinned = adopt.pinned(described, side(replicas=3), side("trainer", replicas=2, gpus=2))
    assert pinned.gpus == 16
    assert (pinned.sampler.min_replicas, pinned.sampler.max_replicas) == (3, 3)
    assert (pinned.trainer.min_replicas, pinned.trainer.max_replicas) == (2, 2)


def test_pods_are_those_that_the_selectors_choose_in_the_namespace() -> None:
    pods = [
        of_app("rollout-1", "rollout", node="n1"),
        of_app("learner-0", "learner", node="n1"),
        of_app("rollout-1", "rollout", namespace="other", node="n2"),
        of_app("web", "web", node="n2"),
    ]
    mine, everything = adopt.adopted_pods(pods, "rl", (side(), side("trainer")), "mine", UID)
    assert [(p["metadata"]["name"], p["metadata"]["labels"]["rljob.dev/role"]) for p in mine] == [
        ("learner-0", "trainer"),
        ("rollout-1", "sampler"),
    ]
    assert len(everything) == len(pods)
    assert all("rljob.dev/uid" not in p["metadata"]["labels"] for p in pods), "the cluster's pods stay as they are"


def test_expressions_of_a_selector_count_and_an_empty_one_chooses_nothing() -> None:
    def chooses(labels: dict[str, str], *expressions: dict[str, Any]) -> bool:
        selector = {"matchExpressions": list(expressions)}
        return Side("sampler", "Deployment", "d", 1, 1, {}, selector).has({"metadata": {"labels": labels}})

    assert chooses({"a": "1"}, {"key": "a", "operator": "In", "values": ["1", "2"]})
    assert not chooses({"a": "3"}, {"key": "a", "operator": "In", "values": ["1", "2"]})
    assert chooses({"a": "3"}, {"key": "a", "operator": "NotIn", "values": ["1"]}, {"key": "a", "operator": "Exists"})
    assert not chooses({"a": "3"}, {"key": "a", "operator": "DoesNotExist"})
    assert not chooses({"a": "3"})


def test_what_the_adopted_pods_hold_counts_as_free_for_the_job() -> None:
    pods = [of_app("rollout-1", "rollout", node="n1"), of_app("web", "web", node="n1")]
    _, everything = adopt.adopted_pods(pods, "rl", (side(), side("trainer")), "mine", UID)
    described = adopt.described(spec(), side(), side("trainer"))
    (room,) = take_inventory(described, UID, [node("n1")], everything, [], []).rooms
    assert room.free_gpus == 4
    assert take_inventory(described, UID, [node("n1")], pods, [], []).rooms == ()


def test_a_job_that_adopts_is_promised_nothing_of_other_jobs_nodes() -> None:
    adopting = job_dict("old", uid="other", created="2025-01-01T00:00:00Z")
    adopting["spec"] |= {
        "sampler": {"targetRef": {"kind": "Deployment", "name": "rollout"}},
        "trainer": {"targetRef": {"kind": "StatefulSet", "name": "learner"}},
        "rebalance": {"mode": "Recommend"},
    }
    adopting["status"] = {"phase": "Running", "split": split(4, 1).model_dump(mode="json", by_alias=True)}
    mine = job_dict("mine")
    found = take_inventory(RLJob.model_validate(mine).spec, UID, [node("n1")], [], [], [adopting, mine])
    assert found.placeable_gpus == 8


@pytest.mark.parametrize(("labelled", "expected"), [(True, True), (False, False)])
def test_series_are_found_by_uid_only_if_all_pods_carry_it(labelled: bool, expected: bool) -> None:
    pods = [of_app("rollout-1", "rollout"), of_app("learner-0", "learner")]
    pods[0]["metadata"]["labels"]["rljob.dev/uid"] = UID
    if labelled:
        pods[1]["metadata"]["labels"]["rljob.dev/uid"] = UID
    assert adopt.carries_uid(pods, "rl", (side(), side("trainer")), UID) is expected


def test_series_are_found_by_the_names_that_workloads_give() -> None:
    matchers = adopt.series_of("rl", (side(), side("trainer")))
    assert matchers == 'namespace="rl",pod=~"rollout-[a-z0-9]+-[a-z0-9]+|learner-[0-9]+"'
    pattern = re.compile(matchers.split('pod=~"')[1].rstrip('"'))
    assert pattern.fullmatch("rollout-7d9f8b6c5-x2x4z")
    assert pattern.fullmatch("learner-11")
    assert not pattern.fullmatch("rollout-web-7d9f8b6c5-x2x4z")


def test_what_gives_gpus_up_is_scaled_first() -> None:
    words = adopt.scale_words("rl", side(replicas=6), side("trainer", replicas=1), split(4, 2))
    assert words == (
        "kubectl -n rl scale deployment rollout --replicas=4, then kubectl -n rl scale statefulset learner --replicas=2"
    )
    back = adopt.scale_words("rl", side(replicas=4), side("trainer", replicas=2), split(6, 1))
    assert back.startswith("kubectl -n rl scale statefulset learner --replicas=1, then")
    assert adopt.scale_words("rl", side(replicas=4), side("trainer", replicas=2), split(4, 2)) == ""
