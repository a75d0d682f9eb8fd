"""Plans and simulations for people: values in, things that rich can draw out; nothing here prints or computes a plan.

A recommendation that cannot be argued with is not followed. So a report says what it recommends, why, what the next best choice
would cost and how sure the planner is, before it lists numbers; whoever wants all of them asks for JSON.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from rljob_planner.durations import seconds
from rljob_planner.pools import words

if TYPE_CHECKING:
    from rljob_planner._plan_json import ElasticityJson
    from rljob_planner.api.spec import RLJobSpec
    from rljob_planner.outcome import Candidate, Elasticity, Evaluation, Plan
    from rljob_planner.placement import Room
    from rljob_planner.scenario import Scenario
    from rljob_planner.simulate import SimulationResult
    from rljob_planner.split import Split

MOST_CANDIDATES = 5
"""Feasible candidates that a report lists besides the best, and rejected ones."""

PROMISES = {
    "drop": "no trained sample is over it",
    "admission": "the mean keeps to it, single slow samples exceed it",
    "hold": "no unfinished sample is over it when a version is published",
    "none": "nothing enforces it, this split keeps the mean to it",
}
"""What each bound promises about the limit of staleness."""

_LOCK_STEPS = (
    ("sync", "Synchronous", "all GPUs first sample and then train"),
    ("one-step-off", "One step off", "samplers make the next batch while the trainer takes the last one"),
)
_MODES = {"sync": ", in turn", "one-step-off": ", one step off"}
_FULL = 0.97
"""Share of the sandboxes in use from which on they are what everything waits for."""
_NUDGE = 0.10
_NEGLIGIBLE, _AHEAD = 0.005, 0.05


def plan_report(plan: Plan, spec: RLJobSpec, title: str, words: Sequence[str] = ()) -> RenderableType:
    """A plan for people; ``title`` says of which job on which GPUs, ``words`` what it rests on besides the spec."""
    parts: list[RenderableType] = [Text(title, style="bold"), *(Text(word, style="dim") for word in words), Text()]
    if (better := plan.lock_steps.get(plan.mode)) is not None:
        parts += [_lock_step_first(plan, better.evaluation), Text()]
    parts.append(_facts(_plan_facts(plan, spec)))
    if plan.length_sweep:
        parts += [Text(), _heading("Best split at other response lengths"), _sweep(plan)]
    if len(plan.pareto) > 1:
        parts += [Text(), _heading("What fresher samples cost"), _pareto(plan)]
    if plan.elasticity is not None:
        helps = list(_what_helps(plan.elasticity))
        parts += [Text(), _heading("What would help most"), *([_indented(line) for line in helps])]
    parts += [Text(), _heading("Candidates"), _candidates(plan)]
    if plan.notes:
        parts += [Text(), _heading("Notes"), *(_indented(note) for note in plan.notes)]
    return Group(*parts)


def simulation_report(result: SimulationResult, scenario: Scenario, title: str) -> RenderableType:
    """What a simulation showed, for people."""
    work = scenario.workload
    most, bound = scenario.staleness.max, scenario.staleness.bound
    promise = "nothing enforces it" if bound == "none" else PROMISES[bound]
    limit = "" if most is None else f"; limit {most} under bound {bound} ({promise})"
    capacity = scenario.queue.capacity
    over = capacity is not None and result.queue_groups.max > capacity
    late = (
        f"; more than its capacity of {capacity}, since groups that are under way when it fills still enter"
        if over
        else ""
    )
    period, staleness = result.period, result.staleness
    sandboxes = (
        f"{result.environment_samples:,.1f} in use at the mean; a sample waits {seconds(result.sandbox_wait_s)} for one"
    )
    facts = [
        ("Period", f"{seconds(period.mean)}  (p10 {seconds(period.p10)}, p50 {seconds(period.p50)}, p90 {seconds(period.p90)})"),
        ("Staleness", f"mean {staleness.mean:.2f}, p95 {staleness.p95:g}, max {staleness.max} versions{limit}"),
        ("Bottleneck", _gated(result, scenario) or _held_back(result, scenario) or _balance(result.rho, scenario.mode == "async")),
        ("Samplers", f"busy {result.sampler_utilization:.0%} of the time, {result.mean_running:.1f} samples running, {result.mean_in_flight:.1f} in flight"),
        ("KV cache", f"{result.kv_utilization:.0%} full, {result.preemptions:,} preemptions"),
        ("Trainer", f"trains {result.trainer_utilization:.0%} of the time"),
        ("Queue", f"mean {result.queue_groups.mean:.1f}, at most {result.queue_groups.max} complete groups; a step takes {work.prompts_per_step}{late}"),
        *([("Sandboxes", sandboxes)] if result.environment_samples > 0 else []),
        ("Tokens", f"{result.tokens_per_second:,.0f} trained response tokens a second, {result.trained_mean_length:.1f} a sample"),
        ("Waste", _waste(result)),
    ]  # fmt: skip
    covered = f"{scenario.steps - scenario.warmup_steps} steps after a warm-up of {scenario.warmup_steps}, {seconds(result.elapsed_s)} of the job's time"
    return Group(Text(title, style="bold"), Text(covered, style="dim"), Text(), _facts(facts))


def _gated(result: SimulationResult, scenario: Scenario) -> str:
    """Sandboxes as the bottleneck: all are in use and samples wait for one; empty where they are not."""
    environment = scenario.workload.environment
    sandboxes = None if environment is None else environment.sandboxes
    if sandboxes is None or result.environment_samples < _FULL * sandboxes:
        return ""
    return (
        f"sandboxes: {result.environment_samples:,.0f} of {sandboxes} are in use, and a sample waits {seconds(result.sandbox_wait_s)} "
        "for one; more samplers would not help"
    )


def _held_back(result: SimulationResult, scenario: Scenario) -> str:
    """A bound as the bottleneck: samplers could outrun the trainer, and yet it waits; empty where it does not."""
    from rljob_planner.evaluation import WAITING

    bound = scenario.staleness.bound
    waits = result.rho > 1.0 + _AHEAD and result.trainer_utilization < WAITING
    if scenario.mode != "async" or bound not in ("admission", "hold") or not waits:
        return ""
    return (
        f"the staleness limit: left alone samplers would outrun the trainer (ρ {result.rho:.2f}), which trains only "
        f"{result.trainer_utilization:.0%} of the time"
    )


def wasted_share(result: SimulationResult) -> float:
    """Response tokens of dropped groups over all, 0..1."""
    trained = result.tokens_per_second * result.elapsed_s
    return result.wasted_tokens / max(1.0, trained + result.wasted_tokens)


def _waste(result: SimulationResult) -> str:
    if not result.dropped_groups:
        return "none"
    return f"{wasted_share(result):.0%} of the response tokens: {result.wasted_tokens:,} in {result.dropped_groups:,} dropped groups"


def percent(fraction: float) -> str:
    """A relative change with its sign."""
    digits = 1 if abs(fraction) < 0.1 else 0
    return f"{100.0 * fraction:+.{digits}f} %".replace("-", "−")


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def _heading(text: str) -> Text:
    return Text(text, style="bold")


def _indented(text: str) -> RenderableType:
    grid = Table.grid(padding=(0, 1, 0, 0))
    grid.add_row(Text(" "), Text(text))
    return grid


def _facts(rows: Iterable[tuple[str, str]]) -> Table:
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(no_wrap=True)
    grid.add_column(ratio=1)
    for name, value in rows:
        grid.add_row(Text(name, style="cyan"), Text(value))
    return grid


def _lock_step_first(plan: Plan, found: Evaluation) -> Text:
    split, period = found.split, seconds(found.period.mean)
    samplers = f"{split.samplers.replicas}×{split.samplers.gpus_per_replica} samplers"
    trainers = f"{split.trainers.replicas}×{split.trainers.gpus_per_replica} trainers"
    if plan.mode == "sync":
        head, how = (
            "Stay synchronous",
            f"if all {split.trainers.gpus} GPUs first sample ({samplers}) and then train ({trainers})",
        )
    else:
        head, how = "Run one step off", f"if {samplers} make the next batch while {trainers} take the last one"
    return Text.assemble(
        (head, "bold yellow"),
        f": {how}, a step takes {period}; with the best asynchronous split it takes {seconds(plan.period.mean)}. "
        "The operator runs samplers and trainers side by side: it would deploy the best asynchronous split, which follows.",
    )


def _plan_facts(plan: Plan, spec: RLJobSpec) -> Iterable[tuple[str, str]]:
    split, period, found = plan.split, plan.period, plan.evaluation
    yield "Split", f"{split.label()}, at most {split.in_flight} samples in flight"
    yield "", _widths(split)
    if split.samplers.pools is not None:
        yield "Pools", words(split.samplers.pools)
    unused = spec.gpus - split.gpus
    if unused:
        placed = f"; these sizes can fill {plan.placeable_gpus}" if plan.placeable_gpus < spec.gpus else ""
        yield (
            "",
            f"{_count(unused, 'GPU')} of the budget of {spec.gpus} {'stays' if unused == 1 else 'stay'} unused{placed}",
        )
    yield "Why", why(plan)
    for neighbour in plan.neighbours:
        yield "", _neighbour(plan, neighbour)
    yield (
        "Period",
        f"{seconds(period.mean)}  (p10 {seconds(period.p10)}, p50 {seconds(period.p50)}, p90 {seconds(period.p90)})",
    )
    yield "Staleness", _staleness(plan, spec)
    if found.wasted_fraction >= _NEGLIGIBLE:
        yield "Waste", f"{found.wasted_fraction:.0%} of the generated response tokens belong to groups that are dropped"
    yield (
        "Samplers",
        f"busy {found.sampler_utilization:.0%} of the time, {found.mean_running / split.samplers.replicas:.0f} samples running on each, "
        f"KV cache {found.kv_utilization:.0%} full",
    )
    if plan.sandboxes is not None:
        limit = "no limit" if plan.sandboxes.limit is None else f"of {plan.sandboxes.limit:,}"
        yield (
            "Sandboxes",
            f"{plan.sandboxes.needed:,.0f} in use at the mean, {limit}; a sample waits {seconds(plan.sandboxes.wait)} for one",
        )
    run = plan.run_time
    yield "Run time", f"{seconds(run.p50)}  (p10 {seconds(run.p10)}, p90 {seconds(run.p90)})"
    yield "Cost", _cost(plan)
    for mode, name, how in _LOCK_STEPS:
        other = plan.lock_steps.get(mode)
        if other is not None and mode != plan.mode:
            ratio = other.evaluation.period.mean / period.mean
            yield name, f"{seconds(other.evaluation.period.mean)} a step if {how}: {ratio:.2g} times as long"
    yield "Confidence", confidence_words(plan.confidence)


def _widths(split: Split) -> str:
    s, t = split.samplers, split.trainers
    pipeline = f", pipeline parallel {t.pp}" if t.pp > 1 else ""
    experts = f", expert parallel {t.ep}" if t.ep > 1 else ""
    return (
        f"samplers: tensor parallel {s.tensor_parallel}, up to {s.max_running} running samples each; "
        f"trainer: data parallel {t.dp}, tensor parallel {t.tp}{pipeline}{experts}"
    )


def why(plan: Plan) -> str:
    """Which side bounds the period, and what the other one does."""
    found = plan.evaluation
    trains = f"trains {found.trainer_utilization:.0%} of the time"
    kept = plan.rho * (1.0 - found.wasted_fraction)
    rho = f"ρ {plan.rho:.2f}"
    if found.wasted_fraction >= _NEGLIGIBLE:
        rho += f", {kept:.2f} without what is dropped"
    if plan.bottleneck == "sandboxes":
        return f"too few sandboxes gate the samplers: the trainer waits for samples and {trains}"
    if plan.bottleneck == "samplers":
        if found.environments_dominate:
            return (
                f"environments take most of the time: {found.environment_share:.0%} of the samples in flight are in theirs, so that "
                f"samplers have room to spare (KV cache {found.kv_utilization:.0%} full), and the trainer waits and {trains} ({rho})"
            )
        if kept > 1.0:
            return f"the staleness limit holds samplers back: left alone they would outrun the trainer ({rho}), which {trains}"
        return f"samplers are the bottleneck: the trainer waits for samples and {trains} ({rho})"
    if plan.bottleneck == "trainers":
        return f"the trainer is the bottleneck: it {trains} and samplers run ahead of it ({rho})"
    said = f"neither side is far ahead: the trainer {trains} ({rho})"
    if kept > 1.0 + _AHEAD:
        said += ", and the staleness limit holds samplers back that could outrun it"
    return said + _more_worth(plan.elasticity)


def _more_worth(e: Elasticity | None) -> str:
    """Which side would gain more, where the slopes tell."""
    if e is None or e.decode is None or e.train is None or abs(e.decode - e.train) < _AHEAD:
        return ""
    more, less = ("decoding", "training") if e.decode < e.train else ("training", "decoding")
    return f"; faster {more} would help more than faster {less}"


def _neighbour(plan: Plan, neighbour: Candidate) -> str:
    more = neighbour.split.trainers.replicas - plan.split.trainers.replicas
    name = f"{_count(abs(more), 'trainer')} {'more' if more > 0 else 'fewer'}, samplers of the same width ({neighbour.split.label()})"
    if not neighbour.feasible or neighbour.period_s is None:
        return f"{name}: {neighbour.reason}"
    return f"{name}: {seconds(neighbour.period_s)} a step, {neighbour.reason}"


def _staleness(plan: Plan, spec: RLJobSpec) -> str:
    s, bound = plan.staleness, spec.staleness.bound.value
    return (
        f"mean {s.mean:.2f}, p95 {s.p95:.3g}, max {s.max:.3g} versions; "
        f"limit {spec.staleness.max} under bound {bound} ({PROMISES[bound]}); importance ratios vary by {s.ratio_variance:.2g}"
    )


def _cost(plan: Plan) -> str:
    if plan.cost is None:
        return "unknown: there is no price for these GPUs"
    run = plan.run_time
    hourly, low, high = (plan.cost / run.p50 * x for x in (3600.0, run.p10, run.p90))
    return f"${plan.cost:,.0f} for the run  (p10 ${low:,.0f}, p90 ${high:,.0f}), ${hourly:,.2f} an hour at typical on-demand prices"


def confidence_words(residual: float | None) -> str:
    """How far the numbers can be trusted."""
    if residual is None:
        from rljob_planner.training import training_efficiency

        usual = training_efficiency()
        return (
            "not measured: times rest on data sheets and public benchmarks, and on what running RL systems reach beside engine and trainer "
            f"alone ({usual.sampler_efficiency:g} and {usual.trainer_efficiency:g} of their speed). Of published runs predicted in this way the decode steps "
            "were off by 3 % in the median, whole RL steps by about 30 % and single ones by far more; the comparison of splits is "
            "surer than the times, and the run's own metrics correct both"
        )
    words = "high" if residual < 0.05 else "fair" if residual < 0.15 else "low"
    return f"{words}: the calibrated model is off by {residual:.0%} against what was measured last"


def _balance(rho: float, asynchronous: bool) -> str:
    if not asynchronous:
        return f"{'sampling' if rho < 1 else 'training'} takes longer (training over sampling time {rho:.2f})"
    if abs(rho - 1.0) <= _AHEAD:
        return f"both sides are about equally fast (ρ {rho:.2f})"
    return (
        f"samplers: the trainer outruns them (ρ {rho:.2f})" if rho < 1 else f"trainer: samplers outrun it (ρ {rho:.2f})"
    )


def _sweep(plan: Plan) -> Table:
    grid = Table.grid(padding=(0, 3, 0, 0))
    grid.add_column(justify="right")
    for point in plan.length_sweep:
        here = point.factor == 1.0
        grid.add_row(
            Text(f"  ×{point.factor:g}"),
            Text(point.split.label(), style="bold" if here else ""),
            Text(f"{seconds(point.period_s)} a step"),
            Text("this job" if here else "the same split" if point.split.same_shape(plan.split) else ""),
        )
    return grid


def _pareto(plan: Plan) -> Table:
    grid = Table.grid(padding=(0, 3, 0, 0))
    for point in plan.pareto:
        change = point.period_s / plan.period.mean - 1.0
        here = abs(change) < _NEGLIGIBLE
        grid.add_row(
            Text(f"  staleness {point.staleness_mean:.2f}"),
            Text(f"{seconds(point.period_s)} a step"),
            Text("this plan" if here else f"period {percent(change)}"),
            Text(
                f"{point.split.label()}{_MODES.get(point.split.mode, f', at most {point.split.in_flight:,} in flight')}"
            ),
        )
    return grid


def effects(e: Elasticity | ElasticityJson) -> list[tuple[str, float]]:
    """Relative effects on the period of plain changes, the largest saving first; what cannot be varied is left out."""
    faster, shorter = 1.0 + _NUDGE, 1.0 - _NUDGE
    changes = [
        (f"{_NUDGE:.0%} faster decoding", e.decode, faster),
        (f"{_NUDGE:.0%} faster training", e.train, faster),
        (f"a {_NUDGE:.0%} lighter tail of response lengths at the same mean", e.tail, shorter),
    ]
    found = [(what.replace("%", " %"), x**slope - 1.0) for what, slope, x in changes if slope is not None]
    if e.sync is not None:  # a pause adds to a period: its share of it, and no power of it, is what half of it can save
        found.append(("weights that reach the samplers in half the time", -0.5 * e.sync))
    return sorted(found, key=lambda pair: pair[1])


def _what_helps(e: Elasticity) -> Iterable[str]:
    for what, effect in effects(e):
        yield f"{what}: period {percent(effect)}" if effect < -_NEGLIGIBLE else f"{what}: next to nothing"


def _candidates(plan: Plan) -> RenderableType:
    feasible = [c for c in plan.candidates if c.feasible and c.reason]
    rejected = [c for c in plan.candidates if not c.feasible]
    shown = [*feasible[:MOST_CANDIDATES], *rejected[:MOST_CANDIDATES]]
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(no_wrap=True)
    grid.add_column(no_wrap=True, justify="right")
    grid.add_column(ratio=1)
    for c in shown:
        period = "" if c.period_s is None else seconds(c.period_s)
        style = "" if c.feasible else "dim"
        grid.add_row(Text(f"  {c.split.label()}", style=style), Text(period, style=style), Text(c.reason, style=style))
    left = len(feasible) + len(rejected) - len(shown)
    more = f"  and {left} more in -o json" if left else ""
    return Group(grid, Text(more, style="dim")) if more else grid if shown else Text("  no other split fits")


def describe_rooms(rooms: Sequence[Room]) -> str:
    """Nodes in words, from the GPUs of each: ``8 nodes of 8 GPUs``, and whose they are where roles have nodes of their own."""
    kinds: dict[tuple[bool, bool, int], int] = {}
    for room in rooms:
        key = (room.samplers, room.trainers, room.free_gpus)
        kinds[key] = kinds.get(key, 0) + 1
    found = []
    for (samplers, trainers, size), count in sorted(kinds.items(), reverse=True):
        whose = "" if samplers and trainers else " for samplers" if samplers else " for trainers"
        found.append(f"{_count(count, 'node')} of {_count(size, 'GPU')}{whose}")
    return " and ".join(found)
