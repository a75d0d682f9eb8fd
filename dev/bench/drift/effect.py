"""What makes the best split move along a trace, by the laws of the plant: which side's work for a token grows, and by what.

The best split follows the ratio of the GPU-seconds that a token costs in sampling and in training. Between two points of a trace
each side's cost changes by parts that can be told apart: the context that decoding reads, the room for running samples, samples that
are away in environments, a slow replica; attention's quadratic share of training. The largest parts are named with what they change.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from dev.bench.drift.clairvoyant import Model, smoothed
from dev.bench.drift.stage import Stage
from dev.bench.drift.truth import lengths_at

NAMED = 0.02
"""Change of a side's cost of a token from which on it is named."""
CLEARLY = 0.01
"""Share of the period that a split must save to count as better than the first one."""
WINDOW_STEPS = 41

CONTEXT, ROOM, AWAY, FAULT, ATTENTION = "context", "room", "away", "fault", "attention"
WORDS = {
    CONTEXT: ("decoding reads longer contexts", "decoding reads shorter contexts"),
    ROOM: (
        "fewer samples run at once, since their contexts fill the KV cache",
        "more samples run at once, since their contexts leave room in the KV cache",
    ),
    AWAY: (
        "more samples are away in their environments and hold no decode slot",
        "fewer samples are away in their environments",
    ),
    FAULT: ("one sampler replica is slow", "the slow sampler replica is well again"),
    ATTENTION: ("attention's quadratic share of training grows", "attention's quadratic share of training shrinks"),
}
"""What to say of a part that makes a token dearer, and of one that makes it cheaper."""


@dataclass(frozen=True)
class Cost:
    """GPU-seconds that a response token costs on each side, in parts."""

    plain: float
    """Decoding without its context, at as many running samples as the cap allows."""
    parts: dict[str, float]
    """ln of the factors by which something makes a side's token dearer; ``ATTENTION`` is training's, the others are sampling's."""


def cost_at(stage: Stage, step: int) -> Cost:
    """The cost of a token at a step of the trace, for the start's split."""
    run, laws, start = stage.run, stage.laws, stage.start
    prompt = run.spec.workload.prompt_tokens.mean
    lengths = lengths_at(run, float(run.mean_tokens[step]))
    mean, resident = lengths.mean(), prompt + lengths.resident_mean_tokens()
    replicas = start.samplers.replicas
    full = min(stage.most_in_flight, start.in_flight) / replicas
    room = laws.kv_tokens / resident

    def token_s(running: float, context: float) -> float:
        n = max(1.0, min(running, laws.max_running))
        at = np.arange(len(laws.iteration_s))
        return float(np.interp(n, at, laws.iteration_s)) / n + laws.per_context_token_s * context

    plain = token_s(full, 0.0)
    context = token_s(full, resident)
    crowded = token_s(min(full, room), resident)
    away_s = (run.turns - 1) * float(run.turn_s[step])
    life_s = mean * crowded * min(full, room)
    there = life_s / (life_s + away_s)
    emptier = token_s(min(full * there, room), resident)
    slowed = 1.0 / (1.0 - (1.0 - 1.0 / float(run.slowdown[step])) / replicas)
    _, linear, square = laws.train[start.trainers.replicas]
    tokens = prompt + mean
    squares = prompt**2 + 2 * prompt * mean + lengths.second_moment()
    return Cost(
        plain,
        {
            CONTEXT: math.log(context / plain),
            ROOM: math.log(crowded / context),
            AWAY: math.log(emptier / crowded),
            FAULT: math.log(slowed),
            ATTENTION: math.log1p(square * squares / (linear * tokens)),
        },
    )


def best_by_step(model: Model) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """The best split at each step by the true periods; the first one keeps its place where nothing is clearly better."""
    periods = np.array([smoothed(row, WINDOW_STEPS) for row in model.periods_s])
    first = int(np.argmin(periods[:, 0]))
    best = np.argmin(periods, axis=0)
    gain = 1.0 - periods.min(axis=0) / periods[first]
    return np.asarray(np.where(gain > CLEARLY, best, first), dtype=np.int64)


def effect(stage: Stage, model: Model) -> str:
    """One sentence: how the best split moves, and why."""
    best = best_by_step(model)
    trainers = np.array([counts.trainers for counts in model.counts])[best]
    first = int(trainers[0])
    turns = [first]
    for step in (int(np.argmax(trainers)), int(np.argmin(trainers)), len(trainers) - 1):
        if int(trainers[step]) != first:
            turns.append(step)
    far = max(turns[1:], key=lambda step: abs(int(trainers[step]) - first), default=None)
    if far is None:
        widest = max(stage.points(), key=lambda step: abs(math.log(_drift(stage, step))))
        parts = _named(stage, widest)
        because = (
            f"; what changes balances out or is small: {parts}"
            if parts
            else ", nor does what a token costs on either side"
        )
        return f"nothing moves it: {first} trainers stay best within {CLEARLY:.0%} of the period{because}"
    there = np.flatnonzero(trainers == trainers[far])
    extreme = max(there.tolist(), key=lambda step: abs(math.log(_drift(stage, step))))
    last = int(trainers[-1])
    where = f"{first} → {int(trainers[far])} trainers by step {int(there[0])}"
    back = f", {last} at the end" if last not in (int(trainers[far]),) else ""
    return f"the best split goes {where}{back}: {_named(stage, extreme) or 'both sides change alike, within the noise'}"


def _drift(stage: Stage, step: int) -> float:
    run = stage.run
    ratio = float(run.mean_tokens[step] / run.mean_tokens[0])
    if float(run.turn_s[0]) > 0:
        ratio *= float(run.turn_s[step] / run.turn_s[0])
    return ratio * float(run.slowdown[step] / run.slowdown[0])


def _named(stage: Stage, step: int) -> str:
    """The parts that change between the first step and this one, the largest first."""
    before, after = cost_at(stage, 0).parts, cost_at(stage, step).parts
    changes = {part: after[part] - before[part] for part in WORDS}
    named = sorted((p for p in changes if abs(changes[p]) >= NAMED), key=lambda p: -abs(changes[p]))
    return "; ".join(
        f"{WORDS[part][changes[part] < 0]} ({'training' if part == ATTENTION else 'sampling'} {math.expm1(changes[part]):+.0%} a token)"
        for part in named[:3]
    )
