"""How long one decode step takes: a roofline with the constants that a bare roofline lacks.

A step of one sampler replica with b running samples of mean context c takes, on each GPU of its tensor-parallel group ::

    max((W(b) + KV·b·c) / (MBU·BW),  b·(2·N + 4·L·H·d·c) / (MFU·peak))
      + prefill of the step  +  L·c_layer + c_step + b·c_req  +  2·L·t_allreduce(b·hidden·2 bytes)

W counts the weights that are read: of a mixture of experts only the distinct experts that b tokens visit, E·(1 − (1 − K/E)^b)
of them in expectation. A roofline without the last terms is almost twice too fast on decode, since kernel launches, sampling
and scheduling cost as much as reading a small model. The constants were fitted to measured vLLM runs (``data/hardware.yaml``).

Everything is linear in the resident tokens, which is what lets the simulator jump over iterations (``simulate``); the number
of running samples goes into tables.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from rljob_planner.hardware import Gpu, bytes_per_element
from rljob_planner.models import ModelShape

if TYPE_CHECKING:
    from rljob_planner.lengths import LengthDistribution
    from rljob_planner.simulate import DecodeCost

FloatArray = NDArray[np.float64]

_ACTIVATION_BYTES = 2.0


@dataclass(frozen=True)
class Engine:
    """A model on a tensor-parallel group of one GPU type, in the samplers' number formats."""

    model: ModelShape
    gpu: Gpu
    tensor_parallel: int
    weights: str
    """``bf16``, ``fp16`` or ``fp8``."""
    kv: str
    """``bf16``, ``fp16`` or ``fp8``."""

    @property
    def _bytes_per_s(self) -> float:
        return self.gpu.decode.mbu * self.gpu.memory_bytes_per_s

    @property
    def _flops_per_s(self) -> float:
        return self.gpu.decode.mfu * self.gpu.peak_flops(self.weights) * self.tensor_parallel

    def weight_bytes_read(self, running: FloatArray) -> FloatArray:
        """Bytes of weights that one GPU reads in a step with so many running samples."""
        m = self.model
        parameters = np.full_like(running, m.always_read_parameters)
        if m.experts:
            distinct = m.experts * (1.0 - (1.0 - m.active_experts / m.experts) ** running)
            parameters += m.moe_layers * m.expert_parameters * distinct
        return np.asarray(parameters * bytes_per_element(self.weights) / self.tensor_parallel)

    def kv_bytes(self, layers: int) -> float:
        """KV bytes of one token in so many layers, on one GPU."""
        element = bytes_per_element(self.kv)
        return layers * self.model.kv_bytes_per_token_layer(element) / self.model.kv_shards(self.tensor_parallel)

    def memory_s(self, running: FloatArray, context_tokens: float) -> FloatArray:
        """Seconds to read the weights, and of the KV cache what sliding windows hold of a mean context."""
        window = running * min(context_tokens, self.model.sliding_window) * self.kv_bytes(self.model.sliding_layers)
        return np.asarray((self.weight_bytes_read(running) + window) / self._bytes_per_s)

    @property
    def memory_s_per_token(self) -> float:
        """Seconds that each resident token adds to the memory side: its KV in the layers without a window."""
        return self.kv_bytes(self.model.full_layers) / self._bytes_per_s

    def compute_s(self, running: FloatArray, context_tokens: float) -> FloatArray:
        """Seconds of arithmetic without that of attention over the whole context."""
        m = self.model
        window = m.sliding_layers * m.decode_attention_flops * min(context_tokens, m.sliding_window)
        return np.asarray(running * (2.0 * m.active_parameters + window) / self._flops_per_s)

    @property
    def compute_s_per_token(self) -> float:
        """Seconds that each resident token adds to the compute side."""
        return self.model.full_layers * self.model.decode_attention_flops / self._flops_per_s

    def fixed_s(self, running: FloatArray) -> FloatArray:
        """Seconds that neither bytes nor arithmetic explain, and communication."""
        e, m = self.gpu.decode, self.model
        message_bytes = running * m.hidden * _ACTIVATION_BYTES
        reduce_s = self.gpu.allreduce_s(message_bytes, self.tensor_parallel)
        return np.asarray(m.layers * e.layer_s + e.step_s + running * e.request_s + 2.0 * m.layers * reduce_s)

    def prefill_s(self, tokens: float) -> float:
        """Seconds that the prefill of a prompt adds, causal attention included."""
        flops = 2.0 * self.model.active_parameters * tokens + self.model.forward_attention_flops(
            tokens, tokens * tokens
        )
        return flops / self._flops_per_s

    @property
    def recompute_s_per_token(self) -> float:
        """Seconds a token of context costs when a preempted sample is prefilled again."""
        return 2.0 * self.model.active_parameters / self._flops_per_s


def decode_step_s(
    engine: Engine, running: float, context_tokens: float, prefill_tokens: float = 0.0, prompt_tokens: float = 0.0
) -> float:
    """Seconds of one step with ``running`` samples of mean context ``context_tokens``.

    ``prefill_tokens`` of prompts, each ``prompt_tokens`` long, are prefilled in the same step.
    """
    b = np.array([running], dtype=np.float64)
    memory = engine.memory_s(b, context_tokens)[0] + engine.memory_s_per_token * running * context_tokens
    compute = engine.compute_s(b, context_tokens)[0] + engine.compute_s_per_token * running * context_tokens
    prefill = prefill_tokens / prompt_tokens * engine.prefill_s(prompt_tokens) if prefill_tokens else 0.0
    return float(engine.fixed_s(b)[0] + max(memory, compute) + prefill)


def decode_cost(
    engine: Engine,
    max_running: int,
    lengths: LengthDistribution,
    prompt_tokens: int,
    samples_per_prompt: int,
    factor: float = 1.0,
) -> DecodeCost:
    """The cost tables of a replica for the simulator.

    ``factor`` is measured over predicted speed: 1.25 makes everything 1.25 times as fast. A prompt is prefilled once a group, as
    with a prefix cache and a router that keeps a group together.
    """
    from rljob_planner.simulate import DecodeCost

    running = np.arange(max_running + 1, dtype=np.float64)
    context_tokens = prompt_tokens + lengths.resident_mean_tokens()
    return DecodeCost(
        fixed_s=engine.fixed_s(running) / factor,
        memory_s=engine.memory_s(running, context_tokens) / factor,
        compute_s=engine.compute_s(running, context_tokens) / factor,
        memory_s_per_token=engine.memory_s_per_token / factor,
        compute_s_per_token=engine.compute_s_per_token / factor,
        prefill_s_per_sample=engine.prefill_s(prompt_tokens) / samples_per_prompt / factor,
        recompute_s_per_token=engine.recompute_s_per_token / factor,
    )
