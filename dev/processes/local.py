"""A node of processes beside a plane, with the plane's life."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from dev.controlplane import ControlPlane, certs
from dev.controlplane.nodes import GPU_RESOURCE, is_schedulable

ROOT = Path(__file__).resolve().parents[2]

NODE_NAME = "processes"
"""Name of the node, unless another is given."""


@dataclass(frozen=True)
class LocalNode:
    """A node that runs; it ends with its plane's keeper."""

    plane: ControlPlane
    name: str
    logs: Path
    """Folder with a folder for each pod, in which each container has a log."""

    @classmethod
    def start(
        cls,
        plane: ControlPlane,
        *,
        gpus: int = 0,
        name: str = NODE_NAME,
        labels: Mapping[str, str] | None = None,
        logs: Path | None = None,
        volume_lag_s: float = 1.0,
    ) -> LocalNode:
        """Join this machine to a plane as a node that says to have ``gpus`` GPUs, and wait until pods can be scheduled on it.

        Raises RuntimeError on a machine that is no Linux, ComponentError or TimeoutError if it does not get ready.
        """
        if sys.platform != "linux":
            raise RuntimeError(f"pods can run as processes on Linux, and this is {sys.platform}")
        authority = certs.Authority.open(plane.data_dir / "pki")
        user = f"system:node:{name}"
        kubeconfig = certs.write_kubeconfig(
            plane.data_dir / "kubeconfigs" / f"node-{name}.kubeconfig",
            server=plane.server,
            ca_file=plane.ca_file,
            client=authority.client(f"node-{name}", user, ["system:nodes"]),
            user=user,
        )
        folder = plane.data_dir / "nodes" / name
        node = cls(plane, name, (logs or folder / "logs").absolute())
        resources = {"cpu": "64", "memory": "256Gi", "pods": "110", "ephemeral-storage": "1Ti"}
        if gpus:
            resources[GPU_RESOURCE] = str(gpus)
        options = [
            "--kubeconfig", str(kubeconfig), "--name", name, "--folder", str(folder), "--logs", str(node.logs),
            "--volume-lag", str(volume_lag_s),
            *(f"--resource={key}={value}" for key, value in resources.items()),
            *(f"--label={key}={value}" for key, value in (labels or {}).items()),
        ]  # fmt: skip
        plane.supervisor.start(
            node.component, [sys.executable, "-m", "dev.processes", *options], {"PYTHONPATH": str(ROOT)}
        )
        plane.wait_until(f"the node {name}", node._is_schedulable)
        return node

    @property
    def component(self) -> str:
        """Name of its process among the plane's components."""
        return f"node-{self.name}"

    def _is_schedulable(self) -> bool:
        return is_schedulable(self.plane.api.request("GET", f"/api/v1/nodes/{self.name}"))

    def pid(self, namespace: str, pod: str, container: str | None = None) -> int | None:
        """Process id of a container's first process (default: the first container's), None while it does not run."""
        status = self.plane.api.request("GET", f"/api/v1/namespaces/{namespace}/pods/{pod}")["status"]
        for entry in status.get("containerStatuses") or ():
            if container in (None, entry["name"]) and "running" in entry["state"]:
                return int(entry["containerID"].removeprefix("process://"))
        return None

    def log(self, namespace: str, pod: str, container: str) -> Path:
        """Where a container's output is."""
        return self.logs / f"{namespace}_{pod}" / f"{container}.log"

    def stop(self) -> None:
        """End it, and all that its pods run; their objects stay, as those of a machine that was switched off."""
        self.plane.supervisor.stop(self.component)
