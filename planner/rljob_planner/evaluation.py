"""One split, simulated: how long a period takes, how stale samples get, and which side is to blame.

All splits of a job are simulated with the same random numbers and over the same number of steps, so the difference of two periods is
far more certain than either. How many steps follows from the batch: a large one averages over many samples by itself.

Of a very large job a slice is simulated: the same replicas, but fewer, with as much less in a batch and in flight. Nothing in the
model depends on the number of replicas but the noise of a batch, which is corrected for.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from rljob_planner.api.spec import Bound
from rljob_planner.calibrate import Calibration
from rljob_planner.closedform import predict
from rljob_planner.errors import PlanningError
from rljob_planner.job import Job
from rljob_planner.outcome import RATIO_VARIANCE, Evaluation, Period, Staleness, ratio_variance
from rljob_planner.screen import may_run_away, over_limit, runs_away
from rljob_planner.simulate import SimulationInput, SimulationResult, SimulationStalled, TrainCost, rates, simulate
from rljob_planner.split import Split
from rljob_planner.timeline import Timeline

MOST_BATCH_SAMPLES_PER_GPU = 2048
"""Largest training batch that is planned for, by GPU of the budget; real ones have less than a tenth of it."""

SLICE_SAMPLES = 2048
"""Batches of twice this size and more are simulated as a slice of about this size."""

BUSY = 0.95
"""Share of time from which on the trainer is the bottleneck."""
WAITING = 0.90
"""Share of time up to which the trainer waits for samplers."""

_BALANCED = 0.05
"""Difference of ρ from 1 up to which samplers and a busy trainer are equally fast."""

ALL_IN_USE = 0.95
"""Share of the sandboxes in use from which on they are what samplers wait for."""

_LONG_SAMPLES, _SHORT_SAMPLES = 72_000, 24_000
_BLOCKS = 8
_RUNAWAY_BATCHES = 3
"""Batches in a queue without an end from which on it counts as growing and not as fluctuating."""


def full_steps(job: Job) -> int:
    """Steps of a simulation whose period is reported or compared."""
    return max(24, min(160, _LONG_SAMPLES // _work(job)))


def quick_steps(job: Job) -> int:
    """Steps of a simulation that only sorts out what cannot win."""
    return max(16, min(48, _SHORT_SAMPLES // _work(job)))


def _work(job: Job) -> int:
    """Samples of a simulated step, those of several turns counted for the work that they make."""
    return min(job.batch, SLICE_SAMPLES) * (3 + job.simulated_turns) // 4


def warmup_steps(job: Job) -> int:
    """Steps until queue and in-flight samples have filled: what admission lets run ahead, twice over."""
    return min(60, 6 + 2 * (job.spec.staleness.max + 1))


def check_simulable(job: Job) -> None:
    """Raise PlanningError for a workload that can only hang, or that nobody can simulate."""
    spec = job.spec
    most = MOST_BATCH_SAMPLES_PER_GPU * spec.gpus
    if job.batch > most:
        raise PlanningError(
            "TooLarge",
            f"workload.promptsPerStep × samplesPerPrompt is {job.batch} samples a step; the planner simulates at most "
            f"{MOST_BATCH_SAMPLES_PER_GPU} a GPU, {most} with {spec.gpus}: lower one of them, or raise spec.gpus",
        )
    if spec.staleness.bound is Bound.HOLD and spec.staleness.max == 0:
        raise PlanningError(
            "NothingFeasible",
            "staleness.bound hold with max 0 never publishes, since samplers always have samples that the next version would make "
            "stale: raise staleness.max to 1, or use bound admission",
        )


def simulated(
    job: Job,
    split: Split,
    calibration: Calibration,
    *,
    steps: int,
    seed: int,
    run_steps: int | None = None,
) -> Evaluation:
    """A split over so many steps after the warm-up; ``run_steps``: those of the run, over which an endless queue grows.

    Raises PlanningError ``InvalidSplit`` for a split that contradicts the job.
    """
    if split.mode == "async" and split.in_flight < job.group:
        raise PlanningError(
            "InvalidSplit",
            f"{split.label()}: an in-flight cap of {split.in_flight} admits no group of {job.group} samples: "
            "raise it to workload.samplesPerPrompt at least",
        )
    warmup = warmup_steps(job)
    inp = job.simulation_input(
        split, calibration, steps=steps + warmup, warmup=warmup, seed=seed, colocated=split.mode == "sync"
    )
    part = slice_of(inp)
    try:
        balanced = job.spec.staleness.bound is Bound.ADMISSION and split.mode == "async" and steps >= full_steps(job)
        result = simulate(part, rho=predict(inp).rho if split.mode == "async" else None, record=balanced)
    except SimulationStalled as error:
        return _stalled(split, str(error))
    except ValueError as error:
        raise PlanningError(
            "InvalidSplit", f"{split.label()} with {split.in_flight} samples in flight: {error}"
        ) from error
    if result.timeline is not None:
        mean = (
            None
            if result.dropped_groups
            else balance_staleness(result.timeline, warmup, part.prompts_per_step * part.samples_per_prompt)
        )
        counted = result.staleness.mean if mean is None else mean
        result = replace(result, staleness=replace(result.staleness, mean=counted), timeline=None)
    further_steps = 0.5 * ((job.spec.workload.steps if run_steps is None else run_steps) - steps) - warmup
    if (
        may_run_away(job)
        and split.mode == "async"
        and result.queue_groups.max > _RUNAWAY_BATCHES * part.prompts_per_step
    ):
        rollout_rate, train_rate = rates(part)
        result = replace(result, rho=rollout_rate / train_rate)
    else:
        further_steps = 0.0
    return _evaluation(job, split, inp, result, part.replicas / inp.replicas, further_steps)


def balance_staleness(timeline: Timeline, warmup: int, batch: int) -> float | None:
    """Mean staleness from what is under way when a version is published, samples that started and are not trained, over the batch.

    A sample is under way at as many publications as it is versions old in the end: by Little's law this is the mean staleness of the
    samples that are trained, without what the window of a simulation cuts off at its two ends. Under ``admission`` it
    keeps to the limit exactly, as the bound does at every single publication. None where the timeline is not complete.
    """
    if not timeline.complete:
        return None
    versions, stays, fates = len(timeline.steps), timeline.samples, timeline.groups
    groups, width = int(stays["group"].max()) + 1, int(stays["index"].max()) + 1
    trained = np.full(groups, versions)
    trained[fates["group"]] = np.where(fates["trained_version"] < 0, versions, fates["trained_version"])
    begun = np.full(groups * width, versions)
    np.minimum.at(begun, stays["group"] * width + stays["index"], stays["version"])
    first, last = warmup - 1, versions - 1
    publications = np.maximum(0, np.clip(np.repeat(trained, width), first, last) - np.clip(begun, first, last))
    return float(publications.sum()) / (batch * (versions - warmup))


def slice_of(inp: SimulationInput) -> SimulationInput:
    """A part of a job with a large batch that behaves as the whole: fewer replicas, and the batch, cap and queue that go with them.

    Among about as many replicas those are taken whose share of the batch is nearest to whole groups. A step takes as long as that
    of the whole batch.
    """
    shares = inp.prompts_per_step * inp.samples_per_prompt / SLICE_SAMPLES
    if shares < 2.0 or inp.replicas == 1:
        return inp
    about = max(1, round(inp.replicas / shares))
    counts = range(max(1, about * 3 // 4), min(inp.replicas, about * 5 // 4 + 1) + 1)

    def unevenness(count: int) -> tuple[float, int]:
        groups = inp.prompts_per_step * count / inp.replicas
        return abs(groups - round(groups)) / max(groups, 0.5), abs(count - about)

    replicas = min(counts, key=unevenness)
    share = replicas / inp.replicas
    groups = max(1, round(inp.prompts_per_step * share))
    batch = inp.prompts_per_step / groups
    cap = inp.in_flight_cap
    queue, sandboxes = inp.queue_capacity, inp.sandboxes
    return replace(
        inp,
        replicas=replicas,
        prompts_per_step=groups,
        train=TrainCost(inp.train.per_step_s, inp.train.per_token_s * batch, inp.train.per_token_squared_s * batch),
        in_flight_cap=None if cap is None else max(inp.samples_per_prompt, round(cap * share)),
        queue_capacity=None if queue is None else max(groups, round(queue * share)),
        sandboxes=None if sandboxes is None else max(1, round(sandboxes * share)),
    )


def _evaluation(
    job: Job, split: Split, inp: SimulationInput, result: SimulationResult, share: float, further_steps: float
) -> Evaluation:
    limit, drops = job.spec.staleness.max, job.spec.staleness.bound is Bound.DROP
    drift = 0.0
    if further_steps > 0.0:
        rollout_rate = result.rho * job.batch / inp.train.step_s(job.batch, job.prompt_tokens, job.lengths)
        drift = runs_away(job, rollout_rate, result.period.mean, further_steps)
    mean = result.staleness.mean + drift
    reason = over_limit(job, mean)
    if drops and result.staleness.max > limit:
        reason = f"a trained sample was {result.staleness.max} versions old, over the limit of {limit}"
    variance = job.spec.staleness.ratio_variance
    ratios = ratio_variance(result.staleness.histogram, RATIO_VARIANCE if variance is None else variance, further=drift)
    environment = job.spec.workload.environment
    turns_in_one = 1.0 if environment is None else (environment.turns - 1) / (job.simulated_turns - 1)
    wasted, trained = float(result.wasted_tokens), result.tokens_per_second * result.elapsed_s
    wasted_fraction = wasted / max(1.0, wasted + trained)
    return Evaluation(
        split=split,
        period=_spread(result, share),
        period_error=_relative_error(result),
        staleness=Staleness(mean, result.staleness.p95 + drift, result.staleness.max + drift, ratios),
        rho=result.rho,
        bottleneck=_bottleneck(
            job, split.mode, result, result.environment_samples / share, result.rho * (1.0 - wasted_fraction)
        ),
        sampler_utilization=result.sampler_utilization,
        trainer_utilization=result.trainer_utilization,
        mean_running=result.mean_running / share,
        mean_in_flight=result.mean_in_flight / share,
        queue_groups=result.queue_groups.mean / share,
        kv_utilization=result.kv_utilization,
        wasted_fraction=wasted_fraction,
        tokens_per_second=result.tokens_per_second / share,
        environment_samples=result.environment_samples / share,
        sandbox_wait_s=result.sandbox_wait_s / turns_in_one,
        within_staleness=not reason,
        reason=reason,
    )


def _stalled(split: Split, why: str) -> Evaluation:
    forever = math.inf
    return Evaluation(
        split=split,
        period=Period(forever, forever, forever, forever),
        period_error=0.0,
        staleness=Staleness(forever, forever, forever, forever),
        rho=math.nan,
        bottleneck="balanced",
        sampler_utilization=0.0,
        trainer_utilization=0.0,
        mean_running=0.0,
        mean_in_flight=0.0,
        queue_groups=0.0,
        kv_utilization=0.0,
        wasted_fraction=0.0,
        tokens_per_second=0.0,
        environment_samples=0.0,
        sandbox_wait_s=0.0,
        within_staleness=False,
        reason=f"the run never ends: {why}",
    )


def _spread(result: SimulationResult, share: float) -> Period:
    """The periods' spread; of a slice as much narrower as the whole batch averages over more samples."""
    mean, narrower = result.period.mean, math.sqrt(share)
    p10, p50, p90 = (mean + (p - mean) * narrower for p in (result.period.p10, result.period.p50, result.period.p90))
    return Period(mean, p10, p50, p90)


