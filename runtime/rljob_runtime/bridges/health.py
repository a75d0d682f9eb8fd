"""How the reading of a framework's log goes, as metrics of the bridge itself.

The client's own gauges and counters have locks that a fork does not renew, so a child that logs could wait for a thread that it
does not have. These are kept like the Reporter's numbers instead, and shared between the processes of a pod in the same way.
"""

from __future__ import annotations

import logging
import os
import weakref
from collections.abc import Iterable, Iterator
from pathlib import Path
from threading import RLock
from typing import TYPE_CHECKING

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from rljob_runtime.ledger import Across, Definition, Labels

if TYPE_CHECKING:
    from rljob_runtime.shared import SharedFiles

LOG = logging.getLogger("rljob_runtime.bridges")

# Whichever process of the pod has seen it.
_KNOWN = Across(
    "rljob_bridge_known",
    "Whether the keys that the framework logs are those of a dialect that the bridge knows: 1 or 0",
    across="livemax",
)
_KEY_SEEN = Across(
    "rljob_bridge_key_seen",
    "Whether a key that a known dialect needs was logged since the process started: 1 or 0",
    across="livemax",
)
_ERRORS = Definition("rljob_bridge_errors_total", "Errors inside of the bridge, kept from the training loop")


class Health(Collector):
    """The metrics of one bridge in this process. Thread-safe."""

    def __init__(self, bridge: str, directory: Path | None = None) -> None:
        """For the framework ``bridge``; ``directory`` is where the processes of a pod share their numbers, None if they do not."""
        self._bridge = bridge
        self._gauges: dict[tuple[Across, Labels], float] = {}
        self._files: SharedFiles | None = None
        self._clear()
        if directory is not None:
            try:
                # Here, as in the Reporter: it uses parts of the client that it does not document.
                from rljob_runtime.shared import SharedFiles

                self._files = SharedFiles(directory, "bridge")
                self._write("counter", _ERRORS, (("bridge", bridge),), 0.0)
            except Exception as error:
                self._files = None
                LOG.warning("%s bridge: what it says of itself is on no shared page: %s", bridge, error)
        _HEALTHS.add(self)

    def _clear(self) -> None:
        """What a new process starts with: it made no errors yet, but knows what its parent knew."""
        self._lock = RLock()
        self._errors = 0

    def is_known(self, dialect: str, known: bool) -> None:
        """What is logged is of ``dialect``, or of none that is known: then the name is empty."""
        self._set(_KNOWN, (("bridge", self._bridge), ("dialect", dialect)), known)

    def is_seen(self, dialect: str, key: str, seen: bool) -> None:
        """``key`` of ``dialect`` was logged, or never came."""
        self._set(_KEY_SEEN, (("bridge", self._bridge), ("dialect", dialect), ("key", key)), seen)

    def count_error(self) -> None:
        """An error was kept from the training loop."""
        with self._lock:
            self._errors += 1
            self._write("counter", _ERRORS, (("bridge", self._bridge),), self._errors)

    def _set(self, metric: Across, labels: Labels, value: bool) -> None:
        with self._lock:
            self._gauges[metric, labels] = float(value)
            self._write("gauge", metric, labels, float(value))

    def _write(self, kind: str, metric: Definition, labels: Labels, value: float) -> None:
        if self._files is not None:
            self._files.write(kind, metric, metric.name, value, labels=labels)

    def collect(self) -> Iterator[Metric]:
        """All metrics, as Prometheus's client asks for them."""
        with self._lock:
            gauges, errors = dict(self._gauges), self._errors
        for metric in (_KNOWN, _KEY_SEEN):
            family: GaugeMetricFamily | None = None
            for (of, labels), value in gauges.items():
                if of is metric:
                    names, values = [name for name, _ in labels], [text for _, text in labels]
                    family = family or GaugeMetricFamily(metric.name, metric.help_text, labels=names)
                    family.add_metric(values, value)
            if family is not None:
                yield family
        family_of_errors = CounterMetricFamily(_ERRORS.name, _ERRORS.help_text, labels=["bridge"])
        family_of_errors.add_metric([self._bridge], errors)
        yield family_of_errors

    def describe(self) -> Iterable[Metric]:
        """The names, so that a registry refuses two bridges."""
        yield GaugeMetricFamily(_KNOWN.name, _KNOWN.help_text)
        yield GaugeMetricFamily(_KEY_SEEN.name, _KEY_SEEN.help_text)
        yield CounterMetricFamily(_ERRORS.name, _ERRORS.help_text)


_HEALTHS: weakref.WeakSet[Health] = weakref.WeakSet()


def _after_fork() -> None:
    for health in list(_HEALTHS):
        health._clear()


os.register_at_fork(after_in_child=_after_fork)
