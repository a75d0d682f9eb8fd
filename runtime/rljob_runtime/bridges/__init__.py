"""One line that mirrors what a framework logs into the metrics of the job.

Public RL frameworks log what the operator wants to know (policy version, staleness, waiting, queues) to W&B, TensorBoard or a file, and
none of it to Prometheus in the operator's units. A bridge listens where these numbers pass, knows what they mean in one framework,
and feeds a ``Reporter``. One of these switches it on, in the process that logs:

- ``import rljob_runtime.bridges.verl``
- ``rljob_runtime.bridge("verl")``, with settings
- the environment variable ``RLJOB_BRIDGE=verl``, which reaches the workers of Ray too, where no line of a script runs

It changes nothing that is logged, never raises into the training loop once it stands, and serves no port before there is something to say.
"""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass, fields
from threading import RLock

from rljob_runtime.bridges.dialects import FRAMEWORKS
from rljob_runtime.bridges.exporter import Exporter, port_of
from rljob_runtime.bridges.health import Health
from rljob_runtime.bridges.mirror import Mirror
from rljob_runtime.bridges.sink import Sink
from rljob_runtime.bridges.taps import GENERAL, Listening
from rljob_runtime.reporter import Reporter

__all__ = ["FRAMEWORKS", "Bridge", "bridge"]

LOG = logging.getLogger("rljob_runtime.bridges")

_lock = RLock()
_active: list[Bridge] = []


@dataclass(frozen=True)
class _Settings:
    """What a bridge is made with; None is unknown, or for ``reporter`` one of its own."""

    reporter: Reporter | None
    port: int
    address: str
    samples_per_prompt: int | None
    prompts_per_step: int | None

    def beside(self, other: _Settings) -> list[str]:
        """The names of those that ``other`` has not."""
        return [each.name for each in fields(self) if getattr(self, each.name) != getattr(other, each.name)]


class Bridge:
    """A bridge that stands in this process; ``bridge`` makes it."""

    def __init__(self, name: str, settings: _Settings) -> None:
        self.framework = FRAMEWORKS[name]
        """What is known about the framework."""
        # Sparse: a counter of waited seconds that nobody feeds would be read as a trainer that never waits.
        self.reporter = Reporter(sparse=True) if settings.reporter is None else settings.reporter
        """What is fed; its registry holds the bridge's own metrics too."""
        self.exporter = Exporter(self.reporter, settings.port, settings.address) if settings.reporter is None else None
        """What serves the metrics; None where they go to a reporter that somebody else serves."""
        health = Health(name, self.reporter.shared)
        self.reporter.registry.register(health)
        self.mirror = Mirror(
            self.framework,
            Sink(self.reporter, settings.samples_per_prompt, settings.prompts_per_step),
            health,
            (lambda: None) if self.exporter is None else self.exporter.wake,
        )
        """What reads the log."""
        self._settings = settings
        self._listening = Listening(self.mirror)

    def _listen(self) -> None:
        for tap in (*self.framework.taps, *GENERAL):
            self._listening.to(tap)

    def _untouched(self) -> bool:
        """Whether it has fed and served nothing yet."""
        return not self.mirror.recognised and (self.exporter is None or self.exporter.port is None)

    def remove(self) -> None:
        """Listen no more, serve no more."""
        self._listening.stop()
        if self.exporter is not None:
            self.exporter.stop()
        with _lock:
            if self in _active:
                _active.remove(self)


def bridge(
    name: str,
    *,
    reporter: Reporter | None = None,
    port: int | None = None,
    address: str | None = None,
    samples_per_prompt: int | None = None,
    prompts_per_step: int | None = None,
) -> Bridge:
    """Mirror what the framework ``name`` logs in this process into the metrics of the job.

    Call it once, before or after the framework is imported. ``reporter``: feed this one, which somebody serves, instead of one of
    its own; of its own, only what the framework logs is shown. ``port`` and ``address``: where its own is served, else from
    ``RLJOB_BRIDGE_PORT`` and ``RLJOB_BRIDGE_ADDRESS``, else port 9100 everywhere. ``samples_per_prompt`` and ``prompts_per_step``, as
    in the RLJob's workload: for what the framework logs in another unit, or as a mean without a count; else from
    ``RLJOB_BRIDGE_SAMPLES_PER_PROMPT`` and ``RLJOB_BRIDGE_PROMPTS_PER_STEP``, else such numbers are left out.

    A bridge that stands already, such as the environment's, takes other settings as long as it has fed nothing; later it keeps its own, and
    that is said in the log. Raises ValueError for a name that is not known, settings that can't be, and a second framework.
    """
    if name not in FRAMEWORKS:
        raise ValueError(f"no bridge is called {name!r}: there are {', '.join(sorted(FRAMEWORKS))}")
    with _lock:
        standing = _active[0] if _active else None
        if standing is not None and standing.framework.name != name:
            raise ValueError(f"the bridge {standing.framework.name} stands already: a process speaks for one framework")
        before = standing._settings if standing is not None else _of_environment()
        settings = _Settings(
            reporter if reporter is not None else before.reporter,
            port if port is not None else before.port,
            address or before.address,
            _count("samples_per_prompt", samples_per_prompt) or before.samples_per_prompt,
            _count("prompts_per_step", prompts_per_step) or before.prompts_per_step,
        )
        if standing is not None and settings == before:
            return standing
        if standing is not None and not standing._untouched():
            LOG.warning(
                "%s bridge: it stands with other settings and has fed what was logged so far, so these are passed over: %s; call bridge() "
                "before anything is logged, or set them in the environment",
                name,
                ", ".join(settings.beside(before)),
            )
            return standing
        made = Bridge(name, settings)
        if standing is not None:
            standing.remove()
        _active.append(made)
        made._listen()
    return made


def _of_environment() -> _Settings:
    """What the environment says, else what is usual; ValueError for what can't be."""
    return _Settings(
        None,
        port_of(os.environ),
        os.environ.get("RLJOB_BRIDGE_ADDRESS") or "0.0.0.0",
        *(
            _count(variable, os.environ.get(variable) or None)
            for variable in ("RLJOB_BRIDGE_SAMPLES_PER_PROMPT", "RLJOB_BRIDGE_PROMPTS_PER_STEP")
        ),
    )


def _count(where: str, given: int | str | None) -> int | None:
    """The number that was given; None if none was. ValueError for less than 1."""
    if given is None:
        return None
    text = str(given)
    if not text.isdigit() or int(text) < 1:
        raise ValueError(f"{where} is {text!r}: write the number that is in the RLJob's workload, e.g. 8")
    return int(text)


def _after_fork() -> None:
    global _lock
    _lock = RLock()


os.register_at_fork(after_in_child=_after_fork)
