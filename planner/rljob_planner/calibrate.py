"""Learning the model's error from the run: one factor of speed a side.

The model's constants were fitted elsewhere; a job's engine version, kernels and packing make it faster or slower by a factor that
changes little over a run. So each side has one factor, measured over predicted speed, averaged in its logarithm (twice as fast and
half as fast cancel; ``evidence`` says how, and how sure it is). The factor is clamped: beyond a factor of two the readings, the
model or the stated hardware are wrong, and saying so (``pegged``) helps more than following them.

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
from rljob_planner.evidence import Evidence, absorbed, first
from rljob_planner.hardware import DecodeEfficiency
from rljob_planner.job import Job
from rljob_planner.measured_costs import LEAST_S, DecodeSeconds, TrainSeconds
from rljob_planner.placement import Room
from rljob_planner.split import Split
from rljob_planner.training import training_efficiency

if TYPE_CHECKING:
    from rljob_planner._calibration_json import CalibrationJson

LEAST_FACTOR = 0.5
MOST_FACTOR = 2.0
MOST_SHARED_ERROR = 0.10
"""Mean error of a fit from which it is said that the model does not describe its rows."""
UNMEASURED_ERROR = 0.22
"""Standard error of ln(a side's speed over the model's) while nothing is measured: of the published step times 48 tell, whose
median |error| of the period is 0.22; a side's own error is about as large."""
_SAME_SIZE = 0.01
"""Relative difference in parameters up to which models are one."""
_RESIDUAL_WEIGHT = 0.3
"""Weight of a new reading in the averaged residual."""


@dataclass(frozen=True)
class MeasuredOn:
    """The engine that a benchmark ran on: what its constants are true of."""

    model: str
    gpu: str | None
    """Name in the hardware file; None: an accelerator without a data sheet."""
    tensor_parallel: int
    weights: str
    """Number format of the weights."""
    kv: str
    """Number format of the KV cache."""
    parameters: float | None = None
    """Of the model, since names of models that are given by their config tell little; None: not said."""


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
    decode_seconds: DecodeSeconds | None = None
    """What an iteration was measured to take at the width of ``measured_on``, in place of ``decode`` and of the GPU's data sheet."""
    train_seconds: TrainSeconds | None = None
    """What a training step was measured to take, in place of FLOPs, MFU and the GPU's data sheet."""
    train_error: float | None = None
    """Relative error that ``train_seconds`` may have; None: not known."""
    sampler_efficiency: float | None = None
    """Speed of samplers in a running job over their engine's alone, until the job shows it; None: as published runs show it."""
    fit_error: float | None = None
    """Mean |error| of the fit on the benchmark rows that it was made from; None: no benchmark."""
    sampler_evidence: Evidence | None = None
    """What is behind ``sampler_factor``; None unless the run has shown it."""
    trainer_evidence: Evidence | None = None
    """What is behind ``trainer_factor``; None unless the run has shown it."""
    supposed_samplers: float = 1.0
    """What the samplers' speed is multiplied with to ask what would be if it were another."""
    supposed_trainers: float = 1.0
    """The same for the trainers."""
    alone: bool = False
    """Whether engine and trainer run by themselves, without what a running RL system loses and gains around them."""

    @property
    def sampler_error(self) -> float:
        """Standard error of the logarithm of the samplers' speed."""
        evidence = self.sampler_evidence
        return UNMEASURED_ERROR if evidence is None else evidence.error_of(self.sampler_factor)

    @property
    def trainer_error(self) -> float:
        """Standard error of the logarithm of the trainer's speed."""
        evidence = self.trainer_evidence
        return UNMEASURED_ERROR if evidence is None else evidence.error_of(self.trainer_factor)

    def with_ratio(self, samplers_over_trainer: float) -> Calibration:
        """The same mean speed with another ratio of the factors, known otherwise than from averages alone.

        What the averages are compared with shifts with them: a factor is not the less certain for it.
        """
        shift = 0.5 * (math.log(samplers_over_trainer) - math.log(self.sampler_factor / self.trainer_factor))
        samplers, trainer = self.sampler_evidence, self.trainer_evidence
        return replace(
            self,
            sampler_factor=_clamped(self.sampler_factor * math.exp(shift)),
            trainer_factor=_clamped(self.trainer_factor * math.exp(-shift)),
            sampler_evidence=None if samplers is None else replace(samplers, recent=samplers.recent + shift),
            trainer_evidence=None if trainer is None else replace(trainer, recent=trainer.recent - shift),
        )

    @property
    def readings(self) -> float:
        """Independent readings of the side that was measured least; 1 where one was not."""
        known = [1.0 if e is None else e.readings for e in (self.sampler_evidence, self.trainer_evidence)]
        return max(1.0, min(known))

    @property
    def sampler_speed(self) -> float:
        """Speed of samplers in a running job over the model's: as the job has shown it, else as published runs show it."""
        speed = self.sampler_factor * self.supposed_samplers
        if self.alone or self._of_a_run(self.sampler_factor, self.sampler_evidence):
            return speed
        stated = self.sampler_efficiency
        return speed * (training_efficiency().sampler_efficiency if stated is None else stated)

    @property
    def trainer_speed(self) -> float:
        """Speed of the trainer in a running job over the model's: as the job has shown it, else as published runs show it."""
        shown = self.alone or self._of_a_run(self.trainer_factor, self.trainer_evidence)
        return (
            self.trainer_factor * self.supposed_trainers * (1.0 if shown else training_efficiency().trainer_efficiency)
        )

    def _of_a_run(self, factor: float, evidence: Evidence | None) -> bool:
        """Whether a factor comes from a running job; one from a benchmark says what an engine does alone."""
        return evidence is not None or (factor != 1.0 and self.measured_on is None)

    def decode_seconds_at(self, tensor_parallel: int) -> DecodeSeconds | None:
        """The measured seconds of an engine of this width, None if none of this width was measured."""
        measured = self.measured_on
        return self.decode_seconds if measured is None or measured.tensor_parallel == tensor_parallel else None

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
    noise: float = 0.0
    """Standard deviation of ln(iteration_s) over replicas that should be alike: how noisy readings are at least."""


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
    *,
    at_s: float = 0.0,
    window_s: float = 0.0,
) -> Calibration:
    """The calibration after these readings of a run with this split; a reading that is None changes nothing.

    ``accelerators`` are the GPU types, or the nodes that tell them. The readings are means over ``window_s`` seconds that ended at
    ``at_s`` (since the epoch); without a window each counts as a new one. Raises PlanningError if the spec has no model of its own.
    """
    sampler, trainer = speeds(previous, spec, split, accelerators, sampler_reading, trainer_reading)
    if sampler is None and trainer is None:
        return previous
    noise = 0.0 if sampler_reading is None else sampler_reading.noise
    samplers = _learned(previous.sampler_factor, previous.sampler_evidence, sampler, at_s, window_s, noise)
    trainers = _learned(previous.trainer_factor, previous.trainer_evidence, trainer, at_s, window_s, noise)
    errors = [side.error for side in (samplers, trainers) if side.error is not None]
    residual = previous.residual
    if errors:
        seen = max(errors)
        residual = seen if residual is None else residual + _RESIDUAL_WEIGHT * (seen - residual)
    return replace(
        previous,
        sampler_factor=samplers.factor,
        trainer_factor=trainers.factor,
        residual=residual,
        pegged=_at_limit(samplers.factor) or _at_limit(trainers.factor),
        observations=previous.observations + 1,
        sampler_evidence=samplers.evidence,
        trainer_evidence=trainers.evidence,
    )


