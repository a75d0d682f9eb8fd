"""What becomes of requests when a server is told to end, or its engine dies: of a real vLLM, and of the double that stands in for it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass
from enum import Enum

import aiohttp
import pytest

from dev.vllm import device
from dev.vllm.server import Server
from tests.e2e.client import Answer, Client, Stream, client, until
from tests.e2e.conftest import PACE_S
from tests.e2e.pages import value
from tests.e2e.subjects import DoubleMortal, LiveMortal, Mortal
from tests.unit.vllm_double import double

SEATS = 4
WAITING = 2
LONG = 750
"""Tokens of a request that is under way when the end comes: 15 s of a paced server, for a handful of questions."""

TIMEOUT_S = 120.0
"""--shutdown-timeout, where one is given: more than any request here takes on a busy machine."""

OPTIONS = ("--enable-server-load-tracking",)


class Ends(Enum):
    """How a server of this module will end."""

    AT_ONCE = "SIGTERM without a shutdown timeout"
    WITH_TIME = "SIGTERM with a shutdown timeout"
    WITHOUT_ENGINE = "the engine is killed"


@dataclass(frozen=True)
class Started:
    """The real servers, which start side by side: each takes half a minute, most of it spent reading files."""

    servers: dict[Ends, Server]

    def get(self, ends: Ends) -> Mortal:
        self.servers[ends].wait_ready()
        return LiveMortal(self.servers[ends])


@pytest.fixture(scope="module")
def started(request: pytest.FixtureRequest) -> Iterator[Started]:
    python, model = request.getfixturevalue("vllm_python"), request.getfixturevalue("tiny_model")
    with ExitStack() as stack:
        servers = {}
        for ends in Ends:
            more = (*OPTIONS, "--shutdown-timeout", f"{TIMEOUT_S:.0f}") if ends is Ends.WITH_TIME else OPTIONS
            servers[ends] = Server(python, model, more=more, max_running=SEATS, env=device.environment(PACE_S))
            stack.callback(servers[ends].close)
            servers[ends].start()
        yield Started(servers)


@pytest.fixture(params=["double", pytest.param("live", marks=pytest.mark.vllm)])
def mortal(request: pytest.FixtureRequest) -> Iterator[Callable[[Ends], Mortal]]:
    """The server that is to end so."""
    with ExitStack() as stack:

        def get(ends: Ends) -> Mortal:
            if request.param == "live":
                started: Started = request.getfixturevalue("started")
                return started.get(ends)
            found = stack.enter_context(double(seats=SEATS, tracks_load=True, token_s=0.004))
            return DoubleMortal(found, TIMEOUT_S if ends is Ends.WITH_TIME else 0.0)

        yield get


@dataclass(frozen=True)
class Full:
    """A server whose seats are taken, and at whose door requests wait."""

    server: Mortal
    asked: Client
    running: list[Stream]
    waiting: list[Stream]

    @property
    def streams(self) -> list[Stream]:
        return [*self.running, *self.waiting]


@asynccontextmanager
async def filled(server: Mortal) -> AsyncIterator[Full]:
    async with client(server.url) as asked:
        running = [asked.ask(LONG) for _ in range(SEATS)]
        for stream in running:
            await stream.first.wait()
        waiting = [asked.ask(LONG) for _ in range(WAITING)]

        async def taken() -> bool | str:
            page = await asked.metrics()
            now = value(page, "vllm:num_requests_running"), value(page, "vllm:num_requests_waiting")
            return now == (SEATS, WAITING) or f"{now}, first tokens of {[len(s.answer.text) for s in running]}"

        await until(taken, f"{SEATS} running and {WAITING} waiting")
        full = Full(server, asked, running, waiting)
        yield full
        for stream in full.streams:
            stream.task.cancel()
        await asyncio.gather(*(s.task for s in full.streams), return_exceptions=True)


async def refuses(server: Mortal) -> bool:
    return not server.listens()


async def test_sigterm_with_time_finishes_all_and_refuses_new_ones(mortal: Callable[[Ends], Mortal]) -> None:
    async with filled(mortal(Ends.WITH_TIME)) as full:
        full.server.sigterm()

        answers: list[Answer] = []

        async def refused() -> bool | str:
            answers.append(await full.asked.ask_at_once(1))
            return answers[-1].status != 200 or str(answers[-1])

        await until(refused, "new requests are refused")
        assert answers[-1].status == 500
        assert "cannot schedule new futures after shutdown" in answers[-1].body
        # What refuses them is the tokenizer. Token ids pass it, and the engine drops them with HTTP 200: at once as an abort, as a stream with nothing at all.
        answer = await full.asked.ask_at_once(1, [1, 2, 3])
        assert (answer.status, answer.finish, answer.tokens) == (200, "abort", 0)
        streamed = await full.asked.ask(1).task
        assert (streamed.status, streamed.finish, streamed.text, streamed.done) == (200, None, "", True)
        # Whoever asks whether it is ready hears yes; the gauges still count.
        assert await full.asked.status("/health") == 200
        assert await full.asked.metric("vllm:num_requests_running") > 0
        for stream in full.streams:
            answer = await stream.task
            assert answer.whole, answer
            assert answer.tokens == LONG
        await full.server.ended()


async def test_sigterm_without_time_finishes_nothing(mortal: Callable[[Ends], Mortal]) -> None:
    """Streams are cut or left hanging: the server kills its engine without waiting for it, so it is a matter of luck which."""
    async with filled(mortal(Ends.AT_ONCE)) as full:
        full.server.sigterm()
        await until(lambda: refuses(full.server), "the port is closed")

        async def over() -> bool:
            return all(stream.task.done() for stream in full.streams)

        try:
            await until(over, "all streams end", patience_s=10.0)
        except AssertionError:
            hanging = [stream for stream in full.streams if not stream.task.done()]
            assert hanging
            assert all(stream.answer.finish is None for stream in hanging)
        for stream in full.streams:
            assert not stream.answer.whole
            assert stream.answer.finish in (None, "abort")
        # Once the clients are gone there is nothing to hang on for.
        for stream in full.streams:
            stream.task.cancel()
        await asyncio.gather(*(s.task for s in full.streams), return_exceptions=True)
        await full.server.ended()


async def test_a_dead_engine_is_told_and_ends_the_server(mortal: Callable[[Ends], Mortal]) -> None:
    async with filled(mortal(Ends.WITHOUT_ENGINE)) as full:
        at_once = asyncio.create_task(full.asked.ask_at_once(LONG))

        async def asked_all() -> bool:
            return await full.asked.load() == SEATS + WAITING + 1

        await until(asked_all, "all requests are there")
        seen: list[int | None] = []

        async def watch() -> None:
            while full.server.listens():
                seen.append(await full.asked.status("/health"))
                await asyncio.sleep(0.005)

        full.server.kill_engine()
        watching = asyncio.create_task(watch())
        for stream in full.streams:
            answer = await stream.task
            assert (answer.status, answer.finish) == (200, None)
            # The server closes while it tells them: some hear the error, the others a connection that breaks.
            assert answer.error == 500 or answer.broken
        await full.server.ended()
        await watching
        ill = [status for status in seen if status != 200]
        assert set(ill) <= {503, None}
        assert seen[len(seen) - len(ill) :] == ill, "an engine that is dead stays dead"
        answer = (await asyncio.gather(at_once, return_exceptions=True))[0]
        assert isinstance(answer, aiohttp.ClientError) or answer.status == 500
