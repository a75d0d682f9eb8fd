"""docs/operations.md names every reason, decision code and event that the operator can write, and none that it can't."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path

from rljob_operator.metrics import OperatorMetrics
from rljob_planner.api.status import ConditionType, DecisionCode, MovePhase

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
OPERATOR = ROOT / "operator" / "rljob_operator"

OF_PLANNER = {
    "DoesNotFit",
    "InvalidBatch",
    "InvalidLengths",
    "InvalidSplit",
    "MixedAccelerators",
    "NothingFeasible",
    "TooLarge",
    "UnknownAccelerator",
    "UnknownModel",
    "UnknownPrecision",
}
"""Reasons of a PlanningError that a plan may end with; others belong to commands (benchmarks, cases)."""

OF_COMMANDS = {"InvalidBenchmark", "InvalidCalibration", "InvalidCases", "NothingMeasured"}


@cache
def trees(folder: Path) -> tuple[ast.Module, ...]:
    """The modules of a folder, parsed."""
    return tuple(ast.parse(file.read_text(encoding="utf-8")) for file in sorted(folder.rglob("*.py")))


def calls(tree: ast.AST, name: str) -> Iterator[ast.Call]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            called = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
            if called == name:
                yield node


def words(node: ast.AST) -> Iterator[str]:
    """CamelCase words among the constants of an expression."""
    for part in ast.walk(node):
        if (
            isinstance(part, ast.Constant)
            and isinstance(part.value, str)
            and re.fullmatch(r"[A-Z][A-Za-z]+", part.value)
        ):
            yield part.value


@cache
def reasons() -> set[str]:
    """Reasons of conditions, as the operator's source writes them."""
    found: set[str] = set()
    for tree in trees(OPERATOR):
        for call in calls(tree, "Verdict"):
            for argument in call.args[1:2]:
                found.update(words(argument))
        for assigned, below in pairwise(tree.body):
            # A reason that is named once, with a string under it that says so: NODE_LOST = "NodeLost".
            if (
                isinstance(assigned, ast.Assign)
                and isinstance(below, ast.Expr)
                and "Reason of ``" in ast.unparse(below)
            ):
                found.update(words(assigned.value))
        for call in calls(tree, "append"):
            if isinstance(call.func, ast.Attribute) and getattr(call.func.value, "attr", "") == "degradations":
                found.update(words(call.args[0].elts[0] if isinstance(call.args[0], ast.Tuple) else call.args[0]))
    return found


@cache
def events() -> set[str]:
    """Reasons of events that are not those of conditions: the second of (type, reason, message)."""
    found: set[str] = set()
    for tree in trees(OPERATOR):
        for node in ast.walk(tree):
            if isinstance(node, ast.Tuple) and len(node.elts) == 3 and {"Normal", "Warning"} & set(words(node.elts[0])):
                found.update(words(node.elts[1]))
    return found


def planning_reasons() -> set[str]:
    found: set[str] = set()
    for tree in trees(ROOT / "planner" / "rljob_planner"):
        for call in calls(tree, "PlanningError"):
            for argument in call.args[:1]:
                found.update(words(argument))
    return found


NAMED = set(re.findall(r"`([A-Z][A-Za-z]+)`", PAGE))


def test_every_reason_of_a_condition_is_on_the_page() -> None:
    assert reasons(), "the source says its reasons otherwise now: correct this test"
    assert sorted(reasons() - NAMED) == []


def test_every_reason_of_the_planner_is_on_the_page_or_of_a_command() -> None:
    assert planning_reasons() == OF_PLANNER | OF_COMMANDS
    assert sorted(OF_PLANNER - NAMED) == []


def test_every_event_is_on_the_page() -> None:
    moves = {f"Move{phase.value}" for phase in MovePhase}
    assert sorted((events() | moves) - NAMED) == []


def test_every_decision_phase_and_condition_is_on_the_page() -> None:
    for kind in (DecisionCode, MovePhase, ConditionType):
        assert sorted({each.value for each in kind} - NAMED) == []


def test_nothing_is_on_the_page_that_the_operator_does_not_say() -> None:
    said = reasons() | events() | OF_PLANNER | {f"Move{phase.value}" for phase in MovePhase}
    for kind in (DecisionCode, MovePhase, ConditionType):
        said |= {each.value for each in kind}
    elsewhere = {"Auto", "Recommend", "Initial", "Summary", "Next", "True", "False", "RLJobProfile", "RLJob", "Lease"}
    assert sorted(NAMED - said - elsewhere) == []


def test_every_series_on_the_page_is_exported() -> None:
    exported = set()
    for family in OperatorMetrics().registry.collect():
        exported |= {family.name, f"{family.name}_total"} if family.type == "counter" else {family.name}
    named = set(re.findall(r"`(rljob_operator_[a-z_]+)`", PAGE))
    assert sorted(named - exported) == []
    assert len(named) > 15
