"""What was measured on an accelerator without a data sheet: the line, its file, and the plans that rest on it."""

from __future__ import annotations

import math
from dataclasses import replace
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from rljob_planner._calibration_json import MeasuredOnJson, calibration_of_seconds
from rljob_planner.calibrate import (
    Calibration,
    MeasuredOn,
    SamplerReading,
    TrainerReading,
    calibration_in,
    doubts,
    judged,
    mismatches,
    read_calibration,
    unstated,
    updated,
)
from rljob_planner.errors import PlanningError
from rljob_planner.fit import MeasuredStep, RowKind, median_row
from rljob_planner.fit_seconds import fit_seconds, prefill_row
from rljob_planner.hardware import gpu
from rljob_planner.job import Job
from rljob_planner.layouts import Space
from rljob_planner.measured_costs import DecodeSeconds, TrainSeconds
from rljob_planner.models import model
from rljob_planner.placement import rooms_of
from rljob_planner.search import plan
from rljob_planner.serving import served
from rljob_planner.split import SamplerSplit, Split, TrainerSplit
from rljob_planner.steptime import Engine, visited_share
from tests.planner.specs import spec

TRUTH = DecodeSeconds(step_s=8e-3, sample_s=0.3e-3, context_token_s=4e-8, prompt_token_s=2e-5)
ON = MeasuredOnJson(model="Qwen/Qwen3-8B", tensor_parallel=1, weights="bf16", kv_cache="bf16")


def row(running: float, prompt: float = 100, response: float = 200, off: float = 0.0) -> MeasuredStep:
    context, starts = prompt + response / 2, running / response
    seconds = (
        TRUTH.step_s
        + TRUTH.sample_s * running
        + TRUTH.context_token_s * running * context
        + TRUTH.prompt_token_s * starts * prompt
    )
    source = f"{running} at a time, prompts of {prompt}"
    return MeasuredStep(source, RowKind.SERVED, running, prompt, response, context, starts, seconds * (1.0 + off))


def alone(prompt: float = 100) -> MeasuredStep:
    return prefill_row("alone", prompt, TRUTH.step_s + TRUTH.sample_s + TRUTH.prompt_token_s * prompt)


def test_the_truth_is_recovered_where_rows_tell_it() -> None:
    rows = [row(n, prompt) for n in (1, 4, 16) for prompt in (100, 4000)]
    found = fit_seconds([*rows, alone()])
    assert found.fitted == ("stepSeconds", "sampleSeconds", "contextTokenSeconds", "promptTokenSeconds")
    for name in ("step_s", "sample_s", "context_token_s", "prompt_token_s"):
        assert getattr(found.seconds, name) == pytest.approx(getattr(TRUTH, name), rel=1e-6)
    assert found.residual == pytest.approx(0.0, abs=1e-6)


def test_what_rows_cannot_tell_is_left_at_zero_and_said() -> None:
    found = fit_seconds([row(n) for n in (1, 4, 16)])
    assert found.fitted == ("stepSeconds", "sampleSeconds")
    assert found.seconds.context_token_s == found.seconds.prompt_token_s == 0.0
    words = " ".join(found.warnings)
    assert "all rows have contexts of about 200 tokens" in words
    assert "what a prompt costs is in what a sample costs" in words
    assert "the line ends at 16 running samples" in words


def test_one_load_tells_one_number() -> None:
    found = fit_seconds([row(8)])
    assert found.fitted == ("stepSeconds",)
    assert found.residual is None
    assert "what each of them costs is not known" in found.warnings[0]


def test_it_predicts_loads_between_and_says_how_well() -> None:
    errors = (0.03, -0.02, 0.02)
    found = fit_seconds([row(n, off=off) for n, off in zip((1, 4, 16), errors, strict=True)])
    for running in (2, 8, 12):
        assert found.step_s(row(running)) == pytest.approx(row(running).measured_s, rel=0.05)
    assert found.residual is not None
    assert 0.01 < found.residual < 0.2


