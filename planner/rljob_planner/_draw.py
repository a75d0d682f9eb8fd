"""Common random numbers: what is random about sample j of group i follows from (seed, i, j) alone.

Two candidates of one search, or two variants of one scenario, then see the same groups in the same order, and the
difference of their results is not the luck of the draw. A counter-based hash (the finalizer of splitmix64, once per
coordinate) gives a uniform number for the triple; the inverse of the cumulative distribution gives the length, found
through a guide table that says where to begin to look.

Lengths of one prompt's samples may be correlated: a normal score that the group shares is mixed with one of the sample's own
(a Gaussian copula), so each length keeps the distribution that it has alone.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rljob_planner._jit import entry, jit

_STEP = np.uint64(0x9E3779B97F4A7C15)
_M1 = np.uint64(0xBF58476D1CE4E5B9)
_M2 = np.uint64(0x94D049BB133111EB)
_S30, _S27, _S31, _S11, _S32 = np.uint64(30), np.uint64(27), np.uint64(31), np.uint64(11), np.uint64(32)
_LOW = np.uint64(0xFFFFFFFF)
_ENVIRONMENT = np.uint64(0xD1B54A32D192ED03)
_LARGEST_BELOW_1 = 1.0 - 2.0**-53


@jit
def _mix(z: Any) -> Any:
    z = (z ^ (z >> _S30)) * _M1
    z = (z ^ (z >> _S27)) * _M2
    return z ^ (z >> _S31)


@jit
def _hash(seed: Any, group: int, index: int) -> Any:
    """64 random bits for a sample; with index −1, for its group."""
    return _mix(_mix(_mix(seed + _STEP) + np.uint64(group) * _STEP) + np.uint64(index + 1) * _STEP)


@jit
def _normal(bits: Any) -> float:
    """A standard normal number from 64 random bits (Box and Muller's transform)."""
    first = (float(bits >> _S32) + 0.5) * 2.0**-32
    return math.sqrt(-2.0 * math.log(first)) * math.cos(2.0 * math.pi * float(bits & _LOW) * 2.0**-32)


@jit
def draw_length(
    seed: Any, group: int, index: int, correlation: float, support: Any, cumulative: Any, guide: Any
) -> int:
    """Length in tokens of sample ``index`` of group ``group``: the smallest with cumulative probability above the draw."""
    bits = _hash(seed, group, index)
    u = float(bits >> _S11) * 2.0**-53
    if correlation > 0.0:
        score = math.sqrt(correlation) * _normal(_hash(seed, group, -1))
        score += math.sqrt(1.0 - correlation) * _normal(bits)
        u = min(0.5 * math.erfc(-score * math.sqrt(0.5)), _LARGEST_BELOW_1)
    at = guide[int(u * guide.size)]
    while cumulative[at] <= u:
        at += 1
    return int(support[at])


@jit
def draw_environment_s(seed: Any, group: int, index: int, turn: int, mean: float, sigma: float) -> float:
    """Seconds in the environment after turn ``turn`` of a sample: lognormal with this mean and deviation of the logarithm."""
    if sigma <= 0.0:
        return mean
    z = _normal(_mix(_hash(seed ^ _ENVIRONMENT, group, index) + np.uint64(turn + 1) * _STEP))
    return mean * math.exp(sigma * z - 0.5 * sigma * sigma)


@entry
def draw_lengths(
    seed: Any, groups: Any, indices: Any, support: Any, cumulative: Any, guide: Any, lengths: NDArray[np.int64]
) -> None:
    """``draw_length`` without correlation for arrays of groups and indices of equal size, into ``lengths``."""
    for i in range(groups.size):
        lengths[i] = draw_length(seed, groups[i], indices[i], 0.0, support, cumulative, guide)


@entry
def draw_correlated_lengths(
    seed: Any,
    groups: Any,
    indices: Any,
    correlation: float,
    support: Any,
    cumulative: Any,
    guide: Any,
    lengths: NDArray[np.int64],
) -> None:
    """``draw_length`` for arrays of groups and indices of equal size, into ``lengths``."""
    for i in range(groups.size):
        lengths[i] = draw_length(seed, groups[i], indices[i], correlation, support, cumulative, guide)


@entry
def draw_environments_s(
    seed: Any, groups: Any, indices: Any, turns: Any, mean: float, sigma: float, seconds: NDArray[np.float64]
) -> None:
    """``draw_environment_s`` for arrays of groups, indices and turns of equal size, into ``seconds``."""
    for i in range(groups.size):
        seconds[i] = draw_environment_s(seed, groups[i], indices[i], turns[i], mean, sigma)
