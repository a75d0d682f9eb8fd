"""What happens on the replicas, compiled by numba: samples join, gain tokens, finish or are preempted.

Why it is exact and fast at once. All running samples of a replica gain one token per iteration, so the iteration in which
a sample finishes is known when it starts: one heap per replica, keyed by that iteration, says who finishes next. Until
then the number n of running samples is constant and the resident context grows by n tokens an iteration, so the time of k
iterations is an arithmetic series (two of them where the step changes from memory-bound to compute-bound, which it does at
most once, since both costs are linear in the context). The loop therefore jumps from one finish to the next. A jump is cut
short, at the end of the iteration under way, when a sample joins the replica or its weights change; it also ends where the
KV cache would overflow, which the same arithmetic foretells.

``_state`` describes the records that are worked on here, ``_loop`` what calls what.
"""

from __future__ import annotations

import math

import numpy as np

from rljob_planner._environment import leave_for_environment
from rljob_planner._heaps import first_leaf, set_largest, set_smallest, sift_down, sift_up
from rljob_planner._jit import jit
from rljob_planner._queue import complete
from rljob_planner._state import ID_BITS, ID_MASK, INFINITE_TOKENS, KV, PREEMPTIONS, World


@jit
def iterations_s(w: World, n: int, resident: float, k: int) -> float:
    """Seconds of ``k`` iterations with ``n`` samples, the first of which reads ``resident`` tokens."""
    par = w.parameters[0]
    first, first_slope = w.tables[1, n] + par.memory_s_per_token * resident, par.memory_s_per_token * n
    then, then_slope = w.tables[2, n] + par.compute_s_per_token * resident, par.compute_s_per_token * n
    lead, lead_slope = first - then, first_slope - then_slope
    if lead < 0.0 or (lead == 0.0 and lead_slope < 0.0):
        first, then, first_slope, then_slope = then, first, then_slope, first_slope
        lead, lead_slope = -lead, -lead_slope
    total = k * w.tables[0, n]
    if lead + lead_slope * (k - 1) >= 0.0:
        return float(total + k * (first + first_slope * 0.5 * (k - 1)))
    k1 = min(k, int(-lead / lead_slope) + 1)
    k2 = k - k1
    return float(total + k1 * (first + first_slope * 0.5 * (k1 - 1)) + k2 * (then + then_slope * (k1 + 0.5 * (k2 - 1))))


@jit
def boundary(w: World, r: int, now: float) -> int:
    """Iterations of replica ``r``'s jump that are over at the end of the one under way at ``now``.

    Where one series describes the jump, the root of a quadratic is next to the answer; the search begins there.
    """
    rep = w.replicas[r]
    since = now - rep.begin - rep.extra
    if since <= 0.0 or rep.k <= 1:
        return 1
    low, high = 1, rep.k
    one = iterations_s(w, rep.n, rep.resident, 1)
    slope = iterations_s(w, rep.n, rep.resident, 2) - 2.0 * one
    linear = one - 0.5 * slope
    root = 2.0 * since / (linear + math.sqrt(max(0.0, linear * linear + 2.0 * slope * since)))
    guess = max(1, min(high, int(root)))
    if iterations_s(w, rep.n, rep.resident, guess) >= since:
        high = guess
        if guess > 1 and iterations_s(w, rep.n, rep.resident, guess - 1) < since:
            low = guess
    else:
        low = guess + 1
        if low < high and iterations_s(w, rep.n, rep.resident, low) >= since:
            high = low
    while low < high:
        middle = (low + high) // 2
        if iterations_s(w, rep.n, rep.resident, middle) >= since:
            high = middle
        else:
            low = middle + 1
    return int(low)


@jit
def count_resident(w: World, r: int, now: float, iterations: int) -> None:
    """Integrate the resident tokens of replica ``r`` until ``now``, by when ``iterations`` of its jump have begun."""
    rep = w.replicas[r]
    paused = max(0.0, min(now, rep.begin) - rep.counted)
    w.totals[KV] += rep.resident * paused
    w.totals[KV] += (rep.resident + rep.n * 0.5 * (iterations - 1)) * (now - rep.counted - paused)
    rep.counted = now


@jit
def count_all_resident(w: World, now: float) -> None:
    """``count_resident`` for every replica."""
    for r in range(w.replicas.size):
        rep = w.replicas[r]
        count_resident(w, r, now, boundary(w, r, now) if rep.n > 0 and rep.begin < now else 1)


