"""A real Kubernetes control plane for development and tests, built from Go modules.

See ``plane`` for starting one, ``nodes`` for its GPU nodes, ``stages`` for how their pods live, ``prometheus`` for a
real Prometheus beside it, ``proxy`` for one that does harm to its clients, and ``python -m dev.controlplane --help`` for the shell.
"""

from dev.controlplane.audit import Audit
from dev.controlplane.build import BuildError, ensure_built
from dev.controlplane.nodes import NodeSpec
from dev.controlplane.plane import ControlPlane, KubectlError
from dev.controlplane.processes import ComponentError
from dev.controlplane.prometheus import (
    Prometheus,
    operator_scrape_config,
    pods_scrape_config,
    prometheus_token_file,
)
from dev.controlplane.rest import ApiError

__all__ = [
    "ApiError",
    "Audit",
    "BuildError",
    "ComponentError",
    "ControlPlane",
    "KubectlError",
    "NodeSpec",
    "Prometheus",
    "ensure_built",
    "operator_scrape_config",
    "pods_scrape_config",
    "prometheus_token_file",
]
