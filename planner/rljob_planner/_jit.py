"""How the simulator's functions are compiled: no Python objects, the GIL released, machine code cached on disk.

What differs from numba's defaults:

Reference counting is switched off (``_nrt``) and every function is inlined into its caller: compiled code here allocates
nothing and its arrays outlive every call, while counting and passing two dozen arrays at each call took nine tenths of the
run time. Where a release of numba does without these options the functions are compiled the ordinary way: slower, not wrong.

Python calls a few of these functions alone (``entry``). Only they are cached and get a wrapper that Python can call; machine
code and a cache file for each of the others (``jit``) would double the time of the first run, for code that is never called.

The cache is valid for the text of all compiled modules together. By itself numba looks at the file of the function alone and
would go on using machine code into which an older version of a function of another file was inlined.

A cache needs a place to write. Where there is none (a read-only container without a home directory) numba refuses to
compile at all, so these functions are then compiled in memory, once a process.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

import numba

F = TypeVar("F", bound=Callable[..., object])

_COMPILED = (
    "_draw.py",
    "_environment.py",
    "_heaps.py",
    "_jit.py",
    "_line.py",
    "_loop.py",
    "_queue.py",
    "_replica.py",
    "_state.py",
)

_COMMON: dict[str, object] = {"nogil": True, "error_model": "numpy"}
_FAST: dict[str, object] = {"_nrt": False, "forceinline": True}
_UNCALLED: dict[str, object] = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}


def _text_of_compiled_modules() -> str:
    digest = hashlib.sha256()
    for name in _COMPILED:
        digest.update((Path(__file__).parent / name).read_bytes())
    return digest.hexdigest()


_STAMP = _text_of_compiled_modules()


def _njit(function: object, options: dict[str, object], fast: dict[str, object]) -> Any:
    try:
        return numba.njit(**options, **fast)(function)
    except KeyError:
        return numba.njit(**options)(function)


def jit(function: F) -> F:
    """Compile ``function`` into the compiled functions that call it; Python cannot."""
    return cast(F, _njit(function, _COMMON, _FAST | _UNCALLED))


def entry(function: F) -> F:
    """Compile ``function``, which Python calls, on its first call."""
    try:
        dispatcher = _njit(function, _COMMON | {"cache": True}, _FAST)
    except RuntimeError:
        dispatcher = _njit(function, _COMMON, _FAST)
    index: Any = getattr(getattr(dispatcher, "_cache", None), "_cache_file", None)
    if hasattr(index, "_source_stamp"):
        index._source_stamp = _STAMP
    return cast(F, dispatcher)
