"""Takes the next decision of a running job and carries it out: gathers the situation, asks ``decide``, keeps what it said."""

from __future__ import annotations

import logging
from dataclasses import replace

from rljob_operator import gate, planning, pools, status
from rljob_operator.config import Config
from rljob_operator.decide import Decision, Situation, calibrated, decide, recorded
from rljob_operator.edges import Edges
from rljob_operator.hindsight import measured_move, with_measured_gain
from rljob_operator.learned import with_constants
from rljob_operator.measured import by_count, calibration_of, followed_lengths, kept, lengths_of
from rljob_operator.metrics import OperatorMetrics
from rljob_operator.moves import Moves
from rljob_operator.passes import Pass
from rljob_operator.readings import Telemetry
from rljob_operator.rebalance import timestamp
from rljob_operator.remembered import Remembered
from rljob_operator.situation import faults_in
from rljob_planner.api.status import DecisionCode

logger = logging.getLogger(__name__)


class Deciding:
    """The decisions of one job."""

    def __init__(self, edges: Edges, config: Config, metrics: OperatorMetrics, moves: Moves) -> None:
        self._edges = edges
        self._config = config
        self._metrics = metrics
        self._moves = moves
        self._remembered = Remembered()

    @staticmethod
    def _broken(this: Pass) -> tuple[str, ...]:
        """Pods that crash or can't start, in words."""
        return tuple(
            f"{role} pod {pod}: see its logs and events (kubectl describe pod), and mend its image, command or node"
            for role, fleet in (("sampler", this.samplers), ("trainer", this.trainers))
            for pod in fleet.broken
        )

    @staticmethod
    def _hardware(this: Pass) -> dict[str, str]:
        """The GPU type that each sampler pod runs on, or its pool where the node does not say."""
        types = {room.node: room.accelerator for room in this.inventory.rooms}
        return {
            gate.name_of(pod): types.get(str(pod["spec"].get("nodeName"))) or pools.pool_name(pod) or ""
            for pod in this.pods
            if gate.role_of(pod) == gate.SAMPLER
        }

    async def decide(self, this: Pass, telemetry: Telemetry, published_generation: int) -> None:
        """Decides on fresh telemetry, keeps the decision and the calibration in the status, and starts what was decided."""
        split = this.before.split
        assert split is not None
        spec = planning.limited(this.spec, this.inventory)
        known = calibration_of(this.before.calibration)
        known = with_constants(known, this.before.learned, split.samplers.tensor_parallel)
        calibration = calibrated(known, telemetry, spec, split, this.inventory.rooms)
        calibration = by_count(calibration, telemetry, spec, split, this.inventory.rooms)
        lengths = followed_lengths(lengths_of(this.before.calibration), telemetry, spec)
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
            faults=(*self._broken(this), *faults_in(telemetry, spec, self._hardware(this))),
            lengths=lengths,
            remembered=self._remembered,
        )
        measured = await self._edges.in_thread(measured_move, situation, self._edges.planner)
        situation = replace(situation, moves=situation.moves.model_copy(update={"measured": measured}))
        decision = await self._edges.in_thread(decide, situation, self._edges.planner)
        self._remembered.rest()
        if decision.code is DecisionCode.MOVE and decision.split is not None and not this.still_holds(decision.split):
            words = f"another job took what {decision.split.label()} needs while that was weighed, so the split in force stays"
            decision = replace(decision, code=DecisionCode.NOTHING_PLACEABLE, message=words)
        self._metrics.decided(*this.key, decision.code, decision.predicted_gain)
        logger.info("%s/%s: %s: %s", *this.key, decision.code, decision.message)
        this.update(
            calibration=kept(calibration, lengths),
            decisions=recorded(
                with_measured_gain(this.before.decisions, measured), decision, situation, timestamp(this.now_s)
            ),
        )
        if measured is not this.before.moves.measured:
            this.update(moves=this.before.moves.model_copy(update={"measured": measured}))
        if decision.plan is not None:
            this.update(plan=planning.plan_status(decision.plan, this.now_s))
        self._carry_out(this, decision, published_generation)

    def _carry_out(self, this: Pass, decision: Decision, published_generation: int) -> None:
        split = this.before.split
        assert split is not None
        if decision.code is DecisionCode.MOVE and decision.split is not None:
            self._moves.start(
                this,
                decision.split,
                decision.message,
                decision.predicted_gain or 0.0,
                published_generation,
                inputs=decision.inputs,
            )
        elif decision.code in (DecisionCode.LOWER_CAP, DecisionCode.RAISE_CAP) and decision.in_flight is not None:
            this.update(split=split.model_copy(update={"in_flight": decision.in_flight}))
            this.said.append(("Normal", decision.code.value, decision.message))
            this.soon(0.0)
