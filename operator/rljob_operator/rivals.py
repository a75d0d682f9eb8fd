"""Other autoscalers on a job's workloads. Pure.

Two that scale one workload fight: each undoes what the other did, and the job pays for both. So while there is another, the operator
leaves that workload's replicas alone, holds its moves, and says who has to go. What it never leaves alone is the budget: pods beyond
the split stay behind their gates.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from rljob_operator import gate
from rljob_operator.children import another_autoscaler, samplers_name, trainers_name
from rljob_operator.rebalance import Targets
from rljob_planner.api.spec import RLJob

Workload = Mapping[str, Any] | None


@dataclass(frozen=True)
class Rival:
    """A HorizontalPodAutoscaler (KEDA makes one for each ScaledObject) that scales a child."""

    role: str
    name: str
    """Name of the HorizontalPodAutoscaler."""
    child: str
    """Name of the workload that it scales."""


def rivals_of(job: RLJob, autoscalers: Iterable[Mapping[str, Any]]) -> tuple[Rival, ...]:
    """The autoscalers of the job's namespace that scale one of its children."""
    hpas = tuple(autoscalers)
    found = []
    for role, child in ((gate.SAMPLER, samplers_name(job)), (gate.TRAINER, trainers_name(job))):
        name = another_autoscaler(hpas, child)
        if name is not None:
            found.append(Rival(role, name, child))
    return tuple(found)


def words(rivals: tuple[Rival, ...], namespace: str) -> str:
    """Who scales what, and what a person can do about it."""
    who = " and ".join(f"HorizontalPodAutoscaler {r.name} scales {r.child}" for r in rivals)
    names = " ".join(r.name for r in rivals)
    return (
        f"{who}: two autoscalers would undo each other's work, so the job's moves are held and those replicas are left alone. "
        f"Delete it: kubectl -n {namespace} delete hpa {names} (one of KEDA's goes with its ScaledObject)"
    )


def left_alone(targets: Targets, rivals: tuple[Rival, ...], samplers: Workload, trainers: Workload) -> Targets:
    """The replicas to write: those that a rival's workload has, and the targets elsewhere."""
    roles = {rival.role for rival in rivals}

    def of(role: str, workload: Workload, target: int) -> int:
        if role not in roles or workload is None:
            return target
        return int(workload["spec"].get("replicas", 1))

    return Targets(of(gate.SAMPLER, samplers, targets.samplers), of(gate.TRAINER, trainers, targets.trainers))
