"""Workloads that exist already, read as a split, and told to nobody."""

from __future__ import annotations

import re
from typing import Any

import pytest

from rljob_operator import adopt
from rljob_operator.adopt import Side
from rljob_operator.inventory import take_inventory
from rljob_operator.readings import Reading
from rljob_operator.status import Verdict
from rljob_planner.api.spec import RLJob, RLJobSpec, TargetRef
from tests.operator.objects import GPU, UID, job_dict, node, pod, spec_dict
from tests.operator.situations import split, telemetry

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
    found["metadata"] |= {"labels": {"app": app}, "uid": f"uid-{namespace}-{name}"}
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


def test_only_copies_of_the_pods_carry_the_labels_of_the_job() -> None:
    pods = [of_app("rollout-2", "rollout", node="n1"), of_app("rollout-1", "rollout", node="n1")]
    mine = adopt.labelled(pods, "sampler", "mine", UID)
    assert [(p["metadata"]["name"], p["metadata"]["labels"]["rljob.dev/role"]) for p in mine] == [
        ("rollout-1", "sampler"),
        ("rollout-2", "sampler"),
    ]
    assert all("rljob.dev/uid" not in p["metadata"]["labels"] for p in pods), "the cluster's pods stay as they are"


def test_a_selector_is_asked_as_a_query_writes_it_and_an_empty_one_selects_nothing() -> None:
    def asked(selector: dict[str, Any]) -> str:
        return Side("sampler", "Deployment", "d", 1, 1, {}, selector).label_selector()

    expressions = [
        {"key": "a", "operator": "In", "values": ["1", "2"]},
        {"key": "b", "operator": "NotIn", "values": ["3"]},
        {"key": "c", "operator": "Exists"},
        {"key": "d", "operator": "DoesNotExist"},
    ]
    assert asked({"matchLabels": {"app": "x", "tier": "y"}}) == "app=x,tier=y"
    assert asked({"matchLabels": {"app": "x"}, "matchExpressions": expressions}) == "app=x,a in (1,2),b notin (3),c,!d"
    assert asked({}) == ""


def test_what_the_adopted_pods_hold_counts_as_free_for_the_job() -> None:
    pods = [of_app("rollout-1", "rollout", node="n1"), of_app("web", "web", node="n1")]
    # Of pods of others the view keeps no labels.
    seen = [{**p, "metadata": {k: v for k, v in p["metadata"].items() if k != "labels"}} for p in pods]
    everything = adopt.in_place(seen, adopt.labelled(pods[:1], "sampler", "mine", UID))
    assert len(everything) == len(pods)
    described = adopt.described(spec(), side(), side("trainer"))
    (room,) = take_inventory(described, UID, [node("n1")], everything, [], []).rooms
    assert room.free_gpus == 4
    assert take_inventory(described, UID, [node("n1")], seen, [], []).rooms == ()


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
    assert adopt.carries_uid(pods, UID) is expected


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


@pytest.mark.parametrize(("in_flight", "cap"), [(301.0, 304), (290.0, 300), (None, 300), (0.0, 300), (900.0, 904)])
def test_the_cap_in_force_is_what_is_in_flight_in_whole_groups(in_flight: float | None, cap: int) -> None:
    seen = telemetry(in_flight_samples=Reading.missing() if in_flight is None else Reading.of(in_flight))
    before = split(4, 2, in_flight=300 if cap == 300 else 200)
    found = adopt.with_cap_seen(spec(), before, seen)
    assert found is not None
    assert found.in_flight == cap
    assert found.same_shape(before)
