from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from rljob_operator.cli import app
from rljob_planner.errors import PlanningError
from rljob_planner.hardware import gpu
from rljob_planner.models import model
from rljob_planner.precision import weight_format
from rljob_planner.serving import kv_format_of, served, tpot_ms, weight_format_of
from rljob_planner.steptime import Engine
from rljob_planner.validation.curves import curves, packaged_curves, packaged_document
from rljob_planner.validation.rows import Row
from rljob_planner.validation.served_tables import KIND
from rljob_planner.validation.serving import calibrated, serving_rows

ROWS = serving_rows(packaged_document())
HOPPER = [r for r in ROWS if r.judged and "/vllm/" in r.family and r.family.split("/")[1] in ("h100_sxm", "h200_sxm")]
HELD_OUT = [r for r in HOPPER if r.note and "no constant was fitted" in r.note]


def engine(name: str = "Qwen/Qwen3-32B", card: str = "H100", width: int = 4, weights: str = "bf16") -> Engine:
    return Engine(model(name), gpu(card), width, weights, "bf16")


def errors(rows: list[Row]) -> list[float]:
    found = [r.error for r in rows]
    assert all(e is not None for e in found)
    return [e for e in found if e is not None]


def test_tokens_take_as_long_as_vllm_was_measured_to_take() -> None:
    assert len(HOPPER) > 200
    assert np.mean(errors(HOPPER)) <= 0.04
    assert np.quantile(errors(HOPPER), 0.9) <= 0.10


def test_the_same_holds_on_curves_that_nothing_was_fitted_to() -> None:
    assert len(HELD_OUT) >= 50
    assert np.mean(errors(HELD_OUT)) <= 0.04
    assert {r.family.split("/")[0] for r in HELD_OUT} == {"qwen3-32b", "llama-3.1-70b", "gpt-oss-120b", "minimax-m2.5"}


def test_one_factor_from_the_other_rows_keeps_it_within_five_percent() -> None:
    found = [r.calibrated_error for r in HOPPER if r.calibrated_error is not None]
    assert len(found) == len(HOPPER)
    assert np.mean(found) <= 0.05


@pytest.mark.parametrize("family", sorted({r.family for r in HOPPER}))
def test_no_model_is_off_by_much(family: str) -> None:
    own = [r for r in HOPPER if r.family == family]
    assert np.mean(errors(own)) <= 0.055
    assert np.mean([r.calibrated_error for r in own if r.calibrated_error is not None]) <= 0.055


def test_another_architecture_stays_within_the_stated_error() -> None:
    blackwell = [r for r in ROWS if r.judged and r.family.split("/")[1] in ("b200_sxm", "b300_sxm")]
    held_out = [r for r in blackwell if r.note and "no constant was fitted" in r.note]
    assert len(held_out) > 60
    assert np.mean(errors(blackwell)) <= 0.07
    assert np.mean(errors(held_out)) <= 0.07


def test_tables_that_state_what_is_needed_are_predicted_and_the_others_say_what_is_missing() -> None:
    nim = [r for r in ROWS if r.family == "llama-3.3-70b-instruct/h100-80gb/nim/fp8" and r.judged]
    assert len(nim) == 5
    assert np.mean(errors(nim)) <= 0.10
    unstated = [r for r in ROWS if r.family.endswith("nim/unstated")]
    assert unstated
    assert all(r.reason == "null in the file: tp, precision, isl, osl" and r.predicted is None for r in unstated)
    # An engine of 2023 that launches every kernel on its own is slower by a factor, which the other rows tell.
    old = [r for r in ROWS if "/splitwise/" in r.family]
    assert all(
        isinstance(r.predicted, float) and isinstance(r.measured, float) and r.predicted < r.measured for r in old
    )
    assert np.mean([r.calibrated_error for r in old if r.calibrated_error is not None]) <= 0.08


def test_what_is_excluded_stays_with_its_reason_and_counts_neither_way() -> None:
    left_out = [r for r in ROWS if not r.judged]
    assert {r.family.split("/")[0] for r in left_out} >= {
        "qwen3-235b-a22b-fp8",
        "llama-3.1-8b-instruct-fp8",
        "qwen3-32b",
    }
    assert all(r.note and r.covered for r in left_out)
    assert any("queued" in str(r.note) for r in left_out)


def test_a_row_that_its_own_curve_contradicts_says_so() -> None:
    odd = {r.id for r in ROWS if "measured slower than with more requests" in str(r.note)}
    assert "gpt-oss-120b/h100_sxm/vllm/tp4/1024x8192/bs16" in odd
    assert len(odd) < 0.05 * len(ROWS)


def test_another_engine_than_vllm_is_off_by_a_factor_that_its_other_rows_tell() -> None:
    sglang = [r for r in ROWS if "/sglang/" in r.family and r.judged]
    assert all("those of vLLM" in str(r.note) for r in sglang)
    assert np.mean(errors(sglang)) <= 0.25
    assert np.mean([r.calibrated_error for r in sglang if r.calibrated_error is not None]) <= 0.07


