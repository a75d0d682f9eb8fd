"""What all policies of one trace share: the plant's laws, the planner's split of step 0, the splits worth trying, the static runs.

The replicas' shapes are those of the split that the planner chooses at step 0, since no move changes a pod's template. Beside
every number of trainers that could win somewhere along the trace, the best static split is looked for among other shapes too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from dev.bench.drift.plant import Plant, Record
from dev.bench.drift.site import Counts, Site
from dev.bench.drift.traces import Run
from dev.bench.drift.truth import Laws, laws_of, lengths_at, truth_of
from rljob_planner.api.spec import Bound, RLJobSpec
from rljob_planner.errors import PlanningError
from rljob_planner.placement import Room, default_rooms
from rljob_planner.search import evaluate, plan
from rljob_planner.split import Split

Say = Callable[[str], None]

FAR = 1.12
"""Period over the best one from which on a split is not tried, if it is so at every point of the trace that is looked at."""
POINTS = 5
"""Points of a trace at which the planner is asked which splits could win."""
LOOK_STEPS = 20
"""Simulated steps of such a question: it only leaves out what is far off."""
FOREVER_S = 1e10
HOUR_S = 3600.0


@dataclass(frozen=True)
class Outcome:
    """What one policy made of a trace."""

    total_s: float
    """Seconds until the last step."""
    gpu_s: float
    record: Record
    moves: tuple[tuple[int, Counts], ...]
    start: Counts
    in_flight: float
    """Mean samples in flight."""

    @property
    def steps(self) -> int:
        """Versions published."""
        return len(self.record.published_s)

    def mean_staleness(self) -> NDArray[np.float64]:
        """Mean staleness of the samples of each step."""
        counts = self.record.staleness
        return np.asarray((counts * np.arange(counts.shape[1])).sum(axis=1) / np.maximum(1, counts.sum(axis=1)))

    def max_staleness(self) -> int:
        """The staleness of the stalest sample that was trained."""
        return int(np.flatnonzero(self.record.staleness.sum(axis=0))[-1])


@dataclass
class Stage:
    """One trace, set up."""

    run: Run
    rooms: list[Room]
    start: Split
    """The planner's split of step 0, without the truth."""
    laws: Laws
    static: dict[Counts, Outcome] = field(default_factory=dict)
    """The static runs of the start's shapes."""
    others: dict[str, Outcome] = field(default_factory=dict)
    """Static runs of other shapes, by label."""

    @classmethod
    def of(cls, run: Run) -> Stage:
        """Plan step 0 and work out the laws; raises PlanningError where nothing can be planned."""
        rooms = list(default_rooms(run.spec.gpus))
        start = plan(run.spec, rooms, detail=False).split
        return cls(run, rooms, start, laws_of(run, rooms, start, _most_trainers(run.spec, start)))

    @property
    def steps(self) -> int:
        """Steps of the run."""
        return self.run.steps

    @property
    def most_in_flight(self) -> int:
        """A cap beyond which admission bounds what is in flight."""
        workload = self.run.spec.workload
        return (self.run.spec.staleness.max + 1) * workload.samples_per_step

    def plant(self, shape: Split | None = None) -> Plant:
        """A fresh plant."""
        split = shape or self.start
        laws = (
            self.laws if shape is None else laws_of(self.run, self.rooms, split, _most_trainers(self.run.spec, split))
        )
        replicas = self.run.spec.gpus // split.samplers.gpus_per_replica + 1
        return Plant(
            self.run, laws, most_replicas=replicas, most_in_flight=2 * max(self.most_in_flight, split.in_flight)
        )

    def spec_at(self, step: int) -> RLJobSpec:
        """The spec of a job that is as the trace has it at a step."""
        workload = self.run.spec.workload
        if workload.environment is None:
            return self.run.spec
        environment = workload.environment.model_copy(update={"seconds_per_turn": float(self.run.turn_s[step])})
        return self.run.spec.model_copy(update={"workload": workload.model_copy(update={"environment": environment})})

    def points(self) -> list[int]:
        """Steps of the trace at which it is looked at, the ends included."""
        run, found = self.run, dict[tuple[int, float, float], int]()
        for share in np.linspace(0.0, 1.0, POINTS):
            step = round(share * (self.steps - 1))
            # Points at which a planner would be asked the same question are one.
            found.setdefault(
                (round(50 * np.log(run.mean_tokens[step])), *_rounded(run.turn_s[step], run.slowdown[step])), step
            )
        return sorted(found.values())

    def splits(self, say: Say = lambda _: None) -> list[Split]:
        """The splits of the start's shapes that could be best somewhere, each with the cap that the planner gives it under the truth."""
        truth, middle = truth_of(self.run), float(np.exp(np.log(self.run.mean_tokens).mean()))
        found: list[Split] = []
        for trainers in range(1, _most_trainers(self.run.spec, self.start) + 1):
            try:
                found.append(
                    plan(
                        self.spec_at(self.steps // 2), self.rooms, calibration=truth, lengths=lengths_at(self.run, middle),
                        keep=self.start, trainer_replicas=trainers, detail=False,
                    ).split
                )  # fmt: skip
            except PlanningError:
                continue
        # A cap that suits one length throttles at another; under admission none is needed.
        admitted = self.run.spec.staleness.bound is Bound.ADMISSION
        free = [s.model_copy(update={"in_flight": self.most_in_flight}) if admitted else s for s in found]
        periods = np.array(
            [
                [
                    evaluate(
                        self.spec_at(step), split, self.rooms, calibration=truth,
                        lengths=lengths_at(self.run, float(self.run.mean_tokens[step])), steps=LOOK_STEPS,
                    ).period_s
                    for step in self.points()
                ]
                for split in free
            ]
        )  # fmt: skip
        near = (periods <= FAR * periods.min(axis=0)).any(axis=1)
        kept = [split for split, good in zip(found, near, strict=True) if good]
        say(f"{len(kept)} of {len(found)} splits could be best somewhere: {', '.join(s.label() for s in kept)}")
        return kept

    def shapes(self) -> list[Split]:
        """Splits of other shapes that the planner, told the truth, would choose somewhere along the trace."""
        truth, found = truth_of(self.run), dict[str, Split]()
        for step in self.points()[::2]:
            lengths = lengths_at(self.run, float(self.run.mean_tokens[step]))
            try:
                split = plan(self.spec_at(step), self.rooms, calibration=truth, lengths=lengths, detail=False).split
            except PlanningError:
                continue
            if split.samplers.gpus_per_replica != self.start.samplers.gpus_per_replica and split.mode == "async":
                found[split.label()] = split
        return list(found.values())

    def run_static(self, split: Split) -> Outcome:
        """A split that stays, over the whole trace."""
        same = split.samplers.gpus_per_replica == self.start.samplers.gpus_per_replica
        shape = self.start if same else split
        site = Site(self.run, self.plant(None if same else split), shape, Counts.of(split))
        return self.finish(site)

    def finish(self, site: Site, step: Callable[[], float] | None = None) -> Outcome:
        """Let a site run to the end of the trace; ``step`` is called and says until when to go on."""
        start = site.counts
        limit_s = FOREVER_S if self.run.trace.hours is None else self.run.trace.hours * HOUR_S
        while not site.plant.complete and site.plant.now_s < limit_s:
            site.advance(min(limit_s, FOREVER_S if step is None else step()))
        return self.outcome(site.plant, site.gpu_s, tuple(site.moves), start)

    def outcome(self, plant: Plant, gpu_s: float, moves: tuple[tuple[int, Counts], ...], start: Counts) -> Outcome:
        """What was made of the trace. A run that was ended by the hours is stretched to all steps at the pace of its last tenth."""
        record = plant.record()
        total_s = float(record.published_s[-1]) if plant.complete else self._stretched(record, plant.now_s)
        return Outcome(total_s, gpu_s * total_s / max(plant.now_s, 1e-9), record, moves, start, plant.means[1])

    def _stretched(self, record: Record, now_s: float) -> float:
        """Runs that end with the hours differ in steps; so each is given the time that all have in common: hours per step made."""
        steps = len(record.published_s)
        return now_s if not steps else float(record.published_s[-1]) * self.steps / steps


def _rounded(*values: float) -> tuple[float, ...]:
    return tuple(round(float(value), 2) for value in values)


def _most_trainers(spec: RLJobSpec, split: Split) -> int:
    limit = (spec.gpus - split.samplers.gpus_per_replica) // split.trainers.gpus_per_replica
    return max(1, min(limit, spec.trainer.max_replicas or limit))
