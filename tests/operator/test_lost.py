"""Pods on machines that do not answer: counted, named, and what to do about them."""

from __future__ import annotations

from typing import Any

from rljob_operator.lost import NODE_LOST, lost_nodes
from tests.operator.objects import node, pod

GPU = frozenset({"nvidia.com/gpu"})


def nodes(**status: str | None) -> Any:
    found = {}
    for name, ready in status.items():
        if ready is not None:
            found[name] = node(name)
            found[name]["status"]["conditions"] = [
                {
                    "type": "Ready",
                    "status": ready,
                    "reason": "NodeStatusUnknown",
                    "lastTransitionTime": "2026-01-01T00:00:00Z",
                }
            ]
    return found.get


def test_what_a_lost_node_holds_is_said_with_what_to_do() -> None:
    pods = [
        pod("a", 4, node="dead", terminating=True),
        pod("b", 2, node="dead", terminating=True),
        pod("c", 8, node="alive"),
    ]
    ((reason, message),) = lost_nodes(pods, nodes(dead="Unknown", alive="True"), GPU)
    assert reason == NODE_LOST
    assert "node dead is not ready since 2026-01-01T00:00:00Z" in message
    assert "2 pods of this job on it hold 6 GPUs" in message
    assert "kubectl delete node dead" in message


def test_pods_that_leave_a_node_that_answers_are_no_loss() -> None:
    pods = [pod("a", 4, node="alive", terminating=True), pod("b", 4, gated=True, phase="Pending")]
    assert lost_nodes(pods, nodes(alive="True"), GPU) == ()


def test_a_node_that_is_gone_or_not_seen_yet_is_left_to_kubernetes() -> None:
    pods = [pod("a", 4, node="gone", terminating=True)]
    assert lost_nodes(pods, nodes(gone=None), GPU) == ()


def test_a_pod_that_ended_by_itself_holds_nothing_on_a_lost_node() -> None:
    assert lost_nodes([pod("a", 4, node="dead", phase="Failed")], nodes(dead="Unknown"), GPU) == ()