@jit
def cut(w: World, r: int, now: float) -> None:
    """Let replica ``r``'s jump end with the iteration under way."""
    rep = w.replicas[r]
    if rep.cut == 0:
        rep.k = boundary(w, r, now)
        rep.cut = 1
        end = max(now, rep.begin + rep.extra + iterations_s(w, rep.n, rep.resident, rep.k))
        set_smallest(w.end_s, first_leaf(w.end_s) + r, end)


@jit
def mark(w: World, r: int) -> None:
    """Let ``plan`` look at replica ``r`` again at the end of this instant."""
    if w.replicas[r].dirty == 0:
        w.replicas[r].dirty = 1
        w.dirty[w.counters[0].dirty] = r
        w.counters[0].dirty += 1


@jit
def plan(w: World) -> None:
    """Let every replica whose batch changed jump to its next finish or KV overflow."""
    par, st = w.parameters[0], w.counters[0]
    for i in range(st.dirty):
        r = w.dirty[i]
        rep = w.replicas[r]
        rep.dirty = 0
        end = np.inf
        if rep.n > 0:
            rep.k = (w.heap[r, 0] >> ID_BITS) - rep.iteration
            if rep.resident + rep.n * rep.k > par.kv_tokens:
                rep.k = (par.kv_tokens - rep.resident) // rep.n
            end = rep.begin + rep.extra + iterations_s(w, rep.n, rep.resident, rep.k)
        set_smallest(w.end_s, first_leaf(w.end_s) + r, end)
    st.dirty = 0


@jit
def start(w: World, s: int, r: int, now: float) -> None:
    """Sample ``s`` takes a slot of replica ``r``; it joins the batch when the iteration under way ends."""
    par, st, rep, sample = w.parameters[0], w.counters[0], w.replicas[r], w.samples[s]
    _push_start(w, r, s)
    leaf = first_leaf(w.load) + r
    if w.load[leaf] >> ID_BITS == 0:
        st.busy += 1
    set_smallest(w.load, leaf, w.load[leaf] + (1 << ID_BITS))
    st.running += 1
    if par.record == 1:
        w.since_s[s] = now
    context = par.prompt_tokens + sample.generated
    if sample.generated == 0:
        sample.prefill_s = par.prefill_s
    else:
        sample.prefill_s = 0.0 if sample.cached == st.version else par.recompute_s_per_token * context
    if rep.n == 0 or rep.begin >= now:
        count_resident(w, r, now, 1)
        rep.begin = max(rep.begin, now)
        _join(w, r, s)
        mark(w, r)
    else:
        cut(w, r, now)
        rep.joining += 1
        rep.joining_tokens += context


@jit
def _push_start(w: World, r: int, s: int) -> None:
    """Note that a stay of sample ``s`` on replica ``r`` begins; stays that are over make room where there is none."""
    st, rep = w.counters[0], w.replicas[r]
    starts = w.starts[r]
    if rep.starts == starts.size:
        kept = 0
        for i in range(rep.starts):
            if w.stay[starts[i] & ID_MASK] == starts[i] >> ID_BITS:
                starts[kept] = starts[i]
                kept += 1
        rep.starts = kept
    st.begun += 1
    w.stay[s] = st.begun
    starts[rep.starts] = (st.begun << ID_BITS) | s
    rep.starts += 1


@jit
def _pop_newest(w: World, r: int) -> int:
    """The sample of replica ``r`` that started last; its start is forgotten."""
    rep = w.replicas[r]
    while True:
        rep.starts -= 1
        start = w.starts[r, rep.starts]
        if w.stay[start & ID_MASK] == start >> ID_BITS:
            return int(start & ID_MASK)


@jit
def _join(w: World, r: int, s: int) -> None:
    """Sample ``s`` enters the batch of replica ``r``, whose next iteration has not begun."""
    rep, sample = w.replicas[r], w.samples[s]
    rep.extra += sample.prefill_s
    sample.joined = rep.iteration
    w.heap[r, rep.n] = ((rep.iteration + sample.goal - sample.generated) << ID_BITS) | s
    sift_up(w.heap[r], rep.n)
    rep.n += 1
    rep.resident += w.parameters[0].prompt_tokens + sample.generated


