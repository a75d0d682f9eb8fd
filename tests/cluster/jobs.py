"""RLJobs for cluster tests: small, quick to plan, on nodes of their own test."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import yaml

DEMO = Path(__file__).resolve().parents[2] / "dev/demo"

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
    """The demo's job at a quarter of its size: its best split moves as its responses grow; ``emulation`` runs it."""
    demo = yaml.safe_load((DEMO / "job.yaml").read_text())["spec"]
    workload = {**demo["workload"], "promptsPerStep": demo["workload"]["promptsPerStep"] // 4, "steps": 100000}
    base = job(namespace, model={"name": None, **demo["model"]}, workload=workload, staleness=demo["staleness"])
    base["spec"]["sampler"].pop("maxRunning")
    return merged(base, {"spec": spec})


def emulation(*, drift: bool = True) -> Json:
    """The demo's hidden truth, quicker on both sides; if ``drift``, responses grow in twelve seconds by as much as they do there in two minutes."""
    found: Json = yaml.safe_load((DEMO / "emulator.yaml").read_text())
    short, long = found["lengths"]["trace"][0][1], found["lengths"]["trace"][-1][1]
    trace = [[0, short], [6, short], [18, long]] if drift else [[0, short]]
    quick = {"decode": {"speed": 1.3}, "train": {"speed": 1.1}}
    return merged(found, {"layout_lag_s": 1.0, "untouched_lag_s": 5.0, "lengths": {"trace": trace}, "truth": quick})
