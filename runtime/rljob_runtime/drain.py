"""Lets a sampler finish what it has before its server is told to stop: a preStop hook, or a sidecar of one.

A sampler that is sent SIGTERM aborts its samples, or refuses new ones while it finishes the old, so what is taken from it has to be
finished before. The layout tells the job to give it nothing new; this waits until that has come about.

When is it empty? The engine has to be seen without a sample for ``settle_s``, since a group that arrives one sample after the other
leaves gaps; a counter that moved between two looks at an idle engine is a sample, too. That is enough where the layout had listed the pod as draining. But a pod that is deleted or evicted was not listed before, and
its own copy of the layout never changes again: a kubelet updates no volumes of a pod that terminates. So there the job gets
``lag_s`` to learn it from its own copy. What still arrives later is refused by the server and has to be sent elsewhere by the job.

The engine is never paused or resumed here: samples of a paused engine hang, and a pause may be somebody's weight update. And the hook never
fails: a kubelet stops the container at once when it does.
"""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path

from rljob_runtime.layout import Layout
from rljob_runtime.sampler import Look, Sampler, State


class Outcome(Enum):
    """How a drain ended."""

    DRAINED = "drained"
    """The sampler was without samples long enough."""
    GONE = "gone"
    """Nothing listens: the server ended, or never came up."""
    DEAD = "dead"
    """Its engine is dead; what it had is lost already."""
    STUCK = "stuck"
    """It says that samples run, but nothing moves: its clients went away, or its engine hangs."""
    DEADLINE = "deadline"
    """Time is up, and not all is finished as far as is known."""


@dataclass(frozen=True)
class Patience:
    """How long a drain waits for what, in seconds."""

    deadline_s: float
    """For everything; to be less than the pod's grace period by the engine's own shutdown timeout."""
    settle_s: float = 3.0
    """The sampler has to be without samples for so long."""
    lag_s: float = 15.0
    """From the start, where the layout did not list the pod as draining: what the job needs to learn that it leaves."""
    gone_s: float = 3.0
    """Nothing listens, or the engine is dead, for so long: there is nothing to wait for."""
    stuck_s: float = 60.0
    """Samples run, nobody halted the engine, and no counter moves for so long: longer than a weight update that stops it unannounced.
    A quarter of it where the server's own count of requests is 0. A count of the server alone, of an engine that has nothing, is
    believed for as long."""


LEAK_LOOKS = 4
"""Looks at an engine at work in all of which the server counted more than the engine had: then what it counts too much is no sample."""


class Vigil:
    """Decides by looks at a sampler when it may stop. Pure: times are given."""

    def __init__(self, patience: Patience) -> None:
        """Begin at time 0."""
        self._patience = patience
        self._state: State | None = None
        self._since_s = 0.0
        self._progress = math.nan
        self._moved_s = 0.0
        self._leaked, self._at_work = math.inf, 0

    def see(self, at_s: float, look: Look, told: bool) -> Outcome | None:
        """What ``look`` at ``at_s`` seconds means; None: go on waiting. ``told``: the layout listed the pod as draining.

        A look without an answer changes nothing: the sampler is what it was seen to be last.
        """
        wait = self._patience
        look = self._without_leak(look)
        # Samples shorter than the time between two looks are seen by the counters alone; without counters nothing tells.
        between = look.state is State.IDLE and abs(look.progress - self._progress) > 0.0
        if look.state is not State.SILENT and (look.state is not self._state or between):
            self._state, self._since_s = look.state, at_s
        held = look.load > 0.0 and not _has_nothing(look)
        if look.state is not State.SILENT and (look.progress != self._progress or look.halted or held):
            # NaN differs from itself: without counters nothing is ever stuck.
            self._progress, self._moved_s = look.progress, at_s
        for_s = at_s - self._since_s
        if look.state is State.IDLE and for_s >= wait.settle_s and (told or at_s >= wait.lag_s):
            return Outcome.DRAINED
        if look.state is State.GONE and for_s >= wait.gone_s:
            return Outcome.GONE
        if look.state is State.DEAD and for_s >= wait.gone_s:
            return Outcome.DEAD
        # A sampler that was idle before has not been stuck for that long.
        still_s = min(for_s, at_s - self._moved_s)
        if look.state is State.BUSY and still_s >= wait.stuck_s / (4.0 if look.load == 0.0 else 1.0):
            return Outcome.STUCK
        return Outcome.DEADLINE if at_s >= wait.deadline_s else None

    def _without_leak(self, look: Look) -> Look:
        """The look, idle where an engine has nothing and its server counts no more than it always counted too much.

        vLLM's ``/load`` keeps a request whose client went away at the wrong moment, for ever. A request that is real and not yet in an
        engine at work gets there within moments, so what was there at each look is none.
        """
        surplus = look.load - look.running - (0.0 if math.isnan(look.waiting) else look.waiting)
        if not look.halted and look.progress > self._progress and not math.isnan(surplus):
            self._leaked, self._at_work = min(self._leaked, surplus), self._at_work + 1
        known = self._at_work >= LEAK_LOOKS and 0.0 < look.load <= self._leaked
        return replace(look, state=State.IDLE) if known and _has_nothing(look) else look


