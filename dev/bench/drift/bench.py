"""One trace, all policies: the order in which they are run, and what is told while they do."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np

from dev.bench.drift.clairvoyant import Model, model_of, run_clairvoyant
from dev.bench.drift.controlled import Controlled, run_controlled
from dev.bench.drift.effect import effect
from dev.bench.drift.judge import aims, row
from dev.bench.drift.plant import PlantError
from dev.bench.drift.result import PolicyName, TraceJson
from dev.bench.drift.site import Counts
from dev.bench.drift.stage import Outcome, Say, Stage
from dev.bench.drift.threshold import run_threshold
from dev.bench.drift.traces import Run
from rljob_operator.situation import STALENESS_TOLERANCE
from rljob_planner.api.spec import Bound
from rljob_planner.split import Split

SAME = 0.002
"""Difference of two static splits' totals that is noise: the first split is then as good as the best."""


@dataclass(frozen=True)
class Played:
    """All that became of one trace."""

    stage: Stage
    model: Model
    outcomes: dict[PolicyName, Outcome]
    controlled: Controlled | None
    json: TraceJson


def static_runs(stage: Stage, say: Say) -> list[tuple[Counts, Outcome]]:
    """Every split that could be best somewhere, with the cap that suits it, over the whole trace."""
    splits = stage.splits(say)
    found: list[tuple[Counts, Outcome]] = []
    # Admission bounds what is in flight by itself; a tighter cap costs a little of the period where it binds at all.
    wide = stage.run.spec.staleness.bound is Bound.ADMISSION
    for split in splits:
        capped = split.model_copy(update={"in_flight": stage.most_in_flight}) if wide else split
        outcome = tried(stage, capped, say)
        if outcome is not None:
            found.append((Counts.of(capped), outcome))
    return found


def tried(stage: Stage, split: Split, say: Say) -> Outcome | None:
    """A split over the whole trace, None if it breaks what the job's bound promises of staleness, or has no end."""
    try:
        outcome = stage.run_static(split)
    except PlantError as error:
        say(f"{split.label()} for the whole run: no end: {error}")
        return None
    staleness, limit = float(outcome.mean_staleness().mean()), stage.run.spec.staleness.mean_limit
    kept = stage.run.spec.staleness.bound is Bound.DROP or staleness <= limit + STALENESS_TOLERANCE * max(1.0, limit)
    over = "" if kept else f", but a mean staleness of {staleness:.2f}, over {limit:g}"
    say(f"{split.label()} for the whole run: {outcome.total_s:,.0f} s{over}")
    return outcome if kept else None


def play(run: Run, say: Say = lambda _: None, *, quick: bool = False, operator: bool = True) -> Played:
    """Run all policies on a trace; without ``operator``, all but the operator (whose row is then that of the step-0 split)."""
    stage = Stage.of(run)
    say(f"the planner's split of step 0 is {stage.start.label()}")
    start = stage.run_static(stage.start)
    statics = static_runs(stage, say)
    statics.append((Counts.of(stage.start), start))
    best = min((outcome for _, outcome in statics), key=lambda o: o.total_s)
    for split in () if quick else stage.shapes():
        other = tried(stage, split, say)
        best = best if other is None else min(best, other, key=lambda o: o.total_s)
    model = model_of(stage, statics)
    clairvoyant = min(run_clairvoyant(stage, statics), best, key=lambda o: o.total_s)
    say(f"the clairvoyant: {clairvoyant.total_s:,.0f} s with {len(clairvoyant.moves)} moves; the operator's run begins")
    threshold = run_threshold(stage)
    controlled = None
    ours = start
    if operator:
        ours, controlled = run_controlled(stage, say)
    outcomes = {
        PolicyName.RLJOB: ours,
        PolicyName.STATIC_BEST: best,
        PolicyName.STATIC_START: start,
        PolicyName.THRESHOLD: threshold,
        PolicyName.CLAIRVOYANT: clairvoyant,
    }
    rows = {name: row(name, outcome, clairvoyant) for name, outcome in outcomes.items()}
    json = TraceJson(
        name=run.name,
        effect=effect(stage, model),
        policies=list(rows.values()),
        steps=run.steps,
        aims=aims(rows, stationary=stationary(run), first_is_best=first_is_best(start, best)),
        decisions=dict(Counter(code for _, code, _ in controlled.decisions)) if controlled else {},
    )
    return Played(stage, model, outcomes, controlled, json)


def first_is_best(start: Outcome, best: Outcome) -> bool:
    """Whether no other static split is clearly better than the first; another cap is no other split."""
    same = (start.start.samplers, start.start.trainers) == (best.start.samplers, best.start.trainers)
    return same or start.total_s <= best.total_s * (1.0 + SAME)


def stationary(run: Run) -> bool:
    """Whether nothing changes along the trace."""
    return all(np.ptp(values) < 1e-9 for values in (run.mean_tokens, run.turn_s, run.slowdown))
