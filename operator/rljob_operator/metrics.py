"""The operator's own metrics, ``rljob_operator_*``.

A job is named by the labels ``rljob_namespace`` and ``rljob_name``: plain ``namespace`` and ``name`` would be overwritten by the
scrape with those of the operator. Quantities of a job that are unknown have no series, since a gauge of 0 seconds would be
a lie; the series of a deleted job are removed, so that nothing alerts on the dead. What counts what should not happen starts at
zero with a job's first pass: an increase from nothing to one is none to Prometheus.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Iterable
from threading import Thread
from typing import TypeVar
from wsgiref.simple_server import WSGIServer

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
    make_wsgi_app,
)
from prometheus_client.metrics import MetricWrapperBase

from rljob_operator.job_series import JobSeries
from rljob_operator.listening import serve
from rljob_planner import __version__
from rljob_planner.api.spec import RLJobSpec
from rljob_planner.api.status import CalibrationStatus, DecisionCode, MovePhase, RLJobStatus
from rljob_planner.split import Split

AnyMetric = TypeVar("AnyMetric", bound=MetricWrapperBase)

JOB = ("rljob_namespace", "rljob_name")

PASS_SECONDS = (0.005, 0.01, 0.02, 0.04, 0.07, 0.1, 0.15, 0.2, 0.3, 0.5, 0.7, 1.0, 1.5, 2.0, 3.0, 5.0, 10.0, 30.0)
"""Upper edges in seconds for the time of a pass: from one that finds nothing to do to one that plans anew.

