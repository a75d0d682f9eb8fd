"""Simulated nodes and the stages of their life are well-formed before any server sees them."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from dev.controlplane.nodes import NodeSpec, is_schedulable, parse_shape, parse_taint
from dev.controlplane.stages import kwok_config


def test_nodes_carry_gpus_product_and_zones() -> None:
    spec = NodeSpec(3, gpus_per_node=4, product="NVIDIA-L40S", zones=("a", "b"), name_prefix="n", labels={"team": "x"})
    nodes = spec.objects()
    assert [node["metadata"]["name"] for node in nodes] == spec.names == ["n-0", "n-1", "n-2"]
    labels = [node["metadata"]["labels"] for node in nodes]
    assert [label["topology.kubernetes.io/zone"] for label in labels] == ["a", "b", "a"]
    assert {(label["nvidia.com/gpu.product"], label["team"]) for label in labels} == {("NVIDIA-L40S", "x")}
    assert all(node["status"]["allocatable"]["nvidia.com/gpu"] == "4" for node in nodes)


def test_nodes_without_gpus_do_not_claim_any() -> None:
    (node,) = NodeSpec(1, gpus_per_node=0).objects()
    assert not [key for key in node["metadata"]["labels"] if key.startswith("nvidia.com/")]
    assert "nvidia.com/gpu" not in node["status"]["capacity"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("nvidia.com/gpu:NoSchedule", {"key": "nvidia.com/gpu", "effect": "NoSchedule"}),
        ("a=b:NoExecute", {"key": "a", "value": "b", "effect": "NoExecute"}),
    ],
)
def test_taints_are_read_as_kubectl_writes_them(text: str, expected: dict[str, str]) -> None:
    assert parse_taint(text) == expected


@pytest.mark.parametrize("text", ["nvidia.com/gpu", ":NoSchedule", "a=b:Never", ""])
def test_what_is_no_taint_is_refused_with_the_form(text: str) -> None:
    with pytest.raises(ValueError, match="write key=value:Effect"):
        parse_taint(text)


def test_shapes() -> None:
    assert parse_shape("8x8") == (8, 8)
    for wrong in ("8", "8x", "x8", "-1x8", "8x8x8"):
        with pytest.raises(ValueError, match="for example 8x8"):
            parse_shape(wrong)


@pytest.mark.parametrize(
    ("ready", "taints", "expected"),
    [
        ("True", [], True),
        ("False", [], False),
        ("True", [{"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}], False),
        ("True", [{"key": "nvidia.com/gpu", "effect": "NoSchedule"}], True),
    ],
)
def test_a_node_is_schedulable_when_ready_and_cleared(ready: str, taints: list[dict[str, str]], expected: bool) -> None:
    node: dict[str, Any] = {"spec": {"taints": taints}, "status": {"conditions": [{"type": "Ready", "status": ready}]}}
    assert is_schedulable(node) is expected
    assert is_schedulable({"status": {}}) is False


def test_the_stages_hold_no_chance() -> None:
    stages = list(yaml.safe_load_all(kwok_config()))
    assert {stage["kind"] for stage in stages} == {"Stage"}
    assert len({stage["metadata"]["name"] for stage in stages}) == len(stages)
    for stage in stages:
        assert not [key for key in stage["spec"].get("delay", {}) if key.startswith("jitter")]
        assert "weight" not in stage["spec"], "stages must exclude each other by their selectors"
