"""How long responses are, and how that drifts.

Two plants that are compared must see the same luck. So nothing is drawn from a generator whose state depends on the order of
calls: a number belongs to its keys (seed, group, sample) through a hash, and group 4711 draws the same deviate in every plant with
the same seed. What changes over time is the mean that the deviate is applied to.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)


def _mix(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The finaliser of SplitMix64: every input bit reaches every output bit."""
    with np.errstate(over="ignore"):
        x = x + _GOLDEN
        x = (x ^ (x >> np.uint64(30))) * _MIX_1
        x = (x ^ (x >> np.uint64(27))) * _MIX_2
        return x ^ (x >> np.uint64(31))


def uniform(seed: int, *keys: int | NDArray[np.int64]) -> NDArray[np.float64]:
    """Uniform numbers in (0, 1), one for each combination of broadcast keys."""
    state = _mix(np.asarray(seed).astype(np.uint64))
    for key in keys:
        state = _mix(state ^ np.asarray(key).astype(np.uint64))
    return ((state >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53


def normal(seed: int, *keys: int | NDArray[np.int64]) -> NDArray[np.float64]:
    """Standard normal numbers by Box and Muller, one for each combination of broadcast keys."""
    radius = np.sqrt(-2.0 * np.log(uniform(seed, *keys, 1)))
    return np.asarray(radius * np.cos(2.0 * math.pi * uniform(seed, *keys, 2)))


def noise(sigma: float, seed: int, *keys: int | NDArray[np.int64]) -> NDArray[np.float64]:
    """Log-normal factors of mean one and log standard deviation ``sigma``."""
    return np.asarray(np.exp(sigma * normal(seed, *keys) - sigma * sigma / 2.0))


@dataclass(frozen=True)
class Lengths:
    """Log-normal response lengths whose mean follows a trace."""

    trace: tuple[tuple[float, float], ...]
    """Pairs of seconds since the start and mean tokens, in order; linear in between, constant outside."""
    cv: float
    """Standard deviation over mean."""
    max_tokens: int
    """Cap on a response."""
    seed: int

    def __post_init__(self) -> None:
        """Refuse a trace that has no meaning."""
        times = [t for t, _ in self.trace]
        if not self.trace or times != sorted(times) or any(mean < 1 for _, mean in self.trace):
            raise ValueError("lengths.trace must be pairs of seconds (ascending) and mean tokens (at least 1)")

    def mean(self, t: float) -> float:
        """The mean in tokens of responses that start at ``t`` seconds, before the cap."""
        times, means = zip(*self.trace, strict=True)
        return float(np.interp(t, times, means))

    def draw(self, group: int, samples: int, t: float) -> NDArray[np.int64]:
        """Lengths in tokens (at least 1) of a group's samples, admitted at ``t`` seconds."""
        sigma = math.sqrt(math.log1p(self.cv * self.cv))
        z = normal(self.seed, 11, group, np.arange(samples))
        drawn = np.rint(self.mean(t) * np.exp(sigma * z - sigma * sigma / 2.0))
        return np.asarray(np.clip(drawn, 1, self.max_tokens), dtype=np.int64)


def trace_of(pairs: Sequence[Sequence[float]]) -> tuple[tuple[float, float], ...]:
    """A trace from what YAML holds."""
    return tuple((float(t), float(mean)) for t, mean in pairs)
