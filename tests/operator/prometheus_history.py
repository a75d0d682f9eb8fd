"""Ten minutes of a made-up job as Prometheus would have scraped them, and what a real Prometheus answers about them.

The answers are kept in ``data/prometheus-answers*.json``, a file an engine, so that most tests need no server. Cluster tests check that the real
Prometheus still gives them; ``python -m tests.operator.prometheus_history`` records them anew after a query has changed.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from statistics import NormalDist
from typing import Any

import aiohttp

from dev.controlplane.build import binary
from dev.controlplane.prometheus import Prometheus as Server
from rljob_operator.engines import SGLANG, VLLM, Engine
from rljob_operator.telemetry import Prometheus, Telemetry, observe

ANSWERS = Path(__file__).parent / "data" / "prometheus-answers.json"
SGLANG_ANSWERS = ANSWERS.with_name("prometheus-answers-sglang.json")

UID = "2c9b7f9e-0000-4000-8000-000000000001"
START_S = 1_700_000_000
SCRAPE_S = 5
LASTS_S = 600
NOW_S = float(START_S + LASTS_S)
SINCE_S = float(START_S + 200)
WINDOW_S = 300.0

STEP_S = 12
GROUP = 8
SAMPLES_PER_STEP = 64
GROWTH_PER_S = 0.001
FIRST_MEAN_TOKENS = 1000.0
SIGMA = 0.7
RUNNING = 60
ITERATION_S = 0.02
KV_TOKENS = 400_000
ENVIRONMENT_S, ENVIRONMENT_TURNS = 12.0, 3
"""Seconds of a sample in its environment, all turns together, and how many those are."""
SAMPLERS = ("s-0", "s-1", "s-2", "s-3")
OLD_ENGINE = "s-3"
"""Its metrics have the names of an older vLLM."""
TRAINERS = ("t-0", "t-1")
EDGES = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000)
MAX_TOKENS = 20_000
SGLANG_EDGES = (100, 300, 500, 700, 1000, 1500, 2000, 3000, 4000, 5000, 6000, 7000, 8000, 9000, 10000, 12500, 15000)

_QUANTILES = [NormalDist().inv_cdf((i + 0.5) / SAMPLES_PER_STEP) for i in range(SAMPLES_PER_STEP)]


def mean_tokens(at_s: float) -> float:
    return FIRST_MEAN_TOKENS * math.exp(GROWTH_PER_S * (at_s - START_S))


def _lengths(step: int) -> list[float]:
    median = mean_tokens(START_S + step * STEP_S) / math.exp(SIGMA**2 / 2)
    return [median * math.exp(SIGMA * z) for z in _QUANTILES]


class _Page:
    """What the job's pods export at one instant."""

    def __init__(self) -> None:
        self.values: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {}

    def set(self, name: str, value: float, pod: str, **labels: str) -> None:
        role = "sampler" if pod in SAMPLERS else "trainer"
        every = {"pod": pod, "rljob_dev_uid": UID, "rljob_dev_role": role, **labels}
        self.values[name, tuple(sorted(every.items()))] = value

    def histogram(self, name: str, pod: str, samples: list[float], edges: tuple[float, ...], **labels: str) -> None:
        for edge in (*edges, math.inf):
            le = "+Inf" if math.isinf(edge) else f"{float(edge)}"
            self.set(f"{name}_bucket", sum(sample <= edge for sample in samples), pod, le=le, **labels)
        self.set(f"{name}_sum", math.fsum(samples), pod, **labels)
        self.set(f"{name}_count", len(samples), pod, **labels)


