"""The run as one page that needs nothing but a browser: five curves over time, both plants, every move and its reason."""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dev.demo.history import Move, label
from dev.demo.outcome import Outcome, Step
from rljob_operator.rebalance import epoch_s

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 1000.0, 150.0, 64.0, 12.0, 14.0, 22.0

Json = Mapping[str, Any]
Points = Sequence[tuple[float, float]]

_STYLE = """
:root { color-scheme: light dark; --ink: #1c2330; --paper: #ffffff; --faint: #8891a0; --rule: #e3e7ee; --live: #0b6bcb;
  --shadow: #c2571a; --third: #2e8540; --band: rgba(11,107,203,.10); }
@media (prefers-color-scheme: dark) { :root { --ink: #e4e8ef; --paper: #12161d; --faint: #8b94a3; --rule: #2a313c;
  --live: #5aa9f5; --shadow: #f0955a; --third: #6cc47f; --band: rgba(90,169,245,.14); } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); margin: 2rem auto; max-width: 1040px;
  padding: 0 1rem; }
h1 { font-size: 1.4rem; margin: 0 0 .3rem; } h2 { font-size: 1rem; margin: 1.6rem 0 .2rem; }
p { margin: .2rem 0; } .faint { color: var(--faint); }
dl { display: grid; grid-template-columns: repeat(auto-fit, minmax(150px, 1fr)); gap: .8rem; margin: 1.2rem 0; }
dt { color: var(--faint); font-size: .85rem; } dd { margin: 0; font-size: 1.35rem; }
svg { width: 100%; height: auto; display: block; } svg text { font-size: 11px; fill: var(--faint); }
.rule { stroke: var(--rule); } .move { fill: var(--band); } .mark { stroke: var(--faint); stroke-dasharray: 3 3; }
.live { stroke: var(--live); } .shadow { stroke: var(--shadow); } .third { stroke: var(--third); }
.limit { stroke: var(--ink); stroke-dasharray: 6 4; opacity: .5; }
.line { fill: none; stroke-width: 1.8; stroke-linejoin: round; }
.key { display: inline-block; width: 1.4em; height: 3px; vertical-align: middle; margin: 0 .4em 0 1.2em; }
.key.live { background: var(--live); } .key.shadow { background: var(--shadow); } .key.third { background: var(--third); }
table { border-collapse: collapse; width: 100%; font-size: .9rem; }
td, th { text-align: left; vertical-align: top; padding: .3rem .6rem .3rem 0; border-bottom: 1px solid var(--rule); }
td:first-child { white-space: nowrap; font-variant-numeric: tabular-nums; }
"""


@dataclass(frozen=True)
class _Curve:
    css: str
    points: Points
    steps: bool = False
    """Whether the value holds until the next point."""


def page(
    *,
    title: str,
    outcome: Outcome,
    live: Sequence[Step],
    shadow: Sequence[Step],
    moves: Sequence[Move],
    marks: Sequence[Json],
    started_s: float,
) -> str:
    """The page as HTML; ``started_s`` is the loop's start in epoch seconds."""
    end = max([s.t for s in (*live, *shadow)], default=1.0)
    bands = [(m.started_s - started_s, (m.ended_s or started_s + end) - started_s) for m in moves]
    ticks = [(epoch_s(d["at"]) - started_s, f"{d['code']}: {d['message']}") for d in marks]

    def of(steps: Sequence[Step], value: Callable[[Step], float | None]) -> Points:
        return [(s.t, v) for s in steps if (v := value(s)) is not None]

    limit = outcome.result["stalenessLimit"]
    charts = (
        ("Period", "s between two policy versions", [
            _Curve("shadow", of(shadow, lambda s: s.period)), _Curve("live", of(live, lambda s: s.period)),
        ]),
        ("Response length", "tokens; green: mean of those that start now", [
            _Curve("third", of(live, lambda s: s.length_now)),
            _Curve("shadow", of(shadow, lambda s: s.mean_length)), _Curve("live", of(live, lambda s: s.mean_length)),
        ]),
        ("Split", "replicas; green: trainers", [
            _Curve("shadow", of(shadow, lambda s: s.samplers), steps=True),
            _Curve("live", of(live, lambda s: s.samplers), steps=True),
            _Curve("third", of(live, lambda s: s.trainers), steps=True),
        ]),
        ("Queue", "complete groups that wait for the trainer", [
            _Curve("shadow", of(shadow, lambda s: s.queue)), _Curve("live", of(live, lambda s: s.queue)),
        ]),
        ("Staleness", f"policy versions, mean of a step; limit {limit}", [
            _Curve("limit", [(0.0, float(limit)), (end, float(limit))]),
            _Curve("shadow", of(shadow, lambda s: s.staleness_mean)), _Curve("live", of(live, lambda s: s.staleness_mean)),
        ]),
    )  # fmt: skip
    body = "".join(
        f'<h2>{name} <span class="faint">{html.escape(unit)}</span></h2>{_chart(curves, end, bands, ticks)}'
        for name, unit, curves in charts
    )
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{html.escape(title)}</title>'
        f'<meta name="viewport" content="width=device-width"><style>{_STYLE}</style></head><body>'
        f"<h1>{html.escape(title)}</h1>"
        '<p><span class="key live" style="margin-left:0"></span>steered by the operator'
        '<span class="key shadow"></span>the first split kept, same trace, seed and noise</p>'
        f"{_figures(outcome)}{body}{_decisions(marks, started_s)}</body></html>\n"
    )


