"""A base image made of this machine: its Python and the few programs that a Containerfile's steps need, with their libraries.

For trying the image where no registry can be reached. What is built on it is built by the real Containerfile, step by step; only what
comes below, which a real build takes from the official Python image, is this machine's.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterable
from pathlib import Path

PROGRAMS = ("sh", "env", "ls", "cat", "rm", "mkdir", "sleep", "id")
"""Programs beside Python."""

LIBRARIES = ("libstdc++.so.6", "libgcc_s.so.1", "libz.so.1", "libnss_dns.so.2", "libnss_files.so.2", "libresolv.so.2", "librt.so.1",
             "libpthread.so.0", "libdl.so.2", "libutil.so.1", "libm.so.6")  # fmt: skip
"""What wheels expect of every Linux (the manylinux policy), as far as Python itself does not need it."""

FOLDERS = (
    "usr/bin",
    "usr/sbin",
    "usr/lib",
    "usr/lib64",
    "etc",
    "tmp",
    "var/tmp",
    "root",
    "proc",
    "sys",
    "dev",
    "run",
    "opt",
)
"""Folders of a root file system, as far as something expects them."""

CERTIFICATES = "/etc/ssl/certs/ca-certificates.crt"

_LEFT_OUT = shutil.ignore_patterns(
    "__pycache__", "test", "tests", "idlelib", "tkinter", "turtledemo", "site-packages", "config-*", "*.a", "lib2to3"
)


def base(root: Path) -> Path:
    """Write the base image's file system under ``root``, with Python in /usr/local; returns ``root``."""
    skeleton(root)
    prefix = Path(sys.base_prefix)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    library = root / "usr/local/lib" / version
    shutil.copytree(prefix / "lib" / version, library, ignore=_LEFT_OUT, symlinks=True)
    for package in (prefix / "lib" / version / "site-packages").glob("pip*"):
        shutil.copytree(package, library / "site-packages" / package.name)
    binary = root / "usr/local/bin" / version
    binary.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy2((prefix / "bin" / version).resolve(), binary)
    for name in ("python3", "python"):
        (binary.parent / name).symlink_to(version)
    for program in PROGRAMS:
        _copy_program(root, program)
    extensions = sorted(library.glob("lib-dynload/*.so"))
    _copy_libraries(root, needed([binary, *extensions]))
    _copy_libraries(root, filter(None, map(_find_library, LIBRARIES)))
    if Path(CERTIFICATES).is_file():
        (root / CERTIFICATES[1:]).parent.mkdir(parents=True)
        shutil.copy2(CERTIFICATES, root / CERTIFICATES[1:])
    return root


def sandbox(root: Path) -> Path:
    """Write the file system of the container that holds a pod's namespaces, which does nothing but be there; returns ``root``."""
    skeleton(root)
    _copy_program(root, "sleep")
    return root


def skeleton(root: Path) -> None:
    """The folders of a Debian, with nobody in it but root."""
    for folder in FOLDERS:
        (root / folder).mkdir(parents=True, exist_ok=True)
    for folder in ("bin", "sbin", "lib", "lib64"):
        (root / folder).symlink_to(f"usr/{folder}")
    for folder in ("tmp", "var/tmp"):
        (root / folder).chmod(0o1777)
    (root / "etc/passwd").write_text("root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n")
    (root / "etc/group").write_text("root:x:0:\nnogroup:x:65534:\n")
    (root / "etc/nsswitch.conf").write_text("hosts: files dns\n")


def needed(files: Iterable[Path]) -> list[Path]:
    """The shared libraries that programs and libraries need, where this machine has them."""
    listing = subprocess.run(["ldd", *map(str, files)], capture_output=True, text=True, check=False).stdout
    return sorted({Path(found) for found in re.findall(r"(?:=> |^\s+)(/\S+) \(0x", listing, re.MULTILINE)})


def _copy_program(root: Path, name: str) -> None:
    found = shutil.which(name, path="/usr/bin:/bin")
    if found is None:
        raise FileNotFoundError(f"no {name} in /usr/bin: a base image can be made of a Debian or one like it only")
    real = Path(found).resolve()
    shutil.copy2(real, root / "usr/bin" / name)
    _copy_libraries(root, needed([real]))


def _copy_libraries(root: Path, files: Iterable[Path]) -> None:
    """Each where the loader finds it without being told: beside the machine's own, even those that lie with its Python."""
    prefix = Path(sys.base_prefix).resolve()
    for file in files:
        inside = file.resolve().is_relative_to(prefix) and prefix != Path("/usr")
        folder = (
            Path("usr/lib") / (sysconfig.get_config_var("MULTIARCH") or "") if inside else file.parent.relative_to("/")
        )
        target = root / folder / file.name
        if not target.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(os.path.realpath(file), target)


def _find_library(name: str) -> Path | None:
    listing = subprocess.run(["/sbin/ldconfig", "-p"], capture_output=True, text=True, check=False).stdout
    found = re.search(rf"^\s+{re.escape(name)} \(.*\) => (\S+)$", listing, re.MULTILINE)
    return Path(found[1]) if found else None
