"""Starts, advances and ends the moves of one job: the thin hand between the pure transaction and the status.

What is decided here only changes the status to be written: the next pass acts on it.
"""

from __future__ import annotations

from collections import Counter

from rljob_operator import byhand, fleet, gate, planning, rebalance, rivals, status, story, victims
from rljob_operator.config import Config
from rljob_operator.edges import Edges
from rljob_operator.metrics import OperatorMetrics
from rljob_operator.move_cost import averaged, left_behind
from rljob_operator.observing import Observer, known_period_s
from rljob_operator.passes import Pass
from rljob_operator.rebalance import Deadlines, Observation, epoch_s, timestamp
from rljob_operator.replanning import Replanner
from rljob_operator.status import Verdict, rounded
from rljob_planner.api.evidence import DecisionInputs
from rljob_planner.api.spec import RebalanceMode, Resize
from rljob_planner.api.status import (
    ConditionType,
    DecisionCode,
    DecisionStatus,
    MoveCause,
    MovePhase,
    MoveStatus,
)
from rljob_planner.split import Split

BACK_OFF_S = 60.0
"""First pause after a roll-back; it doubles with each further one."""

ACKNOWLEDGE_PERIODS = 3.0
"""Periods that the job has at least to acknowledge a layout: it does so at a step boundary, and the side that shrank makes steps longer."""

LONGEST_BACK_OFF_S = 3600.0


