"""What the chart makes of its values, by both helms: objects that Kubernetes takes, with no more rights than are stated."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
import yaml

from dev.chart import CHART, ROOT, Json, render
from dev.kubetools import HELM_MAJORS
from tests.chart.cases import (
    CASES,
    DIGEST,
    NAMESPACE,
    NO_CRDS,
    RELEASE,
    container,
    deployment,
    environment,
    key,
    of_kind,
    one,
    pod,
    rendered,
    rendered_text,
)

VERSIONS = ("1.31", "1.33", "1.35", "1.37")
NOT_IN_KUBERNETES = {"PodMonitor", "ServiceMonitor", "PrometheusRule"}
"""Kinds that somebody else's CRDs describe."""
TOO_DEEP = {"CustomResourceDefinition"}
"""Its schema refers to itself: the API server judges it, in tests/cluster."""


@pytest.mark.parametrize("case", CASES)
def test_both_helms_make_the_same_objects(case: str) -> None:
    found = {major: {key(obj): obj for obj in rendered(case, major)} for major in HELM_MAJORS}
    first, *others = found.values()
    assert all(other == first for other in others)
    assert len(first) == len(rendered(case)), "two objects of one name"
    assert "<no value>" not in rendered_text(case)


@pytest.mark.parametrize("version", VERSIONS)
def test_kubernetes_knows_every_field(version: str) -> None:
    import kubernetes_validate

    # Many cases share objects; each kind of object is judged once.
    judged = {
        json.dumps(obj, sort_keys=True): (case, obj)
        for case in CASES
        for obj in rendered(case)
        if obj["kind"] not in NOT_IN_KUBERNETES | TOO_DEEP
    }
    assert {obj["kind"] for _, obj in judged.values()} >= {"Deployment", "Role", "NetworkPolicy", "PodDisruptionBudget"}
    wrong = []
    for case, obj in judged.values():
        try:
            kubernetes_validate.validate(obj, version, strict=True)
        except kubernetes_validate.ValidationError as error:
            wrong.append((case, key(obj), str(error)))
    assert wrong == []


def test_a_field_that_kubernetes_does_not_know_is_found() -> None:
    import kubernetes_validate

    broken = copy.deepcopy(deployment("defaults"))
    broken["spec"]["template"]["spec"]["automountToken"] = True
    with pytest.raises(kubernetes_validate.ValidationError, match="automountToken"):
        kubernetes_validate.validate(broken, VERSIONS[0], strict=True)


def test_by_default_there_is_the_operator_and_nothing_else() -> None:
    assert sorted(key(obj) for obj in rendered("defaults")) == sorted(
        [
            ("ClusterRole", "", f"{RELEASE}-rljob-operator"),
            ("ClusterRole", "", f"{RELEASE}-rljob-operator-admin"),
            ("ClusterRole", "", f"{RELEASE}-rljob-operator-edit"),
            ("ClusterRole", "", f"{RELEASE}-rljob-operator-view"),
            ("ClusterRoleBinding", "", f"{RELEASE}-rljob-operator"),
            ("CustomResourceDefinition", "", "rljobprofiles.rljob.dev"),
            ("CustomResourceDefinition", "", "rljobs.rljob.dev"),
            ("Deployment", NAMESPACE, f"{RELEASE}-rljob-operator"),
            ("Pod", NAMESPACE, f"{RELEASE}-rljob-operator-test"),
            ("Role", NAMESPACE, f"{RELEASE}-rljob-operator-leader"),
            ("RoleBinding", NAMESPACE, f"{RELEASE}-rljob-operator-leader"),
            ("Service", NAMESPACE, f"{RELEASE}-rljob-operator-metrics"),
            ("ServiceAccount", NAMESPACE, f"{RELEASE}-rljob-operator"),
        ]
    )


@pytest.mark.parametrize("case", CASES)
def test_every_object_is_labelled_and_in_its_namespace(case: str) -> None:
    unscoped = {"ClusterRole", "ClusterRoleBinding", "CustomResourceDefinition"}
    ours = [obj for obj in rendered(case) if "extra" not in case or obj["kind"] != "ConfigMap"]
    for obj in ours:
        labels = obj["metadata"]["labels"]
        assert labels["app.kubernetes.io/instance"] == RELEASE, key(obj)
        assert labels["app.kubernetes.io/managed-by"] == "Helm", key(obj)
        assert labels["helm.sh/chart"].startswith("rljob-operator-"), key(obj)
        assert ("namespace" in obj["metadata"]) == (obj["kind"] not in unscoped), key(obj)
        assert all(isinstance(v, str) for v in labels.values()), key(obj)
        assert labels.get("team") == CASES[case].get("commonLabels", {}).get("team"), key(obj)


