"""The inference engines that samplers run, as far as the operator has to know them. Pure.

One row an engine: how its server is started and which of its arguments follow the plan, where it answers probes, and which of its metrics
hold what decisions need. Everything else in the operator speaks of running samples, KV room and seconds a token; only here do they have
names. Another engine is another row, and no branch elsewhere.

Behind the rows, vLLM 0.32 and 0.33 and SGLang 0.5.23: units and kinds that differ are said at the field.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rljob_planner.api.spec import EngineName


@dataclass(frozen=True)
class Flag:
    """An argument of a server, under all names that it goes by; the first is the one that is written."""

    names: tuple[str, ...]
    """With their dashes."""
    value: str | None = None
    """What the operator writes; None for one that takes no value, or whose value is worked out."""

    @property
    def word(self) -> str:
        """The argument as one word of a command line."""
        return self.names[0] if self.value is None else f"{self.names[0]}={self.value}"


@dataclass(frozen=True)
class EngineMetrics:
    """Which series hold what is read of an engine. Where a metric has had several names, the newest stands first."""

    running: str
    """Gauge: running samples."""
    waiting: str
    """Gauge: samples that wait for a slot."""
    kv_usage: tuple[str, ...]
    """Gauge: share of the KV room in use, 0..1."""
    token_latency: tuple[str, ...]
    """Histogram whose sum over count is the mean seconds between two tokens of a sample."""
    generated: tuple[str, ...]
    """Counters: tokens generated. With a matcher in braces where only some series of a name count."""
    request_tokens: str
    """Histogram: tokens generated for a request, observed when it ends."""
    aborted: str | None
    """Counter: requests in that histogram that were cut off; None for an engine that does not count them one by one."""
    kv_tokens: str
    """Gauge: the KV room in tokens as its value; or, where ``kv_in_labels``, 1 with the room in its labels."""
    kv_in_labels: bool
    """Whether the KV room stands in the labels ``kv_cache_size_tokens``, ``num_gpu_blocks`` and ``block_size``."""
    parts: tuple[str, ...]
    """Labels that tell the engines of a pod (and the parts of a counter) apart, which add up; any others repeat the same number."""
    prefix: str
    """What the names of all its series begin with."""

    @property
    def raw_names(self) -> tuple[str, ...]:
        """The names to ask raw samples of: gauges for their value, counters for their freshness."""
        latencies = (f"{name}_count" for name in self.token_latency)
        generated = (name.partition("{")[0] for name in self.generated)
        return (self.running, self.waiting, *self.kv_usage, *latencies, *generated, f"{self.request_tokens}_count")


@dataclass(frozen=True)
class Engine:
    """One inference engine."""

    title: str
    """Its name for people."""
    port: int
    """Where its server listens unless it is told otherwise."""
    health: str
    """The path that answers 200 once the model is loaded and served, and an error when the engine is dead."""
    metrics_path: str
    """The path of its metrics."""
    words: tuple[tuple[str, ...], ...]
    """Words that start its server, next to each other on a command line; a program may stand there with its path."""
    images: tuple[str, ...]
    """Names of images, without registry and tag, whose entry point is the server; what follows a dash in a name is a variant. The tags of those without one are the engine's versions."""
    shutdown_timeout: Flag | None
    """The argument by which a server that is told to end finishes what runs, in seconds; None for one that does so by itself."""
    shutdown_since: tuple[int, int]
    """The version that has it."""
    max_running: Flag
    """The argument for the most running samples."""
    batch_tokens: tuple[str, ...]
    """The argument for the most tokens of an iteration, under all its names, where a server does not start with fewer than samples may run."""
    tensor_parallel: Flag
    """The argument for the tensor-parallel width."""
    widths: tuple[str, ...]
    """All arguments that say how many GPUs it takes: whoever writes one of them has decided about its width."""
    needed: tuple[Flag, ...]
    """Further arguments without which a server can't be reached or measured."""
    drainable: Flag | None
    """What lets a preStop hook count requests while the server is paused, where its gauges stand still; None if they don't."""
    lengths: Flag | None
    """What lets older versions export the tokens of requests; None where all do."""
    environment: Mapping[str, str]
    """Variables that its containers get unless they set them."""
    metrics: EngineMetrics


