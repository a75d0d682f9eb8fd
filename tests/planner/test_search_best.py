"""Whether the search finds the best: against trying every layout with every cap, and against what must hold of any best."""

from __future__ import annotations

from typing import Any

import pytest

from rljob_planner.calibrate import Calibration
from rljob_planner.evaluation import simulated
from rljob_planner.job import Job
from rljob_planner.layouts import Space
from rljob_planner.outcome import Evaluation
from rljob_planner.placement import default_rooms, packs, rooms_of
from rljob_planner.screen import most_in_flight
from rljob_planner.search import evaluate, plan
from tests.planner.specs import spec

NODES = default_rooms(24)
CAP_SHARES = (1.0, 0.8, 0.6, 0.5, 0.4, 0.3, 0.22, 0.15, 0.1)


def best_of_all(job: Job) -> Evaluation:
    """The fastest of all layouts with many caps, all of them simulated."""
    found: list[Evaluation] = []
    for layout in Space(job, NODES).first(fewer_samplers=False):
        most = most_in_flight(job, layout)
        for share in CAP_SHARES:
            cap = max(job.group, int(most * share) // job.group * job.group)
            found.append(simulated(job, layout.split(cap), Calibration(), steps=60, seed=0))
    return min((e for e in found if not e.reason), key=lambda e: e.period_s)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"staleness__max": 1},
        {"staleness__max": 8},
        {"staleness__bound": "none"},
        {"staleness__bound": "drop"},
        {"staleness": {"bound": "drop", "max": 1}},
        {"staleness__bound": "none", "queue": {"capacity": 16}},
        {"staleness__bound": "none", "queue": {"capacity": 32, "overflow": "block"}},
        {"model__name": "Qwen/Qwen3-30B-A3B"},
    ],
    ids=str,
)
def test_the_plan_is_nearly_as_fast_as_the_best_of_everything(changes: dict[str, Any]) -> None:
    job = Job.of(spec(**changes), NODES)
    found = plan(job.spec, NODES, detail=False)
    assert found.period.mean < 1.04 * best_of_all(job).period_s


@pytest.mark.parametrize("mean", [200, 800, 3000])
@pytest.mark.parametrize("gpus", [16, 24, 40])
def test_a_plan_keeps_its_promises(mean: int, gpus: int) -> None:
    job = spec(gpus=gpus, workload__responseTokens={"mean": mean, "cv": 1.0, "max": 16000})
    rooms = default_rooms(gpus)
    found = plan(job, rooms, detail=False)
    split = found.split
    assert split.mode == "async"
    assert split.gpus <= gpus
    assert packs(
        rooms,
        split.samplers.gpus_per_replica,
        split.samplers.replicas,
        split.trainers.gpus_per_replica,
        split.trainers.replicas,
    )
    assert split.in_flight >= 8
    assert split.in_flight % 8 == 0
    assert split.trainers.dp * split.trainers.tp * split.trainers.pp == split.trainers.gpus
    assert found.staleness.mean <= 4.05
    assert found.candidates[0].split == split
    assert all(c.reason for c in found.candidates[1:])
    assert found.run_time.p10 < found.run_time.p50 < found.run_time.p90
    assert found.run_time.p50 == pytest.approx(found.period.mean * 200)


@pytest.mark.parametrize("gpus", [17, 20, 23, 24, 31, 32])
def test_more_gpus_are_never_worse(gpus: int) -> None:
    fewer, more = (plan(spec(gpus=g), default_rooms(g), detail=False) for g in (gpus, gpus + 8))
    assert more.period.mean <= fewer.period.mean * 1.02


def test_the_same_question_has_the_same_answer() -> None:
    assert plan(spec(), NODES, seed=3) == plan(spec(), NODES, seed=3)


def test_another_seed_finds_a_split_as_good() -> None:
    periods = [plan(spec(), NODES, detail=False, seed=seed).period.mean for seed in range(4)]
    assert max(periods) < 1.03 * min(periods)


def test_a_plan_and_an_evaluation_of_its_split_agree() -> None:
    found = plan(spec(), NODES, detail=False, seed=5)
    assert evaluate(spec(), found.split, NODES, seed=5) == found.evaluation


MEMORY_BOUND: dict[str, Any] = {
    "gpus": 64,
    "model": {
        "config": {
            "model_type": "qwen2",
            "num_hidden_layers": 24,
            "hidden_size": 2048,
            "num_attention_heads": 16,
            "num_key_value_heads": 16,
            "intermediate_size": 5504,
            "vocab_size": 151936,
        }
    },
    "workload__promptsPerStep": 64,
    "workload__promptTokens": {"mean": 1200},
    "staleness__max": 8,
    "sampler__gpusPerReplica": 1,
}
"""A small model without grouped queries: long responses fill its samplers' memory bandwidth with context."""


def trainers(mean: int, calibration: Calibration | None = None) -> int:
    job = spec(**MEMORY_BOUND, workload__responseTokens={"mean": mean, "cv": 0.8, "max": 8192})
    return plan(job, rooms_of("8x8"), calibration=calibration, detail=False).split.trainers.replicas


def test_longer_responses_move_gpus_to_samplers() -> None:
    counts = [trainers(mean) for mean in (250, 500, 1400)]
    assert counts == sorted(counts, reverse=True)
    assert counts[0] > counts[-1]


def test_a_slow_trainer_gets_more_gpus_and_slow_samplers_get_them_back() -> None:
    assert trainers(500, Calibration(2.0, 0.5)) > trainers(500) > trainers(500, Calibration(0.5, 2.0))


def test_a_very_large_job_is_simulated_in_a_slice_of_itself() -> None:
    job = spec(gpus=512, workload__promptsPerStep=2048, sampler__gpusPerReplica=2)
    rooms = default_rooms(512)
    whole = Job.of(job, rooms)
    layout = Space(whole, rooms).layout(2, 16)
    assert layout is not None
    part = simulated(whole, layout.split(8192), Calibration(), steps=24, seed=0)
    from rljob_planner import evaluation

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(evaluation, "SLICE_SAMPLES", 1 << 30)
        everything = simulated(whole, layout.split(8192), Calibration(), steps=24, seed=0)
    assert part.period_s == pytest.approx(everything.period_s, rel=0.02)
    assert part.staleness.mean == pytest.approx(everything.staleness.mean, abs=0.1)
    assert part.mean_running == pytest.approx(everything.mean_running, rel=0.05)
    assert part.trainer_utilization == pytest.approx(everything.trainer_utilization, abs=0.03)