CURVES = yaml.safe_load((resources.files("rljob_planner") / "data" / "latency-curves.yaml").read_text("utf-8"))[
    "decode_step_kernel_sums"
]["curves"]
"""Measured kernels of a decode step: rows of running samples, then milliseconds at contexts of 1024, 2048, 4096, … tokens."""
FITTED, BETWEEN = (1, 16, 64, 256), (8, 32, 128)


def kernels(curve: dict[str, Any], running: int, column: int) -> MeasuredStep | None:
    """The row of so many samples at the context of a column, if it was measured."""
    found = {int(row[0]): row[1 + column] for row in curve["rows"]}.get(running)
    context = 1024 * 2**column
    return None if found is None else MeasuredStep("curve", RowKind.SERVED, running, 0, 1, context, 0.0, found / 1e3)


@pytest.mark.parametrize("column", [0, 2])
@pytest.mark.parametrize("curve", CURVES, ids=lambda c: f"{c['model']} on {c['tp']} {c['gpu']}")
def test_loads_between_come_out_as_gpus_were_measured(curve: dict[str, Any], column: int) -> None:
    shape = model(f"Qwen/{curve['model']}" if curve["model"].startswith("Qwen") else f"meta-llama/{curve['model']}")
    found = fit_seconds([row for n in FITTED if (row := kernels(curve, n, column))], shape)
    rows = [row for n in BETWEEN if (row := kernels(curve, n, column))]
    errors = [found.step_s(row) / row.measured_s - 1.0 for row in rows]
    # The worst of dense models is off by 10.4 %, of mixtures of experts by 14.2 %.
    assert max(map(abs, errors)) < (0.15 if shape.experts else 0.11), errors
    assert ("expertsSeconds" in found.fitted) == (shape.experts > 0)
    if shape.experts:
        line = fit_seconds([row for n in FITTED if (row := kernels(curve, n, column))])
        assert line.step_s(rows[0]) / rows[0].measured_s - 1.0 < -0.35, "what a line without them makes of it"


def test_experts_count_in_the_engine_and_in_the_file_as_in_the_fit() -> None:
    shape = model("Qwen/Qwen3-30B-A3B")
    truth = DecodeSeconds(4e-3, 1e-5, 0.0, 0.0, experts_s=0.012)
    engine = Engine(shape, gpu("L4"), 1, "bf16", "bf16", measured=truth)
    running = np.array([1.0, 8.0, 32.0, 128.0])
    steps = engine.step_s(running, 1000.0)
    assert steps == pytest.approx(4e-3 + 1e-5 * running + 0.012 * visited_share(shape, running))
    rows = [MeasuredStep("x", RowKind.SERVED, n, 0, 1, 1000, 0.0, s) for n, s in zip(running, steps, strict=True)]
    found = fit_seconds(rows, shape)
    assert found.seconds.experts_s == pytest.approx(0.012, rel=1e-6)
    on = MeasuredOnJson(model=shape.name, tensor_parallel=1, weights="bf16", kv_cache="bf16")
    read = calibration_in(calibration_of_seconds(found, on).to_json(), "x")
    assert read.decode_seconds == found.seconds


@pytest.mark.parametrize("loads", [(16, 64), (8, 32), (16, 32, 64), (4, 16)])
@pytest.mark.parametrize("grows", [1.05, 1.2])
def test_a_mixture_measured_at_middling_loads_alone_has_a_calibration(loads: tuple[int, ...], grows: float) -> None:
    """Steps that grow by more than the experts that they visit: nothing is left there for the iteration alone."""
    shape = model("Qwen/Qwen3-30B-A3B")
    share = [float(visited_share(shape, float(n))) for n in loads]
    steps = [0.02 * (s / share[0]) ** grows for s in share]
    rows = [MeasuredStep("x", RowKind.SERVED, n, 0, 1, 1000, 0.0, s) for n, s in zip(loads, steps, strict=True)]
    found = fit_seconds(rows, shape)
    assert found.seconds.step_s == 0.0
    assert found.seconds.experts_s > 0.0
    assert max(abs(found.step_s(r) / r.measured_s - 1.0) for r in rows) < 0.05
    on = MeasuredOnJson(model=shape.name, tensor_parallel=1, weights="bf16", kv_cache="bf16")
    assert calibration_in(calibration_of_seconds(found, on).to_json(), "x").decode_seconds == found.seconds


