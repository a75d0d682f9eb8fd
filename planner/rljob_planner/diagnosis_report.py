"""A diagnosis for people: the verdict and why, where the period goes on each clock, what to change first, and what is not known."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from rljob_planner.advise import Bound
from rljob_planner.diagnose import Clock
from rljob_planner.durations import seconds

if TYPE_CHECKING:
    from rljob_planner.advise import Compared
    from rljob_planner.diagnose import Diagnosis, Term

_VERDICTS = {
    Bound.SAMPLERS: "The samplers are the bottleneck",
    Bound.TRAINERS: "The trainer is the bottleneck",
    Bound.SANDBOXES: "The environments are the bottleneck",
    Bound.WEIGHT_SYNC: "Weight sync is the bottleneck",
    Bound.BALANCED: "Both sides are about equally fast",
    Bound.HANDOVER: "Something between the queue and the trainer is the bottleneck",
    Bound.UNKNOWN: "What bounds the period can't be said from these metrics",
}
_CLOCKS = {Clock.TRAINER: "trainer's period", Clock.SAMPLERS: "samplers' time", Clock.SAMPLE: "a sample's life"}
_BAR = 24


def diagnosis_report(found: Diagnosis, title: str) -> RenderableType:
    """A diagnosis; ``title`` says of what."""
    unsure = "" if found.sure or found.bound is Bound.UNKNOWN else " (probably)"
    period = "period unknown" if found.period_s is None else f"period {seconds(found.period_s)}"
    parts: list[RenderableType] = [
        Text(title, style="bold"),
        Text(),
        Text(f"{_VERDICTS[found.bound]}{unsure}; {period}", style="bold"),
        *(Text(f"  {line}") for line in found.why),
        Text(),
        _terms(found.terms),
    ]
    if found.advice:
        parts += [Text(), Text("What to change first", style="bold")]
        for number, a in enumerate(found.advice, 1):
            most = "" if a.at_most is None else f"; at most {a.at_most:.0%} of the period"
            parts.append(Text(f"  {number}. {a.change}: {a.because}{most}"))
    if found.compared:
        parts += [Text(), Text("Beside the model", style="bold"), _compared(found.compared)]
    parts.append(Text())
    parts.append(Text("Evidence", style="bold"))
    for t in found.terms:
        parts += [Text(f"  {t.name}: {line}") for line in t.evidence]
    for heading, lines in (("Not known", found.unknown), ("Notes", found.notes)):
        if lines:
            parts += [Text(), Text(heading, style="bold"), *(Text(f"  {line}") for line in lines)]
    return Group(*parts)


def _terms(terms: Iterable[Term]) -> Table:
    table = Table("where the time goes", box=None, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("", justify="left")
    table.add_column("share", justify="right")
    table.add_column("time", justify="right")
    table.add_column("of")
    for t in terms:
        bar = "" if t.share is None else "█" * round(t.share * _BAR)
        share = "unknown" if t.share is None else f"{t.share:.0%}"
        table.add_row(t.name, bar, share, "-" if t.seconds is None else seconds(t.seconds), _CLOCKS[t.clock])
    return table


def _compared(rows: Iterable[Compared]) -> Table:
    table = Table("", box=None, padding=(0, 2, 0, 0), header_style="dim")
    for heading in ("model", "measured", "ratio"):
        table.add_column(heading, justify="right")
    table.add_column("")
    for c in rows:
        words = (lambda value: f"{value:.2f}") if "staleness" in c.name else seconds
        table.add_row(
            f"  {c.name}",
            words(c.predicted),
            words(c.measured),
            "-" if c.ratio is None else f"{c.ratio:.2f}",
            c.meaning,
        )
    return table
