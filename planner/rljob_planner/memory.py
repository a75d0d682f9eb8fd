"""Whether it fits: the KV room of a sampler replica, and the memory of a trainer's GPU.

KV room is what is left of the engine's share of memory after weights, peak activations and what lives outside of PyTorch's
allocator, in whole blocks. It bounds how many samples can run at once, and so, with long responses, the speed of rollout.

A trainer's GPU holds its shard of the state (weights, gradients, fp32 master weights, Adam moments) and the activations of
one micro-batch, which can be no smaller than one sequence.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rljob_planner.hardware import Gpu, memory_constants, training_constants
from rljob_planner.shapes import ModelShape
from rljob_planner.steptime import Engine

if TYPE_CHECKING:
    from rljob_planner.lengths import LengthDistribution

_MEASURED_BATCHED_TOKENS = 8192


def free_bytes_per_gpu(engine: Engine) -> float:
    """Bytes of a sampler's GPU that are left to the KV cache; negative if the weights do not fit."""
    m, gpu = memory_constants(), engine.gpu
    activation = m.activation_bytes[engine.model.kind] * gpu.engine.batched_tokens / _MEASURED_BATCHED_TOKENS
    other = m.non_torch_bytes_parallel if engine.tensor_parallel > 1 else m.non_torch_bytes_single
    return gpu.memory_bytes * m.utilization - engine.weight_bytes_per_gpu - activation - other


def kv_room_tokens(engine: Engine, context_tokens: float) -> int:
    """Tokens that the KV cache of a replica holds, in whole blocks; 0 if the model does not fit.

    ``context_tokens`` is the mean context, which says how much of it sliding windows let go of, and over how many tokens the
    constant state of a sequence is spread where layers keep one. Without any KV cache the room is that of the states.
    """
    free = free_bytes_per_gpu(engine)
    if free <= 0:
        return 0
    model, block = engine.model, memory_constants().block_tokens
    held = min(1.0, model.sliding_window / max(context_tokens, 1.0)) if model.sliding_layers else 0.0
    state = model.state_bytes_per_sequence / engine.tensor_parallel / max(context_tokens, 1.0)
    per_token = engine.kv_bytes(model.full_layers) + engine.kv_bytes(model.sliding_layers) * held + state
    return int(free / per_token) // block * block


def shared_prompt_room_tokens(
    room_tokens: int, lengths: LengthDistribution, prompt_tokens: int, samples_per_prompt: int
) -> int:
    """The room as the simulator counts it, in which every running sample holds its own prompt.

    With a prefix cache a group's prompt is held once, as long as its slowest sample runs: by Little's law a running sample
    then carries min(1, M/S) prompts, M being the mean of a group's longest over the mean length.
    """
    resident = lengths.resident_mean_tokens()
    share = min(1.0, lengths.tail_multiplier(samples_per_prompt) / samples_per_prompt)
    return int(room_tokens * (resident + prompt_tokens) / (resident + prompt_tokens * share))


@dataclass(frozen=True)
class TrainerMemory:
    """Bytes on one GPU of a trainer."""

    state_bytes: float
    activation_bytes: float
    available_bytes: float

    @property
    def fits(self) -> bool:
        """Whether all of it fits."""
        return self.state_bytes + self.activation_bytes <= self.available_bytes


def trainer_memory(
    model: ModelShape,
    gpu: Gpu,
    *,
    gpus: int,
    tensor_parallel: int,
    pipeline_parallel: int,
    longest_tokens: int,
    recompute: str,
) -> TrainerMemory:
    """Memory of a trainer's GPU.

    State is sharded over all GPUs (fully sharded data parallel, or tensor and pipeline shards with a distributed optimizer).
    Activations are those of one sequence of ``longest_tokens``, divided by sequence and tensor parallelism: with full
    recomputation the input of each layer (2·hidden bytes a token) and one layer's working set (34·hidden), without it the
    working set of every layer. The layer at work is gathered whole, and logits are computed in chunks.
    """
    t = training_constants()
    layers = -(-model.layers // pipeline_parallel)
    working = 34.0 * model.hidden * longest_tokens
    kept = layers * (2.0 * model.hidden * longest_tokens if recompute == "full" else working)
    logits = 6.0 * model.vocab * min(longest_tokens, t.logits_chunk_tokens)
    activations = (kept + working + logits) / tensor_parallel
    widest_layer = (model.parameters - 2.0 * model.embedding_parameters) / model.layers
    gathered = (
        2.0 * 2.0 * max(widest_layer, model.embedding_parameters) / tensor_parallel if gpus > tensor_parallel else 0.0
    )
    return TrainerMemory(
        state_bytes=t.state_bytes_per_parameter * model.parameters / gpus,
        activation_bytes=activations + gathered,
        available_bytes=gpu.memory_bytes * t.utilization,
    )
