"""What the reports say: a plan, a plan of which only the JSON is left, and a simulated scenario, as pages.

The order is that of the questions: what to do and why, how sure that is, what other choices cost, how the run behaves, what
will change it, and what all of it rests on.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from rljob_planner import plots, plots_of_runs
from rljob_planner.drawing import Plot
from rljob_planner.durations import seconds
from rljob_planner.report import PROMISES, confidence_words, effects, wasted_share, why
from rljob_planner.report_html import Page, Section, Table, Tile
from rljob_planner.report_tables import candidates_table, inputs_table, name_of, spec_table, ways

if TYPE_CHECKING:
    from rljob_planner._plan_json import PlanJson, SplitJson
    from rljob_planner.outcome import Evaluation
    from rljob_planner.report_data import JobDetails, Run
    from rljob_planner.scenario import Scenario
    from rljob_planner.simulate import SimulationResult
    from rljob_planner.split import Split

SHOWN_STEPS = 14
"""Steps that pictures over time show: enough to see the start and the rhythm after it."""

_LEAST_SPREAD = 0.1
"""Versions of staleness below which there is nothing to trade."""

_NOTABLE_WASTE = 0.01
"""Share of the response tokens thrown away from which on a page says so."""

_HARD = {"drop"}
"""Bounds that no trained sample exceeds."""


def plan_page(plan: PlanJson, title: str, details: JobDetails | None = None, words: Sequence[str] = ()) -> Page:
    """The report of a plan; without ``details`` of what its JSON holds alone."""
    answer, lock_step = _spelt(plan.split), plan.split.mode != "async"
    if lock_step:
        best = next((c.period for c in plan.candidates if c.split.mode == "async"), None)
        against = "" if best is None else f"; the best asynchronous split takes {seconds(best)}"
        answer = f"Stay synchronous: {answer} in turn" if plan.split.mode == "sync" else f"Run one step off: {answer}"
        reason = f"In lock step a step takes {seconds(plan.period.mean)}{against}"
    else:
        reason = why(details.plan) if details else f"The bottleneck: {plan.bottleneck}"
        reason += f". Keep at most {plan.split.in_flight:,} samples in flight"
    return Page(
        title=title,
        answer=answer,
        why=f"{reason[:1].upper()}{reason[1:]}.".replace("ρ ", "ρ\N{NO-BREAK SPACE}"),
        words=words,
        tiles=_tiles(plan, details),
        sections=[section for section in _plan_sections(plan, details) if section.parts or section.notes],
    )


def scenario_page(run: Run, scenario: Scenario, title: str) -> Page:
    """The report of a simulated scenario."""
    result, inp = run.result, run.inp
    limit = scenario.staleness.max
    enforced = scenario.mode == "async" and limit is not None and scenario.staleness.bound != "none"
    return Page(
        title=title,
        answer=f"{seconds(result.period.mean)} a step",
        why=_balance(result, scenario.mode),
        tiles=[
            _period_tile(result.period),
            Tile(
                "Staleness",
                f"{result.staleness.mean:.2f}",
                f"p95 {result.staleness.p95:g}, most {result.staleness.max} versions",
            ),
            Tile("Samplers busy", f"{result.sampler_utilization:.0%}", f"{result.mean_running:.0f} samples running"),
            Tile("Trainer trains", f"{result.trainer_utilization:.0%}", "of the time"),
            Tile("Queue", f"{result.queue_groups.mean:.1f}", f"groups in the mean, at most {result.queue_groups.max}"),
            *_sandbox_tile(result),
            *_waste_tile(wasted_share(result)),
            Tile("Throughput", f"{result.tokens_per_second:,.0f}", "trained response tokens a second"),
        ],
        sections=[
            Section("The run", "The first steps of the simulated run, from its first second.", _over_time(run)),
            Section(
                "Staleness and lengths",
                "",
                [
                    plots.staleness_histogram(
                        result.staleness.histogram,
                        result.staleness.mean,
                        limit if enforced else None,
                        scenario.staleness.bound in _HARD,
                    ),
                    plots.length_distribution(inp.lengths, inp.samples_per_prompt),
                ],
            ),
            Section("What was simulated", "", [inputs_table(inp, scenario.mode)]),
        ],
    )


def _plan_sections(plan: PlanJson, details: JobDetails | None) -> Iterable[Section]:
    yield Section(
        "Why this split" if plan.split.mode == "async" else "The best asynchronous split",
        "Every number of trainers with samplers of this width, each simulated with the cap on samples in flight that the planner gave it.",
        [*_split_plots(plan, details), *ways(plan, details)],
    )
    trade = _trade_plot(plan, details)
    histogram = [] if details is None or details.run is None else [_histogram(details, details.run)]
    yield Section("Staleness", _promise(details), [*trade, *histogram])
    if details is not None and details.run is not None:
        part = (
            ""
            if details.run.share == 1.0
            else f" Of this large job {details.run.inp.replicas} samplers with their share of the batch are shown."
        )
        yield Section(
            "The run", f"The first steps of this split, simulated from its first second.{part}", _over_time(details.run)
        )
    later: list[Plot | Table] = []
    if len(plan.length_sweep) > 1:
        later.append(plots.length_sweep([_side_point(p.factor, p.split, p.period) for p in plan.length_sweep]))
    if details is not None:
        later.insert(0, plots.length_distribution(details.lengths, details.spec.workload.samples_per_prompt))
    yield Section(
        "Response lengths",
        "Responses decide how much there is to generate, and their tail when a batch is complete.",
        later,
    )
    yield Section(
        "Run time and cost",
        _cost_words(plan),
        [plots.run_time(plan.run_time.p10, plan.run_time.p50, plan.run_time.p90, plan.cost)],
    )
    slopes = [] if plan.elasticity is None else effects(plan.elasticity)
    yield Section("What would help", "", [plots.elasticities(slopes)] if slopes else [])
    yield Section("All candidates", "", [candidates_table(plan.candidates)])
    trust = confidence_words(plan.confidence)
    inputs = [] if details is None else [spec_table(details)]
    yield Section("What this rests on", f"{trust[:1].upper()}{trust[1:]}.", inputs, plan.notes)


def _tiles(plan: PlanJson, details: JobDetails | None) -> list[Tile]:
    run, lock_step, limit = (
        plan.run_time,
        plan.split.mode != "async",
        None if details is None else details.spec.staleness.max,
    )
    tiles = [
        _period_tile(plan.period),
        Tile("Run time", seconds(run.p50), f"p10 {seconds(run.p10)}, p90 {seconds(run.p90)}"),
        Tile("Cost", "unknown" if plan.cost is None else f"${plan.cost:,.0f}", "no price for these GPUs" if plan.cost is None else "at typical on-demand prices"),
        Tile(
            "Staleness",
            f"{plan.staleness.mean:.2f}",
            f"p95 {plan.staleness.p95:.3g}, most {plan.staleness.max:.3g}" + ("" if limit is None else f"; limit {limit}"),
        ),
    ]  # fmt: skip
    bottleneck = {
        "samplers": "samplers",
        "trainers": "trainer",
        "balanced": "neither side",
        "sandboxes": "sandboxes",
    }.get(plan.bottleneck, plan.bottleneck)
    note = (
        "" if details is None else f"the trainer trains {details.plan.evaluation.trainer_utilization:.0%} of the time"
    )
    tiles.append(Tile("Bottleneck", bottleneck, note))
    if details is not None:
        tiles += _waste_tile(details.plan.evaluation.wasted_fraction)
    if plan.sandboxes is not None:
        limit_words = (
            "no limit"
            if plan.sandboxes.limit is None
            else f"of {plan.sandboxes.limit:,}; a sample waits {seconds(plan.sandboxes.wait)}"
        )
        tiles.append(Tile("Sandboxes in use", f"{plan.sandboxes.needed:,.0f}", limit_words))
    if plan.speedup is not None and not lock_step:
        tiles.append(
            Tile(
                "Against synchronous",
                f"{plan.speedup:.2f}×",
                f"synchronous {seconds(plan.synchronous_period or 0.0)} a step",
            )
        )
    return tiles


def _period_tile(period: object) -> Tile:
    mean, p10, p90 = (getattr(period, name) for name in ("mean", "p10", "p90"))
    return Tile("Period", seconds(mean), f"p10 {seconds(p10)}, p90 {seconds(p90)}")


def _cost_words(plan: PlanJson) -> str:
    run = plan.run_time
    words = f"Eight runs of ten should end between {seconds(run.p10)} and {seconds(run.p90)}; the spread is that of the simulation and of the model's own error."
    return words + (
        " A price is known for no more than some of these GPUs, so there is no cost." if plan.cost is None else ""
    )


def _split_plots(plan: PlanJson, details: JobDetails | None) -> list[Plot]:
    best = _deployed(plan)
    if details is not None:
        points = [_evaluated_point(e) for e in details.splits]
        chosen = details.plan.split.trainers.replicas
    else:
        width = best.samplers.gpus_per_replica
        found: dict[int, plots.SplitPoint] = {}
        for c in plan.candidates:
            if c.split.samplers.gpus_per_replica == width and c.period is not None and c.split.mode == "async":
                count = c.split.trainers.replicas
                found.setdefault(
                    count, plots.SplitPoint(count, _short(c.split), c.period, at_least=c.ratio_variance is None)
                )
        points, chosen = sorted(found.values(), key=lambda p: p.trainers), best.trainers.replicas
    index = next((i for i, p in enumerate(points) if p.trainers == chosen), None)
    return [] if index is None or len(points) < 2 else [plots.split_sweep(points, index)]


def _evaluated_point(e: Evaluation) -> plots.SplitPoint:
    outrun = max(0.0, 1.0 - 1.0 / e.rho) if e.rho > 0 else 0.0
    count, waits = e.split.trainers.replicas, 1.0 - e.trainer_utilization
    return plots.SplitPoint(count, _short(e.split), e.period_s, trainer_waits=waits, samplers_outrun=outrun)


def _trade_plot(plan: PlanJson, details: JobDetails | None) -> list[Plot]:
    """What fresher samples cost: the front, and behind it the candidates that something beats."""
    best_split = _deployed(plan)
    chosen = next((c for c in plan.candidates if c.split == best_split), None)
    if chosen is None or chosen.period is None or chosen.staleness is None:
        return []
    best = plots.TradePoint(chosen.staleness, chosen.period, name_of(best_split))
    points = [plots.TradePoint(p.staleness, p.period, name_of(p.split)) for p in plan.pareto]
    points += [
        plots.TradePoint(c.staleness, c.period, name_of(c.split), c.feasible)
        for c in plan.candidates
        if c.period is not None and c.staleness is not None and c.ratio_variance is not None
    ]
    limit = None if details is None else details.spec.staleness.max
    spread = max(p.staleness for p in [*points, best]) - min(p.staleness for p in [*points, best])
    return [plots.pareto([*points, best], best, limit)] if len(points) > 1 and spread > _LEAST_SPREAD else []


def _histogram(details: JobDetails, run: Run) -> Plot:
    staleness = run.result.staleness
    rule = details.spec.staleness
    hard = rule.bound.value in _HARD
    return plots.staleness_histogram(staleness.histogram, staleness.mean, rule.max, hard)


def _promise(details: JobDetails | None) -> str:
    if details is None:
        return ""
    rule = details.spec.staleness
    return f"The limit is {rule.max} versions under bound {rule.bound.value}: {PROMISES[rule.bound.value]}."


def _over_time(run: Run) -> list[Plot]:
    timeline, inp = run.result.timeline, run.inp
    if timeline is None or len(timeline.steps) == 0:
        return []
    published = timeline.steps["published_s"]
    until_s = min(float(published[min(SHOWN_STEPS, len(published)) - 1]), timeline.end_s)
    if until_s <= 0:
        return []
    return [
        plots_of_runs.activity(timeline, until_s, inp.max_running, inp.replicas),
        plots_of_runs.queue_depth(timeline, until_s, inp.prompts_per_step),
    ]


def _waste_tile(share: float) -> list[Tile]:
    if share < _NOTABLE_WASTE:
        return []
    return [Tile("Thrown away", f"{share:.0%}", "of the response tokens, in groups that got too old or overflowed")]


def _sandbox_tile(result: SimulationResult) -> list[Tile]:
    if result.environment_samples <= 0:
        return []
    waits = f"a sample waits {seconds(result.sandbox_wait_s)} for one"
    return [Tile("Sandboxes in use", f"{result.environment_samples:,.1f}", waits)]


def _balance(result: SimulationResult, mode: str) -> str:
    waits = f"The trainer trains {result.trainer_utilization:.0%} of the time"
    if mode != "async":
        return f"{waits}; training a batch takes {result.rho:.2f} times as long as sampling it."
    if result.rho < 0.95:
        return f"{waits} and waits for samples: it could consume {1 / result.rho:.2f} times what the samplers generate (ρ {result.rho:.2f})."
    if result.rho > 1.05:
        return f"{waits}, and the samplers could generate {result.rho:.2f} times what it consumes (ρ {result.rho:.2f})."
    return f"{waits}; both sides are about equally fast (ρ {result.rho:.2f})."


def _deployed(plan: PlanJson) -> SplitJson:
    """The best asynchronous split: the plan's own, or where lock step is better its first candidate."""
    if plan.split.mode == "async":
        return plan.split
    return next((c.split for c in plan.candidates if c.split.mode == "async"), plan.split)


def _side_point(factor: float, split: SplitJson, period_s: float) -> plots.SidePoint:
    s, t = split.samplers, split.trainers
    return plots.SidePoint(
        factor, s.replicas * s.gpus_per_replica, t.replicas * t.gpus_per_replica, name_of(split), period_s
    )


def _spelt(split: SplitJson) -> str:
    def side(count: int, what: str, gpus: int) -> str:
        return f"{count} {what}{'' if count == 1 else 's'} of {gpus} GPU{'' if gpus == 1 else 's'}"

    s, t = split.samplers, split.trainers
    return f"{side(s.replicas, 'sampler', s.gpus_per_replica)}, {side(t.replicas, 'trainer', t.gpus_per_replica)}"


def _short(split: SplitJson | Split) -> str:
    s, t = split.samplers, split.trainers
    return f"{s.replicas}×{s.gpus_per_replica}\n+ {t.replicas}×{t.gpus_per_replica}"
