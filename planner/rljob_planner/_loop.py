"""The trainer's half of the simulation and the loop that drives both, compiled by numba.

The loop goes from instant to instant: to the next end of a replica's jump (``_replica``), of a stay in an environment
(``_environment``) or of what the trainer does. What happens at one instant is done in this order, so that no result depends
on the order of equal times: tokens land (samples finish, groups complete, turns end, waiting joiners join, an overflow
preempts), sandboxes change hands, the trainer ends its step, publishes and takes its next batch, what is too much for the queue
is dropped (``_queue``), groups are admitted and samples start (``_line``), iterations begin.

The trainer is WAITING for a batch, TRAINING, TRAINED (its step is over, publication waits for what the mode or the bound
demands) or SYNCING (lock-step modes, in which nothing else happens while weights move).

A queue without a limit in front of a slow trainer grows without end, and the samplers would have to be followed far beyond the
last group that is ever trained. Nothing they do can reach the trainer any more, so when they have generated as much again as
the run needs, the rest of the run is given the means of that time (``_note_totals``, ``_close_samplers``).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from rljob_planner._environment import visit_environments
from rljob_planner._heaps import first_leaf, is_tied, set_smallest, smallest
from rljob_planner._jit import jit, machine_code
from rljob_planner._line import fill
from rljob_planner._queue import discard, has_fresh_batch, is_stale, pop, release, trim
from rljob_planner._replica import count_all_resident, land, load_weights, plan, record_unfinished
from rljob_planner._state import (
    ASYNC,
    BUSY,
    ENVIRONMENT,
    FINISHED,
    HELD_FOREVER,
    HOLD,
    IN_FLIGHT,
    NEEDS_ROOM,
    NOTHING_LEFT,
    ONE_STEP_OFF,
    QUEUE,
    RUNNING,
    SYNC,
    SYNCING,
    TOO_MUCH_WORK,
    TRAINED,
    TRAINING,
    WAITING,
    World,
)


@jit
def _take_batch(w: World, now: float) -> None:
    """Begin a training step with the oldest groups of the queue, if there are enough."""
    par, st = w.parameters[0], w.counters[0]
    if not has_fresh_batch(w):
        return
    counts = st.version >= par.warmup
    taken, samples, tokens, squares = 0, 0, 0, 0.0
    while taken < par.prompts_per_step:
        g = pop(w)
        if is_stale(w, g):
            discard(w, g)
            continue
        taken += 1
        samples += par.samples_per_prompt
        tokens += w.groups[g].tokens
        squares += w.groups[g].squares
        if counts:
            for index in range(par.samples_per_prompt):
                w.histogram[st.version - w.versions[g, index]] += 1
        release(w, g, st.version + 1)
    duration = (
        par.train_step_s + par.train_token_s * (tokens + samples * par.prompt_tokens) + par.train_token2_s * squares
    )
    if counts:
        st.trained_tokens += tokens
        st.trained_samples += samples
        st.training_s += duration
    if par.record == 1:
        w.steps[st.steps_started].begin_s, w.steps[st.steps_started].end_s = now, now + duration
    st.steps_started += 1
    st.trainer = TRAINING
    st.trainer_end = now + duration
    if par.mode == ONE_STEP_OFF:
        st.batch_begin = now


@jit
def _may_publish(w: World) -> bool:
    par, st = w.parameters[0], w.counters[0]
    if par.mode == ONE_STEP_OFF:
        return bool(st.queued >= par.prompts_per_step)
    if par.mode != ASYNC or par.bound != HOLD:
        return True
    while st.oldest_version < st.version and w.unfinished[st.oldest_version] == 0:
        st.oldest_version += 1
    nobody = w.unfinished[st.oldest_version] == 0
    return bool(nobody or st.version + 1 - st.oldest_version <= par.max_staleness)


@jit
def _begin_statistics(w: World, now: float) -> None:
    st = w.counters[0]
    count_all_resident(w, now)
    for i in range(w.totals.size):
        w.totals[i] = 0.0
    st.dropped_groups = st.wasted_tokens = st.trained_tokens = st.trained_samples = 0
    st.queue_max = st.batches = 0
    st.training_s = st.generation_s = 0.0
    if st.closed == 0:
        st.noted_s = np.inf


@jit
def _publish(w: World, now: float) -> None:
    """The next policy version exists; in ``async`` every replica loads it at the end of its iteration under way."""
    par, st = w.parameters[0], w.counters[0]
    w.published_s[st.version] = now
    st.version += 1
    st.trainer = WAITING
    st.trainer_end = np.inf
    if par.mode == SYNC:
        st.batch_begin = now
    if par.mode == ASYNC and par.sync_s > 0.0 and st.closed == 0:
        load_weights(w, now)
    if st.version == par.warmup:
        _begin_statistics(w, now)


@jit
def _advance_trainer(w: World, now: float) -> None:
    """Do all that the trainer does at this instant."""
    par, st = w.parameters[0], w.counters[0]
    while st.version < par.steps:
        before = st.trainer
        if before == WAITING:
            _take_batch(w, now)
        elif before == TRAINING and st.trainer_end <= now:
            st.trainer, st.trainer_end = TRAINED, np.inf
            st.held_since_finished = st.finished
        elif before == TRAINED and _may_publish(w):
            if par.mode == ASYNC or par.sync_s == 0.0:
                _publish(w, now)
            else:
                st.trainer, st.trainer_end = SYNCING, now + par.sync_s
        elif before == SYNCING and st.trainer_end <= now:
            _publish(w, now)
        if st.trainer == before:
            return


@jit
def _note_totals(w: World, now: float) -> None:
    """Remember when the first group came that will never be trained, and what had happened until then."""
    st = w.counters[0]
    count_all_resident(w, now)
    for i in range(w.totals.size):
        w.noted[i] = w.totals[i]
    st.noted_s, st.surplus_noted = now, st.surplus


@jit
def _close_samplers(w: World, now: float) -> None:
    """End the simulation of the samplers: from now on every total grows by its mean since ``_note_totals``."""
    st = w.counters[0]
    count_all_resident(w, now)
    seconds = now - st.noted_s
    for i in range(w.totals.size):
        w.noted[i] = (w.totals[i] - w.noted[i]) / seconds
    w.noted[QUEUE] = (st.surplus - st.surplus_noted) / seconds
    st.closed = 1
    st.noted_s = now


@jit
def _pass(w: World, now: float) -> None:
    """Let time pass until ``now``: nothing changes meanwhile."""
    st = w.counters[0]
    elapsed = now - st.now
    waiting = float(st.queued + st.surplus)
    if st.closed == 0:
        w.totals[IN_FLIGHT] += st.in_flight * elapsed
        w.totals[RUNNING] += st.running * elapsed
        w.totals[BUSY] += st.busy * elapsed
        w.totals[ENVIRONMENT] += st.away * elapsed
        w.totals[QUEUE] += waiting * elapsed
    else:
        for i in range(w.totals.size):
            if i != QUEUE:
                w.totals[i] += w.noted[i] * elapsed
        grown = w.noted[QUEUE] * (0.5 * (now + st.now) - st.noted_s)
        w.totals[QUEUE] += (waiting + grown) * elapsed
        st.queue_max = max(st.queue_max, st.queued + st.surplus + int(w.noted[QUEUE] * (now - st.noted_s)))
    st.now = now


@jit
def _land_all(w: World, now: float) -> None:
    """Land the replicas whose jump ends at ``now``, the first of them first."""
    leaves = first_leaf(w.end_s)
    while w.end_s[1] <= now:
        leaf = smallest(w.end_s)
        land(w, leaf - leaves, now)
        if not is_tied(w.end_s, leaf):
            return  # ``plan`` will say when its next jump ends
        set_smallest(w.end_s, leaf, np.inf)


@jit
def run(w: World) -> int:
    """Simulate until the last step is published; returns how the run ended.

    ``NEEDS_ROOM`` asks for more room (``grow``) and another call, which goes on where this one stopped.
    """
    par, st = w.parameters[0], w.counters[0]
    slots = par.replicas * par.max_running
    while True:
        now = st.trainer_end
        if st.closed == 0:
            if st.free_groups <= slots or st.free_samples + st.preempted < slots - st.running:
                return NEEDS_ROOM
            fill(w, st.now)
            plan(w)
            now = min(now, w.end_s[1])
            if st.away > 0:
                now = min(now, w.away[0].time_s)
        if now == np.inf:
            return NOTHING_LEFT
        _pass(w, now)
        if st.closed == 0:
            _land_all(w, now)
            if par.turns > 1:
                visit_environments(w, now)
        _advance_trainer(w, now)
        if st.version == par.steps:
            if st.closed == 0:
                count_all_resident(w, now)
            if par.record == 1:
                record_unfinished(w, now)
            return FINISHED
        trim(w)
        if par.enough_surplus >= 0 and st.surplus > 0 and st.closed == 0:
            if st.noted_s == np.inf:
                _note_totals(w, now)
            elif st.surplus - st.surplus_noted > par.enough_surplus:
                _close_samplers(w, now)
        holds = st.trainer == TRAINED and par.bound == HOLD and par.max_staleness == 0
        if holds and st.finished - st.held_since_finished > 1000 * slots + 10000:
            return HELD_FOREVER
        if st.started > par.work_limit:
            return TOO_MUCH_WORK


def compiled(world: World) -> tuple[Any, str]:
    """The library that holds the machine code of ``run``, and its name there."""
    return machine_code(run, (world,))
