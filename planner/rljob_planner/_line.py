"""Who waits for a decode slot and who gets one, compiled by numba: the rules of admission and the choice of a replica."""

from __future__ import annotations

from rljob_planner._draw import draw_length
from rljob_planner._environment import take_returned, turn_goal
from rljob_planner._heaps import first_leaf, set_largest, smallest_above
from rljob_planner._jit import jit
from rljob_planner._replica import boundary, start
from rljob_planner._state import ADMISSION, ID_BITS, ID_MASK, ONE_STEP_OFF, PREEMPTIONS, SYNC, World


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
def _room(w: World, context: int, now: float) -> int:
    """The replica with the fewest running samples (the first of equals) that has a slot and KV room for ``context`` tokens and one more; −1 if there is none.

    Room is what is left beside the next token of every running sample, so a sample that starts is not preempted at once.
    It only shrinks until a sample leaves the replica: what it was when it did not suffice is remembered.
    """
    par, leaves = w.parameters[0], first_leaf(w.load)
    while True:
        fewest = w.load[1]
        if w.refused[leaves + (fewest & ID_MASK)] <= context:
            fewest = smallest_above(w.load, w.refused, context, w.stack)
        if fewest >> ID_BITS >= par.max_running:
            return -1
        best = fewest & ID_MASK
        rep = w.replicas[best]
        room = par.kv_tokens - rep.resident - rep.joining_tokens - (fewest >> ID_BITS) - 1
        if room - rep.n * rep.k >= context:  # even at the end of its jump
            return int(best)
        if rep.n > 0 and rep.begin < now:
            room -= rep.n * (rep.k if rep.cut == 1 else boundary(w, best, now))
        if room >= context:
            return int(best)
        set_largest(w.refused, leaves + best, room + 1)


@jit
def _starts_in_vain(w: World, context: int, now: float) -> bool:
    """Whether a replica has KV room for ``context`` tokens and one more now, though not beside the next tokens of its samples.

    By the rules a sample starts there, only to be preempted before it gains a token. It is spared the way, but it has started:
    it belongs to the policy version of this instant, and waits as one that was preempted.
    """
    par, leaves = w.parameters[0], first_leaf(w.load)
    if w.load[1] >> ID_BITS >= par.max_running or w.refused[1] + 2 * par.max_running <= context:
        return False
    for r in range(par.replicas):
        load = w.load[leaves + r] >> ID_BITS
        if load < par.max_running and w.refused[leaves + r] + 2 * load > context:
            rep = w.replicas[r]
            room = par.kv_tokens - rep.resident - rep.joining_tokens - 1
            if rep.n > 0 and rep.begin < now:
                room -= rep.n * ((rep.k if rep.cut == 1 else boundary(w, r, now)) - 1)
            if room >= context:
                return True
    return False


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
    length = draw_length(w.seed, st.opened - 1, index, par.correlation, w.support, w.cumulative, w.guide)
    if w.factors.size > 0:
        length = max(1, min(par.cap_tokens, int(length * w.factors[st.version] + 0.5)))
    sample.group, sample.index, sample.generated, sample.version = st.open_group, index, 0, st.version
    sample.length = length
    sample.turn, sample.goal, sample.cached = 0, length, -1
    if par.turns > 1:
        sample.goal = turn_goal(length, 0, par.turns)
    w.unfinished[st.version] += 1
    return int(s)


@jit
def fill(w: World, now: float) -> None:
    """Admit the groups that may start now, then start waiting samples, the head of the line first."""
    par, st = w.parameters[0], w.counters[0]
    while True:
        while par.in_flight_cap >= 0 and _may_admit(w):
            st.admitted += 1
            st.in_flight += par.samples_per_prompt
        context = par.prompt_tokens
        returned = st.first_returned >= 0 and w.samples[st.first_returned].behind <= st.started
        if st.preempted > 0:
            context += w.samples[w.preempted[st.preempted - 1]].generated
        elif returned:
            context += w.samples[st.first_returned].generated
        elif st.started == st.admitted * par.samples_per_prompt and (
            par.in_flight_cap >= 0 or st.waiting_for_sandbox > 0 or not _may_admit(w)
        ):
            return  # nobody waits, and nobody comes
        r = _room(w, context, now)
        if r < 0 and (st.preempted > 0 or returned or not _starts_in_vain(w, context, now)):
            return
        if st.preempted > 0:
            st.preempted -= 1
            s = w.preempted[st.preempted]
        elif returned:
            s = take_returned(w)
        else:
            if (
                st.started == st.admitted * par.samples_per_prompt
            ):  # without a cap a group comes when its first sample can start
                st.admitted += 1
                st.in_flight += par.samples_per_prompt
            s = _new_sample(w)
        if r < 0:
            w.preempted[0] = s
            st.preempted = 1
            w.totals[PREEMPTIONS] += 1.0
            return
        start(w, s, r, now)
