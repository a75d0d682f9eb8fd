"""Judging a layout by formulas, and choosing its in-flight cap: what the search does before it simulates.

The closed form takes the sharper of two limits, samplers or trainer, which is right away from their balance. At balance each
waits for the other now and then, so a smooth maximum takes its place: it keeps the search from choosing layouts that are
only good on average.

More in flight never makes rollout slower, but staler. So a layout gets the smallest cap that costs next to no time among those
that keep staleness to its limit. Under ``none`` and ``admission`` that is a short walk down from the largest cap; under ``hold``
and ``drop`` more in flight also waits or wastes more, so caps of all sizes are compared.

Most layouts of a large budget are far from the best whatever their cap. A bound only ever slows a job down, so the period without
one is a floor: the search asks for the floors of all layouts first, and for the caps only of those that may yet win.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from rljob_planner.api.spec import Bound
from rljob_planner.calibrate import Calibration
from rljob_planner.closedform import ClosedForm, predict
from rljob_planner.job import Job
from rljob_planner.layouts import Layout
from rljob_planner.split import Split

_SHARPNESS = 12.0
"""Exponent of the smooth maximum: 6 % above the limit at balance, under 1 % where the sides differ by a fifth."""
_CAP_SHARES = (1.0, 0.65, 0.42, 0.27, 0.18, 0.115, 0.075)
_BETWEEN = 0.8
"""From one of these shares about half-way to the next."""
_LESS, _LITTLE_LESS = 0.6, 0.78
"""Of a cap, the next lower one that is tried; where that is too low, the one between."""
_NEXT_TO_NO_TIME = 1.005
_CLEARLY_SLOWER = 1.2
_CAP_TRIES = 6
_QUEUED_VERSIONS = 0.75
"""Versions of staleness, about, that do not depend on the cap."""

TOLERANCE = 0.05
"""Versions by which a simulated mean may be over the limit: its own noise, where a bound keeps it exactly at the limit."""


@dataclass(frozen=True)
class Screened:
    """A layout with its cap, judged by formulas."""

    layout: Layout
    split: Split
    period_s: float
    staleness_mean: float
    reason: str
    """Why it is not feasible; empty if it is."""
    floor: bool = False
    """Whether the period is only the least that is possible: a hopeless layout, whose cap was not looked for (its staleness is NaN)."""


def may_run_away(job: Job) -> bool:
    """Whether nothing stops samplers that outrun the trainer: no bound on what starts, no capacity of the queue."""
    return job.spec.staleness.bound in (Bound.NONE, Bound.HOLD) and job.spec.queue is None


def runs_away(job: Job, rollout_rate: float, period_s: float, further_steps: float) -> float:
    """Mean staleness that a queue without an end adds in further steps, in versions.

    Where samplers generate ρ batches in a period, pauses for weights taken off, a group that is trained k steps later has waited
    for k·(1 − 1/ρ) versions more. ``rollout_rate`` is in samples per second.
    """
    if not may_run_away(job):
        return 0.0
    rho = rollout_rate * max(0.0, period_s - job.weight_sync_s) / job.batch
    return max(0.0, further_steps) * (1.0 - 1.0 / rho) if rho > 1.0 else 0.0


def over_limit(job: Job, mean: float) -> str:
    """The reason for a mean staleness above what the bound promises; empty if it is not."""
    staleness = job.spec.staleness
    if mean <= staleness.mean_limit + TOLERANCE:
        return ""
    waiting = " and one version in the queue" if staleness.bound is Bound.HOLD else ""
    return f"mean staleness {mean:.3g} is over the limit of {staleness.max}{waiting}"


def most_in_flight(job: Job, layout: Layout, slack: float = 1.0) -> int:
    """The largest cap worth having: what can run or be in its environment at once, and no more than staleness may ever admit.

    ``slack`` above 1 lets some wait: groups leave one sample at a time and enter whole, so that without any waiting slots stay empty.
    """
    samplers = layout.samplers
    kv_tokens, cost = job.samplers_of(samplers, 1.0)
    slots = min(samplers.max_running, kv_tokens / job.context_tokens)
    room = samplers.replicas * slots
    if job.away_s > 0.0:
        served = room / (cost.iteration_s(slots, slots * job.context_tokens) * job.lengths.mean())
        if job.sandbox_limit is not None:
            served = min(served, job.sandbox_limit / job.away_s)
        room += served * job.away_s
    room = room * slack + (slack - 1.0) * job.group
    return max(job.group, int(min(room, job.most_in_flight)) // job.group * job.group)


def judged(job: Job, layout: Layout, in_flight: int, calibration: Calibration, steps: int) -> Screened:
    """A layout with this cap, by formulas."""
    split = layout.split(in_flight)
    found = predict(job.simulation_input(split, calibration, steps=3, warmup=1))
    staleness = found.mean_staleness + runs_away(job, found.rollout_rate, found.period_s, 0.5 * steps)
    return Screened(layout, split, _smooth_period_s(job, found), staleness, over_limit(job, staleness))


def _smooth_period_s(job: Job, found: ClosedForm) -> float:
    """The period of the closed form, longer where both sides are about as fast."""
    step_s, rollout_s = job.batch / found.train_rate, job.batch / found.rollout_rate
    if found.period_s > step_s:
        rollout_s = max(rollout_s, found.period_s)
    ratio = min(step_s, rollout_s) / max(step_s, rollout_s)
    return float(found.period_s * (1.0 + ratio**_SHARPNESS) ** (1.0 / _SHARPNESS))


def floor(job: Job, layout: Layout, calibration: Calibration) -> Screened:
    """The shortest period that a layout can have: without a bound, and with all that its samplers can run."""
    split = layout.split(most_in_flight(job, layout))
    inp = job.simulation_input(split, calibration, steps=3, warmup=1)
    period_s = predict(replace(inp, bound="none")).period_s
    return Screened(layout, split, period_s, math.nan, "", floor=True)


def screened(job: Job, layout: Layout, calibration: Calibration, steps: int) -> Screened:
    """A layout with its best cap, by formulas."""

    def at(cap: float) -> Screened:
        return judged(job, layout, max(job.group, round(cap / job.group) * job.group), calibration, steps)

    most = most_in_flight(job, layout)
    if job.spec.staleness.bound in (Bound.NONE, Bound.ADMISSION):
        return _economical(job, at, _within_limit(job, at, most))
    best = _best_of(at, [most * share for share in _CAP_SHARES])
    return _best_of(at, [best.split.in_flight / _BETWEEN, best.split.in_flight * _BETWEEN], best)


def _within_limit(job: Job, at: Callable[[float], Screened], most: int) -> Screened:
    """About the largest cap that keeps to the limit; the least stale that was tried if none does.

    Staleness follows the cap nearly in a line, so that a cap over the limit says about where the limit is.
    """
    best = at(most)
    for _ in range(_CAP_TRIES):
        if not best.reason or best.split.in_flight <= job.group:
            break
        allowed = (job.spec.staleness.mean_limit - _QUEUED_VERSIONS) / max(0.1, best.staleness_mean - _QUEUED_VERSIONS)
        cap = min(best.split.in_flight * min(0.97, max(0.2, allowed)), best.split.in_flight - job.group)
        other = at(cap)
        if other.reason and other.staleness_mean >= best.staleness_mean:
            break
        best = other
    return best


def _economical(job: Job, at: Callable[[float], Screened], best: Screened) -> Screened:
    """About the smallest cap that costs next to no time."""
    fastest_s = best.period_s
    for less in (_LESS, _LITTLE_LESS):
        while not best.reason and best.split.in_flight * less >= job.group:
            other = at(best.split.in_flight * less)
            if other.reason or other.split == best.split or other.period_s > fastest_s * _NEXT_TO_NO_TIME:
                break
            best = other
            if less == _LITTLE_LESS:
                break
    return best


def _best_of(at: Callable[[float], Screened], caps: Sequence[float], best: Screened | None = None) -> Screened:
    """The best of these caps (largest first) and of what is known; the smallest of those that are as fast."""
    tried = set() if best is None else {best.split.in_flight}
    fastest_s = math.inf if best is None or best.reason else best.period_s
    for cap in caps:
        other = at(cap)
        if other.split.in_flight in tried:
            continue
        tried.add(other.split.in_flight)
        if best is None:
            best = other
        elif other.reason:
            if best.reason and other.staleness_mean < best.staleness_mean:
                best = other
        elif best.reason or other.period_s < fastest_s or _as_good(other, best, fastest_s):
            best = other
        elif other.period_s > fastest_s * _CLEARLY_SLOWER:
            break
        if not other.reason:
            fastest_s = min(fastest_s, other.period_s)
    assert best is not None
    return best


def _as_good(other: Screened, best: Screened, fastest_s: float) -> bool:
    """Whether a lower cap costs next to no time."""
    return other.split.in_flight < best.split.in_flight and other.period_s <= fastest_s * _NEXT_TO_NO_TIME
