"""Jobs that make no sense, or that are far beyond any real one: a clear error or an answer, soon and in little memory."""

from __future__ import annotations

import math
from typing import Any

import pytest

from rljob_planner.api.reading import InvalidJobError, read_job
from rljob_planner.api.spec import RLJobSpec
from rljob_planner.errors import PlanningError
from rljob_planner.outcome import Plan
from rljob_planner.placement import Room, default_rooms, rooms_of
from rljob_planner.search import plan
from rljob_planner.simulate import warm_up
from tests.planner.specs import document, spec

pytestmark = pytest.mark.timeout(60)


@pytest.fixture(autouse=True, scope="module")
def _compiled() -> None:
    warm_up()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"workload__promptsPerStep": 0}, "spec.workload.promptsPerStep: write at least 1"),
        ({"workload__steps": 0}, "spec.workload.steps: write at least 1"),
        ({"workload__samplesPerPrompt": 1_000_000}, "spec.workload.samplesPerPrompt: write at most 10000"),
        ({"workload__responseTokens": {"mean": 800, "max": 500}}, "responseTokens.mean is above responseTokens.max"),
        ({"workload__responseTokens": {"mean": 10**9, "max": 10**9}}, "responseTokens.max: write at most 10000000"),
        ({"workload__responseTokens": {"mean": 800, "cv": math.nan, "max": 5000}}, "responseTokens.cv: write a finite number"),
        ({"workload__responseTokens": {"mean": 800, "cv": math.inf, "max": 5000}}, "responseTokens.cv: write a finite number"),
        ({"workload__responseTokens": {"mean": 800, "cv": -1.0, "max": 5000}}, "responseTokens.cv: write at least 0"),
        ({"workload__responseTokens": {"mean": math.nan, "max": 5000}}, "responseTokens.mean: write a whole number"),
        ({"workload__responseTokens": {"max": 5000}}, "describe response lengths in one way"),
        ({"workload__promptTokens": {"mean": 0}}, "spec.workload.promptTokens.mean: write at least 1"),
        ({"workload__environment": {"secondsPerTurn": math.nan, "turns": 4}}, "environment.secondsPerTurn: write a finite number"),
        ({"workload__environment": {"secondsPerTurn": 2.0, "turns": 1}}, "environment.turns: write at least 2"),
        ({"sandbox": {"maxReplicas": 8}}, "describe workload.environment"),
        ({"gpus": 1}, "spec.gpus: write at least 2"),
        ({"gpus": 10_000_000}, "spec.gpus: write at most 1000000"),
        ({"gpus": 8}, "the smallest split"),
        ({"staleness__max": -1}, "spec.staleness.max: write at least 0"),
        ({"trainer__mfu": "0%"}, "above 0% and up to 100%"),
        ({"trainer__mfu": "400%"}, "above 0% and up to 100%"),
    ],
    ids=str,
)  # fmt: skip
def test_what_no_job_can_be_is_said_field_by_field(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidJobError) as error:
        read_job(
            {
                "apiVersion": "rljob.dev/v1alpha1",
                "kind": "RLJob",
                "metadata": {"name": "a"},
                "spec": document(**changes),
            }
        )
    assert said in str(error.value)


def answered(job: RLJobSpec, rooms: tuple[Room, ...] | None = None) -> Plan | PlanningError:
    try:
        return plan(job, default_rooms(job.gpus) if rooms is None else rooms)
    except PlanningError as error:
        return error


@pytest.mark.parametrize(
    ("changes", "reason", "said"),
    [
        ({"workload__promptsPerStep": 1_000_000}, "TooLarge", "raise spec.gpus"),
        ({"workload__samplesPerPrompt": 10_000}, "TooLarge", "lower one of them"),
        ({"gpus": 1_000_000, "workload__promptsPerStep": 1_000_000, "workload__samplesPerPrompt": 10_000}, "TooLarge", "lower one"),
        ({"workload__responseTokens": {"mean": 1_000_000, "max": 10_000_000}}, "DoesNotFit", "lower the max"),
        ({"accelerator": "H1000"}, "UnknownAccelerator", "'H1000' is not known"),
        ({"accelerator": None}, "UnknownAccelerator", "spec.accelerator"),
        ({"model": {"name": "Qwen/Nothing"}}, "UnknownModel", "'Qwen/Nothing' is not known"),
        ({"model": {"config": {"model_type": "qwen2", "hidden_size": 0}}}, "UnknownModel", "hidden_size"),
        ({"gpus": 128, "trainer__gpusPerReplica": 64}, "DoesNotFit", "spec.trainer.gpusPerReplica: 8 or less"),
        ({"staleness": {"bound": "hold", "max": 0}}, "NothingFeasible", "raise staleness.max"),
    ],
    ids=str,
)  # fmt: skip
def test_what_cannot_be_planned_is_an_error_with_a_remedy(changes: dict[str, Any], reason: str, said: str) -> None:
    found = answered(spec(**changes))
    assert isinstance(found, PlanningError)
    assert found.reason == reason
    assert said in str(found)


