"""The same job in formulas: a fraction of a millisecond instead of a simulation.

It screens candidates and stands beside the simulator as a check that shares none of its reasoning. Staleness follows Applied
Compute, "Predicting and Controlling Staleness in Fully Asynchronous RL Training" (2026): a sample ages while its group is
unfinished (pre-queue) and while the group waits (in-queue). Rates follow from a steady state in which the running samples of a
replica are as many as slots, in-flight and KV room allow; their resident length is length-biased, E[L²]/(2·E[L]), since a long
response is seen running for longer. What a bound does is worked out in ``renewal``: a cycle that repeats with every version.

Within 3 % of the period and 0.15 versions of the simulation where one limit is clear: one side, or the bound, by a quarter
(0.25 versions under ``hold``). Otherwise, most of all near ρ = 1, now one limit counts and now the other, which no formula here
knows: ``ClosedForm.contested`` says so, and how far off it may be.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from rljob_planner.lengths import LengthDistribution
from rljob_planner.renewal import (
    CLEARLY,
    Lives,
    admitted,
    blocked_staleness,
    dropping,
    held,
    held_staleness,
    lives_of,
    rising_root,
    starts,
    window_staleness,
)
from rljob_planner.simulate import DecodeCost, SimulationInput

FloatArray = NDArray[np.float64]

_ROOT_PRECISION = 1e-7
"""Relative width of the interval in which a root is found."""


@dataclass(frozen=True)
class ClosedForm:
    """What the formulas say of a job."""

    period_s: float
    """Mean seconds between two published versions."""
    mean_staleness: float
    """Policy versions."""
    rho: float
    """Rollout rate over train rate, each side alone."""
    rollout_rate: float
    """Samples per second that the samplers generate alone."""
    train_rate: float
    """Samples per second that the trainer consumes alone; infinite for a step that takes no time."""
    mean_running: float
    """Running samples, all replicas together."""
    contested: bool = False
    """Whether two limits lie within a quarter of each other, so that now one counts and now the other. The period is then up to
    a tenth longer, and staleness off by up to a version."""


def mean_staleness(C: float, M: float, B: float, rho: float, q: float) -> float:
    """Mean staleness in versions of a job whose full queue drops its oldest groups.

    ``C`` samples in flight (realised, not configured), tail multiplier ``M``, ``B`` samples per step, rollout over train rate
    ``rho``, queue capacity ``q`` in batches.
    """
    in_queue = rho if rho < 1.0 else (2.0 * q + rho - 1.0) / (2.0 * rho)
    return C * M / (B * max(1.0, rho)) + in_queue


def period_ratio(rho: float, rollout_per_gpu: float, train_per_gpu: float) -> float:
    """Period at fixed GPUs up to a constant: (1/min(1, ρ))·(1/c_T + ρ/c_R), c in samples per second and GPU."""
    return (1.0 / train_per_gpu + rho / rollout_per_gpu) / min(1.0, rho)


def predict(inp: SimulationInput) -> ClosedForm:
    """Period, staleness and rates of a job in steady state."""
    if inp.drift:
        inp = replace(inp, drift=(), lengths=_drifted(inp.lengths, inp.drift, inp.warmup, inp.steps))
    return _lock_step(inp) if inp.mode != "async" else _asynchronous(inp)


@lru_cache(maxsize=16)
def _drifted(
    lengths: LengthDistribution, drift: tuple[tuple[int, float], ...], warmup: int, steps: int
) -> LengthDistribution:
    """Lengths as long as they are on average over the versions that count."""
    versions, factors = zip(*drift, strict=True)
    factor = float(np.interp(np.arange(warmup, steps), versions, factors).mean())
    return replace(lengths, law=None).scaled(factor)


class _Samplers:
    """Rates of the sampler side as a function of the samples that are in flight."""

    def __init__(self, inp: SimulationInput) -> None:
        self.inp = inp
        self.mean = inp.lengths.mean()
        self.context = inp.prompt_tokens + inp.lengths.resident_mean_tokens() - 0.5
        self.slots = min(float(inp.max_running), max(1.0, inp.kv_tokens / (self.context + 1.0)))
        """Samples that one replica can run at once."""
        self.away_s = (inp.turns - 1) * inp.turn_s
        """Seconds that a sample is in its environment, all turns together; it is in flight there but does not run."""

    def most_in_flight(self) -> float:
        """Samples in flight when only slots, KV room, sandboxes and the in-flight cap limit them; groups are admitted whole."""
        room = self.slots * self.inp.replicas
        if self.away_s > 0.0:
            served = room / (self.token_s(room) * self.mean)
            if self.inp.sandboxes is not None:
                served = min(served, self.inp.sandboxes / self.away_s)
            room = _root(lambda n: self._served(n) - served, 0.0, room) + served * self.away_s
        if self.inp.in_flight_cap is None:
            return room
        whole = self.inp.in_flight_cap // self.inp.samples_per_prompt * self.inp.samples_per_prompt
        realised = self.inp.in_flight_cap - 0.5 * (self.inp.samples_per_prompt - 1)
        return min(room, float(whole), max(realised, 1.0))

    def running(self, in_flight: float) -> float:
        """Samples of those in flight that run: the others are in their environment."""
        if self.away_s == 0.0:
            return in_flight
        return _root(lambda n: n + self._served(n) * self.away_s - in_flight, 0.0, in_flight)

    def _served(self, running: float) -> float:
        return running / (self.token_s(running) * self.mean)

    def token_s(self, running: float) -> float:
        """Seconds of an iteration with ``running`` samples on all replicas together."""
        n = max(1.0, running / self.inp.replicas)
        decode = self.inp.decode
        return decode.iteration_s(n, n * self.context) + n / self.mean * decode.prefill_s_per_sample

    def rate(self, in_flight: float) -> float:
        """Samples per second with ``in_flight`` samples."""
        return self._served(self.running(in_flight))


@dataclass(frozen=True)
class _Steady:
    """What all bounds start from."""

    inp: SimulationInput
    samplers: _Samplers
    in_flight: float
    rate: float
    """Samples per second with ``in_flight`` samples while no weights are loaded."""
    token_s: float
    step_s: float

    @property
    def batch(self) -> int:
        return self.inp.prompts_per_step * self.inp.samples_per_prompt

    @property
    def free_s(self) -> float:
        """Period at the full speed of both sides."""
        return max(self.step_s, self.batch / self.rate + self.inp.weight_sync_s)

    @property
    def rho(self) -> float:
        """Batches that samplers generate in a period at full speed: above 1 where the trainer limits."""
        return self.rate * (self.free_s - self.inp.weight_sync_s) / self.batch

    @property
    def contested(self) -> bool:
        """Whether both sides are about as fast, or a queue that blocks lets more than a batch start at once."""
        least = max(0.0, self.step_s - self.inp.weight_sync_s) * self.rate / self.batch
        most = self.step_s * self.rate / self.batch
        if most * CLEARLY > 1.0 and least < CLEARLY:
            return True
        room = self.in_flight / self.batch
        if not _blocks(self) or room <= 1.0:
            return False
        every = (self.free_s - self.inp.weight_sync_s) / self.token_s
        return starts(self.lives(self.token_s), every, CLEARLY * room) is None

    @property
    def queue(self) -> float:
        """Capacity of the queue in batches."""
        return math.inf if self.inp.queue_capacity is None else self.inp.queue_capacity / self.inp.prompts_per_step

    def lives(self, token_s: float) -> Lives:
        lives = lives_of(self.inp.lengths, self.inp.samples_per_prompt, self.inp.group_correlation)
        # The clock of tokens stands still while weights are loaded, the environment does not.
        away_s = self.samplers.away_s * (1.0 - min(0.9, self.inp.weight_sync_s / self.free_s))
        return replace(lives, away_tokens=away_s / token_s) if away_s > 0.0 else lives


def _asynchronous(inp: SimulationInput) -> ClosedForm:
    samplers = _Samplers(inp)
    batch = inp.prompts_per_step * inp.samples_per_prompt
    step_s = inp.train.step_s(batch, inp.prompt_tokens, inp.lengths)
    train_rate = batch / step_s if step_s > 0 else math.inf
    most = samplers.most_in_flight()
    running = samplers.running(most)
    alone = samplers.rate(most)
    if inp.bound == "admission" and inp.max_staleness == 0:
        at_once = _lock_step(inp)  # a batch starts when the one before it is published: sync, whatever the mode
        return ClosedForm(at_once.period_s, 0.0, alone / train_rate, alone, train_rate, at_once.mean_running)
    steady = _Steady(inp, samplers, most, alone, samplers.token_s(running), step_s)
    if inp.bound == "drop":
        period, staleness, contested = _dropping(steady)
    elif inp.bound == "hold":
        period, staleness, contested = _holding(steady)
    elif inp.bound == "admission":
        period, staleness, contested = _admitting(steady)
    else:
        period, staleness, contested = steady.free_s, _unbounded_staleness(steady), steady.contested
    if inp.bound == "admission" or _blocks(steady):
        running = min(running, batch * samplers.mean * steady.token_s / max(1e-12, period - inp.weight_sync_s))
    return ClosedForm(period, staleness, alone / train_rate, alone, train_rate, running, contested)


def _blocks(steady: _Steady) -> bool:
    return steady.inp.overflow == "block" and steady.inp.queue_capacity is not None and steady.rho > 1.0


def _unbounded_staleness(steady: _Steady) -> float:
    """Mean staleness that only the queue limits."""
    inp, rho, batch = steady.inp, steady.rho, steady.batch
    lives = steady.lives(steady.token_s)
    every = (steady.free_s - inp.weight_sync_s) / steady.token_s
    if inp.weight_sync_s + batch / steady.rate >= steady.step_s:
        # Groups complete while replicas do not pause, so it is then that a step runs for a share of the time.
        busy = min(1.0, steady.step_s * steady.rate / batch)
        return (lives.group.mean + lives.away_tokens) / every + busy
    if inp.queue_capacity is None:
        # The queue grows by what the trainer does not take; a group that is trained in step k waited for k·(1 − 1/ρ).
        grown = 0.5 * (inp.steps + inp.warmup) * (1.0 - 1.0 / rho)
        return (lives.group.mean + lives.away_tokens) / every + 0.5 + grown
    if inp.overflow == "block":
        slower = steady.samplers.token_s(batch * steady.samplers.mean / every)
        every = (steady.free_s - inp.weight_sync_s) / slower
        return blocked_staleness(steady.lives(slower), every, steady.in_flight / batch, steady.queue)
    y = (lives.group.tokens + lives.away_tokens) / every
    return window_staleness(lives.group.weights, y, (steady.queue - 1.0) / rho, steady.queue / rho)


def _admitting(steady: _Steady) -> tuple[float, float, bool]:
    inp, samplers = steady.inp, steady.samplers
    most, work = samplers.running(steady.in_flight), steady.batch * samplers.mean

    def token_s(every: float) -> float:
        return samplers.token_s(min(work / every, most))

    # Groups are whole, so the count of unfinished ones falls to its limit when their expected number is half a group above it.
    ahead = inp.max_staleness + 0.5 / inp.prompts_per_step
    fastest = (steady.free_s - inp.weight_sync_s) / steady.token_s
    for _ in range(2):
        fastest = (steady.free_s - inp.weight_sync_s) / token_s(fastest)
    cycle = admitted(
        steady.lives, token_s, fastest, steady.in_flight / steady.batch, ahead, steady.step_s, inp.weight_sync_s
    )
    if cycle.binds:
        return cycle.period_s, float(inp.max_staleness), cycle.contested
    contested = cycle.contested or steady.contested
    if steady.rho > 1.0 and inp.queue_capacity is None:
        return cycle.period_s, float(inp.max_staleness), contested
    return cycle.period_s, min(float(inp.max_staleness), _unbounded_staleness(steady)), contested


def _dropping(steady: _Steady) -> tuple[float, float, bool]:
    inp, token_s = steady.inp, steady.token_s
    every, staleness, contested = dropping(
        steady.lives(token_s),
        steady.rate * token_s / steady.batch,
        inp.max_staleness,
        steady.step_s / token_s,
        steady.queue,
        inp.weight_sync_s / token_s,
    )
    period = max(steady.step_s, every * token_s + inp.weight_sync_s)
    if _blocks(steady):
        staleness = min(float(inp.max_staleness), _unbounded_staleness(steady))
        contested = True
    return period, staleness, contested


def _holding(steady: _Steady) -> tuple[float, float, bool]:
    inp, token_s, ahead = steady.inp, steady.token_s, steady.inp.max_staleness
    if ahead == 0:
        return math.inf, 0.0, False
    # Short periods take what the queue has saved up in the long one, then what samplers generate.
    saved = min(1.0, steady.queue / ahead)
    short_s = max(steady.step_s, (1.0 - saved) * steady.free_s)
    lives = steady.lives(token_s)
    short = max(0.0, short_s - inp.weight_sync_s) / token_s
    cycle = held(lives, steady.in_flight, steady.samplers.mean, ahead, short)
    period = cycle * token_s / ahead + inp.weight_sync_s
    if period <= steady.free_s:
        contested = steady.contested or period * CLEARLY > steady.free_s
        return steady.free_s, _unbounded_staleness(steady), contested
    contested = period < CLEARLY * steady.free_s
    rate = steady.rate * token_s / steady.batch
    if inp.queue_capacity is None:
        rho = rate * cycle / ahead
        grown = 0.5 * (inp.steps + inp.warmup) * max(0.0, 1.0 - 1.0 / rho)
        return period, (lives.group.mean + lives.away_tokens) / (cycle / ahead) + 0.5 + grown, contested
    return period, held_staleness(lives, cycle, ahead, short, steady.queue, rate), contested


def _lock_step(inp: SimulationInput) -> ClosedForm:
    """``sync`` (sample, train, load weights) and ``one-step-off`` (sample beside training, then load weights)."""
    B = inp.prompts_per_step * inp.samples_per_prompt
    step_s = inp.train.step_s(B, inp.prompt_tokens, inp.lengths)
    samplers, sampling_s = _Samplers(inp), batch_s(inp)
    together = max(sampling_s, step_s) if inp.mode == "one-step-off" else sampling_s + step_s
    period = together + inp.weight_sync_s
    return ClosedForm(
        period_s=period,
        mean_staleness=1.0 if inp.mode == "one-step-off" else 0.0,
        rho=step_s / sampling_s,
        rollout_rate=B / sampling_s,
        train_rate=B / step_s if step_s > 0 else math.inf,
        mean_running=min(samplers.slots * inp.replicas, B * samplers.mean * samplers.token_s(B) / period),
    )


def batch_s(inp: SimulationInput) -> float:
    """Seconds in which all replicas sample one batch, from its first token to the end of its longest response.

    While more samples wait than run, slots stay full; then the batch drains: after j tokens those still run whose (remaining)
    length exceeds j, and iterations get faster as they get fewer. The sum over j stops with the longest response.
    """
    lengths, samplers = inp.lengths, _Samplers(inp)
    B = inp.prompts_per_step * inp.samples_per_prompt
    per_replica = B / inp.replicas
    slots = samplers.slots
    if inp.in_flight_cap is not None:
        slots = min(slots, inp.in_flight_cap / inp.replicas)
    edges = np.concatenate([[0.0], lengths.coarse.support_tokens])
    steps = np.diff(edges)
    middle = edges[:-1] + 0.5 * (steps - 1.0)
    survival = lengths.survival(np.floor(middle))
    full_s = 0.0
    if per_replica > slots:
        full_s = (per_replica - slots) * samplers.mean * samplers.token_s(slots * inp.replicas) / slots
        remaining = np.cumsum((survival * steps)[::-1])[::-1] / samplers.mean
        survival, per_replica = np.minimum(1.0, remaining), slots
    n = np.maximum(1.0, per_replica * survival)
    alive = 1.0 - (1.0 - np.minimum(1.0, survival)) ** (per_replica * inp.replicas)
    prefill_s = inp.decode.prefill_s_per_sample * B / inp.replicas
    token_s = _iteration_s(inp.decode, n, n * (inp.prompt_tokens + middle))
    return full_s + prefill_s + float(np.sum(steps * alive * token_s))


def _iteration_s(decode: DecodeCost, n: FloatArray, resident: FloatArray) -> FloatArray:
    at = np.arange(len(decode.fixed_s))
    fixed, memory, compute = (np.interp(n, at, table) for table in (decode.fixed_s, decode.memory_s, decode.compute_s))
    bound = np.maximum(memory + decode.memory_s_per_token * resident, compute + decode.compute_s_per_token * resident)
    return np.asarray(fixed + bound)


def _root(rising: Callable[[float], float], low: float, high: float) -> float:
    return rising_root(rising, low, high, _ROOT_PRECISION)
