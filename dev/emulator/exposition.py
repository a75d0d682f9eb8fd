"""What a sampler pod shows to Prometheus: the ``vllm:*`` metrics of vLLM 0.32, in its names, labels and buckets.

``tests/e2e/test_contract_metrics.py`` compares it with a real server. One thing is known to differ: a real one's gauges stand still while it is paused
for new weights, here they go on; a pause takes a second or so.

Written as text straight from the pod's counters: sixty pods are scraped every second, and a registry for each would be a second
copy of the state.
"""

from __future__ import annotations

from collections.abc import Mapping

from dev.emulator.fleet import Histogram, SamplerPod

BLOCK_SIZE = 16
"""Tokens of a KV block, vLLM's default on GPUs."""


class _Page:
    def __init__(self, labels: Mapping[str, str]) -> None:
        self._labels = labels
        self._lines: list[str] = []

    def head(self, name: str, kind: str, text: str) -> None:
        self._lines += [f"# HELP {name} {text}", f"# TYPE {name} {kind}"]

    def sample(self, name: str, value: float, *, without: str = "", **extra: str) -> None:
        labels = {k: v for k, v in self._labels.items() if k != without} | extra
        shown = ",".join(f'{k}="{v}"' for k, v in sorted(labels.items()))
        self._lines.append(f"{name}{{{shown}}} {float(value)}")

    def one(self, name: str, kind: str, text: str, value: float) -> None:
        self.head(name, kind, text)
        self.sample(name, value)

    def histogram(self, name: str, text: str, histogram: Histogram) -> None:
        self.head(name, "histogram", text)
        seen = 0.0
        for edge, count in zip((*histogram.edges, None), histogram.counts, strict=True):
            seen += float(count)
            self.sample(f"{name}_bucket", seen, le="+Inf" if edge is None else str(float(edge)))
        self.sample(f"{name}_count", seen)
        self.sample(f"{name}_sum", histogram.total)

    def text(self) -> str:
        return "\n".join([*self._lines, ""])


def sampler_page(pod: SamplerPod, waiting: int, model_name: str) -> str:
    """The metrics of one sampler pod, with ``waiting`` of the job's waiting samples at its door."""
    page = _Page({"engine": "0", "model_name": model_name})
    page.one("vllm:num_requests_running", "gauge", "Number of requests in model execution batches.", pod.running)
    page.one("vllm:num_requests_waiting", "gauge", "Number of requests waiting to be processed.", waiting)
    page.head("vllm:num_requests_waiting_by_reason", "gauge", "Number of waiting requests by reason.")
    page.sample("vllm:num_requests_waiting_by_reason", waiting, reason="capacity")
    page.sample("vllm:num_requests_waiting_by_reason", 0, reason="deferred")
    page.one("vllm:kv_cache_usage_perc", "gauge", "KV-cache usage. 1 means 100 percent usage.", pod.kv_usage)
    page.one(
        "vllm:num_preemptions_total", "counter", "Cumulative number of preemption from the engine.", pod.preemptions
    )
    page.one("vllm:prompt_tokens_total", "counter", "Number of prefill tokens processed.", pod.prompt_tokens)
    page.one(
        "vllm:generation_tokens_total", "counter", "Number of generation tokens processed.", int(pod.generation_tokens)
    )
    page.head("vllm:request_success_total", "counter", "Count of successfully processed requests.")
    for reason in ("stop", "length", "abort", "error", "repetition"):
        page.sample("vllm:request_success_total", pod.finished if reason == "stop" else 0, finished_reason=reason)
    page.histogram("vllm:request_generation_tokens", "Number of generation tokens processed.", pod.lengths)
    page.histogram("vllm:time_to_first_token_seconds", "Histogram of time to first token in seconds.", pod.ttft)
    page.histogram("vllm:inter_token_latency_seconds", "Histogram of inter-token latency in seconds.", pod.latency)
    page.head("vllm:cache_config_info", "gauge", "Information of the LLMEngine CacheConfig")
    page.sample(
        "vllm:cache_config_info",
        1,
        without="model_name",
        block_size=str(BLOCK_SIZE),
        cache_dtype="auto",
        enable_prefix_caching="True",
        gpu_memory_utilization="0.92",
        kv_cache_size_tokens=str(pod.kv_tokens),
        num_gpu_blocks=str(pod.kv_tokens // BLOCK_SIZE),
    )
    return page.text()


def shares(waiting: int, pods: int) -> list[int]:
    """Deal waiting samples out evenly: a framework submits all that are in flight, so they wait at the engines."""
    return [waiting // pods + (i < waiting % pods) for i in range(pods)]
