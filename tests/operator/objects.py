"""Objects as the API server returns them, for the tests of what is pure."""

from __future__ import annotations

from typing import Any

from rljob_planner.api.spec import RLJob, RLJobSpec
from rljob_planner.split import SamplerSplit, Split, TrainerSplit

GPU = "nvidia.com/gpu"
UID = "uid-mine"

SPLIT = Split(
    mode="async",
    samplers=SamplerSplit(replicas=8, gpus_per_replica=2, tensor_parallel=2, max_running=64),
    trainers=TrainerSplit(replicas=2, gpus_per_replica=8, dp=16, tp=1, pp=1, ep=1),
    in_flight=512,
)


def template(**pod_spec: Any) -> dict[str, Any]:
    return {"spec": {"containers": [{"name": "main", "image": "registry.example/main:1"}], **pod_spec}}


def spec_dict(**changes: Any) -> dict[str, Any]:
    sampler = {"template": template(), **changes.pop("sampler", {})}
    trainer = {"template": template(), **changes.pop("trainer", {})}
    return {
        "gpus": 32,
        "model": {"name": "Qwen/Qwen3-8B"},
        "workload": {
            "promptsPerStep": 16,
            "samplesPerPrompt": 8,
            "steps": 100,
            "promptTokens": {"mean": 200},
            "responseTokens": {"mean": 1000, "max": 8000},
        },
        "staleness": {"max": 4},
        "sampler": sampler,
        "trainer": trainer,
        **changes,
    }


def spec(**changes: Any) -> RLJobSpec:
    return RLJobSpec.model_validate(spec_dict(**changes))


def job_dict(
    name: str = "mine", uid: str = UID, created: str = "2026-01-02T00:00:00Z", status: Any = None, **changes: Any
) -> dict[str, Any]:
    return {
        "apiVersion": "rljob.dev/v1alpha1",
        "kind": "RLJob",
        "metadata": {"name": name, "namespace": "rl", "uid": uid, "creationTimestamp": created},
        "spec": spec_dict(**changes),
        **({"status": status} if status else {}),
    }


def job(name: str = "mine", **changes: Any) -> RLJob:
    return RLJob.model_validate(job_dict(name, **changes))


def node(
    name: str,
    gpus: Any = 8,
    *,
    labels: dict[str, str] | None = None,
    taints: tuple[str, ...] = (),
    ready: str | None = "True",
    cordoned: bool = False,
    resource: str = GPU,
    **metadata: Any,
) -> dict[str, Any]:
    """A node; taints are written ``key=value:effect``; ``gpus=None`` leaves the resource out."""
    parsed = []
    for taint in taints:
        pair, _, effect = taint.rpartition(":")
        key, _, value = pair.partition("=")
        parsed.append({"key": key, "effect": effect, **({"value": value} if value else {})})
    return {
        "metadata": {"name": name, "labels": {"nvidia.com/gpu.product": "H100-SXM", **(labels or {})}, **metadata},
        "spec": {**({"taints": parsed} if parsed else {}), **({"unschedulable": True} if cordoned else {})},
        "status": {
            "allocatable": {"cpu": "64", **({} if gpus is None else {resource: str(gpus)})},
            "conditions": [] if ready is None else [{"type": "Ready", "status": ready}],
        },
    }


def pod(
    name: str,
    gpus: Any = 1,
    *,
    node: str | None = None,
    uid: str | None = None,
    role: str = "sampler",
    phase: str = "Running",
    gated: bool = False,
    namespace: str = "rl",
    terminating: bool = False,
    resource: str = GPU,
    **pod_spec: Any,
) -> dict[str, Any]:
    return {
        "metadata": {
            "name": name,
            "namespace": namespace,
            "labels": {"rljob.dev/uid": uid, "rljob.dev/role": role} if uid else {},
            **({"deletionTimestamp": "2026-01-01T00:00:00Z"} if terminating else {}),
        },
        "spec": {
            "containers": [{"name": "c", "resources": {"requests": {resource: str(gpus)}}}],
            **({"nodeName": node} if node else {}),
            **({"schedulingGates": [{"name": "rljob.dev/budget"}]} if gated else {}),
            **pod_spec,
        },
        "status": {"phase": phase},
    }


def quota(name: str, hard: Any, used: Any = 0, *, namespace: str = "rl", **quota_spec: Any) -> dict[str, Any]:
    key = f"requests.{GPU}"
    status = {"hard": {key: str(hard)}, **({} if used is None else {"used": {key: str(used)}})}
    return {
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"hard": {key: str(hard)}, **quota_spec},
        "status": status,
    }
