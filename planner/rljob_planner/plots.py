"""The pictures of a report: values in, plots out. Nothing here plans or simulates.

Each picture answers one question that people ask of a plan: why this split and not its neighbours, what staleness buys, whether
anything waits, what happens when responses grow. Where a picture has two sides, samplers and trainers keep their colours.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from rljob_planner.drawing import (
    BEST,
    INK,
    LIMIT,
    MUTED,
    PAPER,
    QUIET,
    SAMPLERS,
    TRAINERS,
    Plot,
    drawing,
    finished,
    said,
    thousands,
)
from rljob_planner.durations import seconds

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from rljob_planner.lengths import LengthDistribution


_MOST_LEVEL = 9
"""Labels that fit side by side."""

_LEAST_SPAN = 0.2
"""Share of the period that an axis spans at least, so that noise does not look like a difference."""

_FLATTENS = 4.0
"""Ratio of extremes from which on a linear axis hides what lies between."""


@dataclass(frozen=True)
class SplitPoint:
    """One split of a sweep."""

    trainers: int
    """Trainer replicas."""
    label: str
    """Such as ``24×2 + 2×8``: samplers and trainers."""
    period_s: float
    at_least: bool = False
    """Whether the period is a lower bound from formulas."""
    trainer_waits: float | None = None
    """Share of time in which the trainer does not train."""
    samplers_outrun: float | None = None
    """Share of the samplers' speed that the trainer could not use: 1 − 1/ρ above ρ = 1."""


@dataclass(frozen=True)
class TradePoint:
    """One split with one in-flight cap: what it takes and how stale its samples are."""

    staleness: float
    """Mean, in policy versions."""
    period_s: float
    label: str
    feasible: bool = True


@dataclass(frozen=True)
class SidePoint:
    """The best split at another response length, by the GPUs of its sides."""

    factor: float
    sampler_gpus: int
    trainer_gpus: int
    label: str
    period_s: float


def split_sweep(points: Sequence[SplitPoint], best: int) -> Plot:
    """Period against the number of trainers, with what goes to waste at both ends; ``best`` is the index of the chosen one."""
    points, chosen = sorted(points, key=lambda p: p.trainers), points[best]
    at = range(len(points))
    here = points.index(chosen)
    shares = all(p.trainer_waits is not None and p.samplers_outrun is not None for p in points)
    with drawing(4.3 if shares else 3.1) as figure:
        rows = figure.subplots(2, 1, sharex=True, height_ratios=(3, 2)) if shares else [figure.subplots()]
        top = rows[0]
        periods = [p.period_s for p in points]
        top.plot(at, periods, color=INK, zorder=3)
        edges = [QUIET if p.at_least else INK for p in points]
        top.scatter(at, periods, s=26, color=PAPER, edgecolors=edges, linewidths=1.4, zorder=4)
        top.scatter([here], [periods[here]], s=60, color=BEST, edgecolors=PAPER, linewidths=1.2, zorder=5)
        top.annotate(
            f"best: {seconds(periods[here])}",
            (here, periods[here]),
            xytext=(0, -16),
            textcoords="offset points",
            ha="center",
            color=BEST,
            fontweight="bold",
        )
        _period_axis(top, periods)
        top.set_ylabel("seconds a step")
        top.margins(x=0.06)
        if shares:
            below = rows[1]
            waits = [100.0 * (p.trainer_waits or 0.0) for p in points]
            outrun = [100.0 * (p.samplers_outrun or 0.0) for p in points]
            below.bar(
                [i - 0.19 for i in at],
                outrun,
                0.36,
                color=SAMPLERS,
                label="samplers held back, ahead of the trainer, or thrown away",
            )
            below.bar([i + 0.19 for i in at], waits, 0.36, color=TRAINERS, label="the trainer starves")
            below.set_ylabel("% of its speed wasted")
            below.set_ylim(0, max(60.0, *waits, *outrun) * 1.25)
            below.legend(loc="upper center", ncols=2, handlelength=1.0)
        many = len(points) > _MOST_LEVEL
        labels = [_line(p.label) if many else p.label for p in points]
        rows[-1].set_xticks(list(at), labels, rotation=90 if many else 0)
        rows[-1].set_xlabel("samplers + trainers, replicas × GPUs: more of the budget trains from left to right")
        low, high = points[0], points[-1]
        return finished(
            figure,
            "split",
            "Period of every split",
            f"{_line(chosen.label)} takes {seconds(chosen.period_s)} a step. With the fewest trainers, {_line(low.label)}, it is {seconds(low.period_s)}, "
            f"with the most, {_line(high.label)}, {seconds(high.period_s)}.",
            "To the left the trainer is too slow: samplers run ahead, and are held back or fill the queue with samples that go stale. "
            "To the right the trainer is fast but starves."
            + (" Grey: at least this long, by formulas alone." if any(p.at_least for p in points) else ""),
        )


