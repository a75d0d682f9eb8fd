"""Accelerators: what the data sheet says, and how much of it an engine or a trainer really gets.

Both live in ``data/hardware.yaml`` with their sources, since every number here is somebody's measurement. A GPU answers to the
data file's own name, to the names people use, and to what the GPU operator writes into the node label
``nvidia.com/gpu.product``, so a user rarely has to say which one it is.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from importlib import resources
from typing import Any

import numpy as np
import yaml
from numpy.typing import NDArray

from rljob_planner.errors import PlanningError
from rljob_planner.naming import examples, near
from rljob_planner.precision import bytes_per_element as bytes_per_element

FloatArray = NDArray[np.float64]

GIB = 1024.0**3

_WIDEST_TABLE = 8
_SLICE = re.compile(r"-mig-\d+g", re.IGNORECASE)


@dataclass(frozen=True)
class DecodeEfficiency:
    """The constants of a decode step that an engine on a GPU is measured by (``steptime`` has the formula)."""

    mbu: float
    """Share of memory bandwidth that reading weights and KV reaches, 0..1."""
    mfu: float
    """Share of peak FLOP/s that the matrix products of prefill and of large batches reach, 0..1."""
    layer_s: float
    """Seconds a layer costs whatever its size."""
    step_s: float
    """Seconds a step costs whatever the model."""
    request_s: float
    """Seconds a running sample adds to a step."""


@dataclass(frozen=True)
class Kernels:
    """What the kernels of an architecture are like, whatever model and engine they run in."""

    activation_passes: float
    """How often each layer moves the hidden state of a token through memory: norms, rotations, gates, residuals."""
    sample_layer_s: float
    """Seconds that a running sample costs each layer: writing its keys and values, scheduling its attention."""
    expert_layer_s: float
    """Seconds that routing, sorting and summing cost a layer with experts, whatever its size."""
    block_layer_s: float
    """Seconds that a layer with weights scaled in blocks costs more: each product first quantises its inputs."""
    expert_mfu: float
    """What the products of experts reach of what plain products reach, 0..1: each expert gets few tokens."""
    narrow_kv_mbu: float
    """What attention over an 8-bit KV cache reaches of the bandwidth over a 16-bit one, 0..1: it widens what it reads."""
    unpack_bytes_per_s: float | None
    """Most bytes a second of 4-bit weights that a GPU without 4-bit arithmetic unpacks; None: as fast as it reads."""
    prompt_s: float
    """Seconds that a prompt costs the step in which its prefill begins, whatever its length."""


@dataclass(frozen=True)
class EngineDefaults:
    """What the engine chooses by itself on a GPU."""

    max_running: int
    """Most running samples (max_num_seqs)."""
    batched_tokens: int
    """Most tokens of one step (max_num_batched_tokens)."""


@dataclass(frozen=True)
class Gpu:
    """One accelerator. Rates are per GPU and one direction, in bytes and FLOP a second."""

    name: str
    arch: str
    memory_bytes: float
    memory_bytes_per_s: float
    peak_bf16: float
    peak_fp8: float | None
    """None: the GPU computes fp8 weights in bf16."""
    peak_fp4: float | None
    """None: the GPU unpacks 4-bit weights and computes in bf16."""
    nvlink_bytes_per_s: float
    """0: GPUs of a node talk over PCIe."""
    pcie_bytes_per_s: float
    network_bytes_per_s: float
    gpus_per_node: int
    island_gpus: int
    """GPUs that reach each other without the network: those of a node, or of a rack where NVLink spans it."""
    usd_per_hour: float | None
    """A typical price, None where none is known."""
    decode: DecodeEfficiency
    kernels: Kernels
    engine: EngineDefaults

    def peak_flops(self, precision: str) -> float:
        """Dense FLOP/s of arithmetic in ``fp4``, ``fp8`` or 16 bit; what the GPU has no units for runs in 16 bit."""
        if precision == "fp4":
            return self.peak_fp4 or self.peak_bf16
        return self.peak_fp8 or self.peak_bf16 if precision.startswith("fp8") else self.peak_bf16

    @property
    def link_bytes_per_s(self) -> float:
        """Between two GPUs of an island."""
        return self.nvlink_bytes_per_s or self.pcie_bytes_per_s

    @cached_property
    def _allreduce_table(self) -> tuple[FloatArray, dict[int, FloatArray]]:
        tables = _data()["allreduce_us"]
        rows = np.array(tables.get(self.arch, tables["hopper"]), dtype=np.float64)
        return rows[:, 0], {2: rows[:, 1], 4: rows[:, 2], 8: rows[:, 3]}

    def allreduce_s(self, message_bytes: FloatArray | float, tensor_parallel: int) -> FloatArray:
        """Seconds of one all-reduce of this many bytes over a tensor-parallel group.

        Inside an island from the measured table of the architecture, linear between its rows and in proportion to bytes beyond
        them; cards without NVLink pay the ring's traffic over PCIe on top of the same latency. A group wider than an island
        reduces inside each of them and then exchanges every GPU's share over the network: 2·(n − 1)/n of the share for n
        islands, and a latency each way.
        """
        size = np.atleast_1d(np.asarray(message_bytes, dtype=np.float64))
        if tensor_parallel <= 1:
            return np.zeros_like(size)
        inside = min(tensor_parallel, self.island_gpus)
        seconds = self._allreduce_inside_s(size, inside)
        islands = -(-tensor_parallel // self.island_gpus)
        if islands > 1:
            share = size / inside / self.network_bytes_per_s
            seconds = seconds + 2.0 * (islands - 1) / islands * share + 2.0 * (islands - 1) * _network_latency_s()
        return seconds

    def _allreduce_inside_s(self, size: FloatArray, width: int) -> FloatArray:
        if width <= 1:
            return np.zeros_like(size)
        columns_bytes, by_width = self._allreduce_table
        measured = by_width[min((w for w in by_width if w >= width), default=_WIDEST_TABLE)] * 1e-6
        if self.nvlink_bytes_per_s <= 0:
            return np.asarray(measured[0] * 2.0 + 2.0 * (width - 1) / width * size / self.pcie_bytes_per_s)
        inside = np.interp(size, columns_bytes, measured)
        return np.where(size > columns_bytes[-1], measured[-1] * size / columns_bytes[-1], inside)


@dataclass(frozen=True)
class MemoryConstants:
    """What an engine's memory goes to besides weights and KV."""

    utilization: float
    """Share of a GPU's memory that the engine takes, 0..1."""
    block_tokens: int
    """Tokens of a KV block."""
    activation_bytes: Mapping[str, float]
    """Peak activations at 8192 batched tokens, by model kind (``dense``, ``moe``)."""
    non_torch_bytes_single: float
    """Outside of PyTorch's allocator, on one GPU."""
    non_torch_bytes_parallel: float
    """The same, a GPU of a tensor-parallel group."""


