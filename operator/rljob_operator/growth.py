"""Follows the mean response length over a run, so that a split is right for the steps that come and not for the window behind.

Two halves of one window can't show a growth of a few percent an hour; a run that is followed can. So the logarithm of the mean
length is tracked with its rate of change (a local linear trend, by a Kalman filter of two states), persisted between decisions
and across moves, whose windows would each begin anew. Three things keep it honest:

- what finished in a window was begun before it, so a reading speaks of a moment that lies back by the age of what finished;
- windows overlap, and what makes their means deviate lasts, so a reading counts as the share of two windows that is new;
- a rate counts as far as it is beyond one and a half of its own standard errors, since what looks like growth for half an hour is
  mostly chance;
- a jump (a new stage of a curriculum, a changed prompt set) moves the level alone: it says nothing of the rate.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from rljob_operator.readings import LengthHistogram

RATE_PRIOR = 0.003
"""Standard deviation of the change of ln(mean) a step, before anything is known: published runs grow ×2 to ×5 in some hundred steps."""

RATE_WANDER = 4e-4
"""Standard deviation by which that change itself changes in a step: a rate holds for some ten steps to some hundred."""

LEVEL_WANDER = 0.002
"""Standard deviation by which ln(mean) wanders in a step besides."""

LEAST_SPREAD = 0.02
"""Least standard deviation of ln(mean of a window): what batches contain varies."""

LASTS_WINDOWS = 2.0
"""Windows over which the deviation of a mean lasts."""

CERTAIN = 1.5
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

    step: float
    """Policy version at which it was brought up to date."""
    log_mean: float
    """ln(mean length in tokens) of samples that start at that step."""
    per_step: float
    """Change of it a step."""
    variance: float
    """Variance of ``log_mean``."""
    covariance: float
    """Covariance of ``log_mean`` and ``per_step``."""
    rate_variance: float
    """Variance of ``per_step``."""
    spread: float
    """Standard deviation of ln(mean of one window)."""
    mark: float
    """ln(mean length) of the window that the next one a window later is compared with."""
    mark_step: float
    """Policy version at which that was read."""

    @property
    def foreseen_per_step(self) -> float:
        """The change a step that is foreseen: the rate, as far as it is certain."""
        error = CERTAIN * math.sqrt(max(0.0, self.rate_variance))
        return 0.0 if abs(self.per_step) <= error else self.per_step * (1.0 - (error / self.per_step) ** 2)

    def ahead(self, steps: float) -> tuple[float, float]:
        """ln(mean length) of samples that start so many steps later, and its standard error."""
        change = min(LONGEST_LOOK, max(-LONGEST_LOOK, self.foreseen_per_step * steps))
        variance = self.variance + 2.0 * steps * self.covariance + steps**2 * self.rate_variance
        return self.log_mean + change, math.sqrt(max(0.0, variance))


def sampling_error(histogram: LengthHistogram, samples_per_prompt: int) -> float:
    """Standard error of ln(mean) of a histogram, from the spread of lengths and the groups that they came in."""
    design = 1.0 + (samples_per_prompt - 1) * GROUP_CORRELATION
    return histogram.cv * math.sqrt(design / max(1.0, histogram.count))


def followed(
    before: LengthTrend | None,
    histogram: LengthHistogram,
    *,
    step: float,
    window_steps: float,
    age_steps: float,
    samples_per_prompt: int,
) -> LengthTrend:
    """The trend after a window of ``window_steps`` that ended at ``step``, whose samples began ``age_steps`` before on the mean.

    A run that went back to a checkpoint begins anew.
    """
    value, sampling = math.log(histogram.mean_tokens), sampling_error(histogram, samples_per_prompt)
    if before is None or step < before.step:
        prior, spread = RATE_PRIOR**2, max(sampling, LEAST_SPREAD)
        variance = spread**2 + age_steps**2 * prior
        return LengthTrend(step, value, 0.0, variance, age_steps * prior, prior, spread, value, step)
    passed = step - before.step
    fresh = min(1.0, passed / (LASTS_WINDOWS * max(window_steps, 1.0)))
    if fresh <= 0.0:
        return before
    spread, mark, mark_step = before.spread, before.mark, before.mark_step
    if step - mark_step >= 0.99 * window_steps:
        spread, mark, mark_step = _spread(before, value, sampling), value, step
    here = _predicted(before, passed)
    noise = max(spread, sampling, LEAST_SPREAD) ** 2 / fresh
    innovation = value - (here.log_mean - here.per_step * age_steps)
    level_gain = here.variance - age_steps * here.covariance
    rate_gain = here.covariance - age_steps * here.rate_variance
    total = level_gain - age_steps * rate_gain + noise
    if innovation**2 > JUMP**2 * total:
        # The level alone may have moved, by about what was seen.
        level_gain, total = level_gain + innovation**2, total + innovation**2
        rate_gain = 0.0
    k_level, k_rate = level_gain / total, rate_gain / total
    return LengthTrend(
        step,
        here.log_mean + k_level * innovation,
        here.per_step + k_rate * innovation,
        _after(here, k_level, age_steps, noise, innovation**2 if rate_gain == 0.0 else 0.0),
        here.covariance - k_level * (here.covariance - age_steps * here.rate_variance),
        here.rate_variance - k_rate * (here.covariance - age_steps * here.rate_variance),
        spread,
        mark,
        mark_step,
    )


def _after(here: LengthTrend, k_level: float, age_steps: float, noise: float, jumped: float) -> float:
    """The variance of the level after a reading; at least a little of the noise stays."""
    seen = here.variance + jumped - age_steps * here.covariance
    return max((here.variance + jumped) - k_level * seen, 1e-3 * noise * k_level**2)


def _predicted(before: LengthTrend, passed: float) -> LengthTrend:
    """The trend so many steps later, with what may have changed meanwhile."""
    rate_noise = RATE_WANDER**2 * passed
    return LengthTrend(
        before.step + passed,
        before.log_mean + before.per_step * passed,
        before.per_step,
        before.variance
        + 2.0 * passed * before.covariance
        + passed**2 * before.rate_variance
        + LEVEL_WANDER**2 * passed
        + rate_noise * passed**2 / 3.0,
        before.covariance + passed * before.rate_variance + rate_noise * passed / 2.0,
        before.rate_variance + rate_noise,
        before.spread,
        before.mark,
        before.mark_step,
    )


def _spread(before: LengthTrend, value: float, sampling: float) -> float:
    """The noise of a window's mean, from what windows differ that do not overlap; a jump counts no more than a few deviations."""
    seen = min((value - before.mark) ** 2 / 2.0, (JUMP * max(before.spread, sampling)) ** 2)
    return math.sqrt((1.0 - 1.0 / SPREAD_MEMORY) * before.spread**2 + seen / SPREAD_MEMORY)
