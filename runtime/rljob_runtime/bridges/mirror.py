"""Takes what a framework logs, finds out which dialect it is, and feeds the sink once a step.

The training loop runs through here, so nothing that happens here may reach it: every error is counted, said once and dropped. What
is logged is taken as it comes: a mapping for a whole step, several mappings for one step, or one number at a time.

A set of keys that no dialect knows is reported, and nothing is fed from it: a new version of a framework that renames a key must
not be read as one that stopped waiting.
"""

from __future__ import annotations

import logging
import math
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import dataclass, field
from threading import RLock
from typing import SupportsFloat, SupportsIndex

from prometheus_client import CollectorRegistry, Counter, Gauge

from rljob_runtime.bridges.dialect import Dialect, Framework, Logged, Rule, Values
from rljob_runtime.bridges.sink import Sink

LOG = logging.getLogger("rljob_runtime.bridges")

PATIENCE_STEPS = 3
"""Steps after which an unknown set of keys, or a key that never came, is reported."""

PATIENCE_CALLS = 100
"""The same in calls without the number of a step, such as those that sample a gauge every few seconds."""

_SHOWN_KEYS = 30
"""Names of unknown keys that a report shows."""

_KEPT_STEPS = 8
"""Steps whose numbers are kept, so that two steps may be logged in turns."""


@dataclass
class _Record:
    """What was logged for one step."""

    step: int | None
    values: Values = field(default_factory=Values)
    fired: set[int] = field(default_factory=set)
    """Rules, by identity, that were fed for this step."""


