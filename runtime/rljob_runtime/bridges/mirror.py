"""Takes what a framework logs, finds out which dialect it is, and feeds the sink once a step.

The training loop runs through here, so nothing that happens here may reach it: every error is counted, said once and dropped. What
is logged is taken as it comes: a mapping for a whole step, several mappings for one step, or one number at a time.

A set of keys that no dialect knows is reported, and nothing is fed from it: a new version of a framework that renames a key must
not be read as one that stopped waiting.

Nor may it wait here: for a lock that another thread held when this process was forked, or for a thread that waits for this one (a
handler of the log that logs to W&B). So a fork renews the lock, and who does not get it in time passes the numbers over, counted as an error.
"""

from __future__ import annotations

import logging
import math
import os
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Set
from contextlib import suppress
from dataclasses import dataclass, field
from threading import RLock
from typing import SupportsFloat, SupportsIndex

from rljob_runtime.bridges.dialect import Dialect, Framework, Logged, Rule, Values
from rljob_runtime.bridges.health import Health
from rljob_runtime.bridges.sink import Sink

LOG = logging.getLogger("rljob_runtime.bridges")

PATIENCE_STEPS = 3
"""Steps after which an unknown set of keys, or a key that never came, is reported."""

PATIENCE_CALLS = 100
"""The same in calls without the number of a step, such as those that sample a gauge every few seconds."""

LOCK_PATIENCE_S = 1.0
"""How long the training loop waits at most for another thread that logs at the same time."""

_SHOWN_KEYS = 30
"""Names of unknown keys that a report shows."""

_KEPT_STEPS = 8
"""Steps whose numbers are kept, so that two steps may be logged in turns."""

_PAST_STEPS = 1000
"""Older steps of which it is known what they were fed to, so that one that is logged again is not counted again."""


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
        self, framework: Framework, sink: Sink, health: Health, awake: Callable[[], None] = lambda: None
    ) -> None:
        """Feed ``sink``, and ``health`` with how the reading goes.

        ``awake`` is called when there is something to show, and again until it has returned without an error.
        """
        self.framework = framework
        self.sink = sink
        self._awake: Callable[[], None] | None = awake
        self._lock = RLock()
        self._interest = frozenset(key for dialect in framework.dialects for key in dialect.reads)
        self._step_keys = tuple({d.step_key for d in framework.dialects if d.step_key})
        self._records: OrderedDict[int, _Record] = OrderedDict()
        self._past: OrderedDict[int, set[int]] = OrderedDict()
        """Step → rules that it was fed to, for steps that are kept no longer."""
        self._open: _Record | None = None
        """What was logged without the number of a step, and is to be completed."""
        self._steps = 0
        self._calls = 0
        """Of those without the number of a step."""
        self._tried_at: tuple[int, int] | None = None
        """Steps and calls when it was last tried to show something."""
        self._rank: int | None = None
        self._spoken: set[str] = set()
        self._seen: set[str] = set()
        self._unknown: dict[str, None] = {}
        self._beside: set[str] = set()
        self._recognised: dict[str, float] = {}
        """Dialect by name → the patience that was used up when it was recognised."""
        self._health = health
        _MIRRORS.add(self)

    @property
    def recognised(self) -> bool:
        """Whether what was logged is of a dialect, so that something may have been fed."""
        return bool(self._recognised)

    def failed(self, error: BaseException, where: str) -> None:
        """Count an error, and say it once for each place and kind. Never raises."""
        # A filter of the job's own log may raise.
        with suppress(Exception):
            self._failed(error, where)

    def _failed(self, error: BaseException, where: str) -> None:
        self._health.count_error()
        kind = f"{where}: {type(error).__name__}"
        if kind not in self._spoken:
            self._spoken.add(kind)
            LOG.warning(
                "%s bridge, %s (%s); training goes on, metrics may be missing", self.framework.name, kind, error
            )

    def take(self, logged: Logged, rank: int = 0) -> None:
        """Something was logged through a tap of this rank. Never raises."""
        try:
            # Before the lock: a tensor on a GPU is waited for.
            given = {
                key: value
                for part in (logged.values, logged.beside)
                for key, value in part.items()
                if key in self._interest
            }
            numbers = {key: n for key, value in given.items() if (n := _number(value)) is not None}
            many = {key: row for key, value in given.items() if (row := _numbers(value)) is not None}
            lock = self._lock
            if not lock.acquire(timeout=LOCK_PATIENCE_S):
                raise TimeoutError(f"another thread held the bridge for {LOCK_PATIENCE_S:g} s")
            try:
                self._take(logged, rank, numbers, many)
            finally:
                lock.release()
        except Exception as error:
            self.failed(error, "reading what was logged")

    def _take(self, logged: Logged, rank: int, numbers: dict[str, float], many: dict[str, tuple[float, ...]]) -> None:
        if not self._heeded(bool(numbers or many), rank):
            return
        record = self._record(_step_of(numbers, self._step_keys, logged.step), logged.more)
        if not self._recognised:
            self._note_unknown(logged)
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
        found = self._records[step] = _Record(step, fired=self._past.pop(step, set()))
        self._steps += 1
        self._count_step()
        while len(self._records) > _KEPT_STEPS:
            old, record = self._records.popitem(last=False)
            self._past[old] = record.fired
        while len(self._past) > _PAST_STEPS:
            self._past.popitem(last=False)
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
                self._health.is_known(dialect.name, True)
                self._show()
                LOG.info("%s bridge: this is %s, as of %s", self.framework.name, dialect.name, dialect.version)
            if dialect.name in self._recognised:
                for key in dialect.reads & self._seen:
                    self._health.is_seen(dialect.name, key, True)

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

    def _note_unknown(self, logged: Logged) -> None:
        self._beside.update(logged.beside)
        for key in logged.values:
            if key not in self._interest and len(self._unknown) < _SHOWN_KEYS:
                self._unknown.setdefault(str(key))

    def _report_unknown(self) -> None:
        if "unknown" in self._spoken:
            return
        self._spoken.add("unknown")
        self._health.is_known("", False)
        self._show()
        expected = "; ".join(f"{d.name} ({d.version}) by {', '.join(d.marks)}" for d in self.framework.dialects)
        logged = ", ".join([*sorted(self._seen - self._beside), *self._unknown]) or "nothing"
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
                self._health.is_seen(dialect.name, key, False)
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
        """Wake what shows the metrics, until it is awake: where it fails, once a step."""
        now = (self._steps, self._calls)
        if self._awake is None or self._tried_at == now:
            return
        self._tried_at = now
        try:
            self._awake()
        except Exception as error:
            self.failed(error, "serving the metrics")
        else:
            self._awake = None


_MIRRORS: weakref.WeakSet[Mirror] = weakref.WeakSet()


def _after_fork() -> None:
    for mirror in list(_MIRRORS):
        mirror._lock = RLock()


os.register_at_fork(after_in_child=_after_fork)


def _number(value: object) -> float | None:
    """A finite number, also of numpy and of tensors with one element; None for anything else."""
    if isinstance(value, str | bytes) or not isinstance(value, SupportsFloat | SupportsIndex):
        return None
    try:
        number = float(value)
    except Exception:
        # Whatever a framework's own kind of number raises costs this number alone.
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
