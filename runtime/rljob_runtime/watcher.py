"""Follows the layout's file.

Polling, not inotify: a mounted ConfigMap is swapped through two symbolic links, which file notifications of most
libraries lose sight of, and a read of a small file every second costs nothing. A file that is missing, partial or not
understood leaves the last good layout in force and shows in ``problem``, because a job that stops at a typo is worse
than one that goes on.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

from rljob_runtime.layout import DEFAULT_DIRECTORY, Layout, LayoutError

_log = logging.getLogger(__name__)


class LayoutWatcher:
    """Keeps the last good layout of a directory.

    Either call ``poll`` from the job's own loop (once a step boundary is enough to follow the protocol), or use it as a
    context manager, which polls in a thread and calls ``on_change`` there.
    """

    def __init__(
        self,
        directory: str | Path = DEFAULT_DIRECTORY,
        *,
        interval_s: float = 1.0,
        on_change: Callable[[Layout], None] | None = None,
    ) -> None:
        """Watch ``directory`` every ``interval_s`` seconds once started."""
        self._directory = Path(directory)
        self._interval_s = interval_s
        self._on_change = on_change
        self._changed = threading.Condition()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._current: Layout | None = None
        self._problem: str | None = None

    @property
    def current(self) -> Layout | None:
        """The last good layout; None as long as there was none."""
        return self._current

    @property
    def problem(self) -> str | None:
        """Why the file as it stands cannot be followed; None if it can."""
        return self._problem

    def poll(self) -> Layout | None:
        """Read the file once; returns the layout if it differs from the last good one, else None."""
        try:
            layout = Layout.load(self._directory)
        except LayoutError as error:
            if str(error) != self._problem:
                _log.warning("keeping the layout of generation %s: %s", self._generation(), error)
            self._problem = str(error)
            return None
        self._problem = None
        with self._changed:
            if layout == self._current:
                return None
            self._current = layout
            self._changed.notify_all()
        if self._on_change is not None:
            self._on_change(layout)
        return layout

    def wait_for(self, generation: int, timeout_s: float | None = None) -> Layout:
        """Wait until a layout of at least ``generation`` is in force, and return it.

        Needs the polling thread. Raises TimeoutError after ``timeout_s`` seconds.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        with self._changed:
            while self._current is None or self._current.generation < generation:
                left = None if deadline is None else deadline - time.monotonic()
                if left is not None and left <= 0:
                    raise TimeoutError(
                        f"no layout of generation {generation} within {timeout_s} s; the last is {self._generation()}"
                        + (f", and {self._problem}" if self._problem else "")
                    )
                self._changed.wait(left)
            return self._current

    def start(self) -> None:
        """Poll in a daemon thread from now on."""
        if self._thread is not None:
            raise RuntimeError("this watcher has been started already")
        self._thread = threading.Thread(target=self._run, name="rljob-layout", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread; harmless if there is none."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()

    def __enter__(self) -> LayoutWatcher:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                self.poll()
            except Exception:
                # The callback is the job's own code: its failure must not end the watching.
                _log.exception("the layout callback failed")
            self._stop.wait(self._interval_s)

    def _generation(self) -> str:
        return "none" if self._current is None else str(self._current.generation)
