"""What reporting costs a training step: python -m dev.bench.reporter [-o json].

Per step, as the contract has it: staleness of every sample, length of every response, the step itself, wait, sync, queue and in-flight. Processor
time, the least of some tries. It depends on the machine, so it stands beside two measures from the same run: what the metrics of prometheus-client take
for the same numbers one by one, and the growth with the samples of a step.

The other side of a report is the scrape, which holds the lock while it copies the numbers: the slowest report while somebody scrapes without a
pause is in the table as well.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
import threading
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from time import perf_counter, process_time

from prometheus_client import CollectorRegistry, Histogram
from prometheus_client.exposition import generate_latest

from rljob_runtime import Reporter
from rljob_runtime.metrics import RESPONSE_TOKENS_BUCKETS, STALENESS_BUCKETS

SAMPLES = (16, 128, 1024, 8192, 65536)
"""Samples of a step: from a toy to 4096 prompts with 16 samples each."""


@dataclass(frozen=True)
class Cost:
    """What a step of so many samples costs its trainer, in processor seconds."""

    samples: int
    seconds: float
    """A step's reports by ``Reporter``."""
    shared_seconds: float
    """The same where the processes of a pod share a page."""
    one_by_one_seconds: float
    """The same samples in two histograms of prometheus-client."""
    share_of_second: float
    """``seconds`` of a step that takes one second."""
    times_cheaper: float
    """How much ``seconds`` is below ``one_by_one_seconds``."""
    growth: float
    """``seconds`` over those of the row before."""


def step(reporter: Reporter, staleness: Sequence[int], lengths: Sequence[int]) -> None:
    """All that a trainer reports of one step."""
    reporter.queue(12)
    reporter.in_flight(len(lengths))
    reporter.waited(0.5)
    reporter.step_started(staleness)
    reporter.responses(lengths)
    reporter.synced(0.2)
    reporter.step_finished(3, len(lengths), 10_000, 1.0)


def measured(numbers: Sequence[int] = SAMPLES, tries: int = 5) -> list[Cost]:
    """The costs for steps of these sizes."""
    found: list[Cost] = []
    draw = random.Random(0)
    with tempfile.TemporaryDirectory() as folder:
        for samples in numbers:
            staleness = [draw.randrange(5) for _ in range(samples)]
            lengths = [min(32_768, int(draw.lognormvariate(7.0, 1.0)) + 1) for _ in range(samples)]
            alone, together, histograms = Reporter(strict=True), Reporter(strict=True, shared=folder), _histograms()
            own = _each(partial(step, alone, staleness, lengths), samples, tries)
            shared = _each(partial(step, together, staleness, lengths), samples, tries)
            plain = _each(partial(_one_by_one, histograms, staleness, lengths), samples, tries)
            before = found[-1].seconds if found else own
            found.append(Cost(samples, own, shared, plain, own, plain / own, own / before))
    return found


def _each(work: Callable[[], None], samples: int, tries: int) -> float:
    times = max(1, 20_000 // samples)
    found: list[float] = []
    for _ in range(tries):
        began = process_time()
        for _ in range(times):
            work()
        found.append(process_time() - began)
    return min(found) / times


def _histograms() -> tuple[Histogram, Histogram]:
    registry = CollectorRegistry()
    return (
        Histogram("staleness", "Staleness", buckets=STALENESS_BUCKETS, registry=registry),
        Histogram("tokens", "Tokens", buckets=RESPONSE_TOKENS_BUCKETS, registry=registry),
    )


def _one_by_one(histograms: tuple[Histogram, Histogram], staleness: Sequence[int], lengths: Sequence[int]) -> None:
    first, second = histograms
    for value in staleness:
        first.observe(value)
    for value in lengths:
        second.observe(value)


def slowest_during_scrapes(reports: int = 20_000) -> dict[str, float]:
    """Seconds of one in-flight report while another thread scrapes without a pause: the median and the 99th percentile."""
    reporter, stop = Reporter(strict=True), threading.Event()
    step(reporter, [1] * 64, [100] * 64)

    def scrape() -> None:
        while not stop.is_set():
            generate_latest(reporter.registry)

    scraper = threading.Thread(target=scrape)
    scraper.start()
    took: list[float] = []
    try:
        for number in range(reports):
            began = perf_counter()
            reporter.in_flight(number)
            took.append(perf_counter() - began)
    finally:
        stop.set()
        scraper.join()
    took.sort()
    return {"median": took[len(took) // 2], "p99": took[len(took) * 99 // 100]}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        prog="python -m dev.bench.reporter", description="What reporting costs a training step."
    )
    parser.add_argument("-o", "--output", choices=("table", "json"), default="table")
    asked = parser.parse_args()
    costs, scraped = measured(), slowest_during_scrapes()
    if asked.output == "json":
        print(json.dumps({"steps": [asdict(cost) for cost in costs], "scraped": scraped}, indent=2))
        return
    print(f"{'samples':>8} {'µs a step':>10} {'shared':>8} {'of 1 s':>9} {'growth':>7} {'cheaper than one by one':>24}")
    for c in costs:
        print(
            f"{c.samples:>8} {c.seconds * 1e6:>10.0f} {c.shared_seconds * 1e6:>8.0f} {c.share_of_second:>9.4%} {c.growth:>6.1f}×"
            f" {c.times_cheaper:>23.1f}×"
        )
    print(
        f"a report during scrapes without a pause: median {scraped['median'] * 1e6:.1f} µs, p99 {scraped['p99'] * 1e6:.1f} µs"
    )


if __name__ == "__main__":
    main()
