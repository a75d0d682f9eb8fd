"""The sampling half of the plant's laws, compiled: replicas that jump from end to end, the line before them, environments.

All running samples of a replica gain one token an iteration, so a sample's end is a fixed iteration; between two ends an
iteration's seconds grow linearly, and the time of a jump over k iterations is a closed form: nothing is approximated by a tick.
"""

from __future__ import annotations

import math

import numpy as np

from dev.bench.drift.compiled import jit
from dev.bench.drift.draws import normal
from dev.bench.drift.heaps import heap_drop, heap_push
from dev.bench.drift.state import (
    ADMISSION,
    AWAY,
    BATCH_GROUPS,
    BLOCKS,
    BOUND,
    CAP,
    CAPACITY,
    CORRELATION,
    DROPPED,
    FINISHED_SAMPLES,
    FREE_GROUPS,
    FREE_SAMPLES,
    FULL,
    GROUP_SIZE,
    IN_FLIGHT,
    KV_TOKENS,
    LENGTH_SUM,
    LINE,
    LINE_HEAD,
    MAX_RUNNING,
    MAX_STALENESS,
    MAX_TOKENS,
    OLDEST,
    PER_CONTEXT_S,
    PREEMPTIONS,
    PREFILL_S,
    PROMPT,
    QUEUE_HEAD,
    QUEUED,
    RECOMPUTE_S,
    REPLICAS,
    RUNNING,
    SEED,
    SEQUENCE,
    STARTED,
    STEPS,
    TURN_COUNT,
    TURN_CV,
    TURN_SUM,
    TURNS,
    VERSION,
    World,
)

WATERMARK = 0.99
"""Share of the KV room that new samples may fill, as engines keep some free lest each newcomer preempts another."""


@jit
def _seconds(w: World, r: int, k: int) -> float:
    """Seconds of the next ``k`` iterations of a replica."""
    n, resident = float(w.n[r]), float(w.resident[r])
    per_token = w.x[PER_CONTEXT_S]
    plain = k * (w.iteration_s[w.n[r]] + per_token * resident) + per_token * n * 0.5 * k * (k - 1.0)
    return float(w.debt_s[r] + w.slow[r] * plain)


@jit
def _count(w: World, r: int, k: int, seconds: float) -> None:
    """Let ``k`` iterations that took ``seconds`` pass."""
    n = w.n[r]
    w.running_s[r] += n * seconds
    w.kv_s[r] += (w.resident[r] + 0.5 * n * k) * seconds
    w.latency_s[r] += n * seconds
    w.tokens[r] += float(n * k)
    w.resident[r] += n * k
    w.iteration[r] += k
    w.jump[r] -= k
    w.at_s[r] += seconds
    if k > 0:
        w.debt_s[r] = 0.0


@jit
def settle(w: World, r: int, now: float) -> None:
    """Count the iterations that are over by ``now``; the jump goes on."""
    if w.n[r] == 0 or w.jump[r] < 1:
        return
    low, high = 0, w.jump[r]
    while low < high:
        middle = (low + high + 1) // 2
        if w.at_s[r] + _seconds(w, r, middle) <= now:
            low = middle
        else:
            high = middle - 1
    low = min(low, w.jump[r] - 1)
    if low > 0:
        _count(w, r, low, _seconds(w, r, low))


@jit
def cut(w: World, r: int, now: float) -> None:
    """Let the jump end with the iteration under way."""
    if w.n[r] == 0 or w.jump[r] <= 1:
        return
    settle(w, r, now)
    w.jump[r] = 1
    w.next_s[r] = w.at_s[r] + _seconds(w, r, 1)


