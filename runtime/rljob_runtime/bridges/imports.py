"""Doing something when a module is imported, without importing it.

A bridge must not import W&B, torch or a framework by itself: they may be absent, slow, or need settings that the job makes first. So
a finder stands first in ``sys.meta_path``, lets the others find the module, and runs what waits for it right after its code ran,
before anybody gets to see it.

The finder is asked at every import of the process, in forked processes too, so it takes no lock: what it reads and takes is one
step for the interpreter. A lock that another thread held at a fork would block each import of the child.
"""

from __future__ import annotations

import importlib.machinery
import logging
import os
import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from threading import RLock
from types import ModuleType
from typing import Any

LOG = logging.getLogger("rljob_runtime.bridges")

Hook = Callable[[ModuleType], None]
"""Called with a module whose code has run; what it raises is said in the log, since it would break somebody's import."""

_lock = RLock()
_waiting: dict[str, list[Hook]] = {}
_late: set[str] = set()
"""Modules that were being imported when something began to wait for them: their loaders were found before."""


def imported(name: str) -> ModuleType | None:
    """The module ``name`` if it is imported, and not just being imported."""
    module = sys.modules.get(name)
    spec = getattr(module, "__spec__", None)
    return None if getattr(spec, "_initializing", False) else module


def when_imported(name: str, hook: Hook) -> Callable[[], None]:
    """Call ``hook`` with the module ``name`` once: now if it is imported, else right after its code ran. Returns what forgets it.

    For one that is just being imported, by another thread or by this one, that is at the first import of anything else after it.
    """
    with _lock:
        module = imported(name)
        if module is None:
            _waiting.setdefault(name, []).append(hook)
            if name in sys.modules:
                _late.add(name)
            if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
                sys.meta_path.insert(0, _Finder())
    if module is not None:
        _call(hook, module)

    def forget() -> None:
        with _lock:
            hooks = _waiting.get(name, [])
            if hook in hooks:
                hooks.remove(hook)
            if not hooks:
                _waiting.pop(name, None)
            if not _waiting:
                sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, _Finder)]

    return forget


def _call(hook: Hook, module: ModuleType) -> None:
    try:
        hook(module)
    except Exception as error:
        LOG.warning("what was to be done when %s is imported failed: %s", module.__name__, error)


def _catch_up() -> None:
    """Do what waits for modules whose import has ended meanwhile."""
    for name in tuple(_late):
        module = imported(name)
        if module is not None or name not in sys.modules:
            _late.discard(name)
        if module is not None:
            for hook in _waiting.pop(name, []):
                _call(hook, module)


class _Finder(MetaPathFinder):
    """Finds nothing by itself; wraps the loader of what others find."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """The spec that the other finders have for a module that something waits for; None for any other."""
        if _late:
            _catch_up()
        if fullname not in _waiting:
            return None
        for finder in sys.meta_path:
            find = getattr(finder, "find_spec", None)
            if find is None or isinstance(finder, _Finder):
                continue
            spec: importlib.machinery.ModuleSpec | None = find(fullname, path, target)
            if spec is not None:
                if spec.loader is not None and hasattr(spec.loader, "exec_module"):
                    spec.loader = _Loader(spec.loader)
                return spec
        return None


class _Loader(Loader):
    """Loads as the wrapped loader does, then runs what waits for the module."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def __getattr__(self, name: str) -> Any:
        if name == "_loader":
            # Asked for by copies, before there is one.
            raise AttributeError(name)
        # Sources, data files and the like are asked of the loader.
        return getattr(self._loader, name)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        """As the wrapped loader does."""
        module: ModuleType | None = self._loader.create_module(spec)
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Run the module's code, then what waits for it."""
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        module.__loader__ = self._loader
        self._loader.exec_module(module)
        for hook in _waiting.pop(module.__name__, []):
            _call(hook, module)


def _after_fork() -> None:
    global _lock
    _lock = RLock()


os.register_at_fork(after_in_child=_after_fork)
