"""From the fields of a Hugging Face ``config.json`` to a shape.

Configs describe the same few numbers under many names, and say how layers differ in ways of their own: a list of layer types, a
pattern string, an interval, a first dense layer. What is not understood is an error that names the field, since a shape that is
quietly wrong makes every figure of a plan wrong. Fields that do not matter for size are ignored.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rljob_planner.errors import PlanningError
from rljob_planner.shapes import LatentAttention, ModelShape

WHERE = "spec.model.config"
"""How messages call the config; a reader of files replaces it by the file's name."""

_FULL, _SLIDING, _CHUNKED, _LINEAR = "full_attention", "sliding_attention", "chunked_attention", "linear_attention"
_STATE_ELEMENT_BYTES = 4.0
_CONVOLUTION_ELEMENT_BYTES = 2.0


def _problem(message: str) -> PlanningError:
    return PlanningError("UnknownModel", message)


class _Config:
    """Reads fields of a config.json, or says which one is missing or wrong."""

    def __init__(self, fields: Mapping[str, Any]) -> None:
        nested = fields.get("text_config")
        self.fields: Mapping[str, Any] = {**fields, **nested} if isinstance(nested, Mapping) else fields

    def raw(self, *names: str) -> Any:
        return next((self.fields[n] for n in names if self.fields.get(n) is not None), None)

    def number(self, *names: str, default: int | None = None, least: int = 1) -> int:
        value = self.raw(*names)
        if value is None:
            if default is not None:
                return default
            raise _problem(
                f"{WHERE} lacks {names[0]}: copy the fields of the model's config.json, "
                "at least hidden_size, num_hidden_layers, num_attention_heads, intermediate_size and vocab_size"
            )
        if (
            isinstance(value, bool)
            or not isinstance(value, int | float)
            or not least <= value <= 1e9
            or value != int(value)
        ):
            raise _problem(f"{WHERE}.{names[0]} must be a whole number from {least}, not {value!r}")
        return int(value)


@dataclass(frozen=True)
class _Layers:
    """How many layers of which kind there are."""

    layers: int
    window: int = 0
    sliding: int = 0
    state: int = 0
    state_parameters: float = 0.0
    state_bytes: float = 0.0
    moe: int | None = None
    """Layers with experts, where the pattern says so."""


