"""Follows the mean response length over a run, so that a split is right for the steps that come and not for the window behind.

Two halves of one window can't show a growth of a few percent an hour; a run that is followed can. So the logarithm of the mean
length is tracked with its rate of change (a local linear trend, by a Kalman filter of two states), persisted between decisions
and across moves, whose windows would each begin anew. Three things keep it honest:

- what finished in a window was begun before it, so a reading speaks of a moment that lies back by the age of what finished;
- windows overlap, and what makes their means deviate lasts, so a reading counts as the share of the time of two windows that is new;
- a rate counts as far as it is beyond twice its own standard error, since what looks like growth for half an hour is mostly chance;
- a jump (a new stage of a curriculum, a changed prompt set) moves the level alone: it says nothing of the rate.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from rljob_operator.readings import LengthHistogram

RATE_PRIOR = 0.003
"""Standard deviation of the change of ln(mean) a period, before anything is known: published runs grow ×2 to ×5 in some hundred steps."""

RATE_WANDER = 2e-4
"""Standard deviation by which that change itself changes in a period: a rate holds for some hundred steps."""

LEVEL_WANDER = 0.002
"""Standard deviation by which ln(mean) wanders in a period besides."""

LEAST_SPREAD = 0.02
"""Least standard deviation of ln(mean of a window): what batches contain varies."""

LASTS_WINDOWS = 2.0
"""Windows over which the deviation of a mean lasts."""

CERTAIN = 2.0
"""Standard errors of a rate up to which none is foreseen."""

JUMP = 3.5
"""Standard errors from which on a reading is a jump."""

GROUP_CORRELATION = 0.3
"""Assumed correlation of lengths inside a group: samples of one prompt are no independent draws."""

SPREAD_MEMORY = 12.0
"""Independent windows that the noise of a reading is averaged over."""

LONGEST_LOOK = math.log(2.0)
"""Largest change of ln(mean) that is foreseen: an extrapolation is no measurement."""


@dataclass(frozen=True)
class LengthTrend:
    """The mean length of samples that start now, and how it changes; logarithms are natural."""

    at_s: float
    """When it was brought up to date, in seconds since the epoch."""
    log_mean: float
    """ln(mean length in tokens) of samples that start at that time."""
    per_s: float
    """Change of it in 1/s."""
    variance: float
    """Variance of ``log_mean``."""
    covariance: float
    """Covariance of ``log_mean`` and ``per_s`` in 1/s."""
    rate_variance: float
    """Variance of ``per_s`` in 1/s²."""
    spread: float
    """Standard deviation of ln(mean of one window)."""
    mark: float
    """ln(mean length) of the window that the next one a window later is compared with."""
    mark_s: float
    """When that was read, in seconds since the epoch."""

    @property
    def foreseen_per_s(self) -> float:
        """The change that is foreseen, in 1/s: the rate, as far as it is certain."""
        error = CERTAIN * math.sqrt(max(0.0, self.rate_variance))
        return 0.0 if abs(self.per_s) <= error else self.per_s * (1.0 - (error / self.per_s) ** 2)

    def ahead(self, seconds: float) -> tuple[float, float]:
        """ln(mean length) of samples that start so many seconds later, and its standard error."""
        change = min(LONGEST_LOOK, max(-LONGEST_LOOK, self.foreseen_per_s * seconds))
        variance = self.variance + 2.0 * seconds * self.covariance + seconds**2 * self.rate_variance
        return self.log_mean + change, math.sqrt(max(0.0, variance))


def sampling_error(histogram: LengthHistogram, samples_per_prompt: int) -> float:
    """Standard error of ln(mean) of a histogram, from the spread of lengths and the groups that they came in."""
    design = 1.0 + (samples_per_prompt - 1) * GROUP_CORRELATION
    return histogram.cv * math.sqrt(design / max(1.0, histogram.count))


def followed(
    before: LengthTrend | None,
    histogram: LengthHistogram,
    *,
    at_s: float,
    window_s: float,
    age_s: float,
    period_s: float,
    samples_per_prompt: int,
) -> LengthTrend:
    """The trend after a window of ``window_s`` seconds that ended at ``at_s``, whose samples began ``age_s`` before on the mean.

    ``period_s`` is the time scale: what lengths may do in a step.
    """
    value, sampling = math.log(histogram.mean_tokens), sampling_error(histogram, samples_per_prompt)
    if before is None:
        prior, spread = (RATE_PRIOR / period_s) ** 2, max(sampling, LEAST_SPREAD)
        variance = spread**2 + age_s**2 * prior
        return LengthTrend(at_s, value, 0.0, variance, age_s * prior, prior, spread, value, at_s)
    passed_s = at_s - before.at_s
    fresh = min(1.0, max(0.0, passed_s / (LASTS_WINDOWS * window_s))) if window_s > 0 else 1.0
    if fresh <= 0.0:
        return before
    spread, mark, mark_s = before.spread, before.mark, before.mark_s
    if at_s - mark_s >= 0.99 * window_s:
        spread, mark, mark_s = _spread(before, value, sampling), value, at_s
    here = _predicted(before, passed_s, period_s)
    noise = max(spread, sampling, LEAST_SPREAD) ** 2 / fresh
    innovation = value - (here.log_mean - here.per_s * age_s)
    level_gain = here.variance - age_s * here.covariance
    rate_gain = here.covariance - age_s * here.rate_variance
    total = level_gain - age_s * rate_gain + noise
    if innovation**2 > JUMP**2 * total:
        # The level alone may have moved, by about what was seen.
        level_gain, total = level_gain + innovation**2, total + innovation**2
        rate_gain = 0.0
    k_level, k_rate = level_gain / total, rate_gain / total
    return LengthTrend(
        at_s,
        here.log_mean + k_level * innovation,
        here.per_s + k_rate * innovation,
        _after(here, k_level, age_s, noise, innovation**2 if rate_gain == 0.0 else 0.0),
        here.covariance - k_level * (here.covariance - age_s * here.rate_variance),
        here.rate_variance - k_rate * (here.covariance - age_s * here.rate_variance),
        spread,
        mark,
        mark_s,
    )


def _after(here: LengthTrend, k_level: float, age_s: float, noise: float, jumped: float) -> float:
    """The variance of the level after a reading; at least a little of the noise stays."""
    seen = here.variance + jumped - age_s * here.covariance
    return max((here.variance + jumped) - k_level * seen, 1e-3 * noise * k_level**2)


def _predicted(before: LengthTrend, passed_s: float, period_s: float) -> LengthTrend:
    """The trend so much later, with what may have changed meanwhile."""
    periods = passed_s / period_s
    rate_noise = (RATE_WANDER / period_s) ** 2 * periods
    return LengthTrend(
        before.at_s + passed_s,
        before.log_mean + before.per_s * passed_s,
        before.per_s,
        before.variance
        + 2.0 * passed_s * before.covariance
        + passed_s**2 * before.rate_variance
        + LEVEL_WANDER**2 * periods
        + rate_noise * passed_s**2 / 3.0,
        before.covariance + passed_s * before.rate_variance + rate_noise * passed_s / 2.0,
        before.rate_variance + rate_noise,
        before.spread,
        before.mark,
        before.mark_s,
    )


def _spread(before: LengthTrend, value: float, sampling: float) -> float:
    """The noise of a window's mean, from what windows differ that do not overlap; a jump counts no more than a few deviations."""
    seen = min((value - before.mark) ** 2 / 2.0, (JUMP * max(before.spread, sampling)) ** 2)
    return math.sqrt((1.0 - 1.0 / SPREAD_MEMORY) * before.spread**2 + seen / SPREAD_MEMORY)
