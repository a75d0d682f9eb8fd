"""What a pause and a sleep do to requests, and what then tells the truth about them: of a real vLLM, and of the double that stands in for it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from tests.e2e.client import Client, Stream, client, until
from tests.e2e.conftest import SEATS
from tests.unit.vllm_double import double

LONG = 250
"""Tokens of a request that is to be under way while a test does something: some five seconds."""


@pytest.fixture(params=["double", pytest.param("live", marks=pytest.mark.vllm)])
async def server(request: pytest.FixtureRequest) -> AsyncIterator[Client]:
    """A server that has nothing to do, and is given back so."""
    if request.param == "double":
        with double(seats=SEATS, tracks_load=True, token_s=0.005) as found:
            async with client(found.url) as asked:
                yield asked
        return
    async with client(request.getfixturevalue("live")) as asked:
        yield asked
        # Whatever a test that failed has left.
        await asked.post("/wake_up")
        await asked.post("/resume")
        await until(lambda: idle(asked), "nothing to do after a test")


async def idle(server: Client) -> bool:
    return await server.metric("vllm:num_requests_running") == 0 and await server.load() == 0


async def under_way(server: Client, number: int) -> list[Stream]:
    """Requests whose first tokens have come and which the metrics count."""
    streams = [server.ask(LONG) for _ in range(number)]
    for stream in streams:
        await stream.first.wait()

    async def counted() -> bool:
        return await server.metric("vllm:num_requests_running") == number

    await until(counted, f"{number} running")
    return streams


async def loaded(server: Client, number: int) -> None:
    async def holds() -> bool:
        return await server.load() == number

    await until(holds, f"/load says {number}")


async def test_keep_goes_on_where_it_stopped(server: Client) -> None:
    streams = await under_way(server, 2)
    assert await server.get("/is_paused") == {"is_paused": False}
    await server.post("/pause?mode=keep")
    assert await server.get("/is_paused") == {"is_paused": True}
    # Neither flag tells a pause from a sleep.
    assert await server.get("/is_sleeping") == {"is_sleeping": True}
    generated = await server.metric("vllm:generation_tokens_total")
    later = server.ask(5)
    await loaded(server, 3)
    assert await server.metric("vllm:generation_tokens_total") == generated, (
        "an engine that is paused generates nothing"
    )
    await server.post("/resume")
    assert await server.get("/is_paused") == {"is_paused": False}
    assert await server.get("/is_sleeping") == {"is_sleeping": False}
    for stream in streams:
        answer = await stream.task
        assert answer.whole
        assert answer.tokens == LONG
    assert (await later.task).whole


async def test_metrics_are_blind_while_paused(server: Client) -> None:
    """New requests are accepted, counted by /load alone, and finished after the pause; the gauges stand still, and /health is 200."""
    streams = await under_way(server, 2)
    await server.post("/pause?mode=keep")
    later = [server.ask(5) for _ in range(3)]
    await loaded(server, 5)
    assert await server.metric("vllm:num_requests_running") == 2
    assert await server.metric("vllm:num_requests_waiting") == 0
    assert await server.status("/health") == 200
    assert not any(stream.first.is_set() for stream in later)
    await server.post("/resume")
    for stream in [*streams, *later]:
        assert (await stream.task).whole
    await until(lambda: idle(server), "idle afterwards")


async def test_abort_cuts_what_runs_and_lets_new_ones_wait(server: Client) -> None:
    streams = await under_way(server, 2)
    await server.post("/pause?mode=abort")
    for stream in streams:
        answer = await stream.task
        assert (answer.status, answer.finish, answer.done) == (200, "abort", True)
        assert answer.tokens is not None
        assert 0 < answer.tokens < LONG
    await until(lambda: idle(server), "nothing is held after an abort")
    later = server.ask(5)
    await loaded(server, 1)
    assert not later.first.is_set()
    await server.post("/resume")
    assert (await later.task).whole


async def test_wait_returns_when_what_runs_is_finished(server: Client) -> None:
    streams = await under_way(server, 2)
    pause = asyncio.create_task(server.post("/pause?mode=wait"))
    for stream in streams:
        assert (await stream.task).whole
    await pause
    assert await server.get("/is_paused") == {"is_paused": True}
    await server.post("/resume")


async def test_asleep_is_paused_and_lets_new_ones_wait(server: Client) -> None:
    assert await server.get("/is_sleeping") == {"is_sleeping": False}
    await server.post("/sleep?level=1")
    assert await server.get("/is_sleeping") == {"is_sleeping": True}
    assert await server.get("/is_paused") == {"is_paused": True}
    assert await server.status("/health") == 200
    later = server.ask(5)
    await loaded(server, 1)
    assert await server.metric("vllm:num_requests_running") == 0
    assert await server.metric("vllm:num_requests_waiting") == 0
    await server.post("/wake_up")
    assert await server.get("/is_sleeping") == {"is_sleeping": False}
    assert await server.get("/is_paused") == {"is_paused": False}
    assert (await later.task).whole


async def test_a_client_that_goes_takes_its_request_with_it(server: Client) -> None:
    streams = await under_way(server, 2)
    for stream in streams:
        stream.task.cancel()
    await asyncio.gather(*(s.task for s in streams), return_exceptions=True)
    await until(lambda: idle(server), "nothing runs once the clients are gone")


# What follows no double claims to do.


@pytest.fixture
async def vllm(live: str) -> AsyncIterator[Client]:
    async with client(live) as asked:
        yield asked
        await asked.post("/resume")
        await until(lambda: idle(asked), "nothing to do after a test")


LIMIT = 20
"""--max-num-queued-reqs of the shared server."""


async def test_requests_beyond_the_limit_are_refused(vllm: Client) -> None:
    """The limit counts what runs, too. Who is refused gets 503, and is counted."""
    before = await vllm.metric("vllm:admission_rejections_total", reason="max_num_queued_reqs")
    accepted = [vllm.ask(LONG) for _ in range(LIMIT)]
    await loaded(vllm, LIMIT)

    async def full() -> bool:
        return await vllm.metric("vllm:num_requests_waiting") == LIMIT - SEATS

    await until(full, f"{LIMIT - SEATS} waiting")
    for _ in range(3):
        answer = await vllm.ask(5).task
        assert (answer.status, answer.finish) == (503, None)
    for stream in accepted:
        assert (await stream.task).whole
    assert await vllm.metric("vllm:admission_rejections_total", reason="max_num_queued_reqs") == before + 3


async def test_a_refusal_may_come_within_the_stream(vllm: Client) -> None:
    """Of a burst, some are refused after HTTP 200, by one error and [DONE]: only a reason says that an answer is whole."""
    await vllm.post("/pause?mode=keep")
    burst = [vllm.ask(5) for _ in range(LIMIT + 10)]

    async def all_told() -> bool | str:
        done = [stream.answer for stream in burst if stream.task.done()]
        return len(done) == 10 or f"{len(done)} ended"

    await until(all_told, "ten are refused while the engine is paused")
    for stream in burst:
        if stream.task.done():
            answer = stream.answer
            assert 503 in (answer.status, answer.error)
            assert answer.finish is None
    await vllm.post("/resume")
    answers = [await stream.task for stream in burst]
    assert sum(answer.whole for answer in answers) == LIMIT


async def test_a_weight_update_in_flight(vllm: Client) -> None:
    """What a trainer does without a weight transfer group: pause, let the workers read the files again, name the version, resume."""
    streams = await under_way(vllm, 2)
    await vllm.post("/pause?mode=keep")
    assert await vllm.post("/collective_rpc", {"method": "reload_weights"}) == {"results": [None]}
    await vllm.post("/update_weight_version", {"new_version": "7"})
    assert await vllm.get("/weight_info") == {"weight_version": "7"}
    await vllm.post("/resume")
    for stream in streams:
        answer = await stream.task
        assert answer.whole
        assert answer.tokens == LONG
    await vllm.post("/update_weight_version", {"new_version": "default"})


async def test_load_is_taken_off_when_a_request_is_over(vllm: Client) -> None:
    for stream in [vllm.ask(5) for _ in range(3)]:
        assert (await stream.task).whole
    await loaded(vllm, 0)
