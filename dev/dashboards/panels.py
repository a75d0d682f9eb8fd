"""Panels as values, and the JSON that Grafana wants of them.

Every query names the data source by variable, every panel has a unit and a description, and a series is coloured by what it is and not by
the order in which it comes: samplers are blue and trainers orange on every graph.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Json = dict[str, Any]

DATASOURCE: Json = {"type": "prometheus", "uid": "${datasource}"}

BLUE, ORANGE, GREEN, RED = "#3d85c6", "#e69138", "#4caf6e", "#d9534f"
PURPLE, TEAL, YELLOW, GREY = "#9b72cf", "#2fa8a0", "#d4b106", "#8e8e8e"
SAMPLERS, TRAINERS = BLUE, ORANGE


@dataclass(frozen=True)
class Query:
    """One PromQL query of a panel."""

    expr: str
    """PromQL, with Grafana's variables."""
    legend: str = ""
    """Name of the series, with labels in double braces; empty in a table."""
    instant: bool = False
    """Whether only the newest value is asked for."""


@dataclass(frozen=True)
class Series:
    """How the series of one name, or of all names that a regular expression matches, are drawn."""

    name: str
    """Name as the legend shows it, or a regular expression between slashes."""
    color: str | None = None
    dashed: bool = False
    width: int | None = None
    fill: int | None = None
    """Opacity of the area below, in percent."""
    stacked: bool | None = None
    below_to: str | None = None
    """Name of the series down to which the area between is filled."""
    unit: str | None = None
    """Unit, on an axis of its own at the right."""
    points: bool = False
    """Whether it is drawn as points and not as a line."""
    hidden_in_legend: bool = False

    def json(self) -> Json:
        """The override."""
        regexp = self.name.startswith("/")
        said: list[tuple[str, Any]] = []
        if self.color is not None:
            said.append(("color", {"mode": "fixed", "fixedColor": self.color}))
        if self.dashed:
            said.append(("custom.lineStyle", {"fill": "dash", "dash": [8, 6]}))
        if self.width is not None:
            said.append(("custom.lineWidth", self.width))
        if self.fill is not None:
            said.append(("custom.fillOpacity", self.fill))
        if self.stacked is not None:
            said.append(("custom.stacking", {"mode": "normal" if self.stacked else "none", "group": "A"}))
        if self.below_to is not None:
            said.append(("custom.fillBelowTo", self.below_to))
        if self.unit is not None:
            said += [("unit", self.unit), ("custom.axisPlacement", "right")]
        if self.points:
            said += [("custom.drawStyle", "points"), ("custom.pointSize", 7), ("custom.showPoints", "always")]
        if self.hidden_in_legend:
            said.append(("custom.hideFrom", {"legend": True, "tooltip": False, "viz": False}))
        return {
            "matcher": {"id": "byRegexp" if regexp else "byName", "options": self.name},
            "properties": [{"id": key, "value": value} for key, value in said],
        }


@dataclass(frozen=True)
class Panel:
    """What all kinds of panels have."""

    title: str
    description: str
    """What it shows and what to make of it, for whoever sees it for the first time."""
    queries: Sequence[Query]
    width: int
    """Columns of 24."""
    height: int = 8
    """Rows of 30 pixels."""
    unit: str = "short"
    """A unit's name in Grafana."""
    decimals: int | None = None
    minimum: float | None = None
    maximum: float | None = None
    thresholds: Sequence[tuple[float | None, str]] = ((None, GREEN),)
    """From which value on which colour holds; the first from None on."""
    mappings: Sequence[Json] = ()
    empty: str = ""
    """What is written where there is no value, for a panel that may rightly be empty."""

    @property
    def kind(self) -> str:
        """Type of the panel in Grafana."""
        raise NotImplementedError

    def targets(self) -> list[Json]:
        """The queries."""
        return [
            {
                "refId": chr(ord("A") + index),
                "datasource": DATASOURCE,
                "expr": query.expr,
                "legendFormat": query.legend,
                "editorMode": "code",
                "instant": query.instant,
                "range": not query.instant,
                "format": "table" if self.kind == "table" else "time_series",
            }
            for index, query in enumerate(self.queries)
        ]

    def defaults(self) -> Json:
        """Field defaults."""
        found: Json = {
            "unit": self.unit,
            "color": {"mode": "palette-classic"},
            "thresholds": {
                "mode": "absolute",
                "steps": [{"value": value, "color": color} for value, color in self.thresholds],
            },
            "mappings": list(self.mappings),
        }
        for key, value in (("decimals", self.decimals), ("min", self.minimum), ("max", self.maximum)):
            if value is not None:
                found[key] = value
        if self.empty:
            found["noValue"] = self.empty
        return found

    def overrides(self) -> list[Json]:
        """Field overrides."""
        return []

    def options(self) -> Json:
        """Options of the kind."""
        return {}

    def transformations(self) -> list[Json]:
        """What is done to the answers before they are drawn."""
        return []

    def json(self, number: int, x: int, y: int) -> Json:
        """The panel with its id and place."""
        found = {
            "id": number,
            "type": self.kind,
            "title": self.title,
            "description": self.description,
            "datasource": DATASOURCE,
            "gridPos": {"x": x, "y": y, "w": self.width, "h": self.height},
            "fieldConfig": {"defaults": self.defaults(), "overrides": self.overrides()},
            "options": self.options(),
            "targets": self.targets(),
        }
        if transformations := self.transformations():
            found["transformations"] = transformations
        return found


