"""How sure a learned factor is: the average of noisy readings of something that hardly changes, until it does.

Windows of successive readings overlap, and what makes one deviate lasts. A reading therefore counts as the share of two windows that
is new, and noise is measured by what readings so far apart differ (half the mean square of a difference, von Neumann 1941): a
difference sees noise alone, where a deviation from the mean also sees what drifts.

Noise that lasts longer still, such as a neighbour on the network, differences do not see, but deviations from the mean do.
Where they are larger, readings are no independent ones: the error of the average is as much larger, and then some.

The average is the plain mean of all that was seen, so that its error falls as 1/√n while nothing changes: a stationary job becomes
ever calmer. Beside it runs one over the latest readings alone. When the two differ by more than noise explains, the speed has
changed (a node slows down, sequences outgrow what the model knows), and the average starts anew from the recent one. A step
that is an outlier is no more than a part of a window and not enough for that; a steady drift is followed in small resets.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

SPREAD_PRIOR = 0.05
"""Assumed standard deviation of ln(one reading) before any two were compared."""

SPREAD_PRIOR_READINGS = 1.0
"""Independent readings that the assumption counts as."""

SPREAD_LEAST = 0.005
"""Least standard deviation: counters are extrapolated and clocks differ."""

SPREAD_MEMORY = 6.0
"""Independent readings that the spread is averaged over."""

READINGS_MOST = 20.0
"""Independent readings that the average holds at most: what is older says little of today."""

RECENT_READINGS = 1.0
"""Independent readings that the recent average is about."""

OUTLIER = 2.5
"""Deviations as which anything larger counts: a jump is no noise."""

LASTS_WINDOWS = 2.0
"""Windows that a reading's deviation lasts, and so what counts as one independent reading."""

LASTING_NOISE = 1.5
"""Scatter over spread that is taken for lasting noise; more is drift."""

LASTING_MOST = 6.0
"""Readings that lasting noise makes count for one, at most."""

YOUNG_READINGS = 5.0
"""Independent readings up to which an average is young."""

FOLLOWS = 1.5
"""Standard errors by which a young average may differ from the recent one."""

BY_CHANCE = 1.5
"""Standard errors by which recent and whole average may differ by chance."""

CHANGED = 2.7
"""Standard errors by which recent and whole average differ when the speed has changed: by chance once in some hundred readings."""


@dataclass(frozen=True)
class Evidence:
    """What is behind one factor besides its value; logarithms are natural."""

    readings: float
    """Windows that the factor rests on, each counted as far as it was new."""
    spread: float
    """Standard deviation of ln(one reading), from readings some windows apart."""
    scatter: float
    """The same, from what readings deviate from the average: larger where noise lasts, or where speeds drift."""
    recent: float
    """ln of the factor by the latest readings alone."""
    mark: float
    """ln of the reading that one some windows later is compared with."""
    mark_s: float
    """When that was read, in seconds since the epoch."""
    at_s: float
    """When the last one was read, in seconds since the epoch."""

    @property
    def noise(self) -> float:
        """Standard deviation of ln(one reading), whatever its cause."""
        return max(self.spread, self.scatter)

    @property
    def standard_error(self) -> float:
        """Standard error of the logarithm of the factor as long as it stays what it was.

        Of readings whose noise lasts, as many count for one as scatter is above spread, in squares.
        """
        lasting = min(LASTING_MOST, (self.noise / self.spread) ** 2)
        return self.noise / math.sqrt(max(self.readings / lasting, 1e-3))

    def error_of(self, factor: float) -> float:
        """Standard error of the logarithm of ``factor``, counting what it trails the latest readings by beyond chance."""
        noise = min(self.noise, LASTING_NOISE * self.spread) * math.sqrt(
            1.0 / RECENT_READINGS + 1.0 / max(self.readings, 0.5)
        )
        trailing = max(0.0, abs(self.recent - math.log(factor)) - BY_CHANCE * noise)
        return math.hypot(self.standard_error, trailing)


def first(reading: float, at_s: float, noise: float = 0.0) -> tuple[float, Evidence]:
    """The factor after the first reading (> 0): the reading itself; ``noise``: what its deviation is known to be at least."""
    value, spread = math.log(reading), max(SPREAD_PRIOR, noise)
    return reading, Evidence(1.0, spread, spread, value, value, at_s, at_s)


def assumed(factor: float, error: float, at_s: float) -> Evidence:
    """What is behind a factor that is known from before to a standard error of its logarithm; readings of the run soon outweigh it."""
    value, spread = math.log(factor), max(SPREAD_LEAST, min(error, SPREAD_PRIOR))
    return Evidence((spread / error) ** 2, spread, spread, value, value, at_s, at_s)


def absorbed(factor: float, before: Evidence, reading: float, at_s: float, window_s: float) -> tuple[float, Evidence]:
    """The factor and its evidence after a further reading (> 0) over a window of ``window_s`` seconds that ended at ``at_s``."""
    span_s = LASTS_WINDOWS * window_s
    fresh = min(1.0, max(0.0, (at_s - before.at_s) / span_s)) if span_s > 0 else 1.0
    if fresh <= 0.0:
        return factor, before
    value, average = math.log(reading), math.log(factor)
    spread, mark, mark_s = before.spread, before.mark, before.mark_s
    if at_s - mark_s >= 0.99 * span_s:
        spread = _averaged(spread, before, 1.0, (value - mark) ** 2 / 2.0)
        mark, mark_s = value, at_s
    young = before.readings / (before.readings + 1.0)
    scatter = _averaged(before.scatter, before, fresh, young * (value - average) ** 2)
    readings = min(READINGS_MOST, before.readings + fresh)
    average += fresh / readings * (value - average)
    share = min(1.0, fresh / min(RECENT_READINGS, readings))
    recent = before.recent + share * (value - before.recent)
    noise = max(spread, min(scatter, LASTING_NOISE * spread))
    apart = abs(recent - average) / (noise * math.sqrt(1.0 / RECENT_READINGS + 1.0 / readings))
    # A young average still holds what was before the change that it began with, so it follows the recent one for a while.
    if readings > RECENT_READINGS and apart > (CHANGED if readings > YOUNG_READINGS else FOLLOWS):
        average, readings, scatter = recent, RECENT_READINGS, spread
    return math.exp(average), Evidence(readings, spread, scatter, recent, mark, mark_s, at_s)


def _averaged(deviation: float, before: Evidence, fresh: float, square: float) -> float:
    """A standard deviation after one more square; a single jump counts no more than a few of the present deviations."""
    behind = min(SPREAD_MEMORY, before.readings - 1.0 + SPREAD_PRIOR_READINGS)
    seen = min(square, (OUTLIER * deviation) ** 2)
    return max(SPREAD_LEAST, math.sqrt((behind * deviation**2 + fresh * seen) / (behind + fresh)))