def pareto(points: Sequence[TradePoint], best: TradePoint, limit: float | None) -> Plot:
    """Period against mean staleness, the splits that nothing beats in both joined by a line."""
    front = _front(points)
    with drawing(3.4) as figure:
        axes = figure.subplots()
        rest = [p for p in points if p not in front]
        axes.scatter([p.staleness for p in rest], [p.period_s for p in rest], s=20, color=QUIET, zorder=2)
        axes.plot(
            [p.staleness for p in front], [p.period_s for p in front], color=SAMPLERS, zorder=3, drawstyle="steps-post"
        )
        axes.scatter([p.staleness for p in front], [p.period_s for p in front], s=26, color=SAMPLERS, zorder=4)
        axes.scatter([best.staleness], [best.period_s], s=70, color=BEST, edgecolors=PAPER, linewidths=1.2, zorder=5)
        at_left = best.staleness < 0.2 * max(p.staleness for p in points)
        dx, ha = (9, "left") if at_left else (-9, "right")
        said(axes, "chosen", best.staleness, best.period_s, BEST, dx=dx, ha=ha, va="top", fontweight="bold")
        if limit is not None:
            axes.axvline(limit, color=LIMIT, linewidth=1.2, linestyle=(0, (4, 3)))
            said(axes, f"limit {limit:g}", limit, 0.98, LIMIT, of="y", va="top", ha="right", dx=-4, rotation=90)
        axes.set_xlabel("mean staleness, policy versions")
        axes.set_ylabel("seconds a step")
        axes.set_xlim(left=0)
        worst, shown = front[-1].period_s, [p.period_s for p in points if p.period_s < 3.0 * front[-1].period_s]
        axes.set_ylim(0.9 * worst, max(shown) * 1.05)
        freshest = front[0]
        return finished(
            figure,
            "pareto",
            "What staleness buys",
            f"The chosen split has mean staleness {best.staleness:.2f} at {seconds(best.period_s)} a step; the freshest that was tried, "
            f"{freshest.label}, has {freshest.staleness:.2f} at {seconds(freshest.period_s)}.",
            "Each point is a split with one in-flight cap. On the blue line nothing is both fresher and faster; grey points are beaten by it.",
        )


def staleness_histogram(histogram: Sequence[int], mean: float, limit: float | None, hard: bool = False) -> Plot:
    """Share of trained samples by staleness; ``hard``: no sample may exceed the limit, not only their mean."""
    counts = np.asarray(histogram, dtype=float)
    shares = 100.0 * counts / counts.sum()
    at = np.arange(len(shares))
    over = 0.0 if limit is None else float(shares[at > limit].sum())
    with drawing(2.7) as figure:
        axes = figure.subplots()
        axes.bar(at, shares, 0.78, color=[LIMIT if hard and limit is not None and s > limit else SAMPLERS for s in at])
        axes.axvline(mean, color=INK, linewidth=1.4)
        said(axes, f"mean {mean:.2f}", mean, 1.0, INK, of="y", dx=6, va="top", fontweight="bold")
        if limit is not None:
            axes.axvline(limit + (0.5 if hard else 0.0), color=LIMIT, linewidth=1.4, linestyle=(0, (4, 3)))
            of_what = "samples" if hard else "the mean"
            said(
                axes,
                f"limit of {of_what}: {limit:g}",
                limit + (0.5 if hard else 0.0),
                0.86,
                LIMIT,
                of="y",
                dx=6,
                va="top",
            )
        axes.set_ylim(0, shares.max() * 1.3)
        axes.set_xlim(-0.6, max(len(shares) - 0.4, (limit or 0) + 1.6))
        thousands(axes.xaxis)
        axes.set_xlabel("staleness, policy versions")
        axes.set_ylabel("% of trained samples")
        within = "" if limit is None else f" {over:.1f} % of the samples are over the limit of {limit:g}."
        return finished(
            figure,
            "staleness",
            "How stale trained samples are",
            f"Mean {mean:.2f}, most {len(shares) - 1} versions.{within}",
            "Versions between the start of a sample and the step that trains on it.",
        )


