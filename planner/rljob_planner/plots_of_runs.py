"""The pictures of one simulated run over time: what each side does, and what waits between them.

A mean hides what it is a mean of. These show the same run that the numbers of a report come from, as it was recorded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from rljob_planner.drawing import GRID, MUTED, PAPER, SAMPLERS, TRAINERS, Plot, drawing, finished, said

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from numpy.typing import NDArray

    from rljob_planner.timeline import Timeline

MOST_LANES = 16
"""Sampler replicas that an activity picture shows; of more, an even selection."""

_COLUMNS = 480
"""Columns of a picture over time: finer than a screen shows is only heavier."""


def queue_depth(timeline: Timeline, until_s: float, prompts_per_step: int) -> Plot:
    """Complete groups that wait for the trainer, over time."""
    times, groups = timeline.queue["time_s"], timeline.queue["groups"]
    last = int(np.searchsorted(times, until_s))
    with drawing(2.5) as figure:
        axes = figure.subplots()
        x, y = _thinned(np.append(times[:last], until_s), np.append(groups[:last], groups[max(0, last - 1)]))
        axes.fill_between(x, y, step="post", color=SAMPLERS, alpha=0.18, linewidth=0)
        axes.step(x, y, where="post", color=SAMPLERS, linewidth=1.2)
        axes.axhline(prompts_per_step, color=TRAINERS, linewidth=1.2, linestyle=(0, (4, 3)))
        said(axes, f"a step takes {prompts_per_step}", 0.0, prompts_per_step, TRAINERS, of="x", dx=5, va="bottom")
        axes.set_ylim(0, max(float(y.max(initial=0)), prompts_per_step) * 1.2)
        axes.set_xlim(0, until_s)
        axes.set_xlabel("seconds since the start of the run")
        axes.set_ylabel("groups that wait")
        waits = float(y[len(y) // 2 :].mean()) if len(y) else 0.0
        return finished(
            figure,
            "queue",
            "Complete groups that wait for the trainer",
            f"About {waits:.0f} groups wait in the second half of what is shown, at most {int(y.max(initial=0))}; a step takes {prompts_per_step}.",
            "The trainer takes a batch at the start of each step. A queue that only grows means more samples than it can train on.",
        )


def activity(timeline: Timeline, until_s: float, max_running: int, replicas: int) -> Plot:
    """What every sampler replica and the trainer do over time: how full, and when they wait."""
    lanes = np.unique(np.linspace(0, replicas - 1, min(replicas, MOST_LANES)).round().astype(int))
    edges = np.linspace(0.0, until_s, _COLUMNS + 1)
    grid = np.stack([_mean_over(timeline.running, replica, edges) for replica in lanes])
    fullest = max(float(grid.max(initial=0.0)), 1.0)
    steps = timeline.steps[timeline.steps["begin_s"] < until_s]
    ends = np.minimum(steps["end_s"], until_s)
    trained = float((ends - steps["begin_s"]).sum()) / until_s
    height = 0.16 * len(lanes) + 1.5
    with drawing(height) as figure:
        axes = figure.subplots()
        for row, levels in enumerate(grid):
            _lane(axes, row, edges, levels / fullest)
        bottom = len(lanes) + 0.6
        axes.broken_barh(
            [(float(s["begin_s"]), float(e - s["begin_s"])) for s, e in zip(steps, ends, strict=True)],
            (bottom - 0.45, 1.4),
            facecolors=TRAINERS,
            edgecolors=PAPER,
            linewidth=0.6,
        )
        for published in steps["published_s"][steps["published_s"] < until_s]:
            axes.axvline(published, color=MUTED, linewidth=0.5, alpha=0.5, zorder=0)
        axes.set_ylim(bottom + 1.3, -0.8)
        axes.set_xlim(0, until_s)
        axes.grid(False)
        axes.set_yticks([(len(lanes) - 1) / 2, bottom + 0.25], ["samplers", "trainer"])
        axes.tick_params(axis="y", length=0)
        axes.spines["left"].set_visible(False)
        axes.set_xlabel("seconds since the start of the run; thin lines: a new policy version")
        shown = "" if len(lanes) == replicas else f" {len(lanes)} of {replicas} sampler replicas are shown."
        return finished(
            figure,
            "activity",
            "Who works when",
            f"Up to {fullest:.0f} of {max_running} possible samples run on a sampler at once; the trainer trains {trained:.0%} of the time shown.",
            f"Samplers: the darker, the more samples run. Trainer: one bar a step, gaps are waiting for samples.{shown}",
        )


def _mean_over(running: NDArray[np.void], replica: int, edges: NDArray[np.float64]) -> NDArray[np.float64]:
    """The mean number of running samples of a replica in each column of a picture over time."""
    own = running[running["replica"] == replica]
    times, levels = np.concatenate([[0.0], own["time_s"]]), np.concatenate([[0.0], own["running"]])
    area = np.concatenate([[0.0], np.cumsum(levels[:-1] * np.diff(times))])
    last = np.clip(np.searchsorted(times, edges, side="right") - 1, 0, len(times) - 1)
    upto = area[last] + levels[last] * (edges - times[last])
    means: NDArray[np.float64] = np.diff(upto) / np.diff(edges)
    return means


def _lane(axes: Axes, row: int, edges: NDArray[np.float64], levels: NDArray[np.float64]) -> None:
    """One replica as bars of equal darkness: neighbours of the same level are one bar, so that the file stays small."""
    shades = np.ceil(np.clip(levels, 0.0, 1.0) * 6.0).astype(int)
    starts = np.concatenate([[0], np.flatnonzero(np.diff(shades)) + 1])
    ends = np.append(starts[1:], len(shades))
    for level in range(7):
        bars = [(edges[a], edges[b] - edges[a]) for a, b in zip(starts, ends, strict=True) if shades[a] == level]
        if bars:
            color, alpha = (GRID, 0.5) if level == 0 else (SAMPLERS, 0.1 + 0.9 * level / 6)
            axes.broken_barh(bars, (row - 0.42, 0.84), facecolors=color, alpha=alpha, linewidth=0)


def _thinned(x: NDArray[np.float64], y: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """A step function with no more points than a picture can show; of each column its extremes are kept."""
    if len(x) <= 4 * _COLUMNS:
        return x, y
    parts = np.array_split(np.arange(len(x)), _COLUMNS)
    keep = np.unique(np.concatenate([[p[0], p[int(y[p].argmin())], p[int(y[p].argmax())], p[-1]] for p in parts]))
    return x[keep], y[keep]
