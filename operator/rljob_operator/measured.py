"""From telemetry to what calibration compares with the model: readings in the planner's terms.

What the metrics show is not quite what the model predicts. An engine's inter-token latency spans the pauses in which it takes new
weights, which the model has as a term of its own; so the pause's share of a period is taken off. Means over the window are used
throughout, since a rate over ten minutes and a gauge of this instant describe different moments.

A latency between tokens is not all that samplers may lose: prefills, preemptions, a router that feeds them late. Where the trainer
waits for samplers, so that every token counts, the tokens that came out per running sample say it all, and count instead.

Where times are noisy, how many samples run tells without any clock how the two sides compare (``reconciled``): whoever sees a full queue knows
that samplers have time to spare, whatever both sides report of their times.

What is learned is kept in the status between decisions; the last part of this module turns it into that and back.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from statistics import quantiles

from rljob_operator.growth import LengthTrend, followed
from rljob_operator.readings import LengthHistogram, Reading, SamplerTelemetry, Telemetry, finished_age_s, mean
from rljob_operator.rebalance import epoch_s, timestamp
from rljob_operator.status import rounded
from rljob_planner.api.evidence import EvidenceStatus, LengthTrendStatus
from rljob_planner.api.spec import Bound, RLJobSpec
from rljob_planner.api.status import CalibrationStatus
from rljob_planner.calibrate import Calibration, SamplerReading, TrainerReading, speeds, updated
from rljob_planner.errors import PlanningError
from rljob_planner.evidence import Evidence
from rljob_planner.placement import Room
from rljob_planner.split import Split

MOST_RUNNING = 4.0
"""Running samples over those that a replica was told to take, beyond which the reading is no measurement of this job."""


FEWEST_SIBLINGS, INTERQUARTILE = 4, 1.349
"""Samplers from which on their spread says something; interquartile range of a normal distribution over its standard deviation."""

SAMPLERS_BIND = 0.10
"""Share of the window that the trainer waits from which on samplers are what the period hangs on."""

MOST_WAITED = 0.8
"""Share of the window that the trainer waits beyond which too little of its time is left to tell the period by."""

COUNT_ERROR = 0.06
"""Standard error of the logarithm of the ratio of both sides by the counts of one window, as a steady job without noise shows it."""

FEWEST_STEPS, MOST_SURPLUS = 3, 1.3
"""Steps that a window has to hold, and tokens generated over tokens trained up to which the two are the same but for the window's edges."""

MOST_OFF = 3.0
"""What two times may disagree with the count of running samples, at most: more is no noise but a count that is off."""

MOST_LOST = 1.5
"""Seconds a token by what came out over the latency between tokens, at most: more is no loss of samplers but a count that is off."""


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
    if samplers is not None and trainer is not None:
        samplers, trainer = reconciled(samplers, trainer, telemetry, spec)
    try:
        return updated(previous, spec, split, rooms, samplers, trainer, at_s=telemetry.at, window_s=telemetry.window_s)
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
        iteration_s=_token_s(telemetry, latency_s, running) * (1.0 - pause_share),
        running_per_replica=running,
        resident_tokens_per_replica=resident,
        noise=_sibling_noise(telemetry),
    )


def by_count(
    calibration: Calibration, telemetry: Telemetry, spec: RLJobSpec, split: Split, rooms: Sequence[Room]
) -> Calibration:
    """The calibration with the ratio of both sides as the window's counts have it, where they tell it; their mean speed stays.

    An average of times as noisy as that needs an hour to be sure of the ratio, and one window of counts tells it.
    """
    samplers, trainer = sampler_reading(telemetry, spec), trainer_reading(telemetry, spec)
    if samplers is None or trainer is None or None in (calibration.sampler_evidence, calibration.trainer_evidence):
        return calibration
    agreed = reconciled(samplers, trainer, telemetry, spec)
    if agreed == (samplers, trainer):
        return calibration
    try:
        sampler, step = speeds(calibration, spec, split, rooms, *agreed)
    except (PlanningError, ArithmeticError, ValueError):
        return calibration
    if sampler is None or step is None:
        return calibration
    return calibration.with_ratio(sampler / step)


