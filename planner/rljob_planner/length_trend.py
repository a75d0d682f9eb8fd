"""What a log says of lengths beside their law: how alike the samples of one prompt are, and how lengths moved over the run.

The two look the same in a table: when lengths double over a run, two samples of one prompt, drawn in the same step, are alike
because of the step. So correlation is taken of what is left of ln(length) after the mean of its time.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from rljob_planner.laws import FloatArray, IntArray

_LEAST_GROUPS = 20
_LEAST_IN_STAGE = 20
_STAGES = 8


@dataclass(frozen=True)
class LengthGrowth:
    """Mean length over the steps of a log."""

    points: tuple[tuple[float, float], ...]
    """(mean step, mean length over the mean of all) of consecutive stages with about equal numbers of responses."""

    @property
    def factor(self) -> float:
        """Mean length in the last stage over that in the first."""
        return self.points[-1][1] / self.points[0][1]

    @property
    def widest(self) -> float:
        """The longest stage over the shortest: above ``factor`` where lengths fell and rose again."""
        levels = [level for _, level in self.points]
        return max(levels) / min(levels)


def growth_of(tokens: IntArray, steps: IntArray | None) -> LengthGrowth | None:
    """How the mean moves over steps; None where there are no steps, one only, or too few responses for two stages."""
    if steps is None:
        return None
    stage = _stages(steps)
    if stage.max() == 0:
        return None
    count = np.bincount(stage).astype(np.float64)
    at = np.bincount(stage, steps) / count
    mean = np.bincount(stage, tokens) / count / tokens.mean()
    return LengthGrowth(tuple((float(a), float(m)) for a, m in zip(at, mean, strict=True)))


def within_steps(tokens: IntArray, steps: IntArray | None) -> FloatArray:
    """ln(length) less its mean at that time of the run."""
    y = np.log(np.maximum(tokens, 1).astype(np.float64))
    if steps is None:
        return y
    stage = _stages(steps)
    return np.asarray(y - (np.bincount(stage, y) / np.bincount(stage))[stage])


def group_correlation(y: FloatArray, groups: IntArray | None) -> float | None:
    """Intraclass correlation of ``y`` in groups of unequal size, by analysis of variance (Donner 1986); None if unknown."""
    if groups is None:
        return None
    size = np.bincount(groups).astype(np.float64)
    several = size >= 2
    if several.sum() < _LEAST_GROUPS:
        return None
    kept = several[groups]
    y, code = y[kept], np.cumsum(several)[groups[kept]] - 1
    size = size[several]
    n, k = float(size.sum()), len(size)
    mean = np.bincount(code, y) / size
    between = float(size @ (mean - y.mean()) ** 2) / (k - 1)
    within = float(((y - mean[code]) ** 2).sum()) / (n - k)
    usual = (n - float(size @ size) / n) / (k - 1)
    spread = between + (usual - 1.0) * within
    if not math.isfinite(spread) or spread <= 0.0:
        return None
    return min(1.0, max(0.0, (between - within) / spread))


def _stages(steps: IntArray) -> IntArray:
    """Stage of each response: consecutive steps put together until each stage holds about as many responses."""
    number = int(min(_STAGES, max(1, len(steps) // _LEAST_IN_STAGE)))
    distinct, at, count = np.unique(steps, return_inverse=True, return_counts=True)
    before = np.cumsum(count) - count
    stage = np.minimum(before * number // len(steps), number - 1)
    consecutive = np.unique(stage, return_inverse=True)[1]
    return np.asarray(consecutive[at.ravel()], dtype=np.int64) if len(distinct) > 1 else np.zeros(len(steps), np.int64)
