"""All rows of all documents, each kind by the module that knows it, and what they add up to."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rljob_planner.validation.bottleneck import bottleneck_rows
from rljob_planner.validation.cases import Case, Document
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
    by_kind = {kind: [c for c in document.cases if c.kind == kind] for kind in KINDS}
    predicted = [
        *weight_sync_rows(by_kind["weight_sync"], _tables(document.raw, "weight_sync")),
        *staleness_rows(by_kind["staleness"]),
        *bottleneck_rows(by_kind["bottleneck"]),
        *sync_tail_rows(by_kind["sync_tail"]),
        *speedup_rows(by_kind["speedup"]),
        *step_time_rows(by_kind["step_time"], progress),
        *throughput_rows(by_kind["throughput"], progress),
        *(_unknown(c) for c in document.cases if c.kind not in KINDS),
    ]
    order = {case.id: i for i, case in enumerate(document.cases)}
    predicted.sort(key=lambda row: order.get(row.id.split("/checkpoint-engine")[0], len(order)))
    return found + predicted


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