@pytest.mark.parametrize(
    "changes",
    [
        {"gpus": 1_000_000},
        {"gpus": 1_000_000, "workload__promptsPerStep": 1_000_000},
        {"gpus": 100_000, "objective": "cost"},
        {"gpus": 1_000_000, "trainer__gpusPerReplica": 4, "workload__promptsPerStep": 2048},
        {"workload__steps": 10_000_000},
        {"workload__promptTokens": {"mean": 1_000_000}},
        {"workload__responseTokens": {"mean": 1, "cv": 0.0, "max": 1}},
        {"workload__promptsPerStep": 1, "workload__samplesPerPrompt": 1},
        {"workload__promptsPerStep": 1, "workload__samplesPerPrompt": 1, "staleness": {"bound": "hold", "max": 1}},
        {"workload__promptsPerStep": 1, "workload__samplesPerPrompt": 1, "staleness": {"bound": "drop", "max": 0}},
        {"staleness": {"bound": "none", "max": 10_000}},
        {"staleness": {"bound": "hold", "max": 10_000}},
        {"queue": {"capacity": 100_000_000}},
        {"sampler__maxRunning": 65_536},
        {"sampler__maxRunning": 1},
        {"trainer__mfu": "0.000001%"},
        {"trainer__mfu": "100%"},
        {"workload__environment": {"secondsPerTurn": 86_400.0, "turns": 1000, "cv": 10.0}},
        {"workload__environment": {"secondsPerTurn": 1.0, "turns": 2}, "sandbox": {"maxReplicas": 1}},
    ],
    ids=str,
)
def test_what_is_far_from_any_real_job_has_an_answer_with_finite_numbers(changes: dict[str, Any]) -> None:
    job = spec(**changes)
    found = answered(job)
    if isinstance(found, PlanningError):
        assert len(str(found)) > 40
        return
    assert found.split.gpus <= job.gpus
    assert math.isfinite(found.period.mean)
    assert found.period.mean > 0
    assert math.isfinite(found.staleness.mean)
    assert math.isfinite(found.run_time.p90)


def test_nodes_without_gpus_hold_nothing() -> None:
    found = answered(spec(), tuple(Room(f"n{i}", 0) for i in range(1000)))
    assert isinstance(found, PlanningError)
    assert found.reason == "DoesNotFit"


def test_a_hundred_thousand_different_nodes_are_no_trouble() -> None:
    rooms = tuple(Room(f"n{i}", i % 8 + 1) for i in range(100_000))
    found = answered(spec(gpus=64), rooms)
    assert isinstance(found, Plan)
    with pytest.raises(ValueError, match="8x8"):
        rooms_of("1000000x8")


@pytest.mark.parametrize("trainer_gpus", [4, 8])
def test_no_more_data_parallel_ranks_are_planned_than_a_step_has_samples(trainer_gpus: int) -> None:
    found = answered(spec(gpus=100_000, trainer__gpusPerReplica=trainer_gpus))
    assert isinstance(found, Plan)
    assert all(c.split.trainers.dp <= 128 for c in found.candidates)
    assert found.split.gpus < 0.5 * 100_000
    assert any("GPUs stay unused: a step has 128 samples" in note for note in found.notes)


def test_a_stated_number_of_trainers_is_kept_although_some_have_no_work() -> None:
    found = answered(spec(gpus=100, trainer__minReplicas=5, workload__promptsPerStep=2))
    assert isinstance(found, Plan)
    assert found.split.trainers.replicas == 5
