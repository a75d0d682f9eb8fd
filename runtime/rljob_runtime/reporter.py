"""The metrics that a job reports to the operator.

Only what the operator cannot see from outside is here: policy version, queue, staleness, time spent. The names are a
contract; the operator reads them from Prometheus, filtered by the job's uid, which the scrape adds.

Four rules follow from how they are read:

- *Unknown is absent, not zero.* A gauge appears with its first value. A trainer that has just started says nothing about
  its policy version, instead of claiming version 0 of a run that is at step 400. What a framework does not tell is None here.
- *A restart keeps the version's meaning.* The policy version is what the trainer says, never a count kept here. After
  loading a checkpoint, call ``resumed(version)`` with the version that was loaded. Counters start again from zero, as
  Prometheus expects of them.
- *One voice.* Rank 0 reports for the whole trainer. Every other trainer process makes a ``Reporter(main=False)``, calls
  the same methods and exports only the layout generation, of which the operator takes the minimum.
- *Training goes on.* A report that fails (a number that is not one, a full disk, a mistake in a call) is passed over, said once in the
  log, and kept in ``problem``. In tests of a training script, ``strict=True`` raises instead.
"""

from __future__ import annotations

import logging
import math
import os
import weakref
from collections import Counter
from collections.abc import Callable, Iterable
from functools import wraps
from pathlib import Path
from threading import Thread
from typing import Concatenate, ParamSpec, SupportsFloat
from wsgiref.simple_server import WSGIServer

from prometheus_client import CollectorRegistry, start_http_server

from rljob_runtime import metrics
from rljob_runtime.ledger import Definition, Distribution, Ledger
from rljob_runtime.metrics import RESPONSE_TOKENS_BUCKETS as RESPONSE_TOKENS_BUCKETS
from rljob_runtime.metrics import SECONDS_BUCKETS as SECONDS_BUCKETS
from rljob_runtime.metrics import STALENESS_BUCKETS as STALENESS_BUCKETS

_log = logging.getLogger(__name__)

_Arguments = ParamSpec("_Arguments")

MULTIPROCESS_VARIABLE = "PROMETHEUS_MULTIPROC_DIR"
"""Environment variable that names the directory in which the processes of a pod share their numbers."""


def _passed_over(
    method: Callable[Concatenate[Reporter, _Arguments], None],
) -> Callable[Concatenate[Reporter, _Arguments], None]:
    """Let a report fail without its caller."""

    @wraps(method)
    def call(self: Reporter, /, *args: _Arguments.args, **kwargs: _Arguments.kwargs) -> None:
        try:
            method(self, *args, **kwargs)
        except Exception as error:
            self._failed(method.__name__, error)

    return call


