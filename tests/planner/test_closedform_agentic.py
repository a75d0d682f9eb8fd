"""The formulas against the simulation where lives are more than lengths: environments, sandboxes, alike samples, drift."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from rljob_planner.closedform import predict
from rljob_planner.simulate import SimulationInput, simulate
from tests.planner.test_closedform_grid import TAILS, job


def agree(inp: SimulationInput, period: float = 0.03, staleness: float = 0.15) -> None:
    form, run = predict(inp), simulate(inp, rho=0.0)
    assert form.period_s == pytest.approx(run.period.mean, rel=0.08 if form.contested else period)
    assert form.mean_staleness == pytest.approx(run.staleness.mean, abs=staleness)
    assert form.mean_running == pytest.approx(run.mean_running, rel=0.1 if form.contested else 0.06)


@pytest.mark.parametrize("tail", TAILS)
@pytest.mark.parametrize("rho", [0.5, 2.0])
@pytest.mark.parametrize("cv", [0.0, 1.0])
@pytest.mark.parametrize("in_flight", [128, 400])
def test_environments_lengthen_lives_and_hold_no_slot(tail: str, rho: float, cv: float, in_flight: int) -> None:
    agree(job(tail, rho, in_flight, turns=5, turn_s=2.0, turn_cv=cv, queue_capacity=32))


@pytest.mark.parametrize("rho", [0.5, 2.0])
def test_samples_between_turns_leave_their_slots_to_others(rho: float) -> None:
    inp = job("middle", rho, turns=3, turn_s=1.0, queue_capacity=32, in_flight_cap=None)
    agree(inp)
    assert predict(inp).mean_running == 256


@pytest.mark.parametrize("rho", [0.5, 2.0])
def test_long_stays_of_a_few_decide_how_stale_groups_get(rho: float) -> None:
    agree(job("middle", rho, turns=2, turn_s=10.0, turn_cv=1.5, queue_capacity=32), staleness=0.2)


@pytest.mark.parametrize("tail", TAILS)
@pytest.mark.parametrize("sandboxes", [20, 60])
@pytest.mark.parametrize("in_flight", [128, 400])
def test_too_few_sandboxes_are_what_limits(tail: str, sandboxes: int, in_flight: int) -> None:
    inp = job(tail, 0.5, in_flight, turns=4, turn_s=1.5, turn_cv=0.8, sandboxes=sandboxes, queue_capacity=32)
    agree(inp, staleness=0.2)
    if in_flight == 400:
        # Little's law: a batch needs 128 · 3 · 1.5 sandbox seconds.
        assert predict(inp).period_s == pytest.approx(128 * 3 * 1.5 / sandboxes, rel=1e-3)


@pytest.mark.parametrize("tail", TAILS)
@pytest.mark.parametrize("rho", [0.5, 2.0])
@pytest.mark.parametrize("again", [0.0, 2e-5])
def test_stays_go_on_while_weights_are_loaded_and_void_what_was_computed(tail: str, rho: float, again: float) -> None:
    inp = job(tail, rho, turns=4, turn_s=1.5, queue_capacity=32, weight_sync_s=0.5)
    agree(replace(inp, decode=replace(inp.decode, recompute_s_per_token=again, prefill_s_per_sample=0.004)))


@pytest.mark.parametrize("tail", TAILS)
@pytest.mark.parametrize("rho", [0.5, 2.0])
@pytest.mark.parametrize(
    ("bound", "most", "period"), [("admission", 1, 0.05), ("drop", 4, 0.03), ("hold", 1, 0.03), ("hold", 2, 0.05)]
)
def test_bounds_count_the_whole_life(tail: str, rho: float, bound: str, most: int, period: float) -> None:
    queue = {"queue_capacity": 32, "steps": 600} if bound == "hold" else {}
    agree(job(tail, rho, turns=4, turn_s=1.5, bound=bound, max_staleness=most, **queue), period)


@pytest.mark.parametrize("tail", TAILS)
@pytest.mark.parametrize("alike", [0.3, 0.8])
@pytest.mark.parametrize(
    "changes",
    [
        {"queue_capacity": 32},
        {"bound": "admission", "max_staleness": 1},
        {"bound": "drop", "max_staleness": 4},
    ],
    ids=["queue", "admission", "drop"],
)
def test_groups_of_samples_that_are_alike_end_sooner(tail: str, alike: float, changes: dict[str, Any]) -> None:
    inp = job(tail, 0.5, group_correlation=alike, **changes)
    # Under admission a period begins with many running and ends with few, which the formulas take as many as there are on average.
    agree(inp, period=0.04)
    if "bound" not in changes:
        assert predict(inp).mean_staleness < predict(replace(inp, group_correlation=0.0)).mean_staleness


@pytest.mark.parametrize("rho", [0.5, 2.0])
def test_lengths_that_drift_count_at_their_mean(rho: float) -> None:
    inp = job("middle", rho, queue_capacity=32)
    drifting = replace(inp, drift=((0, 0.8), (inp.steps, 1.2)))
    form, run = predict(drifting), simulate(drifting, rho=0.0)
    assert form.period_s == pytest.approx(run.period.mean, rel=0.03)
    assert form.mean_staleness == pytest.approx(run.staleness.mean, abs=0.25)
    assert form.rollout_rate < predict(inp).rollout_rate


@pytest.mark.parametrize("tail", TAILS)
@pytest.mark.parametrize("mode", ["sync", "one-step-off"])
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"group_correlation": 0.5},
        {"turns": 4, "turn_s": 1.5},
        {"turns": 4, "turn_s": 1.5, "turn_cv": 1.0},
        {"in_flight_cap": 64},
        {"prompts_per_step": 96},
        {"prompts_per_step": 96, "turns": 4, "turn_s": 1.5},
        {"turns": 4, "turn_s": 1.5, "sandboxes": 20},
    ],
    ids=["plain", "alike", "turns", "turns that vary", "cap", "two rounds", "two rounds of turns", "sandboxes"],
)
def test_a_batch_that_starts_at_once_or_in_turn(tail: str, mode: str, changes: dict[str, Any]) -> None:
    inp = job(tail, 0.3, **{"in_flight": 1024, "steps": 150, "warmup": 10, **changes})
    inp = replace(inp, mode=mode, weight_sync_s=0.3)
    form, run = predict(inp), simulate(inp, rho=0.0)
    # Stays and waits for sandboxes are taken at their mean, which counts where many go through them in step.
    rough = "turns" in changes and ("prompts_per_step" in changes or "sandboxes" in changes)
    assert form.period_s == pytest.approx(run.period.mean, rel=0.08 if rough else 0.035)
    assert form.mean_staleness == run.staleness.mean
