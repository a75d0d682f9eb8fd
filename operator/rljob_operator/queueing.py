"""Kueue, and whoever else holds pods back by a scheduling gate. Pure.

Kueue queues pods, not RLJobs: each pod that carries a queue's label is created with Kueue's own gate, and starts when its quota
is there. So the label of the RLJob goes to the workloads and pods that hold GPUs, and a pod then has two gates. They are
independent: ours is lifted while the budget has room, theirs while the queue has; only with neither can the scheduler bind it.

For the budget a pod counts as holding its GPUs once our gate is lifted, however long Kueue takes: it may be bound at any moment
after. So waiting in a queue can make a job smaller than its split, but never larger than its budget.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rljob_operator.gate import GATE, Pod, has_ended, is_gated, is_terminating
from rljob_planner.api.spec import Resize, RLJob, TrainerKind

QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
"""Label that names the LocalQueue; on an RLJob it is handed on to the pods that hold GPUs."""

PRIORITY_LABEL = "kueue.x-k8s.io/priority-class"
"""Label that names the WorkloadPriorityClass; handed on in the same way."""

KUEUE_GATES = ("kueue.x-k8s.io/admission", "kueue.x-k8s.io/topology", "kueue.x-k8s.io/elastic-job")
"""Scheduling gates of Kueue: quota, topology, workload slices."""

WAITING = "WaitingForKueue"
"""Reason of ``Scheduled`` while pods wait in a queue."""

WAITING_ELSEWHERE = "WaitingForGate"
"""Reason of ``Scheduled`` while pods wait at a gate that nobody here knows."""


def labels_of(job: RLJob) -> dict[str, str]:
    """The labels of the RLJob that its workloads and pods with GPUs carry on."""
    labels: Mapping[str, Any] = job.metadata.get("labels") or {}
    return {key: str(labels[key]) for key in (QUEUE_LABEL, PRIORITY_LABEL) if labels.get(key)}


def queue_of(job: RLJob) -> str | None:
    """The LocalQueue that the job's pods wait in, None for a job of no queue."""
    return labels_of(job).get(QUEUE_LABEL)


def refusal(job: RLJob) -> str | None:
    """Why a job can't be queued as it is written, with what to write instead; None if it can.

    Kueue takes a StatefulSet as one group of pods, whose size changes through zero alone, so its trainers may restart and not grow.
    """
    trainer = job.spec.trainer
    if queue_of(job) is None or trainer.kind is not TrainerKind.STATEFUL_SET or trainer.resize is not Resize.ELASTIC:
        return None
    return (
        f"trainer.kind is StatefulSet and trainer.resize is elastic, but the job is in the Kueue queue {queue_of(job)}, and Kueue lets a "
        "StatefulSet change its replicas through zero alone: write trainer.resize: restart (or fixed), or trainer.kind: Deployment"
    )


def waits_at(pod: Pod) -> str | None:
    """The gate of somebody else at which a pod waits that the budget lets go; None if it waits at none."""
    spec = pod.get("spec") or {}
    if is_gated(pod) or spec.get("nodeName") or has_ended(pod) or is_terminating(pod):
        return None
    return next((str(g.get("name")) for g in spec.get("schedulingGates") or () if g.get("name") != GATE), None)


def words(gates: Sequence[str], namespace: str, queue: str | None) -> tuple[str, str]:
    """Reason and message for pods that wait at gates of others, one entry a pod."""
    pods = "1 pod waits" if len(gates) == 1 else f"{len(gates)} pods wait"
    if all(gate in KUEUE_GATES for gate in gates):
        where = "Kueue's gate" if queue is None else f"Kueue's gate, in queue {queue}"
        return WAITING, (
            f"{pods} at {where}: kubectl -n {namespace} get workloads shows what for; they start once the ClusterQueue has quota, "
            "meanwhile they count in the budget and hold no node. Raise the quota, or lower spec.gpus to what it allows"
        )
    names = ", ".join(sorted({gate for gate in gates if gate not in KUEUE_GATES}))
    return WAITING_ELSEWHERE, (
        f"{pods} at a scheduling gate that is not the operator's ({names}): whoever set it has to lift it; meanwhile the pods count in "
        "the budget and hold no node"
    )


def held_words(gates: Sequence[str]) -> str:
    """What pods wait for that are held by gates of others alone, and where to look, for the words of a move."""
    if all(gate in KUEUE_GATES for gate in gates):
        return "they wait at Kueue's gate for quota: kubectl get workloads shows what for"
    return f"they wait at a scheduling gate that is not the operator's ({', '.join(sorted(set(gates)))}): whoever set it has to lift it"
