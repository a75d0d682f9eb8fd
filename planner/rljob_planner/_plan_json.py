"""The JSON that a plan is reported as: the source of its schema and of its keys.

Numbers have six significant digits: more than any of them deserves, and few enough to read.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, cast

from pydantic import Field

from rljob_planner._simulation_json import Part, PeriodJson

if TYPE_CHECKING:
    from rljob_planner.outcome import Candidate, Plan
    from rljob_planner.split import SamplerSplit, Split


class PoolJson(Part):
    """The samplers of one node pool."""

    name: str
    replicas: int


class SamplersJson(Part):
    """The sampler side of a split."""

    replicas: int
    gpus_per_replica: int
    tensor_parallel: int


class PooledSamplersJson(SamplersJson):
    """The sampler side of a split of a job with ``sampler.pools``."""

    pools: list[PoolJson] = Field(description="Where the replicas run.")


class TrainersJson(Part):
    """The trainer side of a split."""

    replicas: int
    gpus_per_replica: int
    dp: int = Field(description="Data-parallel width.")
    tp: int = Field(description="Tensor-parallel width.")
    pp: int = Field(description="Pipeline-parallel depth.")
    ep: int = Field(description="Expert-parallel width.")


class SplitJson(Part):
    """Replicas × GPUs of both sides. In mode ``sync`` both sides are the same GPUs, one after the other."""

    mode: str
    samplers: SamplersJson | PooledSamplersJson
    trainers: TrainersJson
    in_flight: int = Field(description="Cap on samples submitted and not finished.")


class PlanStalenessJson(Part):
    """Staleness of trained samples in policy versions."""

    mean: float
    p95: float
    max: float
    ratio_variance: float = Field(
        description="Variance of importance ratios: mean of e^(σ²·s) − 1 over the staleness s of trained samples."
    )


class RunTimeJson(Part):
    """Expected seconds of the run."""

    p10: float
    p50: float
    p90: float


class CandidateJson(Part):
    """A split that was looked at."""

    split: SplitJson
    period: float | None = Field(description="Mean seconds; null if it was rejected before its period was worked out.")
    staleness: float | None = Field(description="Mean staleness in policy versions, null as period.")
    feasible: bool
    reason: str = Field(description="Why it was rejected, or what it loses against the best; empty for the best.")
    ratio_variance: float | None = Field(description="Variance of importance ratios; null if it was not simulated.")


class SweepJson(Part):
    """The best split at another mean response length."""

    factor: float = Field(description="Times the mean length of the job.")
    split: SplitJson
    period: float = Field(description="Mean seconds.")
    mean_tokens: float = Field(description="Mean response length, less than the factor says where the cap cuts.")


class ParetoJson(Part):
    """A split that no other beats in both period and staleness."""

    split: SplitJson
    period: float = Field(description="Mean seconds.")
    staleness: float = Field(description="Mean staleness in policy versions.")
    ratio_variance: float = Field(description="Variance of importance ratios.")


class SandboxesJson(Part):
    """What the environments of an agentic job need."""

    needed: float = Field(description="Sandboxes in use at the mean: samples a second times seconds in them.")
    unlimited: float | None = Field(
        description="The same if there were no limit; null unless too few gate the rollout."
    )
    limit: int | None = Field(description="Sandboxes that may run at once; null if there is no limit.")
    wait: float = Field(description="Mean seconds that a sample waits for one, each time that it needs one.")


class ElasticityJson(Part):
    """d ln period / d ln x at the best split; null where x cannot be varied."""

    decode: float | None = Field(description="x: decode speed.")
    train: float | None = Field(description="x: training speed.")
    sync: float | None = Field(description="x: seconds of weight synchronisation.")
    tail: float | None = Field(description="x: cv of response lengths at the same mean.")


class PlanJson(Part):
    """The best split of a job and what speaks for it; times in seconds."""

    split: SplitJson = Field(
        description="The recommended split; its mode is sync or one-step-off if working in lock step is better than any "
        "asynchronous split, of which the best is then the first candidate."
    )
    period: PeriodJson
    staleness: PlanStalenessJson
    run_time: RunTimeJson
    cost: float | None = Field(description="US dollars of the run, null if a GPU has no known price.")
    synchronous_period: float | None = Field(
        description="Mean period if all GPUs first sample and then train, null if that is not possible."
    )
    one_step_off_period: float | None = Field(
        description="Mean period if samplers make the next batch while the trainer takes the last one, null if that is not possible."
    )
    speedup: float | None = Field(description="Synchronous over asynchronous period: below 1 synchronous is faster.")
    bottleneck: str = Field(description="samplers, trainers, sandboxes or balanced.")
    confidence: float | None = Field(
        description="Relative error of the calibrated model; null until something was measured."
    )
    candidates: tuple[CandidateJson, ...] = Field(description="Feasible ones first, the best first.")
    neighbours: tuple[CandidateJson, ...] = Field(description="One trainer replica fewer, and one more.")
    length_sweep: tuple[SweepJson, ...]
    elasticity: ElasticityJson | None
    pareto: tuple[ParetoJson, ...] = Field(
        description="What fresher samples cost: the freshest first, each faster than those before it."
    )
    sandboxes: SandboxesJson | None = Field(description="Null for a job without environments.")
    notes: tuple[str, ...] = Field(description="What the reader should know besides, in sentences.")


def plan_json(plan: Plan) -> dict[str, Any]:
    """A plan as JSON values; in a lock-step mode its split, times and cost are that mode's."""
    chosen, run_time, cost = plan.evaluation, plan.run_time, plan.cost
    if (found := plan.lock_steps.get(plan.mode)) is not None:
        chosen, run_time, cost = found.evaluation, found.run_time, found.cost
    said = PlanJson(
        split=_split(chosen.split),
        period=PeriodJson(**vars(chosen.period)),
        staleness=PlanStalenessJson(**vars(chosen.staleness)),
        run_time=RunTimeJson(**vars(run_time)),
        cost=cost,
        synchronous_period=plan.synchronous_period,
        one_step_off_period=plan.one_step_off_period,
        speedup=plan.speedup,
        bottleneck=chosen.bottleneck,
        confidence=plan.confidence,
        candidates=tuple(_candidate(candidate) for candidate in plan.candidates),
        neighbours=tuple(_candidate(candidate) for candidate in plan.neighbours),
        length_sweep=tuple(
            SweepJson(factor=p.factor, split=_split(p.split), period=p.period_s, mean_tokens=p.mean_tokens)
            for p in plan.length_sweep
        ),
        elasticity=None if plan.elasticity is None else ElasticityJson(**vars(plan.elasticity)),
        pareto=tuple(
            ParetoJson(
                split=_split(p.split), period=p.period_s, staleness=p.staleness_mean, ratio_variance=p.ratio_variance
            )
            for p in plan.pareto
        ),
        sandboxes=None if plan.sandboxes is None else SandboxesJson(**vars(plan.sandboxes)),
        notes=plan.notes,
    )
    return cast(dict[str, Any], _rounded(said.model_dump(by_alias=True, mode="json")))


