"""The task of a job: it can't be lost without being noticed, whatever wakes it and when."""

from __future__ import annotations

import asyncio

import pytest
from prometheus_client import generate_latest

from rljob_operator import tasks
from rljob_operator.config import Config
from rljob_operator.fence import Holding
from rljob_operator.tasks import JobTask, Memo


async def test_a_wake_in_the_same_turn_as_the_timeout_does_not_cancel_the_waiter() -> None:
    wake = asyncio.Event()
    loop = asyncio.get_running_loop()
    for _ in range(50):
        wake.clear()
        # Both fall due in one turn of the loop, since nothing lets it turn in between.
        loop.call_later(0.001, wake.set)
        await tasks._woken(wake, 0.001)
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


async def _runs_for_ever(self: Memo, job: JobTask) -> None:
    await asyncio.Event().wait()


async def test_jobs_have_tasks_only_while_the_lease_is_held(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Memo, "run", _runs_for_ever)
    memo = Memo(Config())
    memo.leading = False
    job = JobTask("ns", "job", "uid")
    memo.jobs["uid"] = job
    memo.metrics.reconciled("ns", "job", 0.1)
    memo.acquired(Holding("me", 3))
    assert memo.view.token == "me/3"
    first = job.task
    assert first is not None
    await asyncio.sleep(0)
    memo.lost()
    await asyncio.gather(first, return_exceptions=True)
    await asyncio.sleep(0)
    assert first.cancelled()
    assert job.task is first, "no task is started anew for one that was lost with the Lease"
    text = generate_latest(memo.metrics.registry).decode()
    assert "rljob_operator_leader 0.0" in text
    assert "rljob_operator_takeovers_total 1.0" in text
    assert 'rljob_name="job"' not in text, "nobody feeds its series any more"
    memo.acquired(Holding("me", 4))
    assert job.task is not first
    await memo.hand_over()
    assert job.task is not None
    assert job.task.cancelled()


async def test_without_an_election_every_job_that_is_seen_has_a_task() -> None:
    memo = Memo(Config())
    assert memo.leading
    assert memo.view.token is None
    memo.fence.check()
