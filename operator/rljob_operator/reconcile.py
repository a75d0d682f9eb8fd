"""One level-based pass over one RLJob: observe, act on what is persisted, look, decide, report.

A pass reads the RLJob from the API server, does what its status says should be done (children, layout, gates), and only
then looks at what became of it and decides what should be done next. What it decided is written before the next pass
acts on it. So there is no moment at which the cluster is changed by something that a restart would forget, and a pass may be
cut off anywhere.

Whatever is unknown changes nothing: a spec that can't be read, a metric that is missing, a status of another version all end
in a condition, never in a resize.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from dataclasses import replace

import aiohttp
from pydantic import ValidationError

from rljob_operator import children, fleet, gate, planning, status, trouble
from rljob_operator.actions import Actions
from rljob_operator.cluster import RLJOBS, Cluster, ClusterError, Json
from rljob_operator.config import Config
from rljob_operator.inventory import take_inventory
from rljob_operator.layout import LayoutPhase, layout_of
from rljob_operator.lifecycle import stopping, targets_of
from rljob_operator.metrics import OperatorMetrics
from rljob_operator.passes import Pass
from rljob_operator.rebalance import Targets, announced, epoch_s, timestamp
from rljob_operator.running import Running
from rljob_operator.status import Verdict
from rljob_operator.view import View
from rljob_planner.api.spec import RLJob
from rljob_planner.api.status import (
    ConditionType,
    DecisionCode,
    DecisionStatus,
    MovePhase,
    Phase,
    RLJobStatus,
)
from rljob_planner.search import Plan

AT_ONCE_S = 0.0

CONFLICT_S = 0.2
"""Pause after somebody else wrote first: longer than their write, too short to be noticed."""

NAME_TAKEN_S = 5.0
"""How soon to look again whether the name of a child has come free."""

REPLAN_AFTER_S = 60.0
"""How long an answer to the first plan stands while nothing has changed: quotas and admission may change unseen."""


logger = logging.getLogger(__name__)


class Reconciler:
    """The passes over one RLJob."""

    def __init__(
        self,
        *,
        cluster: Cluster,
        session: aiohttp.ClientSession,
        view: View,
        config: Config,
        metrics: OperatorMetrics,
        namespace: str,
        name: str,
        uid: str,
    ) -> None:
        self._cluster = cluster
        self._view = view
        self._config = config
        self._metrics = metrics
        self._namespace = namespace
        self._name = name
        self._uid = uid
        self._actions = Actions(cluster, view, uid)
        self._running = Running(session, config, metrics)
        self._failures = 0
        self._plan: tuple[object, float, Plan | Verdict] | None = None

    async def run_pass(self) -> float | None:
        """Runs one pass; returns the seconds until the next at the latest, or None when the job is gone.

        A pass that fails again says so on the job before it raises: what nobody can read in the status, nobody repairs.
        """
        raw = await self._cluster.get(RLJOBS, self._namespace, self._name)
        if raw is None or raw["metadata"]["uid"] != self._uid or raw["metadata"].get("deletionTimestamp"):
            return None
        try:
            delay_s = await self._pass(raw)
        except Exception as error:
            if isinstance(error, ClusterError) and error.conflict:
                return CONFLICT_S
            self._failures += 1
            if self._failures > 1 and not trouble.is_passing(error):
                await self._report_trouble(raw, trouble.failed(error))
            raise
        self._failures = 0
        return delay_s

    async def _pass(self, raw: Json) -> float:
        began = time.monotonic()
        try:
            before = RLJobStatus.model_validate(raw.get("status") or {})
        except ValidationError as error:
            await self._report_trouble(raw, trouble.unreadable_status(error, self._namespace, self._name))
            return self._config.idle_tick_s
        try:
            job = RLJob.model_validate({key: raw[key] for key in ("apiVersion", "kind", "metadata", "spec")})
        except ValidationError as error:
            await self._report_invalid(raw, before, error)
            return self._config.idle_tick_s
        this = self._gather(job, raw, before)
        await self._act(this)
        await self._look(this)
        await self._report(this)
        self._metrics.reconciled(self._namespace, self._name, time.monotonic() - began)
        if this.again_s is None:
            return self._config.idle_tick_s
        return min(this.again_s, self._config.idle_tick_s)

    def _gather(self, job: RLJob, raw: Json, before: RLJobStatus) -> Pass:
        pods = self._view.pods_of(self._uid)
        samplers = self._view.child(self._uid, "Deployment", children.samplers_name(job))
        trainers = self._view.child(self._uid, job.spec.trainer.kind.value, children.trainers_name(job))
        now_s = time.time()
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
                self._view.all_pods(),
                self._view.quotas_of(self._namespace),
                [*self._view.other_jobs(self._uid), raw],
            ),
            samplers=fleet.fleet(gate.SAMPLER, wanted.samplers, pods, samplers),
            trainers=fleet.fleet(gate.TRAINER, wanted.trainers, pods, trainers),
            targets=targets,
        )

    async def _act(self, this: Pass) -> None:
        """Does what the persisted status says should be done."""
        split, move = this.before.split, this.before.rebalance
        if split is None or this.targets is None:
            return
        await self._publish(this)
        if move is not None and move.phase is MovePhase.SHRINK:
            await self._actions.price_victims(this.pods, move.victims)
        try:
            edits = await self._actions.apply_children(this.job, move.to_split if move else split, this.targets)
        except children.TemplateError as error:
            edits = ()
            this.verdicts[ConditionType.PLANNED] = Verdict(False, "InvalidTemplate", str(error))
        except ClusterError as error:
            if not error.rejected:
                raise
            edits = ()
            this.verdicts[ConditionType.PLANNED] = trouble.refused(error)
            if trouble.in_the_way(error):
                # The end of what belongs to another job wakes that job and not this one.
                this.soon(NAME_TAKEN_S)
        for edit in edits:
            this.said.append(
                (
                    "Warning",
                    "ChildEdited",
                    f"{edit} was edited by somebody else and is restored; change the RLJob instead",
                )
            )
        # The view wakes the job when GPUs come free; asking the API server until then would only load it.
        if self._actions.liftable(this.job, this.targets, this.gpu_resources, this.pods):
            lifted = await self._actions.lift_gates(this.job, this.targets, this.gpu_resources)
            if lifted == 0:
                this.soon(1.0)

    async def _publish(self, this: Pass) -> None:
        """Publishes the layout if it says something new; only then does its generation grow."""
        split, move, targets = this.before.split, this.before.rebalance, this.targets
        assert split is not None
        assert targets is not None
        live = self._actions.published(this.job)
        generation = 0 if live is None else int(live["generation"])
        samplers = [pod for pod in this.pods if gate.role_of(pod) == gate.SAMPLER]
        if stopping(this.spec, this.before):
            phase, told, draining = LayoutPhase.DRAINING, targets, tuple(gate.name_of(pod) for pod in samplers)
        elif move is None or move.phase is MovePhase.VERIFY:
            phase, told, draining = LayoutPhase.STEADY, announced(split, move), ()
        else:
            phase, told, draining = LayoutPhase.DRAINING, announced(split, move), move.victims
        if live is not None and (phase is LayoutPhase.DRAINING or not this.all_ready):
            # New endpoints come with the generation that ends a move or a start; until then some may only leave.
            known = {endpoint["pod"] for endpoint in live["samplers"]["endpoints"]}
            samplers = [pod for pod in samplers if gate.name_of(pod) in known]
        wished = layout_of(
            generation=generation,
            phase=phase,
            split=move.to_split if move else split,
            sampler_pods=samplers,
            trainers_replicas=told.trainers,
            samplers_replicas=told.samplers,
            draining=draining,
            max_staleness=this.spec.staleness.max,
            in_flight_cap=split.in_flight if move is None else move.to_split.in_flight,
            rendezvous=children.rendezvous(this.job),
        )
        if live is not None and json.loads(wished.to_json()) == live:
            return
        generation = max(generation, this.before.layout_generation) + 1
        text = replace(wished, generation=generation).to_json()
        await self._actions.publish_layout(this.job, text, generation, this.pods)

    async def _look(self, this: Pass) -> None:
        """Looks at what became of it and decides what should be done next."""
        layout = self._actions.published(this.job)
        published_generation = 0 if layout is None else int(layout["generation"])
        if layout is not None:
            this.update(layout_generation=max(this.before.layout_generation, published_generation))
        if this.before.phase is Phase.COMPLETE:
            this.verdicts[ConditionType.READY] = Verdict(False, "Complete", "the run has reached its last step")
            if this.some_exist:
                await self._running.watch_drain(this)
            return
        if this.before.split is None:
            await self._plan_first(this)
            return
        if this.spec.suspend:
            this.verdicts[ConditionType.READY] = status.suspended(this.spec, some_exist=this.some_exist)
            if this.before.rebalance is not None:
                move = this.before.rebalance
                split = move.to_split if move.rolling_back else move.from_split
                this.update(rebalance=None, split=split)
                this.said.append(
                    (
                        "Normal",
                        "MoveGivenUp",
                        f"spec.suspend ends the move in {move.phase.value}; resumed with {split.label()}",
                    )
                )
            if this.some_exist:
                await self._running.watch_drain(this)
            return
        await self._running.look(this, published_generation)

    async def _plan_first(self, this: Pass) -> None:
        found = await self._first_plan(this)
        if isinstance(found, Verdict):
            this.verdicts[ConditionType.PLANNED] = found
            return
        verdict = planning.planned(this.spec, found, this.inventory)
        this.verdicts[ConditionType.PLANNED] = verdict
        plan = planning.plan_status(found, this.now_s)
        if this.spec.suspend:
            if this.before.plan is None or this.before.plan.split != found.split:
                this.update(plan=plan)
            return
        decision = DecisionStatus(
            at=timestamp(this.now_s),
            code=DecisionCode.INITIAL_PLAN,
            message=verdict.message,
            to_split=found.split,
        )
        this.update(plan=plan, split=found.split, decisions=status.remember(this.before.decisions, decision))
        this.said.append(("Normal", "InitialPlan", verdict.message))
        for note in children.template_notes(this.job, found.split):
            this.said.append(("Normal", "TemplateAdjusted", note))
        this.soon(AT_ONCE_S)

    async def _first_plan(self, this: Pass) -> Plan | Verdict:
        """The first plan, or why there is none; asked anew when the spec or the nodes have changed, and now and then."""
        key = (this.raw["metadata"]["generation"], this.inventory.rooms, this.inventory.budget)
        if self._plan is not None and self._plan[0] == key and time.monotonic() - self._plan[1] < REPLAN_AFTER_S:
            return self._plan[2]
        try:
            children.trial_pods(this.job, planning.smallest_split(this.spec))
        except children.TemplateError as error:
            return Verdict(False, "InvalidTemplate", str(error))
        found = await asyncio.to_thread(planning.first_plan, this.spec, this.inventory)
        if not isinstance(found, Verdict):
            found = await self._refusal(this, found) or found
        self._plan = (key, time.monotonic(), found)
        return found

    async def _refusal(self, this: Pass, found: Plan) -> Verdict | None:
        refusal = await self._actions.try_pods(this.job, found.split)
        return None if refusal is None else trouble.refused_at_start(refusal)

    async def _report_trouble(self, raw: Json, verdict: Verdict) -> None:
        """Says on the job, whatever its status looks like, that nothing can be done for it and why."""
        now_s = time.time()
        now = trouble.degraded(raw, verdict, now_s)
        try:
            if now != raw.get("status"):
                await self._cluster.put_status(RLJOBS, self._namespace, self._name, {**raw, "status": now})
            await self._actions.say(raw["metadata"], "Warning", verdict.reason, verdict.message, now_s=now_s)
        except ClusterError as error:
            logger.warning(
                "%s/%s: the trouble could not be written to the status: %s", self._namespace, self._name, error
            )

    async def _report_invalid(self, raw: Json, before: RLJobStatus, error: ValidationError) -> None:
        verdict = trouble.invalid_spec(error)
        now = before.model_copy(
            update={
                "conditions": status.conditions(
                    before.conditions,
                    {ConditionType.PLANNED: verdict},
                    generation=raw["metadata"]["generation"],
                    now_s=time.time(),
                ),
                "observed_generation": raw["metadata"]["generation"],
            }
        )
        if now != before:
            await self._write(raw, now)
        await self._actions.say(raw["metadata"], "Warning", verdict.reason, verdict.message, now_s=time.time())

    async def _report(self, this: Pass) -> None:
        """Completes the conditions and writes the status if it says something new; then posts events."""
        move, held = this.now.rebalance, this.held_gpus
        if this.before.split is not None:
            this.verdicts.setdefault(
                ConditionType.SCHEDULED, status.scheduled(this.samplers, this.trainers, this.spec.gpus, held)
            )
            this.verdicts.setdefault(ConditionType.READY, status.ready(this.samplers, this.trainers, self._name))
            this.verdicts[ConditionType.REBALANCING] = status.rebalancing(move)
            calibration = this.now.calibration
            this.verdicts[ConditionType.DEGRADED] = status.degraded(
                this.samplers,
                this.trainers,
                move,
                pegged=calibration is not None and calibration.pegged,
                overdue=move is not None and this.now_s > epoch_s(move.deadline),
            )
            split = this.now.split
            if split is not None and not (
                split.same_shape(this.before.split) and status.holds(this.before.conditions, ConditionType.PLANNED)
            ):
                words = f"{split.label()} is in force and keeps to the spec; status.decisions says why it was chosen"
                this.verdicts.setdefault(ConditionType.PLANNED, Verdict(True, "Planned", words))
        elif any(c.type is ConditionType.DEGRADED for c in this.before.conditions):
            this.verdicts[ConditionType.DEGRADED] = Verdict(False, "AsExpected", "nothing needs a person")
        if stopping(this.spec, this.now) and not this.some_exist:
            this.verdicts |= status.without_pods(this.before.conditions)
        generation = int(this.raw["metadata"]["generation"])
        phase = status.phase_of(
            previous=this.before.phase,
            planned=this.now.split is not None,
            suspended=this.spec.suspend,
            move=move,
            all_ready=this.all_ready,
            children_exist=this.some_exist,
            complete=this.now.phase is Phase.COMPLETE,
        )
        this.update(
            phase=phase,
            observed_generation=generation,
            conditions=status.conditions(
                this.before.conditions, this.verdicts, generation=generation, now_s=this.now_s
            ),
            samplers=None if this.now.split is None else this.samplers.column(),
            trainers=None if this.now.split is None else this.trainers.column(),
        )
        if this.now != this.before:
            await self._write(this.raw, this.now)
        self._measure(this, held)
        for condition in status.events(this.before.conditions, this.now.conditions):
            kind = "Normal" if status.is_good(condition) else "Warning"
            this.said.append((kind, condition.reason, condition.message))
        for kind, reason, message in this.said:
            await self._actions.say(this.raw["metadata"], kind, reason, message, now_s=this.now_s)

    def _measure(self, this: Pass, held: int) -> None:
        """Brings the operator's own metrics of the job up to date."""
        now, key = this.now, this.key
        self._metrics.held(*key, budget=this.spec.gpus, held=held)
        self._metrics.move_phase(*key, None if now.rebalance is None else now.rebalance.phase)
        self._metrics.periods(
            *key,
            predicted_s=None if now.plan is None else now.plan.period.mean,
            observed_s=None if now.observed is None else now.observed.period_seconds,
        )
        self._metrics.calibration(*key, now.calibration)
        known = [c.status == "True" for c in now.conditions if c.type is ConditionType.METRICS_AVAILABLE]
        self._metrics.metrics_available(*key, any(known))

    async def _write(self, raw: Json, now: RLJobStatus) -> None:
        body = {**raw, "status": now.model_dump(mode="json", by_alias=True, exclude_none=True)}
        try:
            await self._cluster.put_status(RLJOBS, self._namespace, self._name, body)
        except ClusterError as error:
            # Deleted in the meantime: the next pass finds that out and ends.
            if error.status != 404:
                raise
