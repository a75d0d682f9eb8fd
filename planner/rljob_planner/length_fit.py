"""Laws fitted to observed lengths, some of which were cut before they ended.

A response that was cut says only that it would have been longer, so it enters the likelihood by the share of longer ones and not
by a density; a fit that takes caps for lengths makes the tail, on which staleness depends, too light. All laws are judged by the
probability that they give to the whole token counts that were seen, which makes a smooth law and a histogram comparable.

Lognormals and their mixtures are fitted by expectation-maximisation (Dempster, Laird and Rubin 1977) over ln(length): a cut
response counts for each part as often as that part explains it, with the mean and the variance of what lies beyond the cut.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from rljob_planner.laws import (
    EndlessLaw,
    FloatArray,
    HistogramLaw,
    IntArray,
    Law,
    LognormalLaw,
    MixtureLaw,
    normal_cdf,
)

_MOST_ROWS = 512
_ROUNDS = 300
_SETTLED = 1e-7
"""Gain of ln-likelihood per response at which the fit has settled."""
_NARROWEST = 0.03
"""Least standard deviation of ln(length) of a part: a narrower one would follow a handful of equal lengths."""
_LEAST_IN_BIN = 5


@dataclass(frozen=True, eq=False)
class Observed:
    """Distinct lengths with their counts, those that ended by themselves and those that were cut."""

    tokens: FloatArray
    counts: FloatArray
    cut_tokens: FloatArray
    cut_counts: FloatArray

    @classmethod
    def of(cls, tokens: IntArray, cut: np.ndarray[tuple[int, ...], np.dtype[np.bool_]]) -> Observed:
        """From lengths of at least one token and whether each was cut."""
        ended = np.unique(tokens[~cut], return_counts=True)
        ended_cut = np.unique(tokens[cut], return_counts=True)
        return cls(*(a.astype(np.float64) for a in (*ended, *ended_cut)))

    @property
    def size(self) -> float:
        """Responses."""
        return float(self.counts.sum() + self.cut_counts.sum())

    def survival(self) -> tuple[FloatArray, FloatArray]:
        """Lengths that ended, and the share of responses longer than each (the product-limit estimate of Kaplan and Meier)."""
        longer_or_equal = np.cumsum(self.counts[::-1])[::-1]
        cut_later = np.concatenate([np.cumsum(self.cut_counts[::-1])[::-1], [0.0]])
        at_risk = longer_or_equal + cut_later[np.searchsorted(self.cut_tokens, self.tokens, side="left")]
        return self.tokens, np.cumprod(1.0 - self.counts / at_risk)


@dataclass(frozen=True)
class Fit:
    """A law and how well it describes what was seen."""

    name: str
    law: Law
    parameters: int
    bic: float
    """Schwarz's criterion, −2·ln L + parameters·ln n: lower is better."""
    ks: float
    """Largest distance of the two cumulative distributions (Kolmogorov and Smirnov)."""


def fit_of(name: str, law: Law, parameters: int, seen: Observed) -> Fit:
    """A law with its criterion and distance."""
    with np.errstate(divide="ignore"):
        ended = np.log(np.maximum(law.below(seen.tokens + 0.5) - law.below(seen.tokens - 0.5), 1e-300))
        cut = np.log(np.maximum(1.0 - law.below(seen.cut_tokens - 0.5), 1e-300))
    likelihood = float(ended @ seen.counts + cut @ seen.cut_counts)
    tokens, survival = seen.survival()
    before = np.concatenate([[1.0], survival[:-1]])
    above = np.abs(1.0 - law.below(tokens + 0.5) - survival)
    below = np.abs(1.0 - law.below(tokens - 0.5) - before)
    ks = float(max(above.max(), below.max())) if len(tokens) else 0.0
    return Fit(name, law, parameters, parameters * math.log(max(seen.size, 2.0)) - 2.0 * likelihood, ks)


def lognormals(seen: Observed, parts: int, endless: bool) -> Law:
    """Mixture of ``parts`` lognormals, and of responses that never end if ``endless``, of the greatest likelihood found."""
    y, w = _rows(seen.tokens, seen.counts)
    cut, cut_w = _rows(seen.cut_tokens, seen.cut_counts)
    everything = np.concatenate([y, cut])
    weights = np.concatenate([w, cut_w])
    order = np.argsort(everything)
    rank = np.cumsum(weights[order]) / weights.sum()
    best: tuple[float, Law] | None = None
    for split in (0.25, 0.5, 0.8) if parts == 2 else (1.0,):
        short = np.zeros(len(everything), dtype=bool)
        short[order] = rank <= split
        sides = [side for side in (short, ~short) if side.any()][:parts]
        if len(sides) < parts:
            continue
        means = np.array([np.average(everything[side], weights=weights[side]) for side in sides])
        spread = np.array(
            [
                np.average((everything[side] - m) ** 2, weights=weights[side])
                for side, m in zip(sides, means, strict=True)
            ]
        )
        shares = np.array([weights[side].sum() for side in sides] + ([0.5 * cut_w.sum()] if endless else []))
        start = shares / shares.sum(), means, np.maximum(np.sqrt(spread), _NARROWEST)
        found = _maximised(y, w, cut, cut_w, *start)
        if best is None or found[0] > best[0]:
            best = found
    if best is None:
        raise ValueError("all lengths are equal, so there are no two parts in them")
    return best[1]


