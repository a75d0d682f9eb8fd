"""A spec made definite: names resolved to shapes and data sheets, lengths to a distribution, a split to a simulation.

Everything that is the same for all splits of a job is worked out once here. The search asks it for the costs of a candidate, the
calibration for the step that a reading should have shown; so both speak of the same model.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

from rljob_planner.accelerators import Accelerators, accelerators_of
from rljob_planner.api.spec import ResponseTokens, RLJobSpec
from rljob_planner.errors import PlanningError
from rljob_planner.lengths import LengthDistribution
from rljob_planner.memory import kv_room_tokens, shared_prompt_room_tokens
from rljob_planner.models import ModelShape, from_config, model
from rljob_planner.placement import Room
from rljob_planner.precision import WeightFormat
from rljob_planner.serving import weight_format_of
from rljob_planner.simulate import DecodeCost, SimulationInput, TrainCost
from rljob_planner.split import SamplerSplit, Split, TrainerSplit
from rljob_planner.steptime import Engine, decode_cost
from rljob_planner.training import TrainerSetup, padding, train_cost, training_efficiency, weight_sync_s

if TYPE_CHECKING:
    from rljob_planner.calibrate import Calibration

MOST_SIMULATED_TURNS = 16
"""Turns beyond which several are simulated as one: what counts is how long samples are away, and that they come and go."""


def lengths_of(response: ResponseTokens) -> LengthDistribution:
    """The distribution that a spec describes; raises PlanningError ``InvalidLengths`` if it describes none."""
    where = "spec.workload.responseTokens"
    given = [n for n in ("mean", "quantiles", "histogram") if getattr(response, n) is not None]
    if len(given) != 1:
        raise PlanningError(
            "InvalidLengths", f"{where}: describe lengths in one way: mean (with cv), quantiles or histogram"
        )
    try:
        if response.mean is not None:
            return LengthDistribution.from_mean_cv(response.mean, response.cv, response.max)
        if response.quantiles is not None:
            return LengthDistribution.from_quantiles({float(p): x for p, x in response.quantiles.items()}, response.max)
        return LengthDistribution.from_histogram(response.histogram or (), response.max)
    except ValueError as error:
        raise PlanningError("InvalidLengths", f"{where}: {error}") from error


def model_of(spec: RLJobSpec) -> ModelShape:
    """The shape of the spec's model; raises PlanningError ``UnknownModel``."""
    if (spec.model.name is None) == (spec.model.config is None):
        raise PlanningError(
            "UnknownModel",
            "spec.model: say which model, either by name (such as Qwen/Qwen3-8B) or by config (the fields of its config.json)",
        )
    return model(spec.model.name) if spec.model.name is not None else from_config(spec.model.config or {})


