"""The job that docs/first-principles.md works through, and the runs of it that several sections share."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from rljob_planner.api.reading import read_job
from rljob_planner.api.spec import RLJobSpec
from rljob_planner.calibrate import Calibration
from rljob_planner.documents import parse_documents
from rljob_planner.job import Job
from rljob_planner.layouts import Space
from rljob_planner.lengths import LengthDistribution
from rljob_planner.outcome import Plan
from rljob_planner.placement import Room, default_rooms
from rljob_planner.search import plan
from rljob_planner.simulate import SimulationInput
from rljob_planner.split import Split

ROOT = Path(__file__).resolve().parents[2]
FILE = ROOT / "docs" / "first-principles.yaml"

STEPS, WARMUP = 400, 60
"""Steps of a simulation whose numbers are printed, and those of them before its statistics begin."""

UNMEASURED = Calibration(alone=True)


@cache
def spec() -> RLJobSpec:
    """The spec in docs/first-principles.yaml."""
    return read_job(parse_documents(FILE.read_text(encoding="utf-8"), FILE.name)[0]).spec


@cache
def rooms() -> tuple[Room, ...]:
    """Nodes of eight GPUs for the budget."""
    return default_rooms(spec().gpus, spec().accelerator)


@cache
def job() -> Job:
    """The spec on its GPUs."""
    return Job.of(spec(), rooms())


def with_staleness(maximum: int, bound: str = "admission") -> RLJobSpec:
    """The spec with another staleness limit."""
    staleness = spec().staleness.model_copy(update={"max": maximum, "bound": type(spec().staleness.bound)(bound)})
    return spec().model_copy(update={"staleness": staleness})


@cache
def best() -> Plan:
    """The plan of the job, with all that surrounds it."""
    return plan(spec(), rooms(), calibration=UNMEASURED)


def planned(
    of: RLJobSpec | None = None,
    *,
    trainers: int | None = None,
    lengths: LengthDistribution | None = None,
) -> Plan:
    """The best split of a variant of the job, without what surrounds it."""
    return plan(
        of or spec(),
        rooms(),
        calibration=UNMEASURED,
        keep=best().split,
        trainer_replicas=trainers,
        lengths=lengths,
        detail=False,
    )


@cache
def synchronous_split() -> Split:
    """All GPUs sample, then all train."""
    found = best().synchronous
    if found is None:
        raise LookupError("the example job can be run synchronously: its roles share one type of GPU")
    return found.split


def split(trainers: int, in_flight: int, mode: str = "async") -> Split:
    """So many trainers, samplers on all other GPUs."""
    layout = Space(job(), rooms()).layout(1, trainers)
    if layout is None:
        raise LookupError(f"the example job has no split with {trainers} trainers")
    return layout.split(in_flight, mode)


def trainer_counts() -> list[int]:
    """Numbers of trainers that hold the model and leave room for samplers."""
    space = Space(job(), rooms())
    return [count for count in space.trainer_counts(1) if space.layout(1, count) is not None]


def inputs(of: Split, *, steps: int = STEPS, warmup: int = WARMUP, **changes: Any) -> SimulationInput:
    """What the simulator gets for a split of the job; ``changes`` are fields of the input."""
    return replace(job().simulation_input(of, UNMEASURED, steps=steps, warmup=warmup), **changes)


def label(of: Split) -> str:
    """A split by the GPUs of its two sides, as 8 + 8."""
    return f"{of.samplers.gpus} + {of.trainers.gpus}"
