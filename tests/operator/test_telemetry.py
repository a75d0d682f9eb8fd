"""Prometheus → readings: from answers of a real Prometheus, whole, with parts missing, late, or none at all."""

from __future__ import annotations

import asyncio
import json
import math
import random
import re
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, fields
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from rljob_operator.answers import histogram, quantile, steps_and_period
from rljob_operator.prometheus import Series
from rljob_operator.questions import questions
from rljob_operator.readings import LengthHistogram, Reading, ReadingState, combined
from rljob_operator.telemetry import (
    Prometheus,
    PrometheusError,
    Telemetry,
    Trend,
    corrected_lengths,
    finished_age_s,
    observe,
    wished_window_s,
)
from tests.operator import prometheus_history as history

Keep = Callable[[dict[str, str]], bool]


@dataclass
class FakeServer:
    """Answers with what a real Prometheus once did, less what ``keep`` refuses."""

    url: str = ""
    keep: Keep = lambda labels: True
    drop_names: tuple[str, ...] = ()
    status: int = 200
    body: str | None = None
    asked: int = 0

    async def handle(self, request: web.Request) -> web.Response:
        self.asked += 1
        promql = str((await request.post() if request.method == "POST" else request.query)["query"])
        if self.body is not None or self.status != 200:
            return web.Response(status=self.status, text=self.body or "")
        answer = ANSWERS[promql]
        selects_names = promql.startswith("{")
        rows = [row for row in answer["data"]["result"] if self.keep(row["metric"])]
        if selects_names:
            rows = [row for row in rows if not row["metric"]["__name__"].startswith(self.drop_names or "\0")]
        elif self.drop_names:
            about = dict(re.findall(r'label_replace\((.+?), "rljob_reading", "(\w+)", "", ""\)', promql))
            dropped = {key for text, key in about.items() if any(name in text for name in self.drop_names)}
            rows = [row for row in rows if row["metric"].get("rljob_reading") not in dropped]
        return web.json_response({"status": "success", "data": {**answer["data"], "result": rows}})


ANSWERS: dict[str, Any] = json.loads(history.ANSWERS.read_text())


@pytest.fixture
async def fake() -> AsyncIterator[FakeServer]:
    state = FakeServer()
    app = web.Application()
    app.router.add_route("*", "/api/v1/query", state.handle)
    async with TestServer(app) as server:
        state.url = str(server.make_url("")).rstrip("/")
        yield state


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as client:
        yield client


@pytest.fixture
async def client(fake: FakeServer, session: aiohttp.ClientSession) -> Prometheus:
    return Prometheus(session, fake.url)


async def test_everything_is_read(client: Prometheus) -> None:
    seen = await history.look(client)
    assert seen.missing == ()
    assert seen.window_s == history.WINDOW_S
    assert seen.policy_version.value == 150
    assert seen.steps_in_window.value == 25
    assert seen.period_s.value == pytest.approx(history.STEP_S, rel=0.02)
    assert seen.queue_groups.value == 3
    assert seen.in_flight_samples.value == 244
    assert seen.layout_generation.value == 7
    assert seen.staleness_mean.value == pytest.approx(2.0)
    assert seen.staleness_p95.value == pytest.approx(2.9)
    assert seen.staleness_max.value == 3
    assert seen.train_step_s.value == pytest.approx(9.0)
    assert seen.weight_sync_s.value == pytest.approx(0.5)
    assert seen.trainer_wait_share.value == pytest.approx(2.5 / 12, rel=0.03)
    assert seen.trained_samples_per_step.value == pytest.approx(64)
    assert seen.since_s == 400.0


async def test_environments_are_read_by_turn_and_only_of_a_job_that_has_some(
    client: Prometheus, fake: FakeServer
) -> None:
    seen = await history.look(client)
    assert seen.environment_turn_s.value == pytest.approx(history.ENVIRONMENT_S / history.ENVIRONMENT_TURNS)
    turns_per_s = history.SAMPLES_PER_STEP * history.ENVIRONMENT_TURNS / history.STEP_S
    assert seen.environment_turns_per_s.value == pytest.approx(turns_per_s, rel=0.03)
    fake.keep = lambda labels: not labels.get("__name__", "").startswith("rljob_environment")
    silent = await history.look(client)
    assert silent.environment_turn_s.state is ReadingState.MISSING
    assert silent.missing == (), "a framework may well not report environments"
    with_environment = questions("u", 60.0, 120.0, environment=True)
    without = questions("u", 60.0, 120.0, environment=False)
    assert "rljob_environment" in " ".join(with_environment.texts)
    assert "rljob_environment" not in " ".join(without.texts)


