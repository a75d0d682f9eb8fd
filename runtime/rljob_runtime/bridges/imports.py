"""Doing something when a module is imported, without importing it.

A bridge must not import W&B, torch or a framework by itself: they may be absent, slow, or need settings that the job makes first. So
a finder stands first in ``sys.meta_path``, lets the others find the module, and runs what waits for it right after its code ran,
before anybody gets to see it.
"""

from __future__ import annotations

import importlib.machinery
import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from threading import RLock
from types import ModuleType
from typing import Any

Hook = Callable[[ModuleType], None]
"""Called with a module whose code has run; must not raise."""

_lock = RLock()
_waiting: dict[str, list[Hook]] = {}


def imported(name: str) -> ModuleType | None:
    """The module ``name`` if it is imported, and not just being imported."""
    module = sys.modules.get(name)
    spec = getattr(module, "__spec__", None)
    return None if getattr(spec, "_initializing", False) else module


def when_imported(name: str, hook: Hook) -> Callable[[], None]:
    """Call ``hook`` with the module ``name`` once: now if it is imported, else right after its code ran. Returns what forgets it."""
    with _lock:
        module = imported(name)
        if module is None:
            _waiting.setdefault(name, []).append(hook)
            if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
                sys.meta_path.insert(0, _Finder())
    if module is not None:
        hook(module)

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


class _Finder(MetaPathFinder):
    """Finds nothing by itself; wraps the loader of what others find."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """The spec that the other finders have for a module that something waits for; None for any other."""
        with _lock:
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
        with _lock:
            hooks = _waiting.pop(module.__name__, [])
        for hook in hooks:
            hook(module)
