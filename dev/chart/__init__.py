"""The chart from the outside: rendered by real helm, and its pages made from its values.

Whoever needs an object of the chart (a role, the operator's environment) asks helm for it by ``render``, so that there is no second
description of an installation that could differ from what users get.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from dev.kubetools import helm

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "charts" / "rljob-operator"
"""The chart's directory."""

Json = dict[str, Any]


class ChartError(RuntimeError):
    """Helm refused the chart or its values; the message holds helm's own words."""


def render(
    values: Mapping[str, Any] | None = None,
    *,
    release: str = "rljob-operator",
    namespace: str = "rljob-system",
    major: int = 4,
    templates: Sequence[str] = (),
    api_versions: Sequence[str] = (),
    kube_version: str | None = None,
) -> list[Json]:
    """The objects that ``helm template`` makes of the chart.

    ``templates`` are paths below the chart's directory, all if there are none; ``api_versions`` is what the cluster is said to serve.
    Raises ChartError.
    """
    return objects(
        helm_template(
            values, release=release, namespace=namespace, major=major, templates=templates, api_versions=api_versions,
            kube_version=kube_version,
        )
    )  # fmt: skip


def helm_template(
    values: Mapping[str, Any] | None = None,
    *,
    release: str = "rljob-operator",
    namespace: str = "rljob-system",
    major: int = 4,
    templates: Sequence[str] = (),
    api_versions: Sequence[str] = (),
    kube_version: str | None = None,
) -> str:
    """The text of ``render``."""
    command = [str(helm(major)), "template", release, str(CHART), "--namespace", namespace, "--values", "-"]
    for template in templates:
        command += ["--show-only", template]
    for version in api_versions:
        command += ["--api-versions", version]
    if kube_version is not None:
        command += ["--kube-version", kube_version]
    done = subprocess.run(command, input=json.dumps(dict(values or {})), capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise ChartError(done.stderr.strip())
    return done.stdout


def objects(text: str) -> list[Json]:
    """The objects in a stream of YAML documents, empty documents left out."""
    loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    return [document for document in yaml.load_all(text, Loader=loader) if document]
