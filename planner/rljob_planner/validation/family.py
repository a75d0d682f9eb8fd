"""Factors and lengths that a row's family has, learned from its other rows.

A family is a set of runs of one software on one kind of hardware, so what the planner gets wrong by a constant there shows in every row
of it. Two numbers are learned, one per side: measured over predicted speed of samplers, and of trainers with all they do. Where the
rows state no mean length, one more: a law that all of them share. Nothing else, and never from the row that is predicted.

The period says how fast the bound side is, and nothing of the other; parts of it, where a row breaks its period down, say more. Each
counts with its own tolerance.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from rljob_planner.errors import PlanningError
from rljob_planner.lengths import LengthDistribution
from rljob_planner.validation.cases import Case
from rljob_planner.validation.fit import Unknown, fitted
from rljob_planner.validation.physics import (
    Factors,
    Parts,
    law_of,
    law_with_median,
    mean_of,
    parts_of,
)
from rljob_planner.validation.setting import SYNC, Missing, Setting, setting_of

ROWS_FOR_FACTORS = 3
"""Rows of a family from which on factors are fitted."""

_PERIOD, _PART, _WAIT = 0.10, 0.40, 0.20
"""Tolerances: of ln period, of ln of a part, and of the trainer's wait as a share of the period."""
_SAMPLERS_VARY, _TRAINERS_VARY, _LENGTHS_VARY = 0.5, 0.6, 0.5
"""Spread of the priors, of a logarithm: engines come within a factor of 1.6 of each other, trainers of 1.8 (their MFU lies between 0.03
and 0.4 with the model's size already accounted for in part), lengths of 1.6."""
_MEDIAN, _MEDIAN_REASONING = 850.0, 4900.0
"""Median response in tokens that is expected while no row speaks, before a cap cuts. The usual figure for mathematics with base and
instruction models is a mean of 1.2k; models that were distilled from reasoning have 5k to 10k. A lognormal's median is 0.7 of its mean."""
_LONGEST_MEDIAN = math.log(1e5)
_REASONING = re.compile(r"r1|distill|thinking|qwq|reason|-o1", re.IGNORECASE)

FloatArray = NDArray[np.float64]
Deviations = Callable[[Setting, Parts, LengthDistribution], list[float]]


@dataclass(frozen=True)
class Learned:
    """What the other rows of a family say."""

    factors: Factors
    median_tokens: float | None
    """Median response of the law that rows without a mean share, before their caps cut it; None where all rows state a mean."""

    def law(self, setting: Setting) -> LengthDistribution:
        """The lengths of a row: with its own mean, else the law of its family under its own cap."""
        mean = mean_of(setting)
        if mean is not None:
            return law_of(round(mean, 1), setting.cap_tokens)
        assert self.median_tokens is not None
        return law_with_median(round(self.median_tokens, 1), setting.cap_tokens)


def settings_of(members: Sequence[Case]) -> tuple[tuple[Setting, ...], dict[str, str]]:
    """The rows of a family that have a setting, and by id why the others have none."""
    found: list[Setting] = []
    reasons: dict[str, str] = {}
    for case in members:
        try:
            found.append(setting_of(case))
        except (Missing, PlanningError) as missing:
            reasons[case.id] = str(missing)
    return family_settings(found), reasons


def family_settings(settings: Sequence[Setting]) -> tuple[Setting, ...]:
    """The rows of a family, the size of an optimizer step taken from those that state it where others do not."""
    stated = [s.mini_batch for s in settings if s.mini_batch is not None]
    if not stated:
        return tuple(settings)
    return tuple(s if s.mini_batch is not None else replace(s, mini_batch=min(stated[0], s.samples)) for s in settings)


