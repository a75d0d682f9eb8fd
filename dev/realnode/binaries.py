"""The node's own binaries, built as the plane's are; apart from those, since only who brings up a node needs them."""

from __future__ import annotations

from pathlib import Path

from dev.controlplane.build import Family, ensure_built, kubernetes_variables

NODE = Family(
    name="kubelet",
    version="v1.37.2",
    binaries=(("kubelet", "k8s.io/kubernetes/cmd/kubelet"), ("kube-proxy", "k8s.io/kubernetes/cmd/kube-proxy")),
    variables=kubernetes_variables("v1.37.2"),
)
"""Of the same version as the plane (a module file of its own: another tool there would have every plane built anew)."""


def node_binary(name: str) -> Path:
    """``kubelet`` or ``kube-proxy``, built if it is missing; raises BuildError or ToolchainError."""
    ensure_built((NODE,))
    return NODE.directory / name
