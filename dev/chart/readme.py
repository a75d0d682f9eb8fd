"""Makes the chart's README from a template and from the comments of its values."""

from __future__ import annotations

import json
from itertools import groupby
from pathlib import Path

import yaml

from dev.chart import CHART
from dev.chart.values import Value, read_values

TEMPLATE = Path(__file__).parent / "README.md.template"
"""What people wrote of the README; ``@VALUES@`` is where the tables go, ``@VERSION@`` the version of the operator."""


def readme() -> str:
    """The README as it should be."""
    version = yaml.safe_load((CHART / "Chart.yaml").read_text(encoding="utf-8"))["appVersion"]
    text = TEMPLATE.read_text(encoding="utf-8").replace("@VERSION@", version)
    return text.replace("@VALUES@", tables(read_values(CHART / "values.yaml")))


def tables(values: list[Value]) -> str:
    """One table for each section."""
    parts = []
    for section, rows in groupby(values, key=lambda value: value.section):
        lines = [f"### {section}", "", "| value | default | meaning |", "|---|---|---|"]
        lines += [f"| `{value.path}` | {_default(value)} | {_cell(value.text)} |" for value in rows]
        parts.append("\n".join(lines))
    return "\n\n".join(parts)


def _default(value: Value) -> str:
    return _cell(f"`{json.dumps(value.default, ensure_ascii=False)}`")


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
