"""Calibration on what engines really did: the packaged curves, as results of vllm bench serve, and rows that were not fitted to."""

from __future__ import annotations

from functools import cache
from importlib import resources
from typing import Any

import pytest
import yaml

from rljob_planner.bench_files import served_row
from rljob_planner.fit import Fit, MeasuredStep, fit, predicted_s
from rljob_planner.hardware import gpu
from rljob_planner.models import model
from rljob_planner.serving import kv_format_of, weight_format_of
from rljob_planner.steptime import Engine

LIMIT = {"Qwen/Qwen3-32B": 0.02, "meta-llama/Llama-3.1-70B": 0.03, "openai/gpt-oss-120b": 0.07}
"""Mean relative error after calibration; the last model's rows are of two engine versions."""

MODELS = tuple(LIMIT)


@cache
def curves() -> list[dict[str, Any]]:
    text = resources.files("rljob_planner").joinpath("data/latency-curves.yaml").read_text(encoding="utf-8")
    points: list[dict[str, Any]] = yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))[
        "serving_points"
    ]
    return [c for c in points if c["engine"] == "vllm" and c["gpu"] == "h100_sxm"]


def engine(name: str) -> Engine:
    shape = model(name)
    weights = weight_format_of(next(c["precision"] for c in curves() if c["model"] == name), shape)
    return Engine(shape, gpu("h100_sxm"), 1, weights.name, kv_format_of(weights))


def rows(name: str) -> list[tuple[bool, int, MeasuredStep]]:
    """Whether the curve was held out of the packaged constants, the concurrency, and the row, of every point that can be used."""
    found = []
    for c in curves():
        if c["model"] != name:
            continue
        for concurrency, ttft, tpot in c["rows_bs_ttft_tpot"]:
            completed, seconds = 10 * concurrency, 10 * (ttft + tpot * (c["osl"] - 1)) / 1e3
            result = {
                "completed": completed,
                "duration": seconds,
                "max_concurrency": concurrency,
                "total_input_tokens": completed * c["isl"],
                "total_output_tokens": completed * c["osl"],
                "mean_ttft_ms": ttft,
                "mean_tpot_ms": tpot,
                "tensor_parallel_size": c["tp"],
            }
            row, _ = served_row(result, f"{c['isl']}/{c['osl']} tp {c['tp']}, {concurrency}")
            if row is not None:
                found.append((bool(c.get("held_out")), concurrency, row))
    return found


def error(found: Fit, unseen: list[MeasuredStep]) -> float:
    """Mean relative error on rows."""
    return sum(abs(found.step_s(r) / r.measured_s - 1) for r in unseen) / len(unseen)


def packaged_error(name: str, unseen: list[MeasuredStep]) -> float:
    return sum(abs(predicted_s(engine(name), r) / r.measured_s - 1) for r in unseen) / len(unseen)


@pytest.mark.parametrize("name", MODELS)
def test_a_model_is_described_better_by_its_own_rows(name: str) -> None:
    measured = [r for _, _, r in rows(name)]
    found = fit(engine(name), measured)
    assert len(measured) >= 30
    assert error(found, measured) < LIMIT[name]
    assert error(found, measured) <= packaged_error(name, measured) + 1e-9
    assert found.residual is not None
    assert found.residual < LIMIT[name] + 0.01


@pytest.mark.parametrize("name", MODELS)
def test_some_concurrencies_predict_the_others(name: str) -> None:
    some = [r for _, c, r in rows(name) if c in (4, 8, 32, 128)]
    others = [r for _, c, r in rows(name) if c not in (4, 8, 32, 128)]
    assert len(others) >= 8
    assert error(fit(engine(name), some), others) < LIMIT[name] + 0.02


@pytest.mark.parametrize("name", MODELS)
def test_some_lengths_and_widths_predict_the_others(name: str) -> None:
    seen = [r for held_out, _, r in rows(name) if not held_out]
    unseen = [r for held_out, _, r in rows(name) if held_out]
    assert error(fit(engine(name), seen), unseen) < LIMIT[name] + 0.01


@pytest.mark.parametrize("name", MODELS)
def test_a_few_rows_do_no_harm(name: str) -> None:
    """Three concurrencies of one load, as a first look gives, predict everything else about as well as the packaged constants."""
    everything = [r for _, _, r in rows(name)]
    first = everything[0]
    few = [
        r
        for r in everything
        if (r.prompt_tokens, r.response_tokens, r.tensor_parallel)
        == (first.prompt_tokens, first.response_tokens, first.tensor_parallel)
    ][:3]
    others = [r for r in everything if r not in few]
    assert error(fit(engine(name), few), others) < packaged_error(name, others) + 0.05
