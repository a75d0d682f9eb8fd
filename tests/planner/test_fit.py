from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rljob_planner._calibration_json import calibration_of
from rljob_planner.accelerators import accelerators_of
from rljob_planner.calibrate import Calibration, mismatches, parse_calibration, read_calibration
from rljob_planner.errors import PlanningError
from rljob_planner.fit import Fit, MeasuredStep, RowKind, fit, predicted_s, with_constants
from rljob_planner.hardware import DecodeEfficiency, gpu
from rljob_planner.job import Job
from rljob_planner.models import model
from rljob_planner.placement import rooms_of
from rljob_planner.steptime import Engine
from tests.planner.specs import spec

ENGINE = Engine(model("Qwen/Qwen3-8B"), gpu("H100-SXM"), 1, "bf16", "bf16")
PACKAGED = ENGINE.gpu.decode
TRUTH = DecodeEfficiency(
    mbu=PACKAGED.mbu * 0.86,
    mfu=PACKAGED.mfu * 0.8,
    layer_s=PACKAGED.layer_s * 1.4,
    step_s=PACKAGED.step_s * 1.4,
    request_s=PACKAGED.request_s * 2.5,
)
BATCHES = (1, 4, 16, 64, 128)
SHAPES = ((256, 512), (2000, 256), (4000, 2000))


def row(running: float, prompt: float = 256, response: float = 512) -> MeasuredStep:
    """A served load without its time."""
    return MeasuredStep(
        f"{running:g} × {prompt:g}/{response:g}",
        RowKind.SERVED,
        running,
        prompt,
        response,
        prompt + response / 2,
        running / response,
        1.0,
    )


def measured(load: MeasuredStep, truth: DecodeEfficiency = TRUTH, off: float = 0.0, speed: float = 1.0) -> MeasuredStep:
    """The load with the time that an engine with these constants takes, off by a factor exp(off)."""
    return replace(load, measured_s=predicted_s(with_constants(ENGINE, truth), load) * math.exp(off) / speed)


def sweep(noise: float, seed: int = 0) -> list[MeasuredStep]:
    draw = random.Random(seed)
    return [measured(row(b, p, r), off=noise * draw.gauss(0, 1)) for b in BATCHES for p, r in SHAPES]


def off(found: Fit, load: MeasuredStep) -> float:
    """Relative error of a fit on a load that it has not seen."""
    return abs(found.step_s(load) / measured(load).measured_s - 1.0)


def test_constants_are_recovered_from_exact_rows() -> None:
    found = fit(ENGINE, sweep(0.0))
    assert found.decode is not None
    assert found.factor == 1.0
    assert found.decode.mbu == pytest.approx(TRUTH.mbu, rel=0.01)
    assert found.decode.mfu == pytest.approx(TRUTH.mfu, rel=0.01)
    assert found.decode.request_s == pytest.approx(TRUTH.request_s, rel=0.03)
    assert overhead(found.decode) == pytest.approx(overhead(TRUTH), rel=0.01)
    assert found.residual == pytest.approx(0.0, abs=0.002)
    assert found.warnings == ()


@pytest.mark.parametrize("seed", range(4))
def test_constants_are_recovered_within_their_stated_uncertainty(seed: int) -> None:
    found = fit(ENGINE, sweep(0.03, seed))
    truth = {
        "mbu": TRUTH.mbu,
        "mfu": TRUTH.mfu,
        "requestSeconds": TRUTH.request_s,
        # Layer and step are one knob, so each carries the error of their sum.
        "stepSeconds": PACKAGED.step_s * overhead(TRUTH) / overhead(PACKAGED),
    }
    for constant in found.constants:
        if constant.name in truth:
            assert constant.uncertainty < constant.prior
            assert abs(math.log(constant.value / truth[constant.name])) < 3.5 * constant.uncertainty
    assert off(found, row(32, 1000, 1000)) < 0.04
    assert off(found, row(256, 300, 8000)) < 0.10


def overhead(constants: DecodeEfficiency) -> float:
    return ENGINE.model.layers * constants.layer_s + constants.step_s


