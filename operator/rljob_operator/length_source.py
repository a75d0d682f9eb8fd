"""Whose response lengths are believed: the job's own, else those of the requests that its samplers finished. Pure.

Most frameworks log a mean of their lengths and no distribution, and a decision takes the distribution. The samplers' engine has one, of requests.
A request is not always a sample, though: with turns it is one of several, a rollout that is cut off at new weights and continued makes many
of one sample, and others may ask the same server. So it counts only where nothing speaks against it, and the two never mix: where
the samplers' lengths count, bins, mean and growth are all theirs, and what the job says itself is what they are held against.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass, field

from rljob_operator.answers import Answers, histogram, over, trend
from rljob_operator.engines import Engine
from rljob_operator.readings import LengthHistogram, Reading, Trend, combined

AGREES = 0.15
"""How far the samplers' mean may be from the job's own, relative to the latter: the job's counts what was trained, some steps later, and
leaves out what it filtered. A rollout of which one sample in seven is cut off once is further away than that."""

CUT_OFF = 0.01
"""Share of requests that were cut off beyond which a request is no whole sample, where the job tells no mean to compare with."""


@dataclass(frozen=True)
class Lengths:
    """The lengths of a window and where they are from."""

    histogram: Reading[LengthHistogram] = field(default_factory=Reading.missing)
    """Lengths of responses, uncorrected."""
    trend: Reading[Trend] = field(default_factory=Reading.missing)
    """How fast their mean changes."""
    from_samplers: str | None = None
    """That they are the samplers', and why, in words; None where they are not."""
    doubt: str | None = None
    """Why the samplers' are not believed, in words; None where they are, or where nobody needs them."""


def lengths_of(
    view: Answers,
    *,
    window_s: float,
    period: Reading[float],
    samplers: Collection[str],
    engine: Engine,
    samples_per_prompt: int,
    max_response_tokens: int | None,
    environment_turns: int | None,
) -> Lengths:
    """The lengths behind the answers over a window of ``window_s`` seconds.

    ``period``: as it was read; without one the trainer may be silent, and whether it exports lengths of its own is not known then.
    ``samplers``: the pods that are ready, all of which have to speak. The rest as ``telemetry.observe`` has it.
    """

    def read(key: str, seen: Reading[float], halves: str) -> Lengths:
        found = histogram(view.rows[f"{key}_bucket"], view.number(f"{key}_sum"), max_response_tokens)
        growth = None if found is None else trend(view, found.cv, window_s / 2, samples_per_prompt, halves)
        return Lengths(over(seen, found), over(seen, growth))

    own = read("response", view.newest("rljob_response_tokens_count"), "")
    if view.rows["response_bucket"] or not period.known:
        return own
    name = engine.metrics.request_tokens
    if environment_turns:
        doubt = f"{name} of the samplers is no stand-in: a request is one turn of a sample that has an environment"
        return Lengths(own.histogram, own.trend, doubt=doubt)
    spoken = combined([view.of_pod((f"{name}_count",), pod) for pod in samplers], math.fsum)
    theirs = read("request", spoken, "request_")
    lengths = theirs.histogram.value
    if lengths is None:
        needs = "" if engine.lengths is None else f" (older versions of {engine.title} need {engine.lengths.word})"
        doubt = f"{name} of the samplers, which could stand in, is {theirs.histogram.state}{needs}"
        return Lengths(own.histogram, own.trend, doubt=doubt)
    against = _against(view, lengths, engine)
    if against is not None:
        return Lengths(own.histogram, own.trend, doubt=against)
    known = "no distribution" if _own_mean(view) is not None else "none"
    return Lengths(
        theirs.histogram, theirs.trend, f"response lengths are {name} of the samplers, since the job exports {known}"
    )


def _own_mean(view: Answers) -> float | None:
    """The mean length as the job says it: of finished responses, else of trained samples."""
    return view.ratio("response_sum", "response_count") or view.ratio("tokens", "samples") or None


def _against(view: Answers, lengths: LengthHistogram, engine: Engine) -> str | None:
    """What speaks against taking requests for samples, in words."""
    name, mean = engine.metrics.request_tokens, _own_mean(view)
    if mean is not None:
        if abs(lengths.mean_tokens / mean - 1.0) <= AGREES:
            return None
        return (
            f"{name} of the samplers is no stand-in: its mean is {lengths.mean_tokens:,.0f} tokens and the job's own {mean:,.0f}, more than "
            f"{AGREES:.0%} apart, so a request is not a sample (cut off at new weights and continued, one of several turns, or asked by others)"
        )
    cut = None if engine.metrics.aborted is None else view.number("request_aborted")
    if cut is None:
        return (
            f"{name} of the samplers is no stand-in: nothing tells whether its requests are whole samples, since the job reports no mean "
            f"length and {engine.title} does not tell how many requests were cut off"
        )
    if cut > CUT_OFF * lengths.count:
        return (
            f"{name} of the samplers is no stand-in: {cut / lengths.count:.0%} of its requests were cut off, and the job reports no mean "
            "length to compare with"
        )
    return None
