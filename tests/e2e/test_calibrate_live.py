"""A real vLLM is calibrated, and what the calibration says comes true: at other loads, in the plan, and in the operator's own readings.

Twice. Once an iteration lasts what it takes this machine: HTTP server, engine and worker of one vLLM keep three cores busy, so on two they get
into each other's way, and a load is up to twice as fast in one minute as in the next: that takes a larger machine. And once it lasts what decoding was measured to take an
A100, four times over, so that the cores can follow: everything but the arithmetic is as real, and nothing hides an error behind noise.

What a machine does besides changes how fast it is from one second to the next. So the loads that a calibration is made from and those that check it
take turns, there and back, and the median of the passes counts: what slows one slows the other. `rljob calibrate` does the same with the loads of a
calibration alone; here its own measurement (`profile`) is asked for one load at a time.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import random
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median, stdev
from typing import Any

import aiohttp
import pytest
import yaml
from typer.testing import CliRunner, Result

from dev.controlplane.prometheus import Prometheus as PrometheusServer
from dev.vllm import device
from dev.vllm.server import Server
from rljob_operator.cli import app
from rljob_operator.engine_counters import spread_length
from rljob_operator.exposition import cache_tokens, parse_exposition
from rljob_operator.measured import calibrated
from rljob_operator.profile import Load, profile
from rljob_operator.telemetry import Prometheus, Telemetry, observe
from rljob_planner.api.spec import RLJobSpec
from rljob_planner.calibrate import Calibration, MeasuredOn, read_calibration
from rljob_planner.fit import MeasuredStep, median_row
from rljob_planner.fit_seconds import SecondsFit, fit_seconds
from rljob_planner.hardware import gpu
from rljob_planner.measured_costs import TrainSeconds
from rljob_planner.models import resolve
from rljob_planner.placement import Room
from rljob_planner.search import plan
from rljob_planner.serving import served
from rljob_planner.split import SamplerSplit, Split, TrainerSplit
from rljob_planner.steptime import Engine
from rljob_runtime import Reporter
from tests.e2e.conftest import SEATS, SHARED

CALIBRATED = {1: 4, 4: 16, 16: 56}
"""Requests at a time that the calibration is made from, and how many there are each time."""
CHECKED = {2: 2.5, 8: 5.0, 12: 2.5}
"""Requests at a time that check it, and for how many seconds each time."""
WATCHED = 8
"""The load that the operator's readings are of."""
PROMPT = 32

A100_S = {1: 0.01194, 8: 0.0145, 16: 0.01784}
"""Samples → seconds of a decode step of Qwen3-8B on an A100 at a context of 4096 tokens: measured kernels, ``decode_step_kernel_sums`` of
``latency-curves.yaml``."""
CORES = 4
"""Cores for a vLLM that is as fast as its machine, and for who asks it."""

SLOWED = 4.0
"""How many times slower it is played."""
FEWEST_PASSES, MOST_S = 4, 100.0
"""A quiet machine needs few passes; there are more, two by two, for some seconds, as long as their medians are uncertain by more than ``CERTAIN``."""
CERTAIN, TOO_UNCERTAIN = 0.03, 0.10
TOLERANCE = 0.10
SCRAPE_S = 1.0
POD, UID = "tiny-sampler-0", "7f1d5c1e-0000-4000-8000-0000000000ca"


@dataclass(frozen=True)
class Subject:
    """A server, and how much is asked of it."""

    url: str
    response: int
    """Tokens of a response, in the mean."""
    requests: float = 1.0
    """Times the requests of ``CALIBRATED``."""
    steady: bool = False
    """Whether it is as fast in one second as in the next, so that no noise excuses an error."""


@dataclass
class Pass:
    """What one pass over all loads has shown."""

    rows: list[MeasuredStep] = field(default_factory=list)
    tokens_per_s: dict[int, float] = field(default_factory=dict)
    """Throughput by requests at a time, by this client's own clock."""
    reading: Telemetry | None = None
    """What the operator reads of the watched load."""


def _uncertainty(values: Sequence[float]) -> float:
    """Relative standard error of the median of such values, if their logarithms are normal."""
    return 1.25 * stdev(map(math.log, values)) / math.sqrt(len(values))


