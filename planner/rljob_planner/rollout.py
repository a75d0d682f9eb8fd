"""How fast samplers generate, in formulas: in steady state, and for one batch from its first token to its last.

In steady state a replica runs as many samples as its slots, its KV room and the cap let it; the others in flight are in their
environment or wait for it. All that an iteration costs depends on how many run and on the tokens that they hold, which is a
length-biased mean: a long response is seen running for longer.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from rljob_planner.laws import FloatArray
from rljob_planner.renewal import Lives, lives_of, lives_with_stays
from rljob_planner.roots import rising_root
from rljob_planner.simulate import DecodeCost, SimulationInput

_PRECISION = 1e-6
_CELLS = 384
"""Into so many a batch that starts in turn is divided."""


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
        room, turns = self.room(), self.inp.turns
        if self.inp.in_flight_cap is None:
            return room
        admitted = self._admitted(self.inp.in_flight_cap)
        if admitted <= room or self.away_s == 0.0:
            return min(room, admitted)
        return admitted if self.few_sandboxes() else room + (admitted - room) * (turns - 1) / turns

    def room(self) -> float:
        """Samples that run or are in their environment when there are more than enough, so that none of these waits."""
        room = self.slots * self.inp.replicas
        if self.away_s == 0.0:
            return room
        running = self._within_sandboxes(room)
        return running + self.served(running) * self.away_s

    def few_sandboxes(self) -> bool:
        """Whether sandboxes run out before slots do."""
        slots = self.slots * self.inp.replicas
        return self.away_s > 0.0 and self._within_sandboxes(slots) < slots

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

    The batch drains: after j tokens those run whose life exceeds j, and iterations get faster as they get fewer. Where not all of
    it fits at once, the rest starts as samples end; how many have ended by when is the renewal function of their lives. The sum
    stops with the longest life, whenever it started.
    """
    samplers = Samplers(inp)
    batch = inp.prompts_per_step * inp.samples_per_prompt
    in_flight = min(float(batch), samplers.most_in_flight())
    if samplers.few_sandboxes():
        # Who waits for a sandbox waits less and less as the batch drains: as if it had not started.
        in_flight = min(in_flight, samplers.room())
    running = samplers.running(in_flight)
    token_s = samplers.token_s(running)
    away_s = max(0.0, in_flight - running) / samplers.served(running)
    lives = lives_with(inp, away_s, token_s)
    prefill_s = inp.decode.prefill_s_per_sample * batch / inp.replicas
    if in_flight < batch:
        at, steps, left, age, alive = _in_turn(lives, in_flight, batch, inp.samples_per_prompt)
    else:
        edges = np.concatenate([[0.0], lives.sample.tokens + lives.away_tokens])
        steps = np.diff(edges)
        age = edges[:-1] + 0.5 * (steps - 1.0)
        at = np.floor(age) - lives.away_tokens
        left = batch * lives.sample.left(at)
        alive = 1.0 - (1.0 - lives.group.left(at)) ** inp.prompts_per_step
    share = running / in_flight
    n = np.clip(left * share / inp.replicas, 1.0, inp.max_running)
    held = n * (inp.prompt_tokens + np.minimum(age * share, inp.lengths.cap_tokens))
    return prefill_s + float(np.sum(steps * alive * _iteration_s(inp.decode, n, held)))


def lives_with(inp: SimulationInput, away_s: float, token_s: float) -> Lives:
    """Lives of a job's samples, of which each does not run for ``away_s`` seconds, where a token takes ``token_s``."""
    size, correlation = inp.samples_per_prompt, inp.group_correlation
    if away_s <= 0.0:
        return lives_of(inp.lengths, size, correlation)
    if inp.turn_cv <= 0.0:
        return replace(lives_of(inp.lengths, size, correlation), away_tokens=away_s / token_s)
    # Stays vary, waiting for them hardly does.
    stay = round(min(away_s, (inp.turns - 1) * inp.turn_s) / token_s, 1)
    spread = inp.turn_cv / math.sqrt(inp.turns - 1)
    return replace(lives_with_stays(inp.lengths, size, correlation, stay, spread), away_tokens=away_s / token_s - stay)


def _in_turn(
    lives: Lives, room: float, batch: int, size: int
) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray, FloatArray]:
    """Times, their distances, samples alive, their mean age, and the chance that any is, where only ``room`` fit at once."""
    mean = lives.sample.mean + lives.away_tokens
    end = (batch / room - 1.0) * mean + lives.longest
    step = end / _CELLS
    at: FloatArray = np.arange(_CELLS, dtype=np.float64) * step
    below = 1.0 - lives.sample.left(at + 0.5 * step - lives.away_tokens)
    ending = np.diff(below, prepend=0.0)
    ending[1] += ending[0]
    ending[0] = 0.0
    renewed = ending.copy()
    for i in range(1, _CELLS):
        renewed[i] += float(np.sum(ending[1 : i + 1] * renewed[i - 1 :: -1][:i]))
    started = np.minimum(room * (1.0 + np.cumsum(renewed)), float(batch))
    starts = np.diff(started, prepend=0.0)
    left = lives.sample.left(at - lives.away_tokens)
    alive = np.minimum(np.convolve(starts, left)[:_CELLS], room)
    age = np.convolve(starts, left * at)[:_CELLS] / np.maximum(alive, 1e-9)
    ended = np.log(np.maximum(1.0 - lives.group.left(at - lives.away_tokens), 1e-300))
    nobody = np.exp(np.convolve(starts / size, ended)[:_CELLS])
    anybody = np.where(started < batch * (1.0 - 1e-9), 1.0, 1.0 - nobody)
    return at, np.full(_CELLS, step), np.asarray(alive), np.asarray(age), np.asarray(anybody)


def _iteration_s(decode: DecodeCost, n: FloatArray, resident: FloatArray) -> FloatArray:
    at = np.arange(len(decode.fixed_s))
    fixed, memory, compute = (np.interp(n, at, table) for table in (decode.fixed_s, decode.memory_s, decode.compute_s))
    bound = np.maximum(memory + decode.memory_s_per_token * resident, compute + decode.compute_s_per_token * resident)
    return np.asarray(fixed + bound)
