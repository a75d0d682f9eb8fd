"""What a node changes on the machine under it, and how all of it is put back.

The state before is written to a file first, so that a later process can put it back where the one that made the changes was killed. Only
what bears our names is taken away: the bridge, rules and routes of it, processes that were started with our socket, mounts below our
folder.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from dev.realnode.requirements import program

BRIDGE = "rljob-node0"
"""Network interface that the pods hang on."""
NODE_IP = "10.244.0.1"
"""Address of the node, of the API server and of the DNS as pods see them, on the bridge."""
POD_NET = "10.244.0.0/24"
"""Addresses of pods."""
NETWORK = "rljob-node"
"""Name of the pods' network, in the files that CNI keeps."""

SYSCTLS = (
    "kernel.keys.root_maxbytes",
    "kernel.keys.root_maxkeys",
    "kernel.panic",
    "kernel.panic_on_oops",
    "net.ipv4.conf.all.route_localnet",
    "net.ipv4.ip_forward",
    "vm.overcommit_memory",
    "vm.panic_on_oom",
)
"""Kernel settings that a kubelet, kube-proxy or a bridge with an address changes."""

SHARED_FOLDERS = (
    "/var/lib/cni/results",
    "/var/lib/cni",
    "/var/log/containers",
    "/var/log/pods",
    "/var/lib/kubelet/device-plugins",
    "/var/lib/kubelet",
    "/run/netns",
)
"""Folders that they write to wherever they are told to keep their own; deepest first."""

SHIMS = Path("/run/containerd")
"""Where the shims of every containerd keep their sockets."""

_FORWARD = (["-i", BRIDGE, "!", "-o", BRIDGE, "-j", "REJECT"], ["!", "-i", BRIDGE, "-o", BRIDGE, "-j", "REJECT"])
"""Nothing of the pods' leaves by another interface, and nothing from there gets in: what runs here needs no other network."""

_GONE_S = 20.0
"""How long a killed process may take to be gone, seconds."""


def settings() -> dict[str, str]:
    """The kernel settings as they are, as far as this kernel has them."""
    found = {}
    for name in SYSCTLS:
        with contextlib.suppress(OSError):
            found[name] = Path("/proc/sys", *name.split(".")).read_text(encoding="utf-8").strip()
    return found


def prepare(folder: Path) -> None:
    """Note how the machine is, then make the bridge; RuntimeError if somebody else's rules or interfaces stand in the way."""
    rules = _output("iptables-save")
    if "KUBE-" in rules:
        raise RuntimeError(
            "rules of a kube-proxy are in iptables already: this machine is a node, or kube-proxy --cleanup is due"
        )
    if Path("/sys/class/net", BRIDGE).exists():
        raise RuntimeError(
            f"the interface {BRIDGE} is there already, and nothing of ours is: remove it (ip link del {BRIDGE})"
        )
    before = {
        "settings": settings(),
        "namespaces": sorted(_network_namespaces()),
        "folders": [name for name in (*SHARED_FOLDERS, str(SHIMS)) if Path(name).is_dir()],
    }
    (folder / "before.json").write_text(json.dumps(before, indent=1), encoding="utf-8")
    _run("ip", "link", "add", BRIDGE, "type", "bridge")
    _run("ip", "addr", "add", f"{NODE_IP}/24", "dev", BRIDGE)
    _run("ip", "link", "set", BRIDGE, "up")
    for rule in _FORWARD:
        _run("iptables", "-I", "FORWARD", *rule)
    # From a pod by a Service's address to another pod is forwarding, though all of it stays on one bridge.
    Path("/proc/sys/net/ipv4/ip_forward").write_text("1", encoding="utf-8")


def put_back(folder: Path, kube_proxy: Path) -> None:
    """Undo everything that ``prepare`` and the node did; harmless if there is nothing to undo. The node's programs have ended before."""
    noted = folder / "before.json"
    if not noted.is_file():
        return
    before = json.loads(noted.read_text(encoding="utf-8"))
    _end_containers(folder)
    for mount in sorted(_mounts_below(folder), reverse=True):
        _run("umount", "-l", mount, check=False)
    for name in sorted(_network_namespaces() - set(before["namespaces"])):
        _run("ip", "netns", "del", name, check=False)
    if kube_proxy.is_file():
        subprocess.run([str(kube_proxy), "--cleanup"], capture_output=True, check=False)
    for table in ("iptables", "ip6tables"):
        _remove_firewall_chain(table)
    for rule in _FORWARD:
        while _run("iptables", "-D", "FORWARD", *rule, check=False):
            pass
    _run("ip", "link", "del", BRIDGE, check=False)
    for name, value in before["settings"].items():
        path = Path("/proc/sys", *name.split("."))
        if path.read_text(encoding="utf-8").strip() != value:
            path.write_text(value, encoding="utf-8")
    _remove_files(folder, before["folders"])
    _remove_cgroups()
    noted.unlink()