def test_names_follow_the_release_unless_told_otherwise() -> None:
    assert deployment("defaults")["metadata"]["name"] == "release-rljob-operator"
    assert deployment("extras")["metadata"]["name"] == "release-operator"
    assert deployment("namespaced")["metadata"]["name"] == "rl"


# ---- CRDs


@pytest.mark.parametrize("source", sorted((ROOT / "crds").glob("*.yaml")), ids=lambda path: path.stem)
def test_the_charts_crd_is_that_of_the_repository(source: Any) -> None:
    copy = CHART / "files" / "crds" / source.name
    assert copy.read_text(encoding="utf-8") == source.read_text(encoding="utf-8"), "run `python -m dev.crds`"
    wanted = yaml.load(source.read_text(encoding="utf-8"), Loader=yaml.CSafeLoader)
    found = one("defaults", "CustomResourceDefinition", wanted["metadata"]["name"])
    assert found["metadata"].pop("annotations") == {"helm.sh/resource-policy": "keep"}
    assert found["metadata"].pop("labels")
    assert found == wanted


def test_the_chart_has_every_crd() -> None:
    assert sorted(f.name for f in (CHART / "files" / "crds").iterdir()) == sorted(
        f.name for f in (ROOT / "crds").glob("*.yaml")
    )
    assert not (CHART / "crds").exists(), "helm would install those once and never upgrade them"


def test_crds_go_with_the_release_only_where_that_is_asked_for() -> None:
    for found in of_kind("extras", "CustomResourceDefinition"):
        assert found["metadata"]["annotations"] == {"example.com/by": "hand"}
    assert not of_kind("highly-available", "CustomResourceDefinition")


# ---- Rights


def rules(case: str) -> list[tuple[Json, Json]]:
    return [(obj, rule) for obj in rendered(case) if obj["kind"] in ("ClusterRole", "Role") for rule in obj["rules"]]


@pytest.mark.parametrize("case", CASES)
def test_no_role_reaches_further_than_rljobs_and_their_children(case: str) -> None:
    for role, rule in rules(case):
        named = (role["metadata"]["name"], rule)
        assert "*" not in rule["apiGroups"] + rule["resources"] + rule["verbs"], named
        assert not {"secrets", "pods/exec", "serviceaccounts", "clusterroles", "roles"} & set(rule["resources"]), named
        assert not {"escalate", "bind", "impersonate"} & set(rule["verbs"]), named
        assert "nonResourceURLs" not in rule, named
        aggregated = any("aggregate-to" in label for label in role["metadata"]["labels"])
        if not aggregated:
            assert not ("rljobs" in rule["resources"] and set(rule["verbs"]) - {"get", "list", "watch"}), named
            removed = set(rule["resources"]) if "delete" in rule["verbs"] else set()
            assert removed <= {"deployments", "services", "networkpolicies"}, named


def granted(case: str, kind: str, suffix: str = "") -> set[tuple[str, str]]:
    """Resources and verbs of the operator's roles of one kind."""
    found = set()
    for role, rule in rules(case):
        aggregated = any("aggregate-to" in label for label in role["metadata"]["labels"])
        if role["kind"] == kind and not aggregated and role["metadata"]["name"].endswith(suffix):
            found |= {(resource, verb) for resource in rule["resources"] for verb in rule["verbs"]}
    return found


def test_in_namespaces_of_its_own_it_may_do_the_same_and_outside_only_look_at_nodes() -> None:
    everywhere = granted("defaults", "ClusterRole")
    outside = granted("namespaced", "ClusterRole")
    inside = granted("namespaced", "Role", "rl")
    assert outside == {("nodes", "list"), ("nodes", "watch")}
    # Which kinds there are is asked at the start alone: to follow that would take a right to all of them.
    assert everywhere - (inside | outside) == {
        ("customresourcedefinitions", "list"),
        ("customresourcedefinitions", "watch"),
    }
    assert inside < everywhere


