"""The roles of the chart as files of their own, for whoever installs without helm.

Their rules are written once, in the chart's templates; these files are what helm makes of them with the default values and two replicas.
"""

from __future__ import annotations

from pathlib import Path

from dev.chart import CHART, helm_template

FILES = {
    CHART / "files" / "clusterrole.yaml": ("templates/clusterrole.yaml", "ClusterRole"),
    CHART / "files" / "role.yaml": ("templates/roles.yaml", "Role"),
}
"""Each file with the template and the kind that it is taken from."""

_HEAD = "# Made by `python -m dev.chart` from the chart's templates/_rules.tpl; edit that instead.\n"


def role_text(file: Path) -> str:
    """The text that a file should have."""
    template, kind = FILES[file]
    text = helm_template({"replicas": 2, "rbac": {"features": {"openshift": True}}}, templates=[template])
    for document in text.split("\n---\n"):
        lines = [line for line in document.splitlines() if not line.startswith(("# Source:", "---"))]
        if f"kind: {kind}" in lines:
            return _HEAD + "\n".join(line for line in lines if not _of_a_release(line)).strip() + "\n"
    raise LookupError(f"helm made no {kind} of {template}")


def _of_a_release(line: str) -> bool:
    """Whether a line says to which release an object belongs, or where that is."""
    names = (
        "namespace:",
        "helm.sh/",
        "app.kubernetes.io/instance",
        "app.kubernetes.io/version",
        "app.kubernetes.io/managed-by",
    )
    return line.strip().startswith(names)
