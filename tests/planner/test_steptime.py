from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rljob_planner.hardware import gpu
from rljob_planner.lengths import LengthDistribution
from rljob_planner.models import model
from rljob_planner.steptime import Engine, Prefill, decode_cost, decode_step_s


def engine(name: str = "Qwen/Qwen3-8B", gpu_name: str = "H100", width: int = 1, weights: str = "bf16") -> Engine:
    return Engine(model(name), gpu(gpu_name), width, weights, "bf16")


def plain_s(it: Engine, running: float, context: float) -> float:
    return float(it.step_s(np.array([running]), context)[0])


def test_a_small_batch_takes_as_long_as_reading_the_weights_and_the_overhead() -> None:
    it = engine()
    c, k = it.gpu.decode, it.gpu.kernels
    read_s = (it.model.parameters - it.model.embedding_parameters) * 2 / (c.mbu * 3350e9)
    assert it.model.kind == "dense"
    overhead_s = 36 * (c.layer_s + k.sample_layer_s) + c.step_s + c.request_s + k.activation_passes * 36 * 8192 / 3350e9
    assert plain_s(it, 1, 1) == pytest.approx(read_s + overhead_s, rel=0.001)


def test_experts_are_read_as_far_as_tokens_visit_them() -> None:
    it = engine("Qwen/Qwen3-30B-A3B")
    one, many = it.weight_bytes_read(np.array([1.0, 4096.0]))
    assert one == pytest.approx(2 * it.model.active_parameters, rel=0.01)
    assert many == pytest.approx(2 * (it.model.parameters - it.model.embedding_parameters), rel=0.001)


def test_dealing_out_whole_experts_waits_for_the_gpu_with_the_most_of_them() -> None:
    whole = replace(engine("Qwen/Qwen3-30B-A3B", width=8), expert_parallel=8)
    sliced = engine("Qwen/Qwen3-30B-A3B", width=8)
    for running in (1.0, 8.0, 64.0):
        assert whole.distinct_experts(np.array([running]))[0] > sliced.distinct_experts(np.array([running]))[0]
    assert whole.distinct_experts(np.array([1e5]))[0] == pytest.approx(128)
    assert whole.distinct_experts(np.array([4.0]))[0] <= 128


def test_fp8_halves_what_is_read_but_for_the_output_head() -> None:
    bf16, fp8 = engine(), engine(weights="fp8")
    head = bf16.model.embedding_parameters * 2
    saved = bf16.weight_bytes_read(np.ones(1))[0] - fp8.weight_bytes_read(np.ones(1))[0]
    assert saved == pytest.approx((bf16.weight_bytes_read(np.ones(1))[0] - head) / 2)


def test_mxfp4_narrows_experts_only() -> None:
    it = engine("openai/gpt-oss-120b", weights="mxfp4", width=2)
    m = it.model
    held = m.routed_parameters * 4.25 / 8 + (m.linear_parameters + 2 * m.embedding_parameters) * 2
    assert it.weight_bytes_per_gpu == pytest.approx(held / 2)


def test_a_gpu_without_4_bit_arithmetic_unpacks_no_faster_with_more_bandwidth() -> None:
    batch = np.array([256.0])
    h100, h200, b200 = (engine("openai/gpt-oss-120b", g, 2, "mxfp4") for g in ("H100", "H200", "B200"))
    dense = [e.model.linear_parameters + e.model.embedding_parameters for e in (h100, h200, b200)]
    experts = [
        e.products_s(batch)[0] - n / e.gpu.decode.mbu / e.gpu.memory_bytes_per_s
        for e, n in zip((h100, h200, b200), dense, strict=True)
    ]
    unpacked_at = h100.gpu.kernels.unpack_bytes_per_s
    assert unpacked_at is not None
    assert unpacked_at < h200.gpu.decode.mbu * 4800e9
    assert experts[0] == pytest.approx(experts[1], rel=0.15)
    assert experts[2] < experts[1]


def test_a_large_batch_is_bound_by_arithmetic() -> None:
    it = engine("Qwen/Qwen3-32B", width=4)
    products = it.products_s(np.array([1.0, 16.0, 4096.0]))
    assert products[1] == pytest.approx(products[0])
    flops_s = 2 * it.model.active_parameters * 4096 / (it.gpu.decode.mfu * 989e12 * 4)
    assert products[2] == pytest.approx(flops_s)


def test_a_window_bounds_what_is_read_of_a_long_context() -> None:
    it = engine("openai/gpt-oss-120b", width=2)
    near, far = it.context_s(np.array([64.0]), 128.0)[0], it.context_s(np.array([64.0]), 100_000.0)[0]
    assert near == far
    assert it.context_s_per_token == pytest.approx(it.kv_bytes(18) / (it.gpu.decode.mbu * 3350e9))


def test_a_state_costs_the_same_at_any_context() -> None:
    it = engine("Qwen/Qwen3.5-35B-A3B")
    assert it.context_s(np.array([64.0]), 10.0)[0] == it.context_s(np.array([64.0]), 1e5)[0] > 0
    assert it.kv_bytes(it.model.full_layers) == 10 * 2 * 2 * 256 * 2


