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
_ROUNDS = 20
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


def fitted(
    unknowns: Sequence[Unknown],
    residuals: Callable[[FloatArray], FloatArray],
    start: Sequence[float] | None = None,
) -> FloatArray:
    """The most likely logarithms; ``residuals`` are in units of their own standard deviation."""
    expected = np.array([u.expected for u in unknowns])
    spread = np.array([u.spread for u in unknowns])
    low, high = np.array([u.low for u in unknowns]), np.array([u.high for u in unknowns])

    def both(x: FloatArray) -> FloatArray:
        return np.concatenate([residuals(x), (x - expected) / spread])

    def loss(r: FloatArray) -> float:
        size = np.abs(r[: r.size - x.size])
        prior = r[r.size - x.size :]
        robust = np.where(size <= _HUBER, size * size, _HUBER * (2.0 * size - _HUBER))
        return float(robust.sum() + prior @ prior)

    x = np.clip(expected if start is None else np.asarray(start, dtype=np.float64), low, high)
    r = both(x)
    damping = 1e-2
    for _ in range(_ROUNDS):
        jacobian = np.empty((r.size, x.size))
        for i in range(x.size):
            moved = x.copy()
            moved[i] += _STEP
            jacobian[:, i] = (both(moved) - r) / _STEP
        weight = np.ones(r.size)
        data = slice(0, r.size - x.size)
        weight[data] = _HUBER / np.maximum(_HUBER, np.abs(r[data]))
        normal, slope = jacobian.T @ (weight[:, None] * jacobian), jacobian.T @ (weight * r)
        for _ in range(4):
            step = np.linalg.solve(normal + damping * np.diag(np.diag(normal)), -slope)
            trial = np.clip(x + np.clip(step, -1.0, 1.0), low, high)
            found = both(trial)
            if loss(found) < loss(r):
                moved_by = float(np.max(np.abs(trial - x)))
                x, r, damping = trial, found, damping * 0.3
                break
            damping *= 6.0
        else:
            break
        if moved_by < 1e-3:
            break
    return np.asarray(x)
