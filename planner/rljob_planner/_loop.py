"""The trainer's half of the simulation and the loop that drives both (``_kernel`` holds the samplers and explains the idea).

The trainer is WAITING for a batch, TRAINING, TRAINED (its step is over, publication waits for what the mode or the bound
demands) or SYNCING (lock-step modes, in which nothing else happens while weights move).
"""

from __future__ import annotations

import numpy as np

from rljob_planner._jit import jit
from rljob_planner._kernel import boundary, count_resident, cut, fill, land, mark, plan, record_stay
from rljob_planner._state import (
    ASYNC,
    DROP,
    FINISHED,
    HELD_FOREVER,
    HOLD,
    NEEDS_ROOM,
    NOTHING_LEFT,
    ONE_STEP_OFF,
    SYNC,
    SYNCING,
    TOO_MUCH_WORK,
    TRAINED,
    TRAINING,
    WAITING,
    World,
)


@jit
def _record_leaving(w: World, g: int, left_as: int) -> None:
    number = w.groups[g].number
    if number < w.fates.size:
        w.fates[number].left_s, w.fates[number].left_as = w.counters[0].now, left_as


@jit
def _discard(w: World, g: int) -> None:
    st = w.counters[0]
    if w.parameters[0].record == 1:
        _record_leaving(w, g, 0)
    st.dropped += 1
    st.dropped_groups += 1
    st.wasted_tokens += w.groups[g].tokens
    w.free_groups[st.free_groups] = g
    st.free_groups += 1


@jit
def _pop(w: World) -> int:
    st = w.counters[0]
    g = w.queue[st.queue_head]
    st.queue_head = (st.queue_head + 1) % w.queue.size
    st.queued -= 1
    return int(g)


@jit
def _is_stale(w: World, g: int) -> bool:
    par, st = w.parameters[0], w.counters[0]
    return bool(par.bound == DROP and st.version - w.groups[g].oldest > par.max_staleness)


@jit
def _drop_stale(w: World) -> bool:
    """Whether the queue holds a batch of groups fresh enough; if not, what is too stale leaves it."""
    par, st = w.parameters[0], w.counters[0]
    fresh, i = 0, 0
    while i < st.queued and fresh < par.prompts_per_step:
        if not _is_stale(w, w.queue[(st.queue_head + i) % w.queue.size]):
            fresh += 1
        i += 1
    if fresh == par.prompts_per_step:
        return True
    for _ in range(st.queued):
        g = _pop(w)
        if _is_stale(w, g):
            _discard(w, g)
        else:
            w.queue[(st.queue_head + st.queued) % w.queue.size] = g
            st.queued += 1
    return False


@jit
def _take_batch(w: World, now: float) -> None:
    """Begin a training step with the oldest groups of the queue, if there are enough."""
    par, st = w.parameters[0], w.counters[0]
    if st.queued < par.prompts_per_step or not _drop_stale(w):
        return
    counts = st.version >= par.warmup
    taken, samples, tokens, squares = 0, 0, 0, 0.0
    while taken < par.prompts_per_step:
        g = _pop(w)
        if _is_stale(w, g):
            _discard(w, g)
            continue
        if par.record == 1:
            _record_leaving(w, g, st.version + 1)
        taken += 1
        samples += par.samples_per_prompt
        tokens += w.groups[g].tokens
        squares += w.groups[g].squares
        if counts:
            for index in range(par.samples_per_prompt):
                w.histogram[st.version - w.versions[g, index]] += 1
        w.free_groups[st.free_groups] = g
        st.free_groups += 1
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
def _count_all_resident(w: World, now: float) -> None:
    for r in range(w.end_s.size):
        rep = w.replicas[r]
        count_resident(w, r, now, boundary(w, r, now) if rep.n > 0 and rep.begin < now else 1)


@jit
def _begin_statistics(w: World, now: float) -> None:
    st = w.counters[0]
    _count_all_resident(w, now)
    st.dropped_groups = st.wasted_tokens = st.trained_tokens = st.trained_samples = st.preemptions = 0
    st.queue_max = st.batches = 0
    st.in_flight_area = st.running_area = st.busy_area = st.queue_area = st.kv_area = 0.0
    st.training_s = st.generation_s = 0.0
    st.begin = now


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
    if par.mode == ASYNC and par.sync_s > 0.0:
        for r in range(par.replicas):
            rep = w.replicas[r]
            if rep.n > 0 and rep.begin < now:
                cut(w, r, now)
                rep.pause += par.sync_s
            else:
                rep.begin = max(rep.begin, now) + par.sync_s
                mark(w, r)
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
def _trim_queue(w: World) -> None:
    par, st = w.parameters[0], w.counters[0]
    if par.queue_capacity >= 0 and par.drop_oldest == 1:
        while st.queued > par.queue_capacity:
            _discard(w, _pop(w))
    st.queue_max = max(st.queue_max, st.queued + st.surplus)


@jit
def _record_unfinished(w: World, now: float) -> None:
    for r in range(w.end_s.size):
        rep = w.replicas[r]
        under_way = boundary(w, r, now) - 1 if rep.n > 0 and rep.begin < now else 0
        s = rep.newest
        joining = rep.joining
        while s >= 0:
            if joining > 0:
                w.samples[s].joined = rep.iteration + under_way
                joining -= 1
            record_stay(w, r, s, rep.iteration + under_way, now)
            s = w.samples[s].older


@jit
def run(w: World) -> int:
    """Simulate until the last step is published; returns how the run ended.

    ``NEEDS_ROOM`` asks for more room for groups (``grow``) and another call, which goes on where this one stopped.
    """
    par, st = w.parameters[0], w.counters[0]
    slots, replicas = w.samples.size, par.replicas
    while True:
        if st.free_groups <= slots:
            return NEEDS_ROOM
        fill(w, st.now)
        plan(w)
        now, first, equal = st.trainer_end, replicas, False
        for r in range(replicas):
            if w.end_s[r] < now:
                now, first, equal = w.end_s[r], r, False
            elif w.end_s[r] == now:
                equal = True
        if now == np.inf:
            return NOTHING_LEFT
        elapsed = now - st.now
        st.in_flight_area += st.in_flight * elapsed
        st.running_area += st.running * elapsed
        st.busy_area += st.busy * elapsed
        st.queue_area += (st.queued + st.surplus) * elapsed
        st.now = now
        if equal:
            for r in range(replicas):
                if w.end_s[r] == now:
                    land(w, r, now)
        elif first < replicas:
            land(w, first, now)
        _advance_trainer(w, now)
        if st.version == par.steps:
            _count_all_resident(w, now)
            if par.record == 1:
                _record_unfinished(w, now)
            return FINISHED
        _trim_queue(w)
        holds = st.trainer == TRAINED and par.bound == HOLD and par.max_staleness == 0
        if holds and st.finished - st.held_since_finished > 1000 * slots + 10000:
            return HELD_FOREVER
        if st.started > par.work_limit:
            return TOO_MUCH_WORK
