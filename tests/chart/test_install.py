"""The chart on a real API server by real helm, installed by somebody who may do no more than that.

The installer is a service account with the rights of docs/installer-role.yaml. Helm's own view of a release (history, rollback) and the API
server's (which objects there are, who may do what) are both asked.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from dev.chart import CHART, render
from dev.controlplane import ApiError, Audit, ControlPlane, NodeSpec, ensure_built
from dev.installed import RELEASE, SYSTEM, HelmError, install, installed, rules_of, run_helm
from dev.installer_role import ACCOUNT, NAMESPACE, PATH
from dev.kubetools import HELM_MAJORS
from dev.rights import Judgement, Right, granted, read
from tests.cluster.jobs import job
from tests.cluster.rig import Operator

pytestmark = pytest.mark.cluster

Json = dict[str, Any]

TEAM, OTHERS = "rl-team", "others"
"""Namespaces of users."""

ELECTION = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{SYSTEM}/roles/{RELEASE}-leader"
"""The Role that taking part in the election needs."""

_lived: set[int] = set()


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """A plane that has nothing of the chart: its CRDs can belong to one release alone."""
    ensure_built()
    noted = Audit(tmp_path_factory.mktemp("installer"), (NAMESPACE,))
    with ControlPlane.start(nodes=NodeSpec(count=1, gpus_per_node=0, name_prefix="cpu"), audit=noted) as running:
        for namespace in (NAMESPACE, SYSTEM, TEAM, OTHERS):
            running.create_namespace(namespace)
        running.kubectl("create", "serviceaccount", "nobody", "-n", OTHERS)
        yield running


@pytest.fixture(scope="module")
def installer(plane: ControlPlane) -> Path:
    """The kubeconfig of an account that may install the chart, and no more."""
    plane.kubectl("create", "serviceaccount", ACCOUNT, "-n", NAMESPACE)
    plane.kubectl("apply", "--server-side", "-f", str(PATH))
    return plane.service_account_kubeconfig(NAMESPACE, ACCOUNT)


@pytest.fixture
def released(plane: ControlPlane) -> Iterator[None]:
    """Takes the release away after the test; the CRDs stay, as they are meant to."""
    yield
    run_helm(plane, "uninstall", RELEASE, "-n", SYSTEM, "--ignore-not-found", "--wait")


def listed(plane: ControlPlane, kubeconfig: Path, namespace: str) -> frozenset[Right]:
    """What ``kubectl auth can-i --list`` shows."""
    told = plane.kubectl("auth", "can-i", "--list", "-n", namespace, kubeconfig=kubeconfig).stdout
    found = set()
    for line in told.splitlines()[1:]:
        match = re.fullmatch(r"(\S*)\s+\[(.*?)\]\s+\[(.*?)\]\s+\[(.*?)\]\s*", line)
        assert match is not None, line
        whole, slash, part = match[1].partition("/")
        resource, _, group = whole.partition(".")
        resource += slash + part
        names = match[3].split() or [""]
        found |= {Right(group, resource, verb, name) for verb in match[4].split() for name in names if resource}
    return frozenset(found)


def of_everybody(plane: ControlPlane) -> frozenset[Right]:
    """What an account has that nothing was granted to: to ask what it may."""
    return listed(plane, plane.service_account_kubeconfig(OTHERS, "nobody"), OTHERS)


def exists(plane: ControlPlane, path: str) -> bool:
    try:
        plane.api.request("GET", path)
    except ApiError as error:
        if error.status == 404:
            return False
        raise
    return True


@pytest.mark.parametrize("major", sorted(HELM_MAJORS, reverse=True))
def test_a_release_lives_from_install_to_uninstall(
    plane: ControlPlane, installer: Path, released: None, major: int
) -> None:
    def helm(*arguments: str) -> str:
        return run_helm(plane, *arguments, "-n", SYSTEM, major=major, kubeconfig=installer).stdout

    # For want of a right to look, helm waits in silence.
    wait = ("--wait", "--timeout", "60s")
    deployment = f"/apis/apps/v1/namespaces/{SYSTEM}/deployments/{RELEASE}"

    told = helm("install", RELEASE, str(CHART), *wait)
    assert "STATUS: deployed" in told
    assert plane.api.request("GET", deployment)["status"]["readyReplicas"] == 1
    assert exists(plane, ELECTION)
    plane.wait_until("RLJobs to be served", lambda: exists(plane, "/apis/rljob.dev/v1alpha1/rljobs"))
    name = f"helm{major}"
    plane.apply(yaml.safe_dump(job(TEAM, name)))
    path = f"/apis/rljob.dev/v1alpha1/namespaces/{TEAM}/rljobs/{name}"
    uid = plane.api.request("GET", path)["metadata"]["uid"]

    helm("upgrade", RELEASE, str(CHART), *wait, "--set", "replicas=2")
    assert plane.api.request("GET", deployment)["status"]["readyReplicas"] == 2

    helm("rollback", RELEASE, "1", *wait)
    assert plane.api.request("GET", deployment)["spec"]["replicas"] == 1
    history = json.loads(helm("history", RELEASE, "-o", "json"))
    assert [(each["revision"], each["status"]) for each in history] == [
        (1, "superseded"),
        (2, "superseded"),
        (3, "deployed"),
    ]

    helm("uninstall", RELEASE, *wait)
    left = plane.kubectl(
        "get", "all,serviceaccounts,roles,rolebindings,poddisruptionbudgets,networkpolicies", "-n", SYSTEM,
        "-l", f"app.kubernetes.io/instance={RELEASE}", "-o", "name",
    ).stdout  # fmt: skip
    # Pods go when the garbage collector has seen that their owner is gone.
    assert [each for each in left.split() if not each.startswith(("pod/", "replicaset.apps/"))] == []
    roles = plane.kubectl("get", "clusterroles,clusterrolebindings", "-l", f"app.kubernetes.io/instance={RELEASE}")
    assert roles.stdout == ""
    assert plane.api.request("GET", path)["metadata"]["uid"] == uid, "the CRD was kept, and the job with it"
    _lived.add(major)


def test_the_installer_may_do_what_helm_does_and_no_more(plane: ControlPlane) -> None:
    if _lived != set(HELM_MAJORS):
        pytest.skip("judges what the test of a release's life did")
    assert plane.audit_log is not None
    requests = read(plane.audit_log, f"system:serviceaccount:{NAMESPACE}:{ACCOUNT}")
    cluster, namespaced = (each["rules"] for each in yaml.safe_load_all(PATH.read_text()) if "rules" in each)
    rights = granted(cluster) | granted(namespaced)
    # Those that are there to be granted on are not made use of.
    held = granted(rule for role in render() if role["kind"] == "ClusterRole" for rule in role["rules"])
    own = {right for right in rights - held if right.group in ("apiextensions.k8s.io", "rbac.authorization.k8s.io")}
    own |= {right for right in granted(namespaced) if right.group in ("", "apps", "policy")}
    own.add(Right("", "namespaces", "get", SYSTEM))
    # A watch begins with a list where the API server can't send what is there along with it, as this one can.
    own -= {right for right in own if right.verb == "list" and replace(right, verb="watch") in rights}
    judged = Judgement.of(own, requests)
    assert [f"{each.right}: {each.message}" for each in judged.refused] == []
    assert [str(right) for right in judged.unused] == []


def test_an_installer_without_a_right_of_the_operator_is_told_which(plane: ControlPlane, released: None) -> None:
    plane.kubectl("create", "serviceaccount", "short", "-n", NAMESPACE)
    roles = [each for each in yaml.safe_load_all(PATH.read_text()) if "rules" in each]
    for role, kind in zip(roles, ("clusterrole", "role"), strict=True):
        role["metadata"]["name"] = "short"
        role["rules"] = [rule for rule in role["rules"] if rule["resources"] != ["events"]]
        plane.apply(yaml.safe_dump(role))
        binding = ["create", f"{kind}binding", "short", f"--{kind}=short", f"--serviceaccount={NAMESPACE}:short"]
        plane.kubectl(*binding, *(["-n", SYSTEM] if kind == "role" else []))
    short = plane.service_account_kubeconfig(NAMESPACE, "short")
    with pytest.raises(HelmError) as caught:
        install(plane, kubeconfig=short)
    told = str(caught.value)
    assert "attempting to grant RBAC permissions not currently held" in told
    assert 'Resources:["events"], Verbs:["create"]' in told


@pytest.mark.parametrize("replicas", [1, 2])
def test_the_operator_may_do_what_the_charts_roles_say_and_no_more(
    plane: ControlPlane, released: None, replicas: int
) -> None:
    found = install(plane, {"replicas": replicas})
    told = run_helm(plane, "get", "manifest", RELEASE, "-n", SYSTEM).stdout
    objects = {(each["kind"], each["metadata"]["name"]): each for each in yaml.safe_load_all(told) if each}
    everywhere = granted(objects["ClusterRole", RELEASE]["rules"])
    election = granted(objects["Role", f"{RELEASE}-leader"]["rules"])
    always = of_everybody(plane)
    assert listed(plane, found.kubeconfig, SYSTEM) - always == everywhere | election
    assert listed(plane, found.kubeconfig, TEAM) - always == everywhere
    assert found.rights == everywhere | election
    secret = [right for right in found.rights if right.resource.startswith("secrets") or "*" in str(right)]
    assert secret == []


def test_one_replica_leads_at_once_and_on_when_a_second_one_comes(
    plane: ControlPlane, released: None, tmp_path: Path
) -> None:
    def holder() -> str:
        path = f"/apis/coordination.k8s.io/v1/namespaces/{SYSTEM}/leases/{RELEASE}"
        return str(plane.api.request("GET", path)["spec"].get("holderIdentity") or "") if exists(plane, path) else ""

    def operator(name: str, replicas: int) -> Operator:
        found = install(plane, {"replicas": replicas})
        return Operator(found, found.kubeconfig, tmp_path / name, {"RLJOB_OPERATOR_IDENTITY": name})

    alone = operator("alone", 1)
    try:
        alone.start()
        plane.wait_until("it to lead", lambda: holder().startswith("alone_"))
        second = operator("second", 2)
        try:
            second.start()
            assert holder().startswith("alone_")
            assert "leading as" not in second.log()
            assert alone.terminate() == 0
            plane.wait_until("the second one to lead", lambda: holder().startswith("second_"))
        finally:
            second.stop()
    finally:
        alone.stop()


def test_an_operator_of_some_namespaces_may_do_nothing_in_others(plane: ControlPlane, released: None) -> None:
    found = install(plane, {"watchNamespaces": [TEAM]})
    always = of_everybody(plane)
    election = granted(plane.api.request("GET", ELECTION)["rules"])
    elsewhere = listed(plane, found.kubeconfig, OTHERS) - always
    assert elsewhere | election == listed(plane, found.kubeconfig, SYSTEM) - always
    assert {(right.group, right.resource) for right in elsewhere} <= {
        ("", "nodes"), ("apiextensions.k8s.io", "customresourcedefinitions"),
    }  # fmt: skip
    assert {right.verb for right in elsewhere} <= {"get", "list", "watch"}
    here = listed(plane, found.kubeconfig, TEAM) - always
    assert here | election == granted(rules_of(plane, SYSTEM, found.account))
    assert Right("rljob.dev", "rljobs/status", "update") in here
    assert found.env["RLJOB_OPERATOR_NAMESPACES"] == TEAM


def test_what_a_process_gets_is_what_the_api_server_has(plane: ControlPlane, released: None) -> None:
    plane.apply(
        yaml.safe_dump(
            {
                "apiVersion": "v1",
                "kind": "ConfigMap",
                "metadata": {"name": "extra", "namespace": SYSTEM},
                "data": {"word": "hello", "ca.crt": "certificate"},
            }
        )
    )
    volume = {"name": "extra", "configMap": {"name": "extra", "items": [{"key": "ca.crt", "path": "root.crt"}]}}
    env: list[Json] = [
        {"name": "WORD", "valueFrom": {"configMapKeyRef": {"name": "extra", "key": "word"}}},
        {"name": "NONE", "valueFrom": {"secretKeyRef": {"name": "absent", "key": "x", "optional": True}}},
        {"name": "WHERE", "valueFrom": {"fieldRef": {"fieldPath": "metadata.namespace"}}},
        {"name": "BOTH", "value": "$(WORD) $(UNKNOWN)"},
        {"name": "CA", "value": "/etc/extra/root.crt"},
    ]
    values = {
        "extraEnv": env, "extraVolumes": [volume],
        "extraVolumeMounts": [{"name": "extra", "mountPath": "/etc/extra"}],
    }  # fmt: skip
    found = install(plane, values)
    assert {name: found.env.get(name) for name in ("WORD", "NONE", "WHERE", "BOTH")} == {
        "WORD": "hello", "NONE": None, "WHERE": SYSTEM, "BOTH": "hello $(UNKNOWN)",
    }  # fmt: skip
    assert found.command == ("python", "-m", "rljob_operator")
    local = found.local_env({"health": 18080, "metrics": 19090})
    assert Path(local["CA"]).read_text() == "certificate"
    assert local["RLJOB_OPERATOR_LIVENESS_ENDPOINT"].endswith(":18080/healthz")
    assert local["RLJOB_OPERATOR_METRICS_PORT"] == "19090"
    assert local["KUBECONFIG"] == str(found.kubeconfig)
    with pytest.raises(LookupError, match="no Deployments"):
        installed(plane, release="absent")
