from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
import yaml

from rljob_planner.errors import PlanningError
from rljob_planner.hardware import gpu
from rljob_planner.models import format_in, from_config, model, model_names, published_parameters, resolve

LLAMA = {
    "model_type": "llama",
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 14336,
    "vocab_size": 128256,
    "tie_word_embeddings": False,
}


@pytest.mark.parametrize("name", model_names())
def test_counted_parameters_are_the_published_ones(name: str) -> None:
    shape = model(name)
    total, active = published_parameters(name)
    assert shape.parameters == pytest.approx(total, rel=0.012)
    if active is not None:
        # Publishers differ in whether embeddings count as active, and by how they round 3.3 to 3.
        embedding = shape.embedding_parameters
        counts = (shape.active_parameters - embedding, shape.active_parameters + embedding)
        assert counts[0] * 0.97 <= active <= counts[1] * 1.03


@pytest.mark.parametrize(
    ("name", "kib"),
    [
        ("Qwen/Qwen3-8B", 144),  # 2 · 36 layers · 8 heads · 128 · 2 bytes
        ("Qwen/Qwen3-30B-A3B", 96),
        ("meta-llama/Llama-3.1-70B", 320),
        ("Qwen/Qwen2.5-7B", 56),
    ],
)
def test_kv_bytes_of_a_token(name: str, kib: int) -> None:
    assert model(name).kv_bytes_per_token(2.0) == kib * 1024
    assert model(name).kv_bytes_per_token(1.0) == kib * 512


def test_latent_attention_keeps_one_compressed_vector_a_token() -> None:
    deepseek = model("deepseek-ai/DeepSeek-V3")
    assert deepseek.kv_bytes_per_token(2.0) == 61 * (512 + 64) * 2
    assert deepseek.kv_shards(8) == 1
    assert deepseek.kind == "moe"


def test_kv_heads_are_not_divided_further_than_there_are() -> None:
    qwen = model("Qwen/Qwen3-30B-A3B")
    assert [qwen.kv_shards(width) for width in (1, 2, 4, 8)] == [1, 2, 4, 4]


@pytest.mark.parametrize(
    "name", ["Qwen/Qwen3-8B", "qwen/qwen3-8b", "Qwen3-8B", "qwen3-8b", " Qwen3_8B ", "Qwen/Qwen3-8B-Base"]
)
def test_a_model_answers_to_its_names(name: str) -> None:
    assert model(name).name == "Qwen/Qwen3-8B"


def test_an_unknown_model_names_what_is_near_and_the_way_out() -> None:
    with pytest.raises(PlanningError, match=r"Qwen/Qwen3-8B.*spec\.model\.config") as caught:
        model("Qwen/Qwen3-9B")
    assert caught.value.reason == "UnknownModel"


@pytest.mark.parametrize(
    ("name", "format_name"),
    [
        ("Qwen/Qwen3-8B", None),
        ("Qwen/Qwen3-8B-FP8", "fp8"),
        ("RedHatAI/Qwen3-8B-FP8-dynamic", "fp8"),
        ("Qwen3-8B-fp8-block", "fp8_block"),
        ("nvidia/Llama-3.1-70B-Instruct-NVFP4", "nvfp4"),
        ("unsloth/gpt-oss-20b-BF16", "bf16"),
        ("Qwen/Qwen3-8B-AWQ", "awq"),
    ],
)
def test_a_name_may_say_its_number_format(name: str, format_name: str | None) -> None:
    assert format_in(name) == format_name
    model(name)


@pytest.mark.parametrize("name", ["foo/bar", "", "Llama-4-Maverick"])
def test_where_no_name_is_near_three_families_are_named(name: str) -> None:
    with pytest.raises(
        PlanningError, match=r"none of the .* is near, which are such as Qwen/.*, meta-llama/.*, deepseek-ai/"
    ) as caught:
        model(name)
    assert sum(known in str(caught.value).split(". ")[0] for known in model_names()) <= 4


@pytest.mark.parametrize("name", ["Qwen3-33B", "Qwen2.5", "DeepSeek-V5", "gpt-oss-12b"])
def test_at_most_five_models_are_near_and_all_of_its_family(name: str) -> None:
    with pytest.raises(PlanningError) as caught:
        model(name)
    near = str(caught.value).partition("near are ")[2].partition(". For")[0].split(", ")
    assert 1 <= len(near) <= 5
    assert all(n.rsplit("/", 1)[-1].lower().startswith(name[:4].lower()) for n in near)


