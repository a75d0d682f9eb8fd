"""The tasks of the jobs: one for each RLJob, running the passes of ``reconcile`` while this process leads.

Events wake the task of the job that they concern. With leader election every replica knows the jobs, and only the leader has tasks: they
begin when the Lease is taken and are cancelled when it is lost. An operator that is told to stop ends its passes, finishes the writes under
way, and gives the Lease back, in this order.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from dataclasses import dataclass, field

import aiohttp

from rljob_operator import watches
from rljob_operator.cluster import Cluster, ClusterError
from rljob_operator.config import Config
from rljob_operator.credentials import Credentials
from rljob_operator.edges import Edges
from rljob_operator.fence import Fence, Fenced, Holding, TakeOver
from rljob_operator.leader import Elector
from rljob_operator.metrics import OperatorMetrics
from rljob_operator.page.history import Recorder
from rljob_operator.prometheus import open_session
from rljob_operator.reconcile import Reconciler, retry_s
from rljob_operator.view import View

HANDOVER_S = 5.0
"""How long the end of the passes and the writes under way may take when the operator is told to stop."""

FREED_S = 1.0
"""How long after GPUs have come free the jobs that wait for some are woken: a job that ends frees them one pod after the other."""

BURST_S = 0.2
"""Shortest time between two passes over a job, unless the first asked for the second at once."""

LONGEST_BURST_S = 2.0
"""Longest such pause: where the API server or this process is slow, passes that come as fast as they can make it slower."""

logger = logging.getLogger("rljob_operator")


@dataclass
class JobTask:
    """The task of one RLJob and what wakes it."""

    namespace: str
    name: str
    uid: str
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    task: asyncio.Task[None] | None = None
    generation: int | None = None
    asked: str = ""
    """The request for a move that it was woken for."""
    last_pass_s: float = field(default_factory=time.monotonic)
    asking: bool = False
    """Whether its pass waits for the planner, which answers one job after the other."""


@dataclass
class Memo:
    """What handlers share."""

    config: Config
    view: View = field(default_factory=View)
    metrics: OperatorMetrics = field(default_factory=OperatorMetrics)
    jobs: dict[str, JobTask] = field(default_factory=dict)
    cluster: Cluster | None = None
    fenced: Fenced | None = None
    fence: Fence = field(default_factory=Fence)
    session: aiohttp.ClientSession | None = None
    leading: bool = True
    """Whether jobs have tasks; without leader election always."""
    closing: bool = False
    freed: asyncio.TimerHandle | None = None
    """When the jobs that wait for GPUs are woken next, None while none have come free."""
    elector: Elector | None = None
    election: asyncio.Task[None] | None = None
    take_over: TakeOver | None = None
    pods: watches.Pods | None = None
    answered_s: float = field(default_factory=time.monotonic)
    """When the planner last answered anybody, by the monotonic clock."""

    def __post_init__(self) -> None:
        config = self.config
        self.credentials = Credentials(config.prometheus_ca_file, config.prometheus_token_file, config.token_urls)
        self.page = Recorder() if config.status_page else None

    async def connect(self) -> None:
        """Connects to the API server and, if there is an election, takes part in it."""
        self.cluster = await Cluster.connect()
        self.cluster.answered = self.metrics.requested
        self.metrics.count_by(
            jobs=lambda: len(self.jobs),
            woken_jobs=lambda: sum(job.wake.is_set() for job in tuple(self.jobs.values())),
            waiting_jobs=lambda: len(self.view.waiting),
            loop_age_seconds=self.loop_age_s,
            watch_lost=lambda: self.pods is not None and self.pods.lost and not self.closing,
        )
        self.session = open_session()
        lease = self.config.lease
        if lease is None:
            self.fenced = Fenced(self.cluster, self.fence)
            self.metrics.leads(True)
            return
        self.leading, self.fence = False, Fence(elected=True)
        self.fenced = Fenced(self.cluster, self.fence)
        self.metrics.leads(False)
        self.elector = Elector(self.cluster, lease, self.fence, acquired=self.acquired, lost=self.lost)
        self.take_over = TakeOver(self.fenced, self.fence, self.elector.confirm)
        self.election = asyncio.create_task(self.elector.run(), name="leader election")

    def acquired(self, holding: Holding) -> None:
        """Leading begins: every job that was seen gets its task."""
        self.leading, self.view.token = True, holding.token
        self.metrics.leads(True, took_over=True)
        for job in self.jobs.values():
            job.last_pass_s = time.monotonic()
            self.start(job)

    def lost(self) -> None:
        """Leading ends, at once: no task goes on, and no metric of a job is kept that nobody feeds."""
        self.leading = False
        self.metrics.leads(False)
        for job in self.jobs.values():
            if job.task is not None:
                job.task.cancel()
            self.metrics.forget(job.namespace, job.name)

    def loop_age_s(self) -> float:
        """Seconds since the last pass over the job that had none for longest; 0 while this replica does not lead.

        A job that waits for its turn at the planner is as old as the planner's last answer: many that ask at once are no standstill.
        """
        if not self.leading:
            return 0.0
        now = time.monotonic()
        seen = (
            max(job.last_pass_s, self.answered_s) if job.asking else job.last_pass_s
            for job in tuple(self.jobs.values())
        )
        return max((now - last_s for last_s in seen), default=0.0)

    def _planned(self, seconds: float) -> None:
        self.answered_s = time.monotonic()
        self.metrics.planned(seconds)

    async def hand_over(self) -> None:
        """Ends the passes, lets the writes under way finish, and gives the Lease back. Never raises."""
        self.closing = True
        tasks = [job.task for job in self.jobs.values() if job.task is not None]
        for task in tasks:
            task.cancel()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(HANDOVER_S):
                await asyncio.gather(*tasks, return_exceptions=True)
                if self.fenced is not None:
                    await self.fenced.settled(HANDOVER_S)
                if self.election is not None and self.elector is not None:
                    self.election.cancel()
                    await asyncio.gather(self.election, return_exceptions=True)
                    await self.elector.release()

    async def disconnect(self) -> None:
        """Closes the connections, after the jobs' tasks have ended."""
        await self.hand_over()
        if self.pods is not None:
            await self.pods.stop()
        if self.session is not None:
            await self.session.close()
        if self.cluster is not None:
            await self.cluster.close()

    def wake(self, uid: str | None) -> None:
        """Wakes one job, or all of them."""
        for job in self.jobs.values() if uid is None else filter(None, [self.jobs.get(uid)]):
            job.wake.set()

    def wake_waiting(self) -> None:
        """Wakes the jobs that wait for GPUs, soon and once for a burst of events that free some."""
        if self.freed is None:
            self.freed = asyncio.get_running_loop().call_later(FREED_S, self._wake_waiting)

    def _wake_waiting(self) -> None:
        self.freed = None
        for uid in self.view.waiting:
            self.wake(uid)

    def wake_namespace(self, namespace: str) -> None:
        """Wakes the jobs of a namespace."""
        for job in self.jobs.values():
            if job.namespace == namespace:
                job.wake.set()

    async def run(self, job: JobTask) -> None:
        """Runs passes over a job until it is gone; an error delays the next pass and ends nothing."""
        assert self.fenced is not None
        assert self.session is not None

        def asking(waits: bool) -> None:
            job.asking = waits

        reconciler = Reconciler(
            cluster=self.fenced,
            edges=Edges.real(self.session, self._planned, self.credentials, asking),
            view=self.view,
            config=self.config,
            metrics=self.metrics,
            namespace=job.namespace,
            name=job.name,
            uid=job.uid,
            claim=self.take_over,
        )
        failures = 0
        while True:
            job.wake.clear()
            began = time.monotonic()
            try:
                delay_s = await reconciler.run_pass()
                failures = 0
            except Exception as error:
                failures += 1
                delay_s = retry_s(failures)
                self.metrics.reconcile_failed(job.namespace, job.name)
                # What the API server refused is all in its message; a traceback is for what nobody foresaw.
                unforeseen = not isinstance(error, ClusterError)
                words = "%s/%s: the pass failed, again in %.0f s: %s"
                logger.error(words, job.namespace, job.name, delay_s, error, exc_info=unforeseen)
            job.last_pass_s = time.monotonic()
            if delay_s is None:
                return
            # A burst of events (a fleet that starts) becomes one pass, not one a pod; the longer passes take, the fewer.
            burst_s = min(LONGEST_BURST_S, max(BURST_S, 2.0 * (job.last_pass_s - began)))
            await asyncio.sleep(min(burst_s, delay_s))
            await _woken(job.wake, delay_s - burst_s)

    def start(self, job: JobTask) -> None:
        """Starts the task of a job; should it ever end while the job is there, it is started anew."""
        job.task = asyncio.create_task(self.run(job), name=f"rljob {job.namespace}/{job.name}")
        job.task.add_done_callback(lambda task: self._ended(job, task))

    def _ended(self, job: JobTask, task: asyncio.Task[None]) -> None:
        if self.closing or not self.leading or self.jobs.get(job.uid) is not job or job.task is not task:
            return
        if not task.cancelled() and task.exception() is None:
            self.jobs.pop(job.uid, None)
            return
        logger.error("%s/%s: the job's task was lost and is started anew", job.namespace, job.name)
        self.metrics.reconcile_failed(job.namespace, job.name)
        self.start(job)


async def _woken(wake: asyncio.Event, timeout_s: float) -> None:
    """Waits until a job is woken, at most ``timeout_s``.

    The timeout ends a waiter of its own and never reaches into the job's task, whose cancellation means that the job is gone.
    """
    if timeout_s <= 0:
        return
    waiter = asyncio.ensure_future(wake.wait())
    try:
        await asyncio.wait({waiter}, timeout=timeout_s)
    finally:
        waiter.cancel()
