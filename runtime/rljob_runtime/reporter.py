"""The metrics that a job reports to the operator.

Only what the operator cannot see from outside is here: policy version, queue, staleness, time spent. The names are a
contract; the operator reads them from Prometheus, filtered by the job's uid, which the scrape adds.

Three rules follow from how they are read:

- *Unknown is absent, not zero.* A gauge appears with its first value. A trainer that has just started says nothing about
  its policy version, instead of claiming version 0 of a run that is at step 400.
- *A restart keeps the version's meaning.* The policy version is what the trainer says, never a count kept here. After
  loading a checkpoint, call ``resumed(version)`` with the version that was loaded. Counters start again from zero, as
  Prometheus expects of them.
- *One voice.* Rank 0 reports for the whole trainer. Every other trainer process makes a ``Reporter(main=False)``, calls
  the same methods and exports only the layout generation, of which the operator takes the minimum.
"""

from __future__ import annotations

from collections.abc import Iterable
from threading import Lock, Thread
from wsgiref.simple_server import WSGIServer

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, start_http_server

RESPONSE_TOKENS_BUCKETS: tuple[float, ...] = tuple(
    sorted({*(m * 10**e for e in range(5) for m in (1, 2, 5)), 100_000, 4096, 8192, 16384, 32768, 65536, 131072})
)
"""Upper edges in tokens: 1-2-5 up to 100 000, and the caps that responses are commonly given."""

STALENESS_BUCKETS: tuple[float, ...] = (0, 1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 16, 24, 32, 48, 64)
"""Upper edges in policy versions; exact where limits usually are."""

SECONDS_BUCKETS: tuple[float, ...] = (
    0.05, 0.1, 0.2, 0.5, 1, 2, 3, 5, 7.5, 10, 15, 20, 30, 45, 60, 90, 120, 180, 300, 600, 1200, 1800, 3600,
)  # fmt: skip
"""Upper edges in seconds, for anything between a weight sync inside a node and the step of a very large model."""


class _LateGauge:
    """A gauge that is registered with its first value, so that unknown is absent."""

    def __init__(self, name: str, help_text: str, registry: CollectorRegistry) -> None:
        self._name, self._help, self._registry = name, help_text, registry
        self._gauge: Gauge | None = None
        self._lock = Lock()

    def set(self, value: float) -> None:
        with self._lock:
            if self._gauge is None:
                self._gauge = Gauge(self._name, self._help, registry=self._registry)
            self._gauge.set(value)


