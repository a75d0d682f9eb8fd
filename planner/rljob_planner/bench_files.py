"""Reads what ``vllm bench`` leaves behind as rows to fit: results of ``serve``, folders of ``sweep``, cases of ``forward``.

A result of ``bench serve`` says how long a token took and not how many requests ran meanwhile, which is what the time depends on.
With ``--save-detailed`` both are known exactly (``row_of_requests``). Without it, the concurrency that was kept up tells, or else
Little's law over the run.

What cannot be used is left out with a reason, never silently: a wrong row costs more than a missing one.
"""

from __future__ import annotations

import csv
import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from rljob_planner.errors import PlanningError
from rljob_planner.fit import MeasuredStep, RowKind

MOST_TTFT_S = 4.0
"""Mean time to the first token from which requests queued for seats or KV rather than for their prefill."""
LEAST_TOKENS = 8.0
"""Response tokens below which a time per token is mostly rounding."""

_SATURATED = 0.8
_LARGEST = 1e12
"""Seconds, tokens or requests beyond which a number is no measurement."""
_SPEC = re.compile(r"(?:(\d+)\*)?(\d+)(?:@(\d+))?(c)?(?::(\d+))?")


@dataclass(frozen=True)
class Benchmarks:
    """What was found in files."""

    rows: tuple[MeasuredStep, ...] = ()
    skipped: tuple[tuple[str, str], ...] = ()
    """Sources that were left out, with reasons."""
    models: tuple[str, ...] = ()
    """Names that the benchmarks give the model."""


@dataclass(frozen=True)
class RequestTiming:
    """One streamed request; times in seconds since any common instant."""

    first_token_s: float
    last_token_s: float
    prompt_tokens: float
    response_tokens: float


@dataclass
class _Found:
    rows: list[MeasuredStep] = field(default_factory=list)
    skipped: list[tuple[str, str]] = field(default_factory=list)
    models: list[str] = field(default_factory=list)


def read_benchmarks(paths: Sequence[str | Path], cases: Mapping[str, str] | None = None) -> Benchmarks:
    """The rows of these files and folders.

    ``cases``: shapes of ``vllm bench forward --case NAME=SHAPE`` by name, for results that do not repeat them. Raises
    PlanningError ``InvalidBenchmark`` if a path cannot be read or holds no result of ``vllm bench`` at all.
    """
    found = _Found()
    for path in map(Path, paths):
        before = len(found.rows) + len(found.skipped)
        try:
            files = _folder(path) if path.is_dir() else [path]
            for file in files:
                _file(found, file, str(file), cases or {})
        except OSError as error:
            raise PlanningError("InvalidBenchmark", f"{path}: {(error.strerror or str(error)).lower()}") from None
        if len(found.rows) + len(found.skipped) == before:
            raise PlanningError(
                "InvalidBenchmark",
                f"{path}: there is no result of vllm bench in it: give the JSON of `vllm bench serve --save-result`, "
                "the folder of `vllm bench sweep`, or the JSON of `vllm bench forward --output-json`",
            )
    return Benchmarks(tuple(found.rows), tuple(found.skipped), tuple(dict.fromkeys(found.models)))


def row_of_requests(source: str, requests: Sequence[RequestTiming]) -> MeasuredStep | None:
    """The mean decode step behind streamed requests, None if none has a token after its first.

    Each gap between two tokens of a request is a step. Weighted by them, the mean number of requests that decode at once and the
    mean prompts that start in a step are what the engine had to do in a mean gap.
    """
    timed = [r for r in requests if r.response_tokens > 1 and r.last_token_s > r.first_token_s]
    if not timed:
        return None
    begin = np.array([r.first_token_s for r in timed])
    end = np.array([r.last_token_s for r in timed])
    tokens = np.array([r.response_tokens for r in timed])
    prompts = np.array([r.prompt_tokens for r in timed])
    spans, steps = end - begin, tokens - 1.0
    overlap = np.maximum(np.minimum(end[:, None], end) - np.maximum(begin[:, None], begin), 0.0)
    running = overlap.sum(axis=1) / spans
    # A prompt is prefilled just before its first token: it lengthens a gap of those that decode then.
    starts = ((begin[None, :] > begin[:, None]) & (begin[None, :] <= end[:, None])).sum(axis=1) / steps
    weight = steps / steps.sum()
    return MeasuredStep(
        source=source,
        kind=RowKind.SERVED,
        running=float(weight @ running),
        prompt_tokens=float(prompts.mean()),
        response_tokens=float(tokens.mean()),
        context_tokens=float(weight @ (prompts + tokens / 2.0)),
        prefills_per_step=float(weight @ starts),
        measured_s=float(weight @ (spans / steps)),
    )


