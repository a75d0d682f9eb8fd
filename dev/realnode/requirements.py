"""What a real node needs of this machine, asked before anything is changed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

CNI_PLUGINS = Path("/usr/lib/cni")
"""Where Debian's containernetworking-plugins lie."""

PACKAGES = {
    "containerd": "containerd",
    "ctr": "containerd",
    "runc": "runc",
    "iptables": "iptables",
    "ip": "iproute2",
    "sysctl": "procps",
    "buildah": "buildah",
}
"""Programs, and the Debian package that each comes from."""

_SEARCHED = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def program(name: str) -> str:
    """The path of a program of root's; raises FileNotFoundError naming the package it comes from."""
    found = shutil.which(name, path=_SEARCHED)
    if found is None:
        raise FileNotFoundError(f"no {name}: it is in Debian's package {PACKAGES.get(name, name)}")
    return found


def missing() -> str | None:
    """Why this machine can't be a node, with what would help; None if it can."""
    if sys.platform != "linux":
        return f"a node is a Linux machine, and this is {sys.platform}"
    if os.geteuid() != 0:
        return "only root can set up networks and containers"
    packages = {package for name, package in PACKAGES.items() if shutil.which(name, path=_SEARCHED) is None}
    if not (CNI_PLUGINS / "bridge").is_file():
        packages.add("containernetworking-plugins")
    if packages:
        return f"packages are missing: apt-get install --no-install-recommends {' '.join(sorted(packages))}"
    rules = subprocess.run([program("iptables") + "-save"], capture_output=True, text=True, check=False)
    if rules.returncode != 0:
        return f"iptables can't be used here: {rules.stderr.strip()}"
    return None
