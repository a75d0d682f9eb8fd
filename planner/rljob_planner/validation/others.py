"""Kinds of which there are few rows: how long a synchronous batch waits for its last samples, and speed-ups of asynchrony."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from rljob_planner.errors import PlanningError
from rljob_planner.validation.cases import Case
from rljob_planner.validation.family import learned
from rljob_planner.validation.physics import law_of, parts_of
from rljob_planner.validation.rows import ABSOLUTE, Row
from rljob_planner.validation.setting import SYNC, Missing, setting_of
from rljob_planner.validation.simulated import simulated

_FREE_CAP = 1 << 17
_ANY_MEAN = 2000.0


def sync_tail_rows(cases: Sequence[Case]) -> list[Row]:
    """The share of a batch's time in which only its last hundredth still runs.

    It hangs on how far the longest response lies beyond the 99th percentile, and so on neither GPUs nor mean length, as long as no cap
    cuts: iterations are about equally long by then. The usual spread of lengths is assumed.
    """
    rows = []
    for case in cases:
        row = Row(
            case.id,
            case.kind,
            case.family,
            case.value("tail_share_of_wall"),
            "ratio",
            error_kind=ABSOLUTE,
            note=case.notes or None,
        )
        samples = case.samples_per_step
        if samples is None and case.prompts_per_step and case.group_size:
            samples = case.prompts_per_step * case.group_size
        if samples is None:
            rows.append(replace(row, reason="samples_per_step is null in the file"))
            continue
        lengths = law_of(case.lengths.mean_response or _ANY_MEAN, case.lengths.cap or _FREE_CAP)
        share = 1.0 - lengths.quantile(0.99) / lengths.max_mean(float(samples))
        if share <= 0.0:
            cut = "more than a hundredth of the responses are cut at the cap, so none of them stands out"
            row = replace(row, note="; ".join(n for n in (cut, row.note) if n))
        rows.append(replace(row, predicted=share))
    return rows


def speedup_rows(cases: Sequence[Case]) -> list[Row]:
    """How much faster an asynchronous run is than a synchronous one on all of its GPUs."""
    return [_speedup(case) for case in cases]


def _speedup(case: Case) -> Row:
    names = [n for n in case.measured if "speedup" in n] or ["relative_throughput"]
    row = Row(case.id, case.kind, case.family, case.value(*names), "ratio", note=case.notes or None)
    try:
        setting = setting_of(case)
        if case.n_gpus is None:
            raise Missing("n_gpus")
        known = learned((), setting, factors=False)
        if known is None:
            raise Missing("lengths.mean_response")
        together = setting_of(replace(case, rollout_gpus=case.n_gpus, train_gpus=case.n_gpus, placement="colocated"))
    except (Missing, PlanningError) as missing:
        return replace(row, reason=str(missing))
    law = known.law(setting)
    synchronous = parts_of(replace(together, mode=SYNC), law, known.factors).period_s
    return replace(row, predicted=synchronous / simulated(setting, law, known.factors).parts.period_s)