class Mirror:
    """Mirrors the log of one framework in this process. Thread-safe."""

    def __init__(
        self, framework: Framework, sink: Sink, registry: CollectorRegistry, awake: Callable[[], None] = lambda: None
    ) -> None:
        """Feed ``sink`` and register the bridge's own metrics in ``registry``.

        ``awake`` is called when there is something to show, and again until it has returned without an error.
        """
        self.framework = framework
        self.sink = sink
        self._awake: Callable[[], None] | None = awake
        self._lock = RLock()
        self._interest = frozenset(key for dialect in framework.dialects for key in dialect.reads)
        self._step_keys = tuple({d.step_key for d in framework.dialects if d.step_key})
        self._records: OrderedDict[int, _Record] = OrderedDict()
        self._open: _Record | None = None
        """What was logged without the number of a step, and is to be completed."""
        self._steps = 0
        self._calls = 0
        """Of those without the number of a step."""
        self._rank: int | None = None
        self._spoken: set[str] = set()
        self._seen: set[str] = set()
        self._unknown: dict[str, None] = {}
        self._recognised: dict[str, float] = {}
        """Dialect by name → the patience that was used up when it was recognised."""
        self._known = Gauge(
            "rljob_bridge_known",
            "Whether the keys that the framework logs are those of a dialect that the bridge knows: 1 or 0",
            ["bridge", "dialect"],
            registry=registry,
        )
        self._key_seen = Gauge(
            "rljob_bridge_key_seen",
            "Whether a key that a known dialect needs was logged since the process started: 1 or 0",
            ["bridge", "dialect", "key"],
            registry=registry,
        )
        self._errors = Counter(
            "rljob_bridge_errors_total",
            "Errors inside of the bridge, kept from the training loop",
            ["bridge"],
            registry=registry,
        ).labels(framework.name)

    def failed(self, error: BaseException, where: str) -> None:
        """Count an error, and say it once for each place and kind."""
        self._errors.inc()
        kind = f"{where}: {type(error).__name__}"
        if kind not in self._spoken:
            self._spoken.add(kind)
            LOG.warning(
                "%s bridge, %s (%s); training goes on, metrics may be missing", self.framework.name, kind, error
            )

    def take(self, logged: Logged, rank: int = 0) -> None:
        """Something was logged through a tap of this rank. Never raises."""
        try:
            with self._lock:
                self._take(logged, rank)
        except Exception as error:
            self.failed(error, "reading what was logged")

    def _take(self, logged: Logged, rank: int) -> None:
        wanted = [key for key in logged.values if key in self._interest]
        numbers = {key: n for key in wanted if (n := _number(logged.values[key])) is not None}
        many = {key: row for key in wanted if (row := _numbers(logged.values[key])) is not None}
        if not self._heeded(bool(numbers or many), rank):
            return
        record = self._record(_step_of(numbers, self._step_keys, logged.step), logged.more)
        if not self._recognised:
            self._note_unknown(logged.values)
        record.values.update(numbers)
        record.values.many.update(many)
        self._see(numbers.keys() | many.keys())
        self._feed(record, closed=logged.closed)

    def _heeded(self, known: bool, rank: int) -> bool:
        """Whether this tap counts: the first that brings known keys, until a better one does."""
        if known and (self._rank is None or rank < self._rank):
            self._rank = rank
        return self._rank is None or rank == self._rank

    def _record(self, step: int | None, more: bool) -> _Record:
        """The record of a step; a new step closes the one before."""
        if step is None:
            found = self._open or _Record(None)
            if self._open is None:
                self._calls += 1
                self._count_step()
            self._open = found if more else None
            return found
        known = self._records.get(step)
        if known is not None:
            return known
        if self._records:
            self._feed(next(reversed(self._records.values())), closed=True)
        found = self._records[step] = _Record(step)
        self._steps += 1
        self._count_step()
        while len(self._records) > _KEPT_STEPS:
            self._records.popitem(last=False)
        return found

    def _dialects(self) -> Iterable[Dialect]:
        return (dialect for dialect in self.framework.dialects if dialect.name in self._recognised)

    def _see(self, keys: Set[str]) -> None:
        """Note keys, and which dialects they tell."""
        if keys <= self._seen:
            return
        self._seen |= keys
        for dialect in self.framework.dialects:
            if dialect.name not in self._recognised and self._seen.issuperset(dialect.marks):
                self._recognised[dialect.name] = self._used_up()
                self._known.labels(self.framework.name, dialect.name).set(1)
                self._show()
                LOG.info("%s bridge: this is %s, as of %s", self.framework.name, dialect.name, dialect.version)
            if dialect.name in self._recognised:
                for key in dialect.reads & self._seen:
                    self._key_seen.labels(self.framework.name, dialect.name, key).set(1)

    def _feed(self, record: _Record, *, closed: bool) -> None:
        """Feed what the record now suffices for, once."""
        for dialect in self._dialects():
            for rule in dialect.rules:
                if id(rule) in record.fired or (rule.optional and not closed) or not record.values.has(rule.needs):
                    continue
                record.fired.add(id(rule))
                self._apply(rule, record)

    def _apply(self, rule: Rule, record: _Record) -> None:
        self.sink.step = record.step
        try:
            rule.feed(self.sink, record.values)
        except Exception as error:
            self.failed(error, f"feeding {rule.metric}")
        self._show()

    def _used_up(self) -> float:
        """The share of the patience that steps and calls have used up since the start."""
        return self._steps / (PATIENCE_STEPS + 1) + self._calls / (PATIENCE_CALLS + 1)

    def _count_step(self) -> None:
        """A step began: see whether patience with what is unknown or missing has run out."""
        used_up = self._used_up()
        if not self._recognised and used_up >= 1.0:
            self._report_unknown()
        for dialect in self._dialects():
            if used_up - self._recognised[dialect.name] >= 1.0:
                self._report_missing(dialect)

    def _note_unknown(self, values: Mapping[str, object]) -> None:
        for key in values:
            if key not in self._interest and len(self._unknown) < _SHOWN_KEYS:
                self._unknown.setdefault(str(key))

    def _report_unknown(self) -> None:
        if "unknown" in self._spoken:
            return
        self._spoken.add("unknown")
        self._known.labels(self.framework.name, "").set(0)
        self._show()
        expected = "; ".join(f"{d.name} ({d.version}) by {', '.join(d.marks)}" for d in self.framework.dialects)
        logged = ", ".join([*sorted(self._seen), *self._unknown]) or "nothing"
        LOG.warning(
            "%s bridge: what is logged is of no version that it knows, so nothing is reported. It knows %s. Logged were: %s",
            self.framework.name,
            expected,
            logged,
        )

    def _report_missing(self, dialect: Dialect) -> None:
        if f"missing {dialect.name}" in self._spoken:
            return
        self._spoken.add(f"missing {dialect.name}")
        for rule in dialect.rules:
            missing = [key for key in rule.needs if key not in self._seen]
            for key in missing if rule.always else ():
                self._key_seen.labels(self.framework.name, dialect.name, key).set(0)
            if missing and rule.always:
                LOG.warning(
                    "%s bridge: %s never came, so %s is not fed from it (the table is of %s, %s)",
                    self.framework.name,
                    ", ".join(missing),
                    rule.metric,
                    dialect.name,
                    dialect.version,
                )

    def _show(self) -> None:
        """Wake what shows the metrics, until it is awake."""
        if self._awake is None:
            return
        try:
            self._awake()
        except Exception as error:
            self.failed(error, "serving the metrics")
        else:
            self._awake = None


def _number(value: object) -> float | None:
    """A finite number, also of numpy and of tensors with one element; None for anything else."""
    if isinstance(value, str | bytes) or not isinstance(value, SupportsFloat | SupportsIndex):
        return None
    try:
        number = float(value)
    except (TypeError, ValueError, RuntimeError):
        return None
    return number if math.isfinite(number) else None


def _numbers(value: object) -> tuple[float, ...] | None:
    """A list or tuple of finite numbers; None for anything else."""
    if not isinstance(value, list | tuple) or not value:
        return None
    numbers = [_number(item) for item in value]
    return None if None in numbers else tuple(n for n in numbers if n is not None)


def _step_of(numbers: Mapping[str, float], step_keys: Iterable[str], step: object) -> int | None:
    for key in step_keys:
        if key in numbers:
            return int(numbers[key])
    number = None if step is None else _number(step)
    return None if number is None else int(number)
