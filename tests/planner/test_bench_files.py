from __future__ import annotations

import csv
import json
import math
from pathlib import Path
from typing import Any

import pytest

from rljob_planner.bench_files import RequestTiming, read_benchmarks, row_of_requests, served_row
from rljob_planner.errors import PlanningError
from rljob_planner.fit import MeasuredStep, RowKind

RECORDED = Path(__file__).parent / "data" / "bench" / "serve.json"


def result(concurrency: int | None = 16, **changes: Any) -> dict[str, Any]:
    """What a run with 10 ms a token leaves: 10 waves of requests of 200 + 101 tokens, 0.1 s to the first token."""
    completed = 10 * (concurrency or 1)
    return {
        "model_id": "Qwen/Qwen3-8B",
        "request_rate": "inf",
        "max_concurrency": concurrency,
        "completed": completed,
        "failed": 0,
        "duration": 10 * 1.1,
        "total_input_tokens": completed * 200,
        "total_output_tokens": completed * 101,
        "request_throughput": completed / 11.0,
        "mean_ttft_ms": 100.0,
        "mean_tpot_ms": 10.0,
        "mean_e2el_ms": 1100.0,
    } | changes


def only(folder: Path, name: str, content: Any) -> MeasuredStep:
    path = folder / name
    path.write_text(json.dumps(content), encoding="utf-8")
    (row,) = read_benchmarks([path]).rows
    return row


def why_not(content: dict[str, Any]) -> str:
    row, reason = served_row(content, "it")
    assert row is None
    return reason


def test_a_recorded_result_is_read() -> None:
    found = read_benchmarks([RECORDED])
    (row,) = found.rows
    assert found.models == ("model",)
    assert found.skipped == ()
    assert row.measured_s == pytest.approx(2.0118e-3, rel=1e-4)
    assert row.response_tokens == 64
    assert row.prompt_tokens == pytest.approx(64.65)
    # 9.72 requests a second arrive by chance, each decodes for 63 × 2.01 ms, and one sees the others and itself.
    assert row.running == pytest.approx(1 + 9.7187 * 63 * 2.01184e-3, rel=1e-3)


def test_a_closed_loop_runs_its_concurrency_less_the_time_of_prefills(tmp_path: Path) -> None:
    row = only(tmp_path, "a.json", result())
    assert row.running == pytest.approx(1 + 15 * 1.0 / 1.1)
    assert row.context_tokens == pytest.approx(250.5)
    # Each of the 15 others starts once in 1.1 s; the first of ten waves had started before.
    assert row.prefills_per_step == pytest.approx(15 * 0.01 / 1.1 * 0.9)


def test_a_concurrency_that_was_never_reached_does_not_count(tmp_path: Path) -> None:
    row = only(tmp_path, "a.json", result(concurrency=16, max_concurrency=1000, request_rate=14.5))
    assert row.running == pytest.approx(1 + 160 * 1.0 / 11.0)


def test_a_single_wave_decodes_all_at_once(tmp_path: Path) -> None:
    row = only(
        tmp_path, "a.json", result(concurrency=None, completed=20, total_input_tokens=4000, total_output_tokens=2020)
    )
    assert row.running == 20
    assert row.prefills_per_step == 0


def test_detailed_results_are_counted_exactly(tmp_path: Path) -> None:
    detailed = {
        "start_times": [0.0, 0.0, 1.0],
        "ttfts": [0.1, 0.1, 0.1],
        "itls": [[0.01] * 100, [0.01] * 100, [0.01] * 100],
        "input_lens": [200, 200, 200],
        "output_lens": [101, 101, 101],
    }
    row = only(tmp_path, "a.json", result(completed=3, total_input_tokens=600, total_output_tokens=303) | detailed)
    # Two side by side for a second; the third begins when they end.
    assert row.running == pytest.approx((2 + 2 + 1) / 3)
    assert row.measured_s == pytest.approx(0.01)


