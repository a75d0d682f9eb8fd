"""How many samples are in flight, and where they go: the rollout's side of the layout.

A group is admitted only when all of its samples fit under the layout's cap. Half a group would hold room that no group can finish in, and it
is groups that are trained. Groups are admitted in the order in which they ask, or else one with many samples would wait for ever behind
small ones.

A sample goes to the sampler that has the fewest in flight from here, never to one that drains. One that refuses is shunned for some seconds:
it has nothing in flight because it refuses, and would be given everything. A sample that was refused waits where all samplers are shunned.

The layout changes the cap and the samplers while samples are in flight. They stay counted where they run; what is over a cap that
fell is not taken back, only nothing new is admitted.
"""

from __future__ import annotations

import asyncio
import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from types import TracebackType

from rljob_runtime.layout import Endpoint, Layout
from rljob_runtime.reporter import Reporter

_log = logging.getLogger(__name__)


@dataclass
class _Ask:
    """Somebody who waits for room."""

    samples: int
    admitted: Future[Group] = field(default_factory=Future)


class InFlightGate:
    """Admits groups and hands out samplers.

    Thread-safe, and usable from any event loop by the methods that end in ``_async``.
    """

    def __init__(
        self,
        layout: Layout | None = None,
        *,
        reporter: Reporter | None = None,
        shun_s: float = 5.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Follow ``layout`` and what ``follow`` is given later; nothing is admitted before the first.

        ``reporter`` is told what is in flight. A sampler that refused is shunned for ``shun_s`` seconds.
        """
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._reporter, self._shun_s, self._clock = reporter, shun_s, clock
        self._cap = 0
        self._in_flight = 0
        self._open: tuple[Endpoint, ...] = ()
        self._at: dict[str, int] = {}
        self._shunned: dict[str, float] = {}
        self._asks: deque[_Ask] = deque()
        self._waiters: list[Future[None]] = []
        self._followed = False
        if layout is not None:
            self.follow(layout)

    @property
    def in_flight(self) -> int:
        """Samples admitted and not finished."""
        return self._in_flight

    @property
    def cap(self) -> int:
        """Most samples in flight; 0 before the first layout."""
        return self._cap

    @property
    def open(self) -> tuple[Endpoint, ...]:
        """The samplers that are given samples."""
        return self._open

    def at(self, pod: str) -> int:
        """Samples that are in flight at ``pod`` from here."""
        with self._lock:
            return self._at.get(pod, 0)

    def follow(self, layout: Layout) -> None:
        """Take cap and samplers of ``layout``: the ``on_change`` of a watcher, or a part of a follower's ``resize``."""
        with self._lock:
            self._followed = True
            self._cap = layout.in_flight_cap
            leaving = set(layout.draining)
            self._open = tuple(each for each in layout.samplers.endpoints if each.pod not in leaving)
            here = {each.pod for each in self._open}
            self._shunned = {pod: until for pod, until in self._shunned.items() if pod in here}
            if self._asks and self._asks[0].samples > self._cap:
                self._say_too_large(self._asks[0].samples)
            self._admit()
            self._wake()

    def admit(self, samples: int, timeout_s: float | None = None) -> Group:
        """Wait until a group of ``samples`` fits, and count them as in flight until the group is left or its samples are done.

        Raises TimeoutError after ``timeout_s`` seconds.
        """
        ask = self._ask(samples)
        try:
            return ask.admitted.result(timeout_s)
        except TimeoutError:
            if self._withdraw(ask):
                raise TimeoutError(f"no room for a group of {samples} within {timeout_s} s: {self}") from None
            return ask.admitted.result()
        except BaseException:
            if not self._withdraw(ask):
                ask.admitted.result().leave()
            raise

    async def admit_async(self, samples: int) -> Group:
        """``admit`` for an event loop; to be cancelled in place of a timeout."""
        ask = self._ask(samples)
        try:
            return await asyncio.wrap_future(ask.admitted)
        except asyncio.CancelledError:
            # It may have been admitted just before the cancellation came through.
            if not self._withdraw(ask) and not ask.admitted.cancelled():
                ask.admitted.result().leave()
            raise

    def try_admit(self, samples: int) -> Group | None:
        """A group of ``samples`` if it fits now and nobody waits before it, else None."""
        with self._lock:
            if self._asks or not self._fits(samples):
                return None
            return self._enter(samples)

    def _ask(self, samples: int) -> _Ask:
        if samples < 1:
            raise ValueError(f"a group has at least one sample, not {samples}")
        with self._lock:
            ask = _Ask(samples)
            self._asks.append(ask)
            if self._followed and samples > self._cap:
                self._say_too_large(samples)
            self._admit()
            return ask

    def _withdraw(self, ask: _Ask) -> bool:
        """Take back what was asked; False if it was admitted."""
        with self._lock:
            try:
                self._asks.remove(ask)
            except ValueError:
                return False
            ask.admitted.cancel()
            self._admit()
            return True

    def _say_too_large(self, samples: int) -> None:
        _log.warning(
            "a group of %d samples does not fit under the layout's in-flight cap of %d: it waits until the cap rises",
            samples,
            self._cap,
        )

    def _fits(self, samples: int) -> bool:
        return self._followed and self._in_flight + samples <= self._cap

    def _admit(self) -> None:
        while self._asks and (self._asks[0].admitted.cancelled() or self._fits(self._asks[0].samples)):
            ask = self._asks.popleft()
            if ask.admitted.set_running_or_notify_cancel():
                ask.admitted.set_result(self._enter(ask.samples))

    def _enter(self, samples: int) -> Group:
        self._count(samples)
        return Group(self, samples)

    def _count(self, more: int) -> None:
        self._in_flight += more
        if self._reporter is not None:
            self._reporter.in_flight(self._in_flight)

    def _leave(self, samples: int) -> None:
        with self._lock:
            self._count(-samples)
            self._admit()

    def _choose(self, tried: set[str], patient_until_s: float) -> tuple[Endpoint | None, float | None]:
        """The sampler with the fewest in flight; one that was tried or shunned only if there is no other.

        Before ``patient_until_s`` none that is shunned. None comes with the seconds after which to look again, None for not before a layout.
        """
        now = self._clock()

        def order(each: Endpoint) -> tuple[bool, bool, int]:
            return each.pod in tried, self._shunned.get(each.pod, 0.0) > now, self._at.get(each.pod, 0)

        if now < patient_until_s:
            # The one whose turn it is first, tried or not: else who retries at the only sampler asks it as fast as it refuses.
            ends = [self._shunned.get(each.pod, 0.0) for each in self._open]
            if ends and min(ends) > now:
                return None, min(patient_until_s, *ends) - now
        found = min(self._open, key=order, default=None)
        if found is not None:
            self._at[found.pod] = self._at.get(found.pod, 0) + 1
        return found, None

    def _patience(self, tried: set[str]) -> float:
        """Until when a sample that was tried at ``tried`` waits for a sampler that is not shunned; one that is new takes any."""
        return self._clock() + self._shun_s if tried else -math.inf

    def _place(self, tried: set[str], timeout_s: float | None) -> Endpoint:
        """Choose a sampler, and wait as long as there is none; TimeoutError after ``timeout_s`` seconds."""
        until = None if timeout_s is None else time.monotonic() + timeout_s
        with self._lock:
            patient_until_s = self._patience(tried)
            while True:
                found, again_s = self._choose(tried, patient_until_s)
                if found is not None:
                    return found
                left = None if until is None else until - time.monotonic()
                if left is not None and left <= 0.0:
                    raise TimeoutError(f"no sampler takes samples within {timeout_s} s: {self}")
                self._changed.wait(min((each for each in (left, again_s) if each is not None), default=None))

    async def _place_async(self, tried: set[str]) -> Endpoint:
        patient_until_s = self._patience(tried)
        while True:
            with self._lock:
                found, again_s = self._choose(tried, patient_until_s)
                if found is not None:
                    return found
                changed: Future[None] = Future()
                self._waiters.append(changed)
            try:
                async with asyncio.timeout(again_s):
                    await asyncio.wrap_future(changed)
            except TimeoutError:
                continue
            finally:
                with self._lock:
                    if changed in self._waiters:
                        self._waiters.remove(changed)

    def _shun(self, endpoint: Endpoint) -> None:
        with self._lock:
            self._shunned[endpoint.pod] = self._clock() + self._shun_s

    def _off(self, endpoint: Endpoint) -> None:
        with self._lock:
            left = self._at[endpoint.pod] - 1
            if left:
                self._at[endpoint.pod] = left
            else:
                del self._at[endpoint.pod]

    def _wake(self) -> None:
        waiters, self._waiters = self._waiters, []
        for each in waiters:
            if each.set_running_or_notify_cancel():
                each.set_result(None)
        self._changed.notify_all()

    def __str__(self) -> str:
        with self._lock:
            return f"{self._in_flight} of {self._cap} samples in flight, {len(self._open)} samplers, {len(self._asks)} groups wait"


class Group:
    """A group that was admitted; left as a context manager, or by ``leave``."""

    def __init__(self, gate: InFlightGate, samples: int) -> None:
        """Made by the gate."""
        self._gate = gate
        self._room = samples
        self._unstarted = samples

    def sample(self, timeout_s: float | None = None) -> Sample:
        """The next sample of the group, at a sampler; waits as long as there is none that takes samples.

        Raises TimeoutError after ``timeout_s`` seconds, and ValueError for more samples than were admitted.
        """
        self._take()
        try:
            return Sample(self, self._gate._place(set(), timeout_s))
        except BaseException:
            self._put_back()
            raise

    async def sample_async(self) -> Sample:
        """``sample`` for an event loop; to be cancelled in place of a timeout."""
        self._take()
        try:
            return Sample(self, await self._gate._place_async(set()))
        except BaseException:
            self._put_back()
            raise

    def _take(self) -> None:
        with self._gate._lock:
            if not self._unstarted:
                raise ValueError("all samples of this group are started; a retry goes on with Sample.elsewhere")
            self._unstarted -= 1

    def _put_back(self) -> None:
        with self._gate._lock:
            if self._room:
                self._unstarted += 1

    def _done(self, samples: int) -> None:
        with self._gate._lock:
            freed = min(samples, self._room)
            self._room -= freed
            if freed:
                self._gate._leave(freed)

    def leave(self) -> None:
        """Give back the room of all samples that are not done; harmless if done before."""
        with self._gate._lock:
            self._unstarted = 0
            self._done(self._room)

    def __enter__(self) -> Group:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.leave()


class Sample:
    """A sample at a sampler; done as a context manager, or by ``done``."""

    def __init__(self, group: Group, endpoint: Endpoint) -> None:
        """Made by the group."""
        self._group = group
        self._tried: set[str] = set()
        self._is_done = False
        self.endpoint = endpoint
        """Where it is to be sent."""

    def elsewhere(self, timeout_s: float | None = None) -> Endpoint:
        """It was not accepted, or cut: the sampler to send it to next, one that was not tried if there is one.

        Its room stays taken, for the sample is still in flight. Waits as long as no sampler takes samples, and where each has refused just
        now until the first is shunned no longer; TimeoutError after ``timeout_s`` seconds.
        """
        return self._move(self._group._gate._place(self._refused(), timeout_s))

    async def elsewhere_async(self) -> Endpoint:
        """``elsewhere`` for an event loop."""
        return self._move(await self._group._gate._place_async(self._refused()))

    def _refused(self) -> set[str]:
        gate = self._group._gate
        with gate._lock:
            if self._is_done:
                raise ValueError("this sample is done")
            gate._shun(self.endpoint)
            self._tried.add(self.endpoint.pod)
            if self._tried >= {each.pod for each in gate.open}:
                # All were tried: any but the last.
                self._tried = {self.endpoint.pod}
            return self._tried

    def _move(self, found: Endpoint) -> Endpoint:
        gate = self._group._gate
        with gate._lock:
            gate._off(self.endpoint)
            self.endpoint = found
        return found

    def done(self) -> None:
        """It has finished, or is given up: its room is free; harmless if done before."""
        gate = self._group._gate
        with gate._lock:
            if not self._is_done:
                self._is_done = True
                gate._off(self.endpoint)
                self._group._done(1)

    def __enter__(self) -> Sample:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.done()
