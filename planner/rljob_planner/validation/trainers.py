"""Tokens a second of trainers alone, from the table of measured trainers.

A line says model, sequence length, what is trained and on which GPUs. Each GPU works on one packed sequence at a time; full
fine-tuning of an RL trainer keeps its optimizer in host memory (its peak memory in the table could not hold it otherwise), LoRA and plain
fine-tuning do not.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from rljob_planner.errors import PlanningError
from rljob_planner.training import TrainerSetup, element_s_per_token, training_efficiency
from rljob_planner.validation.family import ROWS_FOR_FACTORS
from rljob_planner.validation.fields import MOST, Fields, shown
from rljob_planner.validation.names import gpu_of, shape_of
from rljob_planner.validation.rows import Row

_PASSES_FULL, _PASSES_LORA = 4.0, 3.0
"""Forward, recomputation and two products backward; frozen weights need no gradient of their own."""


def trainer_rows(tables: Sequence[Mapping[str, Any]]) -> list[Row]:
    """A row for each line of ``training_throughput`` tables."""
    rows = []
    for table in tables:
        columns = [str(c) for c in table.get("columns", ())]
        for line in table.get("rows", ()):
            rows.append(_row(dict(zip(columns, line, strict=False))))
    return [_calibrated(row, rows) for row in rows]


def _row(fields: Mapping[str, Any]) -> Row:
    kind, hardware = str(fields.get("kind", "")), str(fields.get("hardware", ""))
    model, tokens = fields.get("model"), fields.get("seq_len")
    measured = Fields(fields).number("tok_s", above=True)
    row = Row(
        id=f"{model} {kind} {tokens} {hardware}",
        kind="training",
        family=f"trainer {kind}",
        measured=measured,
        unit="tokens/s",
    )
    missing = [n for n in ("model", "seq_len", "hardware") if fields.get(n) is None]
    found = re.match(r"(\d+)\s*x\s*(.+)", hardware)
    if missing:
        return replace(row, reason=f"{', '.join(missing)} {'is' if len(missing) == 1 else 'are'} null in the file")
    read = Fields(fields)
    tokens = read.whole("seq_len")
    if not found or not 1 <= int(found.group(1)) <= MOST:
        read.faults.append(f"hardware must be a count and a GPU, such as 8xh100, not {shown(fields.get('hardware'))}")
    if read.faults or tokens is None or not found:
        return replace(row, reason="; ".join(read.faults))
    try:
        shape, accelerator = shape_of(str(model)), gpu_of(found.group(2))
    except PlanningError as unknown:
        return replace(row, reason=str(unknown))
    setup = TrainerSetup(shape.value, accelerator.value, "full", 0, None, "padded")
    gpus = int(found.group(1))
    return replace(
        row,
        predicted=gpus * tokens / micro_batch_s(setup, tokens, gpus, lora="lora" in kind, offloaded="rl full" in kind),
        note=shape.assumption,
    )


def micro_batch_s(setup: TrainerSetup, tokens: int, gpus: int, *, lora: bool, offloaded: bool) -> float:
    """Seconds in which every GPU trains one sequence of ``tokens``, the optimizer step included."""
    m, e = setup.model, training_efficiency()
    nodes = -(-gpus // setup.gpu.gpus_per_node)
    passes = _PASSES_LORA if lora else _PASSES_FULL
    flops = passes * 2.0 * m.active_parameters * tokens + _PASSES_FULL * m.forward_attention_flops(
        tokens, float(tokens) ** 2
    )
    arithmetic_s = flops / (setup.gpu.peak_bf16 * e.arithmetic_share)
    optimizer_s = e.offloaded_optimizer_s * m.parameters / nodes if offloaded else 0.0
    return arithmetic_s + tokens * element_s_per_token(setup) + optimizer_s


def _calibrated(row: Row, rows: Sequence[Row]) -> Row:
    others = [
        r.measured / r.predicted
        for r in rows
        if r is not row and r.family == row.family and isinstance(r.measured, float) and isinstance(r.predicted, float)
    ]
    if len(others) < ROWS_FOR_FACTORS - 1 or not isinstance(row.predicted, float):
        return row
    return replace(row, calibrated=row.predicted * math.exp(sum(map(math.log, others)) / len(others)))
