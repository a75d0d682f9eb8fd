"""The planner's own answer for the demo's job at a given response length."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from dev.controlplane import NodeSpec
from rljob_planner.api.spec import RLJobSpec
from rljob_planner.placement import Room
from rljob_planner.search import plan


def best_split(spec: Mapping[str, Any], response_tokens_mean: float, nodes: NodeSpec) -> dict[str, Any]:
    """The best split on empty nodes when responses have this mean, as it stands in a status."""
    changed = copy.deepcopy(dict(spec))
    changed["workload"]["responseTokens"]["mean"] = round(response_tokens_mean)
    changed.setdefault("accelerator", "H100-SXM")
    rooms = [Room(node=name, free_gpus=nodes.gpus_per_node) for name in nodes.names]
    found = plan(RLJobSpec.model_validate(changed), rooms, detail=False)
    best: dict[str, Any] = found.split.model_dump(by_alias=True, mode="json")
    return best
