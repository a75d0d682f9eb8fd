"""What the model says of a job with the split that it runs on, in the terms of a diagnosis."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rljob_planner.advise import Expected
from rljob_planner.calibrate import Calibration
from rljob_planner.job import Job
from rljob_planner.observation import Observation
from rljob_planner.placement import Room
from rljob_planner.search import evaluate
from rljob_planner.split import Split

if TYPE_CHECKING:
    from rljob_planner.api.spec import RLJobSpec
    from rljob_planner.lengths import LengthDistribution


LIKE_MEASURED = 0.02
"""Relative difference of mean response lengths from which those that were measured take the place of the spec's."""


def expectation(
    spec: RLJobSpec,
    split: Split,
    rooms: Sequence[Room],
    seen: Observation,
    *,
    calibration: Calibration | None = None,
    lengths: LengthDistribution | None = None,
) -> Expected:
    """What the model says of this job while it does what was seen; raises PlanningError.

    The run as a whole is simulated, with responses as long as they are. A decode step and a training step are predicted for the load
    that was measured, since a model is not wrong about an engine because another load was planned for it.
    """
    calibration = calibration or Calibration()
    job = Job.of(spec, rooms, lengths, calibration)
    if seen.response_tokens is not None and seen.response_tokens.value > 0:
        longer = seen.response_tokens.value / job.lengths.mean()
        if abs(longer - 1.0) > LIKE_MEASURED:
            job = job.with_lengths(job.lengths.scaled(longer))
    found = evaluate(spec, split, rooms, calibration=calibration, lengths=job.lengths)
    environment = spec.workload.environment
    return Expected(
        period_s=found.period_s,
        train_s=_train_s(job, split, seen, calibration),
        wait_s=max(0.0, found.period_s * (1.0 - found.trainer_utilization)),
        sync_s=job.weight_sync_s,
        environment_s=None if environment is None else (environment.turns - 1) * environment.seconds_per_turn,
        iteration_s=_iteration_s(job, split, seen, calibration, found.mean_running),
        staleness=found.staleness.mean,
    )


def _train_s(job: Job, split: Split, seen: Observation, calibration: Calibration) -> float:
    """Seconds of a training step of as many samples as were seen."""
    samples = job.batch if seen.samples_per_step is None else seen.samples_per_step.value
    cost = job.train_cost(split.trainers, job.trainer_speed(calibration))
    mean, prompt = job.lengths.mean(), job.prompt_tokens
    squares = job.lengths.second_moment() + 2.0 * prompt * mean + prompt * prompt
    return cost.per_step_s + samples * (cost.per_token_s * (prompt + mean) + cost.per_token_squared_s * squares)


def _iteration_s(job: Job, split: Split, seen: Observation, calibration: Calibration, simulated: float) -> float | None:
    """Seconds of a decode step with as many running samples as were seen on a replica, else as many as were simulated."""
    running = simulated / split.samplers.replicas
    if seen.running is not None and seen.samplers:
        running = seen.running.value / seen.samplers
    if running <= 0:
        return None
    return job.iteration_s(split.samplers, running, running * job.context_tokens, calibration.sampler_factor)
