"""docs/metrics.md: every metric of the operator and of a job's own processes, read from the registries that export them.

Names, types, labels, buckets and texts are what ``/metrics`` shows; only units and the meaning of label values are said here, and a metric
whose unit nobody has said can't be written down. What is read of vLLM is found in the source of the modules that read it.
"""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from prometheus_client import CollectorRegistry
from prometheus_client.metrics import MetricWrapperBase

from dev.docs.example import ROOT
from dev.docs.page import page, require
from dev.rules import CHART, RECORDING, rule_groups
from rljob_operator.metrics import JOB, OperatorMetrics
from rljob_runtime import Reporter

OPERATOR = ROOT / "operator" / "rljob_operator"

UNITS = {
    "_timestamp_seconds": "s since the epoch",
    "_seconds": "s",
    "_gpus": "GPUs",
    "_tokens": "tokens",
    "_samples": "samples",
    "_groups": "groups",
    "_versions": "policy versions",
    "_replicas": "replicas",
    "_ratio": "fraction",
    "_bytes": "bytes",
    "_jobs": "RLJobs",
    "_info": "1",
    "_timeouts": "drains",
    "_errors": "passes",
    "_violations": "times",
    "_requests": "requests",
    "_takeovers": "times",
    "_decision": "decisions",
    "_moves": "moves",
    "_fds": "files",
}
"""Units by the end of a name, the first that fits; ``_total`` of a counter is left off before."""

OTHER_UNITS = {
    "process_start_time_seconds": "s since the epoch",
    "rljob_operator_calibration_factor": "measured / predicted speed",
    "rljob_operator_calibration_pegged": "0 or 1",
    "rljob_operator_condition": "1, 0 or -1",
    "rljob_operator_decision_code": "0 or 1",
    "rljob_operator_jobs": "RLJobs",
    "rljob_operator_leader": "0 or 1",
    "rljob_operator_metrics_available": "0 or 1",
    "rljob_operator_move_phase": "0 or 1",
    "rljob_operator_phase": "1",
    "rljob_operator_policy_version": "policy version",
    "rljob_operator_sandboxes": "pods; `busy`: environments",
    "rljob_operator_steps": "steps",
    "rljob_operator_watch_lost": "0 or 1",
    "rljob_policy_version": "policy version",
    "rljob_layout_generation": "generation",
}
"""Units of metrics whose names do not say them."""

VLLM = {
    "vllm:cache_config_info": (
        "gauge",
        "1",
        "KV room, from the labels `kv_cache_size_tokens`, or `num_gpu_blocks` × `block_size`",
    ),
    "vllm:engine_sleep_state": ("gauge", "0 or 1", "Engines that sleep, so that a sampler is not taken for a slow one"),
    "vllm:generation_tokens": ("counter", "tokens", "Tokens generated: each sampler's speed"),
    "vllm:gpu_cache_usage_perc": ("gauge", "fraction", "What older versions call `vllm:kv_cache_usage_perc`"),
    "vllm:inter_token_latency_seconds": (
        "histogram",
        "s",
        "Time between two tokens of a sample: the time of a decode step",
    ),
    "vllm:iteration_tokens_total": ("histogram", "tokens", "Its count tells the iterations of an engine"),
    "vllm:kv_cache_usage_perc": ("gauge", "fraction", "Share of the KV room in use, 0 to 1 in spite of its name"),
    "vllm:num_preemptions": ("counter", "samples", "Samples that were put back for want of KV room"),
    "vllm:num_requests_running": ("gauge", "samples", "Samples that run on a sampler"),
    "vllm:num_requests_waiting": ("gauge", "samples", "Samples that wait at its door"),
    "vllm:prompt_tokens": ("counter", "tokens", "Tokens of prompts that were computed"),
    "vllm:request_decode_time_seconds": ("histogram", "s", "Time that finished requests spent decoding"),
    "vllm:request_generation_tokens": (
        "histogram",
        "tokens",
        "Lengths of responses, where the job exports none of its own, or a mean alone; see [RL frameworks](frameworks.md)",
    ),
    "vllm:request_inference_time_seconds": ("histogram", "s", "Time that finished requests spent running"),
    "vllm:request_prefill_time_seconds": ("histogram", "s", "Time that finished requests spent on their prompts"),
    "vllm:request_success": (
        "counter",
        "requests",
        'With `finished_reason="abort"`, those that were cut off: beside a job that reports no mean length, their lengths are not believed then',
    ),
    "vllm:time_per_output_token_seconds": (
        "histogram",
        "s",
        "What older versions call `vllm:inter_token_latency_seconds`",
    ),
}
"""Type, unit and use of what is read of vLLM, without ``_total`` and the suffixes of histograms."""