def _rounded(value: Any) -> Any:
    """The same with every number that is no whole one at six significant digits."""
    if isinstance(value, float) and math.isfinite(value):
        return float(f"{value:.6g}")
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    return [_rounded(item) for item in value] if isinstance(value, list) else value


def _candidate(candidate: Candidate) -> CandidateJson:
    return CandidateJson(
        split=_split(candidate.split),
        period=candidate.period_s,
        staleness=candidate.staleness_mean,
        feasible=candidate.feasible,
        reason=candidate.reason,
        ratio_variance=candidate.ratio_variance,
    )


def _samplers(s: SamplerSplit) -> SamplersJson | PooledSamplersJson:
    shape = {"replicas": s.replicas, "gpus_per_replica": s.gpus_per_replica, "tensor_parallel": s.tensor_parallel}
    if s.pools is None:
        return SamplersJson(**shape)
    return PooledSamplersJson(**shape, pools=[PoolJson(name=p.name, replicas=p.replicas) for p in s.pools])


def _split(split: Split) -> SplitJson:
    t = split.trainers
    return SplitJson(
        mode=split.mode,
        samplers=_samplers(split.samplers),
        trainers=TrainersJson(
            replicas=t.replicas, gpus_per_replica=t.gpus_per_replica, dp=t.dp, tp=t.tp, pp=t.pp, ep=t.ep
        ),
        in_flight=split.in_flight,
    )
