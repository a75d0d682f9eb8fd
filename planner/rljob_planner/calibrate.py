"""Learning the model's error from the run: one factor of speed a side.

The model's constants were fitted elsewhere; a job's engine version, kernels and packing make it faster or slower by a factor that
changes little over a run. So each side has one factor, measured over predicted speed, averaged exponentially in its
logarithm (twice as fast and half as fast cancel). The factor is clamped: beyond a factor of two the readings, the model
or the stated hardware are wrong, and saying so (``pegged``) helps more than following them.

The residual is what stays between the calibrated model and the next reading: the planner's confidence.

Before a run there may be more to learn from: a benchmark of the engine (``fit``). It replaces the GPU's constants by ones that
were measured with this model, and is kept in a file (``read_calibration``, ``write_calibration``); what a run teaches comes on top.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from rljob_planner.accelerators import Accelerators
from rljob_planner.api.spec import RLJobSpec
from rljob_planner.errors import PlanningError
from rljob_planner.hardware import DecodeEfficiency
from rljob_planner.job import Job
from rljob_planner.placement import Room
from rljob_planner.split import Split
from rljob_planner.training import training_efficiency

if TYPE_CHECKING:
    from rljob_planner._calibration_json import CalibrationJson

LEAST_FACTOR = 0.5
MOST_FACTOR = 2.0
MOST_SHARED_ERROR = 0.10
"""Mean error of a fit from which it is said that the model does not describe its rows."""
_WEIGHT = 0.3
"""Weight of a new reading in the average."""


@dataclass(frozen=True)
class MeasuredOn:
    """The engine that a benchmark ran on: what its constants are true of."""

    model: str
    gpu: str
    """Name in the hardware file."""
    tensor_parallel: int
    weights: str
    """Number format of the weights."""
    kv: str
    """Number format of the KV cache."""


@dataclass(frozen=True)
class Calibration:
    """What benchmarks and a run have taught about the model's speed."""

    sampler_factor: float = 1.0
    """Measured over predicted decode speed."""
    trainer_factor: float = 1.0
    """Measured over predicted training speed."""
    residual: float | None = None
    """Relative error of the calibrated model against later readings, averaged; None until there were two."""
    pegged: bool = False
    """Whether a factor stands at its limit: readings, model or hardware are not what they are said to be."""
    observations: int = 0
    """Readings so far."""
    decode: DecodeEfficiency | None = None
    """Constants of a decode step that replace the GPU's; None: nothing was measured that could tell them apart."""
    kv_tokens: int | None = None
    """Tokens in the KV cache of a replica as its engine reports them, at the width of ``measured_on``; None: computed."""
    measured_on: MeasuredOn | None = None
    """The engine behind ``decode`` and ``kv_tokens``."""
    fit_error: float | None = None
    """Mean |error| of the fit on the benchmark rows that it was made from; None: no benchmark."""
    alone: bool = False
    """Whether engine and trainer run by themselves, without what a running RL system loses and gains around them."""

    @property
    def sampler_speed(self) -> float:
        """Speed of samplers in a running job over the model's: as the job has shown it, else as published runs show it."""
        if self.alone or self._of_a_run(self.sampler_factor):
            return self.sampler_factor
        return self.sampler_factor * training_efficiency().sampler_efficiency

    @property
    def trainer_speed(self) -> float:
        """Speed of the trainer in a running job over the model's: as the job has shown it, else as published runs show it."""
        if self.alone or self._of_a_run(self.trainer_factor):
            return self.trainer_factor
        return self.trainer_factor * training_efficiency().trainer_efficiency

    def _of_a_run(self, factor: float) -> bool:
        """Whether a factor comes from a running job; one from a benchmark says what an engine does alone."""
        return factor != 1.0 and self.measured_on is None

    def kv_tokens_at(self, tensor_parallel: int) -> int | None:
        """The reported KV room of a replica of this width, None if one of another width was measured."""
        measured = self.measured_on
        return self.kv_tokens if measured is None or measured.tensor_parallel == tensor_parallel else None


@dataclass(frozen=True)
class SamplerReading:
    """What the samplers' metrics showed in a window."""

    iteration_s: float
    """Mean seconds of a decode step (inter-token latency)."""
    running_per_replica: float
    """Mean running samples of a replica."""
    resident_tokens_per_replica: float
    """Mean tokens in a replica's KV cache."""


@dataclass(frozen=True)
class TrainerReading:
    """What the trainer's metrics showed: a mean step, without waiting and weight sync."""

    step_s: float
    samples: float
    """Samples of the step."""
    tokens: float
    """Prompt and response tokens of the step."""
    tokens_squared: float | None = None
    """Σ (prompt + response tokens)² over the samples; None: taken from the spec's lengths at the mean that was measured."""