def _of_rows(passes: Sequence[Pass]) -> list[float]:
    """Uncertainty of each measured step."""
    return [_uncertainty([row.measured_s for row in rows]) for rows in zip(*(p.rows for p in passes), strict=True)]


def _of_rate(passes: Sequence[Pass], concurrency: int) -> float:
    """Uncertainty of one throughput."""
    return _uncertainty([p.tokens_per_s[concurrency] for p in passes])


def _worst(passes: Sequence[Pass]) -> float:
    """The largest uncertainty of anything that was measured."""
    return max(*_of_rows(passes), *(_of_rate(passes, concurrency) for concurrency in CHECKED))


def _predicted(fit: SecondsFit, concurrency: int, model: Path, response: int) -> float:
    """Tokens a second of so many requests at a time."""
    engine = Engine(resolve(str(model)), gpu("L4"), 1, "bf16", "bf16", measured=fit.seconds)
    (point,) = served(engine, PROMPT, response, [concurrency])
    return concurrency * response / (point.ttft_s + (response - 1) * point.tpot_s)


@pytest.fixture(scope="module", params=["by this machine", "by an A100"])
def subject(request: pytest.FixtureRequest, vllm_python: Path, tiny_model: Path) -> Iterator[Subject]:
    if request.param == "by this machine":
        cores = os.cpu_count() or 1
        if cores < CORES:
            pytest.skip(
                f"a vLLM's HTTP server, engine and worker each keep a core busy, and so does who asks: {cores} cores are too few"
            )
        with Server(vllm_python, tiny_model, more=SHARED, max_running=SEATS) as server:
            yield Subject(server.url, response=256)
        return
    curve = {samples: SLOWED * seconds for samples, seconds in A100_S.items()}
    with Server(vllm_python, tiny_model, more=SHARED, max_running=SEATS, env=device.environment(curve=curve)) as server:
        yield Subject(server.url, response=48, requests=0.5, steady=True)


@pytest.fixture(scope="module")
def passes(subject: Subject) -> list[Pass]:
    with (
        _trainer() as (reporter, port),
        _scraping({POD: subject.url.removeprefix("http://"), "trainer": f"127.0.0.1:{port}"}) as prometheus,
    ):
        found = asyncio.run(_passes(subject, prometheus.url, reporter))
    if (worst := _worst(found)) > TOO_UNCERTAIN:
        pytest.skip(f"too much runs beside this: after {len(found)} passes a median is uncertain by {worst:.0%}")
    return found


@pytest.fixture(scope="module")
def fit(passes: list[Pass]) -> SecondsFit:
    """The calibration by all passes."""
    rounds = zip(*(p.rows for p in passes), strict=True)
    return fit_seconds([median_row(rows) for rows in rounds])


@contextmanager
def _trainer() -> Iterator[tuple[Reporter, int]]:
    """What a job's trainer reports, served as it serves it."""
    reporter = Reporter()
    server, _ = reporter.serve(0, "127.0.0.1")
    try:
        yield reporter, server.server_port
    finally:
        server.shutdown()
        server.server_close()


@contextmanager
def _scraping(pods: dict[str, str]) -> Iterator[PrometheusServer]:
    """A Prometheus that scrapes these addresses as the pods of one job."""
    config = [{"targets": [address], "labels": {"pod": pod, "rljob_dev_uid": UID}} for pod, address in pods.items()]
    server = PrometheusServer.start(
        config=yaml.safe_dump([{"job_name": "pods", "static_configs": config}]), scrape_interval_s=SCRAPE_S
    )
    try:
        yield server
    finally:
        server.close()


async def _passes(subject: Subject, prometheus: str, reporter: Reporter) -> list[Pass]:
    found: list[Pass] = []
    loads = sorted((*CALIBRATED, *CHECKED))
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        until = time.monotonic() + MOST_S
        while len(found) < FEWEST_PASSES or (time.monotonic() < until and _worst(found) > CERTAIN) or len(found) % 2:
            this = Pass()
            for concurrency in loads[::-1] if len(found) % 2 else loads:
                if concurrency in CALIBRATED:
                    this.rows += await _measured(subject, concurrency)
                    continue
                began = time.time()
                rate, ended = await _throughput(session, subject, concurrency, reporter)
                this.tokens_per_s[concurrency] = rate
                if concurrency == WATCHED:
                    this.reading = await _reading(Prometheus(session, prometheus), began, ended)
            this.rows.sort(key=lambda row: row.running)
            found.append(this)
    return found


