"""The simulation of an RL job: exact in its own rules, event by event, millions of samples a second.

This module is what others call: what a run depends on, what it shows, and how one becomes the other. ``_checks`` says what
cannot be simulated. The event loop itself is compiled: ``_loop`` drives it and is the trainer, ``_replica`` explains why it may
jump from one finish to the next without an error, ``_line`` admits and starts samples, ``_environment`` and ``_queue`` hold the
rest. ``_state`` is what they work on, ``_native`` how their machine code comes into a process. The same rules, iteration by
iteration and slow, are in ``tests/planner/reference.py``.

The rules. An iteration of a replica costs what ``DecodeCost`` says for its running samples and their resident tokens, and
every running sample gains one token. Waiting samples form one line; the first starts on the replica with the fewest running
(lowest index among equals) that has a slot and KV room. Before an iteration that would overflow the KV cache the newest
samples go back to the head of the line and keep their tokens; one that would go back at once stays in the line. Groups never
run out: with an in-flight cap a group is admitted when all its samples fit under it, without one when nothing waits and its
first sample can start. A training step consumes the oldest complete groups and ends with a new policy version, which each
replica loads for ``weight_sync_s`` seconds at the end of its iteration under way. In ``sync`` and ``one-step-off`` nothing
else happens in that time and the version exists at its end. A sample belongs to the version of its start. Between two decode
turns it is in its environment (``_environment``): it holds no slot and no KV room, but stays in flight; without a cap no
group is admitted while one waits for a sandbox.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from rljob_planner import _state
from rljob_planner._checks import MOST_BYTES, SimulationStalled, check, explain
from rljob_planner._native import is_compiled, run
from rljob_planner.lengths import LengthDistribution

if TYPE_CHECKING:
    from rljob_planner.scenario import Scenario
    from rljob_planner.timeline import Timeline

FloatArray = NDArray[np.float64]

__all__ = [
    "DecodeCost",
    "QueueSpread",
    "SimulationInput",
    "SimulationResult",
    "SimulationStalled",
    "Spread",
    "StalenessSpread",
    "TrainCost",
    "is_compiled",
    "rates",
    "simulate",
    "simulate_scenario",
    "warm_up",
]


@dataclass(frozen=True)
class DecodeCost:
    """Seconds of one iteration of one replica with n running samples that hold R resident tokens (prompts included).

    ``fixed_s[n] + max(memory_s[n] + memory_s_per_token·R, compute_s[n] + compute_s_per_token·R)``; the arrays have
    ``max_running + 1`` entries.
    """

    fixed_s: FloatArray
    memory_s: FloatArray
    compute_s: FloatArray
    memory_s_per_token: float
    compute_s_per_token: float
    prefill_s_per_sample: float = 0.0
    """Added to the first iteration of a sample: the prefill of its prompt, what a prefix cache saves already taken off."""
    recompute_s_per_token: float = 0.0
    """Added per token of context to the iteration in which a preempted sample runs again; 0: recompute is free."""

    def iteration_s(self, n: float, resident_tokens: float) -> float:
        """Seconds of one iteration; between two whole n the tables are interpolated."""
        last = len(self.fixed_s) - 1
        below = min(int(n), last)
        above, part = min(below + 1, last), min(n, last) - below

        def at(table: FloatArray) -> float:
            low = float(table[below])
            return low + part * (float(table[above]) - low)

        return at(self.fixed_s) + max(
            at(self.memory_s) + self.memory_s_per_token * resident_tokens,
            at(self.compute_s) + self.compute_s_per_token * resident_tokens,
        )


@dataclass(frozen=True)
class TrainCost:
    """Seconds of one training step."""

    per_step_s: float
    per_token_s: float = 0.0
    """Per prompt or response token of the batch."""
    per_token_squared_s: float = 0.0
    """Times Σ (prompt + response tokens)² over the samples of the batch."""

    def step_s(self, samples: int, prompt_tokens: int, lengths: LengthDistribution) -> float:
        """Mean seconds of a step over ``samples`` samples."""
        mean = lengths.mean()
        squares = lengths.second_moment() + 2.0 * prompt_tokens * mean + float(prompt_tokens) ** 2
        per_sample = self.per_token_s * (prompt_tokens + mean) + self.per_token_squared_s * squares
        return self.per_step_s + samples * per_sample


@dataclass(frozen=True)
class SimulationInput:
    """All that a simulation depends on."""

    mode: str
    """``async``, ``sync`` or ``one-step-off``."""
    replicas: int
    max_running: int
    """Most running samples of one replica."""
    kv_tokens: int
    """KV room of one replica, prompts counted per sample."""
    decode: DecodeCost
    train: TrainCost
    weight_sync_s: float
    prompts_per_step: int
    samples_per_prompt: int
    prompt_tokens: int
    lengths: LengthDistribution
    bound: str = "none"
    """``none``, ``admission``, ``hold`` or ``drop``; has no effect in ``sync`` and ``one-step-off``."""
    max_staleness: int = 0
    queue_capacity: int | None = None
    """Groups; None: no limit."""
    overflow: str = "drop-oldest"
    """``drop-oldest`` or ``block``."""
    in_flight_cap: int | None = None
    """Samples; None: a group is admitted when nothing waits and its first sample can start."""
    steps: int = 300
    """Training steps, warm-up included."""
    warmup: int = 50
    """First steps, left out of the statistics."""
    seed: int = 0
    turns: int = 1
    """Decode turns of a sample; its tokens are shared out over them evenly. Between two of them it is in its environment."""
    turn_s: float = 0.0
    """Mean seconds that a sample is in its environment between two turns."""
    turn_cv: float = 0.0
    """Standard deviation over mean of these seconds, which are lognormal."""
    sandboxes: int | None = None
    """Environments that may run at once; None: no limit."""
    group_correlation: float = 0.0
    """Correlation, 0..1, of the normal scores of the lengths of one prompt's samples (a Gaussian copula)."""
    drift: tuple[tuple[int, float], ...] = ()
    """(policy version, factor of the lengths of samples that start at it), linear between the points, constant outside."""