def _relative_error(result: SimulationResult) -> float:
    """Standard error of the mean period over the mean, from means of blocks, since neighbouring periods depend on each other."""
    periods = result.periods_s
    if len(periods) < 2 * _BLOCKS or result.period.mean <= 0:
        return float(np.std(periods)) / math.sqrt(max(1, len(periods))) / max(result.period.mean, 1e-12)
    blocks = np.array([block.mean() for block in np.array_split(periods, _BLOCKS)])
    return float(blocks.std(ddof=1)) / math.sqrt(_BLOCKS) / result.period.mean


def _bottleneck(job: Job, mode: str, result: SimulationResult, environment_samples: float, kept_rho: float) -> str:
    """The side that the other waits for, by what was seen: staleness bounds and weight loading throttle samplers too.

    A trainer that hardly waits is not the bottleneck by that alone: where samplers are just as fast (``kept_rho``, ρ without what is
    dropped, about 1) both are. Samplers whose samples wait for a sandbox are not what is short.
    """
    if mode == "sync":
        return "samplers" if result.trainer_utilization < 0.5 else "trainers"
    if result.trainer_utilization >= BUSY:
        return "balanced" if abs(kept_rho - 1.0) <= _BALANCED else "trainers"
    limit = job.sandbox_limit
    if limit is not None and environment_samples >= ALL_IN_USE * limit:
        return "sandboxes"
    return "samplers" if result.trainer_utilization <= WAITING else "balanced"
