"""Model shapes: what a model costs to hold, to read and to run, counted from its architecture.

Nothing but the shape matters for sizing, so a model is either one of the packaged shapes or the fields of a Hugging Face
``config.json``. Parameter counts, FLOPs and KV bytes are all derived from the same few numbers, so they cannot disagree; the
tests hold the counts against the published ones. Norms, biases and multi-token-prediction heads are left out (under 0.5 %).
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from importlib import resources
from typing import Any

import yaml

from rljob_planner.errors import PlanningError


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

    @property
    def kind(self) -> str:
        """``dense`` or ``moe``."""
        return "moe" if self.experts else "dense"

    @cached_property
    def attention_parameters(self) -> float:
        """Of one layer."""
        if self.mla is None:
            return float(self.hidden * self.head_dim * (2 * self.heads + 2 * self.kv_heads))
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
        """Of one routed expert (gate, up and down)."""
        return 3.0 * self.hidden * self.moe_intermediate

    @property
    def embedding_parameters(self) -> float:
        """Of the input embedding, or of the output head."""
        return float(self.vocab * self.hidden)

    @cached_property
    def always_read_parameters(self) -> float:
        """What every decode step reads: attention, dense blocks, shared experts, routers and the output head."""
        dense = (self.layers - self.moe_layers) * 3.0 * self.hidden * self.intermediate
        shared = self.moe_layers * (3.0 * self.hidden * self.shared_intermediate + self.hidden * self.experts)
        return self.layers * self.attention_parameters + dense + shared + self.embedding_parameters

    @cached_property
    def parameters(self) -> float:
        """All parameters."""
        routed = self.moe_layers * self.experts * self.expert_parameters
        return self.always_read_parameters + routed + (0.0 if self.tie_embeddings else self.embedding_parameters)

    @cached_property
    def active_parameters(self) -> float:
        """Parameters that multiply a token: N in 2·N (forward) and 6·N (training); the input embedding is a look-up."""
        return self.always_read_parameters + self.moe_layers * self.active_experts * self.expert_parameters

    @property
    def full_layers(self) -> int:
        """Layers that look back over the whole context."""
        return self.layers - self.sliding_layers

    def kv_bytes_per_token_layer(self, element_bytes: float) -> float:
        """KV bytes of one token in one layer, over all GPUs of a replica that do not repeat them."""
        if self.mla is not None:
            return (self.mla.kv_lora_rank + self.mla.qk_rope_head_dim) * element_bytes
        return 2.0 * self.kv_heads * self.head_dim * element_bytes

    def kv_bytes_per_token(self, element_bytes: float) -> float:
        """KV bytes of one token of a context that no sliding window has cut."""
        return self.layers * self.kv_bytes_per_token_layer(element_bytes)

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


@cache
def _data() -> dict[str, Any]:
    text = resources.files("rljob_planner").joinpath("data/models.yaml").read_text(encoding="utf-8")
    models: dict[str, Any] = yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))["models"]
    return models


def _plain(name: str) -> str:
    return name.strip().lower().replace("_", "-")


@cache
def _names() -> dict[str, str]:
    names: dict[str, str] = {}
    for key, fields in _data().items():
        for alias in (key, fields["hf_id"], *fields.get("aliases", ())):
            names[_plain(alias)] = key
            names.setdefault(_plain(alias).rsplit("/", 1)[-1], key)
    return names


def model_names() -> tuple[str, ...]:
    """The Hugging Face names of the packaged shapes."""
    return tuple(fields["hf_id"] for fields in _data().values())


def published_parameters(name: str) -> tuple[float, float | None]:
    """The published counts of a packaged model: total, and active for mixtures of experts."""
    fields = _data()[_names()[_plain(name)]]
    active = fields.get("params_active_b")
    return float(fields["params_total_b"]) * 1e9, None if active is None else float(active) * 1e9


def model(name: str) -> ModelShape:
    """The shape of a known model, by Hugging Face name or short name.

    Raises PlanningError ``UnknownModel`` with the names that come near.
    """
    key = _names().get(_plain(name)) or _names().get(_plain(name).rsplit("/", 1)[-1])
    if key is None:
        near = difflib.get_close_matches(_plain(name).rsplit("/", 1)[-1], list(_names()), n=3, cutoff=0.5)
        known = sorted({str(_data()[_names()[n]]["hf_id"]) for n in near}) or sorted(model_names())
        raise PlanningError(
            "UnknownModel",
            f"model {name!r} is not known; near are {', '.join(known)}. For another model put the fields of its config.json "
            "(hidden_size, num_hidden_layers, num_attention_heads, …) under spec.model.config instead of spec.model.name",
        )
    return _packaged(key)


@cache
def _packaged(key: str) -> ModelShape:
    f = _data()[key]
    experts, moe_intermediate = int(f.get("experts", 0)), int(f.get("moe_intermediate", 0))
    return ModelShape(
        name=f["hf_id"],
        layers=f["layers"],
        hidden=f["hidden"],
        heads=f["heads"],
        kv_heads=f["kv_heads"],
        head_dim=f["head_dim"],
        intermediate=f["intermediate"],
        vocab=f["vocab"],
        tie_embeddings=f["tie_embeddings"],
        experts=experts,
        active_experts=int(f.get("active_experts", 0)),
        moe_intermediate=moe_intermediate,
        shared_intermediate=int(f.get("shared_experts", 0)) * moe_intermediate,
        moe_layers=f["layers"] - int(f.get("first_k_dense", 0)) if experts else 0,
        sliding_window=int(f.get("sliding_window", 0)),
        sliding_layers=int(f.get("sliding_layers", 0)),
        mla=LatentAttention(**f["mla"]) if "mla" in f else None,
    )


_FULL, _SLIDING = "full_attention", "sliding_attention"


class _Config:
    """Reads fields of a config.json, or says which one is missing or wrong."""

    def __init__(self, fields: Mapping[str, Any]) -> None:
        nested = fields.get("text_config")
        self.fields: Mapping[str, Any] = nested if isinstance(nested, Mapping) else fields

    def raw(self, *names: str) -> Any:
        return next((self.fields[n] for n in names if self.fields.get(n) is not None), None)

    def number(self, *names: str, default: int | None = None, least: int = 1) -> int:
        value = self.raw(*names)
        if value is None:
            if default is not None:
                return default
            raise PlanningError(
                "UnknownModel",
                f"spec.model.config lacks {names[0]}: copy the fields of the model's config.json, "
                "at least hidden_size, num_hidden_layers, num_attention_heads, intermediate_size and vocab_size",
            )
        if (
            isinstance(value, bool)
            or not isinstance(value, int | float)
            or value != int(value)
            or not least <= value <= 1e9
        ):
            raise PlanningError(
                "UnknownModel", f"spec.model.config.{names[0]} must be a whole number from {least}, not {value!r}"
            )
        return int(value)


def from_config(fields: Mapping[str, Any]) -> ModelShape:
    """The shape that the fields of a Hugging Face ``config.json`` describe.

    Understands the field names of Llama, Qwen 2 and 3, Mistral, Mixtral, Qwen-MoE, GLM-4, DeepSeek-V3 and gpt-oss; fields that
    do not matter for size are ignored. Raises PlanningError ``UnknownModel`` if a field is missing or contradicts others.
    """
    c = _Config(fields)
    layers, hidden, heads = c.number("num_hidden_layers"), c.number("hidden_size"), c.number("num_attention_heads")
    head_dim = c.number("head_dim", default=max(1, hidden // heads))
    kv_heads = c.number("num_key_value_heads", default=heads)
    experts = c.number("num_experts", "n_routed_experts", "num_local_experts", default=0, least=0)
    experts = experts if experts > 1 else 0
    intermediate = c.number("intermediate_size", default=None if not experts else 0)
    active = c.number("num_experts_per_tok", "experts_per_token", "moe_topk") if experts else 0
    moe_intermediate = c.number("moe_intermediate_size", default=intermediate or None) if experts else 0
    shared = c.number("shared_expert_intermediate_size", default=0, least=0)
    if experts and not shared:
        shared = c.number("n_shared_experts", default=0, least=0) * moe_intermediate
    if heads % kv_heads:
        raise PlanningError(
            "UnknownModel",
            f"spec.model.config: num_attention_heads {heads} is no multiple of num_key_value_heads {kv_heads}",
        )
    if active > experts:
        raise PlanningError(
            "UnknownModel", f"spec.model.config: num_experts_per_tok {active} is more than the {experts} experts"
        )
    mla = None
    if c.raw("kv_lora_rank") is not None:
        mla = LatentAttention(
            kv_lora_rank=c.number("kv_lora_rank"),
            q_lora_rank=c.number("q_lora_rank", default=0, least=0),
            qk_nope_head_dim=c.number("qk_nope_head_dim"),
            qk_rope_head_dim=c.number("qk_rope_head_dim"),
            v_head_dim=c.number("v_head_dim"),
        )
        head_dim = mla.qk_nope_head_dim + mla.qk_rope_head_dim
    window, sliding = _sliding(c, layers)
    return ModelShape(
        name=str(fields.get("_name_or_path") or fields.get("model_type") or "config"),
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        intermediate=intermediate,
        vocab=c.number("vocab_size"),
        tie_embeddings=bool(c.raw("tie_word_embeddings")),
        experts=experts,
        active_experts=active,
        moe_intermediate=moe_intermediate,
        shared_intermediate=shared,
        moe_layers=_moe_layers(c, layers) if experts else 0,
        sliding_window=window,
        sliding_layers=sliding,
        mla=mla,
    )


def _moe_layers(c: _Config, layers: int) -> int:
    dense_first = c.number("first_k_dense_replace", default=0, least=0)
    every = c.number("decoder_sparse_step", "moe_layer_freq", default=1)
    dense = set(range(min(layers, dense_first)))
    listed = c.raw("mlp_only_layers")
    if isinstance(listed, list):
        dense |= {int(i) for i in listed if 0 <= int(i) < layers}
    dense |= {i for i in range(layers) if (i + 1) % every}
    return layers - len(dense)


def _sliding(c: _Config, layers: int) -> tuple[int, int]:
    """Window in tokens and number of layers that have it."""
    kinds = c.raw("layer_types")
    if isinstance(kinds, list):
        other = sorted({str(k) for k in kinds} - {_FULL, _SLIDING})
        if other:
            raise PlanningError(
                "UnknownModel",
                f"spec.model.config.layer_types has {', '.join(other)}: only full_attention and sliding_attention are modelled",
            )
        count = sum(k == _SLIDING for k in kinds[:layers])
        return (c.number("sliding_window"), count) if count else (0, 0)
    if c.raw("sliding_window") is None or c.raw("use_sliding_window") is False:
        return 0, 0
    if c.raw("model_type") == "gpt_oss":
        return c.number("sliding_window"), (layers + 1) // 2
    pattern = c.number("sliding_window_pattern", default=0, least=0)
    if pattern:
        return c.number("sliding_window"), layers - layers // pattern
    skipped = c.number("max_window_layers", default=0, least=0) if c.raw("use_sliding_window") else 0
    return c.number("sliding_window"), max(0, layers - skipped)