async def _measured(subject: Subject, concurrency: int) -> tuple[MeasuredStep, ...]:
    requests = round(subject.requests * CALIBRATED[concurrency])
    load = Load((concurrency,), requests, prompt_tokens=(PROMPT,), response_tokens=subject.response, rounds=1)
    found = await profile(subject.url, load)
    assert found.skipped == ()
    return found.rows


async def _throughput(
    session: aiohttp.ClientSession, subject: Subject, concurrency: int, reporter: Reporter
) -> tuple[float, float]:
    """Tokens a second of a closed loop, from when its first answer is there, and when that time was over."""
    answers: list[tuple[float, float, int]] = []
    clock = asyncio.get_running_loop().time
    answered, over = asyncio.Condition(), asyncio.Event()
    number = 0

    async def worker() -> None:
        nonlocal number
        while not over.is_set():
            number += 1
            body = {
                "model": "tiny",
                "prompt": [random.randint(10, 250) for _ in range(PROMPT)],
                "max_tokens": spread_length(subject.response, number),
                "ignore_eos": True,
            }
            sent = clock()
            async with session.post(f"{subject.url}/v1/completions", json=body) as answer:
                assert answer.status == 200, await answer.text()
                tokens = (await answer.json())["usage"]["completion_tokens"]
            reporter.response(tokens)
            async with answered:
                answers.append((sent, clock(), tokens))
                answered.notify_all()

    async with asyncio.TaskGroup() as workers:
        for _ in range(concurrency):
            workers.create_task(worker())
        await asyncio.sleep(CHECKED[concurrency])
        async with answered:
            await answered.wait_for(lambda: len(answers) >= 2 * concurrency)
        last, ended = clock(), time.time()
        over.set()
    # Requests that go on beyond either end count by the part of their time in between.
    first = min(end for _, end, _ in answers)
    inside = (n * max(0.0, min(end, last) - max(sent, first)) / (end - sent) for sent, end, n in answers)
    return sum(inside) / (last - first), ended


async def _reading(prometheus: Prometheus, began: float, ended: float) -> Telemetry:
    return await observe(
        prometheus,
        UID,
        sampler_pods=[POD],
        trainer_pods=[],
        since=began,
        now=ended,
        window_s=ended - began,
        scrape_s=SCRAPE_S,
    )


def _calibration(fit: SecondsFit) -> Calibration:
    on = MeasuredOn("qwen2", None, 1, "bf16", "bf16")
    return Calibration(decode_seconds=fit.seconds, measured_on=on, sampler_efficiency=1.0)


def test_it_predicts_the_throughput_of_other_loads(
    subject: Subject, passes: list[Pass], fit: SecondsFit, tiny_model: Path
) -> None:
    """By the medians of all passes on both sides, as the command fits the medians of its rounds; beyond what their noise explains."""
    rates = {c: median(p.tokens_per_s[c] for p in passes) for c in CHECKED}
    steps = _of_rows(passes)
    for concurrency, rate in rates.items():
        error = _predicted(fit, concurrency, tiny_model, subject.response) / rate - 1.0
        noise = 0.0 if subject.steady else math.hypot(_of_rate(passes, concurrency), sum(steps) / len(steps))
        assert abs(error) <= TOLERANCE + 2.0 * noise, (concurrency, error, noise, fit.values, passes)
    # A check that everything passes checks nothing: what this server does at these loads is far apart.
    assert rates[12] > 2.0 * rates[2]


def test_what_the_operator_reads_of_a_running_server_is_the_same(
    subject: Subject, passes: list[Pass], fit: SecondsFit, tiny_model: Path
) -> None:
    known = _calibration(fit)
    for this in passes:
        assert this.reading is not None
        known = calibrated(known, this.reading, _spec(tiny_model, subject.response), _split(), [Room("here", 2)])
    assert known.observations > len(passes) / 2, [p.reading for p in passes]
    stated = math.hypot(known.sampler_error, fit.residual or 0.0)
    assert stated < 0.25
    assert abs(math.log(known.sampler_factor)) <= 2.0 * stated, (known, fit.residual)
    assert not known.pegged


