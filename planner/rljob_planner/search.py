"""Finds the best split: screen all layouts by formulas, simulate those that could win until the ranking is certain.

1. ``layouts`` lists what the spec, the nodes and memory allow; what falls out keeps its reason.
2. ``screen`` gives each layout its in-flight cap and judges it by the closed form.
3. The front runners are simulated (``evaluation``), all with the same random numbers. Each round is longer and keeps only those
   that may still be the best.
4. A layout whose simulated staleness is over its limit gets a lower cap and another simulation, or falls out.
5. ``around`` the winner: whether staying synchronous would be faster, its neighbours, other lengths, what would help most.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from rljob_planner.api.spec import Objective, RLJobSpec
from rljob_planner.around import SWEEP_FACTORS, elasticity, neighbour_splits, synchronous
from rljob_planner.calibrate import Calibration
from rljob_planner.errors import PlanningError
from rljob_planner.evaluation import check_simulable, full_steps, quick_steps, simulated
from rljob_planner.job import Job
from rljob_planner.layouts import Layout, Space
from rljob_planner.lengths import LengthDistribution
from rljob_planner.outcome import Candidate, Evaluation, Plan, RunTime, SweepPoint
from rljob_planner.placement import Room, placeable_gpus
from rljob_planner.screen import Screened, most_in_flight, screened
from rljob_planner.split import Split

__all__ = ["Evaluation", "Plan", "PlanningError", "evaluate", "plan"]

SCREEN_MARGIN = 0.25
"""Share by which a layout may trail the best in the closed form and still be simulated: more than the form is ever wrong."""

QUICK_MARGIN = 0.03
"""Share by which a layout may trail the best of the quick simulations and still take part in the long ones."""

UNCALIBRATED_ERROR = 0.10
"""Relative error assumed of a model that nothing was measured with: its decode step is off by 6 % in the mean on hardware that
the constants were fitted to and by about 20 % on other hardware."""

_MOST_QUICK, _MOST_FULL = 8, 3
_MOST_TRIED = 24
"""Layouts that are simulated at most where none keeps to the staleness limit."""
_LOWER_CAP = 0.85
_CAP_TRIES = 6
_CAP_STEP, _FINE_STEP = 1.3, 1.12
_CLEAR_GAIN = 0.02
_SLACK = 2.0
_HELD_BACK, _SATURATED, _WASTEFUL = 0.2, 0.98, 0.1
_WORTH = 0.004
"""Share of the period that counts as a difference between two caps."""
_NOISE = 0.005
"""Share of the period below which two splits can't be told apart by simulation."""
_P90_SIGMA = 1.2816