class Reporter:
    """Registers and feeds the metrics of one trainer process.

    Thread-safe: methods may be called from the trainer's loop and the rollout's at once.
    """

    def __init__(self, registry: CollectorRegistry | None = None, *, main: bool = True) -> None:
        """Report into ``registry`` (a new one if None); ``main`` is False on all ranks but 0."""
        self.registry = registry if registry is not None else CollectorRegistry()
        """Where the metrics are registered."""
        self.main = main
        """Whether this process reports for the whole trainer."""
        self._generation = _LateGauge(
            "rljob_layout_generation", "Layout generation that this trainer process acknowledged", self.registry
        )
        if main:
            self._register(self.registry)

    def _register(self, r: CollectorRegistry) -> None:
        self._version = _LateGauge("rljob_policy_version", "Policy version published last", r)
        self._queue = _LateGauge("rljob_queue_depth_groups", "Complete groups that wait for the trainer", r)
        self._in_flight = _LateGauge("rljob_inflight_samples", "Samples submitted and not finished", r)
        self._staleness_max = _LateGauge(
            "rljob_sample_staleness_max_versions", "Largest staleness in the training step started last", r
        )
        self._staleness = Histogram(
            "rljob_sample_staleness_versions",
            "Staleness of trained samples: version at the start of the step less version of the first token",
            buckets=STALENESS_BUCKETS,
            registry=r,
        )
        self._environment = Histogram(
            "rljob_environment_seconds",
            "Time that a sample spent in its environment, over all of its turns",
            buckets=SECONDS_BUCKETS,
            registry=r,
        )
        self._train_step = Histogram(
            "rljob_train_step_seconds",
            "Time of a training step without waiting for samples and without weight sync",
            buckets=SECONDS_BUCKETS,
            registry=r,
        )
        self._weight_sync = Histogram(
            "rljob_weight_sync_seconds",
            "Time that samplers pause to take a policy version",
            buckets=SECONDS_BUCKETS,
            registry=r,
        )
        self._response = Histogram(
            "rljob_response_tokens", "Length of finished responses", buckets=RESPONSE_TOKENS_BUCKETS, registry=r
        )
        self._wait = Counter("rljob_trainer_wait_seconds_total", "Time that the trainer waited for samples", registry=r)
        self._samples = Counter("rljob_trained_samples_total", "Samples trained on", registry=r)
        self._tokens = Counter("rljob_trained_tokens_total", "Response tokens trained on", registry=r)
        self._dropped = Counter(
            "rljob_dropped_groups_total",
            "Complete groups discarded for their staleness or for want of room",
            registry=r,
        )

    def resumed(self, version: int) -> None:
        """Say which policy version the trainer starts from: 0 for a new run, else that of the loaded checkpoint."""
        if self.main:
            self._version.set(version)

    def step_started(self, staleness_per_sample: Iterable[float]) -> None:
        """A training step starts on these samples; for each, its staleness in policy versions."""
        if not self.main:
            return
        worst: float | None = None
        for staleness in staleness_per_sample:
            self._staleness.observe(staleness)
            worst = staleness if worst is None else max(worst, staleness)
        if worst is not None:
            self._staleness_max.set(worst)

    def step_finished(self, version: int, samples: int, tokens: int, seconds: float) -> None:
        """A training step ended and published ``version``.

        ``samples`` and ``tokens`` (response tokens, without prompts) are what it trained on, ``seconds`` how long it
        computed: without the wait for samples before it and the weight sync after it.
        """
        if not self.main:
            return
        self._samples.inc(samples)
        self._tokens.inc(tokens)
        self._train_step.observe(seconds)
        # Last, so that nobody sees the version before the counters that go with it.
        self._version.set(version)

    def waited(self, seconds: float) -> None:
        """The trainer waited ``seconds`` for samples."""
        if self.main:
            self._wait.inc(seconds)

    def synced(self, seconds: float) -> None:
        """Samplers paused ``seconds`` to take a policy version."""
        if self.main:
            self._weight_sync.observe(seconds)

    def queue(self, groups: int) -> None:
        """The number of complete ``groups`` that wait for the trainer now."""
        if self.main:
            self._queue.set(groups)

    def in_flight(self, samples: int) -> None:
        """The number of ``samples`` that are submitted and not finished now."""
        if self.main:
            self._in_flight.set(samples)

    def response(self, tokens: int) -> None:
        """A response finished with ``tokens`` tokens, whether it will be trained on or not."""
        if self.main:
            self._response.observe(tokens)

    def dropped(self, groups: int) -> None:
        """``groups`` complete groups were discarded."""
        if self.main:
            self._dropped.inc(groups)

    def environment(self, seconds: float) -> None:
        """A sample finished that spent ``seconds`` in its environment over all turns."""
        if self.main:
            self._environment.observe(seconds)

    def acknowledged(self, generation: int) -> None:
        """Say that this process follows the layout of ``generation`` from now on: at a step boundary, on every rank."""
        self._generation.set(generation)

    def serve(self, port: int, address: str = "0.0.0.0") -> tuple[WSGIServer, Thread]:
        """Serve the metrics at ``/metrics`` in a daemon thread; returns its server and thread, for ``shutdown``.

        Port 0 takes a free one (``server.server_port``). Raises OSError if the port is taken.
        """
        return start_http_server(port, addr=address, registry=self.registry)
