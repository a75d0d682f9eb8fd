"""The plant of the drift bench: against cases worked out by hand, and against the planner's simulator, which shares no code with it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from dev.bench.drift.plant import Plant, Wanted
from dev.bench.drift.traces import Run, Trace, run_of
from dev.bench.drift.truth import Laws, lengths_at
from rljob_planner.simulate import DecodeCost, SimulationInput, TrainCost, simulate


def run(**changes: Any) -> Run:
    """A small trace; keys of ``workload``, ``staleness``, ``queue`` and ``sampler`` go into its job."""
    job: dict[str, Any] = {
        "gpus": 16,
        "accelerator": "H100-SXM",
        "model": {"name": "Qwen/Qwen3-8B"},
        "workload": {"promptsPerStep": 1, "samplesPerPrompt": 1, "promptTokens": {"mean": 1}},
        "staleness": {"max": 2, "bound": "admission"},
        "sampler": {"gpusPerReplica": 1},
        "trainer": {"gpusPerReplica": 4},
    }
    for key in ("workload", "staleness", "queue", "sampler"):
        if key in changes:
            job[key] = {**job.get(key, {}), **changes.pop(key)}
    trace = {
        "steps": 4,
        "meanTokens": [[0, 10]],
        "cv": 0,
        "max": 4000,
        "stepNoise": 0,
        "noise": 0,
        "groupCorrelation": 0,
    }
    trace |= {"costs": {"regroup": 5}, "job": job}
    return run_of(Trace.model_validate(trace | changes), "test")


def laws(**changes: Any) -> Laws:
    """An iteration takes 1 s whatever runs, a training step 2 s, however many trainers there are."""
    plain = Laws(
        iteration_s=np.ones(65),
        per_context_token_s=0.0,
        prefill_s=0.0,
        recompute_s_per_token=0.0,
        kv_tokens=100_000,
        max_running=64,
        train=np.array([[2.0, 0.0, 0.0]] * 5),
        weight_sync_s=0.0,
    )
    return replace(plain, **changes)


def plant(of: Run, law: Laws, samplers: int = 1, trainers: int = 1, cap: int = 1) -> Plant:
    """A plant with all its pods."""
    found = Plant(of, law, most_replicas=8, most_in_flight=4096)
    found.start([f"s{i}" for i in range(samplers)], [f"t{i}" for i in range(trainers)], cap)
    return found


def test_one_sample_at_a_time_finishes_every_ten_seconds() -> None:
    p = plant(run(), laws())
    p.advance(1e6)
    # Ten iterations of 1 s, then 2 s of training; the next sample starts as soon as the first is done.
    assert p.record().published_s.tolist() == [12.0, 22.0, 32.0, 42.0]
    assert p.record().wait_s.tolist() == [10.0, 8.0, 8.0, 8.0]


def test_an_iteration_grows_with_the_context_in_closed_form() -> None:
    p = plant(run(steps=1), laws(per_context_token_s=0.1))
    p.advance(1e6)
    # Contexts of 1 … 10 tokens: 10 + 0.1 · 55, then 2 s of training.
    assert p.record().published_s[0] == pytest.approx(10 + 5.5 + 2)


def test_a_joiner_waits_for_the_end_of_the_iteration_under_way() -> None:
    of = run(steps=2, workload={"promptsPerStep": 1, "samplesPerPrompt": 1}, meanTokens=[[0, 10]])
    p = plant(of, laws(iteration_s=np.full(65, 4.0)), cap=1)
    p.advance(41.0)
    assert p.version == 0
    assert p.running("s0") == 1
    p.see(Wanted(2, 1, frozenset({"s0"}), frozenset(), 2))
    # The second sample runs since 40 s; a third is let in at 41 s and starts with the iteration that begins at 44 s.
    p.advance(43.9)
    assert p.engine("s0").running == 2
    p.advance(1e6)
    assert p.record().published_s.tolist() == [42.0, 82.0]


def test_weight_loading_pauses_samplers_at_the_end_of_an_iteration() -> None:
    p = plant(run(steps=2), laws(weight_sync_s=3.0))
    p.advance(1e6)
    # Published at 12 s: the running sample, two tokens in, pauses for 3 s.
    assert p.record().published_s.tolist() == [12.0, 25.0]


def test_samples_wait_for_room_in_the_cache() -> None:
    of = run(steps=1, workload={"promptsPerStep": 1, "samplesPerPrompt": 2})
    alone = plant(of, laws(kv_tokens=12), cap=2)
    alone.advance(1e6)
    # Room for one sample of 11 tokens at a time: the second starts when the first is done, or is preempted until then.
    assert alone.record().published_s[0] >= 10 + 5 + 2
    both = plant(of, laws(), cap=2)
    both.advance(1e6)
    assert both.record().published_s[0] == 12.0


def test_a_killed_sampler_loses_what_it_ran_and_it_is_done_again() -> None:
    p = plant(run(steps=1), laws(), samplers=2)
    p.advance(7.0)
    busy = next(name for name in p.samplers if p.running(name) == 1)
    p.set_samplers([name for name in p.samplers if name != busy])
    assert p.lost_tokens == pytest.approx(7, abs=1)
    p.advance(1e6)
    assert p.record().published_s[0] == pytest.approx(7 + 10 + 2)


def test_a_draining_sampler_gets_nothing_new_and_finishes_what_it_runs() -> None:
    p = plant(run(steps=10), laws(), samplers=2, cap=2)
    p.advance(5.0)
    p.see(Wanted(2, 1, frozenset({"s1"}), frozenset({"s0"}), 2))
    assert p.running("s0") == 1
    p.advance(10.5)
    assert p.running("s0") == 0
    p.advance(60.0)
    assert p.running("s0") == 0
    assert p.running("s1") == 2


def test_a_layout_is_acknowledged_at_a_step_boundary_and_regrouping_stops_the_job() -> None:
    p = plant(run(steps=10), laws(), samplers=1, trainers=2, cap=1)
    p.advance(11.0)  # training since 10 s
    p.see(Wanted(2, 1, frozenset({"s0"}), frozenset({"t1"}), 1))
    p.advance(11.9)
    assert p.acknowledged == {"t0": 1, "t1": 1}
    p.advance(12.1)
    assert p.acknowledged == {"t0": 2, "t1": 2}
    p.advance(1e6)
    # The second sample is done at 20 s; the groups are new at 12 + 5 s, so nothing waits for them.
    assert p.record().published_s[:2].tolist() == [12.0, 22.0]
    assert p.halted_s == pytest.approx(5.0)


def test_a_trainer_that_goes_away_loses_its_step_and_trains_the_batch_again() -> None:
    p = plant(run(steps=1), laws(), trainers=2)
    p.advance(11.0)
    p.set_trainers(["t0"])
    p.advance(100.0)
    assert p.version == 0
    p.set_trainers(["t0", "t9"])
    p.advance(1e6)
    assert p.record().published_s[0] == pytest.approx(100 + 5 + 2)


def test_a_sampler_takes_part_once_the_trainer_knows_it() -> None:
    p = plant(run(steps=20), laws(), samplers=1, cap=2)
    p.advance(3.0)
    p.set_samplers(["s0", "s1"])
    p.see(Wanted(2, 1, frozenset({"s0", "s1"}), frozenset(), 4))
    p.advance(9.0)
    # The trainer waits, which is a boundary; admission lets a third group start.
    assert (p.running("s0"), p.running("s1")) == (2, 1)
    assert p.acknowledged["t0"] == 2


def test_environments_hold_no_slot_and_take_their_time() -> None:
    of = run(steps=1, workload={"environment": {"turns": 2, "secondsPerTurn": 30}})
    p = plant(of, laws())
    p.advance(20.0)
    assert p.running("s0") == 0
    assert p.in_flight == 1
    p.advance(1e6)
    assert p.record().published_s[0] == pytest.approx(5 + 30 + 5 + 2)
    assert p.turns == (30.0, 1.0)


def test_lengths_belong_to_the_prompt_and_follow_the_trace() -> None:
    of = run(steps=200, cv=1.0, meanTokens=[[0, 100], [100, 100], [101, 300]], workload={"promptsPerStep": 8})
    fast, slow = plant(of, laws(), cap=8), plant(of, laws(), samplers=4, cap=8)
    for p in (fast, slow):
        p.advance(1e9)
        tokens = p.record().tokens / 8
        assert tokens[20:90].mean() == pytest.approx(100, rel=0.1)
        assert tokens[130:].mean() == pytest.approx(300, rel=0.1)
    assert fast.record().tokens[0] == slow.record().tokens[0]


def test_admission_keeps_the_mean_within_the_limit_and_drop_every_sample() -> None:
    for bound in ("admission", "drop"):
        of = run(
            steps=150, cv=1.0, meanTokens=[[0, 200]], workload={"promptsPerStep": 4, "samplesPerPrompt": 4},
            staleness={"max": 2, "bound": bound},
        )  # fmt: skip
        p = plant(of, laws(iteration_s=np.full(65, 0.1)), samplers=4, cap=256)
        p.advance(1e9)
        counts = p.record().staleness
        mean = (counts * np.arange(counts.shape[1])).sum() / counts.sum()
        assert mean <= 2.05
        if bound == "drop":
            assert counts[:, 3:].sum() == 0
            assert p.dropped > 0


@pytest.mark.parametrize(
    ("step_s", "per_token_s", "bound", "cap"),
    [
        (0.2, 2e-6, "admission", 512),
        (0.5, 1e-4, "admission", 160),
        (0.2, 2e-5, "drop", 128),
        (0.5, 6e-5, "admission", 2000),
    ],
)
def test_it_agrees_with_the_planners_simulator(step_s: float, per_token_s: float, bound: str, cap: int) -> None:
    of = run(
        steps=240, cv=1.0, meanTokens=[[0, 400]], workload={"promptsPerStep": 16, "samplesPerPrompt": 8, "promptTokens": {"mean": 200}},
        staleness={"max": 3, "bound": bound},
    )  # fmt: skip
    n = np.arange(65, dtype=np.float64)
    law = laws(
        iteration_s=0.01 + 2e-5 * n, per_context_token_s=1e-8, kv_tokens=60_000, weight_sync_s=0.2,
        train=np.array([[step_s, per_token_s, 1e-9]] * 5),
    )  # fmt: skip
    p = plant(of, law, samplers=4, cap=cap)
    p.advance(1e9)
    record = p.record()
    found = simulate(
        SimulationInput(
            mode="async", replicas=4, max_running=64, kv_tokens=60_000, decode=DecodeCost(
                fixed_s=np.full(65, 0.01), memory_s=np.asarray(2e-5 * n), compute_s=np.zeros(65), memory_s_per_token=1e-8, compute_s_per_token=0.0
            ),
            train=TrainCost(step_s, per_token_s, 1e-9), weight_sync_s=0.2, prompts_per_step=16, samples_per_prompt=8,
            prompt_tokens=200, lengths=lengths_at(of, 400), bound=bound, max_staleness=3, in_flight_cap=cap, steps=240, warmup=40, seed=5,
        ),
        rho=1.0,
    )  # fmt: skip
    counts = record.staleness[40:]
    mean = (counts * np.arange(counts.shape[1])).sum() / counts.sum()
    assert record.periods_s[40:].mean() == pytest.approx(found.period.mean, rel=0.04)
    assert mean == pytest.approx(found.staleness.mean, abs=0.2)
