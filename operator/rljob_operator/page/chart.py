"""Curves over time as inline SVG: no script, no image, nothing that is fetched.

The drawing stretches to the width that there is, and the labels are text of the page beside it, so that they stay readable on a phone. Its
words for those who can't see it say where each curve stands; the numbers are in a table below.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from rljob_operator.page.markup import Html, element

WIDTH, HEIGHT = 1000.0, 200.0
"""The drawing's own units; it is stretched to the place that it gets."""

NONSENSE = 1e15
"""Beyond every count, size and time of a job."""

Values = Sequence[tuple[float, float | None]]
"""Times in seconds since the epoch, and values; None where unknown, which leaves a gap."""


@dataclass(frozen=True)
class Line:
    """One curve."""

    name: str
    kind: str
    """Colour and manner of the line: samplers, trainers, measured, predicted, largest or limit."""
    values: Values
    holds: bool = False
    """Whether a value holds until the next."""
    shown: bool = True
    """Whether the legend says where it stands."""


@dataclass(frozen=True)
class Band:
    """A stretch of time that is marked: a move."""

    start_s: float
    end_s: float | None
    """None: it goes on."""
    words: str


@dataclass(frozen=True)
class Span:
    """The time that a chart shows."""

    start_s: float
    end_s: float

    @property
    def length_s(self) -> float:
        """Seconds, at least one, so that a job that has just come can be drawn."""
        return max(1.0, self.end_s - self.start_s)

    def x(self, at_s: float) -> float:
        """Where a time is in the drawing."""
        return WIDTH * min(1.0, max(0.0, (at_s - self.start_s) / self.length_s))


def chart(
    title: str,
    unit: str,
    lines: Sequence[Line],
    span: Span,
    *,
    bands: Sequence[Band] = (),
    stacked: bool = False,
    digits: int = 1,
) -> Html:
    """A figure with its legend. ``stacked`` fills the first two lines, one on top of the other; ``digits`` behind the point in words."""
    drawn = [_on_top(lines[0], lines[1]), lines[0]] if stacked else []
    top = _top([value for line in (*drawn, *lines) for _, value in line.values])
    parts = [_band(band, span) for band in bands]
    parts += [_rule(fraction) for fraction in (0.0, 0.5, 1.0)]
    if stacked:
        parts += [_area(lines[1].kind, span, top, *drawn), _area(lines[0].kind, span, top, drawn[1])]
        outlines = [drawn[0], *lines[:1], *lines[2:]]
    else:
        outlines = list(lines)
    parts += [_line(line, span, top) for line in outlines]
    words = "; ".join(f"{line.name} {_last(line, digits)}" for line in lines if line.shown)
    svg = element(
        "svg",
        element("title", f"{title} over time, in {unit}: now {words}"),
        *parts,
        role="img",
        attributes={"viewBox": f"0 0 {WIDTH:.0f} {HEIGHT:.0f}", "preserveAspectRatio": "none"},
    )
    labels = [element("span", text) for text in (_number(top), _number(top / 2), "0")]
    return element(
        "figure",
        element("figcaption", element("h3", title, " ", element("small", unit)), _legend(lines, digits)),
        element(
            "div",
            element("div", *labels, class_="y", aria_hidden="true"),
            svg,
            element("div", *_times(span), class_="x", aria_hidden="true"),
            class_="plot",
        ),
    )


def sparkline(values: Values, span: Span, words: str) -> Html:
    """A small curve without axes, from zero; ``words`` say what it shows."""
    top = _top([value for _, value in values])
    return element(
        "svg",
        element("title", words),
        _line(Line("", "measured", values), span, top),
        role="img",
        class_="spark",
        attributes={"viewBox": f"0 0 {WIDTH:.0f} {HEIGHT:.0f}", "preserveAspectRatio": "none"},
    )


def shares(samplers: int, trainers: int, budget: int) -> Html:
    """A bar of how a budget is split; what is left of it stays empty."""
    whole = max(1, budget, samplers + trainers)
    first, second = WIDTH * samplers / whole, WIDTH * trainers / whole
    return element(
        "svg",
        element("title", f"{samplers} GPUs sample and {trainers} train, of a budget of {budget}"),
        element("rect", class_="samplers", width=f"{first:.0f}", height=HEIGHT),
        element("rect", class_="trainers", x=f"{first:.0f}", width=f"{second:.0f}", height=HEIGHT),
        role="img",
        class_="shares",
        attributes={"viewBox": f"0 0 {WIDTH:.0f} {HEIGHT:.0f}", "preserveAspectRatio": "none"},
    )


