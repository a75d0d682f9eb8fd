"""RLJobs for cluster tests: small, quick to plan, on nodes of their own test."""

from __future__ import annotations

import copy
from typing import Any

Json = dict[str, Any]


def _template(name: str, port: int, grace_s: int) -> Json:
    return {
        "metadata": {"annotations": {"dev.rljob.dev/start-delay": "500ms", "dev.rljob.dev/stop-delay": "500ms"}},
        "spec": {
            "terminationGracePeriodSeconds": grace_s,
            "containers": [{"name": name, "image": "example.com/none:1", "ports": [{"containerPort": port}]}],
        },
    }


def job(namespace: str, name: str = "job", **spec: Any) -> Json:
    """An RLJob of 16 GPUs on the nodes of the test ``namespace``; ``spec`` entries are merged in deeply."""
    base: Json = {
        "apiVersion": "rljob.dev/v1alpha1",
        "kind": "RLJob",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "gpus": 16,
            "nodes": {
                "selector": {"dev.rljob.dev/test": namespace},
                "tolerations": [{"key": "kwok.x-k8s.io/node", "operator": "Exists"}],
            },
            "model": {"name": "Qwen/Qwen3-8B"},
            "workload": {
                "promptsPerStep": 32,
                "samplesPerPrompt": 4,
                "steps": 100000,
                "promptTokens": {"mean": 100},
                "responseTokens": {"mean": 400, "cv": 0.8, "max": 4096},
            },
            "staleness": {"max": 4, "bound": "admission"},
            "sampler": {
                "gpusPerReplica": 1,
                "maxRunning": 64,
                "drainTimeout": "20s",
                "template": _template("vllm", 8000, 30),
            },
            "trainer": {"gpusPerReplica": 4, "template": _template("trainer", 9400, 30)},
            "rebalance": {"mode": "Auto", "interval": "2s", "cooldown": "5s", "persistence": 2, "minGain": "3%"},
        },
    }
    return merged(base, {"spec": spec})


def merged(base: Json, changes: Json) -> Json:
    """``base`` with ``changes`` merged in; a value of None removes a key."""
    found = copy.deepcopy(base)
    for key, value in changes.items():
        if value is None:
            found.pop(key, None)
        elif isinstance(value, dict) and isinstance(found.get(key), dict):
            found[key] = merged(found[key], value)
        else:
            found[key] = copy.deepcopy(value)
    return found


def drifting_job(namespace: str, **spec: Any) -> Json:
    """A job of small, fast steps whose best split moves as its responses grow; ``emulation`` runs it."""
    return merged(
        job(namespace, workload={"promptsPerStep": 8, "samplesPerPrompt": 4, "responseTokens": {"mean": 400}}),
        {"spec": spec},
    )


def emulation(*, drift: bool = True) -> Json:
    """The hidden truth behind ``drifting_job``: responses grow fourfold in half a minute if ``drift``."""
    return {
        "seed": 1,
        "layout_lag_s": 1.0,
        "untouched_lag_s": 5.0,
        "truth": {
            "decode": {
                "fixed_s": 0.004,
                "weights_s": 0.002,
                "per_context_token_s": 1e-7,
                "per_sample_s": 2e-5,
                "prefill_per_token_s": 1e-6,
                "kv_tokens_per_gpu": 300000,
                "weights_kv_tokens": 50000,
                "noise": 0.02,
            },
            "train": {"fixed_s": 0.1, "per_token_gpu_s": 5e-4, "regroup_s": 1.0, "noise": 0.02},
            "weight_sync_s": 0.1,
        },
        "lengths": {
            "trace": [[0, 400], [15, 400], [45, 1500]] if drift else [[0, 400]],
            "cv": 0.8,
            "max_tokens": 4096,
        },
    }