def test_experts_that_rows_cannot_tell_are_said() -> None:
    shape = model("Qwen/Qwen3-30B-A3B")
    found = fit_seconds([row(256), row(512)], shape)
    assert any("experts" in warning for warning in found.warnings)
    assert not any("experts" in warning for warning in fit_seconds([row(256), row(512)]).warnings)


def test_steps_that_are_no_line_are_said_to_be_none() -> None:
    found = fit_seconds([row(1), row(4, off=1.0), row(16, off=-0.4)])
    assert "a line describes these steps only to" in found.warnings[0]


def test_a_cost_below_zero_is_none() -> None:
    slower = [replace(row(n), measured_s=10e-3 - 1e-4 * n) for n in (1, 4, 16)]
    found = fit_seconds(slower)
    assert found.fitted == ("stepSeconds",)
    assert found.seconds.sample_s == 0.0


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.floats(1e-6, 1e3), st.floats(1, 1e4), st.floats(1, 1e5)), min_size=1, max_size=6))
def test_no_rows_give_absurd_seconds(rows: list[tuple[float, float, float]]) -> None:
    found = fit_seconds([replace(row(n, prompt), measured_s=seconds) for seconds, n, prompt in rows])
    values = [value for _, value in found.values]
    assert all(math.isfinite(v) and v > 0 for v in values)
    assert all(math.isfinite(r.predicted_s) and r.predicted_s >= 0 for r in found.rows)


def test_nothing_and_several_widths_are_errors() -> None:
    with pytest.raises(PlanningError, match="nothing is known about this engine"):
        fit_seconds([alone()])
    with pytest.raises(PlanningError, match="several widths"):
        fit_seconds([replace(row(1), tensor_parallel=1), replace(row(4), tensor_parallel=2)])


def test_the_median_of_rounds_is_no_mean_with_an_outlier() -> None:
    rounds = [replace(row(4), measured_s=s, running=r) for s, r in ((5e-3, 4.0), (90e-3, 1.0), (6e-3, 3.8))]
    assert median_row(rounds).measured_s == 6e-3
    assert median_row(rounds[:1] + rounds[2:]).measured_s == pytest.approx(5.5e-3)


def test_a_file_brings_back_what_was_measured(tmp_path: Path) -> None:
    found = fit_seconds([*(row(n) for n in (1, 4, 16)), alone()])
    written = calibration_of_seconds(found, ON, 5000, (("x", "why"),), 0.9)
    path = tmp_path / "calibration.yaml"
    path.write_text(yaml.safe_dump(written.to_json()))
    read = read_calibration(path)
    assert read.decode_seconds == found.seconds
    assert read.decode is None
    assert read.kv_tokens == 5000
    assert read.sampler_efficiency == 0.9
    assert read.residual == pytest.approx(found.residual)
    assert read.sampler_speed == pytest.approx(0.9)


def document(**sides: object) -> dict[str, object]:
    return {"rljobCalibration": 1, **sides}


@pytest.mark.parametrize(
    ("sides", "why"),
    [
        ({"samplers": {"measured": {"stepSeconds": 0}}}, "an iteration takes time"),
        ({"samplers": {"measured": {"stepSeconds": -1}}}, "stepseconds"),
        ({"trainers": {"measured": {}}}, "a training step takes time"),
        ({"samplers": {"efficiency": 0}}, "efficiency"),
        (
            {
                "samplers": {
                    "measured": {"stepSeconds": 0.1},
                    "decode": {"mbu": 1, "mfu": 1, "layerSeconds": 0, "stepSeconds": 0, "requestSeconds": 0},
                }
            },
            "keep one of them",
        ),
    ],
)
def test_what_no_step_can_take_is_refused(sides: dict[str, object], why: str) -> None:
    with pytest.raises(PlanningError) as refused:
        calibration_in(document(**sides), "here")
    assert why in str(refused.value).lower()
    assert str(refused.value).startswith("here: ")


