"""The trainer: takes groups, trains, publishes, and changes its shape at step boundaries only.

Its shape is the replica count that is *in force*. A layout that says otherwise waits for the next boundary (a step's end,
or any moment in which the trainer has nothing to do), because process groups cannot be rebuilt inside a step. A pod that goes away
before that takes the step with it: the trainer stops until its pods are back or a layout wants fewer, regroups, and trains
the same batch again.

A layout that asks for a checkpoint is acknowledged once one is written. A trainer that has ever written one and loses all of its pods
starts from it: what it published since is lost.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from typing import Protocol

import numpy as np

from dev.emulator.lengths import noise
from dev.emulator.truth import Truth
from rljob_runtime import Layout


class State(Enum):
    """What the trainer is doing."""

    WAITING = auto()
    TRAINING = auto()
    HOLDING = auto()
    CHECKPOINTING = auto()
    REGROUPING = auto()
    STOPPED = auto()
    COMPLETE = auto()


@dataclass(frozen=True)
class Batch:
    """The samples of one step."""

    lengths: np.ndarray[tuple[int], np.dtype[np.int64]]
    """Response tokens of each sample."""
    staleness: np.ndarray[tuple[int], np.dtype[np.int64]]
    """Policy versions of each sample at the start of the step."""


class Job(Protocol):
    """What the trainer needs of the plant around it."""

    def take_batch(self, version: int) -> Batch | None:
        """The oldest groups of a step, None if there are not enough."""

    def may_publish(self, version: int) -> bool:
        """Whether the bound lets ``version`` out now."""

    def published(self, at: float, batch: Batch) -> None:
        """A version that was trained on ``batch`` came out at ``at`` seconds."""

    def adopted(self, layout: Layout, at: float) -> None:
        """The trainer follows ``layout`` from ``at`` seconds on."""


class Trainer:
    """The state machine, advanced by the plant."""

    def __init__(self, truth: Truth, prompt_tokens: int, steps: int, seed: int, job: Job) -> None:
        """Start at version 0, waiting for data."""
        self._truth, self._prompt, self._steps, self._seed, self._job = truth, prompt_tokens, steps, seed, job
        self.version = 0
        """Policy version published last."""
        self.state = State.WAITING
        self.batch: Batch | None = None
        self.ready: tuple[str, ...] = ()
        """Trainer pods that are ready, by name."""
        self.members: tuple[str, ...] = ()
        """Pods that take part."""
        self.acknowledged: dict[str, int] = {}
        """Layout generation that each pod has acknowledged."""
        self.in_force: Layout | None = None
        """The layout that the trainer follows."""
        self.pending: Layout | None = None
        """A layout that waits for a boundary."""
        self.pending_since = 0.0
        self.acknowledge_after_s: float | None = 0.0
        """How long a layout is ignored after it was seen; None: for ever."""
        self.train_s = 0.0
        """Computing time of the step under way or of the last one."""
        self.wait_s = 0.0
        """Waiting for samples since the last publication."""
        self.checkpoint: int | None = None
        """Policy version of the last checkpoint that a layout asked for."""
        self.lost_versions = 0
        """Policy versions that were published after the checkpoint that a restart started from."""
        self.lost_train_s = 0.0
        """Computing that was lost with pods that went away."""
        self._left_s = 0.0

    def see(self, layout: Layout, now: float) -> None:
        """A layout arrived; it is followed from the next boundary on."""
        if layout != self.pending:
            self.pending, self.pending_since = layout, now

    def set_ready(self, pods: tuple[str, ...]) -> None:
        """The pods that are ready now."""
        self.ready = tuple(sorted(pods))
        had_some = bool(self.members)
        self.members = tuple(pod for pod in self.members if pod in self.ready)
        if had_some and not self.members and self.checkpoint is not None:
            self.lost_versions += self.version - self.checkpoint
            self.version = self.checkpoint
        self.acknowledged = {pod: g for pod, g in self.acknowledged.items() if pod in self.ready}

    def advance(self, now: float, dt_s: float) -> float:
        """Go on for ``dt_s`` seconds; returns the seconds spent waiting for samples."""
        t, end, waited = now, now + dt_s, 0.0
        while t < end and self.state is not State.COMPLETE:
            if self._short() and self.state is not State.STOPPED and self.state is not State.HOLDING:
                self._stop()
            if self.state in (State.TRAINING, State.REGROUPING, State.CHECKPOINTING):
                spent = min(self._left_s, end - t)
                self._left_s -= spent
                t += spent
                if self._left_s <= 1e-12:
                    if self.state is State.CHECKPOINTING:
                        self.checkpoint = self.version
                    self.state = State.HOLDING if self.state is State.TRAINING else State.WAITING
                continue
            if self.state is State.HOLDING:
                if not self._job.may_publish(self.version + 1):
                    break
                self._publish(t)
            if self.state in (State.WAITING, State.STOPPED) and self._boundary(t):
                continue
            if self.state is State.WAITING and not self._start():
                waited += end - t
                break
            if self.state is State.STOPPED:
                break
        self.wait_s += waited
        return waited

    def _short(self) -> bool:
        """Whether fewer pods take part than the layout in force needs."""
        return self.in_force is None or len(self.members) < self.in_force.trainers.replicas

    def _stop(self) -> None:
        if self.state is State.TRAINING:
            self.lost_train_s += self.train_s - self._left_s
        self.state = State.STOPPED

    def _publish(self, t: float) -> None:
        assert self.batch is not None
        self.version += 1
        self._job.published(t, self.batch)
        self.batch = None
        self.wait_s = 0.0
        self.state = State.COMPLETE if self.version >= self._steps else State.WAITING

    def _boundary(self, t: float) -> bool:
        """Take up the pending layout; returns whether a checkpoint has to be written first."""
        layout, before = self.pending, self.in_force
        waits = self.acknowledge_after_s
        if layout is not None and layout != before and waits is not None and t >= self.pending_since + waits:
            if layout.checkpoint and self.checkpoint != self.version and self.members:
                self.state, self._left_s = State.CHECKPOINTING, self._truth.train.checkpoint_s
                return True
            self.in_force = layout
            self._job.adopted(layout, t)
        current = self.in_force
        if current is None:
            return False
        staying = [*self.members, *(p for p in self.ready if p not in self.members)]
        staying = [p for p in staying if p not in current.draining] + [p for p in staying if p in current.draining]
        members = tuple(staying[: current.trainers.replicas])
        for pod in self.ready:
            self.acknowledged[pod] = current.generation
        changed = set(members) != set(self.members)
        first = before is None
        self.members = members
        if len(members) < current.trainers.replicas:
            self.state = State.STOPPED
        elif changed and not first:
            self.state, self._left_s = State.REGROUPING, self._truth.train.regroup_s
        elif self.state is State.STOPPED:
            self.state = State.WAITING
        return False

    def _start(self) -> bool:
        """Start a step if there is a batch: the one that was lost, or a new one."""
        assert self.in_force is not None
        if self.batch is None:
            self.batch = self._job.take_batch(self.version)
            if self.batch is None:
                return False
        trainers = self.in_force.trainers
        seconds = self._truth.train.step_s(
            self.batch.lengths, self._prompt, trainers.replicas, trainers.gpus_per_replica
        )
        if self._truth.train.noise:
            seconds *= float(noise(self._truth.train.noise, self._seed, 13, self.version))
        self.train_s = self._left_s = seconds
        self.state = State.TRAINING
        return True
