"""How the simulator's functions are compiled: no Python objects, the GIL released, machine code cached on disk.

What differs from numba's defaults:

Reference counting is switched off (``_nrt``) and every function is inlined into its caller: compiled code here allocates
nothing and its arrays outlive every call, while counting and passing two dozen arrays at each call took nine tenths of the
run time. Where a release of numba does without these options the functions are compiled the ordinary way: slower, not wrong.

Only what Python calls (``entry``) is cached and gets a wrapper that Python can call; machine code and a cache file for each of
the others (``jit``) would double the time of the first run, for code that is never called. The event loop has neither: its
machine code is kept and called by ``_native``, which needs no compiler to do so.

The cache is valid for the text of all compiled modules together. By itself numba looks at the file of the function alone and
would go on using machine code into which an older version of a function of another file was inlined.

A cache needs a place to write. Where there is none (a read-only container without a home directory) numba refuses to
compile at all, so these functions are then compiled in memory, once a process.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba

from rljob_planner._native import source_stamp

F = TypeVar("F", bound=Callable[..., object])

_COMMON: dict[str, object] = {"nogil": True, "error_model": "numpy"}
_FAST: dict[str, object] = {"_nrt": False, "forceinline": True}
_UNCALLED: dict[str, object] = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}


def _njit(function: object, options: dict[str, object], fast: dict[str, object]) -> Any:
    try:
        return numba.njit(**options, **fast)(function)
    except KeyError:
        return numba.njit(**options)(function)


def jit(function: F) -> F:
    """Compile ``function`` into the compiled functions that call it; Python cannot."""
    return cast(F, _njit(function, _COMMON, _FAST | _UNCALLED))


def machine_code(function: Any, arguments: tuple[Any, ...]) -> tuple[Any, str]:
    """The library that holds a ``jit`` function compiled for such arguments, and the name of the function in it."""
    function.compile(tuple(numba.typeof(argument) for argument in arguments))
    compiled = next(iter(function.overloads.values()))
    return compiled.library, compiled.fndesc.llvm_func_name


def entry(function: F) -> F:
    """Compile ``function``, which Python calls, on its first call."""
    try:
        dispatcher = _njit(function, _COMMON | {"cache": True}, _FAST)
    except RuntimeError:
        dispatcher = _njit(function, _COMMON, _FAST)
    index: Any = getattr(getattr(dispatcher, "_cache", None), "_cache_file", None)
    if hasattr(index, "_source_stamp"):
        index._source_stamp = source_stamp()
    return cast(F, dispatcher)