def _figures(outcome: Outcome) -> str:
    r = outcome.result

    def seconds(value: float | None) -> str:
        return "–" if value is None else f"{value:.2f} s"

    figures = [
        ("period at the start", seconds(r["periodStart"])),
        ("before the first move", seconds(r["periodBeforeMove"])),
        ("at the end", seconds(r["periodAfterMove"])),
        ("at the end, never moved", seconds(r["periodIfNeverMoved"])),
        ("saved", "–" if outcome.gain is None else f"{outcome.gain:.1%}"),
        ("GPUs at most / budget", f"{r['gpuPeak']} / {r['gpuBudget']}"),
    ]
    return "<dl>" + "".join(f"<div><dt>{name}</dt><dd>{value}</dd></div>" for name, value in figures) + "</dl>"


def _clock(t: float) -> str:
    return f"{t:.0f} s" if t >= 0.0 else "before"


def _decisions(marks: Sequence[Json], started_s: float) -> str:
    rows = "".join(
        f"<tr><td>{_clock(epoch_s(d['at']) - started_s)}</td><td>{html.escape(d['code'])}</td>"
        f"<td>{html.escape(label(d.get('from')))}</td><td>{html.escape(label(d.get('to')))}</td>"
        f"<td>{html.escape(d['message'])}</td></tr>"
        for d in marks
    )
    return (
        "<h2>Decisions</h2><table><tr><th>at</th><th>code</th><th>from</th><th>to</th><th>why</th></tr>"
        + rows
        + "</table>"
    )


def _chart(
    curves: Sequence[_Curve], end: float, bands: Sequence[tuple[float, float]], ticks: Sequence[tuple[float, str]]
) -> str:
    values = [v for curve in curves for _, v in curve.points]
    step = _nice(max(values, default=1.0) or 1.0)
    top = step * math.ceil((max(values, default=1.0) or 1.0) / step)

    def x(t: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * min(1.0, max(0.0, t / end))

    def y(v: float) -> float:
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * v / top

    parts = [f'<svg viewBox="0 0 {WIDTH:.0f} {HEIGHT:.0f}" role="img">']
    for a, b in bands:
        parts.append(
            f'<rect class="move" x="{x(a):.1f}" y="{TOP}" width="{max(1.0, x(b) - x(a)):.1f}" height="{HEIGHT - TOP - BOTTOM}"/>'
        )
    for i in range(round(top / step) + 1):
        parts.append(
            f'<line class="rule" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(i * step):.1f}" y2="{y(i * step):.1f}"/>'
        )
        parts.append(f'<text x="{LEFT - 8}" y="{y(i * step) + 4:.1f}" text-anchor="end">{i * step:g}</text>')
    for second in range(0, int(end) + 1, 30):
        parts.append(f'<text x="{x(second):.1f}" y="{HEIGHT - 6}" text-anchor="middle">{second} s</text>')
    for t, text in ticks:
        parts.append(
            f'<line class="mark" x1="{x(t):.1f}" x2="{x(t):.1f}" y1="{TOP}" y2="{HEIGHT - BOTTOM}">'
            f"<title>{html.escape(text)}</title></line>"
        )
    for curve in curves:
        parts.append(f'<path class="line {curve.css}" d="{_path(curve, x, y)}"/>')
    return "".join([*parts, "</svg>"])


def _path(curve: _Curve, x: Callable[[float], float], y: Callable[[float], float]) -> str:
    path: list[str] = []
    for i, (t, v) in enumerate(curve.points):
        if i and curve.steps:
            path.append(f"H{x(t):.1f}")
        path.append(f"{'L' if i else 'M'}{x(t):.1f},{y(v):.1f}")
    return "".join(path)


def _nice(top: float) -> float:
    """A step of 1, 2 or 5 times a power of ten that divides an axis into three to seven parts."""
    power = 10.0 ** math.floor(math.log10(top / 4))
    return next(m * power for m in (1, 2, 5, 10) if top / (m * power) <= 5)
