"""The plant's laws, compiled: continuous batching, groups, a queue, a trainer, environments.

Written for this bench alone and from the rules, so that a slip in the planner's simulator shows as a difference. All running samples
of a replica gain one token an iteration, so a sample's end is a fixed iteration; between two ends an iteration's seconds grow
linearly, and the time of a jump over k iterations is a closed form: nothing is approximated by a tick. What the planner's
simulator does not have is here: replicas that come, leave and slow down, lengths and environments that drift with the policy version, trainers that
regroup, batches that are lost, and counters as an engine exports them.
"""
# The compiled code is typed by numba from its arguments; annotations beyond the world would say nothing more.

from __future__ import annotations

import math

import numba
import numpy as np

from dev.bench.drift.state import (
    ADMISSION,
    AWAY,
    BATCH_GROUPS,
    BATCH_SQUARES,
    BATCH_TOKENS,
    BLOCKS,
    BOUND,
    BOUNDARY,
    CAP,
    CAPACITY,
    COMPLETE,
    DROP,
    DROPPED,
    FINISHED,
    FINISHED_SAMPLES,
    FREE_GROUPS,
    FREE_SAMPLES,
    FULL,
    GROUP_SIZE,
    HALTED_S,
    HAS_BATCH,
    HOLD,
    HOLDING,
    IN_FLIGHT,
    IN_FLIGHT_INTEGRAL,
    KV_TOKENS,
    LENGTH_SUM,
    LINE,
    LINE_HEAD,
    LOST_TOKENS,
    LOST_TRAIN_S,
    MAX_RUNNING,
    MAX_STALENESS,
    MAX_TOKENS,
    MEMBERS,
    NO_ROOM,
    NOW,
    OLDEST,
    PER_CONTEXT_S,
    PREEMPTIONS,
    PREFILL_S,
    PROMPT,
    QUEUE_HEAD,
    QUEUE_INTEGRAL,
    QUEUED,
    REACHED,
    RECOMPUTE_S,
    REGROUPING,
    REPLICAS,
    RUNNING,
    SEED,
    SEQUENCE,
    STALENESS_BINS,
    STARTED,
    STEP_S,
    STEPS,
    STOPPED,
    SYNC_S,
    TRAIN_NOISE,
    TRAIN_TOTAL,
    TRAINER,
    TRAINER_END,
    TRAINERS,
    TRAINING,
    TURN_COUNT,
    TURN_CV,
    TURN_SUM,
    TURNS,
    VERSION,
    WAIT_FROM,
    WAIT_S,
    WAIT_TOTAL,
    WAITING,
    WANT_BOUNDARY,
    World,
)

jit = numba.njit(cache=True, nogil=True, error_model="numpy")

WATERMARK = 0.99
"""Share of the KV room that new samples may fill, as engines keep some free lest each newcomer preempts another."""


@jit
def mixed(x):  # type: ignore[no-untyped-def]
    """The finaliser of SplitMix64."""
    x = x + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


@jit
def normal(seed, a, b, c):  # type: ignore[no-untyped-def]
    """A standard normal number that belongs to these keys, whatever was drawn before: two policies see the same luck."""
    key = mixed(np.uint64(seed))
    key = mixed(key ^ np.uint64(a))
    key = mixed(key ^ np.uint64(b))
    key = mixed(key ^ np.uint64(c))
    u = (np.float64(key >> np.uint64(11)) + 0.5) * 2.0**-53
    v = (np.float64(mixed(key ^ np.uint64(0xD1B54A32D192ED03)) >> np.uint64(11)) + 0.5) * 2.0**-53
    return math.sqrt(-2.0 * math.log(u)) * math.cos(2.0 * math.pi * v)


# --- heaps ---------------------------------------------------------------------------------------------------------------------