def test_a_config_gives_the_packaged_shape() -> None:
    ours, theirs = from_config(LLAMA), model("meta-llama/Llama-3.1-8B")
    assert ours.parameters == theirs.parameters
    assert ours.active_parameters == theirs.active_parameters
    assert ours.kv_bytes_per_token(2.0) == theirs.kv_bytes_per_token(2.0)


def test_a_config_of_a_mixture_of_experts() -> None:
    config = {
        "model_type": "qwen3_moe",
        "hidden_size": 2048,
        "num_hidden_layers": 48,
        "num_attention_heads": 32,
        "num_key_value_heads": 4,
        "head_dim": 128,
        "intermediate_size": 6144,
        "moe_intermediate_size": 768,
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "vocab_size": 151936,
        "tie_word_embeddings": False,
        "sliding_window": None,
        "use_sliding_window": False,
    }
    ours, theirs = from_config(config), model("Qwen/Qwen3-30B-A3B")
    assert ours.parameters == theirs.parameters
    assert ours.active_parameters == theirs.active_parameters


def test_a_config_of_deepseek() -> None:
    config = {
        "model_type": "deepseek_v3",
        "hidden_size": 7168,
        "num_hidden_layers": 61,
        "num_attention_heads": 128,
        "num_key_value_heads": 128,
        "intermediate_size": 18432,
        "moe_intermediate_size": 2048,
        "n_routed_experts": 256,
        "n_shared_experts": 1,
        "num_experts_per_tok": 8,
        "first_k_dense_replace": 3,
        "moe_layer_freq": 1,
        "kv_lora_rank": 512,
        "q_lora_rank": 1536,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "v_head_dim": 128,
        "vocab_size": 129280,
    }
    assert from_config(config).parameters == pytest.approx(671e9, rel=0.01)
    assert from_config(config).active_parameters == pytest.approx(37e9, rel=0.03)


def test_a_config_of_gpt_oss_has_windows_in_every_second_layer() -> None:
    config = LLAMA | {"model_type": "gpt_oss", "sliding_window": 128, "head_dim": 64}
    shape = from_config(config)
    assert (shape.sliding_window, shape.sliding_layers, shape.full_layers) == (128, 16, 16)


def test_listed_layer_types_say_where_windows_are() -> None:
    kinds = ["sliding_attention"] * 24 + ["full_attention"] * 8
    shape = from_config(LLAMA | {"layer_types": kinds, "sliding_window": 1024})
    assert (shape.sliding_layers, shape.full_layers) == (24, 8)


def test_a_nested_text_config_is_found() -> None:
    assert from_config({"model_type": "vlm", "text_config": LLAMA}).parameters == from_config(LLAMA).parameters


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hidden_size": None}, "lacks hidden_size"),
        ({"num_hidden_layers": 0}, "num_hidden_layers must be a whole number from 1, not 0"),
        ({"vocab_size": "many"}, "vocab_size must be a whole number"),
        ({"num_key_value_heads": 5}, "is no multiple"),
        ({"num_experts": 4, "num_experts_per_tok": 8, "moe_intermediate_size": 64}, "more than the 4 experts"),
        ({"hidden_size": float("inf")}, "hidden_size must be a whole number"),
        ({"num_hidden_layers": float("nan")}, "num_hidden_layers must be a whole number"),
        ({"vocab_size": 10**400}, "vocab_size must be a whole number"),
        ({"layer_types": []}, "layer_types has 0 layers, but num_hidden_layers is 32"),
        (
            {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 64, "mlp_only_layers": ["x"]},
            "mlp_only_layers must be a list of whole numbers",
        ),
        ({"layer_types": ["lightning"] * 32}, "lightning: only full_attention, sliding_attention"),
        ({"layer_types": ["linear_attention"] * 32}, "lacks linear_num_key_heads"),
        ({"hybrid_override_pattern": "M*E-", "mamba_num_heads": 8}, "hybrid_override_pattern has -: only M"),
    ],
)
def test_a_config_that_cannot_be_says_which_field(change: dict[str, Any], message: str) -> None:
    with pytest.raises(PlanningError, match=message) as caught:
        from_config(LLAMA | change)
    assert caught.value.reason == "UnknownModel"
    assert "spec.model.config" in str(caught.value)


