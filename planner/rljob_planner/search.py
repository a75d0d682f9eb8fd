"""Finds the best split: judge all layouts by formulas, simulate those that could win until the ranking is certain.

1. ``layouts`` lists what the spec, the nodes and memory allow; what falls out keeps its reason.
2. ``race.line_up``: ``screen`` gives each layout its in-flight cap and judges it by the closed form.
3. ``race.winners``: the front runners are simulated (``evaluation``), all with the same random numbers, first quickly, then those
   that may still be the best in full. A layout whose simulated staleness is over its limit gets a lower cap, or falls out.
4. ``around.settled``: the winner meets its neighbours, and gives way to one that is better. Equals are told apart by a rule.
5. ``around`` the winner: whether working in lock step would be faster, other lengths, what fresher samples cost and what
   would help most.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from rljob_planner.api.spec import Bound, Objective, RLJobSpec
from rljob_planner.around import elasticity, length_sweep, mean_period_s, one_step_off, pareto, settled, synchronous
from rljob_planner.calibrate import Calibration, doubts
from rljob_planner.errors import PlanningError
from rljob_planner.evaluation import check_simulable, full_steps, quick_steps, simulated
from rljob_planner.job import Job
from rljob_planner.layouts import Layout, Space
from rljob_planner.lengths import LengthDistribution
from rljob_planner.outcome import Candidate, Elasticity, Evaluation, Plan, Run, RunTime, SweepPoint, two_digits
from rljob_planner.placement import Room
from rljob_planner.pools import mixed_note
from rljob_planner.race import NOISE, Race, line_up, winners
from rljob_planner.sandboxes import Sandboxes, sandbox_note, sandboxes
from rljob_planner.screen import Screened, screened
from rljob_planner.split import Split

__all__ = ["Evaluation", "Plan", "PlanningError", "evaluate", "plan"]

UNCALIBRATED_ERROR = 0.33
"""Standard deviation of ln(measured over predicted period) while nothing is measured: over the published step times whose GPU is
known and whose samplers fit on a node, 48 of them, the median of its absolute value is 0.22 (docs/validation.md)."""

_CLEARLY, _LITTLE = 1.25, 0.05
"""How much larger one slope of the period must be than another to count."""
_MANY_UNUSED = 0.05
"""Share of the budget from which on the reader is told why it stays unused."""
_WASTEFUL = 0.10
"""Share of the generated tokens from which on throwing them away is worth a note."""
_FEW_TRAINERS, _WORTH_SAYING = 4, 0.02
"""Trainer counts up to which the size of trainer pods is a coarse choice, and the gain from which on a finer one is worth a note."""
_QUICKER = 1.1
"""How much faster environments are supposed to get, as decoding and training are for their slopes."""
_P90_SIGMA = 1.2816
_CLIPPED = 0.02
"""Share of the mean length that a cap must hide for the reader to be told."""


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
    are no neighbours, no length sweep, no elasticity, no Pareto front and no one-step-off: enough for a decision, in a third of the
    time. Raises
    PlanningError with a reason and a remedy.
    """
    job = Job.of(spec, rooms, lengths, calibration)
    check_simulable(job)
    calibration = calibration or Calibration()
    race = Race(job, calibration, max(1, spec.workload.steps if steps is None else steps), seed)
    space = Space(job, rooms, keep, trainer_replicas)
    judged = line_up(race, space)
    best = winners(race, judged)[0]
    if best.reason:
        raise PlanningError("NothingFeasible", _nothing_feasible(best))
    best, beside = settled(race, space, best, thorough=detail)
    sync = synchronous(job, space, best.split, calibration, seed) if keep is None else None
    off = one_step_off(job, (s.layout for s in judged), calibration, seed) if detail and keep is None else None
    sweep = length_sweep(race, space, best) if detail else ()
    environments = _environments(race, best)
    slopes = elasticity(job, best, calibration, seed) if detail else None
    best = _agreeing(best, slopes)
    growth = spec.workload.response_tokens.growth if lengths is None else None
    run = _run(race, best, growth)
    return Plan(
        split=best.split,
        mode=_mode(race, best, sync, off),
        period=best.period,
        staleness=best.staleness,
        run_time=run.run_time,
        cost=run.cost,
        lock_steps={e.split.mode: _run(race, e, growth) for e in (sync, off) if e is not None},
        bottleneck=best.bottleneck,
        confidence=calibration.residual,
        candidates=_candidates(race, judged, best),
        neighbours=tuple(_neighbour(race, e, best) for e in beside) if detail else (),
        length_sweep=sweep,
        elasticity=slopes,
        placeable_gpus=space.placeable(best.split.samplers.gpus_per_replica),
        rho=best.rho,
        evaluation=best,
        notes=_notes(race, space, run, growth, off, sweep, environments, _coarse(race, space, best) if detail else ""),
        pareto=pareto(race, judged, best.split, (sync, off)) if detail else (),
        sandboxes=environments,
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


def _nothing_feasible(best: Evaluation) -> str:
    return (
        f"no split keeps to the staleness limit; the nearest, {best.split.label()} with {best.split.in_flight} samples in "
        f"flight, does not: {best.reason}. Raise staleness.max, use staleness.bound: admission, or give queue.capacity"
    )


def _agreeing(best: Evaluation, slopes: Elasticity | None) -> Evaluation:
    """The best split, balanced if it would gain clearly more from the side that is not its bottleneck."""
    if slopes is None or slopes.decode is None or slopes.train is None:
        return best
    gains = {"samplers": -slopes.decode, "trainers": -slopes.train}
    here = gains.pop(best.bottleneck, math.inf)
    return replace(best, bottleneck="balanced") if max(gains.values()) > _CLEARLY * max(here, 0.0) + _LITTLE else best


def _mode(race: Race, best: Evaluation, sync: Evaluation | None, off: Evaluation | None) -> str:
    """The mode of the best way to run the job; one-step-off counts if the method tolerates samples that are one version old."""
    tolerated = off if race.job.spec.staleness.max >= 1 else None
    return min((e for e in (best, sync, tolerated) if e is not None), key=race.rank).split.mode


def _environments(race: Race, best: Evaluation) -> Sandboxes | None:
    """What the job's environments need; where too few gate it, also what these replicas would use without a limit."""
    unlimited = None
    if best.bottleneck == "sandboxes":
        free = replace(race.job, spec=race.job.spec.model_copy(update={"sandbox": None}))
        layout = Layout(best.split.samplers, best.split.trainers)
        split = screened(free, layout, race.calibration, race.run_steps).split
        unlimited = simulated(free, split, race.calibration, steps=quick_steps(free), seed=race.seed)
    return sandboxes(race.job, best, unlimited)


def _run(race: Race, found: Evaluation, growth: float | None) -> Run:
    """What the whole run takes and costs with a split: many periods, whose noise averages out, times the model's error, which does not."""
    period_s = mean_period_s(race, found, growth)
    median_s = period_s * race.run_steps
    noise = found.period_error * math.sqrt(full_steps(race.job) / race.run_steps)
    residual = race.calibration.residual
    sigma = math.hypot(noise, UNCALIBRATED_ERROR if residual is None else residual)
    spread = math.exp(_P90_SIGMA * sigma)
    price = race.job.usd_per_hour(found.split)
    return Run(
        found,
        RunTime(median_s / spread, median_s, median_s * spread),
        None if price is None else price * median_s / 3600.0,
        period_s,
    )


def _candidates(race: Race, judged: Sequence[Screened], best: Evaluation) -> tuple[Candidate, ...]:
    """Everything that was looked at: simulated ones with what they lose, screened ones with what the formulas say."""
    simulated_ones: list[Evaluation] = []
    by_formula: list[Candidate] = []
    for s in judged:
        known = best if s.split.same_shape(best.split) else race.best_known(s.split)
        if known is not None:
            simulated_ones.append(known)
            continue
        reason = s.reason or ("at least " if s.floor else "") + _loss(race, s.split, s.period_s, best)
        staleness = None if s.floor else s.staleness_mean
        by_formula.append(Candidate(s.split, s.period_s, staleness, not s.reason, reason))
    ranked = sorted(simulated_ones, key=lambda e: (e is not best, race.rank(e)))
    found = [_candidate(race, e, best) for e in ranked] + by_formula
    return tuple(sorted(found, key=lambda c: not c.feasible))


def _candidate(race: Race, e: Evaluation, best: Evaluation) -> Candidate:
    reason = e.reason or ("" if e is best else _loss(race, e.split, e.period_s, best))
    finite = math.isfinite(e.period_s)
    return Candidate(
        e.split,
        e.period_s if finite else None,
        e.staleness.mean if math.isfinite(e.staleness.mean) else None,
        not e.reason,
        reason,
        simulated=True,
        ratio_variance=e.staleness.ratio_variance if finite else None,
    )


def _neighbour(race: Race, e: Evaluation, best: Evaluation) -> Candidate:
    candidate = _candidate(race, e, best)
    return candidate if e.reason else replace(candidate, reason=f"{candidate.reason}, bound by {e.bottleneck}")


def _loss(race: Race, split: Split, period_s: float, best: Evaluation) -> str:
    what = "period" if race.job.spec.objective is Objective.TIME else "cost"
    loss = race.burden(split, period_s) / race.cost_of(best) - 1.0
    if abs(loss) < NOISE:
        return f"{what} as good as the best within the noise of the simulation"
    return f"{what} {two_digits(loss)} against the best"


def _idle_ranks(space: Space, best: Split) -> str:
    """What to say where the budget holds more trainers than the batch has work for; empty where it does not."""
    job, trainers, unused = space.job, best.trainers, space.job.spec.gpus - best.gpus
    most = len(space.frontier(best.samplers.gpus_per_replica)) - 1
    if unused < max(trainers.gpus_per_replica, _MANY_UNUSED * job.spec.gpus) or space.most_useful(most) >= most:
        return ""
    return (
        f"{unused:,} GPUs stay unused: a step has {job.batch:,} samples, and trainers with more data-parallel ranks than that, or "
        "samplers without a sample in flight, would only wait; a larger batch could use more"
    )


def _thrown_away(race: Race, best: Evaluation) -> str:
    """What to say of much work that is dropped: how much, and what to change; empty where little is."""
    if best.wasted_fraction < _WASTEFUL:
        return ""
    thriftier = [e for e in race.runs() if not e.reason and e.wasted_fraction <= 0.5 * best.wasted_fraction]
    other = min(thriftier, key=race.rank, default=None)
    instead = ""
    if other is not None:
        instead = f" ({other.split.label()} with {other.split.in_flight:,}: {other.wasted_fraction:.0%}, {other.period_s:.3g} s a step)"
    if race.job.spec.staleness.bound is Bound.DROP:
        because = (
            "because their samples are over the limit when they are to be trained, long responses more often than short ones, so that "
            "training sees shorter ones than the model writes"
        )
        remedies = "raise staleness.max, use staleness.bound: admission, or let fewer samples be in flight"
    else:
        because, remedies = (
            "because the queue is full",
            "raise queue.capacity, use queue.overflow: block, or let fewer samples be in flight",
        )
    return (
        f"{best.wasted_fraction:.0%} of the generated response tokens are thrown away, {because}: {remedies}{instead}"
    )


def _away(race: Race, best: Evaluation) -> str:
    """What to say of environments in which samples spend most of their life; empty where they do not, or where sandboxes are short."""
    job, environment = race.job, race.job.spec.workload.environment
    if environment is None or not best.environments_dominate or best.bottleneck == "sandboxes":
        return ""
    quicker = environment.model_copy(update={"seconds_per_turn": environment.seconds_per_turn / _QUICKER})
    workload = job.spec.workload.model_copy(update={"environment": quicker})
    other = replace(job, spec=job.spec.model_copy(update={"workload": workload}))
    faster_s = simulated(other, best.split, race.calibration, steps=full_steps(job), seed=race.seed).period_s
    saved = 1.0 - faster_s / best.period_s
    if not saved > 2.0 * NOISE:
        return ""
    more = ""
    if best.wasted_fraction < _WASTEFUL:
        more = "; more samples in flight hide them too, as far as staleness.max and its bound allow"
    return (
        f"{best.environment_share:.0%} of the samples in flight are in their environments: were those {_QUICKER - 1:.0%} faster, a step "
        f"would take {saved:.1%} less{more}"
    )


def _range(counts: Sequence[int]) -> str:
    """Numbers of trainers in words."""
    if counts[0] < counts[-1]:
        return f"{counts[0]} to {counts[-1]} trainers"
    return f"{counts[0]} trainer{'' if counts[0] == 1 else 's'} only"


def _coarse(race: Race, space: Space, best: Evaluation) -> str:
    """What to say of trainer pods that leave few splits to choose from because nobody stated their size; empty where many are left."""
    job, size = race.job, space.trainer_gpus
    stated = "gpus_per_replica" in job.spec.trainer.model_fields_set
    if stated or space.keep is not None or size < 2 or space.trainer_replicas is not None:
        return ""
    counts = space.trainer_counts(best.split.samplers.gpus_per_replica)
    if not counts or len(counts) > _FEW_TRAINERS:
        return ""
    smaller = job.spec.trainer.model_copy(update={"gpus_per_replica": size // 2})
    halves = Job.of(job.spec.model_copy(update={"trainer": smaller}), job.accelerators, job.lengths, job.calibration)
    other = Race(halves, race.calibration, race.run_steps, race.seed)
    words = f"trainer.gpusPerReplica is not stated: with pods of {size} GPUs there can be {_range(counts)}"
    try:
        ahead = line_up(other, Space(halves, space.rooms))[0]
        found = other.within_limit(ahead.split, full_steps(halves))
    except PlanningError:
        return ""
    change = other.cost_of(found) / race.cost_of(best) - 1.0
    if found.reason or change > -_WORTH_SAYING:
        return ""
    what = "step" if job.spec.objective is Objective.TIME else "run's cost"
    return (
        f"{words}; pods of {size // 2} allow finer splits: {found.split.label()} makes a {what} about {-change:.0%} "
        f"{'shorter' if what == 'step' else 'lower'} ({found.period_s:.3g} s a step)"
    )


def _partly_measured(job: Job, split: Split) -> str:
    """What to say of a fleet of unlike GPUs of which one was measured; empty where there is none."""
    unlike = job.unlike(split.samplers)
    if len(unlike) < 2 or job.calibration is None or job.calibration.decode_seconds is None:
        return ""
    return (
        f"the calibration's seconds are taken for samplers on {job.accelerators.sampler.name} alone: those on other GPUs are planned by data "
        "sheets"
    )


def _notes(
    race: Race,
    space: Space,
    run: Run,
    growth: float | None,
    off: Evaluation | None,
    sweep: Sequence[SweepPoint],
    environments: Sandboxes | None,
    coarse: str,
) -> tuple[str, ...]:
    job, best = race.job, run.evaluation
    notes = [f"{what}: {why}" for what, why in space.rejected.items()]
    if job.spec.objective is Objective.COST and job.usd_per_hour(best.split) is None:
        notes.append("no price is known for these GPUs: ranked by GPU-seconds instead of cost")
    notes.append(_idle_ranks(space, best.split))
    notes.append(_thrown_away(race, best))
    notes.append(coarse)
    notes.append(_away(race, best))
    if race.calibration.pegged:
        notes.append(
            "a calibration factor stands at its limit: the hardware, the model or the readings are not what they are said to be"
        )
    notes += doubts(race.calibration)
    if off is not None and job.spec.staleness.max >= 1 and race.rank(off) < race.rank(best):
        notes.append(
            f"one step off, samplers making the next batch while the trainer takes the last one, would be faster: "
            f"{off.period_s:.3g} s a step with {off.split.label()}, every sample one version old"
        )
    if growth is not None:
        notes.append(
            f"with responses that grow to {growth:g} times their length, a step takes {run.period_s:.3g} s in the mean of the run "
            f"and {best.period_s:.3g} s at its start; run time and cost are those of this split all along"
        )
    clipped = [p for p in sweep if p.mean_tokens < (1.0 - _CLIPPED) * p.factor * job.lengths.mean()]
    if clipped:
        means = ", ".join(f"×{p.factor:g} a mean of {p.mean_tokens:,.0f} tokens" for p in clipped)
        notes.append(
            f"responseTokens.max of {job.lengths.cap_tokens:,} tokens cuts longer responses, so that they are longer by less "
            f"than the factor says: {means}"
        )
    notes.append(sandbox_note(best, environments))
    notes.append(mixed_note(job.unlike(best.split.samplers)))
    notes.append(_partly_measured(job, best.split))
    return tuple(note for note in notes if note)