async def test_a_look_costs_three_requests_however_much_is_read(client: Prometheus, fake: FakeServer) -> None:
    await history.look(client)
    assert fake.asked == 3
    assert len(questions("u", 60.0, 120.0, environment=True).computed) > 20


async def test_answers_are_sorted_out_by_reading() -> None:
    asked = questions("u", 60.0, 120.0, environment=False)
    mine, odd = Series({"rljob_reading": "wait"}, ((1.0, 2.0),)), Series({}, ((1.0, 3.0),))
    found = asked.sorted_out([[odd], [], [mine]])
    assert found["wait"] == [mine]
    assert found["now"] == [odd]
    assert found["versions"] == found["tokens"] == []


async def test_lengths_are_read_with_their_growth(client: Prometheus) -> None:
    seen = await history.look(client)
    expected = history.mean_tokens(history.NOW_S - history.WINDOW_S / 2)
    lengths, trend = seen.response_lengths.value, seen.response_trend.value
    assert lengths is not None
    assert trend is not None
    assert lengths.mean_tokens == pytest.approx(expected, rel=0.03)
    assert lengths.cv == pytest.approx(0.75, abs=0.12)
    assert trend.per_s == pytest.approx(history.GROWTH_PER_S, rel=0.15)
    assert 0 < trend.uncertainty_per_s < history.GROWTH_PER_S
    assert seen.response_tokens_mean.value == lengths.mean_tokens


