"""Logs of response lengths: what is read of them, which law is taken, and what is said of the rest."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rljob_planner.api.spec import ResponseTokens
from rljob_planner.job import lengths_of
from rljob_planner.length_blocks import job_block, scenario_block
from rljob_planner.length_report import lengths_report
from rljob_planner.lengths import LengthDistribution
from rljob_planner.scenario_lengths import ResponseTokens as ScenarioTokens
from rljob_planner.traces import FittedLengths, InvalidTraceError, LengthTrace, fitted, parse_lengths, read_lengths

RNG = np.random.default_rng


def lognormal(n: int, median: float, sigma: float, cap: int = 1 << 30, seed: int = 0) -> np.ndarray[Any, Any]:
    drawn = median * np.exp(sigma * RNG(seed).standard_normal(n))
    return np.minimum(np.maximum(np.rint(drawn), 1), cap).astype(np.int64)


def trace(tokens: Iterable[int], **columns: Any) -> LengthTrace:
    return LengthTrace("log.jsonl", np.asarray(tokens, dtype=np.int64), **columns)


def warned(found: FittedLengths, words: str) -> bool:
    return any(words in line for line in found.warnings)


@pytest.mark.parametrize(
    "text",
    [
        "3\n5\n\n8.0\n",
        "[3, 5, 8]",
        "\ufeff3\n5\n8",
        '[{"response_length": 3}, {"response_length": 5},\n {"response_length": 8}]',
        '{"completion_tokens": 3, "prompt_tokens": 9}\n{"completion_tokens": 5}\n{"completion_tokens": 8}',
        '{"output_length": 3}\n{"responseTokens": 5}\n{"num_output_tokens": 8}',
        '{"length": 99, "response_length": 3}\n{"length": 5}\n{"tokens": 8}',
        '{"usage": {"completion_tokens": 3}, "choices": [{"finish_reason": "stop"}]}\n5\n8',
        '{"step": 1, "response_lengths": [3, 5]}\n{"step": 2, "response_lengths": [8]}',
    ],
)
def test_shapes_of_a_log(text: str, tmp_path: Path) -> None:
    assert parse_lengths(text, "log").tokens.tolist() == [3, 5, 8]
    (tmp_path / "log.gz").write_bytes(gzip.compress(text.encode()))
    assert read_lengths(tmp_path / "log.gz").tokens.tolist() == [3, 5, 8]


def test_a_prompt_that_comes_again_in_a_later_step_is_another_group() -> None:
    lines = [
        {"response_length": 10 + sample, "prompt_id": prompt, "step": step}
        for step in range(3)
        for prompt in ("a", "b")
        for sample in range(4)
    ]
    found = parse_lengths("\n".join(map(json.dumps, lines)), "log")
    assert found.groups is not None
    assert np.bincount(found.groups).tolist() == [4] * 6
    without = parse_lengths("\n".join(json.dumps(line | {"step": None}) for line in lines), "log")
    assert without.groups is not None
    assert np.bincount(without.groups).tolist() == [12, 12]


def test_what_else_a_line_says() -> None:
    lines = [
        {"response_length": 3, "prompt_len": 7, "prompt_id": "a", "global_step": 1, "finish_reason": "stop"},
        {"response_length": 9, "prompt_len": 7, "prompt_id": "a", "global_step": 1, "finish_reason": "length"},
        {"response_length": 4, "prompt_len": 8, "prompt_id": 17, "global_step": 2, "finish_reason": "abort"},
        {"response_length": 5, "prompt_len": 8, "prompt_id": 17, "global_step": 2, "finish_reason": "stop"},
    ]
    found = parse_lengths("\n".join(map(json.dumps, lines)), "log")
    assert found.tokens.tolist() == [3, 9, 5]
    assert found.truncated is not None
    assert found.truncated.tolist() == [False, True, False]
    assert found.prompt_tokens is not None
    assert found.prompt_tokens.tolist() == [7, 7, 8]
    assert found.groups is not None
    assert found.groups.tolist() == [0, 0, 1]
    assert found.steps is not None
    assert found.steps.tolist() == [1, 1, 2]
    assert "1 aborted" in found.notes[0]
    assert parse_lengths('{"length": 5, "truncated": true}', "log").truncated == [True]


def test_a_field_that_some_lines_lack_does_not_count() -> None:
    found = parse_lengths('{"length": 3, "step": 1}\n{"length": 4}', "log")
    assert found.steps is None
    assert found.notes == ("50.0% of the responses have no step, so it is not used",)
    assert parse_lengths('{"length": 3, "step": "warm-up"}', "log").steps is None


def test_the_mooncake_format_is_told_from_a_run() -> None:
    line = {"timestamp": 27482, "input_length": 6955, "output_length": 52, "hash_ids": [46, 47]}
    found = parse_lengths(json.dumps(line), "log")
    assert found.tokens.tolist() == [52]
    assert found.prompt_tokens is not None
    assert found.prompt_tokens.tolist() == [6955]
    assert found.is_serving
    assert any("log of requests to a server" in note for note in fitted(found).notes)
    assert not parse_lengths('{"output_length": 3}', "log").is_serving


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "log: there is nothing in it: write a number a line"),
        ("3\nfour\n", "log:2: 'four' is not JSON: write a number a line"),
        ("3\n{}\n", r"log:2: no response length among the keys \(there are none\)"),
        (
            '{"reward": 1, "text": "x"}',
            r"log:1: no response length among the keys \(reward, text\): call it response_len",
        ),
        ("3\n-4", "log:2: a length lies between 0 and 10000000 tokens, but this is -4"),
        ("NaN", "log:1: a length lies between"),
        (
            '{"response_length": 812.4}',
            "log:1: response_length: a length is a whole number .* the length of each sample",
        ),
        ('{"response_length": "812"}', 'log:1: response_length: "812" is no number of tokens'),
        ('{"response_length": true}', "log:1: response_length: true is no number"),
        ("3\n[4, 5]", r"log:2: \[4, 5\] is no number"),
        ("[1, 2]\n[3]", "log:1: begins with a JSON array and is none"),
        ('{"length": 4, "finish_reason": "abort"}', "log: all 1 responses in it were aborted"),
        ('{"length": 4, "prompt_len": -1}', "log:1: prompt_len: a length lies between"),
    ],
)
def test_errors_name_file_line_and_what_to_write(text: str, message: str) -> None:
    with pytest.raises(InvalidTraceError, match=message):
        parse_lengths(text, "log")


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(InvalidTraceError, match=r"none\.jsonl: no such file"):
        read_lengths(tmp_path / "none.jsonl")
    (tmp_path / "cut.gz").write_bytes(gzip.compress(b"3\n" * 1000)[:-9])
    with pytest.raises(InvalidTraceError, match="not whole"):
        read_lengths(tmp_path / "cut.gz")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InvalidTraceError, match="no text in UTF-8"):
        read_lengths(tmp_path / "binary")


def test_one_lognormal_is_found_behind_its_cap() -> None:
    tokens = lognormal(4000, 900, 0.8, cap=2000)
    found = fitted(trace(tokens, truncated=tokens == 2000))
    assert found.law == "lognormal"
    assert found.cap_from == "flags"
    assert found.cap_share == pytest.approx(0.16, abs=0.02)
    assert found.distribution.mean() == pytest.approx(tokens.mean(), rel=0.01)
    # Under a higher cap the law goes on as it is, and says that nobody saw that.
    higher = fitted(trace(tokens, truncated=tokens == 2000), max_tokens=8000)
    assert higher.distribution.mean() == pytest.approx(LengthDistribution.lognormal(900, 0.8, 8000).mean(), rel=0.04)
    assert warned(higher, "the log was cut at 2000 tokens")
    lower = fitted(trace(tokens, truncated=tokens == 2000), max_tokens=1000)
    assert lower.cap_share == pytest.approx((tokens >= 1000).mean())
    assert lower.distribution.mean() == pytest.approx(np.minimum(tokens, 1000).mean(), rel=0.02)


def test_a_pile_of_equal_longest_responses_is_a_cap() -> None:
    found = fitted(trace(lognormal(5000, 900, 0.8, cap=4096)))
    assert (found.cap_from, found.cap_tokens) == ("pile", 4096)
    assert any("exactly 4096 tokens long" in note for note in found.notes)
    assert fitted(trace(lognormal(5000, 900, 0.8))).cap_from == "longest"


def test_two_ways_of_answering_are_two_lognormals() -> None:
    tokens = np.concatenate([lognormal(6000, 300, 0.4), lognormal(2000, 6000, 0.4, cap=16_000, seed=1)])
    found = fitted(trace(tokens), max_tokens=16_000)
    assert found.law == "two lognormals"
    assert found.ks < 0.01
    assert found.distribution.mean() == pytest.approx(tokens.mean(), rel=0.02)
    assert found.distribution.cv() == pytest.approx(tokens.std() / tokens.mean(), rel=0.03)


def test_loops_are_a_share_at_the_cap_and_not_a_heavier_tail() -> None:
    tokens = lognormal(20_000, 400, 0.7, cap=8192)
    tokens[:800] = 8192
    found = fitted(trace(tokens))
    assert found.law == "lognormal and a share at the cap"
    assert found.distribution.probabilities[-1] == pytest.approx(0.04, abs=0.002)
    assert found.distribution.quantile(0.9) == pytest.approx(np.quantile(tokens, 0.9), rel=0.05)


def test_what_no_law_fits_is_taken_as_seen() -> None:
    tokens = np.concatenate([RNG(0).integers(90, 110, 4000), RNG(1).integers(900, 4000, 4000), np.full(3000, 2222)])
    found = fitted(trace(tokens))
    assert found.law == "histogram"
    assert found.ks < 0.05
    assert found.distribution.mean() == pytest.approx(tokens.mean(), rel=0.02)
    assert found.distribution.cv() == pytest.approx(tokens.std() / tokens.mean(), rel=0.03)
    assert warned(found, "no law fits")


def test_the_law_with_the_lowest_bic_of_those_near_enough_comes_first() -> None:
    found = fitted(trace(lognormal(3000, 500, 0.9)))
    near = [fit for fit in found.fits if fit.ks <= max(0.02, 1.63 / 3000**0.5) and fit.name != "histogram"]
    assert found.law == min(near, key=lambda fit: fit.bic).name
    assert {fit.name for fit in found.fits} >= {"lognormal", "two lognormals", "histogram"}


def test_responses_that_were_cut_at_several_lengths() -> None:
    # Prompt and response share a context, so that each response has a cap of its own.
    full = lognormal(8000, 900, 0.7)
    limit = RNG(3).integers(800, 3000, 8000)
    found = fitted(trace(np.minimum(full, limit), truncated=full > limit))
    assert found.law == "lognormal"
    law: Any = found.fits[0].law
    assert law.median_tokens == pytest.approx(900, rel=0.03)
    assert law.sigma == pytest.approx(0.7, rel=0.04)


@pytest.mark.parametrize("tokens", [[5], [7, 7, 7], [0, 0], [1, 2], [3, 4, 4, 4, 4]])
def test_next_to_no_data_is_no_error_but_a_warning(tokens: list[int]) -> None:
    found = fitted(trace(tokens))
    assert warned(found, "say little of the spread")
    assert 1 <= found.distribution.mean() <= 7
    assert ResponseTokens.model_validate(job_block(found))
    assert lengths_report(found, trace(tokens))
    json.dumps(found.to_json(), allow_nan=False)


def test_tails_that_rest_on_a_few_responses() -> None:
    few = fitted(trace(lognormal(600, 500, 1.4)), max_tokens=262_144)
    assert warned(few, "about 6 of the 600 responses lie beyond the 99th percentile")
    assert warned(few, "262144 tokens, is far beyond the longest response")
    assert warned(few, "staleness and step time are extrapolated")
    many = lognormal(50_000, 500, 0.7, cap=4096)
    assert fitted(trace(many, truncated=many == 4096)).warnings == ()


def test_samples_of_one_prompt_are_alike() -> None:
    rng = RNG(5)
    prompts, each = 600, 8
    z = np.sqrt(0.3) * rng.standard_normal((prompts, 1)) + np.sqrt(0.7) * rng.standard_normal((prompts, each))
    tokens = np.rint(800 * np.exp(0.8 * z)).astype(np.int64).ravel()
    groups = np.repeat(np.arange(prompts), each)
    found = fitted(trace(tokens, groups=groups))
    assert found.group_size == 8
    assert found.group_correlation == pytest.approx(0.3, abs=0.05)
    assert any("the longest of 8 samples of one prompt" in note for note in found.notes)
    shuffled = fitted(trace(rng.permutation(tokens), groups=groups)).group_correlation
    assert shuffled == pytest.approx(0.0, abs=0.03)
    assert fitted(trace(tokens[:40], groups=groups[:40])).group_correlation is None


def test_growth_over_the_run_is_told_and_is_no_likeness_of_groups() -> None:
    rng = RNG(6)
    step = np.repeat(np.arange(200), 32)
    tokens = np.rint(500 * np.exp(0.6 * rng.standard_normal(step.size)) * (1 + step / 100)).astype(np.int64)
    found = fitted(trace(tokens, steps=step, groups=np.arange(step.size) // 8))
    assert found.growth is not None
    assert found.growth.factor == pytest.approx((1 + 187 / 100) / (1 + 12 / 100), rel=0.1)
    assert warned(found, "lengths moved while the log was written")
    workload = scenario_block(found)
    assert workload["drift"][0] == [0, pytest.approx(0.56, abs=0.03)]
    assert workload["drift"][-1] == [175, pytest.approx(1.44, abs=0.06)]
    assert workload["groupCorrelation"] == pytest.approx(0.0, abs=0.06)
    assert found.group_correlation == pytest.approx(0.0, abs=0.06)
    assert fitted(trace(tokens, steps=np.zeros(step.size, np.int64))).growth is None


def test_growth_that_falls_and_rises_again() -> None:
    step = np.repeat(np.arange(90), 50)
    tokens = np.where(np.abs(step - 45) < 15, 500, 1000) + step % 7
    growth = fitted(trace(tokens, steps=step)).growth
    assert growth is not None
    assert growth.factor == pytest.approx(1.0, abs=0.02)
    assert growth.widest > 1.5


@pytest.mark.parametrize(
    "tokens",
    [
        lognormal(4000, 900, 0.8, cap=4096),
        np.concatenate([lognormal(6000, 300, 0.4), lognormal(2000, 6000, 0.4, cap=16_000, seed=1)]),
        np.where(np.arange(8000) < 400, 8192, lognormal(8000, 400, 0.7, cap=8192)),
        np.concatenate([RNG(0).integers(90, 110, 4000), RNG(1).integers(900, 4000, 4000), np.full(3000, 2222)]),
        np.where(
            np.arange(9000) % 9 < 6,
            lognormal(9000, 300, 0.4),
            np.where(np.arange(9000) % 9 == 8, 16_000, lognormal(9000, 4000, 0.4, cap=16_000, seed=1)),
        ),
        np.full(300, 777),
    ],
    ids=["lognormal", "two", "loops", "histogram", "two and loops", "equal"],
)
def test_the_blocks_describe_the_fitted_lengths(tokens: Any) -> None:
    found = fitted(trace(tokens))
    job = lengths_of(ResponseTokens.model_validate(job_block(found)))
    scenario = ScenarioTokens.model_validate(scenario_block(found)["responseTokens"]).distribution()
    for lengths in (job, scenario):
        assert lengths.cap_tokens == found.cap_tokens
        assert lengths.mean() == pytest.approx(found.distribution.mean(), rel=0.015)
        assert lengths.cv() == pytest.approx(found.distribution.cv(), rel=0.03)
        assert lengths.tail_multiplier(8) == pytest.approx(found.distribution.tail_multiplier(8), rel=0.02)


def test_a_million_lengths_are_fitted_at_once() -> None:
    found = fitted(trace(lognormal(1_000_000, 900, 1.0, cap=32_768)))
    assert found.law.startswith("lognormal")
    assert found.distribution.mean() == pytest.approx(900 * np.exp(0.5), rel=0.01)


def test_responses_that_are_mostly_cut_say_little_of_the_model() -> None:
    found = fitted(trace(lognormal(2000, 900, 0.8)), max_tokens=500)
    assert warned(found, "cuts 7") or warned(found, "cuts 8")
    assert found.distribution.quantile(0.9) == 500
    all_cut = fitted(trace([100] * 300, truncated=np.ones(300, dtype=np.bool_)), max_tokens=1000)
    assert all_cut.distribution.mean() == 1000
    assert warned(all_cut, "here they run to the new cap")
