"""What no job may break, seen from outside: small jobs of every kind, their recorded runs, and the formulas beside them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from rljob_planner.closedform import predict
from rljob_planner.lengths import LengthDistribution
from rljob_planner.simulate import DecodeCost, SimulationInput, SimulationResult, TrainCost, simulate
from rljob_planner.timeline import Timeline

CASES = settings(deadline=None, derandomize=True)


def decode_of(
    slots: int, fixed: float, per_sample: float, per_token: float, prefill: float, again: float
) -> DecodeCost:
    n = np.arange(slots + 1.0)
    return DecodeCost(np.full(slots + 1, fixed), per_sample * n, np.zeros(slots + 1), per_token, 0.0, prefill, again)


@st.composite
def jobs(draw: st.DrawFn, /, **fixed: Any) -> SimulationInput:
    """Jobs of a few samples that can finish, of every mode, bound, queue rule and kind of lengths."""
    slots, replicas = draw(st.integers(1, 6)), draw(st.integers(1, 3))
    prompts, samples = draw(st.integers(1, 4)), draw(st.integers(1, 4))
    longest, prompt_tokens = draw(st.integers(2, 60)), draw(st.integers(0, 20))
    lengths = draw(
        st.sampled_from(
            [
                LengthDistribution.lognormal(longest / 2, 0.7, longest, cap_mass=0.1),
                LengthDistribution.lognormal(longest / 3, 1.5, longest),
                LengthDistribution.from_values([longest]),
                LengthDistribution.from_values([1, longest]),
            ]
        )
    )
    bound = fixed.get("bound", draw(st.sampled_from(["none", "admission", "hold", "drop"])))
    job = SimulationInput(
        mode=draw(st.sampled_from(["async", "async", "async", "sync", "one-step-off"])),
        replicas=replicas,
        max_running=slots,
        kv_tokens=prompt_tokens + longest + draw(st.sampled_from([0, 50, 1000])),
        decode=decode_of(
            slots,
            draw(st.floats(1e-3, 0.1)),
            draw(st.sampled_from([0.0, 5e-3])),
            draw(st.sampled_from([0.0, 5e-5])),
            draw(st.sampled_from([0.0, 0.01])),
            draw(st.sampled_from([0.0, 1e-4])),
        ),
        train=TrainCost(draw(st.floats(0, 3)), draw(st.sampled_from([0.0, 1e-3]))),
        weight_sync_s=draw(st.sampled_from([0.0, 0.3])),
        prompts_per_step=prompts,
        samples_per_prompt=samples,
        prompt_tokens=prompt_tokens,
        lengths=lengths,
        bound=bound,
        max_staleness=draw(st.integers(1 if bound == "hold" else 0, 4)),
        queue_capacity=draw(st.one_of(st.none(), st.integers(prompts, 3 * prompts))),
        overflow=draw(st.sampled_from(["drop-oldest", "block"])),
        in_flight_cap=draw(st.one_of(st.none(), st.integers(samples, 40))),
        steps=16,
        warmup=0,
        seed=draw(st.integers(0, 2**63 - 1)),
        turns=draw(st.sampled_from([1, 1, 3])),
        turn_s=draw(st.sampled_from([0.0, 0.5])),
        turn_cv=draw(st.sampled_from([0.0, 1.0])),
        sandboxes=draw(st.sampled_from([None, 1, 4])),
        group_correlation=draw(st.sampled_from([0.0, 0.6, 1.0])),
        drift=draw(st.sampled_from([(), ((0, 0.5), (16, 2.0))])),
    )
    return replace(job, **fixed)


def recorded(inp: SimulationInput) -> tuple[SimulationResult, Timeline]:
    result = simulate(inp, rho=0.0, record=True)
    assert result.timeline is not None
    assert result.timeline.complete
    return result, result.timeline


@settings(CASES, max_examples=80)
@given(jobs())
def test_every_group_is_trained_once_dropped_or_still_there(inp: SimulationInput) -> None:
    result, seen = recorded(inp)
    trained = seen.groups[seen.groups["trained_version"] >= 0]
    assert len(np.unique(seen.groups["group"])) == len(seen.groups)
    assert np.bincount(trained["trained_version"], minlength=inp.steps).tolist() == [inp.prompts_per_step] * inp.steps
    waiting = int(seen.queue["groups"][-1]) if len(seen.queue) else 0
    assert len(seen.groups) == len(trained) + result.dropped_groups + waiting
    assert sum(result.staleness.histogram) == inp.steps * inp.prompts_per_step * inp.samples_per_prompt


@settings(CASES, max_examples=80)
@given(jobs(group_correlation=0.0, drift=()))
def test_every_sample_gains_its_length_and_is_as_old_as_its_group_says(inp: SimulationInput) -> None:
    result, seen = recorded(inp)
    stays, size = seen.samples, inp.samples_per_prompt
    place = stays["group"] * size + stays["index"]
    gained = np.bincount(place, stays["tokens"], minlength=int(place.max()) + 1)
    done = (seen.groups["group"][:, None] * size + np.arange(size)).ravel()
    length = inp.lengths.sample(inp.seed, done // size, done % size)
    assert gained[done].tolist() == length.tolist()
    assert (stays["end_s"] >= stays["start_s"]).all()
    # Staleness counted again from the table: the version that trained a sample less the one that it started in.
    version = np.zeros(len(gained), np.int64)
    version[place] = stays["version"]
    trained = seen.groups[seen.groups["trained_version"] >= 0]
    of = (trained["group"][:, None] * size + np.arange(size)).ravel()
    staleness = np.repeat(trained["trained_version"], size) - version[of]
    assert staleness.min() >= 0
    assert np.bincount(staleness).tolist() == list(result.staleness.histogram)
    assert result.trained_mean_length * len(of) == np.float64(gained[of].sum())


@settings(CASES, max_examples=80)
@given(jobs())
def test_no_replica_runs_more_than_it_has_slots_and_no_step_begins_without_its_batch(inp: SimulationInput) -> None:
    result, seen = recorded(inp)
    assert seen.running["running"].min() >= 0
    assert seen.running["running"].max() <= inp.max_running
    busy_s = float((seen.samples["end_s"] - seen.samples["start_s"]).sum())
    assert np.isclose(busy_s, result.mean_running * result.elapsed_s, rtol=1e-9, atol=1e-9)
    trained = seen.groups[seen.groups["trained_version"] >= 0]
    assert (trained["completed_s"] <= seen.steps["begin_s"][trained["trained_version"]]).all()
    assert (seen.steps["begin_s"][1:] >= seen.steps["published_s"][:-1]).all()
    assert (seen.steps["begin_s"] <= seen.steps["end_s"]).all()
    assert (seen.steps["end_s"] <= seen.steps["published_s"]).all()


@settings(CASES, max_examples=40)
@given(jobs())
def test_the_queue_is_first_in_first_out(inp: SimulationInput) -> None:
    trained = (seen := recorded(inp)[1]).groups[seen.groups["trained_version"] >= 0]
    order = np.argsort(trained["completed_s"], kind="stable")
    assert (np.diff(trained["trained_version"][order]) >= 0).all()


@settings(CASES, max_examples=40)
@given(jobs())
def test_the_same_seed_gives_the_same_answer_recorded_or_not(inp: SimulationInput) -> None:
    first, again, watched = simulate(inp, rho=0.0), simulate(inp, rho=0.0), recorded(inp)[0]
    assert first.to_json() == again.to_json() == watched.to_json()
    assert np.array_equal(first.periods_s, again.periods_s)
    assert np.array_equal(first.periods_s, watched.periods_s)


def faster(decode: DecodeCost, factor: float) -> DecodeCost:
    return DecodeCost(
        decode.fixed_s / factor,
        decode.memory_s / factor,
        decode.compute_s / factor,
        decode.memory_s_per_token / factor,
        decode.compute_s_per_token / factor,
        decode.prefill_s_per_sample / factor,
        decode.recompute_s_per_token / factor,
    )


@settings(CASES, max_examples=80)
@given(
    jobs(mode="async", bound="none", queue_capacity=None, weight_sync_s=0.0, turns=1, drift=()),
    st.sampled_from([2.0, 4.0]),
)
def test_without_bounds_a_faster_side_publishes_every_version_sooner(inp: SimulationInput, factor: float) -> None:
    # Nothing feeds back from the trainer here, so faster samplers go through the same motions sooner; by a power of 2, so that no
    # rounding lets two samples that end at one time change places.
    base = np.cumsum(simulate(inp, rho=0.0).periods_s)
    train = TrainCost(inp.train.per_step_s / factor, inp.train.per_token_s / factor)
    for other in (replace(inp, decode=faster(inp.decode, factor)), replace(inp, train=train)):
        assert (np.cumsum(simulate(other, rho=0.0).periods_s) <= base * (1 + 1e-9)).all()


@settings(CASES, max_examples=60)
@given(jobs(), st.sampled_from([0.25, 2.0, 8.0]))
def test_time_has_no_unit(inp: SimulationInput, factor: float) -> None:
    # Everything slower by one factor is the same run in slow motion, whatever the bound; by a power of 2, to the last bit.
    train = TrainCost(inp.train.per_step_s / factor, inp.train.per_token_s / factor)
    quick = replace(inp, decode=faster(inp.decode, factor), train=train, weight_sync_s=inp.weight_sync_s / factor)
    quick = replace(quick, turn_s=inp.turn_s / factor)
    slow, fast = simulate(inp, rho=0.0), simulate(quick, rho=0.0)
    assert slow.staleness.histogram == fast.staleness.histogram
    assert np.array_equal(slow.periods_s, fast.periods_s * factor)


@settings(CASES, max_examples=60)
@given(jobs(mode="async", bound="admission", max_staleness=0, queue_capacity=None))
def test_admission_of_staleness_0_is_the_synchronous_mode(inp: SimulationInput) -> None:
    # Only the first version differs: in the synchronous mode it exists when its weights have been loaded.
    eager, lock_step = simulate(inp, rho=0.0), simulate(replace(inp, mode="sync"), rho=0.0)
    assert eager.staleness.max == lock_step.staleness.max == 0
    assert np.allclose(eager.periods_s[1:], lock_step.periods_s[1:], rtol=1e-9, atol=1e-9)
    assert np.isclose(eager.periods_s[0] + inp.weight_sync_s, lock_step.periods_s[0], rtol=1e-9)


@settings(CASES, max_examples=60)
@given(
    jobs(mode="async", bound="none", queue_capacity=None, weight_sync_s=0.0, in_flight_cap=12, turns=1, drift=()),
    st.integers(1, 3),
)
def test_more_replicas_under_the_same_cap_cost_at_most_the_anomaly_of_a_list_schedule(
    inp: SimulationInput, more: int
) -> None:
    # A line served in order may end later with more servers, but never by more than the work of one more (Graham 1969).
    inp = replace(inp, steps=48)
    base = simulate(inp, rho=0.0).elapsed_s
    assert simulate(replace(inp, replicas=inp.replicas + more), rho=0.0).elapsed_s <= base * 1.1


@settings(CASES, max_examples=80)
@given(jobs())
def test_bounds_promise_what_they_say(inp: SimulationInput) -> None:
    result, seen = recorded(inp)
    if inp.mode == "sync":
        assert result.staleness.max == 0
    if inp.mode == "one-step-off":
        assert result.staleness.max == 1
    if inp.mode != "async":
        return
    if inp.bound == "drop":
        assert result.staleness.max <= inp.max_staleness
    if inp.bound == "hold":
        # A sample of version v is over before version v + max + 1 exists.
        ends, version = seen.samples["end_s"], seen.samples["version"]
        limit = version + inp.max_staleness
        bounded = limit < inp.steps
        assert (ends[bounded] <= seen.steps["published_s"][limit[bounded]] * (1 + 1e-12)).all()
    if inp.bound == "admission":
        begun = np.unique(np.stack([seen.samples["group"], seen.samples["version"]]), axis=1)[0]
        groups = len(np.unique(begun))
        allowed = (inp.steps + inp.max_staleness + 1) * inp.prompts_per_step + result.dropped_groups
        assert groups <= allowed


@settings(CASES, max_examples=150)
@given(jobs(warmup=4))
def test_formulas_answer_every_job(inp: SimulationInput) -> None:
    form = predict(inp)
    step_s = inp.train.step_s(inp.prompts_per_step * inp.samples_per_prompt, inp.prompt_tokens, inp.lengths)
    assert np.isfinite([form.period_s, form.mean_staleness, form.rollout_rate, form.mean_running]).all()
    assert form.period_s >= step_s * (1 - 1e-9)
    assert form.period_s > 0
    assert form.mean_staleness >= 0
    assert form.rollout_rate > 0
    assert 0 < form.mean_running <= inp.replicas * inp.max_running * (1 + 1e-9)
    if inp.mode == "async" and inp.bound in ("admission", "drop"):
        assert form.mean_staleness <= inp.max_staleness + 1e-9


@settings(CASES, max_examples=80)
@given(jobs(mode="async", warmup=4), st.floats(1.05, 4.0))
def test_formulas_never_call_a_faster_side_slower(inp: SimulationInput, factor: float) -> None:
    train = TrainCost(inp.train.per_step_s / factor, inp.train.per_token_s / factor)
    base = predict(inp).period_s
    assert predict(replace(inp, decode=faster(inp.decode, factor))).period_s <= base * (1 + 2e-3)
    assert predict(replace(inp, train=train)).period_s <= base * (1 + 2e-3)
