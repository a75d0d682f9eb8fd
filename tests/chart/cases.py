"""The installations that the chart's tests look at, and how they are rendered: once for each set of values and each helm."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

from dev.chart import Json, helm_template, objects

DIGEST = "sha256:" + "0123456789abcdef" * 4
NO_CRDS: Json = {"crds": {"install": False}}

_PEER = [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}]

CASES: Mapping[str, Json] = {
    "defaults": {},
    "highly-available": {
        **NO_CRDS,
        "replicas": 2,
        "priorityClassName": "system-cluster-critical",
        "leaderElection": {"leaseName": "the-lease", "leaseDuration": "20s"},
    },
    "namespaced": {**NO_CRDS, "watchNamespaces": ["team-a", "team-b"], "replicas": 2, "fullnameOverride": "rl"},
    "monitored": {
        **NO_CRDS,
        "monitoring": {
            "additionalLabels": {"release": "kube-prometheus-stack"},
            "interval": "30s",
            "podMonitor": {"enabled": True},
            "serviceMonitor": {"enabled": False},
            "jobs": {"enabled": True},
        },
        "rules": {"recording": {"enabled": True}, "alerts": {"enabled": True}},
        "dashboards": {"enabled": True, "namespace": "monitoring", "folder": "RL"},
        "metrics": {"serviceAnnotations": {"prometheus.io/scrape": "true"}},
        "statusPage": {"enabled": True},
    },
    "digest": {**NO_CRDS, "image": {"repository": "images/rl", "tag": "ignored", "digest": DIGEST}},
    "few-rights": {
        **NO_CRDS,
        "rbac": {"aggregate": False, "features": {"profiles": False, "companions": False, "openshift": False}},
    },
    "no-rights": {**NO_CRDS, "rbac": {"create": False}, "serviceAccount": {"create": False, "name": "given"}},
    "openshift": {**NO_CRDS, "rbac": {"features": {"openshift": True}}},
    "prometheus-with-tls": {
        **NO_CRDS,
        "prometheus": {
            "url": "https://prometheus.monitoring:9091",
            "allowedUrls": ["https://other.monitoring", "http://plain.monitoring:9090/path"],
            "caConfigMap": {"name": "authorities"},
            "bearerTokenSecret": {"name": "token", "key": "bearer"},
            "bearerTokenUrls": ["https://other.monitoring"],
        },
        "networkPolicy": {"enabled": True, "metricsFrom": _PEER, "prometheusTo": _PEER, "apiServerPorts": [6443]},
    },
    "extras": {
        "nameOverride": "operator",
        "crds": {"keep": False, "annotations": {"example.com/by": "hand"}},
        "commonLabels": {"team": "ml"},
        "imagePullSecrets": [{"name": "pull"}],
        "serviceAccount": {"annotations": {"example.com/role": "reader"}},
        "compiledCode": "emptyDir",
        "podAnnotations": {"example.com/a": "b"},
        "podLabels": {"example.com/c": "d"},
        "nodeSelector": {"kubernetes.io/os": "linux"},
        "tolerations": [{"key": "control-plane", "operator": "Exists", "effect": "NoSchedule"}],
        "affinity": {"nodeAffinity": {}},
        "topologySpreadConstraints": [
            {"maxSkew": 1, "topologyKey": "topology.kubernetes.io/zone", "whenUnsatisfiable": "ScheduleAnyway"}
        ],
        "extraEnv": [{"name": "HTTPS_PROXY", "value": "http://proxy:3128"}],
        "extraVolumes": [{"name": "more", "emptyDir": {}}],
        "extraVolumeMounts": [{"name": "more", "mountPath": "/more"}],
        "extraObjects": [
            {
                "apiVersion": "v1",
                "kind": "ConfigMap",
                "metadata": {"name": '{{ include "rljob-operator.fullname" . }}-map'},
                "data": {"namespace": "{{ .Release.Namespace }}"},
            },
            "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: {{ .Release.Name }}-text\n",
        ],
    },
}
"""Values by the name of what they are about; together they set all that the chart has a template for."""

NAMESPACE = "rljob-system"
RELEASE = "release"


@functools.cache
def rendered_text(case: str, major: int = 4) -> str:
    """What ``helm template`` writes for a case."""
    return helm_template(CASES[case], release=RELEASE, namespace=NAMESPACE, major=major)


@functools.cache
def _rendered(case: str, major: int) -> tuple[Json, ...]:
    return tuple(objects(rendered_text(case, major)))


def rendered(case: str, major: int = 4) -> list[Json]:
    """The objects of a case."""
    return list(_rendered(case, major))


def key(obj: Json) -> tuple[str, str, str]:
    """Kind, namespace and name."""
    return obj["kind"], obj["metadata"].get("namespace", ""), obj["metadata"]["name"]


def of_kind(case: str, kind: str) -> list[Json]:
    """The objects of one kind."""
    return [obj for obj in rendered(case) if obj["kind"] == kind]


def one(case: str, kind: str, suffix: str = "") -> Json:
    """The only object of a kind whose name ends so."""
    found = [obj for obj in of_kind(case, kind) if obj["metadata"]["name"].endswith(suffix)]
    assert len(found) == 1, [key(obj) for obj in found]
    return found[0]


def deployment(case: str) -> Json:
    """The operator's Deployment."""
    return one(case, "Deployment")


def pod(case: str) -> Json:
    """The spec of the operator's pods."""
    spec: Json = deployment(case)["spec"]["template"]["spec"]
    return spec


def container(case: str) -> Json:
    """The operator's container."""
    found: Json = pod(case)["containers"][0]
    return found


def environment(case: str) -> dict[str, Any]:
    """The environment of the operator; a variable from elsewhere has what it refers to."""
    return {e["name"]: e.get("value", e.get("valueFrom")) for e in container(case)["env"]}
