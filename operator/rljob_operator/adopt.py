"""Workloads that exist already, read as a split: how many replicas of how many GPUs sample and train now. Pure.

A job that adopts has no children. What it runs on is read from the workloads that it names: replicas and GPUs from their specs, pods
by their selectors. What can't be seen from outside is taken to be what the planner would choose for this very split: how a trainer
shards its model, and the in-flight cap until the metrics show what is in flight.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from rljob_operator import promql
from rljob_operator.arguments import argument, count
from rljob_operator.eligibility import nodes_of
from rljob_operator.gate import NAME_LABEL, ROLE_LABEL, UID_LABEL, Pod, pod_gpus
from rljob_operator.quantity import QuantityError
from rljob_operator.readings import Telemetry
from rljob_operator.status import Verdict
from rljob_planner.api.spec import RLJobSpec, TargetRef
from rljob_planner.split import SamplerSplit, Split, TrainerSplit

MAX_RUNNING = 256
"""Running samples of a sampler that neither ``sampler.maxRunning`` nor its arguments state: vLLM's default."""

CAP_STEP = 0.1
"""Share by which samples in flight must differ from the cap that was seen before to be another cap."""

_TENSOR_PARALLEL = ("--tensor-parallel-size", "-tp")
_MAX_RUNNING = ("--max-num-seqs",)


@dataclass(frozen=True)
class Side:
    """One adopted workload."""

    role: str
    kind: str
    name: str
    replicas: int
    """Pods that its spec asks for."""
    gpus: int
    """GPUs of one pod."""
    template: Mapping[str, Any]
    """Its pod template."""
    selector: Mapping[str, Any]
    """Its label selector."""

    def label_selector(self) -> str:
        """Its label selector as a query writes it; empty if it selects nothing."""
        return selector_text(self.selector)

    def argument(self, *names: str) -> int | None:
        """The number that an argument of its first container states, None if none of ``names`` does."""
        return count(argument(self.template, *names))


def selector_text(selector: Mapping[str, Any]) -> str:
    """A label selector as a query writes it; empty if it selects nothing."""
    parts = [f"{key}={value}" for key, value in (selector.get("matchLabels") or {}).items()]
    for expression in selector.get("matchExpressions") or ():
        key, values = expression.get("key"), ",".join(expression.get("values") or ())
        match expression.get("operator"):
            case "In":
                parts.append(f"{key} in ({values})")
            case "NotIn":
                parts.append(f"{key} notin ({values})")
            case "Exists":
                parts.append(str(key))
            case "DoesNotExist":
                parts.append(f"!{key}")
    return ",".join(parts)


def read_side(spec: RLJobSpec, role: str, ref: TargetRef, workload: Mapping[str, Any] | None) -> Side | Verdict:
    """A workload as a side of a split, or the verdict for ``Planned`` that says why it can't be one."""
    where = f"{ref.kind} {ref.name}"
    if workload is None:
        return Verdict(
            False,
            "TargetMissing",
            f"{where}, the {role}s' targetRef, is not there: create it in the job's namespace, or correct {role}.targetRef",
        )
    group = (workload.get("metadata") or {}).get("labels", {}).get("leaderworkerset.sigs.k8s.io/name")
    if group is not None:
        return Verdict(
            False,
            "TargetIsAGroup",
            f"{where} belongs to the LeaderWorkerSet {group}, whose replicas are groups of pods: a replica is one pod here, so its GPUs "
            f"would be miscounted; adopt workloads whose replicas are single pods, or leave {role}.targetRef out",
        )
    found = workload.get("spec") or {}
    template, resource = found.get("template") or {}, nodes_of(spec, role).gpu_resource
    try:
        gpus = pod_gpus(template, resource)
    except QuantityError as error:
        return Verdict(False, "TargetWithoutGPUs", f"the GPUs of {where} can't be read: {error}; correct its resources")
    if gpus < 1:
        return Verdict(
            False,
            "TargetWithoutGPUs",
            f"the pods of {where} ask for no {resource}, so there is nothing to split: name the resource that counts its GPUs in "
            f"{role}.nodes.gpuResource, or correct {role}.targetRef",
        )
    replicas = int(found.get("replicas", 1))
    return Side(role, ref.kind, ref.name, replicas, gpus, template, found.get("selector") or {})


def labelled(pods: Iterable[Pod], role: str, job: str, uid: str) -> list[dict[str, Any]]:
    """The pods of a side as if they carried the labels of the job; only these copies do."""
    found = []
    for pod in pods:
        meta = pod["metadata"]
        labels = {**(meta.get("labels") or {}), NAME_LABEL: job, ROLE_LABEL: role, UID_LABEL: uid}
        found.append({**pod, "metadata": {**meta, "labels": labels}})
    return sorted(found, key=lambda pod: str(pod["metadata"]["name"]))


