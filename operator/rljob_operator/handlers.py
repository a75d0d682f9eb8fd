"""The edge towards kopf: watches, indexes, and one asyncio task for each RLJob.

kopf's own change handlers are edge-triggered and its daemons and timers put a finalizer on the object, which would block
its deletion while the operator is down. So kopf only watches here: indexes keep what was seen, events wake the task of the
job they concern (``tasks``), and that runs the level-based pass of ``reconcile`` until the object is gone.

SIGTERM is taken from kopf, which would first end its watches and leave the Lease to the last: here the jobs' tasks end and the Lease is given
back (``tasks``), and only then kopf stops.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Mapping
from typing import Any

import kopf

from rljob_operator import autoscalers, byhand, kept, stateless, watches
from rljob_operator.cluster import FIELD_MANAGER, RLJOBS, Cluster, ClusterError, Json
from rljob_operator.config import Config
from rljob_operator.edges import warm_up
from rljob_operator.gate import MANAGED_BY_LABEL, UID_LABEL
from rljob_operator.listening import reachable, serve
from rljob_operator.page.server import StatusPage
from rljob_operator.tasks import JobTask, Memo
from rljob_planner import __version__
from rljob_planner.api import GROUP, PLURAL, VERSION

MANAGED = {MANAGED_BY_LABEL: FIELD_MANAGER}
LONGEST_SILENCE_S = 300.0
"""A job without a pass for so long makes the liveness probe fail: a stalled task is worse than a restart."""

logger = logging.getLogger("rljob_operator")


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
        if config.namespaces:
            # Which kinds and namespaces there are is asked once: to follow them takes rights beyond these namespaces, and without those kopf
            # would try for a minute before it begins.
            settings.scanning.disabled = True
        # The planner's machine code is loaded before the first job asks, and beside the lists of the watches.
        warm_up()
        memo.pods = watches.Pods(memo.cluster, config.namespaces, memo)
        await memo.pods.start()
        if config.metrics_port is not None:
            if memo.page is None:
                memo.metrics.serve(config.metrics_port)
            else:
                page = StatusPage(memo.page, memo.metrics.registry, leads=lambda: memo.leading)
                serve(config.metrics_port, page)

    @kopf.on.cleanup(registry=found)
    async def cleanup(**_: Any) -> None:
        await memo.disconnect()

    @kopf.on.login(registry=found)
    def login(**kwargs: Any) -> kopf.ConnectionInfo | None:
        return kopf.login_with_service_account(**kwargs) or kopf.login_with_kubeconfig(**kwargs)

    # Without another try: kopf would wait a minute for it, and the probe of the kubelet with it.
    @kopf.on.probe(id="reconciling", errors=kopf.ErrorsMode.PERMANENT, registry=found)
    def reconciling(**_: Any) -> float:
        if memo.pods is not None and memo.pods.lost and not memo.closing:
            raise RuntimeError("the watch of pods ended, so that nothing would be seen any more")
        if memo.election is not None and memo.election.done() and not memo.closing:
            raise RuntimeError("the leader election ended, so that this replica would never lead again")
        silence_s = memo.loop_age_s()
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
        if memo.page is not None and not gone:
            memo.page.saw(body)
        if gone:
            memo.jobs.pop(uid, None)
            if memo.page is not None:
                memo.page.forgot(uid)
            if job is not None and job.task is not None:
                job.task.cancel()
            memo.metrics.forget(namespace or "", name)
            memo.view.waiting.discard(uid)
            memo.view.promises.withdrawn(uid)
            memo.wake_waiting()
        elif job is None:
            job = JobTask(namespace or "", name, uid, generation=meta.get("generation"), asked=byhand.asked(meta))
            memo.jobs[uid] = job
            if memo.leading and not memo.closing:
                memo.start(job)
        elif (job.generation, job.asked) != (meta.get("generation"), byhand.asked(meta)):
            # A request for a move is an annotation, which changes no generation.
            job.generation, job.asked = meta.get("generation"), byhand.asked(meta)
            job.wake.set()

    autoscalers.watch(found, memo.wake_namespace)

    return found, memo


async def check_served(cluster: Cluster, namespace: str) -> None:
    """Ends the process where the API has no RLJobs: an operator that does not follow CRDs would never see them come."""
    try:
        await cluster.page(RLJOBS, namespace, 1, "")
    except ClusterError as error:
        # Whatever else it is, the watches meet it too, and try again.
        if error.status == 404:
            sys.exit(
                "rljob-operator: the API server has no RLJobs: apply the CRDs in crds/, and start the operator again"
            )
    finally:
        await cluster.close()


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
    if config.namespaces:
        await check_served(await Cluster.connect(), config.namespaces[0])
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
        liveness_endpoint=None if config.liveness_endpoint is None else reachable(config.liveness_endpoint),
        stop_flag=stop,
    )
    # After kopf has set its own handlers, which these replace.
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, told)
    await kopf.run_tasks(tasks, ignored=existing)