SGLANG = {
    "sglang:generation_tokens_histogram": (
        "histogram",
        "tokens",
        "Lengths of responses, where the job exports a mean alone; older versions need `--collect-tokens-histogram`",
    ),
    "sglang:generation_tokens": (
        "counter",
        "tokens",
        "The same for versions without `sglang:realtime_tokens_total`; in lumps, as samples end",
    ),
    "sglang:inter_token_latency_seconds": (
        "histogram",
        "s",
        "Time between two tokens of a sample: the time of a decode step",
    ),
    "sglang:max_total_num_tokens": ("gauge", "tokens", "KV room"),
    "sglang:num_queue_reqs": ("gauge", "samples", "Samples that wait at a sampler's door"),
    "sglang:num_running_reqs": ("gauge", "samples", "Samples that run on a sampler"),
    "sglang:realtime_tokens": ("counter", "tokens", 'Tokens generated, with `mode="decode"`: each sampler\'s speed'),
    "sglang:token_usage": ("gauge", "fraction", "Share of the KV room in use, 0 to 1"),
}
"""The same for SGLang, which is read for decisions alone."""

READERS = (
    ("decisions", ("engines.py", "exposition.py")),
    ("`rljob diagnose`", ("evidence.py", "recordings.py")),
    ("`rljob calibrate --url`", ("profile.py", "engine_counters.py")),
)
"""Who reads metrics of vLLM, and in which modules."""

_SUFFIX = re.compile(r"_(total|bucket|count|sum)$")


@dataclass(frozen=True)
class Metric:
    """A metric as it is registered."""

    name: str
    """As PromQL knows it; of a histogram without its suffixes."""
    kind: str
    """counter, gauge or histogram."""
    labels: tuple[str, ...]
    """Its own labels."""
    text: str
    """Its help text."""
    edges: tuple[float, ...] = ()
    """Upper edges of a histogram's buckets."""

    @property
    def unit(self) -> str:
        """Its unit, in words for people."""
        base = _SUFFIX.sub("", self.name) if self.kind == "counter" else self.name
        found = OTHER_UNITS.get(base) or next((unit for end, unit in UNITS.items() if base.endswith(end)), None)
        require(found is not None, f"every metric has a unit: say that of {self.name} in {Path(__file__).name}")
        return found or ""


def metrics_of(registry: CollectorRegistry) -> list[Metric]:
    """What is registered, sorted by name.

    The registry has no public way to ask for a metric before it has a value, nor for the names of labels.
    """
    found = {}
    for collector in registry._collector_to_names:
        if isinstance(collector, MetricWrapperBase):
            name = collector._name + ("_total" if collector._type == "counter" else "")
            edges = tuple(collector._kwargs.get("buckets", ())) if collector._type == "histogram" else ()
            found[name] = Metric(
                name, str(collector._type), tuple(collector._labelnames), str(collector._documentation), edges
            )
        else:
            for family in collector.collect():
                name = family.name + ("_total" if family.type == "counter" else "")
                limits = (float(sample.labels.get("le", "inf")) for sample in family.samples)
                edges = tuple(edge for edge in limits if math.isfinite(edge))
                found[name] = Metric(name, family.type or "gauge", (), family.documentation.rstrip("."), edges)
    return [found[name] for name in sorted(found)]


def operator_metrics() -> list[Metric]:
    """All metrics of the operator."""
    return metrics_of(OperatorMetrics().registry)


def runtime_metrics() -> list[Metric]:
    """All metrics of a trainer's rank 0; gauges are registered with their first value."""
    reporter = Reporter()
    reporter.resumed(0)
    reporter.acknowledged(0)
    reporter.queue(0)
    reporter.in_flight(0)
    reporter.step_started([0.0])
    return metrics_of(reporter.registry)


def engine_names(engine: str, *modules: str) -> set[str]:
    """The metrics of an engine that modules of the operator name, without suffixes."""
    return {
        _SUFFIX.sub("", constant)
        for module in modules
        for constant in _constants(ast.parse((OPERATOR / module).read_text(encoding="utf-8")))
        for constant in re.findall(rf"{engine}:[a-z_]+", constant)
    }


def _constants(tree: ast.AST) -> Iterator[str]:
    """The strings of a module, but those that stand for themselves: they are prose."""
    prose = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in prose:
            yield node.value


def recording_texts() -> dict[str, str]:
    """What each recording rule holds, by its name: the comment above it."""
    found = {}
    for source in RECORDING:
        lines = (CHART / source).read_text(encoding="utf-8").splitlines()
        for i, line in enumerate(lines):
            if line.strip().startswith("- record:"):
                above = i
                while lines[above - 1].strip().startswith("#"):
                    above -= 1
                found[line.split(":", 1)[1].strip()] = " ".join(each.strip(" #") for each in lines[above:i])
    return found


