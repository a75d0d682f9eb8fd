"""Build the real binaries of a control plane from their Go modules, once.

Nothing is downloaded as a release or an image: a Go module proxy and a checksum database are what most places can
reach, and ``go.sum`` pins every byte. Each family of binaries has a module file of its own, because Go picks one
version of a dependency for a whole module and these projects disagree.

The outcome is a directory for each family, named by a hash over ``go.mod``, ``go.sum`` and the flags: whatever changes
what is built changes the name, and nothing else does. A directory appears under its final name only when it is
complete.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import platform
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from dev.controlplane import paths
from dev.controlplane.progress import Progress, progress_for
from dev.controlplane.toolchain import find_go, go_environment


class BuildError(RuntimeError):
    """A binary could not be built; the message holds Go's own words."""


@dataclass(frozen=True)
class Family:
    """Binaries that share one ``go.mod``."""

    name: str
    """Directory under ``go/`` that holds ``go.mod`` and ``go.sum``."""
    version: str
    """What the binaries say their version is."""
    binaries: tuple[tuple[str, str], ...]
    """(name of the binary, Go package), slowest first so that later ones find their packages built."""
    tags: tuple[str, ...] = ()
    """Go build tags."""
    variables: tuple[tuple[str, str], ...] = ()
    """Go variables to set while linking; without them a server reports a version no client understands."""

    @property
    def module_dir(self) -> Path:
        """The directory of the module file."""
        return paths.GO_MODULES_DIR / self.name

    @property
    def flags(self) -> list[str]:
        """Flags of ``go build``."""
        ldflags = " ".join(["-s", "-w", *(f"-X {name}={value}" for name, value in self.variables)])
        return ["-trimpath", *([f"-tags={','.join(self.tags)}"] if self.tags else []), f"-ldflags={ldflags}"]

    @property
    def key(self) -> str:
        """Twelve hex digits over all that decides what is built."""
        digest = hashlib.sha256()
        for part in (
            (self.module_dir / "go.mod").read_bytes(),
            (self.module_dir / "go.sum").read_bytes(),
            repr((self.flags, self.binaries, sys.platform, platform.machine())).encode(),
        ):
            digest.update(hashlib.sha256(part).digest())
        return digest.hexdigest()[:12]

    @property
    def directory(self) -> Path:
        """Where the built binaries lie, or will."""
        return paths.cache_dir() / "bin" / f"{self.name}-{self.version}-{self.key}"

    @property
    def built(self) -> bool:
        """Whether every binary is there."""
        return all((self.directory / name).is_file() for name, _ in self.binaries)


def kubernetes_variables(version: str) -> tuple[tuple[str, str], ...]:
    """The Go variables by which Kubernetes' binaries know their version."""
    major, minor = version.removeprefix("v").split(".")[:2]
    values = {
        "gitVersion": version,
        "gitMajor": major,
        "gitMinor": minor,
        "gitTreeState": "clean",
        # A fixed date: the same sources give the same binary.
        "buildDate": "1970-01-01T00:00:00Z",
    }
    packages = ("k8s.io/component-base/version", "k8s.io/client-go/pkg/version")
    return tuple((f"{package}.{name}", value) for package in packages for name, value in values.items())


FAMILIES: tuple[Family, ...] = (
    Family(
        name="kubernetes",
        version="v1.37.2",
        binaries=tuple(
            (name, f"k8s.io/kubernetes/cmd/{name}")
            for name in ("kube-apiserver", "kube-controller-manager", "kubectl", "kube-scheduler")
        ),
        variables=kubernetes_variables("v1.37.2"),
    ),
    Family(name="etcd", version="v3.7.3", binaries=(("etcd", "go.etcd.io/etcd/server/v3"),)),
    Family(name="kwok", version="v0.8.0", binaries=(("kwok", "sigs.k8s.io/kwok/cmd/kwok"),)),
    Family(
        name="prometheus",
        version="v3.16.0",
        binaries=tuple((name, f"github.com/prometheus/prometheus/cmd/{name}") for name in ("prometheus", "promtool")),
        # Service discovery for two dozen clouds is most of Prometheus; pods are all that we discover.
        tags=("netgo", "remove_all_sd", "enable_kubernetes_sd"),
        variables=(("github.com/prometheus/common/version.Version", "3.16.0"),),
    ),
)
"""All that is built, in building order."""