class Moves:
    """The moves of one job."""

    def __init__(self, edges: Edges, config: Config, metrics: OperatorMetrics, observer: Observer) -> None:
        self._edges = edges
        self._config = config
        self._metrics = metrics
        self._observer = observer
        self._replanner = Replanner(edges)

    def _observation(self, this: Pass, published_generation: int) -> Observation:
        telemetry = self._observer.latest
        running = {} if telemetry is None else {pod: r.value for pod, r in telemetry.running_by_pod.items()}
        return Observation(
            now_s=this.now_s,
            pods=fleet.views(this.lasting_pods),
            published_generation=published_generation,
            acknowledged_generation=None if telemetry is None else telemetry.layout_generation.value,
            running_by_pod=running,
            metrics_flow=telemetry is not None and telemetry.running.known and telemetry.layout_generation.known,
            measurable=self._measurable(this),
            free=lambda role: _free(this, role),
        )

    def _measurable(self, this: Pass) -> bool:
        try:
            return self._config.prometheus_for(this.spec.metrics.prometheus) is not None
        except ValueError:
            return False

    def _deadlines(self, this: Pass) -> Deadlines:
        base = self._config.deadlines
        return Deadlines(
            acknowledge_s=max(base.acknowledge_s, ACKNOWLEDGE_PERIODS * (known_period_s(this) or 0.0)),
            drain_s=this.spec.sampler.drain_timeout_s,
            gone_s=base.gone_s,
            ready_s=base.ready_s,
        )

    def look(self, this: Pass, move: MoveStatus, published_generation: int) -> None:
        """Looks once at the move under way: whether it still may go on, and how far it has come."""
        if this.rivals:
            words = f"another autoscaler to be gone: {rivals.words(this.rivals, this.key[0])}"
            this.update(rebalance=rebalance.hold(move, this.now_s, words))
            return
        move = rebalance.release(move, this.now_s)
        unwished = _unwished(this, move)
        if unwished:
            self.give_up(this, move, unwished)
        else:
            self._advance(this, move, published_generation)

    def _advance(self, this: Pass, move: MoveStatus, published_generation: int) -> None:
        step = rebalance.advance(
            move,
            self._observation(this, published_generation),
            self._deadlines(this),
            goal=this.targets,
            may_roll_back=not planning.violations(this.spec, move.from_split, this.quota),
            over_budget=move.from_split.gpus > _budget(this),
            keeps=lambda split: not planning.violations(this.spec, split, this.quota),
        )
        if step.drain_timed_out:
            self._metrics.drain_timed_out(*this.key)
        turned = step.move is not None and step.move.rolling_back and not move.rolling_back
        if step.note:
            kind = "Warning" if step.drain_timed_out or turned else "Normal"
            this.said.append((kind, f"Move{move.phase.value}", step.note))
        if step.aftermath is not None:
            lost = step.aftermath.lost_samples
            this.said.append(("Warning", "OtherPodsGone", step.aftermath.words()))
            this.update(
                moves=this.before.moves.model_copy(update={"lost_samples": this.before.moves.lost_samples + lost})
            )
            self._metrics.samples_lost(*this.key, lost)
        if step.move is not None:
            this.update(rebalance=step.move)
            this.soon(0.0 if step.note else self._config.move_tick_s)
            return
        assert step.split is not None
        self._end(this, move, step.split, str(step.outcome))

    def give_up(self, this: Pass, move: MoveStatus, why: str) -> None:
        """An edit of the spec took a move's ground away: stay on what is there, and go on from that.

        Trainers that restart and are gone come back first, by the same move with another end.
        """
        split, now = rebalance.present_split(move), timestamp(this.now_s)
        message = (
            f"the move to {move.to_split.label()} is given up in {move.phase.value} at {split.label()}, because {why}"
        )
        decision = DecisionStatus(
            at=now,
            code=DecisionCode.MOVE_ROLLED_BACK,
            message=message,
            from_split=move.from_split,
            to_split=split,
        )
        decisions = status.remember(this.before.decisions, decision)
        this.said.append(("Normal", "MoveGivenUp", message))
        if move.restart and move.phase is MovePhase.SHRINK:
            update = {"to_split": split, "reason": why, "rolling_back": True, "cause": MoveCause.SPEC_CHANGE}
            this.update(rebalance=move.model_copy(update=update), decisions=decisions)
            this.soon(0.0)
            return
        this.update(
            split=split,
            rebalance=None,
            moves=this.before.moves.model_copy(update={"last_ended_at": now, "last_outcome": "RolledBack"}),
            decisions=decisions,
        )
        _keep_question_open(this, split)
        self._metrics.move_ended(*this.key, "RolledBack")
        self._observer.latest = None
        this.soon(0.0)

    def _end(self, this: Pass, move: MoveStatus, split: Split, outcome: str) -> None:
        committed = outcome == "Committed"
        history = this.before.moves
        cost_s = self._cost_s(this, move)
        failures = 0 if committed else history.failures + 1
        pause_s = 0.0 if committed else min(LONGEST_BACK_OFF_S, BACK_OFF_S * 2 ** (failures - 1))
        now = timestamp(this.now_s)
        back = "" if committed else f", because {move.reason}; the next move starts in {pause_s:.0f} s at the earliest"
        decision = DecisionStatus(
            at=now,
            code=DecisionCode.MOVE_COMMITTED if committed else DecisionCode.MOVE_ROLLED_BACK,
            message=f"{outcome}: {split.label()}{back}",
            from_split=move.from_split if committed else move.to_split,
            to_split=split,
            predicted_gain=move.predicted_gain if committed else None,
            cost_seconds=rounded(cost_s, 3),
            period_seconds=rounded(move.period_at_start, 3),
            response_tokens_mean=None if move.inputs is None else move.inputs.response_tokens_mean,
            inputs=move.inputs,
        )
        this.update(
            split=split,
            rebalance=None,
            moves=history.model_copy(
                update={
                    "last_ended_at": now,
                    "last_outcome": outcome,
                    "failures": failures,
                    "not_before": None if committed else timestamp(this.now_s + pause_s),
                    "cost_seconds": rounded(_blend(history.cost_seconds, cost_s), 3)
                    if committed
                    else history.cost_seconds,
                    "moves": history.moves + int(committed),
                    "phases": averaged(history.phases, rebalance.phases_so_far(move, this.now_s))
                    if committed
                    else history.phases,
                    "measured": left_behind(move, now) if committed else None,
                }
            ),
            decisions=status.remember(this.before.decisions, decision),
        )
        _keep_question_open(this, split)
        self._metrics.move_ended(*this.key, outcome)
        self._observer.latest = None
        this.soon(0.0)

    def _cost_s(self, this: Pass, move: MoveStatus) -> float | None:
        """What a move cost: the time it took less the time that the steps made in it would have taken before it."""
        version = None if self._observer.latest is None else self._observer.latest.policy_version.value
        if version is None or move.policy_version_at_start is None or move.period_at_start is None:
            return None
        took_s = this.now_s - epoch_s(move.started_at)
        return max(0.0, took_s - (version - move.policy_version_at_start) * move.period_at_start)

    async def return_to_spec(self, this: Pass, broken: tuple[str, ...], published_generation: int) -> None:
        """The spec was edited so that the split in force breaks it: move to the best split that keeps it."""
        split = this.before.split
        assert split is not None
        found = await self._replanner.best(this, split)
        if isinstance(found, Verdict):
            this.verdicts[ConditionType.PLANNED] = Verdict(False, found.reason, f"{broken[0]}, and {found.message}")
            return
        still = planning.violations(this.spec, found.split, this.quota)
        if still or found.split.same_shape(split):
            words = (
                f"{(still or broken)[0]}, and no split can be reached that keeps to the spec: see spec.trainer.resize"
            )
            this.verdicts[ConditionType.PLANNED] = Verdict(False, "NothingFeasible", words)
            return
        reason = f"the spec changed: {'; '.join(broken)}"
        self._said_by_spec(this, DecisionCode.SPEC_CHANGED, reason, found.split)
        this.update(plan=planning.plan_status(found, this.now_s))
        self.start(this, found.split, reason, 0.0, published_generation, cause=MoveCause.SPEC_CHANGE)

    async def replan_without_pods(self, this: Pass) -> None:
        """The same for a job that holds no pod: there is nothing to move, so that another split is in force at once."""
        split = this.before.split
        broken = () if split is None else planning.violations(this.spec, split)
        if split is None or not broken:
            return
        found = await self._replanner.best(this, split)
        if isinstance(found, Verdict):
            this.verdicts[ConditionType.PLANNED] = Verdict(False, found.reason, f"{broken[0]}, and {found.message}")
            return
        when = "while the job was suspended" if this.spec.suspend else "before the job's pods were made"
        reason = f"the spec changed {when}: {'; '.join(broken)}"
        self._said_by_spec(this, DecisionCode.SPEC_CHANGED, reason, found.split)
        this.update(plan=planning.plan_status(found, this.now_s), split=found.split)

    async def grow_unmeasured(self, this: Pass, published_generation: int) -> None:
        """Uses a budget that was raised for a job of which nothing was ever measured: only by adding, never by taking away.

        A job that is measured has its decisions for this; one whose metrics are away for a while waits for them.
        """
        split, planned, history = this.before.split, this.before.plan, this.before.moves
        if split is None or planned is None or _measured(this) or this.spec.rebalance.mode is not RebalanceMode.AUTO:
            return
        resting = history.not_before is not None and this.now_s < epoch_s(history.not_before)
        if resting or not this.all_ready or this.spec.gpus <= planned.placeable_gpus:
            return
        if this.inventory.placeable_gpus <= planned.placeable_gpus:
            return
        found = await self._replanner.best(this, split, grow_only=True)
        if isinstance(found, Verdict):
            return
        grows = found.split.gpus > split.gpus
        # Room that trainers could have is none for a pool that is still away: while it is, the question stays open.
        if grows or not this.spec.sampler.pools:
            this.update(plan=planning.plan_status(found, this.now_s))
        if not grows:
            return
        reason = (
            f"{this.inventory.placeable_gpus} GPUs of the budget can be placed, and the split was planned for {planned.placeable_gpus}; "
            "without metrics of the job no side gives any up"
        )
        self._said_by_spec(this, DecisionCode.BUDGET_RAISED, reason, found.split)
        self.start(this, found.split, reason, 0.0, published_generation, cause=MoveCause.GROWTH)

    def _said_by_spec(self, this: Pass, code: DecisionCode, message: str, to_split: Split) -> None:
        decision = DecisionStatus(
            at=timestamp(this.now_s), code=code, message=message, from_split=this.before.split, to_split=to_split
        )
        this.update(decisions=status.remember(this.now.decisions, decision))
        self._metrics.decided(*this.key, code)

    def start(
        self,
        this: Pass,
        after: Split,
        reason: str,
        gain: float,
        published_generation: int,
        *,
        cause: MoveCause = MoveCause.DECISION,
        inputs: DecisionInputs | None = None,
        request: str | None = None,
    ) -> None:
        """Begins a move from the split in force; nothing is done for it before it is persisted."""
        assert this.before.split is not None
        if this.rivals:
            return
        observed = this.now.observed
        observation = self._observation(this, published_generation)
        homeless = victims.unplaced(this.before.split, after, observation)
        if homeless and cause is MoveCause.DECISION:
            self._not_placeable(this, after, reason, homeless)
            return
        move = rebalance.start(
            before=this.before.split,
            after=after,
            reason=reason,
            predicted_gain=rounded(gain) or 0.0,
            observation=observation,
            deadlines=self._deadlines(this),
            policy_version=None if self._observer.latest is None else self._observer.latest.policy_version.value,
            period_s=None if observed is None else observed.period_seconds,
            cause=cause,
            restart=this.spec.trainer.resize is Resize.RESTART,
            inputs=inputs,
            request=request,
        )
        this.update(rebalance=move)
        this.said.append(("Normal", "MoveStarted", story.of_start(move)))
        this.soon(0.0)

    def homeless(self, this: Pass, after: Split, published_generation: int) -> int:
        """How many of the pods that a move would add find no node, whichever pods leave."""
        assert this.before.split is not None
        return victims.unplaced(this.before.split, after, self._observation(this, published_generation))

    def _not_placeable(self, this: Pass, after: Split, reason: str, homeless: int) -> None:
        """Says that a move would free GPUs that are too scattered for the pods that come; nothing is begun."""
        before = this.before.split
        message = (
            f"not moved to {after.label()}, since {homeless} of the pods that would come find no node with enough free GPUs, "
            f"whichever pods leave: the GPUs are scattered. Delete pods of the side that shrinks on one node, one after the other, so "
            f"that they are made anew elsewhere, or add a node. ({reason})"
        )
        decided = this.now.decisions
        if decided and decided[-1].code is DecisionCode.MOVE:
            decided = decided[:-1]
        decision = DecisionStatus(
            at=timestamp(this.now_s),
            code=DecisionCode.NOTHING_PLACEABLE,
            message=message,
            from_split=before,
            to_split=after,
        )
        this.update(decisions=status.remember(decided, decision))
        this.said.append(("Warning", DecisionCode.NOTHING_PLACEABLE.value, message))
        self._metrics.decided(*this.key, DecisionCode.NOTHING_PLACEABLE)


