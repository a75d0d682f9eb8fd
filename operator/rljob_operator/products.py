"""What a node's labels say of its GPUs: which product they are, and whether what the node counts are whole ones. Pure.

Every vendor and every cloud writes the product elsewhere, and a user should not have to say what the nodes say already. What the
labels of feature discovery say comes first, since it was read from the device; what a cloud says of the machine comes after it, in the
words of the cloud, which are translated here into names that the planner knows.

A device plugin may also count what is no GPU: slices (MIG, AMD partitions), or the same GPU several times (time-slicing, MPS).
A replica of four would then get four tickets for one GPU, and the split be wrong by as much. Such nodes are left out, and it is said.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from rljob_planner.api.nodes import SHARES

NVIDIA_PRODUCT_LABEL = "nvidia.com/gpu.product"
"""Node label with the GPU's product name, set by NVIDIA's feature discovery."""

AMD_PRODUCT_LABELS = ("amd.com/gpu.product-name", "beta.amd.com/gpu.product-name")
"""Node labels with the GPU's product name, set by AMD's node labeller."""

CLOUD_PRODUCT_LABELS = (
    "cloud.google.com/gke-accelerator",
    "karpenter.k8s.aws/instance-gpu-name",
    "eks.amazonaws.com/instance-gpu-name",
    "k8s.amazonaws.com/accelerator",
    "gpu.nvidia.com/model",
    "gpu.nvidia.com/class",
)
"""Node labels in which clouds name the GPU of a machine, the most exact first."""

_MEMORY_LABELS = (
    "nvidia.com/gpu.memory",
    "karpenter.k8s.aws/instance-gpu-memory",
    "eks.amazonaws.com/instance-gpu-memory",
)
_LARGE_MIB = 60_000

_MACHINE_LABEL = "node.kubernetes.io/instance-type"
_MACHINES: tuple[tuple[str, str], ...] = (
    (r"Standard_ND96isr_H100_v5", "H100-SXM"),
    (r"Standard_ND96isr_H200_v5", "H200-SXM"),
    (r"Standard_NC\d+ads_H100_v5|Standard_NC\d+adis_H100_v5", "H100-NVL"),
    (r"Standard_ND96asr_v4", "A100-SXM-40GB"),
    (r"Standard_ND96amsr_A100_v4", "A100-SXM4-80GB"),
    (r"Standard_NC\d+ads_A100_v4", "A100-PCIE"),
    (r"Standard_ND96isr_MI300X_v5", "AMD-Instinct-MI300X"),
    (r"p4d\.24xlarge", "A100-SXM-40GB"),
    (r"p4de\.24xlarge", "A100-SXM4-80GB"),
    (r"p5\.48xlarge", "H100-SXM"),
    (r"p5en?\.48xlarge", "H200-SXM"),
    (r"p6-b200\.48xlarge", "B200-SXM"),
    (r"g5\.\d*xlarge", "A10G"),
    (r"g6\.\d*xlarge", "L4"),
    (r"g6e\.\d*xlarge", "L40S"),
)
"""Machines of clouds that name a GPU in the machine's type alone."""

_CLOUD_WORDS: Mapping[str, str] = {
    "nvidia-tesla-a100": "A100-SXM-40GB",
    "nvidia-a100-80gb": "A100-SXM4-80GB",
    "nvidia-h100-80gb": "H100-SXM",
    "nvidia-h100-mega-80gb": "H100-SXM",
    "nvidia-h200-141gb": "H200-SXM",
    "nvidia-rtx-pro-6000": "RTX-PRO-6000-Blackwell",
    "rtx-pro-server-6000": "RTX-PRO-6000-Blackwell",
}
"""What clouds call GPUs that the planner knows by other names."""


def product_of(labels: Mapping[str, str], resource: str) -> str | None:
    """The product of a node's GPUs that ``resource`` counts, in words that the planner may know; None if no label says it."""
    vendor: tuple[str, ...] = AMD_PRODUCT_LABELS if resource.startswith("amd.com/") else (NVIDIA_PRODUCT_LABEL,)
    for key in (*vendor, *CLOUD_PRODUCT_LABELS):
        said = labels.get(key)
        if said:
            return said if key in vendor else _of_cloud(said, labels)
    machine = labels.get(_MACHINE_LABEL, "")
    return next((name for pattern, name in _MACHINES if re.fullmatch(pattern, machine)), None)


def _of_cloud(said: str, labels: Mapping[str, str]) -> str:
    plain = said.strip().lower()
    if plain in ("a100", "nvidia-a100") and (size := _memory_mib(labels)) is not None:
        return "A100-SXM4-80GB" if size > _LARGE_MIB else "A100-SXM-40GB"
    return _CLOUD_WORDS.get(plain, said)


def _memory_mib(labels: Mapping[str, str]) -> int | None:
    found = next((labels[key] for key in _MEMORY_LABELS if labels.get(key, "").isdigit()), None)
    return None if found is None else int(found)


def not_whole(labels: Mapping[str, str], resource: str) -> str | None:
    """What a node counts as ``resource`` instead of whole GPUs, as the end of "node x …"; None if nothing says that it does."""
    if re.search(SHARES, resource):
        return f"counts shares of GPUs as {resource}"
    product = labels.get(NVIDIA_PRODUCT_LABEL, "")
    if resource.startswith("nvidia.com/"):
        partition = labels.get("cloud.google.com/gke-gpu-partition-size", "")
        if "-mig-" in product.lower() or partition:
            return f"counts MIG slices ({partition or product}) as {resource}"
        strategy = labels.get("nvidia.com/gpu.sharing-strategy", "none")
        strategy = labels.get("cloud.google.com/gke-gpu-sharing-strategy", strategy if strategy != "none" else "")
        clients = labels.get(
            "cloud.google.com/gke-max-shared-clients-per-gpu", labels.get("nvidia.com/gpu.replicas", "")
        )
        many = clients.isdigit() and int(clients) > 1
        if strategy or many or product.lower().endswith("-shared"):
            each = f", {clients} times each" if many else ""
            return f"counts shared GPUs ({strategy or product or 'replicas'}{each}) as {resource}"
    if resource.startswith("amd.com/"):
        partition = labels.get("amd.com/compute-memory-partition", "")
        if partition and not partition.lower().startswith("spx"):
            return f"counts partitions of GPUs ({partition}) as {resource}"
    return None
