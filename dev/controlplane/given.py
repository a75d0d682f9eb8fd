"""A cluster that somebody else runs, used as a plane: kind, or any other whose kubeconfig holds the admin's client certificate.

So that the same specs run on the plane of this machine and on a cluster as people have it. What a plane adds to a cluster, nodes with
GPUs that do not exist, is added here too, if KWOK runs with the plane's stages (``start_kwok``).
"""

from __future__ import annotations

import base64
import urllib.parse
from pathlib import Path
from typing import Any, Self

import yaml

from dev.controlplane import certs
from dev.controlplane.build import binary
from dev.controlplane.components import KWOK, NODE_LEASE_S, Layout, Ports
from dev.controlplane.plane import ControlPlane
from dev.controlplane.processes import Supervisor
from dev.controlplane.stages import kwok_config


class GivenPlane(ControlPlane):
    """A plane whose components belong to others: they can be used, and neither stopped nor restarted."""

    @classmethod
    def open(cls, kubeconfig: Path, data_dir: Path) -> Self:
        """Use the cluster of the current context; files of this use go to ``data_dir``.

        Raises ValueError, saying what is wanted, if the user is known by something else than a client certificate.
        """
        pki = data_dir / "pki"
        pki.mkdir(parents=True, mode=0o700)
        server, contents = _parts(kubeconfig)
        for name, content in contents.items():
            (pki / name).touch(mode=0o600)
            (pki / name).write_bytes(content)
        layout = Layout(data_dir, Ports(0, 0, urllib.parse.urlsplit(server).port or 443))
        layout.server = server
        client = certs.KeyPair(pki / "admin.crt", pki / "admin.key")
        certs.write_kubeconfig(
            layout.admin_kubeconfig, server=server, ca_file=layout.ca_file, client=client, user="admin"
        )
        return cls(layout, None)


def start_kwok(kubeconfig: Path, data_dir: Path) -> Supervisor:
    """Start KWOK for a cluster that has none, with the plane's stages; it ends with this process or the Supervisor's ``close``."""
    supervisor = Supervisor(data_dir, remove=True)
    stages = data_dir / "kwok.yaml"
    stages.write_text(kwok_config(), encoding="utf-8")
    command: list[str | Path] = [
        binary(KWOK),
        f"--kubeconfig={kubeconfig}",
        f"--config={stages}",
        "--manage-all-nodes=false",
        "--manage-nodes-with-annotation-selector=kwok.x-k8s.io/node=fake",
        f"--node-lease-duration-seconds={NODE_LEASE_S}",
        "--node-ip=127.0.0.1",
        # Outside of the usual ranges of pods and Services.
        "--cidr=10.64.0.0/16",
    ]
    supervisor.start(KWOK, command, env={"HOME": str(data_dir), "KUBECONFIG": "", "KWOK_WORKDIR": str(data_dir)})
    return supervisor


def _parts(kubeconfig: Path) -> tuple[str, dict[str, bytes]]:
    """The server of the current context, and the contents of the plane's three files."""
    config = yaml.safe_load(kubeconfig.read_text(encoding="utf-8"))
    contexts, clusters, users = (
        {entry["name"]: entry[kind] for entry in config[f"{kind}s"]} for kind in ("context", "cluster", "user")
    )
    context = contexts[config["current-context"]]
    cluster, user = clusters[context["cluster"]], users[context["user"]]
    wanted = {
        "ca.crt": (cluster, "certificate-authority"),
        "admin.crt": (user, "client-certificate"),
        "admin.key": (user, "client-key"),
    }
    return cluster["server"], {name: _content(kubeconfig, *where) for name, where in wanted.items()}


def _content(kubeconfig: Path, entry: dict[str, Any], key: str) -> bytes:
    if f"{key}-data" in entry:
        return base64.b64decode(entry[f"{key}-data"])
    if key in entry:
        return Path(kubeconfig.parent, entry[key]).read_bytes()
    raise ValueError(
        f"{kubeconfig} has no {key} for its current context: tests need an admin with a client certificate, as the kubeconfigs of "
        "kind, k3s and kubeadm have it, since no token of theirs would outlive the run for sure"
    )
