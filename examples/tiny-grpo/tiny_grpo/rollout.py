"""The rollout: keeps samplers busy with groups, within the limits, while samplers come, go, die and change their weights.

It runs in a thread of its own, beside the trainer's loop. Three rules keep its account straight:

- A sampler gets samples only while the layout lists it and it has a published version: a new one, one that came back, and one whose update
  broke off are all given the current weights first.
- A sample that was refused or cut is asked for again, elsewhere, until it has its answer. So none is ever lost, as long as this process lives.
- A sampler that is being drained gets nothing new, no weights either: what it writes, it finishes with those that it has.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import threading
from collections.abc import Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp

from rljob_runtime import Endpoint, InFlightGate, Layout, Reporter
from rljob_runtime.gate import Group as Room
from rljob_runtime.gate import Sample as Place
from tiny_grpo.account import Account
from tiny_grpo.admission import Admission
from tiny_grpo.sampler import BusyError, CutError, RefusedError, Sampler
from tiny_grpo.samples import Group, Sample
from tiny_grpo.task import Kind, LengthTrace, Problem, problem

_log = logging.getLogger(__name__)

PAUSE_S = 0.5
"""Between two tries of what failed, and between two looks at whether more may start."""


class Rollout:
    """Everything between the layout's endpoints and the queue of complete groups."""

    def __init__(
        self, admission: Admission, account: Account, reporter: Reporter, *, kind: Kind, lengths: LengthTrace, seed: int
    ) -> None:
        """Groups are drawn from ``kind`` and ``lengths``; the same ``seed`` draws the same group for the same number."""
        self._admission, self._account, self._reporter = admission, account, reporter
        self._kind, self._lengths, self._seed = kind, lengths, seed
        self._gate = InFlightGate(reporter=reporter)
        self._layout: Layout | None = None
        self._samplers: dict[Endpoint, Sampler] = {}
        self._weights: tuple[int, Path] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._failure: BaseException | None = None
        self._loop = asyncio.new_event_loop()
        self._changed = asyncio.Event()
        self._session: aiohttp.ClientSession
        self._thread = threading.Thread(target=self._loop.run_forever, name="rollout", daemon=True)

    def start(self) -> None:
        """Start the thread; samples flow once there are endpoints and weights."""
        self._thread.start()
        self._run(self._open())

    @property
    def in_flight(self) -> int:
        """Samples submitted and not finished."""
        return self._gate.in_flight

    def follow(self, layout: Layout) -> None:
        """Use the samplers of ``layout`` from now on, those that are being drained for nothing new."""
        self._run(self._follow(layout))

    def publish(self, version: int, weights: Path) -> float:
        """Give all samplers in use the weights of ``version``; returns the longest pause of one of them, in seconds.

        Returns when each has them or is out of use until it has.
        """
        return self._run(self._publish(version, weights))

    def check(self) -> None:
        """Raise RuntimeError if something failed here that nobody waits for: a group would be missing for ever, without a word."""
        if self._failure is not None:
            raise RuntimeError("the rollout failed") from self._failure

    def numbers(self) -> dict[str, int]:
        """The account and what is in flight, of one moment."""

        async def read() -> dict[str, int]:
            return {**self._account.numbers(), "in_flight": self._gate.in_flight}

        return dict(self._run(read()))

    def close(self) -> dict[str, int]:
        """Stop; samples that wait for an answer are given up, and counted as lost. Returns the last account."""
        self._run(self._close())
        numbers = self.numbers()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        return numbers

    def _run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    async def _open(self) -> None:
        # A connection is used once: one that is kept may be closed by a server that is leaving just as a sample is sent over it, and
        # nobody could tell whether that sample was begun.
        self._session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(force_close=True, limit=0))
        self._spawn(self._admit())

    async def _close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._session.close()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            self._failure = task.exception()

    # Samplers.

    async def _follow(self, layout: Layout) -> None:
        self._layout = layout
        used = [e for e in layout.samplers.endpoints if e.pod not in layout.draining]
        for endpoint, sampler in self._samplers.items():
            if sampler.listed and endpoint not in used:
                sampler.listed = False
                self._spawn(self._see_off(endpoint, sampler))
        for endpoint in used:
            sampler = self._samplers.setdefault(endpoint, Sampler(endpoint.pod, endpoint.url, self._session))
            sampler.listed = True
            self._bring_up(sampler)
        self._tell_gate()

    def _tell_gate(self) -> None:
        """The gate sees of the layout those samplers alone that have the current weights."""
        if self._layout is not None:
            ready = tuple(e for e, s in self._samplers.items() if s.listed and s.version is not None)
            self._gate.follow(replace(self._layout, samplers=replace(self._layout.samplers, endpoints=ready)))
            self._changed.set()

    def _bring_up(self, sampler: Sampler) -> None:
        """See to it that a sampler gets the current weights, and then samples."""
        if sampler.version is None and not sampler.joining:
            sampler.joining = True
            self._spawn(self._join(sampler))

    async def _join(self, sampler: Sampler) -> None:
        while sampler.listed and sampler.version is None:
            weights = self._weights
            if weights is not None:
                await self._update(sampler, *weights)
            if weights == self._weights and sampler.version is None:
                await asyncio.sleep(PAUSE_S)
        sampler.joining = False

    async def _update(self, sampler: Sampler, version: int, weights: Path) -> float:
        async with sampler.updating:
            if sampler.version == version:
                return 0.0
            self._take_out(sampler)
            try:
                paused_s = await sampler.update(version, weights)
            except RefusedError as error:
                _log.info("%s", error)
            except CutError as error:
                _log.warning("%s", error)
                for sample in sampler.open:
                    sample.cancel()
            else:
                # While it was updated, a newer version may have come out.
                if self._weights == (version, weights):
                    sampler.version = version
                    self._tell_gate()
                return paused_s
            return 0.0

    def _take_out(self, sampler: Sampler) -> None:
        """It gets no samples until it was given the current weights."""
        sampler.version = None
        self._tell_gate()

    async def _publish(self, version: int, weights: Path) -> float:
        self._weights = (version, weights)
        for sampler in self._samplers.values():
            if not sampler.listed:
                sampler.version = None
        used = [s for s in self._samplers.values() if s.version is not None]
        pauses = await asyncio.gather(*(self._update(s, version, weights) for s in used))
        for sampler in used:
            if sampler.listed:
                self._bring_up(sampler)
        self._admission.version = version
        self._changed.set()
        return max(pauses, default=0.0)

    async def _see_off(self, endpoint: Endpoint, sampler: Sampler) -> None:
        """Wait until a sampler that is no longer listed has finished; if it is gone, so is what it was writing."""
        missed = 0
        while sampler.open and not sampler.listed and missed < 3:
            await asyncio.sleep(PAUSE_S)
            missed = missed + 1 if await sampler.is_gone() else 0
        if not sampler.listed:
            for sample in sampler.open:
                sample.cancel()
            self._samplers.pop(endpoint, None)

    # Samples.

    async def _admit(self) -> None:
        while True:
            size = self._admission.limits.samples_per_prompt
            while self._admission.may_start() and (room := self._gate.try_admit(size)) is not None:
                self._account.submitted.inc(size)
                rng = random.Random(f"{self._seed}/{self._admission.start()}")
                length = self._lengths.draw(self._admission.version, rng)
                self._spawn(self._group(room, size, problem(self._kind, length, rng)))
            self._changed.clear()
            # Not wait_for: before Python 3.12 it forgets that it was cancelled where the event came at the same moment, and goes on for ever.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(PAUSE_S):
                    await self._changed.wait()

    async def _group(self, room: Room, size: int, wanted: Problem) -> None:
        with room:
            samples = await asyncio.gather(*(self._sample(room, wanted) for _ in range(size)))
        self._admission.complete(Group(wanted, tuple(samples)))
        self._reporter.queue(self._admission.queued)

    async def _sample(self, room: Room, wanted: Problem) -> Sample:
        try:
            with await room.sample_async() as place:
                while (sample := await self._ask(place, wanted)) is None:
                    self._account.retried.inc()
                    await place.elsewhere_async()
        except BaseException:
            self._account.lost.inc()
            raise
        self._account.finished.inc()
        self._reporter.response(len(sample.tokens))
        self._changed.set()
        return sample

    async def _ask(self, place: Place, wanted: Problem) -> Sample | None:
        """One answer, or None, and that sampler out of use until it has taken the current weights again."""
        sampler = self._samplers.get(place.endpoint)
        try:
            if sampler is None:
                raise RefusedError(f"{place.endpoint.pod} is gone")
            return await self._answer(sampler, wanted)
        except RefusedError as error:
            self._account.refused.inc()
            _log.info("%s", error)
            if sampler is None or isinstance(error, BusyError):
                # It may be the only one.
                await asyncio.sleep(PAUSE_S)
                return None
        except CutError as error:
            self._account.cut.inc()
            _log.warning("%s", error)
        # It may have been started anew, and have its first weights.
        if not sampler.updating.locked():
            self._take_out(sampler)
        if sampler.listed:
            self._bring_up(sampler)
        return None

    async def _answer(self, sampler: Sampler, wanted: Problem) -> Sample:
        """Ask in a task of its own, so that a sampler that dies silently can be given up."""
        asked = self._loop.create_task(sampler.generate(wanted))
        sampler.open.add(asked)
        try:
            await asyncio.wait([asked])
        finally:
            sampler.open.discard(asked)
            asked.cancel()
        if asked.cancelled():
            raise CutError(f"{sampler.pod} was given up")
        return asked.result()
