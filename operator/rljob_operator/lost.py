"""Pods on machines that are lost: what they hold, until when, and what a person can do. Pure.

Kubernetes can't tell a machine that is dead from one that it does not reach. So the pods of an unreachable node stay Terminating and
keep their GPUs, and a StatefulSet's are not even replaced: the containers may still run, and a trainer that runs twice
ruins its checkpoints. The budget counts them as it counts all pods, and that is right; but nothing ends this by itself, so that it
must be said, with the name of the node.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from rljob_operator import gate
from rljob_operator.fleet import condition_of

NODE_LOST = "NodeLost"
"""Reason of ``Degraded``."""

Json = Mapping[str, Any]


def lost_nodes(
    pods: Iterable[gate.Pod], node_of: Callable[[str], Json | None], gpu_resources: Collection[str]
) -> tuple[tuple[str, str], ...]:
    """Reason and message for each node that does not answer while pods of the job hold GPUs on it.

    ``node_of`` gives a node by its name, None if there is none: then Kubernetes removes the pods by itself.
    """
    stranded: dict[str, list[gate.Pod]] = {}
    for pod in pods:
        where = str((pod.get("spec") or {}).get("nodeName") or "")
        if where and gate.is_held(pod) and (gate.is_terminating(pod) or not gate.is_ready(pod)):
            stranded.setdefault(where, []).append(pod)
    found = []
    for name, theirs in sorted(stranded.items()):
        node = node_of(name)
        ready = None if node is None else condition_of(node, "Ready")
        if ready is None or ready.get("status") == "True":
            continue
        gpus = gate.held_gpus(theirs, gpu_resources)
        words = (
            f"node {name} is not ready since {ready.get('lastTransitionTime', 'some time')} ({ready.get('reason', 'no reason')}): "
            f"{len(theirs)} pods of this job on it hold {gpus} GPUs until they are gone, and what replaces them waits. If its machine "
            f"is known to be dead, say so: kubectl delete node {name}, or kubectl taint node {name} "
            "node.kubernetes.io/out-of-service=dead:NoExecute; else bring it back"
        )
        found.append((NODE_LOST, words))
    return tuple(found)
