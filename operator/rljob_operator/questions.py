"""The PromQL about one job: two questions for all that is read of it, three where a window is long enough.

Raw samples come by range selectors, one for all names; only those tell the age of a sample. Everything that Prometheus computes over the
window (increases, rates, means) comes in one instant question: an expression for each reading, each marked with the reading's name
in the label ``rljob_reading``, joined by ``or``. So a look at a job costs Prometheus and the network a few requests, however much is
read, and all of it speaks of one instant.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rljob_operator.answers import JOB_NAMES
from rljob_operator.engines import VLLM, EngineMetrics
from rljob_operator.prometheus import Series

READING = "rljob_reading"
"""Label that names the reading which a series of the joined question belongs to."""

ENVIRONMENT = "rljob_environment_seconds"


@dataclass(frozen=True)
class Questions:
    """What is asked about one job."""

    raw: Mapping[str, str]
    """Range selectors by a short name; their answers hold raw samples."""
    computed: Mapping[str, str]
    """Instant expressions by the name of the reading; asked together."""

    @property
    def texts(self) -> tuple[str, ...]:
        """The PromQL to send: each raw one, then all computed ones as one."""
        marked = (f'label_replace({text}, "{READING}", "{key}", "", "")' for key, text in self.computed.items())
        return (*self.raw.values(), " or ".join(marked))

    def sorted_out(self, answers: list[list[Series]]) -> dict[str, list[Series]]:
        """The answers to ``texts`` by the short names; a reading that nothing was said about has no series."""
        rows: dict[str, list[Series]] = {key: [] for key in self.computed}
        rows.update(zip(self.raw, answers[:-1], strict=True))
        for series in answers[-1]:
            rows.setdefault(series.labels.get(READING, ""), []).append(series)
        return rows


def questions(
    selector: str, horizon_s: float, window_s: float, *, environment: bool, engine: EngineMetrics = VLLM.metrics
) -> Questions:
    """What is asked about the job whose series carry the labels of ``selector``.

    ``horizon_s``: how far back raw samples are looked for; ``window_s``: the window of what is computed, 0 for only what is now;
    ``environment``: whether the job's samples have environments to ask about; ``engine``: what the samplers' metrics are called.
    """
    names = (*JOB_NAMES, *engine.raw_names, *((f"{ENVIRONMENT}_count",) if environment else ()))
    raw = {"now": f'{{__name__=~"{"|".join(names)}",{selector}}}[{_ms(horizon_s)}]'}
    computed = {"kv_tokens": _kv_tokens(selector, engine)}
    if window_s > 0:
        raw["versions"] = f"rljob_policy_version{{{selector}}}[{_ms(window_s)}]"
        computed |= _windowed(selector, window_s, environment=environment, engine=engine)
    return Questions(raw, computed)


def _kv_tokens(selector: str, engine: EngineMetrics) -> str:
    if engine.kv_in_labels:
        return f"count by (pod, engine, kv_cache_size_tokens, num_gpu_blocks, block_size) ({engine.kv_tokens}{{{selector}}})"
    return f"sum by (pod) (max by ({', '.join(('pod', *engine.parts))}) ({engine.kv_tokens}{{{selector}}}))"


def _windowed(selector: str, window_s: float, *, environment: bool, engine: EngineMetrics) -> dict[str, str]:
    w, half = f"[{_ms(window_s)}]", _ms(window_s / 2)
    # An engine that breaks its totals down by priority has the totals beside, without one.
    whole = "" if engine is VLLM.metrics else 'priority=""'

    def total(name: str, window: str = w) -> str:
        # A pod that is scraped twice counts once.
        return f"sum(max by (pod) (increase({name}{{{selector}}}{window})))"

    def buckets(name: str) -> str:
        return f"sum by (le) (max by (pod, le) (increase({name}_bucket{{{selector}}}{w})))"

    def per_pod(function: str, names: tuple[str, ...], merge: str = "sum") -> str:
        # `or` takes the older name only for pods that lack the newer one: a fleet in mid-upgrade has both. Scraped twice, or told by
        # each rank of an engine, a part counts once.
        parts = ", ".join(("pod", *engine.parts))
        return " or ".join(f"{merge} by (pod) (max by ({parts}) ({function}({_selected(name)}{w})))" for name in names)

    def _selected(name: str) -> str:
        bare, _, matchers = name.partition("{")
        wished = ",".join(part for part in (matchers.rstrip("}"), selector, whole) if part)
        return f"{bare}{{{wished}}}"

    found: dict[str, str] = {}
    histograms = {
        "staleness": "rljob_sample_staleness_versions",
        "train_step": "rljob_train_step_seconds",
        "weight_sync": "rljob_weight_sync_seconds",
        "response": "rljob_response_tokens",
    }
    if environment:
        histograms["environment"] = ENVIRONMENT
    for key, name in histograms.items():
        found[f"{key}_sum"], found[f"{key}_count"] = total(f"{name}_sum"), total(f"{name}_count")
    for key, window in (("late", f"[{half}]"), ("early", f"[{half}] offset {half}")):
        found[f"{key}_sum"] = total("rljob_response_tokens_sum", window)
        found[f"{key}_count"] = total("rljob_response_tokens_count", window)
    if not environment:
        # With an environment a request is a turn of a sample, and its length nobody's business.
        found |= _of_requests(selector, window_s, engine)
    return found | {
        "staleness_bucket": buckets("rljob_sample_staleness_versions"),
        "staleness_max": f"max(max_over_time(rljob_sample_staleness_max_versions{{{selector}}}{w}))",
        "wait": total("rljob_trainer_wait_seconds_total"),
        "samples": total("rljob_trained_samples_total"),
        "tokens": total("rljob_trained_tokens_total"),
        "response_bucket": buckets("rljob_response_tokens"),
        "running_mean": per_pod("avg_over_time", (engine.running,)),
        "kv_usage_mean": per_pod("avg_over_time", engine.kv_usage, "avg"),
        "latency_sum": per_pod("rate", tuple(f"{name}_sum" for name in engine.token_latency)),
        "latency_count": per_pod("rate", tuple(f"{name}_count" for name in engine.token_latency)),
        "generated": per_pod("rate", engine.generated),
    }


def _of_requests(selector: str, window_s: float, engine: EngineMetrics) -> dict[str, str]:
    """The lengths of requests that samplers finished, which stand in where a job has no distribution of its own."""
    w, half, name = f"[{_ms(window_s)}]", _ms(window_s / 2), engine.request_tokens
    parts = ", ".join(("pod", *engine.parts))

    def total(series: str, window: str) -> str:
        bare, _, matchers = series.partition("{")
        wished = ",".join(part for part in (matchers.rstrip("}"), selector) if part)
        return f"sum(max by ({parts}) (increase({bare}{{{wished}}}{window})))"

    found = {
        "request_bucket": f"sum by (le) (max by (le, {parts}) (increase({name}_bucket{{{selector}}}{w})))",
    }
    windows = {"request": w, "request_late": f"[{half}]", "request_early": f"[{half}] offset {half}"}
    for key, window in windows.items():
        found[f"{key}_sum"], found[f"{key}_count"] = total(f"{name}_sum", window), total(f"{name}_count", window)
    if engine.aborted is not None:
        found["request_aborted"] = total(engine.aborted, w)
    return found


def _ms(seconds: float) -> str:
    return f"{max(1, int(seconds * 1000))}ms"