@jit
def _plan(w: World, r: int, now: float) -> None:
    """From an iteration boundary: preempt what does not fit, jump to the next end or overflow."""
    while w.n[r] > 1 and w.resident[r] + w.n[r] > w.i[KV_TOKENS]:
        _preempt(w, r)
    if w.n[r] == 0:
        w.next_s[r] = np.inf
        w.jump[r] = 0
        return
    jump = w.heap_end[r, 0] - w.iteration[r]
    if w.n[r] > 1:
        jump = min(jump, (w.i[KV_TOKENS] - w.resident[r]) // w.n[r])
    w.jump[r] = max(1, jump)
    w.at_s[r] = now
    w.next_s[r] = now + _seconds(w, r, w.jump[r])


@jit
def _preempt(w: World, r: int) -> None:
    """The newest running sample goes back to the head of the line; it keeps its tokens."""
    newest = 0
    for slot in range(1, w.n[r]):
        if w.s_sequence[w.heap_sample[r, slot]] > w.s_sequence[w.heap_sample[r, newest]]:
            newest = slot
    s = w.heap_sample[r, newest]
    w.s_done[s] = w.s_target[s] - (w.heap_end[r, newest] - w.iteration[r])
    heap_drop(w.heap_end[r], w.heap_sample[r], w.n[r], newest)
    w.n[r] -= 1
    w.i[RUNNING] -= 1
    w.resident[r] -= w.i[PROMPT] + w.s_done[s]
    w.i[PREEMPTIONS] += 1
    to_head(w, s)


@jit
def to_head(w: World, s: int) -> None:
    """Put a sample before all that wait."""
    size = w.line.size
    w.i[LINE_HEAD] = (w.i[LINE_HEAD] - 1 + size) % size
    w.line[w.i[LINE_HEAD]] = s
    w.i[LINE] += 1


@jit
def _to_tail(w: World, s: int) -> None:
    w.line[(w.i[LINE_HEAD] + w.i[LINE]) % w.line.size] = s
    w.i[LINE] += 1


@jit
def land(w: World, r: int, now: float) -> None:
    """The planned jump of a replica ends: turns end, joiners join."""
    if w.n[r] > 0:
        _count(w, r, w.jump[r], now - w.at_s[r])
    while w.n[r] > 0 and w.heap_end[r, 0] <= w.iteration[r]:
        s = w.heap_sample[r, 0]
        # Joiners stand in the heap already; the entries are n + joining.
        heap_drop(w.heap_end[r], w.heap_sample[r], w.n[r] + w.joining[r], 0)
        w.n[r] -= 1
        w.i[RUNNING] -= 1
        w.resident[r] -= w.i[PROMPT] + w.s_target[s]
        _turn_over(w, s, now)
    w.i[RUNNING] += w.joining[r]
    w.n[r] += w.joining[r]
    w.resident[r] += w.joining_tokens[r]
    w.debt_s[r] += w.joining_debt_s[r]
    w.joining[r] = 0
    w.joining_tokens[r] = 0
    w.joining_debt_s[r] = 0.0
    _plan(w, r, now)


@jit
def _turn_over(w: World, s: int, now: float) -> None:
    """A decode turn of a sample is over: it goes to its environment, or is finished."""
    w.s_done[s] = w.s_target[s]
    if w.s_target[s] < w.s_length[s]:
        w.s_turn[s] += 1
        version = min(w.i[VERSION], w.turn_s.size - 1)
        mean, cv = w.turn_s[version], w.x[TURN_CV]
        stay = mean
        if cv > 0.0:
            spread = math.sqrt(math.log(1.0 + cv * cv))
            z = normal(w.i[SEED], 17, w.g_number[w.s_group[s]], w.s_index[s] * 4096 + w.s_turn[s])
            stay = mean * math.exp(spread * z - 0.5 * spread * spread)
        w.x[TURN_SUM] += stay
        w.x[TURN_COUNT] += 1.0
        heap_push(w.away_s, w.away_sample, w.i[AWAY], now + stay, s)
        w.i[AWAY] += 1
        return
    g = w.s_group[s]
    length = w.s_length[s]
    version = w.s_version[s]
    w.unfinished[version] -= 1
    w.g_left[g] -= 1
    w.g_tokens[g] += length
    total = float(length + w.i[PROMPT])
    w.g_squares[g] += total * total
    w.g_versions[g, w.s_index[s]] = version
    w.g_oldest[g] = min(w.g_oldest[g], version)
    w.lengths[np.searchsorted(w.edges, float(length))] += 1.0
    w.x[LENGTH_SUM] += length
    w.i[FINISHED_SAMPLES] += 1
    w.i[IN_FLIGHT] -= 1
    w.free_samples[w.i[FREE_SAMPLES]] = s
    w.i[FREE_SAMPLES] += 1
    if w.g_left[g] == 0:
        w.queue[(w.i[QUEUE_HEAD] + w.i[QUEUED]) % w.queue.size] = g
        w.i[QUEUED] += 1
        if w.i[CAPACITY] > 0 and w.i[BLOCKS] == 0 and w.i[QUEUED] > w.i[CAPACITY]:
            discard(w, pop(w))


@jit
def pop(w: World) -> int:
    """Take the oldest complete group out of the queue."""
    g = w.queue[w.i[QUEUE_HEAD]]
    w.i[QUEUE_HEAD] = (w.i[QUEUE_HEAD] + 1) % w.queue.size
    w.i[QUEUED] -= 1
    return int(g)


@jit
def discard(w: World, g: int) -> None:
    """Throw a complete group away."""
    w.i[DROPPED] += 1
    w.free_groups[w.i[FREE_GROUPS]] = g
    w.i[FREE_GROUPS] += 1


# --- admission -----------------------------------------------------------------------------------------------------------------


@jit
def next_target(w: World, s: int) -> int:
    """Tokens at the end of the turn that begins: they are shared out evenly over the turns."""
    turns = min(w.i[TURNS], w.s_length[s])
    turn = w.s_turn[s] + 1
    return int(w.s_length[s] if turn >= turns else (w.s_length[s] * turn) // turns)


@jit
def admit_groups(w: World) -> None:
    """Let groups start as far as the cap, the bound and the queue allow."""
    size = w.i[GROUP_SIZE]
    while w.i[IN_FLIGHT] + size <= w.i[CAP] and w.i[FREE_SAMPLES] >= size:
        if w.i[VERSION] >= w.i[STEPS]:
            return
        if w.i[BOUND] == ADMISSION:
            allowed = (w.i[VERSION] + w.i[MAX_STALENESS] + 1) * w.i[BATCH_GROUPS]
            if w.i[STARTED] - w.i[DROPPED] >= allowed:
                return
        if w.i[CAPACITY] > 0 and w.i[BLOCKS] == 1 and w.i[QUEUED] >= w.i[CAPACITY]:
            return
        if w.i[FREE_GROUPS] == 0:
            w.i[FULL] = 1
            return
        w.i[FREE_GROUPS] -= 1
        g = w.free_groups[w.i[FREE_GROUPS]]
        number = w.i[STARTED]
        w.i[STARTED] += 1
        w.g_left[g], w.g_tokens[g], w.g_squares[g], w.g_oldest[g] = size, 0, 0.0, 1 << 40
        w.g_number[g] = number
        version = min(w.i[VERSION], w.mu.size - 1)
        shared = math.sqrt(w.x[CORRELATION]) * normal(w.i[SEED], 12, number, 0)
        own = math.sqrt(1.0 - w.x[CORRELATION])
        for index in range(size):
            w.i[FREE_SAMPLES] -= 1
            s = w.free_samples[w.i[FREE_SAMPLES]]
            z = shared + own * normal(w.i[SEED], 11, number, index)
            length = round(math.exp(w.mu[version] + w.sigma[version] * z))
            w.s_length[s] = min(max(1, int(length)), w.i[MAX_TOKENS])
            w.s_group[s], w.s_index[s], w.s_done[s], w.s_version[s], w.s_turn[s] = g, index, 0, -1, 0
            w.s_target[s] = next_target(w, s)
            _to_tail(w, s)
        w.i[IN_FLIGHT] += size


@jit
def _resident(w: World, r: int, now: float) -> int:
    """Tokens in a replica's KV cache about now: between the ends of a jump they grow almost linearly in time."""
    resident = w.resident[r] + w.joining_tokens[r]
    if w.n[r] > 0 and w.next_s[r] > w.at_s[r]:
        resident += int(w.n[r] * w.jump[r] * (now - w.at_s[r]) / (w.next_s[r] - w.at_s[r]))
    return int(resident)


@jit
def start_samples(w: World, now: float) -> None:
    """First come, first served, each on the replica with the fewest running that has a slot and room; the first without holds up all."""
    room = np.int64(w.i[KV_TOKENS] * WATERMARK)
    while w.i[LINE] > 0:
        s = w.line[w.i[LINE_HEAD]]
        tokens = w.i[PROMPT] + w.s_done[s]
        best, fewest = -1, w.i[MAX_RUNNING]
        for r in range(w.i[REPLICAS]):
            if w.alive[r] == 0 or w.taking[r] == 0:
                continue
            running = w.n[r] + w.joining[r]
            if running < fewest and (running == 0 or _resident(w, r, now) + tokens + running + 1 <= room):
                best, fewest = r, running
        if best < 0:
            return
        w.i[LINE_HEAD] = (w.i[LINE_HEAD] + 1) % w.line.size
        w.i[LINE] -= 1
        _join(w, best, s, now)


@jit
def _join(w: World, r: int, s: int, now: float) -> None:
    fresh = w.s_done[s] == 0
    debt_s = w.x[PREFILL_S] if fresh else w.x[RECOMPUTE_S] * float(w.i[PROMPT] + w.s_done[s])
    if not fresh and w.s_turn[s] > 0 and w.s_done[s] == _turn_start(w, s):
        debt_s = 0.0  # back from its environment: its context is in the prefix cache
    if w.s_version[s] < 0:
        w.s_version[s] = w.i[VERSION]
        w.unfinished[w.i[VERSION]] += 1
        w.i[OLDEST] = min(w.i[OLDEST], w.i[VERSION])
    w.s_sequence[s] = w.i[SEQUENCE]
    w.i[SEQUENCE] += 1
    if w.n[r] == 0:
        if w.joining[r] == 0:
            w.at_s[r] = max(now, w.ready_s[r])
            w.jump[r] = 0
            w.next_s[r] = w.at_s[r]
    else:
        cut(w, r, now)
    end = w.iteration[r] + (w.jump[r] if w.n[r] > 0 else 0) + w.s_target[s] - w.s_done[s]
    heap_push(w.heap_end[r], w.heap_sample[r], w.n[r] + w.joining[r], end, s)
    w.joining[r] += 1
    w.joining_tokens[r] += w.i[PROMPT] + w.s_done[s]
    w.joining_debt_s[r] += debt_s


@jit
def _turn_start(w: World, s: int) -> int:
    turns = min(w.i[TURNS], w.s_length[s])
    return int((w.s_length[s] * w.s_turn[s]) // turns)


@jit
def return_from_environments(w: World, now: float) -> None:
    """Samples whose stay in an environment is over wait for a slot again."""
    while w.i[AWAY] > 0 and w.away_s[0] <= now:
        s = w.away_sample[0]
        heap_drop(w.away_s, w.away_sample, w.i[AWAY], 0)
        w.i[AWAY] -= 1
        w.s_target[s] = next_target(w, s)
        _to_tail(w, s)
