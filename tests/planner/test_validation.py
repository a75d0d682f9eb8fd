"""The packaged measurements: what has to hold for people to trust a plan."""

from __future__ import annotations

import json
from statistics import median

import pytest
from jsonschema import Draft202012Validator

from dev.docs import validation as page
from dev.schemas import schema
from rljob_planner.validation.cases import packaged
from rljob_planner.validation.report import validation_json
from rljob_planner.validation.staleness import scenario
from rljob_planner.validation.validate import Group, Validation, validate


@pytest.fixture(scope="module")
def found() -> Validation:
    return validate(packaged())


def kind(found: Validation, name: str) -> Group:
    return next(g for g in found.kinds if g.name == name)


def test_step_times_are_right_after_calibration_on_other_rows(found: Validation) -> None:
    steps = kind(found, "step_time")
    assert median(steps.calibrated_errors) <= 0.15
    assert sum(e > 0.30 for e in steps.calibrated_errors) <= 4
    assert max(steps.calibrated_errors) <= 0.45
    assert len(steps.calibrated_errors) >= 60


def test_the_bound_side_is_right_where_a_row_states_it(found: Validation) -> None:
    assert kind(found, "bottleneck").correct == kind(found, "bottleneck").sides == 7
    steps = kind(found, "step_time")
    assert steps.correct == steps.sides
    assert steps.sides >= 20


def test_measured_staleness_is_simulated_within_a_third_of_a_version(found: Validation) -> None:
    staleness = kind(found, "staleness")
    assert staleness.predicted == staleness.rows == 6
    assert max(staleness.errors) <= 0.35


def test_throughput_rises_with_the_allowed_staleness_and_flattens(found: Validation) -> None:
    rows = [r for r in found.rows if r.kind == "throughput"]
    said = [float(r.calibrated) for r in rows if r.calibrated is not None]
    assert said[0] < 0.7 * said[1]
    assert said[1] < 0.8 * max(said[2:])
    assert max(said[2:]) < 1.4 * min(said[2:])
    assert median(kind(found, "throughput").calibrated_errors) <= 0.15


def test_only_a_null_field_keeps_a_row_from_being_predicted(found: Validation) -> None:
    for row in found.rows:
        if row.kind == "serving":
            continue
        if not row.covered:
            assert "null" in str(row.reason), row
        else:
            assert row.reason is None, row


def test_every_step_time_whose_fields_are_stated_is_predicted(found: Validation) -> None:
    steps = kind(found, "step_time")
    assert (steps.predicted, steps.rows) == (66, 70)


def test_the_output_obeys_its_schema(found: Validation) -> None:
    printed = validation_json(found).model_dump(by_alias=True, mode="json")
    Draft202012Validator(schema("validation")).validate(printed)
    assert json.loads(json.dumps(printed, allow_nan=False)) == printed
    ids = [r["id"] for r in printed["rows"]]
    assert len(ids) == len(set(ids))
    assert printed["summary"]["rows"] == len(ids)


def test_every_miss_is_explained_on_the_page(found: Validation) -> None:
    text = page.text(found)
    assert text.startswith("<!--")
    for row in found.rows:
        if not row.covered:
            assert row.id in text
    assert set(page.figures(found)) == {"serving", "step_time", "training"}


def test_a_staleness_scenario_has_what_its_row_says() -> None:
    inp = scenario(C=120, B=240, rho=0.63, M=1.42, q=2, group=16)
    assert inp.prompts_per_step * inp.samples_per_prompt == 240
    assert inp.in_flight_cap == 120
    assert inp.queue_capacity == 2 * inp.prompts_per_step
    assert inp.lengths.tail_multiplier(16) == pytest.approx(1.42, abs=0.01)
