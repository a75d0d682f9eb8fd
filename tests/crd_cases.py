"""One table of what the rules of an RLJob accept and reject, for both of their readers: the models and the API server.

A rule is written twice, in CEL and in Python, so the same edits of the same job are tried on both, and the same message is
expected from both.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

Edits = Mapping[str, Any]
"""New values by path below the object, such as ``{"spec.queue.capacity": 8}``; ABSENT takes the field out."""

ABSENT = object()


def job(edits: Edits | None = None, *, name: str = "job", namespace: str | None = None) -> dict[str, Any]:
    """A small valid RLJob, edited."""
    metadata = {"name": name} if namespace is None else {"name": name, "namespace": namespace}
    found: dict[str, Any] = {
        "apiVersion": "rljob.dev/v1alpha1",
        "kind": "RLJob",
        "metadata": metadata,
        "spec": {
            "gpus": 16,
            "model": {"name": "Qwen/Qwen3-8B"},
            "workload": {
                "promptsPerStep": 32,
                "samplesPerPrompt": 8,
                "steps": 100,
                "promptTokens": {"mean": 200},
                "responseTokens": {"mean": 1000, "cv": 1.0, "max": 8192},
            },
            "staleness": {"max": 2},
            "sampler": {"template": template("vllm")},
            "trainer": {"template": template("trainer")},
        },
    }
    return edited(found, edits or {})


def template(name: str) -> dict[str, Any]:
    """A pod template of one container."""
    return {"spec": {"containers": [{"name": name, "image": "registry.example.com/image:1"}]}}


def edited(document: Mapping[str, Any], edits: Edits) -> dict[str, Any]:
    """A copy with the edits; objects on the way are made, numbers in a path are places in a list."""
    found: dict[str, Any] = copy.deepcopy(dict(document))
    for path, value in edits.items():
        *parents, last = path.split("/") if "/" in path else path.split(".")
        at: Any = found
        for part in parents:
            at = at[int(part)] if isinstance(at, list) else at.setdefault(part, {})
        if value is ABSENT:
            at.pop(last, None)
        elif isinstance(at, list):
            at[int(last)] = value
        else:
            at[last] = value
    return found


@dataclass(frozen=True)
class Case:
    """A rule, known by how its message begins, with edits that keep it and edits that break it (and no other)."""

    id: str
    message: str
    rejected: Edits
    accepted: Edits = field(default_factory=dict)
    name: str = "job"
    accepted_name: str = "job"


_LENGTHS = "spec.workload.responseTokens"
_SAMPLER = "spec/sampler/template/spec/containers/0/resources"
_TRAINER = "spec/trainer/template/spec/containers/0/resources"


def _lengths(**fields: Any) -> Edits:
    return {_LENGTHS: fields}


def adopting(mode: str = "Recommend", **edits: Any) -> Edits:
    """Edits that turn the job into one that watches workloads which exist already."""
    return {
        "spec.sampler": {"targetRef": {"kind": "Deployment", "name": "rollout"}},
        "spec.trainer": {"targetRef": {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "learner"}},
        "spec.rebalance": {"mode": mode},
        **edits,
    }


def agentic(**sandbox: Any) -> Edits:
    """Edits that give the job environments, and a fleet of sandboxes for them."""
    return {
        "spec.workload.environment": {"secondsPerTurn": 2.5, "turns": 4},
        "spec.sandbox": {"maxReplicas": 64, "template": template("sandbox"), **sandbox},
    }


def asking(resources: dict[str, Any]) -> dict[str, Any]:
    """A pod template whose container asks for resources."""
    found = template("main")
    found["spec"]["containers"][0]["resources"] = resources
    return found


POOLS = [{"name": "near", "selector": {"zone": "a"}}, {"name": "far", "selector": {"zone": "b"}, "maxGPUs": 0}]

CASES: tuple[Case, ...] = (
    Case(
        "sampler-undescribed",
        "say in one way what the samplers are",
        rejected={"spec.sampler": {}},
        accepted=adopting(),
    ),
    Case(
        "trainer-twice",
        "say in one way what the trainers are",
        rejected=adopting(**{"spec.trainer.template": template("trainer")}),
        accepted=adopting(),
    ),
    Case(
        "one-side-adopted",
        "one side has a targetRef and the other a template",
        rejected={
            "spec.sampler": {"targetRef": {"kind": "Deployment", "name": "rollout"}},
            "spec.rebalance": {"mode": "Recommend"},
        },
        accepted=adopting(),
    ),
    Case(
        "adopted-and-moved",
        "workloads named by targetRef are never touched, so the operator can only recommend",
        rejected=adopting("Auto"),
        accepted=adopting(),
    ),
    Case(
        "adopted-and-suspended",
        "workloads named by targetRef are never touched, so suspend can free none",
        rejected=adopting(**{"spec.suspend": True}),
        accepted=adopting(),
    ),
    Case(
        "slices-of-gpus",
        "nodes.gpuResource counts slices or shares of GPUs",
        rejected={"spec.nodes": {"gpuResource": "nvidia.com/mig-1g.10gb"}},
        accepted={"spec.nodes": {"gpuResource": "amd.com/gpu"}},
    ),
    Case(
        "shares-of-gpus-for-a-role",
        "nodes.gpuResource counts slices or shares of GPUs",
        rejected={"spec.sampler.nodes": {"gpuResource": "nvidia.com/gpu.shared"}},
        accepted={"spec.sampler.nodes": {"gpuResource": "amd.com/spx_nps1"}},
    ),
    Case(
        "two-models",
        "say which model: either model.name",
        rejected={"spec.model.config": {"hidden_size": 4096}},
        accepted={"spec.model": {"config": {"hidden_size": 4096}}},
    ),
    Case("no-model", "say which model: either model.name", rejected={"spec.model": {"weights": "fp8"}}),
    Case(
        "two-calibrations",
        "say where the calibration is",
        rejected={"spec.calibration": {"configMap": "speeds", "inline": {"rljobCalibration": 1}}},
        accepted={"spec.calibration": {"inline": {"rljobCalibration": 1}}},
    ),
    Case("no-calibration", "say where the calibration is", rejected={"spec.calibration": {}}),
    Case(
        "no-lengths",
        "describe response lengths in one way",
        rejected=_lengths(max=4096),
        accepted=_lengths(max=4096, mean=1000),
    ),
    Case(
        "lengths-twice",
        "describe response lengths in one way",
        rejected=_lengths(max=4096, mean=1000, histogram=[[512, 10], [4096, 3]]),
        accepted=_lengths(max=4096, histogram=[[512, 10], [4096, 3]]),
    ),
    Case(
        "mean-above-max",
        "responseTokens.mean is above responseTokens.max",
        rejected=_lengths(max=4096, mean=4097, cv=0),
        accepted=_lengths(max=4096, mean=4096, cv=0),
    ),
    Case(
        "cv-beyond-cap",
        "lengths up to responseTokens.max can't have so large a cv",
        rejected=_lengths(max=4096, mean=2100),
        accepted=_lengths(max=4096, mean=2100, cv=0.9),
    ),
    Case(
        "cv-without-room",
        "lengths up to responseTokens.max can't have so large a cv",
        rejected=_lengths(max=4096, mean=4096, cv=0.1),
        accepted=_lengths(max=4096, mean=1000, cv=1.7),
    ),
    Case(
        "quantile-in-percent",
        "write the keys of responseTokens.quantiles as shares",
        rejected=_lengths(max=4096, quantiles={"p50": 700, "p90": 2000}),
        accepted=_lengths(max=4096, quantiles={"0.5": 700, ".9": 2000}),
    ),
    Case(
        "quantile-one",
        "write the keys of responseTokens.quantiles as shares",
        rejected=_lengths(max=4096, quantiles={"0.5": 700, "1.0": 4096}),
    ),
    Case(
        "quantile-zero",
        "write the keys of responseTokens.quantiles as shares",
        rejected=_lengths(max=4096, quantiles={"0.0": 10, "0.5": 700}),
    ),
    Case(
        "quantiles-fall",
        "a higher quantile must have more tokens",
        rejected=_lengths(max=4096, quantiles={"0.5": 700, "0.9": 600, "0.95": 800}),
        accepted=_lengths(max=4096, quantiles={"0.95": 900, "0.5": 700, "0.9": 800}),
    ),
    Case(
        "quantile-spelt-twice",
        "a higher quantile must have more tokens",
        rejected=_lengths(max=4096, quantiles={"0.5": 700, "0.50": 900}),
    ),
    Case(
        "quantile-above-max",
        "a quantile is above responseTokens.max",
        rejected=_lengths(max=4096, quantiles={"0.5": 700, "0.9": 4097}),
        accepted=_lengths(max=4096, quantiles={"0.5": 700, "0.9": 4096}),
    ),
    Case(
        "edges-fall",
        "let the upper edges of responseTokens.histogram rise",
        rejected=_lengths(max=4096, histogram=[[1024, 10], [512, 3]]),
        accepted=_lengths(max=4096, histogram=[[512, 10], [1024, 3]]),
    ),
    Case(
        "edges-equal",
        "let the upper edges of responseTokens.histogram rise",
        rejected=_lengths(max=4096, histogram=[[512, 10], [512, 3]]),
        accepted=_lengths(max=4096, histogram=[[n, 1] for n in range(1, 257)]),
    ),
    Case(
        "edge-zero",
        "let the upper edges of responseTokens.histogram rise",
        rejected=_lengths(max=4096, histogram=[[0, 10], [512, 3]]),
    ),
    Case(
        "empty-histogram",
        "all counts of responseTokens.histogram are 0",
        rejected=_lengths(max=4096, histogram=[[512, 0], [1024, 0]]),
        accepted=_lengths(max=4096, histogram=[[512, 0], [1024, 1]]),
    ),
    Case(
        "zero-staleness-unbounded",
        "staleness.max 0 is only kept by a bound",
        rejected={"spec.staleness": {"max": 0, "bound": "none"}},
        accepted={"spec.staleness": {"max": 0, "bound": "admission"}},
    ),
    Case(
        "pools-and-nodes",
        "sampler.pools and sampler.nodes both say where samplers run",
        rejected={"spec.sampler.pools": POOLS, "spec.sampler.nodes": {"selector": {"zone": "a"}}},
        accepted={"spec.sampler.pools": POOLS, "spec.nodes": {"selector": {"zone": "a"}}},
    ),
    Case(
        "sampler-minima-above-maxima",
        "sampler.minReplicas is above sampler.maxReplicas",
        rejected={"spec.sampler.minReplicas": 3, "spec.sampler.maxReplicas": 2},
        accepted={"spec.sampler.minReplicas": 3, "spec.sampler.maxReplicas": 3},
    ),
    Case(
        "trainer-minima-above-maxima",
        "trainer.minReplicas is above trainer.maxReplicas",
        rejected={"spec.trainer.minReplicas": 2, "spec.trainer.maxReplicas": 1, "spec.trainer.gpusPerReplica": 4},
        accepted={"spec.trainer.minReplicas": 2, "spec.trainer.maxReplicas": 2, "spec.trainer.gpusPerReplica": 4},
    ),
    Case(
        "mfu-zero",
        "trainer.mfu is a share of the peak",
        rejected={"spec.trainer.mfu": "0.0%"},
        accepted={"spec.trainer.mfu": "37.5%"},
    ),
    Case(
        "mfu-above-all",
        "trainer.mfu is a share of the peak",
        rejected={"spec.trainer.mfu": "101%"},
        accepted={"spec.trainer.mfu": "100%"},
    ),
    Case(
        "interval-too-short",
        "rebalance.interval is below one second",
        rejected={"spec.rebalance.interval": "500ms"},
        accepted={"spec.rebalance.interval": "1m0.5s"},
    ),
    Case(
        "interval-of-nothing",
        "rebalance.interval is below one second",
        rejected={"spec.rebalance.interval": "0h0m"},
        accepted={"spec.rebalance.interval": "999999h999999h"},
    ),
    Case(
        "minima-above-budget",
        "the smallest split",
        rejected={"spec.sampler.gpusPerReplica": 2, "spec.sampler.minReplicas": 5},
        accepted={"spec.sampler.gpusPerReplica": 2, "spec.sampler.minReplicas": 4},
    ),
    Case(
        "trainer-takes-all",
        "the smallest split",
        rejected={"spec.gpus": 8},
        accepted={"spec.gpus": 9},
    ),
    Case(
        "queue-below-step",
        "queue.capacity is below workload.promptsPerStep",
        rejected={"spec.queue": {"capacity": 31}},
        accepted={"spec.queue": {"capacity": 32, "overflow": "block"}},
    ),
    Case(
        "sandbox-without-environment",
        "sandbox says how many environments may run",
        rejected={"spec.sandbox": {"maxReplicas": 64}},
        accepted={
            "spec.sandbox": {"maxReplicas": 64},
            "spec.workload.environment": {"secondsPerTurn": 2.5, "turns": 4},
        },
    ),
    Case(
        "sandbox-minima-above-maxima",
        "sandbox.minReplicas is above sandbox.maxReplicas",
        rejected=agentic(minReplicas=9, maxReplicas=8),
        accepted=agentic(minReplicas=8, maxReplicas=8),
    ),
    Case(
        "sandbox-gpu",
        "a container of sandbox.template asks for GPUs",
        rejected=agentic(template=asking({"limits": {"nvidia.com/gpu": 1}})),
        accepted=agentic(template=asking({"limits": {"memory": "2Gi"}, "requests": {"cpu": "1"}})),
    ),
    Case(
        "driver-gpu-of-trainers-nodes",
        "a container of driver.template asks for GPUs",
        rejected={
            "spec.driver": {"template": asking({"requests": {"amd.com/gpu": "1"}})},
            "spec.trainer.nodes": {"gpuResource": "amd.com/gpu"},
        },
        accepted={"spec.driver": {"template": asking({"requests": {"amd.com/gpu": "1"}})}},
    ),
    Case(
        "adopted-with-driver",
        "a job that adopts workloads by targetRef makes nothing by itself",
        rejected=adopting(**{"spec.driver": {"template": template("driver")}}),
        accepted=adopting(),
    ),
    Case(
        "step-below-trainer",
        "rebalance.maxStepGPUs is below gpusPerReplica",
        rejected={"spec.rebalance.maxStepGPUs": 4},
        accepted={"spec.rebalance.maxStepGPUs": 8},
    ),
    Case(
        "step-below-sampler",
        "rebalance.maxStepGPUs is below gpusPerReplica",
        rejected={
            "spec.rebalance.maxStepGPUs": 2,
            "spec.trainer.gpusPerReplica": 2,
            "spec.sampler.gpusPerReplica": 4,
        },
        accepted={
            "spec.rebalance.maxStepGPUs": 4,
            "spec.trainer.gpusPerReplica": 2,
            "spec.sampler.gpusPerReplica": 4,
        },
    ),
    Case(
        "sampler-gpu-limit",
        "a container of sampler.template asks for GPUs itself",
        rejected={_SAMPLER: {"limits": {"nvidia.com/gpu": 2}}},
        accepted={_SAMPLER: {"limits": {"memory": "64Gi", "cpu": 8}}},
    ),
    Case(
        "sampler-gpu-of-its-own-nodes",
        "a container of sampler.template asks for GPUs itself",
        rejected={_SAMPLER: {"limits": {"amd.com/gpu": "2"}}, "spec.sampler.nodes": {"gpuResource": "amd.com/gpu"}},
        accepted={_SAMPLER: {"limits": {"example.com/nic": "2"}}, "spec.sampler.nodes": {"gpuResource": "amd.com/gpu"}},
    ),
    Case(
        "trainer-gpu-request",
        "a container of trainer.template asks for GPUs itself",
        rejected={_TRAINER: {"requests": {"nvidia.com/gpu": "8"}}},
        accepted={_TRAINER: {"requests": {"cpu": "16"}, "claims": [{"name": "fast-nic"}]}},
    ),
    Case(
        "trainer-gpu-of-the-job",
        "a container of trainer.template asks for GPUs itself",
        rejected={_TRAINER: {"limits": {"amd.com/gpu": 8}}, "spec.nodes.gpuResource": "amd.com/gpu"},
    ),
    Case(
        "long-name",
        "metadata.name is longer than 50 characters",
        rejected={},
        name="a" * 51,
        accepted_name="a" * 50,
    ),
    Case(
        "dotted-name",
        "metadata.name becomes part of the names of Services",
        rejected={},
        name="my.job",
        accepted_name="my-job-2",
    ),
    Case(
        "name-from-digit",
        "metadata.name becomes part of the names of Services",
        rejected={},
        name="2nd-job",
        accepted_name="j",
    ),
    Case(
        "long-name-of-stateful-set",
        "metadata.name is longer than 43 characters",
        rejected={"spec.trainer.kind": "StatefulSet"},
        name="a" * 44,
        accepted={"spec.trainer.kind": "StatefulSet"},
        accepted_name="a" * 43,
    ),
)
"""What can be said of one object."""


@dataclass(frozen=True)
class UpdateCase:
    """A field that can't change once a split is in force."""

    id: str
    message: str
    edits: Edits