def test_namespaces_of_its_own_get_a_role_and_a_binding_each() -> None:
    for kind in ("Role", "RoleBinding"):
        assert sorted(key(obj)[1:] for obj in of_kind("namespaced", kind)) == [
            (NAMESPACE, "rl-leader"), ("team-a", "rl"), ("team-b", "rl"),
        ]  # fmt: skip
    for binding in of_kind("namespaced", "RoleBinding") + of_kind("namespaced", "ClusterRoleBinding"):
        assert binding["subjects"] == [{"kind": "ServiceAccount", "name": "rl", "namespace": NAMESPACE}]
    assert environment("namespaced")["RLJOB_OPERATOR_NAMESPACES"] == "team-a,team-b"
    # Several such installations may have one name, each in a namespace of its own.
    assert one("namespaced", "ClusterRoleBinding")["metadata"]["name"] == f"rl-{NAMESPACE}"


def test_what_is_not_used_can_be_left_out() -> None:
    usual, few = granted("defaults", "ClusterRole"), granted("few-rights", "ClusterRole")
    assert few < usual
    assert {resource for resource, verb in usual - few if verb == "delete"} == {
        "deployments",
        "services",
        "networkpolicies",
    }
    assert "rljobprofiles" not in {resource for resource, _ in few}
    assert not any(verb == "delete" for _, verb in few)
    assert granted("openshift", "ClusterRole") - usual == {("rljobs/finalizers", "update")}


def test_without_rbac_there_is_no_role_at_all() -> None:
    assert not [obj for obj in rendered("no-rights") if "Role" in obj["kind"]]
    assert not of_kind("no-rights", "ServiceAccount")
    assert pod("no-rights")["serviceAccountName"] == "given"


def test_a_standby_may_take_part_in_the_election_and_nothing_else() -> None:
    role = one("highly-available", "Role", "-leader")
    assert granted("highly-available", "Role") == {("leases", "create"), ("leases", "get"), ("leases", "patch")}
    assert [rule.get("resourceNames") for rule in role["rules"]] == [None, ["the-lease"]]
    assert environment("highly-available")["RLJOB_OPERATOR_LEASE_NAME"] == "the-lease"
    assert (
        environment("highly-available")["RLJOB_OPERATOR_LEASE_NAMESPACE"] == NAMESPACE == role["metadata"]["namespace"]
    )


def test_people_read_or_write_jobs_by_the_roles_that_they_have() -> None:
    roles = {obj["metadata"]["name"].rsplit("-", 1)[-1]: obj for obj in of_kind("defaults", "ClusterRole")}
    for name in ("view", "edit", "admin"):
        assert roles[name]["metadata"]["labels"][f"rbac.authorization.k8s.io/aggregate-to-{name}"] == "true"
        verbs = {verb for rule in roles[name]["rules"] for verb in rule["verbs"]}
        assert verbs >= {"get", "list", "watch"}
        assert ("create" in verbs) == (name != "view")
        # What a job's status says is what the operator goes on from: nobody else writes it.
        status = [rule["verbs"] for rule in roles[name]["rules"] if "rljobs/status" in rule["resources"]]
        assert status == [["get"]]


# ---- The pod


def pod_specs(case: str) -> list[Json]:
    return [pod(case), *(obj["spec"] for obj in of_kind(case, "Pod"))]


@pytest.mark.parametrize("case", CASES)
def test_pods_keep_to_the_restricted_standard(case: str) -> None:
    for spec in pod_specs(case):
        assert not {"hostNetwork", "hostPID", "hostIPC"} & set(spec)
        context = spec["securityContext"]
        assert context["runAsNonRoot"] is True
        assert context["seccompProfile"] == {"type": "RuntimeDefault"}
        if case == "openshift":
            assert "runAsUser" not in context, "its namespaces have user ids of their own"
        else:
            assert context["runAsUser"] == 65532
        for volume in spec.get("volumes", []):
            assert set(volume) - {"name"} <= {"emptyDir", "configMap", "secret"}
        for each in spec["containers"]:
            own = each["securityContext"]
            assert own["allowPrivilegeEscalation"] is False
            assert own["readOnlyRootFilesystem"] is True
            assert own["capabilities"] == {"drop": ["ALL"]}
            assert "privileged" not in own
            assert {"cpu", "memory"} <= set(each["resources"]["requests"])
            assert "memory" in each["resources"]["limits"]


@pytest.mark.parametrize("case", CASES)
def test_the_token_goes_to_the_pods_that_ask_for_it_alone(case: str) -> None:
    for account in of_kind(case, "ServiceAccount"):
        assert account["automountServiceAccountToken"] is False
    for spec in pod_specs(case):
        assert spec["automountServiceAccountToken"] is True


