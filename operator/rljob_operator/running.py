"""Looks at a job that runs: its metrics, its move under way, its completion; and takes the next decision when it is due.

Metrics are read at the pace of decisions, and faster while a move or a drain waits for them; pod events in between cost no
query. What is decided here only changes the status to be written: the next pass acts on it.
"""

from __future__ import annotations

import asyncio
import logging
import time

import aiohttp

from rljob_operator import fleet, gate, planning, rebalance, status
from rljob_operator.config import Config
from rljob_operator.decide import Decision, Situation, calibrated, decide, recorded
from rljob_operator.metrics import OperatorMetrics
from rljob_operator.passes import Pass
from rljob_operator.readings import Telemetry
from rljob_operator.rebalance import Deadlines, Observation, epoch_s, timestamp
from rljob_operator.situation import staleness_check
from rljob_operator.status import Verdict, rounded
from rljob_operator.telemetry import Prometheus, observe, wished_window_s
from rljob_planner.api.status import (
    CalibrationStatus,
    ConditionType,
    DecisionCode,
    DecisionStatus,
    MoveHistory,
    MoveStatus,
    ObservedStatus,
    Phase,
)
from rljob_planner.calibrate import Calibration
from rljob_planner.search import PlanningError, plan
from rljob_planner.split import Split

logger = logging.getLogger(__name__)

BACK_OFF_S = 60.0
"""First pause after a roll-back; it doubles with each further one."""

LONGEST_BACK_OFF_S = 3600.0