def speeds(
    previous: Calibration,
    spec: RLJobSpec,
    split: Split,
    accelerators: Accelerators | Sequence[Room],
    sampler_reading: SamplerReading | None,
    trainer_reading: TrainerReading | None,
) -> tuple[float | None, float | None]:
    """Measured over modelled speed of the samplers and of the trainer by one reading of each; raises as ``updated`` does."""
    job = Job.of(spec, accelerators, calibration=previous)
    sampler = trainer = None
    if sampler_reading is not None:
        sampler = _speed(sampler_reading.iteration_s, _predicted_iteration_s(job, split, sampler_reading))
    if trainer_reading is not None:
        trainer = _speed(trainer_reading.step_s, _predicted_step_s(job, split, trainer_reading))
    return sampler, trainer


@dataclass(frozen=True)
class _Side:
    """One side's factor after a reading."""

    factor: float
    evidence: Evidence | None
    error: float | None
    """|ln| of the reading over what the factor before it said; None where there was none."""


def _speed(measured_s: float, predicted_s: float) -> float | None:
    """Measured over predicted speed; None where a number can't be."""
    if not (math.isfinite(measured_s) and measured_s > 0 and math.isfinite(predicted_s) and predicted_s > 0):
        return None
    return predicted_s / measured_s


def _learned(
    factor: float, evidence: Evidence | None, reading: float | None, at_s: float, window_s: float, noise: float
) -> _Side:
    if reading is None:
        return _Side(factor, evidence, None)
    if evidence is None:
        # A factor that was known before the run, from a benchmark, is what the first reading may contradict.
        error = None if factor == 1.0 else abs(math.log(reading / factor))
        value, seen = first(reading, at_s, noise)
        return _Side(_clamped(value), seen, error)
    value, seen = absorbed(factor, evidence, reading, at_s, window_s)
    return _Side(_clamped(value), seen, abs(math.log(reading / factor)))


