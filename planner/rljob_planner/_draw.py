"""Common random numbers: the length of sample j of group i follows from (seed, i, j) alone.

Two candidates of one search, or two variants of one scenario, then see the same groups in the same order, and the
difference of their results is not the luck of the draw. A counter-based hash (the finalizer of splitmix64, once per
coordinate) gives a uniform number for the triple; the inverse of the cumulative distribution gives the length, found
through a guide table that says where to begin to look.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from rljob_planner._jit import jit

_STEP = np.uint64(0x9E3779B97F4A7C15)
_M1 = np.uint64(0xBF58476D1CE4E5B9)
_M2 = np.uint64(0x94D049BB133111EB)
_S30, _S27, _S31, _S11 = np.uint64(30), np.uint64(27), np.uint64(31), np.uint64(11)


@jit
def _mix(z: Any) -> Any:
    z = (z ^ (z >> _S30)) * _M1
    z = (z ^ (z >> _S27)) * _M2
    return z ^ (z >> _S31)


@jit
def draw_length(seed: Any, group: int, index: int, support: Any, cumulative: Any, guide: Any) -> int:
    """Length in tokens of sample ``index`` of group ``group``: the smallest with cumulative probability above the draw."""
    z = _mix(_mix(_mix(seed + _STEP) + np.uint64(group) * _STEP) + np.uint64(index + 1) * _STEP)
    u = float(z >> _S11) * 2.0**-53
    at = guide[int(u * guide.size)]
    while cumulative[at] <= u:
        at += 1
    return int(support[at])


@jit
def draw_lengths(
    seed: Any, groups: Any, indices: Any, support: Any, cumulative: Any, guide: Any, lengths: NDArray[np.int64]
) -> None:
    """``draw_length`` for arrays of groups and indices of equal size, into ``lengths``."""
    for i in range(groups.size):
        lengths[i] = draw_length(seed, groups[i], indices[i], support, cumulative, guide)
