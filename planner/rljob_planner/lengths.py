"""Response lengths: one discrete distribution over whole tokens, whatever the user described it by.

A length is a number of tokens, at least one and at most the cap, so the distribution is a table of the lengths that occur and
their cumulative probabilities. Mean, second moment, quantiles and the tail of a group are then sums without approximation,
and the simulator draws from the very table that the closed form integrates. What is known about lengths before they were
rounded and clipped (the law) is kept beside the table: longer or shorter responses under the same cap are another cut of the
same law, in which lengths that the cap hid come back (``laws``).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from statistics import NormalDist

import numpy as np
from numpy.typing import ArrayLike

from rljob_planner.laws import (
    WIDEST_SIGMA,
    EndlessLaw,
    FloatArray,
    HistogramLaw,
    IntArray,
    Law,
    LognormalLaw,
    MixtureLaw,
    QuantileLaw,
    TableLaw,
    clipped_cv,
    joint_below,
    log_median,
)
from rljob_planner.roots import rising_root

MAX_TOKENS = 10_000_000
"""Longest response that a distribution may hold."""

_EXACT_UNTIL_TOKENS = 1 << 17
"""Up to here every whole length is a row of the table; above, rows lie 1/65536 of the length apart."""
_SMALLEST_PROBABILITY = 1e-13
_NORMAL = NormalDist()


@dataclass(frozen=True, eq=False)
class LengthDistribution:
    """Response lengths in tokens, as a table; build one with the class methods."""

    support_tokens: IntArray
    """The lengths that occur, ascending."""
    cumulative: FloatArray
    """Probability of a length of at most ``support_tokens``; the last is exactly 1."""
    cap_tokens: int
    """Responses are cut here."""
    law: Law | None = None
    """Lengths before rounding and clipping; None where the table itself was given."""

    @classmethod
    def lognormal(cls, median: float, sigma: float, max: int, cap_mass: float = 0.0) -> LengthDistribution:  # noqa: A002
        """Lognormal with this median in tokens and this standard deviation of ln(length), clipped at ``max``.

        A share ``cap_mass`` (0 … 1) of responses never ends by itself and is cut at ``max``, besides those of the lognormal
        that are longer.
        """
        _positive("median", median)
        _cap(max)
        if not (math.isfinite(sigma) and sigma >= 0):
            raise ValueError(
                f"sigma is the standard deviation of ln(length): write a number of at least 0, not {sigma}"
            )
        if not 0.0 <= cap_mass <= 1.0:
            raise ValueError(f"cap_mass is the share of responses that only max ends: write 0 to 1, not {cap_mass}")
        if sigma < 1e-6:
            body = cls.from_values([min(median, max)], max=max)
            return body if cap_mass == 0.0 else cls.mixture([(1.0 - cap_mass, body), (cap_mass, EndlessLaw())], max)
        law: Law = LognormalLaw(float(median), float(sigma))
        if cap_mass > 0.0:
            law = MixtureLaw.of([(1.0 - cap_mass, law), (cap_mass, EndlessLaw())])
        return cls.from_law(law, max)

    @classmethod
    def mixture(
        cls,
        parts: Sequence[tuple[float, Law | LengthDistribution]],
        max: int,  # noqa: A002
    ) -> LengthDistribution:
        """Each response follows one of ``[(weight, law or distribution), …]``, clipped at ``max``.

        A distribution that was itself cut below ``max`` stays cut there, such as short answers without thinking beside long ones
        with it; from one with a higher cap, or the same, what was cut comes back under ``max``.
        """
        _cap(max)
        if not parts:
            raise ValueError("a mixture needs at least one part, as in [(0.7, short), (0.3, long)]")
        return cls.from_law(MixtureLaw.of([(float(weight), _law_of(part, max)) for weight, part in parts]), max)

    @classmethod
    def from_mean_cv(cls, mean: float, cv: float, max: int) -> LengthDistribution:  # noqa: A002
        """Lognormal, clipped at ``max``, whose lengths AFTER clipping have this mean (tokens) and this std/mean.

        Raises ValueError where no such distribution exists: a mean at or above the cap, or more spread than lengths
        between 0 and the cap can have (cv² < max/mean − 1; at that limit every length is one or the other).
        """
        _positive("mean", mean)
        _cap(max)
        if not (math.isfinite(cv) and cv >= 0):
            raise ValueError(f"cv is the standard deviation over the mean: write a number of at least 0, not {cv}")
        if mean > max:
            raise ValueError(f"a mean of {mean:g} tokens is above max ({max}): raise max or lower the mean")
        if cv < 1e-6:
            return cls.from_values([mean], max=max)
        widest = 0.0 if mean == max else clipped_cv(mean, WIDEST_SIGMA, max)
        if cv >= widest:
            raise ValueError(
                f"lengths of at most {max} tokens with a mean of {mean:g} cannot have a cv of {cv:g}: "
                f"write a cv below {math.floor(widest * 100) / 100:g}, or a larger max"
            )
        sigma = rising_root(lambda sigma: clipped_cv(mean, sigma, max) - cv, 1e-4, WIDEST_SIGMA, 1e-10)
        return cls.lognormal(math.exp(log_median(mean, sigma, max)), sigma, max)

    @classmethod
    def from_quantiles(cls, quantiles: Mapping[float, float], max: int) -> LengthDistribution:  # noqa: A002
        """Through the given quantiles ``{0.5: tokens, 0.99: tokens}``, lognormal between and beyond them, clipped at ``max``."""
        _cap(max)
        points = sorted((float(p), float(x)) for p, x in quantiles.items())
        if len(points) < 2:
            raise ValueError("give at least two quantiles, such as {0.5: 900, 0.95: 6000}")
        for p, x in points:
            if not 0.0 < p < 1.0:
                raise ValueError(f"{p:g} is not a quantile: write a number between 0 and 1, such as 0.5")
            _positive(f"quantile {p:g}", x)
            if x > max:
                raise ValueError(f"quantile {p:g} is {x:g} tokens, above max ({max})")
        for (p, x), (q, y) in pairwise(points):
            if y <= x:
                raise ValueError(f"quantile {q:g} must be longer than quantile {p:g}, but {y:g} ≤ {x:g}")
        return cls.from_law(QuantileLaw(tuple(x for _, x in points), tuple(_NORMAL.inv_cdf(p) for p, _ in points)), max)

    @classmethod
    def from_histogram(
        cls,
        bins: Sequence[tuple[float, float]],
        max: int | None = None,  # noqa: A002
    ) -> LengthDistribution:
        """``[(upper edge, count), …]``, uniform inside a bin, the first of which begins at 0; the last edge is the cap."""
        if not bins:
            raise ValueError("the histogram is empty: write [[upper edge, count], …]")
        edges = [0.0]
        counts = [0.0]
        for upper, count in bins:
            _positive("upper edge", upper)
            if upper <= edges[-1]:
                raise ValueError(f"upper edges must rise, but {upper:g} follows {edges[-1]:g}")
            if not (math.isfinite(count) and count >= 0):
                raise ValueError(f"the count of the bin up to {upper:g} must be at least 0, not {count}")
            edges.append(float(upper))
            counts.append(float(count))
        total = sum(counts)
        if total <= 0:
            raise ValueError("all counts of the histogram are 0")
        cap = max if max is not None else math.ceil(edges[-1])
        _cap(cap)
        return cls.from_law(HistogramLaw(tuple(edges), tuple((np.cumsum(counts) / total).tolist())), cap)

    @classmethod
    def from_values(cls, values: ArrayLike, max: int | None = None) -> LengthDistribution:  # noqa: A002
        """Each of the given lengths is equally likely; without ``max`` the longest is the cap."""
        given = np.asarray(values, dtype=np.float64).ravel()
        if given.size == 0:
            raise ValueError("there are no values: write at least one length in tokens")
        if not np.all(np.isfinite(given)) or float(given.min()) < 0:
            raise ValueError("every value must be a length in tokens of at least 0")
        cap = max if max is not None else int(np.maximum(np.rint(given.max()), 1))
        _cap(cap)
        tokens = np.clip(np.rint(given), 1, cap).astype(np.int64)
        support, counts = np.unique(tokens, return_counts=True)
        return cls._table(support, np.cumsum(counts) / tokens.size, cap, None)

    @classmethod
    def from_law(cls, law: Law, max: int) -> LengthDistribution:  # noqa: A002
        """Lengths of ``law``, rounded to whole tokens and clipped to 1 … ``max``."""
        _cap(max)
        support = np.arange(1, min(max, _EXACT_UNTIL_TOKENS) + 1, dtype=np.int64)
        if max > _EXACT_UNTIL_TOKENS:
            rows = int(math.log(max / _EXACT_UNTIL_TOKENS) * 65536) + 2
            above = np.rint(np.geomspace(_EXACT_UNTIL_TOKENS, max, rows)).astype(np.int64)
            support = np.unique(np.concatenate([support, above]))
        upper = np.append(0.5 * (support[:-1] + support[1:]), np.inf)
        cumulative = np.append(law.below(upper[:-1]), 1.0)
        return cls._table(support, np.maximum.accumulate(np.clip(cumulative, 0.0, 1.0)), max, law)

    @classmethod
    def _table(cls, support: IntArray, cumulative: FloatArray, cap: int, law: Law | None) -> LengthDistribution:
        kept = np.diff(cumulative, prepend=0.0) > _SMALLEST_PROBABILITY
        kept[-1] = kept[-1] or not kept.any()
        support, cumulative = support[kept], cumulative[kept].copy()
        cumulative[-1] = 1.0
        return cls(support, cumulative, cap, law)

    @cached_property
    def probabilities(self) -> FloatArray:
        """Probability of each length of ``support_tokens``."""
        return np.diff(self.cumulative, prepend=0.0)

    @cached_property
    def _moments(self) -> tuple[float, float]:
        tokens = self.support_tokens.astype(np.float64)
        return float(np.sum(self.probabilities * tokens)), float(np.sum(self.probabilities * tokens * tokens))

    @cached_property
    def _tails(self) -> dict[float, float]:
        """``max_mean`` by group size: a search asks for the same one for every candidate."""
        return {}

    def mean(self) -> float:
        """Mean length in tokens."""
        return self._moments[0]

    def second_moment(self) -> float:
        """Mean squared length, tokens²."""
        return self._moments[1]

    def cv(self) -> float:
        """Standard deviation over mean."""
        mean = self.mean()
        return math.sqrt(max(0.0, self.second_moment() - mean * mean)) / mean

    def quantile(self, p: float) -> int:
        """The shortest length in tokens that at least a share ``p`` of responses does not exceed."""
        if not 0.0 <= p <= 1.0:
            raise ValueError(f"{p} is not a probability")
        at = int(np.searchsorted(self.cumulative, p - 1e-12))
        return int(self.support_tokens[min(at, len(self.support_tokens) - 1)])

    def survival(self, tokens: FloatArray) -> FloatArray:
        """Share of responses longer than each of ``tokens``."""
        below = np.concatenate([[0.0], self.cumulative])
        return np.asarray(1.0 - below[np.searchsorted(self.support_tokens, tokens, side="right")])

    @cached_property
    def _steps(self) -> tuple[FloatArray, FloatArray]:
        """Cumulative probabilities but the last, and the distances between lengths: the mean of a maximum is a sum over both."""
        return self.cumulative[:-1], np.diff(self.support_tokens).astype(np.float64)

    def max_mean(self, group_size: float, correlation: float = 0.0) -> float:
        """Mean length in tokens of the longest of ``group_size`` responses, correlated as ``longest_of`` says."""
        if correlation > 0.0 and group_size > 1:
            return self.longest_of(int(group_size), correlation).mean()
        known = self._tails.get(group_size)
        if known is not None:
            return known
        cumulative, distances = self._steps
        # A sum and not a dot product: that would wake up other threads for less than a millisecond of work.
        longest = float(self.support_tokens[-1]) - float(np.sum(_power(cumulative, group_size) * distances))
        if isinstance(group_size, int):
            self._tails[group_size] = longest
        return longest

    @cached_property
    def _longest(self) -> dict[tuple[int, float], LengthDistribution]:
        return {}

    def longest_of(self, group_size: int, correlation: float = 0.0) -> LengthDistribution:
        """Length of the longest of ``group_size`` responses to one prompt, in the rows of ``coarse``.

        ``correlation`` (0 … 1) is that of the normal scores of two of them: each score is √c times one of the prompt and
        √(1 − c) times one of its own, which makes responses independent given the prompt.
        """
        key = group_size, correlation
        if key not in self._longest:
            rows = self.coarse
            longest = joint_below(rows.cumulative, group_size, correlation)
            self._longest[key] = self._table(rows.support_tokens, longest, self.cap_tokens, None)
        return self._longest[key]

    @cached_property
    def coarse(self) -> LengthDistribution:
        """About the same lengths in at most 602 rows, the cap a row of its own, for formulas that are evaluated thousands of times."""
        rows = len(self.support_tokens)
        if rows <= 600:
            return self
        even = np.linspace(0, rows - 1, 300).astype(np.int64)
        dense = np.searchsorted(self.cumulative, np.linspace(0, 1, 300) - 1e-12)
        last = np.unique(np.concatenate([even, dense, [rows - 2, rows - 1]]))
        weighted = np.cumsum(self.probabilities * self.support_tokens)[last]
        means = np.diff(weighted, prepend=0.0) / np.maximum(np.diff(self.cumulative[last], prepend=0.0), 1e-300)
        support, first = np.unique(np.clip(np.rint(means), 1, self.cap_tokens)[::-1], return_index=True)
        return type(self)(support.astype(np.int64), self.cumulative[last][::-1][first], self.cap_tokens, self.law)

    def tail_multiplier(self, group_size: int, correlation: float = 0.0) -> float:
        """M: mean of the longest of ``group_size`` responses over the mean length."""
        return self.max_mean(group_size, correlation) / self.mean()

    def resident_mean_tokens(self) -> float:
        """Mean generated tokens that a running sample holds: length-biased, E[L²] / (2·E[L])."""
        return self.second_moment() / (2.0 * self.mean())

    def scaled(self, factor: float, *, scale_cap: bool = False) -> LengthDistribution:
        """``factor`` times as long, under the same cap unless that is scaled too."""
        _positive("factor", factor)
        cap = max(1, round(self.cap_tokens * factor)) if scale_cap else self.cap_tokens
        if self.law is not None:
            return type(self).from_law(self.law.scaled(factor), cap)
        tokens = np.clip(np.rint(self.support_tokens * factor), 1, cap).astype(np.int64)
        support, first = np.unique(tokens[::-1], return_index=True)
        return self._table(support, self.cumulative[::-1][first], cap, None)

    @cached_property
    def guide(self) -> IntArray:
        """For each of 2^k equal parts of 0..1 the row of the table at which a draw from that part begins to look."""
        size = 1 << max(6, min(16, (len(self.support_tokens) - 1).bit_length()))
        return np.searchsorted(self.cumulative, np.arange(size) / size, side="right").astype(np.int64)

    def sample(self, seed: int, group: ArrayLike, index: ArrayLike) -> IntArray:
        """Lengths of samples ``index`` of groups ``group``, the same that a simulation with ``seed`` draws."""
        from rljob_planner._draw import draw_lengths

        groups, indices = np.broadcast_arrays(np.asarray(group, np.int64), np.asarray(index, np.int64))
        lengths = np.empty(groups.size, np.int64)
        table = self.support_tokens, self.cumulative, self.guide
        draw_lengths(np.uint64(seed), groups.ravel().copy(), indices.ravel().copy(), *table, lengths)
        return lengths.reshape(groups.shape)


def _power(base: FloatArray, exponent: float) -> FloatArray:
    """``base`` to a power, whole powers by squaring: ten times as fast as the general one."""
    if exponent != int(exponent) or exponent < 1:
        return np.asarray(base**exponent)
    result: FloatArray | None = None
    square, left = base, int(exponent)
    while True:
        if left & 1:
            result = square if result is None else result * square
        left >>= 1
        if left == 0:
            return base if result is None else result
        square = square * square


def _law_of(part: Law | LengthDistribution, cap: int) -> Law:
    if not isinstance(part, LengthDistribution):
        return part
    if part.law is not None and part.cap_tokens >= cap:
        return part.law
    return TableLaw(part.support_tokens.astype(np.float64), part.cumulative)


def _positive(what: str, value: float) -> None:
    if not (math.isfinite(value) and value > 0):
        raise ValueError(f"{what} must be a number above 0, not {value}")


def _cap(tokens: int) -> None:
    if not (math.isfinite(tokens) and tokens == int(tokens) and 1 <= tokens <= MAX_TOKENS):
        raise ValueError(f"max must be a whole number of tokens between 1 and {MAX_TOKENS}, not {tokens}")
