"""The splits that could be: what the spec allows, the nodes can hold and memory admits, before anybody asks how fast they are.

A layout is a split without its in-flight cap. Layouts that fall out here keep the reason why, in the words of the spec's fields,
since "nothing fits" is only useful to a user who learns what to change.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

from rljob_planner.api.pools import SamplerPool
from rljob_planner.api.spec import Precision
from rljob_planner.errors import PlanningError
from rljob_planner.job import Job
from rljob_planner.placement import Room, frontier, placeable_gpus, too_wide
from rljob_planner.pools import PoolSpeed, allocations, chosen
from rljob_planner.split import PoolSplit, SamplerSplit, Split, TrainerSplit
from rljob_planner.training import TrainerSetup, batch_divides, parallelism

_WIDEST_USUAL = 8
MOST_TRAINER_COUNTS = 24


@dataclass(frozen=True)
class Layout:
    """A split without its in-flight cap."""

    samplers: SamplerSplit
    trainers: TrainerSplit

    def split(self, in_flight: int, mode: str = "async") -> Split:
        """The split with this cap."""
        return Split(mode=mode, samplers=self.samplers, trainers=self.trainers, in_flight=in_flight)

    @property
    def gpus(self) -> int:
        """GPUs of both sides."""
        return self.samplers.gpus + self.trainers.gpus


@dataclass
class Space:
    """All layouts of a job on given nodes, made on demand: a large budget has thousands of trainer counts."""

    job: Job
    rooms: Sequence[Room]
    keep: Split | None = None
    """Only layouts with this split's GPUs per replica, widths and running samples."""
    trainer_replicas: int | None = None
    """Only this number of trainers."""
    most_counts: int = MOST_TRAINER_COUNTS
    """Trainer counts that are looked at in one pass; the search refines around the best."""
    _narrow: dict[int, str] = field(default_factory=dict)
    """Sampler widths that fell out, and why."""
    _untrainable: dict[int, str] = field(default_factory=dict)
    """Trainer counts that fell out, and why."""
    _frontiers: dict[int, list[int]] = field(default_factory=dict)
    _allocations: dict[int, list[list[int]]] = field(default_factory=dict)
    _speeds: dict[int, tuple[PoolSpeed, ...]] = field(default_factory=dict)
    _unused: dict[str, str] = field(default_factory=dict)
    """Pools that fell out for a width, and why."""
    _trainers: dict[int, TrainerSplit | None] = field(default_factory=dict)

    @property
    def rejected(self) -> dict[str, str]:
        """What fell out, and why."""
        widths = {f"samplers of {_name(width, 'GPU')}": why for width, why in self._narrow.items()}
        return (
            widths | self._unused | {_name(count, "trainer"): why for count, why in sorted(self._untrainable.items())}
        )

    @property
    def trainer_gpus(self) -> int:
        """GPUs of a trainer pod."""
        return self.keep.trainers.gpus_per_replica if self.keep else self.job.spec.trainer.gpus_per_replica

    @cached_property
    def widths(self) -> list[int]:
        """GPUs of a sampler pod that may work, narrowest first; what does not is in ``rejected``."""
        spec = self.job.spec
        if self.keep is not None:
            asked = [self.keep.samplers.gpus_per_replica]
        elif spec.sampler.gpus_per_replica is not None:
            asked = [spec.sampler.gpus_per_replica]
        else:
            largest = max((room.free_gpus for room in self.rooms if room.samplers), default=0)
            most = min(largest, spec.gpus - spec.trainer.min_replicas * self.trainer_gpus)
            asked = [1 << i for i in range(7) if 1 << i <= most]
        fitting = [width for width in asked if self._width_fits(width)]
        usual = [width for width in fitting if width <= _WIDEST_USUAL]
        return usual or fitting[:1]

    def _width_fits(self, width: int) -> bool:
        """Whether samplers of this width work; of several pools, on one at least."""
        pools = self.job.spec.sampler.pools
        if not pools:
            why = self._why_too_narrow(self.job, width)
        else:
            said = {pool.name: self._why_too_narrow(self.job.of_pool(pool.name), width) for pool in pools}
            why = "" if "" in said.values() else next(iter(said.values()))
            if not why:
                unfit = {name: text for name, text in said.items() if text}
                self._unused |= {f"pool {name} with samplers of {_name(width, 'GPU')}": t for name, t in unfit.items()}
        if why:
            self._narrow[width] = why
        return not why

    def _why_too_narrow(self, job: Job, width: int) -> str:
        """Why samplers of this width can't work on a job's GPUs; empty if they can."""
        tensor_parallel = self.tensor_parallel(width)
        if not job.model.tensor_parallel_fits(tensor_parallel):
            return (
                f"{job.model.heads} attention heads cannot be divided by {tensor_parallel}: "
                "write a sampler.gpusPerReplica that divides them, such as 1, 2, 4 or 8"
            )
        measured = job.calibration.measured_on if job.calibration and job.calibration.decode_seconds else None
        if measured is not None and measured.tensor_parallel != tensor_parallel:
            return (
                f"the calibration was measured with engines of {_name(measured.tensor_parallel, 'GPU')} and rests on no data sheet, so "
                f"that nothing is known of {tensor_parallel}: write sampler.gpusPerReplica: {measured.tensor_parallel}, or measure "
                "engines of that width"
            )
        room, longest = job.kv_tokens(tensor_parallel), job.longest_tokens
        gpu = job.accelerators.sampler.name
        if room <= 0:
            wide = job.weights.linear_bytes > 1
            smaller = ["use model.weights: fp8"] if wide else []
            return (
                f"the {job.spec.model.weights.value} weights of {job.model.name} do not fit on {tensor_parallel} × {gpu}: "
                + _either([*_wider(job, width), *smaller, "take GPUs with more memory"])
            )
        if room < longest:
            smaller = [] if job.spec.model.kv_cache is Precision.FP8 else ["use model.kvCache: fp8"]
            return (
                f"a response of workload.responseTokens.max with its prompt is {longest} tokens, the KV cache of "
                f"{tensor_parallel} × {gpu} holds {room}: " + _either([*_wider(job, width), *smaller, "lower the max"])
            )
        return ""

    def tensor_parallel(self, width: int) -> int:
        """Width of the engine in a pod of so many GPUs."""
        return self.keep.samplers.tensor_parallel if self.keep else width

    def max_running(self) -> int:
        """Most running samples of a replica: what is kept or stated, or the engine's own default."""
        return self.keep.samplers.max_running if self.keep else self.job.engine_max_running()

    def frontier(self, width: int) -> list[int]:
        """Most samplers of this width beside 0, 1, 2, … trainers on the nodes."""
        if width not in self._frontiers:
            most = self.job.spec.gpus // self.trainer_gpus
            if self.job.spec.sampler.pools:
                found = allocations(self.rooms, self.speeds(width), width, self.trainer_gpus, most)
                self._allocations[width] = found.tolist()
                self._frontiers[width] = found.sum(axis=1).tolist()
            else:
                self._frontiers[width] = frontier(self.rooms, width, self.trainer_gpus, most).tolist()
        return self._frontiers[width]

    def speeds(self, width: int) -> tuple[PoolSpeed, ...]:
        """The pools for samplers of this width: how fast a full replica is there, and how many may be."""
        if width not in self._speeds:
            self._speeds[width] = tuple(self._speed(pool, width) for pool in self.job.spec.sampler.pools)
        return self._speeds[width]

    def _speed(self, pool: SamplerPool, width: int) -> PoolSpeed:
        job, tensor_parallel, slots = self.job.of_pool(pool.name), self.tensor_parallel(width), self.max_running()
        most = None if pool.max_gpus is None else pool.max_gpus // width
        if self._why_too_narrow(job, width):
            return PoolSpeed(pool.name, 0.0, 0)
        full = max(1.0, min(slots, job.kv_tokens(tensor_parallel) / job.context_tokens, self.job.most_in_flight))
        iteration_s = job.decode_cost(tensor_parallel, slots, 1.0).iteration_s(full, full * job.context_tokens)
        return PoolSpeed(pool.name, full / iteration_s, most)

    def placeable(self, width: int) -> int:
        """The most GPUs of the budget that replicas can hold at once with samplers of this width."""
        budget, per_trainer = self.job.spec.gpus, self.trainer_gpus
        if not self.job.spec.sampler.pools:
            return placeable_gpus(self.rooms, width, per_trainer, budget)
        held = (
            trainers * per_trainer + min(samplers, (budget - trainers * per_trainer) // width) * width
            for trainers, samplers in enumerate(self.frontier(width))
        )
        return max(held, default=0)

    def samplers_beside(self, width: int, trainers: int) -> int:
        """Most samplers of this width beside so many trainers, by nodes, budget and ``sampler.maxReplicas``.

        No more than there can be samples in flight: the GPUs of samplers without work are better left to others.
        """
        spec, best = self.job.spec, self.frontier(width)
        if trainers >= len(best):
            return 0
        left = (spec.gpus - trainers * self.trainer_gpus) // width
        most = min(best[trainers], left, max(self.job.most_in_flight, spec.sampler.min_replicas))
        return max(0, most if spec.sampler.max_replicas is None else min(most, spec.sampler.max_replicas))

    def trainer_counts(self, width: int) -> list[int]:
        """Numbers of trainers that leave room for enough samplers and that memory and batch rule admit."""
        spec = self.job.spec
        least, most = spec.trainer.min_replicas, len(self.frontier(width)) - 1
        if spec.trainer.max_replicas is not None:
            most = min(most, spec.trainer.max_replicas)
        if self.trainer_replicas is not None:
            least, most = self.trainer_replicas, min(most, self.trainer_replicas)
        while most >= least and self.samplers_beside(width, most) < spec.sampler.min_replicas:
            most -= 1
        if self.trainer_replicas is None:
            most = min(most, max(least, self.most_useful(most)))
        return list(range(least, most + 1))

    def most_useful(self, trainers: int) -> int:
        """Of so many trainers, as many as have a sample of the batch for each data-parallel rank: further ranks only wait."""
        if trainers * self.trainer_gpus <= self.job.batch:
            return trainers
        divided = self.trainers(trainers)
        width = 1 if divided is None else divided.tp * divided.pp
        return max(1, min(trainers, self.job.batch * width // self.trainer_gpus))

    def trainers(self, replicas: int) -> TrainerSplit | None:
        """So many trainers, their GPUs divided; None if memory or the batch rule forbid it."""
        if replicas not in self._trainers:
            self._trainers[replicas] = self._divided(replicas)
        return self._trainers[replicas]

    def _divided(self, replicas: int) -> TrainerSplit | None:
        job, setup, per_replica = self.job, self.job.trainer_setup, self.trainer_gpus
        if self.keep is not None:
            old = self.keep.trainers
            width = old.tp * old.pp
            if replicas * per_replica % width or not batch_divides(setup, job.batch, replicas * per_replica // width):
                self._untrainable[replicas] = self._why_not(setup, replicas)
                return None
            return old.model_copy(update={"replicas": replicas, "dp": replicas * per_replica // width})
        divided = parallelism(
            setup,
            replicas=replicas,
            gpus_per_replica=per_replica,
            longest_tokens=job.longest_tokens,
            samples_per_step=job.batch,
        )
        if divided is None:
            self._untrainable[replicas] = self._why_not(setup, replicas)
        return divided

    def _why_not(self, setup: TrainerSetup, replicas: int) -> str:
        gpus = replicas * self.trainer_gpus
        if setup.batch == "strict" and self.job.batch % gpus:
            return (
                f"{gpus} trainer GPUs do not divide the {self.job.batch} samples of a step: write trainer.batch: padded, "
                "or change workload.promptsPerStep"
            )
        return (
            f"training {setup.model.name} with sequences of {self.job.longest_tokens} tokens does not fit on {gpus} × "
            f"{setup.gpu.name}: raise gpus or trainer.gpusPerReplica, set trainer.recompute: full, or lower responseTokens.max"
        )

    def layout(self, width: int, trainers: int, samplers: int | None = None) -> Layout | None:
        """The layout with so many trainers and samplers (by default the most); None if it is not possible."""
        divided, most = self.trainers(trainers), self.samplers_beside(width, trainers)
        count = most if samplers is None else min(samplers, most)
        if divided is None or count < max(1, self.job.spec.sampler.min_replicas):
            return None
        return Layout(
            SamplerSplit(
                replicas=count,
                gpus_per_replica=width,
                tensor_parallel=self.tensor_parallel(width),
                max_running=self.max_running(),
                pools=self._pools(width, trainers, count),
            ),
            divided,
        )

    def _pools(self, width: int, trainers: int, replicas: int) -> tuple[PoolSplit, ...] | None:
        if not self.job.spec.sampler.pools:
            return None
        self.frontier(width)
        return chosen(self._allocations[width][trainers], self.speeds(width), replicas)

    def first(self, fewer_samplers: bool) -> list[Layout]:
        """The layouts to begin with; ``fewer_samplers``: also those that leave GPUs unused, for a job that pays for them.

        Raises PlanningError ``DoesNotFit`` if there is none.
        """
        found: list[Layout] = []
        for width in self.widths:
            for trainers in thinned(self.trainer_counts(width), self.most_counts):
                most = self.samplers_beside(width, trainers)
                least = self.job.spec.sampler.min_replicas
                counts = thinned(list(range(least, most + 1)), 10) if fewer_samplers else [most]
                made = [self.layout(width, trainers, count) for count in counts]
                found += [layout for layout in made if layout is not None]
        if not found:
            raise PlanningError("DoesNotFit", self._nothing())
        return found

    def _nothing(self) -> str:
        # The widest sampler and the largest trainer come nearest to fitting: what stands in their way is what to change.
        if not self.widths and self._narrow:
            widest = max(self._narrow)
            return f"samplers of {_name(widest, 'GPU')}: {self._narrow[widest]}"
        if self._untrainable:
            most = max(self._untrainable)
            return f"{_name(most, 'trainer')}: {self._untrainable[most]}"
        spec = self.job.spec
        narrowest = spec.sampler.gpus_per_replica or 1
        wide = too_wide(
            {"sampler": narrowest, "trainer": self.trainer_gpus},
            {
                "sampler": max((room.free_gpus for room in self.rooms if room.samplers), default=0),
                "trainer": max((room.free_gpus for room in self.rooms if room.trainers), default=0),
            },
            " free",
        )
        if wide is not None:
            return wide
        needed = spec.trainer.min_replicas * self.trainer_gpus + spec.sampler.min_replicas * narrowest
        free = sum(room.free_gpus for room in self.rooms)
        if self.trainer_replicas is not None:
            return f"{self.trainer_replicas} trainers of {self.trainer_gpus} GPUs and a sampler do not fit the budget and the nodes"
        return (
            f"{_name(spec.trainer.min_replicas, 'trainer')} of {self.trainer_gpus} GPUs and "
            f"{_name(spec.sampler.min_replicas, 'sampler')} of {narrowest} need {needed} GPUs, each replica whole on one node; "
            f"the budget is {spec.gpus} and the nodes have {free} free: raise spec.gpus, free or add nodes, or lower "
            "gpusPerReplica or minReplicas"
        )


def thinned(values: Sequence[int], most: int) -> list[int]:
    """At most about ``most`` of the values, evenly spread, both ends kept."""
    if len(values) <= most:
        return list(values)
    return sorted({values[round(i * (len(values) - 1) / (most - 1))] for i in range(most)})


def _wider(job: Job, width: int) -> list[str]:
    """The advice to widen a sampler, where its width was stated and is not that of a node already."""
    stated = job.spec.sampler.gpus_per_replica is not None
    return ["raise sampler.gpusPerReplica"] if stated and width < job.accelerators.sampler.gpus_per_node else []


def _either(remedies: list[str]) -> str:
    return remedies[0] if len(remedies) == 1 else f"{', '.join(remedies[:-1])} or {remedies[-1]}"


def _name(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"
