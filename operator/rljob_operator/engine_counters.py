"""What vLLM's own counters say of a window: the mean step of its engine, without a stream and without a clock of ours.

Counters grow in the engine's time. So they are right where the streams are not: behind a server process that falls behind its engine, or
a network that delivers tokens in bursts. They are also what the operator reads of a running job, so that both speak of the same thing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

from rljob_operator.exposition import Sample, total
from rljob_planner.fit import MeasuredStep, RowKind

FEWEST_GAPS = 8
"""Gaps between tokens below which a window says nothing."""
SPREAD = 0.5
"""How far lengths of responses are from their mean, at most, relative to it."""
_GOLDEN = (5.0**0.5 - 1.0) / 2.0
_WHOLE_PROMPT = 2048
"""Tokens up to which every engine prefills a prompt in one step (its least max_num_batched_tokens)."""


@dataclass(frozen=True)
class EngineCounters:
    """Counters of one instant, summed over engines; or what they grew by between two."""

    gap_s: float
    """Seconds between two tokens of a request, over all of them."""
    gaps: float
    generated: float
    """Tokens."""
    iterations: float
    """Steps that gave a token."""
    prompted: float
    """Prompt tokens that were prefilled, or found in the prefix cache."""
    prefill_s: float
    """Seconds from the first step of a request to its first token, over those that ended."""
    prefills: float
    """Requests that ended."""
    preemptions: float


_NAMES: dict[str, tuple[str, ...]] = {
    "gap_s": ("vllm:inter_token_latency_seconds_sum", "vllm:time_per_output_token_seconds_sum"),
    "gaps": ("vllm:inter_token_latency_seconds_count", "vllm:time_per_output_token_seconds_count"),
    "generated": ("vllm:generation_tokens_total",),
    "iterations": ("vllm:iteration_tokens_total_count",),
    "prompted": ("vllm:prompt_tokens_total",),
    "prefill_s": ("vllm:request_prefill_time_seconds_sum",),
    "prefills": ("vllm:request_prefill_time_seconds_count",),
    "preemptions": ("vllm:num_preemptions_total",),
}


def spread_length(mean: int, number: int) -> int:
    """The length of the response of this number: evenly spread about the mean, so that requests don't begin and end together.

    Prompts of a wave that begin together are prefilled beside no decoding sample, which is not what a running job does.
    """
    return max(1, round(mean * (1.0 - SPREAD + 2.0 * SPREAD * (number * _GOLDEN % 1.0))))


def engine_counters(samples: list[Sample]) -> EngineCounters | None:
    """The counters of an exposition, None if one of them is not there."""
    found = {field: total(samples, *names) for field, names in _NAMES.items()}
    known = {field: value for field, value in found.items() if value is not None}
    return EngineCounters(**known) if len(known) == len(found) else None


def grown(before: EngineCounters, after: EngineCounters) -> EngineCounters | None:
    """What counters grew by, None if the server began anew in between."""
    by = {f.name: getattr(after, f.name) - getattr(before, f.name) for f in fields(EngineCounters)}
    return None if min(by.values()) < 0.0 else EngineCounters(**by)


def mean_step(
    source: str, window: EngineCounters, window_s: float, engines: int, concurrency: int, prompt: int, response: float
) -> MeasuredStep | None:
    """The mean step of a window in which ``concurrency`` requests were kept going, each new one with a prompt of its own.

    ``window_s``: how long it was by our own clock, from when the first requests were sent. ``response``: mean of their lengths, which are
    spread as ``spread_length`` has it. None if there is too little in it.
    """
    if window.gaps < FEWEST_GAPS or not window.gap_s > 0.0:
        return None
    # A server with several processes counts an iteration in each of them, and one that falls behind leaves its engine idle: the first
    # makes a mean over iterations too small, the second one over time.
    by_iterations = window.generated / max(window.iterations, 1.0)
    by_time = window.gap_s / window_s / engines if window_s > 0.0 else 0.0
    running = max(1.0, min(max(by_iterations, by_time), concurrency / engines))
    iterations = window.generated / running
    # Nobody decoded beside the first prompts, and a sample does not decode beside its own.
    beside = max(0.0, window.prompted / prompt - concurrency) * (running - 1.0) / running
    lived = min(window.generated / concurrency, response * (1.0 + SPREAD**2 / 3.0))
    return MeasuredStep(
        source=source,
        kind=RowKind.SERVED,
        running=running,
        prompt_tokens=float(prompt),
        response_tokens=response,
        context_tokens=prompt + lived / 2.0,
        prefills_per_step=beside / iterations,
        measured_s=window.gap_s / window.gaps,
    )


def prefill_s(window: EngineCounters, prompt: int) -> float | None:
    """Seconds of a step that prefilled one prompt alone, of a window with one request at a time; None where it is not told."""
    if window.prefills < 1.0 or not window.prefill_s > 0.0 or prompt > _WHOLE_PROMPT:
        return None
    seconds = window.prefill_s / window.prefills
    return seconds if math.isfinite(seconds) else None