def test_one_replica_is_gone_before_the_next_begins_and_two_roll() -> None:
    alone, two = deployment("defaults")["spec"], deployment("highly-available")["spec"]
    assert (alone["replicas"], alone["strategy"]) == (1, {"type": "Recreate"})
    assert (two["replicas"], two["strategy"]["type"]) == (2, "RollingUpdate")
    assert two["strategy"]["rollingUpdate"]["maxUnavailable"] == 0
    assert not of_kind("defaults", "PodDisruptionBudget")
    assert one("highly-available", "PodDisruptionBudget")["spec"]["maxUnavailable"] == 1
    assert two["template"]["spec"]["topologySpreadConstraints"][0]["topologyKey"] == "kubernetes.io/hostname"


@pytest.mark.parametrize("replicas", [0, 1, 2, 3])
def test_an_operator_that_runs_steps_back_for_another_however_many_there_are(replicas: int) -> None:
    """The number may change while one runs: its environment can't."""
    found = render({**NO_CRDS, "replicas": replicas}, release=RELEASE)
    (operator,) = (obj["spec"]["template"] for obj in found if obj["kind"] == "Deployment")
    env = {e["name"]: e.get("value", e.get("valueFrom")) for e in operator["spec"]["containers"][0]["env"]}
    assert env["RLJOB_OPERATOR_LEADER_ELECTION"] == "true"
    assert env["RLJOB_OPERATOR_IDENTITY"] == {"fieldRef": {"fieldPath": "metadata.name"}}
    assert env == environment("defaults")
    assert {obj["metadata"]["name"] for obj in found if obj["kind"] == "Role"} == {f"{RELEASE}-rljob-operator-leader"}


def test_the_image_is_that_of_the_charts_version_or_of_a_digest() -> None:
    version = yaml.safe_load((CHART / "Chart.yaml").read_text(encoding="utf-8"))["appVersion"]
    assert container("defaults")["image"] == f"rljob-operator:{version}"
    assert container("digest")["image"] == f"images/rl@{DIGEST}"
    assert of_kind("digest", "Pod")[0]["spec"]["containers"][0]["image"] == f"images/rl@{DIGEST}"


def test_probes_ask_where_the_operator_answers() -> None:
    found = container("defaults")
    ports = {port["name"]: port["containerPort"] for port in found["ports"]}
    assert environment("defaults")["RLJOB_OPERATOR_LIVENESS_ENDPOINT"] == f"http://0.0.0.0:{ports['health']}/healthz"
    assert environment("defaults")["RLJOB_OPERATOR_METRICS_PORT"] == str(ports["metrics"])
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        assert found[probe]["httpGet"] == {"path": "/healthz", "port": "health"}
        # A stalled operator shows in an answer that does not come: kopf's own answers are up to 10 s old.
        assert found[probe]["timeoutSeconds"] >= 5


def test_the_service_leads_to_the_operator_and_not_to_the_test() -> None:
    service = one("defaults", "Service", "-metrics")["spec"]
    assert service["selector"] == deployment("defaults")["spec"]["selector"]["matchLabels"]
    operators = deployment("defaults")["spec"]["template"]["metadata"]["labels"]
    assert service["selector"].items() <= operators.items()
    assert not service["selector"].items() <= one("defaults", "Pod")["metadata"]["labels"].items()
    assert {port["name"]: port["port"] for port in service["ports"]} == {"metrics": 9090, "health": 8080}


def test_what_prometheus_needs_is_mounted_and_named() -> None:
    env = environment("prometheus-with-tls")
    mounts = {mount["name"]: mount for mount in container("prometheus-with-tls")["volumeMounts"]}
    volumes = {volume["name"]: volume for volume in pod("prometheus-with-tls")["volumes"]}
    for variable, name, kind in (
        ("RLJOB_OPERATOR_PROMETHEUS_CA_FILE", "prometheus-ca", "configMap"),
        ("RLJOB_OPERATOR_PROMETHEUS_BEARER_TOKEN_FILE", "prometheus-token", "secret"),
    ):
        folder, _, file = env[variable].rpartition("/")
        assert mounts[name]["mountPath"] == folder
        assert mounts[name]["readOnly"] is True
        assert [item["path"] for item in volumes[name][kind]["items"]] == [file]
    assert volumes["prometheus-token"]["secret"]["items"][0]["key"] == "bearer"
    assert env["RLJOB_OPERATOR_PROMETHEUS_BEARER_TOKEN_URLS"] == "https://other.monitoring"
    assert "volumes" not in pod("defaults")


