"""Every constraint of a field of the spec, broken in turn in a job that is valid otherwise.

Made from the schema itself, so that a new field or bound is tried on the models and on the API server without a new case.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from rljob_planner.api.crd import PRESERVE, object_schema
from tests.crd_cases import job, template

FULL = job(
    {
        "spec.suspend": False,
        "spec.priority": 5,
        "spec.objective": "cost",
        "spec.accelerator": "H100-SXM",
        "spec.nodes": {
            "selector": {"pool": "a"},
            "tolerations": [
                {"key": "a", "operator": "Equal", "value": "b", "effect": "NoExecute", "tolerationSeconds": 5}
            ],
            "gpuResource": "nvidia.com/gpu",
        },
        "spec.model": {"name": "Qwen/Qwen3-8B", "weights": "fp8", "kvCache": "fp8"},
        "spec.queue": {"capacity": 64, "overflow": "block"},
        "spec.sampler.engine": "vllm",
        "spec.sampler.engineDefaults": False,
        "spec.sampler.gpusPerReplica": 1,
        "spec.sampler.minReplicas": 1,
        "spec.sampler.maxReplicas": 8,
        "spec.sampler.maxRunning": 64,
        "spec.sampler.drainTimeout": "5m",
        "spec.sampler.pools": [
            {
                "name": "near",
                "selector": {"zone": "a"},
                "tolerations": [{"key": "a", "operator": "Exists"}],
                "accelerator": "H100-SXM",
                "maxGPUs": 4,
            },
        ],
        "spec.trainer.nodes": {"gpuResource": "nvidia.com/gpu"},
        "spec.trainer.gpusPerReplica": 8,
        "spec.trainer.minReplicas": 1,
        "spec.trainer.maxReplicas": 1,
        "spec.trainer.kind": "Deployment",
        "spec.trainer.resize": "fixed",
        "spec.trainer.batch": "strict",
        "spec.trainer.mfu": "35%",
        "spec.trainer.recompute": "selective",
        "spec.trainer.extraForwards": ["reference"],
        "spec.rebalance": {
            "mode": "Auto", "interval": "30s", "minGain": "3%", "persistence": 2, "cooldown": "1m", "maxStepGPUs": 8,
        },
        "spec.calibration": {"configMap": "calibrated"},
        "spec.metrics": {"prometheus": "http://prometheus:9090"},
        "spec.staleness.bound": "admission",
        "spec.staleness.ratioVariance": 0.02,
        "spec.workload.responseTokens.growth": 2.0,
        "spec.workload.environment": {"secondsPerTurn": 2.5, "turns": 4, "cv": 0.5},
        "spec.sandbox": {
            "minReplicas": 2, "maxReplicas": 64, "perReplica": 4, "network": "job", "template": template("sandbox"),
        },
        "spec.driver": {"template": template("driver")},
        "spec/sampler/template/spec/containers/0/resources": {"limits": {"memory": "1Gi"}, "requests": {"cpu": 2}},
    }
)  # fmt: skip
"""A job that says everything that can be said together."""


@dataclass(frozen=True)
class Violation:
    """An edit of the full job that breaks one constraint of one field."""

    path: str
    constraint: str
    document: Mapping[str, Any]


def violations(node: Mapping[str, Any], document: Any, path: tuple[str | int, ...]) -> Iterator[Violation]:
    """Every constraint of a schema broken in turn, in a job that is valid otherwise."""

    def broken(constraint: str, value: Any) -> Violation:
        found = copy.deepcopy(FULL)
        at: Any = found
        for part in path[:-1]:
            at = at[part]
        at[path[-1]] = value
        return Violation("/".join(map(str, path)), constraint, found)

    kind = node.get("type")
    wrong: dict[str, Any] = {
        "integer": "7", "number": "7", "boolean": "true", "string": 7, "object": [], "array": {},
    }  # fmt: skip
    if kind in wrong:
        yield broken("type", wrong[kind])
    if kind == "integer":
        yield broken("type", True)
        yield broken("type", 1.5)
    if "enum" in node:
        yield broken("enum", "nonsense")
    if "pattern" in node:
        yield broken("pattern", "!")
    if "minimum" in node:
        yield broken("minimum", node["minimum"] - 1)
    if "maximum" in node:
        yield broken("maximum", node["maximum"] + 1)
    if "minLength" in node:
        yield broken("minLength", "x" * (node["minLength"] - 1))
    if "maxLength" in node:
        filler = "1s" if "ms|s|m|h" in node.get("pattern", "") else "1"
        text = (
            "http://" + "x" * node["maxLength"]
            if "http" in node.get("pattern", "")
            else filler * (node["maxLength"] + 1)
        )
        yield broken("maxLength", text + "%" if "%" in node.get("pattern", "") else text)
    if "minItems" in node:
        yield broken("minItems", [])
    if "maxItems" in node:
        items = [{**document[0], "name": f"c{i}"} if isinstance(document[0], dict) and "name" in document[0] else document[0]
                 for i in range(node["maxItems"] + 1)]  # fmt: skip
        yield broken("maxItems", items)
    if "maxProperties" in node:
        value = next(iter(document.values()))
        yield broken("maxProperties", {f"k{i}": value for i in range(node["maxProperties"] + 1)})
    for name in node.get("required", ()):
        yield broken("required", {key: value for key, value in document.items() if key != name})
    if "properties" in node and PRESERVE not in node:
        yield broken("unknown", {**document, "nonsense": 1})
    for name, child in node.get("properties", {}).items():
        if isinstance(document, dict) and name in document:
            yield from violations(child, document[name], (*path, name))
    if "items" in node:
        yield from violations(node["items"], document[0], (*path, 0))
    if "additionalProperties" in node:
        name = next(iter(document))
        yield from violations(node["additionalProperties"], document[name], (*path, name))


VIOLATIONS = tuple(violations(object_schema()["properties"]["spec"], FULL["spec"], ("spec",)))
"""All of them."""
