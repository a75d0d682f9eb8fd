"""Which side holds a run up, by measurement and by prediction.

The trainer's wait for samples over the period decides, for both by the same rule, since at balance it is a matter of a few per cent
which side one names. What a streaming trainer spends on collecting its batch from a queue is no waiting, though sources
count it as such. A source that names the side in words is believed.
"""

from __future__ import annotations

import re

from rljob_planner.validation.cases import Case
from rljob_planner.validation.family import measured_period_s, measured_wait_s
from rljob_planner.validation.physics import Parts
from rljob_planner.validation.rows import MATCHED

ROLLOUT, TRAIN = "rollout", "train"

ROLLOUT_FROM, TRAIN_UNTIL = 0.20, 0.05
"""Trainer's wait over the period from which on samplers are the bound side, and until which the trainer is; between them neither."""


def measured_side(case: Case, collecting_s: float = 0.0) -> str | None:
    """The side that a row states, in words or by the trainer's wait; None where it states neither."""
    said = str(case.measured.get("bottleneck", "")).strip().lower()
    for word, side in (
        (r"(rollout|generat)\w*-?\s*bound", ROLLOUT),
        (r"train\w*-?\s*bound", TRAIN),
        ("matched|balanced", MATCHED),
    ):
        if re.match(word, said):
            return side
    share = wait_share(case, collecting_s)
    if share is None:
        return None
    return side_of(share)


def wait_share(case: Case, collecting_s: float = 0.0) -> float | None:
    """The trainer's wait over the period, where a row states it."""
    stated = case.value("trainer_wait_frac")
    if stated is not None:
        return stated
    period, wait = measured_period_s(case), measured_wait_s(case)
    if wait is None:
        wait = case.value("wait_for_generation_buffer_s")
        if wait is not None and period is None:
            # Without a period a wait says something only if it is next to nothing.
            return 0.0 if wait < 1.0 else None
    return None if wait is None or not period else max(0.0, wait - collecting_s) / period


def side_of(share: float) -> str:
    """The bound side, by the trainer's wait over the period."""
    return ROLLOUT if share >= ROLLOUT_FROM else TRAIN if share <= TRAIN_UNTIL else MATCHED


def predicted_wait(parts: Parts, collecting_s: float = 0.0) -> float:
    """The trainer's wait over the period, 0..1."""
    return float(max(0.0, parts.wait_s - collecting_s) / parts.period_s)
