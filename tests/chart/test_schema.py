"""What the chart refuses: values of another name or type, and combinations that could not work, each with words that help."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import jsonschema
import pytest
import yaml

from dev.chart import CHART, ChartError, Json, helm_template
from dev.kubetools import HELM_MAJORS
from rljob_planner.api.base import DURATION_PATTERN
from tests.chart.cases import CASES, NO_CRDS, environment

SCHEMA: Json = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))
VALUES: Json = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))


def resolved(schema: Json) -> Json:
    reference = schema.get("$ref")
    return SCHEMA["definitions"][reference.removeprefix("#/definitions/")] if reference else schema


def objects_of(schema: Json, path: str = "") -> Iterator[tuple[str, Json]]:
    """Every object of the schema that names its properties."""
    schema = resolved(schema)
    if "properties" in schema:
        yield path, schema
        for name, below in schema["properties"].items():
            yield from objects_of(below, f"{path}.{name}".strip("."))


def test_the_schema_is_one_and_takes_the_defaults_and_all_cases() -> None:
    jsonschema.Draft7Validator.check_schema(SCHEMA)
    for values in ({}, VALUES, *CASES.values()):
        jsonschema.validate(values, SCHEMA, cls=jsonschema.Draft7Validator)


def test_unknown_keys_are_refused_at_every_level() -> None:
    open_ = [path for path, schema in objects_of(SCHEMA) if schema.get("additionalProperties") is not False]
    # An item of a list of volumes and the like is Kubernetes' own, and so are resources and contexts.
    assert open_ == []


def test_schema_and_values_name_the_same_keys() -> None:
    for path, schema in objects_of(SCHEMA):
        found: Any = VALUES
        for name in filter(None, path.split(".")):
            found = found.get(name, {}) if isinstance(found, dict) else {}
        if path.startswith(("probes.", "resources")):
            assert set(found) <= set(schema["properties"]), path
        else:
            assert set(found) == set(schema["properties"]) - {"global"}, path


def test_durations_are_those_of_the_operator() -> None:
    assert SCHEMA["definitions"]["duration"]["pattern"] == DURATION_PATTERN


def test_alerts_that_may_be_disabled_are_those_of_the_chart() -> None:
    files = sorted((CHART / "alerts").glob("*.yaml"))
    rules = [rule for file in files for group in yaml.safe_load(file.read_text())["groups"] for rule in group["rules"]]
    disabled = SCHEMA["properties"]["rules"]["properties"]["alerts"]["properties"]["disabled"]
    assert disabled["items"]["enum"] == [rule["alert"] for rule in rules if "alert" in rule]


@pytest.mark.parametrize("major", HELM_MAJORS)
@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"rules": {"alerts": {"disabled": ["RLJobThrashes"]}}}, ["/rules/alerts/disabled/0", "RLJobThrash"]),
        ({"replica": 2}, ["additional properties 'replica' not allowed"]),
        ({"image": {"tga": "x"}}, ["/image", "additional properties 'tga' not allowed"]),
        ({"replicas": "2"}, ["/replicas", "got string, want integer"]),
        ({"replicas": 5}, ["/replicas", "maximum"]),
        ({"image": {"tag": 1.5}}, ["/image/tag", "got number, want string"]),
        ({"image": {"digest": "sha256:abc"}}, ["/image/digest", "pattern"]),
        ({"operator": {"moveTick": 5}}, ["/operator/moveTick", "got number, want string"]),
        ({"operator": {"moveTick": "5 s"}}, ["/operator/moveTick", "'5 s' does not match pattern"]),
        ({"watchNamespaces": "team-a"}, ["/watchNamespaces", "got string, want array"]),
        ({"watchNamespaces": ["team-*"]}, ["/watchNamespaces/0", "pattern"]),
        ({"crds": {"keep": "false"}}, ["/crds/keep", "got string, want boolean"]),
        ({"commonLabels": {"a": True}}, ["/commonLabels/a", "got boolean, want string"]),
        ({"prometheus": {"url": "prometheus:9090"}}, ["/prometheus/url", "pattern"]),
        ({"prometheus": {"url": "https://user:word@p:9090"}}, ["/prometheus/url", "pattern"]),
        ({"prometheus": {"url": "https://p:9090/?a=b"}}, ["/prometheus/url", "pattern"]),
        ({"prometheus": {"allowedUrls": ["https://p#a"]}}, ["/prometheus/allowedUrls/0", "pattern"]),
        ({"extraArgs": ["--verbose"]}, ["additional properties 'extraArgs' not allowed"]),
        ({"metrics": {"port": 80}}, ["/metrics/port", "minimum"]),
        ({"compiledCode": "disk"}, ["/compiledCode", "one of"]),
        ({"extraEnv": {"A": "b"}}, ["/extraEnv", "got object, want array"]),
        ({"extraEnv": [{"name": "A", "value": 1}]}, ["/extraEnv/0/value", "got number, want string"]),
    ],
    ids=lambda each: json.dumps(each) if isinstance(each, dict) else "",
)  # fmt: skip
def test_a_wrong_value_is_refused_with_its_path(values: Json, words: list[str], major: int) -> None:
    with pytest.raises(ChartError) as refused:
        helm_template(values, major=major)
    assert all(word in str(refused.value) for word in words), str(refused.value)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        (
            {"prometheus": {"caConfigMap": {"name": "a"}, "caSecret": {"name": "b"}}},
            ["prometheus.caConfigMap.name", "prometheus.caSecret.name", "leave the other empty"],
        ),
        (
            {"prometheus": {"bearerTokenSecret": {"name": "a"}, "bearerTokenFile": "/b"}},
            ["prometheus.bearerTokenSecret.name", "prometheus.bearerTokenFile", "leave the other empty"],
        ),
        (
            {"prometheus": {"url": "http://p:9090", "bearerTokenFile": "/b"}},
            ["prometheus.url is http://p:9090", "use https://"],
        ),
        (
            {"prometheus": {"bearerTokenUrls": ["https://p"]}},
            ["https://p is not one of prometheus.allowedUrls", "add it there"],
        ),
        ({"metrics": {"port": 8080}}, ["metrics.port and health.port are both 8080"]),
        (
            {"prometheus": {"bearerTokenUrls": ["http://p"], "allowedUrls": ["http://p"], "bearerTokenFile": "/b"}},
            ["prometheus.bearerTokenUrls: http://p", "use https://"],
        ),
        ({"extraEnv": [{"name": "RLJOB_OPERATOR_NAMESPACES", "value": "a"}]}, ["it comes from watchNamespaces"]),
        ({"extraEnv": [{"name": "A", "value": "a"}, {"name": "A", "value": "b"}]}, ["extraEnv sets A twice"]),
        (
            {"podLabels": {"app.kubernetes.io/instance": "a"}},
            ["podLabels sets app.kubernetes.io/instance", "leave it out"],
        ),
        ({"commonLabels": {"app.kubernetes.io/version": "1"}}, ["commonLabels sets app.kubernetes.io/version"]),
        (
            {"monitoring": {"additionalLabels": {"helm.sh/chart": "a"}}},
            ["monitoring.additionalLabels sets helm.sh/chart"],
        ),
        ({"operator": {"idleTick": "10m"}}, ["operator.idleTick is 10m", "at most 120s"]),
        ({"operator": {"idleTick": "2m1ms"}}, ["operator.idleTick is 2m1ms"]),
        ({"operator": {"moveTick": "0s"}}, ["operator.moveTick is 0s", "above zero"]),
        ({"operator": {"metricsWindow": "0m0s"}}, ["operator.metricsWindow is 0m0s", "above zero"]),
        ({"prometheus": {"scrapeInterval": "0ms"}}, ["prometheus.scrapeInterval is 0ms", "above zero"]),
        ({"leaderElection": {"leaseDuration": "15.5s"}}, ["leaderElection.leaseDuration is 15.5s", "whole seconds"]),
        (
            {"leaderElection": {"leaseDuration": "5s"}},
            ["renewDeadline (10s)", "leaseDuration (5s)", "two replicas could lead"],
        ),
        ({"leaderElection": {"renewPeriod": "10s"}}, ["renewPeriod (10s)", "grow in this order"]),
    ],
    ids=lambda each: each[0][:30] if isinstance(each, list) else "",
)
def test_what_can_not_work_together_is_refused_with_what_to_do(values: Json, words: list[str]) -> None:
    with pytest.raises(ChartError) as refused:
        helm_template({**NO_CRDS, **values})
    assert all(word in str(refused.value) for word in words), str(refused.value)


def test_what_works_together_is_taken() -> None:
    for values in (
        {"operator": {"idleTick": "120s"}, "leaderElection": {"leaseDuration": "1m", "renewDeadline": "59.9s"}},
        {"operator": {"idleTick": "1m60s", "moveTick": "1ms"}},
        {"prometheus": {"url": "http://localhost:9090/path", "bearerTokenFile": "/b"}},
        {
            "prometheus": {
                "allowedUrls": ["http://[::1]:9"],
                "bearerTokenUrls": ["http://[::1]:9"],
                "bearerTokenFile": "/b",
            }
        },
        {"extraEnv": [{"name": "NUMBA_CACHE_DIR", "value": "/a"}, {"name": "A", "value": "b"}]},
    ):
        assert helm_template({**NO_CRDS, **values})


def test_every_variable_of_the_chart_is_refused_as_an_extra_one() -> None:
    for name in environment("prometheus-with-tls") | environment("monitored") | environment("namespaced"):
        with pytest.raises(ChartError, match=f"extraEnv sets {name}, which the chart sets itself: it comes from "):
            helm_template({**NO_CRDS, "extraEnv": [{"name": name, "value": "a"}]})
