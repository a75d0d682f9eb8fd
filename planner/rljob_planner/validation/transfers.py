"""How long new weights travel: by size, number of tensors and path, for rows of cases and of the table of transfers.

The path follows from the row: inside a node where all its GPUs fit into one; else bucket by bucket, or tensor by tensor where the source
says so.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rljob_planner.errors import PlanningError
from rljob_planner.training import quantising_factor, sync_path
from rljob_planner.validation.cases import Case
from rljob_planner.validation.family import ROWS_FOR_FACTORS
from rljob_planner.validation.names import gpu_of, shape_of
from rljob_planner.validation.rows import Row

VARIANTS = (
    ("weight_sync_s_without_ckpt_engine", "per_tensor", ""),
    ("weight_sync_s_with_ckpt_engine", "bucketed", "/checkpoint-engine"),
)
_FASTEST_PATH_BYTES_PER_S = 450e9
"""One direction of NVLink: what claims to be faster did not move the weights in the time that was taken."""


@dataclass(frozen=True)
class Transfer:
    """A measured transfer and its prediction."""

    row: Row
    bytes_per_s: float | None
    """That the measurement implies."""


def weight_sync_rows(cases: Sequence[Case], tables: Sequence[Mapping[str, Any]]) -> list[Row]:
    """Rows of kind ``weight_sync``: a row of a case has one for each way of sending, a table one for each line."""
    transfers = [t for case in cases for t in _of_case(case)]
    transfers += [t for table in tables for t in _of_table(table)]
    return [_calibrated(t, transfers) for t in transfers]


def _of_case(case: Case) -> list[Transfer]:
    rows = []
    for measurement, path, suffix in VARIANTS:
        measured = case.value(measurement)
        if measured is None and suffix:
            continue
        if measured is None:
            measured = case.value("weight_sync_s")
        row = Row(case.id + suffix, case.kind, case.family + suffix, measured, "s", note=case.notes or None)
        missing = [n for n in ("model", "gpu", "n_gpus") if getattr(case, n) is None]
        if missing:
            rows.append(
                Transfer(
                    replace(
                        row, reason=f"{', '.join(missing)} {'is' if len(missing) == 1 else 'are'} null in the file"
                    ),
                    None,
                )
            )
            continue
        assert case.n_gpus is not None
        try:
            inside = case.n_gpus <= gpu_of(str(case.gpu)).value.gpus_per_node
        except PlanningError as unknown:
            rows.append(Transfer(replace(row, reason=str(unknown)), None))
            continue
        rows.append(_predicted(row, str(case.model), "inside" if inside else path, 1.0))
    return rows


def _of_table(table: Mapping[str, Any]) -> list[Transfer]:
    columns = [str(c) for c in table.get("columns", ())]
    found = []
    for i, line in enumerate(table.get("rows", ())):
        fields = dict(zip(columns, line, strict=False))
        transport = str(fields.get("transport", ""))
        number = re.match(r"[^\d-]*(\d+(?:\.\d+)?)", str(fields.get("seconds", "")))
        row = Row(
            id=f"weight_sync/{i + 1} {fields.get('model')} {transport}",
            kind="weight_sync",
            family=f"weight-sync-{fields.get('src', 'table')}",
            measured=(float(number.group(1)) or None) if number else None,
            unit="s",
        )
        ranks = [r for r in (fields.get("train_ranks"), fields.get("rollout_ranks")) if isinstance(r, int)]
        inside = bool(ranks) and sum(ranks) <= 8
        path = "inside" if inside else "per_tensor" if "per tensor" in transport else "bucketed"
        found.append(
            _predicted(row, str(fields.get("model")), path, quantising_factor() if "fp8" in transport else 1.0)
        )
    return found


def _predicted(row: Row, model: str, path: str, factor: float) -> Transfer:
    try:
        shape = shape_of(model)
    except PlanningError as unknown:
        return Transfer(replace(row, reason=str(unknown)), None)
    seconds = sync_path(path).seconds(shape.value, "bf16") * factor
    speed = None
    if isinstance(row.measured, int | float) and row.measured > 0:
        speed = shape.value.weight_bytes(2.0) / row.measured
    possible = speed is None or speed <= _FASTEST_PATH_BYTES_PER_S
    notes = [f"path: {path.replace('_', ' ')}", shape.assumption, row.note]
    if not possible:
        notes.insert(0, "left out of the means: the time is too short for the weights to have moved in it")
    return Transfer(replace(row, predicted=seconds, note="; ".join(n for n in notes if n), judged=possible), speed)


def _calibrated(transfer: Transfer, transfers: Sequence[Transfer]) -> Row:
    row = transfer.row
    others = [
        t.row.measured / t.row.predicted
        for t in transfers
        if t is not transfer
        and t.row.family == row.family
        and t.row.judged
        and isinstance(t.row.measured, int | float)
        and t.row.measured > 0
        and isinstance(t.row.predicted, int | float)
    ]
    if len(others) < ROWS_FOR_FACTORS - 1 or not isinstance(row.predicted, int | float):
        return row
    return replace(row, calibrated=row.predicted * math.exp(sum(map(math.log, others)) / len(others)))
