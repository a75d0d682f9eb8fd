"""``python -m dev.installer_role``: write docs/installer-role.yaml, the least that installs the chart.

Kubernetes lets nobody hand out rights that they do not have, unless they may ``escalate`` or ``bind``; and whoever may change a role of that
kind can give themselves everything through it. So the installer holds what the chart's roles grant, and no more. That half of the file
follows from the chart, which is why the file is written from it; the other half is what helm itself does, and a test holds it
against the API server's audit log.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

from dev.chart import ROOT, render
from dev.installed import RELEASE, SYSTEM
from dev.rights import Right, granted

PATH = ROOT / "docs" / "installer-role.yaml"
ACCOUNT, NAMESPACE = "installer", "platform"
"""Whom the file binds; users put their own there."""

_ALL_RIGHTS = {"rbac": {"features": {"openshift": True}}}
"""Values under which the chart grants all that it can."""

_CLUSTER_HEAD = f"""\
# What it takes to install, upgrade and remove the chart, cluster-wide, as release {RELEASE} in namespace {SYSTEM}, which has to be there:
#   kubectl create namespace {SYSTEM}
# Written by `python -m dev.installer_role`. Put your own account in place of {NAMESPACE}/{ACCOUNT}.
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata:
  name: rljob-installer
rules:
  # The CRDs, and not to delete them: with them all RLJobs would go.
  - apiGroups: [apiextensions.k8s.io]
    resources: [customresourcedefinitions]
    verbs: [create]
  - apiGroups: [apiextensions.k8s.io]
    resources: [customresourcedefinitions]
    resourceNames: [rljobs.rljob.dev, rljobprofiles.rljob.dev]
    verbs: [get, patch]
  # The roles, and who has them. All that is listed and watched is for --wait, which helm 4 does by watching whole kinds.
  - apiGroups: [rbac.authorization.k8s.io]
    resources: [clusterroles, clusterrolebindings]
    verbs: [list, watch, create]
  - apiGroups: [rbac.authorization.k8s.io]
    resources: [clusterroles]
    resourceNames: [{RELEASE}, {RELEASE}-view, {RELEASE}-edit, {RELEASE}-admin]
    verbs: [get, patch, delete]
  - apiGroups: [rbac.authorization.k8s.io]
    resources: [clusterrolebindings]
    resourceNames: [{RELEASE}]
    verbs: [get, patch, delete]
  # Helm looks whether it is there.
  - apiGroups: [""]
    resources: [namespaces]
    resourceNames: [{SYSTEM}]
    verbs: [get]
  # What those roles grant: nobody can hand out what they do not have. An upgrade that grants more needs this file anew.
"""

_NAMESPACE_HEAD = f"""\
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata:
  name: rljob-installer
  namespace: {SYSTEM}
rules:
  # Where helm keeps its releases.
  - apiGroups: [""]
    resources: [secrets]
    verbs: [get, list, create, update, delete]
  # The operator, and what belongs to it.
  - apiGroups: [""]
    resources: [serviceaccounts, services]
    verbs: [get, list, watch, create, patch, delete]
  - apiGroups: [apps]
    resources: [deployments]
    verbs: [get, list, watch, create, patch, delete]
  - apiGroups: [apps]
    resources: [replicasets]
    verbs: [list]
  - apiGroups: [policy]
    resources: [poddisruptionbudgets]
    verbs: [get, list, watch, create, patch, delete]
  - apiGroups: [rbac.authorization.k8s.io]
    resources: [roles, rolebindings]
    verbs: [get, list, watch, create, patch, delete]
  # The election, which the role of the release grants.
"""

_BINDINGS = f"""\
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata:
  name: rljob-installer
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: ClusterRole
  name: rljob-installer
subjects:
  - kind: ServiceAccount
    name: {ACCOUNT}
    namespace: {NAMESPACE}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata:
  name: rljob-installer
  namespace: {SYSTEM}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: Role
  name: rljob-installer
subjects:
  - kind: ServiceAccount
    name: {ACCOUNT}
    namespace: {NAMESPACE}
"""


def text() -> str:
    """The file as it has to be; raises ToolError without helm."""
    roles = [each for each in render(_ALL_RIGHTS) if each["kind"] in ("ClusterRole", "Role")]
    cluster = granted(rule for role in roles if role["kind"] == "ClusterRole" for rule in role["rules"])
    namespaced = granted(rule for role in roles if role["kind"] == "Role" for rule in role["rules"])
    return _CLUSTER_HEAD + _rules(cluster) + _NAMESPACE_HEAD + _rules(namespaced) + _BINDINGS


def _rules(rights: Iterable[Right]) -> str:
    """Rules that grant these rights, as few as can be, in an order that does not change."""
    verbs: dict[tuple[str, str, str], list[str]] = defaultdict(list)
    for right in sorted(rights, key=_order):
        verbs[right.group, right.name, right.resource].append(right.verb)
    alike: dict[tuple[str, str, tuple[str, ...]], list[str]] = defaultdict(list)
    for (group, name, resource), found in sorted(verbs.items()):
        alike[group, name, tuple(found)].append(resource)
    told = ""
    for (group, name, of), resources in alike.items():
        told += f"  - apiGroups: [{group or _CORE}]\n    resources: [{', '.join(resources)}]\n"
        told += f"    resourceNames: [{name}]\n" if name else ""
        told += f"    verbs: [{', '.join(of)}]\n"
    return told


_CORE = '""'
_VERBS = ("get", "list", "watch", "create", "update", "patch", "delete", "deletecollection")


def _order(right: Right) -> tuple[str, str, int]:
    return right.group, right.resource, _VERBS.index(right.verb)


def main(path: Path = PATH) -> int:
    """Write the file."""
    path.write_text(text(), encoding="utf-8")
    print(f"written: {path.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
