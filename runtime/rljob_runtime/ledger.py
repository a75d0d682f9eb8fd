"""The numbers behind the metrics: kept in this process, read by a scrape.

A trainer reports thousands of samples a step, so they are counted in bulk: equal values once, under one lock. The client's own histogram
takes samples one by one, each with a lock of its own.

A process that is forked (workers that load data, an environment) gets a copy of everything, locks included. A lock that another
thread held at that instant would never be released in the copy, and what the copy counts would be counted twice. So a fork
renews the lock and clears the numbers.

The lock may be taken again by the thread that holds it: a signal handler that reports must not wait for the code that it interrupted.
"""

from __future__ import annotations

import math
import os
import weakref
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from threading import RLock
from typing import Protocol

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, SummaryMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

Labels = tuple[tuple[str, str], ...]
"""Labels of a metric: pairs of name and value."""


class KindError(ValueError):
    """A distribution that is told sample by sample was given a summary, or the other way round."""


@dataclass(frozen=True)
class Definition:
    """A metric before it has a value."""

    name: str
    """As Prometheus stores it."""
    help_text: str
    """One sentence without a full stop."""


@dataclass(frozen=True)
class Across(Definition):
    """A gauge, and what processes that share one page make of their values."""

    across: str = "livemostrecent"
    """Mode of prometheus-client's multiprocess gauges; ``live``: a value goes with its process."""


@dataclass(frozen=True)
class Distribution(Definition):
    """A histogram, or a summary where samples are not known one by one."""

    edges: tuple[float, ...] = ()
    """Upper edges of the buckets, ascending, without infinity."""


class Mirror(Protocol):
    """Where the numbers are written as well, for a process that serves them for several."""

    def write(self, kind: str, family: Definition, sample: str, value: float, edge: str | None = None) -> None:
        """Write one number; ``edge`` is the label ``le`` of a bucket, whose count is not cumulative here."""


@dataclass
class _Kept:
    """What is known of a distribution."""

    definition: Distribution
    counts: list[float]
    total: float = 0.0
    count: float = 0.0
    summarised: bool | None = None
    """Whether only means came; None before anything did."""
    edges: list[str] = field(default_factory=list)

    @classmethod
    def empty(cls, definition: Distribution) -> _Kept:
        edges = [*definition.edges, math.inf]
        return cls(definition, [0.0] * len(edges), edges=[_label(edge) for edge in edges])

    def of_kind(self, summarised: bool) -> None:
        if self.summarised is None:
            self.summarised = summarised
        elif self.summarised != summarised:
            here, there = ("means", "samples") if self.summarised else ("samples", "means")
            raise KindError(
                f"{self.definition.name} was told {here} before, so {there} are passed over; report it by one method alone"
            )


