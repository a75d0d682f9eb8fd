"""What a plan says around its split: lock-step modes, fresher samples, environments, and one number for one split."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from rljob_planner.around import _slope_of, one_step_off
from rljob_planner.calibrate import Calibration
from rljob_planner.evaluation import quick_steps, simulated
from rljob_planner.job import MOST_SIMULATED_TURNS, Job
from rljob_planner.layouts import Space
from rljob_planner.outcome import RATIO_VARIANCE, Elasticity, Plan
from rljob_planner.placement import default_rooms
from rljob_planner.report import why
from rljob_planner.search import _agreeing, evaluate, plan
from rljob_planner.simulate import simulate
from tests.planner.specs import spec

NODES = default_rooms(24)
AGENTIC: dict[str, Any] = {"workload__environment": {"secondsPerTurn": 5.0, "turns": 6}}


@pytest.fixture(scope="module")
def full() -> Plan:
    return plan(spec(), NODES)


@pytest.fixture(scope="module")
def agentic() -> Plan:
    return plan(spec(**AGENTIC), NODES)


def test_one_step_off_lies_between_the_other_modes(full: Plan) -> None:
    off = full.one_step_off
    assert off is not None
    assert full.synchronous_period is not None
    assert off.staleness.mean == off.staleness.max == 1.0
    assert off.split.mode == "one-step-off"
    assert off.split.gpus <= 24
    assert full.period.mean < off.period_s
    assert full.to_json()["oneStepOffPeriod"] == pytest.approx(off.period_s, rel=1e-5)


def test_formulas_choose_the_one_step_off_split_that_simulation_would() -> None:
    job = Job.of(spec(), NODES)
    layouts = Space(job, NODES).first(fewer_samplers=False)
    steps = quick_steps(job)
    every = [simulated(job, x.split(job.batch, "one-step-off"), Calibration(), steps=steps, seed=0) for x in layouts]
    found = one_step_off(job, layouts, Calibration(), 0)
    assert found is not None
    assert found.period_s <= 1.02 * min(e.period_s for e in every)


def test_the_best_mode_is_the_one_that_is_recommended(full: Plan) -> None:
    assert full.mode == "async"
    # With so little allowed, a batch ahead is better than anything that waits for single groups.
    strict = plan(spec(staleness={"max": 0, "bound": "admission"}), NODES)
    assert strict.mode == "sync"
    assert strict.one_step_off is not None
    said = strict.to_json()
    assert said["split"]["mode"] == "sync"
    assert said["runTime"]["p50"] == pytest.approx(said["period"]["mean"] * 200, rel=1e-4)


def test_fresher_samples_take_longer(full: Plan) -> None:
    points = full.pareto
    assert len(points) >= 3
    for fresher, faster in pairwise(points):
        assert fresher.staleness_mean < faster.staleness_mean
        assert fresher.period_s > faster.period_s
        assert fresher.ratio_variance <= faster.ratio_variance
    assert points[0].split.mode == "sync"
    assert points[0].staleness_mean == 0.0
    assert points[-1].period_s <= full.period.mean * 1.03
    assert all(point.staleness_mean <= 4.05 for point in points)


def test_the_ratio_variance_is_that_of_the_staleness_and_of_what_one_version_adds(full: Plan) -> None:
    staleness = full.staleness
    assert staleness.ratio_variance >= math.expm1(RATIO_VARIANCE * staleness.mean)
    assert staleness.ratio_variance <= math.expm1(RATIO_VARIANCE * staleness.max)
    measured = plan(spec(staleness={"max": 4, "ratioVariance": 0.0}), NODES, detail=False)
    assert measured.split == full.split
    assert measured.staleness.ratio_variance == 0.0
    simulated_ones = [c for c in full.candidates if c.simulated]
    assert all((c.ratio_variance is not None) == c.simulated for c in full.candidates)
    assert len(simulated_ones) >= 2


def test_one_split_has_one_number(full: Plan) -> None:
    said: dict[str, set[float | None]] = {}
    for c in (*full.candidates, *full.neighbours):
        said.setdefault(f"{c.split.label()} {c.split.in_flight}", set()).add(c.period_s)
    assert {key: len(periods) for key, periods in said.items() if len(periods) > 1} == {}
    for neighbour in full.neighbours:
        assert any(c.split == neighbour.split and c.period_s == neighbour.period_s for c in full.candidates)
    assert full.candidates[0].period_s == full.period.mean


def test_json_has_six_significant_digits(full: Plan) -> None:
    def check(value: Any) -> None:
        if isinstance(value, float):
            assert value == float(f"{value:.6g}")
        for item in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
            check(item)

    check(json.loads(json.dumps(full.to_json())))


def test_a_sweep_says_where_the_cap_cuts(full: Plan) -> None:
    mean = full.length_sweep[1].mean_tokens
    assert mean == pytest.approx(800, rel=0.01)
    assert full.length_sweep[0].mean_tokens == pytest.approx(0.5 * mean, rel=0.05)
    assert full.length_sweep[-1].mean_tokens < 6000 < 8 * mean
    assert any("responseTokens.max of 6,000 tokens cuts" in note for note in full.notes)
    roomy = plan(spec(workload__responseTokens={"mean": 100, "cv": 0.3, "max": 30000}), NODES)
    assert not any("cuts longer responses" in note for note in roomy.notes)


def test_environments_need_sandboxes_by_littles_law(full: Plan, agentic: Plan) -> None:
    assert full.sandboxes is None
    needed = agentic.sandboxes
    assert needed is not None
    assert needed.limit is None
    assert needed.unlimited is None
    assert needed.needed == pytest.approx(128 / agentic.period.mean * 5 * 5.0, rel=0.06)
    assert needed.wait == 0.0
    assert agentic.period.mean > full.period.mean
    # Samples that are away hold no slot, so more of them may be in flight.
    assert agentic.split.in_flight > full.split.in_flight
    assert agentic.to_json()["sandboxes"]["needed"] == pytest.approx(needed.needed, rel=1e-5)


def test_too_few_sandboxes_gate_the_rollout_and_that_is_said(agentic: Plan) -> None:
    gated = plan(spec(**AGENTIC, sandbox={"maxReplicas": 64}), NODES)
    assert gated.bottleneck == "sandboxes"
    found = gated.sandboxes
    assert found is not None
    assert found.limit == 64
    assert found.needed == pytest.approx(64, rel=0.05)
    assert found.wait > 0.0
    assert found.unlimited is not None
    assert found.unlimited > 128
    # 64 sandboxes serve 64 / 25 s samples a second, whatever the samplers do.
    assert gated.period.mean == pytest.approx(128 * 25.0 / 64, rel=0.05)
    assert any("sandboxes gate the rollout" in note and "sandbox.maxReplicas" in note for note in gated.notes)
    assert gated.elasticity is not None
    assert gated.elasticity.decode == pytest.approx(0.0, abs=0.05)
    enough = plan(spec(**AGENTIC, sandbox={"maxReplicas": 2000}), NODES, detail=False)
    assert enough.bottleneck != "sandboxes"
    assert enough.period.mean == pytest.approx(agentic.period.mean, rel=0.03)


def test_long_conversations_simulated_in_fewer_turns_are_the_same_job() -> None:
    job = Job.of(spec(workload__environment={"secondsPerTurn": 2.0, "turns": 40, "cv": 1.0}), NODES)
    layout = Space(job, NODES).layout(2, 1)
    assert layout is not None
    short = job.simulation_input(layout.split(400), Calibration(), steps=120, warmup=20)
    assert short.turns == MOST_SIMULATED_TURNS
    long = replace(short, turns=40, turn_s=2.0, turn_cv=1.0)
    few, many = simulate(short), simulate(long)
    assert few.period.mean == pytest.approx(many.period.mean, rel=0.04)
    assert few.staleness.mean == pytest.approx(many.staleness.mean, abs=0.1)
    assert few.environment_samples == pytest.approx(many.environment_samples, rel=0.03)


def test_the_training_slope_is_what_the_others_leave() -> None:
    # Large batches make slopes sure; what remains is a slope that is too small to count.
    found = plan(spec(workload__promptsPerStep=256), NODES).elasticity
    assert found is not None
    assert found.decode is not None
    assert found.train is not None
    assert found.sync is not None
    assert found.decode + found.train - found.sync == pytest.approx(-1.0, abs=0.03)


def test_a_slope_that_noise_could_make_is_none() -> None:
    rng = np.random.default_rng(1)
    periods_s = 20.0 + rng.normal(0.0, 2.0, 60)
    other_s = rng.permutation(periods_s)
    assert _slope_of(periods_s, other_s).beyond_noise == 0.0
    # What both runs share is no noise of their difference.
    assert _slope_of(periods_s, periods_s * 1.1 ** (-0.05 * 2.0)).beyond_noise == pytest.approx(-0.05)
    assert _slope_of(periods_s, periods_s * 1.1 ** (-0.004 * 2.0)).beyond_noise == 0.0


def test_what_is_named_the_bottleneck_agrees_with_the_slopes() -> None:
    best = plan(spec(), NODES, detail=False).evaluation
    samplers, trainers = (replace(best, bottleneck=side) for side in ("samplers", "trainers"))
    decode = Elasticity(decode=-0.66, train=-0.31, sync=0.03, tail=None)
    assert _agreeing(samplers, decode) == samplers
    assert _agreeing(trainers, decode).bottleneck == "balanced"
    assert _agreeing(trainers, None) == trainers
    equal = Elasticity(decode=-0.48, train=-0.46, sync=0.06, tail=None)
    assert _agreeing(trainers, equal) == trainers
    assert _agreeing(samplers, equal) == samplers


def test_environments_in_which_samples_spend_their_life_are_named() -> None:
    away = spec(workload__environment={"secondsPerTurn": 120.0, "turns": 10}, staleness__bound="admission")
    found = plan(away, NODES)
    assert found.evaluation.environment_share > 0.5
    assert found.bottleneck == "samplers"
    assert why(found).startswith("environments take most of the time")
    (said,) = [note for note in found.notes if "in their environments" in note]
    saved = float(said.split("would take ")[1].split("%")[0]) / 100.0
    job = spec(workload__environment={"secondsPerTurn": 120.0 / 1.1, "turns": 10}, staleness__bound="admission")
    faster = evaluate(job, found.split, NODES)
    assert saved == pytest.approx(1.0 - faster.period_s / found.period.mean, abs=0.03)
    quick = plan(spec(workload__environment={"secondsPerTurn": 0.1, "turns": 10}), NODES)
    assert "environments" not in why(quick)


def test_rho_of_a_bound_that_drops_is_also_said_for_what_is_kept() -> None:
    found = plan(spec(staleness={"bound": "drop", "max": 1}), NODES)
    best = replace(found.evaluation, wasted_fraction=0.4, trainer_utilization=0.95)
    said = why(replace(found, evaluation=best, bottleneck="balanced", rho=1.66, elasticity=None))
    assert "equally fast" not in said
    assert (
        said == "neither side is far ahead: the trainer trains 95% of the time (ρ 1.66, 1.00 without what is dropped)"
    )


def test_nodes_of_an_accelerator_have_its_gpus() -> None:
    assert {room.free_gpus for room in default_rooms(16, "GB200")} == {4}
    assert {room.free_gpus for room in default_rooms(16, "H100-SXM")} == {8}
    assert {room.free_gpus for room in default_rooms(16, "no such GPU")} == {8}
    assert {room.free_gpus for room in default_rooms(16, "GB200", gpus_per_node=2)} == {2}


def test_a_run_in_which_lengths_grow_takes_longer() -> None:
    lengths = {"mean": 400, "cv": 1.0, "max": 8000}
    steady = plan(spec(workload__responseTokens=lengths), NODES, detail=False)
    grown = plan(spec(workload__responseTokens={**lengths, "growth": 3.0}), NODES, detail=False)
    assert grown.split == steady.split
    assert grown.period == steady.period
    longest = plan(spec(workload__responseTokens={**lengths, "mean": 1200}), NODES, keep=steady.split, detail=False)
    assert steady.run_time.p50 < grown.run_time.p50 < longest.run_time.p50 * 1.05
    assert grown.cost is not None
    assert steady.cost is not None
    assert grown.cost / steady.cost == pytest.approx(grown.run_time.p50 / steady.run_time.p50)
    assert any("grow to 3 times" in note for note in grown.notes)
    # What is measured later counts more than what was expected.
    job = Job.of(spec(workload__responseTokens=lengths), NODES)
    measured = plan(spec(workload__responseTokens={**lengths, "growth": 3.0}), NODES, lengths=job.lengths, detail=False)
    assert measured.run_time == steady.run_time
