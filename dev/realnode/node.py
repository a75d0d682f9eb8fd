"""The node: containerd, kubelet and kube-proxy, joined to a plane.

It differs from a node in production where this machine leaves no choice: there is one, its network is one bridge without a way out, and
nothing enforces NetworkPolicies, since that is a network plugin's work. What runs in a pod, as whom, with which files and
probes, is as anywhere.
"""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import urllib.parse
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from dev.controlplane import ApiError, ControlPlane, certs, paths
from dev.controlplane.keeper import is_locked
from dev.controlplane.processes import Supervisor
from dev.realnode import configuration, machine
from dev.realnode.archive import write_archive
from dev.realnode.binaries import NODE, node_binary
from dev.realnode.requirements import missing, program
from dev.realnode.rootfs import sandbox
from dev.realnode.wires import Wires

NODE_NAME = "real-node"
"""Name of the node."""

READY_TIMEOUT_S = 180.0
"""How long a part may take to be ready on a busy machine, seconds."""


def folder() -> Path:
    """Where everything of the node lies; one for the user, since two nodes on a machine would share more than files."""
    return paths.cache_dir() / "node"


def take_down() -> bool:
    """Put back what a node left behind whose process was killed; returns whether there was something, RuntimeError while it runs."""
    if not folder().exists():
        return False
    if is_locked(folder()):
        raise RuntimeError(f"a node runs in {folder()}: end the process that started it")
    machine.put_back(folder(), NODE.directory / "kube-proxy")
    shutil.rmtree(folder())
    return True