VLLM = Engine(
    title="vLLM",
    port=8000,
    # Its server listens only after the model is loaded, and answers 503 here when the engine has died; /v1/models is a list that a
    # dead engine's server still gives.
    health="/health",
    metrics_path="/metrics",
    words=(
        ("vllm", "serve"),
        ("-m", "vllm.entrypoints.openai.api_server"),
        ("-m", "vllm.entrypoints.cli.main", "serve"),
    ),
    images=("vllm-openai",),
    shutdown_timeout=Flag(("--shutdown-timeout",)),
    shutdown_since=(0, 18),
    max_running=Flag(("--max-num-seqs",), "$(RLJOB_MAX_RUNNING)"),
    batch_tokens=("--max-num-batched-tokens",),
    tensor_parallel=Flag(("--tensor-parallel-size", "-tp"), "$(RLJOB_TENSOR_PARALLEL)"),
    widths=("--tensor-parallel-size", "-tp", "--pipeline-parallel-size", "-pp", "--data-parallel-size", "-dp"),
    needed=(),
    drainable=Flag(("--enable-server-load-tracking",)),
    lengths=None,
    environment={},
    metrics=EngineMetrics(
        running="vllm:num_requests_running",
        waiting="vllm:num_requests_waiting",
        # vLLM hides a renamed metric after one minor version and removes it in the next.
        kv_usage=("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"),
        token_latency=("vllm:inter_token_latency_seconds", "vllm:time_per_output_token_seconds"),
        generated=("vllm:generation_tokens_total",),
        request_tokens="vllm:request_generation_tokens",
        # A client that goes away is in neither of the two: what is cut off on its behalf is forgotten before it is counted.
        aborted='vllm:request_success_total{finished_reason="abort"}',
        kv_tokens="vllm:cache_config_info",
        kv_in_labels=True,
        parts=("engine",),
        prefix="vllm:",
    ),
)

SGLANG = Engine(
    title="SGLang",
    port=30000,
    health="/health",
    metrics_path="/metrics",
    words=(("-m", "sglang.launch_server"), ("sglang", "serve")),
    images=(),
    # Told to end, it lets what runs finish, however long that takes, and says 503 on /health meanwhile.
    shutdown_timeout=None,
    shutdown_since=(0, 0),
    max_running=Flag(("--max-running-requests",), "$(RLJOB_MAX_RUNNING)"),
    batch_tokens=(),
    tensor_parallel=Flag(("--tensor-parallel-size", "--tp-size", "--tp"), "$(RLJOB_TENSOR_PARALLEL)"),
    widths=(
        "--tensor-parallel-size",
        "--tp-size",
        "--tp",
        "--pipeline-parallel-size",
        "--pp-size",
        "--data-parallel-size",
        "--dp-size",
        "--dp",
    ),
    # It listens on 127.0.0.1 by itself, where nobody outside of the pod reaches it.
    needed=(Flag(("--host",), "0.0.0.0"), Flag(("--enable-metrics",))),
    drainable=None,
    lengths=Flag(("--collect-tokens-histogram",)),
    # By default /health generates a token, which a server that is paused for new weights can't: its pod would turn unready in each update.
    environment={"SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION": "false"},
    metrics=EngineMetrics(
        running="sglang:num_running_reqs",
        waiting="sglang:num_queue_reqs",
        kv_usage=("sglang:token_usage",),
        token_latency=("sglang:inter_token_latency_seconds",),
        # The second one counts a sample's tokens when the sample ends, in lumps; the first goes along, but older versions lack it.
        generated=('sglang:realtime_tokens_total{mode="decode"}', "sglang:generation_tokens_total"),
        request_tokens="sglang:generation_tokens_histogram",
        # Its counter of aborted requests counts a call that aborts all of them as one.
        aborted=None,
        kv_tokens="sglang:max_total_num_tokens",
        kv_in_labels=False,
        parts=("dp_rank", "is_streaming"),
        prefix="sglang:",
    ),
)

ENGINES: Mapping[EngineName, Engine] = {EngineName.VLLM: VLLM, EngineName.SGLANG: SGLANG}
"""The engines by the name in ``spec.sampler.engine``."""
