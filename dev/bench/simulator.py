"""How fast the simulator is, beside the plain one of the tests on the same scenario in the same run."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rljob_planner.simulate import SimulationInput

SCENARIO: dict[str, Any] = {
    "mode": "async",
    "samplers": {
        "replicas": 4,
        "maxRunning": 64,
        "kvTokens": 400_000,
        "decode": {"perStep": 0.010, "perSample": 2.0e-5, "perContextToken": 1.0e-8},
    },
    "trainer": {"perStep": 0.5, "perToken": 1.0e-5},
    "weightSync": 0.2,
    "workload": {
        "promptsPerStep": 16,
        "samplesPerPrompt": 8,
        "promptTokens": 200,
        "responseTokens": {"lognormal": {"median": 300, "sigma": 0.8, "max": 4000}},
    },
    "staleness": {"bound": "none"},
    "queue": {"capacity": 32, "overflow": "drop-oldest"},
    "inFlight": 256,
}
"""The scenario whose speed is the headline: four replicas, a bounded queue, lengths with a tail."""


def seconds(work: Callable[[], object], times: int = 3) -> float:
    """The shortest wall time of a few tries: what else the machine does can only add to it."""
    found: list[float] = []
    for _ in range(times):
        began = time.perf_counter()
        work()
        found.append(time.perf_counter() - began)
    return min(found)


def simulation_speed(steps: int, reference_steps: int) -> dict[str, Any]:
    """Samples a second of the simulator, and of the plain one on the same scenario."""
    from dataclasses import replace

    from rljob_planner.scenario import Scenario
    from rljob_planner.scenario import compile as compile_scenario
    from rljob_planner.simulate import simulate, warm_up

    warm_up()
    inp = compile_scenario(Scenario.model_validate({**SCENARIO, "steps": steps, "warmup": steps // 10}))
    short = replace(inp, steps=reference_steps, warmup=reference_steps // 3)
    batch = inp.prompts_per_step * inp.samples_per_prompt
    began = time.perf_counter()
    plain_period_s = reference_period_s(short)
    plain_speed = short.steps * batch / (time.perf_counter() - began)
    period_s = simulate(short, rho=1.0).period.mean
    speed = inp.steps * batch / seconds(lambda: simulate(inp, rho=1.0))
    return {
        "samplesPerSecond": speed,
        "tokensPerSecond": speed * inp.lengths.mean(),
        "obviousSamplesPerSecond": plain_speed,
        "speedup": speed / plain_speed,
        "obviousPeriodDifference": abs(period_s / plain_period_s - 1.0),
    }


def reference_period_s(inp: SimulationInput) -> float:
    """Mean period by the plain simulator of the tests, which goes iteration by iteration."""
    import numpy as np

    from tests.planner.reference import Job, Reference

    groups = np.arange(inp.steps * inp.prompts_per_step * 8)
    lengths = inp.lengths.sample(inp.seed, groups[:, None], np.arange(inp.samples_per_prompt)[None, :]).tolist()
    decode, train = inp.decode, inp.train

    def iteration_s(running: int, resident: int) -> float:
        return decode.iteration_s(running, resident)

    def train_s(batch: list[int]) -> float:
        return train.per_step_s + train.per_token_s * sum(inp.prompt_tokens + length for length in batch)

    found = Reference(
        Job(
            mode=inp.mode,
            replicas=inp.replicas,
            max_running=inp.max_running,
            kv_tokens=inp.kv_tokens,
            iteration_s=iteration_s,
            train_s=train_s,
            weight_sync_s=inp.weight_sync_s,
            prompts_per_step=inp.prompts_per_step,
            samples_per_prompt=inp.samples_per_prompt,
            prompt_tokens=inp.prompt_tokens,
            length=lambda group, index: int(lengths[group][index]),
            bound=inp.bound,
            max_staleness=inp.max_staleness,
            queue_capacity=inp.queue_capacity,
            overflow=inp.overflow,
            in_flight_cap=inp.in_flight_cap,
            steps=inp.steps,
            warmup=inp.warmup,
        )
    ).run()
    return float(found.mean_period)
