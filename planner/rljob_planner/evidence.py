"""How sure a learned factor is: the average of noisy readings of something that hardly changes, until it does.

Windows of successive readings overlap, so that a new reading is mostly the old one again. It therefore counts as the share of
its window that is new, and noise is measured by what successive readings differ (half the mean square of a difference, von Neumann
1941): a difference sees noise alone, where a deviation from the mean also sees what drifts.

The average is the plain mean of all that was seen, so that its error falls as 1/√n while nothing changes: a stationary job becomes
ever calmer. Beside it runs one over the latest readings alone. When the two differ by more than noise explains, the speed has
changed (a node slows down, sequences outgrow what the model knows), and the average starts anew from the recent one. One outlier
among many readings is not enough for that, and a steady drift is followed in small resets.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

SPREAD_PRIOR = 0.05
"""Assumed standard deviation of ln(one reading) before any two were compared."""

SPREAD_PRIOR_READINGS = 2.0
"""Independent readings that the assumption counts as."""

SPREAD_LEAST = 0.005
"""Least standard deviation: counters are extrapolated and clocks differ."""

SPREAD_MEMORY = 16.0
"""Independent readings that the spread is averaged over."""

READINGS_MOST = 48.0
"""Independent readings that the average holds at most: what is older says little of today."""

RECENT_READINGS = 1.5
"""Independent readings that the recent average is about."""

YOUNG_READINGS = 5.0
"""Independent readings up to which an average is young."""

FOLLOWS = 1.5
"""Standard errors by which a young average may differ from the recent one."""

CHANGED = 3.0
"""Standard errors by which recent and whole average differ when the speed has changed: by chance once in some hundred readings."""


@dataclass(frozen=True)
class Evidence:
    """What is behind one factor besides its value; logarithms are natural."""

    readings: float
    """Independent readings that the factor rests on."""
    spread: float
    """Standard deviation of ln(one reading)."""
    recent: float
    """ln of the factor by the latest readings alone."""
    last: float
    """ln of the last reading."""
    at_s: float
    """When it was read, in seconds since the epoch."""

    @property
    def standard_error(self) -> float:
        """Standard error of the logarithm of the factor as long as it stays what it was."""
        return self.spread / math.sqrt(max(self.readings, 1e-3))

    def error_of(self, factor: float) -> float:
        """Standard error of the logarithm of ``factor``, counting what it trails the latest readings by beyond noise."""
        noise = self.spread**2 * (1.0 / RECENT_READINGS + 1.0 / max(self.readings, 1e-3))
        trailing = max(0.0, (self.recent - math.log(factor)) ** 2 - noise)
        return math.sqrt(self.standard_error**2 + trailing)


def first(reading: float, at_s: float) -> tuple[float, Evidence]:
    """The factor after the first reading (> 0): the reading itself."""
    value = math.log(reading)
    return reading, Evidence(1.0, SPREAD_PRIOR, value, value, at_s)


def absorbed(factor: float, before: Evidence, reading: float, at_s: float, window_s: float) -> tuple[float, Evidence]:
    """The factor and its evidence after a further reading (> 0) over a window of ``window_s`` seconds that ended at ``at_s``."""
    fresh = min(1.0, max(0.0, (at_s - before.at_s) / window_s)) if window_s > 0 else 1.0
    if fresh <= 0.0:
        return factor, before
    value = math.log(reading)
    spread = _spread(before, value, fresh)
    readings = min(READINGS_MOST, before.readings + fresh)
    average = math.log(factor) + fresh / readings * (value - math.log(factor))
    share = min(1.0, fresh / min(RECENT_READINGS, readings))
    recent = before.recent + share * (value - before.recent)
    noise = spread * math.sqrt(1.0 / RECENT_READINGS + 1.0 / readings)
    apart = abs(recent - average) / noise
    # A young average still holds what was before the change that it began with, so it follows the recent one for a while.
    if readings > RECENT_READINGS and apart > (CHANGED if readings > YOUNG_READINGS else FOLLOWS):
        average, readings = recent, RECENT_READINGS
    return math.exp(average), Evidence(readings, spread, recent, value, at_s)


def _spread(before: Evidence, value: float, fresh: float) -> float:
    """The standard deviation of a reading after one more; a single jump counts no more than a few of the present deviations.

    Overlapping windows differ by the share that is new on one side and gone on the other: E[d²] = 2·σ²·fresh.
    """
    behind = min(SPREAD_MEMORY, before.readings - 1.0 + SPREAD_PRIOR_READINGS)
    seen = min((value - before.last) ** 2 / (2.0 * fresh), (2.0 * CHANGED * before.spread) ** 2)
    variance = (behind * before.spread**2 + fresh * seen) / (behind + fresh)
    return max(SPREAD_LEAST, math.sqrt(variance))
