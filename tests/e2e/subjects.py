"""The servers of which the same is asserted: a real vLLM, and the double that stands in for it in other tests."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from dataclasses import dataclass
from typing import Protocol

from dev.vllm.server import Server
from tests.e2e.client import PATIENCE_S
from tests.unit.vllm_double import Double


class Mortal(Protocol):
    """A server of a test's own, that may be ended."""

    @property
    def url(self) -> str: ...

    def sigterm(self) -> None:
        """Send SIGTERM, and wait for nothing."""

    def kill_engine(self) -> None:
        """End the engine's process by SIGKILL, and leave the one that answers HTTP."""

    def listens(self) -> bool: ...

    async def ended(self) -> None:
        """Wait until the process has ended by itself; TimeoutError if it does not."""


@dataclass
class LiveMortal:
    """A real vLLM."""

    server: Server

    @property
    def url(self) -> str:
        return self.server.url

    def sigterm(self) -> None:
        self.server.signal(signal.SIGTERM)

    def kill_engine(self) -> None:
        os.kill(self.server.engine_pid(), signal.SIGKILL)

    def listens(self) -> bool:
        return self.server.listens()

    async def ended(self) -> None:
        await asyncio.to_thread(self.server.wait_exit, PATIENCE_S)


@dataclass
class DoubleMortal:
    """The double."""

    double: Double
    shutdown_timeout_s: float

    def __post_init__(self) -> None:
        self._ending: asyncio.Task[None] | None = None

    @property
    def url(self) -> str:
        return self.double.url

    def sigterm(self) -> None:
        self._ending = asyncio.create_task(asyncio.to_thread(self.double.terminate, self.shutdown_timeout_s))

    def kill_engine(self) -> None:
        self.double.kill_engine()
        self._ending = asyncio.create_task(asyncio.to_thread(self.double.close))

    def listens(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.double.port)) == 0

    async def ended(self) -> None:
        assert self._ending is not None
        async with asyncio.timeout(PATIENCE_S):
            await self._ending