def _unwished(this: Pass, move: MoveStatus) -> str:
    """Why a move under way is not wished any more, empty if it is.

    What a mode or ``resize: fixed`` forbid is to begin; what pods have already come or gone for is brought to its end, since a half
    of a move is worse than either.
    """
    broken = planning.violations(this.spec, move.to_split)
    # Trainers between two lives come back first, whatever the spec says by now; then there is a split to go on from.
    coming_back = move.restart and move.phase is MovePhase.SHRINK
    if broken and not (coming_back and rebalance.present_split(move).same_shape(move.to_split)):
        return broken[0]
    if rebalance.touches_pods(move.phase):
        return ""
    mode = this.spec.rebalance.mode
    if move.rolling_back:
        return ""
    if move.cause is MoveCause.BY_HAND:
        if not byhand.asked(this.raw["metadata"]):
            return "the request for it was taken back"
    elif mode is not RebalanceMode.AUTO and move.cause is not MoveCause.SPEC_CHANGE:
        return f"rebalance.mode is now {mode.value}"
    if move.cause is MoveCause.SPEC_CHANGE and not planning.violations(this.spec, move.from_split, this.quota):
        return "the spec allows the split before it again"
    trainers = move.from_split.trainers.replicas != move.to_split.trainers.replicas
    if trainers and this.spec.trainer.resize is Resize.FIXED:
        return "trainer.resize is now fixed"
    return ""


