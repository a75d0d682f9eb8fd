from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from rljob_operator.cli import app

RUNNER = CliRunner()

CASES = {
    "cases": [
        {
            "id": "sync",
            "family": "made-up",
            "kind": "step_time",
            "model": "Qwen3-8B",
            "gpu": "H100",
            "rollout_gpus": 16,
            "train_gpus": 16,
            "n_gpus": 16,
            "placement": "colocated",
            "prompts_per_step": 64,
            "group_size": 8,
            "lengths": {"mean_response": 900, "max_response": 4096},
            "staleness": {"knob": "sync", "value": 0},
            "measured": {"step_time_s": 60},
        },
        {"id": "nulls", "family": "made-up", "kind": "step_time", "model": None, "measured": {"step_time_s": 60}},
        {
            "id": "stale",
            "kind": "staleness",
            "concurrency_C": 64,
            "batch_samples_B": 64,
            "rho": 0.7,
            "lengths": {"tailness_multiplier_M": 1.4},
            "staleness": {"queue_factor_q": 1},
            "measured": {"mean_staleness": 2.0},
        },
    ]
}


@pytest.fixture
def cases(tmp_path: Path) -> str:
    path = tmp_path / "cases.yaml"
    path.write_text(yaml.safe_dump(CASES), encoding="utf-8")
    return str(path)


def test_json_has_every_row_in_the_order_of_the_file(cases: str) -> None:
    result = RUNNER.invoke(app, ["validate", cases, "-o", "json"])
    assert result.exit_code == 0, result.output
    printed = json.loads(result.stdout)
    assert [r["id"] for r in printed["rows"]] == ["sync", "nulls", "stale"]
    first, second, third = printed["rows"]
    assert first["predicted"] > 0
    assert first["error"] == pytest.approx(abs(first["predicted"] / 60 - 1))
    assert first["calibratedError"] is None
    assert second["predicted"] is None
    assert "model" in second["reason"]
    assert "null" in second["reason"]
    assert third["error"] == pytest.approx(abs(third["predicted"] - 2.0))
    assert printed["families"][0]["coverage"] == 0.5
    assert "made-up" in result.stderr


def test_the_table_shows_predictions_reasons_and_families(cases: str) -> None:
    result = RUNNER.invoke(app, ["validate", cases])
    assert result.exit_code == 0, result.output
    for word in ("sync", "null", "made-up", "1 of 2", "2 of 3 rows predicted"):
        assert word in result.stdout


def test_a_file_that_is_none_of_these_is_an_error(tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text("rows: 3", encoding="utf-8")
    result = RUNNER.invoke(app, ["validate", str(wrong)])
    assert result.exit_code == 2
    assert "holds no measurements" in result.stderr
    assert RUNNER.invoke(app, ["validate", str(tmp_path / "absent.yaml")]).exit_code == 2
