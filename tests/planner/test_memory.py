from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_planner.hardware import GIB, gpu
from rljob_planner.lengths import LengthDistribution
from rljob_planner.memory import free_bytes_per_gpu, kv_room_tokens, shared_prompt_room_tokens, trainer_memory
from rljob_planner.models import model, model_names
from rljob_planner.steptime import Engine


def engine(
    name: str = "Qwen/Qwen3-8B", card: str = "H100", width: int = 1, weights: str = "bf16", kv: str = "bf16"
) -> Engine:
    return Engine(model(name), gpu(card), width, weights, kv)


def test_kv_room_by_hand() -> None:
    free = 0.92 * 85.9e9 - 2 * model("Qwen/Qwen3-8B").parameters - (5.5 + 0.15) * GIB
    assert free_bytes_per_gpu(engine()) == pytest.approx(free)
    assert kv_room_tokens(engine(), 1000) == int(free / 147456) // 16 * 16


def test_room_comes_in_whole_blocks() -> None:
    assert all(kv_room_tokens(engine(width=w), 1000) % 16 == 0 for w in (1, 2, 4, 8))


def test_weights_that_do_not_fit_leave_no_room() -> None:
    assert kv_room_tokens(engine("meta-llama/Llama-3.1-70B"), 1000) == 0
    assert kv_room_tokens(engine("meta-llama/Llama-3.1-70B", width=4), 1000) > 0


def test_a_latent_cache_is_not_divided_over_gpus() -> None:
    narrow, wide = (engine("deepseek-ai/DeepSeek-V3", "H200", width) for width in (8, 16))
    assert wide.kv_bytes(61) == narrow.kv_bytes(61) == 70272


def test_windows_hold_less_the_longer_the_context() -> None:
    oss = engine("openai/gpt-oss-20b")
    short, long = kv_room_tokens(oss, 128), kv_room_tokens(oss, 100_000)
    assert long == pytest.approx(2 * short, rel=0.01)


def test_fp8_doubles_the_room_of_the_same_bytes() -> None:
    assert kv_room_tokens(engine(kv="fp8"), 1000) == pytest.approx(2 * kv_room_tokens(engine(), 1000), abs=32)


@given(
    name=st.sampled_from(model_names()),
    card=st.sampled_from(["H100", "H200", "A100", "L40S"]),
    width=st.sampled_from([1, 2, 4]),
)
def test_more_gpus_never_hold_fewer_tokens(name: str, card: str, width: int) -> None:
    assert kv_room_tokens(engine(name, card, 2 * width), 1000) >= kv_room_tokens(engine(name, card, width), 1000)


def test_a_prompt_is_held_once_for_its_group() -> None:
    lengths = LengthDistribution.from_values([1000])
    # All of a group run side by side: eight samples hold 8·500 generated tokens and one prompt instead of eight.
    room = shared_prompt_room_tokens(100_000, lengths, 2000, 8)
    assert room == int(100_000 * (500 + 2000) / (500 + 2000 / 8))


def test_a_group_of_one_shares_nothing() -> None:
    assert shared_prompt_room_tokens(100_000, LengthDistribution.from_mean_cv(800, 1.0, 6000), 2000, 1) == 100_000


def training(name: str = "Qwen/Qwen3-8B", **changes: Any) -> Any:
    how: dict[str, Any] = {
        "gpus": 8, "tensor_parallel": 1, "pipeline_parallel": 1, "longest_tokens": 8192, "recompute": "full",
    }  # fmt: skip
    return trainer_memory(model(name), gpu("H100"), **{**how, **changes})


def test_state_is_eighteen_bytes_a_parameter_over_all_gpus() -> None:
    assert training().state_bytes == pytest.approx(18 * model("Qwen/Qwen3-8B").parameters / 8)
    assert training(gpus=16).state_bytes * 2 == training().state_bytes


def test_what_fits_and_what_does_not() -> None:
    assert training().fits
    assert not training("Qwen/Qwen3-32B").fits  # 590 GB of state on eight GPUs of 80 GB
    assert training("Qwen/Qwen3-32B", gpus=16).fits
    assert not training("meta-llama/Llama-3.1-70B", gpus=16).fits


def test_recomputation_and_tensor_parallelism_save_activations() -> None:
    assert training(recompute="none").activation_bytes > 4 * training().activation_bytes
    assert training(tensor_parallel=2).activation_bytes == pytest.approx(training().activation_bytes / 2)
    assert training(longest_tokens=65536).activation_bytes > 3 * training().activation_bytes


def test_a_state_takes_room_by_the_sequence_and_not_by_the_token() -> None:
    hybrid = engine("Qwen/Qwen3.5-35B-A3B", width=2)
    short, long = kv_room_tokens(hybrid, 500), kv_room_tokens(hybrid, 50_000)
    by_token = hybrid.kv_bytes(hybrid.model.full_layers)
    a_sequence = hybrid.model.state_bytes_per_sequence / 2
    assert short == pytest.approx(free_bytes_per_gpu(hybrid) / (by_token + a_sequence / 500), rel=1e-3)
    assert long == pytest.approx(free_bytes_per_gpu(hybrid) / by_token, rel=0.08)
    assert long > 5 * short


def test_experts_in_4_bits_fit_where_16_bits_do_not() -> None:
    assert kv_room_tokens(engine("openai/gpt-oss-120b", width=2), 1000) == 0
    assert kv_room_tokens(engine("openai/gpt-oss-120b", width=2, weights="mxfp4"), 1000) > 1_000_000
    assert kv_room_tokens(engine("openai/gpt-oss-120b", "H200", weights="mxfp4"), 1000) > 500_000