def text() -> str:
    """The page."""
    operator = operator_metrics()
    of_jobs = [m for m in operator if m.labels[: len(JOB)] == JOB]
    of_process = [m for m in operator if m not in of_jobs]
    return page(
        _beginning(),
        "## The operator, by job",
        "`/metrics` on the port `RLJOB_OPERATOR_METRICS_PORT`, of the replica that leads. Each has the labels `rljob_namespace` and `rljob_name`, "
        "since `namespace` becomes the operator's own when it is scraped. A quantity that is unknown has no series, and neither has a "
        "job that is gone.",
        _table(of_jobs, leave_out=JOB),
        "## The operator itself",
        _table(of_process),
        _buckets(of_process),
        "## A job's trainer",
        "What [rljob-runtime](../runtime/README.md) exports from rank 0 of the trainer; the other ranks export `rljob_layout_generation` alone. "
        "The scrape adds `namespace`, `pod`, `rljob_dev_name`, `rljob_dev_role` and `rljob_dev_uid`. A gauge appears with its first value.",
        _table(runtime_metrics()),
        _buckets(runtime_metrics()),
        "## vLLM, as far as it is read",
        "From samplers, with the labels that the scrape adds. A name that a version lacks is looked for under its older one; all else that vLLM exports "
        "may be dropped by a metric relabeling.",
        _vllm(),
        "## SGLang, as far as it is read",
        "From the samplers of jobs with `sampler.engine: sglang`. The ranks of one engine say the same; the parts that `dp_rank` and `is_streaming` "
        "tell apart add up.",
        _sglang(),
        "## Recording rules",
        "Installed with `rules.recording.enabled=true`. Rules by job have the labels `rljob_namespace` and `rljob_name`, whichever series they are "
        "made from, so that they join; the others have the operator's `namespace`.",
        _recording(),
        "Alerts have a [page with runbooks](alerts.md).",
    )


def _beginning() -> str:
    return (
        "# Metrics\n\n"
        "What is exported, what it means, and what the operator reads. [alerts.md](alerts.md) says what is worth an alert, "
        "[operations.md](operations.md) what conditions and decision codes mean."
    )


def _table(metrics: Iterable[Metric], leave_out: Sequence[str] = ()) -> str:
    rows = (
        (f"`{m.name}`", m.kind, m.unit, ", ".join(f"`{label}`" for label in m.labels if label not in leave_out), m.text)
        for m in metrics
    )
    return _left(("metric", "type", "unit", "labels", "meaning"), rows)


def _buckets(metrics: Iterable[Metric]) -> str:
    by_edges: dict[tuple[float, ...], list[str]] = {}
    for m in metrics:
        if m.edges:
            by_edges.setdefault(m.edges, []).append(f"`{m.name}`")
    lines = [f"- {', '.join(names)}: {', '.join(f'{edge:g}' for edge in edges)}" for edges, names in by_edges.items()]
    return "Upper edges of buckets:\n\n" + "\n".join(lines)


def _vllm() -> str:
    read_by: dict[str, list[str]] = {}
    for reader, modules in READERS:
        for name in engine_names("vllm", *modules):
            read_by.setdefault(name, []).append(reader)
    require(set(read_by) == set(VLLM), f"what is read of vLLM is described: {sorted(set(read_by) ^ set(VLLM))}")
    others = {name for path in OPERATOR.rglob("*.py") for name in engine_names("vllm", str(path.relative_to(OPERATOR)))}
    require(others <= set(VLLM), f"every module that reads vLLM is known here: {sorted(others - set(VLLM))}")
    rows = []
    for name, (kind, unit, use) in sorted(VLLM.items()):
        shown = name + ("_total" if kind == "counter" else "")
        rows.append((f"`{shown}`", kind, unit, use, ", ".join(read_by[name])))
    return _left(("metric", "type", "unit", "use", "read for"), rows)


def _sglang() -> str:
    named = engine_names("sglang", "engines.py")
    require(named == set(SGLANG), f"what is read of SGLang is described: {sorted(named ^ set(SGLANG))}")
    rows = []
    for name, (kind, unit, use) in sorted(SGLANG.items()):
        rows.append((f"`{name}{'_total' if kind == 'counter' else ''}`", kind, unit, use))
    return _left(("metric", "type", "unit", "use"), rows)


def _recording() -> str:
    texts = recording_texts()
    names = [rule["record"] for group in rule_groups(alerts=False) for rule in group["rules"]]
    require(set(names) == set(texts), "every recording rule has a comment above it that says what it holds")
    return _left(("rule", "meaning"), ((f"`{name}`", texts[name]) for name in names))


def _left(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table of words, all columns left."""
    lines = [f"| {' | '.join(header)} |", f"|{'|'.join([':--'] * len(header))}|"]
    lines += ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
    return "\n".join(lines)
