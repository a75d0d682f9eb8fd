"""A simulated run as a trace that Perfetto (ui.perfetto.dev) and chrome://tracing open.

One process per role. The samplers have a thread a replica, with a slice for every time in which it runs samples, counters of
running samples and resident tokens, and, where there are not too many slots to look at, a thread per decode slot with a slice
per stay of a sample. The trainer has one thread: training, what it waits for, weights on the way, and an instant per policy
version. The queue is a counter. A trace is for looking at: it ends where it would become too large to open.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from rljob_planner.simulate import SimulationInput
    from rljob_planner.timeline import Table, Timeline

SAMPLERS, TRAINER, QUEUE = 1, 2, 3
"""Process ids of the trace."""

MOST_STAYS = 50_000
"""Stays of samples in a trace; it ends with the last of them."""
MOST_SLOTS = 512
"""Decode slots that have a thread each; with more, the stays are left out."""


def chrome_trace(timeline: Timeline, inp: SimulationInput) -> dict[str, Any]:
    """The trace of a recorded run in Chrome's JSON format, with times in microseconds."""
    stays, end_s = timeline.samples, timeline.end_s
    if len(stays) > MOST_STAYS:
        stays, end_s = stays[:MOST_STAYS], float(stays["end_s"][MOST_STAYS - 1])
    whole = len(stays) == len(timeline.samples) and timeline.complete
    events = [
        _named("process_name", SAMPLERS, 0, f"samplers ({inp.replicas} replicas)"),
        _named("process_name", TRAINER, 0, "trainer"),
        _named("process_name", QUEUE, 0, "queue"),
        *_trainer(timeline, inp, end_s),
        *_counter("complete groups", QUEUE, timeline.queue["time_s"], timeline.queue["groups"], "groups", end_s),
    ]
    slots = inp.replicas * inp.max_running
    for replica in range(inp.replicas):
        events += _replica(timeline, inp, replica, stays[stays["replica"] == replica], end_s, slots <= MOST_SLOTS)
    return {
        "displayTimeUnit": "ms",
        "otherData": {
            "simulation": f"{inp.mode}, {inp.replicas} replicas, {inp.steps} steps, seed {inp.seed}",
            "endSeconds": end_s,
            "wholeRun": whole,
        },
        "traceEvents": events,
    }


def _replica(
    timeline: Timeline, inp: SimulationInput, replica: int, stays: Table, end_s: float, with_slots: bool
) -> list[dict[str, Any]]:
    first = 1 + replica * (inp.max_running + 1)
    events = [_thread(SAMPLERS, first, f"replica {replica}", first)]
    change = timeline.running[timeline.running["replica"] == replica]
    busy_since = 0.0
    running = 0
    for time_s, now_running in zip(change["time_s"].tolist(), change["running"].tolist(), strict=True):
        if time_s > end_s:
            break
        if running == 0:
            busy_since = time_s
        if now_running == 0:
            events.append(_slice("sampling", SAMPLERS, first, busy_since, time_s))
        running = now_running
    if running > 0:
        events.append(_slice("sampling", SAMPLERS, first, busy_since, end_s))
    name = f"replica {replica}"
    events += _counter(f"{name} running", SAMPLERS, change["time_s"], change["running"], "samples", end_s)
    times, tokens = resident_tokens(stays, inp.prompt_tokens)
    events += _counter(f"{name} KV", SAMPLERS, times, np.rint(tokens).astype(np.int64), "tokens", end_s)
    if with_slots:
        taken = _slots(stays)
        used = int(taken.max()) + 1 if len(taken) else 0
        events += [_thread(SAMPLERS, first + 1 + s, f"{name} slot {s}", first + 1 + s) for s in range(used)]
        names = ("group", "index", "version", "tokens", "start_s", "end_s")
        for slot, *row in zip(taken.tolist(), *(stays[n].tolist() for n in names), strict=True):
            group, index, version, gained, start_s, stay_end_s = row
            args = {"group": group, "sample": index, "version": version, "tokens": gained}
            label = f"group {group}.{index}"
            events.append(_slice(label, SAMPLERS, first + 1 + slot, start_s, min(stay_end_s, end_s), args))
    return events


