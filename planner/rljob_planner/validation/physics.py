"""What a run should show: its period and the parts of it, from a setting, a length law and a speed factor per side.

The formulas of ``closedform`` answer within a millisecond, which a fit needs; the simulator answers for the final numbers. Both get
the same ``SimulationInput``. What a run has beside them is put into those terms here:

- Colocated runs train after they sample on the same GPUs, and pay for the change: weights travel to the engines, the optimizer
  leaves memory and comes back over PCIe, and what is left of memory makes the step itself slower.
- A trainer that takes its batch in parts while the rest is generated (verl's streaming with ``trigger_parameter_sync_step``) needs
  neither a whole batch to begin nor its slowest samples to end; that has a formula of its own.
- Ranks wait for the one with the longest sample.
- Broadcasting weights keeps the trainer busy as well, and is as fast as the rest of what the trainer does: its factor covers it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from rljob_planner.closedform import predict
from rljob_planner.laws import LognormalLaw, log_median
from rljob_planner.lengths import LengthDistribution
from rljob_planner.memory import kv_room_tokens, shared_prompt_room_tokens
from rljob_planner.simulate import SimulationInput, TrainCost
from rljob_planner.steptime import decode_cost
from rljob_planner.training import TrainerSetup, sync_path, train_cost, training_efficiency
from rljob_planner.validation.lockstep import batch_s
from rljob_planner.validation.setting import ASYNC, ONE_STEP_OFF, SYNC, Setting

SIGMA = 0.85
"""Of ln length before the cap cuts, where only a mean is known: between 0.83 (cv 1, the usual figure for reasoning runs) and 0.97
(DeepSeek-R1 in serving)."""

_ROWS = 500
_RUN_AHEAD_UNBOUND = 64
_BALANCED = 3.0
"""How sharply the longest sample takes over from the even share, as an exponent; the answer hardly depends on it (2 to 4 were tried)."""


@dataclass(frozen=True)
class Factors:
    """Measured over predicted speed of each side."""

    sampler: float
    trainer: float

    @classmethod
    def packaged(cls) -> Factors:
        """What running RL systems show on average."""
        e = training_efficiency()
        return cls(e.sampler_efficiency, e.trainer_efficiency)


@dataclass(frozen=True)
class Parts:
    """A period and what it consists of, in seconds."""

    period_s: float
    wait_s: float
    """In which the trainer waits for samples; in lock-step modes the sampling that nothing hides."""
    sampling_s: float
    """To sample a batch: alone in lock-step modes, at the steady rate otherwise."""
    update_s: float
    """Of the training step proper."""
    forwards_s: float
    """Of further forward passes (old log-probabilities)."""
    sync_s: float
    rho: float
    """Rollout rate over train rate."""
    staleness: float = 0.0

    @property
    def train_s(self) -> float:
        """All that the trainer computes."""
        return self.update_s + self.forwards_s


def law_of(mean_tokens: float, cap_tokens: int) -> LengthDistribution:
    """Lognormal lengths, clipped at the cap, with this mean."""
    mean = min(mean_tokens, 0.97 * cap_tokens)
    return law_with_median(math.exp(log_median(mean, SIGMA, cap_tokens)), cap_tokens)


@lru_cache(maxsize=4096)
def law_with_median(median_tokens: float, cap_tokens: int) -> LengthDistribution:
    """Lognormal lengths with this median, clipped at the cap, on a table of a few hundred rows."""
    law = LognormalLaw(median_tokens, SIGMA)
    low = min(max(1.0, median_tokens / 100.0), 0.5 * cap_tokens + 0.5)
    tokens = np.unique(np.rint(np.geomspace(low, cap_tokens, _ROWS))).astype(np.int64)
    upper = np.append(0.5 * (tokens[:-1] + tokens[1:]).astype(np.float64), np.inf)
    cumulative = np.append(law.below(upper[:-1]), 1.0)
    return LengthDistribution(tokens, np.maximum.accumulate(np.clip(cumulative, 0.0, 1.0)), cap_tokens, law)


def mean_of(setting: Setting) -> float | None:
    """Mean response length that the row states."""
    lengths = setting.case.lengths
    if lengths.mean_response is not None:
        return lengths.mean_response
    if lengths.mean_total_seq is not None:
        return max(1.0, lengths.mean_total_seq - setting.prompt_tokens)
    return None


def parts_of(setting: Setting, lengths: LengthDistribution, factors: Factors) -> Parts:
    """Period and parts by formula."""
    inp = simulation_input(setting, lengths, factors)
    update_s, forwards_s = train_parts_s(setting, lengths, factors)
    sync_s = sync_s_of(setting, factors)
    if setting.mode in (SYNC, ONE_STEP_OFF):
        sampling_s = batch_s(inp)
        if setting.overlapped:
            steady = predict(replace(inp, mode=ASYNC))
            sampling_s = setting.samples / steady.rollout_rate
        return lock_step(setting, sampling_s, update_s, forwards_s, sync_s)
    if setting.streamed:
        return _streamed(setting, inp, update_s, forwards_s, sync_s)
    steady = predict(inp)
    period = steady.period_s
    busy = update_s + forwards_s + sync_s
    alone = setting.samples / steady.rollout_rate
    return Parts(
        period, max(0.0, period - busy), alone, update_s, forwards_s, sync_s, steady.rho, steady.mean_staleness
    )


def lock_step(setting: Setting, sampling_s: float, update_s: float, forwards_s: float, sync_s: float) -> Parts:
    """Period of a mode that samples a whole batch before it trains on it, or beside the batch before."""
    train_s = update_s + forwards_s
    together = max(sampling_s, train_s) if setting.mode == ONE_STEP_OFF else sampling_s + train_s
    period = together + sync_s
    return Parts(period, period - train_s - sync_s, sampling_s, update_s, forwards_s, sync_s, train_s / sampling_s)


def hand_over_s(setting: Setting) -> float:
    """Seconds in which a streaming trainer collects its batch."""
    return setting.samples * training_efficiency().hand_over_s if setting.streamed else 0.0


def _streamed(setting: Setting, inp: SimulationInput, update_s: float, forwards_s: float, sync_s: float) -> Parts:
    """A trainer that takes its batch in K parts, with samplers that may run ahead by a share s of a version.

    At a new version s batches are outstanding and one more may start; the trainer needs one batch out of these, so all but the slowest.
    Its j-th part can begin when, beside what was outstanding, a share j/K − s of the new batch is complete; the parts from there on still
    have to be trained. Without run-ahead the last part waits for the last sample; with a whole version of it no part waits.
    """
    parts = setting.rule.syncs_every
    missing = [j / parts - setting.run_ahead for j in range(1, parts + 1)]
    steady = predict(replace(inp, mode=ASYNC, bound="none", queue_capacity=None))
    throughput_s = setting.samples / steady.rollout_rate
    train_s = update_s + forwards_s + hand_over_s(setting)
    ready_s = [batch_s(inp, share) if share > 0 else 0.0 for share in missing]
    period = max(throughput_s, *(t + train_s * (parts - j) / parts for j, t in enumerate(ready_s))) + sync_s
    sampling_s = max(throughput_s, ready_s[-1])
    wait = period - update_s - forwards_s - sync_s
    return Parts(period, wait, sampling_s, update_s, forwards_s, sync_s, train_s / sampling_s)


def train_parts_s(setting: Setting, lengths: LengthDistribution, factors: Factors) -> tuple[float, float]:
    """Seconds of the training step proper, and of further forward passes."""
    bare = replace(setting.setup, extra_forwards=0)
    samples, prompt = setting.samples, setting.prompt_tokens

    def step_s(setup: TrainerSetup) -> float:
        cost = train_cost(setup, setting.trainer, lengths, prompt, samples, factors.trainer)
        return cost.step_s(samples, prompt, lengths)

    update, every = step_s(bare), step_s(setting.setup) if setting.setup.extra_forwards else 0.0
    slower = (training_efficiency().colocated_slowdown if setting.colocated else 1.0) * imbalance(setting, lengths)
    forwards = max(0.0, every - update)
    return update * slower, forwards * slower


def relative_cost(setting: Setting, lengths: LengthDistribution, tokens: float) -> float:
    """Training cost of a response of ``tokens`` over the mean cost of one."""
    cost = train_cost(
        replace(setting.setup, extra_forwards=0), setting.trainer, lengths, setting.prompt_tokens, setting.samples
    )
    at = setting.prompt_tokens + tokens
    mean = lengths.mean() + setting.prompt_tokens
    squares = lengths.second_moment() + 2.0 * setting.prompt_tokens * lengths.mean() + float(setting.prompt_tokens) ** 2
    return (cost.per_token_s * at + cost.per_token_squared_s * at * at) / (
        cost.per_token_s * mean + cost.per_token_squared_s * squares
    )


def imbalance(setting: Setting, lengths: LengthDistribution) -> float:
    """How much longer a training step takes because ranks have unequal loads: the largest over the mean, ≥ 1.

    What a trainer takes over at once is dealt out by length, so that only a sample longer than an even share stands out. The
    mini-batches that are cut from it afterwards are random: of r loads that are sums of k lengths the largest exceeds the mean by about
    √(2·ln r)·cv/√k.
    """
    ranks, mini = setting.trainer.dp, setting.mini_batch or setting.samples
    if ranks == 1:
        return 1.0
    streamed = setting.streamed
    at_once = mini * setting.rule.batches_at_once if streamed else setting.samples
    even = max(1.0, at_once / ranks)
    longest = relative_cost(setting, lengths, lengths.max_mean(at_once)) / even
    dealt = (1.0 + longest**_BALANCED) ** (1.0 / _BALANCED)
    if streamed or mini >= at_once:
        return float(dealt)
    each = max(1.0, mini / ranks)
    return float(dealt + math.sqrt(2.0 * math.log(ranks)) * lengths.cv() / math.sqrt(each))


def sync_s_of(setting: Setting, factors: Factors) -> float:
    """Seconds that a step spends on new weights: bucket by bucket, each pipeline stage its own layers at the same time.

    In a colocated run the optimizer's state leaves the GPUs besides and comes back.
    """
    path = sync_path("bucketed")
    sync_s = replace(path, bytes_per_s=path.bytes_per_s * setting.trainer.pp).seconds(setting.model, "bf16")
    if setting.colocated:
        e = training_efficiency()
        moved = 2.0 * e.offloaded_bytes * setting.model.parameters / setting.trainer.gpus
        sync_s += moved / (e.pcie_share * setting.setup.gpu.pcie_bytes_per_s)
    steps = 1 if setting.rule.streamed else setting.rule.syncs_every
    return sync_s / factors.trainer / steps


def simulation_input(
    setting: Setting, lengths: LengthDistribution, factors: Factors, *, steps: int = 60, warmup: int = 12
) -> SimulationInput:
    """What the planner's models need; a step of them is a step of the row."""
    engine, group, prompt = setting.engine, setting.group, setting.prompt_tokens
    context = prompt + lengths.resident_mean_tokens()
    room = kv_room_tokens(engine, context)
    kv_tokens = shared_prompt_room_tokens(room, lengths, prompt, group)
    longest = prompt + lengths.cap_tokens
    kv_tokens = max(kv_tokens, 2 * longest)
    in_flight, bound, run_ahead = None, setting.bound, 0
    if setting.mode == ASYNC:
        bound, run_ahead, in_flight = _admitted(setting)
    slots = setting.engine.gpu.engine.max_running
    share = (in_flight or setting.samples) / setting.replicas
    slots = max(1, min(slots, 2 * math.ceil(share) + 8))
    update_s, forwards_s = train_parts_s(setting, lengths, factors)
    sync_s = sync_s_of(setting, factors)
    tokens = setting.samples * (prompt + lengths.mean())
    exclusive = sync_s if setting.mode == ASYNC else 0.0
    return SimulationInput(
        mode=SYNC if setting.streamed else setting.mode,
        replicas=setting.replicas,
        max_running=slots,
        kv_tokens=kv_tokens,
        decode=decode_cost(engine, slots, lengths, prompt, group, factors.sampler),
        train=TrainCost(exclusive, (update_s + forwards_s) / tokens),
        weight_sync_s=sync_s,
        prompts_per_step=setting.prompts,
        samples_per_prompt=group,
        prompt_tokens=prompt,
        lengths=lengths,
        bound=bound,
        max_staleness=run_ahead,
        queue_capacity=(2 * setting.prompts if bound == "none" else None),
        overflow="block",
        in_flight_cap=in_flight,
        steps=steps,
        warmup=warmup,
    )


def _admitted(setting: Setting) -> tuple[str, int, int]:
    """Bound, batches of run-ahead, and the cap on samples in flight."""
    bounded = setting.bound == "admission" and not math.isinf(setting.run_ahead)
    most = setting.samples * (setting.run_ahead + 1.0) if bounded else 2.0 * setting.samples
    room = setting.replicas * setting.engine.gpu.engine.max_running
    ahead = _RUN_AHEAD_UNBOUND if math.isinf(setting.run_ahead) else round(setting.run_ahead)
    return setting.bound, ahead, max(setting.group, min(room, round(most)))
