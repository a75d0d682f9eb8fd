"""Which groups may start, and the queue of those that are complete.

The bound on staleness is kept by admission: nothing is thrown away, samplers idle instead. It promises that the *mean* staleness of what is
trained stays within the limit; a single slow sample can exceed it.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from dataclasses import dataclass

from tiny_grpo.samples import Group


@dataclass
class Limits:
    """What may start, and when; replaced as a whole when the layout changes."""

    prompts_per_step: int
    samples_per_prompt: int
    steps: int
    """Versions to train until: no group starts that no step would take."""
    max_staleness: int
    """In policy versions."""


class Admission:
    """Counts groups from their start to the step that takes them. Used by the rollout's thread and the trainer's at once."""

    def __init__(self, limits: Limits, version: int) -> None:
        """Start from policy ``version``: groups of the versions before it are trained and gone."""
        self.limits = limits
        self.version = version
        """The policy version that every sampler in use has."""
        self.started = version * limits.prompts_per_step
        """Groups started since version 0, those that a restart lost left out."""
        self._complete: deque[Group] = deque()
        self._changed = threading.Condition()

    @property
    def queued(self) -> int:
        """Complete groups that wait for the trainer."""
        return len(self._complete)

    def may_start(self) -> bool:
        """Whether one more group may start now, as far as staleness goes; the cap on samples in flight is the gate's."""
        limits = self.limits
        ahead = min(self.version + limits.max_staleness + 1, limits.steps)
        return self.started < ahead * limits.prompts_per_step

    def start(self) -> int:
        """Count a group as started; returns its number, from 0."""
        self.started += 1
        return self.started - 1

    def complete(self, group: Group) -> None:
        """All samples of a group have their answers: it waits for the trainer from now on."""
        with self._changed:
            self._complete.append(group)
            self._changed.notify_all()

    def take(self, timeout_s: float) -> list[Group] | None:
        """The oldest groups of one step; None if there are not enough of them within ``timeout_s`` seconds."""
        deadline = time.monotonic() + timeout_s
        wanted = self.limits.prompts_per_step
        with self._changed:
            while len(self._complete) < wanted:
                left = deadline - time.monotonic()
                if left <= 0:
                    return None
                self._changed.wait(left)
            return [self._complete.popleft() for _ in range(wanted)]
