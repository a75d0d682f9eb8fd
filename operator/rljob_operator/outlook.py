"""What the planner expects in a situation: for the split in force, for the best one, and for a step between the two.

All periods that are compared come from simulations with the same random numbers, so a difference of two is far more certain than
either. The planner asks are lazy and remembered: most decisions need one plan.
"""

from __future__ import annotations

import math

from rljob_operator.readings import LengthHistogram, corrected_lengths, finished_age_s
from rljob_operator.rebalance import with_replicas
from rljob_operator.situation import Planner, Situation
from rljob_planner.api.spec import Objective
from rljob_planner.lengths import LengthDistribution
from rljob_planner.search import Plan
from rljob_planner.split import Split

START_S = 180.0
"""Assumed time from a pod's creation to a loaded engine, in seconds, until a move of the job itself was measured."""

REGROUP_S = 30.0
"""Assumed time in which the whole job stands still while process groups form anew, in seconds."""


class Outlook:
    """The planner's view of one situation; needs telemetry whose lengths, trend, iteration and period are known."""

    def __init__(self, situation: Situation, planner: Planner) -> None:
        self._situation = situation
        self._planner = planner
        self._periods_s: dict[str, float] = {}
        telemetry = situation.telemetry
        finished, trend = telemetry.response_lengths.value, telemetry.response_trend.value
        iteration_s, period_s = telemetry.iteration_s.value, telemetry.period_s.value
        if finished is None or trend is None or iteration_s is None or period_s is None:
            raise ValueError(
                "an outlook needs lengths, trend, iteration and period; decide holds before it asks for one"
            )
        self.observed_period_s = period_s
        """Measured period in seconds."""
        self.finished: LengthHistogram = finished
        """Lengths of finished samples."""
        age_s = finished_age_s(finished, iteration_s, telemetry.window_s)
        self.cost_known_s = situation.moves.cost_seconds
        """Measured cost of a move, None if none was."""
        # A move is felt when it is over; lengths will have gone on growing until then.
        self.corrected: LengthHistogram = corrected_lengths(finished, trend, age_s, lead_s=self.cost_known_s or 0.0)
        """Lengths of samples that start when a move would be over."""
        self.lengths = LengthDistribution.from_histogram(
            self.corrected.at_measured_mean(), max=situation.spec.workload.response_tokens.max
        )
        """The same for the planner, cut off where responses are."""

    def plan(self, trainer_replicas: int | None = None) -> Plan:
        """The best split with the replicas' shapes as they are; with ``trainer_replicas``, among those with as many trainers."""
        situation = self._situation
        return self._planner.plan(
            situation.spec,
            situation.rooms,
            calibration=situation.calibration,
            lengths=self.lengths,
            steps=situation.steps_to_go,
            keep=situation.split,
            trainer_replicas=trainer_replicas,
            detail=False,
            seed=situation.seed,
        )

    def period_s(self, split: Split) -> float:
        """The period that the planner expects of a split, in seconds."""
        key = split.model_dump_json()
        if key not in self._periods_s:
            situation = self._situation
            self._periods_s[key] = self._planner.evaluate(
                situation.spec,
                split,
                situation.rooms,
                calibration=situation.calibration,
                lengths=self.lengths,
                seed=situation.seed,
            ).period_s
        return self._periods_s[key]

    def gain(self, before: Split, after: Split) -> float:
        """Fraction of the period that ``after`` saves over ``before``; of GPU-seconds a step if cost is the objective."""
        return 1.0 - self._burden(after) / self._burden(before)

    def _burden(self, split: Split) -> float:
        gpus = split.gpus if self._situation.spec.objective is Objective.COST else 1
        return self.period_s(split) * gpus

    def step_towards(self, best: Split) -> Split:
        """The split to move to now: ``best``, or as far towards it as ``maxStepGPUs`` lets a side give up.

        A limit below one replica would forbid every move, so it counts as the wider replica's GPUs.
        """
        before = self._situation.split
        limit = self._step_limit_gpus(before)
        if taken_gpus(before, best) <= limit:
            return best
        gap = best.trainers.replicas - before.trainers.replicas
        if gap == 0:
            return self._fewer_samplers(before, best, limit)
        replicas = min(abs(gap), max(1, limit // before.trainers.gpus_per_replica))
        found = self.plan(before.trainers.replicas + int(math.copysign(replicas, gap))).split
        return found if taken_gpus(before, found) <= limit else self._fewer_samplers(before, found, limit)

    def _step_limit_gpus(self, split: Split) -> int:
        wider = max(split.samplers.gpus_per_replica, split.trainers.gpus_per_replica)
        # Whole sampler replicas: three GPUs each make place for a trainer of eight only as nine.
        wished = max(self._situation.spec.rebalance.max_step_gpus or wider, wider)
        return math.ceil(wished / split.samplers.gpus_per_replica) * split.samplers.gpus_per_replica

    @staticmethod
    def _fewer_samplers(before: Split, after: Split, limit_gpus: int) -> Split:
        """``after`` with no more samplers given up than the limit allows."""
        kept = before.samplers.replicas - limit_gpus // before.samplers.gpus_per_replica
        return with_replicas(after, max(kept, after.samplers.replicas), after.trainers.replicas)

    def cost_s(self, after: Split) -> float:
        """What a move to ``after`` costs, in seconds of lost progress: as measured, else as the caller says, else estimated.

        Estimate: the GPUs that change sides do nothing while leaving samplers drain (half of a long response on the mean, at
        most the drain timeout) and new pods start; everything stands still while the job regroups and finishes a step.
        """
        situation = self._situation
        if self.cost_known_s is not None:
            return self.cost_known_s
        if situation.move_cost_prior_s is not None:
            return situation.move_cost_prior_s
        iteration_s = situation.telemetry.iteration_s.value or 0.0
        drain_s = min(situation.spec.sampler.drain_timeout_s, self.corrected.quantile(0.99) * iteration_s)
        share = max(taken_gpus(situation.split, after), 1) / situation.split.gpus
        return share * (drain_s + START_S) + REGROUP_S + 0.5 * self.observed_period_s

    def saving_s(self, gain: float) -> float | None:
        """Seconds that a gain saves over the remaining steps, None if those are unknown."""
        steps = self._situation.steps_to_go
        return None if steps is None else gain * self.observed_period_s * steps


def taken_gpus(before: Split, after: Split) -> int:
    """GPUs that the side which shrinks more gives up; all of a side whose replicas change their shape."""

    def given(old: int, new: int, old_width: int, new_width: int) -> int:
        return max(0, old - new) * old_width if old_width == new_width else old * old_width

    b, a = before, after
    return max(
        given(b.samplers.replicas, a.samplers.replicas, b.samplers.gpus_per_replica, a.samplers.gpus_per_replica),
        given(b.trainers.replicas, a.trainers.replicas, b.trainers.gpus_per_replica, a.trainers.gpus_per_replica),
    )
