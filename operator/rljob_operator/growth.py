"""Follows the mean response length over a run, so that a split is right for the steps that come and not for the window behind.

Two halves of one window can't show a growth of a few percent an hour; a run that is followed can. So the logarithm of the mean
length is tracked with its rate of change (a local linear trend, by a Kalman filter of two states), persisted between decisions
and across moves, whose windows would each begin anew. Three things keep it honest:

- what finished in a window was begun before it, so a reading speaks of a moment that lies back by the age of what finished;
- windows overlap, so a reading counts as the share of its window that is new;
- a jump (a new stage of a curriculum, a changed prompt set) moves the level alone: it says nothing of the rate.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from rljob_operator.readings import LengthHistogram

RATE_PRIOR = 0.004
"""Standard deviation of the change of ln(mean) a period, before anything is known: published runs grow ×2 to ×5 in some hundred steps."""

RATE_WANDER = 2e-4
"""Standard deviation by which that change itself changes in a period: a rate holds for some hundred steps."""

LEVEL_WANDER = 0.002
"""Standard deviation by which ln(mean) wanders in a period besides."""

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
    last: float
    """ln(mean length) of the last window."""

    def ahead(self, seconds: float) -> tuple[float, float]:
        """ln(mean length) of samples that start so many seconds later, and its standard error."""
        change = min(LONGEST_LOOK, max(-LONGEST_LOOK, self.per_s * seconds))
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
        prior = (RATE_PRIOR / period_s) ** 2
        variance = sampling**2 + age_s**2 * prior
        return LengthTrend(at_s, value, 0.0, variance, age_s * prior, prior, sampling, value)
    passed_s = at_s - before.at_s
    fresh = min(1.0, max(0.0, passed_s / window_s)) if window_s > 0 else 1.0
    if fresh <= 0.0:
        return before
    spread = _spread(before, value, fresh, sampling)
    here = _predicted(before, passed_s, period_s)
    noise = max(spread, sampling) ** 2 / fresh
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
        value,
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
        before.last,
    )


def _spread(before: LengthTrend, value: float, fresh: float, sampling: float) -> float:
    """The noise of a window's mean, from what overlapping windows differ; a jump counts no more than a few deviations."""
    seen = min((value - before.last) ** 2 / (2.0 * fresh), (2.0 * JUMP * max(before.spread, sampling)) ** 2)
    share = fresh / SPREAD_MEMORY
    return math.sqrt((1.0 - share) * before.spread**2 + share * seen)
