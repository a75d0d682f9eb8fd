"""The queries of a dashboard as Prometheus takes them: Grafana's variables filled in."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from dev.dashboards.panels import Json


@dataclass(frozen=True)
class Asked:
    """One query of a dashboard, and where it stands."""

    where: str
    """For people: the panel's title and the query's letter, or what else asks."""
    expr: str
    """PromQL, with Grafana's variables."""
    instant: bool
    """Whether only the newest value is shown."""


@dataclass(frozen=True)
class Filling:
    """What Grafana's variables stand for."""

    variables: Mapping[str, str]
    """The dashboard's own, by name."""
    rate_s: float
    """``$__rate_interval``, in seconds."""
    range_s: float
    """``$__range``, in seconds: the time shown."""

    def fill(self, expr: str) -> str:
        """The query without variables; raises KeyError for one that is unknown."""
        known = {
            **self.variables,
            "__rate_interval": f"{self.rate_s * 1000:.0f}ms",
            "__range": f"{self.range_s * 1000:.0f}ms",
        }
        return re.sub(r"\$(\w+)", lambda found: known[found[1]], expr)


def asked(dashboard: Json) -> Iterator[Asked]:
    """Every query of a dashboard: of panels, of annotations."""
    for panel in dashboard["panels"]:
        for target in panel.get("targets", ()):
            yield Asked(f"{panel['title']} {target['refId']}", target["expr"], target["instant"])
    for annotation in dashboard["annotations"]["list"]:
        yield Asked(annotation["name"], annotation["expr"], instant=False)


def variables(dashboard: Json) -> Iterator[tuple[str, str, str]]:
    """Name, selector of series and label of each variable whose values Prometheus gives."""
    for variable in dashboard["templating"]["list"]:
        if variable["type"] == "query":
            found = re.fullmatch(r"label_values\((.+), (\w+)\)", variable["definition"])
            if found is None:
                raise ValueError(
                    f"variable {variable['name']}: {variable['definition']} is no label_values(series, label)"
                )
            yield variable["name"], found[1], found[2]