class Ledger(Collector):
    """The numbers of one process."""

    def __init__(
        self,
        *,
        gauges: Sequence[Across] = (),
        counters: Sequence[Definition] = (),
        distributions: Sequence[Distribution] = (),
        sparse: bool = False,
    ) -> None:
        """Gauges are absent until their first value; with ``sparse`` counters and distributions are as well, else they start at zero."""
        self._sparse = sparse
        self._definitions = {each.name: each for each in (*gauges, *counters, *distributions)}
        self._gauge_names = {each.name for each in gauges}
        self._counter_names = [each.name for each in counters]
        self._distributions = distributions
        self.mirror: Mirror | None = None
        """Where each change goes too; None where this process's page is read alone."""
        self._clear()
        _LEDGERS.add(self)

    def share(self, mirror: Mirror) -> None:
        """Write each change to ``mirror`` too, and counters at once, so that they are seen to start from zero."""
        for name in self._counters:
            mirror.write("counter", self._definitions[name], name, 0.0)
        self.mirror = mirror

    def _clear(self) -> None:
        self._lock = RLock()
        self._gauges: dict[str, float] = {}
        self._counters = {} if self._sparse else dict.fromkeys(self._counter_names, 0.0)
        self._kept = {each.name: _Kept.empty(each) for each in self._distributions}
        self._totals: dict[str, float] = {}

    def set(self, name: str, value: float) -> None:
        """Give a gauge its value."""
        with self._lock:
            self._gauges[name] = value
            if self.mirror is not None:
                self.mirror.write("gauge", self._definitions[name], name, value)

    def add(self, name: str, amount: float) -> None:
        """Count up; ``amount`` is not negative."""
        with self._lock:
            self._counters[name] = self._counters.get(name, 0.0) + amount
            if self.mirror is not None:
                self.mirror.write("counter", self._definitions[name], name, self._counters[name])

    def add_up_to(self, name: str, total: float, *, fresh: bool) -> None:
        """Count what a running total grew by since it was seen last, and all of one that fell; seen first, all if it is ``fresh``."""
        with self._lock:
            before = self._totals.get(name, 0.0 if fresh else total)
            self._totals[name] = total
            self.add(name, total - before if total >= before else total)

    def observe(self, name: str, values: Mapping[float, int]) -> None:
        """Add samples to a distribution: how often each value came. KindError if it is told by means."""
        kept = self._kept[name]
        edges = kept.definition.edges
        added: dict[int, int] = {}
        total = 0.0
        for value, times in values.items():
            bucket = bisect_left(edges, value)
            added[bucket] = added.get(bucket, 0) + times
            total += value * times
        with self._lock:
            first = kept.summarised is None
            kept.of_kind(summarised=False)
            for bucket, times in added.items():
                kept.counts[bucket] += times
            kept.total += total
            kept.count += sum(added.values())
            if self.mirror is not None:
                # All buckets the first time: one that is not there is none that is zero.
                for bucket in range(len(kept.counts)) if first else added:
                    at, count = kept.edges[bucket], kept.counts[bucket]
                    self.mirror.write("histogram", kept.definition, f"{name}_bucket", count, at)
                self.mirror.write("histogram", kept.definition, f"{name}_sum", kept.total)

    def summarise(self, name: str, mean: float, count: float) -> None:
        """Add ``count`` samples of which only the mean is known. KindError if it is told sample by sample.

        The metric is a summary from then on: sum and count without buckets, so that nobody takes a quantile of means for one of samples.
        """
        kept = self._kept[name]
        with self._lock:
            kept.of_kind(summarised=True)
            kept.total += mean * count
            kept.count += count
            if self.mirror is not None:
                self.mirror.write("summary", kept.definition, f"{name}_sum", kept.total)
                self.mirror.write("summary", kept.definition, f"{name}_count", kept.count)

    def collect(self) -> Iterator[Metric]:
        """All metrics at one instant, as Prometheus's client asks for them."""
        with self._lock:
            gauges, counters = dict(self._gauges), dict(self._counters)
            kept = [
                (each.definition, each.summarised, list(each.counts), each.total, each.count, each.edges)
                for each in self._kept.values()
                if not self._sparse or each.summarised is not None
            ]
        for name, value in gauges.items():
            yield GaugeMetricFamily(name, self._definitions[name].help_text, value=value)
        for name, value in counters.items():
            yield CounterMetricFamily(name, self._definitions[name].help_text, value=value)
        for definition, summarised, counts, total, count, edges in kept:
            if summarised:
                yield SummaryMetricFamily(
                    definition.name, definition.help_text, count_value=_whole(count), sum_value=total
                )
            else:
                buckets = list(zip(edges, _cumulative(counts), strict=True))
                yield HistogramMetricFamily(definition.name, definition.help_text, buckets=buckets, sum_value=total)

    def describe(self) -> Iterable[Metric]:
        """The names, so that a registry refuses two ledgers without asking for values."""
        for definition in self._definitions.values():
            if definition.name in self._gauge_names:
                yield GaugeMetricFamily(definition.name, definition.help_text)
            elif definition.name in self._counter_names:
                yield CounterMetricFamily(definition.name, definition.help_text)
            else:
                yield HistogramMetricFamily(definition.name, definition.help_text)


def _label(edge: float) -> str:
    """The label ``le`` of an edge, as Prometheus's client writes it (below a million)."""
    return "+Inf" if math.isinf(edge) else str(float(edge))


def _whole(count: float) -> int:
    # The stubs of the client want an integer; what it prints is the same.
    return count  # type: ignore[return-value]


def _cumulative(counts: list[float]) -> Iterator[float]:
    below = 0.0
    for count in counts:
        below += count
        yield below


_LEDGERS: weakref.WeakSet[Ledger] = weakref.WeakSet()


def _after_fork() -> None:
    for ledger in list(_LEDGERS):
        ledger._clear()


os.register_at_fork(after_in_child=_after_fork)
