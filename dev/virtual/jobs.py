"""Small RLJobs to run in a virtual cluster."""

from __future__ import annotations

from typing import Any


def job(name: str = "run", *, gpus: int = 16, **changes: Any) -> dict[str, Any]:
    """An RLJob of a small model; ``changes`` are merged into its spec, one level deep for mappings."""
    spec: dict[str, Any] = {
        "gpus": gpus,
        "model": {"name": "Qwen/Qwen3-8B"},
        "workload": {
            "promptsPerStep": 16,
            "samplesPerPrompt": 8,
            "steps": 1000,
            "promptTokens": {"mean": 200},
            "responseTokens": {"mean": 1000, "max": 8000},
        },
        "staleness": {"max": 4, "bound": "admission"},
        "sampler": {"gpusPerReplica": 1, "drainTimeout": "60s", "template": template("engine")},
        "trainer": {"gpusPerReplica": 4, "template": template("trainer")},
        "rebalance": {"mode": "Auto", "interval": "10s"},
    }
    for key, value in changes.items():
        both = isinstance(value, dict) and isinstance(spec.get(key), dict)
        spec[key] = {**spec[key], **value} if both else value
    return {"apiVersion": "rljob.dev/v1alpha1", "kind": "RLJob", "metadata": {"name": name}, "spec": spec}


def template(container: str, **pod_spec: Any) -> dict[str, Any]:
    """A pod template with one container."""
    spec = {
        "terminationGracePeriodSeconds": 30,
        "containers": [{"name": container, "image": f"example.com/{container}:1"}],
    }
    return {"spec": {**spec, **pod_spec}}
