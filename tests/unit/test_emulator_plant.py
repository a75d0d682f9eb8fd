"""The emulated RL loop: what it keeps to, whatever happens around it."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dev.emulator.lengths import Lengths, noise, normal, uniform
from dev.emulator.plant import Plant, Workload
from dev.emulator.trainer import State
from dev.emulator.truth import DecodeTruth
from rljob_planner.api.spec import Bound, Overflow
from rljob_runtime import Reporter
from tests.unit.emulator_job import layout, plant, truth, workload


def staleness_mean(p: Plant, since: int = 0) -> float:
    counts = [(s, n) for record in p.steps[since:] for s, n in record.staleness.items()]
    return sum(s * n for s, n in counts) / sum(n for _, n in counts)


def run_until_version(p: Plant, version: int, limit_s: float = 600.0) -> None:
    end = p.t + limit_s
    while p.trainer.version < version:
        assert p.t < end, f"version {version} did not come out within {limit_s} s of the plant's time"
        p.advance(0.1)


# --- luck --------------------------------------------------------------------------------------------------------------------


def test_a_group_has_the_same_lengths_in_every_plant_of_a_seed() -> None:
    one, other = (Lengths(((0, 100), (100, 400)), 1.0, 10_000, 5) for _ in range(2))
    assert [one.draw(g, 8, 50.0).tolist() for g in (3, 1, 2)] == [other.draw(g, 8, 50.0).tolist() for g in (3, 1, 2)]
    assert one.draw(7, 8, 0.0).tolist() != one.draw(8, 8, 0.0).tolist()
    assert dataclasses.replace(one, seed=6).draw(7, 8, 0.0).tolist() != one.draw(7, 8, 0.0).tolist()


def test_lengths_have_the_mean_and_spread_they_are_asked_for() -> None:
    drawn = np.concatenate([Lengths(((0, 1000),), 0.8, 100_000, 1).draw(g, 16, 0.0) for g in range(2000)])
    assert drawn.mean() == pytest.approx(1000, rel=0.02)
    assert drawn.std() / drawn.mean() == pytest.approx(0.8, rel=0.05)


def test_the_mean_follows_the_trace() -> None:
    lengths = Lengths(((10, 100), (20, 300)), 1.0, 1000, 0)
    assert [lengths.mean(t) for t in (0, 10, 15, 20, 99)] == [100, 100, 200, 300, 300]
    with pytest.raises(ValueError, match="ascending"):
        Lengths(((20, 100), (10, 300)), 1.0, 1000, 0)


def test_hashed_numbers_are_what_they_claim() -> None:
    u = uniform(1, np.arange(20_000))
    assert 0 < u.min() < u.max() < 1
    assert u.mean() == pytest.approx(0.5, abs=0.01)
    z = normal(1, np.arange(20_000))
    assert (z.mean(), z.std()) == (pytest.approx(0, abs=0.03), pytest.approx(1, abs=0.03))
    assert noise(0.3, 1, np.arange(20_000)).mean() == pytest.approx(1, abs=0.02)


# --- speed -------------------------------------------------------------------------------------------------------------------


def test_iterations_get_slower_with_samples_and_context_and_faster_with_gpus() -> None:
    decode = DecodeTruth(
        fixed_s=0.002, weights_s=0.005, per_context_token_s=1e-7, per_sample_s=5e-5, prefill_per_token_s=0,
        kv_tokens_per_gpu=1000, weights_kv_tokens=400, speed=1.0,
    )  # fmt: skip

    def at(n: float, context: float, gpus: float = 1) -> float:
        return float(decode.iteration_s(np.array([n]), np.array([context]), np.array([gpus]))[0])

    assert at(1, 100) < at(64, 100) < at(64, 60_000)
    assert at(64, 60_000, 2) < at(64, 60_000)
    assert dataclasses.replace(decode, speed=0.8).iteration_s(
        np.array([64.0]), np.array([6e4]), np.array([1.0])
    ) == pytest.approx(at(64, 60_000) / 0.8)
    assert (decode.kv_tokens(1), decode.kv_tokens(2)) == (600, 1600)


def test_a_step_pays_for_the_widest_share_of_samples() -> None:
    train = dataclasses.replace(truth().train, per_token_gpu_s=1e-3, fixed_s=0.0, efficiency=1.0)
    lengths = np.full(16, 90)
    assert train.step_s(lengths, 10, 2, 8) == pytest.approx(16 * 100 * 1e-3 / 16)
    assert train.step_s(lengths, 10, 3, 8) == pytest.approx(18 / 16 * 16 * 100 * 1e-3 / 24)


def test_a_train_bound_job_steps_at_the_trainers_pace() -> None:
    p = plant(tr=truth(train_s=2.0))
    run_until_version(p, 20)
    periods = [record.period for record in p.steps[10:]]
    assert periods == pytest.approx([2.0] * len(periods), abs=0.01)


def test_a_rollout_bound_job_steps_at_the_samplers_pace() -> None:
    p = plant(tr=truth(train_s=0.01, sync_s=0.0), mean=300, cv=0.3, lay=layout(cap=40, stale=50))
    run_until_version(p, 60)
    # 32 samples run at 100 tokens a second each; a refill waits for the end of its tick of 0.1 s, half of that on average.
    expected = 16 * (3.0 + 0.05) / 32
    observed = np.mean([record.period for record in p.steps[20:] if record.period])
    assert observed == pytest.approx(expected, rel=0.05)


def test_a_slow_sampler_takes_so_many_times_as_long_and_the_others_do_not() -> None:
    p = plant(tr=truth(train_s=0.01, sync_s=0.0), mean=300, cv=0.3, lay=layout(cap=64, stale=50))
    p.fleet.slowness = {"s-0": 4.0}
    p.advance(20)
    slow, other = (pod.generation_tokens for pod in p.fleet.pods)
    # Both always run 16 samples, at 100 iterations a second and at 25.
    assert other / slow == pytest.approx(4.0, rel=0.05)
    p.fleet.slowness = {}
    p.advance(20)
    assert p.fleet.pods[0].generation_tokens - slow == pytest.approx(
        p.fleet.pods[1].generation_tokens - other, rel=0.05
    )


def test_a_weight_sync_stops_the_samplers() -> None:
    def tokens(sync_s: float) -> float:
        p = plant(tr=truth(train_s=1.0, sync_s=sync_s), mean=300, lay=layout(cap=32, stale=50))
        p.advance(30)
        return sum(pod.generation_tokens for pod in p.fleet.pods)

    assert tokens(0.0) > tokens(0.5) * 1.15


# --- rules -------------------------------------------------------------------------------------------------------------------


def test_the_cap_holds_at_every_tick() -> None:
    p = plant(lay=layout(cap=30))
    for _ in range(300):
        p.advance(0.1)
        assert p.in_flight <= 30
        assert all(pod.running <= 16 for pod in p.fleet.pods)
    p.see_layout(layout(2, cap=8))
    p.advance(60)
    assert 0 < p.in_flight <= 8


def test_admission_starts_no_group_beyond_its_allowance() -> None:
    p = plant(tr=truth(train_s=3.0), lay=layout(cap=1000, stale=2))
    run_until_version(p, 20)
    assert 1.0 < staleness_mean(p, 5) <= 2.0
    unbounded = plant(workload(bound=Bound.NONE), truth(train_s=3.0), lay=layout(cap=1000, stale=2))
    run_until_version(unbounded, 20)
    assert staleness_mean(unbounded, 5) > 4.0


def test_drop_trains_nothing_staler_than_the_limit() -> None:
    p = plant(workload(bound=Bound.DROP), truth(train_s=3.0), lay=layout(cap=200, stale=2))
    run_until_version(p, 20)
    assert max(s for record in p.steps for s in record.staleness) <= 2
    assert p.dropped > 0


def test_hold_lets_no_unfinished_sample_get_staler_than_the_limit() -> None:
    p = plant(
        workload(bound=Bound.HOLD, capacity=8, overflow=Overflow.BLOCK), truth(train_s=0.2), cv=1.5,
        lay=layout(cap=32, stale=1),
    )  # fmt: skip
    held = False
    for _ in range(1500):
        p.advance(0.1)
        oldest = p.fleet.oldest_version()
        assert oldest is None or p.trainer.version - oldest <= 1
        held = held or p.trainer.state is State.HOLDING
    assert held
    assert p.trainer.version > 10


def test_a_blocking_queue_starts_nothing_while_it_is_full() -> None:
    p = plant(workload(bound=Bound.NONE, capacity=6, overflow=Overflow.BLOCK), truth(train_s=5.0), lay=layout(cap=32))
    full = 0
    for _ in range(600):
        version, started, waiting = p.trainer.version, p.groups_started, len(p.ready_groups)
        p.advance(0.1)
        if waiting >= 6 and p.trainer.version == version:
            full += 1
            assert p.groups_started == started
    assert full > 100
    assert p.dropped == 0


def test_an_overflowing_queue_drops_the_oldest() -> None:
    p = plant(workload(bound=Bound.NONE, capacity=6), truth(train_s=5.0), lay=layout(cap=32))
    for _ in range(600):
        p.advance(0.1)
        assert len(p.ready_groups) <= 6
    assert p.dropped > 0


def test_the_last_step_ends_admission_and_training() -> None:
    p = plant(workload(steps=5))
    run_until_version(p, 5)
    p.advance(120)
    assert p.complete
    assert (p.trainer.version, p.in_flight, len(p.steps)) == (5, 0, 5)


def test_a_full_kv_cache_preempts_and_still_finishes_everything() -> None:
    p = plant(tr=truth(kv=1000), mean=200, cv=1.0, lay=layout(cap=64, max_running=16))
    for _ in range(1200):
        p.advance(0.1)
        assert all(pod.resident <= pod.kv_tokens for pod in p.fleet.pods if pod.running > 1)
    assert sum(pod.preemptions for pod in p.fleet.pods) > 0
    assert p.trainer.version > 5
    assert p.fleet.lost_tokens == 0


# --- pods and layouts --------------------------------------------------------------------------------------------------------


def test_a_sampler_that_vanishes_costs_the_tokens_it_had() -> None:
    p = plant(mean=1000, cv=0.2)
    p.advance(3)
    lost = next(pod for pod in p.fleet.pods if pod.name == "s-1")
    running, in_flight = lost.running, p.in_flight
    assert running > 0
    p.set_pods({"s-0": True}, {"t-0": True})
    assert p.in_flight == in_flight, "its samples are unfinished still"
    assert p.fleet.lost_tokens == pytest.approx(running * 300, rel=0.05)
    assert all(w.version is None and w.generated == 0 for w in list(p.waiting)[:running])
    run_until_version(p, 3)


def test_a_drained_sampler_loses_nothing() -> None:
    p = plant(mean=200, cv=0.2)
    p.advance(5)
    p.see_layout(layout(2, samplers=["s-0"], draining=["s-1"], phase="draining"))
    p.advance(20)
    drained = next(pod for pod in p.fleet.pods if pod.name == "s-1")
    assert drained.running == 0
    p.set_pods({"s-0": True}, {"t-0": True})
    p.advance(1)
    assert p.fleet.lost_tokens == 0


def test_a_new_sampler_joins_at_a_step_boundary() -> None:
    p = plant(tr=truth(train_s=4.0), samplers=("s-0",))
    run_until_version(p, 3)
    p.advance(0.5)
    p.set_pods({"s-0": True, "s-9": True}, {"t-0": True})
    p.see_layout(layout(2, samplers=["s-0", "s-9"]))
    assert p.taking() == ["s-0"]
    version = p.trainer.version
    while "s-9" not in p.taking():
        assert p.trainer.version == version
        p.advance(0.1)
    assert p.trainer.version == version + 1
    assert p.trainer.acknowledged == {"t-0": 2}


def test_a_trainer_acknowledges_at_a_boundary_and_regroups() -> None:
    p = plant(tr=truth(train_s=2.0), trainers=("t-0", "t-1"))
    run_until_version(p, 5)
    p.advance(0.3)
    assert p.trainer.state.name == "TRAINING"
    p.see_layout(layout(2, trainers=1, draining=["t-0"], phase="draining"))
    p.advance(0.3)
    assert p.trainer.acknowledged == {"t-0": 1, "t-1": 1}
    run_until_version(p, 6)
    p.advance(0.1)
    assert p.trainer.acknowledged == {"t-0": 2, "t-1": 2}
    assert p.trainer.members == ("t-1",)
    assert p.trainer.state is State.REGROUPING
    p.set_pods({"s-0": True, "s-1": True}, {"t-1": True})
    run_until_version(p, 7)
    assert p.steps[-1].period == pytest.approx(2.0 + 3.0, abs=0.2)
    assert p.steps[-1].trainers == 1
    assert p.trainer.lost_train_s == 0


def test_a_checkpoint_is_written_before_it_is_acknowledged_and_a_restart_begins_from_it() -> None:
    p = plant(tr=truth(train_s=2.0), trainers=("t-0", "t-1"))
    run_until_version(p, 5)
    p.advance(0.3)
    p.see_layout(layout(2, trainers=2, draining=["t-0", "t-1"], phase="draining", checkpoint=True))
    run_until_version(p, 6)
    p.advance(0.5)
    assert p.trainer.state is State.CHECKPOINTING
    assert p.trainer.acknowledged == {"t-0": 1, "t-1": 1}
    p.advance(1.0)
    assert p.trainer.acknowledged == {"t-0": 2, "t-1": 2}
    assert p.trainer.checkpoint == 6
    run_until_version(p, 8)
    p.set_pods({"s-0": True, "s-1": True}, {})
    assert (p.trainer.version, p.trainer.lost_versions) == (6, 2)
    p.see_layout(layout(3, trainers=1, phase="resizing"))
    p.set_pods({"s-0": True, "s-1": True}, {"t-9": True})
    run_until_version(p, 7)
    assert p.trainer.members == ("t-9",)
    assert p.trainer.acknowledged == {"t-9": 3}


def test_a_waiting_trainer_is_at_a_boundary() -> None:
    p = plant(mean=1500, cv=0.1)
    p.advance(1)
    assert p.trainer.state is State.WAITING
    p.see_layout(layout(2))
    p.advance(0.1)
    assert p.trainer.acknowledged == {"t-0": 2}


def test_a_trainer_stops_without_its_pods_and_trains_the_same_batch_again() -> None:
    p = plant(tr=truth(train_s=2.0), trainers=("t-0", "t-1"))
    run_until_version(p, 3)
    p.advance(1.0)
    batch = p.trainer.batch
    p.set_pods({"s-0": True, "s-1": True}, {"t-0": True, "t-1": False})
    p.advance(30)
    assert (p.trainer.state, p.trainer.version) == (State.STOPPED, 3)
    p.set_pods({"s-0": True, "s-1": True}, {"t-0": True, "t-2": True})
    p.advance(0.1)
    assert p.trainer.batch is batch
    assert p.trainer.lost_train_s > 0.5
    run_until_version(p, 4, limit_s=6)


def test_a_stopped_trainer_goes_on_when_a_layout_wants_fewer() -> None:
    p = plant(trainers=("t-0", "t-1"))
    run_until_version(p, 2)
    p.set_pods({"s-0": True, "s-1": True}, {"t-0": True})
    p.advance(10)
    assert p.trainer.state is State.STOPPED
    p.see_layout(layout(2, trainers=1))
    run_until_version(p, 4, limit_s=30)


@pytest.mark.parametrize(("after_s", "acknowledged"), [(None, 1), (20.0, 1), (3.0, 2)])
def test_a_late_acknowledgement(after_s: float | None, acknowledged: int) -> None:
    p = plant()
    run_until_version(p, 2)
    p.trainer.acknowledge_after_s = after_s
    p.see_layout(layout(2, cap=32))
    p.advance(10)
    assert p.trainer.acknowledged == {"t-0": acknowledged}


# --- the plant that never moves ----------------------------------------------------------------------------------------------


def test_two_plants_with_the_same_luck_do_the_same() -> None:
    noisy = truth(noise=0.1)
    one, other = plant(tr=noisy, seed=4), plant(tr=noisy, seed=4)
    one.advance(60)
    for _ in range(60):
        other.advance(1.0)
    assert one.steps == other.steps
    different = plant(tr=noisy, seed=5)
    different.advance(60)
    assert [r.t for r in one.steps] != [r.t for r in different.steps]


def test_nothing_happens_before_a_layout_is_seen() -> None:
    p = Plant(workload(), truth(), Lengths(((0, 100),), 1.0, 1000, 0))
    p.set_pods({"s-0": True}, {"t-0": True})
    p.advance(10)
    assert (p.in_flight, p.trainer.version, p.trainer.acknowledged) == (0, 0, {})


Pods = st.fixed_dictionaries({f"s-{i}": st.booleans() for i in range(3)})
Events = st.lists(
    st.one_of(
        st.tuples(st.just("pods"), Pods, st.integers(0, 3)),
        st.tuples(st.just("layout"), st.integers(4, 80), st.integers(1, 3)),
        st.tuples(st.just("time"), st.floats(0.1, 8.0), st.just(0)),
    ),
    max_size=25,
)


@settings(max_examples=40, deadline=None)
@given(events=Events, bound=st.sampled_from(list(Bound)), capacity=st.sampled_from([None, 5]))
def test_no_sample_is_ever_lost_or_doubled(
    events: list[tuple[str, object, int]], bound: Bound, capacity: int | None
) -> None:
    p = plant(Workload(4, 4, 1000, 10, bound, capacity), truth(kv=800, noise=0.1), samplers=("s-0", "s-1", "s-2"))
    generation, version = 1, 0
    for kind, value, number in events:
        if kind == "pods":
            assert isinstance(value, dict)
            p.set_pods(value, {f"t-{i}": True for i in range(number)})
        elif kind == "layout":
            assert isinstance(value, int)
            generation += 1
            p.see_layout(layout(generation, samplers=("s-0", "s-1", "s-2"), trainers=number, cap=value))
        else:
            assert isinstance(value, float)
            p.advance(value)
        started = p.groups_started * 4
        trained = sum(n for record in p.steps for n in record.staleness.values())
        training = 0 if p.trainer.batch is None else len(p.trainer.batch.lengths)
        in_groups = p.finished_in_open_groups + 4 * len(p.ready_groups)
        assert started == p.in_flight + in_groups + training + trained + 4 * p.dropped
        assert p.trainer.version >= version
        version = p.trainer.version


@pytest.mark.parametrize("seconds", [None, 2.5])
def test_samples_say_what_they_spent_in_their_environment_only_if_asked(seconds: float | None) -> None:
    p = plant()
    reporter = Reporter()
    p.reports, p.environment_s = reporter, seconds
    p.advance(30.0)
    value = reporter.registry.get_sample_value
    samples = value("rljob_response_tokens_count")
    assert samples
    count, total = value("rljob_environment_seconds_count"), value("rljob_environment_seconds_sum")
    assert (count, total) == ((0.0, 0.0) if seconds is None else (samples, samples * seconds))
