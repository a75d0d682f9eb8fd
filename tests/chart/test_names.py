"""Names and labels that users choose: text whatever YAML takes them for, and each key once, since parsers take the last of two in silence."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from dev.chart import Json, helm_template, objects, render
from dev.kubetools import HELM_MAJORS
from tests.chart.cases import NO_CRDS


@pytest.mark.parametrize("major", HELM_MAJORS)
@pytest.mark.parametrize("word", ["123", "1e3", "null", "on"])
def test_names_that_yaml_takes_for_something_else_stay_text(word: str, major: int) -> None:
    values: Json = {**NO_CRDS, "fullnameOverride": word, "watchNamespaces": [word], "priorityClassName": word}
    values |= {"monitoring": {"podMonitor": {"enabled": True}, "jobs": {"enabled": True, "ports": {"driver": [word]}}}}
    values |= {"serviceAccount": {"name": word}, "dashboards": {"enabled": True}, "networkPolicy": {"enabled": True}}
    found = render({**values, "leaderElection": {"leaseName": word}}, release=word, namespace=word, major=major)
    text = _strings(found)
    assert {obj["metadata"]["name"] for obj in found if obj["kind"] in ("Deployment", "NetworkPolicy")} == {word}
    assert text >= {("metadata", "namespace"), ("subjects", "name"), ("roleRef", "name"), ("env", "value")}
    assert {obj["metadata"]["labels"]["app.kubernetes.io/instance"] for obj in found} == {word}


def _strings(found: list[Json]) -> set[tuple[str, str]]:
    """Where names and the like stand, after a look that each is text."""
    seen = set()

    def walk(value: Any, above: str, key: str) -> None:
        if isinstance(value, dict):
            for name, below in value.items():
                walk(below, above if isinstance(value, list) else key, name)
        elif isinstance(value, list):
            for below in value:
                walk(below, above, key)
        elif key in (
            "name",
            "namespace",
            "value",
            "serviceAccountName",
            "priorityClassName",
            "resourceNames",
            "matchNames",
        ):
            assert isinstance(value, str), (above, key, value)
            seen.add((above, key))

    for obj in found:
        walk(obj, "", "")
    return seen


@pytest.mark.parametrize("major", HELM_MAJORS)
def test_labels_of_two_values_are_there_once(major: int) -> None:
    own = {"release": "own", "empty": ""}
    values: Json = {**NO_CRDS, "commonLabels": {"release": "common", "empty": "not", "team": "ml"}, "podLabels": own}
    values |= {"monitoring": {"podMonitor": {"enabled": True}, "additionalLabels": own}}
    values |= {"rules": {"recording": {"enabled": True}, "additionalLabels": own}}
    values |= {"dashboards": {"enabled": True, "labels": own}}
    values |= {"podAnnotations": {"kubectl.kubernetes.io/default-container": "sidecar"}}
    text = helm_template(values, major=major)
    for document in yaml.compose_all(text, Loader=yaml.CSafeLoader):
        _no_key_twice(document)
    found = {obj["kind"]: obj for obj in objects(text)}
    template = found["Deployment"]["spec"]["template"]["metadata"]
    for metadata in (template, *(found[kind]["metadata"] for kind in ("PodMonitor", "PrometheusRule", "ConfigMap"))):
        assert metadata["labels"].items() >= {**own, "team": "ml"}.items()
    assert found["Deployment"]["metadata"]["labels"]["release"] == "common"
    assert template["annotations"] == {"kubectl.kubernetes.io/default-container": "sidecar"}


def _no_key_twice(node: Any) -> None:
    """Parsers take the last of two keys without a word."""
    if isinstance(node, yaml.MappingNode):
        keys = [key.value for key, _ in node.value]
        assert len(keys) == len(set(keys)), keys
        for _, below in node.value:
            _no_key_twice(below)
    elif isinstance(node, yaml.SequenceNode):
        for below in node.value:
            _no_key_twice(below)