def test_streams_side_by_side_count_and_what_starts_meanwhile() -> None:
    row = row_of_requests(
        "it", [RequestTiming(0.0, 1.0, 100, 101), RequestTiming(0.5, 1.5, 300, 101), RequestTiming(9.0, 9.0, 1, 1)]
    )
    assert row is not None
    assert row.running == pytest.approx(1.5)
    assert row.prefills_per_step == pytest.approx(0.5 / 100)
    assert row.prompt_tokens == 200
    assert row.context_tokens == pytest.approx(250.5)
    assert row_of_requests("it", [RequestTiming(0.0, 0.0, 1, 1)]) is None


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"mean_tpot_ms": None}, "lacks mean_tpot_ms"),
        ({"mean_tpot_ms": math.nan}, "lacks mean_tpot_ms"),
        ({"completed": 0}, "no request"),
        ({"mean_ttft_ms": 5000.0}, "queued"),
        ({"total_output_tokens": 320}, "too short"),
        ({"spec_decode_acceptance_rate": 0.7}, "speculative"),
    ],
)
def test_what_is_no_measurement_says_why(changes: dict[str, Any], why: str) -> None:
    assert why in why_not(result(**changes))


def test_other_benchmarks_are_named_and_left_out(tmp_path: Path) -> None:
    for name, content in (("latency", {"avg_latency": 1.0}), ("throughput", {"elapsed_time": 1.0})):
        (tmp_path / f"{name}.json").write_text(json.dumps(content), encoding="utf-8")
    found = read_benchmarks([tmp_path])
    assert found.rows == ()
    assert [reason.split(" ")[2] for _, reason in found.skipped] == ["latency", "throughput"]