class Reporter:
    """Registers and feeds the metrics of one trainer process.

    Thread-safe: methods may be called from the trainer's loop, the rollout's and a signal handler at once. Safe to fork: a forked process
    starts with no numbers, and lets go of the port. Amounts may be anything that ``float`` takes, such as a tensor with one element.
    """

    def __init__(
        self,
        registry: CollectorRegistry | None = None,
        *,
        main: bool = True,
        strict: bool = False,
        sparse: bool = False,
        shared: str | Path | None = None,
    ) -> None:
        """Report into ``registry`` (a new one if None); ``main`` is False on all ranks but 0.

        ``shared`` is the directory in which the processes of a pod share their numbers; None takes it from ``PROMETHEUS_MULTIPROC_DIR``, and
        without that the process stands alone. ``sparse`` shows counters and histograms, too, from their first value on: for a job of which it
        is not known what it reports, since a counter that nobody feeds reads as one that stays at zero. ``strict`` raises what would be passed over: for tests of a training script.
        """
        self.registry = registry if registry is not None else CollectorRegistry()
        """Where this process's metrics are registered."""
        self.main = main
        """Whether this process reports for the whole trainer."""
        self.strict = strict
        """Whether a report that fails raises."""
        self.problem: str | None = None
        """The report that failed last, and why; None as long as all went well."""
        self._said: set[tuple[str, str]] = set()
        self._servers: list[WSGIServer] = []
        self._elsewhere = False
        directory = shared if shared is not None else os.environ.get(MULTIPROCESS_VARIABLE) or None
        self._directory = None if directory is None else Path(directory)
        self._ledger = Ledger(
            gauges=metrics.GAUGES if main else (metrics.GENERATION,),
            counters=metrics.COUNTERS if main else (),
            distributions=metrics.DISTRIBUTIONS if main else (),
            sparse=sparse,
        )
        if self._directory is not None:
            self._share(self._directory)
        self.registry.register(self._ledger)
        _REPORTERS.add(self)

    @property
    def shared(self) -> Path | None:
        """The directory in which the processes of the pod share their numbers; None where this one stands alone."""
        return self._directory

    def _share(self, directory: Path) -> None:
        try:
            # Here, since these are parts of the client that it does not document: without them a single process still reports.
            from rljob_runtime.shared import SharedFiles

            self._ledger.share(SharedFiles(directory))
        except Exception as error:
            self._directory = None
            self._failed("shared", error)

    def _failed(self, where: str, error: Exception) -> None:
        if self.strict:
            raise error
        self.problem = f"{where}: {error}"
        kind = (where, type(error).__name__)
        if kind not in self._said:
            self._said.add(kind)
            _log.warning(
                "passed over what was reported by %s: %s; training goes on, and this is not said again", where, error
            )

    def _amount(self, where: str, what: str, value: SupportsFloat | None) -> float | None:
        """A number that may be reported; None if it is unknown or none."""
        if value is None:
            return None
        try:
            amount = float(value)
            if not math.isfinite(amount) or amount < 0.0:
                raise ValueError(f"{what} must be finite and not negative, not {amount}")
        except Exception as error:
            self._failed(where, error)
            return None
        if self._elsewhere:
            self._elsewhere = False
            _log.warning(
                "process %s was forked from one that serves the metrics, so nobody reads what it reports; set %s to a directory before "
                "the processes start, or report from the one that serves",
                os.getpid(),
                MULTIPROCESS_VARIABLE,
            )
        return amount

    def _set(self, where: str, metric: Definition, value: SupportsFloat | None) -> None:
        amount = self._amount(where, metric.name, value)
        if amount is not None and self.main:
            self._ledger.set(metric.name, amount)

    def _add(self, where: str, metric: Definition, value: SupportsFloat | None) -> None:
        amount = self._amount(where, metric.name, value)
        if amount is not None and self.main:
            self._ledger.add(metric.name, amount)

    def _observe_one(self, where: str, metric: Distribution, value: SupportsFloat | None) -> None:
        amount = self._amount(where, metric.name, value)
        if amount is not None and self.main:
            self._ledger.observe(metric.name, {amount: 1})

    def _observe(self, where: str, metric: Distribution, values: Iterable[SupportsFloat] | None) -> float | None:
        """Add samples to a distribution; returns the largest."""
        if values is None or not self.main:
            return None
        # Arrays and tensors turn into numbers at once; one by one they are fifty times slower.
        whole = getattr(values, "tolist", None)
        found: dict[float, int] = {}
        for value, times in Counter(values if whole is None else whole()).items():
            amount = self._amount(where, metric.name, value)
            if amount is not None:
                found[amount] = found.get(amount, 0) + times
        if found:
            self._ledger.observe(metric.name, found)
        return max(found, default=None)

    def _summarise(
        self, where: str, metric: Distribution, mean: SupportsFloat | None, samples: SupportsFloat | None
    ) -> None:
        amount = self._amount(where, metric.name, mean)
        count = 1.0 if samples is None else self._amount(where, "samples", samples)
        if amount is not None and count and self.main:
            self._ledger.summarise(metric.name, amount, count)

    @_passed_over
    def resumed(self, version: int) -> None:
        """Say which policy version the trainer starts from: 0 for a new run, else that of the loaded checkpoint."""
        self._set("resumed", metrics.VERSION, version)

    @_passed_over
    def step_started(self, staleness_per_sample: Iterable[SupportsFloat]) -> None:
        """A training step starts on these samples; for each, its staleness in policy versions.

        A list, an array or a tensor; of whole numbers a thousand cost little more than one.
        """
        worst = self._observe("step_started", metrics.STALENESS, staleness_per_sample)
        if worst is not None:
            self._set("step_started", metrics.STALENESS_MAX, worst)

    @_passed_over
    def staleness_summary(
        self,
        *,
        mean: SupportsFloat | None = None,
        largest: SupportsFloat | None = None,
        samples: SupportsFloat | None = None,
    ) -> None:
        """The staleness of a step's samples where only its mean or its largest value is known, in policy versions.

        ``samples``: how many the mean is of; unknown, a step counts as one. The histogram turns into a summary, which has no
        quantiles. A job that calls ``step_started`` does not call this.
        """
        self._set("staleness_summary", metrics.STALENESS_MAX, largest)
        self._summarise("staleness_summary", metrics.STALENESS, mean, samples)

    @_passed_over
    def step_finished(
        self,
        version: SupportsFloat,
        samples: SupportsFloat | None = None,
        tokens: SupportsFloat | None = None,
        seconds: SupportsFloat | None = None,
    ) -> None:
        """A training step ended and published ``version``.

        ``samples`` and ``tokens`` (response tokens, without prompts) are what it trained on, ``seconds`` how long it
        computed: without the wait for samples before it and the weight sync after it. None is unknown, and not counted.
        """
        self.trained(samples, tokens)
        self.trained_for(seconds)
        # Last, so that nobody sees the version before the counters that go with it.
        self.published(version)

    @_passed_over
    def trained(self, samples: SupportsFloat | None = None, tokens: SupportsFloat | None = None) -> None:
        """A step trained on this many samples and response tokens: a part of ``step_finished``, for jobs that learn it apart."""
        self._add("trained", metrics.SAMPLES, samples)
        self._add("trained", metrics.TOKENS, tokens)

    @_passed_over
    def trained_for(self, seconds: SupportsFloat | None) -> None:
        """A step computed for ``seconds``, without waiting and weight sync: a part of ``step_finished``."""
        self._observe_one("trained_for", metrics.TRAIN_STEP, seconds)

    @_passed_over
    def published(self, version: SupportsFloat) -> None:
        """Policy ``version`` was published: the last part of ``step_finished``."""
        self._set("published", metrics.VERSION, version)

    @_passed_over
    def waited(self, seconds: SupportsFloat) -> None:
        """The trainer waited ``seconds`` for samples."""
        self._add("waited", metrics.WAIT, seconds)

    @_passed_over
    def synced(self, seconds: SupportsFloat) -> None:
        """Samplers paused ``seconds`` to take a policy version."""
        self._observe_one("synced", metrics.WEIGHT_SYNC, seconds)

    @_passed_over
    def queue(self, groups: SupportsFloat) -> None:
        """The number of complete ``groups`` that wait for the trainer now."""
        self._set("queue", metrics.QUEUE, groups)

    @_passed_over
    def in_flight(self, samples: SupportsFloat) -> None:
        """The number of ``samples`` that are submitted and not finished now; of several processes that share a page, the sum."""
        self._set("in_flight", metrics.IN_FLIGHT, samples)

    @_passed_over
    def response(self, tokens: SupportsFloat) -> None:
        """A response finished with ``tokens`` tokens, whether it will be trained on or not."""
        self._observe_one("response", metrics.RESPONSE, tokens)

    @_passed_over
    def responses(self, tokens_per_sample: Iterable[SupportsFloat]) -> None:
        """Responses finished, each with its tokens: ``response`` for many at once."""
        self._observe("responses", metrics.RESPONSE, tokens_per_sample)

    @_passed_over
    def response_summary(self, *, mean: SupportsFloat | None, samples: SupportsFloat | None = None) -> None:
        """Responses finished of which only the mean length in tokens is known; as ``staleness_summary``."""
        self._summarise("response_summary", metrics.RESPONSE, mean, samples)

    @_passed_over
    def dropped(self, groups: SupportsFloat) -> None:
        """``groups`` complete groups were discarded."""
        self._add("dropped", metrics.DROPPED, groups)

    @_passed_over
    def environment(self, seconds: SupportsFloat) -> None:
        """A sample finished that spent ``seconds`` in its environment over all turns."""
        self._observe_one("environment", metrics.ENVIRONMENT, seconds)

    @_passed_over
    def environment_summary(self, *, mean: SupportsFloat | None, samples: SupportsFloat | None = None) -> None:
        """Samples finished of which only the mean of their seconds in the environment is known; as ``staleness_summary``."""
        self._summarise("environment_summary", metrics.ENVIRONMENT, mean, samples)

    @_passed_over
    def counted_to(
        self,
        *,
        samples: SupportsFloat | None = None,
        tokens: SupportsFloat | None = None,
        dropped_groups: SupportsFloat | None = None,
        waited_s: SupportsFloat | None = None,
        fresh: bool = False,
    ) -> None:
        """Running totals that a framework keeps itself: trained samples, response tokens, dropped groups, seconds waited.

        What a total grew by since the last call is counted. A total that is seen first is where counting starts, since it may hold
        what was counted before a checkpoint; ``fresh`` says that it started from zero in this process. A total that fell has
        started from zero again, as Prometheus takes it.
        """
        for metric, value in (
            (metrics.SAMPLES, samples),
            (metrics.TOKENS, tokens),
            (metrics.DROPPED, dropped_groups),
            (metrics.WAIT, waited_s),
        ):
            total = self._amount("counted_to", metric.name, value)
            if total is not None and self.main:
                self._ledger.add_up_to(metric.name, total, fresh=fresh)

    @_passed_over
    def acknowledged(self, generation: int) -> None:
        """Say that this process follows the layout of ``generation`` from now on: at a step boundary, on every rank."""
        amount = self._amount("acknowledged", metrics.GENERATION.name, generation)
        if amount is not None:
            self._ledger.set(metrics.GENERATION.name, amount)

    def serve(self, port: int, address: str = "0.0.0.0") -> tuple[WSGIServer, Thread]:
        """Serve the metrics at ``/metrics`` in a daemon thread; returns its server and thread, for ``shutdown``.

        The page shows this process, or all that share its directory; so one process of a pod serves. Port 0 takes a
        free one (``server.server_port``). Raises OSError if the port is taken.
        """
        registry = self.registry
        if self._directory is not None:
            from rljob_runtime.shared import shared_registry

            registry = shared_registry(self._directory)
        try:
            server, thread = start_http_server(port, addr=address, registry=registry)
        except OSError as error:
            raise OSError(
                error.errno,
                f"cannot serve metrics on {address}:{port}: {error.strerror}; one process of a pod serves (local rank 0), the others "
                f"only report, with {MULTIPROCESS_VARIABLE} set to a directory that they share",
            ) from error
        self._servers.append(server)
        self._elsewhere = False
        return server, thread

    def _forked(self) -> None:
        """In a forked process: its copy of the port would keep the port taken after the parent is gone, with nobody to answer."""
        for server in self._servers:
            server.socket.close()
        self._elsewhere = bool(self._servers) and self._directory is None
        self._servers = []


_REPORTERS: weakref.WeakSet[Reporter] = weakref.WeakSet()


def _after_fork() -> None:
    for reporter in list(_REPORTERS):
        reporter._forked()


os.register_at_fork(after_in_child=_after_fork)
