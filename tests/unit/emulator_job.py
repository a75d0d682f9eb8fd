"""A small emulated job for tests: fast to advance, with constants that make the arithmetic easy to follow."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from dev.emulator.lengths import Lengths
from dev.emulator.plant import Plant, Workload
from dev.emulator.truth import DecodeTruth, TrainTruth, Truth
from rljob_planner.api.spec import Bound, Overflow
from rljob_runtime import Layout


def layout_text(
    generation: int = 1,
    *,
    samplers: Sequence[str] = ("s-0", "s-1"),
    trainers: int = 1,
    cap: int = 64,
    stale: int = 2,
    draining: Sequence[str] = (),
    phase: str = "steady",
    max_running: int = 16,
    checkpoint: bool = False,
) -> str:
    return json.dumps(
        {
            "generation": generation,
            "phase": phase,
            "samplers": {
                "replicas": len(samplers), "gpusPerReplica": 1, "tensorParallel": 1, "maxRunning": max_running,
                "endpoints": [{"pod": s, "url": f"http://{s}:8000"} for s in samplers],
            },
            "trainers": {"replicas": trainers, "gpusPerReplica": 8, "dp": 8, "tp": 1, "pp": 1, "ep": 1, "rendezvous": ""},
            "inFlightCap": cap,
            "maxStaleness": stale,
            "draining": list(draining),
            "checkpoint": checkpoint,
        }
    )  # fmt: skip


def layout(*args: Any, **kwargs: Any) -> Layout:
    return Layout.parse(layout_text(*args, **kwargs))


def truth(*, kv: float = 1e6, noise: float = 0.0, sync_s: float = 0.1, train_s: float = 1.0, **decode: Any) -> Truth:
    """An iteration takes 10 ms whatever runs, a training step ``train_s`` seconds on any number of pods."""
    return Truth(
        DecodeTruth(**{
            "fixed_s": 0.01, "weights_s": 0.0, "per_context_token_s": 0.0, "per_sample_s": 0.0,
            "prefill_per_token_s": 0.0, "kv_tokens_per_gpu": kv, "weights_kv_tokens": 0.0, "noise": noise, **decode,
        }),
        TrainTruth(fixed_s=train_s, per_token_gpu_s=0.0, regroup_s=3.0, noise=noise),
        weight_sync_s=sync_s,
    )  # fmt: skip


def workload(
    *,
    bound: Bound = Bound.ADMISSION,
    capacity: int | None = None,
    overflow: Overflow = Overflow.DROP_OLDEST,
    steps: int = 1000,
) -> Workload:
    """Four groups of four samples a step, prompts of ten tokens."""
    return Workload(4, 4, steps, 10, bound, capacity, overflow)


def plant(
    w: Workload | None = None,
    tr: Truth | None = None,
    *,
    mean: float = 100.0,
    trace: Sequence[Sequence[float]] | None = None,
    cv: float = 0.5,
    seed: int = 0,
    samplers: Sequence[str] = ("s-0", "s-1"),
    trainers: Sequence[str] = ("t-0",),
    lay: Layout | None = None,
) -> Plant:
    """A plant whose pods are ready and whose layout is seen."""
    pairs = tuple((float(t), float(m)) for t, m in trace) if trace else ((0.0, mean),)
    made = Plant(w or workload(), tr or truth(), Lengths(pairs, cv, 2000, seed), seed)
    made.set_pods(dict.fromkeys(samplers, True), dict.fromkeys(trainers, True))
    made.see_layout(lay or layout(samplers=samplers, trainers=len(trainers)))
    return made
