"""Model shapes: what a model costs to hold, to read and to run, counted from its architecture.

Nothing but the shape matters for sizing. Parameter counts, FLOPs and KV bytes are all derived from the same few numbers, so
they cannot disagree; the tests hold the counts against the published ones. Norms, biases and multi-token-prediction heads are
left out (under 0.5 %).

Layers of a hybrid that keep a state instead of a KV cache (Mamba, gated delta networks) are counted by what they hold: their
parameters, and a state per sequence that is read and written in every step and does not grow with the context.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property


@dataclass(frozen=True)
class LatentAttention:
    """Multi-head latent attention: keys and values are kept as one compressed vector a token."""

    kv_lora_rank: int
    q_lora_rank: int
    """0: queries are not compressed."""
    qk_nope_head_dim: int
    qk_rope_head_dim: int
    v_head_dim: int


@dataclass(frozen=True)
class ModelShape:
    """The architecture of a decoder."""

    name: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    """Width of a dense layer's feed-forward block."""
    vocab: int
    tie_embeddings: bool = False
    experts: int = 0
    """Routed experts of a layer; 0: a dense model."""
    active_experts: int = 0
    """Routed experts that a token visits."""
    moe_intermediate: int = 0
    """Width of a routed expert."""
    shared_intermediate: int = 0
    """Width of all shared experts of a layer together."""
    moe_layers: int = 0
    """Layers with experts; the others are dense."""
    sliding_window: int = 0
    """Tokens that a sliding layer looks back."""
    sliding_layers: int = 0
    mla: LatentAttention | None = None
    state_layers: int = 0
    """Layers that keep a state of constant size instead of keys and values."""
    state_parameters: float = 0.0
    """Of one such layer, feed-forward block not included."""
    state_bytes: float = 0.0
    """Of one sequence in one such layer, over all GPUs of a replica."""
    gated_attention: bool = False
    """Whether attention computes an output gate of the width of its queries."""
    feed_forward_matrices: int = 3
    """Of a feed-forward block: gate, up and down, or 2 where there is no gate."""
    mixer_parameters: float | None = None
    """Of one attention layer, where its structure is none that is counted here."""
    native: str = "bf16"
    """Number format that the checkpoint is published in."""

    @property
    def kind(self) -> str:
        """``dense`` or ``moe``."""
        return "moe" if self.experts else "dense"

    @cached_property
    def attention_parameters(self) -> float:
        """Of one layer with attention."""
        if self.mixer_parameters is not None:
            return self.mixer_parameters
        if self.mla is None:
            queries = (3 if self.gated_attention else 2) * self.heads
            return float(self.hidden * self.head_dim * (queries + 2 * self.kv_heads))
        m = self.mla
        query_width = self.heads * (m.qk_nope_head_dim + m.qk_rope_head_dim)
        query = (
            self.hidden * m.q_lora_rank + m.q_lora_rank * query_width if m.q_lora_rank else self.hidden * query_width
        )
        keys = self.hidden * (m.kv_lora_rank + m.qk_rope_head_dim)
        expand = m.kv_lora_rank * self.heads * (m.qk_nope_head_dim + m.v_head_dim)
        return float(query + keys + expand + self.heads * m.v_head_dim * self.hidden)

    @cached_property
    def expert_parameters(self) -> float:
        """Of one routed expert."""
        return float(self.feed_forward_matrices * self.hidden * self.moe_intermediate)

    @property
    def embedding_parameters(self) -> float:
        """Of the input embedding, or of the output head."""
        return float(self.vocab * self.hidden)

    @cached_property
    def always_read_parameters(self) -> float:
        """What every decode step reads: attention, dense blocks, shared experts, routers and the output head."""
        block = float(self.feed_forward_matrices * self.hidden)
        dense = (self.layers - self.moe_layers) * block * self.intermediate
        shared = self.moe_layers * (block * self.shared_intermediate + self.hidden * self.experts)
        mixers = self.attention_layers * self.attention_parameters + self.state_layers * self.state_parameters
        return mixers + dense + shared + self.embedding_parameters

    @cached_property
    def parameters(self) -> float:
        """All parameters."""
        return (
            self.always_read_parameters
            + self.routed_parameters
            + (0.0 if self.tie_embeddings else self.embedding_parameters)
        )

    @cached_property
    def active_parameters(self) -> float:
        """Parameters that multiply a token: N in 2·N (forward) and 6·N (training); the input embedding is a look-up."""
        return self.always_read_parameters + self.moe_layers * self.active_experts * self.expert_parameters

    @cached_property
    def linear_parameters(self) -> float:
        """Of what every step reads besides the output head."""
        return self.always_read_parameters - self.embedding_parameters

    @cached_property
    def routed_parameters(self) -> float:
        """Of all routed experts."""
        return self.moe_layers * self.experts * self.expert_parameters

    @property
    def attention_layers(self) -> int:
        """Layers with keys and values."""
        return self.layers - self.state_layers

    @property
    def full_layers(self) -> int:
        """Layers that look back over the whole context."""
        return self.attention_layers - self.sliding_layers

    def kv_bytes_per_token_layer(self, element_bytes: float) -> float:
        """KV bytes of one token in one layer, over all GPUs of a replica that do not repeat them."""
        if self.mla is not None:
            return (self.mla.kv_lora_rank + self.mla.qk_rope_head_dim) * element_bytes
        return 2.0 * self.kv_heads * self.head_dim * element_bytes

    def kv_bytes_per_token(self, element_bytes: float) -> float:
        """KV bytes of one token of a context that no sliding window has cut."""
        return self.attention_layers * self.kv_bytes_per_token_layer(element_bytes)

    @property
    def state_bytes_per_sequence(self) -> float:
        """Bytes that a sequence holds whatever its length, over all GPUs of a replica."""
        return self.state_layers * self.state_bytes

    def kv_shards(self, tensor_parallel: int) -> int:
        """Over how many GPUs the KV cache is divided: each holds whole KV heads, and a latent vector is on all of them."""
        return 1 if self.mla is not None else max(1, min(tensor_parallel, self.kv_heads))

    @property
    def decode_attention_flops(self) -> float:
        """FLOPs of one layer's attention for one new token and one token of context."""
        if self.mla is not None:
            return 2.0 * self.heads * (2 * self.mla.kv_lora_rank + self.mla.qk_rope_head_dim)
        return 4.0 * self.heads * self.head_dim

    @property
    def sequence_attention_flops(self) -> float:
        """FLOPs of one layer's causal attention over a sequence, forward, per squared token: half of QKᵀ plus half of ·V."""
        value_dim = self.mla.v_head_dim if self.mla is not None else self.head_dim
        return float(self.heads * (self.head_dim + value_dim))

    def forward_attention_flops(self, tokens: float, squares: float) -> float:
        """FLOPs of causal attention over sequences with ``tokens`` in sum and ``squares`` as the sum of squared lengths."""
        full = self.full_layers * self.sequence_attention_flops * squares
        window = (
            self.sliding_layers * 2.0 * self.sequence_attention_flops * min(squares / 2.0, tokens * self.sliding_window)
        )
        return full + window

    def tensor_parallel_fits(self, tensor_parallel: int) -> bool:
        """Whether heads can be divided so."""
        return self.heads % tensor_parallel == 0

    def weight_bytes(self, element_bytes: float) -> float:
        """Bytes of all weights."""
        return self.parameters * element_bytes
