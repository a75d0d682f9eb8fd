"""What calibration is told of telemetry."""

from __future__ import annotations

import math
from typing import cast

import pytest

from rljob_operator.decide import (
    calibrated,
)
from rljob_operator.measured import (
    calibration_of,
    followed_lengths,
    kept,
    lengths_of,
    sampler_reading,
    trainer_reading,
)
from rljob_operator.readings import Reading
from rljob_planner.api.spec import RLJobSpec
from rljob_planner.api.status import CalibrationStatus
from rljob_planner.calibrate import Calibration
from rljob_planner.placement import Room
from tests.operator.situations import (
    NOW_S,
    PERIOD_S,
    PODS,
    sampler,
    spec,
    split,
    telemetry,
)


def test_sampler_readings_leave_weight_sync_out_of_the_iteration() -> None:
    reading = sampler_reading(telemetry(), spec())
    assert reading is not None
    assert reading.iteration_s == pytest.approx(0.02 * (1 - 0.5 / PERIOD_S))
    assert reading.running_per_replica == 30.0
    assert reading.resident_tokens_per_replica == 50_000.0
    without_sync = sampler_reading(telemetry(weight_sync_s=Reading.missing()), spec())
    assert without_sync is not None
    assert without_sync.iteration_s == 0.02


def test_sampler_readings_without_kv_room_take_the_length_biased_context() -> None:
    bare = {pod: sampler(kv_tokens=Reading.missing()) for pod in PODS}
    reading = sampler_reading(telemetry(samplers=bare), spec())
    lengths = telemetry().response_lengths.value
    assert reading is not None
    assert lengths is not None
    assert reading.resident_tokens_per_replica == pytest.approx(30 * (200 + lengths.second_moment / 2000))


def test_trainer_readings_count_prompts() -> None:
    reading = trainer_reading(telemetry(), spec())
    lengths = telemetry().response_lengths.value
    assert reading is not None
    assert lengths is not None
    assert (reading.step_s, reading.samples) == (8.0, 128.0)
    assert reading.tokens == 128 * 1200
    assert reading.tokens_squared == pytest.approx(128 * (200**2 + 2 * 200 * 1000 + lengths.second_moment))


def test_a_side_that_is_not_known_teaches_nothing() -> None:
    unknown = telemetry(train_step_s=Reading.missing(), period_s=Reading.missing(), samplers={})
    assert sampler_reading(unknown, spec()) is None
    assert trainer_reading(unknown, spec()) is None
    before = Calibration(sampler_factor=0.7, observations=3)
    assert calibrated(before, unknown, spec(), split(), ()) is before


def test_calibration_moves_towards_what_is_measured() -> None:
    rooms = [Room(f"n{i}", 8, "H100-SXM") for i in range(8)]
    slow = telemetry(train_step_s=Reading.of(1e4))
    after = calibrated(Calibration(), slow, spec(), split(), rooms)
    assert after.trainer_factor < 1.0
    assert after.pegged
    assert after.observations == 1


def test_a_model_that_the_planner_does_not_know_teaches_nothing() -> None:
    before = Calibration()
    unknown = cast(RLJobSpec, spec(model={"name": "nobody/knows-this"}))
    assert calibrated(before, telemetry(), unknown, split(), [Room("n", 8, "H100-SXM")]) is before


def test_readings_that_no_engine_can_have_teach_nothing_and_cost_nothing() -> None:
    previous = Calibration(sampler_factor=1.2)
    rooms = (Room("n0", 8, "H100-SXM"),)
    nonsense = {pod: sampler(running_mean=Reading.of(1e14)) for pod in PODS}
    seen = telemetry(samplers=nonsense, train_step_s=Reading.missing())
    assert calibrated(previous, seen, spec(), split(), rooms) == previous


def test_what_was_learned_survives_a_restart_of_the_operator() -> None:
    rooms = [Room(f"n{i}", 8, "H100-SXM") for i in range(8)]
    calibration, lengths = Calibration(), None
    for minute in range(5):
        seen = telemetry(at=NOW_S + 60.0 * minute, policy_version=Reading.of(100 + 6 * minute))
        calibration = calibrated(calibration, seen, spec(), split(), rooms)
        lengths = followed_lengths(lengths, seen, spec())
    assert lengths is not None
    status = CalibrationStatus.model_validate_json(kept(calibration, lengths).model_dump_json())
    again = calibration_of(status)
    assert again.sampler_factor == pytest.approx(calibration.sampler_factor, rel=1e-3)
    assert again.sampler_error == pytest.approx(calibration.sampler_error, rel=1e-3)
    assert again.trainer_error == pytest.approx(calibration.trainer_error, rel=1e-3)
    after = lengths_of(status)
    assert after is not None
    assert after.ahead(20.0) == pytest.approx(lengths.ahead(20.0), rel=1e-4)
    assert calibration_of(None) == Calibration()
    assert lengths_of(None) is None


def test_a_young_layout_teaches_nothing_of_lengths() -> None:
    assert followed_lengths(None, telemetry(since_s=20.0), spec()) is None
    assert followed_lengths(None, telemetry(policy_version=Reading.missing()), spec()) is None


def test_tokens_that_came_out_count_where_the_trainer_waits_for_them() -> None:
    slow = {pod: sampler(generation_tokens_per_s=Reading.of(1200.0)) for pod in PODS}
    waits = telemetry(samplers=slow, trainer_wait_share=Reading.of(0.3), weight_sync_s=Reading.missing())
    reading = sampler_reading(waits, spec())
    assert reading is not None
    assert reading.iteration_s == pytest.approx(30.0 / 1200.0)
    busy = sampler_reading(
        telemetry(samplers=slow, trainer_wait_share=Reading.of(0.0), weight_sync_s=Reading.missing()), spec()
    )
    assert busy is not None
    assert busy.iteration_s == 0.02
    unknown = {pod: sampler(generation_tokens_per_s=Reading.missing()) for pod in PODS}
    other = sampler_reading(
        telemetry(samplers=unknown, trainer_wait_share=Reading.of(0.3), weight_sync_s=Reading.missing()), spec()
    )
    assert other is not None
    assert other.iteration_s == 0.02


def test_samplers_that_differ_say_how_noisy_readings_are() -> None:
    pods = {
        f"s-{i}": sampler(iteration_s=Reading.of(0.02 * math.exp(0.1 * z)))
        for i, z in enumerate((-1.2, -0.5, 0.0, 0.5, 1.2))
    }
    reading = sampler_reading(telemetry(samplers=pods, ready_samplers=frozenset(pods)), spec())
    assert reading is not None
    assert reading.noise == pytest.approx(0.1, rel=0.4)
    alike = sampler_reading(telemetry(), spec())
    assert alike is not None
    assert alike.noise == 0.0