class RealNode:
    """A running node. Make one with ``start``; ``close``, or the end of the ``with``, puts the machine back as it was."""

    def __init__(self, plane: ControlPlane, supervisor: Supervisor) -> None:
        """Wrap a node that is about to be started; use ``start``."""
        self._plane = plane
        self._folder = supervisor.data_dir
        self._supervisor = supervisor
        self._stack = contextlib.ExitStack()

    @classmethod
    def start(cls, plane: ControlPlane, *, images: Sequence[Path] = ()) -> Self:
        """Join this machine to a plane, with images from archives, and wait until pods can run on it.

        Raises RuntimeError if the machine can't be a node, ComponentError or TimeoutError if a part does not get ready.
        """
        if reason := missing():
            raise RuntimeError(f"this machine can't be a node: {reason}")
        kubelet = node_binary("kubelet")
        take_down()
        folder().mkdir(parents=True, mode=0o700)
        node = cls(plane, Supervisor(folder(), remove=False))
        try:
            node._start(kubelet, images)
        except BaseException:
            node.close()
            raise
        return node

    def _start(self, kubelet: Path, images: Sequence[Path]) -> None:
        machine.prepare(self._folder)
        api_port = urllib.parse.urlsplit(self._plane.server).port or 443
        wires = Wires(machine.NODE_IP, api_port, self._cluster_ip)
        self._stack.callback(wires.close)
        self._publish_api(wires.port)
        self._start_containerd()
        pause = self._folder / "sandbox.tar"
        write_archive(
            pause,
            configuration.SANDBOX_IMAGE,
            sandbox(self._folder / "sandbox"),
            {"Entrypoint": ["/bin/sleep", "infinity"]},
        )
        for archive in (pause, *images):
            self.import_image(archive)
        self._write_credentials()
        configuration.write(self._folder, self._plane.ca_file)
        self._supervisor.start(
            "kube-proxy",
            [kubelet.with_name("kube-proxy"), f"--config={self._folder / 'kube-proxy.yaml'}"],
            env=self._env(),
        )
        self._supervisor.start(
            "kubelet",
            [
                kubelet,
                f"--config={self._folder / 'kubelet.yaml'}",
                f"--kubeconfig={self._folder / 'kubelet.kubeconfig'}",
                f"--root-dir={self._folder / 'kubelet'}",
                f"--cert-dir={self._folder / 'kubelet-pki'}",
                f"--hostname-override={NODE_NAME}",
                f"--node-ip={machine.NODE_IP}",
            ],
            env=self._env(),
        )
        self._wait("the real node to be Ready", self._is_ready)

    def _start_containerd(self) -> None:
        config = self._folder / "containerd.toml"
        config.write_text(configuration.containerd(self._folder), encoding="utf-8")
        (self._folder / "cni").mkdir()
        (self._folder / "cni" / "10-node.conflist").write_text(configuration.cni(self._folder), encoding="utf-8")
        self._supervisor.start("containerd", [program("containerd"), f"--config={config}"], env=self._env())
        self._wait("containerd", lambda: self._ctr("version", check=False).returncode == 0)

    def _env(self) -> dict[str, str]:
        return {"HOME": str(self._folder), "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}

    def _ctr(self, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        command = [program("ctr"), f"--address={self._folder / 'containerd.sock'}", "--namespace=k8s.io", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if check and done.returncode != 0:
            raise RuntimeError(f"ctr {' '.join(arguments)}: {done.stderr.strip()}")
        return done

    def import_image(self, archive: Path) -> None:
        """Make an image of an archive known to the node, under the name that the archive gives it."""
        self._ctr("images", "import", str(archive))

    def kill(self, container: str) -> None:
        """Kill the first process of a container, by containerd's name of it, by SIGKILL; RuntimeError if there is none."""
        self._ctr("tasks", "kill", "--signal", "SIGKILL", container)

    def logs(self) -> str:
        """The ends of the logs of the node's parts, for whoever has to find out why it does not work."""
        return "\n".join(self._supervisor.log_tail(name) for name in ("containerd", "kube-proxy", "kubelet"))

    def _write_credentials(self) -> None:
        authority = certs.Authority.open(self._plane.data_dir / "pki")
        authority.serving("real-node", [machine.NODE_IP, NODE_NAME])
        users = {
            "kubelet": (f"system:node:{NODE_NAME}", ["system:nodes"]),
            "kube-proxy": ("system:kube-proxy", []),
        }
        for component, (user, groups) in users.items():
            certs.write_kubeconfig(
                self._folder / f"{component}.kubeconfig",
                server=self._plane.server,
                ca_file=self._plane.ca_file,
                client=authority.client(component, user, groups),
                user=user,
            )

    def _publish_api(self, port: int) -> None:
        """Say where the API server is, as it would by itself if more than loopback could reach it."""
        self._plane.api.request(
            "POST",
            "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices",
            {
                "metadata": {"name": "kubernetes", "labels": {"kubernetes.io/service-name": "kubernetes"}},
                "addressType": "IPv4",
                "endpoints": [{"addresses": [machine.NODE_IP], "conditions": {"ready": True}}],
                "ports": [{"name": "https", "port": port, "protocol": "TCP"}],
            },
        )

    def _cluster_ip(self, namespace: str, service: str) -> str | None:
        try:
            found = self._plane.api.request("GET", f"/api/v1/namespaces/{namespace}/services/{service}")
        except ApiError as error:
            if error.status == 404:
                return None
            raise
        return str(found["spec"]["clusterIP"])

    def _is_ready(self) -> bool:
        node = self._plane.api.request("GET", f"/api/v1/nodes/{NODE_NAME}")
        ready = any(c["type"] == "Ready" and c["status"] == "True" for c in node["status"].get("conditions") or ())
        return ready and not node["spec"].get("taints")

    def _wait(self, what: str, holds: object) -> None:
        def condition() -> bool:
            self._supervisor.check()
            assert callable(holds)
            return bool(holds())

        self._plane.wait_until(what, condition, timeout_s=READY_TIMEOUT_S)

    def close(self) -> None:
        """End the node with all its pods, and put the machine back as it was; harmless if done before."""
        # The kubelet first: it would start again what ends.
        with contextlib.suppress(Exception):
            self._supervisor.stop("kubelet")
        self._supervisor.close()
        self._stack.close()
        take_down()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