def _page(at_s: int, engine: Engine = VLLM) -> _Page:
    page = _Page()
    elapsed = at_s - START_S
    steps = elapsed // STEP_S
    lengths = [length for step in range(steps) for length in _lengths(step)]
    page.set("rljob_policy_version", 100 + steps, "t-0")
    page.set("rljob_queue_depth_groups", 3, "t-0")
    page.set("rljob_inflight_samples", len(SAMPLERS) * RUNNING + 4, "t-0")
    for pod in TRAINERS:
        page.set("rljob_layout_generation", 7, pod)
    staleness = [1.0, 3.0] * (SAMPLES_PER_STEP // 2) * steps
    page.histogram("rljob_sample_staleness_versions", "t-0", staleness, (0, 1, 2, 3, 4, 5))
    page.set("rljob_sample_staleness_max_versions", 3, "t-0")
    page.histogram("rljob_train_step_seconds", "t-0", [9.0] * steps, (5, 10, 20))
    page.histogram("rljob_weight_sync_seconds", "t-0", [0.5] * steps, (0.1, 1, 2))
    page.set("rljob_trainer_wait_seconds_total", 2.5 * steps, "t-0")
    page.set("rljob_trained_samples_total", SAMPLES_PER_STEP * steps, "t-0")
    page.set("rljob_trained_tokens_total", math.fsum(lengths), "t-0")
    page.histogram("rljob_response_tokens", "t-0", lengths, EDGES)
    page.histogram("rljob_environment_seconds", "t-0", [ENVIRONMENT_S] * (SAMPLES_PER_STEP * steps), (1, 10, 100))
    if engine is SGLANG:
        _sglang(page, elapsed, lengths)
        return page
    for number, pod in enumerate(SAMPLERS):
        own = {"engine": "0", "model_name": "m"}
        # Each finished every fourth request: a quarter of a step's lengths, evenly from short to long.
        page.histogram("vllm:request_generation_tokens", pod, lengths[number :: len(SAMPLERS)], EDGES, **own)
        page.set("vllm:request_success_total", len(lengths) / len(SAMPLERS), pod, **own, finished_reason="stop")
        page.set("vllm:request_success_total", 0, pod, **own, finished_reason="abort")
        old = pod == OLD_ENGINE
        usage = "vllm:gpu_cache_usage_perc" if old else "vllm:kv_cache_usage_perc"
        latency = "vllm:time_per_output_token_seconds" if old else "vllm:inter_token_latency_seconds"
        room = {"num_gpu_blocks": str(KV_TOKENS // 16), "block_size": "16"}
        if not old:
            room["kv_cache_size_tokens"] = str(KV_TOKENS)
        page.set("vllm:num_requests_running", RUNNING, pod, engine="0")
        page.set("vllm:num_requests_waiting", 1, pod, engine="0")
        page.set(usage, 0.5, pod, engine="0")
        page.set("vllm:cache_config_info", 1, pod, engine="0", **room)
        page.set(f"{latency}_sum", RUNNING * elapsed, pod, engine="0")
        page.set(f"{latency}_count", RUNNING * elapsed / ITERATION_S, pod, engine="0")
        page.set("vllm:generation_tokens_total", RUNNING * elapsed / ITERATION_S, pod, engine="0")
    return page


def _sglang(page: _Page, elapsed: int, lengths: list[float]) -> None:
    """The same fleet under SGLang: one with two data-parallel engines, one whose ranks all speak, one that breaks its totals down by
    priority, and an older one.
    """
    tokens = RUNNING * elapsed / ITERATION_S
    for number, pod in enumerate(SAMPLERS):
        dp = ("0", "1") if pod == "s-0" else ("0",)
        tp = ("0", "1") if pod == "s-1" else ("0",)
        shares = [(share, rank) for share in dp for rank in tp]
        for share, rank in shares:
            own = {"engine_type": "unified", "model_name": "m", "tp_rank": rank, "pp_rank": "0", "dp_rank": share}
            totals = {**own, "priority": ""} if pod == "s-2" else own
            page.set("sglang:num_running_reqs", RUNNING / len(dp), pod, **totals)
            page.set("sglang:num_queue_reqs", 1 / len(dp), pod, **totals)
            if pod == "s-2":
                page.set("sglang:num_running_reqs", RUNNING / 2, pod, **{**own, "priority": "5"})
                page.set("sglang:num_queue_reqs", 1, pod, **{**own, "priority": "5"})
            page.set("sglang:token_usage", 0.5, pod, **own)
            page.set("sglang:max_total_num_tokens", KV_TOKENS / len(dp), pod, **own)
            if pod != OLD_ENGINE:
                page.set("sglang:realtime_tokens_total", tokens / len(dp), pod, **own, mode="decode")
                page.set("sglang:realtime_tokens_total", 7.0 * elapsed, pod, **own, mode="prefill_compute")
        http = {"engine_type": "unified", "model_name": "m"}
        page.set("sglang:inter_token_latency_seconds_sum", RUNNING * elapsed, pod, **http)
        page.set("sglang:inter_token_latency_seconds_count", tokens, pod, **http)
        page.histogram(
            "sglang:generation_tokens_histogram", pod, lengths[number :: len(SAMPLERS)], SGLANG_EDGES, **http
        )
        page.set("sglang:generation_tokens_total", 0.75 * tokens, pod, **http, is_streaming="true")
        page.set("sglang:generation_tokens_total", 0.25 * tokens, pod, **http, is_streaming="false")


def openmetrics(engine: Engine = VLLM) -> str:
    """The history in the format that promtool backfills: all samples of a series in a row."""
    series: dict[tuple[str, tuple[tuple[str, str], ...]], list[tuple[int, float]]] = {}
    for at_s in range(START_S, START_S + LASTS_S + 1, SCRAPE_S):
        for key, value in _page(at_s, engine).values.items():
            series.setdefault(key, []).append((at_s, value))
    lines = []
    for (name, labels), points in sorted(series.items()):
        inside = ",".join(f'{label}="{text}"' for label, text in labels)
        lines += [f"{name}{{{inside}}} {value!r} {at_s}" for at_s, value in points]
    return "\n".join([*lines, "# EOF", ""])


@contextlib.contextmanager
def real_server(engine: Engine = VLLM) -> Iterator[str]:
    """The URL of a real Prometheus that holds the history."""
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory)
        text = root / "history.txt"
        text.write_text(openmetrics(engine))
        data = root / "prometheus" / "data"
        promtool = binary("prometheus").with_name("promtool")
        subprocess.run(
            [promtool, "tsdb", "create-blocks-from", "openmetrics", text, data], check=True, capture_output=True
        )
        with Server.start(root, config="[]") as server:
            yield server.url


class Recorder(Prometheus):
    """A client that keeps what the server answered."""

    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        super().__init__(session, url)
        self.answers: dict[str, Any] = {}

    async def query(self, promql: str, *, at: float) -> Any:
        form = {"query": promql, "time": f"{at:.3f}"}
        async with self._session.post(f"{self.url}/api/v1/query", data=form) as got:
            answer = await got.json()
        answer["data"]["result"].sort(key=lambda row: json.dumps(row, sort_keys=True))
        self.answers[promql] = answer
        return await super().query(promql, at=at)


async def look(prometheus: Prometheus, **changes: Any) -> Telemetry:
    """The telemetry of the history at its end, or as ``changes`` say."""
    arguments: dict[str, Any] = {
        "sampler_pods": frozenset(SAMPLERS),
        "trainer_pods": frozenset(TRAINERS),
        "since": SINCE_S,
        "now": NOW_S,
        "window_s": WINDOW_S,
        "scrape_s": float(SCRAPE_S),
        "samples_per_prompt": GROUP,
        "max_response_tokens": MAX_TOKENS,
        "environment_turns": ENVIRONMENT_TURNS,
    }
    return await observe(prometheus, UID, **(arguments | changes))


async def record(engine: Engine = VLLM) -> dict[str, Any]:
    """What the real Prometheus answers to every query about the history."""
    with real_server(engine) as url:
        async with aiohttp.ClientSession() as session:
            recorder = Recorder(session, url)
            await look(recorder, engine=engine)
            await look(recorder, since=None, engine=engine)
            await look(recorder, environment_turns=None, engine=engine)
            return dict(sorted(recorder.answers.items()))


if __name__ == "__main__":
    for file, of in ((ANSWERS, VLLM), (SGLANG_ANSWERS, SGLANG)):
        file.write_text(json.dumps(asyncio.run(record(of)), indent=1) + "\n")