def test_windows_save_attention_only_beyond_their_width() -> None:
    plain, windowed = from_config(LLAMA), from_config(LLAMA | {"sliding_window": 1024})
    assert windowed.sliding_layers == 32
    assert windowed.forward_attention_flops(512, 512 * 512) == plain.forward_attention_flops(512, 512 * 512)
    assert windowed.forward_attention_flops(65536, 65536**2) < 0.05 * plain.forward_attention_flops(65536, 65536**2)


def test_every_model_that_the_packaged_measurements_name_is_known() -> None:
    unknown = []
    for name in sorted(set(_named("model"))):
        try:
            model(name)
        except PlanningError:
            unknown.append(name)
    assert unknown == ["7B/32B/72B"]  # three models in one row


def test_every_gpu_that_the_packaged_measurements_state_is_known() -> None:
    unknown = []
    for name in sorted(set(_named("gpu"))):
        try:
            gpu(name)
        except PlanningError:
            unknown.append(name)
    assert all("not stated" in name for name in unknown)


def _named(field: str) -> Iterator[str]:
    for file in ("latency-curves.yaml", "validation-cases.yaml"):
        text = resources.files("rljob_planner").joinpath("data", file).read_text(encoding="utf-8")
        yield from _values(yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)), field)


def _values(node: object, field: str) -> Iterator[str]:
    if isinstance(node, dict):
        found = node.get(field)
        if isinstance(found, str):
            yield found
        for below in node.values():
            yield from _values(below, field)
    elif isinstance(node, list):
        for below in node:
            yield from _values(below, field)


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("Llama3.1-8B", "meta-llama/Llama-3.1-8B"),
        ("Llama 3.1 405B", "meta-llama/Llama-3.1-405B"),
        ("nvidia/Llama-3.1-8B-Instruct-FP8", "meta-llama/Llama-3.1-8B"),
        ("RedHatAI/Meta-Llama-3.1-70B-Instruct-FP8-KV", "meta-llama/Llama-3.1-70B"),
        ("Qwen/Qwen3-235B-A22B-Thinking-2507-FP8", "Qwen/Qwen3-235B-A22B"),
        ("Qwen3-235B", "Qwen/Qwen3-235B-A22B"),
        ("Qwen3-Coder-30B-A3B-Instruct", "Qwen/Qwen3-30B-A3B"),
        ("Qwen 30B (variant not stated)", "Qwen/Qwen3-30B-A3B"),
        ("Qwen2.5-7B-Instruct (SFT)", "Qwen/Qwen2.5-7B"),
        ("R1-Distill-Qwen-14B", "Qwen/Qwen2.5-14B"),
        ("DeepSeek V3", "deepseek-ai/DeepSeek-V3"),
        ("DeepSeek-R1", "deepseek-ai/DeepSeek-V3"),
        ("SWE Nemotron-3-Nano-30B-A3B", "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B"),
        ("INTELLECT-3 (106B-A12B)", "zai-org/GLM-4.5-Air"),
        ("Snowball 67B-A2B (MoE)", "marin-community/Snowball-67B-A2B"),
    ],
)
def test_a_model_answers_to_what_tables_call_it(name: str, known: str) -> None:
    assert model(name).name == known


@pytest.mark.parametrize(
    "name",
    ["Qwen-7B", "Qwen3-8B-VL", "Llama-3.3-8B", "Qwen3-Next-80B-A3B", "Llama-3.1-Nemotron-70B", "Qwen3-", "7B", ""],
)
def test_a_name_never_becomes_a_model_of_another_shape(name: str) -> None:
    with pytest.raises(PlanningError, match=r"is not known; (near are|none of the \d+ known names is near)"):
        model(name)


