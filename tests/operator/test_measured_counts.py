"""What the count of running samples says of both sides' times."""

from __future__ import annotations

import math
from typing import Any

import pytest

from rljob_operator.measured import by_count, calibrated, reconciled, sampler_reading, trainer_reading
from rljob_operator.readings import Reading, SamplerTelemetry, Telemetry
from rljob_planner.api.spec import RLJobSpec
from rljob_planner.calibrate import Calibration, SamplerReading, TrainerReading
from rljob_planner.placement import Room
from tests.operator.situations import sampler, spec, split, telemetry

TOKEN_S, STEP_S, SYNC_S, WAITED = 0.02, 2.0, 0.2, 0.05
STEP_TOKENS = 128 * 1000.0
PODS = tuple(f"s-{i}" for i in range(6))
ROOMS = [Room(f"n{i}", 8) for i in range(8)]
ADMISSION = spec(staleness={"max": 4, "bound": "admission"})


def engines(running: float, rate: float, clock: float, scatter: float) -> dict[str, SamplerTelemetry]:
    """Samplers that should be alike, and say times that scatter."""
    return {
        pod: sampler(
            running_mean=Reading.of(running),
            iteration_s=Reading.of(TOKEN_S * clock * math.exp(scatter * (i - 2.5))),
            generation_tokens_per_s=Reading.of(rate),
        )
        for i, pod in enumerate(PODS)
    }


def seen(*, sampler_clock: float = 1.0, trainer_clock: float = 1.0, scatter: float = 0.06, **changes: Any) -> Telemetry:
    """A steady job whose clocks are noisy, and off by factors; what is counted is right."""
    period_s = (STEP_S + SYNC_S) / (1.0 - WAITED)
    running = STEP_TOKENS * TOKEN_S / period_s / len(PODS)
    known: dict[str, Any] = {
        "samplers": engines(running, running / TOKEN_S, sampler_clock, scatter),
        "ready_samplers": frozenset(PODS),
        "train_step_s": Reading.of((STEP_S + SYNC_S) * trainer_clock - SYNC_S),
        "weight_sync_s": Reading.of(SYNC_S),
        "trainer_wait_share": Reading.of(WAITED),
        "period_s": Reading.of(period_s),
        "steps_in_window": Reading.of(round(120.0 / period_s)),
    }
    return telemetry(**{**known, **changes})


def both(observed: Telemetry, of: RLJobSpec = ADMISSION) -> tuple[SamplerReading, TrainerReading]:
    samplers, trainer = sampler_reading(observed, of), trainer_reading(observed, of)
    assert samplers is not None
    assert trainer is not None
    return samplers, trainer


def test_times_that_agree_with_the_counts_stay() -> None:
    readings = both(seen())
    agreed = reconciled(*readings, seen(), ADMISSION)
    assert agreed[0].iteration_s == pytest.approx(readings[0].iteration_s, rel=0.01)
    assert agreed[1].step_s == pytest.approx(readings[1].step_s, rel=0.01)


@pytest.mark.parametrize(("sampler_clock", "trainer_clock"), [(1.2, 0.8), (0.8, 1.2), (1.0, 0.7), (1.3, 1.3)])
def test_clocks_that_disagree_leave_the_ratio_to_the_counts(sampler_clock: float, trainer_clock: float) -> None:
    observed = seen(sampler_clock=sampler_clock, trainer_clock=trainer_clock)
    samplers, trainer = both(observed)
    agreed = reconciled(samplers, trainer, observed, ADMISSION)
    true = both(seen())
    # Whatever both clocks are off by on average stays; what they differ by goes.
    off = math.sqrt(sampler_clock * trainer_clock)
    assert agreed[0].iteration_s == pytest.approx(true[0].iteration_s * off, rel=0.01)
    assert agreed[1].step_s + SYNC_S == pytest.approx((STEP_S + SYNC_S) * off, rel=0.01)


@pytest.mark.parametrize(
    ("of", "changes"),
    [
        (spec(staleness={"max": 4, "bound": "hold"}), {}),
        (ADMISSION, {"trainer_wait_share": Reading.missing()}),
        (ADMISSION, {"trainer_wait_share": Reading.of(0.9)}),
        (ADMISSION, {"trained_tokens_per_sample": Reading.missing()}),
        (ADMISSION, {"steps_in_window": Reading.of(2)}),
        (ADMISSION, {"trained_tokens_per_sample": Reading.of(10_000.0)}),
    ],
    ids=[
        "held samples stand still",
        "unknown wait",
        "hardly any step",
        "unknown tokens",
        "two steps",
        "counts far off",
    ],
)
def test_counts_that_tell_nothing_change_nothing(of: RLJobSpec, changes: dict[str, Any]) -> None:
    observed = seen(sampler_clock=1.2, trainer_clock=0.8, **changes)
    readings = both(seen(sampler_clock=1.2, trainer_clock=0.8), of)
    assert reconciled(*readings, observed, of) == readings


def test_times_that_hardly_scatter_need_no_count() -> None:
    observed = seen(sampler_clock=1.2, trainer_clock=0.8, scatter=0.01)
    readings = both(observed)
    assert reconciled(*readings, observed, ADMISSION) == readings


def test_a_queue_that_fills_up_is_no_steady_state() -> None:
    observed = seen(samplers=engines(250.0, 16_000.0, 1.0, 0.06))
    readings = both(observed)
    assert reconciled(*readings, observed, ADMISSION) == readings


def test_one_window_of_counts_puts_an_average_of_wrong_times_right() -> None:
    wrong, held = Calibration(), spec(staleness={"max": 4, "bound": "hold"})
    for minute in range(5):
        observed = seen(sampler_clock=1.25, trainer_clock=0.75, at=60.0 * minute)
        wrong = calibrated(wrong, observed, held, split(), ROOMS)
    right = calibrated(Calibration(), seen(), ADMISSION, split(), ROOMS)
    found = by_count(wrong, seen(sampler_clock=1.25, trainer_clock=0.75), ADMISSION, split(), ROOMS)
    ratio = right.sampler_factor / right.trainer_factor
    assert wrong.sampler_factor / wrong.trainer_factor < 0.8 * ratio
    assert found.sampler_factor / found.trainer_factor == pytest.approx(ratio, rel=0.01)
    mean = math.sqrt(wrong.sampler_factor * wrong.trainer_factor)
    assert math.sqrt(found.sampler_factor * found.trainer_factor) == pytest.approx(mean)
    # The averages go on from there: what they are compared with moved along.
    before, after = wrong.sampler_evidence, found.sampler_evidence
    assert before is not None
    assert after is not None
    shift = math.log(found.sampler_factor / wrong.sampler_factor)
    assert after.recent - before.recent == pytest.approx(shift)
    assert after.readings == before.readings


def test_a_side_that_was_never_measured_is_left_alone() -> None:
    assert by_count(Calibration(), seen(), ADMISSION, split(), ROOMS) == Calibration()
