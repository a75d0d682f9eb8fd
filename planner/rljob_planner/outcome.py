"""What the search answers: one split simulated (``Evaluation``), and the whole plan around the best of them (``Plan``).

Values only. A number that is not known is None and stays null in JSON: a GPU without a price has no cost, an uncalibrated plan no
confidence.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rljob_planner.split import Split

if TYPE_CHECKING:
    from rljob_planner._plan_json import CandidateJson, SplitJson


@dataclass(frozen=True)
class Period:
    """Seconds between two published versions, over the steps of the simulation."""

    mean: float
    p10: float
    p50: float
    p90: float


@dataclass(frozen=True)
class Staleness:
    """Staleness of trained samples in policy versions."""

    mean: float
    p95: float
    max: float


@dataclass(frozen=True)
class RunTime:
    """Expected seconds of the steps that remain, with the spread that simulation and model error give them."""

    p10: float
    p50: float
    p90: float


@dataclass(frozen=True)
class Evaluation:
    """One split, simulated."""

    split: Split
    period: Period
    period_error: float
    """Standard error of the mean period, relative."""
    staleness: Staleness
    rho: float
    bottleneck: str
    """``samplers``, ``trainers`` or ``balanced``."""
    sampler_utilization: float
    trainer_utilization: float
    mean_running: float
    mean_in_flight: float
    queue_groups: float
    kv_utilization: float
    wasted_fraction: float
    """Share of generated response tokens that no step consumed because their groups were dropped."""
    tokens_per_second: float
    within_staleness: bool
    """Whether what the bound promises holds: max ≤ limit for ``drop``, mean ≤ limit otherwise."""
    reason: str = ""
    """Why it is not feasible; empty if it is."""

    @property
    def period_s(self) -> float:
        """Mean period in seconds."""
        return self.period.mean


@dataclass(frozen=True)
class Candidate:
    """A split that was looked at: by formulas, or by simulation."""

    split: Split
    period_s: float | None
    """None if it was rejected before its period was worked out."""
    staleness_mean: float | None
    feasible: bool
    reason: str
    """Why it was rejected, or what it loses against the best; empty for the best."""
    simulated: bool = False


@dataclass(frozen=True)
class SweepPoint:
    """The best split at another mean response length."""

    factor: float
    split: Split
    period_s: float


@dataclass(frozen=True)
class Elasticity:
    """d ln period / d ln x at the best split: −0.8 for decode means 10 % faster decode shortens the period by about 8 %.

    None where x cannot be varied.
    """

    decode: float | None
    """x: decode speed."""
    train: float | None
    """x: training speed."""
    sync: float | None
    """x: seconds of weight synchronisation."""
    tail: float | None
    """x: cv of response lengths at the same mean."""


@dataclass(frozen=True)
class Plan:
    """The best split and what speaks for it."""

    split: Split
    """The best asynchronous split."""
    mode: str
    """``async``, or ``sync`` if time-sharing all GPUs is better."""
    period: Period
    staleness: Staleness
    run_time: RunTime
    """Of the best asynchronous split, seconds."""
    cost: float | None
    """US dollars for the remaining steps, None if a GPU has no known price."""
    synchronous: Evaluation | None
    """All GPUs first sample and then train; None if that is not possible or was not asked for."""
    synchronous_run_time: RunTime | None
    synchronous_cost: float | None
    bottleneck: str
    """``samplers``, ``trainers`` or ``balanced``."""
    confidence: float | None
    """Relative residual of the calibrated model; None until something was measured."""
    candidates: tuple[Candidate, ...]
    """Feasible ones first, fastest (or cheapest) first."""
    neighbours: tuple[Candidate, ...]
    """The splits with one trainer replica fewer and one more."""
    length_sweep: tuple[SweepPoint, ...]
    elasticity: Elasticity | None
    placeable_gpus: int
    """GPUs of the budget that the nodes can hold in replicas of these sizes."""
    rho: float
    evaluation: Evaluation
    notes: tuple[str, ...] = ()
    """What the reader should know besides, in sentences."""

    @property
    def synchronous_period(self) -> float | None:
        """Mean period in seconds if all GPUs first sample and then train; None if that is not possible or was not asked for."""
        return None if self.synchronous is None else self.synchronous.period.mean

    @property
    def speedup(self) -> float | None:
        """Synchronous over asynchronous period: below 1 staying synchronous is faster."""
        return None if self.synchronous is None else self.synchronous.period.mean / self.period.mean

    def to_json(self) -> dict[str, Any]:
        """The object of ``rljob plan -o json``; times in seconds. In mode ``sync`` its split is the synchronous one."""
        from rljob_planner import _plan_json as as_json
        from rljob_planner._simulation_json import PeriodJson

        chosen, run_time, cost = self.evaluation, self.run_time, self.cost
        if self.mode == "sync" and self.synchronous is not None and self.synchronous_run_time is not None:
            chosen, run_time, cost = self.synchronous, self.synchronous_run_time, self.synchronous_cost
        elasticity = self.elasticity
        return as_json.PlanJson(
            split=_split_json(chosen.split),
            period=PeriodJson(**vars(chosen.period)),
            staleness=as_json.PlanStalenessJson(**vars(chosen.staleness)),
            run_time=as_json.RunTimeJson(**vars(run_time)),
            cost=cost,
            synchronous_period=self.synchronous_period,
            speedup=self.speedup,
            bottleneck=chosen.bottleneck,
            confidence=self.confidence,
            candidates=tuple(_candidate_json(candidate) for candidate in self.candidates),
            neighbours=tuple(_candidate_json(candidate) for candidate in self.neighbours),
            length_sweep=tuple(
                as_json.SweepJson(factor=point.factor, split=_split_json(point.split), period=point.period_s)
                for point in self.length_sweep
            ),
            elasticity=None if elasticity is None else as_json.ElasticityJson(**vars(elasticity)),
        ).model_dump(by_alias=True, mode="json")


def _candidate_json(candidate: Candidate) -> CandidateJson:
    from rljob_planner._plan_json import CandidateJson

    return CandidateJson(
        split=_split_json(candidate.split),
        period=candidate.period_s,
        staleness=candidate.staleness_mean,
        feasible=candidate.feasible,
        reason=candidate.reason,
    )


def _split_json(split: Split) -> SplitJson:
    from rljob_planner._plan_json import SamplersJson, SplitJson, TrainersJson

    s, t = split.samplers, split.trainers
    return SplitJson(
        mode=split.mode,
        samplers=SamplersJson(
            replicas=s.replicas, gpus_per_replica=s.gpus_per_replica, tensor_parallel=s.tensor_parallel
        ),
        trainers=TrainersJson(
            replicas=t.replicas, gpus_per_replica=t.gpus_per_replica, dp=t.dp, tp=t.tp, pp=t.pp, ep=t.ep
        ),
        in_flight=split.in_flight,
    )
