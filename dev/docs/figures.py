"""Figures of trade-offs: staleness limits, the decode step, splits, lengths, gains, targets, formulas beside simulation."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from dev.docs import example, tradeoffs
from dev.docs.style import (
    BLUE,
    GREEN,
    GREY,
    INK,
    ORANGE,
    PURPLE,
    RED,
    SAMPLERS,
    SKY,
    TRAINERS,
    new_figure,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_SEVERAL = (SKY, BLUE, GREEN, ORANGE, RED, PURPLE)


def staleness_limit() -> Figure:
    """Period, idle time and ratio variance by staleness limit; waste and bias of dropping."""
    found = tradeoffs.limits()
    at = np.arange(len(found))
    drawn, panels = new_figure(1, 4, height=2.9)
    periods = [one.result.period.mean for one in found]
    _bars(panels[0], periods, GREY, [f"{p:.0f}" for p in periods])
    panels[0].set_title("Period, s")
    waits = [100.0 * (1.0 - one.result.trainer_utilization) for one in found]
    _bars(panels[1], waits, TRAINERS, [f"{w:.0f}" for w in waits])
    panels[1].set_title("Trainer idle, %")
    variance = [one.ratio_variance for one in found]
    _bars(panels[2], variance, PURPLE, [f"{v:.2f}" for v in variance])
    panels[2].set_title("Ratio variance")
    drops = tradeoffs.limits("drop")
    wasted = [100.0 * tradeoffs.wasted(one.result) for one in drops]
    _bars(panels[3], wasted, RED, [f"{w:.0f}" for w in wasted])
    panels[3].set_title("Wasted by drop, %")
    for axes in panels[:3]:
        axes.set_xticks(at, [str(one.limit) for one in found])
    panels[3].set_xticks(np.arange(len(drops)), [str(one.limit) for one in drops])
    drawn.supxlabel("staleness limit, policy versions", fontsize=10)
    return drawn


def _bars(axes: Axes, heights: list[float], colour: str, labels: list[str]) -> None:
    drawn = axes.bar(np.arange(len(heights)), heights, color=colour, width=0.7)
    axes.bar_label(drawn, labels, padding=2, fontsize=9)
    axes.set_yticks([])
    axes.spines["left"].set_visible(False)
    axes.margins(y=0.12)


def decode_step() -> Figure:
    """Parts of a decode step by running samples, and tokens per second."""
    step = tradeoffs.decode_step()
    drawn, (left, right) = new_figure(1, 2, height=3.3)
    shown = step.running <= 512
    n = step.running[shown]
    parts = [
        ("launches, sampling, scheduling", step.fixed_s, GREY),
        ("reading the weights", np.minimum(step.weights_s, step.products_s), BLUE),
        ("arithmetic that takes longer", np.maximum(0.0, step.products_s - step.weights_s), ORANGE),
        ("reading the KV cache", step.kv_s, SKY),
    ]
    bottom = np.zeros(len(n))
    for name, seconds, colour in parts:
        if not np.any(seconds[shown] > 1e-6):
            continue
        top = bottom + 1e3 * seconds[shown]
        left.fill_between(n, bottom, top, color=colour, linewidth=0, label=name)
        bottom = top
    left.plot(n, 1e3 * step.compute_s[shown], color=INK, linestyle="--", linewidth=1.2, label="arithmetic alone")
    left.set(title="One decode step, ms", xlabel="running samples on the GPU", xlim=(1, 512))
    left.set_ylim(0, float(bottom.max()) * 1.05)
    handles, names = left.get_legend_handles_labels()
    left.legend(handles[::-1], names[::-1], loc="upper left")
    right.plot(n, step.rate[shown] / 1e3, color=SAMPLERS)
    right.plot(n, n / step.at(1) / 1e3, color=GREY, linestyle=":", linewidth=1.2, label="if a step never got longer")
    right.set(title="Tokens a second, thousands", xlabel="running samples on the GPU", xlim=(1, 512))
    right.set_ylim(0, float(step.rate[shown].max()) / 1e3 * 1.1)
    right.legend(loc=(0.46, 0.3), frameon=True, facecolor="white", edgecolor="none", framealpha=1.0)
    for factor in (1.0, 2.0, 4.0, 8.0):
        at = tradeoffs.decode_step(factor).room
        if at <= 512:
            right.axvline(at, color=RED, linewidth=1.2)
            name = "KV room" if factor == 1.0 else f"lengths ×{factor:g}"
            right.text(at - 4, 0.15, name, rotation=90, ha="right", va="bottom", fontsize=9, color=RED)
    return drawn


def split_sweep() -> Figure:
    """Period of every split with and without a bound, and what the queue does at both extremes."""
    points = tradeoffs.splits()
    drawn, grid = new_figure(2, 2, height=4.0)
    left = drawn.add_subplot(grid[0][0].get_subplotspec().get_gridspec()[:, 0])
    for axes in grid[:, 0]:
        axes.remove()
    upper, lower = grid[:, 1]
    trainers = [p.split.trainers.gpus for p in points]
    free = [p.free.period.mean for p in points]
    limited = [p.limited.period.mean for p in points]
    left.plot(trainers, free, "o--", color=GREY, label="no bound", markersize=5)
    left.plot(trainers, limited, "o-", color=BLUE, label=f"staleness at most {example.spec().staleness.max}")
    best = min(points, key=lambda p: p.limited.period.mean)
    at_best = best.split.trainers.gpus, best.limited.period.mean
    left.plot(*([one] for one in at_best), "o", color=GREEN, markersize=11, zorder=1, label="best")
    left.set(
        title="Period, s",
        xlabel="sampler + trainer GPUs",
        ylim=(0, max(free) * 1.22),
        xticks=trainers,
        xticklabels=[example.label(p.split) for p in points],
    )
    left.tick_params(axis="x", labelsize=9)
    left.text(trainers[0], max(free) * 1.1, "the queue grows", fontsize=9, ha="left", color=RED)
    left.text(trainers[-1], max(free) * 1.1, "the trainer starves", fontsize=9, ha="right", color=RED)
    left.legend(loc="lower center")
    even = np.linspace(0.0, 800.0, 320)
    starved = points[trainers.index(at_best[0]) + 1]
    for axes, shown in ((upper, [*points[: trainers.index(at_best[0])], best]), (lower, [best, starved])):
        for point in shown:
            times, groups = tradeoffs.queue_over_time(point.split.trainers.replicas)
            colour = GREEN if point is best else ORANGE if point is starved else RED
            axes.plot(
                even, np.interp(even, times, groups), color=colour, linewidth=1.4, label=example.label(point.split)
            )
            if axes is upper:
                last = float(np.interp(800.0, times, groups))
                axes.text(805, last, example.label(point.split), fontsize=9, color=colour, va="center")
        axes.set(xlim=(0, 900), ylim=(0, None))
        axes.set_xticks(range(0, 801, 200))
    lower.axhline(example.spec().workload.prompts_per_step, color=INK, linewidth=0.8, linestyle=":")
    lower.text(8, example.spec().workload.prompts_per_step + 4, "one batch", fontsize=9)
    lower.legend(loc="upper center", ncols=2)
    lower.set_ylim(0, 130)
    upper.set_title("Queue without a bound, groups")
    lower.set_title("The same near balance")
    lower.set_xlabel("seconds")
    return drawn


def length_shift() -> Figure:
    """Period of every split over that of the best, by response length."""
    drawn, axes = new_figure(height=3.6)
    for point, colour in zip(tradeoffs.length_points(), _SEVERAL, strict=False):
        trainers = [e.split.trainers.gpus for e in point.splits]
        ratio = [e.period_s / point.best.period_s for e in point.splits]
        axes.plot(
            trainers,
            ratio,
            "-",
            color=colour,
            label=f"×{point.factor:g}: mean {point.lengths.mean():,.0f} tokens",
            marker="o",
            markersize=3.5,
        )
        axes.plot([point.best.split.trainers.gpus], [1.0], "o", color=colour, markersize=10)
    labels = {e.split.trainers.gpus: example.label(e.split) for p in tradeoffs.length_points() for e in p.splits}
    axes.set(
        title="Period over that of the best split at this length",
        xlabel="sampler + trainer GPUs",
        ylim=(0.93, 2.6),
        xticks=list(labels),
        xticklabels=list(labels.values()),
    )
    axes.legend(title="response lengths", loc="center left", bbox_to_anchor=(1.0, 0.5))
    return drawn


def speedup() -> Figure:
    """Speed-up of the best asynchronous split over the synchronous step by the spread of lengths."""
    points = tradeoffs.tail_points()
    drawn, (left, right) = new_figure(1, 2, height=3.3)
    cvs = [p.cv for p in points]
    left.plot(cvs, [p.synchronous_s for p in points], "o-", color=RED, label="synchronous", markersize=4)
    left.plot(
        cvs, [p.plan.period.mean for p in points], "o-", color=BLUE, label="best asynchronous split", markersize=4
    )
    left.set(title="Period, s", xlabel="spread of lengths (standard deviation / mean)", ylim=(0, None))
    left.legend(loc="upper left")
    right.axhline(1.0, color=INK, linewidth=0.8)
    right.axhline(1.6, color=GREY, linewidth=1.0, linestyle="--")
    right.text(max(cvs), 1.66, "“about 60 %” of the talk", fontsize=9, ha="right", color="#555555")
    right.plot(cvs, [p.speedup for p in points], "o-", color=GREEN, markersize=4)
    one_node = tradeoffs.one_node_plan()
    cv = tradeoffs.one_node_job().workload.response_tokens.cv
    right.plot([cv], [one_node.speedup], "X", color=RED, markersize=9)
    right.annotate(
        "one node, long prompts:\nstay synchronous",
        (cv, one_node.speedup or 0.0),
        xytext=(10, -3),
        textcoords="offset points",
        fontsize=9,
        color="#9C4300",
        va="center",
    )
    right.set(
        title="Synchronous over asynchronous period",
        xlabel="spread of lengths (standard deviation / mean)",
        ylim=(0, None),
    )
    return drawn


def targets() -> Figure:
    """What 10 % of each of four things is worth."""
    drawn, axes = new_figure(height=2.3)
    found = tradeoffs.targets()
    names = [t.name for t in found][::-1]
    saved = [100.0 * t.saved for t in found][::-1]
    colours = {"decode": SAMPLERS, "train": TRAINERS, "tail": PURPLE, "sync": GREY}
    bars = axes.barh(names, saved, color=[colours[t.key] for t in found][::-1], height=0.65)
    axes.bar_label(bars, [f"{s:.1f} %" for s in saved], padding=4, fontsize=9.5)
    axes.set(title="Shorter period, %", xticks=[])
    axes.spines["bottom"].set_visible(False)
    axes.margins(x=0.1)
    return drawn


def formulas() -> Figure:
    """Staleness and period of the closed form (lines) and the simulation (dots) by rho."""
    drawn, (left, right) = new_figure(1, 2, height=3.5)
    rhos = np.array(tradeoffs.RHOS)
    for capacity, colour in zip(tradeoffs.CAPACITIES, (BLUE, ORANGE, GREEN), strict=True):
        points = [p for p in tradeoffs.formula_points() if p.capacity == capacity]
        lines_rho, lines = tradeoffs.formula_line(capacity)
        left.plot(lines_rho, lines, color=colour, linewidth=1.3)
        left.plot(
            rhos,
            [p.staleness for p in points],
            "o",
            color=colour,
            markersize=5,
            label=f"queue of {capacity} batch{'es' if capacity > 1 else ''}",
        )
        right.plot(
            rhos,
            [100.0 * (p.formula_period_s / p.period_s - 1.0) for p in points],
            "o-",
            color=colour,
            markersize=5,
            linewidth=1.0,
        )
    left.axvline(1.0, color=GREY, linewidth=0.8, linestyle=":")
    left.set(title="Mean staleness: formula (lines), simulation (dots)", xlabel="ρ", ylim=(0, None))
    left.legend(loc="upper right")
    right.axhline(0.0, color=INK, linewidth=0.8)
    right.set(title="Period: formula against simulation, %", xlabel="ρ")
    return drawn
