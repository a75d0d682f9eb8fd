from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from rljob_planner.hardware import gpu
from rljob_planner.lengths import LengthDistribution
from rljob_planner.models import model
from rljob_planner.steptime import Engine, decode_cost, decode_step_s

CURVES = yaml.safe_load((Path(__file__).parent / "data" / "decode-latency.yaml").read_text(encoding="utf-8"))["curves"]
QUEUED_MS = 4000


def engine(name: str = "Qwen/Qwen3-8B", gpu_name: str = "H100", width: int = 1, weights: str = "bf16") -> Engine:
    return Engine(model(name), gpu(gpu_name), width, weights, "bf16")


@pytest.mark.parametrize("curve", CURVES, ids=lambda c: f"{c['model'].split('/')[1]}-tp{c['tensorParallel']}")
def test_a_decode_step_takes_as_long_as_vllm_was_measured_to_take(curve: dict[str, Any]) -> None:
    it = engine(curve["model"], curve["gpu"], curve["tensorParallel"], curve["weights"])
    prompt, response = curve["promptTokens"], curve["responseTokens"]
    errors = []
    for running, first_token_ms, token_ms in curve["rows"]:
        if first_token_ms > QUEUED_MS:
            continue
        seconds = decode_step_s(it, running, prompt + response / 2, running * prompt / response, prompt)
        errors.append(seconds * 1e3 / token_ms - 1.0)
    assert len(errors) >= 4
    assert np.mean(np.abs(errors)) <= 0.12


def test_a_small_batch_takes_as_long_as_reading_the_weights_and_the_overhead() -> None:
    it = engine()
    read_s = (it.model.parameters - it.model.embedding_parameters) * 2 / (0.91 * 3350e9)
    assert decode_step_s(it, 1, 1) == pytest.approx(read_s + 36 * 51e-6 + 1.25e-3 + 45e-6, rel=0.001)


def test_experts_are_read_as_far_as_tokens_visit_them() -> None:
    it = engine("Qwen/Qwen3-30B-A3B")
    one, many = it.weight_bytes_read(np.array([1.0, 4096.0]))
    assert one == pytest.approx(2 * it.model.active_parameters, rel=0.01)
    assert many == pytest.approx(2 * (it.model.parameters - it.model.embedding_parameters), rel=0.001)


def test_fp8_weights_halve_what_is_read() -> None:
    bf16, fp8 = engine(), engine(weights="fp8")
    assert fp8.weight_bytes_read(np.ones(1))[0] == pytest.approx(bf16.weight_bytes_read(np.ones(1))[0] / 2)


def test_a_large_batch_is_bound_by_arithmetic() -> None:
    it = engine("Qwen/Qwen3-32B", width=4)
    running = 4096.0
    compute = it.compute_s(np.array([running]), 10.0)[0] + it.compute_s_per_token * running * 10
    memory = it.memory_s(np.array([running]), 10.0)[0] + it.memory_s_per_token * running * 10
    assert compute > memory


def test_a_window_bounds_what_is_read_of_a_long_context() -> None:
    it = engine("openai/gpt-oss-120b", width=2)
    near, far = it.memory_s(np.array([64.0]), 128.0)[0], it.memory_s(np.array([64.0]), 100_000.0)[0]
    assert near == far
    assert it.memory_s_per_token == pytest.approx(it.kv_bytes(18) / (0.91 * 3350e9))


@settings(max_examples=60, deadline=None)
@given(
    running=st.integers(1, 512),
    context=st.integers(1, 60_000),
    width=st.sampled_from([1, 2, 4, 8]),
    name=st.sampled_from(["Qwen/Qwen3-8B", "Qwen/Qwen3-30B-A3B", "deepseek-ai/DeepSeek-V3", "openai/gpt-oss-20b"]),
)
def test_more_samples_and_more_context_never_make_a_step_faster(
    running: int, context: int, width: int, name: str
) -> None:
    it = engine(name, width=width)
    base = decode_step_s(it, running, context)
    assert base > 0
    assert decode_step_s(it, running + 1, context) >= base
    assert decode_step_s(it, running, context + 100) >= base
    assert decode_step_s(it, running, context, prefill_tokens=500, prompt_tokens=500) > base


def test_the_simulators_tables_say_the_same_as_the_formula() -> None:
    it = engine("Qwen/Qwen3-32B", width=4)
    lengths = LengthDistribution.from_mean_cv(1000, 1.0, 8192)
    cost = decode_cost(it, 256, lengths, prompt_tokens=200, samples_per_prompt=8)
    for running in (1, 17, 256):
        for context in (50.0, 700.0, 5000.0):
            assert cost.iteration_s(running, running * context) == pytest.approx(
                decode_step_s(it, running, context), rel=1e-9
            )
    assert cost.prefill_s_per_sample == pytest.approx(it.prefill_s(200) / 8)


def test_a_factor_makes_everything_faster() -> None:
    it = engine("Qwen/Qwen3-32B", width=4)
    lengths = LengthDistribution.from_mean_cv(1000, 1.0, 8192)
    plain, fast = (decode_cost(it, 64, lengths, 200, 8, factor) for factor in (1.0, 1.25))
    assert fast.iteration_s(40, 30_000) * 1.25 == pytest.approx(plain.iteration_s(40, 30_000))
    assert fast.prefill_s_per_sample * 1.25 == pytest.approx(plain.prefill_s_per_sample)
    assert fast.recompute_s_per_token * 1.25 == pytest.approx(plain.recompute_s_per_token)
