"""How the simulator's functions are compiled: no Python objects, the GIL released, machine code cached on disk.

Reference counting is switched off (``_nrt``): compiled code here allocates nothing and its arrays outlive every call, while
atomic counting of each array in a tuple took nine tenths of the run time. It is an option that numba keeps for its own use,
so where a release does without it the functions are compiled the ordinary way: slower, not wrong.

A cache needs a place to write. Where there is none (a read-only container without a home directory) numba refuses to
compile at all, so these functions are then compiled in memory, once a process.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar, cast

import numba

F = TypeVar("F", bound=Callable[..., object])


def jit(function: F) -> F:
    """Compile ``function`` on its first call."""
    options: dict[str, object] = {"nogil": True, "error_model": "numpy", "cache": True, "_nrt": False}
    while True:
        try:
            return cast(F, numba.njit(**options)(function))
        except RuntimeError:
            if options.pop("cache", None) is None:
                raise
        except KeyError:
            if options.pop("_nrt", None) is None:
                raise
