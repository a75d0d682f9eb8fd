"""Whose response lengths count: a job's own where it exports a distribution, else its samplers', as long as nothing speaks against it.

Answers are those of a real Prometheus about a fleet whose samplers finished what the trainer reported; a test takes away or changes rows.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from rljob_operator.config import Config
from rljob_operator.edges import Edges, Question
from rljob_operator.engines import SGLANG, VLLM, Engine
from rljob_operator.explain import explain
from rljob_operator.length_source import AGREES
from rljob_operator.observing import Observer
from rljob_operator.questions import questions
from rljob_operator.readings import ReadingState, Telemetry
from rljob_operator.situation import unknown_in_window, unknown_now
from rljob_operator.telemetry import Prometheus
from rljob_planner.api.status import ConditionType, DecisionCode
from tests.operator import prometheus_history as history
from tests.operator.situations import run, telemetry
from tests.operator.test_learning import a_pass

ANSWERS: dict[str, dict[str, Any]] = {
    engine.title: json.loads(path.read_text())
    for engine, path in ((VLLM, history.ANSWERS), (SGLANG, history.SGLANG_ANSWERS))
}

NO_BUCKETS = ("response_bucket",)
"""What a job of which only means are logged does not export."""
NO_LENGTHS = (*NO_BUCKETS, "response_sum", "response_count", "early_sum", "early_count", "late_sum", "late_count")
NO_MEAN = (*NO_LENGTHS, "samples", "tokens")


@dataclass
class Asked:
    """A look at the history through a server that answers as the real one did, but for what a test changes."""

    prometheus: Prometheus
    engine: Engine = VLLM
    gone: set[str] = field(default_factory=set)
    """Names of series and of computed readings that are not there."""
    silent: set[str] = field(default_factory=set)
    """Pods whose lengths of requests are not there."""
    times: dict[str, float] = field(default_factory=dict)
    """Factors by computed reading."""
    plus: dict[str, float] = field(default_factory=dict)
    """What is added to them."""

    def without(self, *names: str) -> Asked:
        self.gone |= set(names)
        # A summary lacks its buckets alone; what has no count either has no raw series.
        if "response_count" in names:
            self.gone.add("rljob_response_tokens_count")
        return self

    def kept(self, row: dict[str, Any]) -> bool:
        labels = row["metric"]
        name, requests = labels.get("__name__"), f"{self.engine.metrics.request_tokens}_count"
        gone = {name, labels.get("rljob_reading")} & self.gone
        return not gone and not (name == requests and labels["pod"] in self.silent)

    def changed(self, row: dict[str, Any]) -> dict[str, Any]:
        key = row["metric"].get("rljob_reading", "")
        if key not in self.times and key not in self.plus:
            return row
        at, value = row["value"]
        return {**row, "value": [at, str(float(value) * self.times.get(key, 1.0) + self.plus.get(key, 0.0))]}

    async def look(self, **changes: Any) -> Telemetry:
        return await history.look(self.prometheus, **({"engine": self.engine, "environment_turns": None} | changes))


@pytest.fixture(params=[VLLM, SGLANG], ids=lambda engine: engine.title)
async def asked(request: pytest.FixtureRequest) -> AsyncIterator[Asked]:
    async for each in _asked(request.param):
        yield each


@pytest.fixture
async def vllm() -> AsyncIterator[Asked]:
    async for each in _asked(VLLM):
        yield each


@pytest.fixture
async def sglang() -> AsyncIterator[Asked]:
    async for each in _asked(SGLANG):
        yield each


async def _asked(engine: Engine) -> AsyncIterator[Asked]:
    state: list[Asked] = []

    async def handle(request: web.Request) -> web.Response:
        form = await request.post() if request.method == "POST" else request.query
        answer, (asked,) = ANSWERS[engine.title][str(form["query"])], state
        rows = [asked.changed(row) for row in answer["data"]["result"] if asked.kept(row)]
        return web.json_response({"status": "success", "data": {**answer["data"], "result": rows}})

    app = web.Application()
    app.router.add_route("*", "/api/v1/query", handle)
    async with TestServer(app) as server, aiohttp.ClientSession() as session:
        state.append(Asked(Prometheus(session, str(server.make_url("")).rstrip("/")), engine))
        yield state[0]


async def test_a_job_with_a_distribution_of_its_own_is_read_as_ever(asked: Asked) -> None:
    """Whatever its samplers say of their requests, and whether they say it."""
    mine = await asked.look()
    assert mine.missing == mine.stand_ins == ()
    with_environment = await asked.look(environment_turns=history.ENVIRONMENT_TURNS)
    assert mine.response_lengths == with_environment.response_lengths, "which asks nothing about requests"
    assert mine.response_trend == with_environment.response_trend
    asked.times |= {"request_sum": 0.1, "request_bucket": 7.0, "request_late_sum": 3.0, "request_aborted": 9.0}
    assert await asked.look() == mine
    asked.without(f"{asked.engine.metrics.request_tokens}_count", "request_bucket", "request_sum", "request_count")
    assert await asked.look() == mine


async def test_the_samplers_lengths_stand_in_for_a_job_that_logs_means(asked: Asked) -> None:
    mine = await asked.look()
    theirs = await asked.without(*NO_BUCKETS).look()
    own, lengths = mine.response_lengths.value, theirs.response_lengths.value
    assert own is not None
    assert lengths is not None
    # The same responses, in the buckets of the engine, which are as coarse as the job's or finer.
    assert lengths.count == pytest.approx(own.count, rel=0.02)
    assert lengths.mean_tokens == pytest.approx(own.mean_tokens, rel=0.02)
    assert lengths.cv == pytest.approx(0.8, abs=0.06)
    growth, their_growth = mine.response_trend.value, theirs.response_trend.value
    assert growth is not None
    assert their_growth is not None
    assert their_growth.per_s == pytest.approx(growth.per_s, rel=0.1)
    assert theirs.missing == ()
    name = asked.engine.metrics.request_tokens
    assert theirs.stand_ins == (f"response lengths are {name} of the samplers, since the job exports no distribution",)
    assert unknown_in_window(theirs) == ()


async def test_nothing_of_the_two_is_mixed(vllm: Asked) -> None:
    """Bins, mean and growth are of one kind: a mean of the job's own that differs within the tolerance changes none of them."""
    theirs = await vllm.without(*NO_BUCKETS).look()
    vllm.times |= {"response_sum": 1.0 + 0.8 * AGREES, "late_sum": 2.0, "early_sum": 0.5}
    again = await vllm.look()
    assert again.response_lengths == theirs.response_lengths
    assert again.response_trend == theirs.response_trend


