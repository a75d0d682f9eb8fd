"""The final word on a period: by the simulator, with the same costs that the formulas had.

Only asynchronous runs are simulated, since in the lock-step modes a step is its longest batch and nothing interacts. The simulator
counts run-ahead in whole versions, so a streaming trainer's share of a version is counted in smaller steps than it really makes,
as many as bring it nearest to a whole number.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from rljob_planner.errors import PlanningError
from rljob_planner.lengths import LengthDistribution
from rljob_planner.simulate import SimulationInput, SimulationResult, SimulationStalled, simulate
from rljob_planner.validation.physics import Factors, Parts, division, parts_of, simulation_input
from rljob_planner.validation.setting import ASYNC, Setting

STEPS, FEWEST_STEPS, WARMUP = 30, 16, 6
"""Periods of a row that are simulated, fewer where a batch is large, and how many of them are left out."""
SAMPLES = 200_000
"""Samples that a row's simulation should not exceed by much."""
_MOST_PARTS = 3


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
    if setting.mode != ASYNC or setting.drained:
        return Simulated(formula, None)
    steps = max(FEWEST_STEPS, min(STEPS, SAMPLES // setting.samples))
    inp = simulation_input(setting, lengths, factors, steps=steps, warmup=WARMUP)
    inp, divided = whole_versions(inp, division(setting))
    try:
        result = simulate(inp, rho=formula.rho)
    except (SimulationStalled, PlanningError, ValueError):
        # A row that contradicts itself (a cap beyond the KV room, a hold that never ends) still has an answer by formula.
        return Simulated(formula, None)
    period = divided * result.period.mean
    busy = formula.train_s + formula.sync_s
    parts = replace(formula, period_s=period, wait_s=max(0.0, period - busy), staleness=result.staleness.mean / divided)
    return Simulated(parts, result)


def whole_versions(inp: SimulationInput, divided: int) -> tuple[SimulationInput, int]:
    """The input with a whole number of versions of run-ahead, and the steps it then makes in a period of the row."""
    ahead = float(inp.max_staleness)
    if ahead == int(ahead):
        return replace(inp, max_staleness=int(ahead)), divided

    def off(parts: int) -> float:
        finer = (ahead + 1.0) * parts - 1.0
        return abs(finer - round(finer)) / parts

    choices = [p for p in range(1, _MOST_PARTS + 1) if inp.prompts_per_step % p == 0]
    parts = min(choices, key=lambda p: (round(off(p), 6), p))
    finer = round((ahead + 1.0) * parts - 1.0)
    return (
        replace(
            inp,
            prompts_per_step=inp.prompts_per_step // parts,
            train=replace(inp.train, per_step_s=inp.train.per_step_s / parts),
            weight_sync_s=inp.weight_sync_s / parts,
            max_staleness=finer,
            queue_capacity=None if inp.queue_capacity is None else max(1, inp.queue_capacity // parts),
            steps=inp.steps * parts,
            warmup=inp.warmup * parts,
        ),
        divided * parts,
    )