def from_config(fields: Mapping[str, Any]) -> ModelShape:
    """The shape that the fields of a ``config.json`` describe.

    Understands the field names of Llama 2 to 4, Qwen 2 to 3.6, Mistral, Mixtral, GLM-4 and 5, DeepSeek-V2 to V4, Kimi,
    MiniMax-M2, Nemotron-H and gpt-oss. Raises PlanningError ``UnknownModel`` if a field is missing or contradicts others.
    """
    c = _Config(fields)
    hidden, heads = c.number("hidden_size"), c.number("num_attention_heads")
    kv_heads = c.number("num_key_value_heads", default=heads)
    experts = c.number("num_experts", "n_routed_experts", "num_local_experts", default=0, least=0)
    experts = experts if experts > 1 else 0
    intermediate = c.number("intermediate_size", default=None if not experts else 0, least=0)
    active = c.number("num_experts_per_tok", "experts_per_token", "moe_topk") if experts else 0
    moe_intermediate = c.number("moe_intermediate_size", default=intermediate or None) if experts else 0
    if heads % kv_heads:
        raise _problem(f"{WHERE}: num_attention_heads {heads} is no multiple of num_key_value_heads {kv_heads}")
    if active > experts:
        raise _problem(f"{WHERE}: num_experts_per_tok {active} is more than the {experts} experts")
    mla, mixer = _latent(c, hidden, heads)
    kinds = _layers(c, hidden)
    moe_layers = (kinds.moe if kinds.moe is not None else _moe_layers(c, kinds.layers)) if experts else 0
    llama4 = str(c.raw("model_type") or "").startswith("llama4")
    return ModelShape(
        name=str(fields.get("_name_or_path") or fields.get("model_type") or "config"),
        layers=kinds.layers,
        hidden=hidden,
        heads=heads,
        kv_heads=heads if mla is not None else kv_heads,
        head_dim=mla.qk_nope_head_dim + mla.qk_rope_head_dim
        if mla is not None
        else c.number("head_dim", default=max(1, hidden // heads)),
        intermediate=_dense_width(c, intermediate, llama4=llama4, pattern=kinds.moe is not None),
        vocab=c.number("vocab_size"),
        tie_embeddings=bool(c.raw("tie_word_embeddings")),
        experts=experts,
        active_experts=active,
        moe_intermediate=moe_intermediate,
        shared_intermediate=_shared_width(c, moe_intermediate, llama4=llama4) if experts else 0,
        moe_layers=moe_layers,
        sliding_window=kinds.window,
        sliding_layers=kinds.sliding,
        mla=mla,
        state_layers=kinds.state,
        state_parameters=kinds.state_parameters,
        state_bytes=kinds.state_bytes,
        gated_attention=bool(c.raw("attn_output_gate")),
        feed_forward_matrices=2 if c.raw("mlp_hidden_act", "hidden_act") == "relu2" else 3,
        mixer_parameters=mixer,
        native=_native(c),
    )


def _dense_width(c: _Config, intermediate: int, *, llama4: bool, pattern: bool) -> int:
    """Width of a dense block; in a pattern of single blocks the mixers have none."""
    if pattern:
        return 0
    return c.number("intermediate_size_mlp", default=intermediate, least=0) if llama4 else intermediate


def _shared_width(c: _Config, moe_intermediate: int, *, llama4: bool) -> int:
    if llama4:
        return moe_intermediate
    width = c.number(
        "shared_expert_intermediate_size",
        "moe_shared_expert_intermediate_size",
        "shared_intermediate_size",
        default=0,
        least=0,
    )
    return width or c.number("n_shared_experts", default=0, least=0) * moe_intermediate


def _native(c: _Config) -> str:
    quantization = c.raw("quantization_config")
    method = str(quantization.get("quant_method", "")) if isinstance(quantization, Mapping) else ""
    if method == "mxfp4":
        return "mxfp4"
    if method == "fp8":
        blocks = isinstance(quantization, Mapping) and quantization.get("weight_block_size")
        return "fp8_block" if blocks else "fp8"
    return "bf16"


def _latent(c: _Config, hidden: int, heads: int) -> tuple[LatentAttention | None, float | None]:
    """Latent attention, and its parameters where it is not that of DeepSeek-V2 and V3."""
    if c.raw("kv_lora_rank") is not None:
        return (
            LatentAttention(
                kv_lora_rank=c.number("kv_lora_rank"),
                q_lora_rank=c.number("q_lora_rank", default=0, least=0),
                qk_nope_head_dim=c.number("qk_nope_head_dim"),
                qk_rope_head_dim=c.number("qk_rope_head_dim"),
                v_head_dim=c.number("v_head_dim"),
            ),
            None,
        )
    if c.raw("compress_ratios") is None:
        return None, None
    width, rope, rank, groups = c.number("head_dim"), c.number("qk_rope_head_dim"), c.number("q_lora_rank"), 8
    output_rank = c.number("o_lora_rank")
    groups = c.number("o_groups", default=groups)
    query = hidden * rank + rank * heads * width
    output = heads * width * output_rank + groups * output_rank * hidden
    latent = LatentAttention(width - rope, rank, width - rope, rope, width)
    return latent, float(query + hidden * width + output)


def _layers(c: _Config, hidden: int) -> _Layers:
    pattern, kinds, ratios = c.raw("hybrid_override_pattern"), c.raw("layer_types"), c.raw("compress_ratios")
    if isinstance(pattern, str):
        return _pattern(c, hidden, pattern)
    layers = c.number("num_hidden_layers")
    if isinstance(ratios, list):
        ratios = _whole_numbers("compress_ratios", ratios)
        whole = sum(1.0 / r for r in ratios[:layers] if r > 0)
        return _Layers(layers, c.number("sliding_window"), layers - max(1, round(whole)))
    if isinstance(kinds, list):
        if len(kinds) < layers:
            raise _problem(f"{WHERE}.layer_types has {len(kinds)} layers, but num_hidden_layers is {layers}")
        return _listed(c, hidden, [str(k) for k in kinds[:layers]])
    window, sliding = _sliding(c, layers)
    return _Layers(layers, window, sliding)


def _whole_numbers(name: str, values: list[Any]) -> list[int]:
    if not all(isinstance(v, int) and not isinstance(v, bool) for v in values):
        raise _problem(f"{WHERE}.{name} must be a list of whole numbers, not {values!r:.60}")
    return list(values)


def _listed(c: _Config, hidden: int, kinds: list[str]) -> _Layers:
    other = sorted(set(kinds) - {_FULL, _SLIDING, _CHUNKED, _LINEAR})
    if other:
        raise _problem(
            f"{WHERE}.layer_types has {', '.join(other)}: only {_FULL}, {_SLIDING}, {_CHUNKED} and {_LINEAR} are modelled"
        )
    sliding = sum(k in (_SLIDING, _CHUNKED) for k in kinds)
    window = (c.number("attention_chunk_size") if _CHUNKED in kinds else c.number("sliding_window")) if sliding else 0
    state = kinds.count(_LINEAR)
    if not state:
        return _Layers(len(kinds), window, sliding)
    key_heads, value_heads = c.number("linear_num_key_heads"), c.number("linear_num_value_heads")
    key_dim, value_dim = c.number("linear_key_head_dim"), c.number("linear_value_head_dim")
    keys, values = key_heads * key_dim, value_heads * value_dim
    parameters = hidden * (2 * keys + 3 * values + 2 * value_heads)
    convolved = (2 * keys + values) * (c.number("linear_conv_kernel_dim", default=4) - 1)
    held = value_heads * key_dim * value_dim * _STATE_ELEMENT_BYTES + convolved * _CONVOLUTION_ELEMENT_BYTES
    return _Layers(len(kinds), window, sliding, state, float(parameters), held)


def _pattern(c: _Config, hidden: int, pattern: str) -> _Layers:
    """A hybrid of single blocks: M a Mamba mixer, * attention, E experts, - a dense block."""
    other = sorted(set(pattern) - set("M*E-"))
    if other or "-" in pattern:
        raise _problem(
            f"{WHERE}.hybrid_override_pattern has {', '.join(other) or '-'}: only M (Mamba), * (attention) and E (experts) are modelled"
        )
    heads, width = c.number("mamba_num_heads"), c.number("mamba_head_dim")
    groups, state = c.number("n_groups"), c.number("ssm_state_size")
    inner, shared = heads * width, 2 * groups * state
    parameters = hidden * (2 * inner + shared + heads) + inner * hidden
    convolved = (inner + shared) * (c.number("conv_kernel", default=4) - 1)
    held = heads * width * state * _STATE_ELEMENT_BYTES + convolved * _CONVOLUTION_ELEMENT_BYTES
    mixers = pattern.count("M") + pattern.count("*")
    return _Layers(mixers, 0, 0, pattern.count("M"), float(parameters), held, moe=pattern.count("E"))


def _moe_layers(c: _Config, layers: int) -> int:
    dense_first = c.number("first_k_dense_replace", default=0, least=0)
    every = c.number("decoder_sparse_step", "moe_layer_freq", "interleave_moe_layer_step", default=1)
    dense = set(range(min(layers, dense_first)))
    listed = c.raw("mlp_only_layers")
    if isinstance(listed, list):
        dense |= {i for i in _whole_numbers("mlp_only_layers", listed) if 0 <= i < layers}
    dense |= {i for i in range(layers) if (i + 1) % every}
    return layers - len(dense)


def _sliding(c: _Config, layers: int) -> tuple[int, int]:
    """Window in tokens and number of layers that have it."""
    if c.raw("attention_chunk_size") is not None:
        return c.number("attention_chunk_size"), layers - layers // 4
    if c.raw("sliding_window") is None or c.raw("use_sliding_window") is False:
        return 0, 0
    if c.raw("model_type") == "gpt_oss":
        return c.number("sliding_window"), (layers + 1) // 2
    pattern = c.number("sliding_window_pattern", default=0, least=0)
    if pattern:
        return c.number("sliding_window"), layers - layers // pattern
    skipped = c.number("max_window_layers", default=0, least=0) if c.raw("use_sliding_window") else 0
    return c.number("sliding_window"), max(0, layers - skipped)
