"""A job whose samplers run SGLang is measured as one whose samplers run vLLM: from answers of a real Prometheus about such a fleet."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from rljob_operator.engines import SGLANG, VLLM
from rljob_operator.questions import questions
from rljob_operator.telemetry import Prometheus, Telemetry
from tests.operator import prometheus_history as history

ANSWERS: dict[str, Any] = json.loads(history.SGLANG_ANSWERS.read_text())


@pytest.fixture
async def asked() -> AsyncIterator[tuple[Prometheus, set[str]]]:
    """A Prometheus that answers as the real one did, but for the names that a test takes away."""
    gone: set[str] = set()

    async def handle(request: web.Request) -> web.Response:
        form = await request.post() if request.method == "POST" else request.query
        answer = ANSWERS[str(form["query"])]
        rows = [row for row in answer["data"]["result"] if row["metric"].get("__name__") not in gone]
        return web.json_response({"status": "success", "data": {**answer["data"], "result": rows}})

    app = web.Application()
    app.router.add_route("*", "/api/v1/query", handle)
    async with TestServer(app) as server, aiohttp.ClientSession() as session:
        yield Prometheus(session, str(server.make_url("")).rstrip("/")), gone


async def look(prometheus: Prometheus) -> Telemetry:
    return await history.look(prometheus, engine=SGLANG)


async def test_every_kind_of_pod_shows_the_same_fleet(asked: tuple[Prometheus, set[str]]) -> None:
    """Two data-parallel engines, ranks that all speak, totals broken down by priority, and an older version."""
    seen = await look(asked[0])
    assert seen.missing == ()
    assert set(seen.samplers) == set(history.SAMPLERS)
    for pod, sampler in seen.samplers.items():
        assert sampler.running.value == history.RUNNING, pod
        assert sampler.running_mean.value == history.RUNNING, pod
        assert sampler.waiting.value == 1, pod
        assert sampler.kv_usage.value == 0.5, pod
        assert sampler.kv_usage_mean.value == 0.5, pod
        assert sampler.kv_tokens.value == history.KV_TOKENS, pod
        assert sampler.iteration_s.value == pytest.approx(history.ITERATION_S), pod
        made = sampler.generation_tokens_per_s.value
        assert made == pytest.approx(history.RUNNING / history.ITERATION_S, rel=0.01), pod
    assert seen.staleness_mean.value == pytest.approx(2.0), "the job's own metrics are the same"
    assert seen.policy_version.value == 150


async def test_an_engine_without_metrics_is_told_what_it_needs(asked: tuple[Prometheus, set[str]]) -> None:
    prometheus, gone = asked
    gone |= {"sglang:num_running_reqs"}
    seen = await look(prometheus)
    assert not seen.running.known
    assert "no fresh sglang:* series" in seen.missing[0]
    assert "SGLang needs --enable-metrics" in seen.missing[0]


async def test_a_missing_gauge_is_named_as_this_engine_names_it(asked: tuple[Prometheus, set[str]]) -> None:
    prometheus, gone = asked
    gone |= {"sglang:token_usage"}
    seen = await look(prometheus)
    assert not seen.kv_usage.known
    assert "sglang:token_usage is unknown" in seen.missing[0]
    assert "check that the engine is SGLang" in seen.missing[0]


def test_no_engine_is_asked_for_the_metrics_of_another() -> None:
    for engine, other in ((VLLM, SGLANG), (SGLANG, VLLM)):
        texts = questions('rljob_dev_uid="u"', 60.0, 120.0, environment=True, engine=engine.metrics).texts
        assert all(other.metrics.prefix not in text for text in texts)
        assert any(engine.metrics.prefix in text for text in texts)


@pytest.mark.cluster
async def test_a_real_prometheus_still_answers_so() -> None:
    assert await history.record(SGLANG) == ANSWERS
