"""Luck that belongs to its keys: two policies draw the same lengths and noise, in whatever order they come to them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from dev.bench.drift.compiled import jit


@jit
def mixed(x: Any) -> Any:
    """The finaliser of SplitMix64."""
    x = x + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


@jit
def normal(seed: int, a: int, b: int, c: int) -> float:
    """A standard normal number that belongs to these keys, whatever was drawn before: two policies see the same luck."""
    key = mixed(np.uint64(seed))
    key = mixed(key ^ np.uint64(a))
    key = mixed(key ^ np.uint64(b))
    key = mixed(key ^ np.uint64(c))
    u = (np.float64(key >> np.uint64(11)) + 0.5) * 2.0**-53
    v = (np.float64(mixed(key ^ np.uint64(0xD1B54A32D192ED03)) >> np.uint64(11)) + 0.5) * 2.0**-53
    return math.sqrt(-2.0 * math.log(u)) * math.cos(2.0 * math.pi * v)
