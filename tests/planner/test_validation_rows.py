"""Rows that are wrong, contradict themselves or cannot exist: what is said of them, and that all others are answered."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from rljob_operator.cli import app
from rljob_planner.validation.cases import Case, packaged, parse
from rljob_planner.validation.names import gpu_of, shape_of
from rljob_planner.validation.report import RowJson, validation_json
from rljob_planner.validation.rows import MATCHED, Row
from rljob_planner.validation.side import ROLLOUT, TRAIN
from rljob_planner.validation.validate import _guarded, validate

ROW: dict[str, Any] = {
    "id": "a", "kind": "step_time", "family": "f", "model": "Qwen3-8B", "gpu": "H100", "n_gpus": 32, "rollout_gpus": 16,
    "train_gpus": 16, "placement": "disaggregated", "prompts_per_step": 64, "group_size": 16, "samples_per_step": 1024,
    "lengths": {"mean_response": 3000, "max_response": 8192}, "staleness": {"knob": "max_staleness", "value": 2},
    "measured": {"step_time_s": 200},
}  # fmt: skip


def rows(*changes: dict[str, Any]) -> list[RowJson]:
    """A row with each change, and one without any last; all of it printable as JSON."""
    cases = [{**ROW, "id": f"row {i}", "family": f"f{i}", **c} for i, c in enumerate([*changes, {}])]
    printed = validation_json(validate([parse(json.dumps({"cases": cases}), "f.yaml")]))
    json.dumps(printed.model_dump(by_alias=True, mode="json"), allow_nan=False)
    assert printed.rows[-1].predicted is not None
    assert all((r.predicted is None) == (r.reason is not None) for r in printed.rows)
    return printed.rows[:-1]


@pytest.mark.parametrize("value", [0, -1, float("nan"), float("inf"), "12", None, True, 10**400])
def test_what_is_no_measurement_costs_the_error_and_not_the_prediction(value: object) -> None:
    (row,) = rows({"measured": {"step_time_s": value}})
    assert row.predicted is not None
    assert (row.measured, row.error) == (None, None)


def test_measurements_that_are_no_mapping_are_left_out() -> None:
    listed, none = rows({"measured": [1]}, {"measured": None})
    assert "measured must be a mapping" in str(listed.note)
    assert listed.predicted == none.predicted


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"lengths": {"mean_response": 0, "max_response": 8192}}, "lengths.mean_response must be"),
        ({"lengths": [1]}, "lengths must be a mapping"),
        ({"rollout_gpus": 0}, "rollout_gpus must be a whole number"),
        ({"group_size": "16"}, "group_size must be a whole number"),
        ({"prompts_per_step": 10**12}, "prompts_per_step must be a whole number"),
        ({"staleness": "4"}, "staleness must be a mapping"),
        ({"rho": float("nan")}, "rho must be a number above 0"),
        ({"parallelism": "gen [TP,PP]=0,1; train 0,0,0,0"}, "has a width of 0"),
        ({"gpu": "TPU v5p"}, "accelerator 'TPU v5p' is not known"),
        ({"model": "Qwen3-Next-80B"}, "near are Qwen/Qwen3"),
        ({"kind": "tpot"}, "kind 'tpot' is none that can be predicted"),
    ],
)
def test_a_wrong_field_is_the_reason_of_its_row(change: dict[str, Any], says: str) -> None:
    (row,) = rows(change)
    assert row.predicted is None
    assert says in str(row.reason)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (
            {"model": "Llama-3.1-70B", "train_gpus": 1},
            "does not fit in memory: bf16 weights of 141 GB for each of 1 trainer",
        ),
        ({"model": "Llama-3.1-70B", "rollout_gpus": 1}, "does not fit in memory: a sampler's GPU would hold 141 GB"),
        ({"model": "DeepSeek-R1"}, "does not fit in memory: a sampler's GPU would hold 84 GB"),
        ({"model": "Llama-3.1-70B", "train_gpus": 4}, "trainers fit only with state kept in host memory"),
        (
            {"lengths": {"mean_response": 9000, "max_response": 8192}},
            "mean_response 9000 is above lengths.max_response 8192",
        ),
        ({"samples_per_step": 999}, "prompts_per_step 64 × group_size 16 is 1024, not samples_per_step 999"),
        ({"n_gpus": 8}, "are more than n_gpus 8"),
        ({"placement": "hybrid"}, "names neither colocated nor disaggregated"),
        ({"placement": "disaggregated, upside down"}, "down, upside not known"),
        ({"measured": {"step_time_s": -1}}, "measured.step_time_s -1 is no measurement"),
    ],
)
def test_what_is_to_be_doubted_is_noted(change: dict[str, Any], says: str) -> None:
    for kind in ("step_time", "throughput"):
        (row,) = rows({**change, "kind": kind})
        assert row.predicted is not None
        assert says in str(row.note)


def test_the_packaged_rows_are_not_doubted() -> None:
    for row in validate(packaged()[1:]).rows:
        for word in ("does not fit", "contradiction", "not known", "names neither", "is no measurement"):
            assert word not in str(row.note), row


def test_all_packaged_names_are_known() -> None:
    for document in packaged():
        for case in document.cases:
            if case.gpu is not None:
                gpu_of(case.gpu)
            if case.model is not None and case.kind == "step_time":
                shape_of(case.model)


def test_tables_of_trainers_and_transfers_are_answered_row_by_row() -> None:
    trained = {
        "columns": ["model", "kind", "seq_len", "hardware", "tok_s"],
        "rows": [
            ["Qwen3-8B", "rl full", 4096, "8xh100", 9000], ["Qwen3-8B", "rl full", 0, "8xh100", 9000],
            ["Qwen3-8B", "rl full", 4096, "0xh100", 1], ["Qwen3-8B", "rl full", 4096, "8xTPU v5p", 1],
            ["Qwen3-8B", "rl full", 4096, "8xh200", -5], ["Qwen3-8B", "rl full", 4096, None, 5],
        ],
    }  # fmt: skip
    moved = {
        "columns": ["model", "transport", "seconds"],
        "rows": [["Qwen3-8B", "nccl", 0], ["Qwen3-8B", "nccl", -1], ["zzzz"]],
    }
    found = validate([parse(json.dumps({"cases": [], "training_throughput": trained, "weight_sync": moved}), "f")])
    assert [r.predicted is not None for r in found.rows] == [True, False, False, False, True, False, True, True, False]
    assert found.rows[1].reason == "seq_len must be a whole number from 1 to 1,000,000, not 0"
    assert "hardware must be a count and a GPU" in str(found.rows[2].reason)
    assert [r.measured for r in found.rows[4:]] == [None, 5, None, None, None]


def test_a_row_that_cannot_be_computed_hinders_no_other() -> None:
    def predicted(cases: Any) -> list[Row]:
        return [Row(c.id, c.kind, c.family, None, predicted=1.0 / float(c.rho)) for c in cases]

    cases = [Case(str(i), "step_time", "f", rho=rho) for i, rho in enumerate((1.0, 0.0, 2.0))]
    found = {r.id: r for r in _guarded(cases, predicted)}
    assert (found["0"].predicted, found["2"].predicted) == (1.0, 0.5)
    assert "division by zero" in str(found["1"].reason)


def test_correct_speaks_of_what_is_predicted() -> None:
    side = Row("a", "bottleneck", "f", ROLLOUT, predicted=ROLLOUT, plain_side=TRAIN, calibrated=ROLLOUT)
    assert (side.correct, side.calibrated_correct, side.strictly_correct) == (True, True, True)
    alone = Row("a", "bottleneck", "f", ROLLOUT, predicted=TRAIN, plain_side=TRAIN)
    assert (alone.correct, alone.calibrated_correct) == (False, None)
    near = Row("a", "step_time", "f", 1.0, predicted=1.0, measured_side=MATCHED, predicted_side=TRAIN, measured_wait=0.1, predicted_wait=0.0)  # fmt: skip
    assert (near.correct, near.strictly_correct) == (True, False)


def test_bound_sides_of_packaged_rows_are_what_predicted_names() -> None:
    for row in validation_json(validate(packaged()[1:])).rows:
        if row.kind == "bottleneck" and row.correct is not None:
            assert row.correct == (row.predicted == row.measured), row
            assert row.plain_side in (ROLLOUT, TRAIN, MATCHED)


def test_a_predicted_side_hangs_on_no_measurement_of_its_row() -> None:
    base, slower, bare = rows(
        {"measured": {"step_time_s": 100, "train_wait_s": 40}}, {"measured": {"step_time_s": 100, "train_wait_s": 1}}, {"measured": {}}
    )  # fmt: skip
    assert base.predicted_side == slower.predicted_side == bare.predicted_side is not None
    assert base.measured_side != slower.measured_side
    assert (bare.measured_side, bare.correct) == (None, None)


def test_the_command_answers_a_file_with_bad_rows_and_refuses_a_broken_one(tmp_path: Path) -> None:
    path = tmp_path / "f.yaml"
    path.write_text("cases: [{id: a, kind: step_time, n_gpus: 0, measured: {step_time_s: .nan}}]", encoding="utf-8")
    result = CliRunner().invoke(app, ["validate", str(path), "-o", "json"])
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["rows"][0]["reason"].startswith("n_gpus must be a whole number")
    assert CliRunner().invoke(app, ["validate", str(path)]).exit_code == 0
    path.write_text("cases: [3]", encoding="utf-8")
    assert CliRunner().invoke(app, ["validate", str(path)]).exit_code == 2