class Running:
    """What a process remembers of a running job between passes: its last metrics, and when it read them."""

    def __init__(self, session: aiohttp.ClientSession, config: Config, metrics: OperatorMetrics) -> None:
        self._session = session
        self._config = config
        self._metrics = metrics
        self._observed_s: float | None = None
        self.latest: Telemetry | None = None

    async def watch_drain(self, this: Pass) -> None:
        """Keeps the running samples of a stopping job in sight."""
        if this.now.stopping_since is None:
            this.update(stopping_since=timestamp(this.now_s))
        await self._observe(this, self._config.move_tick_s, since_s=None)
        this.soon(self._config.move_tick_s)

    async def look(self, this: Pass, published_generation: int) -> None:
        """One look at a job that should run."""
        if this.now.stopping_since is not None:
            this.update(stopping_since=None)
        move = this.before.rebalance
        pace_s = self._config.move_tick_s if move is not None else this.spec.rebalance.interval_s
        fresh = await self._observe(this, pace_s, since_s=None if move is not None else self._since_s(this))
        this.soon(max(0.2, pace_s - (time.monotonic() - (self._observed_s or time.monotonic()))))
        telemetry = self.latest
        version = None if telemetry is None else telemetry.policy_version.value
        if version is not None and version >= this.spec.workload.steps:
            message = f"policy version {version} of {this.spec.workload.steps} is published: samplers drain, then all GPUs are freed"
            this.said.append(("Normal", "Complete", message))
            this.update(phase=Phase.COMPLETE, rebalance=None, stopping_since=timestamp(this.now_s))
            this.soon(0.0)
            return
        if fresh and telemetry is not None:
            self._report_observed(this, telemetry)
        if move is not None:
            broken = planning.violations(this.spec, move.to_split)
            if broken:
                self._give_up(this, move, broken)
            else:
                self._advance(this, move, published_generation)
            return
        assert this.before.split is not None
        broken = planning.violations(this.spec, this.before.split)
        if broken:
            await self._return_to_spec(this, broken, published_generation)
        elif fresh and telemetry is not None:
            await self._decide(this, telemetry, published_generation)

    def _since_s(self, this: Pass) -> float | None:
        """Since when the present layout is in force; None while pods are still coming."""
        if not this.all_ready:
            return None
        times = [
            c.last_transition_time
            for c in this.before.conditions
            if c.type is ConditionType.READY and c.status == "True"
        ]
        if not times:
            return None
        if this.before.moves.last_ended_at is not None:
            times.append(this.before.moves.last_ended_at)
        return max(epoch_s(text) for text in times)

    async def _observe(self, this: Pass, pace_s: float, *, since_s: float | None) -> bool:
        """Reads the metrics if they are due; returns whether they were."""
        now = time.monotonic()
        if self._observed_s is not None and now - self._observed_s < pace_s * 0.98:
            return False
        self._observed_s = now
        try:
            url = self._config.prometheus_for(this.spec.metrics.prometheus)
        except ValueError as error:
            this.verdicts[ConditionType.METRICS_AVAILABLE] = Verdict(False, "PrometheusNotAllowed", str(error))
            self.latest = None
            return True
        if url is None:
            this.verdicts[ConditionType.METRICS_AVAILABLE] = Verdict(
                False,
                "NoPrometheus",
                "no Prometheus is configured: set spec.metrics.prometheus, or RLJOB_OPERATOR_PROMETHEUS_URL on the operator",
            )
            self.latest = None
            return True
        workload = this.spec.workload
        self.latest = await observe(
            Prometheus(self._session, url),
            str(this.raw["metadata"]["uid"]),
            sampler_pods=this.ready_names(gate.SAMPLER),
            trainer_pods=this.ready_names(gate.TRAINER),
            since=since_s,
            now=this.now_s,
            window_s=wished_window_s(_period_s(this), self._config.metrics_window_s, self._config.scrape_s),
            scrape_s=self._config.scrape_s,
            samples_per_prompt=workload.samples_per_prompt,
            max_response_tokens=workload.response_tokens.max,
        )
        return True

    def _report_observed(self, this: Pass, telemetry: Telemetry) -> None:
        """Puts what the metrics say into the status, the conditions and the operator's own metrics."""
        started = self._since_s(this) is not None or this.before.rebalance is not None
        if telemetry.missing and not started:
            verdict = Verdict(None, "Starting", f"the job is starting: {telemetry.missing[0]}")
        elif telemetry.missing:
            verdict = Verdict(
                False, "MetricsMissing", "; ".join(telemetry.missing[:3]) + "; until then nothing is resized"
            )
        else:
            verdict = Verdict(True, "MetricsFound", "all metrics of the job are there")
        this.verdicts[ConditionType.METRICS_AVAILABLE] = verdict
        in_move = this.before.rebalance is not None
        old = this.before.observed
        mean, largest = telemetry.staleness_mean.value, telemetry.staleness_max.value
        if not in_move:
            planned = None if this.before.plan is None else this.before.plan.staleness
            this.verdicts[ConditionType.WITHIN_STALENESS] = status.within_staleness(
                staleness_check(this.spec, telemetry), this.spec.staleness.bound, planned
            )
        period_s = telemetry.period_s.value
        if in_move and old is not None:
            # Windows do not span a move, so these are unknown during one; what held before it is kept in sight.
            period_s, mean = old.period_seconds, old.staleness_mean
        this.update(
            observed=ObservedStatus(
                at=timestamp(this.now_s),
                policy_version=telemetry.policy_version.value,
                period_seconds=rounded(period_s, 3),
                staleness_mean=rounded(mean, 3),
                staleness_max=rounded(largest, 3),
                queue_groups=rounded(telemetry.queue_groups.value, 3),
                in_flight_samples=rounded(telemetry.in_flight_samples.value, 3),
                response_tokens_mean=rounded(telemetry.response_tokens_mean.value, 3),
                gpus_held=this.held_gpus,
                layout_generation=telemetry.layout_generation.value,
            )
        )

    def _observation(self, this: Pass, published_generation: int) -> Observation:
        telemetry = self.latest
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

    def _advance(self, this: Pass, move: MoveStatus, published_generation: int) -> None:
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
        self._end_move(this, move, step.split, str(step.outcome))

    def _give_up(self, this: Pass, move: MoveStatus, broken: tuple[str, ...]) -> None:
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
        self.latest = None
        this.soon(0.0)

    def _end_move(self, this: Pass, move: MoveStatus, split: Split, outcome: str) -> None:
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
        self.latest = None
        this.soon(0.0)

    def _cost_s(self, this: Pass, move: MoveStatus) -> float | None:
        """What a move cost: the time it took less the time that the steps made in it would have taken before it."""
        version = None if self.latest is None else self.latest.policy_version.value
        if version is None or move.policy_version_at_start is None or move.period_at_start is None:
            return None
        took_s = this.now_s - epoch_s(move.started_at)
        return max(0.0, took_s - (version - move.policy_version_at_start) * move.period_at_start)

    async def _return_to_spec(self, this: Pass, broken: tuple[str, ...], published_generation: int) -> None:
        """The spec was edited so that the split in force breaks it: move to the best split that keeps it."""
        split = this.before.split
        assert split is not None
        try:
            found = await asyncio.to_thread(
                plan, planning.limited(this.spec, this.inventory), this.inventory.rooms, keep=split, detail=False
            )
        except PlanningError as error:
            this.verdicts[ConditionType.PLANNED] = Verdict(False, error.reason, f"{broken[0]}, and {error}")
            return
        self._start(this, found.split, f"the spec changed: {'; '.join(broken)}", 0.0, published_generation)

    def _start(self, this: Pass, after: Split, reason: str, gain: float, published_generation: int) -> None:
        assert this.before.split is not None
        observed = this.now.observed
        move = rebalance.start(
            before=this.before.split,
            after=after,
            reason=reason,
            predicted_gain=rounded(gain) or 0.0,
            observation=self._observation(this, published_generation),
            deadlines=self._deadlines(this),
            policy_version=None if self.latest is None else self.latest.policy_version.value,
            period_s=None if observed is None else observed.period_seconds,
        )
        this.update(rebalance=move)
        this.said.append(("Normal", "MoveStarted", f"{move.from_split.label()} to {move.to_split.label()}: {reason}"))
        this.soon(0.0)

    async def _decide(self, this: Pass, telemetry: Telemetry, published_generation: int) -> None:
        split = this.before.split
        assert split is not None
        spec = planning.limited(this.spec, this.inventory)
        kept = this.before.calibration
        previous = Calibration() if kept is None else Calibration(**kept.model_dump())
        calibration = calibrated(previous, telemetry, spec, split, this.inventory.rooms)
        situation = Situation(
            spec=spec,
            split=split,
            rooms=this.inventory.rooms,
            telemetry=telemetry,
            calibration=calibration,
            now_s=this.now_s,
            moves=this.before.moves,
            decisions=this.before.decisions,
            pods_ready=this.all_ready,
            not_ready=status.ready(this.samplers, this.trainers, this.key[1]).message,
            settle_steps=self._config.settle_steps,
        )
        decision = await asyncio.to_thread(decide, situation)
        self._metrics.decided(*this.key, decision.code, decision.predicted_gain)
        logger.info("%s/%s: %s: %s", *this.key, decision.code, decision.message)
        this.update(
            calibration=CalibrationStatus(
                sampler_factor=rounded(calibration.sampler_factor) or 1.0,
                trainer_factor=rounded(calibration.trainer_factor) or 1.0,
                residual=rounded(calibration.residual),
                pegged=calibration.pegged,
                observations=calibration.observations,
            ),
            decisions=recorded(
                _with_measured_gain(this.before.decisions, telemetry), decision, situation, timestamp(this.now_s)
            ),
        )
        if decision.plan is not None:
            this.update(plan=planning.plan_status(decision.plan, this.now_s))
        self._carry_out(this, decision, published_generation)

    def _carry_out(self, this: Pass, decision: Decision, published_generation: int) -> None:
        split = this.before.split
        assert split is not None
        if decision.code is DecisionCode.MOVE and decision.split is not None:
            self._start(this, decision.split, decision.message, decision.predicted_gain or 0.0, published_generation)
        elif decision.code in (DecisionCode.LOWER_CAP, DecisionCode.RAISE_CAP) and decision.in_flight is not None:
            this.update(split=split.model_copy(update={"in_flight": decision.in_flight}))
            this.said.append(("Normal", decision.code.value, decision.message))
            this.soon(0.0)


def _with_measured_gain(decisions: tuple[DecisionStatus, ...], telemetry: Telemetry) -> tuple[DecisionStatus, ...]:
    """The decisions with the gain of the last committed move, once a period has been measured after it."""
    period_s = telemetry.period_s.value
    for index in reversed(range(len(decisions))):
        decision = decisions[index]
        if decision.code is not DecisionCode.MOVE_COMMITTED:
            continue
        if period_s is None or decision.measured_gain is not None or not decision.period_seconds:
            return decisions
        gain = rounded(1.0 - period_s / decision.period_seconds, 3)
        return (*decisions[:index], decision.model_copy(update={"measured_gain": gain}), *decisions[index + 1 :])
    return decisions


def _blend(old: float | None, new: float | None) -> float | None:
    if old is None or new is None:
        return new if old is None else old
    return 0.5 * (old + new)


def _period_s(this: Pass) -> float | None:
    """The period as observed last, else as planned."""
    observed, planned = this.before.observed, this.before.plan
    if observed is not None and observed.period_seconds is not None:
        return observed.period_seconds
    return None if planned is None else planned.period.mean
