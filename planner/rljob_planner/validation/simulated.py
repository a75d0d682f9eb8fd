"""The final word on a period: by the simulator, with the same costs that the formulas had.

Asynchronous runs are simulated. In the lock-step modes a step is its longest batch and nothing interacts; and a trainer that takes its batch
in parts is something that the simulator does not know.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from rljob_planner.errors import PlanningError
from rljob_planner.lengths import LengthDistribution
from rljob_planner.simulate import SimulationResult, SimulationStalled, simulate
from rljob_planner.validation.physics import Factors, Parts, parts_of, simulation_input
from rljob_planner.validation.setting import ASYNC, Setting

STEPS, FEWEST_STEPS, WARMUP = 30, 14, 5
"""Periods of a row that are simulated, fewer where a batch is large or groups are dropped, and how many of them are left out."""
SAMPLES = 200_000
"""Samples that a row's simulation should not exceed by much."""
MOST_SAMPLES = 20_000_000
"""Samples that would take too long; batches of more than a million leave nothing to chance anyway."""


@dataclass(frozen=True)
class Simulated:
    """A period with its parts, and what the simulator says of staleness."""

    parts: Parts
    result: SimulationResult | None


_known: dict[tuple[object, ...], Simulated] = {}


def simulated(setting: Setting, lengths: LengthDistribution, factors: Factors) -> Simulated:
    """Period and parts; rows that differ in their measurements alone are simulated once."""
    case = replace(setting.case, id="", family="", notes="", source="", measured={})
    key = (replace(setting, case=case, notes=()), lengths.cap_tokens, lengths.mean(), factors)
    if key not in _known:
        _known[key] = _run(setting, lengths, factors)
    return _known[key]


def _run(setting: Setting, lengths: LengthDistribution, factors: Factors) -> Simulated:
    formula = parts_of(setting, lengths, factors)
    generated = setting.samples * (4 if setting.bound == "drop" else 1)
    if setting.mode != ASYNC or setting.streamed or generated * FEWEST_STEPS > MOST_SAMPLES:
        return Simulated(formula, None)
    steps = max(FEWEST_STEPS, min(STEPS, SAMPLES // generated))
    inp = simulation_input(setting, lengths, factors, steps=steps, warmup=WARMUP)
    try:
        result = simulate(inp, rho=formula.rho)
    except (SimulationStalled, PlanningError, ValueError):
        # A row that contradicts itself (a cap beyond the KV room, a hold that never ends) still has an answer by formula.
        return Simulated(formula, None)
    period = result.period.mean
    busy = formula.train_s + formula.sync_s
    parts = replace(formula, period_s=period, wait_s=max(0.0, period - busy), staleness=result.staleness.mean)
    return Simulated(parts, result)
