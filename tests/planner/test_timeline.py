"""What is recorded of a run, and the trace made from it."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from typing import Any

import jsonschema
import numpy as np
import pytest

from rljob_planner import _state
from rljob_planner.lengths import LengthDistribution
from rljob_planner.simulate import DecodeCost, SimulationInput, TrainCost, simulate
from rljob_planner.timeline import Timeline
from rljob_planner.trace import SAMPLERS, TRAINER, chrome_trace, resident_tokens


def linear(slots: int, per_step: float, per_sample: float, per_token: float) -> DecodeCost:
    n = np.arange(slots + 1, dtype=float)
    return DecodeCost(np.full(slots + 1, per_step), per_sample * n, np.zeros(slots + 1), per_token, 0.0)


JOB = SimulationInput(
    mode="async",
    replicas=3,
    max_running=8,
    kv_tokens=450,
    decode=linear(8, 0.01, 2e-4, 1e-6),
    train=TrainCost(0.8, 2e-5),
    weight_sync_s=0.05,
    prompts_per_step=4,
    samples_per_prompt=4,
    prompt_tokens=20,
    lengths=LengthDistribution.lognormal(40, 0.8, 300),
    queue_capacity=6,
    steps=40,
    warmup=0,
    seed=3,
)
JOBS = {
    "KV-bound": JOB,
    "under a cap": replace(JOB, kv_tokens=10_000, in_flight_cap=20),
    "hold": replace(JOB, kv_tokens=10_000, in_flight_cap=20, bound="hold", max_staleness=1),
    "sync": replace(JOB, kv_tokens=10_000, mode="sync"),
    "environment": replace(JOB, kv_tokens=10_000, in_flight_cap=40, turns=3, turn_s=0.5, turn_cv=1.0, sandboxes=8),
    "queue without limit": replace(JOB, kv_tokens=10_000, queue_capacity=None, train=TrainCost(2.0)),
}
"""No warm-up: the means of a result then cover the same time as its timeline."""

EVENT: dict[str, Any] = {
    "type": "object",
    "required": ["name", "ph", "pid"],
    "properties": {
        "name": {"type": "string", "minLength": 1},
        "ph": {"enum": ["X", "C", "i", "M"]},
        "pid": {"type": "integer"},
        "tid": {"type": "integer"},
        "ts": {"type": "number", "minimum": 0},
        "dur": {"type": "number", "minimum": 0},
        "args": {"type": "object"},
        "s": {"enum": ["g", "p", "t"]},
    },
    "allOf": [
        {"if": {"properties": {"ph": {"const": "X"}}}, "then": {"required": ["ts", "dur", "tid"]}},
        {
            "if": {"properties": {"ph": {"const": "C"}}},
            "then": {
                "required": ["ts", "args"],
                "properties": {"args": {"minProperties": 1, "additionalProperties": {"type": "number"}}},
            },
        },
        {"if": {"properties": {"ph": {"const": "i"}}}, "then": {"required": ["ts", "s"]}},
        {
            "if": {"properties": {"ph": {"const": "M"}}},
            "then": {"properties": {"name": {"enum": ["process_name", "thread_name"]}, "args": {"required": ["name"]}}},
        },
    ],
}
TRACE: dict[str, Any] = {
    "type": "object",
    "required": ["traceEvents", "displayTimeUnit"],
    "properties": {
        "traceEvents": {"type": "array", "items": EVENT, "minItems": 1},
        "displayTimeUnit": {"enum": ["ms", "ns"]},
        "otherData": {"type": "object"},
    },
}
"""The parts of the Trace Event Format that viewers rely on."""


def timeline_of(inp: SimulationInput) -> Timeline:
    timeline = simulate(inp, rho=1.0, record=True).timeline
    assert timeline is not None
    return timeline


@pytest.mark.parametrize("name", JOBS)
def test_the_timeline_is_that_of_the_means(name: str) -> None:
    inp = JOBS[name]
    result, plain = simulate(inp, rho=1.0, record=True), simulate(inp, rho=1.0)
    assert plain.timeline is None
    assert plain.to_json() == result.to_json()
    timeline = result.timeline
    assert timeline is not None
    assert timeline.complete
    assert timeline.end_s == result.elapsed_s
    samples = timeline.samples
    assert np.diff(timeline.steps["published_s"], prepend=0.0) == pytest.approx(result.periods_s)
    training = timeline.steps["end_s"] - timeline.steps["begin_s"]
    assert training.sum() / result.elapsed_s == pytest.approx(result.trainer_utilization)
    assert (samples["end_s"] - samples["start_s"]).sum() / result.elapsed_s == pytest.approx(result.mean_running)
    assert (np.diff(samples["end_s"]) >= 0).all()
    trained = timeline.groups["trained_version"] >= 0
    assert trained.sum() == inp.steps * inp.prompts_per_step
    numbers = timeline.groups["group"][trained]
    # Every trained sample has gained its length, in one stay or several.
    gained = np.zeros((int(samples["group"].max()) + 1, inp.samples_per_prompt), np.int64)
    np.add.at(gained, (samples["group"], samples["index"]), samples["tokens"])
    drawn = inp.lengths.sample(inp.seed, numbers[:, None], np.arange(inp.samples_per_prompt)[None, :])
    assert (gained[numbers] == drawn).all()
    # Staleness follows from the versions in it.
    version = np.zeros_like(gained)
    version[samples["group"], samples["index"]] = samples["version"]
    staleness = timeline.groups["trained_version"][trained][:, None] - version[numbers]
    assert tuple(np.bincount(staleness.ravel())) == result.staleness.histogram
    # Nobody starts before its version exists.
    published = np.concatenate([[0.0], timeline.steps["published_s"]])
    assert (samples["start_s"] >= published[samples["version"]]).all()


@pytest.mark.parametrize("name", JOBS)
def test_change_points_count_what_runs_and_what_waits(name: str) -> None:
    inp = JOBS[name]
    result = simulate(inp, rho=1.0, record=True)
    timeline = result.timeline
    assert timeline is not None
    area = 0.0
    for replica in range(inp.replicas):
        change = timeline.running[timeline.running["replica"] == replica]
        assert change["running"].max() <= inp.max_running
        assert change["running"][-1] == 0
        area += float((np.diff(change["time_s"]) * change["running"][:-1]).sum())
    assert area / result.elapsed_s == pytest.approx(result.mean_running)
    ends = np.append(timeline.queue["time_s"][1:], timeline.end_s)
    waiting = ((ends - timeline.queue["time_s"]) * timeline.queue["groups"]).sum() / result.elapsed_s
    assert waiting == pytest.approx(result.queue_groups.mean)
    # What completes in the last instant is in the queue when the run ends, before a full queue pushes its oldest out.
    earlier = timeline.queue["groups"][timeline.queue["time_s"] < timeline.end_s]
    assert earlier.max() == result.queue_groups.max


def test_what_is_too_much_to_record_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_state, "MOST_RECORDED", 200)
    timeline = timeline_of(JOB)
    assert len(timeline.samples) == 200
    assert not timeline.complete
    assert timeline.end_s == timeline.samples["end_s"][-1]


def test_resident_tokens_are_prompts_and_what_was_generated() -> None:
    inp = replace(JOB, kv_tokens=10_000, decode=linear(8, 0.01, 0.0, 0.0), weight_sync_s=0.0, replicas=1)
    result = simulate(inp, rho=1.0, record=True)
    assert result.timeline is not None
    times, tokens = resident_tokens(result.timeline.samples, inp.prompt_tokens)
    mean = np.trapezoid(np.maximum(tokens, 0), times) / result.elapsed_s
    # The simulation counts whole tokens, from the iteration that a sample joins on: a little less than the line that rises.
    assert mean == pytest.approx(result.kv_utilization * inp.kv_tokens, rel=0.04)


@pytest.mark.parametrize("name", JOBS)
def test_a_trace_opens_in_viewers(name: str) -> None:
    inp = JOBS[name]
    timeline = timeline_of(inp)
    trace = json.loads(json.dumps(chrome_trace(timeline, inp)))
    jsonschema.validate(trace, TRACE)
    events = trace["traceEvents"]
    assert trace["otherData"]["wholeRun"] is True
    slices = [e for e in events if e["ph"] == "X"]
    assert sum(e["name"].startswith("step ") for e in slices) == inp.steps
    assert sum(e["name"].startswith("group ") for e in slices) == len(timeline.samples)
    assert sum(e["ph"] == "i" for e in events) == inp.steps
    named = {(e["pid"], e["tid"]) for e in events if e["name"] == "thread_name"}
    assert {(e["pid"], e["tid"]) for e in slices} <= named
    by_thread: dict[tuple[int, int], list[tuple[float, float]]] = {}
    for e in slices:
        by_thread.setdefault((e["pid"], e["tid"]), []).append((e["ts"], e["ts"] + e["dur"]))
    for spans in by_thread.values():  # on one thread nothing overlaps
        spans.sort()
        assert all(until <= since + 0.01 for (_, until), (since, _) in itertools.pairwise(spans))
    trainer = sum(until - since for since, until in by_thread[TRAINER, 1]) / 1e6
    assert trainer == pytest.approx(timeline.end_s, rel=1e-6)  # it trains, waits or moves weights at every instant
    counters = {e["name"] for e in events if e["ph"] == "C" and e["pid"] == SAMPLERS}
    assert counters == {f"replica {r} {what}" for r in range(inp.replicas) for what in ("running", "KV")}


def test_a_trace_ends_where_it_would_be_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    from rljob_planner import trace as module

    timeline = timeline_of(JOB)
    monkeypatch.setattr(module, "MOST_STAYS", 100)
    monkeypatch.setattr(module, "MOST_SLOTS", 4)
    trace = chrome_trace(timeline, JOB)
    end_us = trace["otherData"]["endSeconds"] * 1e6
    assert trace["otherData"]["wholeRun"] is False
    assert end_us < timeline.end_s * 1e6
    assert all(e.get("ts", 0) + e.get("dur", 0) <= end_us + 1 for e in trace["traceEvents"])
    assert not any(e["name"].startswith("group ") for e in trace["traceEvents"])
