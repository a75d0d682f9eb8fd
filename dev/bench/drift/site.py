"""The cluster around a plant for policies that act by themselves: pods that start, drain, leave, and what that costs.

A policy that is compared with the operator pays what the operator pays: a move is announced and acknowledged at a step
boundary, victims drain until they run nothing or the drain timeout, their GPUs come free after a while, new pods start and
load, the trainer takes them in at the next boundary and regroups. What it is spared is the operator's own slowness.
"""

from __future__ import annotations

from dataclasses import dataclass

from dev.bench.drift.plant import Plant, Wanted
from dev.bench.drift.traces import Run
from rljob_planner.split import Split

LOOK_S = 5.0
"""Time between two looks at a move under way, as the operator's."""


@dataclass(frozen=True)
class Counts:
    """A split as replica counts, with its cap on samples in flight."""

    samplers: int
    trainers: int
    in_flight: int

    @classmethod
    def of(cls, split: Split) -> Counts:
        """The counts of a split."""
        return cls(split.samplers.replicas, split.trainers.replicas, split.in_flight)

    def gpus(self, split: Split) -> int:
        """GPUs of these counts with the replicas' shapes of a split."""
        return self.samplers * split.samplers.gpus_per_replica + self.trainers * split.trainers.gpus_per_replica


class Site:
    """A job with its pods; one move at a time."""

    def __init__(self, run: Run, plant: Plant, shape: Split, counts: Counts) -> None:
        """All pods of ``counts`` are ready at time 0, with replicas as wide as those of ``shape``."""
        self.plant, self.counts = plant, counts
        self._run, self._shape = run, shape
        self._samplers = [f"sampler-{i}" for i in range(counts.samplers)]
        self._trainers = [f"trainer-{i}" for i in range(counts.trainers)]
        self._named = max(counts.samplers, counts.trainers)
        self._generation = 1
        self.moves: list[tuple[int, Counts]] = []
        """The version at which each move began, and where it led."""
        self.gpu_s = 0.0
        """GPU-seconds held so far."""
        plant.start(self._samplers, self._trainers, counts.in_flight)

    def advance(self, until_s: float) -> None:
        """Let the job run."""
        before = self.plant.now_s
        self.plant.advance(until_s)
        self.gpu_s += (self.plant.now_s - before) * self._held()

    def _held(self) -> int:
        return (
            len(self._samplers) * self._shape.samplers.gpus_per_replica
            + len(self._trainers) * self._shape.trainers.gpus_per_replica
        )

    def _ready(self, samplers: list[str], trainers: list[str]) -> None:
        self.plant.set_samplers(samplers)
        self.plant.set_trainers(trainers)

    def _wait(self, done: object, timeout_s: float) -> None:
        """Until a condition holds, the job is over, or the timeout."""
        assert callable(done)
        end_s = self.plant.now_s + timeout_s
        while not self.plant.complete and not done() and self.plant.now_s < end_s:
            self.advance(min(end_s, self.plant.now_s + LOOK_S))

    def _acknowledged(self) -> bool:
        words = self.plant.acknowledged
        names = [name for name in self._trainers if name in words]
        return len(names) == len(self._trainers) and all(words[name] >= self._generation for name in names)

    def _publish(self, samplers: list[str], trainers: int, draining: list[str], in_flight: int) -> None:
        self._generation += 1
        self.plant.see(Wanted(self._generation, trainers, frozenset(samplers), frozenset(draining), in_flight))

    def set_in_flight(self, in_flight: int) -> None:
        """Change the cap alone, which is free."""
        self.counts = Counts(self.counts.samplers, self.counts.trainers, in_flight)
        self._publish(self._samplers, len(self._trainers), [], in_flight)

    def move(self, after: Counts) -> None:
        """A whole move, from its announcement to its last acknowledgement; the job runs on meanwhile."""
        if (after.samplers, after.trainers) == (self.counts.samplers, self.counts.trainers):
            self.set_in_flight(after.in_flight)
            return
        costs, forever = self._run.trace.costs, 1e12
        self.moves.append((self.plant.version, after))
        leaving_samplers = self._victims(len(self._samplers) - after.samplers)
        leaving_trainers = self._trainers[after.trainers :]
        staying_samplers = [name for name in self._samplers if name not in leaving_samplers]
        staying_trainers = self._trainers[: after.trainers]
        if leaving_samplers or leaving_trainers:
            draining = leaving_samplers + leaving_trainers
            self._publish(staying_samplers, len(staying_trainers), draining, after.in_flight)
            self._wait(self._acknowledged, forever)
            self._wait(
                lambda: all(self.plant.running(name) == 0 for name in leaving_samplers),
                self._run.spec.sampler.drain_timeout_s,
            )
            self._ready(staying_samplers, staying_trainers)
            self._wait(lambda: False, costs.gone)  # what is terminating still holds its GPUs
            self._samplers, self._trainers = staying_samplers, staying_trainers
        more_samplers = max(0, after.samplers - len(staying_samplers))
        more_trainers = max(0, after.trainers - len(staying_trainers))
        new_samplers = [self._name("sampler") for _ in range(more_samplers)]
        new_trainers = [self._name("trainer") for _ in range(more_trainers)]
        self._samplers, self._trainers = staying_samplers + new_samplers, staying_trainers + new_trainers
        if new_samplers or new_trainers:
            start_s = max(costs.sampler_start if new_samplers else 0.0, costs.trainer_start if new_trainers else 0.0)
            self._wait(lambda: False, start_s)
            self._ready(self._samplers, self._trainers)
        self._publish(self._samplers, len(self._trainers), [], after.in_flight)
        self._wait(self._acknowledged, forever)
        self.counts = after

    def _victims(self, count: int) -> list[str]:
        """The samplers that leave: those with the fewest running samples."""
        return sorted(self._samplers, key=lambda name: (self.plant.running(name), name))[: max(0, count)]

    def _name(self, role: str) -> str:
        self._named += 1
        return f"{role}-{self._named}"
