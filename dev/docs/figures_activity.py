"""Figures of what happens over time: the two fleets, the synchronous step, what each GPU does, how samples age."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from dev.docs import activity, example
from dev.docs.style import (
    BLUE,
    GREY,
    INK,
    ORANGE,
    PALE,
    RED,
    SAMPLERS,
    SKY,
    TRAINERS,
    lag_colours,
    new_figure,
    versions_at,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_WINDOW_S = 290.0
"""Seconds of activity that are drawn."""


def two_fleets() -> Figure:
    """The loop of prompts, samplers, queue, trainer and weights."""
    drawn, axes = new_figure(height=2.5)
    axes.set(xlim=(0, 100), ylim=(0, 30))
    axes.axis("off")
    boxes = [
        (1, 13, "prompts", PALE, INK),
        (21, 21, "samplers\ngenerate", SAMPLERS, "white"),
        (50, 17, "queue of\ncomplete groups", PALE, INK),
        (75, 22, "trainer\none step = a batch", TRAINERS, INK),
    ]
    for x, width, text, face, letters in boxes:
        axes.add_patch(_box(x, 13, width, 12, face))
        axes.text(x + width / 2, 19, text, ha="center", va="center", color=letters, fontsize=10.5)
    for begin, end in ((14, 21), (42, 50), (67, 75)):
        axes.annotate("", (end, 19), (begin, 19), arrowprops={"arrowstyle": "-|>", "color": INK, "lw": 1.4})
    axes.annotate(
        "",
        (31, 12.6),
        (86, 12.6),
        arrowprops={"arrowstyle": "-|>", "color": INK, "lw": 1.4, "connectionstyle": "bar,fraction=-0.14"},
    )
    axes.text(58.5, 1.2, "weights of the next policy version", ha="center", va="center", fontsize=9.5)
    axes.text(31.5, 27.2, "bound by memory bandwidth", ha="center", color=BLUE, fontsize=9)
    axes.text(86, 27.2, "bound by arithmetic", ha="center", color="#8A5F00", fontsize=9)
    return drawn


def _box(x: float, y: float, width: float, height: float, face: str) -> Any:
    from matplotlib.patches import FancyBboxPatch

    return FancyBboxPatch(
        (x, y), width, height, boxstyle="round,pad=0,rounding_size=1.2", facecolor=face, edgecolor=GREY
    )


def synchronous_step() -> Figure:
    """Lengths, and the samples that still run in one synchronous step."""
    step, lengths = activity.synchronous_step(), example.job().lengths
    drawn, (left, right) = new_figure(1, 2, height=3.3, width_ratios=[1, 1.7])
    tokens = np.geomspace(100, lengths.cap_tokens, 200)
    left.loglog(tokens, np.maximum(lengths.survival(tokens), 1e-5), color=SAMPLERS)
    left.set(
        title="Lengths: share of samples longer than …",
        xlabel="response tokens",
        ylim=(2e-4, 1.3),
        xlim=(100, lengths.cap_tokens),
    )
    for share, name in ((0.01, "1 in 100"), (0.001, "1 in 1000")):
        at = lengths.quantile(1.0 - share)
        left.plot([at], [share], "o", color=RED, markersize=5)
        left.annotate(
            f"{name}: {at:,}",
            (at, share),
            xytext=(-6, -2),
            textcoords="offset points",
            ha="right",
            va="top",
            fontsize=9,
        )
    n = len(step.done_s)
    most_s = float(step.done_s[int(np.ceil(0.99 * n)) - 1])
    last_s = float(step.done_s[-1])
    times = np.append(0.0, step.done_s)
    left_over = n - np.arange(n + 1)
    right.fill_between(times, left_over, step="post", color=SAMPLERS, alpha=0.85, linewidth=0)
    right.axvspan(most_s, last_s, color=RED, alpha=0.14, linewidth=0)
    right.axvspan(last_s, step.trained_s, color=TRAINERS, alpha=0.8, linewidth=0)
    right.axvspan(step.trained_s, step.published_s, color=GREY, alpha=0.8, linewidth=0)
    right.set(
        title="Samples that still run",
        xlabel="seconds from the start of the step",
        ylim=(0, n * 1.02),
        xlim=(0, step.published_s),
    )
    right.annotate(
        f"99 % done\nat {most_s:.0f} s",
        (most_s, n * 0.01),
        xytext=(most_s - 1, n * 0.42),
        ha="center",
        fontsize=9.5,
        arrowprops={"arrowstyle": "-", "color": INK, "lw": 0.8},
    )
    right.text(
        (most_s + last_s) / 2,
        n * 0.62,
        f"the last 1 %:\n{last_s - most_s:.0f} s more",
        ha="center",
        color="#9C4300",
        fontsize=10.5,
    )
    right.text((last_s + step.trained_s) / 2, n * 0.5, "training", rotation=90, ha="center", va="center", fontsize=9.5)
    return drawn


def gpu_activity() -> Figure:
    """What each GPU does in the three modes."""
    from matplotlib.patches import Patch

    drawn, panels = new_figure(3, 1, height=7.6, sharex=True)
    titles = {
        activity.SYNC: "Synchronous",
        activity.ONE_STEP_OFF: "One step off",
        activity.ASYNC: "Asynchronous, weights change in flight",
    }
    for axes, (mode, title) in zip(panels, titles.items(), strict=True):
        _activity_panel(axes, mode)
        shares = activity.shares(mode)
        axes.set_title(
            f"{title}: {shares.period_s:.0f} s a step, {100 * shares.wasted:.0f} % of GPU time slack or idle"
        )
        axes.set_ylabel("GPU")
    panels[-1].set_xlabel("seconds")
    handles = [
        Patch(facecolor=SAMPLERS, label="samples"),
        Patch(
            facecolor="#F3C6B2",
            edgecolor=RED,
            hatch="////",
            label=f"slacks: under {activity.slack_samples()} samples run",
        ),
        Patch(facecolor="white", edgecolor=GREY, label="idle"),
        Patch(facecolor=TRAINERS, label="trains"),
        Patch(facecolor=GREY, label="loads weights"),
    ]
    drawn.legend(handles=handles, loc="outside lower center", ncols=5)
    return drawn


def _activity_panel(axes: Axes, mode: str) -> None:
    inp, timeline = activity.recorded(mode)
    gpus = example.spec().gpus
    published = timeline.steps["published_s"]
    start = float(published[activity.FIRST_SHOWN - 1])
    shown = (start, start + _WINDOW_S)

    def bars(spans: list[tuple[float, float]], row: float, rows: float, **look: Any) -> None:
        cut = [(max(b, shown[0]), min(e, shown[1])) for b, e in spans]
        axes.broken_barh([(b - start, e - b) for b, e in cut if e > b], (row, rows), linewidth=0, **look)

    for replica in range(inp.replicas):
        times, running = activity.running_of(timeline, replica)
        ends = np.append(times[1:], float(published[-1]))
        full = running >= activity.slack_samples()
        bars(_merged(times, ends, full), replica + 0.06, 0.88, color=SAMPLERS)
        bars(
            _merged(times, ends, (running > 0) & ~full),
            replica + 0.06,
            0.88,
            facecolor="#F3C6B2",
            edgecolor=RED,
            hatch="////",
        )
    first = 0 if mode == activity.SYNC else inp.replicas
    for step in timeline.steps:
        bars([(float(step["begin_s"]), float(step["end_s"]))], first + 0.06, gpus - first - 0.12, color=TRAINERS)
    loading = [(float(p), float(p) + inp.weight_sync_s) for p in published]
    if mode == activity.ASYNC:
        bars(loading, 0.0, inp.replicas, color=GREY, zorder=3)
    else:
        bars([(p - inp.weight_sync_s, p) for p, _ in loading], 0.0, gpus, color=GREY, zorder=3)
    inside = published[(published >= shown[0]) & (published <= shown[1])]
    versions_at(axes, inside - start)
    if mode != activity.SYNC:
        axes.axhline(first, color=INK, linewidth=0.8)
    axes.set(ylim=(gpus, 0), xlim=(0, _WINDOW_S), yticks=[])


def _merged(begins: Any, ends: Any, which: Any) -> list[tuple[float, float]]:
    """The spans in which ``which`` holds, neighbours joined."""
    spans: list[tuple[float, float]] = []
    for begin, end, holds in zip(begins.tolist(), ends.tolist(), which.tolist(), strict=True):
        if holds and spans and begin - spans[-1][1] < 1e-9:
            spans[-1] = (spans[-1][0], end)
        elif holds:
            spans.append((begin, end))
    return spans


def stale_tokens() -> Figure:
    """Slots of one GPU, coloured by the versions that were published since each sample began; and the staleness of what was trained."""
    from matplotlib.patches import Patch

    _, timeline = activity.recorded(activity.ASYNC)
    published = timeline.steps["published_s"]
    begin = float(published[activity.FIRST_SHOWN - 1]) - 8.0
    end = begin + 190.0
    most = 3
    colours = lag_colours(most + 1)
    drawn, (left, right) = new_figure(1, 2, height=4.2, width_ratios=[2.5, 1])
    for row, line in enumerate(activity.slots_of(timeline, 0, begin, end, 36)):
        for stay in line:
            for lag, (b, e) in enumerate(activity.by_lag(published, stay)):
                b, e = max(b, begin), min(e, end)
                if e > b:
                    left.broken_barh(
                        [(b - begin, e - b)], (row + 0.08, 0.84), color=colours[min(lag, most)], linewidth=0
                    )
    versions_at(left, published[(published > begin) & (published < end)] - begin)
    left.set(
        title="36 decode slots of one GPU",
        xlabel="seconds",
        ylabel="slot",
        xlim=(0, end - begin),
        ylim=(36, 0),
        yticks=[],
    )
    names = ["the sample's own version", *(f"{lag} newer" for lag in range(1, most)), f"{most} or more"]
    left.legend(
        handles=[Patch(facecolor=c, label=n) for c, n in zip(colours, names, strict=True)],
        title="a token's weights are of",
        loc="upper center",
        bbox_to_anchor=(0.5, -0.15),
        ncols=4,
    )
    ages = activity.ages()
    parts = [
        ("its own decoding", ages.decoding, SKY),
        ("its group's longest", ages.group, BLUE),
        ("the queue", ages.queue, ORANGE),
    ]
    bottom = 0.0
    for name, versions, colour in parts:
        right.bar([0], [versions], bottom=[bottom], color=colour, width=0.5)
        right.text(0.32, bottom + versions / 2, f"{name}: {versions:.2f}", va="center", fontsize=9.5)
        bottom += versions
    right.set(title="Where a sample ages", ylabel="policy versions, mean", xlim=(-0.35, 1.9), xticks=[])
    return drawn
