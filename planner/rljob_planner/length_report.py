"""A fit of lengths for people: the law beside the lengths that it was fitted to, so that everyone sees where they part.

Bars and not only a distance: a fit that is wrong in the tail and one that is wrong in the body have the same KS, and the first
makes the plan wrong. The blocks at the end are there to be copied.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from rljob_planner.length_blocks import job_block, scenario_block
from rljob_planner.traces import FittedLengths, LengthTrace

_ROWS = 16
_BAR = 28
_PARTS = " ▏▎▍▌▋▊▉█"


def lengths_report(found: FittedLengths, trace: LengthTrace) -> RenderableType:
    """Summary, histogram, what is not supported, and blocks for a job and for a scenario."""
    parts: list[RenderableType] = [
        Text(f"{trace.source}: {found.samples} responses", style="bold"),
        Text(),
        _summary(found),
        Text(),
        Text("Lengths and the law", style="bold"),
        _histogram(found, trace),
    ]
    for title, lines, style in (("Not supported by the log", found.warnings, "yellow"), ("Notes", found.notes, "")):
        if lines:
            parts += [Text(), Text(title, style="bold")]
            parts += [Padding(Text(f"• {line}", style=style), (0, 0, 0, 2)) for line in lines]
    job = {"responseTokens": job_block(found)}
    for title, block in (("For workload of an RLJob", job), ("For workload of a scenario", scenario_block(found))):
        parts += [Text(), Text(title, style="bold"), Padding(Text(_yaml(block)), (0, 0, 0, 2))]
    return Group(*parts)


def _summary(found: FittedLengths) -> Table:
    lengths = found.distribution
    table = Table.grid(padding=(0, 2))
    others = ", ".join(f"{fit.name} ({fit.ks:.3f})" for fit in found.fits[1:])
    rows = [
        ("law", f"{found.law}, at most {found.ks:.3f} from the log (KS)" + (f"; others: {others}" if others else "")),
        (
            "mean",
            f"{lengths.mean():,.0f} tokens (log {found.seen_mean:,.0f}), cv {lengths.cv():.2f} (log {found.seen_cv:.2f})",
        ),
        ("p50, p90, p99", ", ".join(f"{lengths.quantile(p):,}" for p in (0.5, 0.9, 0.99)) + " tokens"),
        (
            "cap",
            f"{found.cap_tokens:,} tokens ({_CAP_FROM[found.cap_from]}); it cut {found.cap_share:.2%} of the responses",
        ),
    ]
    if found.group_correlation is not None:
        rows.append(("in a group", f"{found.group_size} samples a prompt, correlated by {found.group_correlation:.2f}"))
    if found.growth is not None:
        rows.append(("over the run", " → ".join(f"×{level:.2f}" for _, level in found.growth.points)))
    for what, said in rows:
        table.add_row(Text(what, style="dim"), said)
    return table


_CAP_FROM = {
    "told": "given",
    "flags": "the log says what was cut",
    "pile": "so many are exactly as long",
    "longest": "the longest response; no cap is to be seen",
}


def _histogram(found: FittedLengths, trace: LengthTrace) -> Table:
    tokens = np.minimum(np.maximum(trace.tokens, 1), found.cap_tokens)
    lengths = found.distribution
    low = max(1.0, float(np.quantile(tokens, 0.002)))
    edges = np.unique(np.rint(np.geomspace(low, max(found.cap_tokens - 1.0, low), _ROWS)).astype(np.int64))
    if found.cap_tokens > edges[-1]:
        edges = np.append(edges, found.cap_tokens)
    seen = np.diff(np.searchsorted(np.sort(tokens), edges, side="right") / len(tokens), prepend=0.0)
    law = np.diff(1.0 - lengths.survival(edges.astype(np.float64)), prepend=0.0)
    most = float(max(seen.max(), law.max()))
    table = Table(box=None, padding=(0, 1), header_style="dim")
    table.add_column("tokens up to", justify="right")
    table.add_column("log", justify="right")
    table.add_column("", width=_BAR)
    table.add_column("law", justify="right")
    table.add_column("", width=_BAR)
    for edge, of_log, of_law in zip(edges.tolist(), seen.tolist(), law.tolist(), strict=True):
        table.add_row(f"{edge:,}", f"{of_log:.2%}", _bar(of_log / most), f"{of_law:.2%}", _bar(of_law / most))
    return table


def _bar(share: float) -> str:
    eighths = round(share * _BAR * 8)
    return _PARTS[8] * (eighths // 8) + _PARTS[eighths % 8].strip()


def _yaml(block: dict[str, Any]) -> str:
    import yaml

    return str(yaml.safe_dump(block, sort_keys=False, default_flow_style=None, width=110)).rstrip()
