"""Response lengths from a log instead of from a guess: the law that fits them, and what the log cannot tell.

Staleness hangs on the longest response of a group, which is where a log says least: a hundred responses hold one beyond the 99th
percentile. So a fit is only half of the answer. The other half is where it leaves the data: how few responses the tail rests on,
whether the cap was told or guessed, how much of the longest of a group is extrapolation, whether lengths moved while the log was
written. All of it is said beside the fit, since nobody asks for it later.

Which law. Of one lognormal, two lognormals (a run that answers in two ways), each with and without a share that only the cap ends,
those count whose distance from the data (KS) could be chance at the 1 % level, or is under two hundredths, which no plan
notices. The one with the lowest BIC of them is taken. If none is left, the lengths themselves are, as a histogram.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from rljob_planner.laws import IntArray
from rljob_planner.length_fit import Fit, Observed, fit_of, histogram, lognormals
from rljob_planner.length_log import BoolArray, InvalidTraceError, LengthTrace, parse_lengths, read_lengths
from rljob_planner.length_trend import LengthGrowth, group_correlation, growth_of, within_steps
from rljob_planner.lengths import LengthDistribution

__all__ = [
    "FittedLengths",
    "InvalidTraceError",
    "LengthGrowth",
    "LengthTrace",
    "fitted",
    "parse_lengths",
    "read_lengths",
]

CapFrom = Literal["told", "flags", "pile", "longest"]

HISTOGRAM = "histogram"
ONE_LENGTH = "one length"

_UNNOTICED_KS = 0.02
_KS_AT_1_PERCENT = 1.63
"""Times 1/√n: the distance that chance exceeds once in a hundred samples of one law (Kolmogorov's limit)."""
_FEW = 200
_FEW_BEYOND_P99 = 20
_USUAL_GROUP = 8
_SUPPORTED_BY = 10
"""Responses that a length must be exceeded by to count as seen."""
_EXTRAPOLATED = 0.2
_GROWTH = 1.25
_MOSTLY_CUT = 0.25


@dataclass(frozen=True, eq=False)
class FittedLengths:
    """A law for the lengths of a trace, what it rests on, and where it does not hold."""

    distribution: LengthDistribution
    law: str
    """``lognormal``, ``two lognormals`` (each perhaps ``… and a share at the cap``), ``histogram`` or ``one length``."""
    ks: float
    """Largest distance of the cumulative distributions of law and data, 0..1."""
    samples: int
    cap_tokens: int
    cap_from: CapFrom
    """``told``, ``flags`` of the log, a ``pile`` of equal longest lengths, or ``longest``: no cap is to be seen."""
    cap_share: float
    """Share of the responses that the cap cut, 0..1."""
    seen_mean: float
    """Mean tokens of the responses in the log."""
    seen_cv: float
    longest: int
    """Longest response in the log, tokens."""
    group_size: int | None
    """Samples per prompt in the log; None where it does not say."""
    group_correlation: float | None
    """Correlation of ln(length) among samples of one prompt, 0..1; None where the log does not say."""
    growth: LengthGrowth | None
    """How lengths moved over the steps of the log; None where it does not say."""
    fits: tuple[Fit, ...]
    """All laws that were tried, best first."""
    notes: tuple[str, ...]
    """What one should know of the log and the fit."""
    warnings: tuple[str, ...]
    """What the log cannot support, each a sentence."""

    def to_json(self) -> dict[str, Any]:
        """The fit as the JSON object of ``rljob lengths``."""
        from rljob_planner._lengths_json import lengths_json

        return lengths_json(self)


@dataclass(frozen=True)
class _Cap:
    tokens: int
    came_from: CapFrom
    cut: BoolArray
    """Which responses were cut before they ended."""
    seen_tokens: int
    """The cap under which the log was written."""


def fitted(trace: LengthTrace, max_tokens: int | None = None) -> FittedLengths:
    """The law of a trace's lengths under a cap of ``max_tokens``, by default the one under which the log was written."""
    tokens = np.maximum(trace.tokens, 1)
    notes, warnings = list(trace.notes), []
    cap = _cap(trace, tokens, max_tokens)
    tokens = np.minimum(tokens, cap.tokens)
    seen = Observed.of(tokens, cap.cut)
    fits, lengths = _best(seen, cap.tokens)
    sizes = np.bincount(trace.groups) if trace.groups is not None else None
    group = round(float(sizes[sizes > 0].mean())) if sizes is not None else None
    scores = within_steps(tokens, trace.steps)
    found = FittedLengths(
        distribution=lengths,
        law=fits[0].name if fits else ONE_LENGTH,
        ks=fits[0].ks if fits else 0.0,
        samples=len(tokens),
        cap_tokens=cap.tokens,
        cap_from=cap.came_from,
        cap_share=float(cap.cut.mean()),
        seen_mean=float(tokens.mean()),
        seen_cv=float(tokens.std() / tokens.mean()),
        longest=int(tokens.max()),
        group_size=group if group is not None and group > 1 else None,
        group_correlation=group_correlation(scores, trace.groups),
        growth=growth_of(tokens, trace.steps),
        fits=fits,
        notes=(),
        warnings=(),
    )
    notes += _notes(trace, tokens, cap, found)
    warnings += _warnings(trace, cap, found)
    return replace(found, notes=tuple(notes), warnings=tuple(warnings))


def _cap(trace: LengthTrace, tokens: IntArray, told: int | None) -> _Cap:
    longest = int(tokens.max())
    came_from: CapFrom
    if trace.truncated is not None and trace.truncated.any():
        seen = int(tokens[trace.truncated].max())
        cut, came_from = trace.truncated, "flags"
    elif _piles_up(tokens, longest):
        seen, cut, came_from = longest, tokens == longest, "pile"
    else:
        seen, cut, came_from = longest, np.zeros(len(tokens), dtype=np.bool_), "longest"
    if told is None:
        return _Cap(max(seen, longest), came_from, cut, seen)
    # What is longer than the cap that counts would have been cut by it.
    return _Cap(
        told, "told", cut & (tokens <= told) | (tokens >= told), min(seen, told) if came_from != "longest" else told
    )


def _piles_up(tokens: IntArray, longest: int) -> bool:
    """Whether the longest length comes so often that it is a cap: a law has no peak at the end of its tail."""
    at_longest = int((tokens == longest).sum())
    near = int((tokens >= 0.9 * longest).sum()) - at_longest
    return at_longest >= 3 and at_longest > 20.0 * near / max(1.0, 0.1 * longest) and len(np.unique(tokens)) > 1


def _best(seen: Observed, cap: int) -> tuple[tuple[Fit, ...], LengthDistribution]:
    lengths = np.concatenate([seen.tokens, seen.cut_tokens])
    if len(np.unique(lengths)) == 1:
        # Where all were cut, nobody knows how long they would have been: as long as they may.
        return (), LengthDistribution.from_values(lengths[:1] if seen.counts.sum() > 0 else [cap], max=cap)
    found = []
    for parts, name in ((1, "lognormal"), (2, "two lognormals")):
        for endless in (False, True) if seen.cut_counts.sum() > 0 else (False,):
            try:
                law = lognormals(seen, parts, endless)
            except ValueError:
                continue
            full_name = f"{name} and a share at the cap" if endless else name
            found.append(fit_of(full_name, law, 3 * parts - 1 + endless, seen))
    body, bins = histogram(seen)
    as_seen = fit_of(HISTOGRAM, body, bins, seen)
    near = max(_UNNOTICED_KS, _KS_AT_1_PERCENT / math.sqrt(seen.size))
    good = sorted((f for f in found if f.ks <= near), key=lambda f: f.bic)
    bad = sorted((f for f in found if f.ks > near), key=lambda f: f.bic)
    ordered = (*good, as_seen, *bad)
    return ordered, LengthDistribution.from_law(ordered[0].law, cap)


def _notes(trace: LengthTrace, tokens: IntArray, cap: _Cap, found: FittedLengths) -> list[str]:
    notes = []
    if cap.came_from == "pile":
        notes.append(
            f"{found.cap_share:.1%} of the responses are exactly {cap.tokens} tokens long, so that is taken for their cap"
        )
    if found.group_size is not None and trace.groups is not None and found.group_correlation is not None:
        size = np.bincount(trace.groups)
        longest = np.zeros(len(size), dtype=np.int64)
        np.maximum.at(longest, trace.groups, tokens)
        full = size == np.bincount(size[size > 0]).argmax()
        times = float(longest[full].mean() / tokens[full[trace.groups]].mean())
        law = found.distribution.tail_multiplier(int(size[full][0]))
        notes.append(
            f"the longest of {int(size[full][0])} samples of one prompt is {times:.3g} times as long as the mean in the log, "
            f"{law:.3g} times by the law if samples were independent; they are correlated by {found.group_correlation:.2f}"
        )
    if trace.is_serving:
        notes.append(
            "this is a log of requests to a server: what people ask of a model is shorter than what a policy in training answers"
        )
    return notes


def _warnings(trace: LengthTrace, cap: _Cap, found: FittedLengths) -> list[str]:
    lengths, n, warnings = found.distribution, found.samples, []
    ended = np.sort(np.minimum(trace.tokens, cap.tokens))
    if n < _FEW:
        warnings.append(
            f"{n} responses say little of the spread and next to nothing of the tail: take a log with {_FEW} or more"
        )
    elif n * 0.01 < _FEW_BEYOND_P99 and found.cap_share < 0.01:
        warnings.append(
            f"about {max(1, round(n * 0.01))} of the {n} responses lie beyond the 99th percentile: the tail rests on them"
        )
    if cap.came_from == "longest":
        warnings.append(
            f"the log shows no cap; the longest response, {found.longest} tokens, is taken for it: give the cap of the run"
        )
    if found.cap_share > _MOSTLY_CUT:
        warnings.append(
            f"the cap, {cap.tokens} tokens, cuts {found.cap_share:.0%} of the responses: lengths are the cap's more than the model's"
        )
    group = found.group_size or _USUAL_GROUP
    supported = int(ended[max(0, n - 1 - _SUPPORTED_BY)])
    share = _share_beyond(lengths, group, max(supported, 1))
    if cap.tokens > cap.seen_tokens and float(cap.cut.mean()) > 0.0:
        how = (
            "run to the new cap"
            if "share at the cap" in found.law or found.law in (HISTOGRAM, ONE_LENGTH)
            else "go on by the law"
        )
        warnings.append(
            f"the log was cut at {cap.seen_tokens} tokens ({cap.cut.mean():.1%} of its responses) and {cap.tokens} are allowed "
            f"now: nobody has seen how long those would be; here they {how}"
        )
    elif cap.tokens >= 2 * found.longest:
        beyond = _share_beyond(lengths, group, found.longest)
        warnings.append(
            f"the cap, {cap.tokens} tokens, is far beyond the longest response in the log, {found.longest}: of the mean longest of "
            f"{group} samples {beyond:.1%} come from lengths in between, by the law alone"
        )
    if supported < cap.seen_tokens and share > _EXTRAPOLATED and n >= _FEW:
        warnings.append(
            f"{share:.0%} of the mean longest of {group} samples comes from lengths above {supported} tokens, of which the log has "
            f"{_SUPPORTED_BY} responses or fewer: staleness and step time are extrapolated"
        )
    growth = found.growth
    if growth is not None and growth.widest > _GROWTH:
        first, last = growth.points[0][0], growth.points[-1][0]
        between = (
            ""
            if growth.widest < 1.05 * max(growth.factor, 1.0 / growth.factor)
            else f" (×{growth.widest:.2f} in between)"
        )
        warnings.append(
            f"lengths moved while the log was written: ×{growth.factor:.2f} from about step {first:.0f} to about step {last:.0f}"
            f"{between}; the fit is of all steps together. A scenario says so by drift, an RLJob by responseTokens.growth beside "
            "the lengths of its start"
        )
    if found.law == HISTOGRAM:
        warnings.append(
            "no law fits, so the lengths are taken as they were seen: none longer will come, other than at the cap"
        )
    return warnings


def _share_beyond(lengths: LengthDistribution, group: int, tokens: int) -> float:
    """Share of the mean longest of ``group`` samples that comes from lengths above ``tokens``."""
    weight = np.diff(lengths.cumulative**group, prepend=0.0) * lengths.support_tokens
    return float(weight[lengths.support_tokens > tokens].sum() / weight.sum())
