"""From the answers of Prometheus to readings: pure functions over series.

``Answers`` holds what came back for one job. Gauges come raw, with times, so their age is known; windowed numbers come computed,
and borrow the freshness of the counter beneath them (``over``).
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterator, Mapping
from typing import TypeVar

from rljob_operator.engines import VLLM, EngineMetrics
from rljob_operator.prometheus import Series
from rljob_operator.readings import LengthHistogram, Reading, SamplerTelemetry, Trend, combined, mean

GROUP_CORRELATION = 0.3
"""Assumed correlation of lengths inside a group: samples of one prompt are no independent draws, so trends are less certain."""

_MATCHER = re.compile(r'(\w+)="([^"]*)"')

MIN_TREND_SAMPLES = 16.0
"""Fewest finished samples in each half of the window for a trend."""

JOB_NAMES = (
    "rljob_policy_version",
    "rljob_queue_depth_groups",
    "rljob_inflight_samples",
    "rljob_layout_generation",
    "rljob_sample_staleness_versions_count",
    "rljob_sample_staleness_max_versions",
    "rljob_train_step_seconds_count",
    "rljob_trainer_wait_seconds_total",
    "rljob_weight_sync_seconds_count",
    "rljob_trained_samples_total",
    "rljob_trained_tokens_total",
    "rljob_response_tokens_count",
)
"""What is asked raw of the job itself: gauges for their value, counters for their freshness. The engine's names come on top."""


Value = TypeVar("Value")


def over(base: Reading[float], value: Value | None) -> Reading[Value]:
    """A windowed quantity with the freshness of the counter beneath it; missing where the window holds nothing (None)."""
    return base.map(lambda _: value)