@jit
def _leave(w: World, r: int, s: int, context: int) -> None:
    """Sample ``s``, with ``context`` resident tokens, gives its slot on replica ``r`` back."""
    st, rep = w.counters[0], w.replicas[r]
    if w.parameters[0].record == 1:
        record_stay(w, r, s, rep.iteration, st.now)
    w.stay[s] = -1
    rep.n -= 1
    rep.resident -= context
    leaf = first_leaf(w.load) + r
    if w.refused[leaf] != INFINITE_TOKENS:
        set_largest(w.refused, leaf, INFINITE_TOKENS)
    left = w.load[leaf] - (1 << ID_BITS)
    set_smallest(w.load, leaf, left)
    st.running -= 1
    if left >> ID_BITS == 0:
        st.busy -= 1


@jit
def _preempt_newest(w: World, r: int) -> None:
    par, st, rep = w.parameters[0], w.counters[0], w.replicas[r]
    s = _pop_newest(w, r)
    sample = w.samples[s]
    heap = w.heap[r]
    last = rep.n - 1
    at = last  # the newest have mostly long to go, so they lie at the end
    while heap[at] & ID_MASK != s:
        at -= 1
    heap[at] = heap[last]
    if at < last:
        sift_down(heap, at, last)
        sift_up(heap, at)
    sample.generated += rep.iteration - sample.joined
    sample.cached = -1
    _leave(w, r, s, par.prompt_tokens + sample.generated)
    w.preempted[st.preempted] = s
    st.preempted += 1
    w.totals[PREEMPTIONS] += 1.0


@jit
def _finish(w: World, s: int, now: float) -> None:
    """Sample ``s`` has its last token."""
    par, st, sample = w.parameters[0], w.counters[0], w.samples[s]
    g = sample.group
    group = w.groups[g]
    context = par.prompt_tokens + sample.length
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
        complete(w, g, now)


@jit
def land(w: World, r: int, now: float) -> None:
    """The jump of replica ``r`` is over: its tokens exist, turns end, samples finish, joiners join, an overflow preempts the newest."""
    par, rep = w.parameters[0], w.replicas[r]
    count_resident(w, r, now, rep.k)
    rep.resident += rep.n * rep.k
    rep.iteration += rep.k
    rep.extra = 0.0
    heap = w.heap[r]
    while rep.n > 0 and heap[0] >> ID_BITS == rep.iteration:
        s = heap[0] & ID_MASK
        heap[0] = heap[rep.n - 1]
        sift_down(heap, 0, rep.n - 1)
        sample = w.samples[s]
        _leave(w, r, s, par.prompt_tokens + sample.goal)
        if sample.goal < sample.length:
            leave_for_environment(w, s, now)
        else:
            _finish(w, s, now)
    for i in range(rep.starts - rep.joining, rep.starts):  # the last to start, in the order of their start
        _join(w, r, w.starts[r, i] & ID_MASK)
    rep.joining = 0
    rep.joining_tokens = 0
    while rep.resident + rep.n > par.kv_tokens:
        _preempt_newest(w, r)
    rep.begin = now + rep.pause
    rep.pause = 0.0
    rep.cut = 0
    mark(w, r)


@jit
def load_weights(w: World, now: float) -> None:
    """Every replica pauses for the new policy version, at the end of its iteration under way."""
    par = w.parameters[0]
    for r in range(par.replicas):
        rep = w.replicas[r]
        if rep.n > 0 and rep.begin < now:
            cut(w, r, now)
            rep.pause += par.sync_s
        else:
            rep.begin = max(rep.begin, now) + par.sync_s
            mark(w, r)


@jit
def record_stay(w: World, r: int, s: int, iteration: int, now: float) -> None:
    """Note for the timeline that sample ``s`` was on replica ``r`` until ``now``, when the replica had done ``iteration``."""
    st, sample = w.counters[0], w.samples[s]
    if st.stays == w.stays.size:
        return
    stay = w.stays[st.stays]
    stay.group, stay.index, stay.replica = w.groups[sample.group].number, sample.index, r
    stay.tokens, stay.version = iteration - sample.joined, sample.version
    stay.start_s, stay.end_s = w.since_s[s], now
    st.stays += 1


@jit
def record_unfinished(w: World, now: float) -> None:
    """Note for the timeline who is on a replica when the run is over."""
    for r in range(w.replicas.size):
        rep = w.replicas[r]
        done = boundary(w, r, now) - 1 if rep.n > 0 and rep.begin < now else 0
        for i in range(rep.starts):
            s = w.starts[r, i] & ID_MASK
            if w.stay[s] == w.starts[r, i] >> ID_BITS:
                if i >= rep.starts - rep.joining:
                    w.samples[s].joined = rep.iteration + done
                record_stay(w, r, s, rep.iteration + done, now)
