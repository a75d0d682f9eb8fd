"""How long a training step takes, how a trainer's GPUs are divided, and how long new weights travel.

A step does, forward and backward over T tokens, 6·N·T + 6·L·H·d·Σlen² FLOPs (N: parameters that multiply a token; causal
attention), 8/6 of it where all activations are recomputed, plus (2·N·T + 2·L·H·d·Σlen²) for every further forward pass (old
log-probabilities, a reference model).

MFU means what frameworks print: the 6·N·T FLOPs over time and peak, recomputation not counted. The packaged defaults were
measured with full recomputation, so a trainer without it is faster at the same speed of arithmetic, while a stated MFU is
taken to be that of the very trainer that is planned.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rljob_planner.hardware import Gpu, bytes_per_element, interpolated_mfu, training_constants
from rljob_planner.memory import trainer_memory
from rljob_planner.models import ModelShape
from rljob_planner.split import TrainerSplit

if TYPE_CHECKING:
    from rljob_planner.lengths import LengthDistribution
    from rljob_planner.simulate import TrainCost

_OPTIMIZER_BYTES_PER_PARAMETER = 36.0
"""Read and written in an optimizer step: master weight, two moments, gradient and the new bf16 weight."""
_FULL_RECOMPUTE = 8.0 / 6.0


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
    flops_per_s = split.gpus * gpu.peak_bf16 * _arithmetic_share(setup, prompt_tokens + lengths.cap_tokens)
    pad = padding(samples_per_step, split.dp)
    matrix, attention = _recompute_factors(setup.recompute)
    bubble = 1.0 + (split.pp - 1) / max(1.0, samples_per_step / split.dp)
    per_token_flops = model.active_parameters * (6.0 * matrix + 2.0 * setup.extra_forwards)
    forward_squared = model.full_layers * model.sequence_attention_flops
    window_flops = model.sliding_layers * 2.0 * model.sequence_attention_flops * model.sliding_window
    attention_passes = 3.0 * attention + setup.extra_forwards
    per_token_s = pad * bubble * (per_token_flops + window_flops * attention_passes) / flops_per_s
    per_token_squared_s = pad * bubble * forward_squared * attention_passes / flops_per_s
    optimizer_s = _OPTIMIZER_BYTES_PER_PARAMETER * model.parameters / split.gpus / gpu.memory_bytes_per_s
    plain = TrainCost(0.0, per_token_s, per_token_squared_s).step_s(samples_per_step, prompt_tokens, lengths)
    exposed_s = max(0.0, _sharding_traffic_s(setup, split) - plain)
    return TrainCost((optimizer_s + exposed_s) / factor, per_token_s / factor, per_token_squared_s / factor)


def _arithmetic_share(setup: TrainerSetup, longest_tokens: float) -> float:
    """Share of peak FLOP/s at which all arithmetic runs, recomputation included."""
    if setup.mfu is not None:
        return setup.mfu * _recompute_factors(setup.recompute)[0]
    return interpolated_mfu(longest_tokens, setup.model.kind == "moe") * _FULL_RECOMPUTE


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
    return model.weight_bytes(bytes_per_element(weights)) / (
        bytes_per_s or training_constants().weight_sync_bytes_per_s
    )


def _powers_of_two(most: int) -> Sequence[int]:
    return [1 << i for i in range(max(1, most).bit_length()) if 1 << i <= max(1, most)]


def _largest_divisor(number: int, most: int) -> int:
    return max((d for d in range(1, max(1, most) + 1) if number % d == 0 and most % d == 0), default=1)