@dataclass(frozen=True)
class TrainingConstants:
    """Defaults of a trainer that was not measured yet."""

    state_bytes_per_parameter: float
    utilization: float
    logits_chunk_tokens: int
    weight_sync_bytes_per_s: float


@cache
def _data() -> dict[str, Any]:
    text = resources.files("rljob_planner").joinpath("data/hardware.yaml").read_text(encoding="utf-8")
    loaded: dict[str, Any] = yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    return loaded


@cache
def memory_constants() -> MemoryConstants:
    """The engine's memory constants."""
    m = _data()["memory"]
    return MemoryConstants(
        utilization=float(m["utilization"]),
        block_tokens=int(m["block_tokens"]),
        activation_bytes={kind: float(gib) * GIB for kind, gib in m["activation_gib"].items()},
        non_torch_bytes_single=float(m["non_torch_gib"]["tp1"]) * GIB,
        non_torch_bytes_parallel=float(m["non_torch_gib"]["tp"]) * GIB,
    )


@cache
def training_constants() -> TrainingConstants:
    """The trainer's defaults."""
    t = _data()["training"]
    return TrainingConstants(
        state_bytes_per_parameter=float(t["state_bytes_per_parameter"]),
        utilization=float(t["utilization"]),
        logits_chunk_tokens=int(t["logits_chunk_tokens"]),
        weight_sync_bytes_per_s=float(t["weight_sync_gbs"]) * 1e9,
    )


@cache
def routing_skew() -> float:
    """How unevenly tokens choose experts: the i-th most popular expert is chosen in proportion to i to the power of minus this."""
    return float(_data()["routing_skew"])


def _network_latency_s() -> float:
    return float(_data()["network_latency_us"]) * 1e-6


def _plain(name: str) -> str:
    text = re.sub(r"[\s_/]+", "-", re.sub(r"\(.*?\)", "", name).strip().lower())
    text = re.sub(r"-(?:bf16|fp16|fp8|fp4)$", "", text)
    text = re.sub(r"^\d+-?x-?(?=[a-z])", "", re.sub(r"(?<=-)(\d+)g(?=-|$)", r"\1gb", text))
    return text.removeprefix("nvidia-").removeprefix("amd-").removeprefix("huawei-").strip("-")


