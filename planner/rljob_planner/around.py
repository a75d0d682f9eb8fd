"""What surrounds the best split: its neighbours, the best at other lengths, what would help most, and staying synchronous.

A number alone convinces nobody. These are the questions that a person asks next, each answered by the same simulation.
"""

from __future__ import annotations

import math

from rljob_planner.calibrate import Calibration
from rljob_planner.evaluation import full_steps, quick_steps, simulated, slice_of, warmup_steps
from rljob_planner.job import Job
from rljob_planner.layouts import Space
from rljob_planner.lengths import LengthDistribution
from rljob_planner.outcome import Elasticity, Evaluation
from rljob_planner.screen import screened
from rljob_planner.simulate import SimulationStalled, simulate
from rljob_planner.split import Split

SWEEP_FACTORS = (0.5, 1.0, 2.0, 4.0, 8.0)
"""Mean response lengths of the sweep, relative to the job's."""

_NUDGE = 1.1
_MOST_SYNCHRONOUS_STEPS = 40


def neighbour_splits(job: Job, space: Space, best: Split, calibration: Calibration, steps: int) -> list[Split]:
    """The splits with one trainer fewer and one more, as far as they are possible, each with its own cap."""
    width, trainers = best.samplers.gpus_per_replica, best.trainers.replicas
    found: list[Split] = []
    for count in (trainers - 1, trainers + 1):
        layout = space.layout(width, count) if count in space.trainer_counts(width) else None
        if layout is not None:
            found.append(screened(job, layout, calibration, steps).split)
    return found


def synchronous(job: Job, space: Space, best: Split, calibration: Calibration, seed: int) -> Evaluation | None:
    """All GPUs sample, then all train: the best engine width with as many trainers as the nodes hold.

    None where the roles cannot share GPUs: different accelerators, nodes of one role alone, or a trainer that does not fit.
    """
    if job.accelerators.sampler != job.accelerators.trainer:
        return None
    shared = [room for room in space.rooms if room.samplers and room.trainers]
    per_trainer = space.trainer_gpus
    most = min(sum(room.free_gpus // per_trainer for room in shared), job.spec.gpus // per_trainer)
    divided = next((d for count in range(most, 0, -1) if (d := space.trainers(count)) is not None), None)
    if divided is None:
        return None
    found: list[Evaluation] = []
    for width in space.widths:
        if per_trainer % width:
            continue
        samplers = best.samplers.model_copy(
            update={
                "replicas": min(divided.gpus // width, job.batch),
                "gpus_per_replica": width,
                "tensor_parallel": space.tensor_parallel(width),
                "max_running": space.max_running(),
            }
        )
        split = Split(mode="sync", samplers=samplers, trainers=divided, in_flight=job.batch)
        steps = min(_MOST_SYNCHRONOUS_STEPS, quick_steps(job))
        found.append(simulated(job, split, calibration, steps=steps, seed=seed))
    return min(found, key=lambda e: e.period_s, default=None)


def elasticity(job: Job, best: Evaluation, calibration: Calibration, seed: int) -> Elasticity:
    """The slopes d ln period / d ln x at the best split: central differences under the same random numbers."""
    warmup = warmup_steps(job)
    steps = full_steps(job) // 2

    def slope(jobs: tuple[Job, Job] = (job, job), **names: str) -> float | None:
        periods_s: list[float] = []
        for of, factor in zip(jobs, (1.0 / _NUDGE, _NUDGE), strict=True):
            inp = of.simulation_input(
                best.split,
                calibration,
                steps=steps + warmup,
                warmup=warmup,
                seed=seed,
                **dict.fromkeys(names.values(), factor),
            )
            try:
                periods_s.append(simulate(slice_of(inp), rho=math.nan).period.mean)
            except (SimulationStalled, ValueError):
                return None
        return math.log(periods_s[1] / periods_s[0]) / (2.0 * math.log(_NUDGE))

    tails = _tails(job)
    return Elasticity(
        decode=slope(vary="decode_speed"),
        train=slope(vary="train_speed"),
        sync=slope(vary="sync_time"),
        tail=None if tails is None else slope(tails),
    )


def _tails(job: Job) -> tuple[Job, Job] | None:
    """The job with a lighter and a heavier tail of response lengths at the same mean; None if the cap leaves no room for it."""
    mean, cv, cap = job.lengths.mean(), job.lengths.cv(), job.lengths.cap_tokens
    try:
        lighter, heavier = (LengthDistribution.from_mean_cv(mean, cv * f, cap) for f in (1.0 / _NUDGE, _NUDGE))
    except ValueError:
        return None
    return job.with_lengths(lighter), job.with_lengths(heavier)