def reconciled(
    samplers: SamplerReading, trainer: TrainerReading, telemetry: Telemetry, spec: RLJobSpec
) -> tuple[SamplerReading, TrainerReading]:
    """Both readings, made to agree with what the samples that run say of them, under ``admission``.

    There what is generated is what is trained, so by Little's law a sample decodes for as many periods as samples run for one of
    a batch: seconds a token over seconds a period = running / (samples a step × tokens a sample), by counts alone. Each side's
    time is off by what it is off; their ratio, on which the split depends, need not be. The mean of the two stays. A window holds a few
    steps, so that counts err, too: they count where times are noisier than they are, as samplers that should be alike show.
    """
    if samplers.noise <= COUNT_ERROR:
        return samplers, trainer
    waited, response = telemetry.trainer_wait_share.value, telemetry.trained_tokens_per_sample.value
    latency_s = telemetry.iteration_s.value
    if spec.staleness.bound is not Bound.ADMISSION or waited is None or not response or not latency_s:
        return samplers, trainer
    if waited > MOST_WAITED:
        return samplers, trainer
    token_s = _token_s(telemetry, latency_s, samplers.running_per_replica)
    sync_s = telemetry.weight_sync_s.value or 0.0
    period_s = (trainer.step_s + sync_s) / (1.0 - waited)
    running = samplers.running_per_replica * len(telemetry.ready_samplers)
    off = running * period_s / (trainer.samples * response * token_s)
    if not 1.0 / MOST_OFF <= off <= MOST_OFF or _fills_up(telemetry, trainer.samples * response):
        return samplers, trainer
    step_s = period_s / math.sqrt(off) * (1.0 - waited) - sync_s
    if step_s <= 0.0:
        return samplers, trainer
    return replace(samplers, iteration_s=samplers.iteration_s * math.sqrt(off)), replace(trainer, step_s=step_s)


def _fills_up(telemetry: Telemetry, step_tokens: float) -> bool:
    """Whether more was generated than trained, as while the queue of a young job fills; also where that is not known."""
    rate, steps = telemetry.fleet(_generated_per_s, mean).value, telemetry.steps_in_window.value
    if rate is None or not steps or steps < FEWEST_STEPS:
        return True
    generated = rate * len(telemetry.ready_samplers) * telemetry.window_s
    return generated > MOST_SURPLUS * steps * step_tokens


def _sibling_noise(telemetry: Telemetry) -> float:
    """Standard deviation of ln(seconds a token) over samplers, which should be alike; robust against one that is not. 0: too few."""
    known = [
        math.log(value)
        for pod in telemetry.ready_samplers
        if pod in telemetry.samplers and (value := telemetry.samplers[pod].iteration_s.value) is not None and value > 0
    ]
    if len(known) < FEWEST_SIBLINGS:
        return 0.0
    low, _, high = quantiles(known, n=4)
    return (high - low) / INTERQUARTILE


def _token_s(telemetry: Telemetry, latency_s: float, running: float) -> float:
    """Seconds in which a running sample gains a token: as engines say between two of them, or what came out where that is longer."""
    waited, rate = telemetry.trainer_wait_share.value, telemetry.fleet(_generated_per_s, mean).value
    if waited is None or waited < SAMPLERS_BIND or not rate:
        return latency_s
    return min(MOST_LOST * latency_s, max(latency_s, running / rate))


def _generated_per_s(sampler: SamplerTelemetry) -> Reading[float]:
    return sampler.generation_tokens_per_s


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


