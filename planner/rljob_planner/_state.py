"""What the simulator works on: record arrays that compiled code reads and writes in place.

One record per replica, sample and group, one of parameters, one of counters. Numbers by which one replica is chosen among
all (when each is done, how full it is) lie in tournament trees of their own (``_heaps``).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from rljob_planner.simulate import SimulationInput

FINISHED, NEEDS_ROOM, NOTHING_LEFT, HELD_FOREVER, TOO_MUCH_WORK = 0, 1, 2, 3, 4
"""How a run ended: all steps done, more room for groups or samples needed, no event left, ``hold`` that can never publish,
more samples than the work limit."""

ASYNC, SYNC, ONE_STEP_OFF = 0, 1, 2
NONE, ADMISSION, HOLD, DROP = 0, 1, 2, 3
WAITING, TRAINING, TRAINED, SYNCING = 0, 1, 2, 3

MODES = {"async": ASYNC, "sync": SYNC, "one-step-off": ONE_STEP_OFF}
BOUNDS = {"none": NONE, "admission": ADMISSION, "hold": HOLD, "drop": DROP}
OVERFLOWS = ("drop-oldest", "block")

_LEAST_WORK_SAMPLES = 10_000_000
_MOST_SURPLUS = 16
_LEAST_SURPLUS_SAMPLES = 20_000

ID_BITS = 24
MAX_SLOTS = 1 << ID_BITS
"""Most samples at once: where something is ordered by a number and then by who it is of, both are packed into one integer."""
ID_MASK = MAX_SLOTS - 1
INFINITE_TOKENS = 1 << 62

IN_FLIGHT, RUNNING, BUSY, QUEUE, KV, ENVIRONMENT, SANDBOX_WAIT, TURNS, PREEMPTIONS = range(9)
"""Rows of ``World.totals``: integrals over time of samples in flight, samples running, replicas that run any, groups in the
queue, resident tokens and samples in their environment; seconds waited for sandboxes, turns that needed one; preemptions."""


def _record(ints: str, floats: str, small: str = "") -> np.dtype[np.void]:
    fields = [(name, np.int64) for name in ints.split()] + [(name, np.float64) for name in floats.split()]
    return np.dtype(fields + [(name, np.int32) for name in small.split()], align=True)


PARAMETERS = _record(
    "mode replicas max_running kv_tokens prompts_per_step samples_per_prompt prompt_tokens bound max_staleness"
    " queue_capacity drop_oldest in_flight_cap steps warmup work_limit enough_surplus turns sandboxes cap_tokens record",
    "memory_s_per_token compute_s_per_token prefill_s recompute_s_per_token train_step_s train_token_s train_token2_s sync_s"
    " correlation turn_s turn_sigma",
)
"""Input of a run. ``queue_capacity``, ``in_flight_cap`` and ``sandboxes`` are −1 where there is none, ``enough_surplus`` where
samplers must be simulated to the end."""

COUNTERS = _record(
    "version trainer admitted started completed dropped in_flight running busy steps_started free_samples preempted"
    " free_groups opened open_group open_index queue_head queued surplus dirty oldest_version held_since_finished finished"
    " waiting_for_sandbox away first_returned last_returned closed surplus_noted begun stays"
    # from here on: statistics, which start anew when the warm-up ends
    " dropped_groups wasted_tokens trained_tokens trained_samples queue_max batches",
    "now trainer_end batch_begin training_s generation_s noted_s",
)
"""Counters of a run."""

REPLICA = _record(
    "n joining joining_tokens resident iteration k starts cut dirty",
    "begin extra pause counted",
)
"""A replica and its jump: ``k`` iterations from ``begin`` with ``n`` samples and ``resident`` tokens at its begin; ``extra``
seconds of prefill in the first of them; ``cut`` where the jump already ends with the iteration under way; ``pause`` seconds
of weight loading that follow it; ``starts`` entries lie on its stack of starts; ``counted`` is when its resident tokens were last integrated."""

SAMPLE = _record("joined behind", "prefill_s", "group index length generated goal turn version cached next")
"""A started, unfinished sample, in one line of the processor's cache. ``goal`` is the number of tokens at which its turn ends.
``next`` chains those that came back from their environment, each ``behind`` a number of samples that were admitted before.
``cached`` is the version at which it left for its environment, −1 otherwise."""

GROUP = _record("number left tokens oldest", "squares completed")
"""A group that has started and is not trained yet; ``squares`` is Σ (prompt + response)²."""

ENTRY = _record("order sample", "time_s")
"""An entry of a heap of samples by time; ``order`` decides among equal times."""

STAY = _record("group index replica tokens version", "start_s end_s")
"""A sample's stay on a replica, from slot to slot given back; ``tokens`` were generated in it."""

FATE = _record("left_as", "completed_s left_s")
"""What became of a group, by its number: 0 s where it has not happened yet; ``left_as`` is the version of the training step
that took it out of the queue plus one, 0 where none did."""

STEP = _record("", "begin_s end_s")
"""A training step, by the version that it was trained from."""

