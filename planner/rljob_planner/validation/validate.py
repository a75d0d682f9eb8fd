"""All rows of all documents, each kind by the module that knows it, and what they add up to."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rljob_planner.validation.bottleneck import bottleneck_rows
from rljob_planner.validation.cases import Case, Document
from rljob_planner.validation.doubts import doubts
from rljob_planner.validation.others import speedup_rows, sync_tail_rows
from rljob_planner.validation.rows import Row
from rljob_planner.validation.serving import serving_rows
from rljob_planner.validation.staleness import staleness_rows
from rljob_planner.validation.step_time import step_time_rows
from rljob_planner.validation.throughput import throughput_rows
from rljob_planner.validation.trainers import trainer_rows
from rljob_planner.validation.transfers import weight_sync_rows

KINDS = ("step_time", "throughput", "bottleneck", "staleness", "weight_sync", "sync_tail", "speedup")
"""Kinds of cases that are predicted."""

_BEYOND = (ArithmeticError, ValueError)
Progress = Callable[[str], None]


@dataclass(frozen=True)
class Group:
    """What the rows of a family, or of a kind, add up to."""

    name: str
    kind: str
    rows: int
    predicted: int
    errors: tuple[float, ...]
    """Of rows that are judged."""
    calibrated_errors: tuple[float, ...]
    correct: int
    sides: int
    """Rows that state a bound side and were predicted."""
    error_kind: str

    @property
    def coverage(self) -> float:
        """Rows predicted of rows there, 0..1."""
        return self.predicted / self.rows


@dataclass(frozen=True)
class Validation:
    """All rows, by family and by kind."""

    rows: tuple[Row, ...]
    families: tuple[Group, ...]
    kinds: tuple[Group, ...]


def validate(documents: Iterable[Document], progress: Progress = lambda _: None) -> Validation:
    """Predict every row of every document; rows that cannot be predicted say why."""
    rows: list[Row] = []
    for document in documents:
        rows.extend(_rows(document, progress))
    return Validation(
        tuple(rows), _groups(rows, lambda r: (r.kind, r.family)), _groups(rows, lambda r: (r.kind, r.kind))
    )


def _rows(document: Document, progress: Progress) -> list[Row]:
    progress("serving")
    found = list(serving_rows(document.raw))
    progress("trainers and weight transfers")
    found += trainer_rows(_tables(document.raw, "training_throughput"))
    whole = [c for c in document.cases if c.fault is None]
    by_kind = {kind: [c for c in whole if c.kind == kind] for kind in KINDS}
    transfers = _tables(document.raw, "weight_sync")
    predicted = [
        *_guarded(by_kind["weight_sync"], lambda cases: weight_sync_rows(cases, transfers)),
        *_guarded(by_kind["staleness"], staleness_rows),
        *_guarded(by_kind["bottleneck"], bottleneck_rows),
        *_guarded(by_kind["sync_tail"], sync_tail_rows),
        *_guarded(by_kind["speedup"], speedup_rows),
        *_guarded(by_kind["step_time"], lambda cases: step_time_rows(cases, progress)),
        *_guarded(by_kind["throughput"], lambda cases: throughput_rows(cases, progress)),
        *(_unknown(c) for c in whole if c.kind not in KINDS),
        *(Row(c.id, c.kind, c.family, None, reason=c.fault) for c in document.cases if c.fault is not None),
    ]
    order = {case.id: i for i, case in enumerate(document.cases)}
    predicted.sort(key=lambda row: order.get(_case_id(row), len(order)))
    said = {c.id: doubts(c) for c in whole}
    return found + [_noted(row, said.get(_case_id(row), ())) for row in predicted]


def _guarded(cases: Sequence[Case], predicted: Callable[[Sequence[Case]], list[Row]]) -> list[Row]:
    """Rows of a kind; those whose numbers lie beyond what can be computed say so, and hinder no others."""
    try:
        return predicted(cases)
    except _BEYOND:
        broken = [row for case in cases if (row := _broken(case, predicted)) is not None]
    names = {row.id for row in broken}
    rest = [case for case in cases if case.id not in names]
    if not broken or not rest:
        # Each alone can be computed, so it is together that they cannot: nothing is learned from each other then.
        return broken + [row for case in rest for row in predicted([case]) if _case_id(row) == case.id]
    return broken + _guarded(rest, predicted)


def _broken(case: Case, predicted: Callable[[Sequence[Case]], list[Row]]) -> Row | None:
    try:
        predicted([case])
    except _BEYOND as error:
        why = f"its numbers are beyond what can be computed: {error}"
        return Row(case.id, case.kind, case.family, None, reason=why)
    return None


def _case_id(row: Row) -> str:
    return row.id.split("/checkpoint-engine")[0]


def _noted(row: Row, remarks: Sequence[str]) -> Row:
    """The row with what there is to doubt in it, before all else that its note says."""
    return replace(row, note="; ".join([*remarks, *([row.note] if row.note else [])])) if remarks else row


def _tables(raw: Mapping[str, Any], name: str) -> list[Mapping[str, Any]]:
    table = raw.get(name)
    return [table] if isinstance(table, Mapping) and table.get("rows") else []


def _unknown(case: Case) -> Row:
    return Row(
        case.id,
        case.kind,
        case.family,
        None,
        reason=f"kind {case.kind!r} is none that can be predicted: write one of {', '.join(KINDS)}",
    )


def _groups(rows: Sequence[Row], key: Callable[[Row], tuple[str, str]]) -> tuple[Group, ...]:
    found = []
    for kind, name in dict.fromkeys(key(r) for r in rows):
        members = [r for r in rows if key(r) == (kind, name)]
        judged = [r for r in members if r.judged]
        sides = [r for r in members if r.correct is not None]
        found.append(
            Group(
                name=name,
                kind=kind,
                rows=len(members),
                predicted=sum(r.covered for r in members),
                errors=tuple(r.error for r in judged if r.error is not None),
                calibrated_errors=tuple(r.calibrated_error for r in judged if r.calibrated_error is not None),
                correct=sum(r.correct is True for r in sides),
                sides=len(sides),
                error_kind=members[0].error_kind,
            )
        )
    return tuple(found)


def mean(errors: Sequence[float]) -> float | None:
    """None without errors."""
    return statistics.fmean(errors) if errors else None


def median(errors: Sequence[float]) -> float | None:
    """None without errors."""
    return statistics.median(errors) if errors else None


def worst(errors: Sequence[float]) -> float | None:
    """None without errors."""
    return max(errors) if errors else None
