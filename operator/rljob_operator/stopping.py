"""A job that should hold no GPUs: suspended or complete. What it says, what ends with it, and how it comes back.

What is decided here only changes the status to be written: the next pass acts on it.
"""

from __future__ import annotations

from rljob_operator import lifecycle, status
from rljob_operator.passes import Pass
from rljob_operator.running import Running
from rljob_operator.status import Verdict
from rljob_planner.api.status import ConditionType, Phase


class Stopping:
    """The end, or the pause, of one job."""

    def __init__(self, running: Running) -> None:
        self._running = running

    async def look_complete(self, this: Pass) -> None:
        """One look at a job that has reached its last step; steps that were raised since let it go on."""
        done = this.before.completed_version
        if lifecycle.resumes(this.spec, this.before):
            message = f"spec.workload.steps is {this.spec.workload.steps} and the run was complete at {done}: it goes on from its last checkpoint"
            this.said.append(("Normal", "StepsRaised", message))
            this.update(phase=Phase.PLANNED, completed_version=None, stopping_since=None, drained_since=None)
            this.soon(0.0)
            return
        words = f"the run has reached its last step{'' if done is None else f' at policy version {done}'}"
        remedy = (
            "; raise spec.workload.steps to go on"
            if done is not None
            else "; to go on, apply the job anew under another name"
        )
        if _holds(this):
            await self._running.watch_drain(this)
            words += f"; its GPUs are freed after {self._waits_for(this)}"
        this.verdicts[ConditionType.READY] = Verdict(False, "Complete", words + remedy)

    async def look_suspended(self, this: Pass) -> None:
        """One look at a job that is to hold no GPUs for now: its move ends, its samplers drain, then all pods go."""
        move = this.before.rebalance
        if move is not None:
            split = move.to_split if move.rolling_back else move.from_split
            this.update(rebalance=None, split=split)
            words = f"spec.suspend ends the move in {move.phase.value}; resumed with {split.label()}"
            this.said.append(("Normal", "MoveGivenUp", words))
        if _holds(this):
            await self._running.watch_drain(this)
        elif move is None:
            await self._running.replan_without_pods(this)
        this.verdicts[ConditionType.READY] = status.suspended(
            some_exist=this.some_exist, waits_for=self._waits_for(this)
        )

    def _waits_for(self, this: Pass) -> str:
        stop = lifecycle.stop_of(this.spec, this.now, this.pods, self._running.latest, this.now_s)
        return stop.words or "its pods are gone: kubectl get pods shows which still terminate"


def _holds(this: Pass) -> bool:
    """Whether pods of the job are there, or its workloads still ask for some: a quota may refuse them today and admit them tomorrow."""
    return this.some_exist or (this.targets is not None and not status.nothing_wished(this.targets))
