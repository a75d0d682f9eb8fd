"""What the metrics say, as values: the vocabulary between Prometheus and the decision.

The worst incidents of autoscalers come from an unknown that was read as zero: an empty query result looks like an idle
fleet. So a reading is a value, missing, or stale, and the type has no default number to fall back to. A sum over a fleet is
known only if every member's part is: half a scrape is not a small fleet. This module does no I/O, so that what decides can
import it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Generic, TypeVar

T = TypeVar("T")
U = TypeVar("U")


class ReadingState(StrEnum):
    """Whether a reading can be used."""

    VALUE = "value"
    MISSING = "missing"
    STALE = "stale"


@dataclass(frozen=True)
class Reading(Generic[T]):
    """One measured quantity: a value, or a reason why there is none."""

    state: ReadingState
    """``VALUE``: fresh and usable; ``STALE``: it was there and stopped; ``MISSING``: nothing was there."""
    value: T | None = None
    """The quantity in its own unit; set exactly if the state is ``VALUE``."""
    age_s: float | None = None
    """Seconds since the newest sample behind the reading, None if none was seen."""

    def __post_init__(self) -> None:
        """Refuse a value that is not to be used, and the absence of one that is."""
        if (self.state is ReadingState.VALUE) != (self.value is not None):
            raise ValueError(f"a {self.state} reading with value {self.value!r}: only a VALUE reading carries a value")

    @classmethod
    def of(cls, value: T, age_s: float | None = None) -> Reading[T]:
        """A fresh value."""
        return cls(ReadingState.VALUE, value, age_s)

    @classmethod
    def missing(cls) -> Reading[T]:
        """Nothing was there."""
        return cls(ReadingState.MISSING)

    @classmethod
    def stale(cls, age_s: float | None = None) -> Reading[T]:
        """It was there, and stopped ``age_s`` seconds ago."""
        return cls(ReadingState.STALE, None, age_s)

    @property
    def known(self) -> bool:
        """Whether there is a value to use."""
        return self.state is ReadingState.VALUE

    def map(self, function: Callable[[T], U | None]) -> Reading[U]:
        """The reading of a derived quantity; missing where the function finds no answer (None)."""
        if self.value is None:
            return Reading(self.state, None, self.age_s)
        derived = function(self.value)
        return Reading.missing() if derived is None else Reading.of(derived, self.age_s)


def combined(readings: Iterable[Reading[float]], merge: Callable[[list[float]], float]) -> Reading[float]:
    """A quantity of a whole fleet: known only if every part is and there is at least one part; missing outweighs stale."""
    parts = list(readings)
    if not parts or any(part.state is ReadingState.MISSING for part in parts):
        return Reading.missing()
    ages = [part.age_s for part in parts if part.age_s is not None]
    oldest_s = max(ages) if ages else None
    if any(part.state is ReadingState.STALE for part in parts):
        return Reading.stale(oldest_s)
    return Reading.of(merge([part.value for part in parts if part.value is not None]), oldest_s)


def mean(values: list[float]) -> float:
    """The arithmetic mean of a list that is not empty."""
    return math.fsum(values) / len(values)


@dataclass(frozen=True)
class LengthHistogram:
    """Response lengths that were seen in a window."""

    bins: tuple[tuple[float, float], ...]
    """Pairs of upper edge in tokens (finite, increasing) and count of samples (≥ 0, may be fractional: Prometheus extrapolates)."""
    mean_tokens: float
    """Mean length in tokens from the sum that was measured beside the bins, so free of their width."""

    @property
    def count(self) -> float:
        """Samples seen."""
        return math.fsum(count for _, count in self.bins)

    @property
    def second_moment(self) -> float:
        """E[L²] in tokens², lengths uniform inside their bin, brought to the measured mean."""
        low, second = 0.0, 0.0
        for upper, count in self.at_measured_mean():
            second += count * (low * low + low * upper + upper * upper) / 3
            low = upper
        return second / self.count

    @property
    def cv(self) -> float:
        """Standard deviation over mean."""
        return math.sqrt(max(0.0, self.second_moment / self.mean_tokens**2 - 1.0))

    def quantile(self, q: float) -> float:
        """Tokens at quantile ``q`` in 0..1, linear inside the bin."""
        target, seen, low = q * self.count, 0.0, 0.0
        for upper, count in self.bins:
            if count > 0 and seen + count >= target:
                return low + (upper - low) * (target - seen) / count
            seen, low = seen + count, upper
        return self.bins[-1][0]

    def scaled(self, factor: float) -> LengthHistogram:
        """All lengths times ``factor``, not cut off anywhere: who knows the cap on a response clips at it."""
        return LengthHistogram(tuple((upper * factor, count) for upper, count in self.bins), self.mean_tokens * factor)

    def at_measured_mean(self) -> tuple[tuple[float, float], ...]:
        """The bins with their edges moved so that lengths uniform inside a bin have the measured mean."""
        low, first = 0.0, 0.0
        for upper, count in self.bins:
            first += count * (low + upper) / 2
            low = upper
        factor = self.mean_tokens * self.count / first
        return tuple((upper * factor, count) for upper, count in self.bins)


@dataclass(frozen=True)
class Trend:
    """How fast the mean response length changes."""

    per_s: float
    """d ln(mean length) / dt in 1/s; positive when responses grow."""
    uncertainty_per_s: float
    """Standard error of ``per_s`` in 1/s, from the spread of lengths and the number of samples."""

    @property
    def shrunk_per_s(self) -> float:
        """The trend drawn to zero by its own uncertainty: g·max(0, 1 − (se/g)²), so noise alone predicts no growth."""
        if self.per_s == 0:
            return 0.0
        return self.per_s * max(0.0, 1.0 - (self.uncertainty_per_s / self.per_s) ** 2)


def finished_age_s(histogram: LengthHistogram, iteration_s: float, window_s: float) -> float:
    """How old, in seconds, the distribution is that finished samples show.

    A sample of length L that finishes at t was drawn from the distribution of its start, t − L·τ (τ: seconds a token). Where
    a finished slot refills at once, starts per second fall as 1/mean, and to first order in the trend the mean of what
    finishes at t is that of starts at t − τ·E[L²]/E[L]: the age is length-biased, since a long sample both began earlier and
    weighs more. The window adds half its length.
    """
    return iteration_s * histogram.second_moment / histogram.mean_tokens + window_s / 2


CORRECTION_LIMIT = 2.0
"""Largest factor, up or down, by which the trend may move a measured length: an extrapolation is no measurement."""


def corrected_lengths(histogram: LengthHistogram, trend: Trend, age_s: float, lead_s: float = 0.0) -> LengthHistogram:
    """The lengths of samples that start ``lead_s`` seconds from now, from those that finished in a window.

    While lengths grow, the long ones are still running, so what finished is too short: mean(now) = mean(finished) ·
    exp(g·(age + lead)), with the age of ``finished_age_s`` and the trend g shrunk by its uncertainty. All lengths are scaled
    alike, by a factor within 1/2 … 2.
    """
    exponent = trend.shrunk_per_s * (age_s + lead_s)
    limit = math.log(CORRECTION_LIMIT)
    return histogram.scaled(math.exp(min(limit, max(-limit, exponent))))


@dataclass(frozen=True)
class SamplerTelemetry:
    """What one sampler pod's engine reports."""

    running: Reading[float]
    """Running samples now."""
    waiting: Reading[float]
    """Samples that wait for a slot now."""
    kv_usage: Reading[float]
    """Share of the KV room in use now, 0..1."""
    kv_tokens: Reading[float]
    """KV room in tokens."""
    running_mean: Reading[float]
    """Running samples, mean over the window."""
    kv_usage_mean: Reading[float]
    """Share of the KV room in use, mean over the window."""
    iteration_s: Reading[float]
    """Mean seconds between two tokens of a sample over the window."""
    generation_tokens_per_s: Reading[float]
    """Tokens generated per second over the window."""

    @classmethod
    def unknown(cls) -> SamplerTelemetry:
        """A pod of which nothing was scraped."""
        return cls(*(Reading.missing() for _ in range(8)))