def calibration(**changes: object) -> Calibration:
    found = Calibration(
        decode_seconds=TRUTH,
        train_seconds=TrainSeconds(step_s=0.5, token_s=2e-4),
        kv_tokens=60_000,
        measured_on=MeasuredOn("Qwen/Qwen3-8B", None, 1, "bf16", "bf16"),
        sampler_efficiency=1.0,
    )
    return replace(found, **changes)  # type: ignore[arg-type]


def test_an_engine_takes_the_measured_time_whatever_the_gpu() -> None:
    steps = []
    for name in ("L4", "B200"):
        engine = Engine(model("Qwen/Qwen3-8B"), gpu(name), 1, "bf16", "bf16", measured=TRUTH)
        load = row(8)
        seconds = engine.mean_step_s(
            np.array([8.0]), load.context_tokens, np.array([load.prefills_per_step]), load.prompt_tokens
        )
        steps.append(float(seconds[0][0]))
        assert engine.prefill_s(100) == pytest.approx(100 * TRUTH.prompt_token_s)
        (point,) = served(engine, 100, 200, [8])
        assert point.tpot_s == pytest.approx(row(8).measured_s, rel=0.01)
    assert steps[0] == steps[1] == pytest.approx(row(8).measured_s)


def test_a_job_takes_measured_seconds_on_both_sides() -> None:
    rooms = rooms_of("1x8")
    wished = spec(gpus=8, sampler__gpusPerReplica=1, trainer__gpusPerReplica=1)
    known = calibration()
    job = Job.of(wished, rooms, calibration=known)
    cost = job.train_cost(TrainerSplit(replicas=4, gpus_per_replica=1, dp=4, tp=1, pp=1, ep=1), 1.0)
    assert cost.per_step_s == 0.5
    assert cost.per_token_s == pytest.approx(2e-4 / 4)
    assert cost.per_token_squared_s == 0.0
    assert job.trainer_speed(known) == 1.0, "what running costs is in a step that was measured"
    decode = job.decode_cost(1, 16, 1.0)
    assert decode.iteration_s(16, 1600) == pytest.approx(
        TRUTH.step_s + 16 * TRUTH.sample_s + 1600 * TRUTH.context_token_s
    )
    found = plan(wished, rooms, calibration=known, detail=False)
    slower = plan(
        wished, rooms, calibration=calibration(decode_seconds=replace(TRUTH, step_s=30 * TRUTH.step_s)), detail=False
    )
    assert slower.period.mean > 2.0 * found.period.mean
    assert slower.bottleneck == "samplers"
    assert doubts(known) == ()


def test_only_the_width_that_was_measured_is_planned() -> None:
    wished = spec(gpus=8, trainer__gpusPerReplica=1)
    space = Space(Job.of(wished, rooms_of("1x8"), calibration=calibration()), rooms_of("1x8"), None, None)
    assert space.widths == [1]
    assert "write sampler.gpusPerReplica: 1" in space.rejected["samplers of 2 GPUs"]


def test_an_accelerator_without_a_name_is_no_mismatch() -> None:
    job = Job.of(spec(), rooms_of("3x8"))
    (word,) = mismatches(calibration(measured_on=MeasuredOn("other", None, 1, "bf16", "bf16")), job)
    assert "with model other" in word


