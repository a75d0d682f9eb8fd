"""Show how far a long build is: a live line on a terminal, a plain line at least every half minute elsewhere.

Continuous-integration logs are read line by line, and a job that prints nothing for ten minutes looks hung; some
systems even end it.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Iterator
from typing import Protocol, TextIO

PLAIN_INTERVAL_S = 20.0
"""Longest silence of the plain form, seconds."""


class Step(Protocol):
    """One part of a long job: a binary that is built, packages that are installed."""

    def compiled(self) -> None:
        """Count one more package that is done."""


class Progress(Protocol):
    """Where a build reports what it does."""

    def say(self, text: str) -> None:
        """Show one line that stays."""

    def step(
        self, label: str, number: int, total: int, *, counted: str = "packages compiled"
    ) -> contextlib.AbstractContextManager[Step]:
        """Show part ``number`` of ``total`` while the context lasts, and the time it took afterwards.

        ``counted`` are the words after the number of packages.
        """


class _Counter:
    def __init__(self, counted: str) -> None:
        self.packages = 0
        self._counted = counted
        self.started = time.monotonic()

    def compiled(self) -> None:
        self.packages += 1

    def describe(self) -> str:
        return f"{time.monotonic() - self.started:.0f} s" + (
            f", {self.packages} {self._counted}" if self._counted else ""
        )


class LineProgress:
    """Progress as lines that are only ever appended, or as one live line if the stream is a terminal."""

    def __init__(self, stream: TextIO | None = None, *, interval_s: float | None = None) -> None:
        """Write to ``stream`` (default: standard error), updating every ``interval_s`` seconds."""
        self._stream = stream or sys.stderr
        self._live = self._stream.isatty()
        self._interval_s = interval_s or (0.5 if self._live else PLAIN_INTERVAL_S)

    def say(self, text: str) -> None:
        """Show one line that stays."""
        self._write(f"{text}\n")

    @contextlib.contextmanager
    def step(self, label: str, number: int, total: int, *, counted: str = "packages compiled") -> Iterator[Step]:
        """Show part ``number`` of ``total``; a thread keeps the elapsed time current."""
        head, counter, done = f"[{number}/{total}] {label}", _Counter(counted), threading.Event()
        if not self._live:
            self._write(f"{head} ...\n")

        def refresh() -> None:
            while not done.wait(self._interval_s):
                self._write(f"{head}: {counter.describe()}" + ("" if self._live else "\n"))

        thread = threading.Thread(target=refresh, name="build-progress", daemon=True)
        thread.start()
        try:
            yield counter
        finally:
            done.set()
            thread.join()
            self._write(f"{head}: {counter.describe()}\n")

    def _write(self, text: str) -> None:
        # On a terminal each write replaces the line before it, unless that one ended in a newline.
        self._stream.write(f"\r\x1b[2K{text}" if self._live else text)
        self._stream.flush()


@contextlib.contextmanager
def progress_for(progress: Progress | None) -> Iterator[Progress]:
    """Yield ``progress``, or lines on standard error if there is none."""
    yield progress if progress is not None else LineProgress()