def _folder(folder: Path) -> list[Path]:
    """The results in a folder: single runs where there are any, since summaries repeat them."""
    everything = sorted(p for p in folder.rglob("*") if p.is_file())
    results = [p for p in everything if p.suffix == ".json" and not p.name.endswith(".failure.json")]
    runs = [p for p in results if re.fullmatch(r"run=-?\d+\.json", p.name)]
    summaries = [p for p in results if p.name == "summary.json"]
    tables = [p for p in everything if p.name == "summary.csv"]
    others = [p for p in results if p not in summaries and p.name != "warmup.json" and "failure" not in p.name]
    return runs or summaries or tables or others


def _file(found: _Found, path: Path, source: str, cases: Mapping[str, str]) -> None:
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        found.skipped.append((source, "no text"))
        return
    if path.suffix == ".csv":
        for number, record in enumerate(csv.DictReader(text.splitlines())):
            _serve(found, {k: _number(v) for k, v in record.items()}, f"{source}, row {number + 1}")
        return
    for number, document in enumerate(documents := _documents(text, source)):
        _document(found, document, source if len(documents) == 1 else f"{source}, result {number + 1}", cases)


def _documents(text: str, source: str) -> list[Any]:
    """The JSON documents of a text: one, a list of them, or one a line (``--append-result``)."""
    try:
        whole = json.loads(text)
    except RecursionError:
        raise PlanningError("InvalidBenchmark", f"{source}: this is nested too deeply to be a result") from None
    except ValueError:
        try:
            return [json.loads(line) for line in text.splitlines() if line.strip()]
        except ValueError as error:
            raise PlanningError("InvalidBenchmark", f"{source}: this is no JSON: {error}") from None
    return (
        whole if isinstance(whole, list) and any("mean_tpot_ms" in d for d in whole if isinstance(d, dict)) else [whole]
    )


def _document(found: _Found, document: Any, source: str, cases: Mapping[str, str]) -> None:
    if isinstance(document, dict) and ("mean_tpot_ms" in document or "request_throughput" in document):
        _serve(found, document, source)
    elif isinstance(document, dict) and "avg_latency" in document:
        found.skipped.append((source, "vllm bench latency does not say its lengths: use vllm bench serve"))
    elif isinstance(document, dict) and "elapsed_time" in document:
        found.skipped.append((source, "vllm bench throughput has no time per token: use vllm bench serve"))
    else:
        for name, case in _cases(document, ""):
            _forward(found, case, name, f"{source}, case {name}" if name else source, cases)


def _serve(found: _Found, result: Mapping[str, Any], source: str) -> None:
    """One result of ``vllm bench serve``."""
    name = result.get("model_id")
    if isinstance(name, str) and name:
        found.models.append(name)
    row, reason = served_row(result, source)
    if row is not None:
        found.rows.append(row)
    else:
        found.skipped.append((source, reason))


def served_row(result: Mapping[str, Any], source: str) -> tuple[MeasuredStep | None, str]:
    """The row of a result of ``vllm bench serve``, or None and why there is none."""
    numbers = {k: n for k, v in result.items() if (n := _float(v)) is not None}
    missing = [
        k
        for k in ("completed", "duration", "total_input_tokens", "total_output_tokens", "mean_tpot_ms")
        if k not in numbers
    ]
    if missing:
        return None, f"it lacks {', '.join(missing)}"
    completed, tpot_s = numbers["completed"], numbers["mean_tpot_ms"] / 1e3
    if completed < 1 or tpot_s <= 0 or numbers["duration"] <= 0:
        return None, "no request was completed"
    if any(k.startswith("spec_decode") and v for k, v in numbers.items()):
        return None, "speculative decoding: a step gives more than one token"
    if numbers.get("mean_ttft_ms", 0.0) > MOST_TTFT_S * 1e3:
        return (
            None,
            f"first tokens took {numbers['mean_ttft_ms'] / 1e3:.1f} s in the mean: requests queued for seats or KV",
        )
    prompt, response = numbers["total_input_tokens"] / completed, numbers["total_output_tokens"] / completed
    if response < LEAST_TOKENS:
        return None, f"responses of {response:.1f} tokens are too short to time a token"
    width = numbers.get("tensor_parallel_size", numbers.get("tensor-parallel-size"))
    exact = _detailed(result, source)
    if exact is not None:
        row = exact
    else:
        others, starts = _others(numbers, result, tpot_s, response)
        row = MeasuredStep(
            source=source,
            kind=RowKind.SERVED,
            running=1.0 + others,
            prompt_tokens=prompt,
            response_tokens=response,
            context_tokens=prompt + response / 2.0,
            prefills_per_step=starts,
            measured_s=tpot_s,
        )
    return (replace(row, tensor_parallel=int(width)) if width is not None and width >= 1 else row), ""


