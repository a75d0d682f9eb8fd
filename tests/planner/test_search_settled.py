"""What the search does once it has a winner: no other split that it simulated is better, and equals are told apart by a rule."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from rljob_planner.calibrate import Calibration
from rljob_planner.evaluation import balance_staleness, full_steps
from rljob_planner.job import Job
from rljob_planner.layouts import Space
from rljob_planner.outcome import Plan
from rljob_planner.placement import Room, default_rooms
from rljob_planner.race import NOISE, Race
from rljob_planner.search import plan
from rljob_planner.simulate import simulate
from tests.planner.specs import spec

SHORT: dict[str, Any] = {
    "gpus": 16,
    "workload__promptsPerStep": 128,
    "workload__responseTokens": {"mean": 900, "cv": 0.9, "max": 8192},
    "staleness__max": 2,
    "trainer__gpusPerReplica": 4,
}
NODES = default_rooms(24)
TWO_KINDS = (
    *(Room(f"sampler-{i}", 8, "H20", trainers=False) for i in range(4)),
    Room("trainer-0", 8, "H100", samplers=False),
)


def beaten_by(found: Plan) -> list[float]:
    """The periods of simulated candidates that are shorter than the plan's beyond noise."""
    return [
        c.period_s
        for c in (*found.candidates, *found.neighbours)
        if c.simulated and c.feasible and c.period_s is not None and c.period_s < found.period.mean * (1.0 - NOISE)
    ]


@pytest.mark.parametrize("bare", [True, False])
@pytest.mark.parametrize("mean", [300, 600, 900, 2000])
def test_no_simulated_split_beats_the_plan(mean: int, bare: bool) -> None:
    job = spec(**SHORT | {"workload__responseTokens": {"mean": mean, "cv": 0.9, "max": 8192}})
    for rooms in (TWO_KINDS, default_rooms(16)):
        assert beaten_by(plan(job, rooms, calibration=Calibration(alone=bare))) == []


def test_a_decision_without_detail_is_the_same_split() -> None:
    for rooms in (TWO_KINDS, default_rooms(16)):
        whole, short = (
            plan(spec(**SHORT), rooms, calibration=Calibration(alone=True), detail=d) for d in (True, False)
        )
        assert whole.split == short.split
        assert whole.period == short.period
        assert short.neighbours == ()


def test_of_equal_splits_the_one_with_fewer_gpus_then_fresher_samples_then_fewer_trainers_is_chosen() -> None:
    rooms = default_rooms(24)
    job = Job.of(spec(trainer__gpusPerReplica=4), rooms)
    race, space, steps = Race(job, Calibration(), 200, 0), Space(job, rooms), full_steps(job)
    layouts = [space.layout(2, trainers, samplers) for trainers, samplers in ((2, 8), (2, 7), (1, 9), (3, 5))]
    splits = [layout.split(64) for layout in layouts if layout is not None]
    base = race.evaluation(splits[0], steps)

    def known(*runs: tuple[int, float, float]) -> None:
        race._known = {
            splits[at]: (
                steps,
                replace(
                    base,
                    split=splits[at],
                    period=replace(base.period, mean=period),
                    staleness=replace(base.staleness, mean=staleness),
                ),
            )
            for at, period, staleness in runs
        }

    known((0, 10.0, 2.0), (1, 10.04, 3.0))
    assert race.chosen(steps).split == splits[1]
    known((1, 10.0, 3.0), (2, 10.04, 2.0), (3, 10.03, 2.04))
    assert race.chosen(steps).split == splits[2]
    known((1, 10.0, 2.0), (2, 10.04, 2.04))
    assert race.chosen(steps).split == splits[2]
    known((0, 10.0, 2.0), (1, 10.1, 1.0))
    assert race.chosen(steps).split == splits[0]


DROPS: dict[str, Any] = {
    "gpus": 32,
    "model": {"name": "Qwen/Qwen3-14B"},
    "workload__promptsPerStep": 32,
    "workload__responseTokens": {"mean": 8000, "cv": 0.8, "max": 32768},
    "workload__environment": {"turns": 10, "secondsPerTurn": 30},
    "staleness": {"max": 4, "bound": "drop"},
}


def test_much_work_that_is_thrown_away_is_said_with_what_to_change() -> None:
    found = plan(spec(**DROPS), default_rooms(32), calibration=Calibration(alone=True), detail=False)
    assert found.evaluation.wasted_fraction > 0.1
    (said,) = [note for note in found.notes if "thrown away" in note]
    assert said.startswith(f"{found.evaluation.wasted_fraction:.0%} of the generated response tokens")
    assert all(remedy in said for remedy in ("staleness.max", "bound: admission", "fewer samples"))
    kept = plan(spec(**DROPS | {"staleness": {"max": 4}}), default_rooms(32), detail=False)
    assert not any("thrown away" in note for note in kept.notes)


COARSE: dict[str, Any] = {
    "model": {"name": "Qwen/Qwen3-14B"},
    "workload__promptsPerStep": 64,
    "workload__samplesPerPrompt": 16,
    "workload__responseTokens": {"mean": 4000, "cv": 1.0, "max": 32768},
    "staleness": {"max": 2},
}


def test_smaller_trainer_pods_are_proposed_where_they_pay_and_nobody_stated_a_size() -> None:
    rooms, bare = default_rooms(24), Calibration(alone=True)
    found = plan(spec(**COARSE), rooms, calibration=bare)
    (said,) = [note for note in found.notes if "trainer.gpusPerReplica" in note]
    assert "pods of 4 allow finer splits" in said
    smaller = plan(spec(**COARSE, trainer__gpusPerReplica=4), rooms, calibration=bare)
    assert smaller.split.label() in said
    assert smaller.period.mean < 0.9 * found.period.mean
    stated = plan(spec(**COARSE, trainer__gpusPerReplica=8), rooms, calibration=bare)
    assert not any("trainer.gpusPerReplica is not stated" in note for note in stated.notes)


@pytest.mark.parametrize(("prompts", "samples"), [(1, 1), (2, 1), (16, 8), (128, 8), (640, 8)])
@pytest.mark.parametrize("limit", [0, 1, 2, 4])
def test_the_mean_keeps_to_the_limit_exactly_under_admission(prompts: int, samples: int, limit: int) -> None:
    job = spec(workload__promptsPerStep=prompts, workload__samplesPerPrompt=samples, staleness__max=limit)
    assert plan(job, NODES, detail=False).staleness.mean <= limit


@pytest.mark.parametrize(("bound", "cap"), [("none", 96), ("none", 256), ("hold", 48), ("admission", 200)])
@pytest.mark.parametrize("environment", [None, {"secondsPerTurn": 5.0, "turns": 4}])
def test_staleness_counted_at_publications_is_that_counted_sample_by_sample(
    bound: str, cap: int, environment: dict[str, Any] | None
) -> None:
    job = Job.of(spec(staleness__bound=bound, workload__environment=environment), NODES)
    layout = Space(job, NODES).layout(2, 1)
    assert layout is not None
    inp = job.simulation_input(layout.split(cap), Calibration(), steps=420, warmup=20)
    result = simulate(inp, record=True)
    assert result.timeline is not None
    counted = balance_staleness(result.timeline, 20, job.batch)
    # They differ by the ages of the samples in flight at the two ends, shared out over the steps between them.
    assert counted == pytest.approx(
        result.staleness.mean, abs=2.0 * (1.0 + result.staleness.mean) * cap / (400 * job.batch)
    )
