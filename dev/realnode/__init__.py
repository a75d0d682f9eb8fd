"""A real node for the local control plane: a kubelet, containerd and kube-proxy on this machine, which run pods for real.

The plane's simulated nodes run no code, so that everything about a pod that only a kubelet does (a read-only root, a user without a
name, probes, a token that is mounted, a Service's address) stays untried there. Here the image is built from the Containerfile, and
the chart's own Deployment runs as it would anywhere. It needs root and a few Debian packages, and changes kernel settings and
network interfaces while it is up; all of that is put back when it is taken down.
"""

from dev.realnode.node import NODE_NAME, RealNode
from dev.realnode.requirements import missing

__all__ = ["NODE_NAME", "RealNode", "missing"]
