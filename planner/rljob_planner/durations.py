"""Times in words: the same in a report, a condition and a decision, since people compare them."""

from __future__ import annotations


def seconds(value: float) -> str:
    """A time with three digits and a unit that people would choose."""
    for unit, size, most in (("ms", 0.001, 1.0), ("s", 1.0, 600.0), ("min", 60.0, 5400.0), ("h", 3600.0, 172_800.0)):
        if value < most:
            return f"{_digits(value / size)} {unit}"
    return f"{_digits(value / 86_400.0)} days"


def _digits(value: float) -> str:
    """Three significant digits, trailing zeros kept."""
    places = 0 if value >= 99.95 else 1 if value >= 9.995 else 2
    return f"{value:,.{places}f}"
