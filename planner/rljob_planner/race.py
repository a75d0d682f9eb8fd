"""The race: the layouts that formulas put in front are simulated, ever longer, until it is certain which one wins.

All runs use the same random numbers, so that the difference of two splits is far more certain than either. A run is never
repeated: what neighbours, candidates and the winner say of a split is one number, that of the longest run it had.

An in-flight cap is not only a formula's choice. A split whose samples get too old is tried again with a cap as much lower as the excess
of staleness says; one whose trainer waits while samplers could run more is tried with a higher one. So where the closed form is
wrong about staleness, which depends on bursts that it does not know, the race puts it right.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from rljob_planner.api.spec import Bound, Objective
from rljob_planner.calibrate import Calibration
from rljob_planner.evaluation import full_steps, quick_steps, simulated
from rljob_planner.job import Job
from rljob_planner.layouts import Layout, Space
from rljob_planner.outcome import Evaluation
from rljob_planner.screen import TOLERANCE, Screened, floor, most_in_flight, screened
from rljob_planner.split import Split

SCREEN_MARGIN = 0.15
"""Share by which a layout may trail the best in the closed form and still be simulated: more than the form is wrong where it knows
a layout's cap, as under ``admission`` and ``drop``."""

UNSURE_MARGIN = 0.25
"""The same under ``none`` and ``hold``, where the cap follows from the staleness that the form predicts."""

QUICK_MARGIN = 0.03
"""Share by which a layout may trail the best of the quick simulations and still take part in the long ones."""

NOISE = 0.005
"""Share of the period below which two splits can't be told apart by simulation."""

_MOST_QUICK, _MOST_FULL, _MOST_TUNED = 8, 3, 2
_MOST_TRIED = 24
"""Layouts that are simulated at most where none keeps to the staleness limit."""
_CAP_TRIES = 6
_CAP_STEP, _FINE_STEP = 1.3, 1.12
_LEAST_SHARE, _MOST_SHARE, _HELD_SHARE = 0.5, 0.9, 0.75
"""Of its cap, what a split that is too stale is tried with next: no less and no more than this; under ``hold``, where staleness
falls all at once when nothing is held back any more, no more than the last."""
_HIGHEST_STEP = 2.0
_QUEUED_VERSIONS = 0.75
"""Versions of staleness, about, that do not depend on the cap: what a group waits for its batch and in training."""
_CLEAR_GAIN = 0.02
_SLACK = 2.0
_HELD_BACK, _SATURATED, _WASTEFUL = 0.2, 0.98, 0.3
_WORTH = 0.004
"""Share of the period that counts as a difference between two caps."""


