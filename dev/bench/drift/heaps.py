"""Binary heaps in two arrays, keys and items."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from dev.bench.drift.compiled import jit
from dev.bench.drift.state import Ints


@jit
def heap_push(keys: NDArray[Any], items: Ints, size: int, key: float, item: int) -> None:
    """Add to a heap that holds ``size`` entries."""
    at = size
    while at > 0:
        up = (at - 1) // 2
        if keys[up] <= key:
            break
        keys[at], items[at] = keys[up], items[up]
        at = up
    keys[at], items[at] = key, item


@jit
def heap_drop(keys: NDArray[Any], items: Ints, size: int, at: int) -> None:
    """Remove the entry at ``at`` from a heap that holds ``size`` entries."""
    last = size - 1
    key, item = keys[last], items[last]
    if at == last:
        return
    while at > 0 and keys[(at - 1) // 2] > key:
        up = (at - 1) // 2
        keys[at], items[at] = keys[up], items[up]
        at = up
    while True:
        down = 2 * at + 1
        if down >= last:
            break
        if down + 1 < last and keys[down + 1] < keys[down]:
            down += 1
        if keys[down] >= key:
            break
        keys[at], items[at] = keys[down], items[down]
        at = down
    keys[at], items[at] = key, item
