"""Writes the JSON Schemas of what users write and of what commands print, from the models: ``python -m dev.schemas``.

A schema that is written by hand is wrong from the first change on; a test compares the files with the models.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from dev.bench.drift.result import DriftJson
from dev.bench.drift.traces import Trace
from rljob_operator.explanation import ExplanationJson
from rljob_operator.overview import OverviewJson
from rljob_operator.page.model import JobPageJson, StatusPageJson
from rljob_planner._calibration_json import CalibrationJson
from rljob_planner._compare_json import ComparisonJson
from rljob_planner._diagnosis_json import DiagnosisJson
from rljob_planner._latency_json import LatencyJson
from rljob_planner._lengths_json import LengthsJson
from rljob_planner._plan_json import PlanJson
from rljob_planner._simulation_json import SimulationJson
from rljob_planner.scenario import Scenario
from rljob_planner.validation.report import ValidationJson

DIRECTORY = Path(__file__).resolve().parent.parent / "docs" / "schemas"

SCHEMAS: dict[str, tuple[type[BaseModel], str]] = {
    "scenario": (Scenario, "validation"),
    "simulation-result": (SimulationJson, "serialization"),
    "plan": (PlanJson, "serialization"),
    "latency": (LatencyJson, "serialization"),
    "validation": (ValidationJson, "serialization"),
    "comparison": (ComparisonJson, "serialization"),
    "calibration": (CalibrationJson, "validation"),
    "lengths": (LengthsJson, "serialization"),
    "diagnosis": (DiagnosisJson, "serialization"),
    "drift": (DriftJson, "serialization"),
    "drift-trace": (Trace, "validation"),
    "explanation": (ExplanationJson, "serialization"),
    "status-page": (StatusPageJson, "serialization"),
    "status-page-job": (JobPageJson, "serialization"),
    "status": (OverviewJson, "serialization"),
}
"""File name without its ending → the model, and whether the schema is of what it reads or of what it writes."""


def schema(name: str) -> dict[str, Any]:
    """The JSON Schema called ``name``."""
    model, mode = SCHEMAS[name]
    body = model.model_json_schema(by_alias=True, mode="serialization" if mode == "serialization" else "validation")
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **body}


def text(name: str) -> str:
    """The file that holds the schema called ``name``."""
    return json.dumps(schema(name), indent=2, ensure_ascii=False) + "\n"


def path(name: str) -> Path:
    """Where the schema called ``name`` lies."""
    return DIRECTORY / f"{name}.schema.json"


def main() -> None:
    """Write all schemas."""
    DIRECTORY.mkdir(parents=True, exist_ok=True)
    for name in SCHEMAS:
        path(name).write_text(text(name), encoding="utf-8")
        print(path(name).relative_to(DIRECTORY.parent.parent))


if __name__ == "__main__":
    main()
