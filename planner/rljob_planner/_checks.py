"""What a simulation cannot do: inputs that contradict themselves or ask for too much, and runs that cannot go on, in words."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from rljob_planner import _state

if TYPE_CHECKING:
    from rljob_planner.simulate import SimulationInput

MOST_BYTES = 450_000_000
"""Memory of one simulation: it shall run on a laptop beside everything else. While it grows it needs half as much again."""

MOST_SAMPLES = 50_000_000
"""Samples that a run may train: some ten seconds of work."""


class SimulationStalled(RuntimeError):  # noqa: N818 - it names a state of the simulation
    """The run can never end: nothing is left that could happen, or the trainer waits for what never comes."""


def check(inp: SimulationInput) -> None:
    """Raise ValueError with all that is wrong with an input."""
    problems = [*_names(inp), *_numbers(inp)]
    problems = problems or [*_fit(inp), *_decode(inp), *_agentic(inp)]
    problems = problems or list(_size(inp))
    if problems:
        raise ValueError("; ".join(problems))


def _names(inp: SimulationInput) -> list[str]:
    named = (("mode", _state.MODES), ("bound", _state.BOUNDS), ("overflow", _state.OVERFLOWS))
    return [
        f"{name} {getattr(inp, name)!r} is not one of {', '.join(known)}"
        for name, known in named
        if getattr(inp, name) not in known
    ]


def _numbers(inp: SimulationInput) -> list[str]:
    problems = []
    for name in ("replicas", "max_running", "prompts_per_step", "samples_per_prompt", "steps", "turns"):
        if not getattr(inp, name) >= 1:
            problems.append(f"{name} must be at least 1, not {getattr(inp, name)}")
    if inp.sandboxes is not None and inp.sandboxes < 1:
        problems.append(f"sandboxes must be at least 1, not {inp.sandboxes}; None: no limit")
    if not 0 <= inp.warmup < inp.steps:
        problems.append(f"warmup must be at least 0 and below steps ({inp.steps}), not {inp.warmup}")
    for name in ("max_staleness", "prompt_tokens", "weight_sync_s", "turn_s", "turn_cv"):
        if not 0 <= getattr(inp, name) < math.inf:
            problems.append(f"{name} must be a number of at least 0, not {getattr(inp, name)}")
    for name in ("per_step_s", "per_token_s", "per_token_squared_s"):
        if not 0 <= getattr(inp.train, name) < math.inf:
            problems.append(f"train.{name} must be a number of at least 0, not {getattr(inp.train, name)}")
    if not 0.0 <= inp.group_correlation <= 1.0:
        problems.append(f"group_correlation must be from 0 to 1, not {inp.group_correlation}")
    return problems


def _fit(inp: SimulationInput) -> list[str]:
    problems = []
    if inp.in_flight_cap is not None and inp.in_flight_cap < inp.samples_per_prompt:
        problems.append(f"an in-flight cap of {inp.in_flight_cap} admits no group of {inp.samples_per_prompt} samples")
    if inp.queue_capacity is not None and inp.queue_capacity < inp.prompts_per_step:
        problems.append(f"a queue of {inp.queue_capacity} groups never holds a batch of {inp.prompts_per_step}")
    longest = inp.prompt_tokens + longest_tokens(inp)
    if longest > inp.kv_tokens:
        problems.append(f"a sample of {longest} tokens with its prompt never fits in {inp.kv_tokens} KV tokens")
    return problems


def longest_tokens(inp: SimulationInput) -> int:
    """The longest response that may occur."""
    longest = int(inp.lengths.support_tokens[-1])
    factor = max((factor for _, factor in inp.drift), default=1.0)
    return min(inp.lengths.cap_tokens, max(longest, math.ceil(longest * factor)))


def _decode(inp: SimulationInput) -> list[str]:
    tables = (inp.decode.fixed_s, inp.decode.memory_s, inp.decode.compute_s)
    if any(len(table) < inp.max_running + 1 or not np.all(np.isfinite(table)) for table in tables):
        return ["every decode table needs max_running + 1 finite entries"]
    if not inp.decode.iteration_s(1, inp.prompt_tokens + 1) > 0:
        return ["an iteration must take some time"]
    return []


def _agentic(inp: SimulationInput) -> list[str]:
    problems = []
    versions = [version for version, _ in inp.drift]
    if any(b <= a for a, b in pairwise(versions)) or any(v < 0 for v in versions):
        problems.append("the versions of drift must be at least 0 and rise")
    if not all(0 < factor < math.inf for _, factor in inp.drift):
        problems.append("the factors of drift must be numbers above 0")
    return problems


def _size(inp: SimulationInput) -> list[str]:
    problems = []
    slots = inp.replicas * inp.max_running
    if slots > _state.MAX_SLOTS:
        problems.append(f"{inp.replicas} × {inp.max_running} decode slots are more than {_state.MAX_SLOTS}")
    samples = inp.steps * inp.prompts_per_step * inp.samples_per_prompt
    if samples > MOST_SAMPLES:
        problems.append(
            f"steps × prompts_per_step × samples_per_prompt are {samples:.3g} samples, more than {MOST_SAMPLES:.3g}: "
            "simulate fewer steps"
        )
    sizes = inp.prompts_per_step, inp.samples_per_prompt, inp.steps, inp.replicas
    needed = _state.size_bytes(slots, *sizes, inp.turns > 1)
    if not problems and needed > MOST_BYTES:
        problems.append(
            f"the simulation would need {needed / 1e9:.1f} GB: {slots} decode slots and batches of "
            f"{inp.prompts_per_step} × {inp.samples_per_prompt} samples are too many; describe a part of the job"
        )
    return problems


def explain(status: int, inp: SimulationInput, world: _state.World) -> None:
    """Raise ``SimulationStalled`` with the reason in words, unless the run ended well."""
    if status == _state.FINISHED:
        return
    st = world.counters[0]
    seen = (
        f"after {float(st['now']):.6g} s, {int(st['version'])} of {inp.steps} steps and {int(st['finished'])} samples"
    )
    waiting = int(st["queued"] + st["surplus"])
    if status == _state.HELD_FOREVER:
        raise SimulationStalled(
            f"{seen}: hold with a maximum staleness of 0 never publishes, because samplers keep starting samples that the "
            "next version would make stale; allow a staleness (staleness.max) of at least 1, or let a full queue block admission "
            "(queue.overflow: block)"
        )
    if status == _state.TOO_MUCH_WORK:
        raise SimulationStalled(
            f"{seen}: samplers generate so much more than the trainer consumes that the run does not end in reasonable time "
            f"({waiting} groups wait); let a full queue block admission (queue.overflow: block), bound staleness by admission "
            "(staleness.bound), or use fewer samplers"
        )
    if status == _state.NEEDS_ROOM:
        raise SimulationStalled(
            f"{seen}: {waiting} groups wait and {int(st['in_flight'])} samples are in flight, more than fit in "
            f"{MOST_BYTES // 10**6} MB; give the queue a capacity (queue.capacity), cap the samples in flight (inFlight), or use fewer "
            "samplers"
        )
    raise SimulationStalled(
        f"{seen}: nothing can happen any more; {int(st['queued'])} complete groups wait where a step needs "
        f"{inp.prompts_per_step}, and the rules admit no further group"
    )