def length_distribution(lengths: LengthDistribution, group: int) -> Plot:
    """The response lengths that the plan was made for: their density, the cap, and the longest of a group."""
    cap, mean, longest = lengths.cap_tokens, lengths.mean(), lengths.max_mean(group)
    at_cap = float(lengths.probabilities[lengths.support_tokens == cap].sum())
    right = min(cap, max(lengths.quantile(0.995), longest * 1.3)) if at_cap < 0.002 else cap
    edges = np.linspace(0.0, right, 90)
    mass = -np.diff(lengths.survival(edges))
    body = mass.copy()
    if right >= cap:
        body[-1] = max(0.0, mass[-1] - at_cap)
    centres = (edges[1:] + edges[:-1]) / 2
    with drawing(2.8) as figure:
        axes = figure.subplots()
        axes.fill_between(centres, 100.0 * body, color=SAMPLERS, alpha=0.18, linewidth=0)
        axes.plot(centres, 100.0 * body, color=SAMPLERS)
        top = 100.0 * float(body.max()) * 1.3
        for x, words, level in (
            (mean, f"mean {mean:,.0f}", 1.0),
            (longest, f"longest of {group}: {longest:,.0f}", 0.86),
        ):
            if x <= right:
                axes.axvline(x, color=INK, linewidth=1.0, linestyle=(0, (2, 2)))
                said(axes, words, x, level, INK, dx=5, of="y", va="top")
        if right >= cap:
            axes.axvline(cap, color=LIMIT, linewidth=1.6)
            said(axes, f"cap {cap:,}: {at_cap:.1%} reach it", cap, 0.7, LIMIT, of="y", dx=-6, ha="right", va="top")
        axes.set_ylim(0, top)
        axes.set_xlim(0, right * 1.01)
        axes.set_yticks([])
        axes.spines["left"].set_visible(False)
        axes.set_xlabel("response tokens")
        thousands(axes.xaxis)
        return finished(
            figure,
            "lengths",
            "Response lengths",
            f"Mean {mean:,.0f} tokens, median {lengths.quantile(0.5):,}, 99 % below {lengths.quantile(0.99):,}, cap {cap:,} reached by "
            f"{at_cap:.1%}; the longest of a group of {group} has {longest:,.0f} in the mean.",
            "A group is complete when its longest response is, so the tail sets how long a batch takes.",
        )


def length_sweep(points: Sequence[SidePoint]) -> Plot:
    """How the best split moves as responses grow."""
    with drawing(0.42 * len(points) + 1.0) as figure:
        axes = figure.subplots()
        for row, p in enumerate(points):
            axes.barh(
                row,
                p.sampler_gpus,
                0.62,
                color=SAMPLERS,
                edgecolor=PAPER,
                label="GPUs that sample" if row == 0 else None,
            )
            axes.barh(
                row,
                p.trainer_gpus,
                0.62,
                left=p.sampler_gpus,
                color=TRAINERS,
                edgecolor=PAPER,
                label="GPUs that train" if row == 0 else None,
            )
            said(axes, f"{seconds(p.period_s)} a step", p.sampler_gpus + p.trainer_gpus, row, INK, dx=7, va="center")
        widest = max(p.sampler_gpus + p.trainer_gpus for p in points)
        axes.set_xlim(0, widest * 1.22)
        axes.set_ylim(len(points) - 0.4, -0.6)
        axes.set_yticks(range(len(points)), [f"×{p.factor:g}" + (" (now)" if p.factor == 1.0 else "") for p in points])
        axes.grid(False)
        axes.tick_params(axis="y", length=0)
        axes.spines["left"].set_visible(False)
        axes.set_xlabel("GPUs")
        thousands(axes.xaxis)
        figure.legend(loc="outside upper left", ncols=2, handlelength=1.0)
        first, last = points[0], points[-1]
        return finished(
            figure,
            "sweep",
            "The best split at other response lengths",
            f"From {first.label} at ×{first.factor:g} of the mean length to {last.label} at ×{last.factor:g}: "
            + "; ".join(f"×{p.factor:g} {p.label}, {seconds(p.period_s)} a step" for p in points)
            + ".",
            "Responses usually grow during a run. Where the bars differ, the split that is right today will not stay right.",
        )


