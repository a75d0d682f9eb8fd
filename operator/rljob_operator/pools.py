"""Which pool a sampler goes to, and what becomes of a pool whose nodes are lost. Pure.

All samplers are one Deployment, whose pods wait behind the budget gate. A pod that is gated may still be told where to run, so each gets
its pool when its gate is lifted: a node selector and a label. So a move counts samplers and not pools, no template changes when
pools do, and limits of a pool hold although the scheduler knows nothing of them.

A pool without a single ready node or pod is lost. Its pods can't be waited for: an unreachable node never says that they have ended. After a
while the split gives them up, so that the job counts as whole again and goes on with what is left. Their GPUs still count in the
budget until the API server shows the pods as gone: whether a lost node still computes, nobody knows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rljob_operator.eligibility import is_node_ready, pool_of
from rljob_operator.gate import (
    SAMPLER,
    Pod,
    has_ended,
    is_gated,
    is_held,
    is_ready,
    is_terminating,
    name_of,
    natural,
    role_of,
    uid_of,
)
from rljob_operator.observation import epoch_s
from rljob_planner.api.pools import SamplerPool
from rljob_planner.api.spec import RLJobSpec
from rljob_planner.split import PoolSplit, Split

POOL_LABEL = "rljob.dev/pool"
"""Label with the pool of a sampler pod, set when its gate is lifted."""


@dataclass(frozen=True)
class Lost:
    """A pool without a ready node."""

    name: str
    nodes: int
    """Nodes that are there and not ready."""
    since_s: float | None
    """When the last of them was lost, in epoch seconds; None if nobody says."""

    def words(self) -> str:
        """What is the matter with it."""
        if not self.nodes:
            return f"pool {self.name} has no node left"
        which = "its node is not" if self.nodes == 1 else f"none of its {self.nodes} nodes is"
        return f"pool {self.name} is lost: {which} ready"


def lost_pools(
    spec: RLJobSpec, nodes: Callable[[], Iterable[Mapping[str, Any]]], pods: Iterable[Pod] = ()
) -> dict[str, Lost]:
    """The pools of a job that have no ready node, by name; empty for a job without pools, or where no node is seen at all.

    A pool with a ready pod among ``pods`` is there although no node carries its label: whoever takes a label off a node stops nothing that
    runs on it. What a pod on a node that is not ready said last counts for nothing.
    """
    if not spec.sampler.pools:
        return {}
    of_pool: dict[str, list[Mapping[str, Any]]] = {pool.name: [] for pool in spec.sampler.pools}
    seen, silent = False, set()
    for node in nodes():
        seen = True
        if not is_node_ready(node):
            silent.add(str(node["metadata"]["name"]))
        pool = pool_of(spec, node)
        if pool is not None:
            of_pool[pool.name].append(node)
    if not seen:
        return {}
    serving = {
        pool_name(pod)
        for pod in pods
        if is_ready(pod) and not is_terminating(pod) and pod["spec"].get("nodeName") not in silent
    }
    return {
        name: Lost(name, len(theirs), max((s for node in theirs if (s := _lost_at_s(node)) is not None), default=None))
        for name, theirs in of_pool.items()
        if name not in serving and not any(is_node_ready(node) for node in theirs)
    }


def _lost_at_s(node: Mapping[str, Any]) -> float | None:
    for condition in (node.get("status") or {}).get("conditions") or ():
        if condition.get("type") == "Ready" and condition.get("lastTransitionTime"):
            return epoch_s(str(condition["lastTransitionTime"]))
    return None


def pool_name(pod: Pod) -> str | None:
    """The pool that a pod was sent to, None before its gate is lifted."""
    found = ((pod.get("metadata") or {}).get("labels") or {}).get(POOL_LABEL)
    return None if found is None else str(found)


def given_up(pods: Iterable[Pod], lost: Collection[str]) -> frozenset[str]:
    """Names of the pods that nobody waits for: they are being deleted on nodes of a lost pool, and may never end."""
    return frozenset(name_of(pod) for pod in pods if is_terminating(pod) and pool_name(pod) in lost)


def doomed(pods: Iterable[Pod], lost: Collection[str]) -> tuple[str, ...]:
    """Names of the pods of lost pools that nobody deletes yet: should the samplers become fewer, these are to go."""
    return tuple(name_of(pod) for pod in pods if pool_name(pod) in lost and not is_terminating(pod))


def pins(
    spec: RLJobSpec, split: Split, pods: Sequence[Pod], lifted: Collection[str], lost: Collection[str]
) -> dict[str, SamplerPool]:
    """The pool of each gated sampler among ``lifted`` (uids), by uid.

    A pod goes where the split wants most more than there are; with none wanting, to the pool that is least over. Never to a lost pool if
    there is another, and never over ``maxGPUs`` if there is room elsewhere.
    """
    if not spec.sampler.pools:
        return {}
    wanted = {pool.name: pool.replicas for pool in split.samplers.pools or ()}
    staying = [p for p in pods if role_of(p) == SAMPLER and not is_terminating(p) and not has_ended(p)]
    live = Counter(name for p in staying if is_held(p) and (name := pool_name(p)) is not None)
    # What is being deleted still holds GPUs of its pool.
    held = Counter(name for p in pods if role_of(p) == SAMPLER and is_held(p) and (name := pool_name(p)) is not None)
    found: dict[str, SamplerPool] = {}
    for pod in sorted((p for p in staying if is_gated(p) and uid_of(p) in lifted), key=lambda p: natural(name_of(p))):

        def order(pool: SamplerPool) -> tuple[bool, bool, int]:
            full = pool.max_gpus is not None and (held[pool.name] + 1) * split.samplers.gpus_per_replica > pool.max_gpus
            return pool.name in lost, full, live[pool.name] - wanted.get(pool.name, 0)

        pool = min(spec.sampler.pools, key=order)
        found[uid_of(pod)] = pool
        live[pool.name] += 1
        held[pool.name] += 1
    return found


def without(split: Split, spec: RLJobSpec, lost: Collection[str], pods: Iterable[Pod]) -> Split | None:
    """The split without the samplers of lost pools; None if it has none there, or none elsewhere to go on with.

    Not fewer than are alive on other pools, and not fewer than ``sampler.minReplicas``.
    """
    s = split.samplers
    there = sum(pool.replicas for pool in s.pools or () if pool.name in lost)
    if not there:
        return None
    alive = sum(
        is_held(pod) and pool_name(pod) not in lost
        for pod in pods
        if role_of(pod) == SAMPLER and not is_terminating(pod) and not has_ended(pod)
    )
    if not alive:
        return None
    replicas = max(s.replicas - there, min(alive, s.replicas), spec.sampler.min_replicas)
    if replicas >= s.replicas:
        replicas = s.replicas
    pools = tuple(PoolSplit(name=p.name, replicas=0 if p.name in lost else p.replicas) for p in s.pools or ())
    return split.model_copy(update={"samplers": s.model_copy(update={"replicas": replicas, "pools": pools})})
