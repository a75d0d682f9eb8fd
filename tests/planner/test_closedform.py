"""The formulas against their source, and against the simulation."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from rljob_planner.closedform import mean_staleness, period_ratio, predict
from rljob_planner.lengths import LengthDistribution
from rljob_planner.rollout import batch_s
from rljob_planner.simulate import DecodeCost, SimulationInput, TrainCost, simulate

SLOTS = 64
N = np.arange(SLOTS + 1.0)
BASE = SimulationInput(
    mode="async",
    replicas=4,
    max_running=SLOTS,
    kv_tokens=400_000,
    decode=DecodeCost(np.full(SLOTS + 1, 0.01), 2e-5 * N, np.zeros(SLOTS + 1), 1e-8, 0.0),
    train=TrainCost(0.5, 1e-5),
    weight_sync_s=0.2,
    prompts_per_step=16,
    samples_per_prompt=8,
    prompt_tokens=200,
    lengths=LengthDistribution.lognormal(300, 0.8, 4000),
    in_flight_cap=256,
    steps=1200,
    warmup=200,
)


def training(seconds: float) -> TrainCost:
    return TrainCost(seconds, 1e-5)


@pytest.mark.parametrize(
    ("C", "M", "B", "rho", "q", "expected"),
    [
        (128, 2.0, 256, 0.5, 1, 1.5),  # rollout-bound: C·M/B + ρ
        (256, 1.5, 128, 0.8, 2, 3.8),
        (256, 1.5, 128, 2.0, 1, 1.5 + 0.75),  # train-bound: C·M/(B·ρ) + (2q + ρ − 1)/(2ρ)
        (256, 1.5, 128, 2.0, 4, 1.5 + 2.25),
    ],
)
def test_staleness_formula(C: float, M: float, B: float, rho: float, q: float, expected: float) -> None:
    assert mean_staleness(C, M, B, rho, q) == pytest.approx(expected)


def test_staleness_is_continuous_at_balance_with_a_queue_of_one_batch() -> None:
    assert mean_staleness(100, 2, 100, 1 - 1e-9, 1) == pytest.approx(mean_staleness(100, 2, 100, 1, 1))
    jump = mean_staleness(100, 2, 100, 1, 3) - mean_staleness(100, 2, 100, 1 - 1e-9, 3)
    assert jump == pytest.approx(3 - 1)


def test_period_frontier() -> None:
    assert period_ratio(1.0, 2.0, 4.0) == pytest.approx(0.25 + 0.5)
    assert period_ratio(0.5, 2.0, 4.0) == pytest.approx(2 * (0.25 + 0.25))
    assert period_ratio(2.0, 2.0, 4.0) == pytest.approx(0.25 + 1.0)


@pytest.mark.parametrize("train_s", [0.5, 1.0, 3.0, 4.0, 8.0])
@pytest.mark.parametrize("batches", [1, 2, 4])
def test_queue_that_drops(train_s: float, batches: int) -> None:
    inp = replace(BASE, train=training(train_s), queue_capacity=16 * batches, weight_sync_s=0.0)
    form, run = predict(inp), simulate(inp)
    assert form.rho == pytest.approx(run.rho, rel=0.02)
    assert form.period_s == pytest.approx(run.period.mean, rel=0.01)
    assert form.mean_staleness == pytest.approx(run.staleness.mean, abs=0.15)
    assert form.mean_running == pytest.approx(run.mean_running, rel=0.02)


@pytest.mark.parametrize(
    ("changes", "period", "staleness"),
    [
        ({"in_flight_cap": None}, 0.01, 0.15),
        ({"in_flight_cap": 64}, 0.01, 0.15),
        ({"kv_tokens": 16_000}, 0.02, 0.15),
        ({"kv_tokens": 40_000, "in_flight_cap": None}, 0.02, 0.15),
        ({"weight_sync_s": 3.0}, 0.01, 0.15),
        ({"bound": "admission", "max_staleness": 1}, 0.02, 0.02),
        ({"bound": "admission", "max_staleness": 4}, 0.02, 0.1),
        ({"bound": "admission", "max_staleness": 3, "train": training(3.0)}, 0.04, 0.1),
        ({"bound": "admission", "max_staleness": 0}, 0.03, 0.01),
        ({"bound": "drop", "max_staleness": 3}, 0.01, 0.05),
        ({"bound": "drop", "max_staleness": 6}, 0.01, 0.05),
        ({"bound": "drop", "max_staleness": 6, "train": training(6.0), "queue_capacity": 32}, 0.01, 0.1),
        ({"bound": "drop", "max_staleness": 6, "train": training(6.0)}, 0.02, 0.1),
        ({"bound": "hold", "max_staleness": 1, "queue_capacity": 32}, 0.02, 0.15),
        ({"bound": "hold", "max_staleness": 3, "queue_capacity": 32}, 0.03, 0.25),
        ({"queue_capacity": 16, "overflow": "block", "train": training(6.0), "in_flight_cap": 128}, 0.02, 0.1),
        ({"queue_capacity": 32, "overflow": "block", "train": training(6.0)}, 0.02, 0.5),
        ({"mode": "sync"}, 0.03, 0.0),
        ({"mode": "sync", "train": training(20.0)}, 0.02, 0.0),
        ({"mode": "one-step-off"}, 0.03, 0.0),
        ({"mode": "one-step-off", "train": training(60.0)}, 0.01, 0.0),
        ({"mode": "sync", "in_flight_cap": 64}, 0.02, 0.0),
        ({"mode": "sync", "prompts_per_step": 128, "in_flight_cap": None}, 0.03, 0.0),
    ],
)
def test_other_rules(changes: dict[str, object], period: float, staleness: float) -> None:
    inp = replace(BASE, **changes)  # type: ignore[arg-type]
    form, run = predict(inp), simulate(inp)
    assert form.period_s == pytest.approx(run.period.mean, rel=period)
    assert form.mean_staleness == pytest.approx(run.staleness.mean, abs=staleness + 1e-9)


def test_staleness_does_not_depend_on_the_mean_length() -> None:
    longer = replace(
        BASE, lengths=BASE.lengths.scaled(4, scale_cap=True), train=TrainCost(2.0, 1e-5), weight_sync_s=0.0
    )
    decode = replace(BASE.decode, memory_s_per_token=0.0)
    short = simulate(replace(BASE, weight_sync_s=0.0, decode=decode, train=TrainCost(0.5)))
    long = simulate(replace(longer, decode=decode, train=TrainCost(2.0)))
    assert long.period.mean == pytest.approx(4 * short.period.mean, rel=0.02)
    assert long.staleness.mean == pytest.approx(short.staleness.mean, rel=0.03)


def test_prefill_counts_once_per_sample() -> None:
    inp = replace(BASE, decode=replace(BASE.decode, prefill_s_per_sample=0.05))
    form, run = predict(inp), simulate(inp)
    assert form.period_s == pytest.approx(run.period.mean, rel=0.03)
    assert form.period_s > predict(BASE).period_s * 1.2


def test_compute_bound_decoding() -> None:
    decode = DecodeCost(np.full(SLOTS + 1, 0.004), np.full(SLOTS + 1, 0.006), 3e-4 * N, 1e-7, 2e-8)
    inp = replace(BASE, decode=decode)
    assert predict(inp).period_s == pytest.approx(simulate(inp).period.mean, rel=0.02)


def test_batch_time_of_equal_lengths_is_exact() -> None:
    # 128 samples on 4 replicas, 32 each, 100 iterations of 0.01 + 32·2e-5 + 1e-8·32·(200 + j).
    inp = replace(BASE, lengths=LengthDistribution.from_values([100]))
    expected = sum(0.01 + 32 * 2e-5 + 1e-8 * 32 * (200 + j) for j in range(100))
    assert batch_s(inp) == pytest.approx(expected)


def test_a_trainer_that_takes_no_time_is_never_the_limit() -> None:
    form = predict(replace(BASE, train=TrainCost(0.0)))
    assert form.rho == 0.0
    assert form.period_s == pytest.approx(128 / form.rollout_rate + 0.2)


def test_hold_without_staleness_never_publishes() -> None:
    assert predict(replace(BASE, bound="hold", max_staleness=0)).period_s == float("inf")


@pytest.mark.parametrize("bound", ["none", "admission", "drop", "hold"])
@pytest.mark.parametrize("train_s", [0.0, 1e-9, 1e6])
def test_lives_of_millions_of_periods_are_no_work(bound: str, train_s: float) -> None:
    lengths = LengthDistribution.from_mean_cv(100_000, 2.0, 5_000_000)
    n = np.arange(1025.0)
    decode = DecodeCost(np.full(1025, 0.01), 2e-6 * n, np.zeros(1025), 1e-9, 0.0)
    inp = replace(BASE, replicas=64, max_running=1024, kv_tokens=10**9, decode=decode, lengths=lengths, bound=bound)
    inp = replace(inp, train=TrainCost(train_s), prompts_per_step=1, samples_per_prompt=1, max_staleness=3)
    form = predict(replace(inp, in_flight_cap=None))
    assert np.isfinite([form.period_s, form.mean_staleness, form.mean_running]).all()
    assert form.mean_staleness >= 0
