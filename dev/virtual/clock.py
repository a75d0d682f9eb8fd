"""Virtual time: a heap of events, and an event loop of asyncio that follows it.

The operator's passes are coroutines, and whatever they await (a request, a timeout, a thread) must take virtual time only. So the
clock *is* an event loop: tasks, futures and timeouts of asyncio work unchanged, and the time that they wait for is a jump of
the clock. Events of the same instant run in the order in which they were asked for, so that a run is the same every time.
"""

from __future__ import annotations

import asyncio
import heapq
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context
from typing import Any, TypeVar, cast

T = TypeVar("T")

START_S = 1_900_000_000.0
"""Epoch seconds at which virtual time begins: a whole second, since Kubernetes writes times as such."""

_MOST_AT_ONCE = 100_000
"""Callbacks at one instant before a run is taken for one that never ends."""


class VirtualClock:
    """The time, what is to happen, and the loop that lets it happen."""

    def __init__(self, start_s: float = START_S) -> None:
        self.now_s = start_s
        """Epoch seconds of virtual time."""
        self._ready: deque[asyncio.Handle] = deque()
        self._heap: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._count = 0
        self._tasks: set[asyncio.Task[Any]] = set()
        self._raised: BaseException | None = None
        self._at_once = 0
        # The parts of a loop that tasks, futures, locks and timeouts use are here; those for sockets and processes are not.
        self._loop = cast(asyncio.AbstractEventLoop, self)

    # What models use.

    def at(self, when_s: float, function: Callable[..., object], *args: Any) -> asyncio.TimerHandle:
        """Calls a function at an instant, at the earliest now; the handle can be cancelled."""
        return self.call_at(max(when_s, self.now_s), function, *args)

    def after(self, delay_s: float, function: Callable[..., object], *args: Any) -> asyncio.TimerHandle:
        """Calls a function in so many seconds."""
        return self.at(self.now_s + delay_s, function, *args)

    def spawn(self, coroutine: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Starts a coroutine; what it raises ends the run unless somebody looks at the task."""
        task: asyncio.Task[T] = self.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    async def pause(self, delay_s: float) -> None:
        """Waits in virtual time; at 0 seconds everything else that is due now goes first."""
        future = self.create_future()
        self.call_at(self.now_s + delay_s, _resolve, future)
        await future

    def run_for(self, seconds: float) -> None:
        """Lets so many seconds pass."""
        self.run_until(self.now_s + seconds)

    def run_until(self, when_s: float) -> None:
        """Lets everything happen that is due until an instant, which is then now."""
        self.run_while(lambda: True, until_s=when_s)
        self.now_s = max(self.now_s, when_s)

    def run_while(self, condition: Callable[[], bool], *, until_s: float) -> bool:
        """Lets things happen while a condition holds, at most until an instant; returns whether it ceased to hold.

        The condition is asked after every event. Raises what a callback or an unobserved task raised.
        """
        before = _running_loop()
        asyncio._set_running_loop(self._loop)
        try:
            while condition():
                if not self._step(until_s):
                    return False
            return True
        finally:
            asyncio._set_running_loop(before)

    def run(self, coroutine: Coroutine[Any, Any, T], *, within_s: float = 86_400.0) -> T:
        """Runs a coroutine to its end; TimeoutError if it has none within so many virtual seconds."""
        task: asyncio.Task[T] = self.create_task(coroutine)
        if not self.run_while(lambda: not task.done(), until_s=self.now_s + within_s):
            task.cancel()
            raise TimeoutError(f"no end within {within_s:g} virtual seconds")
        return task.result()

    def _step(self, until_s: float) -> bool:
        """Runs one callback; False if none is due until then."""
        handle: asyncio.Handle
        if self._ready:
            handle = self._ready.popleft()
            self._at_once += 1
            if self._at_once > _MOST_AT_ONCE:
                raise RuntimeError(f"{_MOST_AT_ONCE} callbacks at one instant of virtual time: something never waits")
        else:
            while self._heap and self._heap[0][2].cancelled():
                heapq.heappop(self._heap)
            if not self._heap or self._heap[0][0] > until_s:
                return False
            when_s, _, handle = heapq.heappop(self._heap)
            if when_s > self.now_s:
                self._at_once = 0
                self.now_s = when_s
        if not handle.cancelled():
            handle._run()
        if self._raised is not None:
            error, self._raised = self._raised, None
            raise error
        return True

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            self._raised = task.exception()

    # What asyncio asks of a loop.

    def time(self) -> float:
        """The loop's time is the virtual one."""
        return self.now_s

    def call_soon(self, callback: Callable[..., object], *args: Any, context: Context | None = None) -> asyncio.Handle:
        """Calls a function at this instant, after what was asked for before."""
        handle = asyncio.Handle(callback, args, self._loop, context)
        self._ready.append(handle)
        return handle

    call_soon_threadsafe = call_soon

    def call_at(
        self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        """Calls a function at an instant."""
        handle = asyncio.TimerHandle(when, callback, args, self._loop, context)
        self._count += 1
        heapq.heappush(self._heap, (when, self._count, handle))
        return handle

    def call_later(
        self, delay: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        """Calls a function in so many seconds."""
        return self.call_at(self.now_s + delay, callback, *args, context=context)

    def create_future(self) -> asyncio.Future[Any]:
        """A future of this loop."""
        return asyncio.Future(loop=self._loop)

    def create_task(self, coro: Any, **options: Any) -> asyncio.Task[Any]:
        """A task of this loop."""
        return asyncio.Task(coro, loop=self._loop, **options)

    def run_in_executor(self, _executor: object, func: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:
        """A thread takes no virtual time."""
        future = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as error:
            future.set_exception(error)
        return future

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """What a callback raised is raised by the run; what a task raised that nobody waits for any more died with its process."""
        if "never retrieved" in str(context.get("message")):
            return
        self._raised = context.get("exception") or RuntimeError(str(context.get("message")))

    def get_debug(self) -> bool:
        """No debug mode."""
        return False

    def is_running(self) -> bool:
        """Whether it runs now."""
        return _running_loop() is self._loop

    def is_closed(self) -> bool:
        """It holds nothing that would have to be closed."""
        return False

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Cancelled timers are dropped when they come up."""


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _running_loop() -> asyncio.AbstractEventLoop | None:
    return asyncio._get_running_loop()
