"""The compiled event loop, callable without its compiler.

Importing numba and letting it restore a function from its cache takes half a second, as much as a whole search, and a
hundred megabytes. The event loop needs neither: what numba makes of it is an ordinary function that takes numbers and addresses and
calls nothing of Python's. So its machine code is kept in a file of its own, and later processes load it with llvmlite alone.

The file is valid for one text of the compiled modules, one llvmlite and one processor. It is written only if the code calls nothing
but functions of the C library, since a symbol that the loader cannot find would end the process. Where there is no place to
write, every process compiles for itself.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import struct
import tempfile
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from rljob_planner._state import World

COMPILED = (
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
"""Modules whose text the machine code is made of."""

_CALLS = {"cos", "erfc", "exp", "log", "memcpy", "memmove", "memset", "sqrt"}
"""Functions of the C library that the code may call."""

_Machine = Callable[..., int]
_machines: list[_Machine] = []
"""The event loop, once it is loaded."""
_kept: list[Any] = []
"""What must live as long as its code does."""


def run(world: World) -> int:
    """Run the event loop (``_loop.run``) on a world; compiles it where no machine code is at hand."""
    if not _machines:
        _machines.append(_loaded(world) or _compiled(world))
    ended, error = ctypes.c_int64(), ctypes.c_void_p()
    _machines[0](ctypes.byref(ended), ctypes.byref(error), *_arguments(world))
    return ended.value


def is_compiled() -> bool:
    """Whether the machine code is loaded or in its file, so that a run starts at once."""
    return bool(_machines) or any(path.is_file() for path in _paths())


@cache
def source_stamp() -> str:
    """A hash of the text of all compiled modules."""
    digest = hashlib.sha256()
    for name in COMPILED:
        digest.update((Path(__file__).parent / name).read_bytes())
    return digest.hexdigest()


def _loaded(world: World) -> _Machine | None:
    for path in _paths():
        try:
            return _callable(_load(path.read_bytes()), world)
        except (OSError, ValueError, RuntimeError):
            continue
    return None


def _load(data: bytes) -> int:
    """The address of the function in a file that ``_store`` wrote."""
    from llvmlite import binding as llvm  # type: ignore[import-untyped]

    size = struct.unpack_from("<I", data)[0] if len(data) > 4 else 0
    name, digest, code = data[4 : 4 + size].decode(), data[4 + size : 36 + size], data[36 + size :]
    if not code or hashlib.sha256(code).digest() != digest:
        raise ValueError("the file is not whole")
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    target = llvm.Target.from_default_triple().create_target_machine()
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), target)
    engine.add_object_file(llvm.ObjectFileRef.from_data(code))
    engine.finalize_object()
    address = engine.get_function_address(name)
    if not address:
        raise ValueError(f"there is no function {name}")
    _kept.append(engine)
    return int(address)


def _compiled(world: World) -> _Machine:
    """Compile the event loop, some ten seconds, and keep its code for later processes."""
    from rljob_planner._loop import compiled

    library, name = compiled(world)
    _store(library, name)
    _kept.append(library)
    return _callable(int(library.get_pointer_to_function(name)), world)


def _store(library: Any, name: str) -> None:
    outside = {f.name for f in library._final_module.functions if f.is_declaration and not f.name.startswith("llvm.")}
    if not outside <= _CALLS:
        return
    code: bytes = library.serialize_using_object_code()[2][0]
    symbol = name.encode()
    data = struct.pack("<I", len(symbol)) + symbol + hashlib.sha256(code).digest() + code
    for path in _paths():
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
                file.write(data)
            Path(file.name).chmod(0o644)  # whoever installs it, others read it
            Path(file.name).replace(path)
        except OSError:
            continue
        return


@cache
def _paths() -> tuple[Path, ...]:
    """Where the machine code may lie, the preferred place first: numba's cache, beside this file, in the user's cache."""
    import llvmlite
    from llvmlite import binding as llvm

    processor = f"{llvm.get_host_cpu_name()} {llvm.get_host_cpu_features().flatten()}"
    key = hashlib.sha256(f"{source_stamp()} {llvmlite.__version__} {processor}".encode()).hexdigest()[:20]
    name = f"rljob-simulation-{key}.bin"
    told = os.environ.get("NUMBA_CACHE_DIR")
    if told:
        return (Path(told) / name,)
    user = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    return (Path(__file__).parent / "__pycache__" / name, user / "rljob" / name)


def _callable(address: int, world: World) -> _Machine:
    types: list[Any] = [ctypes.c_void_p, ctypes.c_void_p]
    for field in world:
        if isinstance(
            field, np.ndarray
        ):  # as numba passes an array: owner, parent, items, bytes of one, data, shape, strides
            types += [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p]
            types += [ctypes.c_int64] * (2 * field.ndim)
        else:
            types.append(ctypes.c_uint64)
    return ctypes.CFUNCTYPE(ctypes.c_int32, *types)(address)


def _arguments(world: World) -> Iterator[Any]:
    for field in world:
        if isinstance(field, np.ndarray):
            yield from (None, None, field.size, field.itemsize, field.ctypes.data, *field.shape, *field.strides)
        else:
            yield int(field)
