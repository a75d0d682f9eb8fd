"""The plant's metrics as Prometheus would hold them: scraped now and then, noisy, unknown for pods that were not scraped yet.

A number that is read is that of the last scrape; a mean or a rate is taken between two scrapes. Noise multiplies what is measured
over a window by a factor that changes slowly (two windows that overlap see much the same), as the content of batches and the neighbours on a
network do: lengths by half as much as times. Windows, quantisation and missing values follow what the operator's own queries give.
"""

from __future__ import annotations

import itertools
import math
import random
from collections import deque
from collections.abc import Collection
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from dev.bench.drift.plant import Engine, Plant
from rljob_operator.answers import GROUP_CORRELATION, MIN_TREND_SAMPLES
from rljob_operator.readings import LengthHistogram, Reading, SamplerTelemetry, Telemetry, Trend
from rljob_operator.telemetry import MIN_SCRAPES

T = TypeVar("T")

NOISE_S = 600.0
"""Seconds over which the noise of what is measured changes."""
LENGTH_NOISE = 0.5
"""Noise of measured lengths over that of measured times."""
KEPT_S = 6 * 3600.0
"""How far back scrapes are kept."""


@dataclass(frozen=True)
class Scrape:
    """What one scrape brought."""

    at_s: float
    version: int
    waited_s: float
    trained_s: float
    lengths: NDArray[np.float64]
    """Finished responses by bin, so far."""
    length_sum: float
    turn_s: float
    turns: float
    queued: int
    in_flight: int
    waiting: int
    acknowledged: dict[str, int]
    engines: dict[str, Engine]


