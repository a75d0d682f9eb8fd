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
from rljob_planner.serving import kv_format_of, served, weight_format_of
from rljob_planner.steptime import Engine
from rljob_planner.validation.rows import Row

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


def _engine(name: str, card: str, width: int, precision: str | None) -> Engine:
    shape = model(name)
    weights = weight_format_of(precision, shape)
    return Engine(shape, gpu(card), width, weights.name, kv_format_of(weights))


def _cells(table: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    for row in table["rows"]:
        yield dict(zip(table["columns"], row, strict=True))


def _predicted(work: Callable[[], float]) -> tuple[float | None, str | None]:
    try:
        return work(), None
    except PlanningError as error:
        return None, str(error)


def _nim(table: Mapping[str, Any]) -> Iterator[Row]:
    short = str(table["model"]).rsplit("/", 1)[-1].lower()
    missing = [k for k in ("tp", "precision", "isl", "osl") if table.get(k) is None]
    family = f"{short}/{table['gpu']}/nim/{table.get('precision') or 'unstated'}"
    for cell in _cells(table):
        batch, queued = int(cell["conc"]), float(cell["ttft_ms"]) > _QUEUED_MS
        predicted, reason = None, f"null in the file: {', '.join(missing)}" if missing else None
        lengths = "" if missing else f"/tp{table['tp']}/{table['isl']}x{table['osl']}"
        if not missing:
            engine = _engine(str(table["model"]), str(table["gpu"]), int(table["tp"]), str(table["precision"]))
            isl, osl = int(table["isl"]), int(table["osl"])
            predicted, reason = _predicted(
                lambda e=engine, i=isl, o=osl, b=batch: served(e, i, o, (b,))[0].tpot_s * 1e3  # type: ignore[misc]
            )
        yield Row(
            id=f"{short}/{table['gpu']}/nim{lengths}/bs{batch}",
            kind=KIND,
            family=family,
            measured=float(cell["itl_ms"]),
            unit="ms",
            predicted=predicted,
            reason=reason,
            note="requests queued for KV room (ttft over 4 s)" if queued else f"engine {table['engine']}",
            judged=not queued,
        )


def _splitwise(table: Mapping[str, Any]) -> Iterator[Row]:
    name, width = str(table["model"]), int(table["tp"])
    for cell in _cells(table):
        card, prompt, batch = str(cell["gpu"]), int(cell["prompt"]), int(cell["batch"])

        def step_ms(card: str = card, prompt: int = prompt, batch: int = batch) -> float:
            engine = _engine(name, card, width, str(table["precision"]))
            return float(engine.step_s(np.array([float(batch)]), prompt)[0]) * 1e3

        predicted, reason = _predicted(step_ms)
        yield Row(
            id=f"{name.lower()}/{card}/splitwise/tp{width}/{prompt}/bs{batch}",
            kind=KIND,
            family=f"{name.lower()}/{card}/splitwise/{table['precision']}",
            measured=float(cell["token_ms"]),
            unit="ms",
            predicted=predicted,
            reason=reason,
            note="engine of 2023 that launches every kernel on its own",
        )


def _unstated(table: Mapping[str, Any], source: str, column: str, reason: str) -> Iterator[Row]:
    for cell in _cells(table):
        card = str(cell.get("gpu") or table.get("gpu"))
        what = cell.get("workload") or cell.get("parallel")
        yield Row(
            id=f"{str(cell['model']).lower()}/{card.lower()}/{source}/{what}",
            kind=KIND,
            family=f"{source}/{card.lower()}",
            measured=float(cell[column]),
            unit="ms",
            reason=reason,
        )
