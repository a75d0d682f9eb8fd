"""Two jobs, plans or scenarios side by side: what differs in what was asked, and in what comes of it.

Two simulations differ by what was changed and by chance. So both are run several times with the same random numbers, pair by pair: what
chance does to both cancels, and the scatter of the pairs says how much of the difference is noise. A plan of which only the JSON
is left can't be run again; then the noise is unknown, and says so.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rljob_planner._compare_json import ComparisonJson
    from rljob_planner._plan_json import PlanJson, SplitJson
    from rljob_planner.api.spec import RLJobSpec
    from rljob_planner.calibrate import Calibration
    from rljob_planner.lengths import LengthDistribution
    from rljob_planner.outcome import Plan
    from rljob_planner.placement import Room
    from rljob_planner.simulate import SimulationInput
    from rljob_planner.split import Split

PAIRS = 8
"""Pairs of runs."""

_T = 3.50
"""Quantile 0.995 of Student's t with ``PAIRS`` − 1 degrees of freedom: with several measures, one in a hundred is too many."""

_ROUNDING = 1e-9

ABSOLUTE = frozenset({"staleness", "samplerUtilization", "trainerUtilization", "rho"})
"""Measures whose difference is told as such: a staleness of 0.1 instead of 0.05 is not a doubling of anything that matters."""


@dataclass(frozen=True)
class Change:
    """An input that differs."""

    field: str
    """Path within the file, such as ``spec.gpus``."""
    a: Any
    """None: not given."""
    b: Any


@dataclass(frozen=True)
class Measure:
    """An outcome on both sides."""

    name: str
    """``period``, ``staleness``, … as in the JSON of a plan or a simulation."""
    a: float | None
    b: float | None
    change: float | None
    """b − a, relative to a unless the name is in ``ABSOLUTE``; None where one of them is unknown."""
    error: float | None
    """Standard error of ``change``; None where nothing was run in pairs."""

    @property
    def beyond_noise(self) -> bool | None:
        """Whether chance alone can't explain the change; None where that is unknown."""
        if self.change is None or self.error is None:
            return None
        return abs(self.change) > max(_T * self.error, _ROUNDING)


@dataclass(frozen=True)
class Comparison:
    """Both sides, and what differs."""

    kind: str
    """``jobs``, ``plans`` or ``scenarios``."""
    a: str
    """Name of the first."""
    b: str
    split_a: SplitJson | None
    split_b: SplitJson | None
    inputs: tuple[Change, ...]
    measures: tuple[Measure, ...]
    pairs: int
    """Pairs of runs that the errors come from, 0 if there were none."""

    def json(self) -> ComparisonJson:
        """The object of ``rljob compare -o json``."""
        from rljob_planner._compare_json import ChangeJson, ComparisonJson, MeasureJson

        return ComparisonJson(
            kind=self.kind,
            a=self.a,
            b=self.b,
            split_a=self.split_a,
            split_b=self.split_b,
            inputs=tuple(ChangeJson(field=c.field, a=c.a, b=c.b) for c in self.inputs),
            measures=tuple(
                MeasureJson(
                    name=m.name, a=m.a, b=m.b, change=m.change, error=m.error, relative=m.name not in ABSOLUTE, beyond_noise=m.beyond_noise
                )
                for m in self.measures
            ),
            pairs=self.pairs,
        )  # fmt: skip


@dataclass(frozen=True)
class PlannedJob:
    """A job with its plan, as one side of a comparison."""

    name: str
    spec: RLJobSpec
    rooms: Sequence[Room]
    plan: Plan
    lengths: LengthDistribution | None = None
    calibration: Calibration | None = None
    steps: int | None = None

    @property
    def recommended(self) -> Split:
        """The split that the plan recommends: the best asynchronous one, or that of a lock-step mode."""
        found = self.plan.lock_steps.get(self.plan.mode)
        return self.plan.split if found is None else found.evaluation.split


def compared_jobs(a: PlannedJob, b: PlannedJob) -> Comparison:
    """Two jobs under their plans, run in pairs."""
    from rljob_planner._plan_json import PlanJson
    from rljob_planner.job import Job
    from rljob_planner.search import evaluate

    def outcome(side: PlannedJob) -> Callable[[int], dict[str, float | None]]:
        steps = side.spec.workload.steps if side.steps is None else side.steps
        split = side.recommended
        price = Job.of(side.spec, side.rooms, side.lengths).usd_per_hour(split)

        def run(seed: int) -> dict[str, float | None]:
            found = evaluate(
                side.spec, split, side.rooms, calibration=side.calibration, lengths=side.lengths, seed=seed
            )
            run_s = found.period_s * steps
            return {
                "period": found.period_s,
                "runTime": run_s,
                "cost": None if price is None else price * run_s / 3600.0,
                "staleness": found.staleness.mean,
                "rho": found.rho,
                "trainerUtilization": found.trainer_utilization,
                "tokensPerSecond": found.tokens_per_second,
            }

        return run

    plans = [PlanJson.model_validate(side.plan.to_json()) for side in (a, b)]
    return Comparison(
        kind="jobs",
        a=a.name,
        b=b.name,
        split_a=plans[0].split,
        split_b=plans[1].split,
        inputs=_changes(_asked(a), _asked(b)),
        measures=_measured(_pairs(outcome(a), outcome(b))),
        pairs=PAIRS,
    )


