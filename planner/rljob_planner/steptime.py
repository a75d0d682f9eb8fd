"""How long one decode step takes: a roofline of its parts, with the constants that a bare roofline lacks.

A step of one sampler replica runs T = b + p tokens through the model: one for each of b running samples, and p of prompts that
are prefilled along with them. On each GPU of a tensor-parallel group it takes ::

    max(W_l/BW', 2·N_l·T/F') + max(W_e(T)/BW', 2·N_e·T/F'ₑ) + max(W_h/BW', 2·N_h·b/F')     matrix products
      + KV·R/BW' + attention of the prompts                                                  attention
      + 2·L·t_allreduce(T·hidden·2 bytes) + passes·L·T·hidden·2/BW                           between products
      + L·c_layer + c_step + b·(c_req + L·c_sample)                                          launches, sampling, scheduling

with BW' = MBU·BW, F' = MFU·peak, R the resident tokens, l the weights of attention and dense blocks, e those of routed experts
and h the output head, each in its own number format. Each kind of product is bound by memory or by arithmetic on its own: a
prompt of a thousand tokens hides the reading of the weights, the context of other samples it does not hide. Of experts only
those are read that some token visits, Σ 1 − (1 − pᵢ)^T in expectation; their popularity p follows a power law of the rank.

The last lines are what a roofline lacks, and without them it is almost twice too fast: kernel launches, sampling and
scheduling cost as much as reading a small model. The constants were fitted to measured vLLM runs (``data/hardware.yaml``).

Where an engine was measured on an accelerator without a data sheet, all of this is a line through its steps (``measured_costs``).

For a given b everything is linear in the resident tokens, which is what lets the simulator jump over iterations
(``simulate``); what depends on b goes into tables.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from rljob_planner.hardware import Gpu, routing_skew
from rljob_planner.measured_costs import DecodeSeconds
from rljob_planner.precision import WeightFormat, bytes_per_element, weight_format
from rljob_planner.shapes import ModelShape

if TYPE_CHECKING:
    from rljob_planner.lengths import LengthDistribution
    from rljob_planner.simulate import DecodeCost

FloatArray = NDArray[np.float64]

_ACTIVATION_BYTES = 2.0
_STATE_PASSES = 2.0
"""A state is read and written in each step."""
_MANY_TOKENS, _TOKEN_STEPS = 1e6, 240
"""Where, and how finely, visits to experts are tabled: a table costs a millisecond, the sum itself would cost one a step."""


@cache
def _visits(experts: int, active: int, skew: float) -> tuple[FloatArray, FloatArray]:
    """Numbers of tokens, and how many experts of a layer they visit in expectation.

    A token visits ``active`` experts; the chance of the expert of rank i falls as i to the power of −skew, and is at most 1.
    """
    chance = np.arange(1, experts + 1, dtype=np.float64) ** -skew
    certain = np.zeros(experts, dtype=bool)
    for _ in range(active + 1):
        chance[~certain] *= (active - certain.sum()) / chance[~certain].sum()
        more = ~certain & (chance >= 1.0)
        if not more.any():
            break
        chance[more], certain = 1.0, certain | more
    tokens = np.concatenate(([0.0], np.geomspace(1.0, _MANY_TOKENS, _TOKEN_STEPS)))
    return tokens, (1.0 - (1.0 - chance)[None, :] ** tokens[:, None]).sum(axis=1)


def visited_share(model: ModelShape, tokens: FloatArray | float) -> FloatArray:
    """Share of a layer's routed experts that so many tokens visit, in expectation, some being more popular than others; 0 where a model has none."""
    if not model.experts:
        return np.zeros_like(tokens, dtype=np.float64)
    return np.asarray(np.interp(tokens, *_visits(model.experts, model.active_experts, routing_skew())) / model.experts)


@dataclass(frozen=True)
class Prefill:
    """Prompts that a step prefills along with its decoding samples; arrays hold one value for each number of samples."""

    tokens: FloatArray | float
    """Of all prompts together."""
    prompts: FloatArray | float
    """Prompts, or shares of one where a prompt is cut into chunks."""
    prompt_tokens: float
    """Length of a whole prompt."""


