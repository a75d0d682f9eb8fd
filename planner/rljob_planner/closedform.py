"""The same job in formulas: a fraction of a millisecond instead of a simulation.

It screens candidates and stands beside the simulator as a check that shares none of its reasoning. Staleness follows Applied
Compute, "Predicting and Controlling Staleness in Fully Asynchronous RL Training" (2026): a sample ages while its group is
unfinished (pre-queue) and while the group waits (in-queue). Rates follow from a steady state in which the running samples of a
replica are as many as slots, in-flight and KV room allow; their resident length is length-biased, E[L²]/(2·E[L]), since a long
response is seen running for longer. What a bound does is worked out in ``renewal``: a cycle that repeats with every version.

Within 3 % of the period and 0.15 versions of the simulation (0.25 under ``hold``) where one limit is clear, one side or the bound:
with 16 groups a batch, by a quarter. Otherwise, most of all near ρ = 1, now one limit counts and now the other, which no formula
here knows: ``ClosedForm.contested`` says so, and how far off it may be.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

import numpy as np

from rljob_planner.lengths import LengthDistribution
from rljob_planner.renewal import (
    AT_ONCE,
    Lives,
    admitted,
    blocked_staleness,
    dropping,
    held,
    held_staleness,
    starts,
    window_staleness,
)
from rljob_planner.rollout import Samplers, batch_s, lives_with
from rljob_planner.simulate import SimulationInput


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
    """Whether two limits are so near each other that now one counts and now the other: within a share 1/√n, n the groups of a
    batch, since these come by chance. The period is then up to a tenth longer, and staleness off by up to a version; more where
    a queue that blocks, or holding, lets many groups start at once and none for a while. Also where KV room runs out: whom that
    preempts lives longer, which is not counted."""


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


@dataclass(frozen=True, eq=False)
class _Steady:
    """What all bounds start from."""

    inp: SimulationInput
    samplers: Samplers
    in_flight: float
    running: float
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
    def clearly(self) -> float:
        """Ratio of two limits from which on the weaker one can be forgotten: the groups of a batch come by chance."""
        return 1.0 + 1.0 / math.sqrt(self.inp.prompts_per_step)

    @property
    def contested(self) -> bool:
        """Whether both sides are about as fast, or a queue that blocks lets more than a batch start at once."""
        least = max(0.0, self.step_s - self.inp.weight_sync_s) * self.rate / self.batch
        most = self.step_s * self.rate / self.batch
        if most * self.clearly > 1.0 and least < self.clearly:
            return True
        room = self.in_flight / self.batch
        if not _blocks(self) or room <= 1.0:
            return False
        every = (self.free_s - self.inp.weight_sync_s) / self.token_s
        return starts(self.lives(self.token_s), every, self.clearly * room) is None

    @property
    def queue(self) -> float:
        """Capacity of the queue in batches."""
        return math.inf if self.inp.queue_capacity is None else self.inp.queue_capacity / self.inp.prompts_per_step

    @cached_property
    def _usual_lives(self) -> Lives:
        return lives_with(self.inp, self.away_s, self.token_s)

    @cached_property
    def away_s(self) -> float:
        """Seconds that a sample in flight does not run: in its environment, and waiting to get into it and back."""
        return max(0.0, self.in_flight - self.running) / self.rate

    def lives(self, token_s: float) -> Lives:
        """Lives where a token takes this long."""
        usual = self._usual_lives
        if self.away_s <= 0.0:
            return usual
        return replace(usual, away_tokens=usual.away_tokens + self.away_s / token_s - self.away_s / self.token_s)


def _asynchronous(inp: SimulationInput) -> ClosedForm:
    if inp.turns == 1 or inp.weight_sync_s == inp.decode.recompute_s_per_token == 0.0:
        return _with(inp, Samplers(inp))
    # How much of a stay passes while weights are loaded depends on the period, and the period a little on that.
    first = _with(inp, Samplers(inp))
    second = _with(inp, Samplers(inp, first.period_s))
    return replace(second, rho=first.rho, rollout_rate=first.rollout_rate)


def _with(inp: SimulationInput, samplers: Samplers) -> ClosedForm:
    batch = inp.prompts_per_step * inp.samples_per_prompt
    step_s = inp.train.step_s(batch, inp.prompt_tokens, inp.lengths)
    train_rate = batch / step_s if step_s > 0 else math.inf
    most = samplers.most_in_flight()
    running = samplers.running(most)
    alone = samplers.served(running)
    if inp.bound == "admission" and inp.max_staleness == 0:
        at_once = _lock_step(inp)  # a batch starts when the one before it is published: sync, whatever the mode
        return ClosedForm(at_once.period_s, 0.0, alone / train_rate, alone, train_rate, at_once.mean_running)
    steady = _Steady(inp, samplers, most, running, alone, samplers.token_s(running), step_s)
    if inp.bound == "drop":
        period, staleness, contested = _dropping(steady)
    elif inp.bound == "hold":
        period, staleness, contested = _holding(steady)
    elif inp.bound == "admission":
        period, staleness, contested = _admitting(steady)
    else:
        period, staleness, contested = steady.free_s, _unbounded_staleness(steady), steady.contested
    if inp.bound == "admission" or _blocks(steady):
        token_s = steady.token_s
        for _ in range(3):
            running = min(steady.running, batch * samplers.mean * token_s / max(1e-12, period - inp.weight_sync_s))
            token_s = samplers.token_s(running)
    contested = contested or samplers.preempts(running)
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
    most, work = steady.running, steady.batch * samplers.mean

    def token_s(every: float) -> float:
        return samplers.token_s(min(work / every, most))

    def crowded_s(batches: float) -> float:
        share = steady.running / steady.in_flight
        return samplers.token_s(min(batches * steady.batch * share, most))

    # Groups are whole, so the count of unfinished ones falls to its limit when their expected number is half a group above it.
    ahead = inp.max_staleness + 0.5 / inp.prompts_per_step
    fastest = (steady.free_s - inp.weight_sync_s) / steady.token_s
    for _ in range(2):
        fastest = (steady.free_s - inp.weight_sync_s) / token_s(fastest)
    room = steady.in_flight / steady.batch
    cycle = admitted(
        steady.lives, token_s, crowded_s, fastest, room, ahead, steady.step_s, inp.weight_sync_s, steady.clearly
    )
    if cycle.binds:
        return cycle.period_s, float(inp.max_staleness), cycle.contested
    if steady.rho > 1.0:
        # What admission lets in and is neither trained nor unfinished waits, if the queue has room for it.
        lives = steady.lives(steady.token_s)
        waiting = inp.max_staleness + 1.0 - AT_ONCE.alive(lives.group, lives, 0.0, fastest)
        if waiting <= steady.queue:
            contested = cycle.contested or steady.contested or waiting > 0.5 * steady.queue
            return cycle.period_s, float(inp.max_staleness), contested
    contested = cycle.contested or steady.contested or _blocks(steady)
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
        steady.clearly,
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
    cycle = held(lives, steady.in_flight, ahead, short)
    period = cycle * token_s / ahead + inp.weight_sync_s
    if period <= steady.free_s:
        contested = steady.contested or period * steady.clearly > steady.free_s
        return steady.free_s, _unbounded_staleness(steady), contested
    if inp.queue_capacity is not None and inp.overflow == "block":
        # All that was in flight when the queue was full is trained before new groups start, and only those are waited for.
        unfinished = steady.in_flight / steady.batch * (lives.group.mean + lives.away_tokens)
        unfinished = max(1.0, unfinished / (lives.sample.mean + lives.away_tokens))
        period = cycle * token_s / (ahead + unfinished - 1.0) + inp.weight_sync_s
        return max(steady.free_s, period), steady.queue + 0.5 * (unfinished + 1.0), True
    # More than two versions ahead, how the periods of a cycle share it matters, and it is only about even.
    contested = period < steady.clearly * steady.free_s or ahead > 2
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
    samplers, sampling_s = Samplers(inp), batch_s(inp)
    together = max(sampling_s, step_s) if inp.mode == "one-step-off" else sampling_s + step_s
    period = together + inp.weight_sync_s
    running = 0.0
    for _ in range(3):
        token_s = samplers.token_s(running * period / sampling_s)
        running = min(samplers.slots * inp.replicas, B * samplers.mean * token_s / period)
    return ClosedForm(
        period_s=period,
        mean_staleness=1.0 if inp.mode == "one-step-off" else 0.0,
        rho=step_s / sampling_s,
        rollout_rate=B / sampling_s,
        train_rate=B / step_s if step_s > 0 else math.inf,
        mean_running=running,
    )
