"""Listening where numbers pass: functions and methods of trackers are wrapped, the original is called as ever.

A tracker may hand its numbers on to another (a framework's own to W&B, W&B to TensorBoard): the outermost call counts, the inner
ones are the same numbers again. What reading costs is a look at the arguments; what it throws is counted and dropped.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from threading import local
from types import ModuleType
from typing import Any

from rljob_runtime.bridges import imports
from rljob_runtime.bridges.dialect import Logged, Tap
from rljob_runtime.bridges.mirror import Mirror

_depth = local()


def mapping(
    values: str, step: str | None = None, *, prefix: str | None = None
) -> Callable[[Mapping[str, object]], Logged | None]:
    """Reads calls whose parameter ``values`` is a mapping, under the step ``step``, each key after ``prefix`` and a slash."""

    def read(arguments: Mapping[str, object]) -> Logged | None:
        given = arguments.get(values)
        if not isinstance(given, Mapping):
            return None
        before = arguments.get(prefix) if prefix else None
        named = {f"{before}/{key}": value for key, value in given.items()} if before else given
        return Logged(named, arguments.get(step) if step else None)

    return read


def single(key: str, value: str, step: str) -> Callable[[Mapping[str, object]], Logged | None]:
    """Reads calls with one number: a step is complete when the next one begins."""

    def read(arguments: Mapping[str, object]) -> Logged | None:
        return Logged({str(arguments.get(key)): arguments.get(value)}, arguments.get(step), closed=False)

    return read


def _wandb(arguments: Mapping[str, object]) -> Logged | None:
    data, step, commit = arguments.get("data"), arguments.get("step"), arguments.get("commit")
    more = commit is False
    return Logged(data, step, more=more, closed=not more) if isinstance(data, Mapping) else None


GENERAL = (
    Tap("wandb.sdk.wandb_run", "Run.log", _wandb, rank=1),
    Tap("mlflow.tracking.fluent", "log_metrics", mapping("metrics", "step"), aliases=("mlflow",), rank=2),
    Tap("mlflow.tracking.fluent", "log_metric", single("key", "value", "step"), aliases=("mlflow",), rank=2),
    Tap(
        "torch.utils.tensorboard.writer",
        "SummaryWriter.add_scalar",
        single("tag", "scalar_value", "global_step"),
        rank=3,
    ),
    Tap("tensorboardX.writer", "SummaryWriter.add_scalar", single("tag", "scalar_value", "global_step"), rank=3),
)
"""Trackers that are watched for every framework."""


class Listening:
    """Wraps taps as their modules are imported, and unwraps them again."""

    def __init__(self, mirror: Mirror) -> None:
        """Hand everything that passes to ``mirror``."""
        self._mirror = mirror
        self._undo: list[Callable[[], None]] = []

    def to(self, tap: Tap) -> None:
        """Wrap ``tap`` now, or when its module is imported."""

        def patch(module: ModuleType) -> None:
            try:
                self._wrap(tap, module)
            except Exception as error:
                self._mirror.failed(error, f"listening to {tap.module}.{tap.attribute}")

        self._undo.append(imports.when_imported(tap.module, patch))

    def stop(self) -> None:
        """Put the originals back."""
        while self._undo:
            self._undo.pop()()

    def _wrap(self, tap: Tap, module: ModuleType) -> None:
        owner: Any = module
        *path, name = tap.attribute.split(".")
        for part in path:
            owner = getattr(owner, part)
        original = inspect.getattr_static(owner, name)
        if isinstance(original, staticmethod | classmethod):
            wrapped: Any = type(original)(listening(original.__func__, tap, self._mirror))
        else:
            wrapped = listening(original, tap, self._mirror)
        self._replace(owner, name, original, wrapped)
        for alias in tap.aliases:
            known = imports.imported(alias)
            if known is not None and getattr(known, name, None) is original:
                self._replace(known, name, original, wrapped)
        if tap.module.startswith("wandb."):
            self._rebind_wandb(original, wrapped)

    def _replace(self, owner: Any, name: str, original: Any, wrapped: Any) -> None:
        setattr(owner, name, wrapped)

        def back() -> None:
            if inspect.getattr_static(owner, name, None) is wrapped:
                setattr(owner, name, original)

        self._undo.append(back)

    def _rebind_wandb(self, original: Any, wrapped: Any) -> None:
        """A run that was started before has put its bound method into the module as ``wandb.log``."""
        wandb = imports.imported("wandb")
        bound = getattr(wandb, "log", None)
        if bound is not None and getattr(bound, "__func__", None) is original:
            self._replace(wandb, "log", bound, wrapped.__get__(bound.__self__))


def listening(original: Any, tap: Tap, mirror: Mirror) -> Any:
    """``original``, with what is logged through it shown to ``mirror`` first."""
    signature = inspect.signature(original)

    def hear(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        try:
            logged = tap.read(signature.bind_partial(*args, **kwargs).arguments)
            if logged is not None:
                mirror.take(logged, tap.rank)
        except Exception as error:
            mirror.failed(error, f"reading a call of {tap.attribute}")

    if inspect.iscoroutinefunction(original):

        @functools.wraps(original)
        async def awaited(*args: Any, **kwargs: Any) -> Any:
            with _outermost() as outermost:
                if outermost:
                    hear(args, kwargs)
            # Not inside: other tasks of this thread log meanwhile, and they are no part of this call.
            return await original(*args, **kwargs)

        return awaited

    @functools.wraps(original)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        with _outermost() as outermost:
            if outermost:
                hear(args, kwargs)
            return original(*args, **kwargs)

    return wrapped


@contextmanager
def _outermost() -> Iterator[bool]:
    """Whether this is not a call inside of another one that is listened to, in this thread."""
    depth = getattr(_depth, "value", 0)
    _depth.value = depth + 1
    try:
        yield depth == 0
    finally:
        _depth.value = depth
