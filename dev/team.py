"""A team on a plane: its namespace, and a member who applies RLJobs and looks at what becomes of them, with no other rights."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

from kubernetes import client

from dev.controlplane import ControlPlane
from dev.emulator.follow import Taker, api_client, follow

MEMBER = "member"

_ACCESS = """
apiVersion: v1
kind: ServiceAccount
metadata: {name: %(member)s, namespace: %(namespace)s}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: %(member)s, namespace: %(namespace)s}
rules:
- {apiGroups: [rljob.dev], resources: [rljobs], verbs: [get, list, watch, create, patch, update, delete]}
- {apiGroups: [""], resources: [pods, events], verbs: [get, list, watch]}
- {apiGroups: [""], resources: [configmaps], verbs: [get, list, watch, create, patch, update]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: %(member)s, namespace: %(namespace)s}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: %(member)s}
subjects: [{kind: ServiceAccount, name: %(member)s, namespace: %(namespace)s}]
"""


class Member:
    """Whoever works with a team's jobs."""

    def __init__(self, plane: ControlPlane, namespace: str) -> None:
        """Make the namespace with the member's account and rights."""
        self._plane, self._namespace = plane, namespace
        plane.create_namespace(namespace)
        plane.apply(_ACCESS % {"member": MEMBER, "namespace": namespace})
        self._kubeconfig: Path = plane.service_account_kubeconfig(namespace, MEMBER)

    def apply(self, text: str) -> None:
        """``kubectl apply`` of manifests."""
        command = ("apply", "--server-side", "-n", self._namespace, "-f", "-")
        self._plane.kubectl(*command, input=text, kubeconfig=self._kubeconfig)

    def described(self, job: str) -> str:
        """What ``kubectl describe`` tells of an RLJob, events included."""
        command = ("describe", "rljob", job, "-n", self._namespace)
        told = self._plane.kubectl(*command, kubeconfig=self._kubeconfig, check=False)
        return told.stdout or told.stderr

    def rljob(self, *arguments: str) -> str:
        """What the command ``rljob`` prints; RuntimeError with its words if it fails."""
        command = [sys.executable, "-m", "rljob_operator.cli", *arguments, "-n", self._namespace]
        env = {**os.environ, "KUBECONFIG": str(self._kubeconfig)}
        done = subprocess.run(command, capture_output=True, text=True, env=env, check=False)
        if done.returncode != 0:
            raise RuntimeError(f"rljob {arguments[0]} failed: {(done.stderr or done.stdout).strip()[-2000:]}")
        return done.stdout

    def follow_pods(self, taker: Taker, stop: threading.Event) -> None:
        """Every event of the team's pods from now on."""
        api = client.CoreV1Api(api_client(str(self._kubeconfig)))
        follow(api.list_namespaced_pod, taker, stop, namespace=self._namespace)

    def follow_job(self, job: str, taker: Taker, stop: threading.Event) -> None:
        """Every version of an RLJob from now on."""
        api = client.CustomObjectsApi(api_client(str(self._kubeconfig)))
        follow(
            api.list_namespaced_custom_object, taker, stop, group="rljob.dev", version="v1alpha1",
            namespace=self._namespace, plural="rljobs", field_selector=f"metadata.name={job}",
        )  # fmt: skip