UPDATE_CASES: tuple[UpdateCase, ...] = (
    UpdateCase("adoption", "whether a job adopts workloads or runs its own can't change in a run", adopting()),
    UpdateCase("model-name", "the model can't change in a run", {"spec.model.name": "Qwen/Qwen3-32B"}),
    UpdateCase("model-kind", "the model can't change in a run", {"spec.model": {"config": {"hidden_size": 4096}}}),
    UpdateCase("group-size", "workload.samplesPerPrompt can't change in a run", {"spec.workload.samplesPerPrompt": 16}),
    UpdateCase("trainer-kind", "trainer.kind can't change in a run", {"spec.trainer.kind": "StatefulSet"}),
    UpdateCase("gpu-resource", "nodes.gpuResource can't change in a run", {"spec.nodes.gpuResource": "amd.com/gpu"}),
    UpdateCase(
        "gpu-resource-of-samplers",
        "nodes.gpuResource can't change in a run",
        {"spec.sampler.nodes": {"gpuResource": "amd.com/gpu"}},
    ),
)
"""What can be said of a change alone."""

HARMLESS_UPDATE: Edits = {
    "spec.gpus": 24,
    "spec.workload.steps": 200,
    "spec.sampler.nodes": {"selector": {"pool": "a"}},
    "spec.rebalance.mode": "Recommend",
    "spec.suspend": True,
    "spec.priority": 10,
}
"""What may change while a job runs."""
