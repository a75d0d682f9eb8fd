"""What is unknown moves nothing, and noise does not either."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rljob_operator.decide import (
    decide,
    recorded,
)
from rljob_operator.readings import Reading, SamplerTelemetry, Telemetry
from rljob_operator.rebalance import timestamp
from rljob_planner.api.status import DecisionCode, DecisionStatus
from tests.operator.situations import (
    BUDGET,
    NOW_S,
    PERIOD_S,
    PODS,
    FakePlanner,
    cap_planner,
    gaining,
    run,
    sampler,
    situation,
    spec,
    split,
    telemetry,
)

NEEDED_NOW = ("policy_version", "queue_groups", "in_flight_samples", "layout_generation")
NEEDED_IN_WINDOW = ("period_s", "train_step_s", "staleness_mean", "staleness_max", "response_lengths", "response_trend")
OF_SAMPLERS = ("running", "kv_usage", "iteration_s")


@pytest.mark.parametrize("name", [*NEEDED_NOW, *NEEDED_IN_WINDOW])
@pytest.mark.parametrize("lost", [Reading.missing(), Reading.stale(60.0)])
def test_one_unknown_is_enough_to_hold(name: str, lost: Reading[Any]) -> None:
    seen = telemetry(**{name: lost}, missing=("start the exporter",))
    decision = run(telemetry=seen)
    assert decision.code is DecisionCode.METRICS_UNKNOWN
    assert lost.state.value in decision.message
    assert "start the exporter" in decision.message


def test_unknown_comes_before_not_ready_and_over_staleness() -> None:
    seen = telemetry(queue_groups=Reading.missing(), staleness_mean=Reading.of(50.0))
    assert run(telemetry=seen, pods_ready=False).code is DecisionCode.METRICS_UNKNOWN


ACTING = {DecisionCode.MOVE, DecisionCode.RAISE_CAP, DecisionCode.LOWER_CAP}
OWN_READINGS = [f.name for f in fields(Telemetry) if isinstance(getattr(telemetry(), f.name), Reading)]
SAMPLER_READINGS = [f.name for f in fields(SamplerTelemetry)]
LOST = st.sampled_from([Reading.missing(), Reading.stale(90.0)])


@settings(max_examples=300, deadline=None)
@given(
    own=st.dictionaries(st.sampled_from(OWN_READINGS), LOST),
    per_pod=st.dictionaries(st.tuples(st.sampled_from(PODS), st.sampled_from(SAMPLER_READINGS)), LOST),
    gone=st.sets(st.sampled_from(PODS)),
    fake=st.sampled_from([gaining, lambda: cap_planner(1500), FakePlanner]),
    staleness=st.sampled_from([2.0, 6.0]),
)
def test_lost_metrics_never_cause_a_move(
    own: dict[str, Reading[Any]],
    per_pod: dict[tuple[str, str], Reading[float]],
    gone: set[str],
    fake: Callable[[], FakePlanner],
    staleness: float,
) -> None:
    pods = {
        pod: sampler(**{name: lost for (where, name), lost in per_pod.items() if where == pod})
        for pod in PODS
        if pod not in gone
    }
    whole = telemetry(staleness_mean=Reading.of(staleness))
    seen = replace(whole, samplers=pods, **own)
    undisturbed = run(fake(), telemetry=whole).code
    code = run(fake(), telemetry=seen).code
    needed = {*NEEDED_NOW, *NEEDED_IN_WINDOW, "steps_in_window"} & own.keys()
    if gone or needed or any(name in OF_SAMPLERS for _, name in per_pod):
        assert code not in ACTING
        assert code in {DecisionCode.METRICS_UNKNOWN, DecisionCode.SETTLING}
    else:
        # What is lost then is nothing that a decision rests on.
        assert code is undisturbed


@settings(max_examples=200, deadline=None)
@given(
    noise=st.lists(st.floats(0.96, 1.04), min_size=40, max_size=40),
    trainers=st.lists(st.sampled_from([1, 2, 3]), min_size=40, max_size=40),
)
def test_noise_below_min_gain_never_moves(noise: list[float], trainers: list[int]) -> None:
    decisions: tuple[DecisionStatus, ...] = ()
    calm = spec(rebalance__minGain="5%")
    for tick, (factor, count) in enumerate(zip(noise, trainers, strict=True)):
        best = split(BUDGET - 8 * count, count)
        fake = FakePlanner(best=best, period=lambda s, f=factor, b=best: PERIOD_S * (min(f, 1.0) if s == b else 1.0))
        here = situation(spec=calm, decisions=decisions, now_s=NOW_S + 60.0 * tick)
        decision = decide(here, fake.planner())
        assert decision.code in {DecisionCode.AT_OPTIMUM, DecisionCode.GAIN_TOO_SMALL}
        decisions = recorded(decisions, decision, here, timestamp(here.now_s))
