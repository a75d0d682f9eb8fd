from __future__ import annotations

import json
import threading
from asyncio import Event, new_event_loop
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from typer.testing import CliRunner, Result

from dev import schemas
from rljob_operator.cli import app
from rljob_planner.calibrate import Calibration, doubts, read_calibration
from tests.operator.openai_server import Server, Truth, serving

ROOT = Path(__file__).resolve().parents[2]
RECORDED = ROOT / "tests" / "planner" / "data" / "bench" / "serve.json"
TINY = {
    "model_type": "qwen2",
    "vocab_size": 512,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
}
"""The model that the recorded benchmark ran."""


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["calibrate", *arguments])


def said(*arguments: str) -> str:
    """What a wrong input is answered with."""
    result = run(*arguments)
    assert result.exit_code == 2, result.output
    assert "Traceback" not in result.stderr
    return result.stderr


def bench(folder: Path) -> list[str]:
    """Results of vllm bench serve at three concurrencies: 8 ms and 0.1 ms for each request."""
    paths = []
    for concurrency in (1, 8, 64):
        result: dict[str, Any] = {
            "model_id": "Qwen/Qwen3-8B",
            "request_rate": "inf",
            "max_concurrency": concurrency,
            "completed": concurrency * 10,
            "duration": 100 * (8 + 0.1 * concurrency) / 100,
            "total_input_tokens": concurrency * 2000,
            "total_output_tokens": concurrency * 1010,
            "mean_ttft_ms": 20.0,
            "mean_tpot_ms": 8 + 0.1 * concurrency,
        }
        path = folder / f"c{concurrency}.json"
        path.write_text(json.dumps(result), encoding="utf-8")
        paths.append(str(path))
    return paths


def test_benchmarks_become_a_calibration(tmp_path: Path) -> None:
    result = run(*bench(tmp_path), "--gpu", "H100-SXM", "-o", "json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    jsonschema.validate(found, schemas.schema("calibration"))
    assert found["measuredOn"]["model"] == "Qwen/Qwen3-8B"
    assert found["observations"] == 3
    assert found["fit"]["error"]["mean"] < 0.05
    assert found["fit"]["fitted"] == ["factor", "stepSeconds", "requestSeconds"]


def test_a_calibration_is_written_to_a_file_and_read_back(tmp_path: Path) -> None:
    path = tmp_path / "calibration.yaml"
    result = run(*bench(tmp_path), "--gpu", "H100-SXM", "-o", str(path))
    assert result.exit_code == 0, result.output
    assert "rljob plan job.yaml --calibration" in result.stderr
    assert "Each running sample" in result.stdout
    assert read_calibration(path).decode is not None
    assert yaml.safe_load(path.read_text(encoding="utf-8"))["rljobCalibration"] == 1


def test_a_recorded_benchmark_of_a_model_of_ones_own(tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    config.write_text(json.dumps(TINY), encoding="utf-8")
    result = run(str(RECORDED), "--gpu", "H100-SXM", "--model", str(config), "-o", "yaml")
    assert result.exit_code == 0, result.output
    found = yaml.safe_load(result.stdout)
    assert found["fit"]["rows"][0]["measuredMs"] == pytest.approx(2.0118, rel=1e-3)
    assert found["fit"]["fitted"] == ["factor"]


@contextmanager
def server_in_a_thread(server: Server) -> Iterator[Server]:
    """The server in a loop of its own, as another process would be."""
    loop, ready = new_event_loop(), threading.Event()
    over = Event()

    async def serve() -> None:
        async with serving(server):
            ready.set()
            await over.wait()

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()))
    thread.start()
    try:
        assert ready.wait(30)
        yield server
    finally:
        loop.call_soon_threadsafe(over.set)
        thread.join()
        loop.close()


def test_a_live_server_is_measured() -> None:
    with server_in_a_thread(Server(Truth(step_s=6e-3))) as server:
        result = run(
            *("--url", server.url, "--gpu", "H100-SXM", "--concurrency", "1,4", "--requests", "4"),
            *("--response-tokens", "16", "-o", "json"),
        )
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert found["samplers"]["kvTokens"] == 123456
    assert [round(row["running"]) for row in found["fit"]["rows"]] == [1, 4]
    assert "4 of 4" in result.stderr


