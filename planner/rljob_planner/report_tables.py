"""The tables of a report: every split that was looked at, the ways to run, and what was asked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rljob_planner.durations import seconds
from rljob_planner.report_html import Table

if TYPE_CHECKING:
    from rljob_planner._plan_json import CandidateJson, PlanJson, SplitJson
    from rljob_planner.report_data import JobDetails
    from rljob_planner.simulate import SimulationInput

MOST_ROWS = 30
"""Candidates that a page lists."""


def ways(plan: PlanJson, details: JobDetails | None) -> list[Table]:
    """The ways to run a job, in and out of lock step."""
    best = next((c.period for c in plan.candidates if c.split.mode == "async"), None)
    over = "; its staleness of 1 is over the limit" if details is not None and details.spec.staleness.max < 1 else ""
    known = [
        ("async", "samplers and trainer side by side, as the split above", best),
        (
            "one-step-off",
            f"samplers make the next batch while the trainer takes the last one{over}",
            plan.one_step_off_period,
        ),
        ("sync", "all GPUs first sample and then train", plan.synchronous_period),
    ]
    ways = [(mode, words, period) for mode, words, period in known if period is not None]
    if len(ways) < 2:
        return []
    fastest = min(period for _, _, period in ways)
    rows = [
        (mode, words, seconds(period), "" if period == fastest else f"{period / fastest:.2f}×")
        for mode, words, period in ways
    ]
    chosen = next((i for i, (mode, _, _) in enumerate(ways) if mode == plan.split.mode), None)
    return [Table(("Mode", "How", "Period", "Against the fastest"), rows, numeric=frozenset({2, 3}), best=chosen)]


def candidates_table(candidates: Sequence[CandidateJson]) -> Table:
    """The splits that were looked at."""
    shown = candidates[:MOST_ROWS]
    rows = [
        (
            name_of(c.split) + (" in turn" if c.split.mode == "sync" else ""),
            f"{c.split.in_flight:,}",
            "" if c.period is None else seconds(c.period),
            "" if c.staleness is None else f"{c.staleness:.2f}",
            c.reason or "the best",
        )
        for c in shown
    ]
    if len(candidates) > len(shown):
        rows.append((f"and {len(candidates) - len(shown)} more", "", "", "", ""))
    return Table(
        ("Split", "In flight", "Period", "Staleness", "Verdict"),
        rows,
        numeric=frozenset({1, 2, 3}),
        best=next((i for i, c in enumerate(shown) if c.feasible and not c.reason), None),
        out=frozenset(i for i, c in enumerate(shown) if not c.feasible),
    )


def spec_table(details: JobDetails) -> Table:
    """What a job asks for."""
    spec, work = details.spec, details.spec.workload
    model = spec.model.name or "described by its config"
    queue = (
        "no limit"
        if spec.queue is None or spec.queue.capacity is None
        else f"{spec.queue.capacity} groups, {spec.queue.overflow.value}"
    )
    turns = work.environment
    environment = (
        ()
        if turns is None
        else (("Turns", f"{turns.turns}, {turns.seconds_per_turn:g} s in the environment between two of them"),)
    )
    return Table(
        ("Input", "Value"),
        [
            ("Model", f"{model}, weights {spec.model.weights.value}, KV cache {spec.model.kv_cache.value}"),
            ("Budget", f"{spec.gpus} GPUs, for the least {spec.objective.value}"),
            ("A step", f"{work.prompts_per_step} prompts × {work.samples_per_prompt} samples; {work.steps} steps"),
            ("Prompts", f"{work.prompt_tokens.mean} tokens in the mean"),
            ("Responses", f"{details.lengths.mean():,.0f} tokens in the mean, cv {details.lengths.cv():.2f}, cap {details.lengths.cap_tokens:,}"),
            ("Staleness", f"at most {spec.staleness.max}, bound {spec.staleness.bound.value}"),
            ("Queue", queue),
            *environment,
        ],
    )  # fmt: skip


def inputs_table(inp: SimulationInput, mode: str) -> Table:
    """What was simulated."""
    cap = "no cap" if inp.in_flight_cap is None else f"{inp.in_flight_cap:,} samples"
    return Table(
        ("Input", "Value"),
        [
            ("Mode", mode),
            (
                "Samplers",
                f"{inp.replicas}, each up to {inp.max_running} running samples and {inp.kv_tokens:,} KV tokens",
            ),
            ("A step", f"{inp.prompts_per_step} prompts × {inp.samples_per_prompt} samples"),
            ("Weight synchronisation", seconds(inp.weight_sync_s)),
            ("Staleness", f"bound {inp.bound}, at most {inp.max_staleness}"),
            ("Queue", "no limit" if inp.queue_capacity is None else f"{inp.queue_capacity} groups, {inp.overflow}"),
            ("In flight", cap),
            *_further(inp),
            ("Steps", f"{inp.steps}, of which {inp.warmup} are left out of the statistics; seed {inp.seed}"),
        ],
    )


def _further(inp: SimulationInput) -> list[tuple[str, str]]:
    """What only some scenarios have."""
    found: list[tuple[str, str]] = []
    if inp.turns > 1:
        limit = "" if inp.sandboxes is None else f", in at most {inp.sandboxes:,} sandboxes"
        found.append(("Turns", f"{inp.turns}, {seconds(inp.turn_s)} in the environment between two of them{limit}"))
    if inp.group_correlation > 0:
        found.append(("Correlation of lengths in a group", f"{inp.group_correlation:g}"))
    if inp.drift:
        found.append(("Lengths", ", ".join(f"×{factor:g} at version {version}" for version, factor in inp.drift)))
    return found


def name_of(split: SplitJson) -> str:
    """A short name of a split."""
    s, t = split.samplers, split.trainers
    return f"{s.replicas}×{s.gpus_per_replica} samplers + {t.replicas}×{t.gpus_per_replica} trainers"
