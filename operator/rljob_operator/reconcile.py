"""One level-based pass over one RLJob: observe, act on what is persisted, look, decide, report.

A pass reads the RLJob from the API server, does what its status says should be done (children, layout, gates), and only
then looks at what became of it and decides what should be done next. What it decided is written before the next pass
acts on it. So there is no moment at which the cluster is changed by something that a restart would forget, and a pass may be
cut off anywhere.

Whatever is unknown changes nothing: a spec that can't be read, a metric that is missing, a status of another version all end
in a condition, never in a resize.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Protocol

from pydantic import ValidationError

from rljob_operator import asked, children, fleet, gate, trouble
from rljob_operator.acting import Acting
from rljob_operator.actions import Actions
from rljob_operator.adopting import Adopting
from rljob_operator.cluster import RLJOBS, Api, ClusterError, Json
from rljob_operator.companioning import Companioning
from rljob_operator.config import Config
from rljob_operator.edges import Edges
from rljob_operator.fence import HELD_BY_ANOTHER
from rljob_operator.inventory import take_inventory
from rljob_operator.learning import Learning
from rljob_operator.lifecycle import targets_of
from rljob_operator.lost import lost_nodes
from rljob_operator.metrics import OperatorMetrics
from rljob_operator.passes import Pass
from rljob_operator.pools import lost_pools
from rljob_operator.rebalance import Targets
from rljob_operator.reporting import Reporting
from rljob_operator.reservation import others_plan_first
from rljob_operator.rivals import rivals_of
from rljob_operator.running import Running
from rljob_operator.starting import AT_ONCE_S, REPLAN_AFTER_S, Starting
from rljob_operator.stopping import Stopping
from rljob_operator.view import View
from rljob_planner.api.spec import RLJob
from rljob_planner.api.status import Phase, RLJobStatus


class Claim(Protocol):
    """Takes an RLJob and its children over for the leader that this process is."""

    def __call__(self, raw: Json, *, anew: bool = False) -> Awaitable[Json]:
        """The RLJob as it then stands; ``anew`` also if it seems to have been taken over before."""


STRANGE = 25
"""Passes in a row that meet the mark of another holding before the job is taken over anew: the view would have caught up by now, so
that somebody set the mark by hand."""

CONFLICT_S = 0.2
"""Pause after somebody else wrote first: longer than their write, too short to be noticed."""


def retry_s(failures: int) -> float:
    """Pause in seconds after so many passes over a job that failed in a row, one or more."""
    return float(min(60.0, 0.5 * 2**failures))


class Reconciler:
    """The passes over one RLJob."""

    def __init__(
        self,
        *,
        cluster: Api,
        edges: Edges,
        view: View,
        config: Config,
        metrics: OperatorMetrics,
        namespace: str,
        name: str,
        uid: str,
        claim: Claim | None = None,
    ) -> None:
        self._cluster = cluster
        self._edges = edges
        self._view = view
        self._config = config
        self._metrics = metrics
        self._namespace = namespace
        self._name = name
        self._uid = uid
        self._actions = Actions(cluster, view, uid)
        self._acting = Acting(self._actions)
        self._companioning = Companioning(self._actions, view, metrics, uid)
        learning = Learning(cluster)
        self._adopting = Adopting(cluster, view, edges, config, metrics, learning)
        self._starting = Starting(self._actions, edges, learning, view.waiting)
        self._running = Running(edges, config, metrics, learning)
        self._stopping = Stopping(self._running)
        self._reporting = Reporting(cluster, self._actions, edges, metrics, view.promises, namespace, name)
        self._claim = claim
        self._strange = 0
        self._failures = 0

    async def run_pass(self) -> float | None:
        """Runs one pass; returns the seconds until the next at the latest, or None when the job is gone.

        A pass that fails again says so on the job before it raises: what nobody can read in the status, nobody repairs.
        """
        raw = await self._cluster.get(RLJOBS, self._namespace, self._name)
        if raw is None or raw["metadata"]["uid"] != self._uid or raw["metadata"].get("deletionTimestamp"):
            return None
        try:
            if self._claim is not None:
                raw = await self._claim(raw, anew=self._strange >= STRANGE)
            delay_s = await self._pass(raw)
        except Exception as error:
            self._view.promises.withdrawn(self._uid)
            if isinstance(error, ClusterError) and error.conflict:
                self._strange = self._strange + 1 if error.reason == HELD_BY_ANOTHER else 0
                return CONFLICT_S
            self._failures += 1
            if self._failures > 1 and not trouble.is_passing(error):
                await self._reporting.trouble(raw, trouble.failed(error))
            raise
        self._failures = self._strange = 0
        return delay_s

    async def _pass(self, raw: Json) -> float:
        began = self._edges.monotonic_s()
        try:
            before = RLJobStatus.model_validate(raw.get("status") or {})
        except ValidationError as error:
            await self._reporting.trouble(raw, trouble.unreadable_status(error, self._namespace, self._name))
            return self._config.idle_tick_s
        try:
            job = RLJob.model_validate({key: raw[key] for key in ("apiVersion", "kind", "metadata", "spec")})
        except ValidationError as error:
            await self._reporting.invalid(raw, before, error)
            return self._config.idle_tick_s
        if job.spec.adopts:
            this = await self._adopting.look(job, raw, before)
        else:
            this = await self._run(job, raw, before)
        asked.finish(this)
        await self._reporting.report(this)
        self._metrics.reconciled(self._namespace, self._name, self._edges.monotonic_s() - began)
        if this.again_s is None:
            return self._config.idle_tick_s
        return min(this.again_s, self._config.idle_tick_s)

    async def _run(self, job: RLJob, raw: Json, before: RLJobStatus) -> Pass:
        """The pass over a job that the operator runs: what is persisted is done, then what became of it is looked at."""
        this = self._gather(job, raw, before)
        this.degradations += lost_nodes(this.pods, self._view.node, this.gpu_resources)
        await self._companioning.act(this)
        await self._acting.act(this)
        await self._look(this)
        self._companioning.look(this, self._running.latest)
        return this

    def _gather(self, job: RLJob, raw: Json, before: RLJobStatus) -> Pass:
        pods = self._view.pods_of(self._uid, self._namespace)
        samplers = self._view.child(self._uid, "Deployment", children.samplers_name(job), self._namespace)
        trainers = self._view.child(
            self._uid, job.spec.trainer.kind.value, children.trainers_name(job), self._namespace
        )
        now_s = self._edges.wall_s()
        targets = targets_of(job.spec, before, pods, self._running.latest, (samplers, trainers), now_s)
        wanted = targets or Targets(0, 0)
        return Pass(
            job=job,
            raw=raw,
            before=before,
            now=before,
            now_s=now_s,
            pods=pods,
            take_inventory=lambda: take_inventory(
                job.spec,
                self._uid,
                self._view.all_nodes(),
                self._view.census(),
                self._view.quotas_of(self._namespace),
                [*self._view.other_jobs(self._uid), raw],
            ),
            samplers=fleet.fleet(gate.SAMPLER, wanted.samplers, pods, samplers),
            trainers=fleet.fleet(gate.TRAINER, wanted.trainers, pods, trainers),
            targets=targets,
            workloads=(samplers, trainers),
            lost_pools=lost_pools(job.spec, self._view.all_nodes, pods),
            rivals=rivals_of(job, self._view.autoscalers_of(self._namespace)),
            others_plan_first=lambda: others_plan_first(raw, self._view.other_jobs(self._uid), self._view.all_nodes()),
            has_quotas=bool(self._view.quotas_of(self._namespace)),
            promise=lambda fields: self._view.promises.sent({**raw, "status": fields}),
        )

    async def _look(self, this: Pass) -> None:
        """Looks at what became of it and decides what should be done next."""
        layout = self._actions.published(this.job)
        published_generation = 0 if layout is None else int(layout["generation"])
        if layout is not None:
            this.update(layout_generation=max(this.before.layout_generation, published_generation))
        if this.before.phase is Phase.COMPLETE:
            await self._stopping.look_complete(this)
            return
        if this.before.split is None:
            await self._starting.plan_first(this)
            return
        if this.spec.suspend:
            await self._stopping.look_suspended(this)
            return
        if this.targets is None:
            await self._running.replan_without_pods(this)
            this.soon(AT_ONCE_S if this.now.split != this.before.split else REPLAN_AFTER_S)
            return
        await self._running.look(this, published_generation)
