"""A dashboard: sections of panels laid out left to right, with its variables and the links to the others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dev.dashboards.panels import DATASOURCE, ORANGE, Json, Panel

COLUMNS = 24
TAG = "rljob"
"""All dashboards carry it, and link to all that carry it."""

SCHEMA_VERSION = 39
"""The dashboard format of Grafana 11, which later versions read too."""


@dataclass(frozen=True)
class Section:
    """A titled row with the panels below it, which break into lines when 24 columns are full."""

    title: str
    panels: Sequence[Panel]


@dataclass(frozen=True)
class Variable:
    """A value that a person chooses from a list that Prometheus gives."""

    name: str
    label: str
    query: str
    """``label_values(series, label)``."""
    several: bool = False
    """Whether several, or all, may be chosen."""

    def json(self) -> Json:
        """The variable."""
        found: Json = {
            "name": self.name,
            "label": self.label,
            "type": "query",
            "datasource": DATASOURCE,
            "definition": self.query,
            "query": {"qryType": 1, "query": self.query, "refId": "PrometheusVariableQueryEditor-VariableQuery"},
            "refresh": 2,
            "sort": 1,
            "multi": self.several,
            "includeAll": self.several,
            "hide": 0,
            "options": [],
            "regex": "",
            "skipUrlSync": False,
        }
        if self.several:
            found |= {"allValue": ".*", "current": {"text": ["All"], "value": ["$__all"], "selected": True}}
        else:
            found["current"] = {}
        return found


@dataclass(frozen=True)
class Window:
    """A time over which rates and means are taken, chosen from a list: steps of one job take seconds, of another half an hour."""

    name: str
    label: str
    choices: Sequence[str]
    chosen: str

    def json(self) -> Json:
        """The variable."""
        return {
            "name": self.name,
            "label": self.label,
            "type": "interval",
            "query": ",".join(self.choices),
            "current": {"text": self.chosen, "value": self.chosen, "selected": True},
            "options": [{"text": each, "value": each, "selected": each == self.chosen} for each in self.choices],
            "auto": False,
            "auto_count": 30,
            "auto_min": "10s",
            "refresh": 2,
            "hide": 0,
            "skipUrlSync": False,
        }


@dataclass(frozen=True)
class Annotation:
    """Marks on all graphs, at the times that are the values of a query."""

    name: str
    expr: str
    """PromQL whose values are milliseconds since the epoch."""
    title: str
    text: str

    def json(self) -> Json:
        """The annotation."""
        return {
            "name": self.name,
            "datasource": DATASOURCE,
            "enable": True,
            "hide": False,
            "iconColor": ORANGE,
            "expr": self.expr,
            "step": "",
            "titleFormat": self.title,
            "textFormat": self.text,
            "useValueForTime": "on",
        }


@dataclass(frozen=True)
class Board:
    """One dashboard."""

    uid: str
    """Fixed, so that tables can lead to it."""
    title: str
    description: str
    sections: Sequence[Section]
    variables: Sequence[Variable | Window]
    annotations: Sequence[Annotation] = ()
    refresh: str = "30s"
    since: str = "now-6h"

    def json(self) -> Json:
        """The dashboard as Grafana reads it."""
        return {
            "uid": self.uid,
            "title": self.title,
            "description": self.description,
            "tags": [TAG],
            "schemaVersion": SCHEMA_VERSION,
            "version": 1,
            "editable": True,
            "graphTooltip": 1,
            "refresh": self.refresh,
            "time": {"from": self.since, "to": "now"},
            "timezone": "browser",
            "links": [
                {
                    "type": "dashboards",
                    "tags": [TAG],
                    "title": "RLJob dashboards",
                    "asDropdown": False,
                    "includeVars": True,
                    "keepTime": True,
                    "targetBlank": False,
                    "icon": "external link",
                }
            ],
            "annotations": {"list": [one.json() for one in self.annotations]},
            "templating": {"list": [_datasource(), *(one.json() for one in self.variables)]},
            "panels": self._panels(),
        }

    def _panels(self) -> list[Json]:
        found: list[Json] = []
        y = 0
        for section in self.sections:
            place = {"x": 0, "y": y, "w": COLUMNS, "h": 1}
            found.append(
                {
                    "id": len(found) + 1,
                    "type": "row",
                    "title": section.title,
                    "collapsed": False,
                    "gridPos": place,
                    "panels": [],
                }
            )
            y += 1
            x = tallest = 0
            for panel in section.panels:
                if x + panel.width > COLUMNS:
                    x, y, tallest = 0, y + tallest, 0
                found.append(panel.json(len(found) + 1, x, y))
                x, tallest = x + panel.width, max(tallest, panel.height)
            y += tallest
        return found


def _datasource() -> dict[str, Any]:
    return {
        "name": "datasource",
        "label": "Data source",
        "type": "datasource",
        "query": "prometheus",
        "current": {},
        "hide": 0,
        "includeAll": False,
        "multi": False,
        "options": [],
        "refresh": 1,
        "regex": "",
        "skipUrlSync": False,
    }
