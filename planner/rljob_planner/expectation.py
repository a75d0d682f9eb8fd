"""What the model says of a job with the split that it runs on, in the terms of a diagnosis."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rljob_planner.advise import Expected
from rljob_planner.calibrate import Calibration
from rljob_planner.job import Job
from rljob_planner.placement import Room
from rljob_planner.search import evaluate
from rljob_planner.split import Split

if TYPE_CHECKING:
    from rljob_planner.api.spec import RLJobSpec
    from rljob_planner.lengths import LengthDistribution


def expectation(
    spec: RLJobSpec,
    split: Split,
    rooms: Sequence[Room],
    *,
    calibration: Calibration | None = None,
    lengths: LengthDistribution | None = None,
) -> Expected:
    """The split simulated, and the formulas of its parts; raises PlanningError."""
    calibration = calibration or Calibration()
    job = Job.of(spec, rooms, lengths, calibration)
    found = evaluate(spec, split, rooms, calibration=calibration, lengths=lengths)
    cost = job.train_cost(split.trainers, calibration.trainer_factor)
    mean, prompt = job.lengths.mean(), job.prompt_tokens
    squares = job.lengths.second_moment() + 2.0 * prompt * mean + prompt * prompt
    train_s = cost.per_step_s + job.batch * (cost.per_token_s * (prompt + mean) + cost.per_token_squared_s * squares)
    running = found.mean_running / split.samplers.replicas
    decode = job.decode_cost(
        split.samplers.tensor_parallel, max(1, split.samplers.max_running), calibration.sampler_factor
    )
    prefill_s = running / mean * decode.prefill_s_per_sample
    return Expected(
        period_s=found.period_s,
        train_s=train_s,
        wait_s=max(0.0, found.period_s * (1.0 - found.trainer_utilization)),
        sync_s=job.weight_sync_s,
        iteration_s=decode.iteration_s(running, running * job.context_tokens) + prefill_s if running > 0 else None,
        staleness=found.staleness.mean,
    )
