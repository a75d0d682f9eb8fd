"""What must hold of any plan, whatever the job: hypothesis draws small jobs and nodes."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rljob_planner.errors import PlanningError
from rljob_planner.outcome import Plan, ratio_variance, two_digits
from rljob_planner.placement import Room, default_rooms, packs
from rljob_planner.search import plan
from tests.planner.specs import spec

FEW = settings(
    max_examples=12, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)  # fmt: skip

jobs = st.fixed_dictionaries(
    {
        "gpus": st.integers(4, 40),
        "model__name": st.sampled_from(["Qwen/Qwen3-8B", "Qwen/Qwen2.5-7B"]),
        "objective": st.sampled_from(["time", "cost"]),
        "workload__promptsPerStep": st.integers(1, 48),
        "workload__samplesPerPrompt": st.integers(1, 16),
        "workload__responseTokens": st.fixed_dictionaries(
            {"mean": st.integers(50, 2000), "cv": st.sampled_from([0.0, 0.5, 1.0]), "max": st.just(8000)}
        ),
        "staleness": st.fixed_dictionaries(
            {"bound": st.sampled_from(["none", "admission", "hold", "drop"]), "max": st.integers(1, 6)}
        ),
        "trainer__gpusPerReplica": st.sampled_from([2, 4, 8]),
    }
)
nodes = st.lists(st.integers(0, 8), min_size=1, max_size=6)


def answered(changes: dict[str, Any], rooms: tuple[Room, ...], **more: Any) -> Plan | None:
    """The plan, or None where there is none; what is wrong is then said with a remedy."""
    if changes["gpus"] <= changes["trainer__gpusPerReplica"]:
        changes = {**changes, "gpus": changes["trainer__gpusPerReplica"] + 1}
    try:
        return plan(spec(**changes), rooms, detail=False, **more)
    except PlanningError as error:
        refused = error
    assert refused.reason in ("DoesNotFit", "NothingFeasible", "TooLarge")
    assert len(str(refused)) > 40
    return None


@FEW
@given(jobs, nodes)
def test_a_plan_keeps_to_budget_nodes_and_staleness(changes: dict[str, Any], sizes: list[int]) -> None:
    rooms = tuple(Room(f"n{i}", free) for i, free in enumerate(sizes))
    found = answered(changes, rooms)
    if found is None:
        return
    split, samplers, trainers = found.split, found.split.samplers, found.split.trainers
    assert split.gpus <= max(changes["gpus"], changes["trainer__gpusPerReplica"] + 1)
    assert packs(rooms, samplers.gpus_per_replica, samplers.replicas, trainers.gpus_per_replica, trainers.replicas)
    assert trainers.dp * trainers.tp * trainers.pp == trainers.gpus
    assert split.in_flight >= changes["workload__samplesPerPrompt"]
    limit = changes["staleness"]["max"] + (1 if changes["staleness"]["bound"] == "hold" else 0)
    assert found.staleness.mean <= limit + 0.05
    assert found.evaluation.within_staleness


@FEW
@given(jobs)
def test_every_candidate_says_why_it_is_not_the_best(changes: dict[str, Any]) -> None:
    found = answered(changes, default_rooms(40))
    if found is None:
        return
    best, *others = found.candidates
    assert best.split == found.split
    assert best.reason == ""
    assert best.feasible
    assert all(c.reason for c in others)
    assert all(c.feasible for c in found.candidates[: sum(c.feasible for c in found.candidates)])
    shapes = [c.split.label() for c in found.candidates]
    assert len(shapes) == len(set(shapes))


@FEW
@given(jobs, st.integers(0, 5))
def test_the_same_question_has_the_same_answer(changes: dict[str, Any], seed: int) -> None:
    rooms = default_rooms(40)
    first, again = answered(changes, rooms, seed=seed), answered(changes, rooms, seed=seed)
    assert first == again


@FEW
@given(jobs, st.integers(1, 16))
def test_more_gpus_are_never_slower(changes: dict[str, Any], more: int) -> None:
    # GPUs that do not help may stay unused, and all splits see the same random numbers.
    changes = {**changes, "objective": "time"}
    fewer = answered(changes, default_rooms(changes["gpus"]))
    grown = answered({**changes, "gpus": changes["gpus"] + more}, default_rooms(changes["gpus"] + more))
    if fewer is None:
        return
    assert grown is not None
    assert grown.period.mean <= fewer.period.mean * 1.05


@FEW
@given(st.lists(st.integers(0, 1000), min_size=1, max_size=12).filter(any), st.floats(0.0, 0.5), st.floats(0.0, 3.0))
def test_the_ratio_variance_grows_with_staleness(counts: list[int], per_version: float, further: float) -> None:
    found = ratio_variance(counts, per_version)
    assert found >= 0.0
    assert ratio_variance([0, *counts], per_version) >= found
    assert ratio_variance(counts, per_version, further=further) >= found
    assert ratio_variance([sum(counts)], per_version) == 0.0
    # Jensen: the mean of a convex function is at least the function of the mean.
    mean = sum(s * n for s, n in enumerate(counts)) / sum(counts)
    assert found >= math.expm1(per_version * mean) * (1.0 - 1e-9)


@pytest.mark.parametrize(
    ("fraction", "said"),
    [(0.386, "+39%"), (0.0812, "+8.1%"), (0.996, "+100%"), (1.36, "+140%"), (-0.004, "-0.40%"), (12.0, "+1200%"), (0.0, "+0%")],
)  # fmt: skip
def test_differences_have_two_significant_digits(fraction: float, said: str) -> None:
    assert two_digits(fraction) == said