@pytest.mark.parametrize("factor", [0.5, 0.8, 1.25, 3.0])
async def test_requests_that_are_no_samples_are_not_believed(asked: Asked, factor: float) -> None:
    """Such as pieces of samples that are cut off at each update of weights, or requests of somebody else."""
    asked.without(*NO_BUCKETS).times |= {"request_sum": factor}
    seen = await asked.look()
    assert seen.response_lengths.state is ReadingState.MISSING
    assert seen.response_trend.state is ReadingState.MISSING
    assert seen.stand_ins == ()
    (why,) = seen.missing
    assert why.startswith("rljob_response_tokens has no distribution, and")
    assert f"more than {AGREES:.0%} apart, so a request is not a sample" in why
    assert "call rljob_runtime.Reporter.response for every finished response" in why


async def test_a_mean_of_trained_samples_is_a_mean_as_well(vllm: Asked) -> None:
    assert (await vllm.without(*NO_LENGTHS).look()).response_lengths.known
    vllm.times["tokens"] = 2.0
    seen = await vllm.look()
    assert not seen.response_lengths.known
    assert "apart, so a request is not a sample" in seen.missing[0]


async def test_without_any_mean_the_samplers_are_believed_as_long_as_none_was_cut_off(vllm: Asked) -> None:
    seen = await vllm.without(*NO_MEAN).look()
    assert seen.response_lengths.known
    assert seen.stand_ins[0].endswith("since the job exports none")
    vllm.plus["request_aborted"] = 100.0
    cut = await vllm.look()
    assert not cut.response_lengths.known
    assert "6% of its requests were cut off, and the job reports no mean length to compare with" in cut.missing[0]
    del vllm.plus["request_aborted"]
    untold = await vllm.without("request_aborted").look()
    assert not untold.response_lengths.known
    assert "nothing tells whether its requests are whole samples" in untold.missing[0]


async def test_an_engine_that_does_not_count_what_is_cut_off_needs_a_mean(sglang: Asked) -> None:
    seen = await sglang.without(*NO_MEAN).look()
    assert not seen.response_lengths.known
    assert "SGLang does not tell how many requests were cut off" in seen.missing[0]


