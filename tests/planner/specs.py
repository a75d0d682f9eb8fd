"""Specs for tests: one sensible job, and the fields that a test changes, as ``model__name=…``."""

from __future__ import annotations

import copy
from typing import Any

from rljob_planner.api.spec import RLJobSpec

_TEMPLATE = {"spec": {"containers": [{"name": "main", "image": "example.com/image"}]}}

_SPEC: dict[str, Any] = {
    "gpus": 24,
    "accelerator": "H100-SXM",
    "model": {"name": "Qwen/Qwen3-8B"},
    "workload": {
        "promptsPerStep": 16,
        "samplesPerPrompt": 8,
        "steps": 200,
        "promptTokens": {"mean": 300},
        "responseTokens": {"mean": 800, "cv": 1.0, "max": 6000},
    },
    "staleness": {"max": 4},
    "sampler": {"template": _TEMPLATE},
    "trainer": {"template": _TEMPLATE},
}


def document(**changes: Any) -> dict[str, Any]:
    """The job with these fields changed, as a user would write it; ``__`` separates the parts of a path."""
    raw = copy.deepcopy(_SPEC)
    for path, value in changes.items():
        *parents, leaf = path.split("__")
        target = raw
        for parent in parents:
            target = target.setdefault(parent, {})
        target[leaf] = value
    return raw


def spec(**changes: Any) -> RLJobSpec:
    """The job with these fields changed."""
    return RLJobSpec.model_validate(document(**changes))