MOST_RECORDED = 1_000_000
"""Rows of a recorded table; what happens later is not recorded."""


class World(NamedTuple):
    """All state of one run."""

    parameters: Any
    counters: Any
    totals: Any
    noted: Any
    """``totals`` at some earlier time, later what they gain in a second (``_loop``)."""
    tables: Any
    """Seconds by number of running samples; rows: fixed, memory, compute."""
    support: Any
    cumulative: Any
    guide: Any
    factors: Any
    """Factor of lengths by policy version; empty where they don't drift."""
    seed: Any
    replicas: Any
    end_s: Any
    """Tree of minima: when each replica's jump ends; infinite while it has nothing to do."""
    load: Any
    """Tree of minima: slots taken on each replica, joiners included, then the replica."""
    refused: Any
    """Tree of maxima: a number of tokens for which each replica has no KV room until one of its samples leaves it."""
    stack: Any
    """Scratch of a search in these trees."""
    heap: Any
    """For each replica a heap of its samples, by the iteration in which their turn ends."""
    starts: Any
    """For each replica a stack of the stays that began on it; those that are over stay until they are in the way."""
    stay: Any
    """The number of the stay that each sample is in, −1 while it holds no slot."""
    samples: Any
    free_samples: Any
    preempted: Any
    """Stack: the head of the waiting samples. The rest are those that came back from their environment and the admitted ones
    that never started, both in order."""
    sandbox_line: Any
    """Heap: samples that wait for a sandbox, by when their turn ended."""
    away: Any
    """Heap: samples in their environment, by when they come back."""
    groups: Any
    versions: Any
    free_groups: Any
    queue: Any
    """Ring of complete groups, oldest first."""
    unfinished: Any
    """Started, unfinished samples by version."""
    published_s: Any
    histogram: Any
    dirty: Any
    # what is recorded for a timeline; empty arrays where nothing is
    since_s: Any
    """When each sample took its slot."""
    stays: Any
    fates: Any
    steps: Any


_BY_SAMPLE = ("stay", "samples", "free_samples", "preempted", "sandbox_line", "away", "since_s")
"""Arrays with an entry per sample at once."""


def new_world(inp: SimulationInput, record: bool = False) -> World:
    """The state of a run before anything has happened."""
    par, st = np.zeros(1, PARAMETERS), np.zeros(1, COUNTERS)
    for name, value in _parameters(inp, record).items():
        par[name] = value
    slots = inp.replicas * inp.max_running
    pool = 2 * (slots + 1) + 2 * inp.prompts_per_step
    st["trainer_end"] = np.inf
    st["noted_s"] = np.inf
    st["free_samples"] = slots
    st["free_groups"] = pool
    st["first_returned"] = st["last_returned"] = -1
    tables = [inp.decode.fixed_s, inp.decode.memory_s, inp.decode.compute_s]
    leaves = 1 << max(0, inp.replicas - 1).bit_length()
    load = np.full(2 * leaves, INFINITE_TOKENS)
    load[leaves : leaves + inp.replicas] = np.arange(inp.replicas)
    refused = np.full(2 * leaves, INFINITE_TOKENS)
    refused[leaves + inp.replicas :] = -1
    for i in range(leaves - 1, 0, -1):
        load[i] = min(load[2 * i], load[2 * i + 1])
        refused[i] = max(refused[2 * i], refused[2 * i + 1])
    agentic = int(inp.turns > 1)
    return World(
        parameters=par,
        counters=st,
        totals=np.zeros(9),
        noted=np.zeros(9),
        tables=np.ascontiguousarray([t[: inp.max_running + 1] for t in tables], dtype=np.float64),
        support=np.ascontiguousarray(inp.lengths.support_tokens, np.int64),
        cumulative=np.ascontiguousarray(inp.lengths.cumulative, np.float64),
        guide=np.ascontiguousarray(inp.lengths.guide, np.int64),
        factors=_factors(inp),
        seed=np.uint64(inp.seed),
        replicas=np.zeros(inp.replicas, REPLICA),
        end_s=np.full(2 * leaves, np.inf),
        load=load,
        refused=refused,
        stack=np.zeros(80, np.int64),
        heap=np.zeros((inp.replicas, inp.max_running), np.int64),
        starts=np.zeros((inp.replicas, 2 * inp.max_running), np.int64),
        stay=np.full(slots, -1),
        samples=np.zeros(slots, SAMPLE),
        free_samples=np.arange(slots, dtype=np.int64)[::-1].copy(),
        preempted=np.zeros(slots, np.int64),
        sandbox_line=np.zeros(slots * agentic, ENTRY),
        away=np.zeros(slots * agentic, ENTRY),
        groups=np.zeros(pool, GROUP),
        versions=np.zeros((pool, inp.samples_per_prompt), np.int32),
        free_groups=np.arange(pool, dtype=np.int64)[::-1].copy(),
        queue=np.zeros(pool, np.int64),
        unfinished=np.zeros(inp.steps + 1, np.int64),
        published_s=np.zeros(inp.steps),
        histogram=np.zeros(inp.steps + 1, np.int64),
        dirty=np.zeros(inp.replicas, np.int64),
        since_s=np.zeros(slots * record),
        stays=np.zeros(MOST_RECORDED * record, STAY),
        fates=np.zeros(MOST_RECORDED * record, FATE),
        steps=np.zeros(inp.steps * record, STEP),
    )