def test_ids_say_what_was_measured() -> None:
    ids = [r.id for r in ROWS]
    assert "qwen3-32b/h100_sxm/vllm/tp2/1024x128/bs8" in ids
    assert len(ids) == len(set(ids))


def test_every_name_of_the_curves_is_known() -> None:
    for curve in packaged_curves():
        assert curve.engine.tensor_parallel >= 1


def test_a_name_that_is_not_known_leaves_a_row_without_prediction_and_a_reason() -> None:
    document = {
        "serving_points": [
            {"model": "Nobody/None-9B", "gpu": "h100_sxm", "engine": "vllm", "precision": "bf16", "tp": 1, "isl": 8, "osl": 8,
             "rows_bs_ttft_tpot": [[1, 10, 10.0]]}
        ]
    }  # fmt: skip
    (row,) = serving_rows(document)
    assert row.predicted is None
    assert "Nobody/None-9B" in str(row.reason)


def test_a_factor_comes_from_the_other_rows() -> None:
    def row(name: str, measured: float, judged: bool = True) -> Row:
        return Row(id=name, kind=KIND, family="f", measured=measured, unit="ms", predicted=10.0, judged=judged)

    rows = calibrated([row("a", 20.0), row("b", 12.0), row("c", 12.0), row("d", 99.0, judged=False)])
    assert rows[0].calibrated == pytest.approx(12.0)
    assert rows[1].calibrated == pytest.approx(math.sqrt(20 * 12))
    assert rows[3].calibrated == pytest.approx(12.0)
    assert calibrated([row("a", 20.0), row("b", 12.0)])[0].calibrated is None


def test_exclusions_of_a_document_are_added_to_the_known_ones() -> None:
    point = {
        "model": "Qwen/Qwen3-32B", "gpu": "h100_sxm", "engine": "vllm", "engine_version": "1", "precision": "bf16", "tp": 4,
        "isl": 1024, "osl": 1024, "rows_bs_ttft_tpot": [[8, 100, 10.0], [8, 5000, 10.0]],
    }  # fmt: skip
    (curve,) = curves({"serving_points": [point]})
    assert [r.excluded is None for r in curve.rows] == [True, False]
    (curve,) = curves({"serving_points": [point], "exclusions": [{"model": "qwen3-32b", "reason": "because"}]})
    assert all(r.excluded for r in curve.rows)


def test_shorter_responses_carry_more_prefill() -> None:
    it = engine()
    times = [tpot_ms(it, 1024, osl, 64) for osl in (1024, 512, 128)]
    assert times[0] < times[1] < times[2]
    assert tpot_ms(it, 4096, 512, 64) > 1.3 * tpot_ms(it, 1024, 512, 64)


def test_alone_a_request_meets_nobodys_prefill() -> None:
    it = engine()
    alone = served(it, 1024, 512, (1,))[0]
    assert alone.tpot_s == pytest.approx(it.step_s(np.ones(1), 1280)[0])
    assert alone.decoding == 1.0
    assert alone.ttft_s > it.prefill_s(1024)


def test_beyond_kv_room_requests_wait_and_do_not_slow_the_others() -> None:
    it = engine(width=2)
    inside, beyond, far = served(it, 4096, 1024, (16, 200, 400))
    assert not inside.kv_bound
    assert beyond.kv_bound
    assert far.kv_bound
    assert beyond.tpot_s == pytest.approx(far.tpot_s)
    assert far.ttft_s > 2 * beyond.ttft_s > 10 * inside.ttft_s


@settings(max_examples=40, deadline=None)
@given(
    batch=st.integers(1, 300),
    isl=st.integers(1, 20_000),
    osl=st.integers(1, 10_000),
    name=st.sampled_from(["Qwen/Qwen3-32B", "openai/gpt-oss-120b", "Qwen/Qwen3.5-35B-A3B", "Qwen/Qwen3-30B-A3B"]),
)
def test_times_are_finite_and_more_requests_never_faster(batch: int, isl: int, osl: int, name: str) -> None:
    it = engine(name, "H200", 4)
    few, more = served(it, isl, osl, (batch, batch + 8))
    assert 0 < few.tpot_s <= more.tpot_s * (1 + 1e-6)
    assert math.isfinite(more.ttft_s)
    assert 1.0 <= few.decoding <= batch


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"width": 3}, "64 attention heads"),
        (
            {"width": 1, "name": "meta-llama/Llama-3.1-70B"},
            "does not fit on 1 × h100-sxm-80gb: 141 GB .*tensor parallelism 2 does",
        ),
        ({"isl": 0}, "isl 0"),
        ({"isl": 10**9}, "isl 1000000000"),
        ({"batch": 0}, "batch 0"),
        ({"ep": 2}, "expert parallelism 2: Qwen/Qwen3-32B has no experts"),
        ({"name": "Qwen/Qwen3-30B-A3B", "ep": 3}, "expert parallelism 3: the 128 experts"),
    ],
)
def test_what_cannot_be_served_says_why(change: dict[str, object], message: str) -> None:
    how = {"name": "Qwen/Qwen3-32B", "width": 4, "isl": 1024, "batch": 8} | change
    it = replace(engine(str(how["name"]), width=int(str(how["width"]))), expert_parallel=int(str(how.get("ep", 1))))
    with pytest.raises(PlanningError, match=message):
        served(it, int(str(how["isl"])), 128, (int(str(how["batch"])),))


