"""Where the job's pods run for real: under a kubelet of this machine, or as processes where that can't be."""

from __future__ import annotations

import contextlib
import os
import signal
import urllib.parse
from pathlib import Path
from typing import Any, Protocol

from dev.controlplane import ControlPlane
from dev.controlplane.nodes import GPU_RESOURCE, PRODUCT_LABEL
from dev.controlplane.rest import MERGE_PATCH
from dev.processes.local import LocalNode
from dev.realnode import NODE_NAME, RealNode, missing
from dev.realnode.archive import write_archive
from dev.realnode.rootfs import skeleton

Json = dict[str, Any]

LABELS = {"nvidia.com/gpu.present": "true", PRODUCT_LABEL: "NVIDIA-H100-80GB-HBM3"}
"""What the node says of its GPUs, which are not there: planning needs a type, and speeds are calibrated."""

_IMAGE = "localhost/this-machine:1"


class Node(Protocol):
    """A node that runs pods."""

    @property
    def kind(self) -> str:
        """``real`` or ``processes``."""

    @property
    def image(self) -> str:
        """Image that containers have to name."""

    @property
    def programs(self) -> tuple[Path, ...]:
        """Folders of this machine that a container needs besides those of the job."""

    def start(self, plane: ControlPlane, gpus: int, logs: Path) -> None:
        """Join a plane with so many GPUs."""

    def kill(self, pod: Json) -> None:
        """Kill the first process of a pod's first container by SIGKILL; ProcessLookupError if it does not run."""

    def log(self, namespace: str, pod: str, container: str) -> str:
        """What a container has printed, as far as that is known; it may be gone with its pod."""

    def close(self) -> None:
        """End it with all of its pods."""


def node_of(wished: str) -> Node:
    """The node for ``real``, ``processes`` or ``auto``; RuntimeError with what is missing if a real one is wished and can't be."""
    reason = missing()
    if wished == "real" and reason:
        raise RuntimeError(f"this machine can't be a real node: {reason}")
    return ProcessesNode() if wished == "processes" or reason else ContainersNode()


class ProcessesNode:
    """Pods as processes."""

    kind = "processes"
    image = "none"
    programs: tuple[Path, ...] = ()

    def start(self, plane: ControlPlane, gpus: int, logs: Path) -> None:
        """Join a plane."""
        self._local = LocalNode.start(plane, gpus=gpus, labels=LABELS, logs=logs)

    def kill(self, pod: Json) -> None:
        """Kill a pod's first process."""
        pid = self._local.pid(pod["metadata"]["namespace"], pod["metadata"]["name"])
        if pid is None:
            raise ProcessLookupError(pod["metadata"]["name"])
        os.kill(pid, signal.SIGKILL)

    def log(self, namespace: str, pod: str, container: str) -> str:
        """A container's log, which outlives its pod."""
        with contextlib.suppress(FileNotFoundError):
            return self._local.log(namespace, pod, container).read_text(errors="replace")
        return ""

    def close(self) -> None:
        """Nothing to do: it ends with its plane."""


class ContainersNode:
    """Pods as containers under a kubelet; the image is this machine's own programs, mounted."""

    kind = "real"
    image = _IMAGE
    programs = (Path("/usr"),)

    def start(self, plane: ControlPlane, gpus: int, logs: Path) -> None:
        """Join a plane, and let the node say that it has GPUs."""
        self._plane, self._logs = plane, logs
        logs.mkdir(parents=True, exist_ok=True)
        archive = plane.data_dir / "this-machine.tar"
        root = plane.data_dir / "this-machine"
        skeleton(root)
        write_archive(archive, _IMAGE, root, {"Env": ["PATH=/usr/local/bin:/usr/bin:/bin"]})
        self._node = RealNode.start(plane, images=[archive])
        where = f"/api/v1/nodes/{NODE_NAME}"
        plane.api.request("PATCH", where, {"metadata": {"labels": LABELS}}, content_type=MERGE_PATCH)
        room = {GPU_RESOURCE: str(gpus)}
        status = {"status": {"capacity": room, "allocatable": room}}
        plane.api.request("PATCH", f"{where}/status", status, content_type=MERGE_PATCH)

    def kill(self, pod: Json) -> None:
        """Kill a pod's first process from outside of its container."""
        for entry in pod["status"].get("containerStatuses") or ():
            if "running" in entry["state"]:
                self._node.kill(str(entry["containerID"]).rpartition("/")[2])
                return
        raise ProcessLookupError(pod["metadata"]["name"])

    def log(self, namespace: str, pod: str, container: str) -> str:
        """A container's log, of this start and the one before, while its pod is there."""
        parts = []
        for before in ("true", "false"):
            query = urllib.parse.urlencode({"container": container, "previous": before})
            with contextlib.suppress(Exception):
                parts.append(self._plane.api.text("GET", f"/api/v1/namespaces/{namespace}/pods/{pod}/log?{query}"))
        return "".join(parts)

    def close(self) -> None:
        """Put the machine back as it was."""
        self._node.close()