async def test_too_few_samples_show_no_trend(client: Prometheus, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rljob_operator.answers.MIN_TREND_SAMPLES", 1e6)
    seen = await history.look(client)
    assert seen.response_trend.value == Trend(0.0, math.inf)
    assert Trend(0.0, math.inf).shrunk_per_s == 0.0


async def test_samplers_are_read_also_under_old_names(client: Prometheus) -> None:
    seen = await history.look(client)
    assert set(seen.samplers) == set(history.SAMPLERS)
    for sampler in seen.samplers.values():
        assert sampler.running.value == history.RUNNING
        assert sampler.running_mean.value == history.RUNNING
        assert sampler.waiting.value == 1
        assert sampler.kv_usage.value == 0.5
        assert sampler.kv_tokens.value == history.KV_TOKENS
        assert sampler.iteration_s.value == pytest.approx(history.ITERATION_S)
        assert sampler.generation_tokens_per_s.value == pytest.approx(3000)
    assert seen.running.value == 240
    assert seen.iteration_s.value == pytest.approx(history.ITERATION_S)
    assert seen.running_by_pod[history.OLD_ENGINE].value == history.RUNNING


async def test_part_of_a_fleet_is_not_the_fleet(client: Prometheus, fake: FakeServer) -> None:
    fake.keep = lambda labels: labels.get("pod") != "s-1"
    seen = await history.look(client)
    assert seen.running.state is ReadingState.MISSING
    assert seen.iteration_s.state is ReadingState.MISSING
    assert seen.samplers["s-0"].running.value == history.RUNNING
    assert seen.running_by_pod["s-1"].state is ReadingState.MISSING
    assert "1 of 4 ready sampler pods (s-1)" in seen.missing[0]


async def test_a_pod_that_is_not_ready_has_no_part_in_the_fleet(client: Prometheus) -> None:
    seen = await history.look(client, sampler_pods={"s-0", "s-2"})
    assert seen.running.value == 120
    assert seen.running_by_pod["s-3"].value == history.RUNNING


async def test_a_silent_trainer_pod_hides_the_acknowledged_generation(client: Prometheus) -> None:
    seen = await history.look(client, trainer_pods={"t-0", "t-1", "t-2"})
    assert not seen.layout_generation.known
    assert "Reporter.acknowledged" in seen.missing[0]


async def test_no_pods_at_all_are_no_fleet_of_zero(client: Prometheus) -> None:
    seen = await history.look(client, sampler_pods=(), trainer_pods=())
    assert not seen.running.known
    assert not seen.layout_generation.known


async def test_what_stopped_is_stale_also_where_the_window_still_holds_numbers(client: Prometheus) -> None:
    # Same questions and answers, asked 20 seconds late: 15 are three missed scrapes.
    seen = await history.look(client, now=history.NOW_S + 20.0, since=history.SINCE_S + 20.0)
    assert seen.policy_version.state is ReadingState.STALE
    assert seen.policy_version.age_s == pytest.approx(20.0)
    for reading in (seen.period_s, seen.staleness_mean, seen.response_lengths, seen.running, seen.iteration_s):
        assert reading.state is ReadingState.STALE
        assert reading.value is None
    assert "stopped 20 s ago" in seen.missing[0]


@pytest.mark.parametrize(
    ("name", "attribute"),
    [
        ("rljob_policy_version", "policy_version"),
        ("rljob_queue_depth_groups", "queue_groups"),
        ("rljob_inflight_samples", "in_flight_samples"),
        ("rljob_sample_staleness_versions", "staleness_mean"),
        ("rljob_train_step_seconds", "train_step_s"),
        ("rljob_response_tokens", "response_lengths"),
    ],
)
async def test_a_metric_that_vanishes_is_missing_and_named(
    client: Prometheus, fake: FakeServer, name: str, attribute: str
) -> None:
    fake.drop_names = (name,)
    seen = await history.look(client)
    assert getattr(seen, attribute).state is ReadingState.MISSING
    assert any(name in sentence and "Reporter." in sentence for sentence in seen.missing)


async def test_a_job_that_nobody_scrapes(client: Prometheus, fake: FakeServer) -> None:
    fake.keep = lambda labels: False
    seen = await history.look(client)
    assert f'no rljob_* series with rljob_dev_uid="{history.UID}"' in seen.missing[0]
    assert "PodMonitor" in seen.missing[0]
    assert not any(reading.known for reading in _readings(seen))


async def test_windows_do_not_span_a_move(client: Prometheus, fake: FakeServer) -> None:
    young = await history.look(client, since=history.NOW_S - 19.0)
    assert young.window_s == 0.0
    assert young.policy_version.known
    assert young.running.known
    assert not young.period_s.known
    assert not young.staleness_mean.known
    assert young.missing == ()
    fake.asked = 0
    unacknowledged = await history.look(client, since=None)
    assert unacknowledged.since_s is None
    assert fake.asked == 2


async def test_a_pod_scraped_twice_counts_once(client: Prometheus, fake: FakeServer) -> None:
    promql = next(query for query in ANSWERS if query.startswith("{"))
    again = [
        {**row, "metric": {**row["metric"], "job": "another"}}
        for row in ANSWERS[promql]["data"]["result"]
        if row["metric"]["__name__"] == "vllm:num_requests_running"
    ]
    ANSWERS[promql]["data"]["result"] += again
    try:
        seen = await history.look(client)
    finally:
        del ANSWERS[promql]["data"]["result"][-len(again) :]
    assert seen.running.value == 240


@pytest.mark.parametrize(
    ("status", "body", "words"),
    [
        (503, "down", "did not answer as Prometheus does"),
        (503, '{"status":"error","error":"too many queries"}', "too many queries"),
        (422, '{"status":"error","errorType":"execution","error":"query timed out"}', "query timed out"),
        (401, "", "credentials"),
        (404, "", "before /api/v1"),
        (302, "", "before /api/v1"),
        (200, "<html>hello</html>", "did not answer as Prometheus does"),
        (200, "[]", "did not answer as Prometheus does"),
        (200, '{"status":"success","data":{"resultType":"scalar","result":[1,"2"]}}', "not a vector"),
        (
            200,
            '{"status":"success","data":{"resultType":"vector","result":[]},"warnings":["store 3 is down"]}',
            "store 3",
        ),
    ],
)
async def test_what_prometheus_must_not_answer(
    client: Prometheus, fake: FakeServer, status: int, body: str, words: str
) -> None:
    fake.status, fake.body = status, body
    with pytest.raises(PrometheusError, match=words):
        await client.query("up", at=0.0)
    seen = await history.look(client)
    assert len(seen.missing) == 1
    assert words in seen.missing[0]
    assert not any(reading.known for reading in _readings(seen))
    assert not seen.running.known


async def test_an_unreachable_prometheus_makes_all_missing(session: aiohttp.ClientSession) -> None:
    seen = await history.look(Prometheus(session, "http://127.0.0.1:9"))
    assert "cannot reach Prometheus" in seen.missing[0]
    assert not any(reading.known for reading in _readings(seen))


async def test_a_slow_prometheus_makes_all_missing(session: aiohttp.ClientSession) -> None:
    release = asyncio.Event()

    async def hang(_: web.Request) -> web.Response:
        await release.wait()
        return web.Response()

    app = web.Application()
    app.router.add_route("*", "/api/v1/query", hang)
    async with TestServer(app) as server:
        seen = await history.look(Prometheus(session, str(server.make_url("")), timeout_s=0.05))
        release.set()
    assert "did not answer within" in seen.missing[0]


async def test_nan_is_no_number(client: Prometheus, fake: FakeServer) -> None:
    fake.body = '{"status":"success","data":{"resultType":"vector","result":[{"metric":{},"value":[1,"NaN"]}]}}'
    assert await client.query("x", at=0.0) == []


async def test_a_uid_cannot_carry_a_query(client: Prometheus) -> None:
    with pytest.raises(ValueError, match="not the uid"):
        await observe(client, 'x"} or vector(1)', sampler_pods=(), trainer_pods=(), since=None, now=0.0, window_s=1.0)


@pytest.mark.cluster
async def test_a_real_prometheus_still_answers_so() -> None:
    assert await history.record() == ANSWERS


def _readings(seen: Telemetry) -> list[Reading[Any]]:
    own = [value for field in fields(seen) if isinstance(value := getattr(seen, field.name), Reading)]
    return own + [getattr(sampler, f.name) for sampler in seen.samplers.values() for f in fields(sampler)]


def test_a_reading_carries_a_value_exactly_if_it_is_one() -> None:
    with pytest.raises(ValueError, match="only a VALUE"):
        Reading(ReadingState.MISSING, 0.0)
    with pytest.raises(ValueError, match="only a VALUE"):
        Reading(ReadingState.VALUE, None)
    assert Reading.of(0.0).known
    assert Reading.of(4.0, 1.0).map(math.sqrt) == Reading.of(2.0, 1.0)
    assert Reading.of(4.0).map(lambda _: None).state is ReadingState.MISSING
    assert Reading[float].stale(9.0).map(math.sqrt) == Reading.stale(9.0)


def test_a_fleet_is_known_only_whole() -> None:
    assert combined([Reading.of(1.0, 2.0), Reading.of(2.0, 5.0)], math.fsum) == Reading.of(3.0, 5.0)
    assert combined([Reading.of(1.0), Reading.stale(20.0)], math.fsum) == Reading.stale(20.0)
    assert combined([Reading.missing(), Reading.stale(20.0)], math.fsum).state is ReadingState.MISSING
    assert combined([], math.fsum).state is ReadingState.MISSING


def _versions(*points: tuple[float, float]) -> list[Series]:
    return [Series({}, tuple(points))]


def test_the_period_is_measured_between_changes() -> None:
    assert steps_and_period(_versions((0, 5), (5, 5), (10, 6), (15, 6), (20, 7), (25, 7), (29, 7))) == (2, 10.0)
    assert steps_and_period(_versions((0, 5), (10, 8))) == (3, None)
    assert steps_and_period(_versions((0, 5), (10, 5))) == (0, None)
    assert steps_and_period([]) == (None, None)


def test_a_trainer_that_went_back_to_a_checkpoint_starts_the_count_anew() -> None:
    assert steps_and_period(_versions((0, 90), (10, 91), (20, 80), (30, 81), (37, 82))) == (2, 7.0)


def _buckets(*edges: tuple[str, float]) -> list[Series]:
    return [Series({"le": le}, ((0.0, count),)) for le, count in edges]


def test_cumulative_buckets_become_bins() -> None:
    rows = _buckets(("+Inf", 10.0), ("1.0", 0.0), ("2.0", 0.0), ("4.0", 6.0), ("8.0", 9.0))
    assert histogram(rows, 40.0, 16) == LengthHistogram(((2.0, 0.0), (4.0, 6.0), (8.0, 3.0), (16.0, 1.0)), 4.0)
    assert histogram(rows, 40.0, None) == LengthHistogram(((2.0, 0.0), (4.0, 6.0), (8.0, 3.0), (16.0, 1.0)), 4.0)
    assert histogram(rows, 0.0, 16) is None
    assert histogram(_buckets(("1.0", 0.0), ("+Inf", 0.0)), 0.0, 16) is None
    assert histogram([], None, 16) is None


def test_increases_that_cross_by_rounding_stay_monotone() -> None:
    found = histogram(_buckets(("1.0", 5.0), ("2.0", 4.9999), ("+Inf", 6.0)), 9.0, 4)
    assert found is not None
    assert all(count >= 0 for _, count in found.bins)


def test_quantiles_of_buckets() -> None:
    rows = _buckets(("0.0", 2.0), ("1.0", 6.0), ("2.0", 10.0), ("+Inf", 10.0))
    assert quantile(rows, 0.5) == pytest.approx(0.75)
    assert quantile(rows, 0.95) == pytest.approx(1.875)
    assert quantile(_buckets(("1.0", 1.0), ("+Inf", 10.0)), 0.95) == 1.0
    assert quantile([], 0.5) is None


def test_a_window_spans_several_periods() -> None:
    assert wished_window_s(None, 120.0, 15.0) == 120.0
    assert wished_window_s(3.0, 120.0, 15.0) == 120.0
    assert wished_window_s(300.0, 120.0, 15.0) == 2400.0
    # Scraped once a minute, two minutes hold too few samples for a rate: such a job would never be measured.
    assert wished_window_s(3.0, 120.0, 60.0) == 240.0


def test_noise_predicts_no_growth() -> None:
    lengths = LengthHistogram(((100.0, 10.0), (200.0, 10.0)), 100.0)
    assert corrected_lengths(lengths, Trend(0.001, 0.002), 100.0) == lengths
    assert corrected_lengths(lengths, Trend(0.0, 0.0), 100.0) == lengths
    assert corrected_lengths(lengths, Trend(0.002, 0.0), 100.0).mean_tokens == pytest.approx(100.0 * math.exp(0.2))
    assert corrected_lengths(lengths, Trend(0.002, 0.0), 1e6).mean_tokens == pytest.approx(200.0)
    assert corrected_lengths(lengths, Trend(-0.002, 0.0), 1e6).mean_tokens == pytest.approx(50.0)


@pytest.mark.parametrize("growth_per_s", [0.0008, 0.0, -0.0008])
def test_the_correction_finds_what_starts_now(growth_per_s: float) -> None:
    """A fleet of slots that refill at once, whose lengths grow: what finished in the last window against what starts now."""
    rng = random.Random(7)
    iteration_s, now, window_s, sigma = 0.05, 3000.0, 300.0, 0.8
    finished: list[float] = []
    for _ in range(3000):
        at = -rng.random() * 200.0
        while at < now:
            length = 1000.0 * math.exp(growth_per_s * at + sigma * rng.gauss(0.0, 1.0) - sigma**2 / 2)
            at += length * iteration_s
            if now - window_s < at <= now:
                finished.append(length)
    truth = 1000.0 * math.exp(growth_per_s * now)
    mean = math.fsum(finished) / len(finished)
    edges = [50.0 * 1.25**i for i in range(45)]
    counts = [sum(low < length <= high for length in finished) for low, high in zip([0.0, *edges], edges, strict=False)]
    seen = LengthHistogram(tuple(zip(edges, map(float, counts), strict=True)), mean)
    age_s = finished_age_s(seen, iteration_s, window_s)
    estimate = corrected_lengths(seen, Trend(growth_per_s, 0.0), age_s).mean_tokens
    assert estimate == pytest.approx(truth, rel=0.06)
    if growth_per_s:
        assert abs(math.log(estimate / truth)) < 0.4 * abs(math.log(mean / truth))


@pytest.mark.parametrize("value", ["+Inf", "-Inf", "1e300", "NaN"])
async def test_a_number_that_is_no_measurement_is_unknown_and_breaks_nothing(
    fake: FakeServer, client: Prometheus, value: str
) -> None:
    row = {"metric": {"__name__": "rljob_policy_version", "pod": "t0", "le": "1"}, "value": [1, value]}
    fake.body = json.dumps({"status": "success", "data": {"resultType": "vector", "result": [row]}})
    assert await client.query("x", at=1.0) == []
    seen = await history.look(client)
    assert not seen.policy_version.known
    assert seen.missing


async def test_answers_that_make_no_sense_are_unknown_as_a_whole(fake: FakeServer, client: Prometheus) -> None:
    labels = {"__name__": "rljob_response_tokens_bucket", "rljob_reading": "response_bucket", "pod": "t0", "le": "many"}
    row = {"metric": labels, "value": [1, "2"]}
    fake.body = json.dumps({"status": "success", "data": {"resultType": "vector", "result": [row]}})
    seen = await history.look(client)
    assert not any(reading.known for reading in seen.running_by_pod.values())
    assert "many" in seen.missing[0]
    assert fake.url in seen.missing[0]