def clock(at_s: float, *, seconds: bool = False) -> str:
    """A time of day in UTC."""
    return datetime.fromtimestamp(at_s, UTC).strftime("%H:%M:%S" if seconds else "%H:%M")


def _on_top(lower: Line, upper: Line) -> Line:
    """The sum of two lines with the same times."""
    summed = [
        (at, None if a is None or b is None else a + b)
        for (at, a), (_, b) in zip(lower.values, upper.values, strict=True)
    ]
    return Line("", upper.kind, summed, holds=True, shown=False)


def _band(band: Band, span: Span) -> Html:
    left, right = span.x(band.start_s), span.x(span.end_s if band.end_s is None else band.end_s)
    # A move may be over in less than the drawing's finest line.
    return element(
        "rect",
        element("title", band.words),
        class_="move",
        x=f"{left:.1f}",
        width=f"{max(3.0, right - left):.1f}",
        height=HEIGHT,
    )


def _rule(fraction: float) -> Html:
    y = f"{HEIGHT * (1.0 - fraction):.1f}"
    return element("line", class_="rule", x1=0, x2=WIDTH, y1=y, y2=y)


def _line(line: Line, span: Span, top: float) -> Html:
    return element("path", class_=f"line {line.kind}", d=" ".join(_strokes(line, span, top)))


def _area(kind: str, span: Span, top: float, *lines: Line) -> Html:
    """The area below a line, or between two: what both cover is counted twice, and so left out."""
    closed = []
    for line in lines:
        for stretch in _stretches(line.values):
            stroke = " ".join(_strokes(Line("", kind, stretch, line.holds), span, top))
            left, right = span.x(stretch[0][0]), span.x(stretch[-1][0])
            closed.append(f"{stroke} L{right:.1f},{HEIGHT} L{left:.1f},{HEIGHT} Z")
    return element("path", class_=f"area {kind}", fill_rule="evenodd", d=" ".join(closed))


def _strokes(line: Line, span: Span, top: float) -> Iterable[str]:
    for stretch in _stretches(line.values):
        for i, (at, value) in enumerate(stretch):
            x, y = span.x(at), HEIGHT * (1.0 - value / top)
            if not i:
                yield f"M{x:.1f},{y:.1f}"
            else:
                yield f"H{x:.1f} V{y:.1f}" if line.holds else f"L{x:.1f},{y:.1f}"
        if len(stretch) == 1:
            # A point alone would not be drawn; with round ends a line of no length is a dot.
            yield "h0.1"


def _stretches(values: Values) -> list[list[tuple[float, float]]]:
    """The values between the gaps."""
    found: list[list[tuple[float, float]]] = [[]]
    for at, value in values:
        if value is not None and _can_be(value):
            found[-1].append((at, value))
        elif found[-1]:
            found.append([])
    return [stretch for stretch in found if stretch]


def _legend(lines: Sequence[Line], digits: int) -> Html:
    items = [
        element("li", element("i", class_=f"key {line.kind}"), line.name, " ", element("b", _last(line, digits)))
        for line in lines
        if line.shown
    ]
    return element("ul", *items, class_="legend")


def _last(line: Line, digits: int) -> str:
    """Where a line stands, in words."""
    value = line.values[-1][1] if line.values else None
    return "unknown" if value is None else f"{value:,.{digits}f}"


def _times(span: Span) -> tuple[Html, ...]:
    fine = span.length_s < 600.0
    middle = span.start_s + span.length_s / 2
    return tuple(element("span", clock(at, seconds=fine)) for at in (span.start_s, middle, span.end_s))


def _can_be(value: float) -> bool:
    """Whether a value is a measurement; anything else is a gap."""
    return 0.0 <= value < NONSENSE


def _top(values: Sequence[float | None]) -> float:
    """The upper end of an axis: a round number above all values."""
    largest = max((value for value in values if value is not None and _can_be(value)), default=0.0)
    if largest < sys.float_info.min:
        # Nothing, or so little that no power of ten stands below it.
        return 1.0
    power = 10.0 ** math.floor(math.log10(largest * 1.05))
    return next(
        step * power for step in (1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0) if step * power >= largest * 1.05
    )


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 else f"{value:.3g}"