def sweep_folder(root: Path) -> None:
    """The layout of ``vllm bench sweep serve``: a folder a combination, its runs and their summary, a table over all."""
    records = []
    for width in (1, 2):
        for concurrency in (1, 8):
            folder = root / f"SERVE--tensor_parallel_size={width}-BENCH--max_concurrency={concurrency}"
            folder.mkdir(parents=True)
            runs = []
            for run in range(2):
                run_result = result(concurrency) | {"run_number": run, "tensor_parallel_size": width}
                (folder / f"run={run}.json").write_text(json.dumps(run_result), encoding="utf-8")
                runs.append(run_result)
            (folder / "summary.json").write_text(json.dumps(runs), encoding="utf-8")
            (folder / "warmup.json").write_text(json.dumps(result(concurrency)), encoding="utf-8")
            (folder / "run=2.failure.json").write_text('{"error": "x"}', encoding="utf-8")
            records += runs
    with (root / "summary.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, ["", *records[0]])
        writer.writeheader()
        writer.writerows({"": i, **r} for i, r in enumerate(records))


def test_a_sweep_folder_is_read_once(tmp_path: Path) -> None:
    sweep_folder(tmp_path / "experiment")
    found = read_benchmarks([tmp_path / "experiment"])
    assert len(found.rows) == 8
    assert found.skipped == ()
    assert found.models == ("Qwen/Qwen3-8B",)
    assert {row.tensor_parallel for row in found.rows} == {1, 2}


@pytest.mark.parametrize("keep", ["summary.json", "summary.csv"])
def test_a_sweep_folder_of_which_only_summaries_are_left_does_too(tmp_path: Path, keep: str) -> None:
    sweep_folder(tmp_path)
    whole = read_benchmarks([tmp_path]).rows
    for path in tmp_path.rglob("*"):
        if path.is_file() and path.name != keep:
            path.unlink()
    rows = read_benchmarks([tmp_path]).rows
    assert sorted(r.running for r in rows) == pytest.approx(sorted(r.running for r in whole))
    assert {r.tensor_parallel for r in rows} == {1, 2}


def test_results_that_were_appended_line_by_line_are_all_read(tmp_path: Path) -> None:
    path = tmp_path / "all.json"
    path.write_text("\n".join(json.dumps(result(c)) for c in (1, 4, 16)) + "\n", encoding="utf-8")
    assert [round(r.running) for r in read_benchmarks([path]).rows] == [1, 4, 15]


def test_forward_cases_are_exact_batches(tmp_path: Path) -> None:
    path = tmp_path / "forward.json"
    cases = [
        {"name": "decode", "reqs": "32*1@8192", "median_us": 9000.0},
        {"name": "mix", "reqs": "8192,31*1@4096,1*1@100", "median_us": 200000.0},
        {"name": "prefill", "reqs": "8192", "median_us": 100.0},
        {"name": "hit", "reqs": "2048@10240", "median_us": 100.0},
        {"name": "named", "median_us": 100.0},
    ]
    path.write_text(json.dumps({"config": {"model": "x"}, "results": cases}), encoding="utf-8")
    found = read_benchmarks([path], {"named": "4*1@100"})
    assert [(r.kind, r.running, r.context_tokens) for r in found.rows] == [
        (RowKind.FORWARD, 32, 8192),
        (RowKind.FORWARD, 32, (31 * 4096 + 100) / 32),
        (RowKind.FORWARD, 4, 100),
    ]
    assert found.rows[1].prefills_per_step == 1
    assert found.rows[1].prompt_tokens == 8192
    assert found.rows[0].measured_s == pytest.approx(9e-3)
    assert len(found.skipped) == 2
    unnamed = read_benchmarks([path])
    assert any("--case named=" in reason for _, reason in unnamed.skipped)


NONSENSE: list[Any] = [None, -1, 1e300, 10**400, math.inf, math.nan, "x", [], {}, True]


@pytest.mark.parametrize("field", sorted(result()))
@pytest.mark.parametrize("value", NONSENSE, ids=lambda v: f"{v!r:.8}")
def test_a_number_that_is_none_is_a_reason_or_not_needed(field: str, value: Any) -> None:
    row, reason = served_row(result() | {field: value}, "it")
    assert (row is None) == bool(reason)
    assert row is None or math.isfinite(row.running + row.measured_s + row.context_tokens)


@pytest.mark.parametrize("field", ["start_times", "ttfts", "itls", "input_lens", "output_lens"])
@pytest.mark.parametrize("value", NONSENSE, ids=lambda v: f"{v!r:.8}")
def test_details_that_make_no_sense_leave_the_summary(field: str, value: Any) -> None:
    detailed = {"start_times": [0.0], "ttfts": [0.1], "itls": [[0.02] * 100], "input_lens": [200], "output_lens": [101]}
    by_details, _ = served_row(result(1) | detailed, "it")
    assert by_details is not None
    assert by_details.measured_s == pytest.approx(0.02)
    for broken in (value, [value], [[value]]):
        row, _ = served_row(result(1) | detailed | {field: broken}, "it")
        assert row is not None
        assert row.measured_s == pytest.approx(0.01)


@pytest.mark.parametrize(
    ("case", "why"),
    [
        ({"median_us": 0, "reqs": "8*1@100"}, "it took no time"),
        ({"median_us": -5, "reqs": "8*1@100"}, "it took no time"),
        ({"median_us": 5, "reqs": f"{10**20}*1@100"}, "larger than any batch"),
        ({"median_us": 5, "reqs": "0*1@100"}, "decodes nothing"),
    ],
)
def test_a_forward_case_that_measured_nothing_says_so(tmp_path: Path, case: dict[str, Any], why: str) -> None:
    path = tmp_path / "forward.json"
    path.write_text(json.dumps(case), encoding="utf-8")
    ((_, reason),) = read_benchmarks([path]).skipped
    assert why in reason


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("[" * 100_000, "nested too deeply"),
        ("no json", "no JSON"),
        ('{"a": 1}', "no result of vllm bench"),
        ("[]", "no result of vllm bench"),
    ],
)
def test_a_file_that_is_no_benchmark_is_an_error(tmp_path: Path, text: str, why: str) -> None:
    path = tmp_path / "x.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(PlanningError, match=why):
        read_benchmarks([path])


def test_a_path_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(PlanningError, match="no such file"):
        read_benchmarks([tmp_path / "none.json"])
    with pytest.raises(PlanningError, match="no result"):
        read_benchmarks([tmp_path])