@dataclass
class _Search:
    """One search under way."""

    job: Job
    calibration: Calibration
    run_steps: int
    seed: int
    _evaluations: dict[tuple[int, str], Evaluation] = field(default_factory=dict)

    def burden(self, split: Split, period_s: float) -> float:
        """What the objective minimises: seconds of a step, or dollars (GPU-seconds where a GPU has no price)."""
        if self.job.spec.objective is Objective.TIME:
            return period_s
        price = self.job.usd_per_hour(split)
        return period_s * (split.gpus if price is None else price / 3600.0)

    def rank(self, found: Evaluation) -> tuple[bool, float]:
        """Sorts feasible before infeasible, then by the objective."""
        return bool(found.reason), self.burden(found.split, found.period_s)

    def evaluation(self, split: Split, steps: int) -> Evaluation:
        """A split, simulated over so many steps."""
        key = (steps, split.model_dump_json())
        if key not in self._evaluations:
            self._evaluations[key] = simulated(
                self.job, split, self.calibration, steps=steps, seed=self.seed, run_steps=self.run_steps
            )
        return self._evaluations[key]

    def within_limit(self, split: Split, steps: int) -> Evaluation:
        """A split simulated with the largest cap, from its own downwards, that keeps staleness to its limit."""
        found = self.evaluation(split, steps)
        for _ in range(_CAP_TRIES):
            lower = max(self.job.group, int(split.in_flight * _LOWER_CAP) // self.job.group * self.job.group)
            if not found.reason or lower >= split.in_flight or math.isinf(found.period_s):
                break
            split = split.model_copy(update={"in_flight": lower})
            found = self.evaluation(split, steps)
        return found

    def raised(self, found: Evaluation, steps: int) -> Evaluation:
        """The same split with a clearly higher cap, if the samplers could run more and that makes it clearly better."""
        return self._climbed(found, steps, _CAP_STEP, _CLEAR_GAIN) if _could_run_more(found) else found

    def tuned(self, found: Evaluation, steps: int) -> Evaluation:
        """The same split with the best cap near its own, as simulated: the formulas that chose it know no groups and no bursts.

        A higher cap has to be faster; if none is, the lowest that is as fast, since it is less stale.
        """
        ways = [(1.0 / _CAP_STEP, -_WORTH), (1.0 / _FINE_STEP, -_WORTH)]
        if _could_run_more(found):
            ways = [(_CAP_STEP, _WORTH), (_FINE_STEP, _WORTH), *ways]
        for factor, least_gain in ways:
            other = self._climbed(found, steps, factor, least_gain)
            if other is not found:
                return other
        return found

    def _climbed(self, found: Evaluation, steps: int, factor: float, least_gain: float) -> Evaluation:
        """The last of ever higher (or lower) caps that gains at least so much over the best before it."""
        most = most_in_flight(self.job, Layout(found.split.samplers, found.split.trainers), _SLACK)
        fastest = self.burden(found.split, found.period_s)
        for _ in range(_CAP_TRIES):
            groups = found.split.in_flight * factor / self.job.group
            cap = self.job.group * (math.ceil(groups) if factor > 1.0 else math.floor(groups))
            if not self.job.group <= cap <= most:
                break
            other = self.evaluation(found.split.model_copy(update={"in_flight": cap}), steps)
            burden = self.burden(other.split, other.period_s)
            if other.reason or burden > fastest * (1.0 - least_gain):
                break
            found, fastest = other, min(fastest, burden)
        return found


def _could_run_more(found: Evaluation) -> bool:
    """Whether a higher cap can make a split faster: the trainer waits, the cap holds samplers back, and little is dropped.

    Groups enter and leave whole, so that a cap of few groups is never full on the mean.
    """
    held_back = found.mean_in_flight > _HELD_BACK * found.split.in_flight
    return held_back and found.trainer_utilization < _SATURATED and found.wasted_fraction < _WASTEFUL


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
    counts and cap vary, so that no pod template changes; ``trainer_replicas`` fixes that count too. Without ``detail`` there
    are no neighbours, no length sweep and no elasticity: enough for a decision, in a fraction of the time. Raises
    PlanningError with a reason and a remedy.
    """
    job = Job.of(spec, rooms, lengths, calibration)
    check_simulable(job)
    run_steps = max(1, spec.workload.steps if steps is None else steps)
    search = _Search(job, calibration or Calibration(), run_steps, seed)
    space = Space(job, rooms, keep, trainer_replicas)
    judged = _screen(search, space)
    ranked = _race(search, judged)
    best = ranked[0]
    if best.reason:
        raise PlanningError("NothingFeasible", _nothing_feasible(best))
    lock_step = synchronous(job, space, best.split, search.calibration, seed) if keep is None else None
    return Plan(
        split=best.split,
        mode="async" if lock_step is None or search.rank(best) <= search.rank(lock_step) else "sync",
        period=best.period,
        staleness=best.staleness,
        run_time=_run_time(search, best),
        cost=_cost(search, best),
        synchronous=lock_step,
        synchronous_run_time=None if lock_step is None else _run_time(search, lock_step),
        synchronous_cost=None if lock_step is None else _cost(search, lock_step),
        bottleneck=best.bottleneck,
        confidence=search.calibration.residual,
        candidates=_candidates(search, judged, ranked),
        neighbours=_neighbours(search, space, best) if detail else (),
        length_sweep=_length_sweep(search, rooms, keep, best) if detail else (),
        elasticity=elasticity(job, best, search.calibration, seed) if detail else None,
        placeable_gpus=placeable_gpus(
            rooms, best.split.samplers.gpus_per_replica, best.split.trainers.gpus_per_replica, spec.gpus
        ),
        rho=best.rho,
        evaluation=best,
        notes=_notes(search, space, best),
    )


def evaluate(
    spec: RLJobSpec,
    split: Split,
    rooms: Sequence[Room],
    *,
    calibration: Calibration | None = None,
    lengths: LengthDistribution | None = None,
    steps: int | None = None,
    seed: int = 0,
) -> Evaluation:
    """One split, simulated as ``plan`` simulates its finalists: the same steps, and the same random numbers for the same seed.

    ``steps`` simulates more or fewer of them.
    """
    job = Job.of(spec, rooms, lengths, calibration)
    check_simulable(job)
    return simulated(job, split, calibration or Calibration(), steps=steps or full_steps(job), seed=seed)


def _screen(search: _Search, space: Space) -> list[Screened]:
    """All layouts judged by formulas, the best first; around the best also those that a large budget passed over."""
    layouts = space.first(fewer_samplers=search.job.spec.objective is Objective.COST)
    judged: dict[tuple[int, int, int], Screened] = {}
    least = math.inf

    def hopeless(found: Screened) -> bool:
        return search.burden(found.split, found.period_s) > least * (1.0 + SCREEN_MARGIN)

    while layouts:
        for layout in layouts:
            found = screened(search.job, layout, search.calibration, search.run_steps, hopeless)
            judged[_shape(layout)] = found
            if not found.reason:
                least = min(least, search.burden(found.split, found.period_s))
        layouts = _between(search, space, judged)
    return sorted(judged.values(), key=lambda s: (bool(s.reason), search.burden(s.split, s.period_s)))


def _shape(layout: Layout) -> tuple[int, int, int]:
    return layout.samplers.gpus_per_replica, layout.trainers.replicas, layout.samplers.replicas


def _between(search: _Search, space: Space, judged: dict[tuple[int, int, int], Screened]) -> list[Layout]:
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


def _race(search: _Search, judged: list[Screened]) -> list[Evaluation]:
    """The front runners simulated, quickly and then in full; the best first, what is over its staleness limit last.

    Where none of the front runners keeps to the limit, the next ones get their turn.
    """
    quick, full = quick_steps(search.job), full_steps(search.job)
    least = search.burden(judged[0].split, judged[0].period_s)
    running = [s.split for s in judged if search.burden(s.split, s.period_s) <= least * (1.0 + SCREEN_MARGIN)]
    running = running[:_MOST_QUICK] or [judged[0].split]
    waiting = [s.split for s in judged if s.split not in running]
    found = [search.raised(search.within_limit(split, quick), quick) for split in running]
    while all(e.reason for e in found) and waiting and len(found) < _MOST_TRIED:
        found += [search.within_limit(split, quick) for split in waiting[:_MOST_QUICK]]
        waiting = waiting[_MOST_QUICK:]
    found.sort(key=search.rank)
    limit = search.burden(found[0].split, found[0].period_s)
    finalists = [
        e
        for e in found
        if not e.reason
        and search.burden(e.split, e.period_s) <= limit * (1.0 + max(QUICK_MARGIN, 2.0 * e.period_error))
    ][:_MOST_FULL]
    ranked = [search.tuned(search.within_limit(e.split, full), full) for e in finalists]
    others = [e for e in found if e not in finalists]
    ranked.sort(key=search.rank)
    if not ranked or ranked[0].reason:
        # A longer look found what the quick one missed: everything else gets the longer look, too.
        ranked = sorted(ranked + [search.within_limit(e.split, full) for e in others if not e.reason], key=search.rank)
        others = [e for e in others if e.reason]
    return ranked + others


def _nothing_feasible(best: Evaluation) -> str:
    return (
        f"no split keeps to the staleness limit; the nearest, {best.split.label()} with {best.split.in_flight} samples in "
        f"flight, does not: {best.reason}. Raise staleness.max, use staleness.bound: admission, or give queue.capacity"
    )


def _run_time(search: _Search, found: Evaluation) -> RunTime:
    """The run's time: the sum of many periods, whose noise averages out, times the model's error, which does not."""
    median_s = found.period_s * search.run_steps
    noise = found.period_error * math.sqrt(full_steps(search.job) / search.run_steps)
    residual = search.calibration.residual
    sigma = math.hypot(noise, UNCALIBRATED_ERROR if residual is None else residual)
    spread = math.exp(_P90_SIGMA * sigma)
    return RunTime(median_s / spread, median_s, median_s * spread)


def _cost(search: _Search, found: Evaluation) -> float | None:
    price = search.job.usd_per_hour(found.split)
    return None if price is None else price * found.period_s * search.run_steps / 3600.0


def _candidates(search: _Search, judged: Sequence[Screened], ranked: Sequence[Evaluation]) -> tuple[Candidate, ...]:
    """Everything that was looked at: simulated ones with what they lose, screened ones with what the formulas say."""
    found = [_simulated_candidate(search, e, ranked[0]) for e in ranked]
    for s in judged:
        if not any(s.split.same_shape(e.split) for e in ranked):
            reason = s.reason or _loss(search, s.split, s.period_s, ranked[0])
            found.append(Candidate(s.split, s.period_s, s.staleness_mean, not s.reason, reason))
    return tuple(sorted(found, key=lambda c: not c.feasible))


def _simulated_candidate(search: _Search, e: Evaluation, best: Evaluation) -> Candidate:
    reason = e.reason or ("" if e is best else _loss(search, e.split, e.period_s, best))
    period_s = e.period_s if math.isfinite(e.period_s) else None
    staleness = e.staleness.mean if math.isfinite(e.staleness.mean) else None
    return Candidate(e.split, period_s, staleness, not e.reason, reason, simulated=True)


def _loss(search: _Search, split: Split, period_s: float, best: Evaluation) -> str:
    what = "period" if search.job.spec.objective is Objective.TIME else "cost"
    loss = search.burden(split, period_s) / search.burden(best.split, best.period_s) - 1.0
    if abs(loss) < _NOISE:
        return f"{what} as good as the best within the noise of the simulation"
    return f"{what} {loss:+.1%} against the best"


def _neighbours(search: _Search, space: Space, best: Evaluation) -> tuple[Candidate, ...]:
    job = search.job
    splits = neighbour_splits(job, space, best.split, search.calibration, search.run_steps)
    found: list[Candidate] = []
    for split in splits:
        other = search.within_limit(split, full_steps(job))
        candidate = _simulated_candidate(search, other, best)
        bound = "" if other.reason else f", bound by {other.bottleneck}"
        found.append(
            Candidate(
                candidate.split,
                candidate.period_s,
                candidate.staleness_mean,
                candidate.feasible,
                candidate.reason + bound,
                simulated=True,
            )
        )
    return tuple(found)


def _length_sweep(
    search: _Search, rooms: Sequence[Room], keep: Split | None, best: Evaluation
) -> tuple[SweepPoint, ...]:
    """The best split at other mean lengths under the same cap; a length that nothing fits is left out.

    One quick simulation each: this is a map of where the optimum goes, not a plan to act on.
    """
    found: list[SweepPoint] = []
    for factor in SWEEP_FACTORS:
        if factor == 1.0:
            found.append(SweepPoint(factor, best.split, best.period_s))
            continue
        job = search.job.with_lengths(search.job.lengths.scaled(factor))
        other = _Search(job, search.calibration, search.run_steps, search.seed)
        try:
            judged = _screen(other, Space(job, rooms, keep))
        except PlanningError:
            continue
        front = [s for s in judged[:2] if not s.reason]
        quick = [other.within_limit(s.split, quick_steps(job)) for s in front]
        if quick and not min(quick, key=other.rank).reason:
            winner = min(quick, key=other.rank)
            found.append(SweepPoint(factor, winner.split, winner.period_s))
    return tuple(found)


def _notes(search: _Search, space: Space, best: Evaluation) -> tuple[str, ...]:
    notes = [f"{what}: {why}" for what, why in space.rejected.items()]
    if search.job.spec.objective is Objective.COST and search.job.usd_per_hour(best.split) is None:
        notes.append("no price is known for these GPUs: ranked by GPU-seconds instead of cost")
    if search.calibration.pegged:
        notes.append(
            "a calibration factor stands at its limit: the hardware, the model or the readings are not what they are said to be"
        )
    return tuple(notes)
