"""How long a training step takes, how a trainer's GPUs are divided, and how long new weights travel.

A step does, forward and backward over T tokens, 6·N·T + 6·L·H·d·Σlen² FLOPs (N: parameters that multiply a token; causal
attention), 8/6 of it where all activations are recomputed, plus (2·N·T + 2·L·H·d·Σlen²) for every further forward pass (old
log-probabilities, a reference model).

Seconds are those FLOPs at a share of peak that matrix kernels reach, plus a time for each token, layer and hidden unit: norms,
activations, routing and copies move memory and do hardly any arithmetic. One MFU for all would not do: the second term is most of
a step of a small mixture of experts, and next to nothing on a GPU with little arithmetic and much bandwidth. With experts on several
GPUs each token travels to its experts and back besides, which nothing hides; beyond an island of NVLink that is slow. The constants
were fitted to measured trainers (``data/training.yaml``). Whoever has measured the MFU of a trainer states it instead, as frameworks
print it: the 6·N·T FLOPs over time and peak, recomputation not counted.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING

import yaml

from rljob_planner.hardware import Gpu, training_constants
from rljob_planner.memory import trainer_memory
from rljob_planner.models import ModelShape
from rljob_planner.precision import weight_format
from rljob_planner.split import TrainerSplit

if TYPE_CHECKING:
    from rljob_planner.lengths import LengthDistribution
    from rljob_planner.simulate import TrainCost

_OPTIMIZER_BYTES_PER_PARAMETER = 36.0
"""Read and written in an optimizer step: master weight, two moments, gradient and the new bf16 weight."""
_FULL_RECOMPUTE = 8.0 / 6.0
_MATRICES_PER_LAYER = 7
"""Query, key, value, output, gate, up and down; an expert has the last three."""


@dataclass(frozen=True)
class TrainingEfficiency:
    """How fast trainers run beside the data sheet, and what surrounds their steps."""

    arithmetic_share: float
    """Of peak FLOP/s, for matrix products and attention."""
    element_s: float
    """Seconds per token, layer and hidden unit, over forward, recomputation and backward together."""
    element_bytes_per_s: float
    """Memory bandwidth at which ``element_s`` was measured; it scales with it."""
    offloaded_optimizer_s: float
    """Seconds per parameter of a node where the optimizer lives in host memory."""
    colocated_slowdown: float
    """Of a step on GPUs that also hold an engine."""
    offloaded_bytes: float
    """Per parameter, out of GPU memory and back, once a colocated step."""
    pcie_share: float
    hand_over_s: float
    """Per sample that a streaming trainer takes from its queue."""
    sampler_efficiency: float
    """Speed of samplers inside a running RL system over the engine alone."""
    trainer_efficiency: float


@dataclass(frozen=True)
class SyncPath:
    """How weights travel: ``fixed_s`` + ``tensor_s`` a tensor + bytes over speed."""

    fixed_s: float
    tensor_s: float
    bytes_per_s: float

    def seconds(self, model: ModelShape, weights: str) -> float:
        """For all weights of a model in this precision."""
        return self.fixed_s + self.tensor_s * tensors(model) + _weight_bytes(model, weights) / self.bytes_per_s


@cache
def _data() -> dict[str, dict[str, object]]:
    text = resources.files("rljob_planner").joinpath("data/training.yaml").read_text(encoding="utf-8")
    loaded: dict[str, dict[str, object]] = yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    return loaded


def _number(*path: str) -> float:
    found: object = _data()
    for key in path:
        assert isinstance(found, dict)
        found = found.get(key, 0.0)
    assert isinstance(found, int | float)
    return float(found)


@cache
def training_efficiency() -> TrainingEfficiency:
    """The packaged constants."""
    return TrainingEfficiency(
        arithmetic_share=_number("step", "arithmetic_share"),
        element_s=_number("step", "element_ns") * 1e-9,
        element_bytes_per_s=_number("step", "element_at_gbs") * 1e9,
        offloaded_optimizer_s=_number("step", "offloaded_optimizer_ns_per_parameter") * 1e-9,
        colocated_slowdown=_number("colocated", "slowdown"),
        offloaded_bytes=_number("colocated", "offloaded_bytes_per_parameter"),
        pcie_share=_number("colocated", "pcie_share"),
        hand_over_s=_number("streaming", "hand_over_ms_per_sample") * 1e-3,
        sampler_efficiency=_number("rl", "sampler_efficiency"),
        trainer_efficiency=_number("rl", "trainer_efficiency"),
    )


@cache
def sync_path(name: str) -> SyncPath:
    """``per_tensor``, ``bucketed`` (both between nodes) or ``inside`` (a node)."""
    return SyncPath(
        fixed_s=_number("weight_sync", name, "fixed_s"),
        tensor_s=_number("weight_sync", name, "tensor_ms") * 1e-3,
        bytes_per_s=_number("weight_sync", name, "gbs") * 1e9,
    )


def quantising_factor() -> float:
    """How much longer weights travel that are quantised to fp8 blocks on the way."""
    return _number("weight_sync", "quantising_factor")


def tensors(model: ModelShape) -> int:
    """Weight matrices of a model as checkpoints name them: each expert has its own."""
    experts = model.moe_layers * 3 * model.experts
    return model.layers * _MATRICES_PER_LAYER - 3 * model.moe_layers + experts + 2


def _weight_bytes(model: ModelShape, weights: str) -> float:
    f = weight_format(weights)
    return model.weight_bytes(f.linear_bytes) + model.routed_parameters * (f.expert_bytes - f.linear_bytes)


@dataclass(frozen=True)
class TrainerSetup:
    """What a training step depends on besides the workload and the number of GPUs."""

    model: ModelShape
    gpu: Gpu
    recompute: str
    """``full``, ``selective`` or ``none``."""
    extra_forwards: int
    """Forward passes besides that of the step."""
    mfu: float | None
    """Stated MFU, 0..1; None: the default by model kind."""
    batch: str
    """``padded`` or ``strict``."""


def _recompute_factors(recompute: str) -> tuple[float, float]:
    """FLOPs with recomputation over those without: of matrix products, and of attention."""
    return {"full": (_FULL_RECOMPUTE, _FULL_RECOMPUTE), "selective": (1.0, _FULL_RECOMPUTE), "none": (1.0, 1.0)}[
        recompute
    ]


def padding(samples_per_step: int, data_parallel: int) -> float:
    """How much longer a step takes because each rank trains a whole number of samples: ≥ 1."""
    return math.ceil(samples_per_step / data_parallel) * data_parallel / samples_per_step


def batch_divides(setup: TrainerSetup, samples_per_step: int, data_parallel: int) -> bool:
    """Whether the batch rule allows this data-parallel width."""
    return setup.batch == "padded" or samples_per_step % data_parallel == 0


def parallelism(
    setup: TrainerSetup, *, replicas: int, gpus_per_replica: int, longest_tokens: int, samples_per_step: int
) -> TrainerSplit | None:
    """The plainest division of a trainer's GPUs that fits in memory and obeys the batch rule; None if there is none.

    Sharded data parallelism alone if it fits; then tensor parallelism inside a pod for long sequences, then a pipeline. Experts
    are spread over the GPUs of a pod.
    """
    gpus, model = replicas * gpus_per_replica, setup.model
    expert_parallel = _largest_divisor(model.experts, gpus_per_replica) if model.experts else 1
    for pipeline in _powers_of_two(min(gpus, model.layers)):
        for tensor in _powers_of_two(gpus_per_replica):
            width = pipeline * tensor
            if gpus % width or gpus_per_replica % tensor or not model.tensor_parallel_fits(tensor):
                continue
            if not batch_divides(setup, samples_per_step, gpus // width):
                continue
            memory = trainer_memory(
                model,
                setup.gpu,
                gpus=gpus,
                tensor_parallel=tensor,
                pipeline_parallel=pipeline,
                longest_tokens=longest_tokens,
                recompute=setup.recompute,
            )
            if memory.fits:
                return TrainerSplit(
                    replicas=replicas,
                    gpus_per_replica=gpus_per_replica,
                    dp=gpus // width,
                    tp=tensor,
                    pp=pipeline,
                    ep=expert_parallel,
                )
    return None


def train_cost(
    setup: TrainerSetup,
    split: TrainerSplit,
    lengths: LengthDistribution,
    prompt_tokens: int,
    samples_per_step: int,
    factor: float = 1.0,
) -> TrainCost:
    """The cost of a training step for the simulator; ``factor`` is measured over predicted speed.

    Communication that computation hides is part of the MFU; what sticks out at this batch is added to every step.
    """
    from rljob_planner.simulate import TrainCost

    model, gpu = setup.model, setup.gpu
    flops_per_s = split.gpus * gpu.peak_bf16 * _arithmetic_share(setup)
    pad = padding(samples_per_step, split.dp)
    matrix, attention = _recompute_factors(setup.recompute)
    bubble = 1.0 + (split.pp - 1) / max(1.0, samples_per_step / split.dp)
    per_token_flops = model.active_parameters * (6.0 * matrix + 2.0 * setup.extra_forwards)
    forward_squared = model.full_layers * model.sequence_attention_flops
    window_flops = model.sliding_layers * 2.0 * model.sequence_attention_flops * model.sliding_window
    attention_passes = 3.0 * attention + setup.extra_forwards
    passes = 3.0 * matrix + setup.extra_forwards
    arithmetic_s = (per_token_flops + window_flops * attention_passes) / flops_per_s
    beside_s = passes / 4.0 * element_s_per_token(setup) + passes * expert_traffic_s_per_token(setup, split.ep)
    per_token_s = pad * bubble * (arithmetic_s + beside_s / split.gpus)
    per_token_squared_s = pad * bubble * forward_squared * attention_passes / flops_per_s
    optimizer_s = _OPTIMIZER_BYTES_PER_PARAMETER * model.parameters / split.gpus / gpu.memory_bytes_per_s
    plain = TrainCost(0.0, per_token_s, per_token_squared_s).step_s(samples_per_step, prompt_tokens, lengths)
    exposed_s = max(0.0, _sharding_traffic_s(setup, split) - plain)
    return TrainCost((optimizer_s + exposed_s) / factor, per_token_s / factor, per_token_squared_s / factor)


def _arithmetic_share(setup: TrainerSetup) -> float:
    """Share of peak FLOP/s at which all arithmetic runs, recomputation included."""
    if setup.mfu is not None:
        return setup.mfu * _recompute_factors(setup.recompute)[0]
    return training_efficiency().arithmetic_share


def element_s_per_token(setup: TrainerSetup) -> float:
    """Seconds of one GPU a token costs beside arithmetic, over four passes (forward, recomputation, twice backward).

    0 where an MFU is stated, which covers everything.
    """
    if setup.mfu is not None:
        return 0.0
    e = training_efficiency()
    slower = e.element_bytes_per_s / setup.gpu.memory_bytes_per_s
    return e.element_s * slower * setup.model.layers * setup.model.hidden


def expert_traffic_s_per_token(setup: TrainerSetup, expert_parallel: int) -> float:
    """Seconds of one GPU in which a token travels to its experts on other GPUs and back, in one pass over all layers.

    A layer sends K·hidden·2 bytes there and as many back, over NVLink inside an island of GPUs, over the network for the share of experts
    beyond it. No time where an MFU is stated, which covers everything.
    """
    model, gpu = setup.model, setup.gpu
    if setup.mfu is not None or not model.experts or expert_parallel <= 1:
        return 0.0
    inside = min(expert_parallel, gpu.island_gpus)
    sent_bytes = 2.0 * 2.0 * model.active_experts * model.hidden
    near, far = (inside - 1) / expert_parallel, (expert_parallel - inside) / expert_parallel
    layer_s = sent_bytes * (near / gpu.link_bytes_per_s + far / gpu.network_bytes_per_s)
    return model.moe_layers * layer_s


def _sharding_traffic_s(setup: TrainerSetup, split: TrainerSplit) -> float:
    """Seconds in which one pass gathers the bf16 weights twice and scatters the gradients, over the slowest link."""
    shards = split.dp
    if shards <= 1:
        return 0.0
    gpu = setup.gpu
    speed = gpu.link_bytes_per_s if split.replicas == 1 else gpu.network_bytes_per_s
    bytes_per_gpu = 3.0 * 2.0 * setup.model.parameters / (split.tp * split.pp) * (shards - 1) / shards
    return bytes_per_gpu / speed


def weight_sync_s(model: ModelShape, weights: str, bytes_per_s: float | None = None) -> float:
    """Seconds until samplers hold a new policy version; ``bytes_per_s`` end to end, by default as measured between nodes."""
    return _weight_bytes(model, weights) / (bytes_per_s or training_constants().weight_sync_bytes_per_s)


def _powers_of_two(most: int) -> Sequence[int]:
    return [1 << i for i in range(max(1, most).bit_length()) if 1 << i <= max(1, most)]


def _largest_divisor(number: int, most: int) -> int:
    return max((d for d in range(1, max(1, most) + 1) if number % d == 0 and most % d == 0), default=1)
