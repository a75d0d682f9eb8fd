"""Looks at real processes, shared by the tests of pods that run as processes."""

from __future__ import annotations

import asyncio
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any


async def until(condition: Callable[[], Any]) -> Any:
    """Wait for a condition; the test's own time limit is the only one."""
    while not (found := condition()):  # noqa: ASYNC110 - what is waited for is on disk or in another process
        await asyncio.sleep(0.01)
    return found


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def python(code: str) -> list[str]:
    return [sys.executable, "-u", "-c", textwrap.dedent(code)]
