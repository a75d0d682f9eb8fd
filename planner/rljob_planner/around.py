"""What surrounds the best split: lock-step alternatives, neighbours, other lengths, the price of fresh samples, what would help most.

A number alone convinces nobody. These are the questions that a person asks next, each answered by the same simulation, and as far
as possible by runs that the race has made already.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from rljob_planner.calibrate import Calibration
from rljob_planner.closedform import predict
from rljob_planner.errors import PlanningError
from rljob_planner.evaluation import full_steps, quick_steps, simulated, slice_of, warmup_steps
from rljob_planner.job import Job
from rljob_planner.layouts import Layout, Space
from rljob_planner.lengths import LengthDistribution
from rljob_planner.outcome import Elasticity, Evaluation, ParetoPoint, SweepPoint
from rljob_planner.race import QUICK_MARGIN, Race, front, line_up
from rljob_planner.screen import Screened, judged, screened
from rljob_planner.simulate import SimulationStalled, simulate
from rljob_planner.split import Split

T = TypeVar("T")

SWEEP_FACTORS = (0.5, 1.0, 2.0, 4.0, 8.0)
"""Mean response lengths of the sweep, relative to the job's."""

_ROUNDS, _CONTENDERS = 4, 8
"""Times that a winner may give way to a better one, and quick simulations that are repeated in full each time."""
_NUDGE = 1.1
_BLOCKS, _ERRORS, _LEAST_SLOPE = 6, 1.5, 0.01
"""Blocks of steps that tell a slope's standard error, rather too large since they end where a slower run's do not; how many of these
errors a slope must reach to count; and what it must be at least, 10 % then changing the period by 0.1 %."""
_MOST_SYNCHRONOUS_STEPS, _MOST_LOCK_STEP = 40, 40
"""Steps of a simulation in lock step, whose steps are alike; layouts whose lock step is worked out, evenly drawn from all."""
_CLOSE, _NEAR = 0.03, 0.02
"""Share of the period by which the formulas may err between two lock-step splits, and between the front runners at another length."""
_FEW_COUNTS = 8
"""Trainer counts that a pass over another length looks at."""
_PARETO_CAPS = (0.75, 0.5, 0.33, 0.22, 0.15)
"""Of the winner's cap, those that are looked at for fresher samples."""
_PARETO_LAYOUTS, _PARETO_RUNS = 4, 4
_SAME_PERIOD, _SAME_STALENESS = 0.02, 0.03
"""Differences below which two points of the Pareto front are one."""


def settled(race: Race, space: Space, best: Evaluation, *, thorough: bool) -> tuple[Evaluation, list[Evaluation]]:
    """The split that none of its neighbours beats, nor anything else that was simulated, and these neighbours.

    The winner of the race was chosen among what formulas put in front; they may be wrong by more than its neighbours differ. So one that
    turns out better takes its place and its own neighbours are looked at. Unless ``thorough``, neighbours that a quick
    simulation finds clearly worse get no long one.
    """
    full = full_steps(race.job)
    beside: list[Evaluation] = []
    for _ in range(_ROUNDS):
        beside = neighbours(race, space, best, thorough=thorough)
        for seeming in sorted(race.contenders(best, full), key=race.rank)[:_CONTENDERS]:
            race.within_limit(seeming.split, full)
        chosen = race.chosen(full)
        if chosen.split == best.split:
            break
        moved = not chosen.split.same_shape(best.split)
        best = chosen
        if not moved:
            break
    else:
        beside = neighbours(race, space, best, thorough=thorough)
    return best, beside


def neighbours(race: Race, space: Space, best: Evaluation, *, thorough: bool = True) -> list[Evaluation]:
    """The splits with one trainer fewer and one more, as far as they are possible, each with the best cap that is known.

    Unless ``thorough``, those that are clearly worse are only simulated quickly.
    """
    width, trainers = best.split.samplers.gpus_per_replica, best.split.trainers.replicas
    found: list[Evaluation] = []
    for count in (trainers - 1, trainers + 1):
        layout = space.layout(width, count) if count in space.trainer_counts(width) else None
        if layout is None:
            continue
        known = race.best_known(layout.split(race.job.group))
        split = known.split if known else screened(race.job, layout, race.calibration, race.run_steps).split
        quick = race.within_limit(split, quick_steps(race.job))
        better = quick if known else race.raised(quick, quick_steps(race.job))
        if thorough or race.cost_of(better) <= race.cost_of(best) * (1.0 + QUICK_MARGIN):
            better = race.within_limit(better.split, full_steps(race.job))
        found.append(better)
    return found