@dataclass
class Race:
    """One search under way: the job, and every split that was simulated so far."""

    job: Job
    calibration: Calibration
    run_steps: int
    """Steps of the run that is planned."""
    seed: int
    _known: dict[Split, tuple[int, Evaluation]] = field(default_factory=dict)
    """By split: the steps of its longest run, and what it showed."""

    def burden(self, split: Split, period_s: float) -> float:
        """What the objective minimises: seconds of a step, or dollars (GPU-seconds where a GPU has no price)."""
        if self.job.spec.objective is Objective.TIME:
            return period_s
        price = self.job.usd_per_hour(split)
        return period_s * (split.gpus if price is None else price / 3600.0)

    def cost_of(self, found: Evaluation | Screened) -> float:
        """The burden of a split that was simulated or judged."""
        return self.burden(found.split, found.period_s)

    def rank(self, found: Evaluation) -> tuple[bool, float]:
        """Sorts feasible before infeasible, then by the objective."""
        return bool(found.reason), self.cost_of(found)

    def evaluation(self, split: Split, steps: int) -> Evaluation:
        """A split, simulated over so many steps at least."""
        known = self._known.get(split)
        if known is None or known[0] < steps:
            found = simulated(self.job, split, self.calibration, steps=steps, seed=self.seed, run_steps=self.run_steps)
            known = self._known[split] = (steps, found)
        return known[1]

    def runs(self) -> list[Evaluation]:
        """What is known of every split that was simulated."""
        return [found for _, found in self._known.values()]

    def contenders(self, best: Evaluation, steps: int) -> list[Evaluation]:
        """Feasible splits that are simulated over fewer steps than these and seem better than ``best`` beyond noise."""
        limit = self.cost_of(best) * (1.0 - NOISE)
        return [e for ran, e in self._known.values() if ran < steps and not e.reason and self.cost_of(e) < limit]

    def chosen(self, steps: int) -> Evaluation:
        """The best of the feasible splits that are simulated over so many steps. There has to be one.

        Where several are as good within noise it takes the fewest GPUs, then the lower staleness (to a tenth of a version), then
        the fewest trainers, then the lowest cap: so that the answer does not hang on chance.
        """
        found = [e for ran, e in self._known.values() if ran >= steps and not e.reason]
        limit = min(self.cost_of(e) for e in found) * (1.0 + NOISE)

        def order(e: Evaluation) -> tuple[float, ...]:
            split = e.split
            return split.gpus, round(e.staleness.mean, 1), split.trainers.replicas, split.in_flight, self.cost_of(e)

        return min((e for e in found if self.cost_of(e) <= limit), key=order)

    def best_known(self, shape: Split) -> Evaluation | None:
        """The longest-run, then best of the simulated splits with these replicas."""
        runs = [known for split, known in self._known.items() if split.same_shape(shape) and split.mode == shape.mode]
        longest = max((steps for steps, _ in runs), default=0)
        return min((found for steps, found in runs if steps == longest), key=self.rank, default=None)

    def within_limit(self, split: Split, steps: int, best: float = math.inf) -> Evaluation:
        """A split simulated with a cap, its own or a lower one, that keeps staleness to its limit; the last tried if none does.

        A split whose trainer never waits is as fast as it can be: if that is clearly worse than ``best``, its cap is of no interest.
        """
        found = self.evaluation(split, steps)
        most = _HELD_SHARE if self.job.spec.staleness.bound is Bound.HOLD else _MOST_SHARE
        for _ in range(_CAP_TRIES):
            if not found.reason or math.isinf(found.period_s):
                break
            if found.trainer_utilization >= _SATURATED and self.cost_of(found) > best * (1.0 + 2.0 * QUICK_MARGIN):
                break
            share = min(most, max(_LEAST_SHARE, _allowed(self.job, found)))
            lower = max(self.job.group, int(split.in_flight * share) // self.job.group * self.job.group)
            if lower >= split.in_flight:
                break
            split = split.model_copy(update={"in_flight": lower})
            found = self.evaluation(split, steps)
        return found

    def raised(self, found: Evaluation, steps: int) -> Evaluation:
        """The same split with a clearly higher cap, if the samplers could run more and that makes it clearly better."""
        if not _could_run_more(found):
            return found
        if self.job.spec.staleness.bound is not Bound.NONE:
            return self._climbed(found, steps, _CAP_STEP, _CLEAR_GAIN)
        step = min(_HIGHEST_STEP, max(_FINE_STEP, _allowed(self.job, found)))
        return self._between(self._climbed(found, steps, step, _CLEAR_GAIN), steps)

    def _between(self, found: Evaluation, steps: int) -> Evaluation:
        """The same split with a cap at the limit of staleness, where the next higher cap that was tried is over it."""
        tried = [e for e in self.runs() if e.reason and e.split.same_shape(found.split) and e.staleness.mean < math.inf]
        above = min(
            (e for e in tried if e.split.in_flight > found.split.in_flight),
            key=lambda e: e.split.in_flight,
            default=None,
        )
        if above is None or above.staleness.mean <= found.staleness.mean:
            return found
        room = self.job.spec.staleness.mean_limit - found.staleness.mean
        share = room / (above.staleness.mean - found.staleness.mean)
        cap = found.split.in_flight + share * (above.split.in_flight - found.split.in_flight)
        whole = int(cap) // self.job.group * self.job.group
        if not found.split.in_flight < whole < above.split.in_flight:
            return found
        other = self.evaluation(found.split.model_copy(update={"in_flight": whole}), steps)
        better = not other.reason and self.cost_of(other) <= self.cost_of(found) * (1.0 - _WORTH)
        return other if better else found

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
        fastest = self.cost_of(found)
        for _ in range(_CAP_TRIES):
            groups = found.split.in_flight * factor / self.job.group
            cap = self.job.group * (math.ceil(groups) if factor > 1.0 else math.floor(groups))
            if not self.job.group <= cap <= most:
                break
            other = self.evaluation(found.split.model_copy(update={"in_flight": cap}), steps)
            if other.reason or self.cost_of(other) > fastest * (1.0 - least_gain):
                break
            found, fastest = other, min(fastest, self.cost_of(other))
        return found


def _allowed(job: Job, found: Evaluation) -> float:
    """By which factor a cap may change for the mean staleness to come to its limit, if it follows the cap as it does in a line."""
    limit = job.spec.staleness.mean_limit + 0.5 * TOLERANCE
    depends = max(0.1, found.staleness.mean - _QUEUED_VERSIONS)
    return max(0.0, limit - _QUEUED_VERSIONS) / depends


def _could_run_more(found: Evaluation) -> bool:
    """Whether a higher cap can make a split faster: the trainer waits, the cap holds samplers back, and little is dropped.

    Groups enter and leave whole, so that a cap of few groups is never full on the mean.
    """
    held_back = found.mean_in_flight > _HELD_BACK * found.split.in_flight
    return held_back and found.trainer_utilization < _SATURATED and found.wasted_fraction < _WASTEFUL


def line_up(race: Race, space: Space) -> list[Screened]:
    """All layouts judged by formulas, the best first; around the best also those that a large budget passed over.

    Those with the shortest floors are judged first, so that most others turn out hopeless before they are looked at.
    """
    layouts = space.first(fewer_samplers=race.job.spec.objective is Objective.COST)
    judged: dict[tuple[int, int, int], Screened] = {}
    least = math.inf
    while layouts:
        floors = [floor(race.job, layout, race.calibration) for layout in layouts]
        for found in sorted(floors, key=race.cost_of):
            if race.cost_of(found) <= least * (1.0 + _margin(race.job)):
                found = screened(race.job, found.layout, race.calibration, race.run_steps)
                if not found.reason:
                    least = min(least, race.cost_of(found))
            judged[_shape(found.layout)] = found
        layouts = _between(race, space, judged)
    return sorted(judged.values(), key=lambda s: (bool(s.reason), s.floor, race.cost_of(s)))


def _margin(job: Job) -> float:
    """Share by which a layout may trail the best by formulas and still win."""
    return UNSURE_MARGIN if job.spec.staleness.bound in (Bound.NONE, Bound.HOLD) else SCREEN_MARGIN


def _shape(layout: Layout) -> tuple[int, int, int]:
    return layout.samplers.gpus_per_replica, layout.trainers.replicas, layout.samplers.replicas


def _between(race: Race, space: Space, judged: dict[tuple[int, int, int], Screened]) -> list[Layout]:
    """Layouts with trainer counts half-way between the best one and those judged on either side of it."""
    best = min(judged.values(), key=lambda s: (bool(s.reason), s.floor, race.cost_of(s)))
    width, trainers, _ = _shape(best.layout)
    counts = sorted({t for w, t, _ in judged if w == width})
    at = counts.index(trainers)
    found: list[Layout] = []
    for other in counts[max(0, at - 1) : at] + counts[at + 1 : at + 2]:
        if abs(other - trainers) > 1 and (layout := space.layout(width, (other + trainers) // 2)) is not None:
            found.append(layout)
    return [layout for layout in found if _shape(layout) not in judged]


def winners(race: Race, judged: Sequence[Screened]) -> list[Evaluation]:
    """The front runners simulated, quickly and then in full; the best first, what is over its staleness limit last.

    Where none of the front runners keeps to the limit, the next ones get their turn. ``judged``: the best by formulas first.
    """
    quick, full = quick_steps(race.job), full_steps(race.job)
    running = front(race, judged)
    waiting = [s for s in judged if all(s is not other for other in running)]
    found: list[Evaluation] = []
    for s in running:
        best = min((race.cost_of(e) for e in found if not e.reason), default=math.inf)
        found.append(race.raised(race.within_limit(s.split, quick, best), quick))
    while all(e.reason for e in found) and waiting and len(found) < _MOST_TRIED:
        found += [race.within_limit(s.split, quick) for s in waiting[:_MOST_QUICK]]
        waiting = waiting[_MOST_QUICK:]
    found.sort(key=race.rank)
    limit = race.cost_of(found[0])
    close = [
        e for e in found if not e.reason and race.cost_of(e) <= limit * (1.0 + max(QUICK_MARGIN, 2.0 * e.period_error))
    ]
    finalists = close[:_MOST_FULL]
    tuned = [race.tuned(e, quick) for e in finalists[:_MOST_TUNED]] + finalists[_MOST_TUNED:]
    ranked = [race.within_limit(e.split, full) for e in tuned]
    others = [e for e in found if e not in finalists]
    ranked.sort(key=race.rank)
    if not ranked or ranked[0].reason:
        # A longer look found what the quick one missed: everything else gets the longer look, too.
        ranked = sorted(ranked + [race.within_limit(e.split, full) for e in others if not e.reason], key=race.rank)
        others = [e for e in others if e.reason]
    return ranked + others


def front(race: Race, judged: Sequence[Screened], most: int = _MOST_QUICK) -> list[Screened]:
    """What formulas put so near to the front that it may win."""
    limit = race.cost_of(judged[0]) * (1.0 + _margin(race.job))
    return [s for s in judged if race.cost_of(s) <= limit and not s.floor][:most] or [judged[0]]
