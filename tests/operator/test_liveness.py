"""What a kubelet gets from /healthz: an answer that fails as soon as nothing would be seen or done any more."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

import aiohttp
import kopf
import pytest
from kopf._core.engines.probing import health_reporter

from dev.controlplane.ports import free_ports
from rljob_operator.config import Config
from rljob_operator.edges import Edges
from rljob_operator.handlers import LONGEST_SILENCE_S, registry
from rljob_operator.tasks import JobTask, Memo


@asynccontextmanager
async def served() -> AsyncIterator[tuple[Memo, Callable[[], Awaitable[int]]]]:
    """The health endpoint of an operator that has started, as kopf serves it."""
    found, memo = registry(Config())
    url = f"http://127.0.0.1:{free_ports(1)[0]}/healthz"
    ready = asyncio.Event()
    reporter = asyncio.create_task(
        health_reporter(
            url,
            memo=kopf.Memo(),
            indices={},  # type: ignore[arg-type]
            registry=found,
            settings=kopf.OperatorSettings(),
            ready_flag=ready,
        )
    )

    async def status() -> int:
        async with aiohttp.ClientSession() as session, session.get(url, timeout=aiohttp.ClientTimeout(5)) as answer:
            return answer.status

    try:
        await asyncio.wait_for(ready.wait(), 5)
        yield memo, status
    finally:
        reporter.cancel()
        await asyncio.gather(reporter, return_exceptions=True)


@dataclass
class Watch:
    lost: bool


async def test_a_standby_and_a_leader_with_busy_jobs_are_alive() -> None:
    async with served() as (memo, status):
        memo.leading = False
        memo.jobs["uid"] = JobTask("team", "job", "uid", last_pass_s=time.monotonic() - 2 * LONGEST_SILENCE_S)
        assert await status() == 200
    async with served() as (memo, status):
        memo.jobs["uid"] = JobTask("team", "job", "uid")
        assert await status() == 200


@pytest.mark.parametrize("leading", [True, False])
async def test_a_watch_of_pods_that_ended_fails_at_once(leading: bool) -> None:
    async with served() as (memo, status):
        memo.leading = leading
        memo.pods = Watch(lost=True)  # type: ignore[assignment]
        assert await status() == 500


async def test_an_election_that_ended_fails() -> None:
    async with served() as (memo, status):
        memo.leading = False
        memo.election = asyncio.create_task(asyncio.sleep(0))
        await memo.election
        assert await status() == 500


async def test_a_job_without_a_pass_fails_the_leader() -> None:
    async with served() as (memo, status):
        memo.jobs["uid"] = JobTask("team", "job", "uid", last_pass_s=time.monotonic() - LONGEST_SILENCE_S - 1)
        assert await status() == 500


async def test_a_job_that_waits_for_a_planner_that_answers_others_is_alive() -> None:
    long_ago = time.monotonic() - LONGEST_SILENCE_S - 1
    async with served() as (memo, status):
        memo.jobs["uid"] = JobTask("team", "job", "uid", last_pass_s=long_ago, asking=True)
        assert await status() == 200
    async with served() as (memo, status):
        # A planner that answers nobody any more is a standstill.
        memo.jobs["uid"] = JobTask("team", "job", "uid", last_pass_s=long_ago, asking=True)
        memo.answered_s = long_ago
        assert await status() == 500


async def test_a_question_to_the_planner_is_told_while_it_waits() -> None:
    told: list[bool] = []
    async with aiohttp.ClientSession() as session:
        edges = Edges.real(session, asking=told.append)
        assert await edges.in_thread(lambda: list(told)) == [True]
        with pytest.raises(ZeroDivisionError):
            await edges.in_thread(lambda: 1 // 0)
    assert told == [True, False, True, False]


async def test_an_operator_that_is_told_to_stop_is_not_killed_for_it() -> None:
    async with served() as (memo, status):
        memo.closing = True
        memo.pods = Watch(lost=True)  # type: ignore[assignment]
        assert await status() == 200
