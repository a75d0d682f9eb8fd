"""Finds the best split: screen all layouts by formulas, simulate those that could win until the ranking is certain.

The steps, from top to bottom of this file:

1. ``layouts`` lists what the spec, the nodes and memory allow; what falls out keeps its reason.
2. ``screen`` gives each layout its in-flight cap and judges it by the closed form, in microseconds.
3. The front runners are simulated, all with the same random numbers, so that their difference is far more certain than either
   period. Each round is longer and keeps only those that may still be the best.
4. A layout whose simulated staleness is over its limit gets a lower cap and another simulation, or falls out.
5. Around the winner: its neighbours, the best at other response lengths, what would help most, and whether staying
   synchronous would be faster.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from rljob_planner.api.spec import Bound, Objective, RLJobSpec
from rljob_planner.calibrate import Calibration
from rljob_planner.errors import PlanningError
from rljob_planner.job import Job
from rljob_planner.layouts import Layout, Space
from rljob_planner.lengths import LengthDistribution
from rljob_planner.outcome import (
    Candidate,
    Elasticity,
    Evaluation,
    Period,
    Plan,
    RunTime,
    Staleness,
    SweepPoint,
)
from rljob_planner.placement import Room, placeable_gpus
from rljob_planner.screen import Screened, over_limit, runs_away, screened
from rljob_planner.simulate import SimulationInput, SimulationResult, simulate
from rljob_planner.split import Split

__all__ = ["Evaluation", "Plan", "PlanningError", "evaluate", "plan"]

ROUNDS = ((48, 10, 0.06), (144, 4, 0.02), (400, 2, 0.0))
"""Rounds of simulation: steps, how many layouts at most, and by how much one may trail the best to stay in the race."""

SHORT_ROUNDS = ROUNDS[:2]
"""The rounds of a plan without details, for the operator's tick."""

SCREEN_MARGIN = 0.25
"""Share by which a layout may trail the best in the closed form and still be simulated: more than the form is ever wrong."""

UNCALIBRATED_ERROR = 0.10
"""Relative error of an uncalibrated model, for the spread of the run time: the mean error of its decode step on measured curves."""

SWEEP_FACTORS = (0.5, 1.0, 2.0, 4.0, 8.0)

BALANCED = 0.05
"""How far ρ may be from 1 for neither side to be called the bottleneck."""

_LOWER_CAP = 0.85
_CAP_TRIES = 5
_NUDGE = 1.1


