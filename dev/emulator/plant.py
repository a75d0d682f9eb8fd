"""The RL loop of one job: groups in, policy versions out.

A plant is a pure object: it is told which pods are ready and which layout is seen, and is advanced by seconds. It never looks at a
clock, so the same code runs in real time beside a control plane and in virtual time in tests, and two of them side by side compare
what was done with what would have been.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from dev.emulator.fleet import Fleet, Waiting
from dev.emulator.lengths import Lengths
from dev.emulator.trainer import Batch, State, Trainer
from dev.emulator.truth import Truth
from rljob_planner.api.spec import Bound, Overflow, RLJobSpec
from rljob_runtime import Layout

TICK_S = 0.1
"""Longest tick in seconds; a slot that falls free is refilled in the next one."""


@dataclass(frozen=True)
class Workload:
    """What the job's framework was told: the part of the RLJob that is no matter of the split."""

    prompts_per_step: int
    samples_per_prompt: int
    steps: int
    prompt_tokens: int
    bound: Bound
    capacity: int | None = None
    """Capacity of the queue in groups; None: unbounded."""
    overflow: Overflow = Overflow.DROP_OLDEST

    @classmethod
    def of(cls, spec: RLJobSpec) -> Workload:
        """The workload of an RLJob."""
        queue = spec.queue
        return cls(
            prompts_per_step=spec.workload.prompts_per_step,
            samples_per_prompt=spec.workload.samples_per_prompt,
            steps=spec.workload.steps,
            prompt_tokens=spec.workload.prompt_tokens.mean,
            bound=spec.staleness.bound,
            capacity=queue.capacity if queue else None,
            overflow=queue.overflow if queue else Overflow.DROP_OLDEST,
        )


class Reports(Protocol):
    """Where a plant reports to: the methods of ``rljob_runtime.Reporter``."""

    def step_started(self, staleness_per_sample: Iterable[float]) -> None:
        """A step starts."""

    def step_finished(self, version: int, samples: int, tokens: int, seconds: float) -> None:
        """A version is out."""

    def waited(self, seconds: float) -> None:
        """The trainer waited."""

    def synced(self, seconds: float) -> None:
        """Samplers paused."""

    def queue(self, groups: int) -> None:
        """Groups wait."""

    def in_flight(self, samples: int) -> None:
        """Samples are unfinished."""

    def response(self, tokens: int) -> None:
        """A response finished."""

    def environment(self, seconds: float) -> None:
        """A sample was in its environment."""

    def dropped(self, groups: int) -> None:
        """Groups were discarded."""


@dataclass(frozen=True)
class StepRecord:
    """What was seen when a policy version came out."""

    t: float
    """Seconds since the start."""
    version: int
    period: float | None
    """Seconds since the version before; None for the first."""
    train: float
    """Seconds of computing."""
    wait: float
    """Seconds of waiting for samples."""
    staleness: dict[int, int]
    """Samples of the step by their staleness in policy versions."""
    mean_length: float
    """Mean response of the step in tokens."""
    length_now: float
    """Mean of the responses that start now, in tokens."""
    queue: int
    """Groups left in the queue."""
    in_flight: int
    """Samples unfinished."""
    running: int
    """Samples that run."""
    samplers: int
    """Sampler pods that take samples."""
    trainers: int
    """Trainer replicas in force."""
    dropped: int
    """Groups discarded so far."""
    lost_tokens: float
    """Tokens lost so far with pods that went away."""


@dataclass
class _Group:
    missing: int
    """Samples that are not finished."""
    lengths: list[int] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)


