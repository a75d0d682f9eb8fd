"""What to write into a job or a scenario so that it has the lengths of a log.

A law goes in as the law that a file can say, everything else as a histogram, finer towards the longest. What the cap cuts lies in
a bin that reaches beyond the cap, since reading it cuts it again: so it stays at the cap, and not a little below.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from rljob_planner.laws import EndlessLaw, Law, LognormalLaw, MixtureLaw
from rljob_planner.lengths import LengthDistribution
from rljob_planner.traces import HISTOGRAM, ONE_LENGTH, FittedLengths

_BINS = 48
_MILLION = 1_000_000
_DRIFTS = 1.1
"""Ratio of the longest to the shortest stage of a run from which on drift is worth writing down."""


def job_block(found: FittedLengths) -> dict[str, Any]:
    """``workload.responseTokens`` of an RLJob."""
    lengths, cap = found.distribution, found.cap_tokens
    mean, cv = round(lengths.mean()), round(lengths.cv(), 3)
    room = 0.97 * (cap / mean - 1.0)
    if found.law in ("lognormal", ONE_LENGTH) and mean <= cap and (cv == 0.0 or cv * cv < room):
        return {"mean": mean, "cv": cv, "max": cap}
    return {"max": cap, "histogram": _bins(lengths, cap)}


def scenario_block(found: FittedLengths) -> dict[str, Any]:
    """The keys of a scenario's ``workload`` that a log tells: lengths, how alike a group is, and how lengths move."""
    block: dict[str, Any] = {"responseTokens": _described(found)}
    if found.group_correlation is not None:
        block["groupCorrelation"] = round(found.group_correlation, 3)
    if found.growth is not None and found.growth.widest > _DRIFTS:
        first = found.growth.points[0][0]
        block["drift"] = [[round(step - first), round(level, 3)] for step, level in found.growth.points]
    return block


def _described(found: FittedLengths) -> dict[str, Any]:
    lengths, cap = found.distribution, found.cap_tokens
    if found.law == ONE_LENGTH:
        return {"values": [int(lengths.support_tokens[0])], "max": cap}
    parts = _parts(found.fits[0].law) if found.law != HISTOGRAM else []
    peaks = [(share, law) for share, law in parts if isinstance(law, LognormalLaw)]
    endless = sum(share for share, law in parts if isinstance(law, EndlessLaw))
    if len(peaks) == 1:
        law: dict[str, Any] = {**_lognormal(peaks[0][1]), "max": cap}
        return {"lognormal": {**law, "capMass": round(endless, 5)} if endless > 0.0 else law}
    if len(peaks) == 2 and endless == 0.0:
        return {"bimodal": [{"weight": round(share, 5), **_lognormal(law)} for share, law in peaks], "max": cap}
    return {"histogram": _bins(lengths, cap), "max": cap}


def _parts(law: Law) -> list[tuple[float, Law]]:
    return list(law.parts) if isinstance(law, MixtureLaw) else [(1.0, law)]


def _lognormal(law: LognormalLaw) -> dict[str, Any]:
    return {"median": round(law.median_tokens, 1), "sigma": round(law.sigma, 4)}


def _bins(lengths: LengthDistribution, cap: int) -> list[list[int]]:
    """[upper edge, count per million], a length that comes often in a bin of its own."""
    levels = [i / _BINS for i in range(1, _BINS)] + [1 - 0.5**k / _BINS for k in range(1, 10)]
    ends = float(1.0 - lengths.survival(np.array([cap - 1.0]))[0])
    often = lengths.support_tokens[lengths.probabilities > 1.0 / _BINS].tolist()
    first = int(lengths.support_tokens[0]) - 1
    edges = {lengths.quantile(p * ends) for p in levels} | {*often, *(t - 1 for t in often), first, cap - 1}
    kept = [*sorted(edge for edge in edges if 0 < edge < cap), 2 * cap]
    above = 1.0 - lengths.survival(np.array(kept, dtype=np.float64))
    counts = np.diff(np.rint(above * _MILLION).astype(np.int64), prepend=0)
    return [[edge, int(count)] for edge, count in zip(kept, counts, strict=True)]
