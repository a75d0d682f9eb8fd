"""Looks at a job that runs: its metrics, its move under way, its completion; and takes the next decision when it is due.

What is decided here only changes the status to be written: the next pass acts on it.
"""

from __future__ import annotations

from rljob_operator import lifecycle, planning, pooling, replanning
from rljob_operator.asked import Asked
from rljob_operator.config import Config
from rljob_operator.deciding import Deciding
from rljob_operator.edges import Edges
from rljob_operator.learning import Learning
from rljob_operator.metrics import OperatorMetrics
from rljob_operator.moves import Moves
from rljob_operator.observing import Observer
from rljob_operator.passes import Pass
from rljob_operator.readings import Telemetry
from rljob_operator.rebalance import timestamp
from rljob_operator.replanning import Replanner
from rljob_planner.api.status import ConditionType, Phase


class Running:
    """One running job, as a process sees it between passes."""

    def __init__(self, edges: Edges, config: Config, metrics: OperatorMetrics, learning: Learning) -> None:
        self._config = config
        self._learning = learning
        self._observer = Observer(edges, config)
        self._moves = Moves(edges, config, metrics, self._observer)
        self._asked = Asked(metrics, self._moves, Replanner(edges))
        self._deciding = Deciding(edges, config, metrics, self._moves)

    @property
    def latest(self) -> Telemetry | None:
        """The metrics read last, None if there are none of the present layout."""
        return self._observer.latest

    async def watch_drain(self, this: Pass) -> None:
        """Keeps the running samples of a stopping job in sight."""
        if this.now.stopping_since is None:
            this.update(stopping_since=timestamp(this.now_s))
        await self._observer.look(this, self._config.move_tick_s, since_s=None)
        since = lifecycle.drained_since(this.spec, this.now, this.pods, self.latest, this.now_s)
        this.soon(self._config.move_tick_s if since == this.now.drained_since else 0.0)
        this.update(drained_since=since)

    async def replan_without_pods(self, this: Pass) -> None:
        """Brings the split of a job that holds no pod back to its spec: without pods there is nothing to move."""
        await self._moves.replan_without_pods(this)

    async def look(self, this: Pass, published_generation: int) -> None:
        """One look at a job that should run."""
        if this.now.stopping_since is not None:
            this.update(stopping_since=None, drained_since=None)
        move = this.before.rebalance
        pace_s = self._config.move_tick_s if move is not None else this.spec.rebalance.interval_s
        fresh = await self._observer.look(
            this, pace_s, since_s=None if move is not None else self._observer.since_s(this)
        )
        this.soon(max(0.2, pace_s - self._observer.age_s))
        telemetry = self.latest
        version = None if telemetry is None else telemetry.policy_version.value
        if fresh and telemetry is not None:
            self._observer.report(this, telemetry)
        if version is not None and version >= this.spec.workload.steps:
            message = f"policy version {version} of {this.spec.workload.steps} is published: samplers drain, then all GPUs are freed"
            await self._learning.after_run(this)
            this.said.append(("Normal", "Complete", message))
            this.update(
                phase=Phase.COMPLETE, rebalance=None, completed_version=version, stopping_since=timestamp(this.now_s)
            )
            this.soon(0.0)
            return
        trouble = replanning.trouble(this.spec)
        if trouble is not None:
            this.verdicts[ConditionType.PLANNED] = trouble
        if pooling.give_up(this, self._config.pool_lost_s):
            return
        if move is not None:
            self._moves.look(this, move, published_generation)
            return
        assert this.before.split is not None
        if await self._asked.look(this, published_generation):
            return
        broken = planning.violations(this.spec, this.before.split, this.quota)
        if broken:
            await self._moves.return_to_spec(this, broken, published_generation)
            return
        if not fresh or trouble is not None:
            return
        if telemetry is not None:
            await self._deciding.decide(this, telemetry, published_generation)
        if this.now.rebalance is None:
            await self._moves.grow_unmeasured(this, published_generation)
