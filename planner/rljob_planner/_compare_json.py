"""The JSON that a comparison is reported as: the source of its schema and of its keys."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from rljob_planner._plan_json import SplitJson
from rljob_planner._simulation_json import Part


class ChangeJson(Part):
    """An input that differs."""

    field: str = Field(description="Path within the file, such as spec.gpus.")
    a: Any = Field(description="Null: not given.")
    b: Any = Field(description="Null: not given.")


class MeasureJson(Part):
    """An outcome on both sides: seconds, policy versions, US dollars, shares or tokens as its name says."""

    name: str
    a: float | None = Field(description="Mean over the runs; null if unknown.")
    b: float | None = Field(description="Mean over the runs; null if unknown.")
    change: float | None = Field(description="b − a, relative to a if relative is true; null if unknown.")
    error: float | None = Field(description="Standard error of change; null if nothing was run in pairs.")
    relative: bool
    beyond_noise: bool | None = Field(description="Whether chance alone can't explain the change; null if unknown.")


class ComparisonJson(Part):
    """Two jobs, plans or scenarios, and what differs between them."""

    kind: str = Field(description="jobs, plans or scenarios.")
    a: str
    b: str
    split_a: SplitJson | None = Field(description="The recommended split; null for scenarios.")
    split_b: SplitJson | None = Field(description="The recommended split; null for scenarios.")
    inputs: tuple[ChangeJson, ...]
    measures: tuple[MeasureJson, ...]
    pairs: int = Field(description="Pairs of runs with common random numbers; 0 if nothing was run.")