def _remove_files(folder: Path, kept: list[str]) -> None:
    for link in Path("/var/log/containers").glob("*"):
        if link.is_symlink() and str(link.readlink()).startswith(f"{folder}/"):
            link.unlink()
    for result in Path("/var/lib/cni/results").glob(f"{NETWORK}-*-eth0"):
        container = result.name.removeprefix(f"{NETWORK}-").removesuffix("-eth0")
        result.unlink()
        result.with_name(f"cni-loopback-{container}-lo").unlink(missing_ok=True)
    if str(SHIMS) not in kept:
        shutil.rmtree(SHIMS, ignore_errors=True)
    if "/var/lib/kubelet" not in kept:
        Path("/var/lib/kubelet/device-plugins/kubelet.sock").unlink(missing_ok=True)
    for name in SHARED_FOLDERS:
        if name not in kept:
            # Only if nobody else has put something there.
            with contextlib.suppress(OSError):
                Path(name).rmdir()


def _remove_firewall_chain(table: str) -> None:
    """kube-proxy's own clean-up leaves this chain, which it shares with the kubelet."""
    for chain in ("INPUT", "OUTPUT"):
        _run(table, "-D", chain, "-j", "KUBE-FIREWALL", check=False)
    _run(table, "-F", "KUBE-FIREWALL", check=False)
    _run(table, "-X", "KUBE-FIREWALL", check=False)
    for chain in ("KUBE-KUBELET-CANARY", "KUBE-PROXY-CANARY"):
        for part in ("mangle", "nat", "filter"):
            _run(table, "-t", part, "-X", chain, check=False)


def _remove_cgroups() -> None:
    # With the first version of control groups each controller has a tree of its own.
    for top in [*Path("/sys/fs/cgroup").glob("kubepods*"), *Path("/sys/fs/cgroup").glob("*/kubepods*")]:
        for path, _, _ in os.walk(top, topdown=False):
            with contextlib.suppress(OSError):
                Path(path).rmdir()


def _end_containers(folder: Path) -> None:
    """Kill what runs in containers of ours, and the shims that stand between them and containerd, which outlive it on purpose."""
    shims = {pid for pid in _processes() if _is_shim(pid, folder)}
    inside = {pid for pid in _processes() if _parent(pid) in shims}
    for pid in [*inside, *shims]:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    deadline = time.monotonic() + _GONE_S
    while time.monotonic() < deadline and any(_alive(pid) for pid in inside | shims):
        time.sleep(0.05)


def _is_shim(pid: int, folder: Path) -> bool:
    arguments = _read(pid, "cmdline").split("\0")
    return "containerd-shim" in arguments[0] and str(folder / "containerd.sock") in arguments


def _alive(pid: int) -> bool:
    state = _read(pid, "stat").rpartition(")")[2].split()
    return bool(state) and state[0] != "Z"


def _parent(pid: int) -> int:
    fields = _read(pid, "stat").rpartition(")")[2].split()
    return int(fields[1]) if len(fields) > 1 else 0


def _processes() -> Iterator[int]:
    return (int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit())


def _read(pid: int, name: str) -> str:
    try:
        return Path("/proc", str(pid), name).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _mounts_below(folder: Path) -> list[str]:
    mounts = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines()]
    return [mount for mount in mounts if mount.startswith(f"{folder}/")]


def _network_namespaces() -> set[str]:
    return {path.name for path in Path("/run/netns").glob("cni-*")}


def _output(name: str) -> str:
    return subprocess.run([program(name)], capture_output=True, text=True, check=True).stdout


def _run(name: str, *arguments: str, check: bool = True) -> bool:
    """Run a program of the machine's; returns whether it did it, raises RuntimeError with its words if it has to."""
    try:
        done = subprocess.run([program(name), *arguments], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        if check:
            raise
        return False
    if check and done.returncode != 0:
        raise RuntimeError(f"{name} {' '.join(arguments)}: {done.stderr.strip()}")
    return done.returncode == 0