class Answers:
    """The answers to all queries of a job, by their short names."""

    def __init__(
        self,
        answers: Mapping[str, list[Series]],
        now: float,
        fresh_within_s: float,
        engine: EngineMetrics = VLLM.metrics,
    ) -> None:
        self.rows = answers
        self._engine = engine
        self._now, self._fresh_s = now, fresh_within_s
        self._by_name: dict[str, list[Series]] = {}
        for series in answers["now"]:
            self._by_name.setdefault(series.name, []).append(series)

    @property
    def anything(self) -> frozenset[str]:
        """The names of which at least one sample, fresh or stale, was seen."""
        return frozenset(self._by_name)

    def _reading(self, series: list[Series]) -> Reading[float]:
        """The newest sample of several series: where a pod took over from another, the old one's may still be fresh."""
        if not series:
            return Reading.missing()
        time, value = max(each.last for each in series)
        age_s = max(0.0, self._now - time)
        return Reading.of(value, age_s) if age_s <= self._fresh_s else Reading.stale(age_s)

    def newest(self, name: str) -> Reading[float]:
        """A quantity of the whole job, whichever pod reports it."""
        return self._reading(self._by_name.get(name, []))

    def smallest(self, name: str, pods: Collection[str]) -> Reading[float]:
        """The smallest over the given pods; unknown if one of them is silent or there is none."""
        readings = [self._reading([s for s in self._by_name.get(name, []) if s.pod == pod]) for pod in pods]
        return combined(readings, min)

    def of_pod(self, names: tuple[str, ...], pod: str, merge: str = "sum") -> Reading[float]:
        """A quantity of one pod over its engines, under the first of the names that it has; a name may have matchers in braces."""
        for name in names:
            engines: dict[tuple[str, ...], list[Series]] = {}
            for series in self._named(name):
                if series.pod == pod:
                    part = tuple(series.labels.get(label, "") for label in self._engine.parts)
                    engines.setdefault(part, []).append(series)
            if engines:
                return combined(
                    [self._reading(each) for each in engines.values()], math.fsum if merge == "sum" else mean
                )
        return Reading.missing()

    def _named(self, name: str) -> Iterator[Series]:
        """The series of a name with, or without, matchers; where an engine breaks a total down by priority, the total."""
        bare, _, matchers = name.partition("{")
        wished = dict(_MATCHER.findall(matchers))
        for series in self._by_name.get(bare, []):
            if all(series.labels.get(label) == value for label, value in wished.items()) and not series.labels.get(
                "priority"
            ):
                yield series

    def number(self, key: str) -> float | None:
        """The single number of an answer, None if there is none or it is not finite."""
        rows = self.rows[key]
        return rows[0].last[1] if len(rows) == 1 and math.isfinite(rows[0].last[1]) else None

    def ratio(self, over: str, under: str) -> float | None:
        """The quotient of two answers, None where nothing was counted."""
        numerator, denominator = self.number(over), self.number(under)
        return None if numerator is None or not denominator else numerator / denominator

    def pod_number(self, key: str, pod: str) -> float | None:
        """The number of one pod in an answer by pod."""
        for series in self.rows.get(key, []):
            if series.pod == pod and math.isfinite(series.last[1]):
                return series.last[1]
        return None

    def samplers(self, ready: Collection[str]) -> dict[str, SamplerTelemetry]:
        """What every sampler pod reports: those that are ready and those that still speak."""
        speaking = {s.pod for s in self._by_name.get(self._engine.running, []) if s.pod}
        return {pod: self._sampler(pod) for pod in sorted(speaking | set(ready))}

    def _sampler(self, pod: str) -> SamplerTelemetry:
        engine = self._engine
        running, kv_usage = self.of_pod((engine.running,), pod), self.of_pod(engine.kv_usage, pod, "mean")
        latency = self.of_pod(tuple(f"{name}_count" for name in engine.token_latency), pod)
        seconds, tokens = self.pod_number("latency_sum", pod), self.pod_number("latency_count", pod)
        return SamplerTelemetry(
            running=running,
            waiting=self.of_pod((engine.waiting,), pod),
            kv_usage=kv_usage,
            # It never changes while an engine lives, so it is as fresh as the engine's gauges.
            kv_tokens=running.map(lambda _: self._kv_tokens(pod)),
            running_mean=running.map(lambda _: self.pod_number("running_mean", pod)),
            kv_usage_mean=kv_usage.map(lambda _: self.pod_number("kv_usage_mean", pod)),
            iteration_s=latency.map(lambda _: seconds / tokens if seconds is not None and tokens else None),
            generation_tokens_per_s=self.of_pod(engine.generated, pod).map(lambda _: self.pod_number("generated", pod)),
        )

    def _kv_tokens(self, pod: str) -> float | None:
        """The KV room of a pod in tokens."""
        rows = [series for series in self.rows["kv_tokens"] if series.pod == pod]
        if self._engine.kv_in_labels:
            return _labelled_tokens(rows)
        return rows[0].last[1] if rows and math.isfinite(rows[0].last[1]) else None


def _labelled_tokens(rows: list[Series]) -> float | None:
    """The KV room of a pod in tokens from the labels of ``vllm:cache_config_info``; older engines give only blocks."""
    rooms: dict[str, float] = {}
    for row in rows:
        try:
            size = row.labels.get("kv_cache_size_tokens", "")
            rooms[row.labels.get("engine", "")] = (
                float(size)
                if size not in ("", "None")
                else float(row.labels["num_gpu_blocks"]) * float(row.labels["block_size"])
            )
        except (KeyError, ValueError):
            return None
    return math.fsum(rooms.values()) if rooms else None


def steps_and_period(rows: list[Series]) -> tuple[int | None, float | None]:
    """Versions published in the window, and mean seconds between two, from the raw samples of the policy version.

    Between the first change that was seen and the last: the error is one scrape interval over all steps, while window over
    number of versions is off by up to a whole step. A version that falls (a trainer that went back to a checkpoint) starts
    the count anew. None where no version, or no two changes, were seen.
    """
    points = sorted(point for row in rows for point in row.points)
    if not points:
        return None, None
    first, previous = points[0][1], points[0][1]
    changes: list[tuple[float, float]] = []
    for time, version in points:
        if version < previous:
            first, changes = version, []
        elif version > previous:
            changes.append((time, version))
        previous = version
    period = None
    if len(changes) >= 2:
        period = (changes[-1][0] - changes[0][0]) / (changes[-1][1] - changes[0][1])
    return round(previous - first), period


