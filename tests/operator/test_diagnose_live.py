"""``rljob diagnose rljob/NAME``: the job from a server that speaks as the API server does, its metrics from one that does as Prometheus."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import jsonschema
import yaml
from typer.testing import CliRunner, Result

from dev import schemas
from rljob_operator.cli import app
from tests.operator.composed_scrapes import Truth, compose
from tests.operator.objects import job_dict, node
from tests.operator.test_cli_live import ACCELERATED, Api, api  # noqa: F401
from tests.operator.test_diagnose import as_range_query

SPLIT = {
    "mode": "async",
    "samplers": {"replicas": 16, "gpusPerReplica": 1, "tensorParallel": 1, "maxRunning": 256},
    "trainers": {"replicas": 2, "gpusPerReplica": 8, "dp": 16, "tp": 1, "pp": 1, "ep": 1},
    "inFlight": 512,
}


def diagnosed(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["diagnose", *arguments])


def server_url() -> str:
    """The one server that answers for both."""
    config = yaml.safe_load(Path(os.environ["KUBECONFIG"]).read_text(encoding="utf-8"))
    return str(config["clusters"][0]["cluster"]["server"])


def running(api: Api, tmp_path: Path, **status: Any) -> dict[str, Any]:  # noqa: F811
    job = job_dict()
    job["status"] = status
    api.holds(job, [node(f"n{i}", labels=ACCELERATED) for i in range(4)])
    api.objects["/api/v1/query"] = as_range_query(compose(tmp_path / "scrapes", Truth(samplers=4)))
    return job


def test_a_live_job_is_diagnosed_beside_its_split_in_force(api: Api, tmp_path: Path) -> None:  # noqa: F811
    running(api, tmp_path, split=SPLIT)
    result = diagnosed("rljob/mine", "--prometheus", server_url(), "-o", "json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    jsonschema.validate(found, schemas.schema("diagnosis"))
    assert found["bound"] == "samplers"
    assert {"period", "decode step"} <= {c["name"] for c in found["compared"]}
    assert "planned split" not in result.stderr


def test_a_job_whose_split_is_not_known_is_set_beside_the_planned_one(api: Api, tmp_path: Path) -> None:  # noqa: F811
    running(api, tmp_path)
    result = diagnosed("rljob/mine", "-n", "rl", "--prometheus", server_url())
    assert result.exit_code == 0, result.output
    assert "The samplers are the bottleneck" in result.stdout
    assert "the planned split" in result.stderr


def test_a_job_that_names_no_prometheus_is_told_how(api: Api, tmp_path: Path) -> None:  # noqa: F811
    running(api, tmp_path, split=SPLIT)
    result = diagnosed("rljob/mine")
    assert result.exit_code == 2
    assert "--prometheus" in result.stderr


def test_a_job_that_is_not_there_is_an_error(api: Api) -> None:  # noqa: F811
    result = diagnosed("rljob/theirs", "--prometheus", server_url())
    assert result.exit_code == 2
    assert "no such RLJob" in result.stderr


def test_a_prometheus_without_the_job_says_what_to_check(api: Api, tmp_path: Path) -> None:  # noqa: F811
    running(api, tmp_path, split=SPLIT)
    api.objects["/api/v1/query"] = {"status": "success", "data": {"resultType": "matrix", "result": []}}
    result = diagnosed("rljob/mine", "--prometheus", server_url())
    assert result.exit_code == 2
    assert "rljob_dev_uid" in result.stderr
