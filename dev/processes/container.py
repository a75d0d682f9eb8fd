"""One container of a pod: started, probed, restarted and ended as a kubelet would.

A container's life is one coroutine, ``Container.run``. It ends when the container has ended for good, or when it is told to stop.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dev.processes import probes
from dev.processes.environment import ConfigError
from dev.processes.process import Process, StartError
from dev.processes.status import ContainerState, now

Json = Mapping[str, Any]

FIRST_BACK_OFF_S = 10.0
LONGEST_BACK_OFF_S = 300.0
"""A kubelet's: the first restart is at once, the second after 10 s, and so on in doubles until 5 minutes."""

WELL_AFTER_S = 600.0
"""A container that ran so long starts its back-off anew."""

LEAST_GRACE_S = 2.0
"""What is left for SIGTERM, in seconds, when the hook has used up the grace period; as a kubelet has it."""


@dataclass(frozen=True)
class Made:
    """What a container comes to on this machine."""

    command: tuple[str, ...]
    env: Mapping[str, str]
    folder: Path
    """Working directory."""
    mounts: tuple[tuple[str, str], ...]
    """(path in the container, path here)."""


@dataclass(frozen=True)
class Surroundings:
    """What a container needs of its pod."""

    address: Callable[[], str]
    """The pod's address."""
    make: Callable[[Json], Awaitable[Made]]
    """Resolves the container; raises ConfigError."""
    moved: Callable[[str, Made], str]
    """Replaces paths of mounts in a word."""
    log: Callable[[str], Path]
    """The file for the output of a container by its name."""
    changed: Callable[[], None]
    """To be called when a state has changed."""
    event: Callable[[str, str, str], None]
    """``(type, reason, message)`` for the pod's events."""
    grace_s: float
    """The pod's termination grace period."""


