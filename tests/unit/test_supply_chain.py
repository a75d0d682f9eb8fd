"""What is shipped is listed with its licence, and what is listed is what is shipped."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from dev import sbom

ROOT = Path(__file__).resolve().parents[2]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
COPYLEFT = re.compile(r"\b(A?GPL|SSPL|BUSL|CC-BY-NC|EUPL|Commons)", re.IGNORECASE)
"""Licences under which what this project ships could not be under its own."""


@pytest.fixture(scope="module")
def packages() -> dict[str, sbom.Package]:
    return sbom.closure()


def names(requirements: list[str]) -> set[str]:
    return {canonicalize_name(Requirement(text).name) for text in requirements}


def test_every_dependency_of_the_operator_is_listed_and_no_tool_of_its_makers(
    packages: dict[str, sbom.Package],
) -> None:
    project = PYPROJECT["project"]
    stated = names(project["dependencies"]) | names(project["optional-dependencies"]["operator"])
    assert stated <= set(packages)
    assert stated == set(packages["rljob-operator"].needs)
    groups = PYPROJECT["dependency-groups"].values()
    own = names([text for group in groups for text in group if isinstance(text, str)]) - stated
    assert own.isdisjoint(packages), "what only tests need is not shipped"


def test_what_a_dependency_needs_is_listed_too(packages: dict[str, sbom.Package]) -> None:
    assert {"yarl", "multidict", "pydantic-core", "llvmlite"} <= set(packages)
    for package in packages.values():
        assert set(package.needs) <= set(packages), package.name


def test_every_package_says_under_which_licence_it_comes(packages: dict[str, sbom.Package]) -> None:
    assert [p.name for p in packages.values() if not p.license] == []
    assert [f"{p.name}: {p.license}" for p in packages.values() if COPYLEFT.search(p.license or "")] == []


def test_the_document_is_cyclonedx(packages: dict[str, sbom.Package]) -> None:
    validation = pytest.importorskip(
        "cyclonedx.validation.json", reason="cyclonedx-python-lib comes with the dev group"
    )
    schema = pytest.importorskip("cyclonedx.schema")
    written = sbom.document(packages)
    error = validation.JsonStrictValidator(schema.SchemaVersion.V1_6).validate_str(json.dumps(written))
    assert error is None, error
    refs = {c["bom-ref"] for c in written["components"]} | {written["metadata"]["component"]["bom-ref"]}
    assert {d["ref"] for d in written["dependencies"]} == refs
    assert {ref for d in written["dependencies"] for ref in d["dependsOn"]} <= refs


def test_the_document_is_the_same_each_time(packages: dict[str, sbom.Package], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SOURCE_DATE_EPOCH", raising=False)
    first = sbom.document(packages)
    assert sbom.document(sbom.closure()) == first
    assert "timestamp" not in first["metadata"]
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")
    dated = sbom.document(packages)
    assert dated["metadata"]["timestamp"] == "2023-11-14T22:13:20Z"
    assert dated["serialNumber"] != first["serialNumber"]


@pytest.mark.parametrize(
    ("expression", "words", "classifiers", "found"),
    [
        ("MIT", "BSD", [], "MIT"),
        (None, "Apache 2.0", [], "Apache-2.0"),
        (None, None, ["License :: OSI Approved :: MIT License"], "MIT"),
        (None, "Copyright\nall the text", ["License :: OSI Approved :: ISC License (ISCL)"], "ISC"),
        (None, "Own words", [], "Own words"),
        (None, "", ["Topic :: Software Development"], None),
    ],
)
def test_a_licence_is_read_however_a_package_says_it(
    expression: str | None, words: str | None, classifiers: list[str], found: str | None
) -> None:
    assert sbom._license(expression, words, classifiers) == found


@pytest.mark.parametrize(
    ("text", "spdx"),
    [
        ("MIT", True),
        ("BSD-3-Clause AND 0BSD AND MIT", True),
        ("BSD-2-Clause AND (Apache-2.0 WITH LLVM-exception)", True),
        ("BSD", False),
        ("Own words", False),
    ],
)
def test_only_spdx_counts_as_an_expression(text: str, spdx: bool) -> None:
    assert sbom.is_spdx(text) is spdx


def test_the_pins_are_what_is_asked_about(packages: dict[str, sbom.Package]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "dev.sbom", "--pins"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    lines = done.stdout.splitlines()
    assert len(lines) == len(packages) - 1
    assert f"aiohttp=={packages['aiohttp'].version}" in lines
    assert not any(line.startswith("rljob-operator") for line in lines)


def test_make_has_targets_for_both() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for target in ("audit", "sbom"):
        assert re.search(rf"^{target}: setup ## ", makefile, re.MULTILINE), target
        assert re.search(rf"^\.PHONY:.*\b{target}\b", makefile, re.MULTILINE), target


def test_the_policy_says_where_to_report_and_names_nobody() -> None:
    text = (ROOT / "SECURITY.md").read_text()
    assert "private vulnerability reporting" in text
    assert "@" not in text, "no address that somebody would have to answer"