def updated(
    previous: Calibration,
    spec: RLJobSpec,
    split: Split,
    accelerators: Accelerators | Sequence[Room],
    sampler_reading: SamplerReading | None,
    trainer_reading: TrainerReading | None,
) -> Calibration:
    """The calibration after these readings of a run with this split; a reading that is None changes nothing.

    ``accelerators`` are the GPU types, or the nodes that tell them. Raises PlanningError if the spec has no model of its own.
    """
    job = Job.of(spec, accelerators, calibration=previous)
    factors = [previous.sampler_factor, previous.trainer_factor]
    errors: list[float] = []
    pegged = [_at_limit(f) for f in factors]
    for side, (measured_s, predicted_s) in enumerate(
        (
            (None, 0.0)
            if sampler_reading is None
            else (sampler_reading.iteration_s, _predicted_iteration_s(job, split, sampler_reading)),
            (None, 0.0)
            if trainer_reading is None
            else (trainer_reading.step_s, _predicted_step_s(job, split, trainer_reading)),
        )
    ):
        if measured_s is None or not (math.isfinite(measured_s) and measured_s > 0 and predicted_s > 0):
            continue
        learned = factors[side] != 1.0
        if learned:
            errors.append(abs(math.log(measured_s * factors[side] / predicted_s)))
        factors[side], pegged[side] = _averaged(factors[side], predicted_s / measured_s, _WEIGHT if learned else 1.0)
    if factors == [previous.sampler_factor, previous.trainer_factor] and not errors:
        return previous
    residual = previous.residual
    if errors:
        seen = max(errors)
        residual = seen if residual is None else residual + _WEIGHT * (seen - residual)
    return replace(
        previous,
        sampler_factor=factors[0],
        trainer_factor=factors[1],
        residual=residual,
        pegged=any(pegged),
        observations=previous.observations + 1,
    )


def _averaged(factor: float, reading: float, weight: float) -> tuple[float, bool]:
    moved = math.exp((1.0 - weight) * math.log(factor) + weight * math.log(reading))
    clamped = min(MOST_FACTOR, max(LEAST_FACTOR, moved))
    return clamped, _at_limit(clamped)


def _at_limit(factor: float) -> bool:
    return factor <= LEAST_FACTOR or factor >= MOST_FACTOR


def _predicted_iteration_s(job: Job, split: Split, reading: SamplerReading) -> float:
    """Seconds of a step by the uncalibrated model, the prefill of the samples that start meanwhile included."""
    top = max(1, math.ceil(reading.running_per_replica))
    cost = job.decode_cost(split.samplers.tensor_parallel, top, 1.0)
    prefill_s = reading.running_per_replica / job.lengths.mean() * cost.prefill_s_per_sample
    return cost.iteration_s(reading.running_per_replica, reading.resident_tokens_per_replica) + prefill_s


def _predicted_step_s(job: Job, split: Split, reading: TrainerReading) -> float:
    cost = job.train_cost(split.trainers, 1.0)
    squares = reading.tokens_squared
    if squares is None:
        prompt, mean = job.prompt_tokens, reading.tokens / max(reading.samples, 1.0)
        response = max(mean - prompt, 1.0)
        second = job.lengths.second_moment() * (response / job.lengths.mean()) ** 2
        squares = reading.samples * (second + 2.0 * prompt * response + prompt * prompt)
    return cost.per_step_s + cost.per_token_s * reading.tokens + cost.per_token_squared_s * squares


def read_calibration(path: str | Path) -> Calibration:
    """The calibration in a file that ``rljob calibrate`` wrote, or in a ConfigMap around one (key ``calibration.yaml``).

    Raises PlanningError ``InvalidCalibration`` that says what is wrong with the file.
    """
    from rljob_planner.documents import InvalidDocumentError, read_text

    try:
        return parse_calibration(read_text(Path(path)), str(path))
    except InvalidDocumentError as error:
        raise PlanningError("InvalidCalibration", str(error)) from None


def parse_calibration(text: str, source: str) -> Calibration:
    """The calibration in a text; raises PlanningError ``InvalidCalibration`` that names ``source``."""
    from rljob_planner._calibration_json import parsed

    return _of(parsed(text, source))


def _of(read: CalibrationJson) -> Calibration:
    on, constants = read.measured_on, read.samplers.decode
    fit_error = None if read.fit is None else read.fit.error.mean
    residual = read.residual
    if residual is None and fit_error is not None and fit_error > MOST_SHARED_ERROR:
        residual = fit_error  # one row tells nothing of others, but others are hardly described better than it is
    return Calibration(
        sampler_factor=read.samplers.factor,
        trainer_factor=read.trainers.factor,
        residual=residual,
        pegged=read.pegged,
        observations=read.observations,
        decode=None
        if constants is None
        else DecodeEfficiency(
            mbu=constants.mbu,
            mfu=constants.mfu,
            layer_s=constants.layer_seconds,
            step_s=constants.step_seconds,
            request_s=constants.request_seconds,
        ),
        kv_tokens=read.samplers.kv_tokens,
        fit_error=fit_error,
        measured_on=None if on is None else MeasuredOn(on.model, on.gpu, on.tensor_parallel, on.weights, on.kv_cache),
    )


def doubts(calibration: Calibration) -> tuple[str, ...]:
    """What to know of a plan that rests on this calibration of benchmarks: a sentence each."""
    if calibration.fit_error is None:
        return ()
    found = []
    if calibration.fit_error > MOST_SHARED_ERROR:
        found.append(f"the calibration describes its own measurements only to {calibration.fit_error:.0%}")
    if calibration.observations == 1:
        found.append(
            "the calibration has one measurement, so how far off it is elsewhere is not known: measure several concurrencies"
        )
    if calibration.trainer_factor == 1.0:
        found.append("only samplers were calibrated: how long training takes rests on data sheets")
    return tuple(found)


def mismatches(calibration: Calibration, job: Job) -> tuple[str, ...]:
    """What a calibration was measured on and the job is not: a sentence each, empty if all is the same or unknown."""
    on = calibration.measured_on
    if on is None:
        return ()
    spec, found = job.spec.model, []
    for what, measured, planned in (
        ("model", on.model, job.model.name),
        ("GPU", on.gpu, job.accelerators.sampler.name),
        ("weights", on.weights, job.weights.name),
        ("KV cache", on.kv, spec.kv_cache.value),
    ):
        if measured != planned:
            found.append(
                f"the calibration was measured with {what} {measured}, this job has {planned}: calibrate again"
            )
    return tuple(found)
