"""How fast the real thing is: step-time laws from the data sheets, times hidden factors that the operator has to find out.

The laws of one iteration and one training step are the planner's own (they are what was fitted to measurements); the factors put
them off by tens of percent in opposite directions, which moves the best split. All else of the plant is independent of the planner.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dev.bench.drift.traces import Run
from rljob_planner.calibrate import Calibration
from rljob_planner.job import Job
from rljob_planner.laws import WIDEST_SIGMA, clipped_cv, log_median
from rljob_planner.lengths import LengthDistribution
from rljob_planner.placement import Room
from rljob_planner.roots import rising_root
from rljob_planner.split import Split
from rljob_planner.training import parallelism

Floats = NDArray[np.float64]
_GRID = 24
_WIDEST = 0.9
"""Share of the widest possible cv that is used where a mean near the cap leaves no room for the one that is wished."""


@dataclass(frozen=True)
class Laws:
    """Seconds of everything, for the shapes of one split's replicas."""

    iteration_s: Floats
    """Seconds of an iteration by running samples, without what their context adds."""
    per_context_token_s: float
    """Seconds that each resident token adds."""
    prefill_s: float
    """Seconds of a sample's prefill."""
    recompute_s_per_token: float
    """Seconds for each token of a sample that was preempted."""
    kv_tokens: int
    max_running: int
    train: Floats
    """[trainers, 3]: seconds of a step, of a token, of a token²."""
    weight_sync_s: float


def truth_of(run: Run) -> Calibration:
    """The truth in the planner's words: a planner with this calibration predicts the plant."""
    expected, factors = Calibration(), run.trace.truth
    return Calibration(
        sampler_factor=expected.sampler_speed * factors.sampler,
        trainer_factor=expected.trainer_speed * factors.trainer,
        observations=1,
    )


def laws_of(run: Run, rooms: list[Room], split: Split, most_trainers: int) -> Laws:
    """The laws for replicas of a split's shape."""
    job = Job.of(run.spec, rooms, lengths_at(run, float(np.median(run.mean_tokens))))
    truth = truth_of(run)
    samplers, trainers = split.samplers, split.trainers
    stated = run.spec.trainer.mfu is not None
    speed = run.trace.truth.trainer if stated else truth.trainer_factor
    cost = job.decode_cost(samplers.tensor_parallel, samplers.max_running, truth.sampler_factor)
    train = np.full((most_trainers + 1, 3), np.nan)
    width = trainers.tp * trainers.pp
    for count in range(1, most_trainers + 1):
        shape = trainers.model_copy(
            update={"replicas": count, "dp": max(1, count * trainers.gpus_per_replica // width)}
        )
        if count * trainers.gpus_per_replica % width:
            shape = (
                parallelism(
                    job.trainer_setup,
                    replicas=count,
                    gpus_per_replica=trainers.gpus_per_replica,
                    longest_tokens=job.longest_tokens,
                    samples_per_step=job.batch,
                )
                or shape
            )
        found = job.train_cost(shape, speed)
        train[count] = found.per_step_s, found.per_token_s, found.per_token_squared_s
    return Laws(
        iteration_s=cost.fixed_s + cost.memory_s,
        per_context_token_s=cost.memory_s_per_token,
        prefill_s=cost.prefill_s_per_sample,
        recompute_s_per_token=cost.recompute_s_per_token,
        kv_tokens=job.kv_tokens(samplers.tensor_parallel),
        max_running=samplers.max_running,
        train=train,
        weight_sync_s=job.weight_sync_s,
    )


def lengths_at(run: Run, mean_tokens: float) -> LengthDistribution:
    """The distribution of responses of this mean, as the plant draws them."""
    mu, sigma = _law(mean_tokens, run.cv, run.cap_tokens)
    return LengthDistribution.lognormal(math.exp(mu), sigma, run.cap_tokens)


def _law(mean: float, cv: float, cap: int) -> tuple[float, float]:
    """ln(median) and sigma of a lognormal that has this mean and cv after it was cut; less spread where the cap leaves no room."""
    if cv < 1e-6:
        return math.log(mean), 0.0
    wished = min(cv, _WIDEST * clipped_cv(mean, WIDEST_SIGMA, cap))
    sigma = rising_root(lambda s: clipped_cv(mean, s, cap) - wished, 1e-4, WIDEST_SIGMA, 1e-9)
    return log_median(mean, sigma, cap), sigma


def law_by_step(run: Run) -> tuple[Floats, Floats]:
    """ln(median) and sigma of the responses that start at each step."""
    low, high = float(run.mean_tokens.min()), float(run.mean_tokens.max())
    grid = np.geomspace(low, high, _GRID) if high > low * 1.0001 else np.array([low])
    laws = np.array([_law(float(mean), run.cv, run.cap_tokens) for mean in grid])
    at = np.log(run.mean_tokens)
    return np.interp(at, np.log(grid), laws[:, 0]), np.interp(at, np.log(grid), laws[:, 1])
