"""One look for all figures, and bytes that depend on nothing but what is drawn.

Letters are drawn as paths, so a figure looks the same wherever it is opened; ids come from a fixed salt and no date is written, so
that a figure that did not change is no change in git. Colours are those of Okabe and Ito, which people with colour blindness tell
apart; the panel is white, which is readable in light and dark themes alike.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BLUE, ORANGE, GREEN, RED = "#0072B2", "#E69F00", "#009E73", "#D55E00"
SKY, PURPLE, GREY, PALE, INK = "#56B4E9", "#CC79A7", "#8C8C8C", "#E6E6E6", "#222222"

SAMPLERS, TRAINERS = BLUE, ORANGE
"""The same colours for the two sides in every figure."""

WIDTH = 9.0
"""Inches."""

_SETTINGS: Any = {
    "svg.hashsalt": "rljob",
    "svg.fonttype": "path",
    "font.family": "DejaVu Sans",
    "font.size": 10.0,
    "axes.titlesize": 10.5,
    "axes.titlelocation": "left",
    "axes.titleweight": "bold",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": GREY,
    "axes.labelcolor": INK,
    "axes.grid": False,
    "xtick.color": INK,
    "ytick.color": INK,
    "text.color": INK,
    "legend.frameon": False,
    "legend.fontsize": 9.0,
    "lines.linewidth": 1.8,
    "figure.facecolor": "white",
    "axes.facecolor": "white",
    "path.simplify": True,
    "path.simplify_threshold": 0.3,
}


def new_figure(rows: int = 1, columns: int = 1, *, height: float = 3.2, **grid: Any) -> tuple[Figure, Any]:
    """A figure of this many panels in the common style, without a window or a global state."""
    import matplotlib
    from matplotlib.figure import Figure

    matplotlib.rcParams.update(_SETTINGS)
    drawn = Figure(figsize=(WIDTH, height), layout="constrained")
    return drawn, drawn.subplots(rows, columns, **grid)


def lag_colours(count: int) -> list[Any]:
    """Colours for version lags 0, 1, 2, …: bright is fresh, dark is stale."""
    import matplotlib

    colours = matplotlib.colormaps["plasma_r"]
    return [colours(0.06 + 0.8 * i / max(1, count - 1)) for i in range(count)]


def versions_at(axes: Axes, times_s: Any) -> None:
    """A vertical line for every published version."""
    for time_s in times_s:
        axes.axvline(time_s, color=INK, linewidth=0.8, linestyle=(0, (2, 2)), zorder=5)


def save(drawn: Figure, path: Path) -> None:
    """Write a figure as SVG; the same drawing gives the same bytes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    drawn.savefig(path, format="svg", metadata={"Date": None, "Creator": None})
    lines = (line.rstrip() for line in path.read_text(encoding="utf-8").splitlines())
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
