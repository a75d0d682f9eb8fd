from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rljob_planner.accelerators import accelerators_of
from rljob_planner.calibrate import Calibration, MeasuredOn, SamplerReading, TrainerReading, updated
from rljob_planner.errors import PlanningError
from rljob_planner.job import Job
from rljob_planner.placement import Room, rooms_of
from rljob_planner.split import SamplerSplit, Split, TrainerSplit
from rljob_planner.steptime import decode_step_s
from rljob_planner.training import training_efficiency
from tests.planner.specs import spec

SPEC = spec()
ROOMS = rooms_of("3x8")
JOB = Job.of(SPEC, ROOMS)
SPLIT = Split(
    mode="async",
    samplers=SamplerSplit(replicas=8, gpus_per_replica=1, tensor_parallel=1, max_running=256),
    trainers=TrainerSplit(replicas=2, gpus_per_replica=8, dp=16, tp=1, pp=1, ep=1),
    in_flight=256,
)
RUNNING, CONTEXT = 30.0, 1000.0
TOKENS, SQUARES = 128 * 1100.0, 128 * 1.8e6


def sampler(speed: float, running: float = RUNNING) -> SamplerReading:
    """What samplers of this speed show."""
    prefill_s = running / JOB.lengths.mean() * JOB.decode_cost(1, 32, 1.0).prefill_s_per_sample
    step_s = decode_step_s(JOB.engine(1), running, CONTEXT) + prefill_s
    return SamplerReading(step_s / speed, running, running * CONTEXT)


def trainer(speed: float, squares: float | None = SQUARES) -> TrainerReading:
    """What a trainer of this speed shows."""
    cost = JOB.train_cost(SPLIT.trainers, 1.0)
    step_s = cost.per_step_s + cost.per_token_s * TOKENS + cost.per_token_squared_s * SQUARES
    return TrainerReading(step_s / speed, 128, TOKENS, squares)


def after(
    *readings: tuple[SamplerReading | None, TrainerReading | None], start: Calibration | None = None
) -> Calibration:
    found = start or Calibration()
    for sampler_reading, trainer_reading in readings:
        found = updated(found, SPEC, SPLIT, ROOMS, sampler_reading, trainer_reading)
    return found


def test_the_first_reading_is_believed() -> None:
    found = after((sampler(1.25), trainer(0.8)))
    assert found.sampler_factor == pytest.approx(1.25, rel=1e-3)
    assert found.trainer_factor == pytest.approx(0.8)
    assert found.observations == 1
    assert found.residual is None
    assert not found.pegged


def test_what_is_unknown_changes_nothing() -> None:
    known = Calibration(1.2, 0.9, 0.03, False, 7)
    assert after((None, None), start=known) == known


def test_each_side_learns_for_itself() -> None:
    found = after((sampler(1.3), None))
    assert found.sampler_factor == pytest.approx(1.3, rel=1e-3)
    assert found.trainer_factor == 1.0


def test_a_steady_speed_stays_and_leaves_no_residual() -> None:
    found = after(*[(sampler(1.25), trainer(0.8))] * 6)
    assert found.sampler_factor == pytest.approx(1.25, rel=1e-3)
    assert found.trainer_factor == pytest.approx(0.8)
    assert found.residual == pytest.approx(0.0, abs=1e-9)
    assert found.observations == 6


def test_twice_as_fast_and_half_as_fast_cancel() -> None:
    one = after((sampler(1.1), None), (sampler(1.1 * 1.3), None))
    other = after((sampler(1.1), None), (sampler(1.1 / 1.3), None))
    assert one.sampler_factor * other.sampler_factor == pytest.approx(1.1**2, rel=1e-3)


def test_a_new_speed_is_approached() -> None:
    found = after((sampler(1.0001), None), *[(sampler(1.4), None)] * 20)
    assert found.sampler_factor == pytest.approx(1.4, rel=0.02)
    early = after((sampler(1.0001), None), (sampler(1.4), None))
    assert early.sampler_factor == pytest.approx(1.4**0.5, rel=0.01)
    assert early.residual == pytest.approx(0.336, abs=0.01)  # ln 1.4


@pytest.mark.parametrize(("speed", "factor"), [(9.0, 2.0), (0.1, 0.5)])
def test_a_speed_beyond_belief_is_clamped_and_said(speed: float, factor: float) -> None:
    found = after((sampler(speed), None))
    assert found.sampler_factor == factor
    assert found.pegged
    assert after((None, trainer(1.0)), start=found).pegged


def test_a_factor_leaves_its_limit_when_readings_do() -> None:
    found = after((sampler(9.0), None), *[(sampler(1.2), None)] * 20)
    assert found.sampler_factor == pytest.approx(1.2, rel=0.05)
    assert not found.pegged


