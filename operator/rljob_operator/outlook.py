"""What the planner expects in a situation: for the split in force, for the best one, and for a step between the two.

All periods that are compared come from simulations with the same random numbers, so a difference of two is far more certain than
either. The planner asks are lazy and remembered: most decisions need one plan, and where nothing has moved since the last one, none
(``Remembered``).

A gain is as uncertain as what it rests on. ``gain_error`` asks the same question again with each input one standard error higher and
lower: both sides' speeds and the length of responses; adds what the model may be wrong about a split that nobody has seen run,
in proportion to how much a side would change; and the noise of the simulations.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

from rljob_operator.move_cost import duration_s, lost_s, taken_gpus
from rljob_operator.readings import LengthHistogram, corrected_lengths, finished_age_s
from rljob_operator.rebalance import with_replicas
from rljob_operator.remembered import Inputs, Remembered
from rljob_operator.situation import Planner, Situation
from rljob_planner.api.evidence import DecisionInputs
from rljob_planner.api.spec import Objective, RLJobSpec
from rljob_planner.calibrate import Calibration
from rljob_planner.lengths import LengthDistribution
from rljob_planner.search import Plan
from rljob_planner.split import Split

LOOK_STEPS = 16
"""Steps after a move that it has to be right for: then another can follow, if lengths go on changing."""

SHAPE_ERROR = 0.05
"""What the model may be wrong about a side that nobody has seen so large or so small, for each unit of ln(its size)."""

COMPARED_STEPS, COMPARED_TIMES = 48, 3
"""Steps of the simulations that settle what a move would gain, and how many of them there are beside the first, each with luck of its own."""

SUPPOSED_STEPS = 32
"""Steps of the simulations that tell how the gain hangs on an input."""


@dataclass(frozen=True)
class Basis:
    """What the planner is asked with."""

    spec: RLJobSpec
    """The spec with the environment as it is measured."""
    calibration: Calibration
    histogram: LengthHistogram
    """Lengths of the samples that the next steps will train."""
    steps: int | None
    """Steps to go."""

    @cached_property
    def lengths(self) -> LengthDistribution:
        """The same for the planner, cut off where responses are: by far the largest part, and made anew when it is needed."""
        return cut_off(self.histogram, self.spec)

    def rest(self) -> None:
        """Drops what can be made anew: hundreds of jobs rest at a time, and one decides."""
        self.__dict__.pop("lengths", None)


@dataclass(frozen=True)
class Slopes:
    """d ln(period of the split after over that before) / d ln(input), and what the shape of each side adds."""

    samplers: float
    trainers: float
    lengths: float
    shape: float
    """Standard error that comes from sides of a size that nobody has seen."""


@dataclass(frozen=True)
class Gain:
    """What one split saves over another, as a fraction of the period (of GPU-seconds a step if cost is the objective)."""

    mean: float
    error: float
    """Its standard error."""
    learnable: float
    """Share of the error's variance that further readings take away."""


