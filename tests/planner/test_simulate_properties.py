"""What must hold for every job, whatever its numbers."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rljob_planner import _native, _state
from rljob_planner._checks import explain
from rljob_planner._draw import draw_correlated_lengths, draw_environments_s
from rljob_planner._native import run
from rljob_planner.lengths import LengthDistribution
from rljob_planner.simulate import (
    DecodeCost,
    SimulationInput,
    SimulationStalled,
    TrainCost,
    is_compiled,
    rates,
    simulate,
    warm_up,
)


def linear(slots: int, per_step: float, per_sample: float, per_token: float) -> DecodeCost:
    n = np.arange(slots + 1, dtype=float)
    return DecodeCost(np.full(slots + 1, per_step), per_sample * n, np.zeros(slots + 1), per_token, 0.0)


PLAIN = SimulationInput(
    mode="async",
    replicas=2,
    max_running=8,
    kv_tokens=10_000,
    decode=linear(8, 0.01, 1e-4, 1e-7),
    train=TrainCost(0.3, 1e-5),
    weight_sync_s=0.05,
    prompts_per_step=4,
    samples_per_prompt=4,
    prompt_tokens=20,
    lengths=LengthDistribution.lognormal(40, 0.8, 300),
    in_flight_cap=16,
    steps=60,
    warmup=10,
)


@st.composite
def jobs(draw: st.DrawFn, /, **fixed: Any) -> SimulationInput:
    """Small jobs of every kind that can finish."""
    slots = draw(st.integers(1, 6))
    prompts, samples = draw(st.integers(1, 4)), draw(st.integers(1, 4))
    longest = draw(st.integers(1, 60))
    prompt_tokens = draw(st.integers(0, 20))
    mode = draw(st.sampled_from(["async", "async", "sync", "one-step-off"]))
    bound = draw(st.sampled_from(["none", "admission", "hold", "drop"]))
    capacity = draw(st.one_of(st.none(), st.integers(prompts, 3 * prompts)))
    job = SimulationInput(
        mode=mode,
        replicas=draw(st.integers(1, 3)),
        max_running=slots,
        kv_tokens=prompt_tokens + longest + draw(st.integers(0, 200)),
        decode=replace(
            linear(slots, draw(st.floats(1e-3, 0.1)), draw(st.floats(0, 1e-2)), draw(st.floats(0, 1e-4))),
            prefill_s_per_sample=draw(st.sampled_from([0.0, 0.01])),
            recompute_s_per_token=draw(st.sampled_from([0.0, 1e-4])),
        ),
        train=TrainCost(draw(st.floats(0, 3)), draw(st.floats(0, 1e-3))),
        weight_sync_s=draw(st.sampled_from([0.0, 0.1, 1.0])),
        prompts_per_step=prompts,
        samples_per_prompt=samples,
        prompt_tokens=prompt_tokens,
        lengths=LengthDistribution.lognormal(longest / 2, draw(st.floats(0, 2)), longest),
        bound=bound,
        max_staleness=draw(st.integers(1 if bound == "hold" else 0, 4)),
        queue_capacity=capacity,
        overflow=draw(st.sampled_from(["drop-oldest", "block"])),
        in_flight_cap=draw(st.one_of(st.none(), st.integers(samples, 40))),
        steps=20,
        warmup=0,
        seed=draw(st.integers(0, 2**63 - 1)),
        turns=draw(st.sampled_from([1, 1, 2, 5])),
        turn_s=draw(st.sampled_from([0.0, 0.5, 3.0])),
        turn_cv=draw(st.sampled_from([0.0, 1.0])),
        sandboxes=draw(st.one_of(st.none(), st.integers(1, 6))),
        group_correlation=draw(st.sampled_from([0.0, 0.6, 1.0])),
        drift=draw(st.sampled_from([(), ((0, 1.0), (15, 3.0)), ((3, 0.2),)])),
    )
    return replace(job, **fixed)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(jobs())
def test_nothing_is_lost_and_nothing_is_older_than_its_bound(inp: SimulationInput) -> None:
    world = _state.new_world(inp)
    while (status := run(world)) == _state.NEEDS_ROOM:
        world = _state.grow(world)
    assert status == _state.FINISHED
    end = world.counters[0]
    trained_groups = inp.steps * inp.prompts_per_step
    assert end["completed"] == trained_groups + end["dropped"] + end["queued"] + end["surplus"]
    started = -(-int(end["started"]) // inp.samples_per_prompt)
    elsewhere = end["waiting_for_sandbox"] + end["away"]
    returned, s = 0, int(end["first_returned"])
    while s >= 0:
        returned, s = returned + 1, int(world.samples["next"][s])
    if inp.turns == 1:
        assert 0 <= started - end["completed"] <= inp.replicas * inp.max_running + 1
        assert (elsewhere, returned) == (0, 0)
    if inp.sandboxes is not None:
        assert end["away"] <= inp.sandboxes
    assert end["admitted"] >= started
    assert end["in_flight"] == end["admitted"] * inp.samples_per_prompt - end["finished"]
    assert end["running"] + end["preempted"] + elsewhere + returned == end["started"] - end["finished"]
    assert end["trained_samples"] == trained_groups * inp.samples_per_prompt
    # Every slot and every place in the pool is either free or accounted for.
    assert end["free_samples"] == world.samples.size - (end["started"] - end["finished"])
    assert end["free_groups"] == world.groups.size - end["queued"] - (started - end["completed"])
    if inp.in_flight_cap is not None:
        assert end["in_flight"] <= inp.in_flight_cap
    load = world.load[world.load.size // 2 :][: inp.replicas] >> _state.ID_BITS
    assert (load <= inp.max_running).all()
    assert load.sum() == end["running"]
    assert (world.replicas["resident"] <= inp.kv_tokens).all()
    assert world.unfinished.sum() == end["started"] - end["finished"]


@settings(max_examples=100, deadline=None, derandomize=True)
@given(jobs())
def test_results_are_sane(inp: SimulationInput) -> None:
    result = simulate(inp)
    samples = inp.steps * inp.prompts_per_step * inp.samples_per_prompt
    assert sum(result.staleness.histogram) == samples
    assert 0 <= result.staleness.mean <= result.staleness.max < inp.steps
    assert result.staleness.p95 <= result.staleness.max
    assert (result.periods_s >= 0).all()
    assert result.elapsed_s == pytest.approx(result.periods_s.sum())
    assert result.period.p10 <= result.period.p50 <= result.period.p90
    assert 0 <= result.sampler_utilization <= 1 + 1e-12
    assert 0 <= result.trainer_utilization <= 1 + 1e-12
    assert 0 <= result.kv_utilization <= 1 + 1e-12
    assert result.mean_running <= result.mean_in_flight + 1e-9
    assert result.mean_running <= inp.replicas * inp.max_running + 1e-9
    assert result.rho >= 0
    assert result.sandbox_wait_s >= 0
    assert 0 <= result.environment_samples <= result.mean_in_flight - result.mean_running + 1e-9
    if inp.turns == 1 or inp.sandboxes is None:
        assert result.sandbox_wait_s == 0
    if inp.mode == "sync":
        assert result.staleness.max == 0
    if inp.mode == "one-step-off":
        assert result.staleness.max == 1
    if inp.mode == "async" and inp.bound == "drop":
        assert result.staleness.max <= inp.max_staleness
    if inp.overflow == "block" and inp.bound != "drop":
        assert result.dropped_groups == 0
    if inp.queue_capacity is not None and inp.overflow == "drop-oldest":
        assert result.queue_groups.max <= inp.queue_capacity
    if inp.train.per_step_s > 0:
        assert result.period.mean >= inp.train.per_step_s * (1 - 1e-9)


@settings(max_examples=30, deadline=None, derandomize=True)
@given(jobs())
def test_the_same_seed_gives_the_same_answer(inp: SimulationInput) -> None:
    first, again = simulate(inp), simulate(inp)
    assert first.to_json() == again.to_json()
    assert np.array_equal(first.periods_s, again.periods_s)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    jobs(mode="async", bound="none", queue_capacity=None, warmup=0, kv_tokens=100_000, weight_sync_s=0.0),
    st.floats(1.05, 4.0),
)
def test_faster_sides_never_make_a_job_slower(inp: SimulationInput, factor: float) -> None:
    # A list schedule may get a little worse when its tasks get shorter, so the last percents are not promised.
    base = simulate(inp).period.mean
    decode = replace(
        inp.decode,
        fixed_s=inp.decode.fixed_s / factor,
        memory_s=inp.decode.memory_s / factor,
        memory_s_per_token=inp.decode.memory_s_per_token / factor,
    )
    train = TrainCost(inp.train.per_step_s / factor, inp.train.per_token_s / factor)
    assert simulate(replace(inp, decode=decode)).period.mean <= base * 1.05
    assert simulate(replace(inp, train=train)).period.mean <= base * 1.05


def test_another_seed_gives_other_samples_of_the_same_job() -> None:
    inp = replace(PLAIN, steps=600, warmup=50)
    first, other = simulate(inp), simulate(replace(inp, seed=1))
    assert first.periods_s[0] != other.periods_s[0]
    assert first.period.mean == pytest.approx(other.period.mean, rel=0.05)


def test_candidates_see_the_same_groups() -> None:
    # Everything that is trained comes in order where one slot serves the line, so the trained lengths are equal.
    slow = replace(PLAIN, replicas=1, max_running=1, decode=linear(1, 0.05, 0.0, 0.0), in_flight_cap=None, warmup=0)
    fast = replace(slow, decode=linear(1, 0.01, 0.0, 0.0))
    assert simulate(slow).trained_mean_length == simulate(fast).trained_mean_length


def test_hold_keeps_every_unfinished_sample_within_the_maximum() -> None:
    inp = replace(
        PLAIN, bound="hold", max_staleness=2, queue_capacity=8, lengths=LengthDistribution.lognormal(20, 1.5, 900)
    )
    world = _state.new_world(inp)
    while run(world) == _state.NEEDS_ROOM:
        world = _state.grow(world)
    version = int(world.counters[0]["version"])
    assert version == inp.steps
    assert world.unfinished[: version - inp.max_staleness].sum() == 0


def test_drop_trains_shorter_answers_and_a_full_queue_does_not() -> None:
    wide = replace(PLAIN, lengths=LengthDistribution.lognormal(40, 1.2, 900), steps=1500, warmup=200, weight_sync_s=0.0)
    mean = wide.lengths.mean()
    dropping = simulate(replace(wide, bound="drop", max_staleness=1))
    assert dropping.trained_mean_length < 0.9 * mean
    assert dropping.wasted_tokens > 0
    full = simulate(replace(wide, train=TrainCost(4.0), queue_capacity=4))
    assert full.dropped_groups > 1000
    assert full.trained_mean_length == pytest.approx(mean, rel=0.04)


def test_p95_is_the_staleness_that_at_least_that_share_does_not_exceed() -> None:
    result = simulate(replace(PLAIN, steps=400))
    cumulative = np.cumsum(result.staleness.histogram) / sum(result.staleness.histogram)
    p95 = int(result.staleness.p95)
    assert cumulative[p95] >= 0.95
    assert cumulative[p95 - 1] < 0.95


def test_hold_without_staleness_stalls_and_says_why() -> None:
    with pytest.raises(SimulationStalled, match="hold with a maximum staleness of 0 never publishes"):
        simulate(replace(PLAIN, bound="hold", max_staleness=0))


def test_a_run_that_would_take_forever_stops_and_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_state, "_LEAST_WORK_SAMPLES", 1000)
    with pytest.raises(SimulationStalled, match=r"let a full queue block admission"):
        simulate(replace(PLAIN, train=TrainCost(1e6), bound="drop", max_staleness=0))


def test_what_no_step_will_reach_is_counted_but_not_kept() -> None:
    inp = replace(PLAIN, train=TrainCost(50.0), in_flight_cap=None, steps=20, warmup=0, bound="hold", max_staleness=30)
    world = _state.new_world(inp)
    while run(world) == _state.NEEDS_ROOM:
        world = _state.grow(world)
    assert world.counters[0]["surplus"] > 10 * inp.steps * inp.prompts_per_step
    assert world.groups.size < 2 * (inp.steps * inp.prompts_per_step + 2 * inp.replicas * inp.max_running)


def test_far_behind_the_last_group_that_is_trained_the_samplers_go_on_as_they_did() -> None:
    # A trainer forty times slower than the samplers; followed to the end with ``hold`` at a staleness that never matters.
    inp = replace(PLAIN, train=TrainCost(20.0), in_flight_cap=24, steps=40, warmup=5)
    closed, followed = simulate(inp), simulate(replace(inp, bound="hold", max_staleness=40))
    assert closed.periods_s.tolist() == followed.periods_s.tolist()
    assert closed.staleness == followed.staleness
    assert closed.trained_mean_length == followed.trained_mean_length
    assert closed.mean_running == pytest.approx(followed.mean_running, rel=0.01)
    assert closed.mean_in_flight == pytest.approx(followed.mean_in_flight, rel=0.01)
    assert closed.kv_utilization == pytest.approx(followed.kv_utilization, rel=0.01)
    assert closed.queue_groups.mean == pytest.approx(followed.queue_groups.mean, rel=0.02)
    assert closed.queue_groups.max == pytest.approx(followed.queue_groups.max, rel=0.02)


def test_a_trainer_a_million_times_too_slow_takes_no_longer_than_another() -> None:
    result = simulate(replace(PLAIN, train=TrainCost(1e6), in_flight_cap=None))
    assert result.period.mean == pytest.approx(1e6)
    assert result.queue_groups.max > 1e8


def test_correlated_lengths_keep_their_distribution_and_share_a_group() -> None:
    lengths = LengthDistribution.lognormal(300, 0.8, 20_000)
    groups, indices = (a.ravel() for a in np.mgrid[:4000, :8])
    drawn = np.zeros(groups.size, np.int64)
    table = lengths.support_tokens, lengths.cumulative, lengths.guide
    draw_correlated_lengths(np.uint64(5), groups, indices, 0.5, *table, drawn)
    assert np.quantile(drawn, [0.1, 0.5, 0.9, 0.99]) == pytest.approx(
        [lengths.quantile(p) for p in (0.1, 0.5, 0.9, 0.99)], rel=0.05
    )
    logs = np.log(drawn.reshape(4000, 8))
    assert np.corrcoef(logs.T)[np.triu_indices(8, 1)].mean() == pytest.approx(0.5, abs=0.03)
    draw_correlated_lengths(np.uint64(5), groups, indices, 1.0, *table, drawn)
    assert (np.ptp(drawn.reshape(4000, 8), axis=1) == 0).all()


def test_environment_times_have_their_mean_and_spread() -> None:
    turns, seconds = np.arange(20_000), np.zeros(20_000)
    draw_environments_s(np.uint64(1), turns % 50, turns % 7, turns, 10.0, math.sqrt(math.log1p(0.25)), seconds)
    assert seconds.mean() == pytest.approx(10.0, rel=0.02)
    assert seconds.std() == pytest.approx(5.0, rel=0.05)


def test_correlated_lengths_make_a_group_wait_less_for_its_longest() -> None:
    inp = replace(PLAIN, mode="sync", prompts_per_step=1, samples_per_prompt=16, max_running=8, steps=400, warmup=0)
    alike = simulate(replace(inp, group_correlation=1.0)).period.mean
    assert alike < 0.8 * simulate(inp).period.mean


def test_little_s_law_gives_the_sandboxes_in_use() -> None:
    inp = replace(PLAIN, turns=4, turn_s=2.0, turn_cv=1.0, in_flight_cap=200, steps=400, warmup=50)
    result = simulate(inp)
    samples = result.tokens_per_second / result.trained_mean_length
    assert result.environment_samples == pytest.approx(samples * 3 * 2.0, rel=0.05)
    half = simulate(replace(inp, sandboxes=round(result.environment_samples / 2)))
    assert half.period.mean == pytest.approx(2 * result.period.mean, rel=0.1)
    assert half.sandbox_wait_s > 1.0


def test_a_state_in_which_nothing_can_happen_is_reported() -> None:
    world = _state.new_world(PLAIN)
    world.parameters[0]["in_flight_cap"] = 0
    assert run(world) == _state.NOTHING_LEFT
    with pytest.raises(
        SimulationStalled, match="nothing can happen any more; 0 complete groups wait where a step needs 4"
    ):
        explain(_state.NOTHING_LEFT, PLAIN, world)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"mode": "fast"}, "mode 'fast' is not one of async, sync, one-step-off"),
        ({"bound": "soft"}, "bound 'soft'"),
        ({"overflow": "spill"}, "overflow 'spill'"),
        ({"replicas": 0}, "replicas must be at least 1"),
        ({"warmup": 60}, "warmup must be at least 0 and below steps"),
        ({"in_flight_cap": 3}, "an in-flight cap of 3 admits no group of 4"),
        ({"queue_capacity": 3}, "a queue of 3 groups never holds a batch of 4"),
        ({"kv_tokens": 319}, "a sample of 320 tokens with its prompt never fits in 319"),
        ({"max_staleness": -1}, "at least 0"),
        ({"max_running": 9}, "max_running \\+ 1 finite entries"),
        ({"decode": linear(8, 0.0, 0.0, 0.0)}, "an iteration must take some time"),
        ({"replicas": 1 << 22}, "more than"),
        ({"turns": 0}, "turns must be at least 1"),
        ({"sandboxes": 0}, "sandboxes must be at least 1"),
        ({"turn_s": float("nan")}, "turn_s must be a number of at least 0, not nan"),
        ({"group_correlation": 1.5}, "group_correlation must be from 0 to 1"),
        ({"drift": ((5, 1.0), (5, 2.0))}, "the versions of drift must be at least 0 and rise"),
        ({"drift": ((0, 0.0),)}, "the factors of drift must be numbers above 0"),
        ({"drift": ((0, 1000.0),), "kv_tokens": 310}, "a sample of 320 tokens with its prompt never fits"),
        ({"train": TrainCost(float("nan"))}, "train.per_step_s must be a number of at least 0"),
        ({"steps": 10**9}, "simulate fewer steps"),
        ({"prompts_per_step": 10**7, "samples_per_prompt": 1, "steps": 4, "warmup": 0}, "would need .* GB"),
    ],
)
def test_contradictions_are_told(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        simulate(replace(PLAIN, **changes))


def test_rates_count_neither_bounds_nor_weights() -> None:
    free = rates(PLAIN)
    assert rates(replace(PLAIN, weight_sync_s=5.0, bound="admission", max_staleness=0, queue_capacity=4)) == free
    assert rates(replace(PLAIN, in_flight_cap=8))[0] < free[0]


def test_a_trainer_that_takes_no_time() -> None:
    result = simulate(replace(PLAIN, train=TrainCost(0.0)))
    assert result.rho == 0
    assert result.trainer_utilization == 0


def test_warming_up_compiles_what_a_simulation_needs() -> None:
    warm_up()
    assert is_compiled()


def child(code: str, **env: str) -> str:
    """What a fresh process prints."""
    environment = {**os.environ, **env}
    return subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    ).stdout


SMALL = """
import sys
import numpy as np
from rljob_planner import simulate as s
from rljob_planner.lengths import LengthDistribution
n = np.arange(9.0)
job = s.SimulationInput(
    mode="async", replicas=2, max_running=8, kv_tokens=10_000, train=s.TrainCost(0.3, 1e-5), weight_sync_s=0.05,
    decode=s.DecodeCost(np.full(9, 0.01), 1e-4 * n, 0 * n, 1e-7, 0.0), prompts_per_step=4, samples_per_prompt=4,
    prompt_tokens=20, lengths=LengthDistribution.lognormal(40, 0.8, 300), in_flight_cap=16, steps=60, warmup=10,
)
print(s.is_compiled(), s.simulate(job, rho=1.0).period.mean, "numba" in sys.modules)
"""
"""``PLAIN`` in a process of its own: was machine code there, the result, and is the compiler loaded."""


def test_later_processes_load_the_machine_code_without_a_compiler(tmp_path: Path) -> None:
    mean = str(simulate(PLAIN, rho=1.0).period.mean)
    kept = next(path for path in _native._paths() if path.is_file())
    (tmp_path / kept.name).write_bytes(kept.read_bytes())
    assert child(SMALL, NUMBA_CACHE_DIR=str(tmp_path)).split() == ["True", mean, "False"]
    nothing = "from rljob_planner.simulate import is_compiled; print(is_compiled())"
    assert child(nothing, NUMBA_CACHE_DIR=str(tmp_path / "elsewhere")).split() == ["False"]


def test_machine_code_for_any_processor_has_a_file_of_its_own(tmp_path: Path) -> None:
    code = "from rljob_planner import _native; print(_native._paths()[0].name)"
    generic = {"NUMBA_CPU_NAME": "generic", "NUMBA_CPU_FEATURES": "", "NUMBA_CACHE_DIR": str(tmp_path)}
    assert child(code, **generic) != child(code, NUMBA_CACHE_DIR=str(tmp_path))


def test_machine_code_that_is_not_whole_is_not_run() -> None:
    simulate(PLAIN, rho=1.0)
    kept = next(path for path in _native._paths() if path.is_file()).read_bytes()
    for broken in (b"", kept[:3], kept[:200], kept[:-100], kept[:-1] + b"?"):
        with pytest.raises(ValueError, match="not whole"):
            _native._load(broken)


class Library:
    """What is asked of a compiled library when its code is kept."""

    def __init__(self, *calls: str) -> None:
        self.functions = [SimpleNamespace(name=name, is_declaration=True) for name in calls]
        self._final_module = self

    def serialize_using_object_code(self) -> tuple[str, str, tuple[bytes, bytes]]:
        return "library", "object", (b"code", b"")


def test_machine_code_is_kept_where_one_can_write_if_it_calls_what_every_process_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    paths = tmp_path / "file" / "code.bin", tmp_path / "folder" / "code.bin"  # a file is no folder: the second place
    monkeypatch.setattr(_native, "_paths", lambda: paths)
    _native._store(Library("llvm.memset", "PyErr_SetString"), "run")
    assert not paths[1].exists()
    _native._store(Library("llvm.memset", "log", "exp"), "run")
    assert paths[1].read_bytes().endswith(b"code")
    paths[1].unlink()
    monkeypatch.setattr(_native, "_paths", lambda: paths[:1])
    _native._store(Library(), "run")  # nowhere to write: every process compiles for itself
    assert not list((tmp_path / "folder").iterdir())
