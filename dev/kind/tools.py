"""What it takes to have a kind cluster: a container engine that answers, and kind."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from dev.controlplane import paths
from dev.controlplane.toolchain import ToolchainError, find_go, go_environment

ENGINES = ("docker", "podman", "nerdctl")
"""Container engines that kind knows, in the order of preference."""

KIND = "sigs.k8s.io/kind@v0.31.0"
"""What Go installs where there is no kind."""

_ANSWER_S = 60.0
"""How long an engine may take to say how it is, seconds."""


@dataclass(frozen=True)
class Engine:
    """A container engine that runs containers here."""

    name: str

    @property
    def env(self) -> dict[str, str]:
        """The environment in which kind uses this engine."""
        return {**os.environ, "KIND_EXPERIMENTAL_PROVIDER": self.name}


class UnavailableError(RuntimeError):
    """There can be no kind cluster here; the message says why, and what would help."""


def find_engine() -> Engine:
    """A container engine that works; raises UnavailableError. A client is not enough: what runs containers has to answer it."""
    wanted = os.environ.get("KIND_EXPERIMENTAL_PROVIDER")
    reasons = []
    for name in [wanted] if wanted else ENGINES:
        path = shutil.which(name)
        if path is None:
            reasons.append(f"no {name} on PATH")
            continue
        reason = _trouble(path)
        if reason is None:
            return Engine(name)
        reasons.append(f"{path} is there, but {reason}")
    raise UnavailableError(
        f"kind needs a container engine: {'; '.join(reasons)}. Start one, or install docker or podman."
    )


def _trouble(path: str) -> str | None:
    """Why an engine does not work; None if it does."""
    try:
        done = subprocess.run([path, "info"], capture_output=True, text=True, timeout=_ANSWER_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"does not answer: {error}"
    # Some clients leave with 0 when nobody answers them, and say so in their text alone.
    said = done.stdout + done.stderr
    silent = "Cannot connect" in said or "ERROR:" in said
    if done.returncode == 0 and not silent:
        return None
    last = [line.strip() for line in said.splitlines() if line.strip()]
    complaint = next((line for line in last if "connect" in line.lower()), last[-1] if last else "no word")
    return f"does not work: {complaint}"


def find_kind() -> Path:
    """The kind of PATH, or else one built by Go into the cache; raises UnavailableError."""
    if found := shutil.which("kind"):
        return Path(found)
    folder = paths.cache_dir() / "bin" / KIND.rpartition("/")[2].replace("@", "-")
    if (folder / "kind").is_file():
        return folder / "kind"
    work = paths.cache_dir() / "kind-build"
    try:
        go = find_go(paths.cache_dir() / "toolchain", work / "config", print)
    except ToolchainError as error:
        raise UnavailableError(f"no kind on PATH, and no Go to build it with: {error}") from error
    env = {**go_environment(go, work), "GOBIN": str(folder)}
    env["GOFLAGS"] = env["GOFLAGS"].replace("-mod=readonly", "")
    print(f"building {KIND} into {folder}", flush=True)
    done = subprocess.run([str(go), "install", KIND], capture_output=True, text=True, env=env, check=False)
    shutil.rmtree(work, ignore_errors=True)
    if done.returncode != 0:
        raise UnavailableError(f"no kind on PATH, and Go can't build it: {done.stderr.strip()[-800:]}")
    return folder / "kind"
