"""A real Kubernetes control plane on this machine: etcd, API server, controller manager, scheduler, and KWOK.

``ControlPlane.start()`` gives one with RBAC, default admission and service-account tokens on, in a few seconds; the
context manager, and the end of this process by whatever cause, takes all of it away again. Tests and the demo use the
admin's kubeconfig to set things up and to look; what is under test gets a service account of its own.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from dev.controlplane import certs, components, paths
from dev.controlplane.audit import Audit
from dev.controlplane.build import binary, ensure_built
from dev.controlplane.components import API_SERVER, COMPONENTS, KWOK, Layout, Ports
from dev.controlplane.nodes import NodeSpec, is_schedulable
from dev.controlplane.ports import free_ports
from dev.controlplane.processes import ComponentError, Supervisor, remove_stale_runs
from dev.controlplane.rest import MERGE_PATCH, STRATEGIC_PATCH, ApiClient, ApiError
from dev.controlplane.stages import MACHINE_LOST, kwok_config

READY_TIMEOUT_S = 120.0
"""How long a component may take to get ready on a busy machine, seconds."""


class KubectlError(subprocess.CalledProcessError):
    """``kubectl`` failed; unlike its base class it shows what kubectl said."""

    def __str__(self) -> str:
        return f"kubectl {' '.join(self.cmd[1:])} (exit code {self.returncode}): {(self.stderr or '').strip()}"


class ControlPlane:
    """A running control plane; see the module's text. Make one with ``start``."""

    def __init__(self, layout: Layout, supervisor: Supervisor | None) -> None:
        """Wrap a plane whose credentials exist; ``start`` and ``attach`` are the ways to get here."""
        self._layout = layout
        self._supervisor = supervisor
        self._generation = dict.fromkeys(COMPONENTS, 0)
        admin = certs.KeyPair(layout.pki / "admin.crt", layout.pki / "admin.key")
        self.api = ApiClient(layout.server, layout.ca_file, admin)
        """Requests as admin, for setting up and looking."""

    @classmethod
    def start(
        cls,
        *,
        data_dir: Path | None = None,
        nodes: NodeSpec | Sequence[NodeSpec] | None = None,
        log: Callable[[str], None] = lambda _: None,
        keep_data: bool | None = None,
        audit: Audit | None = None,
    ) -> Self:
        """Start a plane and wait until it serves, schedules, and its nodes are Ready.

        ``data_dir`` must be empty or not exist; by default it is a temporary one under the cache. ``keep_data`` leaves
        it behind after ``stop`` (default: only a directory that the caller named). ``audit`` has requests noted (default:
        what the environment asks for, see the module ``audit``). Builds the binaries if they are missing. Raises
        ComponentError, with the log's last lines, if a component dies or does not get ready.
        """
        ensure_built()
        remove_stale_runs()
        keep = data_dir is not None if keep_data is None else keep_data
        audit = audit or Audit.from_env()
        started = time.monotonic()
        for attempt in range(3):
            plane = cls._create(data_dir, keep=keep, audit=audit)
            try:
                plane._start_components(log)
                specs = [nodes] if isinstance(nodes, NodeSpec) else list(nodes or ())
                for spec in specs:
                    plane.add_nodes(spec)
            except BaseException as error:
                plane.stop()
                # Between choosing a port and using it another program may have taken it.
                if attempt < 2 and isinstance(error, ComponentError) and "address already in use" in str(error):
                    if keep and data_dir is not None:
                        shutil.rmtree(data_dir)
                    continue
                raise
            break
        log(f"control plane ready at {plane.server} in {time.monotonic() - started:.1f} s")
        return plane

    @classmethod
    def attach(cls, data_dir: Path) -> Self:
        """Use a plane that another process started, by its data directory; ``stop`` then does nothing."""
        server = (data_dir / "server").read_text().strip()
        return cls(Layout(data_dir, Ports(0, 0, int(server.rpartition(":")[2]))), None)

    @classmethod
    def _create(cls, data_dir: Path | None, *, keep: bool, audit: Audit | None) -> Self:
        if data_dir is None:
            paths.run_dir().mkdir(parents=True, exist_ok=True, mode=0o700)
            data_dir = Path(tempfile.mkdtemp(dir=paths.run_dir(), prefix="plane-"))
        elif data_dir.exists() and any(data_dir.iterdir()):
            raise FileExistsError(f"{data_dir} is not empty; a plane starts from nothing: remove it or name another")
        data_dir = data_dir.absolute()
        supervisor = Supervisor(data_dir, remove=not keep)
        try:
            layout = Layout(data_dir, Ports(*free_ports(3)), audit)
            layout.write_credentials()
            if audit is not None:
                audit.folder.mkdir(parents=True, exist_ok=True)
                layout.audit_policy.write_text(audit.policy())
            layout.kwok_config.write_text(kwok_config())
            (data_dir / "server").write_text(f"{layout.server}\n")
            return cls(layout, supervisor)
        except BaseException:
            supervisor.close()
            raise

    def _start_components(self, log: Callable[[str], None]) -> None:
        log("starting etcd and the API server")
        self._run(components.ETCD)
        self._run(API_SERVER)
        self._wait_api()
        log("starting the controller manager, the scheduler and KWOK")
        for component in (components.CONTROLLER_MANAGER, components.SCHEDULER, KWOK):
            self._run(component)
        self._wait_service_account("default")

    def _run(self, component: str) -> None:
        self.supervisor.start(
            component,
            self._layout.command(component, generation=self._generation[component]),
            # Nothing may be looked up, or left, in the user's home.
            env={"HOME": str(self.data_dir), "KUBECONFIG": "", "KWOK_WORKDIR": str(self.data_dir / "kwok")},
        )

    # What a plane is

    @property
    def data_dir(self) -> Path:
        """Directory of all the plane's files and logs."""
        return self._layout.data_dir

    @property
    def server(self) -> str:
        """URL of the API server."""
        return self._layout.server

    @property
    def ca_file(self) -> Path:
        """Certificate of the authority that signed the API server's."""
        return self._layout.ca_file

    @property
    def kubeconfig(self) -> Path:
        """Kubeconfig of the cluster's admin."""
        return self._layout.admin_kubeconfig

    @property
    def audit_log(self) -> Path | None:
        """The API server's audit log, a JSON event a line; None if this plane notes nothing. It outlives the plane."""
        return self._layout.audit_log

    @property
    def supervisor(self) -> Supervisor:
        """Owner of the components; RuntimeError on a plane that was attached to."""
        if self._supervisor is None:
            raise RuntimeError(f"the components of {self.data_dir} belong to another process")
        return self._supervisor

    def bin(self, name: str) -> Path:
        """Return the path of a built binary (``kubectl``, ``promtool``, ...)."""
        return binary(name)

    # Life

    def stop(self) -> None:
        """End every component and remove the data directory, unless it is to be kept; harmless if done before."""
        if self._supervisor is not None:
            self._supervisor.close()

    def detach(self) -> int:
        """Let the plane outlive this process; returns the process id to send SIGTERM to when it is to end."""
        return self.supervisor.detach()

    def kill(self, component: str) -> None:
        """End a component by SIGKILL, as a fault."""
        self.supervisor.kill(component)

    def restart(self, component: str) -> None:
        """Start a component again (killing it first if it runs) and wait until it works."""
        self._layout.command(component)  # KeyError for a name that is none, before anything is killed
        self.supervisor.kill(component)
        self._generation[component] += 1
        if component == KWOK:
            # A new KWOK respects the leases of the old one until they run out.
            self.api.text("DELETE", "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases")
        self._run(component)
        if component in (components.ETCD, API_SERVER):
            self._wait_api()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def wait_until(
        self, what: str, condition: Callable[[], bool], *, timeout_s: float = READY_TIMEOUT_S, poll_s: float = 0.1
    ) -> None:
        """Wait for a condition; an answer that the server cannot give yet counts as no.

        Raises ComponentError as soon as a component dies, TimeoutError naming ``what`` after ``timeout_s`` seconds.
        """
        deadline, last = time.monotonic() + timeout_s, ""
        while True:
            try:
                if condition():
                    return
                last = ""
            except (OSError, ApiError) as error:
                last = f" (last answer: {error})"
            if self._supervisor is not None:
                self._supervisor.check()
            if time.monotonic() > deadline:
                raise TimeoutError(f"waited {timeout_s:.0f} s for {what}{last}; logs are in {self.data_dir / 'logs'}")
            time.sleep(poll_s)

    def _wait_api(self) -> None:
        try:
            self.wait_until("the API server", lambda: self.api.text("GET", "/readyz") == "ok", poll_s=0.05)
        except TimeoutError as error:
            raise ComponentError(f"{error}\n{self.supervisor.log_tail(API_SERVER)}") from error

    def _wait_service_account(self, namespace: str) -> None:
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts/default"
        # Admission refuses pods until the controller manager has made this account.
        self.wait_until(f"the default service account of {namespace}", lambda: bool(self.api.request("GET", path)))

    # Use

    def kubectl(
        self,
        *args: str,
        input: str | None = None,  # noqa: A002 - the name that subprocess.run gives it
        check: bool = True,
        kubeconfig: Path | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """Run kubectl, as admin unless another ``kubeconfig`` is given; never touches ``~/.kube``.

        Raises KubectlError if it fails and ``check`` holds.
        """
        cache = str(self.data_dir / "kubectl-cache")
        command = [str(self.bin("kubectl")), f"--cache-dir={cache}", *args]
        env = {
            **os.environ,
            "KUBECONFIG": str(kubeconfig or self.kubeconfig),
            "KUBECACHEDIR": cache,
            "KUBERC": "off",
            "HOME": str(self.data_dir),
        }
        done = subprocess.run(command, input=input, capture_output=True, text=True, env=env, check=False)
        if check and done.returncode != 0:
            raise KubectlError(done.returncode, command, done.stdout, done.stderr)
        return done

    def apply(self, yaml_text: str, server_side: bool = True) -> None:
        """Apply manifests as admin."""
        self.kubectl(
            "apply", *(["--server-side", "--force-conflicts"] if server_side else []), "-f", "-", input=yaml_text
        )

    def create_namespace(self, name: str, labels: dict[str, str] | None = None) -> None:
        """Create a namespace and wait until pods can be created in it."""
        self.api.request("POST", "/api/v1/namespaces", {"metadata": {"name": name, "labels": labels or {}}})
        self._wait_service_account(name)

    def service_account_kubeconfig(self, namespace: str, name: str, *, duration_s: int = 24 * 3600) -> Path:
        """Write a kubeconfig with a fresh token of a service account, good for ``duration_s`` seconds (at least 600).

        Raises ApiError 404 if there is no such account.
        """
        token = self.service_account_token(namespace, name, duration_s=duration_s)
        return certs.write_kubeconfig(
            self.data_dir / "kubeconfigs" / f"{namespace}-{name}.kubeconfig",
            server=self.server,
            ca_file=self.ca_file,
            token=token,
            user=f"{namespace}-{name}",
            namespace=namespace,
        )

    def service_account_token(self, namespace: str, name: str, *, duration_s: int = 24 * 3600) -> str:
        """Return a fresh token of a service account, good for ``duration_s`` seconds (at least 600)."""
        answer = self.api.request(
            "POST",
            f"/api/v1/namespaces/{namespace}/serviceaccounts/{name}/token",
            {"spec": {"expirationSeconds": duration_s}},
        )
        token: str = answer["status"]["token"]
        return token

    # Nodes

    def add_nodes(self, spec: NodeSpec) -> list[str]:
        """Create nodes, wait until pods can be scheduled on them, and return their names."""
        for node in spec.objects():
            self.api.request("POST", "/api/v1/nodes", node)
        names = set(spec.names)

        def all_schedulable() -> bool:
            nodes = self.api.request("GET", "/api/v1/nodes")["items"]
            return names <= {node["metadata"]["name"] for node in nodes if is_schedulable(node)}

        self.wait_until(f"{len(names)} nodes to be Ready", all_schedulable)
        return spec.names

    def remove_nodes(self, names: Iterable[str]) -> None:
        """Delete nodes, as far as they are there.

        Their pods go when the garbage collector of pods notices, or at once if deleted by force.
        """
        for name in names:
            try:
                self.api.request("DELETE", f"/api/v1/nodes/{name}")
            except ApiError as error:
                if error.status != 404:
                    raise

    def lose_node(self, name: str) -> None:
        """Make a node's machine vanish: nothing answers for it or its pods any more.

        The node is Unknown and tainted as unreachable when this returns, which without help takes the controller
        manager's grace period of 50 s. Its pods, once deleted, stay Terminating. They are evicted when their
        toleration ends (300 s by default), but never while no other node is Ready: Kubernetes then blames the network.
        """
        mark = {"metadata": {"annotations": {MACHINE_LOST: "true"}}}
        self.api.request("PATCH", f"/api/v1/nodes/{name}", mark, content_type=MERGE_PATCH)
        path = f"/api/v1/nodes/{name}"
        unknown = {"type": "Ready", "status": "Unknown", "reason": "NodeStatusUnknown", "message": "machine lost"}

        def unreachable() -> bool:
            node = self.api.request("GET", path)
            if any(c["type"] == "Ready" and c["status"] != "Unknown" for c in node["status"]["conditions"]):
                condition = unknown | {"lastTransitionTime": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())}
                patch = {"status": {"conditions": [condition]}}
                self.api.request("PATCH", f"{path}/status", patch, content_type=STRATEGIC_PATCH)
                return False
            taints = node["spec"].get("taints") or []
            return any(taint["key"] == "node.kubernetes.io/unreachable" for taint in taints)

        self.wait_until(f"{name} to be unreachable", unreachable)
        # No pod can be bound to it any more.
        for pod in self.api.request("GET", f"/api/v1/pods?fieldSelector=spec.nodeName={name}")["items"]:
            where = f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods/{pod['metadata']['name']}"
            self.api.request("PATCH", where, mark, content_type=MERGE_PATCH)
