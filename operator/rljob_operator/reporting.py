"""What a pass says: conditions, the status, events, the operator's own metrics; and trouble on a job that can't be read."""

from __future__ import annotations

import logging

from pydantic import ValidationError

from rljob_operator import at_risk, planning, queueing, rivals, status, story, trouble
from rljob_operator.actions import Actions
from rljob_operator.cluster import RLJOBS, Api, ClusterError, Json
from rljob_operator.edges import Edges
from rljob_operator.lifecycle import stopping
from rljob_operator.metrics import OperatorMetrics
from rljob_operator.passes import Pass
from rljob_operator.promises import Promises
from rljob_operator.rebalance import epoch_s
from rljob_operator.status import Verdict
from rljob_planner.api.status import ConditionType, DecisionCode, Phase, RLJobStatus

logger = logging.getLogger(__name__)


class Reporting:
    """The words of one job's passes."""

    def __init__(
        self,
        cluster: Api,
        actions: Actions,
        edges: Edges,
        metrics: OperatorMetrics,
        promises: Promises,
        namespace: str,
        name: str,
    ) -> None:
        self._cluster = cluster
        self._promises = promises
        self._actions = actions
        self._edges = edges
        self._metrics = metrics
        self._namespace = namespace
        self._name = name

    async def trouble(self, raw: Json, verdict: Verdict) -> None:
        """Says on the job, whatever its status looks like, that nothing can be done for it and why."""
        now_s = self._edges.wall_s()
        now = trouble.degraded(raw, verdict, now_s)
        shown = [(str(c.get("type")), str(c.get("status")), str(c.get("reason"))) for c in now["conditions"]]
        self._metrics.conditions(self._namespace, self._name, shown)
        try:
            if now != raw.get("status"):
                await self._cluster.put_status(RLJOBS, self._namespace, self._name, {**raw, "status": now})
            await self._actions.say(raw["metadata"], "Warning", verdict.reason, verdict.message, now_s=now_s)
        except ClusterError as error:
            logger.warning(
                "%s/%s: the trouble could not be written to the status: %s", self._namespace, self._name, error
            )

    async def invalid(self, raw: Json, before: RLJobStatus, error: ValidationError) -> None:
        """Says on the job that its spec can't be read; what runs stays as it is."""
        verdict = trouble.invalid_spec(error)
        now = before.model_copy(
            update={
                "conditions": status.conditions(
                    before.conditions,
                    {ConditionType.PLANNED: verdict},
                    generation=raw["metadata"]["generation"],
                    now_s=self._edges.wall_s(),
                ),
                "observed_generation": raw["metadata"]["generation"],
            }
        )
        if now != before:
            await self._write(raw, now)
        self._metrics.conditions(self._namespace, self._name, _shown(now))
        await self._actions.say(raw["metadata"], "Warning", verdict.reason, verdict.message, now_s=self._edges.wall_s())

    async def report(self, this: Pass) -> None:
        """Completes the conditions and writes the status if it says something new; then posts events."""
        move, held = this.now.rebalance, this.held_gpus
        if this.before.split is not None:
            this.verdicts.setdefault(
                ConditionType.SCHEDULED,
                status.scheduled(
                    this.samplers,
                    this.trainers,
                    this.spec.gpus,
                    held,
                    namespace=self._namespace,
                    queue=queueing.queue_of(this.job),
                ),
            )
            this.verdicts.setdefault(ConditionType.READY, status.ready(this.samplers, this.trainers, self._name))
            this.verdicts[ConditionType.REBALANCING] = status.rebalancing(move)
            calibration = this.now.calibration
            this.verdicts[ConditionType.DEGRADED] = status.degraded(
                this.samplers,
                this.trainers,
                move,
                pegged=calibration is not None and calibration.pegged,
                overdue=move is not None and move.held_since is None and this.now_s > epoch_s(move.deadline),
                rivals=rivals.words(this.rivals, self._namespace) if this.rivals else "",
                others=(*this.degradations, *self._side_broken(this)),
            )
            split, known = this.now.split, status.holds(this.before.conditions, ConditionType.PLANNED)
            if split is not None and not (split.same_shape(this.before.split) and known):
                words = f"{split.label()} is in force and keeps to the spec; status.decisions says why it was chosen"
                broken = planning.violations(this.spec, split, this.quota)
                if broken:
                    words = f"{split.label()} is in force and does not keep to the spec yet: {'; '.join(broken)}"
                # Where nothing could be planned, that holds until a move is under way.
                if known or move is not None or not broken:
                    this.verdicts.setdefault(ConditionType.PLANNED, Verdict(True, "Planned", words))
        elif any(c.type is ConditionType.DEGRADED for c in this.before.conditions):
            this.verdicts[ConditionType.DEGRADED] = Verdict(False, "AsExpected", "nothing needs a person")
        if this.now.split is not None:
            self._warn(this)
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
        this.update(
            plan=story.with_sources(this.before, this.now),
            summary=story.summary(this.spec, this.now),
            next=story.next_step(this.spec, this.now),
        )
        gained = story.measured(this.before, this.now)
        if gained is not None:
            this.said.append(("Normal", "MoveMeasured", gained))
        if this.now != this.before:
            await self._write(this.raw, this.now)
        self._measure(this, held)
        for condition in status.events(this.before.conditions, this.now.conditions):
            kind = "Normal" if status.is_good(condition) else "Warning"
            this.said.append((kind, condition.reason, condition.message))
        for kind, reason, message in this.said:
            await self._actions.say(this.raw["metadata"], kind, reason, message, now_s=this.now_s)

    @staticmethod
    def _warn(this: Pass) -> None:
        """Says in ``Planned``, and once in an event, which settings of the pods that run lose work."""
        found = at_risk.found(this.job, *this.workloads)
        before = next((c for c in this.before.conditions if c.type is ConditionType.PLANNED), None)
        new = this.verdicts.get(ConditionType.PLANNED)
        if new is None and before is not None:
            new = Verdict(before.status == "True", before.reason, before.message)
        if new is None or not new.status:
            return
        warned = at_risk.warned(new, found)
        if warned != new:
            this.verdicts[ConditionType.PLANNED] = warned
        if found and (before is None or at_risk.said(before.message) != at_risk.said(warned.message)):
            this.said.append(("Warning", "WorkAtRisk", at_risk.said(warned.message)))

    @staticmethod
    def _side_broken(this: Pass) -> tuple[tuple[str, str], ...]:
        """What the last decision found broken by the metrics; it stands until the next decision, as what was measured does."""
        last = story.last_decision(this.now)
        if last is None or last.code is not DecisionCode.SIDE_BROKEN or stopping(this.spec, this.now):
            return ()
        return ((last.code.value, last.message),)

    def _measure(self, this: Pass, held: int) -> None:
        """Brings the operator's own metrics of the job up to date."""
        now, key = this.now, this.key
        self._metrics.held(*key, budget=this.spec.gpus, held=held)
        move = now.rebalance
        self._metrics.move_phase(
            *key,
            None if move is None else move.phase,
            since_s=None if move is None else epoch_s(move.phase_since),
            deadline_s=None if move is None or move.held_since else epoch_s(move.deadline),
        )
        self._metrics.periods(
            *key,
            predicted_s=None if now.plan is None else now.plan.period.mean,
            observed_s=None if now.observed is None else now.observed.period_seconds,
        )
        self._metrics.calibration(*key, now.calibration)
        self._metrics.recommended(*key, story.recommended(now))
        known = [c.status == "True" for c in now.conditions if c.type is ConditionType.METRICS_AVAILABLE]
        self._metrics.metrics_available(*key, any(known))
        self._metrics.conditions(*key, _shown(now))
        self._metrics.reported(*key, this.spec, now)

    async def _write(self, raw: Json, now: RLJobStatus) -> None:
        body = {**raw, "status": now.model_dump(mode="json", by_alias=True, exclude_none=True)}
        try:
            self._promises.answered(await self._cluster.put_status(RLJOBS, self._namespace, self._name, body))
        except ClusterError as error:
            # Deleted in the meantime: the next pass finds that out and ends.
            if error.status != 404:
                raise


def _shown(now: RLJobStatus) -> list[tuple[str, str, str]]:
    """Type, status and reason of each condition."""
    return [(c.type.value, c.status, c.reason) for c in now.conditions]
