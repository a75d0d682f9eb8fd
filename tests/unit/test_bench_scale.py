"""The scale bench: its arithmetic, and that the metrics that it stands in for are those of a whole, steady job."""

from __future__ import annotations

import math
import time

import aiohttp
import pytest

from dev.bench.scale import GPUS, SAMPLERS, TRAINERS, job, quantile
from dev.bench.scale_metrics import PERIOD_S, RUNNING, SteadyMetrics
from dev.bench.scale_plane import Passes
from rljob_operator.telemetry import Prometheus, Telemetry, observe
from rljob_planner.api.spec import RLJobSpec


def test_quantiles_are_values_that_were_measured() -> None:
    assert quantile([3.0, 1.0, 2.0], 0.5) == 2.0
    assert quantile([3.0, 1.0, 2.0], 0.99) == 3.0
    assert quantile([float(i) for i in range(200)], 0.99) == 198.0


def test_a_histogram_of_passes_says_what_was_added_since() -> None:
    before = Passes({0.1: 90.0, 1.0: 100.0, math.inf: 100.0})
    after = Passes({0.1: 140.0, 1.0: 200.0, math.inf: 200.0})
    assert (after - before).count == 100
    assert (after - before).p99_s == pytest.approx(0.1 + 0.9 * 49 / 50)
    assert Passes({}).p99_s == 0.0
    assert Passes({0.1: 0.0, math.inf: 5.0}).p99_s == 0.1


def test_the_job_of_the_bench_has_fifty_pods_that_fill_a_node() -> None:
    spec = RLJobSpec.model_validate(job("a")["spec"])
    assert (spec.sampler.min_replicas, spec.sampler.max_replicas) == (SAMPLERS, SAMPLERS)
    assert SAMPLERS + TRAINERS == 50
    assert spec.gpus == GPUS


async def test_the_stand_in_answers_as_prometheus_would_of_a_steady_job() -> None:
    samplers, trainers = tuple(f"s{i}" for i in range(3)), ("t0", "t1")
    metrics = SteadyMetrics(lambda uid: (samplers, trainers) if uid == "u" else ((), ()))
    try:
        async with aiohttp.ClientSession() as session:
            now = time.time() + 600.0

            async def look(uid: str, of: tuple[str, ...], by: tuple[str, ...]) -> Telemetry:
                client = Prometheus(session, metrics.url)
                return await observe(
                    client, uid, sampler_pods=of, trainer_pods=by, since=now - 500.0, now=now, window_s=300.0
                )

            seen, none = await look("u", samplers, trainers), await look("other", (), ())
    finally:
        metrics.close()
    assert seen.missing == ()
    assert metrics.asked == 6
    assert seen.period_s.value == pytest.approx(PERIOD_S, rel=0.25)
    assert seen.running.value == RUNNING * 3
    for reading in (seen.iteration_s, seen.response_lengths, seen.response_trend, seen.staleness_p95, seen.kv_usage):
        assert reading.known
    assert not none.policy_version.known
