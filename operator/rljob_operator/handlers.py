"""The edge towards kopf: watches, indexes, and one asyncio task for each RLJob.

kopf's own change handlers are edge-triggered and its daemons and timers put a finalizer on the object, which would block
its deletion while the operator is down. So kopf only watches here: indexes keep what was seen, events wake the task of the
job they concern, and the task runs the level-based pass of ``reconcile`` until the object is gone.

With leader election every replica watches and keeps its indexes warm, and only the leader has tasks: they begin when the Lease is
taken and are cancelled when it is lost. SIGTERM is taken from kopf, which would first end its watches and leave the Lease to the
last: here the passes end, the writes under way are finished, the Lease is given back, and only then kopf stops.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import kopf

from rljob_operator import autoscalers, kept, stateless, watches
from rljob_operator.cluster import FIELD_MANAGER, Cluster, ClusterError, Json
from rljob_operator.config import Config
from rljob_operator.edges import Edges, warm_up
from rljob_operator.fence import Fence, Fenced, Holding, TakeOver
from rljob_operator.gate import MANAGED_BY_LABEL, UID_LABEL
from rljob_operator.leader import Elector
from rljob_operator.metrics import OperatorMetrics
from rljob_operator.reconcile import Reconciler
from rljob_operator.view import View
from rljob_planner import __version__
from rljob_planner.api import GROUP, PLURAL, VERSION

MANAGED = {MANAGED_BY_LABEL: FIELD_MANAGER}
LONGEST_SILENCE_S = 300.0
"""A job without a pass for so long makes the liveness probe fail: a stalled task is worse than a restart."""

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
    last_pass_s: float = field(default_factory=time.monotonic)


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

    async def connect(self) -> None:
        """Connects to the API server and, if there is an election, takes part in it."""
        self.cluster = await Cluster.connect()
        self.cluster.answered = self.metrics.requested
        self.metrics.count_by(
            jobs=lambda: len(self.jobs),
            woken_jobs=lambda: sum(job.wake.is_set() for job in tuple(self.jobs.values())),
            waiting_jobs=lambda: len(self.view.waiting),
        )
        self.session = aiohttp.ClientSession()
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
        reconciler = Reconciler(
            cluster=self.fenced,
            edges=Edges.real(self.session, self.metrics.planned),
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
                delay_s = min(60.0, 0.5 * 2**failures)
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


def registry(config: Config) -> tuple[kopf.OperatorRegistry, Memo]:
    """The handlers of one operator instance, and the memo that they share; no global state."""
    found = kopf.OperatorRegistry()
    memo = Memo(config)

    @kopf.on.startup(registry=found)
    async def startup(settings: kopf.OperatorSettings, **indexes: Any) -> None:
        settings.posting.enabled = False
        settings.watching.server_timeout = 600
        settings.networking.request_timeout = 60
        settings.persistence.finalizer = f"{GROUP}/kopf"
        settings.persistence.diffbase_storage = stateless.NoEssence()
        settings.persistence.progress_storage = stateless.NoProgress()
        settings.background.cancellation_polling = 5
        memo.view.nodes = indexes["nodes"]
        memo.view.quotas = indexes["quotas"]
        memo.view.autoscalers = indexes["autoscalers"]
        memo.view.jobs = indexes["jobs"]
        memo.view.children = indexes["children"]
        logger.info(
            "rljob-operator %s; Prometheus: %s; namespaces: %s",
            __version__,
            config.prometheus_url or "none, so only jobs that name one are rebalanced",
            ", ".join(config.namespaces) or "all",
        )
        await memo.connect()
        assert memo.cluster is not None
        # The planner's machine code is loaded before the first job asks, and beside the lists of the watches.
        warm_up()
        memo.pods = watches.Pods(memo.cluster, config.namespaces, memo)
        await memo.pods.start()
        if config.metrics_port is not None:
            memo.metrics.serve(config.metrics_port)

    @kopf.on.cleanup(registry=found)
    async def cleanup(**_: Any) -> None:
        await memo.disconnect()

    @kopf.on.login(registry=found)
    def login(**kwargs: Any) -> kopf.ConnectionInfo | None:
        return kopf.login_with_service_account(**kwargs) or kopf.login_with_kubeconfig(**kwargs)

    @kopf.on.probe(id="reconciling", registry=found)
    def reconciling(**_: Any) -> float:
        if memo.pods is not None and memo.pods.lost and not memo.closing:
            raise RuntimeError("the watch of pods ended, so that nothing would be seen any more")
        if memo.election is not None and memo.election.done() and not memo.closing:
            raise RuntimeError("the leader election ended, so that this replica would never lead again")
        if not memo.leading:
            return 0.0
        now = time.monotonic()
        silence_s = max((now - job.last_pass_s for job in memo.jobs.values()), default=0.0)
        if silence_s > LONGEST_SILENCE_S:
            raise RuntimeError(f"a job had no pass for {silence_s:.0f} s")
        return silence_s

    watches.watch(found, memo)

    @kopf.index(GROUP, VERSION, PLURAL, id="jobs", registry=found)
    def jobs(body: kopf.Body, uid: str, **_: Any) -> dict[str, Json]:
        return {uid: kept.whole(body)}

    for api, plural, kind in (
        ("apps/v1", "deployments", "Deployment"),
        ("apps/v1", "statefulsets", "StatefulSet"),
        ("v1", "configmaps", "ConfigMap"),
        ("v1", "services", "Service"),
        ("networking.k8s.io/v1", "networkpolicies", "NetworkPolicy"),
    ):
        _watch_children(found, memo, api, plural, kind)

    @kopf.on.event(GROUP, VERSION, PLURAL, registry=found)
    async def on_job(body: kopf.Body, namespace: str | None, name: str, uid: str, **event: Any) -> None:
        meta = body["metadata"]
        gone = event["type"] == "DELETED" or meta.get("deletionTimestamp") is not None
        job = memo.jobs.get(uid)
        if gone:
            memo.jobs.pop(uid, None)
            if job is not None and job.task is not None:
                job.task.cancel()
            memo.metrics.forget(namespace or "", name)
            memo.view.waiting.discard(uid)
            memo.view.promises.withdrawn(uid)
            memo.wake_waiting()
        elif job is None:
            job = JobTask(namespace or "", name, uid, generation=meta.get("generation"))
            memo.jobs[uid] = job
            if memo.leading and not memo.closing:
                memo.start(job)
        elif job.generation != meta.get("generation"):
            job.generation = meta.get("generation")
            job.wake.set()

    autoscalers.watch(found, memo.wake_namespace)

    return found, memo


def _watch_children(found: kopf.OperatorRegistry, memo: Memo, api: str, plural: str, kind: str) -> None:
    """Indexes one kind of child under the common index, and wakes the job when a child changes."""

    @kopf.index(api, plural, labels=MANAGED, id="children", registry=found)
    def children(body: kopf.Body, name: str, **_: Any) -> dict[tuple[str, str, str], Json]:
        uid = body["metadata"].get("labels", {}).get(UID_LABEL, "")
        return {(uid, kind, name): kept.whole(body)}

    @kopf.on.event(api, plural, labels=MANAGED, id=f"on_{plural}", registry=found)
    async def on_child(labels: Mapping[str, str], **_: Any) -> None:
        memo.wake(labels.get(UID_LABEL))


def run(config: Config) -> None:
    """Runs the operator until it is told to stop."""
    # While a plan is computed, everything else gets the interpreter this much sooner.
    sys.setswitchinterval(0.001)
    # One line for each handled event says nothing that the status does not.
    kopf.configure(verbose=False)
    for noisy in ("aiohttp.access", "kopf.objects"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    with asyncio.Runner() as runner:
        runner.run(_serve(config))
        # A plan that a thread computes can't be cut off, and everything that ends in order would wait for it.
        logging.shutdown()
        os._exit(0)


async def _serve(config: Config) -> None:
    found, memo = registry(config)
    existing = asyncio.all_tasks()
    stop = asyncio.Event()
    handing_over: set[asyncio.Task[None]] = set()

    async def hand_over() -> None:
        await memo.hand_over()
        stop.set()

    def told() -> None:
        if not handing_over:
            logger.info("told to stop: the passes end, and what leads is handed over")
            handing_over.add(asyncio.create_task(hand_over(), name="handover"))

    tasks = await kopf.spawn_tasks(
        registry=found,
        standalone=True,
        clusterwide=not config.namespaces,
        namespaces=config.namespaces,
        liveness_endpoint=config.liveness_endpoint,
        stop_flag=stop,
    )
    # After kopf has set its own handlers, which these replace.
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, told)
    await kopf.run_tasks(tasks, ignored=existing)