@dataclass(frozen=True)
class Spread:
    """A quantity over the steps after the warm-up."""

    mean: float
    p10: float
    p50: float
    p90: float


@dataclass(frozen=True)
class StalenessSpread:
    """Staleness of the samples that were trained after the warm-up, in policy versions."""

    mean: float
    p95: float
    max: int
    histogram: tuple[int, ...]
    """Samples by staleness 0, 1, 2, …"""


@dataclass(frozen=True)
class QueueSpread:
    """Complete groups waiting for the trainer: mean over time, and most."""

    mean: float
    max: int


@dataclass(frozen=True)
class SimulationResult:
    """What a simulation showed after its warm-up; means are over time unless they say otherwise."""

    period: Spread
    """Seconds between two published versions."""
    staleness: StalenessSpread
    rho: float
    """Rollout rate over train rate, each side alone (``rates``)."""
    sampler_utilization: float
    """Share of time in which a replica runs at least one sample, 0..1, mean over replicas."""
    trainer_utilization: float
    """Share of time spent in training steps, 0..1."""
    mean_running: float
    """Samples that hold a decode slot, all replicas together."""
    mean_in_flight: float
    queue_groups: QueueSpread
    tokens_per_second: float
    """Trained response tokens per second."""
    dropped_groups: int
    """Complete groups thrown away, pushed out of the queue or too stale."""
    wasted_tokens: int
    """Response tokens of the dropped groups."""
    trained_mean_length: float
    """Mean response tokens of the samples that were trained."""
    kv_utilization: float
    """Resident tokens over KV room, 0..1, mean over replicas."""
    preemptions: int
    elapsed_s: float
    """Simulated seconds that the statistics cover."""
    periods_s: FloatArray
    """Each period after the warm-up."""
    environment_samples: float = 0.0
    """Samples that are in their environment, mean over time: the sandboxes in use."""
    sandbox_wait_s: float = 0.0
    """Mean seconds that a sample waits for a sandbox, each time that it needs one."""
    timeline: Timeline | None = None
    """What happened when, where ``simulate`` was asked to record it."""

    def to_json(self) -> dict[str, Any]:
        """The result as the JSON object of ``rljob simulate``."""
        from rljob_planner._simulation_json import PeriodJson, QueueJson, SimulationJson, StalenessJson

        agentic = self.environment_samples > 0
        return SimulationJson(
            period=PeriodJson(mean=self.period.mean, p10=self.period.p10, p50=self.period.p50, p90=self.period.p90),
            staleness=StalenessJson(mean=self.staleness.mean, p95=self.staleness.p95, max=self.staleness.max),
            rho=self.rho,
            sampler_utilization=self.sampler_utilization,
            trainer_utilization=self.trainer_utilization,
            mean_running=self.mean_running,
            mean_in_flight=self.mean_in_flight,
            queue_groups=QueueJson(mean=self.queue_groups.mean, max=self.queue_groups.max),
            tokens_per_second=self.tokens_per_second,
            dropped_groups=self.dropped_groups,
            wasted_tokens=self.wasted_tokens,
            trained_mean_length=self.trained_mean_length,
            environment_samples=self.environment_samples if agentic else None,
            sandbox_wait=self.sandbox_wait_s if agentic else None,
        ).model_dump(by_alias=True, exclude_none=True)


