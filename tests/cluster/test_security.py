"""What the author of an RLJob may do is what the author of a Deployment may do there, and the operator can do no more than it says."""

from __future__ import annotations

import json
import secrets
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from kubernetes import client, config

from dev.controlplane import ControlPlane
from dev.controlplane.ports import free_ports
from rljob_operator import promql
from tests.cluster.conftest import GpuNodes
from tests.cluster.jobs import job, merged
from tests.cluster.rig import GPU, Rig, eventually, install, rig_of

Json = dict[str, Any]

UID, ROLE, NAME, MANAGED_BY = "rljob.dev/uid", "rljob.dev/role", "rljob.dev/name", "app.kubernetes.io/managed-by"

RESTRICTED: Json = {
    "securityContext": {"runAsNonRoot": True, "runAsUser": 65532, "seccompProfile": {"type": "RuntimeDefault"}}
}
RESTRICTED_CONTAINER: Json = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}


@pytest.fixture(scope="module")
def account(plane: ControlPlane) -> Path:
    return install(plane)


@pytest.fixture
def rig(plane: ControlPlane, namespace: str, account: Path, tmp_path: Path, gpu_nodes: GpuNodes) -> Iterator[Rig]:
    yield from rig_of(plane, namespace, account, tmp_path)


def template(name: str, port: int, container: Json | None = None, **pod: Any) -> Json:
    """A template for a namespace that admits restricted pods alone, with whatever a test adds."""
    own = {"name": name, "image": "example.com/none:1", "ports": [{"containerPort": port}]}
    return {
        "spec": {
            **RESTRICTED,
            "containers": [{**own, "securityContext": RESTRICTED_CONTAINER, **(container or {})}],
            **pod,
        }
    }


def secured(rig: Rig, **sampler: Any) -> Json:
    found = job(rig.namespace)
    for role, name, port in (("sampler", "vllm", 8000), ("trainer", "trainer", 9400)):
        found["spec"][role]["template"] = template(name, port, **(sampler if role == "sampler" else {}))
    return found


def test_a_template_that_pod_security_forbids_makes_nothing_and_says_why(rig: Rig, gpu_nodes: GpuNodes) -> None:
    gpu_nodes(2, product="NVIDIA-H100-80GB-HBM3")
    rig.plane.kubectl("label", "namespace", rig.namespace, "pod-security.kubernetes.io/enforce=restricted")
    rig.start_operator()
    forbidden: list[tuple[Json, str]] = [
        ({"container": {"securityContext": {"privileged": True}}}, "privileged"),
        ({"volumes": [{"name": "host", "hostPath": {"path": "/"}}]}, "hostPath"),
        ({"hostNetwork": True, "container": {"ports": [{"containerPort": 8000, "hostPort": 8000}]}}, "host namespaces"),
    ]
    for change, words in forbidden:
        rig.apply(secured(rig, **change))

        def said(words: str = words) -> Json | None:
            found = rig.condition("job", "Planned")
            return found if found is not None and words in found["message"] else None

        condition = eventually(said, f"the refusal speaks of {words}")
        assert (condition["status"], condition["reason"]) == ("False", "InvalidTemplate")
        assert "violates PodSecurity" in condition["message"]
        for kind in ("deployments", "statefulsets", "pods", "services"):
            assert rig.objects(kind) == [], kind
    rig.apply(secured(rig))
    rig.wait_condition("job", "Ready", "True")
    assert all(pod["spec"]["securityContext"]["runAsNonRoot"] for pod in rig.objects("pods"))


def test_a_quota_that_refuses_pods_is_said_on_the_job(rig: Rig, gpu_nodes: GpuNodes) -> None:
    gpu_nodes(2, product="NVIDIA-H100-80GB-HBM3")
    quota = {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "few", "namespace": rig.namespace},
        "spec": {"hard": {"pods": "3"}},
    }
    rig.plane.apply(yaml.safe_dump(quota))
    rig.start_operator()
    rig.apply(job(rig.namespace))
    found = rig.wait_condition("job", "Scheduled", "False", "QuotaExceeded")
    assert "few" in found["message"]
    assert len(rig.objects("pods")) <= 3


