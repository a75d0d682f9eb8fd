"""The event loop of the simulator, compiled by numba. ``simulate`` prepares its input and reads its output.

Why it is exact and fast at once. All running samples of a replica gain one token per iteration, so the iteration in which
a sample finishes is known when it starts: one heap per replica, keyed by that iteration, says who finishes next. Until
then the number n of running samples is constant and the resident context grows by n tokens an iteration, so the time of k
iterations is an arithmetic series (two of them where the step changes from memory-bound to compute-bound, which it does at
most once, since both costs are linear in the context). The loop therefore jumps from one finish to the next. A jump is cut
short, at the end of the iteration under way, when a sample joins the replica or its weights change; it also ends where the
KV cache would overflow, which the same arithmetic foretells.

What happens at one instant is done in this order, so that no result depends on the order of equal times: tokens land
(samples finish, groups complete, waiting joiners join, an overflow preempts), the trainer ends its step, publishes and takes
its next batch, what is too much for the queue is dropped, groups are admitted and samples start, iterations begin.

``_state`` describes the records that are worked on here.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from rljob_planner._draw import draw_length
from rljob_planner._jit import jit
from rljob_planner._state import (
    ADMISSION,
    ASYNC,
    DROP,
    ID_BITS,
    INFINITE_TOKENS,
    ONE_STEP_OFF,
    SYNC,
    World,
)

_ID_MASK = (1 << ID_BITS) - 1


@jit
def iterations_s(w: World, n: int, resident: float, k: int) -> float:
    """Seconds of ``k`` iterations with ``n`` samples, the first of which reads ``resident`` tokens."""
    par = w.parameters[0]
    memory, memory_slope = w.tables[1, n] + par.memory_s_per_token * resident, par.memory_s_per_token * n
    compute, compute_slope = w.tables[2, n] + par.compute_s_per_token * resident, par.compute_s_per_token * n
    lead = memory - compute
    lead_slope = memory_slope - compute_slope
    first, then, first_slope, then_slope = memory, compute, memory_slope, compute_slope
    if lead < 0.0 or (lead == 0.0 and lead_slope < 0.0):
        first, then, first_slope, then_slope = compute, memory, compute_slope, memory_slope
        lead, lead_slope = -lead, -lead_slope
    k1 = k
    if lead + lead_slope * (k - 1) < 0.0:
        k1 = min(k, int(-lead / lead_slope) + 1)
    k2 = k - k1
    return float(
        k * w.tables[0, n]
        + k1 * (first + first_slope * 0.5 * (k1 - 1))
        + k2 * (then + then_slope * (k1 + 0.5 * (k2 - 1)))
    )


@jit
def boundary(w: World, r: int, now: float) -> int:
    """Iterations of replica ``r``'s jump that are over at the end of the one under way at ``now``."""
    rep = w.replicas[r]
    since = now - rep.begin - rep.extra
    low, high = 1, rep.k
    while low < high:
        middle = (low + high) // 2
        if iterations_s(w, rep.n, rep.resident, middle) >= since:
            high = middle
        else:
            low = middle + 1
    return low


@jit
def count_resident(w: World, r: int, now: float, iterations: int) -> None:
    """Integrate the resident tokens of replica ``r`` until ``now``, by when ``iterations`` of its jump have begun."""
    rep = w.replicas[r]
    paused = max(0.0, min(now, rep.begin) - rep.counted)
    w.counters[0].kv_area += rep.resident * paused
    w.counters[0].kv_area += (rep.resident + rep.n * 0.5 * (iterations - 1)) * (now - rep.counted - paused)
    rep.counted = now


@jit
def cut(w: World, r: int, now: float) -> None:
    """Let replica ``r``'s jump end with the iteration under way."""
    rep = w.replicas[r]
    if rep.cut == 0:
        rep.k = boundary(w, r, now)
        rep.cut = 1
        w.end_s[r] = max(now, rep.begin + rep.extra + iterations_s(w, rep.n, rep.resident, rep.k))


