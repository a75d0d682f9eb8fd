from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from typer.testing import CliRunner, Result

from dev import schemas
from rljob_operator.cli import app
from tests.operator.composed_scrapes import Truth, compose

ROOT = Path(__file__).resolve().parents[2]
SAMPLE = str(ROOT / "crds" / "samples" / "math-short.yaml")


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["diagnose", *arguments])


def said(*arguments: str) -> str:
    result = run(*arguments)
    assert result.exit_code == 2, result.output
    assert "Traceback" not in result.stderr
    return result.stderr


def found(*arguments: str) -> dict[str, Any]:
    result = run(*arguments, "-o", "json")
    assert result.exit_code == 0, result.output
    diagnosis: dict[str, Any] = json.loads(result.stdout)
    jsonschema.validate(diagnosis, schemas.schema("diagnosis"))
    return diagnosis


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(compose(tmp_path_factory.mktemp("scrapes") / "job", Truth()))


def test_recorded_scrapes_are_diagnosed(folder: str) -> None:
    diagnosis = found(folder, "--interval", "15s")
    assert diagnosis["bound"] == "samplers"
    assert diagnosis["sure"] is True
    terms = {t["name"]: t for t in diagnosis["terms"]}
    assert terms["wait"]["share"] == pytest.approx(0.5, abs=0.06)
    assert terms["sandbox"]["share"] is None


def test_people_get_a_verdict_shares_and_advice(folder: str) -> None:
    result = run(folder, "--interval", "15s")
    assert result.exit_code == 0, result.output
    for words in ("The samplers are the bottleneck", "What to change first", "Evidence", "Not known", "unknown"):
        assert words in result.stdout


def test_the_model_stands_beside_a_job(folder: str) -> None:
    diagnosis = found(folder, "--interval", "15s", "--job", SAMPLE)
    names = [c["name"] for c in diagnosis["compared"]]
    assert names[:2] == ["period", "training of a step"]
    assert all(c["predicted"] >= 0 for c in diagnosis["compared"])
    result = run(folder, "--interval", "15s", "--job", SAMPLE)
    assert "the planned split" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ([], "say what to look at"),
        (["nowhere.txt"], "no such file"),
        (["http://127.0.0.1:1/"], "this is a URL and no recording: read from a Prometheus with --prometheus"),
        (["{folder}", "--interval", "10ms"], "--interval: "),
        (["{folder}", "--interval", "soon"], "--interval"),
        (["{folder}", "--interval", "0s"], "--interval"),
        (["{folder}", "--split", "1x1+1x1"], "--split"),
        (["{folder}", "--interval", "15s", "--job", SAMPLE, "--split", "everything"], "replicas × GPUs"),
        (["{folder}", "--interval", "15s", "--job", SAMPLE, "--split", "77x1+1x1"], "it could be"),
        (["rljob/a", "rljob/b"], "one job"),
        (["--prometheus", "localhost:9090"], "no URL"),
        (["--prometheus", "http://127.0.0.1:9"], "cannot reach Prometheus"),
        (["--prometheus", "http://127.0.0.1:9", "--window", "5"], "--window"),
    ],
)
def test_what_is_wrong_is_said(folder: str, arguments: list[str], why: str) -> None:
    assert why in said(*(a.format(folder=folder) for a in arguments))


def test_dates_of_files_that_were_copied_together_are_no_times(tmp_path: Path) -> None:
    files = []
    for number, tokens in enumerate((1000, 90000)):
        path = tmp_path / f"scrape-{number}.txt"
        path.write_text(
            "# TYPE vllm:generation_tokens_total counter\n"
            f'vllm:generation_tokens_total{{model_name="m"}} {tokens}.0\n'
            "# TYPE vllm:num_requests_running gauge\n"
            'vllm:num_requests_running{model_name="m"} 4.0\n',
            encoding="utf-8",
        )
        os.utime(path, (1.7e9 + number * 4e-5, 1.7e9 + number * 4e-5))
        files.append(str(path))
    copied = run(*files)
    assert copied.exit_code == 0, copied.output
    assert "how far apart scrapes were is not known" in " ".join(copied.stdout.split())
    assert "all rljob_* metrics: the trainer's process shows them" in " ".join(copied.stdout.split())
    assert "1 scrape\n" in run(files[0]).stdout
    assert "rates: give two scrapes or more" in " ".join(run(files[0]).stdout.split())
    assert "it stands beside nothing" in run(*files, "--interval", "30s", "--job", SAMPLE).stderr
    os.utime(files[1], (1.7e9 + 60, 1.7e9 + 60))
    assert "as the dates of their files" in " ".join(run(*files).stdout.split())
