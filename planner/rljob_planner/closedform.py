"""The same job in formulas: a fraction of a millisecond instead of a simulation.

It screens candidates and stands beside the simulator as a check that shares none of its reasoning. Staleness follows Applied
Compute, "Predicting and Controlling Staleness in Fully Asynchronous RL Training" (2026): a sample ages while its group is
unfinished (pre-queue) and while the group waits (in-queue). Rates follow from a steady state in which the running samples of a
replica are as many as slots, in-flight and KV room allow; their resident length is length-biased, E[L²]/(2·E[L]), since a long
response is seen running for longer. What a bound does to the samples in flight comes from counting the groups that it lets
into the system (Little's law).

Exact away from balance. Near ρ = 1 the queue is now empty and now full, which no formula here knows: staleness is then too high,
by up to about 0.8 with a queue of two batches.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

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
    return _lock_step(inp) if inp.mode != "async" else _asynchronous(inp)


class _Samplers:
    """Rates of the sampler side as a function of the samples that are running."""

    def __init__(self, inp: SimulationInput) -> None:
        self.inp = inp
        self.mean = inp.lengths.mean()
        self.context = inp.prompt_tokens + inp.lengths.resident_mean_tokens() - 0.5
        self.slots = min(float(inp.max_running), max(1.0, inp.kv_tokens / (self.context + 1.0)))
        """Samples that one replica can run at once."""

    def most_running(self) -> float:
        """Running samples when only slots, KV room and the in-flight cap limit them; groups are admitted whole."""
        room = self.slots * self.inp.replicas
        if self.inp.in_flight_cap is None:
            return room
        whole = self.inp.in_flight_cap // self.inp.samples_per_prompt * self.inp.samples_per_prompt
        realised = self.inp.in_flight_cap - 0.5 * (self.inp.samples_per_prompt - 1)
        return min(room, float(whole), max(realised, 1.0))

    def token_s(self, running: float) -> float:
        """Seconds of an iteration with ``running`` samples on all replicas together."""
        n = max(1.0, running / self.inp.replicas)
        decode = self.inp.decode
        return decode.iteration_s(n, n * self.context) + n / self.mean * decode.prefill_s_per_sample

    def rate(self, running: float) -> float:
        """Samples per second with ``running`` samples."""
        return running / (self.token_s(running) * self.mean)


def _asynchronous(inp: SimulationInput) -> ClosedForm:
    samplers = _Samplers(inp)
    S, B = inp.samples_per_prompt, inp.prompts_per_step * inp.samples_per_prompt
    M = inp.lengths.tail_multiplier(S)
    step_s = inp.train.step_s(B, inp.prompt_tokens, inp.lengths)
    train_rate = B / step_s if step_s > 0 else math.inf
    most = samplers.most_running()
    alone = samplers.rate(most)
    if inp.bound == "admission" and inp.max_staleness == 0:
        at_once = _lock_step(inp)  # a batch starts when the one before it is published: sync, whatever the mode
        return ClosedForm(at_once.period_s, 0.0, alone / train_rate, alone, train_rate, at_once.mean_running)

    def effective(running: float) -> float:
        """Samples per second, the pauses for weights included."""
        return B / (B / samplers.rate(running) + inp.weight_sync_s)

    C = most
    if inp.bound == "admission":
        # Groups in flight, a batch that fills and the batch in training make up what admission lets in.
        allowed = (inp.max_staleness + 1) * B
        C = _root(lambda c: c * M + 0.5 * B + min(1.0, effective(c) / train_rate) * B - allowed, 1e-6, most)
    rollout = effective(C)
    rho = rollout / train_rate
    period = B / min(rollout, train_rate)
    if inp.bound == "drop":
        period, staleness = _dropping(inp, samplers, C, train_rate)
    elif inp.bound == "hold":
        period = max(period, _held_s(inp, samplers, C))
        rho = max(rho, rollout * period / B)
        staleness = _staleness(inp, C, M, rho)
    else:
        # Groups complete while replicas do not pause, so it is then that a step runs for a share ρ of the time.
        unpaused = min(1.0 - 1e-9, samplers.rate(C) / train_rate)
        staleness = _staleness(inp, C, M, rho if rho >= 1.0 else max(rho, unpaused))
    if inp.bound in ("drop", "admission"):
        staleness = min(staleness, float(inp.max_staleness))
    return ClosedForm(period, staleness, alone / train_rate, alone, train_rate, C)


def _staleness(inp: SimulationInput, C: float, M: float, rho: float) -> float:
    B = inp.prompts_per_step * inp.samples_per_prompt
    if rho < 1.0:
        return mean_staleness(C, M, B, rho, 1.0)
    if inp.bound == "admission":
        return float(inp.max_staleness)
    if inp.queue_capacity is None:
        # The queue grows by what the trainer does not take; a group that is trained in step k waited for k·(1 − 1/ρ).
        return C * M / (B * rho) + 0.5 * (inp.steps + inp.warmup) * (1.0 - 1.0 / rho)
    q = inp.queue_capacity / inp.prompts_per_step
    if inp.overflow == "block":
        # Groups start in bursts whenever a step makes room, and half of a burst still enters a queue that is full again.
        return C * M / (B * rho) + q - 0.5 + 0.5 * C * M / B * (1.0 - 1.0 / rho)
    return mean_staleness(C, M, B, rho, q)


def _held_s(inp: SimulationInput, samplers: _Samplers, C: float) -> float:
    """Shortest period under ``hold``.

    All samples of a version must be done when the ``max`` + 1st after it is published, that is ``max`` to ``max`` + 1 periods
    after their start. The longer the period, the more samples start in it and the longer the longest of them.
    """
    if inp.max_staleness == 0:
        return math.inf
    lengths = inp.lengths.coarse
    period = 0.0
    for _ in range(20):
        started = max(1.0, samplers.rate(C) * period)
        longest = lengths.max_mean(started) * samplers.token_s(C) + inp.max_staleness * inp.weight_sync_s
        period = longest / (inp.max_staleness + 0.25)
    return period


def _dropping(inp: SimulationInput, samplers: _Samplers, C: float, train_rate: float) -> tuple[float, float]:
    """Period and mean staleness where groups over the maximum staleness are discarded when the trainer takes them.

    A group whose longest response takes x periods sees x versions on average, and one more if a step runs when it completes.
    What is dropped makes the period longer, which in turn makes x smaller. Where samplers outrun the trainer nevertheless, what
    drops costs nothing, and groups wait besides.
    """
    B = inp.prompts_per_step * inp.samples_per_prompt
    step_s = B / train_rate
    lengths = inp.lengths.coarse
    longest_s: FloatArray = np.asarray(lengths.support_tokens * samplers.token_s(C))
    weight: FloatArray = np.diff(lengths.cumulative**inp.samples_per_prompt, prepend=0.0)

    def late(versions: FloatArray, waiting: float) -> FloatArray:
        part, whole = math.modf(waiting)
        over = versions + whole - inp.max_staleness
        return np.asarray((1.0 - part) * np.clip(over, 0.0, 1.0) + part * np.clip(over + 1.0, 0.0, 1.0))

    share, period, rho, versions = 0.0, 0.0, 0.0, longest_s
    for _ in range(40):
        sampling_s = B / (samplers.rate(C) * max(1e-3, 1.0 - share))
        period = max(step_s, sampling_s + inp.weight_sync_s)
        rho = step_s / sampling_s
        versions = np.asarray(longest_s / (period - inp.weight_sync_s))
        share = 0.5 * (share + float(np.sum(weight * late(versions, min(rho, 1.0)))))
    waiting = min(rho, 1.0)
    if period == step_s:
        q = inp.max_staleness if inp.queue_capacity is None else inp.queue_capacity / inp.prompts_per_step
        waiting = mean_staleness(0.0, 1.0, B, max(1.0, rho), min(q, float(inp.max_staleness)))
    kept = weight * (1.0 - late(versions, waiting))
    return period, float(np.sum(kept * versions)) / max(1e-9, float(kept.sum())) + waiting


def _lock_step(inp: SimulationInput) -> ClosedForm:
    """``sync`` (sample, train, load weights) and ``one-step-off`` (sample beside training, then load weights)."""
    B = inp.prompts_per_step * inp.samples_per_prompt
    step_s = inp.train.step_s(B, inp.prompt_tokens, inp.lengths)
    sampling_s = batch_s(inp)
    together = max(sampling_s, step_s) if inp.mode == "one-step-off" else sampling_s + step_s
    period = together + inp.weight_sync_s
    return ClosedForm(
        period_s=period,
        mean_staleness=1.0 if inp.mode == "one-step-off" else 0.0,
        rho=step_s / sampling_s,
        rollout_rate=B / sampling_s,
        train_rate=B / step_s if step_s > 0 else math.inf,
        mean_running=B * inp.lengths.mean() * _Samplers(inp).token_s(B) / period,
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
    """Where a rising function crosses zero; the nearer end where it does not."""
    if rising(high) <= 0:
        return high
    while high - low > _ROOT_PRECISION * high:
        middle = 0.5 * (low + high)
        if rising(middle) < 0:
            low = middle
        else:
            high = middle
    return 0.5 * (low + high)
