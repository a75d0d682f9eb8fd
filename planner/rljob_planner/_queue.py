"""The queue of complete groups, compiled by numba: what enters it, what leaves it untrained."""

from __future__ import annotations

from rljob_planner._jit import jit
from rljob_planner._state import ASYNC, DROP, World


@jit
def complete(w: World, g: int, now: float) -> None:
    """Group ``g`` enters the queue; groups that complete at one instant stand there in the order of their admission."""
    par, st, group = w.parameters[0], w.counters[0], w.groups[g]
    st.completed += 1
    if par.record == 1 and group.number < w.fates.size:
        w.fates[group.number].completed_s = now
    if par.mode != ASYNC and st.completed % par.prompts_per_step == 0:
        st.generation_s += now - st.batch_begin
        st.batches += 1
    if (
        par.mode == ASYNC
        and par.bound != DROP
        and par.queue_capacity < 0
        and st.completed > par.steps * par.prompts_per_step + par.replicas * par.max_running
    ):
        # No step of this run will reach it, whoever else completes at this instant: count it, keep nothing.
        st.surplus += 1
        w.free_groups[st.free_groups] = g
        st.free_groups += 1
        return
    size = w.queue.size
    at = st.queue_head + st.queued
    group.completed = now
    while at > st.queue_head:
        before = w.queue[(at - 1) % size]
        if w.groups[before].completed != now or w.groups[before].number < group.number:
            break
        w.queue[at % size] = before
        at -= 1
    w.queue[at % size] = g
    st.queued += 1


@jit
def pop(w: World) -> int:
    """Take the oldest group out of the queue."""
    st = w.counters[0]
    g = w.queue[st.queue_head]
    st.queue_head = (st.queue_head + 1) % w.queue.size
    st.queued -= 1
    return int(g)


@jit
def release(w: World, g: int, left_as: int) -> None:
    """Group ``g`` has left the queue: for a training step (its version plus one), or untrained (0)."""
    st, number = w.counters[0], w.groups[g].number
    if w.parameters[0].record == 1 and number < w.fates.size:
        w.fates[number].left_s, w.fates[number].left_as = st.now, left_as
    w.free_groups[st.free_groups] = g
    st.free_groups += 1


@jit
def discard(w: World, g: int) -> None:
    """Throw group ``g`` away."""
    st = w.counters[0]
    st.dropped += 1
    st.dropped_groups += 1
    st.wasted_tokens += w.groups[g].tokens
    release(w, g, 0)


@jit
def is_stale(w: World, g: int) -> bool:
    """Whether the bound ``drop`` discards group ``g``."""
    par, st = w.parameters[0], w.counters[0]
    return bool(par.bound == DROP and st.version - w.groups[g].oldest > par.max_staleness)


@jit
def has_fresh_batch(w: World) -> bool:
    """Whether the queue holds a batch of groups fresh enough; if not, what is too stale leaves it."""
    par, st = w.parameters[0], w.counters[0]
    if st.queued < par.prompts_per_step:
        return False
    if par.bound != DROP:
        return True
    fresh, i = 0, 0
    while i < st.queued and fresh < par.prompts_per_step:
        if not is_stale(w, w.queue[(st.queue_head + i) % w.queue.size]):
            fresh += 1
        i += 1
    if fresh == par.prompts_per_step:
        return True
    for _ in range(st.queued):
        g = pop(w)
        if is_stale(w, g):
            discard(w, g)
        else:
            w.queue[(st.queue_head + st.queued) % w.queue.size] = g
            st.queued += 1
    return False


@jit
def trim(w: World) -> None:
    """Push the oldest groups out of a queue over its capacity."""
    par, st = w.parameters[0], w.counters[0]
    if par.queue_capacity >= 0 and par.drop_oldest == 1:
        while st.queued > par.queue_capacity:
            discard(w, pop(w))
    st.queue_max = max(st.queue_max, st.queued + st.surplus)
