"""A calibration for people: what was learned, how far it can be trusted, and row by row where it is off."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from rljob_planner._calibration_json import CalibrationJson, ConstantJson, ErrorsJson, FitJson

_WORDS = {
    "factor": ("Speed of everything", 1.0, "×"),
    "mbu": ("Memory bandwidth reached", 100.0, " %"),
    "mfu": ("Arithmetic reached", 100.0, " %"),
    "layerSeconds": ("A layer", 1e6, " µs"),
    "stepSeconds": ("A step", 1e3, " ms"),
    "requestSeconds": ("Each running sample", 1e6, " µs"),
    "sampleSeconds": ("Each running sample", 1e6, " µs"),
    "contextTokenSeconds": ("Each resident token", 1e9, " ns"),
    "promptTokenSeconds": ("Each prompt token", 1e6, " µs"),
    "expertsSeconds": ("All experts, of which a step visits a share", 1e3, " ms"),
}
"""Constant → what it is, and the unit that people read it in."""


def calibration_report(calibration: CalibrationJson) -> RenderableType:
    """A calibration with its fit, as tables."""
    on, fit = calibration.measured_on, calibration.fit
    parts: list[RenderableType] = []
    if on is not None:
        where = "an accelerator without a data sheet" if on.gpu is None else on.gpu
        parts.append(
            Text(
                f"{on.model} on {where}, tensor parallel {on.tensor_parallel}, {on.weights} weights, {on.kv_cache} KV",
                style="bold",
            )
        )
    if fit is None:
        if calibration.samplers.measured is None:
            parts.append(
                Text(f"Samplers {calibration.samplers.factor:.2f} times as fast as the packaged constants say")
            )
        return Group(*parts)
    parts += [Text(), *_summary(calibration, fit), Text(), _constants(fit.constants), Text(), _rows(fit)]
    if fit.skipped:
        parts += [Text(), Text("Left out", style="bold"), *(Text(f"  {s.source}: {s.reason}") for s in fit.skipped)]
    if fit.warnings:
        parts += [Text(), Text("Mind", style="bold"), *(Text(f"  {w}") for w in fit.warnings)]
    return Group(*parts)


def _summary(calibration: CalibrationJson, fit: FitJson) -> Iterable[Text]:
    count = len(fit.rows)
    yield Text(f"{count} row{'s' * (count != 1)} measured; fitted: {', '.join(fit.fitted)}")
    packaged = "" if fit.default_error is None else f"packaged constants {_error(fit.default_error)}; "
    yield Text(f"Error of a row: {packaged}fit {_error(fit.error)}")
    if fit.left_out_error is not None:
        yield Text(f"Error of a row by a fit to the others: {_error(fit.left_out_error)}")
    if calibration.samplers.kv_tokens is not None:
        yield Text(f"KV room of a replica: {calibration.samplers.kv_tokens:,} tokens, as its engine reports")


def _error(errors: ErrorsJson) -> str:
    return f"mean {errors.mean:.1%}, worst {errors.worst:.1%}"


def _constants(constants: Iterable[ConstantJson]) -> Table:
    table = Table("constant", box=None, padding=(0, 2, 0, 0), header_style="dim")
    for heading in ("packaged", "fitted", "±", "± before"):
        table.add_column(heading, justify="right")
    for c in constants:
        words, scale, unit = _WORDS.get(c.name, (c.name, 1.0, ""))
        table.add_row(
            words,
            "-" if c.default is None else f"{c.default * scale:.3g}{unit}",
            f"{c.value * scale:.3g}{unit}",
            "-" if c.uncertainty is None else f"{c.uncertainty:.0%}",
            "-" if c.prior is None else f"{c.prior:.0%}",
        )
    return table


def _rows(fit: FitJson) -> Table:
    table = Table("row", box=None, padding=(0, 2, 0, 0), header_style="dim")
    for heading in ("running", "context", "measured ms", "packaged", "fit", "error", "left out"):
        table.add_column(heading, justify="right")
    for r in fit.rows:
        table.add_row(
            r.source,
            f"{r.running:.1f}",
            f"{r.context_tokens:,.0f}",
            f"{r.measured_ms:.2f}",
            "-" if r.default_ms is None else f"{r.default_ms:.2f}",
            f"{r.predicted_ms:.2f}",
            f"{r.error:+.1%}",
            "-" if r.left_out_error is None else f"{r.left_out_error:+.1%}",
        )
    return table