def _has_nothing(look: Look) -> bool:
    """Whether an engine that goes on has no sample by its own gauges."""
    return not look.halted and look.running == 0.0 and not look.waiting > 0.0


class Listing(Enum):
    """Where a pod stands in a layout."""

    SERVING = "serving"
    """It is given samples."""
    LEAVING = "leaving"
    """It gets nothing new."""
    ABSENT = "absent"
    """It is not there: the copy is older than the pod, or newer than its end, or the name is wrong."""
    UNKNOWN = "unknown"
    """There is no layout that says anything, or nobody knows the pod's name."""


def listing(directory: Path | None, pod: str) -> Listing:
    """What the layout in ``directory`` says of ``pod``."""
    if directory is None or not pod:
        return Listing.UNKNOWN
    try:
        layout = Layout.load(directory)
    except Exception:
        # Whatever is wrong with the layout: samples are waited for all the same.
        return Listing.UNKNOWN
    if pod in layout.draining:
        return Listing.LEAVING
    return Listing.SERVING if pod in {endpoint.pod for endpoint in layout.samplers.endpoints} else Listing.ABSENT


def on_stderr(text: str) -> None:
    """Print a line where a hook's errors go. A pipe that nobody reads any more is passed over: samples matter more than words."""
    try:
        print(text, file=sys.stderr, flush=True)
    except (OSError, ValueError):
        # What could not be written would be tried again at the end of the process, and make a failure of its exit code.
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115


def drain(
    sampler: Sampler,
    patience: Patience,
    *,
    layout: Path | None = None,
    pod: str = "",
    say: Callable[[str], None] = on_stderr,
    every_s: float = 0.5,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Outcome:
    """Wait until ``sampler`` may be stopped, and say how it went: by the deadline at the latest, however slowly the sampler answers.

    Raises what ``say`` raises, and what ends the process. ``layout`` is the directory of the layout, ``pod`` this pod's name in it. Looks every ``every_s`` seconds.
    """
    begin, vigil = clock(), Vigil(patience)
    place = listing(layout, pod)
    # Absent alone tells nothing: a copy that is older than the pod is never updated again once the pod terminates.
    told, served = place is Listing.LEAVING, place is Listing.SERVING
    say(f"draining {sampler.url} for at most {patience.deadline_s:g} s; {_first_words(place, layout, pod)}")
    unasked = Look(State.SILENT, why=f"{sampler.url} not asked")
    said_s, known = 0.0, unasked
    while True:
        left_s = patience.deadline_s - (clock() - begin)
        look = sampler.look(left_s) if left_s > 0.0 else unasked
        place = listing(layout, pod)
        served = served or place is Listing.SERVING
        told = told or place is Listing.LEAVING or (served and place is Listing.ABSENT)
        at_s = clock() - begin
        outcome = vigil.see(at_s, look, told)
        if look.state is not State.SILENT or (known.state is State.SILENT and look is not unasked):
            known = look
        if outcome is not None:
            say(_last_words(outcome, at_s, look, known))
            return outcome
        if at_s - said_s >= 10.0:
            said_s = at_s
            say(f"still draining after {at_s:.0f} s: {look}")
        sleep(max(0.0, min(every_s, patience.deadline_s - at_s)))


def _first_words(place: Listing, layout: Path | None, pod: str) -> str:
    if place is Listing.LEAVING:
        return f"the layout sends nothing new to {pod}"
    if place is Listing.ABSENT:
        return f"the layout in {layout} has no pod {pod}: it is older than the pod, or this is not the pod's name"
    return "the layout does not say yet that this sampler leaves"


def _last_words(outcome: Outcome, at_s: float, look: Look, known: Look) -> str:
    """What is said at the end; ``known`` is the last look that had an answer."""
    if outcome is Outcome.DRAINED:
        return f"drained after {at_s:.1f} s"
    if outcome is Outcome.GONE:
        return (
            f"{look}, so there is nothing to drain: the server ended or never came up, or --url is not where it listens"
        )
    if outcome is Outcome.DEAD:
        return f"{look}, so there is nothing to drain"
    if outcome is Outcome.STUCK:
        return f"the server says {look}, but nothing moves: its clients went away, or its engine hangs; there is nothing to wait for"
    return (
        f"the deadline is over after {at_s:.0f} s, with {known}; the server is stopped now and finishes what is left within its own shutdown "
        "timeout, or cuts it; raise --deadline (and the pod's grace period) if that happens often"
    )