def test_a_run_corrects_what_was_measured_before() -> None:
    wished = spec(gpus=8, sampler__gpusPerReplica=1, trainer__gpusPerReplica=1)
    split = Split(
        mode="async",
        samplers=SamplerSplit(replicas=4, gpus_per_replica=1, tensor_parallel=1, max_running=64),
        trainers=TrainerSplit(replicas=2, gpus_per_replica=1, dp=2, tp=1, pp=1, ep=1),
        in_flight=64,
    )
    known = calibration()
    job = Job.of(wished, rooms_of("1x8"), calibration=known)
    iteration_s = job.iteration_s(split.samplers, 10.0, 10_000.0)
    readings = SamplerReading(iteration_s / 0.8, 10.0, 10_000.0), TrainerReading(2.0, 128, 12_000.0, 1e7)
    found = updated(known, wished, split, rooms_of("1x8"), *readings)
    assert found.sampler_factor == pytest.approx(0.8)
    assert found.trainer_factor == pytest.approx((0.5 + 12_000 * 2e-4 / 2) / 2.0)
    assert found.decode_seconds == TRUTH
    assert found.sampler_speed == pytest.approx(0.8)


JOB = Job.of(spec(gpus=8, sampler__gpusPerReplica=1, trainer__gpusPerReplica=1), rooms_of("1x8"))


@pytest.mark.parametrize(
    ("on", "why"),
    [
        (MeasuredOn("Qwen/Qwen3-32B", None, 1, "bf16", "bf16"), "model Qwen/Qwen3-32B"),
        (MeasuredOn("Qwen/Qwen3-8B", None, 1, "bf16", "bf16", 1e6), "a Qwen/Qwen3-8B of 1e+06 parameters"),
    ],
)
def test_seconds_of_another_model_are_refused(on: MeasuredOn, why: str) -> None:
    with pytest.raises(PlanningError) as refused:
        judged(calibration(measured_on=on, residual=0.03), JOB, "speeds.yaml")
    assert why in str(refused.value)
    assert str(refused.value).startswith("speeds.yaml: ")


def test_seconds_of_experts_alone_are_refused_where_there_are_none() -> None:
    experts = replace(calibration(measured_on=None), decode_seconds=DecodeSeconds(0.0, 0.0, 0.0, 0.0, experts_s=0.03))
    with pytest.raises(PlanningError, match="Qwen/Qwen3-8B has no experts") as refused:
        judged(experts, JOB, "speeds.yaml")
    assert refused.value.reason == "InvalidCalibration"


@pytest.mark.parametrize(
    "on",
    [
        MeasuredOn("Qwen/Qwen3-8B", None, 1, "fp8", "bf16"),
        MeasuredOn("Qwen/Qwen3-8B", None, 1, "bf16", "fp8"),
        MeasuredOn("Qwen/Qwen3-8B", "a100-sxm-80gb", 1, "bf16", "bf16"),
    ],
)
def test_what_was_measured_otherwise_tells_no_error_of_this_plan(on: MeasuredOn) -> None:
    found, words = judged(calibration(measured_on=on, residual=0.03), JOB, "speeds.yaml")
    assert found.residual is None
    assert "calibrate again" in words[0]
    kept, _ = judged(calibration(residual=0.03, measured_on=replace(on, gpu=None, weights="bf16", kv="bf16")), JOB, "x")
    assert kept.residual == 0.03


def test_what_seconds_leave_unsaid_is_said() -> None:
    words = " ".join(unstated(calibration(measured_on=None)))
    assert "does not say what its seconds were measured on" in words
    assert "trainers.measured.error" in words
    assert unstated(calibration(train_error=0.1)) == ()
    trainers = {"measured": {"stepSeconds": 1, "error": 0.2}}
    assert calibration_in(document(trainers=trainers, residual=0.05), "here").residual == 0.2


@pytest.mark.parametrize(
    "sides",
    [
        {"residual": math.inf},
        {"residual": 1e300},
        {"samplers": {"measured": {"stepSeconds": True}}},
        {"samplers": {"measured": {"stepSeconds": "0.1"}}},
        {"samplers": {"kvTokens": True}},
        {"trainers": {"measured": {"tokenSeconds": 1e-300}}},
    ],
)
def test_numbers_that_nobody_measured_are_refused(sides: dict[str, object]) -> None:
    with pytest.raises(PlanningError):
        calibration_in(document(**sides), "here")