class Container:
    """One container."""

    def __init__(
        self, spec: Json, pod: Surroundings, *, sidecar: bool = False, restart: str = "Always", restarts: int = 0
    ) -> None:
        """``restart`` is the policy that holds for it; ``restarts`` counts those so far."""
        self.spec = spec
        self.state = ContainerState(spec["name"], spec.get("image", ""), sidecar=sidecar, restarts=restarts)
        self._pod = pod
        self._restart = restart
        self._process: Process | None = None
        self._made: Made | None = None
        self._stopping = asyncio.Event()
        self._back_off_s = 0.0
        self.up = asyncio.Event()
        """Set once it has started, its startup probe included."""

    async def run(self) -> None:
        """Live until it has ended for good."""
        while not self._stopping.is_set():
            began = time.monotonic()
            code = await self._run_once()
            if code is None:
                # It could not be made: a kubelet tries again at its next look.
                await self._pause(1.0)
                continue
            self._ended(code)
            again = self._restart == "Always" or (self._restart == "OnFailure" and code != 0)
            if self._stopping.is_set() or not again:
                break
            self.state.last = self.state.end()
            self.state.restarts += 1
            if time.monotonic() - began > WELL_AFTER_S:
                self._back_off_s = 0.0
            await self._back_off()
        self._pod.changed()

    async def _run_once(self) -> int | None:
        """Run the command to its end; returns the exit code, None if there is nothing to run yet."""
        try:
            self._made = made = await self._pod.make(self.spec)
            process = await Process.start(made.command, made.env, made.folder, self._pod.log(self.state.name))
        except ConfigError as error:
            self._waits("CreateContainerConfigError", str(error))
            return None
        except StartError as error:
            self._pod.event("Warning", "Failed", f"container {self.state.name}: {error}")
            self.state.started_at = now()
            return 127
        self._process = process
        self.state.pid, self.state.started_at, self.state.waiting = process.pid, now(), None
        self.state.exit_code, self.state.finished_at, self.state.reason = None, None, ""
        self._pod.event("Normal", "Started", f"Started container {self.state.name} as process {process.pid}")
        self._pod.changed()
        if self._stopping.is_set():
            # It was told to stop while it started, when there was nothing to stop yet.
            await process.kill()
        probing = asyncio.ensure_future(self._probe())
        try:
            return await process.wait()
        finally:
            probing.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await probing

    def _ended(self, code: int) -> None:
        self._process = None
        state = self.state
        state.pid, state.ready, state.started = None, False, False
        state.exit_code, state.finished_at = code, now()
        state.reason = "Completed" if code == 0 else "Error"
        self._pod.changed()

    async def _back_off(self) -> None:
        if self._back_off_s:
            self._waits(
                "CrashLoopBackOff", f"back-off {self._back_off_s:.0f}s restarting failed container={self.state.name}"
            )
            self._pod.event("Warning", "BackOff", f"Back-off restarting failed container {self.state.name}")
            await self._pause(self._back_off_s)
        else:
            self._waits("ContainerCreating", "")
        self._back_off_s = min(LONGEST_BACK_OFF_S, 2 * self._back_off_s or FIRST_BACK_OFF_S)

    async def _pause(self, seconds: float) -> None:
        # Not wait_for: before Python 3.12 it forgets that it was cancelled where the event came at the same moment.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._stopping.wait()

    def _waits(self, reason: str, message: str) -> None:
        if self.state.waiting != (reason, message):
            self.state.waiting = (reason, message)
            self._pod.changed()

    # Probes

    async def _probe(self) -> None:
        """Ask what the container's probes ask, the startup probe alone until it has succeeded."""
        startup = self.spec.get("startupProbe")
        if startup and not await self._asked("startupProbe", startup, probes.tally(startup), until_sure=True):
            await self._fail("startupProbe")
            return
        self.state.started = True
        self.state.ready = not self.spec.get("readinessProbe")
        self.up.set()
        self._pod.changed()
        async with asyncio.TaskGroup() as group:
            if readiness := self.spec.get("readinessProbe"):
                group.create_task(self._ready(readiness))
            if liveness := self.spec.get("livenessProbe"):
                group.create_task(self._alive(liveness))

    async def _ready(self, probe: Json) -> None:
        counted = probes.tally(probe)
        counted.answer = False
        await asyncio.sleep(float(probe.get("initialDelaySeconds") or 0))
        while True:
            answer = await self._asked("readinessProbe", probe, counted)
            if answer != self.state.ready:
                self.state.ready = bool(answer)
                self._pod.changed()
            await asyncio.sleep(probes.period_s(probe))

    async def _alive(self, probe: Json) -> None:
        counted = probes.tally(probe)
        await asyncio.sleep(float(probe.get("initialDelaySeconds") or 0))
        while not self._stopping.is_set():
            if await self._asked("livenessProbe", probe, counted) is False:
                await self._fail("livenessProbe")
                return
            await asyncio.sleep(probes.period_s(probe))

    async def _asked(self, kind: str, probe: Json, counted: probes.Tally, *, until_sure: bool = False) -> bool | None:
        """The answer after one attempt, or after as many as it takes if ``until_sure``."""
        if until_sure:
            await asyncio.sleep(float(probe.get("initialDelaySeconds") or 0))
        while True:
            success, why = await probes.attempt(probe, self.spec, self._pod.address(), self._execute)
            answer = counted.take(success)
            if not success:
                self._pod.event("Warning", "Unhealthy", f"{kind} of container {self.state.name}: {why}")
            if not until_sure or answer is not None:
                return answer
            await asyncio.sleep(probes.period_s(probe))

    async def _fail(self, kind: str) -> None:
        self._pod.event("Normal", "Killing", f"container {self.state.name} failed its {kind}, and will be restarted")
        probe = self.spec[kind]
        await self._end_process(
            time.monotonic() + float(probe.get("terminationGracePeriodSeconds") or self._pod.grace_s)
        )

    # The end

    async def stop(self, deadline: Callable[[], float], turn: Awaitable[object] | None = None) -> None:
        """End it for good: hook, SIGTERM, and SIGKILL at ``deadline()`` (monotonic seconds, which may come nearer meanwhile).

        SIGTERM waits for ``turn``, as sidecars wait for the others.
        """
        self._stopping.set()
        await self._end_process(deadline, turn)

    async def _end_process(self, deadline: Callable[[], float] | float, turn: Awaitable[object] | None = None) -> None:
        process, at = self._process, deadline if callable(deadline) else lambda: deadline
        if process is None:
            return
        if hook := (self.spec.get("lifecycle") or {}).get("preStop"):
            await _until(asyncio.ensure_future(self._hook(hook)), at)
        if turn is not None:
            await _until(asyncio.ensure_future(_all(turn)), at)
        process.terminate()
        least = time.monotonic() + LEAST_GRACE_S
        await _until(asyncio.ensure_future(process.wait()), lambda: max(at(), least))
        await process.kill()

    async def _hook(self, hook: Json) -> None:
        if "sleep" in hook:
            await asyncio.sleep(float(hook["sleep"]["seconds"]))
            return
        if "httpGet" in hook:
            success, why = await probes.http_get(hook["httpGet"], self.spec, self._pod.address(), 3600.0)
        else:
            success, why = await self._execute(hook["exec"]["command"], 3600.0)
        if not success:
            self._pod.event("Warning", "FailedPreStopHook", f"PreStopHook of container {self.state.name}: {why}")

    async def _execute(self, command: Sequence[str], timeout_s: float) -> tuple[bool, str]:
        """Run a command in the container, its output in the container's log."""
        assert self._made is not None
        words = [self._pod.moved(word, self._made) for word in command]
        try:
            process = await Process.start(words, self._made.env, self._made.folder, self._pod.log(self.state.name))
        except StartError as error:
            return False, str(error)
        try:
            async with asyncio.timeout(timeout_s):
                code = await process.wait()
        except TimeoutError:
            return False, f"{' '.join(words)} took longer than {timeout_s:g} s"
        finally:
            await process.kill()
        return code == 0, f"{' '.join(words)} ended with exit code {code}"


async def _all(turn: Awaitable[object]) -> None:
    # Whoever gives up waiting for the others must not end them.
    await asyncio.shield(turn)


async def _until(task: asyncio.Future[Any], deadline: Callable[[], float]) -> None:
    """Wait for a task until the deadline, which may move, and cancel it then."""
    while not task.done() and (left := deadline() - time.monotonic()) > 0:
        await asyncio.wait({task}, timeout=min(left, 0.5))
    if not task.done():
        task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
