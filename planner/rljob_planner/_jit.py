"""How the simulator's functions are compiled: no Python objects, the GIL released, machine code cached on disk.

Three things differ from numba's defaults.

Reference counting is switched off (``_nrt``) and every function is inlined into its caller: compiled code here allocates
nothing and its arrays outlive every call, while counting and passing two dozen arrays at each call took nine tenths of the
run time. Where a release of numba does without these options the functions are compiled the ordinary way: slower, not wrong.

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

_COMPILED = ("_draw.py", "_jit.py", "_kernel.py", "_loop.py", "_state.py")


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
    """Compile ``function`` on its first call."""
    common: dict[str, object] = {"nogil": True, "error_model": "numpy"}
    fast: dict[str, object] = {"_nrt": False, "forceinline": True}
    try:
        dispatcher = _njit(function, common | {"cache": True}, fast)
    except RuntimeError:
        dispatcher = _njit(function, common, fast)
    index: Any = getattr(getattr(dispatcher, "_cache", None), "_cache_file", None)
    if hasattr(index, "_source_stamp"):
        index._source_stamp = _STAMP
    return cast(F, dispatcher)