def test_a_format_is_that_of_the_checkpoint_where_a_table_names_only_its_bits() -> None:
    oss, qwen, deepseek = model("openai/gpt-oss-120b"), model("Qwen/Qwen3-32B"), model("deepseek-ai/DeepSeek-V3")
    assert weight_format_of("mxfp4 experts, bf16 rest (the source calls it fp4)", oss).name == "mxfp4"
    assert weight_format_of("fp4", oss).name == weight_format_of(None, oss).name == "mxfp4"
    assert weight_format_of("fp4", qwen).name == "nvfp4"
    assert weight_format_of("fp8", deepseek).name == weight_format_of(None, deepseek).name == "fp8_block"
    assert weight_format_of(None, qwen).name == "bf16"
    assert [kv_format_of(weight_format(n)) for n in ("bf16", "fp8", "fp8_block", "mxfp4", "fp4")] == [
        "bf16", "fp8", "bf16", "bf16", "fp8",
    ]  # fmt: skip
    with pytest.raises(PlanningError, match="'fp7' is not known: write one of bf16"):
        weight_format("fp7")


def run(*arguments: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, ["latency", *arguments])
    return result.exit_code, result.stdout, result.stderr


BASE = ("--gpu", "h100_sxm", "--tp", "4", "--isl", "1024", "--osl", "512", "--batch", "8,16")


def test_the_command_prints_a_line_for_each_batch() -> None:
    code, out, _ = run("--model", "Qwen/Qwen3-32B", *BASE, "-o", "json")
    assert code == 0
    rows = json.loads(out)
    assert [r["batch"] for r in rows] == [8, 16]
    assert [r["tpot_ms"] for r in rows] == pytest.approx([tpot_ms(engine(), 1024, 512, b) for b in (8, 16)])
    assert run("--model", "Qwen/Qwen3-32B", *BASE, "-o", "yaml")[1].startswith("- {batch: 8, tpot_ms:")
    assert "ms per token" in run("--model", "Qwen/Qwen3-32B", *BASE)[1]


def test_the_command_takes_the_precision_of_the_curves_word_by_word() -> None:
    precision = "mxfp4 experts, bf16 rest (the source calls it fp4)"
    code, out, _ = run("--model", "openai/gpt-oss-120b", *BASE, "--precision", precision, "-o", "json")
    assert code == 0
    assert json.loads(out)[0]["tpot_ms"] < 6


def test_the_command_takes_a_config(tmp_path: Path) -> None:
    fields = {
        "hidden_size": 5120, "num_hidden_layers": 64, "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 128,
        "intermediate_size": 25600, "vocab_size": 151936,
    }  # fmt: skip
    path = tmp_path / "config.json"
    path.write_text(json.dumps(fields), encoding="utf-8")
    by_path = run("--model", str(path), *BASE, "-o", "json")[1]
    assert by_path == run("--model", "Qwen/Qwen3-32B", *BASE, "-o", "json")[1]
    assert run("--model", str(tmp_path), *BASE, "-o", "json")[1] == by_path
    path.write_text(json.dumps(fields | {"hidden_size": "wide"}), encoding="utf-8")
    code, _, err = run("--model", str(path), *BASE)
    assert code == 2
    assert f"{path}.hidden_size must be a whole number" in err


def test_the_format_in_a_name_is_that_of_its_weights() -> None:
    by_name = run("--model", "Qwen/Qwen3-32B-FP8", *BASE, "-o", "json")[1]
    assert by_name == run("--model", "Qwen/Qwen3-32B", *BASE, "--precision", "fp8", "-o", "json")[1]
    assert by_name != run("--model", "Qwen/Qwen3-32B", *BASE, "-o", "json")[1]
    assert by_name != run("--model", "Qwen/Qwen3-32B-FP8", *BASE, "--precision", "bf16", "-o", "json")[1]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--model", "Qwen/Qwen3-9B", *BASE), "near are Qwen/Qwen3-8B.*path to its config.json as --model"),
        (("--model", "Qwen/Qwen3-32B", *BASE, "--precision", "fp7"), "write one of bf16"),
        (
            ("--model", "Qwen/Qwen3-32B", *BASE[2:], "--gpu", "H1000"),
            "'H1000' is not known: write one of h100-sxm-80gb.*as --gpu",
        ),
        (("--model", "Qwen/Qwen3-32B", *BASE[:-1], "8,x"), "such as 8,16"),
        (("--model", "Qwen/Qwen3-32B", *BASE[:-1], ""), "such as 8,16"),
        (("--model", "nowhere/config.json", *BASE), "cannot be read as a model's config.json"),
    ],
)
def test_the_command_says_what_to_write_instead(arguments: tuple[str, ...], message: str) -> None:
    code, out, err = run(*arguments)
    assert (code, out) == (2, "")
    assert re.search(message, err.replace("\n", " "))