@dataclass(frozen=True)
class Graph(Panel):
    """Series over time."""

    series: Sequence[Series] = ()
    stacked: bool = False
    bars: bool = False
    """Whether each value is a bar as wide as the distance between two: for states, where one follows another."""
    steps: bool = False
    """Whether a value holds until the next: for what changes at once, such as a split."""
    fill: int = 8
    legend_values: Sequence[str] = ("lastNotNull",)
    axis: str = ""
    """Label of the axis."""
    hide_axis: bool = False
    limit_lines: bool = False
    """Whether the thresholds are drawn as dashed lines."""
    at_least: float | None = None
    """Where the axis ends at least, for what is 0 most of the time."""

    @property
    def kind(self) -> str:
        """Type of the panel in Grafana."""
        return "timeseries"

    def defaults(self) -> Json:
        """Field defaults."""
        custom: Json = {
            "drawStyle": "bars" if self.bars else "line",
            "lineInterpolation": "stepAfter" if self.steps else "linear",
            "lineWidth": 0 if self.bars else 2,
            "fillOpacity": 85 if self.bars else self.fill,
            "gradientMode": "none",
            "showPoints": "never",
            "pointSize": 5,
            "spanNulls": False,
            "barAlignment": 0,
            "barWidthFactor": 1,
            "stacking": {"mode": "normal" if self.stacked else "none", "group": "A"},
            "axisPlacement": "hidden" if self.hide_axis else "auto",
            "axisLabel": self.axis,
            "axisBorderShow": False,
            "axisGridShow": not self.hide_axis,
            "scaleDistribution": {"type": "linear"},
            "hideFrom": {"legend": False, "tooltip": False, "viz": False},
            "thresholdsStyle": {"mode": "dashed" if self.limit_lines else "off"},
        }
        if self.at_least is not None:
            custom["axisSoftMax"] = self.at_least
        return {**Panel.defaults(self), "custom": custom}

    def overrides(self) -> list[Json]:
        """Field overrides."""
        return [one.json() for one in self.series]

    def options(self) -> Json:
        """Options of the kind."""
        return {
            "legend": {
                "showLegend": True,
                "displayMode": "list",
                "placement": "bottom",
                "calcs": list(self.legend_values),
            },
            "tooltip": {"mode": "multi", "sort": "none"},
        }


@dataclass(frozen=True)
class Stat(Panel):
    """The newest value, large."""

    height: int = 4
    names: bool = False
    """Whether the name of the series is what is shown: for a state that is a label."""
    both: bool = False
    """Whether name and value are shown."""
    series: Sequence[Series] = ()
    color: str = ""
    """One colour, if not that of the thresholds."""
    plain: bool = False
    """Whether only the text is coloured, and not the background."""

    @property
    def kind(self) -> str:
        """Type of the panel in Grafana."""
        return "stat"

    def defaults(self) -> Json:
        """Field defaults."""
        color = {"mode": "fixed", "fixedColor": self.color} if self.color else {"mode": "thresholds"}
        return {**Panel.defaults(self), "color": color}

    def overrides(self) -> list[Json]:
        """Field overrides."""
        return [one.json() for one in self.series]

    def options(self) -> Json:
        """Options of the kind."""
        # Left to itself, a short name would fill the panel to its edges.
        text = {"text": {"valueSize": 32}} if self.names else {}
        return {
            **text,
            "reduceOptions": {"values": False, "calcs": ["lastNotNull"], "fields": ""},
            "colorMode": "value" if self.plain else "background_solid",
            "graphMode": "none",
            "justifyMode": "center",
            "textMode": "name" if self.names else "value_and_name" if self.both else "value",
            "orientation": "vertical" if self.both else "auto",
            "wideLayout": True,
        }


