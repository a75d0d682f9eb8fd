"""The command line of each component of a plane.

Kept apart from the plane's life so that what a local plane has in common with a real one can be read in one place:
RBAC and node authorization, default admission, service-account tokens, a service account for each controller. What
differs: one etcd that does not sync to disk, no leader election, no kubelet, no network plugin, addresses on loopback.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from dev.controlplane import certs
from dev.controlplane.audit import Audit
from dev.controlplane.build import binary

ETCD = "etcd"
API_SERVER = "kube-apiserver"
CONTROLLER_MANAGER = "kube-controller-manager"
SCHEDULER = "kube-scheduler"
KWOK = "kwok"

COMPONENTS = (ETCD, API_SERVER, CONTROLLER_MANAGER, SCHEDULER, KWOK)
"""Names of all components, in starting order."""

NODE_LEASE_S = 40
"""How long a node's lease is good for, as with a kubelet; KWOK renews it at a quarter of that."""


@dataclass(frozen=True)
class Ports:
    """TCP ports on loopback."""

    etcd: int
    etcd_peer: int
    api_server: int


class Layout:
    """Where everything of one plane lies, and what its components are told."""

    def __init__(self, data_dir: Path, ports: Ports, audit: Audit | None = None) -> None:
        """Describe a plane whose files go under ``data_dir``, but for what ``audit`` asks to be noted."""
        self.data_dir = data_dir
        self.ports = ports
        self.audit_policy = data_dir / "audit-policy.yaml"
        self.audit_log = None if audit is None else audit.log_file(data_dir.name, ports.api_server).absolute()
        self.pki = data_dir / "pki"
        self.ca_file = self.pki / "ca.crt"
        self.server = f"https://127.0.0.1:{ports.api_server}"
        self.admin_kubeconfig = data_dir / "admin.kubeconfig"
        self.kwok_config = data_dir / "kwok.yaml"

    def kubeconfig(self, component: str) -> Path:
        """Where a component's own kubeconfig lies."""
        return self.data_dir / f"{component}.kubeconfig"

    def write_credentials(self) -> certs.KeyPair:
        """Make all keys, certificates and kubeconfigs; returns the admin's certificate."""
        authority = certs.Authority.create(self.pki)
        certs.service_account_keys(self.pki)
        authority.serving("etcd", ["127.0.0.1", "localhost"])
        authority.client("etcd-client", "kube-apiserver-etcd-client")
        authority.serving(
            "apiserver",
            [
                "127.0.0.1",
                "localhost",
                "kubernetes",
                "kubernetes.default",
                "kubernetes.default.svc",
                "kubernetes.default.svc.cluster.local",
                certs.SERVICE_IP,
            ],
        )
        authority.client("apiserver-kubelet", "kube-apiserver-kubelet-client", ["system:masters"])
        admin = authority.client("admin", "kubernetes-admin", ["system:masters"])
        self._write_kubeconfig(self.admin_kubeconfig, admin, "kubernetes-admin")
        users = {
            CONTROLLER_MANAGER: ("system:kube-controller-manager", ()),
            SCHEDULER: ("system:kube-scheduler", ()),
            # KWOK stands in for many kubelets at once, and no identity of a single node may do that.
            KWOK: ("kwok", ("system:masters",)),
        }
        for component, (user, groups) in users.items():
            self._write_kubeconfig(self.kubeconfig(component), authority.client(component, user, groups), user)
        return admin

    def _write_kubeconfig(self, path: Path, client: certs.KeyPair, user: str) -> None:
        certs.write_kubeconfig(path, server=self.server, ca_file=self.ca_file, client=client, user=user)

    def command(self, component: str, *, generation: int = 0) -> list[str | Path]:
        """Return the command of a component; ``generation`` counts its restarts."""
        match component:
            case "etcd":
                arguments = self._etcd()
            case "kube-apiserver":
                arguments = self._api_server()
            case "kube-controller-manager":
                arguments = self._controller_manager()
            case "kube-scheduler":
                arguments = self._scheduler()
            case "kwok":
                arguments = self._kwok(generation)
            case _:
                raise KeyError(f"no such component: {component!r}; there are {', '.join(COMPONENTS)}")
        return [binary(component), *arguments]

    def _etcd(self) -> list[str]:
        client, peer = f"https://127.0.0.1:{self.ports.etcd}", f"http://127.0.0.1:{self.ports.etcd_peer}"
        return [
            "--name=local",
            f"--data-dir={self.data_dir / 'etcd'}",
            f"--listen-client-urls={client}",
            f"--advertise-client-urls={client}",
            f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster=local={peer}",
            "--unsafe-no-fsync",
            "--log-level=warn",
            # Whoever can write to etcd stands above RBAC: on a shared machine loopback alone is no fence.
            "--client-cert-auth",
            f"--trusted-ca-file={self.ca_file}",
            f"--cert-file={self.pki / 'etcd.crt'}",
            f"--key-file={self.pki / 'etcd.key'}",
        ]

    def _api_server(self) -> list[str]:
        noted: list[str] = []
        if self.audit_log is not None:
            noted = [
                f"--audit-policy-file={self.audit_policy}",
                f"--audit-log-path={self.audit_log}",
                # Unless told, it starts a new file after 100 MB, and whoever reads one file would miss the others.
                "--audit-log-maxsize=100000",
            ]
        return [
            *noted,
            "--bind-address=127.0.0.1",
            "--advertise-address=127.0.0.1",
            f"--secure-port={self.ports.api_server}",
            f"--cert-dir={self.pki}",
            f"--tls-cert-file={self.pki / 'apiserver.crt'}",
            f"--tls-private-key-file={self.pki / 'apiserver.key'}",
            f"--client-ca-file={self.ca_file}",
            # For a real node, should one join (dev.realnode): its logs are asked for by address, its name is in no DNS.
            f"--kubelet-certificate-authority={self.ca_file}",
            f"--kubelet-client-certificate={self.pki / 'apiserver-kubelet.crt'}",
            f"--kubelet-client-key={self.pki / 'apiserver-kubelet.key'}",
            "--kubelet-preferred-address-types=InternalIP",
            f"--etcd-servers=https://127.0.0.1:{self.ports.etcd}",
            f"--etcd-cafile={self.ca_file}",
            f"--etcd-certfile={self.pki / 'etcd-client.crt'}",
            f"--etcd-keyfile={self.pki / 'etcd-client.key'}",
            "--service-account-issuer=https://kubernetes.default.svc.cluster.local",
            f"--service-account-key-file={self.pki / 'sa.pub'}",
            f"--service-account-signing-key-file={self.pki / 'sa.key'}",
            "--authorization-mode=Node,RBAC",
            "--service-cluster-ip-range=10.0.0.0/16",
            "--endpoint-reconciler-type=none",
            "--allow-privileged=true",
            "--profiling=false",
        ]

    def _controller_manager(self) -> list[str]:
        return [
            f"--kubeconfig={self.kubeconfig(CONTROLLER_MANAGER)}",
            "--secure-port=0",
            "--leader-elect=false",
            "--use-service-account-credentials=true",
            f"--root-ca-file={self.ca_file}",
            f"--service-account-private-key-file={self.pki / 'sa.key'}",
            f"--cluster-signing-cert-file={self.ca_file}",
            f"--cluster-signing-key-file={self.pki / 'ca.key'}",
            "--kube-api-qps=500",
            "--kube-api-burst=1000",
        ]

    def _scheduler(self) -> list[str]:
        return [
            f"--kubeconfig={self.kubeconfig(SCHEDULER)}",
            "--secure-port=0",
            "--leader-elect=false",
            "--kube-api-qps=500",
            "--kube-api-burst=1000",
        ]

    def _kwok(self, generation: int) -> list[str]:
        return [
            f"--kubeconfig={self.kubeconfig(KWOK)}",
            f"--config={self.kwok_config}",
            "--manage-all-nodes=false",
            "--manage-nodes-with-annotation-selector=kwok.x-k8s.io/node=fake",
            f"--node-lease-duration-seconds={NODE_LEASE_S}",
            "--node-ip=127.0.0.1",
            # Addresses are dealt out from one range for all nodes, so no two pods share one. A restarted KWOK does
            # not know which are taken: it gets the next range.
            f"--cidr=10.{64 + generation % 128}.0.0/16",
        ]
