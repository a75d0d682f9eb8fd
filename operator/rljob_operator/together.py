"""Several requests at once: a pass that lifts fifty gates waits for a few round trips, not for fifty."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

T = TypeVar("T")
U = TypeVar("U")

AT_ONCE = 8
"""Requests of one pass that are under way at a time: many passes share the API server's patience with one client."""


async def together(call: Callable[[T], Awaitable[U]], items: Iterable[T]) -> list[U]:
    """The answers of ``call`` to ``items``, in their order, a few of them asked at a time.

    If one fails, those under way are waited for, none is begun any more, and the first error is raised.
    """
    waiting = list(enumerate(items))
    answers: dict[int, U] = {}
    errors: list[Exception] = []

    async def work() -> None:
        while waiting and not errors:
            at, item = waiting.pop(0)
            try:
                answers[at] = await call(item)
            except Exception as error:
                errors.append(error)

    await asyncio.gather(*(work() for _ in range(min(AT_ONCE, len(waiting)))))
    if errors:
        raise errors[0]
    return [answers[at] for at in sorted(answers)]
