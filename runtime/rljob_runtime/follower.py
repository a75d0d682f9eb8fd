"""Follows the layout in the order that the operator counts on: checkpoint, then resize, then acknowledge.

The operator takes an acknowledgement as a promise: what the layout of that generation says is done, and the pods that it lists as
leaving are needed no more. A checkpoint that is written after the acknowledgement may be written to pods that are gone. So the order
is kept here, and a step that fails leaves the generation unacknowledged, to be tried again at the next boundary.
"""

from __future__ import annotations

from collections.abc import Callable

from rljob_runtime.layout import Layout
from rljob_runtime.reporter import Reporter
from rljob_runtime.watcher import LayoutWatcher


class LayoutFollower:
    """Brings a trainer process to the layout, at its step boundaries.

    Every rank has one and calls ``at_boundary`` at the same boundary; what it is given may communicate between ranks.
    """

    def __init__(
        self,
        watcher: LayoutWatcher,
        reporter: Reporter,
        *,
        resize: Callable[[Layout], None],
        checkpoint: Callable[[], None] | None = None,
    ) -> None:
        """Follow what ``watcher`` reads.

        ``checkpoint`` writes a checkpoint of the version published last and returns once it is safe; None where the framework writes
        one at every step anyway. ``resize`` takes the new shape and endpoints.
        """
        self._watcher = watcher
        self._reporter = reporter
        self._resize = resize
        self._checkpoint = checkpoint
        self._followed: Layout | None = None

    @property
    def layout(self) -> Layout | None:
        """The layout that the process follows; None before the first."""
        return self._followed

    @property
    def leaving(self) -> bool:
        """Whether the trainer is to restart: a checkpoint is written, and what is trained from now on is lost."""
        return self._followed is not None and self._followed.checkpoint

    def at_boundary(self, layout: Layout | None = None) -> bool:
        """Follow the newest layout if it is not followed yet; returns whether something changed.

        Also to be called while the trainer has nothing to do, since a trainer that waits for samples is at a boundary. ``layout`` is what
        rank 0 read, where ranks agree on it before they call; the watcher's own reading if None. An error of ``checkpoint`` or
        ``resize`` is raised, and the generation stays unacknowledged.
        """
        if layout is None:
            self._watcher.poll()
            layout = self._watcher.current
        if layout is None or layout == self._followed:
            return False
        if layout.checkpoint and self._checkpoint is not None and not self.leaving:
            self._checkpoint()
        self._resize(layout)
        self._followed = layout
        self._reporter.acknowledged(layout.generation)
        return True
