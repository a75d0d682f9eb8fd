"""The budget gate: what holds GPUs, and what may start."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rljob_operator.gate import (
    GATE,
    committed_gpus,
    held_gpus,
    is_gated,
    is_held,
    is_terminal,
    lift_patch,
    pod_gpus,
    pods_to_lift,
    uid_of,
    unlifted_grants,
)
from rljob_operator.quantity import QuantityError, quantity, whole

GPU = "nvidia.com/gpu"


def container(gpus: object = None, kind: str = "requests", **more: Any) -> dict[str, Any]:
    return {"name": "c", **({} if gpus is None else {"resources": {kind: {GPU: gpus}}}), **more}


def pod(
    name: str = "p",
    gpus: int = 1,
    *,
    role: str = "sampler",
    gated: bool = False,
    node: str | None = None,
    phase: str = "Pending",
    terminating: bool = False,
    created: str = "2026-01-01T00:00:00Z",
    gates: tuple[str, ...] = (),
) -> dict[str, Any]:
    names = ([GATE] if gated else []) + list(gates)
    return {
        "metadata": {
            "name": name,
            "uid": f"uid-{name}",
            "resourceVersion": "7",
            "creationTimestamp": created,
            "labels": {"rljob.dev/role": role},
            **({"deletionTimestamp": created} if terminating else {}),
        },
        "spec": {
            "containers": [container(str(gpus))],
            **({"schedulingGates": [{"name": n} for n in names]} if names else {}),
            **({"nodeName": node} if node else {}),
        },
        "status": {"phase": phase},
    }


@pytest.mark.parametrize(
    ("spec", "gpus"),
    [
        ({"containers": [container("2"), container(3)]}, 5),
        ({"containers": [container("2", "limits")]}, 2),
        ({"containers": [container()]}, 0),
        ({"containers": [container("2")], "initContainers": [container("4"), container("3")]}, 4),
        ({"containers": [container("4")], "initContainers": [container("1")]}, 4),
        ({"containers": [container("2")], "initContainers": [container("1", restartPolicy="Always")]}, 3),
        (
            {
                "containers": [container("1")],
                "initContainers": [container("1", restartPolicy="Always"), container("3")],
            },
            4,
        ),
        (
            {
                "containers": [container("1")],
                "initContainers": [container("3"), container("1", restartPolicy="Always")],
            },
            3,
        ),
        ({"containers": [container("1")], "overhead": {GPU: "1"}}, 2),
        ({}, 0),
    ],
)
def test_gpus_of_a_pod_are_what_the_scheduler_sets_aside(spec: dict[str, Any], gpus: int) -> None:
    assert pod_gpus({"spec": spec}, GPU) == gpus


def test_several_resources_add_up() -> None:
    spec = {"containers": [{"name": "c", "resources": {"requests": {GPU: "2", "amd.com/gpu": "1"}}}]}
    assert pod_gpus({"spec": spec}, {GPU, "amd.com/gpu"}) == 3
    assert pod_gpus({"spec": spec}, "amd.com/gpu") == 1


def test_a_request_that_is_no_whole_number_is_an_error_and_not_zero() -> None:
    with pytest.raises(QuantityError, match="500m"):
        pod_gpus({"spec": {"containers": [container("500m")]}}, GPU)


@pytest.mark.parametrize(
    ("text", "value"), [("8", 8), (8, 8), ("1k", 1000), ("2Ki", 2048), ("3e2", 300), ("4000m", 4), ("1E", 10**18)]
)
def test_quantities(text: object, value: int) -> None:
    assert whole(text) == value


@pytest.mark.parametrize("text", ["", "eight", "1Kib", "1..2", True, None, "-1", "0.5", "1e999999999", "9" * 5000])
def test_what_is_no_count_of_gpus_is_refused(text: object) -> None:
    with pytest.raises(QuantityError):
        whole(text)


def test_fractions_are_exact() -> None:
    assert quantity("0.1") * 10 == quantity("1000m") == 1


def test_states() -> None:
    assert is_gated(pod(gated=True))
    assert not is_gated(pod(gates=("kueue.x-k8s.io/admission",)))
    assert is_terminal(pod(phase="Failed"))
    assert not is_terminal(pod(phase="Unknown"))


@pytest.mark.parametrize(
    ("state", "held"),
    [
        ({"gated": True}, False),
        ({}, True),
        ({"node": "n1", "phase": "Running"}, True),
        ({"node": "n1", "terminating": True}, True),
        ({"gated": True, "terminating": True}, False),
        ({"node": "n1", "phase": "Succeeded"}, False),
        ({"node": "n1", "phase": "Unknown"}, True),
        ({"gates": ("other/gate",)}, True),
    ],
)
def test_gpus_are_held_from_the_lift_to_the_end(state: dict[str, Any], held: bool) -> None:
    assert is_held(pod(**state)) is held
    assert held_gpus([pod(gpus=3, **state)], GPU) == (3 if held else 0)


def lift(pods: list[dict[str, Any]], budget: int, **wanted: int) -> tuple[str, ...]:
    return pods_to_lift(pods, budget=budget, gpu_resource=GPU, wanted=wanted)


def test_trainers_go_first_then_the_oldest() -> None:
    pods = [
        pod("s-new", gated=True, created="2026-01-01T00:00:02Z"),
        pod("s-old", gated=True, created="2026-01-01T00:00:01Z"),
        pod("t", 4, role="trainer", gated=True, created="2026-01-01T00:00:09Z"),
    ]
    assert lift(pods, 6, sampler=2, trainer=1) == ("t", "s-old", "s-new")
    assert lift(pods, 5, sampler=2, trainer=1) == ("t", "s-old")


def test_of_the_same_second_the_lowest_ordinal_goes_first() -> None:
    pods = [pod(f"t-{i}", 2, role="trainer", gated=True) for i in (10, 2, 0)]
    assert lift(pods, 4, trainer=3) == ("t-0", "t-2")


def test_a_replacement_waits_until_the_terminating_pod_is_gone() -> None:
    old = pod("old", 8, node="n1", phase="Running", terminating=True)
    new = pod("new", 8, gated=True)
    assert lift([old, new], 8, sampler=1) == ()
    assert lift([new], 8, sampler=1) == ("new",)


def test_a_pod_that_does_not_fit_yet_is_passed_over() -> None:
    pods = [
        pod("leaving", 4, node="n1", terminating=True),
        pod("wide", 8, role="trainer", gated=True),
        pod("narrow", 2, gated=True),
    ]
    assert lift(pods, 10, sampler=1, trainer=1) == ("narrow",)
    # What the narrow pod took is within what is wanted, so the wide one still fits once the others are gone.
    pods = [pod("wide", 8, role="trainer", gated=True), pod("narrow", 2, node="n2")]
    assert lift(pods, 10, sampler=1, trainer=1) == ("wide",)


def test_no_role_gets_more_than_is_wanted() -> None:
    pods = [
        pod("live", node="n1"),
        pod("leaving", node="n1", terminating=True),
        *(pod(f"g{i}", gated=True) for i in range(4)),
    ]
    assert lift(pods, 100, sampler=3) == ("g0", "g1")
    assert lift(pods, 100, sampler=0) == ()
    assert lift(pods, 100) == ()


def test_pods_that_leave_or_have_ended_are_not_lifted() -> None:
    pods = [pod("a", gated=True, terminating=True), pod("b", gated=True, phase="Failed")]
    assert lift(pods, 8, sampler=2) == ()


def test_a_budget_that_is_overdrawn_lifts_nothing_and_breaks_nothing() -> None:
    assert lift([pod("held", 8, node="n1"), pod("g", gated=True)], 4, sampler=2) == ()


states = st.fixed_dictionaries(
    {
        "gpus": st.integers(0, 8),
        "role": st.sampled_from(["sampler", "trainer"]),
        "gated": st.booleans(),
        "node": st.sampled_from([None, "n1"]),
        "phase": st.sampled_from(["Pending", "Running", "Failed"]),
        "terminating": st.booleans(),
    }
)


@given(st.lists(states, max_size=12), st.integers(0, 40), st.integers(0, 6), st.integers(0, 6))
def test_the_budget_holds_after_lifting_whatever_the_pods(
    many: list[dict[str, Any]], budget: int, samplers: int, trainers: int
) -> None:
    for state in many:
        state["gated"] = state["gated"] and state["node"] is None
    pods = [pod(f"p{i}", **state) for i, state in enumerate(many)]
    before = held_gpus(pods, GPU)
    wanted = {"sampler": samplers, "trainer": trainers}
    names = pods_to_lift(pods, budget=budget, gpu_resource=GPU, wanted=wanted)
    after = [{**p, "spec": {**p["spec"], "schedulingGates": []}} if p["metadata"]["name"] in names else p for p in pods]
    assert held_gpus(after, GPU) <= max(budget, before)
    for role, most in wanted.items():

        def live(ps: list[dict[str, Any]], role: str = role) -> int:
            return sum(
                is_held(p)
                and "deletionTimestamp" not in p["metadata"]
                and p["metadata"]["labels"]["rljob.dev/role"] == role
                for p in ps
            )

        assert live(after) <= max(most, live(pods))
    # Nothing that could be lifted is left: a second look finds no more.
    assert pods_to_lift(after, budget=budget, gpu_resource=GPU, wanted=wanted) == ()


@given(st.lists(states, max_size=12), st.integers(0, 40), st.sets(st.integers(0, 11)))
@example([{"gpus": 1, "role": "sampler", "gated": True, "node": None, "phase": "Failed", "terminating": True}], 0, {0})
def test_whatever_granted_lifts_happen_when_the_budget_holds(
    many: list[dict[str, Any]], budget: int, granted: set[int]
) -> None:
    for state in many:
        state["gated"] = state["gated"] and state["node"] is None
    pods = [pod(f"p{i}", **state) for i, state in enumerate(many)]
    grants = unlifted_grants(pods, [f"uid-p{i}" for i in sorted(granted)])
    committed = committed_gpus(pods, GPU, grants)
    names = pods_to_lift(pods, budget=budget, gpu_resource=GPU, wanted={"sampler": 9, "trainer": 9}, granted=grants)
    assert not {f"uid-{name}" for name in names} & set(grants)
    all_granted = {*grants, *(f"uid-{name}" for name in names)}
    lifted = [{**p, "spec": {**p["spec"], "schedulingGates": []}} if uid_of(p) in all_granted else p for p in pods]
    assert held_gpus(lifted, GPU) <= max(budget, committed)
    assert committed_gpus(lifted, GPU, all_granted) == held_gpus(lifted, GPU)


def test_a_grant_counts_until_its_pod_holds_its_gpus_itself_or_is_gone() -> None:
    waiting, lifted, other = pod("w", 2, gated=True), pod("l", 4, node="n1"), pod("o", 8, gated=True)
    granted = ("uid-w", "uid-l", "uid-gone")
    assert committed_gpus([waiting, lifted, other], GPU, granted) == 6
    assert unlifted_grants([waiting, lifted, other], granted) == ("uid-w",)


def test_the_patch_takes_only_our_gate_off_the_pod_that_was_read() -> None:
    assert lift_patch(pod("p", gated=True, gates=("other/gate",))) == {
        "metadata": {"uid": "uid-p", "resourceVersion": "7"},
        "spec": {"schedulingGates": [{"name": "other/gate"}]},
    }
    assert lift_patch(pod("p", gated=True))["spec"] == {"schedulingGates": []}
