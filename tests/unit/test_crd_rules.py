"""The models keep the rules of the CRD, with the CRD's own messages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from rljob_planner.api.crd import object_schema, rules_of
from rljob_planner.api.reading import InvalidJobError, read_job
from tests.crd_cases import CASES, HARMLESS_UPDATE, UPDATE_CASES, Case, UpdateCase, edited, job

RULES: dict[str, Mapping[str, Any]] = {rule["message"]: rule for _, rule in rules_of(object_schema())}


def full_message(beginning: str) -> str:
    (found,) = [message for message in RULES if message.startswith(beginning)]
    return found


def test_every_rule_has_a_case() -> None:
    tried = {full_message(message) for message in (*(c.message for c in CASES), *(c.message for c in UPDATE_CASES))}
    assert tried == set(RULES)


def test_every_rule_on_a_state_is_tried_both_ways() -> None:
    kept = {full_message(case.message) for case in CASES if case.accepted or case.accepted_name != "job"}
    assert kept == {message for message, rule in RULES.items() if "oldSelf" not in rule["rule"]}


def test_the_plain_job_is_accepted() -> None:
    assert read_job(job()).spec.gpus == 16


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_a_job_that_breaks_one_rule_is_rejected_with_its_message(case: Case) -> None:
    with pytest.raises(InvalidJobError) as caught:
        read_job(job(case.rejected, name=case.name))
    (problem,) = caught.value.problems
    assert problem.endswith(": " + full_message(case.message))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_a_job_that_keeps_the_rule_is_accepted(case: Case) -> None:
    read_job(job(case.accepted, name=case.accepted_name))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_the_error_points_where_the_crd_points(case: Case) -> None:
    message = full_message(case.message)
    # A rule of nodes stands at each place that has nodes.
    places = [(path, rule) for path, rule in rules_of(object_schema()) if rule["message"] == message]
    expected = [(path + rule.get("fieldPath", "")).removeprefix(".") or "RLJob" for path, rule in places]
    with pytest.raises(InvalidJobError) as caught:
        read_job(job(case.rejected, name=case.name))
    assert caught.value.problems[0].startswith(tuple(f"{place}: " for place in expected))


@pytest.mark.parametrize("case", UPDATE_CASES, ids=lambda case: case.id)
def test_what_may_not_change_is_valid_by_itself(case: UpdateCase) -> None:
    read_job(edited(job(), case.edits))


def test_all_broken_rules_are_said_at_once() -> None:
    with pytest.raises(InvalidJobError) as caught:
        read_job(job({"spec.gpus": 4, "spec.queue": {"capacity": 1}}))
    assert [problem.split(":")[0] for problem in caught.value.problems] == ["spec.gpus", "spec.queue.capacity"]


def test_a_harmless_update_is_valid() -> None:
    read_job(edited(job(), HARMLESS_UPDATE))
