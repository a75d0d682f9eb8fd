"""The task of a job: it can't be lost without being noticed, whatever wakes it and when."""

from __future__ import annotations

import asyncio

import pytest

from rljob_operator import handlers
from rljob_operator.config import Config
from rljob_operator.handlers import JobTask, Memo


async def test_a_wake_in_the_same_turn_as_the_timeout_does_not_cancel_the_waiter() -> None:
    wake = asyncio.Event()
    loop = asyncio.get_running_loop()
    for _ in range(50):
        wake.clear()
        # Both fall due in one turn of the loop, since nothing lets it turn in between.
        loop.call_later(0.001, wake.set)
        await handlers._woken(wake, 0.001)
        await asyncio.sleep(0)
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0


async def test_a_lost_task_is_started_anew_and_one_that_is_done_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    runs: list[str] = []

    async def run(self: Memo, job: JobTask) -> None:
        runs.append(job.uid)
        if len(runs) == 1:
            raise asyncio.CancelledError
        if len(runs) == 2:
            raise RuntimeError("lost")

    monkeypatch.setattr(Memo, "run", run)
    memo = Memo(Config())
    job = JobTask("ns", "job", "uid")
    memo.jobs["uid"] = job
    memo.start(job)
    for _ in range(100):
        await asyncio.sleep(0)
    assert memo.jobs == {}
    assert runs == ["uid"] * 3


async def test_a_task_that_is_cancelled_with_its_job_stays_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    started = asyncio.Event()

    async def run(self: Memo, job: JobTask) -> None:
        started.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(Memo, "run", run)
    memo = Memo(Config())
    job = JobTask("ns", "job", "uid")
    memo.jobs["uid"] = job
    memo.start(job)
    await started.wait()
    first = job.task
    memo.jobs.pop("uid")
    assert first is not None
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    await asyncio.sleep(0)
    assert job.task is first


def test_a_quota_wakes_the_jobs_of_its_namespace_alone() -> None:
    memo = Memo(Config())
    memo.jobs = {uid: JobTask(namespace, "job", uid) for uid, namespace in (("u1", "one"), ("u2", "two"))}
    memo.wake_namespace("one")
    assert {uid: job.wake.is_set() for uid, job in memo.jobs.items()} == {"u1": True, "u2": False}
