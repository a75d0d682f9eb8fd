from __future__ import annotations

import numpy as np
import pytest

from rljob_planner.errors import PlanningError
from rljob_planner.hardware import (
    GIB,
    bytes_per_element,
    gpu,
    gpu_names,
    memory_constants,
)


@pytest.mark.parametrize("name", gpu_names())
def test_every_data_sheet_is_plausible(name: str) -> None:
    g = gpu(name)
    assert 10 * GIB < g.memory_bytes < 400 * GIB
    assert 2e11 < g.memory_bytes_per_s < 1e13
    assert 5e13 < g.peak_bf16 < 5e15
    assert g.peak_fp8 is None or g.peak_fp8 >= 1.9 * g.peak_bf16
    assert g.usd_per_hour is None or 0.1 < g.usd_per_hour < 20
    assert g.link_bytes_per_s > 0
    assert g.network_bytes_per_s > 0
    assert 0.5 < g.decode.mbu <= 1
    assert 0.3 < g.decode.mfu <= 1
    assert 0.2 < g.kernels.expert_mfu <= 1
    assert 0.3 < g.kernels.narrow_kv_mbu <= 1
    assert g.island_gpus >= g.gpus_per_node
    assert g.peak_fp4 is None or g.peak_fp4 > g.peak_flops("fp8")
    assert g.engine.max_running in (256, 1024)


@pytest.mark.parametrize(
    ("alias", "name"),
    [
        ("H100-SXM", "h100-sxm-80gb"),
        ("h100_sxm", "h100-sxm-80gb"),
        ("NVIDIA-H100-80GB-HBM3", "h100-sxm-80gb"),
        ("NVIDIA H200", "h200-sxm-141gb"),
        ("A100", "a100-sxm-80gb"),
        ("h100-80gb", "h100-sxm-80gb"),
        ("H100 FP8", "h100-sxm-80gb"),
        ("h200_sxm", "h200-sxm-141gb"),
        ("b300_sxm", "b300-sxm"),
        ("H800 (8 per node; not stated in the copy read)", "h800-sxm-80gb"),
        ("GB300", "gb300-nvl72"),
        ("RTX4090", "rtx-4090"),
        ("RTXPRO6000", "rtx-pro-6000"),
        ("Ascend A3 NPU", "ascend-a3"),
        ("nvidia-l40s", "l40s"),
        ("A100-80G", "a100-sxm-80gb"),
        ("8xH100", "h100-sxm-80gb"),
        ("8 x H200", "h200-sxm-141gb"),
        ("NVIDIA-A100-PCIE-40GB", "a100-pcie-40gb"),
        ("NVIDIA-A10", "a10"),
        ("NVIDIA-A10G", "a10g"),
        ("NVIDIA-GeForce-RTX-5090", "rtx-5090"),
        ("NVIDIA-B100", "b100-sxm-180gb"),
    ],
)
def test_a_gpu_answers_to_the_names_that_people_and_nodes_use(alias: str, name: str) -> None:
    assert gpu(alias).name == name


def test_an_unknown_gpu_names_what_is_near() -> None:
    with pytest.raises(PlanningError, match=r"'H10-SXM' is not known: write one of .*h100-sxm-80gb") as caught:
        gpu("H10-SXM")
    assert caught.value.reason == "UnknownAccelerator"


def test_a_slice_of_a_gpu_is_not_planned() -> None:
    with pytest.raises(PlanningError, match=r"is a MIG slice: .* whole GPUs"):
        gpu("NVIDIA-H100-80GB-HBM3-MIG-1g.10gb")
    with pytest.raises(PlanningError, match=r"is shared by time-slicing or MPS: .* whole GPUs"):
        gpu("NVIDIA-H100-80GB-HBM3-SHARED")