def test_the_operator_may_read_no_secret_and_hand_out_no_rights(plane: ControlPlane, account: Path) -> None:
    api = client.AuthorizationV1Api(config.new_client_from_config(str(account)))

    def may(verb: str, resource: str, group: str = "", sub: str = "", namespace: str = "") -> bool:
        asked = client.V1ResourceAttributes(
            verb=verb, group=group, resource=resource, subresource=sub, namespace=namespace
        )
        review = client.V1SelfSubjectAccessReview(spec=client.V1SelfSubjectAccessReviewSpec(resource_attributes=asked))
        return bool(api.create_self_subject_access_review(review).status.allowed)

    rbac = "rbac.authorization.k8s.io"
    asked: list[tuple[str, ...]] = [
        *((verb, "secrets") for verb in ("get", "list", "watch", "create", "update", "patch", "delete")),
        ("create", "serviceaccounts", "", "token"),
        ("create", "serviceaccounts"),
        *(
            (verb, "pods", "", sub)
            for verb, sub in (("create", "exec"), ("get", "exec"), ("create", "attach"), ("create", "eviction"))
        ),
        ("get", "pods", "", "log"),
        *((verb, "pods") for verb in ("delete", "update")),
        *(
            (verb, kind, rbac)
            for verb in ("create", "bind", "escalate", "update")
            for kind in ("roles", "clusterroles")
        ),
        *(("create", kind, rbac) for kind in ("rolebindings", "clusterrolebindings")),
        *(("impersonate", kind) for kind in ("users", "groups", "serviceaccounts")),
        *((verb, "nodes") for verb in ("update", "patch", "delete")),
        *((verb, "rljobs", "rljob.dev") for verb in ("create", "update", "patch", "delete")),
        *(
            (verb, "customresourcedefinitions", "apiextensions.k8s.io")
            for verb in ("create", "update", "patch", "delete")
        ),
        *(
            ("create", kind, "admissionregistration.k8s.io")
            for kind in ("validatingwebhookconfigurations", "mutatingwebhookconfigurations")
        ),
        ("create", "daemonsets", "apps"),
        ("create", "jobs", "batch"),
        ("*", "*", "*"),
    ]
    assert [each for each in asked if may(*each)] == []
    assert [each for each in asked if may(*each, *("",) * (4 - len(each)), "kube-system")] == []
    assert may("list", "rljobs", "rljob.dev"), "the question itself is answered"


@pytest.fixture
def elsewhere(plane: ControlPlane) -> Iterator[str]:
    """A namespace of another tenant."""
    name = f"other-{secrets.token_hex(4)}"
    plane.create_namespace(name)
    yield name
    plane.kubectl("delete", "namespace", name, "--wait=false", check=False)
    plane.api.request("DELETE", f"/api/v1/namespaces/{name}/pods", {"gracePeriodSeconds": 0})