The histogram is one for all jobs, since its buckets times hundreds of jobs would be most of what a scrape brings; which job is late is told by
the time of its last pass.
"""

PLAN_SECONDS = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
"""Upper edges in seconds for the time of what the planner is asked, the wait for it left out."""

OUTCOMES = ("Committed", "RolledBack")
"""How moves end."""

_TRUTH = {"True": 1.0, "False": 0.0}
_UNKNOWN = -1.0


class OperatorMetrics:
    """Registers and feeds the operator's metrics; jobs are named by namespace and name throughout."""

    def __init__(self, registry: CollectorRegistry | None = None, *, clock: Callable[[], float] = time.time) -> None:
        """Register in ``registry``, a new one if None; ``clock`` gives seconds since the epoch."""
        # When a series came to be is asked by nobody here, and would be half of what a scrape of counters brings.
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = registry if registry is not None else CollectorRegistry()
        """What ``/metrics`` serves."""
        self._clock = clock
        self._of_jobs: list[MetricWrapperBase] = []

        def gauge(name: str, text: str, *labels: str) -> Gauge:
            return self._kept(Gauge(f"rljob_operator_{name}", text, (*JOB, *labels), registry=self.registry))

        def counter(name: str, text: str, *labels: str) -> Counter:
            return self._kept(Counter(f"rljob_operator_{name}", text, (*JOB, *labels), registry=self.registry))

        self._decisions = counter("decision_total", "Decisions by their reason code", "code")
        self._decision_code = gauge(
            "decision_code", "1 for the code of the last decision, 0 for those before it", "code"
        )
        self._codes: dict[tuple[str, str], str] = {}
        self._phases: dict[tuple[str, str], MovePhase] = {}
        self._shown: dict[tuple[str, str], dict[str, tuple[str, float]]] = {}
        self._counted: set[tuple[str, str]] = set()
        ProcessCollector(registry=self.registry)
        Gauge("rljob_operator_build_info", "1, with the version", ("version", "python"), registry=self.registry).labels(
            __version__, platform.python_version()
        ).set(1)
        self._reconcile_s = Histogram(
            "rljob_operator_reconcile_seconds",
            "Time of a pass over any job",
            buckets=PASS_SECONDS,
            registry=self.registry,
        )
        self._plan_s = Histogram(
            "rljob_operator_plan_seconds",
            "Time of a question to the planner",
            buckets=PLAN_SECONDS,
            registry=self.registry,
        )
        self._requests = Counter(
            "rljob_operator_api_requests_total",
            "Requests to the API server by verb and HTTP status, 0 where none came; watches that kopf keeps are left out",
            ("verb", "code"),
            registry=self.registry,
        )
        self._counts = {
            name: Gauge(f"rljob_operator_{name}", text, registry=self.registry)
            for name, text in (
                ("jobs", "RLJobs that this replica knows"),
                ("woken_jobs", "RLJobs that something has happened to and whose pass has not begun"),
                ("waiting_jobs", "RLJobs that wait for GPUs, or for those before them to plan"),
                (
                    "loop_age_seconds",
                    "Longest time since a pass over a job ended, whichever way; 0 on a replica that stands by",
                ),
                ("watch_lost", "1 if the watch of pods has ended, so that no pass sees what happens any more"),
            )
        }
        self._reconcile_errors = counter("reconcile_errors_total", "Passes over a job that failed")
        self._last_reconcile = gauge(
            "last_reconcile_timestamp_seconds", "When the last pass over a job ended, in seconds since the epoch"
        )
        self._budget = gauge("budget_gpus", "GPUs that a job may hold")
        self._held = gauge("held_gpus", "GPUs of pods that are bound or ungated and not yet gone")
        self._violations = counter(
            "budget_violations_total", "Times that a job's pods were seen to hold more than its budget"
        )
        self._moves = counter("moves_total", "Moves that ended, by outcome", "outcome")
        self._move_phase = gauge("move_phase", "1 for the phase of the move under way, 0 for those before it", "phase")
        self._move_start = gauge(
            "move_phase_start_timestamp_seconds",
            "When the phase of the move under way began, in seconds since the epoch",
        )
        self._move_deadline = gauge(
            "move_phase_deadline_timestamp_seconds",
            "When the phase of the move under way gives up, in seconds since the epoch; none while it is held",
        )
        self._drain_timeouts = counter("drain_timeouts_total", "Drains that ran out of time with samples still running")
        self._lost_samples = counter(
            "lost_samples_total", "Samples that ran on pods which went in a shrink though they were to stay"
        )
        self._predicted = gauge("predicted_period_seconds", "Period that the planner predicts for the split in force")
        self._observed = gauge("observed_period_seconds", "Period that was measured")
        self._factor = gauge("calibration_factor", "Measured over predicted speed", "side")
        self._pegged = gauge(
            "calibration_pegged", "1 if a factor stands at its limit, so that the model does not describe the job"
        )
        self._gain = gauge("predicted_gain_ratio", "Fraction of the period that the wished split would save")
        self._recommended = gauge(
            "recommended_replicas",
            "Replicas of the split that the operator would choose now, whether or not it may",
            "side",
        )
        self._recommended_gpus = gauge(
            "recommended_gpus", "GPUs of the split that the operator would choose now, whether or not it may", "side"
        )
        self._leader = Gauge(
            "rljob_operator_leader", "1 if this replica leads (always, without leader election)", registry=self.registry
        )
        self._takeovers = Counter(
            "rljob_operator_takeovers_total", "Times that this replica took the Lease", registry=self.registry
        )
        self._sandboxes = gauge("sandboxes", "Sandbox pods wished and ready, and environments in use", "state")
        self._metrics_known = gauge("metrics_available", "1 if everything that decisions need is known, else 0")
        self._conditions = gauge(
            "condition",
            "The job's conditions with their reasons: 1 True, 0 False, -1 Unknown",
            "condition",
            "reason",
        )
        self._series = JobSeries(self.registry)

    def _kept(self, metric: AnyMetric) -> AnyMetric:
        self._of_jobs.append(metric)
        return metric

    def requested(self, verb: str, code: int) -> None:
        """The API server answered a request with an HTTP status; 0: it did not answer."""
        self._requests.labels(verb, code).inc()

    def planned(self, seconds: float) -> None:
        """The planner answered a question after ``seconds``."""
        self._plan_s.observe(seconds)

    def count_by(self, **counts: Callable[[], float]) -> None:
        """Says how to tell ``jobs``, ``woken_jobs``, ``waiting_jobs``, ``loop_age_seconds`` and ``watch_lost`` when they are asked for."""
        for name, count in counts.items():
            self._counts[name].set_function(count)

    def reconciled(self, namespace: str, name: str, seconds: float) -> None:
        """A pass over a job ended after ``seconds``."""
        self._reconcile_s.observe(seconds)
        self._last_reconcile.labels(namespace, name).set(self._clock())

    def reconcile_failed(self, namespace: str, name: str) -> None:
        """A pass over a job raised an error."""
        self._reconcile_errors.labels(namespace, name).inc()

    def decided(self, namespace: str, name: str, code: DecisionCode, predicted_gain: float | None = None) -> None:
        """A decision was taken; ``predicted_gain`` as a fraction of the period, None if there is no wish."""
        self._decisions.labels(namespace, name, code.value).inc()
        last = self._codes.get((namespace, name))
        if last is not None:
            self._decision_code.labels(namespace, name, last).set(0)
        self._codes[namespace, name] = code.value
        self._decision_code.labels(namespace, name, code.value).set(1)
        _set(self._gain, predicted_gain, namespace, name)

    def held(self, namespace: str, name: str, *, budget: int, held: int) -> None:
        """What a job may hold and holds; counts a violation each time that it holds more."""
        self._budget.labels(namespace, name).set(budget)
        self._held.labels(namespace, name).set(held)
        violations = self._violations.labels(namespace, name)
        if held > budget:
            violations.inc()
        if (namespace, name) not in self._counted:
            self._counted.add((namespace, name))
            # Named, they are there: at zero until they are counted.
            for outcome in OUTCOMES:
                self._moves.labels(namespace, name, outcome)
            for counter in (self._reconcile_errors, self._drain_timeouts, self._lost_samples):
                counter.labels(namespace, name)

    def move_phase(
        self,
        namespace: str,
        name: str,
        phase: MovePhase | None,
        *,
        since_s: float | None = None,
        deadline_s: float | None = None,
    ) -> None:
        """The phase of the move under way, None if there is none; when it began and gives up, in seconds since the epoch."""
        key = (namespace, name)
        _set(self._move_start, since_s, *key)
        _set(self._move_deadline, deadline_s, *key)
        last = self._phases.pop(key, None)
        if last is not None and last is not phase:
            self._move_phase.labels(*key, last.value).set(0)
        if phase is not None:
            self._phases[key] = phase
            self._move_phase.labels(*key, phase.value).set(1)

    def move_ended(self, namespace: str, name: str, outcome: str) -> None:
        """A move ended as ``outcome``: Committed or RolledBack."""
        self._moves.labels(namespace, name, outcome).inc()

    def drain_timed_out(self, namespace: str, name: str) -> None:
        """A drain ended by its time-out while samples still ran."""
        self._drain_timeouts.labels(namespace, name).inc()

    def samples_lost(self, namespace: str, name: str, samples: int) -> None:
        """A shrink removed pods that were to stay, on which ``samples`` ran."""
        self._lost_samples.labels(namespace, name).inc(samples)

    def periods(self, namespace: str, name: str, *, predicted_s: float | None, observed_s: float | None) -> None:
        """The predicted and the measured period in seconds; None removes the series."""
        _set(self._predicted, predicted_s, namespace, name)
        _set(self._observed, observed_s, namespace, name)

    def calibration(self, namespace: str, name: str, calibration: CalibrationStatus | None) -> None:
        """The calibration factors of a job, None while nothing was measured."""
        known = calibration is not None and calibration.observations > 0
        _set(self._factor, calibration.sampler_factor if calibration and known else None, namespace, name, "samplers")
        _set(self._factor, calibration.trainer_factor if calibration and known else None, namespace, name, "trainers")
        _set(self._pegged, float(calibration.pegged) if calibration and known else None, namespace, name)

    def recommended(self, namespace: str, name: str, split: Split | None) -> None:
        """The split that the operator would choose now, None while it knows none."""
        for side, of in (("samplers", split and split.samplers), ("trainers", split and split.trainers)):
            _set(self._recommended, of.replicas if of else None, namespace, name, side)
            _set(self._recommended_gpus, of.gpus if of else None, namespace, name, side)

    def metrics_available(self, namespace: str, name: str, available: bool) -> None:
        """Whether everything that decisions need is known."""
        self._metrics_known.labels(namespace, name).set(available)

    def conditions(self, namespace: str, name: str, conditions: Iterable[tuple[str, str, str]]) -> None:
        """All conditions of a job: type, status (True, False, Unknown) and reason of each."""
        key = (namespace, name)
        now = {kind: (reason, _TRUTH.get(status, _UNKNOWN)) for kind, status, reason in conditions}
        last = self._shown.get(key, {})
        # Passes come often and conditions change seldom.
        for kind, (reason, value) in now.items():
            if last.get(kind) != (reason, value):
                self._conditions.labels(*key, kind, reason).set(value)
        for kind, (reason, _) in last.items():
            if kind not in now or now[kind][0] != reason:
                self._conditions.remove(*key, kind, reason)
        self._shown[key] = now

    def leads(self, leading: bool, *, took_over: bool = False) -> None:
        """Whether this replica leads, and whether it has just taken the Lease."""
        self._leader.set(leading)
        if took_over:
            self._takeovers.inc()

    def sandboxes(self, namespace: str, name: str, *, wished: int, ready: int, busy: float | None) -> None:
        """The sandbox fleet of a job; ``busy`` are environments in use, None if that is unknown."""
        for state, value in (("wished", float(wished)), ("ready", float(ready)), ("busy", busy)):
            if value is not None:
                self._sandboxes.labels(namespace, name, state).set(value)
            else:
                self._sandboxes.remove_by_labels({JOB[0]: namespace, JOB[1]: name, "state": state})

    def reported(self, namespace: str, name: str, spec: RLJobSpec, status: RLJobStatus) -> None:
        """What a pass has written into the status of a job, or found unchanged."""
        self._series.report(namespace, name, spec, status)

    def forget(self, namespace: str, name: str) -> None:
        """Remove every series of a job that is gone."""
        self._series.forget(namespace, name)
        self._codes.pop((namespace, name), None)
        self._phases.pop((namespace, name), None)
        self._shown.pop((namespace, name), None)
        self._counted.discard((namespace, name))
        for metric in self._of_jobs:
            metric.remove_by_labels({"rljob_namespace": namespace, "rljob_name": name})

    def serve(self, port: int, address: str | None = None) -> tuple[WSGIServer, Thread]:
        """Serve ``/metrics`` in a daemon thread; returns server and thread, for ``shutdown``. Port 0 takes a free one.

        Without an ``address`` it is all that the pod has. Raises OSError if the port is taken.
        """
        return serve(port, make_wsgi_app(self.registry), address)


def _set(gauge: Gauge, value: float | None, *labels: str) -> None:
    """Set a gauge, or remove it where the value is unknown."""
    if value is not None:
        gauge.labels(*labels).set(value)
    else:
        gauge.remove_by_labels(dict(zip((*JOB, "side")[: len(labels)], labels, strict=True)))
