"""A job that runs, as the API server shows it, for the tests of the commands that work on live jobs."""

from __future__ import annotations

from typing import Any

Json = dict[str, Any]

AT = "2026-01-02T10:00:00.000000Z"


def split(samplers: int = 12, trainers: int = 1) -> Json:
    return {
        "mode": "async",
        "samplers": {"replicas": samplers, "gpusPerReplica": 1, "tensorParallel": 1, "maxRunning": 64},
        "trainers": {"replicas": trainers, "gpusPerReplica": 4, "dp": 4 * trainers, "tp": 1, "pp": 1, "ep": 1},
        "inFlight": 640,
    }


def condition(kind: str, status: str, reason: str, message: str = "") -> Json:
    return {
        "type": kind, "status": status, "reason": reason, "message": message, "lastTransitionTime": AT, "observedGeneration": 1,
    }  # fmt: skip


def move(phase: str = "Drain", **changes: Any) -> Json:
    return {
        "id": "m1",
        "phase": phase,
        "from": split(),
        "to": split(8, 2),
        "reason": "12×1 samplers + 1×4 trainers → 8×1 samplers + 2×4 trainers saves 8 %",
        "predictedGain": 0.08,
        "generation": 4,
        "startedAt": AT,
        "phaseSince": AT,
        "deadline": "2026-01-02T10:15:00.000000Z",
        **changes,
    }


def decision(code: str, message: str = "", **changes: Any) -> Json:
    return {"at": AT, "code": code, "message": message or f"said {code}", "from": split(), "to": split(), **changes}


def running(name: str = "math", **status: Any) -> Json:
    """An RLJob of 16 GPUs that runs 12 samplers and a trainer; ``status`` fields replace its own, None takes one off."""
    template = {"spec": {"containers": [{"name": "main", "image": "registry.example/main:1"}]}}
    found: Json = {
        "phase": "Running",
        "observedGeneration": 1,
        "split": split(),
        "samplers": "12/12",
        "trainers": "1/1",
        "observed": {
            "at": AT,
            "policyVersion": 120,
            "periodSeconds": 30.0,
            "stalenessMean": 2.1,
            "stalenessMax": 5.0,
            "queueGroups": 3.0,
            "inFlightSamples": 512.0,
            "responseTokensMean": 3210.0,
            "gpusHeld": 16,
        },
        "conditions": [
            condition("Ready", "True", "AllReady"),
            condition("Planned", "True", "Planned"),
            condition("Degraded", "False", "AsExpected"),
        ],
        "decisions": [decision("AtOptimum", "12×1 samplers + 1×4 trainers is the best split")],
        **status,
    }
    return {
        "apiVersion": "rljob.dev/v1alpha1",
        "kind": "RLJob",
        "metadata": {"name": name, "namespace": "rl", "uid": f"uid-{name}", "generation": 1},
        "spec": {
            "gpus": 16,
            "model": {"name": "Qwen/Qwen3-8B"},
            "workload": {
                "promptsPerStep": 16,
                "samplesPerPrompt": 8,
                "steps": 500,
                "promptTokens": {"mean": 200},
                "responseTokens": {"mean": 1000, "max": 8000},
            },
            "staleness": {"max": 4},
            "sampler": {"template": template},
            "trainer": {"template": template},
            "rebalance": {"mode": "Auto"},
        },
        "status": {key: value for key, value in found.items() if value is not None},
    }
