"""Probes: what is asked of a container, and how many answers change its mind."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import aiohttp

Json = Mapping[str, Any]

Execute = Callable[[Sequence[str], float], Awaitable[tuple[bool, str]]]
"""``(command, timeout in seconds)`` → whether it ended with 0 in time, and why not."""


@dataclass
class Tally:
    """How often in a row a probe has said the same, and what counts as its answer."""

    success_threshold: int
    failure_threshold: int
    answer: bool | None = None
    """None until there were enough answers for one."""
    _last: bool | None = None
    _run: int = 0

    def take(self, success: bool) -> bool | None:
        """Take one result in; returns the answer."""
        self._run = self._run + 1 if success == self._last else 1
        self._last = success
        if self._run >= (self.success_threshold if success else self.failure_threshold):
            self.answer = success
        return self.answer


def tally(probe: Json) -> Tally:
    """A fresh tally with a probe's thresholds."""
    return Tally(int(probe.get("successThreshold") or 1), int(probe.get("failureThreshold") or 3))


def period_s(probe: Json) -> float:
    """Seconds between two attempts."""
    return float(probe.get("periodSeconds") or 10)


async def attempt(probe: Json, container: Json, address: str, execute: Execute) -> tuple[bool, str]:
    """Ask once; returns whether it succeeded, and why not."""
    timeout_s = float(probe.get("timeoutSeconds") or 1)
    try:
        if "exec" in probe:
            return await execute(probe["exec"]["command"], timeout_s)
        if "httpGet" in probe:
            return await http_get(probe["httpGet"], container, address, timeout_s)
        if "tcpSocket" in probe:
            return await _connect(probe["tcpSocket"], container, address, timeout_s)
    except ValueError as error:
        return False, str(error)
    return False, f"this node knows no probe like {', '.join(probe)}"


async def http_get(wanted: Json, container: Json, address: str, timeout_s: float) -> tuple[bool, str]:
    """Fetch a path of a container; any status from 200 to 399 is a success."""
    scheme = str(wanted.get("scheme") or "HTTP").lower()
    path = str(wanted.get("path") or "/")
    url = f"{scheme}://{wanted.get('host') or address}:{port_of(wanted['port'], container)}/{path.removeprefix('/')}"
    headers = {header["name"]: header["value"] for header in wanted.get("httpHeaders") or ()}
    # As a kubelet does: a probe asks whether somebody answers, not who.
    context = ssl._create_unverified_context() if scheme == "https" else False
    try:
        async with (
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=timeout_s)) as session,
            session.get(url, headers=headers, ssl=context) as answer,
        ):
            if 200 <= answer.status < 400:
                return True, ""
            return False, f"HTTP probe failed with statuscode: {answer.status}"
    except TimeoutError:
        return False, f"GET {url}: no answer within {timeout_s:g} s"
    except aiohttp.ClientError as error:
        return False, f"GET {url}: {error}"


async def _connect(wanted: Json, container: Json, address: str, timeout_s: float) -> tuple[bool, str]:
    host, port = wanted.get("host") or address, port_of(wanted["port"], container)
    try:
        async with asyncio.timeout(timeout_s):
            _, writer = await asyncio.open_connection(host, port)
    except (OSError, TimeoutError) as error:
        return False, f"connecting to {host}:{port}: {error or 'no answer in time'}"
    writer.close()
    return True, ""


def port_of(port: int | str, container: Json) -> int:
    """A port by its number or by its name in the container; raises ValueError for a name that is none."""
    if isinstance(port, int):
        return port
    named = {entry["name"]: int(entry["containerPort"]) for entry in container.get("ports") or () if entry.get("name")}
    if port not in named:
        raise ValueError(f"container {container['name']} has no port called {port}")
    return named[port]
