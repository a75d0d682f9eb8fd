"""What a framework logs, as a table: which of its keys say what about the job, in which unit.

A dialect is the set of names under which one framework, in one mode, logs what the operator wants to know. It is data: each
row names the keys that it needs, the metric that it feeds and the line of the framework's source that it was read from. A key
whose meaning was not read there is not in a table: nothing is guessed from a name that looks right.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from rljob_runtime.bridges.sink import Sink


class Values(dict[str, float]):
    """Numbers that were logged for one step, by the framework's keys."""

    def __init__(self) -> None:
        super().__init__()
        self.many: dict[str, tuple[float, ...]] = {}
        """What was logged as a list of numbers, by key."""

    def has(self, keys: tuple[str, ...]) -> bool:
        """Whether all ``keys`` were logged."""
        return all(key in self or key in self.many for key in keys)


Feed = Callable[[Sink, Values], None]
"""Turns logged numbers into calls of the sink; only called with all needed keys present."""


@dataclass(frozen=True)
class Rule:
    """One thing that a framework logs."""

    metric: str
    """The metric that it feeds; several rules of a dialect may feed one."""
    needs: tuple[str, ...]
    """Keys that must all have been logged for a step, in whichever order and number of calls."""
    feed: Feed
    """Called once for each step for which they were."""
    source: str
    """Where the meaning of the keys was read: path:line in the framework's source, of the version that the dialect states."""
    optional: tuple[str, ...] = ()
    """Keys that are used where they are logged for the same step: the rule waits for the end of the step, or of the call."""
    always: bool = True
    """Whether the keys come with every step; False for what only some configurations or steps have, which is not missed."""


@dataclass(frozen=True)
class Dialect:
    """The names that one framework logs in one mode, or in one of its processes."""

    name: str
    """As it is shown to people, e.g. ``verl fully_async``."""
    version: str
    """The version, or commit, of the framework whose source the table was read from."""
    marks: tuple[str, ...]
    """Keys that, once all of them were logged, tell this dialect from others and from a framework that it does not know."""
    rules: tuple[Rule, ...]
    """The table."""
    step_key: str | None = None
    """The key that carries the number of the step, where it is logged among the values; else the logging call's own step counts."""

    @property
    def reads(self) -> frozenset[str]:
        """All keys that the dialect reads."""
        read = {key for rule in self.rules for key in (*rule.needs, *rule.optional)}
        return frozenset(read | set(self.marks) | ({self.step_key} if self.step_key else set()))

    @property
    def measured(self) -> frozenset[str]:
        """The metrics that the dialect can feed."""
        return frozenset(rule.metric for rule in self.rules)


@dataclass(frozen=True)
class Logged:
    """What one call of a tracker logged."""

    values: Mapping[str, object]
    """Numbers, or lists of numbers, by key; anything else is passed over."""
    step: object = None
    """The number of the step; None if the call gave none."""
    more: bool = False
    """Whether further values of the same step follow in calls without a number of the step."""
    closed: bool = True
    """Whether keys that belong together have all come with this call; False for trackers that take a step in pieces."""
    beside: Mapping[str, object] = field(default_factory=dict)
    """What the call knows besides, such as the trainer's arguments, under keys of the dialect's own: read like values, never told as logged."""


@dataclass(frozen=True)
class Tap:
    """A function or method through which numbers pass on their way to a log."""

    module: str
    """The module that defines it, patched when it is imported, and not before."""
    attribute: str
    """Its name in the module, with that of its class before a dot if it has one."""
    read: Callable[[Mapping[str, object]], Logged | None]
    """What a call logged, from its arguments by the names of the parameters; None if nothing, or not by this process."""
    aliases: tuple[str, ...] = ()
    """Modules that hold a function under the same name as well, patched if they are imported already."""
    rank: int = 0
    """If the same numbers pass through several taps, those of the lowest rank count. 0 is for trackers of frameworks."""


@dataclass(frozen=True)
class Framework:
    """What is known about one framework: its modes, and where its numbers pass."""

    name: str
    """The name that users give to the bridge."""
    dialects: tuple[Dialect, ...]
    """Its modes."""
    taps: tuple[Tap, ...] = field(default=())
    """Its own trackers; W&B, TensorBoard and MLflow are watched for every framework."""
