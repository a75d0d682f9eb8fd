"""Laws of response lengths: what is known of them before they are rounded to whole tokens and cut at the cap.

A law says for any number of tokens which share of responses is shorter, and what becomes of it when all responses get longer by
a factor. Nothing else is asked of it, so any law can be a part of a mixture. A response that never ends by itself (a loop, a
chain of thought that goes on until it is cut) is a law of its own: no number of tokens is above it, so all of it lands on the cap,
however high that is and however lengths grow.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from rljob_planner.roots import rising_root

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]

_NODES = 40
_NORMAL = NormalDist()

WIDEST_SIGMA = 8.0
"""Standard deviation of ln(length) beyond which a clipped lognormal is as good as two lengths, 0 and the cap."""


class Law(Protocol):
    """Lengths before rounding and clipping."""

    def below(self, tokens: FloatArray) -> FloatArray:
        """Probability of a length below each of ``tokens``."""
        ...

    def scaled(self, factor: float) -> Law:
        """The law of ``factor`` times the length."""
        ...


@dataclass(frozen=True)
class LognormalLaw:
    """ln(length) is normal."""

    median_tokens: float
    sigma: float

    def below(self, tokens: FloatArray) -> FloatArray:
        """Probability of a length below each of ``tokens``."""
        return normal_cdf(np.log(tokens / self.median_tokens) / self.sigma)

    def scaled(self, factor: float) -> LognormalLaw:
        """The law of ``factor`` times the length."""
        return replace(self, median_tokens=self.median_tokens * factor)


@dataclass(frozen=True)
class QuantileLaw:
    """Given quantiles, lognormal between two neighbours and beyond the outer ones."""

    tokens: tuple[float, ...]
    scores: tuple[float, ...]
    """Standard normal quantiles of the probabilities that belong to ``tokens``."""

    def below(self, tokens: FloatArray) -> FloatArray:
        """Probability of a length below each of ``tokens``."""
        x, z = np.log(np.array(self.tokens)), np.array(self.scores)
        at = np.clip(np.searchsorted(x, np.log(tokens)) - 1, 0, len(x) - 2)
        return normal_cdf(z[at] + (np.log(tokens) - x[at]) * (z[at + 1] - z[at]) / (x[at + 1] - x[at]))

    def scaled(self, factor: float) -> QuantileLaw:
        """The law of ``factor`` times the length."""
        return replace(self, tokens=tuple(t * factor for t in self.tokens))


@dataclass(frozen=True)
class HistogramLaw:
    """Uniform inside each bin."""

    edges: tuple[float, ...]
    cumulative: tuple[float, ...]
    """Probability below each edge."""

    def below(self, tokens: FloatArray) -> FloatArray:
        """Probability of a length below each of ``tokens``."""
        return np.interp(tokens, self.edges, self.cumulative)

    def scaled(self, factor: float) -> HistogramLaw:
        """The law of ``factor`` times the length."""
        return replace(self, edges=tuple(e * factor for e in self.edges))


@dataclass(frozen=True)
class EndlessLaw:
    """Responses that run until they are cut."""

    def below(self, tokens: FloatArray) -> FloatArray:
        """Probability of a length below each of ``tokens``: none."""
        return np.zeros_like(tokens, dtype=np.float64)

    def scaled(self, factor: float) -> EndlessLaw:  # noqa: ARG002
        """The law of ``factor`` times the length: the same."""
        return self


@dataclass(frozen=True, eq=False)
class TableLaw:
    """The lengths that occur and their cumulative probabilities."""

    tokens: FloatArray
    cumulative: FloatArray

    def below(self, tokens: FloatArray) -> FloatArray:
        """Probability of a length below each of ``tokens``."""
        return np.concatenate([[0.0], self.cumulative])[np.searchsorted(self.tokens, tokens, side="left")]

    def scaled(self, factor: float) -> TableLaw:
        """The law of ``factor`` times the length."""
        return TableLaw(self.tokens * factor, self.cumulative)


@dataclass(frozen=True)
class MixtureLaw:
    """A response follows one of several laws, each with its share."""

    parts: tuple[tuple[float, Law], ...]
    """(share, law); shares add up to 1."""

    @classmethod
    def of(cls, weighted: Sequence[tuple[float, Law]]) -> MixtureLaw:
        """Shares in proportion to weights of at least 0; raises ValueError if there are none."""
        for weight, _ in weighted:
            if not (math.isfinite(weight) and weight >= 0):
                raise ValueError(f"the weight of a part of a mixture must be at least 0, not {weight}")
        total = math.fsum(weight for weight, _ in weighted)
        if total <= 0:
            raise ValueError("a mixture needs a part with a weight above 0, as in [(0.7, short), (0.3, long)]")
        return cls(tuple((weight / total, law) for weight, law in weighted if weight > 0))

    def below(self, tokens: FloatArray) -> FloatArray:
        """Probability of a length below each of ``tokens``."""
        below = np.zeros_like(tokens, dtype=np.float64)
        for share, law in self.parts:
            below += share * law.below(tokens)
        return below

    def scaled(self, factor: float) -> MixtureLaw:
        """The law of ``factor`` times the length."""
        return MixtureLaw(tuple((share, law.scaled(factor)) for share, law in self.parts))


def joint_below(below: FloatArray, number: int, correlation: float) -> FloatArray:
    """Probability that ``number`` variables of one distribution are all below a limit that one of them is below with ``below``.

    Their normal scores are correlated by ``correlation``: given the common part they are independent, and the common part is
    summed over by Gauss and Hermite's rule. Independent variables have the power, fully correlated ones the probability itself.
    """
    if number <= 1 or correlation >= 1.0:
        return below
    if correlation <= 0.0:
        return np.asarray(below**number)
    nodes, weights = np.polynomial.hermite_e.hermegauss(_NODES)
    inside = np.clip(below, 1e-15, 1.0 - 1e-15)
    scores = np.fromiter(map(_NORMAL.inv_cdf, inside.tolist()), np.float64, inside.size)
    own = (scores[:, None] - math.sqrt(correlation) * nodes) / math.sqrt(1.0 - correlation)
    joint = normal_cdf(own) ** number @ (weights / weights.sum())
    return np.where(below >= 1.0, 1.0, np.minimum(joint, below))


def normal_cdf(z: FloatArray) -> FloatArray:
    """Φ(z) of each element."""
    erfc = np.fromiter(map(math.erfc, (z * -math.sqrt(0.5)).ravel().tolist()), np.float64, z.size)
    return 0.5 * erfc.reshape(z.shape)


def clipped_moments(mu: float, sigma: float, cap: float) -> tuple[float, float]:
    """First and second moment of min(X, cap), ln X normal: partial expectations of the lognormal plus the mass at the cap."""
    d = (math.log(cap) - mu) / sigma
    above = _phi(-d)
    first = _exp_phi(mu + 0.5 * sigma * sigma, d - sigma) + cap * above
    second = _exp_phi(2.0 * mu + 2.0 * sigma * sigma, d - 2.0 * sigma) + cap * cap * above
    return first, second


def log_median(mean: float, sigma: float, cap: float) -> float:
    """ln(median) for which the clipped mean is ``mean``; the clipped mean rises with it from 0 to the cap."""
    low, high = math.log(mean) - sigma * sigma, math.log(cap) + 8.0 * sigma
    return low + rising_root(lambda mu: clipped_moments(low + mu, sigma, cap)[0] - mean, 0.0, high - low, 1e-12)


def clipped_cv(mean: float, sigma: float, cap: float) -> float:
    """Standard deviation over mean of min(X, cap), ln X normal, where that mean is ``mean``."""
    second = clipped_moments(log_median(mean, sigma, cap), sigma, cap)[1]
    return math.sqrt(max(0.0, second - mean * mean)) / mean


def _phi(z: float) -> float:
    return 0.5 * math.erfc(-z * math.sqrt(0.5))


def _exp_phi(exponent: float, z: float) -> float:
    """exp(exponent)·Φ(z), also where the first factor overflows and the second vanishes."""
    if z > -30.0:
        return math.exp(exponent) * _phi(z)
    return math.exp(exponent - 0.5 * z * z - math.log(-z) - 0.5 * math.log(2.0 * math.pi))
