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

import os
from threading import Lock

from rljob_runtime.bridges.dialects import FRAMEWORKS
from rljob_runtime.bridges.exporter import Exporter, port_of
from rljob_runtime.bridges.mirror import Mirror
from rljob_runtime.bridges.sink import Sink
from rljob_runtime.bridges.taps import GENERAL, Listening
from rljob_runtime.reporter import Reporter

__all__ = ["FRAMEWORKS", "Bridge", "bridge"]

_lock = Lock()
_active: list[Bridge] = []


class Bridge:
    """A bridge that stands in this process; ``bridge`` makes it."""

    def __init__(
        self,
        name: str,
        reporter: Reporter | None,
        port: int,
        address: str,
        samples_per_prompt: int | None,
        prompts_per_step: int | None,
    ) -> None:
        self.framework = FRAMEWORKS[name]
        """What is known about the framework."""
        # Sparse: a counter of waited seconds that nobody feeds would be read as a trainer that never waits.
        self.reporter = Reporter(sparse=True) if reporter is None else reporter
        """What is fed; its registry holds the bridge's own metrics too."""
        self.exporter = Exporter(self.reporter, port, address) if reporter is None else None
        """What serves the metrics; None where they go to a reporter that somebody else serves."""
        self.mirror = Mirror(
            self.framework,
            Sink(self.reporter, samples_per_prompt, prompts_per_step),
            self.reporter.registry,
            (lambda: None) if self.exporter is None else self.exporter.wake,
        )
        """What reads the log."""
        self._listening = Listening(self.mirror)
        for tap in (*self.framework.taps, *GENERAL):
            self._listening.to(tap)

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
    ``RLJOB_BRIDGE_SAMPLES_PER_PROMPT`` and ``RLJOB_BRIDGE_PROMPTS_PER_STEP``, else such numbers are left out. Raises ValueError for a name that is not known, settings that can't be, and a second framework.
    """
    if name not in FRAMEWORKS:
        raise ValueError(f"no bridge is called {name!r}: there are {', '.join(sorted(FRAMEWORKS))}")
    with _lock:
        for standing in _active:
            if standing.framework.name == name:
                return standing
            raise ValueError(f"the bridge {standing.framework.name} stands already: a process speaks for one framework")
        made = Bridge(
            name,
            reporter,
            port_of(os.environ) if port is None else port,
            address or os.environ.get("RLJOB_BRIDGE_ADDRESS", "0.0.0.0"),
            _count("RLJOB_BRIDGE_SAMPLES_PER_PROMPT", samples_per_prompt),
            _count("RLJOB_BRIDGE_PROMPTS_PER_STEP", prompts_per_step),
        )
        _active.append(made)
    return made


def _count(variable: str, given: int | None) -> int | None:
    """What was given, or what the environment says; None if neither. ValueError for less than 1."""
    text = os.environ.get(variable, "") if given is None else str(given)
    if not text:
        return None
    if not text.isdigit() or int(text) < 1:
        raise ValueError(f"{variable} is {text!r}: write the number that is in the RLJob's workload, e.g. 8")
    return int(text)
