"""What the plant's compiled code works on: plain arrays, and the names of the scalars among them.

Scalars live in two arrays, one of whole numbers and one of seconds and tokens, because compiled functions then change them in
place; the constants below say which is which. Everything is allocated once, for as many samples as can ever be in flight.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

WAITING, TRAINING, HOLDING, REGROUPING, STOPPED, COMPLETE = range(6)
"""What the trainer is doing: waiting for a batch, computing, keeping back a version (``hold``), forming its groups anew, short of
pods, done."""

NO_BOUND, ADMISSION, HOLD, DROP = range(4)
"""The bounds of staleness."""

REACHED, BOUNDARY, FINISHED, NO_ROOM = range(4)
"""Why ``core.advance`` returned: the time was reached, a step boundary that was waited for, the last step, too many groups."""

# Whole numbers: what never changes in a run …
REPLICAS, GROUP_SIZE, BATCH_GROUPS, PROMPT, MAX_RUNNING, KV_TOKENS, STEPS, BOUND, MAX_STALENESS = range(9)
CAPACITY, BLOCKS, TURNS, SEED, MAX_TOKENS = range(9, 14)
# … what the layout says …
CAP, WANT_BOUNDARY, TRAINERS, MEMBERS = range(14, 18)
# … and what happens.
(VERSION, TRAINER, STARTED, DROPPED, IN_FLIGHT, QUEUE_HEAD, QUEUED, LINE_HEAD, LINE, AWAY, FREE_SAMPLES, FREE_GROUPS,
 SEQUENCE, HAS_BATCH, BATCH_TOKENS, RUNNING, PREEMPTIONS, FINISHED_SAMPLES, OLDEST, FULL) = range(18, 38)  # fmt: skip
INTS = 38

# Seconds and tokens.
(NOW, TRAINER_END, BATCH_SQUARES, STEP_S, WAIT_S, SYNC_S, PREFILL_S, RECOMPUTE_S, PER_CONTEXT_S, TRAIN_NOISE,
 TURN_CV, LOST_TOKENS, LENGTH_SUM, TURN_SUM, TURN_COUNT, QUEUE_INTEGRAL, IN_FLIGHT_INTEGRAL, TRAIN_TOTAL, WAIT_TOTAL,
 WAIT_FROM, LOST_TRAIN_S, HALTED_S, CORRELATION) = range(23)  # fmt: skip
FLOATS = 23


class World(NamedTuple):
    """All arrays of a plant."""

    i: Ints
    """Whole scalars."""
    x: Floats
    """Scalars of seconds and tokens."""
    # Replicas, one entry each (a place that is free has ``alive`` 0).
    alive: Ints
    taking: Ints
    """1 where new samples may start."""
    slow: Floats
    """Factor of the seconds of an iteration."""
    n: Ints
    """Running samples."""
    joining: Ints
    """Samples that start at the end of the iteration under way."""
    resident: Ints
    """Tokens in the KV cache."""
    joining_tokens: Ints
    iteration: Ints
    """Iterations done since the replica came."""
    at_s: Floats
    """When the iteration under way began."""
    next_s: Floats
    """When the planned jump ends; infinite where nothing runs."""
    jump: Ints
    """Iterations of the planned jump."""
    debt_s: Floats
    """Prefill and weight loading before the next iteration."""
    joining_debt_s: Floats
    ready_s: Floats
    """Before then an idle replica loads weights."""
    heap_end: Ints
    """[replica, slot]: iteration at which a running sample ends its turn, a heap in each row."""
    heap_sample: Ints
    # Counters of a replica, as its engine would export them.
    running_s: Floats
    """Σ running · seconds."""
    kv_s: Floats
    """Σ resident tokens · seconds."""
    latency_s: Floats
    """Σ of the seconds between two tokens."""
    tokens: Floats
    """Tokens generated."""
    counted_s: Floats
    """Until when the counters are complete."""
    order: Ints
    """When the replica came, as a running number."""
    # Samples in flight.
    s_group: Ints
    s_index: Ints
    s_length: Ints
    s_target: Ints
    """Tokens at the end of the turn under way."""
    s_done: Ints
    """Tokens, where the sample does not run."""
    s_version: Ints
    s_turn: Ints
    s_sequence: Ints
    free_samples: Ints
    line: Ints
    """Ring of the samples that wait for a slot."""
    away_s: Floats
    """Heap of the ends of stays in environments."""
    away_sample: Ints
    # Groups.
    g_left: Ints
    g_tokens: Ints
    g_squares: Floats
    g_oldest: Ints
    g_versions: Ints
    """[group, sample]."""
    g_number: Ints
    """Running number of the prompt."""
    free_groups: Ints
    queue: Ints
    """Ring of complete groups."""
    unfinished: Ints
    """Started samples that are not finished, by version."""
    # What depends on the number of running samples, on the number of trainers, on the policy version.
    iteration_s: Floats
    train_cost: Floats
    """[trainers, (per step, per token, per token²)]."""
    mu: Floats
    """ln(median) of responses that start at a version."""
    sigma: Floats
    turn_s: Floats
    """Mean seconds of a turn in the environment at a version."""
    slowdown: Floats
    """Factor of the oldest replica's iteration at a version."""
    # The record, one entry a version.
    published_s: Floats
    step_s: Floats
    wait_s: Floats
    staleness: Ints
    """[version, staleness]: samples trained."""
    trained_tokens: Floats
    # Histogram of finished responses.
    edges: Floats
    lengths: Floats


STALENESS_BINS = 65
"""Staleness that is told apart; the last bin holds all above."""