def test_an_8_bit_cache_is_no_slower_and_less_than_twice_as_fast() -> None:
    wide, narrow = engine(), replace(engine(), kv="fp8")
    assert wide.context_s_per_token / 2 < narrow.context_s_per_token <= wide.context_s_per_token


def test_a_prompt_hides_the_reading_of_the_weights() -> None:
    it = engine("Qwen/Qwen3-32B", width=4)
    alone = it.prefill_s(1024)
    flops_s = 2 * it.model.linear_parameters * 1024 / (it.gpu.decode.mfu * 989e12 * 4)
    read_s = it.model.linear_parameters * 2 / 4 / (it.gpu.decode.mbu * 3350e9)
    assert flops_s - read_s < alone
    assert alone < 1.6 * flops_s


def test_prompts_come_whole_and_not_evenly_spread() -> None:
    it = engine("Qwen/Qwen3-32B", width=4)
    b = np.array([64.0])
    mean, share, mixed = it.mean_step_s(b, 1500, np.array([0.1]), 1024)
    assert share[0] == pytest.approx(1 - np.exp(-0.1))
    assert mean[0] == pytest.approx(share[0] * mixed[0] + (1 - share[0]) * plain_s(it, 64, 1500))
    # Spread evenly, 102 tokens a step would all but vanish behind the reading of the weights.
    even = it.step_s(b, 1500, Prefill(102.4, 0.1, 1024))[0]
    assert mean[0] > even + 0.5e-3


def test_a_prompt_longer_than_a_step_is_cut_into_chunks() -> None:
    it = engine("Qwen/Qwen3-32B", width=4)
    _, share, _ = it.mean_step_s(np.array([64.0]), 20_000, np.array([0.01]), 20_000)
    assert share[0] == pytest.approx(1 - np.exp(-0.03))
    assert it.prefill_s(20_000) > 20 * it.prefill_s(1_000)


def test_tensor_parallelism_beyond_a_node_pays_for_the_network() -> None:
    near, far = (engine("meta-llama/Llama-3.1-405B", "GB200", w, "fp8") for w in (8, 16))
    assert plain_s(far, 8, 1000) < plain_s(near, 8, 1000)
    near, far = (engine("meta-llama/Llama-3.1-405B", "H100", w, "fp8") for w in (8, 16))
    reduce_s = [e.gpu.allreduce_s(8 * 16384 * 2.0, e.tensor_parallel)[0] for e in (near, far)]
    assert reduce_s[1] > 3 * reduce_s[0]


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
    assert cost.prefill_s_per_sample == pytest.approx(it.prefill_s(200, 256) / 8)


def test_a_factor_makes_everything_faster() -> None:
    it = engine("Qwen/Qwen3-32B", width=4)
    lengths = LengthDistribution.from_mean_cv(1000, 1.0, 8192)
    plain, fast = (decode_cost(it, 64, lengths, 200, 8, factor) for factor in (1.0, 1.25))
    assert fast.iteration_s(40, 30_000) * 1.25 == pytest.approx(plain.iteration_s(40, 30_000))
    assert fast.prefill_s_per_sample * 1.25 == pytest.approx(plain.prefill_s_per_sample)
    assert fast.recompute_s_per_token * 1.25 == pytest.approx(plain.recompute_s_per_token)


def test_weights_scaled_in_blocks_cost_each_layer_a_little_more() -> None:
    plain, blocks = (engine("deepseek-ai/DeepSeek-V3", "H200", 8, w) for w in ("fp8", "fp8_block"))
    more = plain_s(blocks, 8, 1000) - plain_s(plain, 8, 1000)
    assert more == pytest.approx(61 * blocks.gpu.kernels.block_layer_s)
    assert blocks.weight_bytes_per_gpu == plain.weight_bytes_per_gpu


def test_popular_experts_are_visited_more_and_so_fewer_are_read() -> None:
    it = engine("Qwen/Qwen3-30B-A3B")
    tokens = np.array([1.0, 8.0, 64.0, 1e5])
    even = 128 * (1 - (1 - 8 / 128) ** tokens)
    visited = it.distinct_experts(tokens)
    assert visited[0] == pytest.approx(8)
    assert visited[3] == pytest.approx(128, rel=1e-3)
    assert np.all(visited[1:3] < even[1:3])


def test_kernels_of_a_mixture_of_experts_add_up_to_what_the_step_takes_without_its_overhead() -> None:
    # Sums of measured kernels, milliseconds at batch and context; no constant was fitted to them.
    for card, running, context, kernels_ms in (
        ("H200", 8, 1024, 9.25), ("H200", 64, 1024, 17.65), ("H100", 32, 8192, 27.83), ("A100", 32, 1024, 34.86),
    ):  # fmt: skip
        it = engine("Qwen/Qwen3-30B-A3B", card)
        c = it.gpu.decode
        kernels_s = plain_s(it, running, context) - c.step_s - running * c.request_s
        assert kernels_s * 1e3 == pytest.approx(kernels_ms, rel=0.15)
