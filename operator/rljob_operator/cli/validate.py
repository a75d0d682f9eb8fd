"""``rljob validate``: predictions held against published measurements."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rljob_operator.cli.console import Output, OutputOption, fail, print_data, print_report, with_simulator

if TYPE_CHECKING:
    from rich.console import RenderableType

    from rljob_planner.validation.report import GroupJson, ValidationJson

EXAMPLES = (
    "rljob validate",
    "rljob validate cases.yaml -o json",
)


def validate(
    files: Annotated[
        list[Path] | None,
        typer.Argument(metavar="CASES.yaml", help="Files with cases and serving_points; the packaged ones by default."),
    ] = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Predict measured decode steps, RL step times, bound sides and staleness, and show how far off each prediction is."""
    from rljob_planner.errors import PlanningError
    from rljob_planner.validation.cases import load, packaged

    try:
        documents = [load(file) for file in files] if files else list(packaged())
    except PlanningError as error:
        fail(str(error))

    def run() -> Any:
        from rljob_planner.validation.report import validation_json
        from rljob_planner.validation.validate import validate as run_all

        return validation_json(run_all(documents, lambda step: typer.echo(f"rljob: {step}", err=True)))

    found: ValidationJson = with_simulator("Predicting", run)
    if output is Output.TABLE:
        print_report(_table(found))
    else:
        print_data(found.model_dump(by_alias=True, mode="json"), output)


def _table(found: ValidationJson) -> RenderableType:
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    rows = Table("row", "measured", "predicted", "error", "calibrated", "error", "side", box=None, pad_edge=False)
    for column in (1, 2, 3, 4, 5):
        rows.columns[column].justify = "right"
    missing: list[str] = []
    for r in found.rows:
        side = "" if r.correct is None else "right" if r.correct else f"wrong: {r.measured_side or r.measured}"
        if not r.covered:
            missing.append(f"{r.id}: {r.reason}")
            continue
        rows.add_row(
            r.id,
            _value(r.measured, r.unit),
            _value(r.predicted, ""),
            _error(r.error, r.error_kind),
            _value(r.calibrated, ""),
            _error(r.calibrated_error, r.error_kind),
            Text(side, style="" if r.correct in (None, True) else "red"),
        )
    families = _groups("family", [(f.family, f) for f in found.families])
    kinds = _groups("kind", [(k.kind, k) for k in found.summary.kinds])
    s = found.summary
    words = [Text(f"{s.predicted} of {s.rows} rows predicted."), *(Text(line, style="yellow") for line in missing)]
    return Group(rows, Text(), families, Text(), kinds, Text(), *words)


def _groups(title: str, groups: list[tuple[str, GroupJson]]) -> RenderableType:
    from rich.table import Table

    table = Table(
        title,
        "predicted",
        "mean",
        "median",
        "worst",
        "calibrated",
        "mean",
        "median",
        "worst",
        "sides right",
        box=None,
        pad_edge=False,
    )
    for column in range(1, 10):
        table.columns[column].justify = "right"
    for name, g in groups:
        table.add_row(
            name,
            f"{g.predicted} of {g.rows}",
            *(_error(e, g.error_kind) for e in (g.mean_error, g.median_error, g.worst_error)),
            str(g.calibrated or ""),
            *(
                _error(e, g.error_kind)
                for e in (g.mean_calibrated_error, g.median_calibrated_error, g.worst_calibrated_error)
            ),
            f"{g.correct} of {g.sides}" if g.sides else "",
        )
    return table


def _value(value: float | str | None, unit: str) -> str:
    if value is None or isinstance(value, str):
        return value or ""
    return f"{value:,.0f} {unit}".strip() if value >= 1000 else f"{value:.3g} {unit}".strip()


def _error(error: float | None, kind: str) -> str:
    if error is None:
        return ""
    return f"{error:.2f}" if kind == "absolute" else f"{error:.1%}"
