"""The compiled event loop, callable without its compiler.

Importing numba and letting it restore a function from its cache takes half a second, as much as a whole search, and a
hundred megabytes. The event loop needs neither: what numba makes of it is an ordinary function that takes numbers and addresses and
calls nothing of Python's. So its machine code is kept in a file of its own, and later processes load it with llvmlite alone.

The file is valid for one text of the compiled modules, one llvmlite and one processor. It is written only if the code calls nothing
but functions of the C library, since a symbol that the loader cannot find would end the process. Where there is no place to
write, every process compiles for itself.

Neither numba nor llvmlite promises the calls that this takes: the final module, the object code, how arguments are passed. A release
that does it differently costs time and nothing else: what cannot be kept is compiled in each process, and what
cannot be called by its address, numba calls.
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

_Machine = Callable[[World], int]
_machines: list[_Machine] = []
"""The event loop, once it is loaded."""
_kept: list[Any] = []
"""What must live as long as its code does."""


def run(world: World) -> int:
    """Run the event loop (``_loop.run``) on a world; compiles it where no machine code is at hand."""
    if not _machines:
        _machines.append(_loaded(world) or _compiled(world))
    return _machines[0](world)


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
        except Exception:  # whatever is wrong with the file or the loader, there is still the compiler
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
    """Compile the event loop, some ten seconds, and keep its code for later processes.

    Where this numba does not give its machine code away, the event loop is called through numba.
    """
    try:
        from rljob_planner._loop import compiled

        library, name = compiled(world)
        _check_arguments(library, name, world)
        machine = _callable(int(library.get_pointer_to_function(name)), world)
    except (
        Exception
    ):  # each of these calls is private to numba, so any error says no more than that it is another release
        return _called_by_numba()
    _store(library, name)
    _kept.append(library)
    return machine


def _called_by_numba() -> _Machine:
    from rljob_planner import _jit, _loop

    dispatcher = _jit.entry(_loop.run.py_func)  # type: ignore[attr-defined]
    return lambda world: int(dispatcher(world))


def _check_arguments(library: Any, name: str, world: World) -> None:
    """Raises ValueError where the function takes another number of arguments than ``_callable`` passes: the call would crash."""
    takes = len(list(library._final_module.get_function(name).arguments))
    if takes != len(_types(world)):
        raise ValueError(f"{name} takes {takes} arguments")


def _store(library: Any, name: str) -> None:
    try:
        data = _packed(library, name)
    except Exception:  # another numba: the code stays in this process
        return
    if data is None:
        return
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


def _packed(library: Any, name: str) -> bytes | None:
    """What the file holds: name, checksum and code; None if the code calls what another process may lack."""
    outside = {f.name for f in library._final_module.functions if f.is_declaration and not f.name.startswith("llvm.")}
    if not outside <= _CALLS:
        return None
    code: bytes = library.serialize_using_object_code()[2][0]
    symbol = name.encode()
    return struct.pack("<I", len(symbol)) + symbol + hashlib.sha256(code).digest() + code


@cache
def _paths() -> tuple[Path, ...]:
    """Where the machine code may lie, the preferred place first: numba's cache, beside this file, in the user's cache."""
    import llvmlite
    from llvmlite import binding as llvm

    # As numba chooses its target: an image for any processor is built and run with NUMBA_CPU_NAME=generic NUMBA_CPU_FEATURES=.
    name, features = os.environ.get("NUMBA_CPU_NAME"), os.environ.get("NUMBA_CPU_FEATURES")
    try:
        features = llvm.get_host_cpu_features().flatten() if features is None else features
        processor = f"{name or llvm.get_host_cpu_name()} {features}"
    except Exception:  # a processor that LLVM cannot describe: its code cannot be told from another's
        return ()
    key = hashlib.sha256(f"{source_stamp()} {llvmlite.__version__} {processor}".encode()).hexdigest()[:20]
    file = f"rljob-simulation-{key}.bin"
    told = os.environ.get("NUMBA_CACHE_DIR")
    if told:
        return (Path(told) / file,)
    user = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    return (Path(__file__).parent / "__pycache__" / file, user / "rljob" / file)


def _callable(address: int, world: World) -> _Machine:
    function = ctypes.CFUNCTYPE(ctypes.c_int32, *_types(world))(address)

    def call(world: World) -> int:
        ended, error = ctypes.c_int64(), ctypes.c_void_p()
        function(ctypes.byref(ended), ctypes.byref(error), *_arguments(world))
        return ended.value

    return call


def _types(world: World) -> list[Any]:
    types: list[Any] = [ctypes.c_void_p, ctypes.c_void_p]
    for field in world:
        if isinstance(
            field, np.ndarray
        ):  # as numba passes an array: owner, parent, items, bytes of one, data, shape, strides
            types += [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p]
            types += [ctypes.c_int64] * (2 * field.ndim)
        else:
            types.append(ctypes.c_uint64)
    return types


def _arguments(world: World) -> Iterator[Any]:
    for field in world:
        if isinstance(field, np.ndarray):
            yield from (None, None, field.size, field.itemsize, field.ctypes.data, *field.shape, *field.strides)
        else:
            yield int(field)
