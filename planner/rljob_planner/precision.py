"""Number formats of weights and of the KV cache: what a number takes, and what the arithmetic runs in.

A checkpoint is rarely of one format: quantised ones keep embeddings and the LM head in 16 bits, MXFP4 ones all but the
experts. That matters for decode, which reads every weight in every step. Names are those of configs and of benchmark tables,
which write ``mxfp4 experts, bf16 rest`` where an engine says ``mxfp4``.
"""

from __future__ import annotations

from dataclasses import dataclass

from rljob_planner.errors import PlanningError

_HALF = 2.0
_MXFP4_BYTES = 4.25 / 8  # 4 bits and an 8-bit scale for 32 numbers
_NVFP4_BYTES = 4.5 / 8  # 4 bits and an 8-bit scale for 16 numbers


@dataclass(frozen=True)
class WeightFormat:
    """Bytes of a weight by where it is, and the arithmetic that its products run in."""

    name: str
    expert_bytes: float
    """Of routed experts."""
    linear_bytes: float
    """Of attention, dense feed-forward blocks and shared experts."""
    head_bytes: float
    """Of embeddings and LM head."""
    expert_compute: str
    """``bf16``, ``fp8`` or ``fp4``; what the GPU lacks runs in 16 bits."""
    linear_compute: str
    scaled_in_blocks: bool = False
    """Whether each block of a weight has a scale, so that inputs are quantised before each product."""


_FORMATS = {
    "bf16": WeightFormat("bf16", _HALF, _HALF, _HALF, "bf16", "bf16"),
    "fp16": WeightFormat("fp16", _HALF, _HALF, _HALF, "bf16", "bf16"),
    "fp8": WeightFormat("fp8", 1.0, 1.0, _HALF, "fp8", "fp8"),
    "fp8_block": WeightFormat("fp8_block", 1.0, 1.0, _HALF, "fp8", "fp8", scaled_in_blocks=True),
    "mxfp4": WeightFormat("mxfp4", _MXFP4_BYTES, _HALF, _HALF, "fp4", "bf16"),
    "nvfp4": WeightFormat("nvfp4", _NVFP4_BYTES, _NVFP4_BYTES, _HALF, "fp4", "fp4"),
}
_ALIASES = {
    "float16": "fp16",
    "half": "fp16",
    "bfloat16": "bf16",
    "fp8_e4m3": "fp8",
    "fp8_e5m2": "fp8",
    "float8": "fp8",
    "fp8_per_tensor": "fp8",
    "fp4": "nvfp4",
}

PRECISIONS = tuple(_FORMATS)
"""Names of the formats."""
KV_PRECISIONS = ("bf16", "fp16", "fp8")
"""Formats that engines keep a KV cache in."""


def weight_format(name: str) -> WeightFormat:
    """The format of this name, also as benchmark tables write it; raises PlanningError ``UnknownPrecision``."""
    plain = name.strip().lower().replace("-", "_")
    for known in (plain, plain.split(",", maxsplit=1)[0].split(" ", maxsplit=1)[0]):
        found = _FORMATS.get(_ALIASES.get(known, known))
        if found is not None:
            return found
    raise PlanningError("UnknownPrecision", f"precision {name!r} is not known: write one of {', '.join(PRECISIONS)}")


def kv_format(name: str) -> str:
    """The format of a KV cache by this name, also as engines write it; raises PlanningError ``UnknownPrecision``."""
    try:
        found = weight_format(name).name
    except PlanningError:
        found = name
    if found not in KV_PRECISIONS:
        raise PlanningError(
            "UnknownPrecision", f"KV cache precision {name!r} is not known: write one of {', '.join(KV_PRECISIONS)}"
        )
    return found


def bytes_per_element(precision: str) -> float:
    """Bytes of one number of the KV cache, or of a weight inside a layer."""
    return weight_format(precision).linear_bytes