class Plant:
    """One RL job: samplers, queue, trainer."""

    def __init__(
        self, workload: Workload, truth: Truth, lengths: Lengths, seed: int = 0, reports: Reports | None = None
    ) -> None:
        """Start at time 0 with neither pods nor layout."""
        self.workload = workload
        self.reports = reports
        """Where to report; may be exchanged while running, as a restarted trainer would."""
        self.environment_s: float | None = None
        """Seconds that each sample says it spent in its environment; None: it says nothing."""
        self.fleet = Fleet(truth, workload.prompt_tokens, lengths.max_tokens, seed)
        self.trainer = Trainer(truth, workload.prompt_tokens, workload.steps, seed, self)
        self.t = 0.0
        """Seconds since the start."""
        self.layout: Layout | None = None
        """The layout seen last."""
        self.waiting: deque[Waiting] = deque()
        """Samples that wait for a slot, first come first served."""
        self.ready_groups: deque[_Group] = deque()
        """Complete groups, oldest first."""
        self.steps: list[StepRecord] = []
        """A record of each published version."""
        self.on_step: Callable[[StepRecord], None] | None = None
        """Called with each record."""
        self.dropped = 0
        """Complete groups discarded so far."""
        self._truth, self._lengths = truth, lengths
        self._groups: dict[int, _Group] = {}
        self._started = 0
        self._tick = 0
        self._joined: frozenset[str] = frozenset()
        self._sampler_ready: dict[str, bool] = {}

    # --- what the cluster says ---------------------------------------------------------------------------------------------

    def set_pods(self, samplers: Mapping[str, bool], trainers: Mapping[str, bool]) -> None:
        """The pods that exist, and whether each is ready. What runs on a sampler that no longer is starts over."""
        back: list[Waiting] = []
        for pod in self.fleet.pods:
            if not samplers.get(pod.name, False):
                back += self.fleet.remove(pod.name, self.t)
        self.waiting.extendleft(reversed(back))
        self._sampler_ready = dict(samplers)
        self.trainer.set_ready(tuple(name for name, ready in trainers.items() if ready))
        self._start_samplers()

    def see_layout(self, layout: Layout) -> None:
        """The layout file changed: draining and cap hold at once, the rest from the trainer's next step boundary on."""
        self.layout = layout
        self.trainer.see(layout, self.t)
        self._start_samplers()

    def _start_samplers(self) -> None:
        if self.layout is None:
            return
        for name, ready in self._sampler_ready.items():
            if ready and self.fleet.get(name) is None:
                self.fleet.add(name, self.layout.samplers.tensor_parallel, self.t)

    # --- what it shows -----------------------------------------------------------------------------------------------------

    @property
    def complete(self) -> bool:
        """Whether the last step is done."""
        return self.trainer.state is State.COMPLETE

    @property
    def in_flight(self) -> int:
        """Samples submitted and not finished."""
        return len(self.waiting) + self.fleet.running

    @property
    def groups_started(self) -> int:
        """Groups admitted so far."""
        return self._started

    @property
    def finished_in_open_groups(self) -> int:
        """Finished samples whose group is not complete."""
        return sum(len(group.lengths) for group in self._groups.values())

    @property
    def length_now(self) -> float:
        """Mean of the responses that start now, in tokens."""
        return self._lengths.mean(self.t)

    def taking(self) -> list[str]:
        """Samplers that take samples: listed in the layout and known to the trainer, not draining."""
        if self.layout is None:
            return []
        listed = {e.pod for e in self.layout.samplers.endpoints}
        ready = [pod.name for pod in self.fleet.pods if pod.name not in self.layout.draining]
        if not listed:
            return ready
        return [name for name in ready if name in listed and name in self._joined]

    # --- time --------------------------------------------------------------------------------------------------------------

    def advance(self, dt_s: float) -> None:
        """Go on for ``dt_s`` seconds."""
        ticks = max(1, round(dt_s / TICK_S))
        for _ in range(ticks):
            self._advance(dt_s / ticks)

    def _advance(self, dt_s: float) -> None:
        if self.layout is None:
            self.t += dt_s
            return
        if not self.complete:
            waited = self.trainer.advance(self.t, dt_s)
            if waited and self.reports:
                self.reports.waited(waited)
        if not self.complete:
            self._admit_groups(self.layout)
        self.fleet.admit(self.waiting, self.taking(), self.layout.samplers.max_running, self.trainer.version, self.t)
        for done in self.fleet.decode(self.waiting, self.t, dt_s, self._tick):
            self._finished(done.group, done.length, done.version)
        self.t += dt_s
        self._tick += 1
        if self.reports:
            self.reports.queue(len(self.ready_groups))
            self.reports.in_flight(self.in_flight)

    def _admit_groups(self, layout: Layout) -> None:
        w = self.workload
        in_flight = self.in_flight
        while in_flight + w.samples_per_prompt <= layout.in_flight_cap:
            if w.bound is Bound.ADMISSION:
                allowed = (self.trainer.version + layout.max_staleness + 1) * w.prompts_per_step
                if self._started - self.dropped >= allowed:
                    return
            if w.capacity is not None and w.overflow is Overflow.BLOCK and len(self.ready_groups) >= w.capacity:
                return
            number = self._started
            lengths = self._lengths.draw(number, w.samples_per_prompt, self.t)
            self.waiting.extend(
                Waiting(number, sample, int(length), 0.0, None, self.t) for sample, length in enumerate(lengths)
            )
            self._groups[number] = _Group(missing=w.samples_per_prompt)
            self._started += 1
            in_flight += w.samples_per_prompt

    def _finished(self, number: int, length: int, version: int) -> None:
        if self.reports:
            self.reports.response(length)
            if self.environment_s is not None:
                self.reports.environment(self.environment_s)
        group = self._groups[number]
        group.missing -= 1
        group.lengths.append(length)
        group.versions.append(version)
        if group.missing:
            return
        del self._groups[number]
        self.ready_groups.append(group)
        w = self.workload
        if w.capacity is not None and w.overflow is Overflow.DROP_OLDEST and len(self.ready_groups) > w.capacity:
            self.ready_groups.popleft()
            self._drop(1)

    def _drop(self, groups: int) -> None:
        self.dropped += groups
        if groups and self.reports:
            self.reports.dropped(groups)

    # --- what the trainer asks ---------------------------------------------------------------------------------------------

    def take_batch(self, version: int) -> Batch | None:
        """The oldest groups of a step; under ``drop``, groups that are too old by now are discarded first."""
        assert self.layout is not None
        w = self.workload
        if w.bound is Bound.DROP:
            limit = version - self.layout.max_staleness
            fresh = deque(group for group in self.ready_groups if min(group.versions) >= limit)
            self._drop(len(self.ready_groups) - len(fresh))
            self.ready_groups = fresh
        if len(self.ready_groups) < w.prompts_per_step:
            return None
        groups = [self.ready_groups.popleft() for _ in range(w.prompts_per_step)]
        lengths = np.array([n for g in groups for n in g.lengths], dtype=np.int64)
        staleness = version - np.array([v for g in groups for v in g.versions], dtype=np.int64)
        if self.reports:
            self.reports.step_started(staleness.tolist())
        return Batch(lengths, staleness)

    def may_publish(self, version: int) -> bool:
        """Under ``hold``, not while an unfinished sample would be staler than the limit."""
        if self.workload.bound is not Bound.HOLD or self.layout is None:
            return True
        versions = [w.version for w in self.waiting if w.version is not None]
        running = self.fleet.oldest_version()
        if running is not None:
            versions.append(running)
        return not versions or version - min(versions) <= self.layout.max_staleness

    def published(self, at: float, batch: Batch) -> None:
        """Record the step, let the samplers take the weights, and report."""
        trainer = self.trainer
        assert trainer.in_force is not None
        sync_s = self._truth.weight_sync_s
        self.fleet.pause(at + sync_s)
        record = StepRecord(
            t=at,
            version=trainer.version,
            period=at - self.steps[-1].t if self.steps else None,
            train=trainer.train_s,
            wait=trainer.wait_s,
            staleness=dict(sorted(Counter(batch.staleness.tolist()).items())),
            mean_length=float(batch.lengths.mean()),
            length_now=self._lengths.mean(at),
            queue=len(self.ready_groups),
            in_flight=self.in_flight,
            running=self.fleet.running,
            samplers=len(self.taking()),
            trainers=trainer.in_force.trainers.replicas,
            dropped=self.dropped,
            lost_tokens=self.fleet.lost_tokens,
        )
        self.steps.append(record)
        if self.reports:
            tokens = int(batch.lengths.sum())
            self.reports.step_finished(trainer.version, len(batch.lengths), tokens, trainer.train_s)
            self.reports.synced(sync_s)
        if self.on_step:
            self.on_step(record)
        if trainer.version >= self.workload.steps:
            # Nothing more is wanted: what runs may end, what waits never starts.
            self.waiting.clear()

    def adopted(self, layout: Layout, at: float) -> None:  # noqa: ARG002
        """The weight-sync group is rebuilt: the samplers of this layout take part from now on."""
        self._joined = frozenset(e.pod for e in layout.samplers.endpoints)
