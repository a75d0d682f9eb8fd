"""What the simulator works on: record arrays that compiled code reads and writes in place.

One record per replica, sample and group, one of parameters, one of counters; numbers that are scanned for all replicas at
every event (when each is done, how full it is) lie in arrays of their own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from rljob_planner.simulate import SimulationInput

FINISHED, NEEDS_ROOM, NOTHING_LEFT, HELD_FOREVER, TOO_MUCH_WORK = 0, 1, 2, 3, 4
"""How a run ended: all steps done, more room for groups needed, no event left, ``hold`` that can never publish, more samples than the work limit."""

ASYNC, SYNC, ONE_STEP_OFF = 0, 1, 2
NONE, ADMISSION, HOLD, DROP = 0, 1, 2, 3
WAITING, TRAINING, TRAINED, SYNCING = 0, 1, 2, 3

MODES = {"async": ASYNC, "sync": SYNC, "one-step-off": ONE_STEP_OFF}
BOUNDS = {"none": NONE, "admission": ADMISSION, "hold": HOLD, "drop": DROP}
OVERFLOWS = ("drop-oldest", "block")

_LEAST_WORK_SAMPLES = 100_000_000
_MOST_SURPLUS = 64

ID_BITS = 24
MAX_SLOTS = 1 << ID_BITS
"""Most decode slots of one simulation: a heap entry packs the finish iteration and the sample into one integer."""
INFINITE_TOKENS = 1 << 62


def _record(ints: str, floats: str) -> np.dtype[np.void]:
    return np.dtype([(name, np.int64) for name in ints.split()] + [(name, np.float64) for name in floats.split()])


PARAMETERS = _record(
    "mode replicas max_running kv_tokens prompts_per_step samples_per_prompt prompt_tokens bound max_staleness"
    " queue_capacity drop_oldest in_flight_cap steps warmup work_limit record",
    "memory_s_per_token compute_s_per_token prefill_s recompute_s_per_token train_step_s train_token_s train_token2_s sync_s",
)
"""Input of a run. ``queue_capacity`` and ``in_flight_cap`` are −1 where there is none."""

COUNTERS = _record(
    "version trainer admitted started completed dropped in_flight running busy steps_started free_samples preempted"
    " free_groups opened open_group open_index queue_head queued surplus dirty oldest_version held_since_finished finished stays"
    # from here on: statistics, which start anew when the warm-up ends
    " dropped_groups wasted_tokens trained_tokens trained_samples preemptions queue_max batches",
    "now trainer_end batch_begin in_flight_area running_area busy_area queue_area kv_area training_s generation_s begin",
)
"""Counters of a run. ``…_area`` is the integral over time."""

REPLICA = _record(
    "n joining joining_tokens resident iteration k newest cut dirty",
    "begin extra pause counted",
)
"""A replica and its jump: ``k`` iterations from ``begin`` with ``n`` samples and ``resident`` tokens at its begin; ``extra``
seconds of prefill in the first of them; ``cut`` where the jump already ends with the iteration under way; ``pause`` seconds
of weight loading that follow it; ``counted`` is when its resident tokens were last integrated."""

SAMPLE = _record("group index length generated version joined older newer", "")
"""A started, unfinished sample; ``older`` and ``newer`` chain those of a replica by start."""

GROUP = _record("number left tokens oldest", "squares completed")
"""A group that has started and is not trained yet; ``squares`` is Σ (prompt + response)²."""


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
    tables: Any
    """Seconds by number of running samples; rows: fixed, memory, compute."""
    support: Any
    cumulative: Any
    guide: Any
    seed: Any
    replicas: Any
    end_s: Any
    """When each replica's jump ends; infinite while it has nothing to do."""
    load: Any
    """Slots taken on each replica, joiners included."""
    refused: Any
    """Smallest number of tokens that found no KV room on each replica since one of its samples last left it."""
    heap: Any
    samples: Any
    free_samples: Any
    preempted: Any
    """Stack: the head of the waiting samples. The rest of them are the admitted samples that never started, in order."""
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


def new_world(inp: SimulationInput, record: bool = False) -> World:
    """The state of a run before anything has happened."""
    par, st = np.zeros(1, PARAMETERS), np.zeros(1, COUNTERS)
    needed = inp.steps * inp.prompts_per_step * inp.samples_per_prompt
    values = {
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
        "record": int(record),
        "memory_s_per_token": inp.decode.memory_s_per_token,
        "compute_s_per_token": inp.decode.compute_s_per_token,
        "prefill_s": inp.decode.prefill_s_per_sample,
        "recompute_s_per_token": inp.decode.recompute_s_per_token,
        "train_step_s": inp.train.per_step_s,
        "train_token_s": inp.train.per_token_s,
        "train_token2_s": inp.train.per_token_squared_s,
        "sync_s": inp.weight_sync_s,
    }
    for name, value in values.items():
        par[name] = value
    slots = inp.replicas * inp.max_running
    pool = 2 * (slots + 1) + 2 * inp.prompts_per_step
    st["trainer_end"] = np.inf
    st["free_samples"] = slots
    st["free_groups"] = pool
    replicas = np.zeros(inp.replicas, REPLICA)
    replicas["newest"] = -1
    tables = [inp.decode.fixed_s, inp.decode.memory_s, inp.decode.compute_s]
    return World(
        parameters=par,
        counters=st,
        tables=np.ascontiguousarray([t[: inp.max_running + 1] for t in tables], dtype=np.float64),
        support=inp.lengths.support_tokens,
        cumulative=inp.lengths.cumulative,
        guide=inp.lengths.guide,
        seed=np.uint64(inp.seed),
        replicas=replicas,
        end_s=np.full(inp.replicas, np.inf),
        load=np.zeros(inp.replicas, np.int64),
        refused=np.full(inp.replicas, INFINITE_TOKENS),
        heap=np.zeros((inp.replicas, inp.max_running), np.int64),
        samples=np.zeros(slots, SAMPLE),
        free_samples=np.arange(slots, dtype=np.int64)[::-1].copy(),
        preempted=np.zeros(slots, np.int64),
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


def grow(w: World) -> World:
    """The same world with room for twice as many groups."""
    st = w.counters[0]
    old, free, queued = w.groups.size, int(st["free_groups"]), int(st["queued"])
    w = w._replace(
        groups=np.concatenate([w.groups, np.zeros_like(w.groups)]),
        versions=np.concatenate([w.versions, np.zeros_like(w.versions)]),
        free_groups=np.concatenate(
            [w.free_groups[:free], np.arange(2 * old - 1, old - 1, -1), np.zeros(old - free, np.int64)]
        ),
        queue=np.concatenate([np.roll(w.queue, -int(st["queue_head"]))[:queued], np.zeros(2 * old - queued, np.int64)]),
    )
    st["free_groups"], st["queue_head"] = free + old, 0
    return w