def _cumulative(rows: list[Series]) -> list[tuple[float, float]]:
    """Upper edge and cumulative count, in order, made monotone: extrapolated increases of buckets may cross by rounding."""
    edges = sorted((float(row.labels["le"]), row.last[1]) for row in rows if "le" in row.labels)
    highest, monotone = 0.0, []
    for upper, count in edges:
        highest = max(highest, count)
        monotone.append((upper, highest))
    return monotone


def histogram(rows: list[Series], total_tokens: float | None, max_tokens: int | None) -> LengthHistogram | None:
    """The lengths behind cumulative buckets; None if nothing was seen.

    What is above the last finite edge ends at ``max_tokens``, where responses are cut off, or at twice that edge if it is
    not known. Empty bins at both ends are left out.
    """
    cumulative = _cumulative(rows)
    if not cumulative or cumulative[-1][1] <= 0 or not total_tokens or total_tokens <= 0:
        return None
    finite = [upper for upper, _ in cumulative if math.isfinite(upper)]
    last = finite[-1] if finite else 1.0
    top = float(max_tokens) if max_tokens is not None and max_tokens > last else 2.0 * last
    bins, below = [], 0.0
    for upper, count in cumulative:
        bins.append((upper if math.isfinite(upper) else top, count - below))
        below = count
    while bins and bins[-1][1] <= 0:
        bins.pop()
    # One empty bin stays below the first that counts: it is the lower edge of that one.
    while len(bins) > 1 and bins[0][1] <= 0 and bins[1][1] <= 0:
        bins.pop(0)
    return LengthHistogram(tuple(bins), total_tokens / below)


def quantile(rows: list[Series], q: float) -> float | None:
    """The quantile ``q`` of cumulative buckets, linear inside a bucket; above the last finite edge, that edge."""
    cumulative = _cumulative(rows)
    if not cumulative or cumulative[-1][1] <= 0:
        return None
    target, low, below = q * cumulative[-1][1], 0.0, 0.0
    for upper, count in cumulative:
        if count >= target and count > below:
            return low if not math.isfinite(upper) else low + (upper - low) * (target - below) / (count - below)
        low, below = (upper if math.isfinite(upper) else low), count
    return low


def trend(answers: Answers, cv: float, half_s: float, samples_per_prompt: int, prefix: str = "") -> Trend | None:
    """The growth of the mean length between two adjacent windows of ``half_s`` seconds; None if one of them was not seen.

    ln(m₂/m₁)/half, with standard error cv·√(1/n₁ + 1/n₂)/half, where n counts independent draws: the samples of a group
    share a prompt, so n = samples/(1 + (S − 1)·r) with the correlation r of ``GROUP_CORRELATION``. With too few samples to tell,
    the trend is 0 with an infinite error. ``prefix``: what the names of the halves begin with; nothing for the job's own.
    """
    early_n, late_n = answers.number(f"{prefix}early_count"), answers.number(f"{prefix}late_count")
    if early_n is None or late_n is None:
        return None
    early = answers.ratio(f"{prefix}early_sum", f"{prefix}early_count")
    late = answers.ratio(f"{prefix}late_sum", f"{prefix}late_count")
    if not early or not late or min(early_n, late_n) < MIN_TREND_SAMPLES:
        return Trend(0.0, math.inf)
    design = 1.0 + (samples_per_prompt - 1) * GROUP_CORRELATION
    return Trend(
        per_s=math.log(late / early) / half_s,
        uncertainty_per_s=cv * math.sqrt(design * (1.0 / early_n + 1.0 / late_n)) / half_s,
    )
