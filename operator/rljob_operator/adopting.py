"""One pass over a job that adopts: looks at workloads that exist already, and says what a better split would gain.

Nothing of the cluster is written but the RLJob's own status: no child, no gate, no layout, no label. So a pass reads the two
workloads, describes what runs as a split, and goes the way of every other job from there: metrics, calibration, decision, in the
mode Recommend. Before there are metrics, the model alone says what it would choose.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from rljob_operator import adopt, fleet, gate, planning, status
from rljob_operator.adopt import Side
from rljob_operator.cluster import PODS, Api, Json, Resource
from rljob_operator.config import Config
from rljob_operator.deciding import Deciding
from rljob_operator.edges import Edges
from rljob_operator.inventory import take_inventory
from rljob_operator.learning import Known, Learning
from rljob_operator.metrics import OperatorMetrics
from rljob_operator.moves import Moves
from rljob_operator.observing import Observer
from rljob_operator.passes import Pass
from rljob_operator.readings import Reading
from rljob_operator.rebalance import Targets, timestamp
from rljob_operator.status import Verdict, rounded
from rljob_operator.view import View
from rljob_planner.api.spec import RLJob, RLJobSpec, TargetRef
from rljob_planner.api.status import ConditionType, DecisionCode, DecisionStatus, Phase, RLJobStatus
from rljob_planner.calibrate import Calibration
from rljob_planner.durations import seconds
from rljob_planner.errors import PlanningError
from rljob_planner.outcome import Plan
from rljob_planner.split import Split

_PLURALS = {"Deployment": "deployments", "StatefulSet": "statefulsets"}

NO_GENERATION = 0
"""The layout generation of a job that is told no layout: nothing has to be acknowledged."""


@dataclass(frozen=True)
class _Seen:
    """The two workloads and their pods, as they were read last."""

    at_s: float
    """When, by the clock that never jumps."""
    generation: int
    """Generation of the spec that named them."""
    samplers: Side | Verdict
    trainers: Side | Verdict
    sampler_pods: list[Json]
    trainer_pods: list[Json]


@dataclass(frozen=True)
class _Advice:
    """What the model alone says of the split in force."""

    plan: Plan
    gain: float
    """Fraction of the period that the planned split saves."""
    period_s: float
    """Predicted period of the split in force, in seconds."""


class Adopting:
    """The passes over one job that adopts."""

    def __init__(
        self, cluster: Api, view: View, edges: Edges, config: Config, metrics: OperatorMetrics, learning: Learning
    ) -> None:
        self._cluster = cluster
        self._view = view
        self._edges = edges
        self._metrics = metrics
        self._learning = learning
        self._observer = Observer(edges, config)
        self._deciding = Deciding(edges, config, metrics, Moves(edges, config, metrics, self._observer))
        self._seen: _Seen | None = None

    async def look(self, job: RLJob, raw: Json, before: RLJobStatus) -> Pass:
        """One look at the workloads that a job names: a pass with what became of it, to be reported."""
        seen = await self._see(job, int(raw["metadata"].get("generation", 0)))
        samplers, trainers = seen.samplers, seen.trainers
        if isinstance(samplers, Verdict) or isinstance(trainers, Verdict):
            this = self._pass(job, raw, before, ())
            first = samplers if isinstance(samplers, Verdict) else trainers
            assert isinstance(first, Verdict)
            this.verdicts[ConditionType.PLANNED] = first
            this.soon(job.spec.rebalance.interval_s)
            return this
        described = job.model_copy(update={"spec": adopt.described(job.spec, samplers, trainers)})
        this = self._pass(described, raw, before, (samplers, trainers))
        if before.phase is Phase.COMPLETE:
            this.verdicts[ConditionType.READY] = Verdict(False, "Complete", "the run has reached its last step")
            return this
        split = before.split
        if split is None or not _runs(split, samplers, trainers) or before.observed_generation != this.generation:
            await self._describe(this, samplers, trainers)
            this.soon(job.spec.rebalance.interval_s)
            return this
        planned = next((c for c in before.conditions if c.type is ConditionType.PLANNED), None)
        if planned is not None:
            # What was said when the workloads were read stands until they change.
            told = {"True": True, "False": False}.get(planned.status)
            this.verdicts[ConditionType.PLANNED] = Verdict(told, planned.reason, planned.message)
        if not this.all_ready:
            this.verdicts[ConditionType.READY] = _not_ready(this, samplers, trainers)
        await self._measure(this, samplers, trainers)
        return this

    async def _see(self, job: RLJob, generation: int) -> _Seen:
        """The two workloads and their pods; read at the pace of decisions, since passes come more often."""
        now_s, spec, seen = self._edges.monotonic_s(), job.spec, self._seen
        if seen is not None and seen.generation == generation and now_s - seen.at_s < 0.98 * spec.rebalance.interval_s:
            return seen
        samplers = await self._side(job, gate.SAMPLER, spec.sampler.target_ref)
        trainers = await self._side(job, gate.TRAINER, spec.trainer.target_ref)
        pods = [await self._pods_of(job, side) for side in (samplers, trainers)]
        self._seen = _Seen(now_s, generation, samplers, trainers, pods[0], pods[1])
        return self._seen

    async def _side(self, job: RLJob, role: str, ref: TargetRef | None) -> Side | Verdict:
        assert ref is not None
        resource = Resource(ref.api_version, _PLURALS[ref.kind])
        live = await self._cluster.get(resource, str(job.metadata["namespace"]), ref.name)
        return adopt.read_side(job.spec, role, ref, live)

    async def _pods_of(self, job: RLJob, side: Side | Verdict) -> list[Json]:
        """The pods of a side, from the API server: of pods that are none of a job's own the view keeps no labels."""
        if isinstance(side, Verdict) or not side.label_selector():
            return []
        return await self._cluster.list(PODS, str(job.metadata["namespace"]), side.label_selector())

    def _pass(self, job: RLJob, raw: Json, before: RLJobStatus, sides: tuple[Side, ...]) -> Pass:
        meta, seen = raw["metadata"], self._seen
        namespace, name, uid = str(meta["namespace"]), str(meta["name"]), str(meta["uid"])
        found = ((), ()) if seen is None else (seen.sampler_pods, seen.trainer_pods)
        pods = [pod for side, of in zip(sides, found, strict=False) for pod in adopt.labelled(of, side.role, name, uid)]
        wanted = {side.role: side.replicas for side in sides}
        targets = Targets(wanted.get(gate.SAMPLER, 0), wanted.get(gate.TRAINER, 0))
        return Pass(
            job=job,
            raw=raw,
            before=before,
            now=before,
            now_s=self._edges.wall_s(),
            pods=pods,
            take_inventory=lambda: take_inventory(
                job.spec,
                uid,
                self._view.all_nodes(),
                adopt.in_place(self._view.all_pods(), pods),
                self._view.quotas_of(namespace),
                [*self._view.other_jobs(uid), raw],
            ),
            samplers=fleet.fleet(gate.SAMPLER, targets.samplers, pods, None),
            trainers=fleet.fleet(gate.TRAINER, targets.trainers, pods, None),
            targets=targets if sides else None,
        )

    async def _describe(self, this: Pass, samplers: Side, trainers: Side) -> None:
        """Puts what runs into the status as a split, with what the model alone would choose and what that would gain."""
        spec = planning.limited(this.spec, this.inventory)
        known = await self._learning.before_run(this)
        if isinstance(known, Verdict):
            this.verdicts[ConditionType.PLANNED] = known
            return
        calibration = known.calibration if this.before.calibration is None else Calibration()
        split = adopt.split_of(spec, samplers, trainers, await self._laid_out(spec, samplers, trainers, this))
        found = await self._edges.in_thread(self._advice, known.spec_of(spec), split, this, calibration)
        runs = f"{adopt.names(samplers, trainers)} run {split.label()} and are left alone"
        if isinstance(found, Verdict):
            this.update(split=split)
            words = f"{runs}; no better split can be planned: {found.message}"
            this.verdicts[ConditionType.PLANNED] = Verdict(False, found.reason, words)
            return
        self._advise(
            this, split, found, known, runs, adopt.scale_words(this.key[0], samplers, trainers, found.plan.split)
        )

    def _advise(self, this: Pass, split: Split, found: _Advice, known: Known, runs: str, how: str) -> None:
        best = found.plan.split
        if best.same_shape(split) or found.gain <= 0:
            words = f"{runs}; the model would choose the same: {seconds(found.period_s)} a step predicted"
            best = split
        else:
            words = (
                f"{runs}: {seconds(found.period_s)} a step predicted; {best.label()} would take {seconds(found.plan.period.mean)}, "
                f"{found.gain:.1%} less, by the model alone: {how}"
            )
        this.verdicts[ConditionType.PLANNED] = Verdict(True, "Adopted", words)
        decision = DecisionStatus(
            at=timestamp(this.now_s),
            code=DecisionCode.INITIAL_PLAN,
            message=words,
            from_split=split,
            to_split=best,
            predicted_gain=rounded(max(0.0, found.gain)),
        )
        this.update(
            split=split,
            plan=planning.plan_status(found.plan, this.now_s, known.sources),
            decisions=status.remember(this.before.decisions, decision),
        )
        self._metrics.decided(*this.key, decision.code, decision.predicted_gain)
        if this.before.split is None:
            known.started(this)
        this.said.append(("Normal", "Adopted", words))

    async def _laid_out(self, spec: RLJobSpec, samplers: Side, trainers: Side, this: Pass) -> Split | None:
        """The split in force as the planner would lay it out, None if it has no layout for it."""
        if not samplers.replicas or not trainers.replicas:
            return None
        rooms, plan = this.inventory.rooms, self._edges.planner.plan
        try:
            found: Plan = await self._edges.in_thread(plan, adopt.pinned(spec, samplers, trainers), rooms, detail=False)
        except PlanningError:
            return None
        return found.split

    def _advice(self, spec: RLJobSpec, split: Split, this: Pass, calibration: Calibration) -> _Advice | Verdict:
        """What the model alone says; takes about a second of CPU."""
        planner, rooms = self._edges.planner, this.inventory.rooms
        try:
            plan = planner.plan(spec, rooms, calibration=calibration, keep=split, detail=False)
            if not split.samplers.replicas or not split.trainers.replicas:
                return Verdict(False, "TargetScaledToZero", "one of them is scaled to zero: scale it up")
            now_s = planner.evaluate(spec, split, rooms, calibration=calibration).period_s
            then_s = planner.evaluate(spec, plan.split, rooms, calibration=calibration).period_s
        except PlanningError as error:
            return Verdict(False, error.reason, str(error))
        return _Advice(plan, 1.0 - then_s / now_s, now_s)

    async def _measure(self, this: Pass, samplers: Side, trainers: Side) -> None:
        """Reads the metrics when they are due, and decides on them."""
        pace_s = this.spec.rebalance.interval_s
        fresh = await self._observer.look(
            this, pace_s, since_s=self._observer.since_s(this), series=self._series(this, samplers, trainers)
        )
        this.soon(max(0.2, pace_s - self._observer.age_s))
        telemetry = self._observer.latest
        if not fresh or telemetry is None:
            return
        # Nothing is told to an adopted job, so nothing is there to be acknowledged.
        told_nothing = tuple(word for word in telemetry.missing if not word.startswith("rljob_layout_generation"))
        telemetry = replace(telemetry, layout_generation=Reading.of(NO_GENERATION), missing=told_nothing)
        self._observer.latest = telemetry
        self._observer.report(this, telemetry)
        this.update(split=adopt.with_cap_seen(this.spec, this.before.split, telemetry))
        version = telemetry.policy_version.value
        if version is not None and version >= this.spec.workload.steps:
            await self._learning.after_run(this)
            this.said.append(
                ("Normal", "Complete", f"policy version {version} of {this.spec.workload.steps} is published")
            )
            this.update(phase=Phase.COMPLETE, completed_version=version)
            return
        await self._deciding.decide(this, telemetry, NO_GENERATION)

    def _series(self, this: Pass, samplers: Side, trainers: Side) -> str | None:
        """How the job's series are found: None by its uid, where the pods carry it in their labels."""
        seen = self._seen
        if seen is not None and adopt.carries_uid((*seen.sampler_pods, *seen.trainer_pods), this.uid):
            return None
        return adopt.series_of(this.key[0], (samplers, trainers))


def _not_ready(this: Pass, samplers: Side, trainers: Side) -> Verdict:
    counts = f"{this.samplers.column()} samplers and {this.trainers.column()} trainers are ready"
    selectors = ", ".join(f"-l '{side.label_selector()}'" for side in (samplers, trainers))
    return Verdict(False, "PodsNotReady", f"{counts}: kubectl get pods with {selectors}")


def _runs(split: Split, samplers: Side, trainers: Side) -> bool:
    """Whether a split says what the workloads are now."""
    return (
        split.samplers.replicas,
        split.samplers.gpus_per_replica,
        split.trainers.replicas,
        split.trainers.gpus_per_replica,
    ) == (
        samplers.replicas,
        samplers.gpus,
        trainers.replicas,
        trainers.gpus,
    )
