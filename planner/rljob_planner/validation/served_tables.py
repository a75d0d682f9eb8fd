"""Measured decode steps outside of serving curves: vendor tables and older engines.

Their rows say less than curves do. What states engine width, lengths and batch is predicted; the others stay in the table with
the field that is missing. Engines other than vLLM are judged like it and have families of their own, so that their factor shows
what sets them apart.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from rljob_planner.errors import PlanningError
from rljob_planner.hardware import gpu
from rljob_planner.models import model
from rljob_planner.serving import MOST_REQUESTS, MOST_TOKENS, kv_format_of, served, weight_format_of
from rljob_planner.steptime import Engine
from rljob_planner.validation.rows import Row
from rljob_planner.validation.stated import Stated, cell_fields

KIND = "serving"
_QUEUED_MS = 4000.0


def table_rows(document: Mapping[str, Any]) -> Iterator[Row]:
    """The rows of the document's tables of decode steps."""
    for table in document.get("nim_points") or ():
        yield from _nim(table)
    if document.get("splitwise_points"):
        yield from _splitwise(document["splitwise_points"])
    if document.get("blis_ground_truth_itl"):
        yield from _unstated(
            document["blis_ground_truth_itl"], "blis", "itl_ms", "the batch is not in the file: requests came at a rate"
        )
    if document.get("llmservingsim_ground_truth"):
        yield from _unstated(
            document["llmservingsim_ground_truth"],
            "llmservingsim",
            "tpot_mean_ms_vllm",
            "lengths and batch are not in the file",
        )


def _engine(name: str, card: str, width: int, precision: str) -> Engine:
    shape = model(name)
    weights = weight_format_of(precision, shape)
    return Engine(shape, gpu(card), width, weights.name, kv_format_of(weights))


def _cells(table: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    for row in table.get("rows") or ():
        yield cell_fields(tuple(table["columns"]), row)


def _shown(value: Any) -> str:
    return "?" if value is None else str(value)


def _short_model(table: Mapping[str, Any]) -> str:
    return _shown(table.get("model")).rsplit("/", 1)[-1].lower()


def _measured(cell: Mapping[str, Any], column: str) -> tuple[float | None, str | None]:
    """The measured milliseconds, and what is wrong with them; a null is only nothing to compare with."""
    read = Stated(cell)
    return read.milliseconds_or_none(column), read.reason


def _predicted(work: Callable[[], float]) -> tuple[float | None, str | None]:
    try:
        return work(), None
    except PlanningError as error:
        return None, str(error)


def _nim(table: Mapping[str, Any]) -> Iterator[Row]:
    short, card = _short_model(table), _shown(table.get("gpu"))
    lengths = f"tp{_shown(table.get('tp'))}/{_shown(table.get('isl'))}x{_shown(table.get('osl'))}"
    family = f"{short}/{card}/nim/{table.get('precision') or 'unstated'}"
    for cell in _cells(table):
        measured, wrong = _measured(cell, "itl_ms")
        waited_ms, _ = _measured(cell, "ttft_ms")
        queued = waited_ms is not None and waited_ms > _QUEUED_MS
        predicted, reason = (None, wrong) if wrong else _nim_step(table, cell)
        unstated = any(table.get(k) is None for k in ("tp", "isl", "osl", "precision"))
        yield Row(
            id="/".join([short, card, "nim", *([] if unstated else [lengths]), f"bs{_shown(cell.get('conc'))}"]),
            kind=KIND,
            family=family,
            measured=measured,
            unit="ms",
            predicted=predicted,
            reason=reason,
            note="requests queued for KV room (ttft over 4 s)" if queued else f"engine {_shown(table.get('engine'))}",
            judged=not queued,
        )


def _nim_step(table: Mapping[str, Any], cell: Mapping[str, Any]) -> tuple[float | None, str | None]:
    read = Stated({**table, **cell})
    width = read.whole("tp", MOST_REQUESTS)
    precision = read.text("precision")
    isl, osl = read.whole("isl", MOST_TOKENS), read.whole("osl", MOST_TOKENS)
    name, card, batch = read.text("model"), read.text("gpu"), read.whole("conc", MOST_REQUESTS)
    if not (width and precision and isl and osl and name and card and batch):
        return None, read.reason
    return _predicted(lambda: served(_engine(name, card, width, precision), isl, osl, (batch,))[0].tpot_s * 1e3)


def _splitwise(table: Mapping[str, Any]) -> Iterator[Row]:
    name, width = _short_model(table), _shown(table.get("tp"))
    for cell in _cells(table):
        card, prompt, batch = (_shown(cell.get(k)) for k in ("gpu", "prompt", "batch"))
        measured, wrong = _measured(cell, "token_ms")
        predicted, reason = (None, wrong) if wrong else _splitwise_step({**table, **cell})
        yield Row(
            id=f"{name}/{card}/splitwise/tp{width}/{prompt}/bs{batch}",
            kind=KIND,
            family=f"{name}/{card}/splitwise/{_shown(table.get('precision'))}",
            measured=measured,
            unit="ms",
            predicted=predicted,
            reason=reason,
            note="engine of 2023 that launches every kernel on its own",
        )


def _splitwise_step(fields: Mapping[str, Any]) -> tuple[float | None, str | None]:
    read = Stated(fields)
    name, card, precision = read.text("model"), read.text("gpu"), read.text("precision")
    width, prompt = read.whole("tp", MOST_REQUESTS), read.whole("prompt", MOST_TOKENS)
    batch = read.whole("batch", MOST_REQUESTS)
    if not (name and card and precision and width and prompt and batch):
        return None, read.reason

    def step_ms() -> float:
        engine = _engine(name, card, width, precision)
        return float(engine.step_s(np.array([float(batch)]), prompt)[0]) * 1e3

    return _predicted(step_ms)


def _unstated(table: Mapping[str, Any], source: str, column: str, reason: str) -> Iterator[Row]:
    for cell in _cells(table):
        card = _shown(cell.get("gpu") or table.get("gpu")).lower()
        what = _shown(cell.get("workload") or cell.get("parallel"))
        yield Row(
            id=f"{_shown(cell.get('model')).lower()}/{card}/{source}/{what}",
            kind=KIND,
            family=f"{source}/{card}",
            measured=_measured(cell, column)[0],
            unit="ms",
            reason=reason,
        )
