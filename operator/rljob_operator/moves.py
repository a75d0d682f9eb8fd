"""Starts, advances and ends the moves of one job: the thin hand between the pure transaction and the status.

What is decided here only changes the status to be written: the next pass acts on it.
"""

from __future__ import annotations

from rljob_operator import fleet, planning, rebalance, status
from rljob_operator.config import Config
from rljob_operator.edges import Edges
from rljob_operator.metrics import OperatorMetrics
from rljob_operator.observing import Observer
from rljob_operator.passes import Pass
from rljob_operator.rebalance import Deadlines, Observation, epoch_s, timestamp
from rljob_operator.status import Verdict, rounded
from rljob_planner.api.status import ConditionType, DecisionCode, DecisionStatus, MoveHistory, MoveStatus
from rljob_planner.search import PlanningError
from rljob_planner.split import Split

BACK_OFF_S = 60.0
"""First pause after a roll-back; it doubles with each further one."""

LONGEST_BACK_OFF_S = 3600.0


class Moves:
    """The moves of one job."""

    def __init__(self, edges: Edges, config: Config, metrics: OperatorMetrics, observer: Observer) -> None:
        self._edges = edges
        self._config = config
        self._metrics = metrics
        self._observer = observer

    def _observation(self, this: Pass, published_generation: int) -> Observation:
        telemetry = self._observer.latest
        running = {} if telemetry is None else {pod: r.value for pod, r in telemetry.running_by_pod.items()}
        return Observation(
            now_s=this.now_s,
            pods=fleet.views(this.pods),
            published_generation=published_generation,
            acknowledged_generation=None if telemetry is None else telemetry.layout_generation.value,
            running_by_pod=running,
            metrics_flow=telemetry is not None and telemetry.running.known and telemetry.layout_generation.known,
        )

    def _deadlines(self, this: Pass) -> Deadlines:
        base = self._config.deadlines
        return Deadlines(
            acknowledge_s=base.acknowledge_s,
            drain_s=this.spec.sampler.drain_timeout_s,
            gone_s=base.gone_s,
            ready_s=base.ready_s,
        )

    def advance(self, this: Pass, move: MoveStatus, published_generation: int) -> None:
        """Looks once at the move under way."""
        step = rebalance.advance(
            move,
            self._observation(this, published_generation),
            self._deadlines(this),
            may_roll_back=not planning.violations(this.spec, move.from_split),
        )
        if step.drain_timed_out:
            self._metrics.drain_timed_out(*this.key)
        if step.note:
            this.said.append(("Warning" if step.drain_timed_out else "Normal", f"Move{move.phase.value}", step.note))
        if step.move is not None:
            this.update(rebalance=step.move)
            this.soon(0.0 if step.move.phase is not move.phase else self._config.move_tick_s)
            return
        assert step.split is not None
        self._end(this, move, step.split, str(step.outcome))

    def give_up(self, this: Pass, move: MoveStatus, broken: tuple[str, ...]) -> None:
        """The spec was edited so that the split which a move leads to breaks it: stay on what is there, and plan from that."""
        split, now = rebalance.present_split(move), timestamp(this.now_s)
        message = f"the move to {move.to_split.label()} is given up in {move.phase.value} at {split.label()}, because {broken[0]}"
        decision = DecisionStatus(
            at=now,
            code=DecisionCode.MOVE_ROLLED_BACK,
            message=message,
            from_split=move.from_split,
            to_split=split,
        )
        this.update(
            split=split,
            rebalance=None,
            moves=this.before.moves.model_copy(update={"last_ended_at": now, "last_outcome": "RolledBack"}),
            decisions=status.remember(this.before.decisions, decision),
        )
        this.said.append(("Normal", "MoveGivenUp", message))
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
        decision = DecisionStatus(
            at=now,
            code=DecisionCode.MOVE_COMMITTED if committed else DecisionCode.MOVE_ROLLED_BACK,
            message=f"{outcome}: {split.label()}" + ("" if committed else f", because {move.reason}"),
            from_split=move.from_split if committed else move.to_split,
            to_split=split,
            predicted_gain=move.predicted_gain if committed else None,
            cost_seconds=rounded(cost_s, 3),
            period_seconds=rounded(move.period_at_start, 3),
        )
        this.update(
            split=split,
            rebalance=None,
            moves=MoveHistory(
                last_ended_at=now,
                last_outcome=outcome,
                failures=failures,
                not_before=None if committed else timestamp(this.now_s + pause_s),
                cost_seconds=rounded(_blend(history.cost_seconds, cost_s), 3) if committed else history.cost_seconds,
                moves=history.moves + int(committed),
            ),
            decisions=status.remember(this.before.decisions, decision),
        )
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
        try:
            found = await self._edges.in_thread(
                self._edges.planner.plan,
                planning.limited(this.spec, this.inventory),
                this.inventory.rooms,
                keep=split,
                detail=False,
            )
        except PlanningError as error:
            this.verdicts[ConditionType.PLANNED] = Verdict(False, error.reason, f"{broken[0]}, and {error}")
            return
        self.start(this, found.split, f"the spec changed: {'; '.join(broken)}", 0.0, published_generation)

    def start(self, this: Pass, after: Split, reason: str, gain: float, published_generation: int) -> None:
        """Begins a move from the split in force; nothing is done for it before it is persisted."""
        assert this.before.split is not None
        observed = this.now.observed
        move = rebalance.start(
            before=this.before.split,
            after=after,
            reason=reason,
            predicted_gain=rounded(gain) or 0.0,
            observation=self._observation(this, published_generation),
            deadlines=self._deadlines(this),
            policy_version=None if self._observer.latest is None else self._observer.latest.policy_version.value,
            period_s=None if observed is None else observed.period_seconds,
        )
        this.update(rebalance=move)
        this.said.append(("Normal", "MoveStarted", f"{move.from_split.label()} to {move.to_split.label()}: {reason}"))
        this.soon(0.0)


def _blend(old: float | None, new: float | None) -> float | None:
    if old is None or new is None:
        return new if old is None else old
    return 0.5 * (old + new)