def test_without_a_data_sheet_what_was_measured_is_kept_as_it_is(tmp_path: Path) -> None:
    truth = Truth(step_s=6e-3, sample_s=0.5e-3, token_s=0.0)
    with server_in_a_thread(Server(truth, counters=True)) as server:
        result = run(
            *("--url", server.url, "--concurrency", "1,6", "--prompt-tokens", "64", "--response-tokens", "24"),
            *("--efficiency", "90%", "-o", "json"),
        )
    assert result.exit_code == 0, result.output
    assert "without --gpu what was measured is kept as it is" in result.stderr
    found = json.loads(result.stdout)
    jsonschema.validate(found, schemas.schema("calibration"))
    assert found["measuredOn"]["gpu"] is None
    assert found["samplers"]["decode"] is None
    assert found["samplers"]["efficiency"] == 0.9
    assert found["samplers"]["measured"]["stepSeconds"] == pytest.approx(truth.step_s, rel=0.15)
    assert found["samplers"]["measured"]["promptTokenSeconds"] == pytest.approx(truth.prompt_token_s, rel=0.3)
    assert found["fit"]["rows"][-1]["kind"] == "prefill"


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ([], "nothing to calibrate with"),
        (["x.json"], "no such file"),
        (["{bench}", "--efficiency", "80"], "--efficiency"),
        (["x.json", "--gpu", "H100-SXM"], "no such file"),
        (["{bench}", "--gpu", "H9000"], "H9000"),
        (["{bench}", "--gpu", "H100-SXM", "--model", "no/such-model-at-all"], "no/such-model-at-all"),
        (["{recorded}", "--gpu", "H100-SXM"], "config.json"),
        (["{bench}", "{recorded}", "--gpu", "H100-SXM"], "--model"),
        (["{bench}", "--gpu", "H100-SXM", "--precision", "int3"], "int3"),
        (["{bench}", "--gpu", "H100-SXM", "--tp", "7"], "--tp"),
        (["{bench}", "--gpu", "H100-SXM", "--case", "decode"], "--case"),
        (["{bench}", "--gpu", "H100-SXM", "-o", "xml"], "--output"),
        (["--url", "localhost", "--gpu", "H100-SXM"], "no URL"),
        (["--url", "http://127.0.0.1:9", "--gpu", "H100-SXM"], "cannot reach"),
        (["--url", "http://127.0.0.1:9", "--gpu", "H100-SXM", "--concurrency", "1,x"], "--concurrency"),
        (["--url", "http://127.0.0.1:9", "--gpu", "H100-SXM", "--prompt-tokens", "0"], "--prompt-tokens"),
    ],
)
def test_what_is_wrong_is_said(tmp_path: Path, arguments: list[str], why: str) -> None:
    path = bench(tmp_path)[0]
    assert why in said(*(a.format(bench=path, recorded=RECORDED) for a in arguments))


def test_what_cannot_be_used_says_why(tmp_path: Path) -> None:
    path = tmp_path / "latency.json"
    path.write_text('{"avg_latency": 1.0}', encoding="utf-8")
    assert "use vllm bench serve" in said(str(path), "--gpu", "H100-SXM")


def one_row(folder: Path, tpot_ms: float, model: str = "Qwen/Qwen3-8B") -> str:
    """A result of one concurrency, and its path."""
    path = Path(bench(folder)[1])
    result = json.loads(path.read_text(encoding="utf-8")) | {"mean_tpot_ms": tpot_ms, "model_id": model}
    path.write_text(json.dumps(result), encoding="utf-8")
    return str(path)


def test_a_benchmark_of_another_engine_is_no_calibration_to_plan_with(tmp_path: Path) -> None:
    file = tmp_path / "calibration.yaml"
    result = run(one_row(tmp_path, 0.5), "--gpu", "H100", "-o", str(file))
    assert result.exit_code == 0
    assert "at its limit: measure again before planning with it" in result.stderr
    assert "rljob plan" not in result.stderr
    calibration = read_calibration(file)
    assert calibration.pegged
    assert calibration.residual == calibration.fit_error
    assert calibration.residual is not None
    assert calibration.residual > 1
    said = " ".join(doubts(calibration))
    assert "its own measurements only to" in said
    assert "one measurement" in said
    assert "only samplers were calibrated" in said


def test_one_row_that_fits_says_nothing_of_others(tmp_path: Path) -> None:
    file = tmp_path / "calibration.yaml"
    result = run(one_row(tmp_path, 8.3), "--gpu", "H100", "-o", str(file))
    assert f"rljob plan job.yaml --calibration {file}" in result.stderr
    calibration = read_calibration(file)
    assert (calibration.pegged, calibration.residual) == (False, None)
    assert any("one measurement" in doubt for doubt in doubts(calibration))


def test_what_a_run_taught_has_no_doubts_of_a_benchmark() -> None:
    assert doubts(Calibration(pegged=True, observations=1)) == ()


def test_a_model_that_only_the_benchmark_knows_is_asked_for(tmp_path: Path) -> None:
    words = said(one_row(tmp_path, 8.0, "served-name"), "--gpu", "H100")
    assert "'served-name', as the benchmark calls it, is not known: say which it is with --model" in words
    assert "the path to its config.json as --model" in words
    assert "spec." not in words


def test_the_format_in_the_name_of_the_benchmark_is_that_of_its_weights(tmp_path: Path) -> None:
    path = one_row(tmp_path, 6.0, "Qwen/Qwen3-8B-FP8")
    measured_on = json.loads(run(path, "--gpu", "H100", "-o", "json").stdout)["measuredOn"]
    assert measured_on["weights"] == "fp8"
    assert "write one of bf16, fp16, fp8" in said(path, "--gpu", "H100", "--kv-cache", "mxfp4")