def run_time(p10_s: float, p50_s: float, p90_s: float, cost: float | None) -> Plot:
    """Run time with its spread, and what it costs."""
    unit, name = (3600.0, "hours") if p50_s < 172_800 else (86_400.0, "days")
    with drawing(1.35) as figure:
        axes = figure.subplots()
        low, mid, high = p10_s / unit, p50_s / unit, p90_s / unit
        axes.barh(0, high - low, 0.34, left=low, color=SAMPLERS, alpha=0.28)
        axes.plot([mid, mid], [-0.24, 0.24], color=SAMPLERS, linewidth=3)
        for x, share, words in ((low, 0.1, "p10"), (mid, 0.5, "p50"), (high, 0.9, "p90")):
            paid = "" if cost is None else f"\n${cost * (x / mid):,.0f}"
            said(
                axes,
                f"{words}: {seconds(x * unit)}{paid}",
                x,
                0.34,
                INK if share == 0.5 else MUTED,
                ha="center",
                va="bottom",
            )
        axes.set_ylim(-0.4, 1.5)
        axes.set_yticks([])
        axes.spines["left"].set_visible(False)
        axes.grid(False)
        axes.set_xlim(low - 0.35 * (high - low), high + 0.35 * (high - low))
        axes.set_xlabel(name)
        money = "No price is known for these GPUs." if cost is None else f"About ${cost:,.0f}."
        return finished(
            figure,
            "runtime",
            "Run time" if cost is None else "Run time and cost",
            f"{seconds(p50_s)}, with 80 % certainty between {seconds(p10_s)} and {seconds(p90_s)}. {money}",
        )


def elasticities(slopes: Sequence[tuple[str, float]]) -> Plot:
    """What a change of 10 % does to the period, the largest saving first; pairs of what changes and the relative effect."""
    slopes = sorted(slopes, key=lambda s: s[1])
    with drawing(0.36 * len(slopes) + 0.8) as figure:
        axes = figure.subplots()
        effects = [100.0 * effect for _, effect in slopes]
        axes.barh(range(len(slopes)), effects, 0.58, color=[BEST if e < 0 else LIMIT for e in effects])
        axes.axvline(0, color=QUIET, linewidth=0.8)
        widest = max(1.0, *(abs(e) for e in effects))
        for row, effect in enumerate(effects):
            text = f"{effect:+.1f} %".replace("-", "−")
            said(
                axes,
                text,
                effect,
                row,
                INK,
                va="center",
                dx=-5 if effect < 0 else 5,
                ha="right" if effect < 0 else "left",
            )
        axes.set_xlim(-1.35 * widest, 1.35 * widest if max(effects) > 0.2 else 0.05 * widest)
        axes.set_ylim(len(slopes) - 0.4, -0.6)
        axes.set_yticks(range(len(slopes)), [name for name, _ in slopes])
        axes.tick_params(axis="y", length=0)
        axes.spines["left"].set_visible(False)
        axes.grid(False)
        axes.set_xticks([])
        axes.spines["bottom"].set_visible(False)
        return finished(
            figure,
            "elasticity",
            "What would help most",
            "; ".join(f"{name}: period {100 * effect:+.1f} %" for name, effect in slopes) + ".",
            "At the best split, from simulations with a little more and a little less of each.",
        )


def _period_axis(axes: Axes, periods_s: Sequence[float]) -> None:
    """Leaves room for a remark below the least; logarithmic where the extremes would flatten all the rest."""
    least, most = min(periods_s), max(periods_s)
    if most <= _FLATTENS * least:
        span = max(most - least, _LEAST_SPAN * most)
        axes.set_ylim(max(0.0, least - 0.3 * span), most + 0.08 * span)
        return
    from matplotlib.ticker import LogLocator, NullLocator

    axes.set_yscale("log")
    axes.set_ylim(least / (most / least) ** 0.3, most * 1.2)
    axes.yaxis.set_major_locator(LogLocator(10.0, (1.0, 2.0, 5.0)))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.4g}")


def _line(label: str) -> str:
    return label.replace("\n", " ")


def _front(points: Sequence[TradePoint]) -> list[TradePoint]:
    """The points that no other beats in both: the freshest first."""
    front: list[TradePoint] = []
    for point in sorted((p for p in points if p.feasible), key=lambda p: (p.staleness, p.period_s)):
        if not front or point.period_s < front[-1].period_s:
            front.append(point)
    return front
