"""From telemetry to what calibration compares with the model: readings in the planner's terms.

What the metrics show is not quite what the model predicts. An engine's inter-token latency spans the pauses in which it takes new
weights, which the model has as a term of its own; so the pause's share of a period is taken off. Means over the window are used
throughout, since a rate over ten minutes and a gauge of this instant describe different moments.
"""

from __future__ import annotations

from collections.abc import Sequence

from rljob_operator.readings import LengthHistogram, Reading, SamplerTelemetry, Telemetry, mean
from rljob_planner.api.spec import RLJobSpec
from rljob_planner.calibrate import Calibration, SamplerReading, TrainerReading, updated
from rljob_planner.errors import PlanningError
from rljob_planner.placement import Room
from rljob_planner.split import Split

MOST_RUNNING = 4.0
"""Running samples over those that a replica was told to take, beyond which the reading is no measurement of this job."""


def calibrated(
    previous: Calibration, telemetry: Telemetry, spec: RLJobSpec, split: Split, rooms: Sequence[Room]
) -> Calibration:
    """The calibration after this observation; a side whose readings are unknown learns nothing.

    ``split`` must be the one that the window was measured under. Never raises for what metrics may show.
    """
    samplers, trainer = sampler_reading(telemetry, spec), trainer_reading(telemetry, spec)
    if samplers is not None and samplers.running_per_replica > MOST_RUNNING * split.samplers.max_running:
        samplers = None
    if samplers is None and trainer is None:
        return previous
    try:
        return updated(previous, spec, split, rooms, samplers, trainer)
    except (PlanningError, ArithmeticError, ValueError):
        # The spec has no model to compare with, and the plan says so where a person looks for it; or a reading is nonsense.
        return previous


def sampler_reading(telemetry: Telemetry, spec: RLJobSpec) -> SamplerReading | None:
    """What the mean sampler replica did over the window; None if anything of it is unknown."""
    latency_s = telemetry.iteration_s.value
    running = telemetry.fleet(lambda sampler: sampler.running_mean, mean).value
    lengths = telemetry.response_lengths.value
    if latency_s is None or not running or lengths is None:
        return None
    resident = telemetry.fleet(_resident_tokens, mean).value
    if resident is None:
        # An engine that does not tell its KV room: the mean context is length-biased, since long samples stay longer.
        context = spec.workload.prompt_tokens.mean + lengths.second_moment / (2.0 * lengths.mean_tokens)
        resident = running * context
    pause_s, period_s = telemetry.weight_sync_s.value, telemetry.period_s.value
    pause_share = 0.0 if pause_s is None or not period_s else min(0.9, pause_s / period_s)
    return SamplerReading(
        iteration_s=latency_s * (1.0 - pause_share),
        running_per_replica=running,
        resident_tokens_per_replica=resident,
    )


def _resident_tokens(sampler: SamplerTelemetry) -> Reading[float]:
    room = sampler.kv_tokens.value
    return sampler.kv_tokens if room is None else sampler.kv_usage_mean.map(lambda usage: usage * room)


def trainer_reading(telemetry: Telemetry, spec: RLJobSpec) -> TrainerReading | None:
    """The mean step of the window; None if anything of it is unknown."""
    step_s, samples = telemetry.train_step_s.value, telemetry.trained_samples_per_step.value
    response, lengths = telemetry.trained_tokens_per_sample.value, telemetry.response_lengths.value
    if step_s is None or not samples or response is None or lengths is None:
        return None
    prompt = float(spec.workload.prompt_tokens.mean)
    return TrainerReading(
        step_s=step_s,
        samples=samples,
        tokens=samples * (prompt + response),
        tokens_squared=samples * (prompt**2 + 2.0 * prompt * response + _second_moment(lengths, response)),
    )


def _second_moment(lengths: LengthHistogram, mean_tokens: float) -> float:
    """E[L²] in tokens² of lengths spread as the finished ones are, about the mean of the trained ones."""
    return lengths.second_moment * (mean_tokens / lengths.mean_tokens) ** 2
