"""What calibration is told of telemetry."""

from __future__ import annotations

from typing import cast

import pytest

from rljob_operator.decide import (
    calibrated,
)
from rljob_operator.measured import sampler_reading, trainer_reading
from rljob_operator.readings import Reading
from rljob_planner.api.spec import RLJobSpec
from rljob_planner.calibrate import Calibration
from rljob_planner.placement import Room
from tests.operator.situations import (
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
