"""``rljob explain``: why a job's split is what it is, which limit binds, and what would change it."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rljob_operator.cli.cases import ContextOption, NamespaceOption, live_name
from rljob_operator.cli.console import Output, OutputOption, fail, print_data, print_report

if TYPE_CHECKING:
    from rich.console import RenderableType

    from rljob_operator.explanation import ExplanationJson

EXAMPLES = (
    "rljob explain math -n research",
    "kubectl rljob explain math",
    "kubectl get rljob math -o yaml | rljob explain -",
    "rljob explain math -o json | jq '.limits[0]'",
)


def explain(
    job: Annotated[
        str,
        typer.Argument(
            metavar="NAME",
            help="The job: its name, rljob/NAME, or a file (- for stdin) as kubectl get -o yaml prints it.",
        ),
    ],
    output: OutputOption = Output.TABLE,
    namespace: NamespaceOption = None,
    context: ContextOption = None,
) -> None:
    """Say why a job's split is what it is: which limit binds, and what a move would gain, cost and need."""
    from pydantic import ValidationError

    from rljob_operator.explain import explanation_of
    from rljob_planner.api.reading import InvalidJobError

    is_file = job == "-" or Path(job).is_file()
    document = _of_file(job) if is_file else _live(live_name(job) or job, namespace, context)
    try:
        found = explanation_of(document, None if is_file else time.time())
    except InvalidJobError as error:
        fail("\n".join(f"{job}: {problem}" for problem in error.problems))
    except ValidationError as error:
        at = ".".join(str(part) for part in error.errors()[0]["loc"])
        fail(f"{job}: its status was written by another version of the operator ({at}): use the rljob of that version")
    if output is not Output.TABLE:
        print_data(found.model_dump(mode="json", by_alias=True), output)
        return
    print_report(report_of(found))


def _of_file(file: str) -> dict[str, Any]:
    from rljob_operator.cli.documents import Kind, recognized

    found = recognized(file)
    document = found.document
    if isinstance(document, dict) and isinstance(document.get("items"), list) and document["items"]:
        document = document["items"][0]
    if found.kind is not Kind.JOB or not isinstance(document, dict):
        fail(f"{found.source}: this is no RLJob: kubectl get rljob NAME -o yaml prints one with its status")
    return document


def _live(name: str, namespace: str | None, context: str | None) -> dict[str, Any]:
    import asyncio

    from rljob_operator.cli.calibrate import with_operator_extra
    from rljob_operator.cli.live import look

    with_operator_extra()
    from rljob_operator.cluster import ClusterError

    try:
        seen = asyncio.run(look(name, namespace, survey=False, context=context))
    except ClusterError as error:
        fail(f"rljob/{name}: {error.message}")
    if seen.job is None:
        fail(f"rljob/{name}: there is no such RLJob in namespace {seen.namespace}: kubectl get rljobs -A lists all")
    return seen.job


def report_of(found: ExplanationJson) -> RenderableType:
    """The explanation for people."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    title = found.name if found.namespace is None else f"{found.namespace}/{found.name}"
    parts: list[RenderableType] = [
        Text(f"{title}: {found.phase.value}, mode {found.mode.value}", style="bold"),
        Text(found.summary),
        Text.assemble(("Next: ", "bold"), found.next),
        Text(""),
    ]
    limits = Table("", "Limit", "Why", "What you can do", box=None, padding=(0, 2, 0, 0))
    for each in found.limits:
        limits.add_row(
            "→" if each.binds else "", each.limit.value, each.why, each.unblock or "nothing needs to be done"
        )
    parts.append(limits)
    if found.move is not None:
        parts += [Text(""), Text(f"Move to {found.move.to_split}", style="bold"), _move_table(found)]
    if found.moves:
        past = Table("Ended", "Move", "Predicted", "Measured", "Cost", "Why", box=None, padding=(0, 2, 0, 0))
        for move in found.moves:
            past.add_row(
                move.at[:19],
                f"{move.from_split or '?'} → {move.to_split or '?'}" + ("" if move.committed else " (rolled back)"),
                _percent(move.predicted_gain),
                _percent(move.measured_gain),
                _seconds(move.cost_seconds),
                move.why or "",
            )
        parts += [Text(""), past]
    known = found.known
    sides = (
        ("samplers", known.sampler_factor, known.sampler_uncertainty),
        ("trainers", known.trainer_factor, known.trainer_uncertainty),
    )
    factors = [f"{side} {f:.2f}" + (f" ± {u * f:.2f}" if u else "") for side, f, u in sides if f is not None]
    words = [*([f"speed over the model's: {', '.join(factors)}"] if factors else []), *known.sources]
    if known.growth_per_step:
        words.append(f"responses change by {known.growth_per_step:+.2%} a step")
    if words:
        parts += [Text(""), Text.assemble(("Rests on: ", "bold"), "; ".join(words))]
    return Group(*parts)


def _move_table(found: ExplanationJson) -> RenderableType:
    from rich.table import Table

    assert found.move is not None
    move = found.move
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    gain = _percent(move.gain) + (f" ± {move.gain_uncertainty:.1%}" if move.gain_uncertainty else "")
    table.add_row("gains", f"{gain} of the period, {_seconds(move.saving_seconds)} over the run")
    paid = "" if move.pays_back_steps is None else f", paid back after {move.pays_back_steps} steps"
    table.add_row("costs", f"{_seconds(move.cost_seconds)} of progress{paid}")
    for need in move.needs:
        table.add_row("needs", need)
    return table


def _percent(fraction: float | None) -> str:
    return "unknown" if fraction is None else f"{fraction:.1%}"


def _seconds(value: float | None) -> str:
    from rljob_planner.durations import seconds

    return "an unknown time" if value is None else seconds(value)
