"""What is believed of vLLM's metrics is what a live server shows: names, types, labels, buckets, and what makes them move.

Compared with it are the pages that were recorded, those of the emulator, of the doubles that stand in for it in other tests, and the names that the product asks for.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest

from dev.emulator.exposition import sampler_page
from dev.emulator.fleet import Histogram, length_edges
from rljob_operator import answers, evidence
from tests.e2e.client import Client, client, until
from tests.e2e.conftest import SEATS
from tests.e2e.pages import Series, series, value
from tests.operator.openai_server import Server as CalibrationDouble
from tests.operator.openai_server import serving
from tests.unit.emulator_job import layout, plant
from tests.unit.vllm_double import double

RECORDED = Path(__file__).parent / "data" / "vllm-0.32"

MAX_MODEL_LEN = 2048
"""Of the recorded servers and the shared one: the token histograms end below it."""

RENAMED = {"vllm:gpu_cache_usage_perc", "vllm:time_per_output_token_seconds", "vllm:num_requests_swapped"}
"""Names of older versions, asked for where the new ones are missing."""


@pytest.fixture
async def server(live: str) -> AsyncIterator[Client]:
    async with client(live) as found:
        yield found


@pytest.fixture
async def shown(server: Client) -> dict[str, Series]:
    """What the live server shows, once everything has been used that shows only then."""
    await server.ask(3).task
    await server.post("/sleep?level=1")
    await server.post("/wake_up")
    await server.post("/init_weight_transfer_engine", {"init_info": {}})
    return series(await server.metrics())


def differences(claimed: dict[str, Series], real: dict[str, Series]) -> list[str]:
    """What a page claims and a server does not show, one line each."""
    found = []
    for name, mine in claimed.items():
        theirs = real.get(name)
        if theirs is None:
            found.append(f"{name}: no such metric")
            continue
        if mine.kind != theirs.kind:
            found.append(f"{name}: a {mine.kind}, really a {theirs.kind}")
        if name == "vllm:cache_config_info":
            # Its labels are the engine's configuration, of which whoever stands in for it may show a part.
            if not mine.labels <= theirs.labels:
                found.append(f"{name}: labels {sorted(mine.labels - theirs.labels)} are not there")
            continue
        if mine.labels != theirs.labels:
            found.append(f"{name}: labels {sorted(mine.labels)}, really {sorted(theirs.labels)}")
        for label in mine.labels & theirs.labels:
            if mine.values[label] != theirs.values[label] and (
                label != "operation" or mine.values[label].isdisjoint(theirs.values[label])
            ):
                found.append(f"{name}: {label} is {sorted(mine.values[label])}, really {sorted(theirs.values[label])}")
    return found


@pytest.mark.parametrize("page", ["metrics-idle.txt", "metrics-under-load.txt"])
def test_what_was_recorded_is_what_a_server_shows(page: str, shown: dict[str, Series]) -> None:
    recorded = series((RECORDED / page).read_text())
    assert differences(recorded, shown) == []
    if page == "metrics-under-load.txt":
        assert sorted(shown.keys() - recorded.keys()) == [], "metrics that the recorded server did not show"


def emulated() -> dict[str, Series]:
    """The page of an emulated sampler whose longest context is that of the live server."""
    job = plant(lay=layout(cap=16))
    for _ in range(300):
        job.advance(0.1)
    pod = job.fleet.pods[0]
    pod.lengths = Histogram(length_edges(MAX_MODEL_LEN))
    return series(sampler_page(pod, 3, "tiny"))


def test_the_emulator_shows_what_a_server_shows(shown: dict[str, Series]) -> None:
    page = emulated()
    assert len(page) > 15
    assert differences(page, shown) == []


def test_the_double_of_drains_shows_what_a_server_shows(shown: dict[str, Series]) -> None:
    with double() as found:
        page = found.engine.metrics()
    # It shows the count of a histogram alone.
    told = {k: v for k, v in series(page).items() if k != "vllm:iteration_tokens_total_count"}
    assert len(told) > 3
    assert differences(told, shown) == []
    assert "vllm:iteration_tokens_total_count" in shown


async def test_the_double_of_calibration_shows_what_a_server_shows(shown: dict[str, Series]) -> None:
    async with (
        serving(CalibrationDouble()) as found,
        aiohttp.ClientSession() as session,
        session.get(f"{found.url}/metrics") as answer,
    ):
        page = await answer.text()
    told = series(page)
    assert len(told) > 4
    real = {
        k: Series(v.kind, v.labels & told[k].labels, {n: v.values[n] for n in v.labels & told[k].labels})
        for k, v in shown.items()
        if k in told
    }
    # Without labels that tell one model from another, and without buckets.
    assert differences(told, real) == []


def test_a_server_shows_every_name_that_the_product_asks_for(shown: dict[str, Series]) -> None:
    import rljob_runtime.sampler as runtime_sampler

    known = {re.sub(r"_(bucket|count|sum)$", "", name) for name in shown}
    texts = [Path(module.__file__ or "").read_text() for module in (answers, evidence, runtime_sampler)]
    operator = Path(answers.__file__ or "").parent
    texts += [(operator / name).read_text() for name in ("questions.py", "profile.py", "exposition.py")]
    asked = {name for text in texts for name in re.findall(r"vllm:[a-z0-9_]+", text)}
    # A prefix stands for all that begin so; a histogram is named by itself or by one of its series.
    asked = {re.sub(r"_(bucket|count|sum)$", "", name) for name in asked if not name.endswith("_")}
    assert len(asked) > 10
    assert sorted(asked - known - RENAMED) == []
    assert not RENAMED & known, "an old name is back"


async def test_requests_move_what_the_planner_counts(server: Client) -> None:
    """Tokens, first tokens and gaps between tokens add up, so that rates of them are what they are taken for."""
    names = (
        "vllm:generation_tokens_total",
        "vllm:prompt_tokens_total",
        "vllm:time_to_first_token_seconds_count",
        "vllm:inter_token_latency_seconds_count",
        "vllm:request_generation_tokens_sum",
        "vllm:request_success_total",
    )
    before = {name: await server.metric(name) for name in names}
    for stream in [server.ask(40, prompt=24) for _ in range(5)]:
        assert (await stream.task).whole
    grown = {name: await server.metric(name) - before[name] for name in names}
    # The same prompt five times: what the prefix cache spares is counted as prompt all the same.
    assert grown == dict(zip(names, (200.0, 120.0, 5.0, 195.0, 200.0, 5.0), strict=True))


def test_samples_move_the_same_in_the_emulator() -> None:
    job = plant(lay=layout(cap=16))
    for _ in range(2000):
        job.advance(0.1)
    for pod in job.fleet.pods:
        page = sampler_page(pod, 0, "tiny")
        generated, first, gaps = (
            value(page, f"vllm:{name}")
            for name in (
                "generation_tokens_total",
                "time_to_first_token_seconds_count",
                "inter_token_latency_seconds_count",
            )
        )
        assert generated is not None
        assert first is not None
        assert first > 50
        # Tokens are fractions there while a sample runs, and each that has just begun has not had its first.
        assert gaps == pytest.approx(generated - first, abs=pod.running + 1)


async def test_what_is_beyond_the_seats_waits_and_is_counted(server: Client) -> None:
    streams = [server.ask(1900) for _ in range(SEATS + 3)]
    pages = [""]

    async def full() -> bool:
        pages[0] = await server.metrics()
        return (value(pages[0], "vllm:num_requests_running"), value(pages[0], "vllm:num_requests_waiting")) == (
            SEATS,
            3,
        )

    await until(full, f"{SEATS} running, 3 waiting")
    assert value(pages[0], "vllm:num_requests_waiting_by_reason", reason="capacity") == 3
    assert 0 < (value(pages[0], "vllm:kv_cache_usage_perc") or 0) < 1
    for stream in streams:
        stream.task.cancel()
    await asyncio.gather(*(s.task for s in streams), return_exceptions=True)
    # Clients that go take their samples with them.
    await until(lambda: _is(server, "vllm:num_requests_running", 0), "nothing runs once the clients are gone")


async def _is(server: Client, name: str, value: float) -> bool:
    return await server.metric(name) == value
