from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from typer.testing import CliRunner, Result

from dev import schemas
from rljob_operator.cli import app
from rljob_planner.compare import PAIRS, Measure, compared_plans
from rljob_planner.compare_report import verdict

ROOT = Path(__file__).resolve().parents[2]
SMALL = ROOT / "crds" / "samples" / "math-short.yaml"
SCENARIO = ROOT / "planner" / "rljob_planner" / "data" / "scenarios" / "async.yaml"


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


def compared(*arguments: str) -> dict[str, Any]:
    result = run("compare", *arguments, "-o", "json")
    assert result.exit_code == 0, result.stderr
    found: dict[str, Any] = json.loads(result.stdout)
    jsonschema.validate(found, schemas.schema("comparison"))
    return found


def measure(found: dict[str, Any], name: str) -> dict[str, Any]:
    return next(m for m in found["measures"] if m["name"] == name)


def scenario(path: Path, **changes: Any) -> str:
    path.write_text(json.dumps(yaml.safe_load(SCENARIO.read_text(encoding="utf-8")) | changes), encoding="utf-8")
    return str(path)


def test_jobs_are_compared_in_what_was_asked_and_what_comes_of_it(tmp_path: Path) -> None:
    more = tmp_path / "more.yaml"
    text = SMALL.read_text(encoding="utf-8").replace("gpus: 16 ", "gpus: 24 ")
    more.write_text(text, encoding="utf-8")
    found = compared(str(SMALL), str(more))
    assert found["kind"] == "jobs"
    assert found["pairs"] == PAIRS
    assert {"field": "spec.gpus", "a": 16, "b": 24} in found["inputs"]
    assert found["splitA"] != found["splitB"]
    period = measure(found, "period")
    assert period["change"] == pytest.approx(period["b"] / period["a"] - 1.0, abs=0.002)
    assert period["change"] < -0.15
    assert period["beyondNoise"] is True
    report = run("compare", str(SMALL), str(more)).stdout
    for words in ("less time for a step: beyond the noise", "What was asked differently", "spec.gpus", "Split", "Cost"):
        assert words in report


def test_a_job_is_no_different_from_itself() -> None:
    found = compared(str(SMALL), str(SMALL))
    assert found["inputs"] == []
    assert all(m["change"] == 0.0 and m["error"] == 0.0 and m["beyondNoise"] is False for m in found["measures"])
    assert found["splitA"] == found["splitB"]


def test_scenarios_are_run_with_common_random_numbers(tmp_path: Path) -> None:
    faster = scenario(tmp_path / "faster.json", weightSync=0.0)
    found = compared(str(SCENARIO), faster)
    assert found["inputs"] == [{"field": "weightSync", "a": 0.2, "b": 0.0}]
    period = measure(found, "period")
    assert period["change"] < 0
    assert period["beyondNoise"] is True
    # Pairs share their randomness: the error of the difference is far below the scatter of either side, some percent.
    assert period["error"] < 0.005


def test_another_seed_alone_is_noise(tmp_path: Path) -> None:
    found = compared(str(SCENARIO), scenario(tmp_path / "seed.json", seed=7))
    assert [c["field"] for c in found["inputs"]] == ["seed"]
    assert measure(found, "period")["beyondNoise"] is False


def test_plans_are_compared_by_what_they_say(tmp_path: Path) -> None:
    plan = run("plan", str(SMALL), "-o", "json").stdout
    file = tmp_path / "plan.json"
    file.write_text(plan, encoding="utf-8")
    found = compared(str(file), str(SMALL), "--nodes", "4x4")
    assert found["kind"] == "plans"
    assert found["pairs"] == 0
    assert measure(found, "period")["beyondNoise"] is None
    assert measure(found, "runTime")["a"] == pytest.approx(json.loads(plan)["runTime"]["p50"])
    assert "compare the jobs" in run("compare", str(file), str(file), "-o", "table").stdout or found["inputs"] == []


def test_two_plans_of_which_one_has_no_price_have_no_change_of_cost() -> None:
    from rljob_planner._plan_json import PlanJson

    plan = PlanJson.model_validate(json.loads(run("plan", str(SMALL), "-o", "json").stdout))
    found = compared_plans("a", plan, "b", plan.model_copy(update={"cost": None}))
    cost = next(m for m in found.measures if m.name == "cost")
    assert (cost.b, cost.change, cost.beyond_noise) == (None, None, None)
    assert verdict(found) == "Both take the same time for a step."


@pytest.mark.parametrize(
    ("change", "error", "beyond"),
    [
        (0.02, 0.001, True),
        (0.002, 0.001, False),
        (0.0, 0.0, False),
        (1e-3, 0.0, True),
        (0.5, None, None),
        (None, None, None),
    ],
)
def test_a_change_counts_if_chance_cannot_explain_it(
    change: float | None, error: float | None, beyond: bool | None
) -> None:
    assert Measure("period", 1.0, 1.0, change, error).beyond_noise is beyond


def test_two_kinds_cannot_be_compared() -> None:
    result = run("compare", str(SMALL), str(SCENARIO))
    assert result.exit_code == 2
    assert "compare two of a kind" in result.stderr


def test_a_file_that_is_not_there_is_an_error() -> None:
    result = run("compare", str(SCENARIO), "nowhere.yaml")
    assert result.exit_code == 2
    assert result.stderr == "rljob: nowhere.yaml: no such file or directory\n"


def test_options_are_for_jobs() -> None:
    result = run("compare", str(SCENARIO), str(SCENARIO), "--nodes", "8x8")
    assert result.exit_code == 2
    assert "leave them out" in result.stderr
