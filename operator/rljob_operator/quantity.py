"""Kubernetes quantities as exact numbers.

GPUs are counted in whole devices and compared with budgets, so a float has no place here: ``500m`` and ``1Ki`` are read as
fractions, and a text that is no quantity is an error, never zero.
"""

from __future__ import annotations

import re
from fractions import Fraction

# Bounded, since a number of a billion digits is written in ten characters: nobody may make the operator work it out.
_PATTERN = re.compile(r"([+-]?(?:[0-9]{1,99}\.?[0-9]{0,99}|\.[0-9]{1,99}))(?:([eE][+-]?[0-9]{1,3})|([a-zA-Z]*))")
_SUFFIX: dict[str, Fraction] = {
    "": Fraction(1),
    "n": Fraction(1, 10**9),
    "u": Fraction(1, 10**6),
    "m": Fraction(1, 10**3),
    "k": Fraction(10**3),
    "M": Fraction(10**6),
    "G": Fraction(10**9),
    "T": Fraction(10**12),
    "P": Fraction(10**15),
    "E": Fraction(10**18),
    "Ki": Fraction(2**10),
    "Mi": Fraction(2**20),
    "Gi": Fraction(2**30),
    "Ti": Fraction(2**40),
    "Pi": Fraction(2**50),
    "Ei": Fraction(2**60),
}


class QuantityError(ValueError):
    """A text that is not a Kubernetes quantity, or not a whole number where GPUs are counted."""


def quantity(value: object) -> Fraction:
    """The exact value of a quantity such as ``8``, ``"500m"`` or ``"16Gi"``; raises QuantityError otherwise."""
    match = None if isinstance(value, bool) else _PATTERN.fullmatch(str(value).strip())
    if match is None or (match[3] or "") not in _SUFFIX:
        raise QuantityError(f"{value!r} is not a Kubernetes quantity: write a number such as 8, 500m or 16Gi")
    number = Fraction(match[1])
    if match[2]:
        return number * Fraction(10) ** int(match[2][1:])
    return number * _SUFFIX[match[3] or ""]


def whole(value: object) -> int:
    """A quantity of GPUs, which are only handed out whole; raises QuantityError for a fraction or a negative number."""
    # All but odd ones look like this, and an inventory reads one for every pod of the cluster.
    if isinstance(value, str) and len(value) < 20 and value.isascii() and value.isdigit():
        return int(value)
    number = quantity(value)
    if number.denominator != 1 or number < 0:
        raise QuantityError(f"{value!r} is not a whole number of GPUs")
    return int(number)