@dataclass(frozen=True)
class Engine:
    """A model on a tensor-parallel group of one GPU type, in the samplers' number formats."""

    model: ModelShape
    gpu: Gpu
    tensor_parallel: int
    weights: str
    """A name that ``precision.weight_format`` knows."""
    kv: str
    """``bf16``, ``fp16`` or ``fp8``."""
    expert_parallel: int = 1
    """Over how many GPUs whole experts are dealt out; 1: each expert is cut into tensor-parallel slices."""
    measured: DecodeSeconds | None = None
    """Seconds that were measured, in place of everything that bytes, arithmetic and constants would say; None: nothing was."""

    @cached_property
    def format(self) -> WeightFormat:
        """The number format of the weights."""
        return weight_format(self.weights)

    @property
    def _bytes_per_s(self) -> float:
        return self.gpu.decode.mbu * self.gpu.memory_bytes_per_s

    @property
    def _kv_bytes_per_s(self) -> float:
        narrow = bytes_per_element(self.kv) < _ACTIVATION_BYTES
        return self._bytes_per_s * (self.gpu.kernels.narrow_kv_mbu if narrow else 1.0)

    def _flops_per_s(self, precision: str) -> float:
        return self.gpu.decode.mfu * self.gpu.peak_flops(precision) * self.tensor_parallel

    @property
    def weight_bytes_per_gpu(self) -> float:
        """Bytes of weights that one GPU holds."""
        m, f = self.model, self.format
        heads = m.embedding_parameters * (1.0 if m.tie_embeddings else 2.0)
        held = m.linear_parameters * f.linear_bytes + m.routed_parameters * f.expert_bytes + heads * f.head_bytes
        return held / self.tensor_parallel

    def distinct_experts(self, tokens: FloatArray) -> FloatArray:
        """Routed experts of a layer that so many tokens visit, in expectation.

        Where whole experts are dealt out to GPUs, the GPU with the most of them sets the pace: its share of them, and the spread of
        that over EP draws, √(2·ln EP) standard deviations above it.
        """
        m = self.model
        visited = visited_share(m, tokens)
        if self.expert_parallel <= 1:
            return np.asarray(m.experts * visited)
        own = m.experts / self.expert_parallel
        spread = np.sqrt(2.0 * np.log(self.expert_parallel) * own * visited * (1.0 - visited))
        return np.asarray(np.minimum(own, own * visited + spread) * self.expert_parallel)

    def weight_bytes_read(self, running: FloatArray) -> FloatArray:
        """Bytes of weights that one GPU reads in a step with so many running samples."""
        m, f = self.model, self.format
        always = m.linear_parameters * f.linear_bytes + m.embedding_parameters * f.head_bytes
        return np.asarray((always + self._expert_bytes(running)) / self.tensor_parallel)

    def _expert_bytes(self, tokens: FloatArray) -> FloatArray:
        m = self.model
        if not m.experts:
            return np.zeros_like(tokens)
        return m.moe_layers * m.expert_parameters * self.format.expert_bytes * self.distinct_experts(tokens)

    def kv_bytes(self, layers: int) -> float:
        """KV bytes of one token in so many layers, on one GPU."""
        element = bytes_per_element(self.kv)
        return layers * self.model.kv_bytes_per_token_layer(element) / self.model.kv_shards(self.tensor_parallel)

    def products_s(self, running: FloatArray, prefill: Prefill | None = None) -> FloatArray:
        """Seconds of the matrix products of a step."""
        if self.measured is not None:
            return np.zeros_like(running)
        m, f, width = self.model, self.format, self.tensor_parallel
        tokens = running if prefill is None else running + prefill.tokens
        sampled = running if prefill is None else running + prefill.prompts
        linear = np.maximum(
            m.linear_parameters * f.linear_bytes / width / self._bytes_per_s,
            2.0 * m.linear_parameters * tokens / self._flops_per_s(f.linear_compute),
        )
        head = np.maximum(
            m.embedding_parameters * f.head_bytes / width / self._bytes_per_s,
            2.0 * m.embedding_parameters * sampled / self._flops_per_s("bf16"),
        )
        return np.asarray(linear + head + self._experts_s(tokens))

    def _experts_s(self, tokens: FloatArray) -> FloatArray:
        m, f, kernels = self.model, self.format, self.gpu.kernels
        if not m.experts:
            return np.zeros_like(tokens)
        bytes_per_s = self._bytes_per_s
        if f.expert_compute == "fp4" and self.gpu.peak_fp4 is None and kernels.unpack_bytes_per_s is not None:
            bytes_per_s = min(bytes_per_s, kernels.unpack_bytes_per_s)
        flops = 2.0 * m.moe_layers * m.active_experts * m.expert_parameters * tokens
        return np.maximum(
            self._expert_bytes(tokens) / self.tensor_parallel / bytes_per_s,
            flops / (kernels.expert_mfu * self._flops_per_s(f.expert_compute)),
        )

    def context_s(self, running: FloatArray, context_tokens: float) -> FloatArray:
        """Seconds to read what does not grow with the context: sliding windows of a mean context, and states."""
        if self.measured is not None:
            return np.zeros_like(running)
        m = self.model
        window = min(context_tokens, m.sliding_window) * self.kv_bytes(m.sliding_layers)
        state = _STATE_PASSES * m.state_bytes_per_sequence / self.tensor_parallel
        return np.asarray(running * (window / self._kv_bytes_per_s + state / self._bytes_per_s))

    @property
    def context_s_per_token(self) -> float:
        """Seconds that each resident token adds: its KV in the layers without a window, or its attention where that is slower."""
        if self.measured is not None:
            return self.measured.context_token_s
        m = self.model
        read = self.kv_bytes(m.full_layers) / self._kv_bytes_per_s
        return max(read, m.full_layers * m.decode_attention_flops / self._flops_per_s("bf16"))

    def fixed_s(self, running: FloatArray, prefill: Prefill | None = None) -> FloatArray:
        """Seconds between the products, and what neither bytes nor arithmetic explain; all of a step that was measured."""
        if (seconds := self.measured) is not None:
            prompts = np.zeros_like(running) if prefill is None else np.asarray(prefill.tokens)
            experts_s = seconds.experts_s * visited_share(self.model, running + prompts)
            return np.asarray(
                seconds.step_s + seconds.sample_s * running + seconds.prompt_token_s * prompts + experts_s
            )
        e, m, kernels = self.gpu.decode, self.model, self.gpu.kernels
        tokens = running if prefill is None else running + prefill.tokens
        hidden_bytes = tokens * m.hidden * _ACTIVATION_BYTES
        reduce = 2.0 * m.layers * self.gpu.allreduce_s(hidden_bytes, self.tensor_parallel)
        passes = kernels.activation_passes * m.layers * hidden_bytes / self.gpu.memory_bytes_per_s
        samples = running * (e.request_s + m.layers * kernels.sample_layer_s)
        layers = m.layers * e.layer_s + m.moe_layers * kernels.expert_layer_s
        if self.format.scaled_in_blocks:
            layers += m.layers * kernels.block_layer_s
        return np.asarray(reduce + passes + layers + e.step_s + samples)

    def prompts_s(self, prefill: Prefill) -> FloatArray:
        """Seconds of what only prompts cost a step: their attention, and a constant for each."""
        if self.measured is not None:
            return np.zeros_like(np.asarray(prefill.prompts, dtype=np.float64))
        flops = self.model.forward_attention_flops(prefill.prompt_tokens, prefill.prompt_tokens**2)
        seconds = flops / self._flops_per_s("bf16") + self.gpu.kernels.prompt_s
        return np.asarray(np.asarray(prefill.prompts, dtype=np.float64) * seconds)

    def step_s(self, running: FloatArray, context_tokens: float, prefill: Prefill | None = None) -> FloatArray:
        """Seconds of a step with so many running samples of mean context ``context_tokens``, and of a prefill in it."""
        context = self.context_s(running, context_tokens) + self.context_s_per_token * running * context_tokens
        seconds = self.products_s(running, prefill) + self.fixed_s(running, prefill) + context
        return np.asarray(seconds if prefill is None else seconds + self.prompts_s(prefill))

    def mean_step_s(
        self, running: FloatArray, context_tokens: float, prompts_per_step: FloatArray, prompt_tokens: float
    ) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Mean seconds of the steps of a replica in which so many prompts start a step, in the mean.

        Prompts come whole (or in chunks, where they are longer than what a step takes), not evenly spread: chunks arrive at random, so
        a share 1 − e^(−rate) of the steps has some, and those are slower by far. Also returned: the share of slow steps, and
        their seconds.
        """
        plain = self.step_s(running, context_tokens)
        if prompt_tokens <= 0:
            return plain, np.zeros_like(plain), plain
        room = np.maximum(1.0, self.gpu.engine.batched_tokens - running)
        chunks = np.ceil(prompt_tokens / room)
        rate = prompts_per_step * chunks
        share = -np.expm1(-rate)
        together = np.where(rate > 0, rate / np.maximum(share, 1e-300), 1.0) / chunks
        mixed = self.step_s(running, context_tokens, Prefill(together * prompt_tokens, together, prompt_tokens))
        return np.asarray(plain + share * (mixed - plain)), share, mixed

    def prefill_s(self, tokens: float, running: float = 0.0) -> float:
        """Seconds that the prefill of a prompt adds to the steps of so many running samples."""
        if tokens <= 0:
            return 0.0
        b = np.array([running], dtype=np.float64)
        room = max(1.0, self.gpu.engine.batched_tokens - running)
        chunks = float(np.ceil(tokens / room))
        part = Prefill(tokens / chunks, 1.0 / chunks, tokens)
        added = self.products_s(b, part) + self.fixed_s(b, part) + self.prompts_s(part)
        return chunks * float((added - self.products_s(b) - self.fixed_s(b))[0])

    @property
    def recompute_s_per_token(self) -> float:
        """Seconds a token of context costs when a preempted sample is prefilled again: that of a token of a full step."""
        tokens = float(self.gpu.engine.batched_tokens)
        return self.prefill_s(tokens) / tokens


def decode_step_s(
    engine: Engine, running: float, context_tokens: float, prefill_tokens: float = 0.0, prompt_tokens: float = 0.0
) -> float:
    """Mean seconds of the steps with ``running`` samples of mean context ``context_tokens``.

    ``prefill_tokens`` of prompts, each ``prompt_tokens`` long, are prefilled per step in the mean.
    """
    b = np.array([running], dtype=np.float64)
    rate = np.array([prefill_tokens / prompt_tokens if prefill_tokens else 0.0])
    return float(engine.mean_step_s(b, context_tokens, rate, prompt_tokens)[0][0])


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
        memory_s=(engine.products_s(running) + engine.context_s(running, context_tokens)) / factor,
        compute_s=np.zeros_like(running),
        memory_s_per_token=engine.context_s_per_token / factor,
        compute_s_per_token=0.0,
        prefill_s_per_sample=engine.prefill_s(prompt_tokens, max_running) / samples_per_prompt / factor,
        recompute_s_per_token=engine.recompute_s_per_token / factor,
    )