@jit
def mark(w: World, r: int) -> None:
    """Let ``plan`` look at replica ``r`` again at the end of this instant."""
    if w.replicas[r].dirty == 0:
        w.replicas[r].dirty = 1
        w.dirty[w.counters[0].dirty] = r
        w.counters[0].dirty += 1


@jit
def _sift_down(heap: Any, i: int, size: int) -> None:
    key = heap[i]
    child = 2 * i + 1
    while child < size:
        if child + 1 < size and heap[child + 1] < heap[child]:
            child += 1
        if heap[child] >= key:
            break
        heap[i] = heap[child]
        i, child = child, 2 * child + 1
    heap[i] = key


@jit
def _sift_up(heap: Any, i: int) -> None:
    key = heap[i]
    while i > 0 and heap[(i - 1) // 2] > key:
        heap[i] = heap[(i - 1) // 2]
        i = (i - 1) // 2
    heap[i] = key


@jit
def record_stay(w: World, r: int, s: int, iteration: int, now: float) -> None:
    """Note for the timeline that sample ``s`` was on replica ``r`` until ``now``, when the replica had done ``iteration``."""
    st, sample = w.counters[0], w.samples[s]
    if st.stays == w.stays.size:
        return
    stay = w.stays[st.stays]
    stay.group, stay.index, stay.replica, stay.version = (
        w.groups[sample.group].number,
        sample.index,
        r,
        sample.version,
    )
    stay.tokens, stay.start_s, stay.end_s = iteration - sample.joined, w.since_s[s], now
    st.stays += 1


@jit
def _leave(w: World, r: int, s: int, context: int) -> None:
    """Sample ``s``, with ``context`` resident tokens, gives its slot on replica ``r`` back."""
    rep, sample = w.replicas[r], w.samples[s]
    if w.parameters[0].record == 1:
        record_stay(w, r, s, rep.iteration, w.counters[0].now)
    if sample.newer >= 0:
        w.samples[sample.newer].older = sample.older
    else:
        rep.newest = sample.older
    if sample.older >= 0:
        w.samples[sample.older].newer = sample.newer
    rep.n -= 1
    rep.resident -= context
    w.refused[r] = INFINITE_TOKENS
    w.load[r] -= 1
    w.counters[0].running -= 1
    if w.load[r] == 0:
        w.counters[0].busy -= 1


@jit
def _join(w: World, r: int, s: int) -> None:
    """Sample ``s`` enters the batch of replica ``r``, whose next iteration has not begun."""
    par, rep, sample = w.parameters[0], w.replicas[r], w.samples[s]
    context = par.prompt_tokens + sample.generated
    rep.extra += par.prefill_s if sample.generated == 0 else par.recompute_s_per_token * context
    sample.joined = rep.iteration
    w.heap[r, rep.n] = ((rep.iteration + sample.length - sample.generated) << ID_BITS) | s
    _sift_up(w.heap[r], rep.n)
    rep.n += 1
    rep.resident += context


@jit
def _preempt_newest(w: World, r: int) -> None:
    par, st, rep = w.parameters[0], w.counters[0], w.replicas[r]
    s = rep.newest
    sample = w.samples[s]
    heap = w.heap[r]
    at = 0
    while heap[at] & _ID_MASK != s:
        at += 1
    last = rep.n - 1
    heap[at] = heap[last]
    if at < last:
        _sift_down(heap, at, last)
        _sift_up(heap, at)
    sample.generated += rep.iteration - sample.joined
    _leave(w, r, s, par.prompt_tokens + sample.generated)
    w.preempted[st.preempted] = s
    st.preempted += 1
    st.preemptions += 1


@jit
def _complete(w: World, g: int, now: float) -> None:
    """Group ``g`` enters the queue; groups that complete at one instant stand there in the order of their admission."""
    par, st = w.parameters[0], w.counters[0]
    st.completed += 1
    if par.record == 1 and w.groups[g].number < w.fates.size:
        w.fates[w.groups[g].number].completed_s = now
    if par.mode != ASYNC and st.completed % par.prompts_per_step == 0:
        st.generation_s += now - st.batch_begin
        st.batches += 1
    if (
        par.mode == ASYNC
        and par.bound != DROP
        and par.queue_capacity < 0
        and st.completed > par.steps * par.prompts_per_step
    ):
        st.surplus += 1  # no step of this run will reach it: count it, keep nothing
        w.free_groups[st.free_groups] = g
        st.free_groups += 1
        return
    size = w.queue.size
    at = st.queue_head + st.queued
    w.groups[g].completed = now
    while at > st.queue_head:
        before = w.queue[(at - 1) % size]
        if w.groups[before].completed != now or w.groups[before].number < w.groups[g].number:
            break
        w.queue[at % size] = before
        at -= 1
    w.queue[at % size] = g
    st.queued += 1


@jit
def land(w: World, r: int, now: float) -> None:
    """The jump of replica ``r`` is over: its tokens exist, samples finish, joiners join, an overflow preempts the newest."""
    par, st, rep = w.parameters[0], w.counters[0], w.replicas[r]
    count_resident(w, r, now, rep.k)
    rep.resident += rep.n * rep.k
    rep.iteration += rep.k
    rep.extra = 0.0
    heap = w.heap[r]
    while rep.n > 0 and heap[0] >> ID_BITS == rep.iteration:
        s = heap[0] & _ID_MASK
        heap[0] = heap[rep.n - 1]
        _sift_down(heap, 0, rep.n - 1)
        sample = w.samples[s]
        g = sample.group
        group = w.groups[g]
        context = par.prompt_tokens + sample.length
        _leave(w, r, s, context)
        w.unfinished[sample.version] -= 1
        w.free_samples[st.free_samples] = s
        st.free_samples += 1
        st.in_flight -= 1
        st.finished += 1
        w.versions[g, sample.index] = sample.version
        group.oldest = min(group.oldest, sample.version)
        group.tokens += sample.length
        group.squares += float(context) * float(context)
        group.left -= 1
        if group.left == 0:
            _complete(w, g, now)
    s = rep.newest
    for _ in range(rep.joining - 1):  # joiners are the newest of the chain; they enter in the order of their start
        s = w.samples[s].older
    for _ in range(rep.joining):
        _join(w, r, s)
        s = w.samples[s].newer
    rep.joining = 0
    rep.joining_tokens = 0
    while rep.resident + rep.n > par.kv_tokens:
        _preempt_newest(w, r)
    rep.begin = now + rep.pause
    rep.pause = 0.0
    rep.cut = 0
    mark(w, r)


@jit
def _room(w: World, context: int, now: float) -> int:
    """The replica with the fewest running samples that has a slot and KV room for ``context`` tokens and one more; the number of replicas if there is none.

    Room is what is left beside the next token of every running sample, so a sample that starts is not preempted at once.
    """
    par = w.parameters[0]
    nobody = par.replicas
    while True:
        best, fewest = nobody, par.max_running
        for r in range(nobody):
            if w.load[r] < fewest and w.refused[r] > context:
                best, fewest = r, w.load[r]
        if best == nobody:
            return int(best)
        rep = w.replicas[best]
        resident = rep.resident + rep.joining_tokens
        if rep.n > 0 and rep.begin < now:
            resident += rep.n * (rep.k if rep.cut == 1 else boundary(w, best, now))
        if resident + context + fewest + 1 <= par.kv_tokens:
            return int(best)
        w.refused[best] = context


@jit
def _new_sample(w: World) -> int:
    """The next admitted sample that never started, with the length that (seed, group, index) gives it."""
    par, st = w.parameters[0], w.counters[0]
    index = st.open_index
    if index == 0:
        st.free_groups -= 1
        st.open_group = w.free_groups[st.free_groups]
        group = w.groups[st.open_group]
        group.number, group.left, group.tokens, group.squares = st.opened, par.samples_per_prompt, 0, 0.0
        group.oldest = st.version
        st.opened += 1
    st.open_index = index + 1 if index + 1 < par.samples_per_prompt else 0
    st.started += 1
    st.free_samples -= 1
    s = w.free_samples[st.free_samples]
    sample = w.samples[s]
    sample.group, sample.index, sample.generated, sample.version = st.open_group, index, 0, st.version
    sample.length = draw_length(w.seed, st.opened - 1, index, w.support, w.cumulative, w.guide)
    w.unfinished[st.version] += 1
    return int(s)


@jit
def _start(w: World, s: int, r: int, now: float) -> None:
    """Sample ``s`` takes a slot of replica ``r``; it joins the batch when the iteration under way ends."""
    par, st, rep, sample = w.parameters[0], w.counters[0], w.replicas[r], w.samples[s]
    sample.older, sample.newer = rep.newest, -1
    if rep.newest >= 0:
        w.samples[rep.newest].newer = s
    rep.newest = s
    if w.load[r] == 0:
        st.busy += 1
    w.load[r] += 1
    st.running += 1
    if par.record == 1:
        w.since_s[s] = now
    if rep.n == 0 or rep.begin >= now:
        count_resident(w, r, now, 1)
        rep.begin = max(rep.begin, now)
        _join(w, r, s)
        mark(w, r)
    else:
        cut(w, r, now)
        rep.joining += 1
        rep.joining_tokens += par.prompt_tokens + sample.generated


@jit
def _may_admit(w: World) -> bool:
    par, st = w.parameters[0], w.counters[0]
    if par.in_flight_cap >= 0 and st.in_flight + par.samples_per_prompt > par.in_flight_cap:
        return False
    if par.queue_capacity >= 0 and par.drop_oldest == 0 and st.queued >= par.queue_capacity:
        return False
    if par.mode == SYNC:
        return bool(st.admitted < (st.version + 1) * par.prompts_per_step)
    if par.mode == ONE_STEP_OFF:
        return bool(st.admitted < (st.steps_started + 1) * par.prompts_per_step)
    if par.bound == ADMISSION:
        return bool(st.admitted - st.dropped < (st.version + par.max_staleness + 1) * par.prompts_per_step)
    return True


@jit
def fill(w: World, now: float) -> None:
    """Admit the groups that may start now, then start waiting samples, the head of the line first."""
    par, st = w.parameters[0], w.counters[0]
    while True:
        while par.in_flight_cap >= 0 and _may_admit(w):
            st.admitted += 1
            st.in_flight += par.samples_per_prompt
        context = par.prompt_tokens
        fresh = st.preempted == 0
        if not fresh:
            context += w.samples[w.preempted[st.preempted - 1]].generated
        nobody_waits = fresh and st.started == st.admitted * par.samples_per_prompt
        if nobody_waits and (par.in_flight_cap >= 0 or not _may_admit(w)):
            return
        r = _room(w, context, now)
        if r == par.replicas:
            return
        if nobody_waits:  # without a cap, a group is admitted when its first sample can start
            st.admitted += 1
            st.in_flight += par.samples_per_prompt
        if fresh:
            s = _new_sample(w)
        else:
            st.preempted -= 1
            s = w.preempted[st.preempted]
        _start(w, s, r, now)


@jit
def plan(w: World) -> None:
    """Let every replica whose batch changed jump to its next finish or KV overflow."""
    par, st = w.parameters[0], w.counters[0]
    for i in range(st.dirty):
        r = w.dirty[i]
        rep = w.replicas[r]
        rep.dirty = 0
        if rep.n == 0:
            w.end_s[r] = np.inf
        else:
            rep.k = (w.heap[r, 0] >> ID_BITS) - rep.iteration
            if rep.resident + rep.n * rep.k > par.kv_tokens:
                rep.k = (par.kv_tokens - rep.resident) // rep.n
            w.end_s[r] = rep.begin + rep.extra + iterations_s(w, rep.n, rep.resident, rep.k)
    st.dirty = 0
