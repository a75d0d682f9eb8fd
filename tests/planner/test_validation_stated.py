"""Files of serving measurements with holes in them: a row says what it lacks, and all others are answered."""

from __future__ import annotations

import json
from typing import Any

import pytest
from typer.testing import CliRunner

from rljob_operator.cli import app
from rljob_planner.errors import PlanningError
from rljob_planner.validation.cases import parse
from rljob_planner.validation.report import validation_json
from rljob_planner.validation.rows import Row
from rljob_planner.validation.serving import serving_rows
from rljob_planner.validation.validate import validate

POINT = {
    "model": "Qwen/Qwen3-8B", "gpu": "h100_sxm", "engine": "vllm", "engine_version": "0.12.0", "precision": "bf16", "tp": 1,
    "isl": 1000, "osl": 100, "rows_bs_ttft_tpot": [[8, 100, 9.0], [16, 100, 10.0]],
}  # fmt: skip


def rows_with(**change: Any) -> list[Row]:
    """The rows of a whole curve, and before it of one with this change."""
    return serving_rows({"serving_points": [{**POINT, **change}, {**POINT, "isl": 2000}]})


@pytest.mark.parametrize("field", ["model", "gpu", "engine", "precision", "tp", "isl", "osl"])
def test_a_null_leaves_its_rows_without_prediction_and_is_named(field: str) -> None:
    for rows in (
        rows_with(**{field: None}),
        serving_rows({"serving_points": [_without(field), {**POINT, "isl": 2000}]}),
    ):
        assert [r.predicted is None for r in rows] == [True, True, False, False]
        assert {r.reason for r in rows[:2]} == {f"null in the file: {field}"}
        assert [r.measured for r in rows] == [9.0, 10.0, 9.0, 10.0]
        assert len({r.id for r in rows}) == 4


def _without(field: str) -> dict[str, Any]:
    return {k: v for k, v in POINT.items() if k != field}


def test_several_nulls_are_named_together() -> None:
    rows = rows_with(isl=None, tp=None)
    assert rows[0].reason == "null in the file: tp, isl"
    assert "?" in rows[0].id


@pytest.mark.parametrize(
    ("change", "part"),
    [
        ({"tp": 0}, "tp 0 is no whole number from 1"),
        ({"tp": "two"}, "tp 'two' is no number"),
        ({"tp": 1.5}, "tp 1.5 is no whole number"),
        ({"tp": True}, "tp True is no number"),
        ({"isl": -5}, "isl -5 is no whole number from 1"),
        ({"osl": float("inf")}, "osl inf is no number"),
        ({"osl": 10**400}, "is no number"),
        ({"model": ["a"]}, "model ['a'] is no name"),
        ({"gpu": ""}, "gpu '' is no name"),
        ({"kv": {}}, "kv {} is no name"),
        ({"kv": "int3"}, "KV cache precision 'int3' is not known"),
        ({"kv": "mxfp4"}, "write one of bf16, fp16, fp8"),
        ({"precision": "fp3"}, "precision 'fp3' is not known"),
        ({"gpu": "A1000"}, "accelerator 'A1000' is not known"),
        ({"tp": 7}, "tensor parallelism 7"),
    ],
)
def test_a_field_that_makes_no_sense_is_named(change: dict[str, Any], part: str) -> None:
    rows = rows_with(**change)
    assert [r.predicted is None for r in rows] == [True, True, False, False]
    assert part in str(rows[0].reason)


@pytest.mark.parametrize(
    ("bad", "part"),
    [
        ([8, 100, float("nan")], "tpot nan is no number"),
        ([16, 100, -3], "tpot -3 is no time above 0 ms"),
        ([8, 10, 0], "tpot 0 is no time above 0 ms"),
        ([8, "soon", 9], "ttft 'soon' is no number"),
        ([None, 100, 9], "null in the file: batch"),
        ([0, 100, 9], "batch 0 is no whole number from 1 to 1000000"),
        ([100_000_000, 10, 10], "batch 100000000 is no whole number from 1 to 1000000"),
        ([], "null in the file: batch"),
        ([8, 100, 9, 1], "4 numbers in a row of batch, ttft, tpot"),
        (None, "null in the file: rows_bs_ttft_tpot"),
    ],
)
def test_a_bad_row_leaves_the_others_of_its_curve(bad: list[Any] | None, part: str) -> None:
    whole, *_ = rows_with()
    first, second, *_ = rows_with(rows_bs_ttft_tpot=[[8, 100, 9.0], bad])
    assert second.predicted is None
    assert part in str(second.reason)
    assert first.predicted == whole.predicted


def test_a_time_that_is_null_hinders_no_prediction() -> None:
    whole = rows_with()
    first, second, third, *_ = rows_with(rows_bs_ttft_tpot=[[8, None, 9.0], [16, 100, None], [8]])
    assert (first.predicted, second.predicted, third.predicted) == (
        whole[0].predicted, whole[1].predicted, whole[0].predicted
    )  # fmt: skip
    assert (second.measured, second.error) == (None, None)
    assert "null in the file: ttft" in str(first.note)
    assert "null in the file: tpot" in str(second.note)


