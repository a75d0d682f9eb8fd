"""What a job may use: rooms on nodes, quotas, what older jobs still have to get, and the words for a shortage."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_operator.census import Census
from rljob_operator.eligibility import selects, untolerated_taints
from rljob_operator.holders import Holder, in_words
from rljob_operator.inventory import Inventory, QuotaRoom, shortage, take_inventory
from rljob_operator.planning import violations
from rljob_operator.reservation import others_plan_first
from rljob_planner.api.spec import RLJobSpec
from rljob_planner.placement import Room
from tests.operator.objects import SPLIT, UID, job_dict, node, pod, quota, spec, template


def take(
    of: RLJobSpec | None = None,
    nodes: Any = (),
    pods: Any = (),
    quotas: Any = (),
    jobs: Any = (),
) -> Inventory:
    return take_inventory(of or spec(), UID, nodes, pods, quotas, jobs)


def free(inventory: Inventory) -> dict[str, int]:
    return {room.node: room.free_gpus for room in inventory.rooms}


def test_what_others_hold_is_not_free_and_what_the_job_holds_is() -> None:
    inventory = take(
        nodes=[node("n10"), node("n2"), node("n1")],
        pods=[
            pod("other", 3, node="n1"),
            pod("ended", 8, node="n2", phase="Succeeded"),
            pod("mine", 5, node="n2", uid=UID),
            pod("leaving", 2, node="n10", terminating=True),
            pod("elsewhere", 8, node="n99"),
        ],
    )
    assert free(inventory) == {"n1": 5, "n2": 8, "n10": 6}
    assert [room.node for room in inventory.rooms] == ["n1", "n2", "n10"]
    assert all(room.samplers and room.trainers and room.accelerator == "H100-SXM" for room in inventory.rooms)
    assert (inventory.matching_nodes, inventory.taken_by_others, inventory.budget) == (3, 5, 32)
    assert inventory.placeable_gpus == 19
    assert inventory.quota is None
    assert inventory.notes == ()


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        (node("n1", cordoned=True), "node n1 is cordoned"),
        (node("n1", ready="Unknown"), "node n1 is not ready"),
        (node("n1", ready=None), "node n1 is not ready"),
        (node("n1", deletionTimestamp="2026-01-01T00:00:00Z"), "node n1 is being deleted"),
        (node("n1", 0), "node n1 has no allocatable nvidia.com/gpu"),
        (
            node("n1", taints=("team=a:NoSchedule",)),
            "node n1 has the taint team=a:NoSchedule, which sampler pods don't",
        ),
        (node("n1", "lots"), "node n1 is left out, since its GPUs can't be counted: 'lots'"),
    ],
)
def test_a_node_that_is_left_out_is_left_out_with_a_reason(bad: dict[str, Any], why: str) -> None:
    inventory = take(nodes=[bad, node("n2")])
    assert free(inventory) == {"n2": 8}
    assert inventory.matching_nodes == 2
    assert any(note.startswith(why) for note in inventory.notes), inventory.notes


def test_many_nodes_with_one_fault_make_one_note() -> None:
    inventory = take(nodes=[node(f"n{i}", cordoned=True) for i in range(8)])
    assert inventory.notes == ("nodes n0, n1, n2, n3, n4 and 3 more are cordoned",)
    assert take(nodes=[node("a", cordoned=True), node("b", cordoned=True)]).notes == ("nodes a and b are cordoned",)


def test_a_pod_whose_request_cant_be_read_takes_its_node_out() -> None:
    inventory = take(nodes=[node("n1")], pods=[pod("odd", "1500m", node="n1")])
    assert inventory.rooms == ()
    assert "'1500m' is not a whole number of GPUs" in inventory.notes[0]


def test_cpu_nodes_are_no_news_unless_somebody_asked_for_them() -> None:
    assert take(nodes=[node("cpu", None)]).matching_nodes == 0
    asked = take(spec(nodes={"selector": {"pool": "rl"}}), nodes=[node("cpu", None, labels={"pool": "rl"})])
    assert asked.matching_nodes == 1
    assert asked.notes == ("node cpu has no allocatable nvidia.com/gpu",)


def test_a_cordoned_node_keeps_room_for_what_runs_there() -> None:
    inventory = take(
        nodes=[node("n1", cordoned=True), node("n2", taints=("x:NoSchedule",)), node("n3", taints=("x:NoExecute",))],
        pods=[
            pod("a", 2, node="n1", uid=UID),
            pod("b", 4, node="n2", uid=UID, role="trainer"),
            pod("c", 2, node="n3", uid=UID),
        ],
    )
    assert inventory.rooms == (
        Room("n1", 2, "H100-SXM", samplers=True, trainers=False),
        Room("n2", 4, "H100-SXM", samplers=False, trainers=True),
    )


def test_selectors_and_overrides_decide_for_each_role() -> None:
    of = spec(
        nodes={"selector": {"pool": "train"}},
        sampler={"template": template(), "nodes": {"selector": {"pool": "infer"}}},
    )
    inventory = take(of, nodes=[node("t", labels={"pool": "train"}), node("i", labels={"pool": "infer"}), node("x")])
    assert inventory.rooms == (
        Room("i", 8, "H100-SXM", samplers=True, trainers=False),
        Room("t", 8, "H100-SXM", samplers=False, trainers=True),
    )
    assert inventory.matching_nodes == 2


def test_roles_that_count_different_resources_have_their_own_rooms() -> None:
    of = spec(sampler={"template": template(), "nodes": {"gpuResource": "amd.com/gpu"}})
    inventory = take(
        of,
        nodes=[node("amd", 4, resource="amd.com/gpu"), node("nv", 8)],
        pods=[pod("p", 1, node="amd", resource="amd.com/gpu")],
    )
    assert [(r.node, r.free_gpus, r.samplers, r.trainers) for r in inventory.rooms] == [
        ("amd", 3, True, False),
        ("nv", 8, False, True),
    ]


@pytest.mark.parametrize(
    ("taint", "tolerations", "tolerated"),
    [
        ("nvidia.com/gpu=present:NoSchedule", [], True),
        ("node.kubernetes.io/not-ready:NoExecute", [], True),
        ("node.kubernetes.io/not-ready:NoSchedule", [], False),
        ("a=b:PreferNoSchedule", [], True),
        ("a=b:NoSchedule", [{"key": "a", "value": "b"}], True),
        ("a=b:NoSchedule", [{"key": "a", "operator": "Equal", "value": "c"}], False),
        ("a=b:NoSchedule", [{"key": "a", "operator": "Exists", "effect": "NoExecute"}], False),
        ("a=b:NoExecute", [{"operator": "Exists"}], True),
        ("a:NoSchedule", [{"key": "a"}], True),
        ("a=5:NoSchedule", [{"key": "a", "operator": "Gt", "value": "3"}], False),
    ],
)
def test_taints_and_tolerations(taint: str, tolerations: list[dict[str, str]], tolerated: bool) -> None:
    in_template = spec(sampler={"template": template(tolerations=tolerations)})
    assert (untolerated_taints(in_template, "sampler", node("n", taints=(taint,))) == ()) is tolerated
    if all(t.get("operator") != "Gt" for t in tolerations):
        in_nodes = spec(nodes={"tolerations": tolerations})
        assert (untolerated_taints(in_nodes, "trainer", node("n", taints=(taint,))) == ()) is tolerated


def affinity(*terms: dict[str, Any]) -> dict[str, Any]:
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": list(terms)}}}


def expression(operator: str, *values: str, key: str = "zone") -> dict[str, Any]:
    return {"matchExpressions": [{"key": key, "operator": operator, **({"values": list(values)} if values else {})}]}


@pytest.mark.parametrize(
    ("pod_spec", "selected"),
    [
        ({}, True),
        ({"nodeSelector": {"zone": "7"}}, True),
        ({"nodeSelector": {"zone": "8"}}, False),
        ({"nodeName": "n"}, True),
        ({"nodeName": "m"}, False),
        ({"affinity": affinity(expression("In", "6", "7"))}, True),
        ({"affinity": affinity(expression("In", "6"))}, False),
        ({"affinity": affinity(expression("In", "6"), expression("Exists"))}, True),
        ({"affinity": affinity(expression("NotIn", "7"))}, False),
        ({"affinity": affinity(expression("NotIn", "7", key="absent"))}, True),
        ({"affinity": affinity(expression("Exists", key="absent"))}, False),
        ({"affinity": affinity(expression("DoesNotExist", key="absent"))}, True),
        ({"affinity": affinity(expression("DoesNotExist"))}, False),
        ({"affinity": affinity(expression("Gt", "6"))}, True),
        ({"affinity": affinity(expression("Gt", "7"))}, False),
        ({"affinity": affinity(expression("Lt", "8"))}, True),
        ({"affinity": affinity(expression("Lt", "8", key="absent"))}, False),
        ({"affinity": affinity(expression("Near", "8"))}, False),
        ({"affinity": affinity({})}, False),
        ({"affinity": affinity()}, False),
        ({"affinity": affinity({"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n"]}]})}, True),
        (
            {"affinity": affinity({"matchFields": [{"key": "metadata.name", "operator": "NotIn", "values": ["n"]}]})},
            False,
        ),
        ({"affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []}}}, True),
    ],
)
def test_node_selection_of_the_template(pod_spec: dict[str, Any], selected: bool) -> None:
    of = spec(trainer={"template": template(**pod_spec)})
    assert selects(of, "trainer", node("n", labels={"zone": "7"})) is selected


def test_accelerators_come_from_the_spec_then_from_the_nodes() -> None:
    mixed = [
        node("a", labels={"nvidia.com/gpu.product": "A100"}),
        node("b"),
        node("c"),
        node("d", labels={"nvidia.com/gpu.product": "A100"}, cordoned=True),
    ]
    inventory = take(nodes=mixed)
    assert inventory.sampler_accelerator == inventory.trainer_accelerator == "H100-SXM"
    assert sum("mix accelerators: H100-SXM (16 GPUs), A100 (8 GPUs)" in note for note in inventory.notes) == 2
    assert take(spec(accelerator="B200"), nodes=mixed).trainer_accelerator == "B200"
    unnamed = node("u")
    unnamed["metadata"]["labels"] = {}
    assert take(nodes=[unnamed]).sampler_accelerator is None


def test_pods_of_others_that_wait_are_reported_and_not_counted() -> None:
    inventory = take(
        nodes=[node("n1")],
        pods=[pod("w1", 4, phase="Pending"), pod("w2", 2, phase="Pending"), pod("g", 8, gated=True, uid="uid-x")],
    )
    assert free(inventory) == {"n1": 8}
    assert inventory.notes == ("2 pods of others wait for a node and may take 6 GPUs of what is free",)


def test_constraints_that_the_plan_does_not_check_are_said() -> None:
    spread = [{"topologyKey": "zone", "maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule"}]
    inventory = take(spec(trainer={"template": template(topologySpreadConstraints=spread)}), nodes=[node("n1")])
    assert "does not check topologySpreadConstraints of spec.trainer.template" in inventory.notes[0]


def test_a_template_that_cant_be_read_does_not_stop_the_inventory() -> None:
    inventory = take(spec(sampler={"template": template(tolerations="all", affinity=[])}), nodes=[node("n1")])
    assert free(inventory) == {"n1": 8}
    assert inventory.notes[0].startswith("spec.sampler.template can't be read")


# --- quotas ---------------------------------------------------------------------------------------------------------------


def test_the_smallest_quota_bounds_the_budget_and_gives_own_usage_back() -> None:
    pods = [
        pod("mine", 8, node="n1", uid=UID),
        pod("gated", 2, uid=UID, gated=True, phase="Pending"),
        pod("other", 4, node="n1"),
    ]
    inventory = take(nodes=[node("n1")], pods=pods, quotas=[quota("wide", 64, 14), quota("tight", 20, 14)])
    assert inventory.quota is not None
    assert (inventory.quota.name, inventory.quota.gpus, inventory.budget) == ("tight", 16, 16)


def test_a_quota_above_the_budget_changes_nothing() -> None:
    inventory = take(nodes=[node("n1")], quotas=[quota("q", 100)])
    assert inventory.quota is not None
    assert (inventory.quota.gpus, inventory.budget) == (100, 32)


def test_usage_that_still_counts_a_pod_that_is_gone_makes_no_dip() -> None:
    inventory = take(pods=[pod("mine", 8, node="n1", uid=UID)], quotas=[quota("q", 16, used=16)])
    assert inventory.budget == 16


def test_usage_of_pods_outside_of_the_namespace_does_not_count() -> None:
    inventory = take(pods=[pod("far", 8, namespace="else")], quotas=[quota("q", 16, used=4)])
    assert inventory.budget == 16
    inventory = take(pods=[pod("near", 4)], quotas=[quota("q", 16, used=4)])
    assert inventory.budget == 12


def test_a_quota_that_has_not_counted_yet_promises_only_what_is_held() -> None:
    inventory = take(pods=[pod("mine", 3, uid=UID)], quotas=[quota("q", 16, used=None)])
    assert inventory.budget == 3
    assert inventory.notes == ("quota q has not reported its usage yet, so nothing more is promised under it",)


def test_quotas_that_do_not_speak_of_gpus_are_ignored() -> None:
    pods_only = {"metadata": {"name": "q"}, "spec": {"hard": {"pods": "1"}}, "status": {"hard": {"pods": "1"}}}
    assert take(quotas=[pods_only]).quota is None


def test_a_quota_that_cant_be_read_promises_nothing() -> None:
    inventory = take(quotas=[quota("q", "many")])
    assert inventory.budget == 0
    assert "quota q: requests.nvidia.com/gpu can't be read" in inventory.notes[0]


def priority(operator: str, *values: str) -> dict[str, Any]:
    return {
        "scopeSelector": {"matchExpressions": [{"scopeName": "PriorityClass", "operator": operator, "values": values}]}
    }


@pytest.mark.parametrize(
    ("scope", "pod_spec", "covered"),
    [
        ({"scopes": ["NotTerminating"]}, {}, True),
        ({"scopes": ["Terminating"]}, {}, False),
        ({"scopes": ["BestEffort"]}, {}, True),
        ({"scopes": ["NotBestEffort"]}, {}, False),
        (
            {"scopes": ["NotBestEffort"]},
            {"containers": [{"name": "c", "resources": {"requests": {"cpu": "1"}}}]},
            True,
        ),
        (priority("In", "high"), {"priorityClassName": "high"}, True),
        (priority("In", "high"), {}, False),
        (priority("NotIn", "high"), {"priorityClassName": "low"}, True),
        (priority("Exists"), {}, False),
        (priority("DoesNotExist"), {}, True),
        ({"scopes": ["NotTerminating", "NotBestEffort"]}, {}, False),
    ],
)
def test_scopes(scope: dict[str, Any], pod_spec: dict[str, Any], covered: bool) -> None:
    both = {"template": template(**pod_spec)}
    inventory = take(spec(sampler=both, trainer=both), quotas=[quota("q", 5, **scope)])
    assert inventory.budget == (5 if covered else 32)


def test_a_quota_of_one_role_and_an_unknown_scope_count_with_a_note() -> None:
    high = {"template": template(priorityClassName="high")}
    inventory = take(spec(trainer=high), quotas=[quota("q", 5, **priority("In", "high"))])
    assert inventory.budget == 5
    assert inventory.notes == ("quota q covers only trainer pods, and is taken to bound the whole job",)
    inventory = take(quotas=[quota("q", 5, scopes=["Lunar"])])
    assert inventory.budget == 5
    assert "scope that the operator doesn't know" in inventory.notes[0]


# --- other jobs -----------------------------------------------------------------------------------------------------------


def split_status(samplers: int = 0, trainers: int = 0, sampler_gpus: int = 2, **status: Any) -> dict[str, Any]:
    return {
        "phase": "Running",
        "split": {
            "samplers": {"replicas": samplers, "gpusPerReplica": sampler_gpus},
            "trainers": {"replicas": trainers, "gpusPerReplica": 8},
        },
        **status,
    }


def older(name: str = "old", created: str = "2026-01-01T00:00:00Z", **more: Any) -> dict[str, Any]:
    return job_dict(name, uid=f"uid-{name}", created=created, **more)


MINE = job_dict()


def test_what_an_older_job_still_has_to_get_is_set_aside_on_the_most_free_node() -> None:
    inventory = take(
        nodes=[node("n1"), node("n2")],
        pods=[
            pod("s", 2, node="n1", uid="uid-old"),
            pod("waits", 2, uid="uid-old", phase="Pending"),
            pod("gone", 2, node="n1", uid="uid-old", phase="Failed"),
        ],
        jobs=[older(status=split_status(samplers=3)), MINE],
    )
    assert free(inventory) == {"n1": 4, "n2": 6}
    assert inventory.taken_by_others == 6
    # The pod that waits is part of what is set aside: it is not reported as a rival again.
    assert inventory.notes == ()


@pytest.mark.parametrize(
    "other",
    [
        older("young", created="2026-01-03T00:00:00Z"),
        older("zz", created="2026-01-02T00:00:00Z"),
        older("low", priority=-1),
        older(status=split_status(trainers=1, phase="Complete")),
        older(status=split_status(trainers=1), suspend=True),
        older(status=split_status(trainers=1), nodes={"selector": {"pool": "other"}}),
        older(status=split_status(trainers=1), nodes={"gpuResource": "amd.com/gpu"}),
        older(suspend=True),
        older(trainer={"template": template(), "gpusPerReplica": 16}),
        older(nodes={"selector": {"pool": "other"}}),
    ],
)
def test_jobs_that_take_nothing_from_this_one(other: dict[str, Any]) -> None:
    assert free(take(nodes=[node("n1"), node("n2")], jobs=[MINE, other])) == {"n1": 8, "n2": 8}


@pytest.mark.parametrize("created", ["2026-01-01T00:00:00Z", "2026-01-03T00:00:00Z"])
def test_a_split_in_force_is_kept_for_its_job_whoever_comes_first(created: str) -> None:
    other = older("other", created=created, status=split_status(trainers=1))
    inventory = take(nodes=[node("n1")], jobs=[MINE, other])
    assert free(inventory) == {}
    assert not others_plan_first(MINE, [other], [node("n1")])
    assert inventory.holders == (Holder("rl/other", 0, 8),)


@pytest.mark.parametrize(
    ("other", "first"),
    [
        (older("old"), True),
        (older("young", created="2026-01-03T00:00:00Z"), False),
        (older("high", created="2026-01-03T00:00:00Z", priority=1), True),
        (older("low", priority=-1), False),
        (older("aa", created="2026-01-02T00:00:00Z"), True),
        (older("zz", created="2026-01-02T00:00:00Z"), False),
    ],
)
def test_priority_then_age_then_uid_say_who_plans_first(other: dict[str, Any], first: bool) -> None:
    nodes = [node("n1"), node("n2")]
    inventory = take(nodes=nodes, jobs=[MINE, other])
    assert others_plan_first(MINE, [MINE, other], nodes) is first
    # One trainer of 8 GPUs and one sampler are kept for the job that comes first, on whole nodes as far as that goes.
    assert sum(free(inventory).values()) == (7 if first else 16)


def test_minima_stay_kept_for_a_job_that_waits_for_gpus_and_are_no_turn() -> None:
    waits = older(status={"conditions": [{"type": "Planned", "status": "False", "reason": "DoesNotFit"}]})
    nodes = [node("n1"), node("n2")]
    inventory = take(nodes=nodes, pods=[pod("x", 2, node="n1")], jobs=[MINE, waits])
    assert not others_plan_first(MINE, [waits], nodes)
    assert free(inventory) == {"n1": 5}
    assert inventory.holders == (Holder("rl/old", 0, 9), Holder(None, 2))


def test_a_job_on_other_nodes_does_not_plan_first() -> None:
    other = older(nodes={"selector": {"pool": "other"}})
    assert others_plan_first(MINE, [other], [node("n1"), node("o", labels={"pool": "other"})])
    mine = job_dict(nodes={"selector": {"pool": "mine"}})
    both = [node("m", labels={"pool": "mine"}), node("o", labels={"pool": "other"})]
    assert not others_plan_first(mine, [other], both)
    other["spec"]["unheardOf"] = True
    assert others_plan_first(mine, [other], both), "of a spec that can't be read, nothing is known"


def test_without_the_job_itself_all_others_count_as_first() -> None:
    other = older("young", created="2027-01-01T00:00:00Z")
    assert sum(free(take(nodes=[node("n1"), node("n2")], jobs=[other])).values()) == 7


def test_a_census_can_be_shared_by_many_inventories() -> None:
    pods = [pod("mine", 5, node="n1", uid=UID), pod("other", 3, node="n1"), pod("odd", "x", node="n2")]
    census = Census(pods)
    assert take(nodes=[node("n1"), node("n2")], pods=census) == take(nodes=[node("n1"), node("n2")], pods=pods)
    assert census.bound_gpus(UID, "sampler", "nvidia.com/gpu") == 5


def test_a_lowered_quota_is_followed_by_the_last_job_first() -> None:
    pods = [
        *(pod(f"mine-{i}", 8, node="n1", uid=UID) for i in range(2)),
        *(pod(f"young-{i}", 8, node="n1", uid="uid-young") for i in range(2)),
    ]
    young = older("young", created="2026-01-03T00:00:00Z", status=split_status(trainers=2))
    nodes = [node("n1", 64)]
    first = take(nodes=nodes, pods=pods, quotas=[quota("q", 25, used=32)], jobs=[MINE, young])
    last = take_inventory(spec(), "uid-young", nodes, pods, [quota("q", 25, used=32)], [MINE, young])
    assert (first.budget, last.budget) == (16, 9)
    # Below the minima (9 GPUs) of the last, the first has to give too.
    first = take(nodes=nodes, pods=pods, quotas=[quota("q", 20, used=32)], jobs=[MINE, young])
    last = take_inventory(spec(), "uid-young", nodes, pods, [quota("q", 20, used=32)], [MINE, young])
    assert (first.budget, last.budget) == (11, 4)


def test_what_a_job_keeps_under_a_quota_rests_on_splits_and_not_on_pods_that_come_and_go() -> None:
    mine = job_dict(status=split_status(trainers=2))
    young = older("young", created="2026-01-03T00:00:00Z", status=split_status(trainers=2))
    pods = [
        pod("mine-0", 8, node="n1", uid=UID),
        # A replacement beside the pod that it replaces: the quota counts both.
        *(pod(f"young-{i}", 8, node="n1", uid="uid-young") for i in range(3)),
        pod("foreign", 1),
    ]
    room = take(nodes=[node("n1", 64)], pods=pods, quotas=[quota("q", 33, used=33)], jobs=[mine, young]).quota
    assert room is not None
    assert (room.gpus, room.keeps) == (8, 33 - 1 - 9)
    assert violations(spec(), SPLIT, room) == ("the split uses 32 GPUs, ResourceQuota q leaves 23",)
    assert violations(spec(), SPLIT, QuotaRoom("q", 8, 32)) == ()
    assert violations(spec(), SPLIT, QuotaRoom("q", 8)) == ()


def test_both_ends_of_a_move_are_promised() -> None:
    ends = {"from": split_status(samplers=1)["split"], "to": split_status(samplers=3)["split"]}
    status = split_status(samplers=1, rebalance=ends)
    assert free(take(nodes=[node("n1")], jobs=[older(status=status)])) == {"n1": 2}


def test_nothing_is_taken_from_what_the_job_holds_and_fragments_stay_free() -> None:
    inventory = take(
        nodes=[node("n1"), node("n2")],
        pods=[pod("mine", 6, node="n1", uid=UID), pod("x", 2, node="n2")],
        jobs=[older(status=split_status(trainers=1))],
    )
    assert free(inventory) == {"n1": 8, "n2": 6}


def test_an_older_job_of_another_schema_is_respected_anywhere() -> None:
    other = older(status=split_status(trainers=1), nodes={"selector": {"pool": "other"}})
    other["spec"]["unheardOf"] = True
    inventory = take(nodes=[node("n1")], jobs=[other, MINE])
    assert inventory.rooms == ()
    assert "the spec of job rl/old can't be read" in inventory.notes[0]


def test_a_shortage_names_who_has_the_gpus() -> None:
    high = older("high", priority=5, status=split_status(trainers=2))
    pods = [pod("t", 8, node="n1", uid="uid-high", role="trainer"), pod("x", 1, node="n2")]
    inventory = take(nodes=[node("n1"), node("n2"), node("n3")], pods=pods, jobs=[MINE, high])
    sentence = shortage(spec(), inventory)
    assert sentence is not None
    assert "RLJob rl/high holds 8 GPUs and 8 more are kept for it; pods of no RLJob hold 1 GPU" in sentence
    many = tuple(Holder(f"rl/j{i}", 10 - i) for i in range(6))
    assert in_words(many).endswith("RLJob rl/j2 holds 8 GPUs; 3 more have 18)")
    assert in_words((Holder("rl/a", 0, 1),)) == " (1 GPU is kept for RLJob rl/a)"
    assert in_words(()) == ""


# --- shortage -------------------------------------------------------------------------------------------------------------


def rooms(*sizes: int, samplers: bool = True) -> tuple[Room, ...]:
    return tuple(Room(f"n{i}", gpus, samplers=samplers) for i, gpus in enumerate(sizes))


def inventory_of(*found: Room, budget: int = 32, quota_gpus: int | None = None, matching: int = 4) -> Inventory:
    from rljob_operator.inventory import QuotaRoom

    return Inventory(
        rooms=found,
        matching_nodes=matching,
        quota=None if quota_gpus is None else QuotaRoom("gpu-quota", quota_gpus),
        budget=budget if quota_gpus is None else min(budget, quota_gpus),
        taken_by_others=3,
        sampler_accelerator=None,
        trainer_accelerator=None,
        notes=("node n9 is cordoned",),
    )


def test_minima_that_fit_are_no_shortage() -> None:
    assert shortage(spec(), inventory_of(*rooms(8, 1))) is None


@pytest.mark.parametrize(
    ("inventory", "words"),
    [
        (
            inventory_of(*rooms(6, 6)),
            "the widest free node for a trainer has 6: free GPUs, lower spec.trainer.gpusPerReplica",
        ),
        (inventory_of(*rooms(8)), "beside the trainers the 8 free GPUs on 1 nodes don't hold the samplers"),
        (inventory_of(*rooms(8, 8, samplers=False)), "the widest free node for a sampler has 0"),
        (inventory_of(matching=0), "no node with nvidia.com/gpu matches: change spec.nodes.selector"),
        (inventory_of(), "none of the 4 matching nodes has a free GPU, others hold 3 (node n9 is cordoned)"),
        (inventory_of(*rooms(8, 8), quota_gpus=6), "9 GPUs, but ResourceQuota gpu-quota leaves 6 to the job"),
    ],
)
def test_a_shortage_says_what_is_missing_and_what_to_do(inventory: Inventory, words: str) -> None:
    sentence = shortage(spec(), inventory)
    assert sentence is not None
    assert sentence.startswith("needs at least 1 sampler of 1 GPU and 1 trainer of 8 GPUs")
    assert words in sentence


def test_too_few_wide_nodes() -> None:
    two = spec(
        trainer={"template": template(), "minReplicas": 2}, sampler={"template": template(), "gpusPerReplica": 2}
    )
    sentence = shortage(two, inventory_of(*rooms(8, 6, 6)))
    assert sentence is not None
    assert "2 trainers of 8 GPUs" in sentence
    assert "free nodes hold 1 of the 2 trainers" in sentence


def test_a_budget_below_the_minima() -> None:
    small = spec().model_copy(update={"gpus": 4})
    sentence = shortage(small, inventory_of(*rooms(8, 8), budget=4))
    assert sentence is not None
    assert "9 GPUs, but the budget is 4: raise spec.gpus to 9 or more" in sentence


node_rooms = st.lists(
    st.builds(lambda gpus, s, t: Room("n", gpus, None, s, t), st.integers(0, 6), st.booleans(), st.booleans()),
    max_size=4,
)


@given(node_rooms, st.integers(1, 3), st.integers(1, 3), st.integers(1, 4), st.integers(1, 3))
def test_packing_is_exact(found: list[Room], trainers: int, samplers: int, wide: int, narrow: int) -> None:
    of = spec(
        gpus=64,
        trainer={"template": template(), "minReplicas": trainers, "gpusPerReplica": wide},
        sampler={"template": template(), "minReplicas": samplers, "gpusPerReplica": narrow},
    )
    fits = any(
        sum(ts) >= trainers
        and sum((r.free_gpus - t * wide) // narrow for r, t in zip(found, ts, strict=True) if r.samplers) >= samplers
        for ts in itertools.product(*(range(r.free_gpus // wide + 1 if r.trainers else 1) for r in found))
    )
    assert (shortage(of, inventory_of(*found, budget=64)) is None) is fits
