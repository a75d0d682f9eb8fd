"""A picture of traces: period and split over the steps, of the operator, the clairvoyant and the split of step 0."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

import numpy as np
from numpy.typing import NDArray

from dev.bench.drift.bench import Played
from dev.bench.drift.clairvoyant import smoothed
from dev.bench.drift.result import PolicyName
from dev.bench.drift.stage import Outcome

WIDTH, HEIGHT, GAP, LEFT, TOP = 420.0, 150.0, 46.0, 62.0, 58.0
COLOURS = {
    PolicyName.STATIC_START: ("#8c8c8c", "split of step 0"),
    PolicyName.CLAIRVOYANT: ("#c4661f", "clairvoyant"),
    PolicyName.RLJOB: ("#1f6fb2", "rljob"),
}
SMOOTH_STEPS = 9
TICKS = 4


def _nice(top: float) -> float:
    """A round number not far above ``top``."""
    if top <= 0:
        return 1.0
    unit = float(10 ** np.floor(np.log10(top)))
    return next(unit * factor for factor in (1, 1.5, 2, 3, 4, 5, 6, 8, 10) if unit * factor >= top * 0.999)


def _line(values: NDArray[np.float64], top: float, x0: float, y0: float, *, stepped: bool) -> str:
    n = len(values)
    every = 1 if stepped else max(1, n // 400)
    points: list[str] = []
    previous = None
    for step in range(0, n, every):
        x = x0 + WIDTH * step / max(1, n - 1)
        y = y0 + HEIGHT * (1.0 - float(values[step]) / top)
        if stepped:
            if previous is not None and abs(previous - y) < 1e-9 and step < n - 1:
                continue
            if previous is not None:
                points.append(f"{x:.1f},{previous:.1f}")
        points.append(f"{x:.1f},{y:.1f}")
        previous = y
    return " ".join(points)


def trainers_by_step(outcome: Outcome) -> NDArray[np.float64]:
    """Trainer replicas that were wished at each step."""
    found = np.full(outcome.steps, float(outcome.start.trainers))
    for step, counts in outcome.moves:
        found[step:] = counts.trainers
    return found


def _panel(
    title: str, curves: Sequence[tuple[str, NDArray[np.float64]]], x0: float, y0: float, *, stepped: bool
) -> list[str]:
    top = _nice(max(float(values.max()) for _, values in curves))
    steps = max(len(values) for _, values in curves)
    lines = [f'<text x="{x0}" y="{y0 - 8}" class="title">{escape(title)}</text>']
    for tick in range(TICKS + 1):
        y = y0 + HEIGHT * (1 - tick / TICKS)
        lines.append(f'<line x1="{x0}" y1="{y:.1f}" x2="{x0 + WIDTH}" y2="{y:.1f}" class="grid"/>')
        lines.append(f'<text x="{x0 - 6}" y="{y + 4:.1f}" text-anchor="end">{top * tick / TICKS:g}</text>')
        x = x0 + WIDTH * tick / TICKS
        label = f"{steps * tick // TICKS}"
        lines.append(f'<text x="{x:.1f}" y="{y0 + HEIGHT + 16:.1f}" text-anchor="middle">{label}</text>')
    for colour, values in curves:
        points = _line(values, top, x0, y0, stepped=stepped)
        lines.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="1.8"/>')
    return lines


def picture(played: Sequence[Played]) -> str:
    """An SVG with a column for each trace: the period above, the trainers below."""
    columns = len(played)
    width = LEFT + columns * WIDTH + (columns - 1) * (GAP + LEFT) + 20
    height = TOP + 2 * HEIGHT + 90
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" role="img">',
        "<title>Period and split over the steps of two traces</title>",
        "<style>text{font:12px sans-serif;fill:#444}.title{font-weight:600}.grid{stroke:#ddd;stroke-width:1}</style>",
        f'<rect width="{width:.0f}" height="{height:.0f}" fill="#fff"/>',
    ]
    x = LEFT
    for colour, label in COLOURS.values():
        lines.append(f'<line x1="{x:.0f}" y1="16" x2="{x + 22:.0f}" y2="16" stroke="{colour}" stroke-width="2.5"/>')
        lines.append(f'<text x="{x + 28:.0f}" y="20">{label}</text>')
        x += 140
    for column, one in enumerate(played):
        x0 = LEFT + column * (WIDTH + GAP + LEFT)
        periods = [
            (colour, smoothed(one.outcomes[name].record.periods_s, SMOOTH_STEPS))
            for name, (colour, _) in COLOURS.items()
        ]
        # A move halts the job for a step or two: drawn to scale it would hide all else.
        top = 1.25 * max(float(np.percentile(values, 98)) for _, values in periods)
        clipped = [(colour, np.minimum(values, top)) for colour, values in periods]
        lines += _panel(f"{one.json.name}: period in seconds", clipped, x0, TOP, stepped=False)
        trainers = [(colour, trainers_by_step(one.outcomes[name])) for name, (colour, _) in COLOURS.items()]
        wide = one.stage.start.trainers.gpus_per_replica
        title = f"trainer replicas of {wide} GPUs"
        lines += _panel(title, trainers, x0, TOP + HEIGHT + 58, stepped=True)
    lines.append("</svg>")
    return "\n".join(lines) + "\n"