def simulate_scenario(scenario: Scenario, *, record: bool = False) -> SimulationResult:
    """Simulate a scenario file."""
    from rljob_planner.scenario import compile as compile_scenario

    return simulate(compile_scenario(scenario), record=record)


def simulate(inp: SimulationInput, *, rho: float | None = None, record: bool = False) -> SimulationResult:
    """Run the simulation; ``rho`` from elsewhere spares the second run that measures each side alone, ``record`` keeps a timeline.

    Raises ValueError for an input that contradicts itself and ``SimulationStalled`` for one that can never finish.
    """
    check(inp)
    world = _run(inp, record)
    st = world.counters[0]
    published = np.concatenate([[0.0], world.published_s])
    periods = np.diff(published)[inp.warmup :]
    elapsed = float(published[-1] - published[inp.warmup])
    p10, p50, p90 = (float(p) for p in np.percentile(periods, (10, 50, 90)))

    def over_time(amount: float) -> float:
        return float(amount) / elapsed if elapsed > 0 else 0.0

    totals, turns = world.totals, float(world.totals[_state.TURNS])

    return SimulationResult(
        period=Spread(float(periods.mean()), p10, p50, p90),
        staleness=_staleness(world.histogram),
        rho=_rho(inp, st) if rho is None else rho,
        sampler_utilization=min(1.0, over_time(totals[_state.BUSY]) / inp.replicas),
        trainer_utilization=min(1.0, over_time(st["training_s"])),
        mean_running=over_time(totals[_state.RUNNING]),
        mean_in_flight=over_time(totals[_state.IN_FLIGHT]),
        queue_groups=QueueSpread(over_time(totals[_state.QUEUE]), int(st["queue_max"])),
        tokens_per_second=over_time(st["trained_tokens"]),
        dropped_groups=int(st["dropped_groups"]),
        wasted_tokens=int(st["wasted_tokens"]),
        trained_mean_length=float(st["trained_tokens"]) / float(st["trained_samples"]),
        kv_utilization=over_time(totals[_state.KV]) / (inp.replicas * inp.kv_tokens),
        preemptions=round(totals[_state.PREEMPTIONS]),
        elapsed_s=elapsed,
        periods_s=periods,
        environment_samples=over_time(totals[_state.ENVIRONMENT]),
        sandbox_wait_s=float(totals[_state.SANDBOX_WAIT]) / turns if turns > 0 else 0.0,
        timeline=_timeline(world) if record else None,
    )


