"""Where the job's pods run for real: under a kubelet of this machine, or as processes where that can't be."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from pathlib import Path
from typing import Any, Protocol

from kubernetes import client

from dev.controlplane import ControlPlane
from dev.controlplane.nodes import GPU_RESOURCE, PRODUCT_LABEL
from dev.controlplane.rest import MERGE_PATCH
from dev.emulator.follow import api_client
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

    @property
    def layout_lag_s(self) -> float | None:
        """After how many seconds at most a change of the layout is in the files of a pod; None: whenever the kubelet syncs it."""

    def start(self, plane: ControlPlane, gpus: int, logs: Path) -> None:
        """Join a plane with so many GPUs."""

    def kill(self, pod: Json) -> None:
        """Kill the first process of a pod's first container by SIGKILL; ProcessLookupError if it does not run."""

    def keep_log(self, namespace: str, pod: str, container: str) -> None:
        """Keep what a container has printed and will print, beyond the end of its pod."""

    def log(self, namespace: str, pod: str, container: str) -> str:
        """What a container has printed; of a pod that is gone only if it was to be kept."""

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
    layout_lag_s = 3.0

    def start(self, plane: ControlPlane, gpus: int, logs: Path) -> None:
        """Join a plane."""
        self._local = LocalNode.start(plane, gpus=gpus, labels=LABELS, logs=logs, volume_lag_s=self.layout_lag_s)

    def kill(self, pod: Json) -> None:
        """Kill a pod's first process."""
        pid = self._local.pid(pod["metadata"]["namespace"], pod["metadata"]["name"])
        if pid is None:
            raise ProcessLookupError(pod["metadata"]["name"])
        os.kill(pid, signal.SIGKILL)

    def keep_log(self, namespace: str, pod: str, container: str) -> None:
        """Nothing to do: logs outlive their pods."""

    def log(self, namespace: str, pod: str, container: str) -> str:
        """A container's log, over all of its starts."""
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
    layout_lag_s: float | None = None

    def __init__(self) -> None:
        """Not yet a node."""
        self._copies: dict[tuple[str, str, str], threading.Thread] = {}

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

    def keep_log(self, namespace: str, pod: str, container: str) -> None:
        """Follow the log of the container that runs, from its beginning to its end, into a file."""
        core = client.CoreV1Api(api_client(str(self._plane.kubeconfig)))

        def copy() -> None:
            stream = core.read_namespaced_pod_log(
                pod, namespace, container=container, follow=True, _preload_content=False
            )
            with self._file(namespace, pod, container).open("ab") as file:
                for chunk in stream.stream():
                    file.write(chunk)

        thread = threading.Thread(target=copy, name=f"log of {pod}", daemon=True)
        self._copies[namespace, pod, container] = thread
        thread.start()

    def log(self, namespace: str, pod: str, container: str) -> str:
        """A container's log as far as it was kept, once its end is written."""
        if (thread := self._copies.get((namespace, pod, container))) is None:
            raise LookupError(f"the log of {pod} was not kept")
        thread.join(timeout=60)
        return self._file(namespace, pod, container).read_text(errors="replace")

    def _file(self, namespace: str, pod: str, container: str) -> Path:
        return self._logs / f"{namespace}_{pod}_{container}.log"

    def close(self) -> None:
        """Put the machine back as it was."""
        self._node.close()
