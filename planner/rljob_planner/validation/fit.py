"""Least squares in few unknowns with a prior on each, for factors per side and for a family's mean length.

Unknowns are logarithms, so that a factor of 2 and of ½ are equally far from 1. The prior keeps what the data do not speak of near
its expected value (train-bound rows say nothing of the samplers' speed but that it suffices), which a plain fit would let run off.
Residuals are weighted by Huber's rule: one odd row of a family shall not bend the rest. Levenberg-Marquardt with differences,
because the period has kinks where the bound side changes and no derivative there is worth deriving.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]

_STEP = 0.02
_ROUNDS = 14
_ENOUGH = 2e-3
_HUBER = 2.0


@dataclass(frozen=True)
class Unknown:
    """A quantity to fit, as its natural logarithm."""

    expected: float
    """ln of the value while no data speak."""
    spread: float
    """Standard deviation of the prior."""
    low: float
    high: float


def fitted(unknowns: Sequence[Unknown], residuals: Callable[[FloatArray], FloatArray]) -> FloatArray:
    """The most likely logarithms; ``residuals`` are in units of their own standard deviation.

    Where the bound side changes the loss has more than one valley, so the search begins at what is expected and a spread to either side of
    it in the first unknown, and the lowest end counts.
    """
    problem = _Problem(unknowns, residuals)
    begin = problem.expected
    starts = [begin]
    if len(unknowns) > 1:
        for way in (-1.0, 1.0):
            moved = begin.copy()
            moved[0] += way * problem.spread[0]
            starts.append(moved)
    ends = [_descended(problem, start) for start in starts]
    return min(ends, key=lambda end: end[1])[0]


class _Problem:
    """Residuals of data and prior, and their loss."""

    def __init__(self, unknowns: Sequence[Unknown], residuals: Callable[[FloatArray], FloatArray]) -> None:
        self.residuals = residuals
        self.expected = np.array([u.expected for u in unknowns])
        self.spread = np.array([u.spread for u in unknowns])
        self.low = np.array([u.low for u in unknowns])
        self.high = np.array([u.high for u in unknowns])

    def both(self, x: FloatArray) -> FloatArray:
        return np.concatenate([self.residuals(x), (x - self.expected) / self.spread])

    def loss(self, r: FloatArray) -> float:
        data = r.size - self.expected.size
        size, prior = np.abs(r[:data]), r[data:]
        robust = np.where(size <= _HUBER, size * size, _HUBER * (2.0 * size - _HUBER))
        return float(robust.sum() + prior @ prior)


def _descended(problem: _Problem, start: FloatArray) -> tuple[FloatArray, float]:
    """Where the descent from a start ends, and the loss there."""
    x = np.clip(start, problem.low, problem.high)
    r = problem.both(x)
    data = slice(0, r.size - x.size)
    damping = 1e-2
    for _ in range(_ROUNDS):
        jacobian = np.empty((r.size, x.size))
        for i in range(x.size):
            moved = x.copy()
            moved[i] += _STEP
            jacobian[:, i] = (problem.both(moved) - r) / _STEP
        weight = np.ones(r.size)
        weight[data] = _HUBER / np.maximum(_HUBER, np.abs(r[data]))
        normal, slope = jacobian.T @ (weight[:, None] * jacobian), jacobian.T @ (weight * r)
        for _ in range(4):
            step = np.linalg.solve(normal + damping * np.diag(np.diag(normal)), -slope)
            trial = np.clip(x + np.clip(step, -1.0, 1.0), problem.low, problem.high)
            found = problem.both(trial)
            if problem.loss(found) < problem.loss(r):
                moved_by = float(np.max(np.abs(trial - x)))
                x, r, damping = trial, found, damping * 0.3
                break
            damping *= 6.0
        else:
            break
        if moved_by < _ENOUGH:
            break
    return x, problem.loss(r)
