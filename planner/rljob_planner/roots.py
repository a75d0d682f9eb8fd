"""Where a rising function crosses zero: the only equation solver that the formulas need.

Regula falsi with the Illinois rule: it keeps the root bracketed as bisection does, so it cannot diverge, and takes a fifth of the
evaluations.
"""

from __future__ import annotations

import math
from collections.abc import Callable

_ROUNDS = 60


def rising_root(rising: Callable[[float], float], low: float, high: float, precision: float) -> float:
    """Where a rising function crosses zero; the nearer end where it does not."""
    at_low, at_high = rising(low), rising(high)
    if at_low >= 0.0:
        return low
    if at_high <= 0.0:
        return high
    side, before = 0, math.inf
    for _ in range(_ROUNDS):
        middle = high - at_high * (high - low) / (at_high - at_low)
        if not low < middle < high:
            middle = 0.5 * (low + high)
        if min(high - low, abs(middle - before)) <= precision * high:
            break
        before, found = middle, rising(middle)
        if found == 0.0:
            break
        if found < 0.0:
            low, at_low = middle, found
            at_high *= 0.5 if side < 0 else 1.0
            side = -1
        else:
            high, at_high = middle, found
            at_low *= 0.5 if side > 0 else 1.0
            side = 1
    return middle