def followed_lengths(previous: LengthTrend | None, telemetry: Telemetry, spec: RLJobSpec) -> LengthTrend | None:
    """How lengths move after this observation; a layout too young to have finished its long samples teaches nothing."""
    lengths, iteration_s = telemetry.response_lengths.value, telemetry.iteration_s.value
    period_s, since_s, step = telemetry.period_s.value, telemetry.since_s, telemetry.policy_version.value
    if lengths is None or iteration_s is None or not period_s or since_s is None or step is None:
        return previous
    if telemetry.window_s <= 0 or since_s < turnover_s(lengths, iteration_s) or not lengths.mean_tokens > 0:
        return previous
    try:
        return followed(
            previous,
            lengths,
            step=float(step),
            window_steps=telemetry.window_s / period_s,
            age_steps=finished_age_s(lengths, iteration_s, telemetry.window_s) / period_s,
            samples_per_prompt=spec.workload.samples_per_prompt,
        )
    except (ArithmeticError, ValueError):
        return previous


def turnover_s(lengths: LengthHistogram, iteration_s: float) -> float:
    """Seconds in which 95 % of the samples that started with a layout have ended: before, short ones alone have finished."""
    return lengths.quantile(0.95) * iteration_s


def calibration_of(kept: CalibrationStatus | None) -> Calibration:
    """The calibration that a status keeps."""
    if kept is None:
        return Calibration()
    return Calibration(
        sampler_factor=kept.sampler_factor,
        trainer_factor=kept.trainer_factor,
        residual=kept.residual,
        pegged=kept.pegged,
        observations=kept.observations,
        sampler_evidence=_evidence_of(kept.sampler_evidence),
        trainer_evidence=_evidence_of(kept.trainer_evidence),
    )


def lengths_of(kept: CalibrationStatus | None) -> LengthTrend | None:
    """The trend of lengths that a status keeps."""
    trend = None if kept is None else kept.lengths
    if trend is None:
        return None
    return LengthTrend(
        trend.step,
        trend.log_mean,
        trend.per_step,
        trend.variance,
        trend.covariance,
        trend.rate_variance,
        trend.spread,
        trend.mark,
        trend.mark_step,
    )


def kept(calibration: Calibration, lengths: LengthTrend | None) -> CalibrationStatus:
    """What of a calibration and a trend a status keeps."""
    return CalibrationStatus(
        sampler_factor=rounded(calibration.sampler_factor) or 1.0,
        trainer_factor=rounded(calibration.trainer_factor) or 1.0,
        residual=rounded(calibration.residual),
        pegged=calibration.pegged,
        observations=calibration.observations,
        sampler_evidence=_kept_evidence(calibration.sampler_evidence),
        trainer_evidence=_kept_evidence(calibration.trainer_evidence),
        lengths=None
        if lengths is None
        else LengthTrendStatus(
            step=_six(lengths.step),
            log_mean=_six(lengths.log_mean),
            per_step=_six(lengths.per_step),
            variance=_six(lengths.variance),
            covariance=_six(lengths.covariance),
            rate_variance=_six(lengths.rate_variance),
            spread=_six(lengths.spread),
            mark=_six(lengths.mark),
            mark_step=_six(lengths.mark_step),
        ),
    )


def _evidence_of(kept: EvidenceStatus | None) -> Evidence | None:
    if kept is None:
        return None
    return Evidence(
        kept.readings,
        kept.spread,
        kept.scatter,
        kept.recent,
        kept.mark,
        epoch_s(kept.mark_at),
        epoch_s(kept.at),
    )


def _kept_evidence(evidence: Evidence | None) -> EvidenceStatus | None:
    if evidence is None:
        return None
    return EvidenceStatus(
        readings=_six(evidence.readings),
        spread=_six(evidence.spread),
        scatter=_six(evidence.scatter),
        recent=_six(evidence.recent),
        mark=_six(evidence.mark),
        mark_at=timestamp(evidence.mark_s),
        at=timestamp(evidence.at_s),
    )


def _six(value: float) -> float:
    return float(f"{value:.6g}")


def _second_moment(lengths: LengthHistogram, mean_tokens: float) -> float:
    """E[L²] in tokens² of lengths spread as the finished ones are, about the mean of the trained ones."""
    return lengths.second_moment * (mean_tokens / lengths.mean_tokens) ** 2
