"""Mean staleness of runs that state their concurrency, batch, queue, tail and balance: by simulation, the formula beside it.

A scenario is built that has just these: lengths with the stated tail multiplier, samplers whose speed does not hang on the batch, a
trainer as much faster or slower as the stated balance. Absolute times cancel. What the formula wants as C is the realised
concurrency; the rows state the configured one. Groups are admitted whole, so while the last samples of a group run the next cannot
start, and a cap of C samples is filled on average by C − (S − 1)/2 of them; it is the simulator that says how many.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

import numpy as np

from rljob_planner.closedform import mean_staleness
from rljob_planner.errors import PlanningError
from rljob_planner.laws import LognormalLaw
from rljob_planner.lengths import LengthDistribution
from rljob_planner.simulate import (
    DecodeCost,
    SimulationInput,
    SimulationResult,
    SimulationStalled,
    TrainCost,
    rates,
    simulate,
)
from rljob_planner.validation.cases import Case
from rljob_planner.validation.rows import ABSOLUTE, Row

GROUP = 16
"""Samples of a group where none is stated: what most published runs have. The tail multiplier is that of a whole group either way."""
MEAN_TOKENS = 400.0
_CAP_TOKENS = 20_000
_STEPS, _WARMUP = 900, 150
_MOST_SAMPLES = 50_000


def staleness_rows(cases: Sequence[Case]) -> list[Row]:
    """Rows of kind ``staleness``."""
    return [_row(case) for case in cases]


def _row(case: Case) -> Row:
    row = Row(
        id=case.id,
        kind=case.kind,
        family=case.family,
        measured=case.value("mean_staleness"),
        unit="versions",
        error_kind=ABSOLUTE,
    )
    needed = {
        "concurrency_C": case.concurrency,
        "batch_samples_B": case.batch_samples,
        "rho": case.rho,
        "lengths.tailness_multiplier_M": case.lengths.tail_multiplier,
        "staleness.queue_factor_q": case.staleness.queue_factor,
    }
    missing = [name for name, value in needed.items() if value is None]
    if missing:
        return replace(row, reason=f"{', '.join(missing)} {'is' if len(missing) == 1 else 'are'} null in the file")
    large = [n for n in ("concurrency_C", "batch_samples_B") if (needed[n] or 0.0) > _MOST_SAMPLES]
    if large:
        return replace(row, reason=f"{', '.join(large)} must be at most {_MOST_SAMPLES:,} to be simulated")
    C, B, rho, M, q = (float(v) for v in needed.values() if v is not None)
    try:
        result = run(C, B, rho, M, q, case.group_size or GROUP)
    except (SimulationStalled, PlanningError, ValueError) as impossible:
        return replace(
            row, reason=f"no run has these concurrency_C, batch_samples_B, rho, tail and queue: {impossible}"
        )
    realised = result.mean_in_flight
    formula = mean_staleness(realised, M, B, rho, q)
    return replace(
        row,
        predicted=result.staleness.mean,
        note=f"by simulation, with {realised:.0f} of {C:.0f} samples in flight on average; formula at that concurrency "
        f"{formula:.2f}, at the configured one {mean_staleness(C, M, B, rho, q):.2f}",
    )


def run(C: float, B: float, rho: float, M: float, q: float, group: int) -> SimulationResult:
    """The scenario with these properties, simulated."""
    return simulate(scenario(C, B, rho, M, q, group), rho=rho)


def scenario(C: float, B: float, rho: float, M: float, q: float, group: int) -> SimulationInput:
    """Concurrency in samples, batch in samples, rollout over train rate, tail multiplier, queue in batches, samples of a group."""
    prompts = max(1, round(B / group))
    in_flight = max(group, round(C))
    replicas = min(8, in_flight)
    slots = -(-in_flight // replicas) + group
    token_s = np.full(slots + 1, 0.01)
    zeros = np.zeros(slots + 1)
    inp = SimulationInput(
        mode="async",
        replicas=replicas,
        max_running=slots,
        kv_tokens=slots * (_CAP_TOKENS + 1),
        decode=DecodeCost(token_s, zeros, zeros, 0.0, 0.0),
        train=TrainCost(1.0),
        weight_sync_s=0.0,
        prompts_per_step=prompts,
        samples_per_prompt=group,
        prompt_tokens=0,
        lengths=lengths_with_tail(M, group),
        bound="none",
        queue_capacity=max(prompts, round(q * prompts)),
        overflow="drop-oldest",
        in_flight_cap=in_flight,
        steps=_STEPS,
        warmup=_WARMUP,
    )
    rollout_rate, _ = rates(inp)
    return replace(inp, train=TrainCost(rho * prompts * group / rollout_rate))


@lru_cache(maxsize=64)
def lengths_with_tail(M: float, group: int) -> LengthDistribution:
    """Lognormal lengths of which the longest of a group is M times the mean, on average."""

    def of(sigma: float) -> LengthDistribution:
        law = LognormalLaw(MEAN_TOKENS * math.exp(-0.5 * sigma * sigma), sigma)
        return LengthDistribution.from_law(law, _CAP_TOKENS)

    low, high = 1e-3, 2.5
    for _ in range(30):
        sigma = 0.5 * (low + high)
        if of(sigma).tail_multiplier(group) < M:
            low = sigma
        else:
            high = sigma
    return of(0.5 * (low + high))