def _parameters(inp: SimulationInput, record: bool) -> dict[str, float]:
    needed = inp.steps * inp.prompts_per_step * inp.samples_per_prompt
    slots = inp.replicas * inp.max_running
    endless = inp.mode == "async" and inp.bound == "none" and inp.queue_capacity is None and not record
    enough = max(needed, 4 * slots, _LEAST_SURPLUS_SAMPLES) // inp.samples_per_prompt + 1
    return {
        "mode": MODES[inp.mode],
        "replicas": inp.replicas,
        "max_running": inp.max_running,
        "kv_tokens": inp.kv_tokens,
        "prompts_per_step": inp.prompts_per_step,
        "samples_per_prompt": inp.samples_per_prompt,
        "prompt_tokens": inp.prompt_tokens,
        "bound": BOUNDS[inp.bound] if inp.mode == "async" else NONE,
        "max_staleness": inp.max_staleness,
        "queue_capacity": -1 if inp.queue_capacity is None else inp.queue_capacity,
        "drop_oldest": int(inp.overflow == "drop-oldest"),
        "in_flight_cap": -1 if inp.in_flight_cap is None else inp.in_flight_cap,
        "steps": inp.steps,
        "warmup": inp.warmup,
        "work_limit": max(_LEAST_WORK_SAMPLES, _MOST_SURPLUS * needed),
        "enough_surplus": enough if endless else -1,
        "turns": inp.turns,
        "sandboxes": -1 if inp.sandboxes is None else inp.sandboxes,
        "cap_tokens": inp.lengths.cap_tokens,
        "record": int(record),
        "memory_s_per_token": inp.decode.memory_s_per_token,
        "compute_s_per_token": inp.decode.compute_s_per_token,
        "prefill_s": inp.decode.prefill_s_per_sample,
        "recompute_s_per_token": inp.decode.recompute_s_per_token,
        "train_step_s": inp.train.per_step_s,
        "train_token_s": inp.train.per_token_s,
        "train_token2_s": inp.train.per_token_squared_s,
        "sync_s": inp.weight_sync_s,
        "correlation": inp.group_correlation,
        "turn_s": inp.turn_s,
        "turn_sigma": math.sqrt(math.log1p(inp.turn_cv**2)),
    }


def _factors(inp: SimulationInput) -> Any:
    if not inp.drift:
        return np.zeros(0)
    versions, factors = zip(*inp.drift, strict=True)
    return np.interp(np.arange(inp.steps + 1), versions, factors)


def size_bytes(slots: int, prompts: int, samples: int, steps: int, replicas: int, environment: bool) -> int:
    """About the bytes of ``new_world``, before it asks for them."""
    pool = 2 * (slots + 1) + 2 * prompts
    by_slot = SAMPLE.itemsize + 48 + 2 * ENTRY.itemsize * environment
    by_group = GROUP.itemsize + 16 + 4 * samples
    return slots * by_slot + pool * by_group + 48 * steps + 200 * replicas


def used_bytes(w: World) -> int:
    """Bytes of the arrays of a run."""
    return sum(array.nbytes for array in w)


def grow(w: World) -> World:
    """The same world with twice the room for what it is short of."""
    st, slots = w.counters[0], int(w.parameters[0]["replicas"] * w.parameters[0]["max_running"])
    if short_of_samples(w):
        old, free = w.samples.size, int(st["free_samples"])
        more = {name: _twice(getattr(w, name)) for name in _BY_SAMPLE if getattr(w, name).size}
        more["free_samples"][free : free + old] = np.arange(2 * old - 1, old - 1, -1)
        st["free_samples"] = free + old
        w = w._replace(**more)
    if st["free_groups"] <= slots:
        old, free, queued = w.groups.size, int(st["free_groups"]), int(st["queued"])
        free_groups, queue = _twice(w.free_groups), np.zeros(2 * old, np.int64)
        free_groups[free : free + old] = np.arange(2 * old - 1, old - 1, -1)
        queue[:queued] = np.roll(w.queue, -int(st["queue_head"]))[:queued]
        w = w._replace(groups=_twice(w.groups), versions=_twice(w.versions), free_groups=free_groups, queue=queue)
        st["free_groups"], st["queue_head"] = free + old, 0
    return w


def short_of_samples(w: World) -> bool:
    """Whether there are fewer records for samples than slots that new ones might take."""
    st, par = w.counters[0], w.parameters[0]
    return bool(st["free_samples"] + st["preempted"] < par["replicas"] * par["max_running"] - st["running"])


def _twice(array: Any) -> Any:
    return np.concatenate([array, np.zeros_like(array)])
