"""The look of every plot: one palette by meaning, quiet axes, and SVG that a page can restyle.

Samplers and trainers keep their colours on every picture, since readers compare pictures. Colours are written as CSS variables with
the light theme's colour as fallback, so that the same SVG is readable on a dark page and in a viewer that knows no CSS. Text stays
text: it scales, can be searched, and is read aloud.

matplotlib is an extra, imported where something is drawn.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

INK, MUTED, GRID, PAPER = "#1d2530", "#5f6b7a", "#dfe4ea", "#fefefd"
SAMPLERS, TRAINERS, BEST, LIMIT, QUIET = "#20719e", "#c66a15", "#14795a", "#b5382a", "#a9b4c1"

_VARIABLES = {
    INK: "--ink", MUTED: "--muted", GRID: "--grid", PAPER: "--paper",
    SAMPLERS: "--samplers", TRAINERS: "--trainers", BEST: "--best", LIMIT: "--limit", QUIET: "--quiet",
}  # fmt: skip

WIDTH_IN, HEIGHT_IN = 7.6, 3.1

_STYLE: Any = {
    "svg.fonttype": "none",
    "font.family": ["DejaVu Sans"],
    "font.size": 9.5,
    "text.color": INK,
    "axes.edgecolor": QUIET,
    "axes.labelcolor": MUTED,
    "axes.labelsize": 9.5,
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "axes.facecolor": "none",
    "figure.facecolor": "none",
    "grid.color": GRID,
    "grid.linewidth": 0.8,
    "xtick.color": QUIET,
    "ytick.color": QUIET,
    "xtick.labelcolor": MUTED,
    "ytick.labelcolor": MUTED,
    "xtick.labelsize": 9,
    "ytick.labelsize": 9,
    "lines.linewidth": 1.8,
    "lines.solid_capstyle": "round",
    "legend.frameon": False,
    "legend.fontsize": 9,
    "path.simplify": True,
}


class MissingExtraError(RuntimeError):
    """Plots were asked for where matplotlib is not installed; the message says how to install it."""


@dataclass(frozen=True)
class Plot:
    """A picture with what it says in words."""

    name: str
    """Short name, unique on a page: the ids in the SVG start with it."""
    title: str
    svg: str
    """An ``svg`` element that stands alone."""
    alt: str
    """What a reader who does not see the picture should know, with the numbers."""
    caption: str = ""
    """How to read it."""


@contextmanager
def drawing(height_in: float = HEIGHT_IN, width_in: float = WIDTH_IN) -> Iterator[Figure]:
    """A figure of the common look; raises MissingExtraError without matplotlib."""
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] != "matplotlib":
            raise
        raise MissingExtraError(
            "plots need matplotlib, which is not installed: pip install 'rljob-operator[report]'"
        ) from None
    with matplotlib.rc_context(_STYLE):
        yield Figure(figsize=(width_in, height_in), layout="constrained")


def finished(figure: Figure, name: str, title: str, alt: str, caption: str = "") -> Plot:
    """The figure as a plot; call it within ``drawing``."""
    import matplotlib

    out = io.StringIO()
    with matplotlib.rc_context({"svg.hashsalt": name}):
        figure.savefig(
            out, format="svg", transparent=True, metadata={"Date": None, "Creator": None, "Format": None, "Type": None}
        )
    return Plot(name, title, _restyled(out.getvalue(), name, title, alt), alt, caption)


def said(
    axes: Axes, text: str, x: float, y: float, color: str = MUTED, *, dx: float = 0.0, of: str = "", **options: Any
) -> None:
    """A remark within a picture, ``dx`` points beside a place in data coordinates; ``of`` names those that are shares of the axes."""
    place: Any = {"": "data", "y": axes.get_xaxis_transform(), "x": axes.get_yaxis_transform()}[of]
    options = {"fontsize": 9, "annotation_clip": False} | options
    axes.annotate(text, (x, y), xycoords=place, xytext=(dx, 0), textcoords="offset points", color=color, **options)


def thousands(axis: Axis) -> None:
    """Whole numbers with separators on an axis."""
    from matplotlib.ticker import MaxNLocator

    axis.set_major_locator(MaxNLocator("auto", integer=True))
    axis.set_major_formatter(lambda value, _: f"{value:,.0f}")


def _restyled(svg: str, name: str, title: str, alt: str) -> str:
    """The SVG with ids of its own, colours as CSS variables, the page's font, and its title and description for screen readers."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r'\bid="([^"]+)"', rf'id="{name}-\1"', svg)
    svg = re.sub(r"url\(#([^)]+)\)", rf"url(#{name}-\1)", svg)
    svg = re.sub(r'xlink:href="#([^"]+)"', rf'href="#{name}-\1"', svg)
    svg = re.sub(r"#[0-9a-f]{6}\b", lambda m: f"var({_VARIABLES[m[0]]}, {m[0]})" if m[0] in _VARIABLES else m[0], svg)
    svg = svg.replace("'DejaVu Sans'", "var(--font, system-ui), sans-serif").replace(
        '<style type="text/css">*{stroke-linejoin: round; stroke-linecap: butt}</style>', ""
    )
    size = re.search(r'viewBox="[^"]+"', svg)
    head = f'<svg {size[0] if size else ""} role="img" aria-labelledby="{name}-title {name}-words" style="stroke-linejoin: round" xmlns="http://www.w3.org/2000/svg">'
    words = f'<title id="{name}-title">{escape(title)}</title><desc id="{name}-words">{escape(alt)}</desc>'
    return head + words + svg[svg.index(">") + 1 :].strip()
