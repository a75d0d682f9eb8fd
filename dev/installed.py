"""The chart, installed on a plane by real helm, and what its operator would run with.

Pods of the plane run no code. So that the operator is nevertheless tried as it is installed, and not as a developer starts it, everything
about its process is read back from what the API server holds after ``helm install``: the environment and the arguments of the
Deployment's container, the entry point of the image that would run them, and a token of exactly the service account that the
Deployment names. What a process on this machine can't have as a pod has it (ports of its own, mounted files, the image's
cache) is put in its place by ``Installed.local_env``, in the open and nowhere else.
"""

from __future__ import annotations

import base64
import json
import os
import re
import subprocess
import sys
import urllib.request
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from dev import kubetools
from dev.chart import CHART, ROOT
from dev.controlplane import ApiError, ControlPlane
from dev.controlplane.ports import free_ports
from dev.rights import Right, granted

SYSTEM = "rljob-system"
"""Namespace of the operator, as the README installs it."""
RELEASE = "rljob-operator"
"""Name of the release, as the README installs it."""
OPERATOR = "operator"
"""Name of its process at the plane's keeper."""

WITHOUT_PODS: Mapping[str, Any] = {"nodeSelector": {"dev.rljob.dev/nowhere": "true"}}
"""Values under which the release's own pods stay pending: they would run nothing here, and take room on nodes that are counted."""

Json = dict[str, Any]

_RBAC = "/apis/rbac.authorization.k8s.io/v1"


class HelmError(subprocess.CalledProcessError):
    """``helm`` failed; unlike its base class it shows what helm said."""

    def __str__(self) -> str:
        return f"helm {' '.join(map(str, self.cmd[1:]))} (exit code {self.returncode}): {(self.stderr or '').strip()}"


@dataclass(frozen=True)
class Installed:
    """One release of the chart, and its operator's process as the container would run it."""

    release: str
    """Name of the release."""
    namespace: str
    """Namespace of the release."""
    account: str
    """Service account that the Deployment names."""
    kubeconfig: Path
    """Kubeconfig with a token of that account, and no other right."""
    env: Mapping[str, str]
    """Environment of the container as the kubelet would resolve it, the paths and ports those inside of the pod."""
    command: tuple[str, ...]
    """Entry point of the image, or what the Deployment names instead, with the arguments."""
    ports: Mapping[str, int]
    """The container's ports by their names."""
    rights: frozenset[Right]
    """What the roles bound to the account grant, cluster-wide and in all namespaces."""
    files: Path
    """Folder that stands for the root of the pod's mounted volumes."""
    mounts: tuple[str, ...]
    """Where volumes are mounted in the container."""

    @property
    def user(self) -> str:
        """The account's user name, as the audit log has it."""
        return f"system:serviceaccount:{self.namespace}:{self.account}"

    @property
    def local_command(self) -> list[str]:
        """The command with this environment's Python, which has what the image has."""
        program, *arguments = self.command
        if program in ("python", "python3"):
            return [sys.executable, *arguments]
        beside = Path(sys.executable).parent / program
        return [str(beside) if beside.exists() else program, *arguments]

    def local_ports(self) -> dict[str, int]:
        """A port that is free on this machine for each of the container's, by their names."""
        return dict(zip(self.ports, free_ports(len(self.ports)), strict=True))

    def local_env(self, ports: Mapping[str, int]) -> dict[str, str]:
        """The environment for a process on this machine that listens on ``ports`` in place of the container's.

        What is left out: numba's cache, which the image brings along and this tree has of its own.
        """
        found = {}
        for name, value in self.env.items():
            if name.startswith("NUMBA_"):
                continue
            for mount in self.mounts:
                value = re.sub(rf"(?<![\w/]){re.escape(mount)}(?=/|$)", str(self.files) + mount, value)
            if name.startswith("RLJOB_OPERATOR_") and name.endswith(("_PORT", "_ENDPOINT")):
                # Not those of another process: addresses such as that of Prometheus stay as they are.
                for port, here in ports.items():
                    value = re.sub(rf"(?:(?<=:)|^){self.ports[port]}(?=/|$)", str(here), value)
            found[name] = value
        found["KUBECONFIG"] = str(self.kubeconfig)
        return found


def start_operator(
    plane: ControlPlane,
    found: Installed,
    ports: Mapping[str, int],
    log: Path,
    more_env: Mapping[str, str] | None = None,
) -> int:
    """Start a release's operator as a process of the plane's keeper, listening on ``ports``; returns its pid once it answers its liveness probe.

    Its output is added to ``log``. ``more_env`` is laid over the container's environment.
    """
    own = {name: os.environ.get(name, "") for name in ("PATH", "HOME")}
    env = {**own, "PYTHONUNBUFFERED": "1", **found.local_env(ports), **(more_env or {})}
    pid = plane.supervisor.start(OPERATOR, found.local_command, env, log=log)
    url = f"http://127.0.0.1:{ports['health']}/healthz"

    def answers() -> bool:
        with urllib.request.urlopen(url, timeout=5):
            return True

    plane.wait_until("the operator to answer", answers)
    return pid