def test_the_plan_expects_what_the_server_does(subject: Subject, fit: SecondsFit, tiny_model: Path) -> None:
    """A job that samplers bind, with one of them: a step is a batch of tokens at the server's throughput."""
    spec = _spec(tiny_model, subject.response)
    found = plan(spec, [Room("here", 2)], calibration=_with_a_fast_trainer(_calibration(fit)), detail=False)
    assert found.bottleneck == "samplers"
    planned = spec.workload.samples_per_step * subject.response / found.period.mean
    assert planned == pytest.approx(_predicted(fit, WATCHED, tiny_model, subject.response), rel=TOLERANCE)


def test_the_command_measures_fits_and_writes_what_a_plan_takes(live: str, tiny_model: Path, tmp_path: Path) -> None:
    file = tmp_path / "calibration.yaml"
    result = _rljob(
        *("calibrate", "--url", live, "--model", str(tiny_model), "--max-seconds", "60", "--requests", "8"),
        *("--response-tokens", "64", "--efficiency", "100%", "-o", str(file)),
    )
    assert result.exit_code == 0, result.output
    assert "6 of 6: 1 requests at a time" in result.stderr
    assert "Error of a row by a fit to the others" in result.stdout
    told = read_calibration(file)
    assert told.decode_seconds is not None
    assert told.decode_seconds.step_s > 0
    assert told.kv_tokens == asyncio.run(_kv_tokens(live))
    written = yaml.safe_load(file.read_text())
    assert {row["kind"] for row in written["fit"]["rows"]} == {"served", "prefill"}
    # The file beside the job, and the same inside of it, give the same plan.
    written["trainers"]["measured"] = {"tokenSeconds": 1e-6}
    file.write_text(yaml.safe_dump(written))
    beside = _plan(tmp_path / "job.yaml", _spec(tiny_model), "--calibration", str(file))
    inside = _plan(tmp_path / "inline.yaml", _spec(tiny_model, calibration={"inline": written}))
    assert beside == inside
    assert beside["bottleneck"] == "samplers"


async def _kv_tokens(url: str) -> int | None:
    async with aiohttp.ClientSession() as session, session.get(f"{url}/metrics") as answer:
        return cache_tokens(parse_exposition(await answer.text(), url))


def _rljob(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


def _plan(file: Path, spec: RLJobSpec, *options: str) -> dict[str, Any]:
    job = {
        "apiVersion": "rljob.dev/v1alpha1",
        "kind": "RLJob",
        "metadata": {"name": "tiny"},
        "spec": spec.model_dump(mode="json", by_alias=True, exclude_none=True, exclude_defaults=True),
    }
    file.write_text(yaml.safe_dump(job))
    result = _rljob("plan", str(file), *options, "-o", "json")
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def _spec(model: Path, response: int = 64, **changes: Any) -> RLJobSpec:
    template = {"spec": {"containers": [{"name": "main", "image": "tiny"}]}}
    side = {"gpusPerReplica": 1, "maxReplicas": 1, "template": template}
    return RLJobSpec.model_validate(
        {
            "gpus": 2,
            "accelerator": "L4",
            "model": {"config": json.loads((model / "config.json").read_text())},
            "workload": {
                "promptsPerStep": 8,
                "samplesPerPrompt": 8,
                "steps": 100,
                "promptTokens": {"mean": PROMPT},
                "responseTokens": {"mean": response, "cv": 0.3, "max": 2 * response},
            },
            "staleness": {"max": 4, "bound": "admission"},
            "sampler": {**side, "maxRunning": WATCHED},
            "trainer": side,
            **changes,
        }
    )


def _split() -> Split:
    return Split(
        mode="async",
        samplers=SamplerSplit(replicas=1, gpus_per_replica=1, tensor_parallel=1, max_running=16),
        trainers=TrainerSplit(replicas=1, gpus_per_replica=1, dp=1, tp=1, pp=1, ep=1),
        in_flight=WATCHED,
    )


def _with_a_fast_trainer(calibration: Calibration) -> Calibration:
    return replace(calibration, train_seconds=TrainSeconds(0.0, 1e-6))
