"""``rljob lengths`` from a file to what is printed."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest
from typer.testing import CliRunner

from dev import schemas
from rljob_operator.cli import app

RUN = CliRunner()


@pytest.fixture
def log(tmp_path: Path) -> Path:
    from rljob_planner.lengths import LengthDistribution

    lengths = LengthDistribution.lognormal(300, 0.8, 1000).sample(0, range(2000), 0)
    path = tmp_path / "samples.jsonl"
    path.write_text("".join(f'{{"response_length": {tokens}}}\n' for tokens in lengths.tolist()))
    return path


def test_json_holds_the_fit_and_the_block_of_a_job(log: Path) -> None:
    result = RUN.invoke(app, ["lengths", str(log), "-o", "json"])
    assert result.exit_code == 0, result.stderr
    found = json.loads(result.stdout)
    jsonschema.validate(found, schemas.schema("lengths"))
    assert found["law"] == "lognormal"
    assert found["maxFrom"] == "pile"
    assert found["responseTokens"]["max"] == 1000
    assert found["responseTokens"]["mean"] == pytest.approx(found["mean"], abs=1)


def test_the_table_shows_bars_warnings_and_blocks(log: Path) -> None:
    result = RUN.invoke(app, ["lengths", str(log), "--max", "4000"])
    assert result.exit_code == 0, result.stderr
    for words in (
        "2000 responses",
        "█",
        "Not supported by the log",
        "the log was cut at 1000 tokens",
        "responseTokens:",
    ):
        assert words in result.stdout


def test_a_log_from_stdin(log: Path) -> None:
    result = RUN.invoke(app, ["lengths", "-", "-o", "yaml"], input=log.read_text())
    assert result.exit_code == 0, result.stderr
    assert "law: lognormal" in result.stdout


def test_what_is_wrong_is_said_with_exit_code_2(tmp_path: Path, log: Path) -> None:
    (tmp_path / "bad.jsonl").write_text("12\nlong\n")
    result = RUN.invoke(app, ["lengths", str(tmp_path / "bad.jsonl")])
    assert result.exit_code == 2
    assert "bad.jsonl:2: 'long' is not JSON: write a number a line" in result.stderr
    assert RUN.invoke(app, ["lengths", str(log), "--max", "100000000"]).exit_code == 2
