"""The files that tell containerd, CNI, kubelet and kube-proxy how this node is.

Settings that a node in production would not have are those of machines where a node is not meant to be: control groups of the
first version, containers that may not raise their priority, no eviction for a full disk that is not the node's own.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml

from dev.controlplane.ports import free_ports
from dev.realnode.machine import BRIDGE, NETWORK, NODE_IP, POD_NET
from dev.realnode.requirements import CNI_PLUGINS, program
from dev.realnode.wires import DOMAIN

SANDBOX_IMAGE = "localhost/sandbox:1"
"""Image of the container that holds a pod's namespaces."""

KUBELET_PORT = 10250
"""Where the API server asks the kubelet for logs, at the node's address."""


def containerd(folder: Path) -> str:
    """The configuration of containerd."""
    unused = (
        "io.containerd.snapshotter.v1.aufs",
        "io.containerd.snapshotter.v1.btrfs",
        "io.containerd.snapshotter.v1.devmapper",
        "io.containerd.snapshotter.v1.zfs",
        "io.containerd.internal.v1.opt",
        "io.containerd.tracing.processor.v1.otlp",
        "io.containerd.internal.v1.tracing",
    )
    cri = 'plugins."io.containerd.grpc.v1.cri"'
    return f"""version = 2
root = "{folder}/containerd/root"
state = "{folder}/containerd/state"
disabled_plugins = {json.dumps(unused)}
[grpc]
  address = "{folder}/containerd.sock"
[{cri}]
  sandbox_image = "{SANDBOX_IMAGE}"
  restrict_oom_score_adj = true
  disable_apparmor = true
  [{cri}.cni]
    bin_dir = "{CNI_PLUGINS}"
    conf_dir = "{folder}/cni"
  [{cri}.containerd]
    snapshotter = "overlayfs"
    default_runtime_name = "runc"
    [{cri}.containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [{cri}.containerd.runtimes.runc.options]
        BinaryName = "{program("runc")}"
        SystemdCgroup = false
"""


def cni(folder: Path) -> str:
    """The pods' network: the bridge, with addresses dealt out from files."""
    bridge = {
        "type": "bridge",
        "bridge": BRIDGE,
        "isGateway": False,
        "ipMasq": False,
        "hairpinMode": True,
        "ipam": {
            "type": "host-local",
            "dataDir": str(folder / "cni-addresses"),
            "ranges": [[{"subnet": POD_NET, "rangeStart": "10.244.0.10", "gateway": NODE_IP}]],
            "routes": [{"dst": "0.0.0.0/0"}],
        },
    }
    return json.dumps({"cniVersion": "1.0.0", "name": NETWORK, "plugins": [bridge]})


def write(folder: Path, ca_file: Path) -> None:
    """Write ``kubelet.yaml`` and ``kube-proxy.yaml``; the plane's authority signs what both show and trust."""
    _write(folder / "kubelet.yaml", _kubelet(folder, ca_file))
    _write(folder / "kube-proxy.yaml", _kube_proxy(folder))


def _kubelet(folder: Path, ca_file: Path) -> dict[str, Any]:
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": NODE_IP,
        "port": KUBELET_PORT,
        "readOnlyPort": 0,
        "healthzPort": 0,
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": False},
            "x509": {"clientCAFile": str(ca_file)},
        },
        "authorization": {"mode": "Webhook"},
        "tlsCertFile": str(ca_file.with_name("real-node.crt")),
        "tlsPrivateKeyFile": str(ca_file.with_name("real-node.key")),
        "containerRuntimeEndpoint": f"unix://{folder}/containerd.sock",
        "failCgroupV1": False,
        "cgroupDriver": "cgroupfs",
        "enforceNodeAllocatable": [],
        "oomScoreAdj": 0,
        "maxOpenFiles": 20000,
        "makeIPTablesUtilChains": False,
        "failSwapOn": False,
        "resolvConf": "",
        "clusterDNS": [NODE_IP],
        "clusterDomain": DOMAIN,
        # Other people's files fill this disk: nothing here would make room.
        "evictionHard": {"memory.available": "100Mi"},
        "imageGCHighThresholdPercent": 100,
        "imageGCLowThresholdPercent": 99,
        "nodeStatusUpdateFrequency": "4s",
        "registerNode": True,
        "podLogsDir": str(folder / "pod-logs"),
        "volumePluginDir": str(folder / "volume-plugins"),
    }


def _kube_proxy(folder: Path) -> dict[str, Any]:
    # Left out, they would listen everywhere.
    health, metrics = free_ports(2)
    return {
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "bindAddress": NODE_IP,
        "healthzBindAddress": f"127.0.0.1:{health}",
        "metricsBindAddress": f"127.0.0.1:{metrics}",
        "clientConnection": {"kubeconfig": str(folder / "kube-proxy.kubeconfig")},
        "mode": "iptables",
        "clusterCIDR": POD_NET,
        "hostnameOverride": "real-node",
        "conntrack": {"maxPerCore": 0, "min": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"},
        # All pods are on one bridge: an answer would else go straight back, from an address that was never asked.
        "iptables": {"localhostNodePorts": False, "masqueradeAll": True},
        "nodePortAddresses": [POD_NET],
    }


def _write(path: Path, config: dict[str, Any]) -> None:
    path.write_text(yaml.safe_dump(config, sort_keys=False), encoding="utf-8")