def synchronous(job: Job, space: Space, best: Split, calibration: Calibration, seed: int) -> Evaluation | None:
    """All GPUs sample, then all train: the best engine width with as many trainers as the nodes hold.

    Engines and trainer share their GPUs, which makes training steps slower and moves the optimizer's state out and in.
    None where the roles cannot share GPUs: different accelerators, sampler pools, nodes of one role alone, or a trainer that does not fit.
    """
    if job.spec.sampler.pools or job.accelerators.sampler != job.accelerators.trainer:
        return None
    shared = [room for room in space.rooms if room.samplers and room.trainers]
    per_trainer = space.trainer_gpus
    most = min(sum(room.free_gpus // per_trainer for room in shared), job.spec.gpus // per_trainer)
    divided = next((d for count in range(most, 0, -1) if (d := space.trainers(count)) is not None), None)
    if divided is None:
        return None
    splits: list[Split] = []
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
        splits.append(Split(mode="sync", samplers=samplers, trainers=divided, in_flight=job.batch))
    return _best_in_lock_step(job, splits, calibration, seed)


def one_step_off(job: Job, layouts: Iterable[Layout], calibration: Calibration, seed: int) -> Evaluation | None:
    """Samplers make the next batch while the trainer takes the last one: the best layout; None where there is none.

    Every sample that is trained is one version old.
    """
    every = list(layouts)
    some = every[:: -(-len(every) // _MOST_LOCK_STEP)] if every else []
    splits = [layout.split(job.batch, "one-step-off") for layout in some]
    return _best_in_lock_step(job, splits, calibration, seed)


def _best_in_lock_step(job: Job, splits: Sequence[Split], calibration: Calibration, seed: int) -> Evaluation | None:
    """Lock-step periods follow from formulas to a few percent; what they put close to the front is simulated."""

    def period_s(split: Split) -> float:
        return predict(job.simulation_input(split, calibration, steps=3, warmup=1)).period_s

    found = sorted(((period_s(split), at, split) for at, split in enumerate(splits)), key=lambda f: f[:2])
    close = [split for s, _, split in found[:2] if s <= found[0][0] * (1.0 + _CLOSE)]
    steps = min(_MOST_SYNCHRONOUS_STEPS, quick_steps(job))
    runs = [simulated(job, split, calibration, steps=steps, seed=seed) for split in close]
    return min(runs, key=lambda e: e.period_s, default=None)


def length_sweep(race: Race, space: Space, best: Evaluation) -> tuple[SweepPoint, ...]:
    """The best split at other mean lengths under the same cap; a length that nothing fits is left out.

    A quick simulation or two each: this is a map of where the optimum goes, not a plan to act on.
    """
    found: list[SweepPoint] = []
    for factor in SWEEP_FACTORS:
        if factor == 1.0:
            found.append(SweepPoint(factor, best.split, best.period_s, race.job.lengths.mean()))
            continue
        job = race.job.with_lengths(race.job.lengths.scaled(factor))
        other = Race(job, race.calibration, race.run_steps, race.seed)
        try:
            ahead = [
                s
                for s in line_up(other, Space(job, space.rooms, space.keep, most_counts=_FEW_COUNTS))[:2]
                if not s.reason
            ]
        except PlanningError:
            continue
        close = [s for s in ahead if other.cost_of(s) <= other.cost_of(ahead[0]) * (1.0 + _NEAR)]
        quick = [other.within_limit(s.split, quick_steps(job) * 3 // 4) for s in close]
        if quick and not min(quick, key=other.rank).reason:
            winner = min(quick, key=other.rank)
            found.append(SweepPoint(factor, winner.split, winner.period_s, job.lengths.mean()))
    return tuple(found)


def mean_period_s(race: Race, found: Evaluation, growth: float | None) -> float:
    """Mean period of a split over a run in which lengths grow in a line to ``growth`` times those of its start: Simpson's rule."""
    if growth is None or found.reason:
        return found.period_s
    periods_s = [found.period_s]
    for factor in (0.5 * (1.0 + growth), growth):
        job = race.job.with_lengths(race.job.lengths.scaled(factor))
        run = simulated(job, found.split, race.calibration, steps=quick_steps(job), seed=race.seed)
        periods_s.append(run.period_s)
    start, middle, end = periods_s
    return (start + 4.0 * middle + end) / 6.0


def pareto(
    race: Race, layouts: Sequence[Screened], best: Split, others: Iterable[Evaluation | None]
) -> tuple[ParetoPoint, ...]:
    """What fresher samples cost: no split that was looked at is both faster and less stale than one of these; the freshest first.

    Formulas choose a few lower caps to simulate; every run of the race counts too, and ``others`` (the lock-step modes).
    """
    job, calibration = race.job, race.calibration
    grid: list[Screened] = []
    for one in front(race, layouts, _PARETO_LAYOUTS):
        caps = {max(job.group, int(best.in_flight * share) // job.group * job.group) for share in _PARETO_CAPS}
        grid += [judged(job, one.layout, cap, calibration, race.run_steps) for cap in sorted(caps)]
    chosen = _undominated([(s.staleness_mean, s.period_s, s) for s in grid if not s.reason])
    thin = chosen if len(chosen) <= _PARETO_RUNS else chosen[:: -(-len(chosen) // _PARETO_RUNS)]
    for s in thin:
        race.evaluation(s.split, quick_steps(job))
    for seeming in race.contenders(race.evaluation(best, 1), full_steps(job)):
        race.evaluation(seeming.split, full_steps(job))
    runs = [*race.runs(), *(e for e in others if e is not None)]
    limit = job.spec.staleness.mean_limit
    feasible = [e for e in runs if not e.reason and (e.split.mode == "async" or e.staleness.mean <= limit)]
    front_runs = _undominated([(e.staleness.mean, e.period_s, e) for e in feasible])
    return tuple(ParetoPoint(e.split, e.period_s, e.staleness.mean, e.staleness.ratio_variance) for e in front_runs)


def _undominated(points: Sequence[tuple[float, float, T]]) -> list[T]:
    """Those of (staleness, period, what) that nothing beats in both, by rising staleness; of near equals the fresher one."""
    found: list[T] = []
    fastest_s, oldest = math.inf, -math.inf
    for staleness, period_s, what in sorted(points, key=lambda p: p[:2]):
        if period_s >= fastest_s * (1.0 - _SAME_PERIOD):
            continue
        if staleness - oldest < _SAME_STALENESS and found:
            found.pop()
        found.append(what)
        fastest_s, oldest = period_s, staleness
    return found


def elasticity(job: Job, best: Evaluation, calibration: Calibration, seed: int) -> Elasticity:
    """The slopes d ln period / d ln x at the best split: central differences under the same random numbers.

    Where decoding, training and weight loading are all that takes time, a job in which all three take twice as long is the same job
    with another clock; so the slope of training follows from the other two. A slope that the noise of the runs could make is 0.
    """
    warmup = warmup_steps(job)
    steps = full_steps(job) // 2

    def slope(vary: str, jobs: tuple[Job, Job] = (job, job)) -> _Slope | None:
        periods_s: list[NDArray[np.float64]] = []
        for of, factor in zip(jobs, (1.0 / _NUDGE, _NUDGE), strict=True):
            inp = of.simulation_input(
                best.split,
                calibration,
                steps=steps + warmup,
                warmup=warmup,
                seed=seed,
                decode_speed=factor if vary == "decode" else 1.0,
                train_speed=factor if vary == "train" else 1.0,
                sync_time=factor if vary == "sync" else 1.0,
            )
            try:
                periods_s.append(simulate(slice_of(inp), rho=math.nan).periods_s)
            except (SimulationStalled, ValueError):
                return None
        return _slope_of(*periods_s)

    tails = _tails(job)
    decode, sync = slope("decode"), slope("sync")
    if decode is not None and sync is not None and job.spec.workload.environment is None:
        train: _Slope | None = _Slope(-1.0 - decode.value + sync.value, math.hypot(decode.error, sync.error))
    else:
        train = slope("train")
    tail = None if tails is None else slope("tail", tails)
    return Elasticity(*(None if s is None else s.beyond_noise for s in (decode, train, sync, tail)))


@dataclass(frozen=True)
class _Slope:
    """A slope with its standard error."""

    value: float
    error: float

    @property
    def beyond_noise(self) -> float:
        """The slope, 0 where noise may have made it."""
        return 0.0 if abs(self.value) < max(_LEAST_SLOPE, _ERRORS * self.error) else self.value


def _slope_of(slow_s: NDArray[np.float64], fast_s: NDArray[np.float64]) -> _Slope:
    """The slope between the periods of two runs under the same random numbers; its error from blocks of steps, which both share."""
    width = 2.0 * math.log(_NUDGE)
    pairs = zip(np.array_split(slow_s, _BLOCKS), np.array_split(fast_s, _BLOCKS), strict=True)
    blocks = [math.log(fast.mean() / slow.mean()) / width for slow, fast in pairs]
    return _Slope(math.log(fast_s.mean() / slow_s.mean()) / width, float(np.std(blocks, ddof=1)) / math.sqrt(_BLOCKS))


def _tails(job: Job) -> tuple[Job, Job] | None:
    """The job with a lighter and a heavier tail of response lengths at the same mean; None if the cap leaves no room for it."""
    mean, cv, cap = job.lengths.mean(), job.lengths.cv(), job.lengths.cap_tokens
    try:
        lighter, heavier = (LengthDistribution.from_mean_cv(mean, cv * f, cap) for f in (1.0 / _NUDGE, _NUDGE))
    except ValueError:
        return None
    return job.with_lengths(lighter), job.with_lengths(heavier)
