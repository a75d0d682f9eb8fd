"""The formulas against the simulation over a grid: where one limit is clear they agree, where two meet they say so.

ρ is the samplers' rate over the trainer's, each alone, from half to double; tails from light to heavy (the longest of 8 samples
is 1.4, 2.6 or 4.3 times the mean); in flight are one or two batches. Neither model knows of the other: the simulation counts
single samples, the formulas know their distribution alone.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from rljob_planner.closedform import ClosedForm, predict
from rljob_planner.lengths import LengthDistribution
from rljob_planner.simulate import DecodeCost, SimulationInput, SimulationResult, TrainCost, simulate

SLOTS = 64
N = np.arange(SLOTS + 1.0)
TAILS = {
    "light": LengthDistribution.lognormal(400, 0.25, 4000),
    "middle": LengthDistribution.lognormal(300, 0.8, 4000),
    "heavy": LengthDistribution.lognormal(200, 1.3, 8000),
}
ROLLOUT_BOUND, TRAIN_BOUND = (0.5, 0.75), (1.3, 2.0)


def job(tail: str, rho: float, in_flight: int = 256, **changes: Any) -> SimulationInput:
    """A job of 16 groups of 8 whose sides alone have this ratio of rates."""
    inp = SimulationInput(
        mode="async",
        replicas=4,
        max_running=SLOTS,
        kv_tokens=400_000,
        decode=DecodeCost(np.full(SLOTS + 1, 0.01), 2e-5 * N, np.zeros(SLOTS + 1), 1e-8, 0.0),
        train=TrainCost(1.0),
        weight_sync_s=0.0,
        prompts_per_step=16,
        samples_per_prompt=8,
        prompt_tokens=200,
        lengths=TAILS[tail],
        in_flight_cap=in_flight,
        steps=900,
        warmup=150,
    )
    inp = replace(inp, **changes)
    return replace(inp, train=TrainCost(rho * 128 / predict(inp).rollout_rate))


def both(inp: SimulationInput) -> tuple[ClosedForm, SimulationResult]:
    return predict(inp), simulate(inp, rho=0.0)


def agree(inp: SimulationInput, staleness: float = 0.15) -> None:
    form, run = both(inp)
    assert not form.contested
    assert form.period_s == pytest.approx(run.period.mean, rel=0.03)
    assert form.mean_staleness == pytest.approx(run.staleness.mean, abs=staleness)


@pytest.mark.parametrize("tail", TAILS)
@pytest.mark.parametrize("rho", ROLLOUT_BOUND)
@pytest.mark.parametrize("weights", [0.0, 0.6])
def test_rollout_bound(tail: str, rho: float, weights: float) -> None:
    agree(job(tail, rho, weight_sync_s=weights))
    agree(job(tail, rho, 128, weight_sync_s=weights, queue_capacity=32))


@pytest.mark.parametrize("tail", TAILS)
@pytest.mark.parametrize(("rho", "weights"), [(1.3, 0.0), (2.0, 0.0), (2.0, 0.6)])
@pytest.mark.parametrize("batches", [1, 2, 4])
def test_train_bound_with_a_queue_that_drops(tail: str, rho: float, weights: float, batches: int) -> None:
    agree(job(tail, rho, queue_capacity=16 * batches, weight_sync_s=weights))


@pytest.mark.parametrize("tail", TAILS)
@pytest.mark.parametrize(("rho", "weights"), [(1.3, 0.0), (2.0, 0.0), (2.0, 0.6)])
@pytest.mark.parametrize("batches", [1, 2, 4])
def test_train_bound_with_a_queue_that_blocks(tail: str, rho: float, weights: float, batches: int) -> None:
    agree(job(tail, rho, 128, queue_capacity=16 * batches, overflow="block", weight_sync_s=weights))


@pytest.mark.parametrize("tail", TAILS)
@pytest.mark.parametrize("rho", [0.5, 0.75, 2.0])
@pytest.mark.parametrize("most", [1, 2])
def test_admission(tail: str, rho: float, most: int) -> None:
    form, run = both(job(tail, rho, bound="admission", max_staleness=most))
    if form.contested:
        assert form.period_s == pytest.approx(run.period.mean, rel=0.08)
    else:
        assert form.period_s == pytest.approx(run.period.mean, rel=0.03)
    assert form.mean_staleness == pytest.approx(run.staleness.mean, abs=0.15)


def test_admission_that_limits_is_mostly_clear() -> None:
    clear = [
        tail
        for tail in TAILS
        for rho in (0.5, 2.0)
        if not predict(job(tail, rho, bound="admission", max_staleness=1)).contested
    ]
    assert len(clear) >= 5


@pytest.mark.parametrize("tail", TAILS)
@pytest.mark.parametrize("rho", [0.5, 2.0])
@pytest.mark.parametrize("weights", [0.0, 0.6])
def test_admission_with_weights_to_load(tail: str, rho: float, weights: float) -> None:
    agree(job(tail, rho, bound="admission", max_staleness=1, weight_sync_s=weights))


@pytest.mark.parametrize("tail", TAILS)
@pytest.mark.parametrize("rho", [0.5, 2.0])
@pytest.mark.parametrize("most", [2, 4, 8])
@pytest.mark.parametrize("weights", [0.0, 0.6])
def test_drop(tail: str, rho: float, most: int, weights: float) -> None:
    form, run = both(job(tail, rho, bound="drop", max_staleness=most, weight_sync_s=weights))
    # Groups that are cut off by their staleness are alike: even where both sides limit, the period is known.
    assert form.period_s == pytest.approx(run.period.mean, rel=0.05 if form.contested else 0.03)
    assert form.mean_staleness == pytest.approx(run.staleness.mean, abs=0.4 if form.contested else 0.15)


@pytest.mark.parametrize("tail", TAILS)
@pytest.mark.parametrize("rho", [0.5, 2.0])
@pytest.mark.parametrize("most", [1, 2, 4])
def test_hold(tail: str, rho: float, most: int) -> None:
    inp = job(tail, rho, bound="hold", max_staleness=most, queue_capacity=32, steps=800, warmup=60)
    form, run = both(inp)
    assert form.period_s == pytest.approx(run.period.mean, rel=0.03)
    assert form.mean_staleness == pytest.approx(run.staleness.mean, abs=0.35 if form.contested else 0.25)


@pytest.mark.parametrize(
    "changes",
    [
        {"decode": DecodeCost(np.full(SLOTS + 1, 0.01), 2e-5 * N, np.zeros(SLOTS + 1), 1e-8, 0.0, 0.03)},
        {"decode": DecodeCost(np.full(SLOTS + 1, 0.004), np.full(SLOTS + 1, 0.006), 3e-4 * N, 1e-7, 2e-8)},
        {"decode": DecodeCost(np.full(SLOTS + 1, 0.002), np.full(SLOTS + 1, 0.004), np.zeros(SLOTS + 1), 1e-6, 0.0)},
        {"prompts_per_step": 64, "samples_per_prompt": 2},
        {"prompts_per_step": 8, "samples_per_prompt": 16},
    ],
    ids=["prefill", "compute", "context", "small groups", "large groups"],
)
@pytest.mark.parametrize("rho", [0.6, 1.8])
def test_other_limits_of_the_samplers(changes: dict[str, Any], rho: float) -> None:
    queue = 2 * changes.get("prompts_per_step", 16)
    agree(job("middle", rho, queue_capacity=queue, **{"in_flight": 256, **changes}))


@pytest.mark.parametrize("weights", [0.0, 0.6])
@pytest.mark.parametrize("rho", [0.6, 1.8])
def test_kv_room_that_runs_out_is_about_right_and_said(rho: float, weights: float) -> None:
    inp = job("middle", rho, kv_tokens=16_000, in_flight_cap=None, weight_sync_s=weights, queue_capacity=32)
    form, run = both(inp)
    assert form.contested
    assert run.preemptions > 0
    assert form.period_s == pytest.approx(run.period.mean, rel=0.03)
    assert form.mean_staleness == pytest.approx(run.staleness.mean, abs=0.15)


@pytest.mark.parametrize("rho", [0.5, 2.0])
def test_one_group_at_a_time(rho: float) -> None:
    form, run = both(job("middle", rho, 8, queue_capacity=32))
    assert form.period_s == pytest.approx(run.period.mean, rel=0.03)
    assert form.mean_running == pytest.approx(run.mean_running, rel=0.03)


@pytest.mark.parametrize("tail", TAILS)
@pytest.mark.parametrize("batches", [2, 4])
def test_near_balance_formulas_are_too_stale_and_say_so(tail: str, batches: int) -> None:
    # The queue is now empty and now full: less stale than a full one, by up to half of what it holds.
    form, run = both(job(tail, 1.01, queue_capacity=16 * batches))
    assert form.contested
    assert form.period_s == pytest.approx(run.period.mean, rel=0.04)
    assert 0.0 < form.mean_staleness - run.staleness.mean < 0.75 * batches


@pytest.mark.parametrize("tail", TAILS)
def test_near_balance_a_queue_of_one_batch_costs_time(tail: str) -> None:
    # What a full queue of one batch drops is missed when the next batch comes late; formulas know no late batch.
    form, run = both(job(tail, 1.0, queue_capacity=16))
    assert form.contested
    assert 0.0 < run.period.mean / form.period_s - 1.0 < 0.15
