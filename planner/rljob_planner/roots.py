"""Where a rising function crosses zero: the only equation solver that the formulas need.

Regula falsi with the Illinois rule, and every third step a bisection: it keeps the root bracketed, so it cannot diverge, is never
much slower than bisection where a function is far from straight, and takes a fifth of its evaluations where it is not.
"""

from __future__ import annotations

from collections.abc import Callable

_ROUNDS = 120


def rising_root(rising: Callable[[float], float], low: float, high: float, precision: float) -> float:
    """Where a rising function crosses zero; the nearer end where it does not."""
    at_low, at_high = rising(low), rising(high)
    if at_low >= 0.0:
        return low
    if at_high <= 0.0:
        return high
    side = 0
    for i in range(_ROUNDS):
        if high - low <= precision * high:
            break
        middle = 0.5 * (low + high) if i % 3 == 2 else high - at_high * (high - low) / (at_high - at_low)
        # No nearer to an end than half of what is asked for: beside a root that closes the bracket, elsewhere it goes on.
        near = 0.5 * precision * high
        middle = min(max(middle, low + near), high - near)
        found = rising(middle)
        if found == 0.0:
            return middle
        if found < 0.0:
            low, at_low = middle, found
            at_high *= 0.5 if side < 0 else 1.0
            side = -1
        else:
            high, at_high = middle, found
            at_low *= 0.5 if side > 0 else 1.0
            side = 1
    return 0.5 * (low + high)
