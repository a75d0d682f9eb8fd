"""Number formats of the samplers' weights in a spec: each that the planner knows, and what follows from it."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from rljob_planner.api.spec import WeightPrecision
from rljob_planner.calibrate import Calibration, MeasuredOn, mismatches
from rljob_planner.job import Job
from rljob_planner.placement import Room
from rljob_planner.precision import PRECISIONS
from rljob_planner.training import weight_sync_s
from tests.planner.specs import spec

ROOMS = tuple(Room(f"node-{i}", 8) for i in range(8))


def job(model: str, weights: str, accelerator: str = "H200-SXM") -> Job:
    return Job.of(spec(model__name=model, model__weights=weights, accelerator=accelerator), ROOMS)


def test_a_spec_takes_every_format_that_the_planner_knows() -> None:
    assert {p.value for p in WeightPrecision} == set(PRECISIONS)
    for name in PRECISIONS:
        assert job("Qwen/Qwen3-8B", name).engine(1).format.name == name
    with pytest.raises(ValidationError, match="int4"):
        spec(model__weights="int4")


def test_the_kv_cache_takes_only_what_engines_have() -> None:
    with pytest.raises(ValidationError, match="mxfp4"):
        spec(model__kvCache="mxfp4")


@pytest.mark.parametrize(
    ("model", "weights", "format_name"),
    [
        ("deepseek-ai/DeepSeek-V3", "fp8", "fp8_block"),
        ("deepseek-ai/DeepSeek-V3", "bf16", "bf16"),
        ("Qwen/Qwen3-8B", "fp8", "fp8"),
        ("openai/gpt-oss-120b", "mxfp4", "mxfp4"),
    ],
)
def test_plain_fp8_of_a_checkpoint_published_in_blocks_is_in_blocks(model: str, weights: str, format_name: str) -> None:
    assert job(model, weights).weights.name == format_name
    assert job(model, weights).engine(8).format.name == format_name


def test_four_bit_experts_leave_room_and_travel_faster() -> None:
    wide, narrow = job("openai/gpt-oss-120b", "bf16"), job("openai/gpt-oss-120b", "mxfp4")
    assert narrow.kv_tokens(4) > 1.5 * wide.kv_tokens(4)
    assert 0.25 < narrow.weight_sync_s / wide.weight_sync_s < 0.35
    dense = job("Qwen/Qwen3-8B", "mxfp4")
    assert dense.weight_sync_s == pytest.approx(weight_sync_s(dense.model, "bf16"))


def test_a_calibration_of_weights_in_blocks_is_one_of_the_same_weights() -> None:
    planned = job("deepseek-ai/DeepSeek-V3", "fp8")
    gpu = planned.accelerators.sampler.name
    on = MeasuredOn(planned.model.name, gpu, 8, "fp8_block", "bf16")
    assert mismatches(Calibration(measured_on=on), planned) == ()
    on = MeasuredOn(planned.model.name, gpu, 8, "bf16", "bf16")
    assert "weights bf16, this job has fp8_block" in mismatches(Calibration(measured_on=on), planned)[0]