def _missing() -> Reading[float]:
    return Reading.missing()


@dataclass(frozen=True)
class Telemetry:
    """Everything the metrics say about one job at one instant; times in seconds, counts over the window."""

    at: float
    """When it was read, in seconds since the epoch."""
    window_s: float
    """Window that means, rates and histograms cover: at most the time since the present layout was acknowledged; 0 if that
    is too short to say anything."""
    since_s: float | None = None
    """Seconds since the present layout was acknowledged, None if it was not yet."""
    policy_version: Reading[int] = field(default_factory=Reading.missing)
    """The newest published policy version."""
    steps_in_window: Reading[int] = field(default_factory=Reading.missing)
    """Versions published in the window; a true zero where versions are seen and none is new."""
    queue_groups: Reading[float] = field(default_factory=_missing)
    """Complete groups that wait for the trainer."""
    in_flight_samples: Reading[float] = field(default_factory=_missing)
    """Samples submitted and not finished."""
    layout_generation: Reading[int] = field(default_factory=Reading.missing)
    """Smallest layout generation over the trainer pods that are expected; unknown if one of them is silent."""
    staleness_mean: Reading[float] = field(default_factory=_missing)
    """Mean staleness of samples trained in the window, in policy versions."""
    staleness_p95: Reading[float] = field(default_factory=_missing)
    """95th percentile of staleness, in policy versions, linear inside a bucket."""
    staleness_max: Reading[float] = field(default_factory=_missing)
    """Largest staleness of a sample trained in the window, in policy versions."""
    period_s: Reading[float] = field(default_factory=_missing)
    """Mean seconds between two published versions."""
    train_step_s: Reading[float] = field(default_factory=_missing)
    """Mean seconds of a training step, without waiting and weight sync."""
    trainer_wait_share: Reading[float] = field(default_factory=_missing)
    """Share of the window in which the trainer waited for samples, 0..1."""
    weight_sync_s: Reading[float] = field(default_factory=_missing)
    """Mean seconds of a weight sync."""
    trained_samples_per_step: Reading[float] = field(default_factory=_missing)
    """Samples that a step consumed."""
    trained_tokens_per_sample: Reading[float] = field(default_factory=_missing)
    """Response tokens of a trained sample."""
    in_flight_at_samplers: Reading[float] = field(default_factory=_missing)
    """Samples that samplers run or let wait, where they can stand in for those in flight; missing where they can't or nobody needs them."""
    response_lengths: Reading[LengthHistogram] = field(default_factory=Reading.missing)
    """Lengths of the responses of the window, uncorrected."""
    response_trend: Reading[Trend] = field(default_factory=Reading.missing)
    """How fast the mean length changes."""
    environment_turn_s: Reading[float] = field(default_factory=_missing)
    """Mean seconds that a sample was in its environment between two turns; missing where nobody exports it, which is no fault."""
    environment_turns_per_s: Reading[float] = field(default_factory=_missing)
    """Turns in the environment that ended per second."""
    samplers: Mapping[str, SamplerTelemetry] = field(default_factory=dict)
    """Per sampler pod: every pod that the API server shows as ready, and others that still report."""
    ready_samplers: frozenset[str] = frozenset()
    """The sampler pods that count for fleet quantities."""
    stand_ins: tuple[str, ...] = ()
    """What is known from elsewhere than the job's own metrics, one sentence each without a full stop; empty if nothing is."""
    missing: tuple[str, ...] = ()
    """What is unknown and what to do about it, one sentence each; empty if all is known."""

    @property
    def in_flight(self) -> Reading[float]:
        """Samples submitted and not finished: as the job says, else as many as are seen at the samplers."""
        said = self.in_flight_samples
        return self.in_flight_at_samplers if said.state is ReadingState.MISSING else said

    @property
    def response_tokens_mean(self) -> Reading[float]:
        """Mean response length in tokens, uncorrected."""
        return self.response_lengths.map(lambda histogram: histogram.mean_tokens)

    @property
    def running_by_pod(self) -> dict[str, Reading[float]]:
        """Running samples by sampler pod, for drain checks: only a known 0 says that a pod is drained."""
        return {pod: sampler.running for pod, sampler in self.samplers.items()}

    @property
    def running(self) -> Reading[float]:
        """Running samples of the fleet now."""
        return self.fleet(lambda sampler: sampler.running, math.fsum)

    @property
    def waiting(self) -> Reading[float]:
        """Waiting samples of the fleet now."""
        return self.fleet(lambda sampler: sampler.waiting, math.fsum)

    @property
    def kv_usage(self) -> Reading[float]:
        """Mean share of the KV room in use now, 0..1."""
        return self.fleet(lambda sampler: sampler.kv_usage, mean)

    @property
    def iteration_s(self) -> Reading[float]:
        """Mean seconds between two tokens of a sample, over the fleet and the window; a pod known to be idle has no say."""
        busy = [
            sampler.iteration_s
            for sampler in (self.samplers.get(pod, SamplerTelemetry.unknown()) for pod in self.ready_samplers)
            if sampler.generation_tokens_per_s.value != 0
        ]
        return combined(busy, mean)

    @property
    def generation_tokens_per_s(self) -> Reading[float]:
        """Tokens per second of the fleet over the window."""
        return self.fleet(lambda sampler: sampler.generation_tokens_per_s, math.fsum)

    def fleet(
        self, part: Callable[[SamplerTelemetry], Reading[float]], merge: Callable[[list[float]], float]
    ) -> Reading[float]:
        """A fleet quantity over the ready sampler pods, unknown if any of them is (a part is never read as the whole)."""
        return combined(
            (part(self.samplers.get(pod, SamplerTelemetry.unknown())) for pod in self.ready_samplers), merge
        )
