"""GPU nodes that KWOK runs: real Node objects, real scheduling, no machine behind them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dev.controlplane.stages import FAKE_NODE

GPU_RESOURCE = "nvidia.com/gpu"
PRODUCT_LABEL = "nvidia.com/gpu.product"
ZONE_LABEL = "topology.kubernetes.io/zone"


@dataclass(frozen=True)
class NodeSpec:
    """A number of equal nodes."""

    count: int
    """How many nodes."""
    gpus_per_node: int = 8
    """GPUs of each node; 0 makes nodes without GPUs."""
    product: str = "NVIDIA-H100-80GB-HBM3"
    """Value of the label ``nvidia.com/gpu.product``, as NVIDIA's feature discovery writes it."""
    zones: Sequence[str] = ("zone-a",)
    """Values of the zone label, dealt out in turn."""
    name_prefix: str = "gpu"
    """Nodes are called ``<prefix>-0`` and so on."""
    cpu: str = "192"
    """CPUs of each node, a Kubernetes quantity."""
    memory: str = "2Ti"
    """Memory of each node, a Kubernetes quantity."""
    labels: Mapping[str, str] = field(default_factory=dict)
    """Further labels."""
    taints: Sequence[str] = ()
    """Taints as kubectl writes them: ``key=value:Effect`` or ``key:Effect``."""

    @property
    def names(self) -> list[str]:
        """Names of the nodes."""
        return [f"{self.name_prefix}-{index}" for index in range(self.count)]

    def objects(self) -> list[dict[str, Any]]:
        """Return the Node objects to create."""
        return [self._object(index, name) for index, name in enumerate(self.names)]

    def _object(self, index: int, name: str) -> dict[str, Any]:
        resources = {"cpu": self.cpu, "memory": self.memory, "pods": "250", "ephemeral-storage": "4Ti"}
        labels = {
            "kubernetes.io/hostname": name,
            "kubernetes.io/os": "linux",
            "kubernetes.io/arch": "amd64",
            "type": "kwok",
        }
        if self.zones:
            labels[ZONE_LABEL] = self.zones[index % len(self.zones)]
        if self.gpus_per_node:
            resources[GPU_RESOURCE] = str(self.gpus_per_node)
            labels |= {
                "nvidia.com/gpu.present": "true",
                "nvidia.com/gpu.count": str(self.gpus_per_node),
                PRODUCT_LABEL: self.product,
            }
        return {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": name, "labels": labels | dict(self.labels), "annotations": {FAKE_NODE: "fake"}},
            "spec": {"taints": [parse_taint(taint) for taint in self.taints]},
            "status": {"capacity": resources, "allocatable": resources},
        }


def parse_taint(text: str) -> dict[str, str]:
    """Read a taint in kubectl's form; raises ValueError that shows the form."""
    head, separator, effect = text.rpartition(":")
    if not separator or not head or effect not in ("NoSchedule", "PreferNoSchedule", "NoExecute"):
        raise ValueError(
            f"{text!r} is no taint: write key=value:Effect or key:Effect, "
            "with the effect NoSchedule, PreferNoSchedule or NoExecute"
        )
    key, _, value = head.partition("=")
    return {"key": key, "effect": effect, **({"value": value} if value else {})}


def is_schedulable(node: Mapping[str, Any]) -> bool:
    """Whether a Node object is Ready, and the taint that marks new nodes has been taken away."""
    conditions = node.get("status", {}).get("conditions", [])
    ready = any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)
    taints = node.get("spec", {}).get("taints") or []
    return ready and not any(taint["key"].startswith("node.kubernetes.io/") for taint in taints)


def parse_shape(text: str) -> tuple[int, int]:
    """Read ``NODESxGPUS`` (``8x8``); raises ValueError that shows the form."""
    nodes, _, gpus = text.lower().partition("x")
    if not (nodes.isdigit() and gpus.isdigit()):
        raise ValueError(f"{text!r}: write nodes times GPUs of each, for example 8x8")
    return int(nodes), int(gpus)