@pytest.mark.parametrize("name", ["¯\\_(ツ)_/¯", "foo", "", "X9000", "V100"])
def test_where_no_name_is_near_a_few_of_different_kinds_are_named(name: str) -> None:
    with pytest.raises(PlanningError, match="nor is a name near it") as caught:
        gpu(name)
    named = str(caught.value).partition("such as ")[2].partition(", in ")[0].split(", ")
    assert len({gpu(known).arch for known in named}) == len(named) == 3


@pytest.mark.parametrize(
    ("name", "near"), [("H1000", "h100-sxm-80gb"), ("MI325X", "mi300x"), ("B2000", "b200-sxm-180gb")]
)
def test_at_most_five_names_are_near(name: str, near: str) -> None:
    with pytest.raises(PlanningError, match=f"write .*{near}") as caught:
        gpu(name)
    assert str(caught.value).partition(" in spec.accelerator")[0].count(", ") <= 4


def test_fp8_weights_run_in_bf16_where_there_is_no_fp8() -> None:
    assert gpu("A100").peak_flops("fp8") == gpu("A100").peak_bf16
    assert gpu("H100").peak_flops("fp8") == 2 * gpu("H100").peak_bf16
    assert (bytes_per_element("bf16"), bytes_per_element("fp8")) == (2.0, 1.0)


def test_an_all_reduce_is_free_alone_and_grows_with_bytes_and_width() -> None:
    h100 = gpu("H100")
    sizes = np.geomspace(1e3, 1e9, 40)
    assert np.all(h100.allreduce_s(sizes, 1) == 0)
    by_width = [h100.allreduce_s(sizes, width) for width in (2, 4, 8)]
    for seconds in by_width:
        assert np.all(np.diff(seconds) >= 0)
    assert np.all(by_width[0][sizes > 1e5] < by_width[2][sizes > 1e5])


def test_an_all_reduce_is_that_of_the_table() -> None:
    assert gpu("H100").allreduce_s(2048, 8)[0] == pytest.approx(4.6e-6)
    assert gpu("A100").allreduce_s(8388608, 4)[0] == pytest.approx(118e-6)
    half_way = (5.2e-6 + 6.0e-6) / 2
    assert gpu("A100").allreduce_s((2048 + 16384) / 2, 4)[0] == pytest.approx(half_way)


def test_beyond_the_table_an_all_reduce_costs_in_proportion_to_its_bytes() -> None:
    a100 = gpu("A100")
    last = 536870912.0
    assert a100.allreduce_s(2 * last, 8)[0] == pytest.approx(2 * a100.allreduce_s(last, 8)[0])


def test_without_nvlink_an_all_reduce_pays_for_pcie() -> None:
    slow, fast = gpu("H100-PCIE"), gpu("H100-SXM")
    size = 64e6
    assert slow.allreduce_s(size, 4)[0] > 3 * fast.allreduce_s(size, 4)[0]
    assert slow.allreduce_s(size, 4)[0] == pytest.approx(1.5 * size / 64e9, rel=0.05)


def test_a_group_wider_than_a_node_crosses_the_network() -> None:
    h100, size = gpu("H100"), 1e8
    inside, across = h100.allreduce_s(size, 8)[0], h100.allreduce_s(size, 16)[0]
    # Two nodes exchange each GPU's eighth over 50 GB/s, both ways, and wait 10 us twice.
    assert across == pytest.approx(inside + size / 8 / 50e9 + 20e-6)


def test_a_rack_of_72_is_one_island() -> None:
    gb200 = gpu("GB200")
    assert (gb200.gpus_per_node, gb200.island_gpus) == (4, 72)
    assert gb200.allreduce_s(1e6, 16) == gb200.allreduce_s(1e6, 8)
    assert gb200.allreduce_s(1e6, 144)[0] > gb200.allreduce_s(1e6, 72)[0]


def test_the_engines_constants_are_read() -> None:
    m = memory_constants()
    assert 0.8 < m.utilization < 1
    assert m.block_tokens == 16
    assert m.activation_bytes["moe"] > m.activation_bytes["dense"] > GIB
