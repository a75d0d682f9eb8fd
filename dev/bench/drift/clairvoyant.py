"""What could be had: dynamic programming over step × split with the true periods, then its schedule on the plant.

The true period of each split at each step comes from its own static run over the whole trace, so lengths, faults and luck are those
that every policy meets. A move from one split to another takes time (acknowledge, drain, start, acknowledge) in which the job runs
with what both splits have in common, and stands still while the trainer regroups. The programme finds the cheapest schedule
under this model; schedules for dearer and for cheaper moves, and the best static split, are run on the plant beside it, and the
quickest counts: the model of a move is an estimate, the plant is not.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dev.bench.drift.site import Counts, Site
from dev.bench.drift.stage import Outcome, Stage
from dev.bench.drift.traces import MoveCosts

Floats = NDArray[np.float64]

SCALES = (1.0, 0.5, 2.0)
"""Costs of a move over the estimated ones, under which schedules are made; all are tried on the plant."""
SMOOTH_STEPS = 9
"""Steps over which a period is averaged: single ones are noise that no schedule can use."""
DRAINS = 2.5
"""Longest of a victim's running samples over the mean sample, in time."""
MID = 1.03
"""Period in a move over that of the slower of its two splits."""


@dataclass(frozen=True)
class Model:
    """What the programme knows: true periods, and how long a move takes."""

    counts: tuple[Counts, ...]
    periods_s: Floats
    """[split, step]."""
    moving_s: Floats
    """[from, to, step]: from the announcement to the last acknowledgement."""
    standing_s: Floats
    """[from, to]: of which the job stands still."""


def smoothed(periods_s: Floats, width: int = SMOOTH_STEPS) -> Floats:
    """Centred means over ``width`` entries, shorter at the ends."""
    sums = np.concatenate([[0.0], np.cumsum(periods_s)])
    at = np.arange(len(periods_s))
    low, high = np.maximum(0, at - width // 2), np.minimum(len(periods_s), at + width // 2 + 1)
    return np.asarray((sums[high] - sums[low]) / (high - low))


def schedule(model: Model, start: int | None = None, scale: float = 1.0) -> tuple[float, list[tuple[int, int]]]:
    """Least seconds of the run under the model, and the schedule: (step, split) of the start and of each move.

    The first split is free unless ``start`` says which it is.
    """
    splits, steps = model.periods_s.shape
    passed = np.concatenate([np.zeros((splits, 1)), np.cumsum(model.periods_s, axis=1)], axis=1)
    left = np.zeros((splits, steps + 1))
    choice = np.tile(np.arange(splits)[:, None], (1, steps))
    for step in range(steps - 1, -1, -1):
        stay = model.periods_s[:, step] + left[:, step + 1]
        for i in range(splits):
            best, chosen = stay[i], i
            for j in range(splits):
                if j == i:
                    continue
                cost, arrival = _move(model, passed, i, j, step, scale)
                if arrival <= steps and cost + left[j, arrival] < best - 1e-9:
                    best, chosen = cost + left[j, arrival], j
            left[i, step], choice[i, step] = best, chosen
    at = int(np.argmin(left[:, 0])) if start is None else start
    total, found, step = float(left[at, 0]), [(0, at)], 0
    while step < steps:
        following = int(choice[at, step])
        if following == at:
            step += 1
            continue
        step, at = _move(model, passed, at, following, step, scale)[1], following
        found.append((step, at))
    return total, _begun(model, passed, found, scale)


def _begun(model: Model, passed: Floats, found: list[tuple[int, int]], scale: float) -> list[tuple[int, int]]:
    """The schedule with the step at which each move begins, instead of that at which it is over."""
    begun = found[:1]
    for (_, before), (arrival, after) in itertools.pairwise(found):
        step = arrival
        while step > 0 and _move(model, passed, before, after, step - 1, scale)[1] >= arrival:
            step -= 1
        begun.append((step, after))
    return begun


def _move(model: Model, passed: Floats, i: int, j: int, step: int, scale: float) -> tuple[float, int]:
    """Seconds of a move that begins at ``step``, and the step at which it is over."""
    slower = i if model.periods_s[i, step] >= model.periods_s[j, step] else j
    moving_s, standing_s = scale * model.moving_s[i, j, step], scale * model.standing_s[i, j]
    running_s = max(0.0, moving_s - standing_s) / MID
    arrival = int(np.searchsorted(passed[slower], passed[slower, step] + running_s))
    arrival = max(step + 1, min(arrival, passed.shape[1] - 1))
    return MID * float(passed[slower, arrival] - passed[slower, step]) + standing_s, arrival


def model_of(stage: Stage, outcomes: Sequence[tuple[Counts, Outcome]]) -> Model:
    """The programme's knowledge from static runs of the same steps."""
    steps = min(outcome.steps for _, outcome in outcomes)
    counts = tuple(c for c, _ in outcomes)
    periods = np.array([smoothed(outcome.record.periods_s[:steps]) for _, outcome in outcomes])
    batch, costs = stage.run.spec.workload.samples_per_step, stage.run.trace.costs
    timeout_s = stage.run.spec.sampler.drain_timeout_s
    # Little: a sample is unfinished for in-flight / rate.
    lives = np.array([[outcome.in_flight] for _, outcome in outcomes]) / batch * periods
    n = len(counts)
    moving, standing = np.zeros((n, n, steps)), np.zeros((n, n))
    for i in range(n):
        for j in range(n):
            if i != j:
                drain = np.minimum(timeout_s, DRAINS * lives[i])
                moving[i, j], standing[i, j] = _duration(costs, counts[i], counts[j], periods[i], periods[j], drain)
    return Model(counts, periods, moving, standing)


def _duration(
    costs: MoveCosts, before: Counts, after: Counts, before_s: Floats, after_s: Floats, drain_s: Floats
) -> tuple[Floats, float]:
    """Seconds that a move takes by step, and seconds of it in which the job stands still."""
    slower = np.maximum(before_s, after_s)
    moving = 0.5 * before_s + costs.gone + 0.5 * slower
    if after.samplers < before.samplers:
        moving = moving + drain_s
    moving = moving + (costs.sampler_start if after.samplers > before.samplers else costs.trainer_start)
    standing = costs.regroup if after.trainers != before.trainers else 0.0
    return moving + standing, standing


def run_schedule(stage: Stage, counts: Sequence[Counts], found: list[tuple[int, int]]) -> Outcome:
    """A schedule on the plant."""
    site = Site(stage.run, stage.plant(), stage.start, counts[found[0][1]])
    pending = list(found[1:])

    def look() -> float:
        while pending and site.plant.version >= pending[0][0]:
            site.move(counts[pending.pop(0)[1]])
        return site.plant.now_s + (5.0 if pending else 1e9)

    return stage.finish(site, look)


def run_clairvoyant(stage: Stage, outcomes: Sequence[tuple[Counts, Outcome]]) -> Outcome:
    """The best of the schedules and of the static splits."""
    model = model_of(stage, outcomes)
    best = min((outcome for _, outcome in outcomes), key=lambda o: o.total_s)
    tried: set[tuple[tuple[int, int], ...]] = set()
    for scale in SCALES:
        found = schedule(model, scale=scale)[1]
        if len(found) > 1 and tuple(found) not in tried:
            tried.add(tuple(found))
            best = min(best, run_schedule(stage, model.counts, found), key=lambda o: o.total_s)
    return best