def _clamped(factor: float) -> float:
    return min(MOST_FACTOR, max(LEAST_FACTOR, factor))


def _at_limit(factor: float) -> bool:
    return factor <= LEAST_FACTOR or factor >= MOST_FACTOR


def _predicted_iteration_s(job: Job, split: Split, reading: SamplerReading) -> float:
    """Seconds of a step by the uncalibrated model, the prefill of the samples that start meanwhile included."""
    return job.iteration_s(split.samplers, reading.running_per_replica, reading.resident_tokens_per_replica)


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


def calibration_in(document: object, source: str) -> Calibration:
    """The calibration in a document that was read already; raises PlanningError ``InvalidCalibration`` that names ``source``."""
    from rljob_planner._calibration_json import checked

    return _of(checked(document, source))


def _of(read: CalibrationJson) -> Calibration:
    on, constants = read.measured_on, read.samplers.decode
    fit_error = None if read.fit is None else read.fit.error.mean
    line, step = read.samplers.measured, read.trainers.measured
    residual = read.residual
    if step is not None and step.error is not None:
        residual = max(step.error, residual or 0.0)
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
        decode_seconds=None
        if line is None
        else DecodeSeconds(
            line.step_seconds,
            line.sample_seconds,
            line.context_token_seconds,
            line.prompt_token_seconds,
            line.experts_seconds,
        ),
        train_seconds=None if step is None else TrainSeconds(step.step_seconds, step.token_seconds),
        train_error=None if step is None else step.error,
        sampler_efficiency=read.samplers.efficiency,
        fit_error=fit_error,
        measured_on=None
        if on is None
        else MeasuredOn(on.model, on.gpu, on.tensor_parallel, on.weights, on.kv_cache, on.parameters),
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
    if calibration.trainer_factor == 1.0 and calibration.train_seconds is None:
        found.append("only samplers were calibrated: how long training takes rests on data sheets")
    return tuple(found)


def mismatches(calibration: Calibration, job: Job) -> tuple[str, ...]:
    """What a calibration was measured on and the job is not: a sentence each, empty if all is the same or unknown."""
    on = calibration.measured_on
    if on is None:
        return ()
    spec, found = job.spec.model, []
    if on.model == job.model.name and not _is_of(on, job):
        found.append(
            f"the calibration was measured with a {on.model} of {on.parameters:.3g} parameters, this job's has "
            f"{job.model.parameters:.3g}: calibrate again"
        )
    for what, measured, planned in (
        ("model", on.model, job.model.name),
        ("GPU", on.gpu, job.accelerators.sampler.name),
        ("weights", on.weights, job.weights.name),
        ("KV cache", on.kv, spec.kv_cache.value),
    ):
        if measured is not None and measured != planned:
            found.append(
                f"the calibration was measured with {what} {measured}, this job has {planned}: calibrate again"
            )
    return tuple(found)


def unstated(calibration: Calibration) -> tuple[str, ...]:
    """What measured seconds leave unsaid: a sentence each."""
    found = []
    if calibration.decode_seconds is not None and calibration.measured_on is None:
        found.append(
            "the calibration does not say what its seconds were measured on (measuredOn): they are taken for this job's, of any width"
        )
    if calibration.train_seconds is not None and calibration.train_error is None:
        found.append(
            "how far off the trainer's seconds may be is not said (trainers.measured.error): what the plan says of its error is of samplers"
        )
    return tuple(found)


def judged(calibration: Calibration, job: Job, source: str) -> tuple[Calibration, tuple[str, ...]]:
    """The calibration as far as it is of this job, and the ``mismatches``.

    What was measured on something else does not tell how far off this plan is. Raises PlanningError ``InvalidCalibration`` for seconds of
    another model: a line through them holds for nothing but what was measured. Likewise for seconds of experts alone where there are none.
    """
    on, unlike = calibration.measured_on, mismatches(calibration, job)
    if calibration.decode_seconds is not None and on is not None and not _is_of(on, job):
        raise PlanningError(
            "InvalidCalibration",
            f"{source}: {unlike[0]}. Without a data sheet nothing carries seconds over to another model",
        )
    seconds = calibration.decode_seconds
    if seconds is not None and job.model.experts == 0 and seconds.step_s + seconds.sample_s < LEAST_S:
        raise PlanningError(
            "InvalidCalibration",
            f"{source}: samplers.measured has expertsSeconds alone, and {job.model.name} has no experts: write stepSeconds or sampleSeconds",
        )
    return (replace(calibration, residual=None) if unlike else calibration), unlike


def _is_of(on: MeasuredOn, job: Job) -> bool:
    """Whether a job's model is the one that was measured, as far as name and size tell."""
    same_size = on.parameters is None or abs(job.model.parameters / on.parameters - 1.0) <= _SAME_SIZE
    return on.model == job.model.name and same_size
