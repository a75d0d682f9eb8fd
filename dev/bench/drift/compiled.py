"""How the plant's functions are compiled: without Python objects, without counting references, cached while their text is the same.

Functions that Python calls (``entry``) are cached together with all that they call (``jit``). By itself numba looks at the file of the
function alone and would go on using machine code into which an older version of another file went; so the cache is valid for the text of all of them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, cast

import numba

F = TypeVar("F", bound=Callable[..., Any])

FILES = ("compiled.py", "core.py", "draws.py", "heaps.py", "replicas.py", "state.py")
_COMMON: dict[str, Any] = {"nogil": True, "error_model": "numpy", "no_cfunc_wrapper": True}


@cache
def stamp() -> tuple[str, int]:
    """What the cached machine code belongs to."""
    folder = Path(__file__).parent
    text = b"".join((folder / name).read_bytes() for name in FILES)
    return hashlib.sha256(text).hexdigest(), len(text)


def _compiled(function: F, **options: Any) -> Any:
    try:
        # Nothing here allocates, and all arrays outlive every call: counting references would only cost time.
        return numba.njit(**_COMMON, **options, _nrt=False)(function)
    except KeyError:
        return numba.njit(**_COMMON, **options)(function)


def jit(function: F) -> F:
    """Compile ``function`` into the compiled functions that call it; Python cannot."""
    return cast(F, _compiled(function, no_cpython_wrapper=True))


def entry(function: F) -> F:
    """Compile ``function``, which Python calls, on its first call."""
    try:
        dispatcher = _compiled(function, cache=True)
    except RuntimeError:
        # There is no place to write a cache to.
        dispatcher = _compiled(function)
    index: Any = getattr(getattr(dispatcher, "_cache", None), "_cache_file", None)
    if hasattr(index, "_source_stamp"):
        index._source_stamp = stamp()
    return cast(F, dispatcher)
