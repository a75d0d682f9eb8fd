"""Draws what ``tiny_grpo.compare`` measured, and prints its table.

    python -m tiny_grpo.plots compare --to docs/img --keep measured.csv

Needs matplotlib, and neither torch nor vLLM. ``--keep`` writes what the figures show as one small file, which this command also takes in place of
the directory.
"""

from __future__ import annotations

import argparse
import csv
import json
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from statistics import mean, stdev

from matplotlib import rcParams
from matplotlib.axes import Axes
from matplotlib.figure import Figure

COLUMNS = (
    "limit", "seed", "version", "at_s", "reward", "solved", "staleness_mean", "staleness_max", "token_staleness_mean",
    "ratio_variance", "clipped", "wait_s", "train_s", "sync_s", "tokens",
)  # fmt: skip
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#D55E00")
WARM_UP = 10
"""Steps left out of means of times: queues fill, and the first calls of everything are slow."""

Row = dict[str, float]
Runs = dict[int, list[list[Row]]]
"""By limit, one list of steps for each seed."""


def read(source: Path) -> Runs:
    """The runs in a directory of ``tiny_grpo.compare``, or in a file that was kept."""
    rows: list[Row] = []
    if source.is_dir():
        for file in sorted(source.glob("staleness-*-seed-*/history.jsonl")):
            _, limit, _, seed = file.parent.name.split("-")
            for line in file.read_text().splitlines():
                step = {**json.loads(line), "limit": limit, "seed": seed}
                rows.append({column: float(step[column]) for column in COLUMNS})
    else:
        with source.open() as lines:
            rows = [{column: float(row[column]) for column in COLUMNS} for row in csv.DictReader(lines)]
    runs: dict[int, dict[int, list[Row]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        runs[int(row["limit"])][int(row["seed"])].append(row)
    found = {limit: list(seeds.values()) for limit, seeds in sorted(runs.items())}
    steps = {len(run) for seeds in found.values() for run in seeds}
    if len(steps) != 1:
        raise ValueError(f"{source} holds runs of {sorted(steps)} steps: they can't be compared")
    return found


def keep(runs: Runs, file: Path) -> None:
    """Write the steps of all runs as a table."""
    with file.open("w", newline="") as lines:
        writer = csv.writer(lines, lineterminator="\n")
        writer.writerow(COLUMNS)
        for seeds in runs.values():
            for steps in seeds:
                writer.writerows([f"{row[column]:.5g}" for column in COLUMNS] for row in steps)


def smooth(values: list[float], window: int = 9) -> list[float]:
    """Means over the ``window`` steps around each."""
    half = window // 2
    return [mean(values[max(0, i - half) : i + half + 1]) for i in range(len(values))]


def period_s(steps: list[Row]) -> float:
    """Seconds of a step, after the warm-up."""
    return (steps[-1]["at_s"] - steps[WARM_UP]["at_s"]) / (len(steps) - 1 - WARM_UP)


def of(column: str) -> Callable[[list[Row]], float]:
    """The mean of a column over the steps of a run, after the warm-up."""
    return lambda steps: mean(row[column] for row in steps[WARM_UP:])


def last(column: str, share: float = 0.25) -> Callable[[list[Row]], float]:
    """The mean of a column over the last ``share`` of a run."""
    return lambda steps: mean(row[column] for row in steps[-max(1, int(len(steps) * share)) :])


MEASURES: tuple[tuple[str, Callable[[list[Row]], float], str], ...] = (
    ("seconds a step", period_s, ".2f"),
    ("trainer waits, s a step", of("wait_s"), ".2f"),
    ("training, s a step", of("train_s"), ".2f"),
    ("weight sync, s a step", of("sync_s"), ".2f"),
    ("mean staleness", of("staleness_mean"), ".2f"),
    ("largest staleness", lambda steps: max(row["staleness_max"] for row in steps), ".0f"),
    ("mean staleness of a token", of("token_staleness_mean"), ".2f"),
    ("importance-ratio variance", of("ratio_variance"), ".4f"),
    ("tokens clipped", of("clipped"), ".1%"),
    ("reward, first steps", lambda steps: mean(row["reward"] for row in steps[:5]), ".3f"),
    ("reward, last quarter", last("reward"), ".3f"),
    ("wholly right, last quarter", last("solved"), ".1%"),
)


def table(runs: Runs) -> str:
    """What was measured, in Markdown: mean ± standard deviation over the seeds."""
    lines = [
        "| staleness limit | " + " | ".join(map(str, runs)) + " |",
        "|:--|" + "--:|" * len(runs),
    ]
    for name, measure, form in MEASURES:
        cells = []
        for seeds in runs.values():
            values = [measure(steps) for steps in seeds]
            spread = f" ± {stdev(values):{form}}" if len(values) > 1 else ""
            cells.append(f"{mean(values):{form}}{spread}")
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def rewards(runs: Runs) -> Figure:
    """Reward over steps, and over time."""
    drawn = Figure(figsize=(9.0, 3.2), layout="constrained")
    by_step, by_time = drawn.subplots(1, 2, sharey=True)
    for colour, (limit, seeds) in zip(COLOURS, runs.items(), strict=False):
        for i, steps in enumerate(seeds):
            label = f"limit {limit}" if i == 0 else None
            curve = smooth([row["reward"] for row in steps])
            by_step.plot([row["version"] for row in steps], curve, color=colour, label=label, alpha=0.8)
            by_time.plot([row["at_s"] - steps[0]["at_s"] for row in steps], curve, color=colour, alpha=0.8)
    by_step.set(xlabel="policy version", ylabel="reward", title="By step")
    by_time.set(xlabel="seconds", title="By time")
    by_step.legend(frameon=False)
    return drawn


def costs(runs: Runs) -> Figure:
    """Speed, staleness and ratio variance by limit; a dot for each seed."""
    drawn = Figure(figsize=(9.0, 2.7), layout="constrained")
    panels: list[Axes] = list(drawn.subplots(1, 3))
    shown = (
        ("Steps a minute", lambda steps: 60.0 / period_s(steps)),
        ("Mean staleness, versions", of("staleness_mean")),
        ("Importance-ratio variance", of("ratio_variance")),
    )
    for axes, (title, measure) in zip(panels, shown, strict=True):
        for i, (colour, seeds) in enumerate(zip(COLOURS, runs.values(), strict=False)):
            values = [measure(steps) for steps in seeds]
            axes.bar(i, mean(values), color=colour, width=0.65, alpha=0.85)
            axes.plot([i] * len(values), values, "o", color="#222222", markersize=3)
        axes.set_xticks(range(len(runs)), [str(limit) for limit in runs])
        axes.set_title(title)
    drawn.supxlabel("staleness limit, policy versions", fontsize=10)
    return drawn


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description="Draw the runs of tiny_grpo.compare.")
    parser.add_argument("source", type=Path, help="its directory, or a file written by --keep")
    parser.add_argument("--to", type=Path, default=Path(), help="where the figures go")
    parser.add_argument("--keep", type=Path, help="write the steps of all runs to this file")
    options = parser.parse_args()
    rcParams.update(
        {
            "svg.hashsalt": "tiny-grpo", "svg.fonttype": "path", "font.size": 10, "axes.titlesize": 10.5,
            "axes.titlelocation": "left", "axes.titleweight": "bold", "axes.spines.top": False, "axes.spines.right": False,
        }
    )  # fmt: skip
    runs = read(options.source)
    if options.keep:
        keep(runs, options.keep)
    for name, draw in (("tiny-grpo-reward", rewards), ("tiny-grpo-staleness", costs)):
        path = options.to / f"{name}.svg"
        draw(runs).savefig(path, format="svg", metadata={"Date": None, "Creator": None})
        path.write_text("\n".join(line.rstrip() for line in path.read_text().splitlines()) + "\n")
    print(table(runs))


if __name__ == "__main__":
    main()