@dataclass(frozen=True, eq=False)
class Job:
    """A spec on given GPU types with given lengths."""

    spec: RLJobSpec
    model: ModelShape
    accelerators: Accelerators
    lengths: LengthDistribution
    calibration: Calibration | None = None
    """What replaces the GPU's decode constants and the computed KV room; its factors come with each question instead."""
    _engines: dict[int, Engine] = field(default_factory=dict)
    _decode_costs: dict[tuple[int, int, float], DecodeCost] = field(default_factory=dict)
    _rooms: dict[int, int] = field(default_factory=dict)
    _pools: dict[str, Job] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        spec: RLJobSpec,
        accelerators: Accelerators | Sequence[Room],
        lengths: LengthDistribution | None = None,
        calibration: Calibration | None = None,
    ) -> Job:
        """The job on these GPU types, or on those of these nodes; raises PlanningError."""
        if not isinstance(accelerators, Accelerators):
            accelerators = accelerators_of(spec, accelerators)
        if lengths is None:
            lengths = lengths_of(spec.workload.response_tokens)
        return cls(spec, model_of(spec), accelerators, lengths, calibration)

    def with_lengths(self, lengths: LengthDistribution) -> Job:
        """The same job with other response lengths."""
        return Job.of(self.spec, self.accelerators, lengths, self.calibration)

    @property
    def prompt_tokens(self) -> int:
        """Mean prompt length in tokens."""
        return self.spec.workload.prompt_tokens.mean

    @property
    def batch(self) -> int:
        """Samples of a training step."""
        return self.spec.workload.samples_per_step

    @property
    def group(self) -> int:
        """Samples of a group."""
        return self.spec.workload.samples_per_prompt

    @property
    def simulated_turns(self) -> int:
        """Turns of a sample as they are simulated: of a long conversation several are one, with as much time and as much spread."""
        environment = self.spec.workload.environment
        return 1 if environment is None else min(environment.turns, MOST_SIMULATED_TURNS)

    @property
    def away_s(self) -> float:
        """Mean seconds that a sample spends in its environment, all turns together; waiting for a sandbox not counted."""
        environment = self.spec.workload.environment
        return 0.0 if environment is None else (environment.turns - 1) * environment.seconds_per_turn

    @property
    def sandbox_limit(self) -> int | None:
        """Environments that may run at once; None: no limit, or no environments."""
        return None if self.spec.sandbox is None else self.spec.sandbox.most_environments

    @property
    def most_in_flight(self) -> int:
        """Samples in flight beyond which more can only age: those of the version in training and of all that staleness admits."""
        return (self.spec.staleness.max + 1) * self.batch

    @property
    def longest_tokens(self) -> int:
        """The longest sequence that may come, prompt included."""
        return self.prompt_tokens + self.lengths.cap_tokens

    @property
    def context_tokens(self) -> float:
        """Mean resident context of a running sample."""
        return self.prompt_tokens + self.lengths.resident_mean_tokens()

    @cached_property
    def weights(self) -> WeightFormat:
        """The number format of the samplers' weights; plain fp8 of a checkpoint that is published in blocks is in blocks."""
        return weight_format_of(self.spec.model.weights.value, self.model)

    @cached_property
    def weight_sync_s(self) -> float:
        """Seconds in which samplers take over a new policy version."""
        return weight_sync_s(self.model, self.weights.name)

    @cached_property
    def trainer_setup(self) -> TrainerSetup:
        """What the spec says of the trainer."""
        trainer = self.spec.trainer
        return TrainerSetup(
            model=self.model,
            gpu=self.accelerators.trainer,
            recompute=trainer.recompute.value,
            extra_forwards=len(trainer.extra_forwards),
            mfu=trainer.mfu_fraction,
            batch=trainer.batch.value,
        )

    def engine(self, tensor_parallel: int) -> Engine:
        """A sampler engine of this width."""
        if tensor_parallel not in self._engines:
            gpu, known = self.accelerators.sampler, self.calibration
            constants = known.decode if known else None
            self._engines[tensor_parallel] = Engine(
                self.model,
                gpu if constants is None else replace(gpu, decode=constants),
                tensor_parallel,
                self.weights.name,
                self.spec.model.kv_cache.value,
                measured=known.decode_seconds_at(tensor_parallel) if known else None,
            )
        return self._engines[tensor_parallel]

    def kv_tokens(self, tensor_parallel: int) -> int:
        """KV room of a replica as the simulator counts it; 0 if the model does not fit."""
        if tensor_parallel not in self._rooms:
            room = self.calibration.kv_tokens_at(tensor_parallel) if self.calibration else None
            if room is None:
                room = kv_room_tokens(self.engine(tensor_parallel), self.context_tokens)
            self._rooms[tensor_parallel] = shared_prompt_room_tokens(room, self.lengths, self.prompt_tokens, self.group)
        return self._rooms[tensor_parallel]

    def engine_max_running(self) -> int:
        """Running samples that the spec allows a replica, or the engine's own default."""
        return self.spec.sampler.max_running or self.accelerators.sampler.engine.max_running

    def decode_cost(self, tensor_parallel: int, max_running: int, factor: float) -> DecodeCost:
        """Cost tables of a replica that is ``factor`` times as fast as the model says."""
        key = (tensor_parallel, max_running, factor)
        if key not in self._decode_costs:
            self._decode_costs[key] = decode_cost(
                self.engine(tensor_parallel), max_running, self.lengths, self.prompt_tokens, self.group, factor
            )
        return self._decode_costs[key]

    def trainer_speed(self, calibration: Calibration) -> float:
        """Speed of this job's trainer over the model's; a stated MFU, or a measured step, is that of a running trainer already."""
        if self.trainer_setup.mfu is None and calibration.train_seconds is None:
            return calibration.trainer_speed
        return calibration.trainer_factor * calibration.supposed_trainers

    def train_cost(self, split: TrainerSplit, factor: float) -> TrainCost:
        """Cost of a training step that is ``factor`` times as fast as the model, or what was measured, says."""
        measured = self.calibration.train_seconds if self.calibration else None
        if measured is not None:
            pad = padding(self.batch, split.dp)
            return TrainCost(measured.step_s / factor, pad * measured.token_s / split.gpus / factor)
        return train_cost(self.trainer_setup, split, self.lengths, self.prompt_tokens, self.batch, factor)

    def simulation_input(
        self,
        split: Split,
        calibration: Calibration,
        *,
        steps: int,
        warmup: int,
        seed: int = 0,
        decode_speed: float = 1.0,
        train_speed: float = 1.0,
        sync_time: float = 1.0,
        colocated: bool = False,
    ) -> SimulationInput:
        """What the simulator needs to run this split; speeds and sync time vary one thing for elasticities.

        ``colocated``: engines and trainer share GPUs, as published runs of mode ``sync`` do. A training step is slower there, and
        the optimizer's state leaves the GPUs and comes back.
        """
        slowdown = training_efficiency().colocated_slowdown if colocated else 1.0
        offload_s = self._offload_s(split) if colocated else 0.0
        spec = self.spec
        queue, environment, turns = spec.queue, spec.workload.environment, self.simulated_turns
        speed = calibration.sampler_speed * decode_speed
        kv_tokens, decode = self.samplers_of(split.samplers, speed, split.in_flight)
        return SimulationInput(
            mode=split.mode,
            replicas=split.samplers.replicas,
            max_running=_simulated_slots(split),
            kv_tokens=kv_tokens,
            decode=decode,
            train=self.train_cost(split.trainers, self.trainer_speed(calibration) * train_speed / slowdown),
            weight_sync_s=(self.weight_sync_s + offload_s) * sync_time,
            prompts_per_step=spec.workload.prompts_per_step,
            samples_per_prompt=self.group,
            prompt_tokens=self.prompt_tokens,
            lengths=self.lengths,
            bound=spec.staleness.bound.value,
            max_staleness=spec.staleness.max,
            queue_capacity=None if queue is None else queue.capacity,
            overflow="drop-oldest" if queue is None else queue.overflow.value,
            in_flight_cap=None if split.mode == "sync" else split.in_flight,
            steps=steps,
            warmup=warmup,
            seed=seed,
            turns=turns,
            turn_s=0.0 if environment is None else self.away_s / (turns - 1),
            turn_cv=0.0 if environment is None else environment.cv * math.sqrt((turns - 1) / (environment.turns - 1)),
            sandboxes=self.sandbox_limit,
        )

    def of_pool(self, name: str) -> Job:
        """The job as it would be with all samplers in one pool: for the cost and the KV room of a replica there."""
        if name not in self._pools:
            own = self.accelerators.of_pool(name)
            on = replace(self.accelerators, sampler=own, pools=())
            # Decode constants and KV room are those of the GPU that they were measured on.
            calibration = self.calibration if own == self.accelerators.sampler else None
            self._pools[name] = Job(self.spec, self.model, on, self.lengths, calibration)
        return self._pools[name]

    def unlike(self, samplers: SamplerSplit) -> tuple[str, ...]:
        """The GPU types that samplers run on, where they span pools."""
        return tuple(dict.fromkeys(job.accelerators.sampler.name for _, job in self._parts(samplers)))

    def _parts(self, samplers: SamplerSplit) -> list[tuple[int, Job]]:
        """Replicas by pool, and the job as it is there; one part for samplers that know no pools."""
        found = [(pool.replicas, self.of_pool(pool.name)) for pool in samplers.pools or () if pool.replicas > 0]
        return found or [(samplers.replicas, self)]

    def iteration_s(self, s: SamplerSplit, running: float, resident_tokens: float, factor: float = 1.0) -> float:
        """Mean seconds between two tokens of a sample on a replica that runs so many, the prefill of those that start meanwhile included.

        Over pools of unlike GPUs the mean over the replicas, as their metrics give it.
        """
        total, top = 0.0, max(1, math.ceil(running))
        for replicas, job in self._parts(s):
            cost = job.decode_cost(s.tensor_parallel, top, factor)
            prefill_s = running / self.lengths.mean() * cost.prefill_s_per_sample
            total += replicas * (cost.iteration_s(running, resident_tokens) + prefill_s)
        return total / sum(replicas for replicas, _ in self._parts(s))

    def samplers_of(self, s: SamplerSplit, factor: float, in_flight: int | None = None) -> tuple[int, DecodeCost]:
        """KV room and cost of a replica; where samplers span pools of unlike GPUs, of the mean replica (``pools``)."""
        parts = self._parts(s)
        if len(self.unlike(s)) < 2:
            alone = parts[0][1]
            return alone.kv_tokens(s.tensor_parallel), alone.decode_cost(s.tensor_parallel, s.max_running, factor)
        from rljob_planner.pools import mixed

        costs = [(n, job.decode_cost(s.tensor_parallel, s.max_running, factor)) for n, job in parts]
        kv = sum(n * job.kv_tokens(s.tensor_parallel) for n, job in parts) // sum(n for n, _ in parts)
        operating = min(s.max_running, kv / self.context_tokens)
        if in_flight is not None:
            operating = min(operating, in_flight / s.replicas)
        return kv, mixed(costs, self.context_tokens, operating)

    def _offload_s(self, split: Split) -> float:
        """Seconds in which the optimizer's state leaves GPUs that sample next, and comes back."""
        known, gpu = training_efficiency(), self.accelerators.trainer
        moved_bytes = 2.0 * known.offloaded_bytes * self.model.parameters / split.trainers.gpus
        return moved_bytes / (known.pcie_share * gpu.pcie_bytes_per_s)

    def usd_per_hour(self, split: Split) -> float | None:
        """Price of the GPUs that a split uses, None if one of them has none."""
        trainer, s = self.accelerators.trainer.usd_per_hour, split.samplers
        gpus = [(p.replicas * s.gpus_per_replica, self.accelerators.of_pool(p.name)) for p in s.pools or ()]
        prices = [(count, on.usd_per_hour) for count, on in gpus or [(s.gpus, self.accelerators.sampler)] if count > 0]
        if trainer is None or any(price is None for _, price in prices):
            return None
        samplers = sum(count * (price or 0.0) for count, price in prices)
        return (0.0 if split.mode == "sync" else samplers) + split.trainers.gpus * trainer


def _simulated_slots(split: Split) -> int:
    """Slots of a replica as far as they can be used: samples go where fewest run, so a cap is shared out almost evenly.

    Twice the even share leaves room for replicas that full KV caches of others fill up; the simulator then needs memory for
    what is in flight, not for every slot of a large fleet.
    """
    return min(split.samplers.max_running, 2 * -(-split.in_flight // split.samplers.replicas) + 8)