@dataclass(frozen=True)
class Column:
    """A column of a table."""

    title: str
    field: str
    """Label, or ``Value #A`` for the value of the first query (``Value`` if there is one query only)."""
    unit: str | None = None
    decimals: int | None = None
    width: int | None = None
    """Pixels."""
    mappings: Sequence[Json] = ()
    thresholds: Sequence[tuple[float | None, str]] = ()
    """If given, the cell's text is coloured by them or by the mappings."""
    coloured: bool = False
    link: tuple[str, str] | None = None
    """Title and URL that a cell leads to."""
    wrap: bool = False
    """Whether long text may take several lines."""

    def json(self) -> Json | None:
        """The override, None if there is nothing to say."""
        said: list[tuple[str, Any]] = []
        if self.unit is not None:
            said.append(("unit", self.unit))
        if self.decimals is not None:
            said.append(("decimals", self.decimals))
        if self.width is not None:
            said.append(("custom.width", self.width))
        if self.mappings:
            said.append(("mappings", list(self.mappings)))
        if self.thresholds:
            steps = [{"value": value, "color": color} for value, color in self.thresholds]
            said += [("thresholds", {"mode": "absolute", "steps": steps}), ("color", {"mode": "thresholds"})]
        if self.thresholds or self.coloured:
            said.append(("custom.cellOptions", {"type": "color-text"}))
        if self.wrap:
            # The first is read by Grafana up to 12.1, the second since.
            said += [("custom.cellOptions", {"type": "auto", "wrapText": True}), ("custom.wrapText", True)]
        if self.link is not None:
            title, url = self.link
            said.append(("links", [{"title": title, "url": url, "targetBlank": False}]))
        if not said:
            return None
        return {
            "matcher": {"id": "byName", "options": self.title},
            "properties": [{"id": key, "value": value} for key, value in said],
        }


@dataclass(frozen=True)
class Table(Panel):
    """The newest values of several queries, a row for each set of labels that they share."""

    columns: Sequence[Column] = field(default=())
    sort_by: str = ""
    cell_height: str = "sm"

    @property
    def kind(self) -> str:
        """Type of the panel in Grafana."""
        return "table"

    def defaults(self) -> Json:
        """Field defaults."""
        return {
            **Panel.defaults(self),
            "color": {"mode": "fixed", "fixedColor": "text"},
            "custom": {"align": "left", "cellOptions": {"type": "auto"}, "inspect": False, "filterable": False},
        }

    def overrides(self) -> list[Json]:
        """Field overrides."""
        return [said for column in self.columns if (said := column.json()) is not None]

    def options(self) -> Json:
        """Options of the kind."""
        sort = [{"displayName": self.sort_by, "desc": False}] if self.sort_by else []
        return {"showHeader": True, "cellHeight": self.cell_height, "footer": {"show": False}, "sortBy": sort}

    def transformations(self) -> list[Json]:
        """Join the answers, keep the columns, and name them."""
        merge = [{"id": "merge", "options": {}}] if len(self.queries) > 1 else []
        organize = {
            "includeByName": {column.field: True for column in self.columns},
            "indexByName": {column.field: index for index, column in enumerate(self.columns)},
            "renameByName": {column.field: column.title for column in self.columns if column.title != column.field},
        }
        return [*merge, {"id": "organize", "options": organize}]


def mapped(values: Mapping[str, tuple[str, str]]) -> Json:
    """A mapping of values to text and colour."""
    return {
        "type": "value",
        "options": {
            value: {"text": text, "color": color, "index": index}
            for index, (value, (text, color)) in enumerate(values.items())
        },
    }
