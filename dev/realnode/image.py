"""The operator's image, built from the Containerfile by buildah, which needs no daemon, in a storage of its own that is thrown away."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dev.chart import ROOT
from dev.realnode.archive import write_archive
from dev.realnode.rootfs import base

STAND_IN = "localhost/stand-in-base:1"
"""Name of the base image that is made of this machine."""


class BuildahError(subprocess.CalledProcessError):
    """``buildah`` failed; unlike its base class it shows what was said last."""

    def __str__(self) -> str:
        return f"{' '.join(map(str, self.cmd))} (exit code {self.returncode}):\n{(self.stderr or '')[-3000:]}"


@dataclass(frozen=True)
class Builder:
    """buildah with its storage in a folder."""

    folder: Path

    def run(self, *arguments: str) -> str:
        """Run buildah; returns its output, raises BuildahError."""
        places = [f"--root={self.folder / 'storage'}", f"--runroot={self.folder / 'run'}"]
        command = ["buildah", *places, "--storage-driver=vfs", *arguments]
        env = {**os.environ, "TMPDIR": str(self.folder), "BUILDAH_ISOLATION": "chroot"}
        done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=env, check=False)
        if done.returncode != 0:
            raise BuildahError(done.returncode, command, done.stdout, done.stderr or done.stdout)
        return done.stdout

    def stand_in_base(self) -> str:
        """Make the base image of this machine; returns its name."""
        root = base(self.folder / "base")
        archive = self.folder / "base.tar"
        write_archive(archive, STAND_IN, root, {"Env": ["PATH=/usr/local/bin:/usr/bin:/bin"], "Cmd": ["python"]})
        pulled = self.run("pull", "--quiet", f"oci-archive:{archive}").strip()
        self.run("tag", pulled, STAND_IN)
        archive.unlink()
        shutil.rmtree(root)
        return STAND_IN

    def build(self, name: str, base_image: str, *, arguments: Sequence[str] = ()) -> str:
        """Build the Containerfile on a base image; returns what was printed."""
        command = ["build", "--pull-never", "--network", "host", "--format", "oci", "--build-arg", f"BASE={base_image}"]
        # What pip uses here to reach its index: a file at most, never a credential in a layer.
        settings = Path(os.environ.get("PIP_CONFIG_FILE") or "/etc/pip.conf")
        secrets = [f"--secret=id=pip,src={settings}"] if settings.is_file() else []
        return self.run(*command, *secrets, *arguments, "--tag", name, "--file", "Containerfile", ".")

    def save(self, name: str, archive: Path) -> None:
        """Write an image as an archive in the OCI layout."""
        self.run("push", "--quiet", name, f"oci-archive:{archive}:{name}")


def stored(folder: Path, name: str, archive: Path) -> Path:
    """Build the image on this machine's stand-in base and write it to ``archive``; nothing else of it stays. Returns ``archive``."""
    builder = Builder(folder)
    folder.mkdir(parents=True)
    try:
        builder.build(name, builder.stand_in_base())
        builder.save(name, archive)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return archive
