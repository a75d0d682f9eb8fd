from __future__ import annotations

from typing import Any

import pytest

from rljob_planner.errors import PlanningError
from rljob_planner.models import from_config, model, model_names, published_parameters

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
