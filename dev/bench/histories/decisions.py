"""Decisions by chance: any split that the spec allows, at any time.

Whether a move is worth it is another question, with a bench of its own. Here the transaction must be safe wherever it is told
to go, so the optimum changes its place at random until the history asks for rest.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast
from unittest import mock

from rljob_operator import deciding
from rljob_operator.situation import Decision, Planner, Situation
from rljob_planner.api.spec import Resize, RLJobSpec
from rljob_planner.api.status import DecisionCode
from rljob_planner.errors import PlanningError
from rljob_planner.outcome import Period, Plan, RunTime, Staleness
from rljob_planner.placement import Room, frontier
from rljob_planner.split import PoolSplit, SamplerSplit, Split, TrainerSplit


@dataclass
class Chance:
    """Moves jobs about until it is told to let them rest."""

    rng: random.Random
    restless: bool = True
    """Whether decisions still move jobs."""
    moves: int = 0
    """Moves that were decided."""

    def planner(self) -> Planner:
        """A planner whose best split is any that fits."""
        return Planner(plan=self._plan)

    def decide(self, situation: Situation, _planner: Planner) -> Decision:
        """A move to a random split, a new cap, or nothing."""
        if not situation.pods_ready and self.rng.random() < 0.9:
            return Decision(DecisionCode.NOT_READY, "pods are not ready")
        if not self.restless or self.rng.random() < 0.15:
            return Decision(DecisionCode.AT_OPTIMUM, "all is well")
        if self.rng.random() < 0.1:
            cap = self.rng.randrange(8, 512)
            return Decision(DecisionCode.LOWER_CAP, "by chance", in_flight=cap)
        split = self._split(situation.spec, situation.rooms, situation.split)
        if split is None or split.same_shape(situation.split):
            return Decision(DecisionCode.AT_OPTIMUM, "no other split is allowed")
        self.moves += 1
        return Decision(DecisionCode.MOVE, "by chance", split=split, predicted_gain=0.1)

    def _plan(self, spec: RLJobSpec, rooms: Sequence[Room], *, keep: Split | None = None, **_: Any) -> Plan:
        split = self._split(spec, rooms, keep)
        if split is None:
            raise PlanningError("DoesNotFit", "no split that the spec allows fits the nodes")
        return Plan(
            split=split,
            mode="async",
            period=Period(10.0, 9.0, 10.0, 11.0),
            staleness=Staleness(1.0, 2.0, 3.0, 0.0),
            run_time=RunTime(1e4, 1e4, 1e4),
            cost=None,
            lock_steps={},
            bottleneck="balanced",
            confidence=None,
            candidates=(),
            neighbours=(),
            length_sweep=(),
            elasticity=None,
            placeable_gpus=split.gpus,
            rho=1.0,
            evaluation=cast(Any, None),
        )

    def _split(self, spec: RLJobSpec, rooms: Sequence[Room], now: Split | None) -> Split | None:
        width, trainer_width = spec.sampler.gpus_per_replica or 1, spec.trainer.gpus_per_replica
        most = frontier(rooms, width, trainer_width)
        allowed = []
        fixed = now is not None and spec.trainer.resize is Resize.FIXED
        for trainers in range(spec.trainer.min_replicas, len(most)):
            if fixed and now is not None and trainers != now.trainers.replicas:
                continue
            if spec.trainer.max_replicas is not None and trainers > spec.trainer.max_replicas:
                break
            fitting = min(int(most[trainers]), (spec.gpus - trainers * trainer_width) // width)
            if spec.sampler.max_replicas is not None:
                fitting = min(fitting, spec.sampler.max_replicas)
            if fitting >= spec.sampler.min_replicas:
                allowed.append((trainers, fitting))
        if not allowed:
            return None
        trainers, fitting = self.rng.choice(allowed)
        # Mostly the whole budget, since that is where a move has no room to be wrong.
        samplers = fitting if self.rng.random() < 0.8 else self.rng.randint(spec.sampler.min_replicas, fitting)
        return Split(
            mode="async",
            samplers=SamplerSplit(
                replicas=samplers,
                gpus_per_replica=width,
                tensor_parallel=width,
                max_running=spec.sampler.max_running or 64,
                pools=self._pools(spec, samplers),
            ),
            trainers=TrainerSplit(
                replicas=trainers, gpus_per_replica=trainer_width, dp=trainers * trainer_width, tp=1, pp=1, ep=1
            ),
            in_flight=256 if now is None else now.in_flight,
        )

    def _pools(self, spec: RLJobSpec, samplers: int) -> tuple[PoolSplit, ...] | None:
        """The samplers anywhere in the pools: what does not fit there has to be survived as well."""
        if not spec.sampler.pools:
            return None
        names = [self.rng.choice(spec.sampler.pools).name for _ in range(samplers)]
        return tuple(PoolSplit(name=pool.name, replicas=names.count(pool.name)) for pool in spec.sampler.pools)


@contextmanager
def instead_of_deciding(chance: Chance) -> Iterator[None]:
    """Puts chance in the place of the decision; the calibration stays as it is."""
    with (
        mock.patch.object(deciding, "decide", chance.decide),
        mock.patch.object(deciding, "calibrated", lambda previous, *_args, **_kwargs: previous),
    ):
        yield