class Scraped:
    """The scrapes of one plant, and the telemetry that a question gets from them. Times in seconds since the plant's start."""

    def __init__(self, plant: Plant, scrape_s: float) -> None:
        """Nothing is scraped yet."""
        self._plant, self._scrape_s = plant, scrape_s
        self._run = plant.run
        self._scrapes: deque[Scrape] = deque(maxlen=max(8, int(KEPT_S / scrape_s)))
        self._next_s = scrape_s
        self._edges = [*plant.edges_tokens, float(plant.run.cap_tokens)]

    def advance(self, until_s: float) -> None:
        """Let the plant run, and scrape it when it is time."""
        while self._next_s <= until_s:
            self._plant.advance(self._next_s)
            self._scrapes.append(self._scrape(self._next_s))
            self._next_s += self._scrape_s
        self._plant.advance(until_s)

    def _scrape(self, at_s: float) -> Scrape:
        plant = self._plant
        lengths, length_sum = plant.lengths
        turn_s, turns = plant.turns
        return Scrape(
            at_s, plant.version, plant.waited_s, plant.trained_s, lengths, length_sum, turn_s, turns, plant.queued,
            plant.in_flight, plant.waiting, dict(plant.acknowledged), {name: plant.engine(name) for name in plant.samplers},
        )  # fmt: skip

    def _factor(self, quantity: int | str, at_s: float, share: float = 1.0) -> float:
        """The noise of a quantity at an instant: log-normal, mean one, changing over ``NOISE_S``."""
        sigma = self._run.trace.noise * share
        if sigma <= 0:
            return 1.0
        position = max(0.0, at_s) / NOISE_S
        bucket, part = int(position), position - int(position)
        a, b = (_normal(self._run.trace.seed, quantity, bucket + i) for i in (0, 1))
        z = ((1.0 - part) * a + part * b) / math.hypot(1.0 - part, part)
        return math.exp(sigma * z - 0.5 * sigma * sigma)

    def telemetry(
        self,
        *,
        at: float,
        now_s: float,
        since_s: float | None,
        window_s: float,
        sampler_pods: Collection[str],
        trainer_pods: Collection[str],
    ) -> Telemetry:
        """The answer to a question at ``at`` (epoch seconds), ``now_s`` seconds after the plant's start."""
        window = 0.0 if since_s is None else min(window_s, now_s - since_s)
        if window < MIN_SCRAPES * self._scrape_s:
            window = 0.0
        nothing = Telemetry(
            at,
            window,
            None if since_s is None else now_s - since_s,
            samplers={pod: SamplerTelemetry.unknown() for pod in sampler_pods},
            ready_samplers=frozenset(sampler_pods),
        )
        if not self._scrapes:
            return replace(nothing, missing=("the job's pods were not scraped yet",))
        last = self._scrapes[-1]
        known = [last.acknowledged.get(pod) for pod in trainer_pods]
        generations = [generation for generation in known if generation is not None]
        complete = len(generations) == len(known) and bool(known)
        telemetry = replace(
            nothing,
            policy_version=Reading.of(last.version),
            queue_groups=Reading.of(float(last.queued)),
            in_flight_samples=Reading.of(float(last.in_flight)),
            layout_generation=Reading.of(min(generations)) if complete else Reading.missing(),
            samplers={pod: self._now_of(last, pod) for pod in sampler_pods},
        )
        if window > 0:
            telemetry = self._windowed(telemetry, last, now_s, window)
        return replace(telemetry, missing=_missing(telemetry))

    def _now_of(self, last: Scrape, pod: str) -> SamplerTelemetry:
        engine = last.engines.get(pod)
        if engine is None:
            return SamplerTelemetry.unknown()
        room, busiest = self._plant.laws.kv_tokens, max(last.engines, key=lambda name: last.engines[name].running)
        return replace(
            SamplerTelemetry.unknown(),
            running=Reading.of(float(engine.running)),
            # The line stands before no engine in particular; most metrics show it at the fullest.
            waiting=Reading.of(float(last.waiting if pod == busiest else 0)),
            kv_usage=Reading.of(min(1.0, engine.resident / room)),
            kv_tokens=Reading.of(float(room)),
        )

    def _windowed(self, telemetry: Telemetry, last: Scrape, now_s: float, window_s: float) -> Telemetry:
        inside = [scrape for scrape in self._scrapes if scrape.at_s >= now_s - window_s]
        if len(inside) < 2:
            return telemetry
        first = inside[0]
        middle = min(inside, key=lambda scrape: abs(scrape.at_s - (now_s - window_s / 2)))
        steps = last.version - first.version
        record = self._plant.record()
        batch = self._run.spec.workload.samples_per_step
        lengths = self._lengths(first, last, now_s)
        telemetry = replace(
            telemetry,
            steps_in_window=Reading.of(steps),
            period_s=_reading(self._period(inside, now_s)),
            trainer_wait_share=Reading.of(min(1.0, max(0.0, last.waited_s - first.waited_s) / window_s)),
            response_lengths=_reading(lengths),
            response_trend=_reading(
                None if lengths is None else self._trend(first, middle, last, lengths.cv, now_s, window_s)
            ),
            samplers={
                pod: self._window_of(telemetry.samplers[pod], first, last, pod, now_s)
                for pod in telemetry.ready_samplers
            },
        )
        if last.turns > first.turns:
            telemetry = replace(
                telemetry,
                environment_turn_s=Reading.of(
                    (last.turn_s - first.turn_s) / (last.turns - first.turns) * self._factor(5, now_s)
                ),
                environment_turns_per_s=Reading.of((last.turns - first.turns) / (last.at_s - first.at_s)),
            )
        if steps < 1:
            return telemetry
        counts = record.staleness[first.version : last.version].sum(axis=0)
        cumulative = np.cumsum(counts)
        tokens = float(record.tokens[first.version : last.version].sum())
        return replace(
            telemetry,
            staleness_mean=Reading.of(float(counts @ np.arange(len(counts))) / float(cumulative[-1])),
            staleness_p95=Reading.of(float(np.searchsorted(cumulative, 0.95 * cumulative[-1]))),
            staleness_max=Reading.of(float(np.flatnonzero(counts)[-1])),
            train_step_s=Reading.of((last.trained_s - first.trained_s) / steps * self._factor(1, now_s)),
            weight_sync_s=Reading.of(self._plant.laws.weight_sync_s),
            trained_samples_per_step=Reading.of(float(batch)),
            trained_tokens_per_sample=Reading.of(tokens / (steps * batch) * self._factor(2, now_s, LENGTH_NOISE)),
        )

    def _period(self, inside: list[Scrape], now_s: float) -> float | None:
        """Seconds between the first change of the version that was seen and the last, over the versions between them."""
        changes = [b for a, b in itertools.pairwise(inside) if b.version > a.version]
        if len(changes) < 2:
            return None
        first, last = changes[0], changes[-1]
        return (last.at_s - first.at_s) / (last.version - first.version) * self._factor(3, now_s)

    def _lengths(self, first: Scrape, last: Scrape, now_s: float) -> LengthHistogram | None:
        counts = last.lengths - first.lengths
        total = last.length_sum - first.length_sum
        seen = np.flatnonzero(counts > 0)
        if not len(seen) or total <= 0:
            return None
        # One empty bin stays below the first that counts: it is the lower edge of that one.
        kept = range(max(0, int(seen[0]) - 1), int(seen[-1]) + 1)
        bins = tuple((self._edges[i], float(counts[i])) for i in kept)
        histogram = LengthHistogram(bins, total / float(counts.sum()))
        return histogram.scaled(self._factor(2, now_s, LENGTH_NOISE))

    def _trend(
        self, first: Scrape, middle: Scrape, last: Scrape, cv: float, now_s: float, window_s: float
    ) -> Trend | None:
        early_n, late_n = float((middle.lengths - first.lengths).sum()), float((last.lengths - middle.lengths).sum())
        if min(early_n, late_n) < MIN_TREND_SAMPLES:
            return Trend(0.0, math.inf)
        early = (
            (middle.length_sum - first.length_sum) / early_n * self._factor(2, now_s - 0.75 * window_s, LENGTH_NOISE)
        )
        late = (last.length_sum - middle.length_sum) / late_n * self._factor(2, now_s - 0.25 * window_s, LENGTH_NOISE)
        half_s = window_s / 2
        design = 1.0 + (self._run.spec.workload.samples_per_prompt - 1) * GROUP_CORRELATION
        return Trend(math.log(late / early) / half_s, cv * math.sqrt(design * (1.0 / early_n + 1.0 / late_n)) / half_s)

    def _window_of(
        self, now: SamplerTelemetry, first: Scrape, last: Scrape, pod: str, now_s: float
    ) -> SamplerTelemetry:
        before, after = first.engines.get(pod), last.engines.get(pod)
        if before is None or after is None:
            return now
        elapsed, tokens = last.at_s - first.at_s, after.tokens - before.tokens
        # Half of the noise of an iteration is the fleet's, half a pod's own.
        noise = self._factor(4, now_s, math.sqrt(0.5)) * self._factor(pod, now_s, math.sqrt(0.5))
        latency = (after.latency_s - before.latency_s) / tokens * noise if tokens > 0 else None
        return replace(
            now,
            running_mean=Reading.of((after.running_s - before.running_s) / elapsed),
            kv_usage_mean=Reading.of(min(1.0, (after.kv_s - before.kv_s) / elapsed / self._plant.laws.kv_tokens)),
            iteration_s=_reading(latency),
            generation_tokens_per_s=Reading.of(tokens / elapsed),
        )


@lru_cache(maxsize=1 << 16)
def _normal(seed: int, quantity: int | str, bucket: int) -> float:
    """A standard normal number that belongs to these keys."""
    return random.Random(f"{seed}/{quantity}/{bucket}").gauss(0.0, 1.0)


def _reading(value: T | None) -> Reading[T]:
    return Reading.missing() if value is None else Reading.of(value)


def _missing(telemetry: Telemetry) -> tuple[str, ...]:
    found = []
    if not telemetry.layout_generation.known:
        found.append("a trainer pod does not report rljob_layout_generation yet")
    if not telemetry.running.known:
        found.append("a sampler pod does not report its running samples yet")
    return tuple(found)