def test_squared_lengths_that_nobody_measured_follow_the_specs_distribution() -> None:
    response = TOKENS / 128 - 300
    second = JOB.lengths.second_moment() * (response / JOB.lengths.mean()) ** 2
    squares = 128 * (second + 2 * 300 * response + 300**2)
    assert after((None, trainer(1.0, None))) == after((None, trainer(1.0, squares)))


@pytest.mark.parametrize("step_s", [0.0, -1.0, float("nan"), float("inf")])
def test_a_reading_that_cannot_be_is_left_out(step_s: float) -> None:
    assert after((SamplerReading(step_s, 10, 1000), TrainerReading(step_s, 128, 1000))) == Calibration()


@settings(deadline=None)
@given(speeds=st.lists(st.floats(0.01, 100), min_size=1, max_size=8))
def test_factors_stay_within_their_limits(speeds: list[float]) -> None:
    found = after(*[(sampler(speed), trainer(1 / speed)) for speed in speeds])
    assert 0.5 <= found.sampler_factor <= 2.0
    assert 0.5 <= found.trainer_factor <= 2.0
    assert found.pegged == (found.sampler_factor in (0.5, 2.0) or found.trainer_factor in (0.5, 2.0))


def test_a_run_learns_on_top_of_a_benchmark() -> None:
    """Constants that make samplers 1.3 times as fast leave no factor to learn where samplers are."""
    decode = JOB.engine(1).gpu.decode
    slow = replace(decode, mbu=decode.mbu / 1.5, request_s=decode.request_s * 2)
    start = Calibration(decode=slow, kv_tokens=400_000)
    found = after((sampler(1.0), None), start=start)
    assert found.decode == slow
    assert found.kv_tokens == 400_000
    assert found.sampler_factor > 1.2


def test_gpus_may_be_given_instead_of_nodes() -> None:
    gpus = accelerators_of(SPEC, ROOMS)
    assert updated(Calibration(), SPEC, SPLIT, gpus, sampler(1.2), None) == after((sampler(1.2), None))


def test_each_role_has_the_gpu_of_its_nodes() -> None:
    rooms = (Room("a", 8, "NVIDIA-L40S", trainers=False), Room("b", 8, "NVIDIA-H100-80GB-HBM3", samplers=False))
    found = accelerators_of(spec(accelerator="H200"), rooms)
    assert (found.sampler.name, found.trainer.name) == ("l40s", "h100-sxm-80gb")


def test_nodes_that_say_nothing_have_the_stated_gpu() -> None:
    assert accelerators_of(spec(accelerator="H200"), rooms_of("1x8")).sampler.name == "h200-sxm-141gb"


def test_different_gpus_for_one_role_are_an_error() -> None:
    rooms = (Room("a", 8, "NVIDIA-L40S"), Room("b", 8, "NVIDIA-H200"))
    with pytest.raises(PlanningError, match=r"sampler\.nodes\.selector") as error:
        accelerators_of(SPEC, rooms)
    assert error.value.reason == "MixedAccelerators"


def test_no_gpu_at_all_is_an_error() -> None:
    with pytest.raises(PlanningError, match=r"spec\.accelerator") as error:
        accelerators_of(spec(accelerator=None), rooms_of("1x8"))
    assert error.value.reason == "UnknownAccelerator"


def test_what_running_systems_reach_counts_until_a_run_has_shown_more() -> None:
    known = training_efficiency()
    unmeasured = Calibration()
    assert unmeasured.sampler_speed == known.sampler_efficiency
    assert unmeasured.trainer_speed == known.trainer_efficiency
    learned = Calibration(sampler_factor=0.9, trainer_factor=1.1, observations=3)
    assert (learned.sampler_speed, learned.trainer_speed) == (0.9, 1.1)
    engine = Calibration(sampler_factor=0.9, measured_on=MeasuredOn("m", "g", 1, "bf16", "bf16"))
    assert engine.sampler_speed == pytest.approx(0.9 * known.sampler_efficiency)
    alone = Calibration(alone=True)
    assert (alone.sampler_speed, alone.trainer_speed) == (1.0, 1.0)


def test_a_stated_mfu_is_that_of_a_running_trainer() -> None:
    stated = Job.of(spec(trainer__mfu="40%"), ROOMS)
    assert JOB.trainer_speed(Calibration()) == training_efficiency().trainer_efficiency
    assert stated.trainer_speed(Calibration()) == 1.0
    assert stated.trainer_speed(Calibration(trainer_factor=1.2)) == 1.2