def test_three_concurrencies_predict_those_between() -> None:
    found = fit(ENGINE, [measured(row(b)) for b in (1, 4, 16)])
    assert found.fitted == ("factor", "stepSeconds", "requestSeconds")
    for running in (2, 8, 12):
        assert off(found, row(running)) < 0.05
    assert any("16 running" in w for w in found.warnings)
    assert any("contexts of about 512" in w for w in found.warnings)


def test_one_load_gives_one_factor() -> None:
    found = fit(ENGINE, [measured(row(8), truth=PACKAGED, speed=0.8)])
    assert found.fitted == ("factor",)
    assert found.decode is None
    assert found.factor == pytest.approx(0.8, rel=0.02)
    assert found.residual is None
    assert any("several concurrencies" in w for w in found.warnings)


def test_rows_like_the_packaged_constants_change_nothing() -> None:
    found = fit(ENGINE, [measured(row(b, p, r), truth=PACKAGED) for b in BATCHES for p, r in SHAPES])
    for constant in found.constants:
        assert constant.value == pytest.approx(constant.default, rel=1e-3)


def test_an_outlier_moves_little() -> None:
    rows = sweep(0.01)
    spoilt = [replace(rows[0], measured_s=rows[0].measured_s * 1.6), *rows[1:]]
    clean, found = fit(ENGINE, rows), fit(ENGINE, spoilt)
    load = row(32, 1000, 1000)
    assert found.step_s(load) == pytest.approx(clean.step_s(load), rel=0.04)
    assert max(found.rows, key=lambda r: abs(r.error)).row is spoilt[0]


def test_what_is_said_of_rows_left_out_is_what_leaving_them_out_gives() -> None:
    rows = sweep(0.04, seed=7)
    found = fit(ENGINE, rows)
    for i in (0, 4, 8, 14):
        without = fit(ENGINE, rows[:i] + rows[i + 1 :])
        claimed = found.rows[i].left_out_error
        assert claimed is not None
        assert claimed == pytest.approx(without.step_s(rows[i]) / rows[i].measured_s - 1.0, abs=0.015)


def test_an_engine_that_is_another_is_said_to_be() -> None:
    found = fit(ENGINE, [measured(row(b), truth=PACKAGED, speed=12.0) for b in (1, 8, 64)])
    assert found.pegged
    assert any("--gpu" in w for w in found.warnings)


def test_forward_passes_tell_layers_from_steps() -> None:
    forward = [
        MeasuredStep(f"{b}@{c}", RowKind.FORWARD, b, 0, 0, c, 0, 1.0)
        for b in (1, 16, 64, 128)
        for c in (500, 4000, 16000)
    ]
    found = fit(ENGINE, [*map(measured, forward), *sweep(0.0)])
    assert {"layerSeconds", "stepSeconds"} <= set(found.fitted)
    assert found.decode is not None
    assert found.decode.layer_s == pytest.approx(TRUTH.layer_s, rel=0.02)
    assert found.decode.step_s == pytest.approx(TRUTH.step_s, rel=0.03)
    alone = fit(ENGINE, [measured(r) for r in forward])
    assert "stepSeconds" not in alone.fitted


def test_a_sweep_over_widths_is_fitted_with_each_rows_own() -> None:
    wide = replace(ENGINE, tensor_parallel=4)
    rows = sweep(0.0)
    rows += [
        replace(r, measured_s=predicted_s(with_constants(wide, TRUTH), r), tensor_parallel=4)
        for r in [row(b, p, o) for b in BATCHES for p, o in SHAPES]
    ]
    found = fit(ENGINE, rows)
    assert max(abs(r.error) for r in found.rows) < 0.01


@settings(max_examples=30, deadline=None)
@given(
    times=st.lists(st.floats(1e-4, 10.0), min_size=1, max_size=6),
    batches=st.lists(st.integers(1, 512), min_size=6, max_size=6),
)
def test_no_rows_give_absurd_constants(times: list[float], batches: list[int]) -> None:
    found = fit(ENGINE, [replace(row(b, 100 * b), measured_s=t) for t, b in zip(times, batches, strict=False)])
    assert 0.5 <= found.factor <= 2.0
    if found.decode is not None:
        assert 0.199 <= found.decode.mbu <= 0.981
        assert 0.049 <= found.decode.mfu <= 0.951
        assert PACKAGED.step_s / 5.001 <= found.decode.step_s <= PACKAGED.step_s * 5.001
        assert PACKAGED.request_s / 10.001 <= found.decode.request_s <= PACKAGED.request_s * 10.001
    parse_calibration(calibration_of(found).model_dump_json(by_alias=True), "it")


