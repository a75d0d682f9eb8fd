"""The operator as a process: it watches, runs the real passes over every RLJob, and may be killed at any request.

The loop around the passes does what the operator's own does: one task a job, woken by what the watches show, at the latest when
the last pass asked for it, later after an error. Killing the process closes its connection first, so that nothing is sent by what
still runs in it; what was on its way may arrive. All that the process knew is lost.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from dev.virtual.cluster import Connection, Passages, VirtualCluster
from dev.virtual.store import Json
from dev.virtual.watching import Lag, Watching
from rljob_operator import byhand
from rljob_operator.cluster import ClusterError
from rljob_operator.config import Config
from rljob_operator.edges import Edges, Observe, Question
from rljob_operator.fence import Fence, Fenced
from rljob_operator.metrics import OperatorMetrics
from rljob_operator.readings import SamplerTelemetry, Telemetry
from rljob_operator.reconcile import Reconciler, retry_s
from rljob_operator.situation import Planner

BURST_S = 0.2
"""Shortest time between two passes over a job, unless the first asked for the second at once."""

PROMETHEUS = "http://prometheus.monitoring.svc:9090"
"""Where the operator is told to ask for metrics; nobody is there, ``observe`` answers."""

FREED_S = 0.5
"""How long events that free GPUs are gathered before the jobs that wait for some are woken."""

logger = logging.getLogger("rljob_operator")


async def unknown(url: str, question: Question) -> Telemetry:  # noqa: ARG001
    """Metrics of a job that nobody scrapes."""
    return Telemetry(
        question.now_s,
        0.0,
        samplers={pod: SamplerTelemetry.unknown() for pod in question.sampler_pods},
        ready_samplers=frozenset(question.sampler_pods),
        missing=("nothing is scraped",),
    )


@dataclass
class _Job:
    namespace: str
    name: str
    uid: str
    wake: asyncio.Event
    generation: int | None
    asked: str
    task: asyncio.Task[None] | None = None


class VirtualOperator:
    """One process of the operator; start it, kill it, start another."""

    def __init__(
        self,
        cluster: VirtualCluster,
        *,
        observe: Observe = unknown,
        planner: Planner | None = None,
        config: Config | None = None,
        passages: Passages | None = None,
        lag: Lag | None = None,
        burst_s: float = BURST_S,
        name: str = "operator",
    ) -> None:
        self.cluster = cluster
        self.connection: Connection = cluster.connect(name, passages)
        self.passes = 0
        """Passes that were run."""
        self.failures: list[str] = []
        """What passes raised that no API server answers: mistakes of the code."""
        self.alive = False
        """Whether it runs."""
        self.metrics = OperatorMetrics()
        self._config = config or Config(prometheus_url=PROMETHEUS)
        self._lag = lag
        self._burst_s = burst_s
        self._jobs: dict[str, _Job] = {}
        self._watching: Watching | None = None
        self._freed = False
        clock = cluster.clock

        async def here(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
            # A thread is a moment at which others may act; how long it takes is not part of the model.
            await clock.pause(0.0)
            return function(*args, **kwargs)

        def in_thread(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Awaitable[Any]:
            return here(function, *args, **kwargs)

        self._edges = Edges(
            observe=observe,
            wall_s=lambda: clock.now_s,
            monotonic_s=lambda: clock.now_s,
            planner=planner or Planner(),
            in_thread=in_thread,
        )

    def start(self) -> VirtualOperator:
        """Starts the process: it lists everything, then follows the watches."""
        self.alive = True
        self._watching = Watching(self.cluster, lag=self._lag, seen=self._seen)
        for job in self.cluster.store.all("rljobs"):
            self._start_job(job)
        return self

    def kill(self) -> None:
        """Ends the process as SIGKILL does."""
        self.alive = False
        self.connection.closed = True
        if self._watching is not None:
            self._watching.closed = True
        jobs, self._jobs = self._jobs, {}
        for job in jobs.values():
            if job.task is not None:
                job.task.cancel()

    def _seen(self, event: str, plural: str, obj: Json) -> None:
        """Wakes the jobs that a change concerns."""
        meta = obj["metadata"]
        if plural == "rljobs":
            self._job_seen(event, obj)
        elif plural == "resourcequotas":
            for job in self._jobs.values():
                if job.namespace == meta["namespace"]:
                    job.wake.set()
        elif plural == "nodes":
            self._wake_waiting()
        else:
            found = self._jobs.get((meta.get("labels") or {}).get("rljob.dev/uid", ""))
            if found is not None and plural != "replicasets":
                found.wake.set()
            ended = plural == "pods" and (obj.get("status") or {}).get("phase") in ("Succeeded", "Failed")
            if plural == "pods" and obj["spec"].get("nodeName") and (event == "DELETED" or ended):
                self._wake_waiting()

    def _wake_waiting(self) -> None:
        """Wakes the jobs that wait for GPUs, once for a burst of events that free some."""
        if not self._freed:
            self._freed = True
            self.cluster.clock.after(FREED_S, self._wake_waiting_now)

    def _wake_waiting_now(self) -> None:
        self._freed = False
        for uid in () if self._watching is None else tuple(self._watching.view.waiting):
            if uid in self._jobs:
                self._jobs[uid].wake.set()

    def _job_seen(self, event: str, obj: Json) -> None:
        meta = obj["metadata"]
        job = self._jobs.get(meta["uid"])
        if event == "DELETED" or meta.get("deletionTimestamp"):
            self._jobs.pop(meta["uid"], None)
            if job is not None and job.task is not None:
                job.task.cancel()
            self.metrics.forget(meta["namespace"], meta["name"])
            if self._watching is not None:
                self._watching.view.waiting.discard(meta["uid"])
                self._watching.view.promises.withdrawn(meta["uid"])
            self._wake_waiting()
        elif job is None:
            self._start_job(obj)
        elif (job.generation, job.asked) != (meta["generation"], byhand.asked(meta)):
            job.generation, job.asked = meta["generation"], byhand.asked(meta)
            job.wake.set()

    def _start_job(self, obj: Json) -> None:
        meta = obj["metadata"]
        job = _Job(
            meta["namespace"], meta["name"], meta["uid"], asyncio.Event(), meta["generation"], byhand.asked(meta)
        )
        self._jobs[job.uid] = job
        job.task = self.cluster.clock.spawn(self._run(job))

    async def _run(self, job: _Job) -> None:
        assert self._watching is not None
        clock = self.cluster.clock
        reconciler = Reconciler(
            # As in production: what writes without saying what it has read is a mistake.
            cluster=Fenced(self.connection, Fence()),
            edges=self._edges,
            view=self._watching.view,
            config=self._config,
            metrics=self.metrics,
            namespace=job.namespace,
            name=job.name,
            uid=job.uid,
        )
        failures = 0
        while True:
            job.wake.clear()
            try:
                delay_s = await reconciler.run_pass()
                failures = 0
            except Exception as error:
                failures += 1
                delay_s = retry_s(failures)
                if not isinstance(error, ClusterError):
                    said = f"{type(error).__name__}: {error}"
                    if said not in self.failures:
                        logger.exception("%s/%s: the pass failed", job.namespace, job.name)
                    self.failures.append(said)
            self.passes += 1
            if delay_s is None:
                return
            await clock.pause(min(self._burst_s, delay_s))
            await self._woken(job.wake, delay_s - self._burst_s)

    async def _woken(self, wake: asyncio.Event, timeout_s: float) -> None:
        if timeout_s <= 0 or wake.is_set():
            return
        timer = self.cluster.clock.after(timeout_s, wake.set)
        try:
            await wake.wait()
        finally:
            timer.cancel()