async def test_a_turn_is_no_sample(vllm: Asked) -> None:
    seen = await vllm.without(*NO_BUCKETS).look(environment_turns=history.ENVIRONMENT_TURNS)
    assert not seen.response_lengths.known
    assert "a request is one turn of a sample that has an environment" in seen.missing[0]
    texts = questions("u", 60.0, 120.0, environment=True).texts
    assert "vllm:request_generation_tokens_bucket" not in " ".join(texts), "nor is it asked for"


async def test_lengths_of_some_samplers_are_not_those_of_all(asked: Asked) -> None:
    asked.without(*NO_BUCKETS).silent |= {"s-1"}
    seen = await asked.look()
    assert not seen.response_lengths.known
    assert f"{asked.engine.metrics.request_tokens} of the samplers, which could stand in, is missing" in seen.missing[0]
    assert ("--collect-tokens-histogram" in seen.missing[0]) is (asked.engine is SGLANG)


async def test_of_a_trainer_that_is_silent_nothing_is_assumed(vllm: Asked) -> None:
    """Whether it exports a distribution, and what is in flight, is not known then."""
    seen = await vllm.without(*NO_MEAN, "rljob_policy_version", "rljob_inflight_samples").look()
    assert seen.stand_ins == ()
    assert not seen.response_lengths.known
    assert not seen.in_flight.known


async def test_samples_at_the_samplers_stand_in_for_those_in_flight(asked: Asked) -> None:
    said = await asked.look()
    assert said.in_flight.value == said.in_flight_samples.value == len(history.SAMPLERS) * history.RUNNING + 4
    seen = await asked.without("rljob_inflight_samples").look()
    assert not seen.in_flight_samples.known, "who plans a cap by what the job says does not find a guess"
    assert seen.in_flight.value == len(history.SAMPLERS) * (history.RUNNING + 1)
    assert seen.missing == ()
    assert "samples in flight are those that run or wait at the samplers" in seen.stand_ins[0]
    assert unknown_now(seen) == ()
    turns = await asked.look(environment_turns=history.ENVIRONMENT_TURNS)
    assert not turns.in_flight.known, "a sample in its environment is at no sampler"
    assert any("rljob_inflight_samples is missing" in sentence for sentence in turns.missing)


async def test_part_of_the_samplers_does_not_tell_what_is_in_flight(vllm: Asked) -> None:
    seen = await vllm.without("rljob_inflight_samples").look(sampler_pods={*history.SAMPLERS, "s-9"})
    assert not seen.in_flight.known


async def test_what_stopped_is_not_replaced(vllm: Asked) -> None:
    seen = await vllm.without(*NO_BUCKETS).look(now=history.NOW_S + 20.0, since=history.SINCE_S + 20.0)
    assert seen.response_lengths.state is ReadingState.STALE
    assert seen.in_flight.state is ReadingState.STALE
    assert seen.stand_ins == ()


async def test_a_look_costs_no_more_requests(vllm: Asked) -> None:
    assert len(questions("u", 60.0, 120.0, environment=False).texts) == 3


async def test_a_decision_says_why_lengths_are_not_believed(vllm: Asked) -> None:
    vllm.without(*NO_BUCKETS).times["request_sum"] = 0.5
    seen = await vllm.look()
    lost = telemetry(response_lengths=seen.response_lengths, response_trend=seen.response_trend, missing=seen.missing)
    decision = run(telemetry=lost)
    assert decision.code is DecisionCode.METRICS_UNKNOWN
    assert "so a request is not a sample" in decision.message


async def test_a_status_says_whose_lengths_they_are(vllm: Asked) -> None:
    async def observe(url: str, question: Question) -> Telemetry:
        return await vllm.look()

    async def message() -> tuple[str, list[str]]:
        this, observer = a_pass(), Observer(Edges(observe), Config(prometheus_url="http://prometheus:9090"))
        await observer.look(this, 0.0, since_s=history.SINCE_S)
        assert observer.latest is not None
        observer.report(this, observer.latest)
        verdict = this.verdicts[ConditionType.METRICS_AVAILABLE]
        assert verdict.status is True
        return verdict.message, explain("rl", "team", this.spec, this.now).known.sources

    assert await message() == ("all metrics of the job are there", [])
    vllm.without(*NO_BUCKETS)
    said, rests_on = await message()
    (words,) = rests_on
    assert words.startswith("response lengths are vllm:request_generation_tokens of the samplers")
    assert said == f"all metrics of the job are there; {words}"