NEMOTRON = {
    "model_type": "nemotron_h", "hidden_size": 2688, "num_hidden_layers": 52, "num_attention_heads": 32,
    "num_key_value_heads": 2, "head_dim": 128, "intermediate_size": 1856, "moe_intermediate_size": 1856,
    "moe_shared_expert_intermediate_size": 3712, "n_routed_experts": 128, "num_experts_per_tok": 6, "mlp_hidden_act": "relu2",
    "hybrid_override_pattern": "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME", "mamba_num_heads": 64, "mamba_head_dim": 64,
    "n_groups": 8, "ssm_state_size": 128, "conv_kernel": 4, "vocab_size": 131072,
}  # fmt: skip
QWEN_NEXT = {
    "model_type": "qwen3_5_moe",
    "text_config": {
        "hidden_size": 2048, "num_hidden_layers": 40, "num_attention_heads": 16, "num_key_value_heads": 2, "head_dim": 256,
        "attn_output_gate": True, "layer_types": [*["linear_attention"] * 3, "full_attention"] * 10,
        "linear_num_key_heads": 16, "linear_num_value_heads": 32, "linear_key_head_dim": 128, "linear_value_head_dim": 128,
        "linear_conv_kernel_dim": 4, "num_experts": 256, "num_experts_per_tok": 8, "moe_intermediate_size": 512,
        "shared_expert_intermediate_size": 512, "vocab_size": 248320,
    },
}  # fmt: skip
DEEPSEEK_V4 = {
    "model_type": "deepseek_v4", "hidden_size": 4096, "num_hidden_layers": 43, "num_attention_heads": 64, "num_key_value_heads": 1,
    "head_dim": 512, "qk_rope_head_dim": 64, "q_lora_rank": 1024, "o_lora_rank": 1024, "o_groups": 8, "moe_intermediate_size": 2048,
    "n_routed_experts": 256, "n_shared_experts": 1, "num_experts_per_tok": 6, "sliding_window": 128, "vocab_size": 129280,
    "compress_ratios": [0, 0, *[4, 128] * 20, 4, 0], "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]},
}  # fmt: skip
SCOUT = {
    "model_type": "llama4",
    "text_config": {
        "model_type": "llama4_text", "hidden_size": 5120, "num_hidden_layers": 48, "num_attention_heads": 40,
        "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 8192, "intermediate_size_mlp": 16384,
        "num_local_experts": 16, "num_experts_per_tok": 1, "interleave_moe_layer_step": 1, "attention_chunk_size": 8192,
        "vocab_size": 202048,
    },
}  # fmt: skip


@pytest.mark.parametrize(
    ("config", "name"),
    [
        (NEMOTRON, "NVIDIA-Nemotron-3-Nano-30B-A3B"),
        (QWEN_NEXT, "Qwen3.5-35B-A3B"),
        (DEEPSEEK_V4, "DeepSeek-V4-Flash"),
        (SCOUT, "Llama-4-Scout-17B-16E"),
    ],
    ids=lambda v: v if isinstance(v, str) else "",
)
def test_a_hybrids_config_gives_the_packaged_shape(config: dict[str, Any], name: str) -> None:
    assert replace(from_config(config), name=model(name).name) == model(name)


def test_a_state_is_held_once_a_sequence_and_grows_with_nothing() -> None:
    hybrid = model("Qwen3.5-35B-A3B")
    # 32 heads of 128 × 128 numbers of 4 bytes, and three columns of the convolution of 2 bytes, in 30 of 40 layers.
    assert hybrid.state_bytes_per_sequence == 30 * (32 * 128 * 128 * 4 + 3 * 8192 * 2)
    assert hybrid.kv_bytes_per_token(2.0) == 10 * 2 * 2 * 256 * 2
    assert (hybrid.full_layers, hybrid.attention_layers) == (10, 10)


def test_the_format_of_a_checkpoint_is_read() -> None:
    assert from_config(LLAMA).native == "bf16"
    assert from_config(LLAMA | {"quantization_config": {"quant_method": "mxfp4"}}).native == "mxfp4"
    assert from_config(LLAMA | {"quantization_config": {"quant_method": "fp8"}}).native == "fp8"
    assert from_config(DEEPSEEK_V4).native == "fp8_block"


def test_a_path_leads_to_a_config_and_a_name_to_a_model(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(LLAMA), encoding="utf-8")
    for where in (path, tmp_path):
        assert resolve(str(where)).parameters == model("Llama-3.1-8B").parameters
    assert resolve("Llama-3.1-8B") == model("Llama-3.1-8B")
    path.write_text(json.dumps(LLAMA | {"vocab_size": None}), encoding="utf-8")
    with pytest.raises(PlanningError, match=f"{path} lacks vocab_size"):
        resolve(str(path))
    path.write_text("[]", encoding="utf-8")
    with pytest.raises(PlanningError, match=r"this is no config\.json of a model"):
        resolve(str(path))
    path.write_text("{", encoding="utf-8")
    with pytest.raises(PlanningError, match=r"cannot be read as a model's config\.json"):
        resolve(str(path))


def test_a_name_that_is_too_long_for_a_path_is_only_not_known() -> None:
    with pytest.raises(PlanningError, match="is not known"):
        resolve("a" * 5000)