def binary(name: str) -> Path:
    """Return the path of a binary, whether built or not; KeyError for a name that no family has."""
    for family in FAMILIES:
        if any(name == own for own, _ in family.binaries):
            return family.directory / name
    raise KeyError(f"no such binary: {name!r}; there are {', '.join(n for f in FAMILIES for n, _ in f.binaries)}")


def ensure_built(families: Sequence[Family] = FAMILIES, progress: Progress | None = None) -> None:
    """Build whatever is missing; returns at once when nothing is.

    Only one process builds at a time: others wait and then find the work done. Raises BuildError or ToolchainError.
    """
    if all(family.built for family in families):
        return
    with _build_lock() as waited, progress_for(progress) as shown:
        missing = [family for family in families if not family.built]
        if not missing:
            return
        if waited:
            shown.say("another build of the control plane has ended; going on with what is missing")
        _build(missing, shown)


def _build(families: Sequence[Family], progress: Progress) -> None:
    work_dir = paths.cache_dir() / "go"
    go = find_go(paths.cache_dir() / "toolchain", work_dir / "config", progress.say)
    env = go_environment(go, work_dir)
    total = sum(len(family.binaries) for family in families)
    progress.say(
        f"building {total} binaries of a Kubernetes control plane from Go modules into {paths.cache_dir()} "
        "(once; 10 to 15 minutes on two cores, 8 GB of disk while it runs, 600 MB after)"
    )
    started, number = time.monotonic(), 0
    for family in families:
        partial = family.directory.with_name(f".{family.directory.name}.partial")
        partial.mkdir(parents=True, exist_ok=True)
        for name, package in family.binaries:
            number += 1
            # An interrupted build goes on where it stopped: what stands here under its own name is complete.
            if not (partial / name).is_file():
                scratch = partial / f".{name}.new"
                command = [str(go), "build", "-v", *family.flags, "-o", str(scratch), package]
                _run_go(command, family, env, progress, f"{name} {family.version}", number, total)
                scratch.rename(partial / name)
        partial.rename(family.directory)
    progress.say(f"control plane built in {_minutes(time.monotonic() - started)}")
    if all(family.built for family in FAMILIES):
        shutil.rmtree(work_dir, ignore_errors=True)


def _run_go(
    command: Sequence[str], family: Family, env: dict[str, str], progress: Progress, label: str, number: int, total: int
) -> None:
    """Run one ``go build``, and once more if it failed while downloading."""
    for last in (False, True):
        with progress.step(label, number, total) as step:
            output = _stream(command, family.module_dir, env, step.compiled)
        if output is None:
            return
        # A compiler error stays the same however often one asks; a proxy's does not.
        if last or not any(word in output for word in ("dial tcp", "timeout", "EOF", "502", "503", "504", "reset")):
            raise BuildError(
                f"building {label} failed (in {family.module_dir}):\n$ {' '.join(command)}\n{output}\n"
                "If this is about downloading: Go fetches modules from GOPROXY (see `go env GOPROXY`)."
            )
        progress.say(f"{label}: the download failed, trying once more")


def _stream(command: Sequence[str], cwd: Path, env: dict[str, str], compiled: Callable[[], None]) -> str | None:
    """Run Go, reporting each package it names; None on success, else the end of its output."""
    lines: list[str] = []
    with subprocess.Popen(
        command, cwd=cwd, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        assert process.stdout is not None
        try:
            for line in process.stdout:
                lines.append(line.rstrip())
                if not line.startswith("go: "):
                    compiled()
        except BaseException:
            # Asked to stop, Go ends its compilers and removes what is half done; killed, it leaves both behind.
            process.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(10.0)
            process.kill()
            raise
    return None if process.returncode == 0 else "\n".join(lines[-40:])


@contextlib.contextmanager
def _build_lock() -> Iterator[bool]:
    """Hold the one build lock; yields whether it had to be waited for."""
    path = paths.cache_dir() / "build.lock"
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as handle:
        waited = False
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print("another process builds the control plane; waiting for it", file=sys.stderr, flush=True)
            waited = True
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield waited


def _minutes(seconds: float) -> str:
    return f"{int(seconds) // 60} min {int(seconds) % 60:02d} s"
