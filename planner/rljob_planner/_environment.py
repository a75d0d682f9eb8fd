"""What a sample does between two decode turns, compiled by numba: it waits for a sandbox and is in its environment.

It holds no decode slot there and no KV room: its blocks stay in the prefix cache only as long as nobody needs them, so they
count as free. It keeps its place under the in-flight cap. When it comes back it waits for a slot like any other, behind those
who wait already. Its context then costs no prefill, as with a prefix cache and a router that knows where a session ran,
unless a new policy version has come meanwhile: with the weights the cache is void, and the context is computed anew.

Where several turns end, or several samples come back, at one instant, the sample of the earlier group is first.
"""

from __future__ import annotations

from rljob_planner._draw import draw_environment_s
from rljob_planner._heaps import pop_entry, push_entry
from rljob_planner._jit import jit
from rljob_planner._state import SANDBOX_WAIT, TURNS, World


@jit
def turn_goal(length: int, turn: int, turns: int) -> int:
    """Tokens of a sample at the end of a turn; no turn is without a token, so short samples have fewer turns."""
    most = min(turns, length)
    return int(length * (turn + 1) // most)


@jit
def _order(w: World, s: int) -> int:
    """The place of a sample among those of all groups."""
    sample = w.samples[s]
    return int(w.groups[sample.group].number * w.parameters[0].samples_per_prompt + sample.index)


@jit
def leave_for_environment(w: World, s: int, now: float) -> None:
    """A turn of sample ``s`` is over and another one will come."""
    par, st, sample = w.parameters[0], w.counters[0], w.samples[s]
    sample.generated = sample.goal
    sample.turn += 1
    sample.goal = turn_goal(sample.length, sample.turn, par.turns)
    sample.cached = st.version
    push_entry(w.sandbox_line, st.waiting_for_sandbox, now, _order(w, s), s)
    st.waiting_for_sandbox += 1


@jit
def visit_environments(w: World, now: float) -> None:
    """Give free sandboxes to those who wait for one; whose time in it is over joins the line for decode slots."""
    par, st = w.parameters[0], w.counters[0]
    while True:
        while st.waiting_for_sandbox > 0 and (par.sandboxes < 0 or st.away < par.sandboxes):
            w.totals[SANDBOX_WAIT] += now - w.sandbox_line[0].time_s
            w.totals[TURNS] += 1.0
            s = pop_entry(w.sandbox_line, st.waiting_for_sandbox)
            st.waiting_for_sandbox -= 1
            sample = w.samples[s]
            number = w.groups[sample.group].number
            seconds = draw_environment_s(w.seed, number, sample.index, sample.turn, par.turn_s, par.turn_sigma)
            push_entry(w.away, st.away, now + seconds, _order(w, s), s)
            st.away += 1
        if st.away == 0 or w.away[0].time_s > now:
            return
        while st.away > 0 and w.away[0].time_s <= now:
            s = pop_entry(w.away, st.away)
            st.away -= 1
            w.samples[s].behind = st.admitted * par.samples_per_prompt
            w.samples[s].next = -1
            if st.first_returned < 0:
                st.first_returned = s
            else:
                w.samples[st.last_returned].next = s
            st.last_returned = s


@jit
def take_returned(w: World) -> int:
    """Take the first of those that came back out of the line."""
    st = w.counters[0]
    s = st.first_returned
    st.first_returned = w.samples[s].next
    return int(s)