def test_nothing_measured_is_an_error() -> None:
    with pytest.raises(PlanningError, match="no measured row"):
        fit(ENGINE, [replace(row(1), measured_s=math.nan)])


def written(found: Fit, kv_tokens: int | None = 123_456) -> Calibration:
    return parse_calibration(calibration_of(found, kv_tokens, [("x", "why")]).model_dump_json(by_alias=True), "it")


def test_a_file_brings_back_what_was_fitted(tmp_path: object) -> None:
    found = fit(ENGINE, sweep(0.02))
    read = written(found)
    assert read.decode == found.decode
    assert read.sampler_factor == 1.0
    assert read.residual == pytest.approx(found.residual)
    assert read.observations == 15
    assert read.kv_tokens == 123_456
    assert read.measured_on is not None
    assert (read.measured_on.model, read.measured_on.gpu) == ("Qwen/Qwen3-8B", "h100-sxm-80gb")


def test_a_job_is_planned_with_the_constants_and_the_room_of_its_calibration() -> None:
    calibration = written(fit(ENGINE, sweep(0.0)))
    rooms = rooms_of("3x8")
    job, plain = Job.of(spec(), rooms, calibration=calibration), Job.of(spec(), rooms)
    assert job.engine(1).gpu.decode == calibration.decode
    assert job.with_lengths(job.lengths).engine(1).gpu.decode == calibration.decode
    assert plain.engine(1).gpu.decode == PACKAGED
    assert job.kv_tokens(1) != plain.kv_tokens(1)
    # The room was reported at width 1; that of other widths is computed.
    assert job.kv_tokens(2) == plain.kv_tokens(2)


def test_a_calibration_of_something_else_is_said() -> None:
    calibration = written(fit(ENGINE, sweep(0.0)))
    same = Job.of(spec(), rooms_of("3x8"))
    assert mismatches(calibration, same) == ()
    other = Job.of(spec(model__name="Qwen/Qwen3-32B", accelerator="H200"), rooms_of("3x8"))
    said = mismatches(calibration, other)
    assert len(said) == 2
    assert "Qwen/Qwen3-32B" in said[0]
    assert "h200" in said[1]
    assert mismatches(Calibration(), other) == ()
    assert accelerators_of(other.spec, rooms_of("3x8")).sampler.name == "h200-sxm-141gb"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "begin with rljobCalibration"),
        ("a: [", "not valid YAML"),
        ("kind: RLJob", "begin with rljobCalibration"),
        ("rljobCalibration: 2", "rljobCalibration"),
        ("rljobCalibration: 1\nsamplers: {factor: .nan}", "samplers.factor"),
        ("rljobCalibration: 1\nsamplers: {factor: 1, decode: {mbu: 3}}", "samplers.decode.mbu"),
        ("rljobCalibration: 1\nsampler: {}", "sampler"),
        ("kind: ConfigMap\ndata: {other: x}", r"no key calibration\.yaml"),
    ],
)
def test_a_file_that_is_no_calibration_says_why(text: str, why: str) -> None:
    with pytest.raises(PlanningError, match=why) as error:
        parse_calibration(text, "c.yaml")
    assert error.value.reason == "InvalidCalibration"
    assert "c.yaml" in str(error.value)


def test_a_config_map_around_a_calibration_is_read() -> None:
    text = "kind: ConfigMap\ndata:\n  calibration.yaml: |\n    rljobCalibration: 1\n    trainers: {factor: 0.8}\n"
    assert parse_calibration(text, "map").trainer_factor == 0.8


def test_a_file_that_is_not_there_is_an_error() -> None:
    with pytest.raises(PlanningError, match="no such file"):
        read_calibration("/nowhere/calibration.yaml")
