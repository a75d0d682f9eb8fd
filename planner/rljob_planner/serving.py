"""What a client measures of a served model: the mean time per output token at constant concurrency.

A benchmark that keeps B requests in flight measures more than decode steps. Whenever a request ends, the next one's prompt is
prefilled in the same engine, in the same steps, and slows down all the others: each request sees the prefills of the other
B − 1 in the time that it decodes. Its own prefill counts as time to the first token, and a request that waits or prefills
does not decode; so with E the seconds from one request's start to the next's in its place ::

    E = TTFT + (osl − 1)·TPOT          prefills of others per step = (B − 1)·TPOT/E          decoding = 1 + (B − 1)·(osl − 1)·TPOT/E

and TPOT is the mean step at these (``steptime.Engine.mean_step_s``: prompts come whole, at random, so that few steps carry
all of them). TTFT is the prefill in its steps, half a step until the first of them begins, and the wait behind other prompts as in a
queue with one server. Where KV room holds fewer than B requests, the others wait in line: they cost TTFT and no step. Each
depends on the others, so it is a fixed point, found by iteration.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rljob_planner.errors import PlanningError
from rljob_planner.memory import free_bytes_per_gpu, kv_room_tokens
from rljob_planner.precision import WeightFormat, weight_format
from rljob_planner.shapes import ModelShape
from rljob_planner.steptime import Engine

FloatArray = NDArray[np.float64]

_ROUNDS = 60
_CLOSE = 1e-9
_FULL = 0.95
"""Share of time in prefill from which the wait behind prompts is no longer that of a queue that empties."""
_WIDEST = 64
MOST_TOKENS = 10_000_000
"""Longest prompt or response that is taken."""
MOST_REQUESTS = 1_000_000
"""Most requests in flight that are taken."""


@dataclass(frozen=True)
class ServingPoint:
    """What an engine does at one concurrency."""

    batch: int
    """Requests that the client keeps in flight."""
    decoding: float
    """Mean samples of a decode step."""
    tpot_s: float
    """Mean seconds per output token after the first."""
    ttft_s: float
    """Mean seconds to the first token; where requests wait for KV room, most of it is that wait."""
    kv_bound: bool
    """Whether KV room holds fewer requests than the client sends."""


def checked(engine: Engine, isl: int, osl: int, batches: Sequence[int]) -> None:
    """Raises PlanningError where an engine cannot exist or a request cannot be served by it."""
    m, width = engine.model, engine.tensor_parallel
    if width < 1:
        raise PlanningError("DoesNotFit", f"tensor parallelism {width}: an engine has at least 1 GPU")
    if not m.tensor_parallel_fits(width):
        raise PlanningError(
            "DoesNotFit", f"tensor parallelism {width}: the {m.heads} attention heads of {m.name} cannot be divided so"
        )
    if not 1 <= isl <= MOST_TOKENS or not 1 <= osl <= MOST_TOKENS:
        raise PlanningError("InvalidLengths", f"isl {isl} and osl {osl} must be tokens, from 1 to {MOST_TOKENS}")
    if engine.expert_parallel != 1 and not m.experts:
        raise PlanningError("DoesNotFit", f"expert parallelism {engine.expert_parallel}: {m.name} has no experts")
    if engine.expert_parallel != 1 and (not 1 <= engine.expert_parallel <= width or m.experts % engine.expert_parallel):
        raise PlanningError(
            "DoesNotFit",
            f"expert parallelism {engine.expert_parallel}: the {m.experts} experts of a layer of {m.name} cannot be dealt out so to "
            f"{width} GPUs",
        )
    if not batches:
        raise PlanningError("InvalidBatch", "there is no batch: write numbers of requests in flight, such as 8,16")
    bad = [b for b in batches if not 1 <= b <= MOST_REQUESTS]
    if bad:
        raise PlanningError(
            "InvalidBatch",
            f"batch {', '.join(map(str, bad))}: requests in flight are from 1 to {MOST_REQUESTS}, such as 8,16",
        )
    room = kv_room_tokens(engine, isl + osl / 2)
    if room < isl + osl:
        raise PlanningError("DoesNotFit", _does_not_fit(engine, isl + osl, room))


def _does_not_fit(engine: Engine, tokens: int, room: int) -> str:
    m, gpu = engine.model, engine.gpu
    fits = [
        w
        for w in (2**k for k in range(_WIDEST.bit_length()))
        if w > engine.tensor_parallel
        and m.tensor_parallel_fits(w)
        and kv_room_tokens(Engine(m, gpu, w, engine.weights, engine.kv), tokens) >= tokens
    ]
    try_this = (
        f"; tensor parallelism {fits[0]} does" if fits else "; fewer bytes a weight or a GPU with more memory may"
    )
    if free_bytes_per_gpu(engine) <= 0:
        return (
            f"{m.name} in {engine.format.name} does not fit on {engine.tensor_parallel} × {gpu.name}: "
            f"{engine.weight_bytes_per_gpu / 1e9:.0f} GB of weights a GPU of {gpu.memory_bytes / 1e9:.0f} GB{try_this}"
        )
    return f"a request of {tokens} tokens does not fit into the KV room of {room} on {engine.tensor_parallel} × {gpu.name}{try_this}"


def served(engine: Engine, isl: int, osl: int, batches: Sequence[int]) -> tuple[ServingPoint, ...]:
    """What clients measure at these concurrencies, with prompts of ``isl`` and responses of ``osl`` tokens.

    Raises PlanningError ``DoesNotFit``, ``InvalidLengths`` or ``InvalidBatch``.
    """
    checked(engine, isl, osl, batches)
    context = isl + osl / 2.0
    sent = np.asarray(batches, dtype=np.float64)
    room = kv_room_tokens(engine, context) / context
    most = np.maximum(1.0, np.minimum(np.minimum(sent, room), engine.gpu.engine.max_running))
    steps = max(osl - 1, 1)
    chunks = np.ceil(isl / np.maximum(1.0, engine.gpu.engine.batched_tokens - most))
    decoding, rate = most, (most - 1.0) / osl
    tpot = ttft = np.zeros_like(sent)
    for _ in range(_ROUNDS):
        before = tpot
        tpot, share, mixed = engine.mean_step_s(decoding, context, rate, isl)
        busy = np.minimum(_FULL, share * mixed / tpot)
        wait = np.minimum(busy / (2.0 * (1.0 - busy)), (most - 1.0) / 2.0) * mixed
        ttft = chunks * mixed + wait + tpot / 2.0
        whole = ttft + steps * tpot
        rate = (most - 1.0) * tpot / whole
        decoding = 1.0 + (most - 1.0) * steps * tpot / whole
        if np.max(np.abs(tpot - before) / tpot) < _CLOSE:
            break
    queued = (sent / most - 1.0) * (ttft + steps * tpot)
    return tuple(
        ServingPoint(int(b), float(n), float(t), float(f), bool(s > m))
        for b, n, t, f, s, m in zip(batches, decoding, tpot, ttft + queued, sent, most, strict=True)
    )


def tpot_ms(engine: Engine, isl: int, osl: int, batch: int) -> float:
    """Mean milliseconds per output token that a client measures with ``batch`` requests in flight."""
    return served(engine, isl, osl, (batch,))[0].tpot_s * 1e3


def weight_format_of(name: str | None, model: ModelShape) -> WeightFormat:
    """The format of a model's weights by a name that tables use for it; None: that of the published checkpoint.

    Tables name a format by its bits: fp4 is MXFP4, and fp8 is FP8 in blocks, where the checkpoint is published so.
    """
    found = weight_format(model.native if name is None else name)
    named_by_bits = {"nvfp4": "mxfp4", "fp8": "fp8_block"}
    return weight_format(model.native) if named_by_bits.get(found.name) == model.native else found


def kv_format_of(weights: WeightFormat) -> str:
    """The format of the KV cache that an engine takes by itself with such weights.

    Checkpoints in FP8 with a scale a tensor, and in NVFP4, bring scales for an 8-bit KV cache, which engines then use; others do not.
    """
    return "fp8" if weights.name in ("fp8", "nvfp4") else "bf16"