@cache
def _names() -> dict[str, str]:
    names: dict[str, str] = {}
    for key, fields in _data()["gpus"].items():
        for alias in (key, *fields["aliases"]):
            names[_plain(alias)] = key
    return names


def gpu_names() -> tuple[str, ...]:
    """The names of the data file."""
    return tuple(_data()["gpus"])


def gpu(name: str) -> Gpu:
    """The GPU of this name, alias or ``nvidia.com/gpu.product`` label.

    Raises PlanningError ``UnknownAccelerator`` with the names that come near.
    """
    if _SLICE.search(name):
        raise PlanningError(
            "UnknownAccelerator",
            f"accelerator {name!r} is a MIG slice: samplers and trainers are planned for whole GPUs, so choose nodes without MIG",
        )
    if name.lower().endswith("-shared"):
        raise PlanningError(
            "UnknownAccelerator",
            f"accelerator {name!r} is shared by time-slicing or MPS: samplers and trainers are planned for whole GPUs, so choose nodes "
            "that share none",
        )
    key = _names().get(_plain(name))
    if key is None:
        raise PlanningError(
            "UnknownAccelerator",
            f"accelerator {name!r} is not known{_others(name)} in spec.accelerator. A GPU that is not listed "
            "can be planned as one that comes near it in memory bandwidth and FLOP/s: the run's own metrics correct its speed, and "
            "rljob calibrate --url, without --gpu, measures it",
        )
    return _gpu(key)


def _others(name: str) -> str:
    """Which names come near, or a few that are known."""
    found = near(_plain(name), _names())
    if found:
        return f": write {'one of ' if len(found) > 1 else ''}{', '.join(found)}"
    few = examples((fields["arch"], key) for key, fields in _data()["gpus"].items())
    return f", nor is a name near it: write one of the {len(gpu_names())} known names, such as {', '.join(few)},"


@cache
def _gpu(key: str) -> Gpu:
    g = _data()["gpus"][key]
    constants = _data()["decode"]
    c = constants["default"] | constants.get(g["arch"], {})
    memory_bytes = float(g["hbm_gb"]) * 1e9
    large = memory_bytes >= 70 * GIB and g["arch"] != "ampere"
    engine = _data()["memory"]["engine"]["large" if large else "small"]
    return Gpu(
        name=key,
        arch=g["arch"],
        memory_bytes=memory_bytes,
        memory_bytes_per_s=float(g["hbm_gbs"]) * 1e9,
        peak_bf16=float(g["bf16"]) * 1e12,
        peak_fp8=None if g["fp8"] is None else float(g["fp8"]) * 1e12,
        peak_fp4=None if g.get("fp4") is None else float(g["fp4"]) * 1e12,
        nvlink_bytes_per_s=float(g["nvlink_gbs"]) * 1e9,
        pcie_bytes_per_s=float(g["pcie_gbs"]) * 1e9,
        network_bytes_per_s=float(g["net_gbs"]) * 1e9,
        gpus_per_node=int(g["gpus_per_node"]),
        island_gpus=int(g.get("nvlink_domain", g["gpus_per_node"])),
        usd_per_hour=None if g["usd_hr"] is None else float(g["usd_hr"]),
        decode=DecodeEfficiency(
            mbu=float(c["mbu"]),
            mfu=float(c["mfu"]),
            layer_s=float(c["c_layer_us"]) * 1e-6,
            step_s=float(c["c_step_ms"]) * 1e-3,
            request_s=float(c["c_req_us"]) * 1e-6,
        ),
        kernels=Kernels(
            activation_passes=float(c["activation_passes"]),
            sample_layer_s=float(c["c_sample_layer_us"]) * 1e-6,
            expert_layer_s=float(c["c_expert_layer_us"]) * 1e-6,
            block_layer_s=float(c["c_block_layer_us"]) * 1e-6,
            expert_mfu=float(c["expert_mfu"]),
            narrow_kv_mbu=float(c["narrow_kv_mbu"]),
            unpack_bytes_per_s=None if c["unpack_gbs"] is None else float(c["unpack_gbs"]) * 1e9,
            prompt_s=float(c["prompt_us"]) * 1e-6,
        ),
        engine=EngineDefaults(int(engine["max_num_seqs"]), int(engine["max_num_batched_tokens"])),
    )
