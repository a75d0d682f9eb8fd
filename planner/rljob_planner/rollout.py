"""How fast samplers generate, in formulas: in steady state, and for one batch from its first token to its last.

In steady state a replica runs as many samples as its slots, its KV room and the cap let it; the others in flight are in their
environment or wait for it. All that an iteration costs depends on how many run and on the tokens that they hold, which is a
length-biased mean: a long response is seen running for longer.
"""

from __future__ import annotations

import math

import numpy as np

from rljob_planner.laws import FloatArray
from rljob_planner.roots import rising_root
from rljob_planner.simulate import DecodeCost, SimulationInput

_PRECISION = 1e-6


class Samplers:
    """Rates of the sampler side as a function of the samples that are in flight."""

    def __init__(self, inp: SimulationInput, period_s: float = math.inf) -> None:
        self.inp = inp
        self.mean = inp.lengths.mean()
        self.context = inp.prompt_tokens + inp.lengths.resident_mean_tokens() - 0.5
        self.slots = min(float(inp.max_running), max(1.0, inp.kv_tokens / (self.context + 1.0)))
        """Samples that one replica can run at once."""
        paused = min(0.9, inp.weight_sync_s / period_s)
        self.away_s = (inp.turns - 1) * inp.turn_s * (1.0 - paused)
        """Seconds that a sample is in its environment, all turns together; it is in flight there but does not run. The share
        of the time in which weights are loaded does not count: the environment goes on then and samplers do not."""
        # What a sample computed before a stay is void if a version comes meanwhile; on average half of its response is done then.
        void = (inp.turns - 1) * min(1.0, inp.turn_s / period_s) if inp.turns > 1 else 0.0
        again_s = void * inp.decode.recompute_s_per_token * (inp.prompt_tokens + 0.5 * self.mean)
        self.prefill_s = inp.decode.prefill_s_per_sample + again_s
        """Seconds that a sample adds to iterations beside its tokens, its whole life together."""

    def most_in_flight(self) -> float:
        """Samples that are in flight and have started, at full load.

        Groups are admitted whole, so a cap is not quite reached. Under a cap, samples wait for a slot between their turns, and for
        a sandbox where those are too few; those that wait for their first slot have not started.
        """
        room = self.slots * self.inp.replicas
        turns, serves = self.inp.turns, False
        if self.away_s > 0.0:
            running = self._within_sandboxes(room)
            serves = running < room
            room = running + self.served(running) * self.away_s
        if self.inp.in_flight_cap is None:
            return room
        admitted = self._admitted(self.inp.in_flight_cap)
        if admitted <= room or turns == 1:
            return min(room, admitted)
        return admitted if serves else room + (admitted - room) * (turns - 1) / turns

    def _admitted(self, cap: int) -> float:
        """Mean samples in flight under a cap: samples leave one by one, and a group enters when there is room for all of it."""
        size, lengths = self.inp.samples_per_prompt, self.inp.lengths
        usual = max(cap - 0.5 * (size - 1), 1.0)
        if cap >= 2 * size:
            return usual
        # One group at a time: the next one enters when all of this one but the room that is left have ended.
        left = cap - size
        ended = (
            lengths.max_mean(size, self.inp.group_correlation) if left == 0 else lengths.quantile(size / (size + left))
        )
        return min(usual, size * self.mean / max(float(ended), 1.0))

    def preempts(self, running: float) -> bool:
        """Whether so many run that they fill the KV room, which then preempts the newest now and then."""
        return self.slots < self.inp.max_running and running > 0.95 * self.slots * self.inp.replicas

    def running(self, in_flight: float) -> float:
        """Samples of those in flight that run."""
        if self.away_s == 0.0:
            return in_flight
        most = min(in_flight, self.slots * self.inp.replicas)
        running = rising_root(lambda n: n + self.served(n) * self.away_s - in_flight, 0.0, most, _PRECISION)
        return self._within_sandboxes(running)

    def _within_sandboxes(self, running: float) -> float:
        if self.inp.sandboxes is None:
            return running
        most = self.inp.sandboxes / self.away_s
        return rising_root(lambda n: self.served(n) - most, 0.0, running, _PRECISION)

    def token_s(self, running: float) -> float:
        """Seconds of an iteration with ``running`` samples on all replicas together."""
        n = max(1.0, running / self.inp.replicas)
        decode = self.inp.decode
        return decode.iteration_s(n, n * self.context) + n / self.mean * self.prefill_s

    def served(self, running: float) -> float:
        """Samples per second that end while ``running`` run."""
        return running / (self.token_s(running) * self.mean)


def batch_s(inp: SimulationInput) -> float:
    """Seconds in which all replicas sample one batch, from its first token to the end of its longest response.

    While more samples wait than run, slots stay full; then the batch drains: after j tokens those still run whose (remaining)
    length exceeds j, and iterations get faster as they get fewer. The sum over j stops with the longest response.
    """
    lengths, samplers = inp.lengths, Samplers(inp)
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