def test_a_curve_without_rows_stays_in_the_table() -> None:
    row, *_ = rows_with(rows_bs_ttft_tpot=None)
    assert (row.predicted, row.measured, row.reason) == (None, None, "null in the file: rows_bs_ttft_tpot")


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("serving_points: 5", "f.yaml: serving_points must be a list of rows, not 5"),
        ("serving_points: {model: a}", "f.yaml: serving_points must be a list of rows"),
        ("serving_points: [7]", "f.yaml: serving_points[0] must be a mapping with model"),
        (
            "serving_points: [{rows_bs_ttft_tpot: 3}]",
            "f.yaml: serving_points[0].rows_bs_ttft_tpot must be a list of rows",
        ),
        (
            "serving_points: [{rows_bs_ttft_tpot: [8, 9, 1]}]",
            "serving_points[0].rows_bs_ttft_tpot[0] must be a list [batch",
        ),
        ("{serving_points: [{}], nim_points: {a: 1}}", "f.yaml: nim_points must be a list of rows"),
        (
            "{serving_points: [{}], nim_points: [{rows: [[1]]}]}",
            "f.yaml: nim_points[0].columns must be a list of names",
        ),
        (
            "{serving_points: [{}], splitwise_points: {columns: [a], rows: [1]}}",
            "splitwise_points.rows[0] must be a list",
        ),
        ("{serving_points: [{}], exclusions: [{model: a}]}", "f.yaml: exclusions[0] has no reason"),
        (
            "{serving_points: [{}], exclusions: [{reason: a, max_ttft_ms: b}]}",
            "exclusions[0].max_ttft_ms must be a number",
        ),
    ],
)
def test_a_file_of_another_shape_is_one_error_with_key_and_row(text: str, part: str) -> None:
    with pytest.raises(PlanningError) as error:
        parse(text, "f.yaml")
    assert part in str(error.value)
    assert len(str(error.value)) < 250


TABLES: dict[str, Any] = {
    "nim_points": [
        {"model": "Llama-3.3-70B-instruct", "gpu": "h100-80gb", "tp": 2, "precision": "fp8", "engine": "NIM", "isl": 500,
         "osl": 500, "columns": ["conc", "ttft_ms", "itl_ms"],
         "rows": [[5, 500.0, 20.0], [None, 500.0, 20.0], [5, None, 20.0], [5, 500.0, None], [5, 500.0, -1], [5], []]},
        {"model": "Nobody/None", "gpu": "h100-80gb", "tp": 2, "precision": "fp8", "isl": 500, "osl": 500,
         "columns": ["conc", "ttft_ms", "itl_ms"], "rows": [[5, 500.0, 20.0]]},
    ],
    "splitwise_points": {
        "model": "Llama-2-70B", "tp": 2, "precision": "fp16", "columns": ["gpu", "prompt", "batch", "token_ms"],
        "rows": [["h100-80gb", 512, 8, 40.0], [None, 512, 8, 40.0], ["h100-80gb", None, 8, 40.0], ["h100-80gb", 512, "x", 4]],
    },
    "blis_ground_truth_itl": {"columns": ["model", "itl_ms"], "rows": [[None, None]]},
}  # fmt: skip


def test_tables_with_holes_are_answered_row_by_row() -> None:
    nim = [r for r in serving_rows(TABLES) if "/nim/" in r.id]
    assert [r.predicted is not None for r in nim] == [True, False, True, True, False, True, False, False]
    assert nim[1].reason == "null in the file: conc"
    assert "itl_ms -1" in str(nim[4].reason)
    assert "Nobody/None" in str(nim[7].reason)
    splitwise = [r for r in serving_rows(TABLES) if "/splitwise/" in r.id]
    assert [r.reason for r in splitwise] == [
        None, "null in the file: gpu", "null in the file: prompt", "batch 'x' is no number"
    ]  # fmt: skip
    assert splitwise[0].predicted is not None


def test_all_of_it_can_be_printed() -> None:
    point = {**POINT, "tp": None, "rows_bs_ttft_tpot": [[8, 100, float("nan")], [1, 2, 0], [], [8]]}
    document = parse(json.dumps({"serving_points": [point, POINT], **TABLES}), "f.yaml")
    printed = validation_json(validate([document])).model_dump_json()
    assert "null in the file: tp" in printed


def test_the_command_answers_instead_of_breaking(tmp_path: Any) -> None:
    path = tmp_path / "f.yaml"
    path.write_text(json.dumps({"serving_points": [{"model": "Qwen/Qwen3-8B"}, POINT]}), encoding="utf-8")
    result = CliRunner().invoke(app, ["validate", str(path), "-o", "json"])
    assert result.exit_code == 0, result.output
    rows = json.loads(result.stdout)["rows"]
    assert [r["predicted"] is None for r in rows] == [True, False, False]
    assert rows[0]["reason"].startswith("null in the file: gpu, engine, precision, tp, isl, osl")
    path.write_text("serving_points: 5", encoding="utf-8")
    result = CliRunner().invoke(app, ["validate", str(path)])
    assert result.exit_code == 2
    assert "serving_points must be a list of rows, not 5" in result.output.replace("\n", " ")