def compared_plans(name_a: str, a: PlanJson, name_b: str, b: PlanJson) -> Comparison:
    """Two plans by what they say; nothing is run."""

    def outcome(plan: PlanJson) -> dict[str, float | None]:
        return {
            "period": plan.period.mean,
            "runTime": plan.run_time.p50,
            "cost": plan.cost,
            "staleness": plan.staleness.mean,
        }

    return Comparison("plans", name_a, name_b, a.split, b.split, (), _measured([(outcome(a), outcome(b))]), 0)


def compared_scenarios(
    name_a: str, a: SimulationInput, name_b: str, b: SimulationInput, asked: tuple[Mapping[str, Any], Mapping[str, Any]]
) -> Comparison:
    """Two scenarios, run in pairs from the first one's seed on; ``asked``: what their files say."""
    from rljob_planner.simulate import simulate

    def outcome(inp: SimulationInput) -> Callable[[int], dict[str, float | None]]:
        def run(seed: int) -> dict[str, float | None]:
            found = simulate(replace(inp, seed=a.seed + seed))
            return {
                "period": found.period.mean,
                "staleness": found.staleness.mean,
                "rho": found.rho,
                "samplerUtilization": found.sampler_utilization,
                "trainerUtilization": found.trainer_utilization,
                "queueGroups": found.queue_groups.mean,
                "tokensPerSecond": found.tokens_per_second,
                "wastedTokens": float(found.wasted_tokens),
            }

        return run

    pairs = _pairs(outcome(a), outcome(b))
    return Comparison("scenarios", name_a, name_b, None, None, _changes(*asked), _measured(pairs), PAIRS)


_Pair = tuple[dict[str, float | None], dict[str, float | None]]


def _pairs(a: Callable[[int], dict[str, float | None]], b: Callable[[int], dict[str, float | None]]) -> list[_Pair]:
    return [(a(seed), b(seed)) for seed in range(PAIRS)]


def _measured(pairs: Sequence[_Pair]) -> tuple[Measure, ...]:
    return tuple(_measure(name, [(a[name], b.get(name)) for a, b in pairs]) for name in pairs[0][0])


def _measure(name: str, pairs: Sequence[tuple[float | None, float | None]]) -> Measure:
    known = [(a, b) for a, b in pairs if a is not None and b is not None and math.isfinite(a) and math.isfinite(b)]
    if len(known) < len(pairs):
        first, second = (_mean([p[i] for p in pairs]) for i in (0, 1))
        return Measure(name, first, second, None, None)
    first, second = (math.fsum(p[i] for p in known) / len(known) for i in (0, 1))
    if name in ABSOLUTE:
        changes = [b - a for a, b in known]
    elif all(a > 0 for a, _ in known):
        changes = [b / a - 1.0 for a, b in known]
    elif all(a == b for a, b in known):
        changes = [0.0] * len(known)
    else:
        return Measure(name, first, second, None, None)
    mean = math.fsum(changes) / len(changes)
    if len(changes) < 2:
        return Measure(name, first, second, mean, None)
    variance = math.fsum((c - mean) ** 2 for c in changes) / (len(changes) - 1)
    return Measure(name, first, second, mean, math.sqrt(variance / len(changes)))


def _mean(values: Sequence[float | None]) -> float | None:
    known = [v for v in values if v is not None and math.isfinite(v)]
    return math.fsum(known) / len(known) if len(known) == len(values) else None


def _asked(side: PlannedJob) -> dict[str, Any]:
    """What a job asks for, in the fields of its file; pod templates don't matter to the planner."""
    from rljob_planner.report import describe_rooms

    spec = side.spec.model_dump(by_alias=True, mode="json", exclude_none=True)
    for role in ("sampler", "trainer", "driver", "sandbox"):
        if isinstance(spec.get(role), dict):
            spec[role].pop("template", None)
    asked: dict[str, Any] = {"spec": spec, "nodes": describe_rooms(side.rooms)}
    if side.lengths is not None:
        lengths = side.lengths
        asked["lengths"] = f"mean {lengths.mean():,.0f}, cv {lengths.cv():.2f}, cap {lengths.cap_tokens:,} tokens"
    if side.calibration is not None:
        asked["calibration"] = {
            "samplers": side.calibration.sampler_factor,
            "trainers": side.calibration.trainer_factor,
        }
    return asked


def _changes(a: Mapping[str, Any], b: Mapping[str, Any]) -> tuple[Change, ...]:
    flat_a, flat_b = dict(_flat(a)), dict(_flat(b))
    fields = [*flat_a, *(field for field in flat_b if field not in flat_a)]
    return tuple(
        Change(field, flat_a.get(field), flat_b.get(field))
        for field in fields
        if flat_a.get(field) != flat_b.get(field)
    )


def _flat(value: Mapping[str, Any], path: str = "") -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    for key, inner in value.items():
        at = f"{path}.{key}" if path else str(key)
        found += _flat(inner, at) if isinstance(inner, Mapping) and inner else [(at, inner)]
    return found