def run_helm(
    plane: ControlPlane,
    *arguments: str,
    major: int = 4,
    kubeconfig: Path | None = None,
    stdin: str | None = None,
    check: bool = True,
) -> subprocess.CompletedProcess[str]:
    """Run helm on a plane, as its admin unless another ``kubeconfig`` is given; nothing of the user's own helm is read or left.

    Raises HelmError if it fails and ``check`` holds, and ToolError if there is no helm to be had.
    """
    home = plane.data_dir / f"helm{major}"
    env = {
        "PATH": os.environ.get("PATH", ""),
        "HOME": str(home),
        **{f"HELM_{kind.upper()}_HOME": str(home / kind) for kind in ("cache", "config", "data")},
        "KUBECONFIG": str(kubeconfig or plane.kubeconfig),
    }
    command = [str(kubetools.helm(major)), *arguments]
    done = subprocess.run(command, input=stdin, capture_output=True, text=True, env=env, check=False)
    if check and done.returncode != 0:
        raise HelmError(done.returncode, command, done.stdout, done.stderr)
    return done


def install(
    plane: ControlPlane,
    values: Mapping[str, Any] | None = None,
    *,
    namespace: str = SYSTEM,
    release: str = RELEASE,
    chart: Path = CHART,
    major: int = 4,
    kubeconfig: Path | None = None,
    take_ownership: bool = False,
) -> Installed:
    """Install the chart, or upgrade it if the release is there, and say what its operator runs with.

    ``values`` are laid over the chart's defaults. The namespace is made if there is none (by the plane's admin, as an installer
    without that right would find it). ``kubeconfig`` is who installs (default: the admin). With ``take_ownership`` objects that are
    there already become the release's, a CRD that was applied by hand above all. Raises HelmError with helm's words.
    """
    if plane.kubectl("get", "namespace", namespace, check=False).returncode != 0:
        plane.create_namespace(namespace)
    taking = []
    if take_ownership:
        # Helm 4 applies on the server, where the fields have their owners too.
        taking = ["--take-ownership", *(["--force-conflicts"] if major > 3 else [])]
    run_helm(
        plane, "upgrade", "--install", release, str(chart), "--namespace", namespace, "--values", "-", *taking,
        major=major, kubeconfig=kubeconfig, stdin=yaml.safe_dump(dict(values or {})),
    )  # fmt: skip
    wait_served(plane)
    return installed(plane, namespace=namespace, release=release)


def wait_served(plane: ControlPlane) -> None:
    """Wait until the API server serves RLJobs: a CRD is there a moment before what it defines."""
    path = "/apis/rljob.dev/v1alpha1/rljobs?limit=1"
    plane.wait_until("the API server to serve RLJobs", lambda: bool(plane.api.request("GET", path)))


def installed(plane: ControlPlane, *, namespace: str = SYSTEM, release: str = RELEASE) -> Installed:
    """Read a release that is there back from the API server; raises LookupError if it has no operator."""
    selector = f"app.kubernetes.io%2Finstance%3D{release}%2Capp.kubernetes.io%2Fname%3Drljob-operator"
    found = plane.api.request("GET", f"/apis/apps/v1/namespaces/{namespace}/deployments?labelSelector={selector}")
    if len(found["items"]) != 1:
        names = [item["metadata"]["name"] for item in found["items"]]
        raise LookupError(f"release {release} in {namespace} has {names or 'no'} Deployments, not one of the operator")
    deployment = found["items"][0]
    pod = deployment["spec"]["template"]["spec"]
    container = pod["containers"][0]
    account = pod.get("serviceAccountName", "default")
    kubeconfig = plane.service_account_kubeconfig(namespace, account)
    files = plane.data_dir / "pods" / namespace / deployment["metadata"]["name"]
    mounts = _mount(plane, namespace, account, pod, container, files)
    return Installed(
        release=release,
        namespace=namespace,
        account=account,
        kubeconfig=kubeconfig,
        env=_environment(plane, namespace, deployment, container),
        command=(*(container.get("command") or entry_point()), *(container.get("args") or ())),
        ports={port["name"]: int(port["containerPort"]) for port in container.get("ports") or ()},
        rights=granted(rules_of(plane, namespace, account)),
        files=files,
        mounts=mounts,
    )


def entry_point() -> tuple[str, ...]:
    """The entry point of the image, from its Containerfile."""
    lines = (ROOT / "Containerfile").read_text(encoding="utf-8").splitlines()
    last = next(line for line in reversed(lines) if line.startswith("ENTRYPOINT"))
    return tuple(json.loads(last.removeprefix("ENTRYPOINT")))


def rules_of(plane: ControlPlane, namespace: str, account: str) -> list[Json]:
    """All rules of all roles that are bound to a service account by name."""
    api = plane.api
    rules: list[Json] = []
    for kind in ("clusterrolebindings", "rolebindings"):
        for binding in api.request("GET", f"{_RBAC}/{kind}")["items"]:
            if not _binds(binding.get("subjects") or (), namespace, account):
                continue
            role = binding["roleRef"]
            where = "" if role["kind"] == "ClusterRole" else f"/namespaces/{binding['metadata']['namespace']}"
            rules += api.request("GET", f"{_RBAC}{where}/{role['kind'].lower()}s/{role['name']}").get("rules") or []
    return rules