def _others(
    numbers: Mapping[str, float], result: Mapping[str, Any], tpot_s: float, response: float
) -> tuple[float, float]:
    """Mean requests that a decoding one sees decode beside it, and mean prompts of theirs that start in one of its steps.

    Where a concurrency was kept up: those others, in the share of their time that they decode. Else requests arrive by chance, and
    one that arrives finds the mean number (Little's law over the run), itself not counted.
    """
    completed, decode_s = numbers["completed"], tpot_s * max(response - 1.0, 1.0)
    mean = completed * decode_s / numbers["duration"]
    cap, rate = numbers.get("max_concurrency"), result.get("request_rate")
    unlimited = _float(rate) is None
    if unlimited:
        cap = completed if cap is None else min(cap, completed)
        if completed <= cap:
            # All of a single wave decode at once, and have all been prefilled before.
            return completed - 1.0, 0.0
        whole_s = decode_s + numbers.get("mean_ttft_ms", 0.0) / 1e3
        if mean >= _SATURATED * cap * decode_s / whole_s:
            later = 1.0 - cap / completed
            return (cap - 1.0) * decode_s / whole_s, (cap - 1.0) * tpot_s / whole_s * later
    return mean, mean / response


def _detailed(result: Mapping[str, Any], source: str) -> MeasuredStep | None:
    """The exact row of a result with ``--save-detailed``, None if it has no such fields."""
    columns = [result.get(k) for k in ("start_times", "ttfts", "itls", "input_lens", "output_lens")]
    if not all(isinstance(c, list) and c for c in columns):
        return None
    requests = []
    try:
        for start, ttft, gaps, prompt, response in zip(*columns, strict=True):
            if _times(ttft) > 0 and _times(response) > 1:
                first = _times(start) + ttft
                last = first + math.fsum(map(_times, gaps))
                requests.append(RequestTiming(first, last, _times(prompt), response))
    except (TypeError, ValueError):
        return None
    return row_of_requests(source, requests)


def _cases(node: Any, name: str) -> Iterable[tuple[str, Mapping[str, Any]]]:
    """Every part of a result of ``bench forward`` that has a time, with its name; the nesting differs between versions."""
    if isinstance(node, dict):
        named = next((node[k] for k in ("name", "case", "label") if isinstance(node.get(k), str)), name)
        if _float(node.get("median_us")) is not None:
            yield named, node
            return
        for key, value in node.items():
            yield from _cases(value, key if isinstance(value, dict) else named)
    elif isinstance(node, list):
        for value in node:
            yield from _cases(value, name)


def _forward(found: _Found, case: Mapping[str, Any], name: str, source: str, cases: Mapping[str, str]) -> None:
    """One case of ``vllm bench forward``: decode batches, with prefills beside them or without."""
    shape = cases.get(name) or next(
        (case[k] for k in ("reqs", "requests", "spec", "shape") if isinstance(case.get(k), str)), None
    )
    if shape is None and "=" in name:
        shape = name.partition("=")[2]
    if shape is None:
        found.skipped.append((source, f"its shape is not in the file: repeat it as --case {name or 'NAME'}=…"))
        return
    decode = prefills = prefilled = context = 0.0
    for part in shape.split(","):
        match = _SPEC.fullmatch(part.strip())
        if match is None:
            found.skipped.append((source, f"{part!r} is no shape such as 32*1@8192"))
            return
        count, query = float(match[1] or 1), float(match[2])
        if match[4] or match[5] or (match[3] and query > 1):
            found.skipped.append((source, "chunks, prefix hits and drafts are not modelled"))
            return
        if query == 1:
            decode, context = decode + count, context + count * float(match[3] or 1)
        else:
            prefills, prefilled = prefills + count, prefilled + count * query
    measured_us = _float(case["median_us"])
    if decode < 1 or not measured_us or measured_us <= 0:
        found.skipped.append((source, "it decodes nothing" if decode < 1 else "it took no time"))
        return
    if max(decode, prefills, context, prefilled) > _LARGEST:
        found.skipped.append((source, f"{shape!r} is larger than any batch"))
        return
    found.rows.append(
        MeasuredStep(
            source=source,
            kind=RowKind.FORWARD,
            running=decode,
            prompt_tokens=prefilled / prefills if prefills else 0.0,
            response_tokens=0.0,
            context_tokens=context / decode,
            prefills_per_step=prefills,
            measured_s=measured_us * 1e-6,
        )
    )


def _float(value: Any) -> float | None:
    """A number that a benchmark can have measured; None for everything else, NaN and infinities included."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not -_LARGEST <= value <= _LARGEST:
        return None
    return float(value)


def _times(value: Any) -> float:
    """A time or a length of a detailed result; raises ValueError."""
    number = _float(value)
    if number is None or number < 0:
        raise ValueError(f"{value!r:.40} is no time or length")
    return number


def _number(text: str | None) -> Any:
    try:
        return float(text or "")
    except ValueError:
        return text or None