def _rows(tokens: FloatArray, counts: FloatArray) -> tuple[FloatArray, FloatArray]:
    """ln(length) with weights, near lengths put together where there are more than a fit can tell apart."""
    y = np.log(tokens)
    if len(y) <= _MOST_ROWS:
        return y, counts
    at = ((y - y[0]) / (y[-1] - y[0]) * (_MOST_ROWS - 1)).astype(np.int64)
    weight = np.bincount(at, counts)
    kept = weight > 0
    return np.bincount(at, counts * y)[kept] / weight[kept], np.asarray(weight[kept], dtype=np.float64)


def _maximised(
    y: FloatArray,
    w: FloatArray,
    cut: FloatArray,
    cut_w: FloatArray,
    shares: FloatArray,
    mean: FloatArray,
    sigma: FloatArray,
) -> tuple[float, Law]:
    """ln-likelihood and law after expectation-maximisation; a share more than means is that of responses without an end."""
    parts = len(mean)
    total = w.sum() + cut_w.sum()
    before = -math.inf
    for _ in range(_ROUNDS):
        z = (y[:, None] - mean) / sigma
        density = shares[:parts] * np.exp(-0.5 * z * z) / (sigma * math.sqrt(2.0 * math.pi))
        all_density = np.maximum(density.sum(axis=1), 1e-300)
        t = (cut[:, None] - mean) / sigma
        beyond = normal_cdf(-t)
        left = shares * np.concatenate([beyond, np.ones((len(cut), len(shares) - parts))], axis=1)
        all_left = np.maximum(left.sum(axis=1), 1e-300)
        likelihood = float(np.log(all_density) @ w + np.log(all_left) @ cut_w)
        if likelihood - before < _SETTLED * total:
            break
        before = likelihood
        r = density / all_density[:, None] * w[:, None]
        c = left / all_left[:, None] * cut_w[:, None]
        hazard = np.where(
            t < 8.0,
            np.exp(-0.5 * t * t) / math.sqrt(2.0 * math.pi) / np.maximum(beyond, 1e-300),
            t + 1.0 / np.maximum(t, 1.0),
        )
        cut_mean = mean + sigma * hazard
        cut_variance = sigma * sigma * np.clip(1.0 + t * hazard - hazard * hazard, 0.0, 1.0)
        count = np.maximum(r.sum(axis=0) + c[:, :parts].sum(axis=0), 1e-9)
        mean = (y @ r + (c[:, :parts] * cut_mean).sum(axis=0)) / count
        squares = (r * (y[:, None] - mean) ** 2).sum(axis=0)
        squares = squares + (c[:, :parts] * (cut_variance + (cut_mean - mean) ** 2)).sum(axis=0)
        sigma = np.maximum(np.sqrt(squares / count), _NARROWEST)
        shares = np.concatenate([count, c[:, parts:].sum(axis=0)]) / total
    laws: list[tuple[float, Law]] = [
        (float(share), LognormalLaw(float(np.exp(m)), float(s)))
        for share, m, s in zip(shares[:parts], mean, sigma, strict=True)
    ]
    laws += [(float(share), EndlessLaw()) for share in shares[parts:]]
    return before, laws[0][1] if len(laws) == 1 else MixtureLaw.of(sorted(laws, key=_by_length))


def _by_length(part: tuple[float, Law]) -> float:
    law = part[1]
    return law.median_tokens if isinstance(law, LognormalLaw) else math.inf


def histogram(seen: Observed) -> tuple[Law, int]:
    """The lengths as they were seen, in bins of about equal counts that get finer towards the longest; and how many bins.

    The edges lie between whole tokens, and a length that comes often has a bin of its own. What was cut is a share that never ends.
    """
    n = float(seen.counts.sum())
    cut_share = float(seen.cut_counts.sum()) / seen.size
    if n == 0:
        return EndlessLaw(), 1
    bins = int(min(64, max(4, 2.0 * n ** (1.0 / 3.0))))
    levels = [i / bins for i in range(1, bins)]
    rest = 0.5 / bins
    while rest * n >= _LEAST_IN_BIN:
        levels.append(1.0 - rest)
        rest *= 0.5
    tokens, survival = seen.survival()
    # What ended, given that it ended before it was cut: cuts at several lengths thin out the long ones.
    ended = (1.0 - survival) / (1.0 - survival[-1])
    at = np.searchsorted(ended, np.array(levels) - 1e-12)
    often = np.diff(ended, prepend=0.0) > 1.0 / bins
    edges = np.unique(np.concatenate([tokens[at[at < len(tokens)]], tokens[often], tokens[often] - 1.0, tokens[-1:]]))
    edges = edges[edges >= tokens[0]]
    cumulative = ended[np.searchsorted(tokens, edges, side="right") - 1]
    body = HistogramLaw((float(tokens[0]) - 0.5, *(edges + 0.5).tolist()), (0.0, *cumulative.tolist()))
    if cut_share == 0.0:
        return body, len(edges)
    return MixtureLaw.of([(1.0 - float(survival[-1]), body), (float(survival[-1]), EndlessLaw())]), len(edges) + 1