def _binds(subjects: Iterable[Json], namespace: str, account: str) -> bool:
    wanted = ("ServiceAccount", namespace, account)
    return any((s["kind"], s.get("namespace"), s["name"]) == wanted for s in subjects)


def _environment(plane: ControlPlane, namespace: str, deployment: Json, container: Json) -> dict[str, str]:
    """The container's variables, references resolved and ``$(NAME)`` expanded, as the kubelet does it."""
    found: dict[str, str] = {}
    for source in container.get("envFrom") or ():
        found |= _referenced(plane, namespace, source, source.get("prefix", ""))
    for variable in container.get("env") or ():
        name = variable["name"]
        if "valueFrom" in variable:
            value = _resolve(plane, namespace, deployment, container, variable["valueFrom"])
        else:
            value = re.sub(r"\$\((\w+)\)", lambda m: found.get(m[1], m[0]), variable.get("value", ""))
        if value is not None:
            found[name] = value
    return found


def _resolve(plane: ControlPlane, namespace: str, deployment: Json, container: Json, source: Json) -> str | None:
    """One variable that is not written out; None for an optional one that is not there."""
    if "fieldRef" in source:
        path = source["fieldRef"]["fieldPath"]
        name = deployment["metadata"]["name"]
        fields: dict[str, str] = {
            "metadata.namespace": namespace,
            "metadata.name": f"{name}-0",
            "spec.serviceAccountName": deployment["spec"]["template"]["spec"].get("serviceAccountName", "default"),
            "spec.nodeName": "here",
            "status.podIP": "127.0.0.1",
        }
        if path not in fields:
            raise LookupError(
                f"a fieldRef of {path} stands for nothing outside of a pod: known are {', '.join(fields)}"
            )
        return fields[path]
    if "resourceFieldRef" in source:
        kind, _, resource = source["resourceFieldRef"]["resource"].partition(".")
        return str((container.get("resources") or {}).get(kind, {}).get(resource, "0"))
    (key,) = (kind for kind in ("secretKeyRef", "configMapKeyRef") if kind in source)
    reference = source[key]
    values = _referenced(plane, namespace, {key.removesuffix("KeyRef") + "Ref": reference}, "")
    return values.get(reference["key"])


def _referenced(plane: ControlPlane, namespace: str, source: Json, prefix: str) -> dict[str, str]:
    """The values of a ConfigMap or a Secret."""
    secret = "secretRef" in source
    reference = source["secretRef" if secret else "configMapRef"]
    data = _data(plane, namespace, secret, reference["name"], optional=bool(reference.get("optional")))
    return {prefix + key: value.decode() for key, value in data.items()}


def _data(plane: ControlPlane, namespace: str, secret: bool, name: str, *, optional: bool = False) -> dict[str, bytes]:
    kind = "secrets" if secret else "configmaps"
    try:
        found = plane.api.request("GET", f"/api/v1/namespaces/{namespace}/{kind}/{name}").get("data") or {}
    except ApiError as error:
        if error.status == 404 and optional:
            return {}
        raise
    return {key: base64.b64decode(value) if secret else value.encode() for key, value in found.items()}


def _mount(
    plane: ControlPlane, namespace: str, account: str, pod: Json, container: Json, files: Path
) -> tuple[str, ...]:
    """Write what the container's volumes hold under ``files``; returns where they are mounted."""
    volumes = {volume["name"]: volume for volume in pod.get("volumes") or ()}
    mounted = []
    for mount in container.get("volumeMounts") or ():
        folder = Path(f"{files}{mount['mountPath']}")
        folder.mkdir(parents=True, exist_ok=True)
        volume = volumes[mount["name"]]
        for source in volume.get("projected", {}).get("sources", [volume]):
            for name, content in _contents(plane, namespace, account, source).items():
                (folder / name).write_bytes(content)
        mounted.append(str(mount["mountPath"]))
    # The longest first, so that a mount inside of another is found.
    return tuple(sorted(mounted, key=len, reverse=True))


def _contents(plane: ControlPlane, namespace: str, account: str, source: Json) -> dict[str, bytes]:
    """The files of one source of a volume; of an emptyDir none."""
    if "configMap" in source:
        wanted = source["configMap"]
        data = _data(plane, namespace, False, wanted["name"], optional=bool(wanted.get("optional")))
    elif "secret" in source:
        wanted = source["secret"]
        name = wanted.get("secretName") or wanted["name"]
        data = _data(plane, namespace, True, name, optional=bool(wanted.get("optional")))
    elif "serviceAccountToken" in source:
        wanted = source["serviceAccountToken"]
        return {wanted["path"]: plane.service_account_token(namespace, account).encode()}
    else:
        return {}
    items: Sequence[Json] = wanted.get("items") or [{"key": key, "path": key} for key in data]
    return {item["path"]: data[item["key"]] for item in items if item["key"] in data}
