"""One run of a container's command, or of a command inside of a container, under its shim."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

from dev.processes import shim


class StartError(RuntimeError):
    """A command that could not be started; the message says which and why."""


class Process:
    """A command that runs. All that it has started ends when it does, when ``kill`` is called, and when this process ends."""

    def __init__(self, parent: asyncio.subprocess.Process, pid: int) -> None:
        """Use ``start``."""
        self._parent = parent
        self.pid = pid
        """Process id of the command itself, which a container's first process has on this machine."""
        self._ending = asyncio.ensure_future(self._end())

    @classmethod
    async def start(cls, command: Sequence[str], env: Mapping[str, str], folder: Path, log: Path) -> Self:
        """Start a command with exactly this environment in ``folder``, its output appended to ``log``; raises StartError."""
        if not os.path.isdir(folder):  # noqa: ASYNC240 - a look at a local disk
            raise StartError(f"the working directory {folder} is not there")
        parent = await asyncio.create_subprocess_exec(
            *(sys.executable, "-I", "-S", str(shim.__file__), str(log), *command),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            cwd=folder,
            env=dict(env),
            start_new_session=True,
        )
        assert parent.stdout is not None
        told = json.loads(await parent.stdout.readline() or b'{"error": "its parent was killed"}')
        if "error" in told:
            await parent.wait()
            raise StartError(told["error"])
        return cls(parent, int(told["pid"]))

    async def _end(self) -> int:
        assert self._parent.stdout is not None
        line = await self._parent.stdout.readline()
        await self._parent.wait()
        # Somebody may have killed the parent, and the kernel the command with it.
        return int(json.loads(line)["code"]) if line else 128 + signal.SIGKILL

    async def wait(self) -> int:
        """Wait for its end; returns the exit code, 128 + the signal's number for one that was killed."""
        return await asyncio.shield(self._ending)

    @property
    def ended(self) -> bool:
        """Whether it has ended."""
        return self._ending.done()

    def terminate(self) -> None:
        """Send SIGTERM to the command; harmless if it has ended."""
        if not self._ending.done():
            # A process that nobody has waited for yet keeps its id: this can hit nobody else.
            os.kill(self._parent.pid, signal.SIGTERM)

    async def kill(self) -> None:
        """End it with all that it has started, and wait for that; harmless if it has ended."""
        assert self._parent.stdin is not None
        self._parent.stdin.close()
        await self.wait()
