"""Trained tokens a second, such as against the staleness that is allowed.

A throughput is a batch over a period, so these rows go through the same predictions as step times, with the measurement turned into the
period that it implies under the lengths of each fit: tokens a second times seconds are tokens, and tokens are samples times mean
length. Where lengths are unknown, speed and length cannot be told apart by such rows; the shape can.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from rljob_planner.lengths import LengthDistribution
from rljob_planner.validation.cases import Case
from rljob_planner.validation.family import ROWS_FOR_FACTORS, Learned, learned, settings_of
from rljob_planner.validation.physics import Parts
from rljob_planner.validation.rows import Row
from rljob_planner.validation.setting import Setting
from rljob_planner.validation.simulated import simulated

_TOLERANCE = 0.10


def measured_tokens_per_s(case: Case) -> float | None:
    """Trained tokens a second, prompts included."""
    return case.value("effective_train_tokens_per_s", "train_tokens_per_s", "tokens_per_s")


def throughput_rows(cases: Sequence[Case], progress: Callable[[str], None]) -> list[Row]:
    """Rows of kind ``throughput``."""
    found: dict[str, Row] = {}
    for family in dict.fromkeys(c.family for c in cases):
        members = [c for c in cases if c.family == family]
        progress(f"{family} ({len(members)} rows)")
        usable, reasons = settings_of(members)
        found |= {c.id: replace(_bare(c), reason=reasons[c.id]) for c in members if c.id in reasons}
        for s in usable:
            others = [o for o in usable if o is not s and measured_tokens_per_s(o.case)]
            found[s.case.id] = _row(s, others)
    return [found[c.id] for c in cases]


def _bare(case: Case) -> Row:
    return Row(case.id, case.kind, case.family, measured_tokens_per_s(case), "tokens/s", note=case.notes or None)


def _row(setting: Setting, others: Sequence[Setting]) -> Row:
    row = _bare(setting.case)
    plain = learned(others, setting, factors=False, deviations=_deviations)
    if plain is None:
        return replace(row, reason="lengths.mean_response is null in the file, and no other row of the family tells it")
    calibrated = None
    if len(others) >= ROWS_FOR_FACTORS - 1:
        calibrated = learned(others, setting, factors=True, deviations=_deviations)
    return replace(
        row,
        predicted=_tokens_per_s(setting, plain),
        calibrated=None if calibrated is None else _tokens_per_s(setting, calibrated),
    )


def _tokens_per_s(setting: Setting, known: Learned) -> float:
    law = known.law(setting)
    return float(tokens(setting, law.mean()) / simulated(setting, law, known.factors).parts.period_s)


def tokens(setting: Setting, mean_tokens: float) -> float:
    """Tokens of a batch, prompts included."""
    return setting.samples * (setting.prompt_tokens + mean_tokens)


def _deviations(setting: Setting, parts: Parts, law: LengthDistribution) -> list[float]:
    measured = measured_tokens_per_s(setting.case)
    if not measured:
        return []
    return [math.log(tokens(setting, law.mean()) / parts.period_s / measured) / _TOLERANCE]