def _budget(this: Pass) -> int:
    """GPUs that the job may hold: its budget, or what a quota leaves of it."""
    quota = this.quota
    return this.spec.gpus if quota is None or quota.keeps is None else min(this.spec.gpus, quota.keeps)


def _measured(this: Pass) -> bool:
    """Whether anything was ever measured of the job."""
    kept, seen = this.before.calibration, this.before.observed
    return (kept is not None and kept.observations > 0) or (seen is not None and seen.policy_version is not None)


def _keep_question_open(this: Pass, split: Split) -> None:
    """Says that the plan's GPUs are not in use where a move ended with fewer; a job without metrics grows by this alone."""
    plan = this.now.plan
    if plan is None or _measured(this) or split.gpus >= plan.split.gpus:
        return
    this.update(plan=plan.model_copy(update={"placeable_gpus": min(plan.placeable_gpus, split.gpus)}))


def _free(this: Pass, role: str) -> dict[str, int]:
    """GPUs that are free for a role on each node, besides those that the job's own pods hold."""
    held: Counter[str] = Counter()
    for pod in this.pods:
        if gate.is_held(pod) and pod["spec"].get("nodeName"):
            held[pod["spec"]["nodeName"]] += gate.pod_gpus(pod, this.gpu_resources)
    allowed = [room for room in this.inventory.rooms if (room.samplers if role == gate.SAMPLER else room.trainers)]
    return {room.node: max(0, room.free_gpus - held[room.node]) for room in allowed}


def _blend(old: float | None, new: float | None) -> float | None:
    if old is None or new is None:
        return new if old is None else old
    return 0.5 * (old + new)