def warm_up() -> None:
    """Compile the event loop now (some ten seconds; later processes load it from a file), as an image build does."""
    one = np.ones(2)
    simulate(
        SimulationInput(
            mode="async", replicas=1, max_running=1, kv_tokens=1, decode=DecodeCost(one, one, one, 0.0, 0.0),
            train=TrainCost(1.0), weight_sync_s=0.0, prompts_per_step=1, samples_per_prompt=1, prompt_tokens=0,
            lengths=LengthDistribution.from_values([1]), steps=2, warmup=0,
        )
    )  # fmt: skip


def rates(inp: SimulationInput) -> tuple[float, float]:
    """Samples per second of each side alone: what samplers generate at this in-flight, what the trainer consumes.

    The samplers run without a bound, with a consumer that takes every group at once and with no weights to load, since there
    is no trainer to publish any. The trainer's rate is that of its mean step over this length distribution. Lengths that drift
    are taken as long as they are on average after the warm-up.
    """
    check(inp)
    if inp.drift:
        versions, factors = zip(*inp.drift, strict=True)
        factor = float(np.interp(np.arange(inp.warmup, inp.steps), versions, factors).mean())
        inp = replace(inp, drift=(), lengths=replace(inp.lengths, law=None).scaled(factor))
    batch = inp.prompts_per_step * inp.samples_per_prompt
    step_s = inp.train.step_s(batch, inp.prompt_tokens, inp.lengths)
    warmup = 2 + int(2 * _most_in_flight(inp) * inp.lengths.tail_multiplier(inp.samples_per_prompt)) // (
        inp.samples_per_prompt
    )
    measured = max(3 * warmup, 20_000 // inp.samples_per_prompt)
    alone = replace(
        inp,
        mode="async",
        train=TrainCost(0.0),
        weight_sync_s=0.0,
        prompts_per_step=1,
        bound="none",
        queue_capacity=None,
        steps=warmup + measured,
        warmup=warmup,
    )
    world = _run(alone)
    elapsed = float(world.published_s[-1] - world.published_s[warmup - 1])
    return measured * inp.samples_per_prompt / elapsed, batch / step_s if step_s > 0 else float("inf")


def _most_in_flight(inp: SimulationInput) -> float:
    """About the samples in flight when the samplers are full; those in their environment are on top of the slots."""
    slots = inp.replicas * inp.max_running
    away = 0.0
    if inp.turns > 1:
        mean = inp.lengths.mean()
        resident = inp.max_running * (inp.prompt_tokens + inp.lengths.resident_mean_tokens())
        decoding_s = mean * inp.decode.iteration_s(inp.max_running, min(resident, inp.kv_tokens))
        away = slots * (inp.turns - 1) * inp.turn_s / decoding_s
    return min(float(inp.in_flight_cap or 1 << 40), slots + away + inp.samples_per_prompt)


def _timeline(world: _state.World) -> Timeline:
    from rljob_planner.timeline import recorded

    return recorded(world)


def _run(inp: SimulationInput, record: bool = False) -> _state.World:
    world = _state.new_world(inp, record)
    while (status := run(world)) == _state.NEEDS_ROOM and 2 * _state.used_bytes(world) <= MOST_BYTES:
        world = _state.grow(world)
    explain(status, inp, world)
    return world


def _rho(inp: SimulationInput, st: Any) -> float:
    """In lock-step modes full load is the batch itself: the rates are a batch over its sampling and its training time."""
    if inp.mode != "async":
        training_s = float(st["training_s"]) / (inp.steps - inp.warmup)
        return training_s * float(st["batches"]) / float(st["generation_s"])
    rollout_rate, train_rate = rates(inp)
    return rollout_rate / train_rate


def _staleness(histogram: NDArray[np.int64]) -> StalenessSpread:
    top = int(np.flatnonzero(histogram)[-1])
    counts = histogram[: top + 1]
    cumulative = np.cumsum(counts)
    mean = float(counts @ np.arange(top + 1)) / float(cumulative[-1])
    p95 = int(np.searchsorted(cumulative, 0.95 * cumulative[-1]))
    return StalenessSpread(mean, float(p95), top, tuple(int(c) for c in counts))
