"""What a report shows beyond a plan: every number of trainers simulated, and one run as it goes.

A plan answers with as little simulation as it needs. A report is read by somebody who wants to see why, so it simulates what the
plan could leave to formulas: with the same random numbers, so that its curves pass through the plan's own points.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rljob_planner.calibrate import Calibration
from rljob_planner.errors import PlanningError
from rljob_planner.evaluation import slice_of, warmup_steps
from rljob_planner.job import Job
from rljob_planner.outcome import Evaluation
from rljob_planner.search import evaluate
from rljob_planner.simulate import SimulationInput, SimulationResult, SimulationStalled, simulate
from rljob_planner.split import Split

if TYPE_CHECKING:
    from rljob_planner.api.spec import RLJobSpec
    from rljob_planner.lengths import LengthDistribution
    from rljob_planner.outcome import Plan
    from rljob_planner.placement import Room

MOST_POINTS = 17
"""Numbers of trainers that a report simulates; of more, an even selection around the best."""

_RECORDED_STEPS = 40


@dataclass(frozen=True)
class Run:
    """One simulated run, recorded."""

    inp: SimulationInput
    """What was simulated: of a large job a slice of it."""
    result: SimulationResult
    share: float
    """Share of the job's samplers that were simulated."""


@dataclass(frozen=True)
class JobDetails:
    """All that a report of a job shows beyond its plan."""

    spec: RLJobSpec
    plan: Plan
    lengths: LengthDistribution
    splits: tuple[Evaluation, ...]
    """The best split of every number of trainers with the plan's sampler width, by that number."""
    run: Run | None
    """The plan's split, recorded; None if it cannot be."""


def details_of(
    spec: RLJobSpec,
    rooms: Sequence[Room],
    plan: Plan,
    calibration: Calibration | None = None,
    lengths: LengthDistribution | None = None,
    seed: int = 0,
) -> JobDetails:
    """Simulates what a report of this plan shows."""

    def tried(split: Split) -> Evaluation | None:
        try:
            return evaluate(spec, split, rooms, calibration=calibration, lengths=lengths, seed=seed)
        except PlanningError:
            return None

    job = Job.of(spec, rooms, lengths, calibration)
    swept = [e for split in _swept(plan) if (e := tried(split)) is not None and math.isfinite(e.period_s)]
    return JobDetails(
        spec=spec,
        plan=plan,
        lengths=job.lengths,
        splits=tuple(sorted(swept, key=lambda e: e.split.trainers.replicas)),
        run=recorded(job, plan.split, calibration or Calibration(), seed),
    )


def recorded(job: Job, split: Split, calibration: Calibration, seed: int = 0) -> Run | None:
    """A split's run with its timeline; of a large job that of a slice. None if it never ends."""
    warmup = warmup_steps(job)
    inp = job.simulation_input(split, calibration, steps=warmup + _RECORDED_STEPS, warmup=warmup, seed=seed)
    part = slice_of(inp)
    try:
        return Run(part, simulate(part, rho=math.nan, record=True), part.replicas / inp.replicas)
    except (SimulationStalled, ValueError):
        return None


def _swept(plan: Plan) -> list[Split]:
    """Of the plan's candidates the best of each number of trainers with the plan's sampler width."""
    width, best = plan.split.samplers.gpus_per_replica, plan.split
    by_count: dict[int, Split] = {best.trainers.replicas: best}
    for candidate in (*plan.neighbours, *plan.candidates):
        split = candidate.split
        if split.samplers.gpus_per_replica == width and candidate.period_s is not None:
            by_count.setdefault(split.trainers.replicas, split)
    counts = sorted(by_count)
    if len(counts) > MOST_POINTS:
        near = sorted(counts, key=lambda n: abs(n - best.trainers.replicas))[:7]
        step = (len(counts) - 1) / (MOST_POINTS - len(near) - 1)
        spread = {counts[round(i * step)] for i in range(MOST_POINTS - len(near))}
        counts = sorted({*near, *spread})
    return [by_count[count] for count in counts]
