"""Helm's own checks, the package, and what helm prints at the end of an installation."""

from __future__ import annotations

import json
import re
import subprocess
import tarfile
from pathlib import Path

import pytest
import yaml

import rljob_planner
from dev.chart import CHART, ROOT, Json
from dev.kubetools import HELM_MAJORS, helm
from tests.chart.cases import CASES, NAMESPACE, NO_CRDS, RELEASE, rendered_text


def run(major: int, *arguments: str, values: Json | None = None) -> str:
    command = [str(helm(major)), *arguments, *(["--values", "-"] if values is not None else [])]
    done = subprocess.run(command, input=json.dumps(values), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("major", HELM_MAJORS)
@pytest.mark.parametrize("case", CASES)
def test_helm_finds_nothing_to_complain_of(case: str, major: int) -> None:
    said = run(major, "lint", "--strict", str(CHART), values=CASES[case])
    assert "[WARNING]" not in said
    assert "[ERROR]" not in said


@pytest.mark.parametrize("major", HELM_MAJORS)
def test_a_package_installs_as_the_directory_does(major: int, tmp_path: Path) -> None:
    run(major, "package", str(CHART), "--destination", str(tmp_path))
    (package,) = tmp_path.iterdir()
    version = yaml.safe_load((CHART / "Chart.yaml").read_text(encoding="utf-8"))["version"]
    assert package.name == f"rljob-operator-{version}.tgz"
    # Helm keeps a release in a Secret, with the chart in it, and a Secret has room for 1 MiB.
    assert package.stat().st_size < 300_000
    with tarfile.open(package) as archive:
        names = {name.removeprefix("rljob-operator/") for name in archive.getnames()}
    assert {"Chart.yaml", "values.yaml", "values.schema.json", "README.md", "templates/NOTES.txt"} <= names
    assert {f"files/crds/{name.name}" for name in (CHART / "files/crds").iterdir()} <= names
    again = run(major, "template", RELEASE, str(package), "--namespace", NAMESPACE, values=CASES["defaults"])
    assert again == rendered_text("defaults", major)


def test_versions_agree() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text(encoding="utf-8"))
    assert chart["appVersion"] == chart["version"] == rljob_planner.__version__
    crds = yaml.safe_load(chart["annotations"]["artifacthub.io/crds"])
    defined = [
        yaml.load(f.read_text(encoding="utf-8"), Loader=yaml.CSafeLoader) for f in (CHART / "files/crds").iterdir()
    ]
    assert sorted((crd["kind"], crd["name"]) for crd in crds) == sorted(
        (crd["spec"]["names"]["kind"], crd["metadata"]["name"]) for crd in defined
    )


@pytest.mark.parametrize("major", HELM_MAJORS)
def test_an_old_kubernetes_is_refused(major: int) -> None:
    command = [str(helm(major)), "template", "r", str(CHART), "--kube-version"]
    old = subprocess.run([*command, "1.30.4"], capture_output=True, text=True, check=False)
    assert old.returncode != 0
    assert "1.31" in old.stderr
    # Vendors append to the version.
    assert subprocess.run([*command, "1.31.2-gke.100"], capture_output=True, check=False).returncode == 0


def notes(values: Json) -> str:
    """What helm prints after an installation."""
    said = run(4, "install", RELEASE, str(CHART), "--namespace", NAMESPACE, "--dry-run=client", values=values)
    return said.partition("NOTES:")[2]


def test_the_notes_say_what_to_do_next() -> None:
    said = notes({**NO_CRDS, "crds": {"install": True}})
    assert f"helm -n {NAMESPACE} test {RELEASE}" in said
    assert f"kubectl -n {NAMESPACE} rollout status deployment/release-rljob-operator" in said
    for step in ("crds/samples/recommend-only.yaml", "describe rljob recommend-only", '"mode":"Auto"'):
        assert step in said
    for sample in re.findall(r"crds/samples/\S+\.yaml", said):
        assert (ROOT / sample).is_file()
    assert "no Prometheus is set" in said
    assert "all namespaces" in said


def test_the_notes_name_what_this_installation_leaves_out() -> None:
    values = {
        "watchNamespaces": ["team-a", "team-b"],
        "prometheus": {"url": "http://p:9090"},
        "monitoring": {"jobs": {"enabled": True}},
        "rbac": {"create": False},
        "crds": {"install": True, "keep": False},
    }
    said = notes(values)
    assert "the namespaces team-a, team-b" in said
    assert "kubectl -n team-a apply" in said
    assert "no Prometheus" not in said
    assert "has to scrape" not in said
    assert "uninstalling this release deletes all RLJobs" in said
    assert "rbac.create is false" in said
    assert "-s templates/clusterrole.yaml -s templates/roles.yaml" in said
    assert "the CRDs are not part of this release" in notes(NO_CRDS)
