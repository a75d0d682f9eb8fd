"""The plant's laws, compiled: continuous batching, groups, a queue, a trainer, environments.

Written for this bench alone and from the rules, so that a slip in the planner's simulator shows as a difference. All running samples
of a replica gain one token an iteration, so a sample's end is a fixed iteration; between two ends an iteration's seconds grow
linearly, and the time of a jump over k iterations is a closed form: nothing is approximated by a tick. What the planner's
simulator does not have is here: replicas that come, leave and slow down, lengths and environments that drift with the policy version, trainers that
regroup, batches that are lost, and counters as an engine exports them.
"""

from __future__ import annotations

import math

import numpy as np

from dev.bench.drift.compiled import entry, jit
from dev.bench.drift.draws import normal
from dev.bench.drift.replicas import (
    admit_groups,
    cut,
    discard,
    land,
    next_target,
    pop,
    return_from_environments,
    settle,
    start_samples,
    to_head,
)
from dev.bench.drift.state import (
    AWAY,
    BATCH_GROUPS,
    BATCH_SQUARES,
    BATCH_TOKENS,
    BOUND,
    BOUNDARY,
    COMPLETE,
    DROP,
    FINISHED,
    FREE_GROUPS,
    FULL,
    GROUP_SIZE,
    HALTED_S,
    HAS_BATCH,
    HOLD,
    HOLDING,
    IN_FLIGHT,
    IN_FLIGHT_INTEGRAL,
    LOST_TOKENS,
    LOST_TRAIN_S,
    MAX_STALENESS,
    MEMBERS,
    NO_ROOM,
    NOW,
    OLDEST,
    PROMPT,
    QUEUE_HEAD,
    QUEUE_INTEGRAL,
    QUEUED,
    REACHED,
    REGROUPING,
    REPLICAS,
    RUNNING,
    SEED,
    STALENESS_BINS,
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
    VERSION,
    WAIT_FROM,
    WAIT_S,
    WAIT_TOTAL,
    WAITING,
    WANT_BOUNDARY,
    World,
)


@jit
def _take_batch(w: World) -> bool:
    version = w.i[VERSION]
    if w.i[BOUND] == DROP:
        kept = 0
        for position in range(w.i[QUEUED]):
            g = w.queue[(w.i[QUEUE_HEAD] + position) % w.queue.size]
            if version - w.g_oldest[g] > w.i[MAX_STALENESS]:
                discard(w, g)
            else:
                w.queue[(w.i[QUEUE_HEAD] + kept) % w.queue.size] = g
                kept += 1
        w.i[QUEUED] = kept
    if w.i[QUEUED] < w.i[BATCH_GROUPS]:
        return False
    tokens, squares = 0, 0.0
    for _ in range(w.i[BATCH_GROUPS]):
        g = pop(w)
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
def _begin_step(w: World, now: float) -> None:
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
def _may_publish(w: World) -> bool:
    if w.i[BOUND] != HOLD:
        return True
    while w.i[OLDEST] < w.i[VERSION] and w.unfinished[w.i[OLDEST]] == 0:
        w.i[OLDEST] += 1
    if w.unfinished[w.i[OLDEST]] == 0:
        return True
    return bool(w.i[VERSION] + 1 - w.i[OLDEST] <= w.i[MAX_STALENESS])


@jit
def _publish(w: World, now: float) -> None:
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
            cut(w, r, now)
            w.joining_debt_s[r] += w.x[SYNC_S]
        else:
            w.ready_s[r] = now + w.x[SYNC_S]
    mark_slow(w)


@entry
def mark_slow(w: World) -> None:
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
def _waited(w: World, now: float) -> None:
    w.x[WAIT_S] += now - w.x[WAIT_FROM]
    w.x[WAIT_TOTAL] += now - w.x[WAIT_FROM]
    w.x[WAIT_FROM] = now


@jit
def _advance_trainer(w: World, now: float) -> bool:
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
        elif state in (WAITING, STOPPED):
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
def _pass_time(w: World, now: float) -> None:
    elapsed = now - w.x[NOW]
    w.x[QUEUE_INTEGRAL] += w.i[QUEUED] * elapsed
    w.x[IN_FLIGHT_INTEGRAL] += w.i[IN_FLIGHT] * elapsed
    if w.i[TRAINER] == STOPPED or w.i[TRAINER] == REGROUPING:
        w.x[HALTED_S] += elapsed
    w.x[NOW] = now


@entry
def advance(w: World, until: float) -> int:
    """Go on until ``until`` seconds, the last step, or a step boundary that is waited for; says which."""
    while True:
        now = w.x[NOW]
        if _advance_trainer(w, now):
            return BOUNDARY
        if w.i[TRAINER] == COMPLETE:
            return FINISHED
        admit_groups(w)
        if w.i[FULL] == 1:
            return NO_ROOM
        start_samples(w, now)
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
                land(w, r, now)
                landed = True
        if w.i[AWAY] > 0 and w.away_s[0] <= now:
            return_from_environments(w, now)
            landed = True
        if not landed and now >= until and w.x[TRAINER_END] > now:
            for r in range(w.i[REPLICAS]):
                if w.alive[r] == 1:
                    settle(w, r, now)
            return REACHED


@entry
def kill(w: World, r: int) -> None:
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
        w.s_target[s] = next_target(w, s)
        to_head(w, s)
    w.i[RUNNING] -= w.n[r]
    w.n[r] = w.joining[r] = w.resident[r] = w.joining_tokens[r] = w.jump[r] = 0
    w.next_s[r] = np.inf
    w.alive[r] = w.taking[r] = 0
    mark_slow(w)
