"""Which helm and kubectl a machine gets that the packaged ones don't run on."""

from __future__ import annotations

from pathlib import Path

import pytest

from dev import kubetools
from tests.conftest import _one_helm_is_enough


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only folder on PATH, of a machine of another kind."""
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    monkeypatch.setenv("PATH", str(tmp_path))
    return tmp_path


def put(folder: Path, name: str, says: str) -> Path:
    file = folder / name
    file.write_text(f"#!/bin/sh\necho {says}\n")
    file.chmod(0o755)
    return file


def test_a_tool_of_the_right_major_on_the_path_is_taken(path: Path) -> None:
    mine = put(path, "helm", "v4.0.1+gabc")
    assert kubetools.helm(4) == mine


def test_the_other_major_is_skipped_with_the_reason(path: Path) -> None:
    put(path, "helm", "v3.19.0")
    with pytest.raises(kubetools.OtherMajorError, match=r"which is v3\.19\.0: install helm v4"):
        kubetools.helm(4)
    with pytest.raises(pytest.skip.Exception, match="Linux on x86-64 only"), _one_helm_is_enough():
        kubetools.helm(4)


@pytest.mark.parametrize("says", [None, "nothing"])
def test_no_helm_at_all_is_a_failure(path: Path, says: str | None) -> None:
    if says is not None:
        put(path, "helm", says)
    with pytest.raises(kubetools.ToolError, match="install helm v4") as raised, _one_helm_is_enough():
        kubetools.helm(4)
    assert not isinstance(raised.value, kubetools.OtherMajorError)