def learned(
    others: Sequence[Setting],
    row: Setting,
    *,
    factors: bool,
    deviations: Deviations | None = None,
) -> Learned | None:
    """What ``others`` say for ``row``: factors if asked for, a length law if the row states no mean.

    None where nothing could be learned that is needed: no other row, and no length of its own. ``deviations`` says how far a
    prediction is from a row's measurements; by default from its period and the parts of it.
    """
    compare = deviations or period_deviations
    needs_length = mean_of(row) is None
    if needs_length and not others:
        return None
    usual = Factors.packaged()
    if not factors and not needs_length:
        return Learned(usual, None)
    without = needs_length or any(mean_of(s) is None for s in others)
    unknowns = []
    if factors:
        unknowns.append(Unknown(math.log(usual.sampler), _SAMPLERS_VARY, -2.5, 1.5))
        unknowns.append(Unknown(math.log(usual.trainer), _TRAINERS_VARY, -3.0, 2.0))
    if without:
        expected = math.log(_MEDIAN_REASONING if _REASONING.search(row.case.model or "") else _MEDIAN)
        unknowns.append(Unknown(expected, _LENGTHS_VARY, math.log(16), _LONGEST_MEDIAN))

    def read(x: FloatArray) -> Learned:
        speeds = Factors(math.exp(x[0]), math.exp(x[1])) if factors else usual
        return Learned(speeds, math.exp(x[-1]) if without else None)

    def residuals(x: FloatArray) -> FloatArray:
        known = read(x)
        found: list[float] = []
        for s in others:
            law = known.law(s)
            found.extend(compare(s, parts_of(s, law, known.factors), law))
        return np.array(found)

    return read(fitted(unknowns, residuals))


def measured_period_s(case: Case) -> float | None:
    """Seconds of a step: as stated, or training and the wait for it, or the longer of the two sides."""
    stated = case.value("step_time_s")
    if stated:
        return stated
    train, wait, rollout = (
        case.value("train_time_s", "train_s"),
        case.value("train_wait_s"),
        case.value("rollout_time_s"),
    )
    if train is not None and wait is not None:
        return train + wait
    sides = [x for x in (train, rollout) if x]
    return max(sides) if sides else None


def measured_wait_s(case: Case) -> float | None:
    """Seconds of a step in which the trainer waits for samples, where a row breaks its step down."""
    wait = case.value("gen_exposed_s", "wait_prev_gen_s", "train_wait_s")
    if wait is not None:
        return wait
    total = case.value("rollout_wait_s")
    steps = _steps_summed(case)
    return total / steps if total is not None and steps else None


def _steps_summed(case: Case) -> float | None:
    """Steps over which a row sums its parts: a total over the time of one."""
    total, step = case.value("core_time_s_25_updates"), case.value("step_time_s")
    if total and step:
        return total / step
    parts = [case.value(n) for n in ("rollout_wait_s", "train_s", "weight_sync_s")]
    known = [p for p in parts if p is not None]
    return max(1.0, round(sum(known) / step)) if known and step else None


def drift(case: Case) -> float:
    """How much a run's steps changed while it ran: standard deviation of ln step time, from times summed up to several steps.

    A run whose responses became twice as long has an average step that says little of any length in particular.
    """
    summed = case.measured.get("cumulative_time_s")
    if not isinstance(summed, Mapping):
        return 0.0
    points = [(0.0, 0.0), *sorted((float(k), float(v)) for k, v in summed.items())]
    steps = [(t - s) / (n - m) for (m, s), (n, t) in pairwise(points) if n > m and t > s]
    return float(np.std(np.log(steps))) if len(steps) > 1 else 0.0


def period_deviations(setting: Setting, parts: Parts, law: LengthDistribution) -> list[float]:  # noqa: ARG001 - as the type says
    """How far a prediction is from all that a row measured, in tolerances."""
    case = setting.case
    period = measured_period_s(case)
    if not period:
        return []
    vague = math.hypot(_PERIOD, drift(case)) / _PERIOD
    found = [math.log(parts.period_s / period) / _PERIOD]
    wait = measured_wait_s(case)
    sampling = case.value("generate_sequences_s", *(("gen_exposed_s", "gen_s") if setting.mode == SYNC else ()))
    if sampling:
        found.append(math.log(parts.sampling_s / sampling) / _PART)
    if setting.mode != SYNC and wait is not None:
        found.append((parts.wait_s - wait) / (_WAIT * period))
    for predicted, names in ((parts.update_s, ("update_actor_s",)), (parts.forwards_s, ("old_log_prob_s",))):
        measured = case.value(*names)
        if measured and predicted:
            found.append(math.log(predicted / measured) / _PART)
    train = case.value("train_time_s")
    if train:
        found.append(math.log(parts.train_s / train) / _PART)
    return [deviation / vague for deviation in found]
