"""The krew plugin: an archive that is always the same, a manifest that krew takes, and a launcher that runs what is there."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest
import yaml

from dev import krew
from rljob_planner import __version__

URL = "https://github.com/example/rljob-operator/releases/download/v1.2.3"


@pytest.fixture
def built(tmp_path: Path) -> tuple[Path, dict[str, Any]]:
    packed, manifest = krew.build(tmp_path / "krew", URL)
    return packed, yaml.safe_load(manifest.read_text(encoding="utf-8"))


def test_the_manifest_names_the_archive_and_is_what_krew_takes(built: tuple[Path, dict[str, Any]]) -> None:
    packed, manifest = built
    (platform,) = manifest["spec"]["platforms"]
    assert platform["sha256"] == hashlib.sha256(packed.read_bytes()).hexdigest()
    assert platform["uri"] == f"{URL}/{packed.name}"
    assert manifest["spec"]["homepage"] == "https://github.com/example/rljob-operator"
    assert manifest["spec"]["version"] == f"v{__version__}"
    assert list(krew.problems(manifest)) == []
    with tarfile.open(packed) as tar:
        assert sorted(tar.getnames()) == sorted(file["from"] for file in platform["files"])
    assert krew.archive() == krew.archive() == packed.read_bytes()


@pytest.mark.parametrize(
    ("path", "value", "problem"),
    [
        (("apiVersion",), "v1", "apiVersion"),
        (("metadata", "name"), "a b", "metadata.name"),
        (("spec", "version"), "0.1.0", "spec.version: semantic, with a v in front"),
        (
            ("spec", "shortDescription"),
            "x" * 51,
            "spec.shortDescription: at most 50 letters in one line, and no full stop",
        ),
        (("spec", "homepage"), "", "spec.homepage is missing"),
        (("spec", "platforms"), [], "spec.platforms is missing"),
        (("spec", "platforms", 0, "uri"), "http://x", "spec.platforms[0]: uri: over https"),
        (("spec", "platforms", 0, "sha256"), "ABC", "spec.platforms[0]: sha256: 64 digits in lower case"),
        (("spec", "platforms", 0, "bin"), "other", "spec.platforms[0]: bin: it is none of the files"),
        (("spec", "platforms", 0, "selector"), {}, "spec.platforms[0]: selector: by os and arch"),
        (("spec", "platforms", 0, "url"), "x", "spec.platforms[0]: url is unknown"),
    ],
)
def test_what_krew_would_refuse_is_found(
    built: tuple[Path, dict[str, Any]], path: tuple[Any, ...], value: Any, problem: str
) -> None:
    target: Any = built[1]
    for key in path[:-1]:
        target = target[key]
    target[path[-1]] = value
    assert list(krew.problems(built[1])) == [problem]


def installed(packed: Path, folder: Path) -> Path:
    """The launcher, unpacked and linked as krew does it."""
    with tarfile.open(packed) as tar:
        # The first releases of Python 3.11 know no filter, and what was packed here needs none.
        tar.extractall(folder / "store", **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))
    (folder / "bin").mkdir()
    link = folder / "bin" / "kubectl-rljob"
    link.symlink_to(folder / "store" / "kubectl-rljob")
    return link


def launch(link: Path, *arguments: str, path: list[Path], **env: str) -> subprocess.CompletedProcess[str]:
    # Nothing of the machine's but what every machine has: a pipx or an rljob of its own would be run instead of what the test is about.
    usual = link.parent.parent / "usual"
    if not usual.exists():
        usual.mkdir()
        for name in ("sh", "cat", "basename"):
            real = shutil.which(name)
            assert real is not None
            (usual / name).symlink_to(real)
    search = os.pathsep.join([str(link.parent), *map(str, path), str(usual)])
    environment = {"PATH": search, "HOME": str(link.parent), **env}
    return subprocess.run(
        [str(link), *arguments], capture_output=True, text=True, env=environment, timeout=60, check=False
    )


def tool(folder: Path, name: str) -> Path:
    """A command that says how it was called."""
    folder.mkdir(exist_ok=True)
    file = folder / name
    file.write_text('#!/bin/sh\necho "$(basename "$0") $*"\n')
    file.chmod(0o755)
    return folder


def test_the_launcher_runs_the_command_that_is_installed(built: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    found = Path(sys.executable).parent
    if shutil.which("rljob", path=str(found)) is None:
        pytest.skip("rljob is not installed beside this Python: make setup does it")
    link = installed(built[0], tmp_path)
    done = launch(link, "version", path=[found])
    assert (done.returncode, done.stdout) == (0, f"rljob {__version__}\n"), done.stderr
    # Whoever asks how to use it is told by the name that he typed.
    assert "kubectl rljob status" in " ".join(launch(link, "status", "--help", path=[found]).stdout.split())


def test_the_launcher_has_the_command_fetched_or_says_how(built: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    link = installed(built[0], tmp_path)
    wanted = f"rljob-operator[operator]=={__version__}"
    nothing = launch(link, "version", path=[])
    assert nothing.returncode == 127
    assert f"pipx install '{wanted}'" in nothing.stderr
    pipx = tool(tmp_path / "pipx", "pipx")
    assert launch(link, "plan", "x", path=[pipx]).stdout == f"pipx run --quiet --spec {wanted} rljob plan x\n"
    uvx = tool(tmp_path / "uv", "uvx")
    assert launch(link, "plan", "x", path=[pipx, uvx]).stdout == f"uvx --quiet --from {wanted} rljob plan x\n"
    # A source that is named is used, whatever is installed.
    mine = tool(tmp_path / "mine", "rljob")
    assert launch(link, "plan", "x", path=[mine, uvx]).stdout == "rljob plan x\n"
    named = launch(link, "plan", "x", path=[mine, uvx], RLJOB_PACKAGE="/tmp/x.whl")
    assert named.stdout == "uvx --quiet --from /tmp/x.whl rljob plan x\n"


def test_the_launcher_does_not_run_itself_for_ever(built: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    link = installed(built[0], tmp_path)
    (link.parent / "rljob").symlink_to(link)
    found = launch(link, "version", path=[])
    assert found.returncode == 127
    assert "is this launcher itself" in found.stderr


def test_the_command_line_builds_into_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert krew.main(["--output", str(tmp_path), "--url", URL]) == 0
    assert (tmp_path / krew.file_name()).is_file()
    assert "kubectl krew install --manifest=" in capsys.readouterr().out
    assert krew.main(["--output", str(tmp_path), "--url", "http://insecure"]) == 1
    assert "uri: over https" in capsys.readouterr().err