@dataclass
class _Search:
    """One search under way."""

    job: Job
    calibration: Calibration
    steps: int
    seed: int
    evaluations: dict[str, Evaluation] = field(default_factory=dict)

    def burden(self, split: Split, period_s: float) -> float:
        """What the objective minimises: seconds of a step, or dollars (GPU-seconds where a GPU has no price)."""
        if self.job.spec.objective is Objective.TIME:
            return period_s
        price = self.job.usd_per_hour(split)
        return period_s * (split.gpus if price is None else price / 3600.0)

    def evaluation(self, split: Split, steps: int) -> Evaluation:
        """A split, simulated over so many steps."""
        key = f"{steps} {split.model_dump_json()}"
        if key not in self.evaluations:
            self.evaluations[key] = _simulated(self.job, split, self.calibration, steps, self.seed, self.steps)
        return self.evaluations[key]

    def within_limit(self, split: Split, steps: int) -> Evaluation:
        """A split simulated with the largest cap, from its own downwards, that keeps staleness to its limit."""
        found = self.evaluation(split, steps)
        for _ in range(_CAP_TRIES):
            lower = max(self.job.group, int(split.in_flight * _LOWER_CAP) // self.job.group * self.job.group)
            if not found.reason or lower >= split.in_flight:
                return found
            split = split.model_copy(update={"in_flight": lower})
            found = self.evaluation(split, steps)
        return found


def plan(
    spec: RLJobSpec,
    rooms: Sequence[Room],
    *,
    calibration: Calibration | None = None,
    lengths: LengthDistribution | None = None,
    steps: int | None = None,
    keep: Split | None = None,
    trainer_replicas: int | None = None,
    detail: bool = True,
    seed: int = 0,
) -> Plan:
    """The best split of a job on these nodes.

    ``lengths`` replaces the spec's response lengths, ``steps`` (those that remain) its steps. With ``keep`` only replica
    counts and cap vary, so that no pod template changes; ``trainer_replicas`` fixes that count too. Without ``detail``
    there is no length sweep, no elasticity and no synchronous layout: enough for a decision, in a fraction of the time.
    Raises PlanningError with a reason and a remedy.
    """
    job = Job.of(spec, rooms, lengths)
    search = _Search(job, calibration or Calibration(), steps or spec.workload.steps, seed)
    space = Space(job, rooms, keep, trainer_replicas)
    judged = _screen(search, space)
    races = ROUNDS if detail else SHORT_ROUNDS
    ranked = _race(search, judged, races)
    best = ranked[0]
    if best.reason:
        raise PlanningError("NothingFeasible", _nothing_feasible(best))
    neighbours = _neighbours(search, space, best, races[-1][0]) if detail else ()
    synchronous = _synchronous(search, space, best, races[-1][0]) if detail and keep is None else None
    sync_s = None if synchronous is None else synchronous.period_s
    mode = "sync" if sync_s is not None and sync_s < best.period_s else "async"
    return Plan(
        split=best.split,
        mode=mode,
        period=best.period,
        staleness=best.staleness,
        run_time=_run_time(search, best),
        cost=_cost(search, best),
        synchronous_period=sync_s,
        synchronous_split=None if synchronous is None else synchronous.split,
        synchronous_run_time=None if synchronous is None else _run_time(search, synchronous),
        synchronous_cost=None if synchronous is None else _cost(search, synchronous),
        speedup=None if sync_s is None else sync_s / best.period_s,
        bottleneck=best.bottleneck,
        confidence=search.calibration.residual,
        candidates=_candidates(search, judged, ranked),
        neighbours=neighbours,
        length_sweep=_length_sweep(search, rooms, keep, best) if detail else (),
        elasticity=_elasticity(search, best, races[-1][0]) if detail else None,
        placeable_gpus=placeable_gpus(
            rooms, best.split.samplers.gpus_per_replica, best.split.trainers.gpus_per_replica, spec.gpus
        ),
        rho=best.rho,
        evaluation=best,
        notes=tuple(f"{what}: {why}" for what, why in space.rejected.items()),
    )


def evaluate(
    spec: RLJobSpec,
    split: Split,
    rooms: Sequence[Room],
    *,
    calibration: Calibration | None = None,
    lengths: LengthDistribution | None = None,
    steps: int = SHORT_ROUNDS[-1][0],
    seed: int = 0,
) -> Evaluation:
    """One split, simulated as ``plan`` simulates its candidates, with the same random numbers for the same seed."""
    job = Job.of(spec, rooms, lengths)
    return _simulated(job, split, calibration or Calibration(), steps, seed, spec.workload.steps)


def _screen(search: _Search, space: Space) -> list[Screened]:
    """All layouts judged by formulas, the best first; around the best also those that a large budget passed over."""
    layouts = space.first(fewer_samplers=search.job.spec.objective is Objective.COST)
    judged: dict[tuple[int, int, int], Screened] = {}
    while layouts:
        worth_s = min((s.period_s for s in judged.values() if not s.reason), default=None)
        limit_s = None if worth_s is None else worth_s * (1.0 + SCREEN_MARGIN)
        for layout in layouts:
            judged[_shape(layout)] = screened(search.job, layout, search.calibration, search.steps, limit_s)
        layouts = _between(space, judged, search)
    return sorted(judged.values(), key=lambda s: (bool(s.reason), search.burden(s.split, s.period_s)))


def _shape(layout: Layout) -> tuple[int, int, int]:
    return layout.samplers.gpus_per_replica, layout.trainers.replicas, layout.samplers.replicas


def _between(space: Space, judged: dict[tuple[int, int, int], Screened], search: _Search) -> list[Layout]:
    """Layouts with trainer counts half-way between the best one and those judged on either side of it."""
    best = min(judged.values(), key=lambda s: (bool(s.reason), search.burden(s.split, s.period_s)))
    width, trainers, _ = _shape(best.layout)
    counts = sorted({t for w, t, _ in judged if w == width})
    at = counts.index(trainers)
    found: list[Layout] = []
    for other in counts[max(0, at - 1) : at] + counts[at + 1 : at + 2]:
        if abs(other - trainers) > 1 and (layout := space.layout(width, (other + trainers) // 2)) is not None:
            found.append(layout)
    return [layout for layout in found if _shape(layout) not in judged]


def _race(search: _Search, judged: list[Screened], rounds: Sequence[tuple[int, int, float]]) -> list[Evaluation]:
    """The front runners simulated, round by round; the best first. What is over its staleness limit comes last."""
    first = search.burden(judged[0].split, judged[0].period_s)
    running = [
        s.split for s in judged if search.burden(s.split, s.period_s) <= first * (1.0 + SCREEN_MARGIN) or s is judged[0]
    ]
    ranked: list[Evaluation] = []
    for steps, most, margin in rounds:
        found = [search.within_limit(split, steps) for split in running[:most]]
        found.sort(key=lambda e: (bool(e.reason), search.burden(e.split, e.period_s)))
        ranked = found + [e for e in ranked if not any(e.split.same_shape(f.split) for f in found)]
        limit = search.burden(found[0].split, found[0].period_s)
        running = [
            e.split
            for e in found
            if e is found[0]
            or (
                not e.reason and search.burden(e.split, e.period_s) <= limit * (1.0 + max(margin, 2.0 * e.period_error))
            )
        ]
    return ranked


def _simulated(job: Job, split: Split, calibration: Calibration, steps: int, seed: int, run_steps: int) -> Evaluation:
    warmup = _warmup(job)
    inp = job.simulation_input(split, calibration, steps=steps + warmup, warmup=warmup, seed=seed)
    result = simulate(inp)
    return _evaluation(job, split, inp, result, run_steps)


def _warmup(job: Job) -> int:
    """Steps until queue and in-flight samples have filled: the samples that admission lets run ahead, a few times over."""
    return 8 + 3 * (job.spec.staleness.max + 1) if job.spec.staleness.max <= 16 else 60


def _evaluation(job: Job, split: Split, inp: SimulationInput, result: SimulationResult, run_steps: int) -> Evaluation:
    limit, bound = job.spec.staleness.max, job.spec.staleness.bound
    drift = runs_away(job, result.rho, run_steps)
    mean = result.staleness.mean + drift
    reason = over_limit(job, mean)
    if bound is Bound.DROP and result.staleness.max > limit:
        reason = f"a trained sample was {result.staleness.max:.0f} versions old, over the limit of {limit}"
    periods = result.periods_s
    error = float(np.std(periods)) / math.sqrt(max(1, len(periods))) / max(result.period.mean, 1e-12)
    trained = result.tokens_per_second * result.elapsed_s
    return Evaluation(
        split=split,
        period=Period(result.period.mean, result.period.p10, result.period.p50, result.period.p90),
        period_error=error,
        staleness=Staleness(mean, result.staleness.p95 + drift, result.staleness.max + drift),
        rho=result.rho,
        bottleneck=_bottleneck(inp, result),
        sampler_utilization=result.sampler_utilization,
        trainer_utilization=result.trainer_utilization,
        mean_running=result.mean_running,
        mean_in_flight=result.mean_in_flight,
        queue_groups=result.queue_groups.mean,
        kv_utilization=result.kv_utilization,
        wasted_fraction=result.wasted_tokens / max(1.0, result.wasted_tokens + trained),
        tokens_per_second=result.tokens_per_second,
        within_staleness=not reason,
        reason=reason,
    )


def _bottleneck(inp: SimulationInput, result: SimulationResult) -> str:
    if inp.mode == "sync":
        return "samplers" if result.trainer_utilization < 0.5 else "trainers"
    if abs(result.rho - 1.0) <= BALANCED:
        return "balanced"
    return "samplers" if result.rho < 1.0 else "trainers"


def _nothing_feasible(best: Evaluation) -> str:
    return (
        f"no split keeps staleness to its limit; the nearest, {best.split.label()} with {best.split.in_flight} samples in flight, "
        f"does not: {best.reason}. Raise staleness.max, use bound admission, or raise workload.promptsPerStep"
    )


def _run_time(search: _Search, found: Evaluation) -> RunTime:
    """The run's time: the sum of many periods, whose noise averages out, times the model's error, which does not."""
    mean_s = found.period_s * search.steps
    spread = (found.period.p90 - found.period.p10) / 2.0 / max(found.period_s, 1e-12)
    noise = spread / math.sqrt(search.steps)
    residual = search.calibration.residual
    error = math.hypot(noise, 1.2816 * (UNCALIBRATED_ERROR if residual is None else residual))
    return RunTime(mean_s / (1.0 + error), mean_s, mean_s * (1.0 + error))


def _cost(search: _Search, found: Evaluation) -> float | None:
    price = search.job.usd_per_hour(found.split)
    return None if price is None else price * found.period_s * search.steps / 3600.0


def _candidates(search: _Search, judged: Sequence[Screened], ranked: Sequence[Evaluation]) -> tuple[Candidate, ...]:
    """Everything that was looked at: simulated ones with what they lose, screened ones with what the formulas say."""
    best = search.burden(ranked[0].split, ranked[0].period_s)
    unit = "period" if search.job.spec.objective is Objective.TIME else "cost"

    def loses(split: Split, period_s: float) -> str:
        loss = search.burden(split, period_s) / best - 1.0
        return f"{unit} {loss:+.1%}" if loss > 0 else f"{unit} equal"

    found = [
        Candidate(
            e.split,
            e.period_s,
            e.staleness.mean,
            not e.reason,
            e.reason or ("" if e is ranked[0] else loses(e.split, e.period_s)),
            simulated=True,
        )
        for e in ranked
    ]
    rest = [s for s in judged if not any(s.split.same_shape(e.split) for e in ranked)]
    found += [
        Candidate(s.split, s.period_s, s.staleness_mean, not s.reason, s.reason or loses(s.split, s.period_s))
        for s in rest
    ]
    return tuple(sorted(found, key=lambda c: not c.feasible))


def _neighbours(search: _Search, space: Space, best: Evaluation, steps: int) -> tuple[Candidate, ...]:
    width, trainers = best.split.samplers.gpus_per_replica, best.split.trainers.replicas
    found: list[Candidate] = []
    for count in (trainers - 1, trainers + 1):
        layout = space.layout(width, count) if count in space.trainer_counts(width) else None
        if layout is None:
            continue
        cap = screened(search.job, layout, search.calibration, search.steps).split.in_flight
        other = search.within_limit(layout.split(cap), steps)
        loss = other.period_s / best.period_s - 1.0
        found.append(
            Candidate(
                other.split,
                other.period_s,
                other.staleness.mean,
                not other.reason,
                other.reason or f"period {loss:+.1%}, bound by {other.bottleneck}",
                simulated=True,
            )
        )
    return tuple(found)


def _synchronous(search: _Search, space: Space, best: Evaluation, steps: int) -> Evaluation | None:
    """All GPUs sample, then all train: as many trainers as fit, and samplers of the best width on the same GPUs."""
    width, per_trainer = best.split.samplers.gpus_per_replica, space.trainer_gpus
    for trainers in range(len(space.frontier(width)) - 1, 0, -1):
        divided = space.trainers(trainers)
        samplers = trainers * per_trainer // width
        if divided is None or samplers == 0:
            continue
        split = Split(
            mode="sync",
            samplers=best.split.samplers.model_copy(update={"replicas": samplers}),
            trainers=divided,
            in_flight=search.job.batch,
        )
        found = _simulated(search.job, split, search.calibration, min(steps, 100), search.seed, search.steps)
        return replace(found, reason="", staleness=Staleness(0.0, 0.0, 0.0))
    return None


def _length_sweep(
    search: _Search, rooms: Sequence[Room], keep: Split | None, best: Evaluation
) -> tuple[SweepPoint, ...]:
    """The best split at other mean lengths, the cap on a response as it is."""
    found: list[SweepPoint] = []
    for factor in SWEEP_FACTORS:
        if factor == 1.0:
            found.append(SweepPoint(factor, best.split, best.period_s))
            continue
        try:
            other = plan(
                search.job.spec,
                rooms,
                calibration=search.calibration,
                lengths=search.job.lengths.scaled(factor),
                steps=search.steps,
                keep=keep,
                detail=False,
                seed=search.seed,
            )
        except PlanningError:
            continue
        found.append(SweepPoint(factor, other.split, other.period.mean))
    return tuple(found)


def _elasticity(search: _Search, best: Evaluation, steps: int) -> Elasticity:
    """D ln period / d ln x at the best split, by central differences under the same random numbers."""
    warmup = _warmup(search.job)

    def period_s(job: Job = search.job, **speeds: float) -> float:
        inp = job.simulation_input(
            best.split, search.calibration, steps=steps + warmup, warmup=warmup, seed=search.seed, **speeds
        )
        return simulate(inp).period.mean

    def slope(low_s: float, high_s: float) -> float:
        return math.log(high_s / low_s) / (2.0 * math.log(_NUDGE))

    response = search.job.spec.workload.response_tokens
    tail: float | None = None
    if response.mean is not None and response.cv > 0:
        try:
            low, high = (
                replace_lengths(
                    search.job, LengthDistribution.from_mean_cv(response.mean, response.cv * f, response.max)
                )
                for f in (1 / _NUDGE, _NUDGE)
            )
            tail = slope(period_s(low), period_s(high))
        except ValueError:
            tail = None
    return Elasticity(
        decode=slope(period_s(decode_speed=1 / _NUDGE), period_s(decode_speed=_NUDGE)),
        train=slope(period_s(train_speed=1 / _NUDGE), period_s(train_speed=_NUDGE)),
        sync=slope(period_s(sync_time=1 / _NUDGE), period_s(sync_time=_NUDGE)),
        tail=tail,
    )


def replace_lengths(job: Job, lengths: LengthDistribution) -> Job:
    """The same job with other response lengths."""
    return Job.of(job.spec, job.accelerators, lengths)
