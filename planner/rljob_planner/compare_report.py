"""A comparison for people: the verdict, both sides, and what was asked differently."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from rljob_planner.compare import ABSOLUTE
from rljob_planner.durations import seconds
from rljob_planner.report import percent

if TYPE_CHECKING:
    from rljob_planner._plan_json import SplitJson
    from rljob_planner.compare import Comparison, Measure

_NAMES = {
    "period": "Period",
    "runTime": "Run time",
    "cost": "Cost",
    "staleness": "Staleness, mean",
    "rho": "ρ",
    "samplerUtilization": "Samplers busy",
    "trainerUtilization": "Trainer trains",
    "queueGroups": "Queue, groups",
    "tokensPerSecond": "Trained tokens a second",
    "wastedTokens": "Wasted tokens",
}
_LONG = 60


def comparison_report(found: Comparison) -> RenderableType:
    """A comparison for people."""
    parts: list[RenderableType] = [Text(f"{found.a}  against  {found.b}", style="bold"), Text(verdict(found)), Text()]
    grid = Table.grid(padding=(0, 3, 0, 0))
    grid.add_column(no_wrap=True)
    for _ in range(2):
        grid.add_column(justify="right")
    grid.add_column()
    grid.add_row("", Text("A", style="cyan"), Text("B", style="cyan"), "")
    if found.split_a is not None and found.split_b is not None:
        same = "the same" if found.split_a == found.split_b else ""
        grid.add_row(Text("Split", style="cyan"), _split(found.split_a), _split(found.split_b), same)
        grid.add_row(
            Text("In flight", style="cyan"), f"{found.split_a.in_flight:,}", f"{found.split_b.in_flight:,}", ""
        )
    for m in found.measures:
        if m.a is not None or m.b is not None:
            grid.add_row(
                Text(_NAMES.get(m.name, m.name), style="cyan"), _value(m.name, m.a), _value(m.name, m.b), change(m)
            )
    parts.append(grid)
    if found.inputs:
        parts += [Text(), Text("What was asked differently", style="bold")]
        inputs = Table.grid(padding=(0, 3, 0, 0))
        for c in found.inputs:
            inputs.add_row(Text(f"  {c.field}", style="cyan"), Text(_input(c.a)), Text(_input(c.b)))
        parts.append(inputs)
    elif found.kind != "plans":
        parts += [Text(), Text("Nothing was asked differently.")]
    return Group(*parts)


def verdict(found: Comparison) -> str:
    """The difference of the periods in a sentence, and how sure it is."""
    period = next(m for m in found.measures if m.name == "period")
    if period.change is None:
        return "One of them never ends, so there is nothing to compare."
    if period.change == 0.0 and period.error in (0.0, None):
        return "Both take the same time for a step."
    size = abs(period.change)
    words = f"B takes {size:.1%} {'less' if period.change < 0 else 'more'} time for a step"
    if found.pairs == 0:
        return f"{words}. Whether that is more than chance a plan alone can't tell: compare the jobs."
    if not period.beyond_noise:
        return (
            f"No difference in the period beyond the noise of {found.pairs} pairs of runs with common random numbers."
        )
    return f"{words}: beyond the noise of {found.pairs} pairs of runs with common random numbers (standard error {100 * (period.error or 0.0):.2g} %)."


def change(m: Measure) -> Text:
    """The change of a measure, dim if it may be noise."""
    if m.change is None:
        return Text("")
    if m.change == 0.0 and m.error in (0.0, None):
        return Text("the same", style="dim")
    size = f"{m.change:+.2f}".replace("-", "−") if m.name in ABSOLUTE else percent(m.change)
    if m.beyond_noise is None:
        return Text(size)
    return Text(size, style="bold") if m.beyond_noise else Text(f"{size}  within the noise", style="dim")


def _value(name: str, value: float | None) -> str:
    if value is None:
        return "unknown"
    if name in ("period", "runTime"):
        return seconds(value)
    if name == "cost":
        return f"${value:,.0f}"
    if name.endswith("Utilization"):
        return f"{value:.0%}"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.2f}"


def _split(split: SplitJson) -> str:
    s, t = split.samplers, split.trainers
    turn = ", in turn" if split.mode == "sync" else ""
    return f"{s.replicas}×{s.gpus_per_replica} + {t.replicas}×{t.gpus_per_replica}{turn}"


def _input(value: Any) -> str:
    text = "not given" if value is None else value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _LONG else f"{text[: _LONG - 1]}…"