def in_place(pods: Iterable[Pod], mine: Iterable[Pod]) -> list[Pod]:
    """All pods of the cluster, with the job's own in the place of those that are the same."""
    own = {pod["metadata"]["uid"]: pod for pod in mine}
    return [*(pod for pod in pods if pod["metadata"].get("uid") not in own), *own.values()]


def carries_uid(pods: Iterable[Pod], uid: str) -> bool:
    """Whether all pods of the sides, as they are, carry the job's uid in their labels, so that their metrics can be found by it."""
    pods = tuple(pods)
    return bool(pods) and all((p["metadata"].get("labels") or {}).get(UID_LABEL) == uid for p in pods)


def series_of(namespace: str, sides: Iterable[Side]) -> str:
    """Labels by which Prometheus finds the series of the sides' pods: namespace and names, which every common scrape keeps.

    The names are those that the workloads give to their pods, so that a pod which is replaced stays in the series.
    """
    patterns = []
    for side in sides:
        name = promql.literal(side.name)
        patterns.append(f"{name}-[0-9]+" if side.kind == "StatefulSet" else f"{name}-[a-z0-9]+-[a-z0-9]+")
    return f"{promql.matches('namespace', namespace)},{promql.matches_any('pod', patterns)}"


def described(spec: RLJobSpec, samplers: Side, trainers: Side) -> RLJobSpec:
    """The spec with the templates and the widths of the workloads, as if the job had been written with them."""
    sampler = spec.sampler.model_copy(
        update={
            "gpus_per_replica": samplers.gpus,
            "max_running": spec.sampler.max_running or samplers.argument(*_MAX_RUNNING),
            "template": dict(samplers.template),
        }
    )
    trainer = spec.trainer.model_copy(update={"gpus_per_replica": trainers.gpus, "template": dict(trainers.template)})
    return spec.model_copy(update={"sampler": sampler, "trainer": trainer})


def pinned(spec: RLJobSpec, samplers: Side, trainers: Side) -> RLJobSpec:
    """The described spec with no other split than the one in force, to ask the planner how it would be laid out."""
    gpus = samplers.replicas * samplers.gpus + trainers.replicas * trainers.gpus
    sampler = spec.sampler.model_copy(
        update={"min_replicas": max(1, samplers.replicas), "max_replicas": max(1, samplers.replicas)}
    )
    trainer = spec.trainer.model_copy(
        update={"min_replicas": max(1, trainers.replicas), "max_replicas": max(1, trainers.replicas)}
    )
    return spec.model_copy(update={"gpus": max(2, gpus), "sampler": sampler, "trainer": trainer})


def split_of(spec: RLJobSpec, samplers: Side, trainers: Side, laid_out: Split | None) -> Split:
    """The split in force; parallelism and in-flight cap are those of ``laid_out``, or plain ones where the planner has none."""
    width = samplers.argument(*_TENSOR_PARALLEL) or samplers.gpus
    running = spec.sampler.max_running or (laid_out.samplers.max_running if laid_out else MAX_RUNNING)
    gpus = trainers.replicas * trainers.gpus
    plain = TrainerSplit(replicas=trainers.replicas, gpus_per_replica=trainers.gpus, dp=max(1, gpus), tp=1, pp=1, ep=1)
    parallel = plain if laid_out is None else laid_out.trainers.model_copy(update={"replicas": trainers.replicas})
    batch = spec.workload.samples_per_step
    return Split(
        mode="async",
        samplers=SamplerSplit(
            replicas=samplers.replicas, gpus_per_replica=samplers.gpus, tensor_parallel=width, max_running=running
        ),
        trainers=parallel,
        in_flight=laid_out.in_flight if laid_out else batch,
    )


def with_cap_seen(spec: RLJobSpec, split: Split | None, telemetry: Telemetry) -> Split | None:
    """The split with the in-flight cap that the framework seems to keep: what is in flight, in whole groups.

    A cap can't be seen, only what it admits; a change by less than ``CAP_STEP`` is the noise of that.
    """
    seen, group = telemetry.in_flight_samples.value, spec.workload.samples_per_prompt
    if split is None or not seen or seen < group:
        return split
    cap = math.ceil(seen / group) * group
    return (
        split
        if abs(cap - split.in_flight) <= CAP_STEP * split.in_flight
        else split.model_copy(update={"in_flight": cap})
    )


def names(samplers: Side, trainers: Side) -> str:
    """The adopted workloads, for people."""
    return f"{samplers.kind} {samplers.name} and {trainers.kind} {trainers.name}"


def scale_words(namespace: str, samplers: Side, trainers: Side, wished: Split) -> str:
    """How a person brings the workloads to a split; what gives GPUs up goes first, since the other has no room before."""
    changes = [(samplers, wished.samplers.replicas), (trainers, wished.trainers.replicas)]
    ordered = sorted((c for c in changes if c[0].replicas != c[1]), key=lambda c: c[1] - c[0].replicas)
    return ", then ".join(
        f"kubectl -n {namespace} scale {side.kind.lower()} {side.name} --replicas={replicas}"
        for side, replicas in ordered
    )