def _trainer(timeline: Timeline, inp: SimulationInput, end_s: float) -> list[dict[str, Any]]:
    events = [_thread(TRAINER, 1, "trainer", 1)]
    lock_step_sync_s = inp.weight_sync_s if inp.mode != "async" else 0.0
    free_s = 0.0
    rows = zip(*(timeline.steps[name].tolist() for name in ("begin_s", "end_s", "published_s")), strict=True)
    for version, (begin, trained, published) in enumerate(rows):
        if begin > end_s:
            break
        parts = [
            ("wait for a batch", free_s, begin),
            (f"step {version}", begin, trained),
            ("wait to publish", trained, published - lock_step_sync_s),
            ("weight sync", published - lock_step_sync_s, published),
        ]
        events += [
            _slice(name, TRAINER, 1, since, min(until, end_s))
            for name, since, until in parts
            if since < min(until, end_s)
        ]
        if published <= end_s:
            mark = {"name": f"version {version + 1}", "ph": "i", "s": "g", "pid": TRAINER, "tid": 1, "cat": "version"}
            events.append(mark | {"ts": _us(published)})
        free_s = published
    return events


def resident_tokens(stays: Table, prompt_tokens: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Change points of one replica's samples and the tokens that they hold there, prompts included.

    Between the start and the end of a stay its tokens are taken to come evenly.
    """
    before = np.zeros(len(stays))
    so_far: dict[tuple[int, int], int] = {}
    for i, (group, index, gained) in enumerate(
        zip(stays["group"].tolist(), stays["index"].tolist(), stays["tokens"].tolist(), strict=True)
    ):
        before[i] = so_far.get((group, index), 0)
        so_far[group, index] = so_far.get((group, index), 0) + gained
    start, end = stays["start_s"], stays["end_s"]
    rate = stays["tokens"] / np.maximum(end - start, 1e-12)
    times = np.concatenate([start, end])
    order = np.argsort(times, kind="stable")
    at_start = prompt_tokens + before - rate * start
    offset = np.cumsum(np.concatenate([at_start, -at_start])[order])
    slope = np.cumsum(np.concatenate([rate, -rate])[order])
    times = times[order]
    return times, np.maximum(offset + slope * times, 0.0)


def _slots(stays: Table) -> NDArray[np.int64]:
    """For each stay a slot that no other stay has at that time: the lowest that is free."""
    slots = np.zeros(len(stays), np.int64)
    free: list[int] = []
    taken: list[tuple[float, int]] = []
    start, end = stays["start_s"].tolist(), stays["end_s"].tolist()
    for i in np.argsort(stays["start_s"], kind="stable").tolist():
        while taken and taken[0][0] <= start[i]:
            heapq.heappush(free, heapq.heappop(taken)[1])
        slot = heapq.heappop(free) if free else len(taken)
        heapq.heappush(taken, (end[i], slot))
        slots[i] = slot
    return slots


def _us(seconds: float) -> float:
    return round(seconds * 1e6, 3)


def _slice(
    name: str, pid: int, tid: int, since_s: float, until_s: float, args: dict[str, Any] | None = None
) -> dict[str, Any]:
    event = {
        "name": name,
        "ph": "X",
        "pid": pid,
        "tid": tid,
        "ts": _us(since_s),
        "dur": _us(max(0.0, until_s - since_s)),
    }
    return event | {"args": args} if args else event


def _counter(name: str, pid: int, times: Any, values: Any, unit: str, end_s: float) -> list[dict[str, Any]]:
    kept = np.flatnonzero((times <= end_s) & np.append(times[1:] != times[:-1], True)[: len(times)])
    pairs = zip(times[kept].tolist(), values[kept].tolist(), strict=True)
    return [{"name": name, "ph": "C", "pid": pid, "ts": _us(t), "args": {unit: value}} for t, value in pairs]


def _named(what: str, pid: int, tid: int, name: str) -> dict[str, Any]:
    return {"name": what, "ph": "M", "pid": pid, "tid": tid, "args": {"name": name}}


def _thread(pid: int, tid: int, name: str, position: int) -> dict[str, Any]:
    return _named("thread_name", pid, tid, name) | {"args": {"name": name, "sort_index": position}}
