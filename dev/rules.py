"""The chart's rules as a file that Prometheus and promtool load, without helm.

The chart's template and this module fill the same sources (``rules/`` and ``alerts/`` of the chart) with the same values, and a test
compares what comes out. So a rule is written once, and a live Prometheus, promtool and a cluster all run the same.
"""

from __future__ import annotations

import argparse
import copy
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

CHART = Path(__file__).resolve().parents[1] / "charts" / "rljob-operator"
"""The chart."""

RECORDING = ("rules/recording.yaml",)
"""Sources of recording rules, in the chart."""

ALERTS = ("alerts/jobs.yaml", "alerts/operator.yaml")
"""Sources of alerts, in the chart."""

_PLACE = re.compile(r"\$\{([A-Za-z]+)\}")


def default_values() -> dict[str, Any]:
    """The block ``rules`` of the chart's values."""
    values = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))
    found: dict[str, Any] = values["rules"]
    return found


def rule_groups(
    values: Mapping[str, Any] | None = None,
    *,
    namespace: str = "rljob-system",
    recording: bool = True,
    alerts: bool = True,
) -> list[dict[str, Any]]:
    """The groups of rules as a release in ``namespace`` installs them.

    ``values`` are laid over the chart's block ``rules``; ``recording`` and ``alerts`` choose what comes. Raises KeyError for a rule
    that names a threshold which the values lack.
    """
    rules = _laid_over(default_values(), values or {})
    thresholds = {name: _text(value) for name, value in rules["thresholds"].items()}
    places = thresholds | {"operator": rules["operatorSelector"] or f'namespace="{namespace}"'}
    groups = []
    for source in (*(RECORDING if recording else ()), *(ALERTS if alerts else ())):
        text = (CHART / source).read_text(encoding="utf-8")
        filled = yaml.safe_load(_PLACE.sub(lambda found: places[found[1]], text))
        for group in filled["groups"]:
            kept = [
                _finished(rule, rules)
                for rule in group["rules"]
                if rule.get("alert") not in rules["alerts"]["disabled"]
            ]
            if kept:
                groups.append({"name": group["name"], "rules": kept})
    return groups


def write_rules(path: Path, values: Mapping[str, Any] | None = None, *, namespace: str = "rljob-system") -> Path:
    """Write all rules to ``path``, for ``rule_files`` of a Prometheus or for promtool; returns it."""
    path.write_text(
        yaml.safe_dump({"groups": rule_groups(values, namespace=namespace)}, sort_keys=False), encoding="utf-8"
    )
    return path


def _finished(rule: dict[str, Any], rules: Mapping[str, Any]) -> dict[str, Any]:
    if "alert" in rule:
        rule["labels"] = rule["labels"] | rules["alerts"]["labels"]
        rule["annotations"]["runbook_url"] = f"{rules['runbookBaseUrl'] or 'docs/alerts.md'}#{rule['alert'].lower()}"
    return rule


def _text(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _laid_over(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Values as helm merges them: maps are merged, all else is replaced."""
    found = copy.deepcopy(dict(below))
    for key, value in above.items():
        old = found.get(key)
        both = isinstance(old, Mapping) and isinstance(value, Mapping)
        found[key] = _laid_over(old, value) if both and old is not None else value
    return found


def main() -> None:
    """Write the rules of a release with default values to a file."""
    parser = argparse.ArgumentParser(description="Write the chart's rules as a file for rule_files of Prometheus.")
    parser.add_argument("path", type=Path)
    parser.add_argument("--namespace", default="rljob-system", help="namespace of the release")
    arguments = parser.parse_args()
    print(write_rules(arguments.path, namespace=arguments.namespace))


if __name__ == "__main__":
    main()