class Outlook:
    """The planner's view of one situation; needs telemetry whose lengths, trend, iteration and period are known."""

    def __init__(self, situation: Situation, planner: Planner) -> None:
        self._situation = situation
        self._planner = planner
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
        """Lengths of the responses that finished in the window."""
        self.move_s = duration_s(situation.moves, situation.spec, finished.quantile(0.99) * iteration_s, period_s)
        """What a move is expected to take from its decision to its commit, in seconds."""
        age_s = finished_age_s(finished, iteration_s, telemetry.window_s)
        # A move is felt when it is over, and has to be right for the steps after it; lengths go on changing until then.
        if situation.lengths is None:
            self.corrected: LengthHistogram = corrected_lengths(finished, trend, age_s, lead_s=self._lead_s())
            """Lengths of the samples that the next steps will train."""
            known = math.isfinite(trend.uncertainty_per_s)
            self.length_error = trend.uncertainty_per_s * age_s if known else UNKNOWN_TREND
            """Standard error of the logarithm of their mean."""
            self.growth_per_step = trend.shrunk_per_s * period_s
            """Change of the logarithm of their mean a step."""
        else:
            # What may yet happen to lengths is no reason to leave a split that is wrong for those of now.
            self.length_error = situation.lengths.ahead(self.move_s / period_s)[1]
            log_mean = situation.lengths.ahead(self._lead_s() / period_s)[0]
            self.corrected = finished.scaled(math.exp(log_mean) / finished.mean_tokens)
            self.growth_per_step = situation.lengths.foreseen_per_step
        self._remembered = situation.remembered or Remembered()
        self._basis = self._remembered.about(*self._asked_with())

    def _asked_with(self) -> tuple[Inputs, Basis]:
        situation, steps = self._situation, self._situation.steps_to_go
        spec, calibration = _as_measured(situation), situation.calibration
        environment = spec.workload.environment
        turn_s = 1.0 if environment is None or not environment.seconds_per_turn > 0 else environment.seconds_per_turn
        stated = situation.spec.model_dump_json(exclude={"sampler": {"template"}, "trainer": {"template"}})
        inputs = Inputs(
            same=(
                stated,
                situation.split.model_dump_json(),
                tuple(situation.rooms),
                situation.seed,
                None if steps is None else steps.bit_length(),
                calibration.decode,
                calibration.decode_seconds,
                calibration.train_seconds,
                calibration.kv_tokens,
            ),
            logarithms=(
                math.log(calibration.sampler_speed),
                math.log(calibration.trainer_speed),
                math.log(self.corrected.mean_tokens),
                math.log(1.0 + self.corrected.cv),
                math.log(turn_s),
            ),
            errors=(calibration.sampler_error, calibration.trainer_error, self.length_error, SPREAD_ERROR, TURN_ERROR),
        )
        return inputs, Basis(spec, calibration, self.corrected, steps)

    def _lead_s(self) -> float:
        steps = self._situation.steps_to_go
        following = LOOK_STEPS if steps is None else min(LOOK_STEPS, steps)
        return self.move_s + 0.5 * following * self.observed_period_s

    @property
    def inputs(self) -> DecisionInputs:
        """What the decision rests on, for the status."""
        calibration, environment = self._situation.calibration, self._basis.spec.workload.environment
        return DecisionInputs(
            sampler_factor=_short(calibration.sampler_factor),
            sampler_uncertainty=_short(calibration.sampler_error),
            trainer_factor=_short(calibration.trainer_factor),
            trainer_uncertainty=_short(calibration.trainer_error),
            remaining_steps=self._situation.steps_to_go,
            response_tokens_mean=_short(self.corrected.mean_tokens),
            response_tokens_uncertainty=_short(self.length_error),
            finished_tokens_mean=_short(self.finished.mean_tokens),
            growth_per_step=_short(self.growth_per_step),
            environment_seconds_per_turn=None if environment is None else _short(environment.seconds_per_turn),
        )

    def plan(self, trainer_replicas: int | None = None) -> Plan:
        """The best split with the replicas' shapes as they are; with ``trainer_replicas``, among those with as many trainers."""
        basis = self._basis
        return self._remembered.answer(
            ("plan", trainer_replicas),
            lambda: self._planner.plan(
                basis.spec,
                self._situation.rooms,
                calibration=basis.calibration,
                lengths=basis.lengths,
                steps=basis.steps,
                keep=self._situation.split,
                trainer_replicas=trainer_replicas,
                detail=False,
                seed=self._situation.seed,
            ),
        )

    def period_s(self, split: Split) -> float:
        """The period that the planner expects of a split, in seconds."""
        return self._evaluated(split)

    def _evaluated(
        self,
        split: Split,
        *,
        lengths: LengthDistribution | None = None,
        calibration: Calibration | None = None,
        steps: int | None = None,
        luck: int = 0,
    ) -> float:
        basis = self._basis
        supposed = (
            None if calibration is None else (calibration.supposed_samplers, calibration.supposed_trainers),
            None if lengths is None else lengths.mean(),
        )
        return self._remembered.answer(
            ("period", split.model_dump_json(), supposed, steps, luck),
            lambda: (
                self._planner.evaluate(
                    basis.spec,
                    split,
                    self._situation.rooms,
                    calibration=calibration or basis.calibration,
                    lengths=lengths or basis.lengths,
                    steps=steps,
                    seed=self._situation.seed + luck,
                ).period_s
            ),
        )

    def gain(self, before: Split, after: Split) -> float:
        """Fraction of the period that ``after`` saves over ``before``; of GPU-seconds a step if cost is the objective."""
        return 1.0 - self._gpus(after) * self.period_s(after) / (self._gpus(before) * self.period_s(before))

    def _gpus(self, split: Split) -> int:
        return split.gpus if self._situation.spec.objective is Objective.COST else 1

    def settled_gain(self, before: Split, after: Split) -> Gain:
        """The same from more simulations, with its standard error."""
        logs = [math.log(self.period_s(after) / self.period_s(before))]
        for luck in range(1, COMPARED_TIMES + 1):
            both = [self._evaluated(split, steps=COMPARED_STEPS, luck=luck) for split in (after, before)]
            logs.append(math.log(both[0] / both[1]))
        ratio = math.exp(math.fsum(logs) / len(logs)) * self._gpus(after) / self._gpus(before)
        slopes, calibration = self._slopes(before, after), self._situation.calibration
        learnable = (
            (slopes.samplers * calibration.sampler_error) ** 2
            + (slopes.trainers * calibration.trainer_error) ** 2
            + (slopes.lengths * self.length_error) ** 2
        )
        total = learnable + slopes.shape**2 + NOISE**2
        return Gain(1.0 - ratio, ratio * math.sqrt(total), learnable / total)

    def _slopes(self, before: Split, after: Split) -> Slopes:
        return self._remembered.answer(
            ("slopes", _shape(before), _shape(after)), lambda: self._sloping(before, after), rough=True
        )

    def _sloping(self, before: Split, after: Split) -> Slopes:
        """Central differences, over about a standard error to either side: the period has a kink where the sides are equal."""
        present, basis = self._situation.calibration, self._basis

        def slope(error: float, suppose: Callable[[Split, float], float]) -> tuple[float, float]:
            nudge = math.exp(min(MOST_NUDGE, max(error, LEAST_NUDGE)))
            own = [
                math.log(suppose(split, nudge) / suppose(split, 1.0 / nudge)) / (2.0 * math.log(nudge))
                for split in (before, after)
            ]
            return own[1] - own[0], own[1]

        def samplers(split: Split, factor: float) -> float:
            other = replace(basis.calibration, supposed_samplers=factor)
            return self._evaluated(split, calibration=other, steps=SUPPOSED_STEPS)

        def trainers(split: Split, factor: float) -> float:
            other = replace(basis.calibration, supposed_trainers=factor)
            return self._evaluated(split, calibration=other, steps=SUPPOSED_STEPS)

        def lengths(split: Split, factor: float) -> float:
            other = cut_off(basis.histogram.scaled(factor), basis.spec)
            return self._evaluated(split, lengths=other, steps=SUPPOSED_STEPS)

        by_samplers, own_samplers = slope(present.sampler_error, samplers)
        by_trainers, own_trainers = slope(present.trainer_error, trainers)
        by_lengths, _ = slope(self.length_error, lengths)
        shape = SHAPE_ERROR * math.hypot(
            own_samplers * _change(before.samplers.gpus, after.samplers.gpus),
            own_trainers * _change(before.trainers.gpus, after.trainers.gpus),
        )
        return Slopes(by_samplers, by_trainers, by_lengths, shape)

    def forecast_s(self, split: Split, left_period_s: float, left_tokens_mean: float) -> float:
        """The period that ``split`` would have now: as it was measured, carried over to the lengths that finish now."""
        spec = self._situation.spec
        then = cut_off(self.finished.scaled(left_tokens_mean / self.finished.mean_tokens), spec)
        now = cut_off(self.finished, spec)
        return left_period_s * self._evaluated(split, lengths=now) / self._evaluated(split, lengths=then)

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

        A measured cost counts the steps that were made meanwhile at the pace of before, so that it is off by up to a period either
        way; it is not believed to be less than half of what the phases alone say.
        """
        situation = self._situation
        if situation.moves.cost_seconds is None and situation.move_cost_prior_s is not None:
            return situation.move_cost_prior_s
        estimated_s = lost_s(situation.moves, situation.split, after, self.move_s, self.observed_period_s)
        if situation.moves.cost_seconds is None:
            return estimated_s
        return max(situation.moves.cost_seconds, 0.5 * estimated_s)

    def saving_s(self, gain: float) -> float | None:
        """Seconds that a gain saves over the remaining steps, None if those are unknown."""
        steps = self._situation.steps_to_go
        return None if steps is None else gain * self.observed_period_s * steps


NOISE = 0.005
"""Standard error of the logarithm of the ratio of two simulated periods."""

LEAST_NUDGE, MOST_NUDGE = 0.03, 0.15
"""Least and most relative change of an input that a slope is taken over: less is the noise of a simulation, more another regime."""

UNKNOWN_TREND = 0.1
"""Standard error of ln(mean length) while too few samples were seen to tell how it changes."""

SPREAD_ERROR, TURN_ERROR = 0.03, 0.04
"""What ln(1 + cv of lengths) and ln(seconds of a turn) may be off."""


def cut_off(histogram: LengthHistogram, spec: RLJobSpec) -> LengthDistribution:
    """Measured lengths for the planner, cut off where the spec cuts responses."""
    return LengthDistribution.from_histogram(histogram.at_measured_mean(), max=spec.workload.response_tokens.max)


def _change(before: int, after: int) -> float:
    """|ln| of what a side grows or shrinks by."""
    return abs(math.log(after / before)) if before > 0 and after > 0 else 1.0


def _shape(split: Split) -> tuple[int, int]:
    return split.samplers.replicas, split.trainers.replicas


def _short(value: float) -> float:
    return float(f"{value:.4g}")


def _as_measured(situation: Situation) -> RLJobSpec:
    """The spec with the time of environments as it is measured."""
    spec, turn_s = situation.spec, situation.telemetry.environment_turn_s.value
    environment = spec.workload.environment
    if environment is None or turn_s is None or not turn_s > 0.0:
        return spec
    measured = environment.model_copy(update={"seconds_per_turn": turn_s})
    return spec.model_copy(update={"workload": spec.workload.model_copy(update={"environment": measured})})
