"""The first plan of a job: asked for, tried against the API server, and put into the status."""

from __future__ import annotations

from rljob_operator import children, planning, queueing, status, trouble
from rljob_operator.actions import Actions
from rljob_operator.edges import Edges
from rljob_operator.learning import Known, Learning
from rljob_operator.passes import Pass
from rljob_operator.rebalance import epoch_s, timestamp
from rljob_operator.status import Verdict
from rljob_planner.api.status import ConditionType, DecisionCode, DecisionStatus
from rljob_planner.search import Plan

AT_ONCE_S = 0.0

TURN_S = 1.0
"""How soon to look again whether the jobs that come first have planned."""

PATIENCE_S = 15.0
"""How long after its creation a job waits for the first plans of those before it: one whose passes fail must not stop the others."""

REPLAN_AFTER_S = 60.0
"""How long an answer to the first plan stands while nothing has changed: quotas and admission may change unseen."""


class Starting:
    """A job that has no split yet."""

    def __init__(self, actions: Actions, edges: Edges, learning: Learning, waiting: set[str]) -> None:
        """``waiting`` are the uids of the jobs that freed GPUs concern."""
        self._waiting = waiting
        self._actions = actions
        self._edges = edges
        self._learning = learning
        self._known = Known()
        self._plan: tuple[object, float, Plan | Verdict] | None = None

    async def plan_first(self, this: Pass) -> None:
        """Puts the first split into the status, or says why there is none."""
        if not self._patience_is_over(this) and this.others_plan_first():
            # Who comes first plans first: what is left for this job is known when they have their split, or their refusal.
            self._waiting.add(this.uid)
            this.soon(TURN_S)
            return
        found = await self._first_plan(this)
        if isinstance(found, Verdict):
            self._waiting.add(this.uid)
            this.verdicts[ConditionType.PLANNED] = found
            return
        if not this.still_holds(found.split):
            # Another job has planned on the same GPUs in the meantime.
            this.soon(TURN_S)
            return
        self._waiting.discard(this.uid)
        verdict = planning.planned(this.spec, found, this.inventory, self._known.sources)
        this.verdicts[ConditionType.PLANNED] = verdict
        plan = planning.plan_status(found, this.now_s, self._known.sources)
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
        self._plan = None
        this.update(plan=plan, split=found.split, decisions=status.remember(this.before.decisions, decision))
        self._known.started(this)
        this.said.append(("Normal", "InitialPlan", verdict.message))
        for note in children.template_notes(this.job, found.split):
            this.said.append(("Normal", "TemplateAdjusted", note))
        this.soon(AT_ONCE_S)

    @staticmethod
    def _patience_is_over(this: Pass) -> bool:
        created = this.raw["metadata"].get("creationTimestamp")
        return created is None or this.now_s - epoch_s(str(created)) > PATIENCE_S

    async def _first_plan(self, this: Pass) -> Plan | Verdict:
        """The first plan, or why there is none; asked anew when the spec or the nodes have changed, and now and then."""
        queue = sorted(queueing.labels_of(this.job).items())
        key = (this.raw["metadata"]["generation"], this.inventory.rooms, this.inventory.budget, queue)
        if (
            self._plan is not None
            and self._plan[0] == key
            and self._edges.monotonic_s() - self._plan[1] < REPLAN_AFTER_S
        ):
            return self._plan[2]
        try:
            children.trial_pods(this.job, planning.smallest_split(this.spec))
        except children.TemplateError as error:
            return Verdict(False, "InvalidTemplate", str(error))
        known = await self._learning.before_run(this)
        if isinstance(known, Verdict):
            found: Plan | Verdict = known
        else:
            self._known = known
            found = await self._edges.in_thread(
                planning.first_plan,
                known.spec_of(this.spec),
                this.inventory,
                known.calibration,
                planner=self._edges.planner,
            )
        if not isinstance(found, Verdict):
            found = await self._refusal(this, found) or found
        self._plan = (key, self._edges.monotonic_s(), found)
        return found

    async def _refusal(self, this: Pass, found: Plan) -> Verdict | None:
        refusal = await self._actions.try_pods(this.job, found.split)
        return None if refusal is None else trouble.refused_at_start(refusal)
