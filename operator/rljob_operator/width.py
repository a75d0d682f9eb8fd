"""Engines that are wider than their pod, found in the arguments before a pod crashes of them. Pure.

A replica is one pod on one node. Engines can span nodes, as groups of pods (LeaderWorkerSet, Ray), but a group can't be gated,
drained and counted pod by pod, so that it is refused, in words that say what to write instead.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rljob_operator.arguments import argument, count
from rljob_operator.gate import SAMPLER
from rljob_planner.placement import NO_GROUPS

_FACTORS = (
    ("--tensor-parallel-size", "-tp", "--tp-size", "--tp"),
    ("--pipeline-parallel-size", "-pp", "--pp-size"),
    ("--data-parallel-size", "-dp"),
)
"""Arguments whose product is the GPUs of an engine."""

_DATA_PARALLEL = _FACTORS[2]

_SHARES_GPUS = "--enable-dp-attention"
"""With this SGLang divides the GPUs of tensor parallelism among the data-parallel ranks, and takes no further ones."""


def refusal(role: str, template: Mapping[str, Any], gpus: int, tensor_parallel: int) -> str | None:
    """Why a sampler's template asks for an engine that its pod can't hold; None if it does not.

    ``gpus`` and ``tensor_parallel`` are those of a replica; the latter is what ``$(RLJOB_TENSOR_PARALLEL)`` stands for.
    """
    if role != SAMPLER:
        return None
    where = f"spec.{role}.template"
    nodes = count(argument(template, "--nnodes"))
    if (nodes is not None and nodes > 1) or argument(template, "--headless") is not None:
        return f"{where} starts an engine that spans pods (--nnodes, --headless): {NO_GROUPS}; remove that argument"
    needed, said = 1, []
    shared = argument(template, _SHARES_GPUS) is not None
    for names in _FACTORS:
        if names is _DATA_PARALLEL and shared:
            continue
        text = argument(template, *names)
        size = tensor_parallel if text == "$(RLJOB_TENSOR_PARALLEL)" else count(text)
        if size is not None and size > 1:
            needed *= size
            said.append(f"{names[0]} {size}")
    if needed <= gpus:
        return None
    return (
        f"{where} starts an engine of {needed} GPUs ({', '.join(said)}) in a pod that has {gpus}: {NO_GROUPS}; write "
        "--tensor-parallel-size=$(RLJOB_TENSOR_PARALLEL), and choose the width with spec.sampler.gpusPerReplica"
    )