def test_children_stay_in_the_namespace_of_their_job_and_belong_to_it(
    rig: Rig, gpu_nodes: GpuNodes, elsewhere: str
) -> None:
    """With it, what another tenant's labels can do: nothing. And the status page shows the job all the while."""
    first, _ = gpu_nodes(2, product="NVIDIA-H100-80GB-HBM3")
    port = free_ports(1)[0]
    rig.start_operator(RLJOB_OPERATOR_METRICS_PORT=str(port), RLJOB_OPERATOR_STATUS_PAGE="true")
    tempting = {
        "template": {"metadata": {"namespace": elsewhere, "name": "mine"}, "spec": {"serviceAccountName": "default"}}
    }
    rig.apply(merged(job(rig.namespace, gpus=8), {"spec": {"sampler": tempting, "trainer": tempting}}))
    rig.wait_condition("job", "Ready", "True")
    created = rig.get("rljob", "job")
    assert created is not None
    uid = created["metadata"]["uid"]
    pods = {pod["metadata"]["name"] for pod in rig.objects("pods")}
    for kind in ("deployments", "services", "configmaps"):
        for child in rig.objects(kind, f"{UID}={uid}"):
            (owner,) = child["metadata"]["ownerReferences"]
            assert (owner["uid"], owner["controller"], owner["blockOwnerDeletion"]) == (uid, True, True)
    for path in ("/api/v1/pods", "/apis/apps/v1/deployments", "/api/v1/services", "/api/v1/configmaps"):
        found = rig.plane.api.request("GET", f"{path}?labelSelector={urllib.parse.quote(f'{UID}={uid}')}")
        assert {item["metadata"]["namespace"] for item in found["items"]} == {rig.namespace}, path

    layout = rig.get("configmap", "job-layout")
    rig.plane.apply(yaml.safe_dump_all(spoofs(elsewhere, uid, first)))
    eventually(
        lambda: (
            rig.plane.api.request("GET", f"/api/v1/namespaces/{elsewhere}/pods/spoof")["status"].get("phase")
            == "Running"
        ),
        "the other tenant's pod runs",
    )
    passes = metric(port, "rljob_operator_reconcile_seconds_count")
    eventually(
        lambda: metric(port, "rljob_operator_reconcile_seconds_count") >= passes + 3, "three more passes over the job"
    )
    assert metric(port, "rljob_operator_held_gpus") == 8, "a pod elsewhere is no pod of the job"
    ready = rig.condition("job", "Ready")
    assert ready is not None
    assert ready["status"] == "True"
    assert {pod["metadata"]["name"] for pod in rig.objects("pods")} == pods
    assert rig.get("configmap", "job-layout") == layout
    spoof = rig.plane.api.request("GET", f"/api/v1/namespaces/{elsewhere}/pods/spoof")
    assert not [
        key for key in spoof["metadata"].get("annotations") or {} if "rljob.dev" in key or "deletion-cost" in key
    ]
    page = json.loads(fetched(port, "/api/jobs"))
    (shown,) = [each for each in page["jobs"] if each["uid"] == uid]
    assert (shown["namespace"], shown["name"], shown["phase"]) == (rig.namespace, "job", "Running")
    assert f"/jobs/{rig.namespace}/job" in fetched(port, "/")


def spoofs(namespace: str, uid: str, node: str) -> list[Json]:
    """A pod and a layout in ``namespace`` that carry all the labels of a job elsewhere."""
    labels = {UID: uid, ROLE: "sampler", NAME: "job", MANAGED_BY: "rljob-operator"}
    return [
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "spoof", "namespace": namespace, "labels": labels},
            "spec": {
                "nodeName": node,
                "tolerations": [{"operator": "Exists"}],
                "containers": [{"name": "c", "image": "i", "resources": {"limits": {GPU: "4"}}}],
            },
        },
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": "job-layout", "namespace": namespace, "labels": labels},
            "data": {"layout.json": '{"generation": 99, "phase": "steady", "samplers": {"endpoints": []}}'},
        },
    ]


def fetched(port: int, path: str) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as response:
        return str(response.read().decode())


def metric(port: int, name: str) -> float:
    """The only series of a metric."""
    lines = [line for line in fetched(port, "/metrics").splitlines() if line.startswith((f"{name} ", f"{name}{{"))]
    return sum(float(line.rpartition(" ")[2]) for line in lines)


NASTY = (
    '"',
    "\\",
    '"} or up{a="',
    "\n",
    "a|b",
    ".*",
    "(",
    "[",
    "$",
    "é",
    "\u2028",
    "\x00",
    "`",
    "'",
    "a b",
    "#",
    "~",
    "&",
    "-",
)


def test_prometheus_itself_reads_any_text_as_one_literal(rig: Rig) -> None:
    prometheus = rig.start_prometheus()

    def parsed(selector: str) -> list[Json]:
        query = urllib.parse.urlencode({"query": f'{{job="x",{selector}}}'})
        with urllib.request.urlopen(f"{prometheus.url}/api/v1/parse_query?{query}", timeout=10) as response:
            found: list[Json] = json.load(response)["data"]["matchers"]
            return found

    for text in NASTY:
        _, matcher = parsed(promql.matches("pod", text))
        assert (matcher["name"], matcher["type"], matcher["value"]) == ("pod", "=", text)
        _, matcher = parsed(promql.matches_any("pod", (promql.literal(text), "other")))
        assert (matcher["type"], matcher["value"]) == ("=~", f"{promql.literal(text)}|other")
