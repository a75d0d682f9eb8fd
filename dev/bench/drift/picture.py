"""A picture of traces: period and split over the steps, of the operator, the clairvoyant and the split of step 0."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

import numpy as np

from dev.bench.drift.result import PolicyJson, PolicyName, TraceJson

WIDTH, HEIGHT, LEFT, BETWEEN, TOP, RIGHT = 420.0, 150.0, 56.0, 76.0, 62.0, 24.0
LOWER = TOP + HEIGHT + 62.0
COLOURS = {
    PolicyName.STATIC_START: ("#8c8c8c", "split of step 0"),
    PolicyName.CLAIRVOYANT: ("#c4661f", "clairvoyant"),
    PolicyName.RLJOB: ("#1f6fb2", "rljob"),
}
TICKS = 4
LEGEND = 150.0
Curve = tuple[str, list[tuple[float, float]]]


def nice(top: float) -> float:
    """A round number not far above ``top``."""
    if top <= 0:
        return 1.0
    unit = float(10 ** np.floor(np.log10(top)))
    return next(unit * factor for factor in (1, 1.2, 1.6, 2, 2.4, 3.2, 4, 5, 6, 8, 10) if unit * factor >= top * 0.999)


def trainers_by_step(policy: PolicyJson, steps: int) -> list[tuple[float, float]]:
    """The corners of the line of trainer replicas that were wished over the steps."""
    corners, now = [(0.0, float(policy.start.trainers))], float(policy.start.trainers)
    for move in policy.move_steps:
        corners += [(float(move.step), now), (float(move.step), float(move.trainers))]
        now = float(move.trainers)
    return [*corners, (float(steps), now)]


def _panel(title: str, curves: Sequence[Curve], steps: int, x0: float, y0: float, top: float) -> list[str]:
    lines = [f'<text x="{x0:.0f}" y="{y0 - 10:.0f}" class="title">{escape(title)}</text>']
    for tick in range(TICKS + 1):
        y, x = y0 + HEIGHT * (1 - tick / TICKS), x0 + WIDTH * tick / TICKS
        lines += [
            f'<line x1="{x0:.0f}" y1="{y:.1f}" x2="{x0 + WIDTH:.0f}" y2="{y:.1f}" class="grid"/>',
            f'<text x="{x0 - 7:.0f}" y="{y + 4:.1f}" text-anchor="end">{top * tick / TICKS:g}</text>',
            f'<text x="{x:.1f}" y="{y0 + HEIGHT + 17:.0f}" text-anchor="middle">{steps * tick // TICKS}</text>',
        ]
    for colour, points in curves:
        path = " ".join(
            f"{x0 + WIDTH * step / steps:.1f},{y0 + HEIGHT * (1 - min(value, top) / top):.1f}" for step, value in points
        )
        lines.append(
            f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2" stroke-linejoin="round"/>'
        )
    return lines


def picture(traces: Sequence[TraceJson]) -> str:
    """An SVG with a column for each trace: the period above, the trainers below."""
    width = LEFT + len(traces) * WIDTH + (len(traces) - 1) * BETWEEN + RIGHT
    height = LOWER + HEIGHT + 44.0
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" role="img">',
        f"<title>Period and trainers over the steps of {escape(' and '.join(trace.name for trace in traces))}</title>",
        "<style>text{font:12px sans-serif;fill:#444}.title{font-weight:600}.grid{stroke:#ddd}</style>",
        f'<rect width="{width:.0f}" height="{height:.0f}" fill="#fff"/>',
    ]
    for i, (colour, label) in enumerate(COLOURS.values()):
        x = LEFT + i * LEGEND
        lines.append(f'<line x1="{x:.0f}" y1="18" x2="{x + 22:.0f}" y2="18" stroke="{colour}" stroke-width="2.5"/>')
        lines.append(f'<text x="{x + 28:.0f}" y="22">{label}</text>')
    for column, trace in enumerate(traces):
        x0 = LEFT + column * (WIDTH + BETWEEN)
        shown = [(COLOURS[p.policy][0], p) for name in COLOURS for p in trace.policies if p.policy is name]
        steps = max(step for _, p in shown for step, _ in p.periods)
        periods = [(colour, [(float(step), seconds) for step, seconds in p.periods]) for colour, p in shown]
        # A move halts the job for a step or two: drawn to scale it could hide all else.
        top = nice(1.1 * max(float(np.percentile([value for _, value in points], 97)) for _, points in periods))
        lines += _panel(f"{trace.name}: period in seconds, by step", periods, steps, x0, TOP, top)
        trainers = [(colour, trainers_by_step(p, steps)) for colour, p in shown]
        most = max(value for _, points in trainers for _, value in points)
        lines += _panel(
            "trainer replicas, by step", trainers, steps, x0, LOWER, TICKS * float(np.ceil((most + 1) / TICKS))
        )
    lines.append("</svg>")
    return "\n".join(lines) + "\n"