def test_the_network_policy_opens_the_ports_of_every_prometheus() -> None:
    assert not of_kind("defaults", "NetworkPolicy")
    policy = one("prometheus-with-tls", "NetworkPolicy")["spec"]
    assert policy["podSelector"]["matchLabels"] == deployment("defaults")["spec"]["selector"]["matchLabels"]
    ports = [[port["port"] for port in rule["ports"]] if "ports" in rule else None for rule in policy["egress"]]
    # A policy sees the pods' ports: OpenShift's DNS listens on 5353, and a Prometheus behind a Service on whatever it likes.
    assert ports == [[53, 53, 5353, 5353], [6443], None]
    assert policy["egress"][-1] == {"to": CASES["prometheus-with-tls"]["networkPolicy"]["prometheusTo"]}
    metrics, health = policy["ingress"]
    assert metrics["ports"] == [{"port": "metrics"}]
    test, monitoring = metrics["from"]
    labels = one("prometheus-with-tls", "Pod")["metadata"]["labels"]
    assert test["podSelector"]["matchLabels"].items() <= labels.items()
    assert monitoring["namespaceSelector"]["matchLabels"]["kubernetes.io/metadata.name"] == "monitoring"
    assert health == {"ports": [{"port": "health"}]}


@pytest.mark.parametrize(
    ("policy", "rule"),
    [
        ({}, {"ports": [{"port": 9090}, {"port": 80}]}),
        ({"prometheusPorts": [8080]}, {"ports": [{"port": 8080}]}),
        ({"prometheusTo": [{"podSelector": {}}]}, {"to": [{"podSelector": {}}]}),
        (
            {"prometheusTo": [{"podSelector": {}}], "prometheusPorts": [8080]},
            {"ports": [{"port": 8080}], "to": [{"podSelector": {}}]},
        ),
    ],
    ids=["nothing", "ports", "peers", "both"],
)
def test_the_way_to_prometheus_is_by_its_peers_or_its_pods_ports(policy: Json, rule: Json) -> None:
    values = {"networkPolicy": {"enabled": True, **policy}}
    values["prometheus"] = {"url": "http://prometheus.monitoring", "allowedUrls": ["http://other:9090"]}
    (found,) = render(values, templates=["templates/networkpolicy.yaml"])
    assert found["spec"]["egress"][2:] == [rule]


def test_extras_arrive_where_they_belong() -> None:
    template = deployment("extras")["spec"]["template"]
    assert template["metadata"]["annotations"]["example.com/a"] == "b"
    assert template["metadata"]["labels"]["example.com/c"] == "d"
    spec = template["spec"]
    assert spec["imagePullSecrets"] == [{"name": "pull"}]
    assert spec["nodeSelector"] == {"kubernetes.io/os": "linux"}
    assert spec["tolerations"][0]["key"] == "control-plane"
    assert spec["topologySpreadConstraints"][0]["topologyKey"] == "topology.kubernetes.io/zone"
    found = spec["containers"][0]
    assert "args" not in found, "the entry point takes none"
    assert environment("extras")["HTTPS_PROXY"] == "http://proxy:3128"
    mounts = {mount["name"]: mount["mountPath"] for mount in found["volumeMounts"]}
    assert mounts == {"compiled-code": environment("extras")["NUMBA_CACHE_DIR"], "more": "/more"}
    assert {volume["name"] for volume in spec["volumes"]} == set(mounts)
    assert one("extras", "ServiceAccount")["metadata"]["annotations"] == {"example.com/role": "reader"}


def test_templates_in_extra_objects_are_rendered() -> None:
    assert one("extras", "ConfigMap", "-map")["metadata"]["name"] == "release-operator-map"
    assert one("extras", "ConfigMap", "-map")["data"] == {"namespace": NAMESPACE}
    assert one("extras", "ConfigMap", "-text")["metadata"]["name"] == f"{RELEASE}-text"


def test_openshift_is_found_where_helm_sees_the_cluster() -> None:
    templates = ["templates/clusterrole.yaml", "templates/deployment.yaml"]
    found = {obj["kind"]: obj for obj in render(templates=templates, api_versions=["security.openshift.io/v1"])}
    assert any("rljobs/finalizers" in rule["resources"] for rule in found["ClusterRole"]["rules"])
    assert "runAsUser" not in found["Deployment"]["spec"]["template"]["spec"]["securityContext"]
    plain = {obj["kind"]: obj for obj in rendered("defaults")}
    assert "runAsUser" in plain["Deployment"]["spec"]["template"]["spec"]["securityContext"]
