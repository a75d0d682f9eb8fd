"""Serving measurements: predicted against measured milliseconds per token.

Curves state engine, model, GPU, number format, tensor parallelism and lengths, so all of them can be predicted. A family is a
model on a GPU type under one engine and format: its factor is that of the other rows, since an engine's version and flags shift
all of its rows alike. What is excluded stays in the table with its reason and counts neither way.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from rljob_planner.errors import PlanningError
from rljob_planner.serving import served
from rljob_planner.validation.curves import StatedCurve, StatedRow, stated_curves
from rljob_planner.validation.rows import Row
from rljob_planner.validation.served_tables import KIND, table_rows

LEAST_OTHERS = 2
"""Rows besides the own one from which a family has a factor."""


def serving_rows(document: Mapping[str, Any]) -> list[Row]:
    """The rows of a document's serving curves and of its other tables of measured decode steps.

    Raises PlanningError ``InvalidCases`` where the document is no list of curves.
    """
    names: dict[str, int] = {}
    rows = [row for stated in stated_curves(document) for row in _curve_rows(stated, names)]
    return calibrated([*rows, *table_rows(document)])


def _unique(stated: StatedCurve, row: StatedRow, names: dict[str, int]) -> str:
    """The row's id; the second of a name says its number format too, and further ones count."""
    name = f"{stated.prefix}/bs{row.batch or '?'}"
    if name in names:
        name = f"{name}/{stated.short_precision}"
    names[name] = names.get(name, 0) + 1
    return name if names[name] == 1 else f"{name}/{names[name]}"


def _curve_rows(stated: StatedCurve, names: dict[str, int]) -> Iterator[Row]:
    predicted_ms, reason = _predicted(stated)
    for row in stated.rows:
        why = "; ".join(r for r in (reason, row.reason) if r) or None
        yield Row(
            id=_unique(stated, row, names),
            kind=KIND,
            family=stated.family,
            measured=row.tpot_ms,
            unit="ms",
            predicted=None if why or row.batch is None else predicted_ms[row.batch],
            reason=why,
            note="; ".join(_notes(stated, row)) or None,
            judged=row.excluded is None,
        )


def _predicted(stated: StatedCurve) -> tuple[dict[int, float], str | None]:
    """Milliseconds a token by batch, or why there are none."""
    batches = sorted({r.batch for r in stated.rows if r.batch is not None and r.reason is None})
    if stated.curve is None or not batches:
        return {}, stated.reason
    try:
        points = served(stated.curve.engine, stated.curve.isl, stated.curve.osl, batches)
    except PlanningError as error:
        return {}, str(error)
    return {p.batch: p.tpot_s * 1e3 for p in points}, None


def _notes(stated: StatedCurve, row: StatedRow) -> Iterator[str]:
    curve = stated.curve
    if row.excluded:
        yield row.excluded
    if curve is not None and curve.held_out:
        yield "no constant was fitted to this curve"
    if curve is not None and not curve.vllm:
        yield "the packaged constants are those of vLLM"
    if row.reason is None and row.tpot_ms is None:
        yield "null in the file: tpot, so there is nothing to compare with"
    elif row.reason is None and row.ttft_ms is None:
        yield "null in the file: ttft, so requests may have waited for KV room unseen"
    if curve is None or row.batch is None or row.tpot_ms is None or row.excluded is not None:
        return
    if any(r.batch > row.batch and r.tpot_ms < row.tpot_ms for r in curve.rows if r.excluded is None):
        yield "measured slower than with more requests on the same curve"


def calibrated(rows: Sequence[Row]) -> list[Row]:
    """The rows with the prediction after one factor, the median of the ratios of the family's other judged rows.

    The median, since it leaves the least mean error, and since a published row that is off for a reason of its own should not move
    the predictions of the others.
    """
    ratios: dict[str, list[tuple[int, float]]] = {}
    for i, row in enumerate(rows):
        ratio = _ratio(row)
        if ratio is not None and row.judged:
            ratios.setdefault(row.family, []).append((i, math.log(ratio)))
    return [_calibrated(i, row, ratios.get(row.family, ())) for i, row in enumerate(rows)]


def _ratio(row: Row) -> float | None:
    if isinstance(row.measured, int | float) and isinstance(row.predicted, int | float) and row.predicted > 0:
        return row.measured / row.predicted
    return None


def _calibrated(index: int, row: Row, family: Iterable[tuple[int, float]]) -> Row:
    others = [x for i, x in family if i != index]
    if len(others) < LEAST_OTHERS or not isinstance(row.predicted, int | float):
        return row
    return replace(row, calibrated=row.predicted * math.exp(statistics.median(others)))