@jit
def heap_push(keys, items, size, key, item):  # type: ignore[no-untyped-def]
    """Add to a heap that holds ``size`` entries."""
    at = size
    while at > 0:
        up = (at - 1) // 2
        if keys[up] <= key:
            break
        keys[at], items[at] = keys[up], items[up]
        at = up
    keys[at], items[at] = key, item


@jit
def heap_drop(keys, items, size, at):  # type: ignore[no-untyped-def]
    """Remove the entry at ``at`` from a heap that holds ``size`` entries."""
    last = size - 1
    key, item = keys[last], items[last]
    if at == last:
        return
    while at > 0 and keys[(at - 1) // 2] > key:
        up = (at - 1) // 2
        keys[at], items[at] = keys[up], items[up]
        at = up
    while True:
        down = 2 * at + 1
        if down >= last:
            break
        if down + 1 < last and keys[down + 1] < keys[down]:
            down += 1
        if keys[down] >= key:
            break
        keys[at], items[at] = keys[down], items[down]
        at = down
    keys[at], items[at] = key, item


# --- replicas ------------------------------------------------------------------------------------------------------------------


@jit
def _seconds(w, r, k):  # type: ignore[no-untyped-def]
    """Seconds of the next ``k`` iterations of a replica."""
    n, resident = float(w.n[r]), float(w.resident[r])
    per_token = w.x[PER_CONTEXT_S]
    plain = k * (w.iteration_s[w.n[r]] + per_token * resident) + per_token * n * 0.5 * k * (k - 1.0)
    return w.debt_s[r] + w.slow[r] * plain


@jit
def _count(w, r, k, seconds):  # type: ignore[no-untyped-def]
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
def settle(w, r, now):  # type: ignore[no-untyped-def]
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
def _cut(w, r, now):  # type: ignore[no-untyped-def]
    """Let the jump end with the iteration under way."""
    if w.n[r] == 0 or w.jump[r] <= 1:
        return
    settle(w, r, now)
    w.jump[r] = 1
    w.next_s[r] = w.at_s[r] + _seconds(w, r, 1)


@jit
def _plan(w, r, now):  # type: ignore[no-untyped-def]
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
def _preempt(w, r):  # type: ignore[no-untyped-def]
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
    _to_head(w, s)


@jit
def _to_head(w, s):  # type: ignore[no-untyped-def]
    size = w.line.size
    w.i[LINE_HEAD] = (w.i[LINE_HEAD] - 1 + size) % size
    w.line[w.i[LINE_HEAD]] = s
    w.i[LINE] += 1


@jit
def _to_tail(w, s):  # type: ignore[no-untyped-def]
    w.line[(w.i[LINE_HEAD] + w.i[LINE]) % w.line.size] = s
    w.i[LINE] += 1


@jit
def _land(w, r, now):  # type: ignore[no-untyped-def]
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
def _turn_over(w, s, now):  # type: ignore[no-untyped-def]
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
            _discard(w, _pop(w))


@jit
def _pop(w):  # type: ignore[no-untyped-def]
    g = w.queue[w.i[QUEUE_HEAD]]
    w.i[QUEUE_HEAD] = (w.i[QUEUE_HEAD] + 1) % w.queue.size
    w.i[QUEUED] -= 1
    return g


@jit
def _discard(w, g):  # type: ignore[no-untyped-def]
    w.i[DROPPED] += 1
    w.free_groups[w.i[FREE_GROUPS]] = g
    w.i[FREE_GROUPS] += 1


# --- admission -----------------------------------------------------------------------------------------------------------------


@jit
def _next_target(w, s):  # type: ignore[no-untyped-def]
    """Tokens at the end of the turn that begins: they are shared out evenly over the turns."""
    turns = min(w.i[TURNS], w.s_length[s])
    turn = w.s_turn[s] + 1
    return w.s_length[s] if turn >= turns else (w.s_length[s] * turn) // turns


@jit
def _admit_groups(w):  # type: ignore[no-untyped-def]
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
        for index in range(size):
            w.i[FREE_SAMPLES] -= 1
            s = w.free_samples[w.i[FREE_SAMPLES]]
            z = normal(w.i[SEED], 11, number, index)
            length = round(math.exp(w.mu[version] + w.sigma[version] * z))
            w.s_length[s] = min(max(1, int(length)), w.i[MAX_TOKENS])
            w.s_group[s], w.s_index[s], w.s_done[s], w.s_version[s], w.s_turn[s] = g, index, 0, -1, 0
            w.s_target[s] = _next_target(w, s)
            _to_tail(w, s)
        w.i[IN_FLIGHT] += size


@jit
def _resident(w, r, now):  # type: ignore[no-untyped-def]
    """Tokens in a replica's KV cache about now: between the ends of a jump they grow almost linearly in time."""
    resident = w.resident[r] + w.joining_tokens[r]
    if w.n[r] > 0 and w.next_s[r] > w.at_s[r]:
        resident += int(w.n[r] * w.jump[r] * (now - w.at_s[r]) / (w.next_s[r] - w.at_s[r]))
    return resident


@jit
def _start_samples(w, now):  # type: ignore[no-untyped-def]
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
            if running < fewest:
                if running == 0 or _resident(w, r, now) + tokens + running + 1 <= room:
                    best, fewest = r, running
        if best < 0:
            return
        w.i[LINE_HEAD] = (w.i[LINE_HEAD] + 1) % w.line.size
        w.i[LINE] -= 1
        _join(w, best, s, now)


@jit
def _join(w, r, s, now):  # type: ignore[no-untyped-def]
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
        _cut(w, r, now)
    end = w.iteration[r] + (w.jump[r] if w.n[r] > 0 else 0) + w.s_target[s] - w.s_done[s]
    heap_push(w.heap_end[r], w.heap_sample[r], w.n[r] + w.joining[r], end, s)
    w.joining[r] += 1
    w.joining_tokens[r] += w.i[PROMPT] + w.s_done[s]
    w.joining_debt_s[r] += debt_s


@jit
def _turn_start(w, s):  # type: ignore[no-untyped-def]
    turns = min(w.i[TURNS], w.s_length[s])
    return (w.s_length[s] * w.s_turn[s]) // turns


@jit
def _return_from_environments(w, now):  # type: ignore[no-untyped-def]
    while w.i[AWAY] > 0 and w.away_s[0] <= now:
        s = w.away_sample[0]
        heap_drop(w.away_s, w.away_sample, w.i[AWAY], 0)
        w.i[AWAY] -= 1
        w.s_target[s] = _next_target(w, s)
        _to_tail(w, s)


# --- the trainer ---------------------------------------------------------------------------------------------------------------


@jit
def _take_batch(w):  # type: ignore[no-untyped-def]
    version = w.i[VERSION]
    if w.i[BOUND] == DROP:
        kept = 0
        for position in range(w.i[QUEUED]):
            g = w.queue[(w.i[QUEUE_HEAD] + position) % w.queue.size]
            if version - w.g_oldest[g] > w.i[MAX_STALENESS]:
                _discard(w, g)
            else:
                w.queue[(w.i[QUEUE_HEAD] + kept) % w.queue.size] = g
                kept += 1
        w.i[QUEUED] = kept
    if w.i[QUEUED] < w.i[BATCH_GROUPS]:
        return False
    tokens, squares = 0, 0.0
    for _ in range(w.i[BATCH_GROUPS]):
        g = _pop(w)
        tokens += w.g_tokens[g]
        squares += w.g_squares[g]
        for index in range(w.i[GROUP_SIZE]):
            w.staleness[version, min(STALENESS_BINS - 1, version - w.g_versions[g, index])] += 1
        w.free_groups[w.i[FREE_GROUPS]] = g
        w.i[FREE_GROUPS] += 1
    w.i[BATCH_TOKENS], w.x[BATCH_SQUARES] = tokens, squares
    w.i[HAS_BATCH] = 1
    return True


@jit
def _begin_step(w, now):  # type: ignore[no-untyped-def]
    samples = w.i[BATCH_GROUPS] * w.i[GROUP_SIZE]
    cost = w.train_cost[w.i[TRAINERS]]
    tokens = float(w.i[BATCH_TOKENS] + samples * w.i[PROMPT])
    seconds = cost[0] + cost[1] * tokens + cost[2] * w.x[BATCH_SQUARES]
    sigma = w.x[TRAIN_NOISE]
    if sigma > 0.0:
        seconds *= math.exp(sigma * normal(w.i[SEED], 13, w.i[VERSION], 0) - 0.5 * sigma * sigma)
    w.x[STEP_S] = seconds
    w.x[TRAINER_END] = now + seconds
    w.i[TRAINER] = TRAINING


@jit
def _may_publish(w):  # type: ignore[no-untyped-def]
    if w.i[BOUND] != HOLD:
        return True
    while w.i[OLDEST] < w.i[VERSION] and w.unfinished[w.i[OLDEST]] == 0:
        w.i[OLDEST] += 1
    if w.unfinished[w.i[OLDEST]] == 0:
        return True
    return w.i[VERSION] + 1 - w.i[OLDEST] <= w.i[MAX_STALENESS]


@jit
def _publish(w, now):  # type: ignore[no-untyped-def]
    version = w.i[VERSION]
    w.published_s[version] = now
    w.step_s[version] = w.x[STEP_S]
    w.wait_s[version] = w.x[WAIT_S]
    w.trained_tokens[version] = w.i[BATCH_TOKENS]
    w.x[TRAIN_TOTAL] += w.x[STEP_S]
    w.x[WAIT_S] = 0.0
    w.i[HAS_BATCH] = 0
    w.i[VERSION] = version + 1
    w.i[TRAINER] = COMPLETE if version + 1 >= w.i[STEPS] else WAITING
    w.x[WAIT_FROM] = now
    w.x[TRAINER_END] = np.inf
    for r in range(w.i[REPLICAS]):
        if w.alive[r] == 0:
            continue
        if w.n[r] > 0 or w.joining[r] > 0:
            _cut(w, r, now)
            w.joining_debt_s[r] += w.x[SYNC_S]
        else:
            w.ready_s[r] = now + w.x[SYNC_S]
    mark_slow(w)


@jit
def mark_slow(w):  # type: ignore[no-untyped-def]
    """The oldest replica is the one that a fault slows down; its new speed holds from its next jump on."""
    factor = w.slowdown[min(w.i[VERSION], w.slowdown.size - 1)]
    oldest = -1
    for r in range(w.i[REPLICAS]):
        if w.alive[r] == 1:
            w.slow[r] = 1.0
            if oldest < 0 or w.order[r] < w.order[oldest]:
                oldest = r
    if oldest >= 0:
        w.slow[oldest] = factor


@jit
def _waited(w, now):  # type: ignore[no-untyped-def]
    w.x[WAIT_S] += now - w.x[WAIT_FROM]
    w.x[WAIT_TOTAL] += now - w.x[WAIT_FROM]
    w.x[WAIT_FROM] = now


@jit
def _advance_trainer(w, now):  # type: ignore[no-untyped-def]
    """Do all that the trainer does at this instant; True at a boundary that somebody waits for."""
    while True:
        if w.i[MEMBERS] < w.i[TRAINERS] and w.i[TRAINER] in (WAITING, TRAINING, REGROUPING):
            if w.i[TRAINER] == TRAINING:
                w.x[LOST_TRAIN_S] += w.x[STEP_S] - (w.x[TRAINER_END] - now)
            if w.i[TRAINER] == WAITING:
                _waited(w, now)
            w.i[TRAINER] = STOPPED
            w.x[TRAINER_END] = np.inf
        state = w.i[TRAINER]
        if state == TRAINING and w.x[TRAINER_END] <= now:
            w.i[TRAINER], w.x[TRAINER_END] = HOLDING, np.inf
        elif state == HOLDING and _may_publish(w):
            _publish(w, now)
        elif state == REGROUPING and w.x[TRAINER_END] <= now:
            w.i[TRAINER], w.x[TRAINER_END] = WAITING, np.inf
            w.x[WAIT_FROM] = now
        elif state == WAITING or state == STOPPED:
            if w.i[WANT_BOUNDARY] == 1:
                return True
            if state == STOPPED:
                return False
            if w.i[HAS_BATCH] == 0 and not _take_batch(w):
                return False
            _waited(w, now)
            _begin_step(w, now)
            return False
        else:
            return False


@jit
def _pass_time(w, now):  # type: ignore[no-untyped-def]
    elapsed = now - w.x[NOW]
    w.x[QUEUE_INTEGRAL] += w.i[QUEUED] * elapsed
    w.x[IN_FLIGHT_INTEGRAL] += w.i[IN_FLIGHT] * elapsed
    if w.i[TRAINER] == STOPPED or w.i[TRAINER] == REGROUPING:
        w.x[HALTED_S] += elapsed
    w.x[NOW] = now


@jit
def advance(w: World, until):  # type: ignore[no-untyped-def]
    """Go on until ``until`` seconds, the last step, or a step boundary that is waited for; says which."""
    while True:
        now = w.x[NOW]
        if _advance_trainer(w, now):
            return BOUNDARY
        if w.i[TRAINER] == COMPLETE:
            return FINISHED
        _admit_groups(w)
        if w.i[FULL] == 1:
            return NO_ROOM
        _start_samples(w, now)
        following = min(until, w.x[TRAINER_END])
        if w.i[AWAY] > 0:
            following = min(following, w.away_s[0])
        for r in range(w.i[REPLICAS]):
            if w.alive[r] == 1 and w.next_s[r] < following:
                following = w.next_s[r]
        _pass_time(w, max(now, following))
        now = w.x[NOW]
        landed = False
        for r in range(w.i[REPLICAS]):
            if w.alive[r] == 1 and w.next_s[r] <= now:
                _land(w, r, now)
                landed = True
        if w.i[AWAY] > 0 and w.away_s[0] <= now:
            _return_from_environments(w, now)
            landed = True
        if not landed and now >= until and w.x[TRAINER_END] > now:
            for r in range(w.i[REPLICAS]):
                if w.alive[r] == 1:
                    settle(w, r, now)
            return REACHED


@jit
def kill(w: World, r):  # type: ignore[no-untyped-def]
    """A replica is gone: what ran there starts over, before all that waits."""
    now = w.x[NOW]
    settle(w, r, now)
    total = w.n[r] + w.joining[r]
    # Newest first to the head of the line, so that the oldest stands first in the end.
    for _ in range(total):
        newest = -1
        for slot in range(total):
            s = w.heap_sample[r, slot]
            if s >= 0 and (newest < 0 or w.s_sequence[s] > w.s_sequence[w.heap_sample[r, newest]]):
                newest = slot
        s = w.heap_sample[r, newest]
        done = w.s_target[s] - max(0, w.heap_end[r, newest] - w.iteration[r])
        w.x[LOST_TOKENS] += max(0, done)
        w.heap_sample[r, newest] = -1
        w.unfinished[w.s_version[s]] -= 1
        w.s_done[s], w.s_version[s], w.s_turn[s] = 0, -1, 0
        w.s_target[s] = _next_target(w, s)
        _to_head(w, s)
    w.i[RUNNING] -= w.n[r]
    w.n[r] = w.joining[r] = w.resident[r] = w.joining_tokens[r] = w.jump[r] = 0
    w.next_s[r] = np.inf
    w.alive[r] = w.taking[r] = 0
    mark_slow(w)
