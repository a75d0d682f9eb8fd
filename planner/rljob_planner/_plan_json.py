"""The JSON that a plan is reported as: the source of its schema and of its keys."""

from __future__ import annotations

from pydantic import Field

from rljob_planner._simulation_json import Part, PeriodJson


class SamplersJson(Part):
    """The sampler side of a split."""

    replicas: int
    gpus_per_replica: int
    tensor_parallel: int


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
    samplers: SamplersJson
    trainers: TrainersJson
    in_flight: int = Field(description="Cap on samples submitted and not finished.")


class PlanStalenessJson(Part):
    """Staleness of trained samples in policy versions."""

    mean: float
    p95: float
    max: float


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


class SweepJson(Part):
    """The best split at another mean response length."""

    factor: float = Field(description="Times the mean length of the job.")
    split: SplitJson
    period: float = Field(description="Mean seconds.")


class ElasticityJson(Part):
    """d ln period / d ln x at the best split; null where x cannot be varied."""

    decode: float | None = Field(description="x: decode speed.")
    train: float | None = Field(description="x: training speed.")
    sync: float | None = Field(description="x: seconds of weight synchronisation.")
    tail: float | None = Field(description="x: cv of response lengths at the same mean.")


class PlanJson(Part):
    """The best split of a job and what speaks for it; times in seconds."""

    split: SplitJson = Field(
        description="The recommended split; its mode is sync if time-sharing all GPUs is better than any asynchronous split, "
        "of which the best is then the first candidate."
    )
    period: PeriodJson
    staleness: PlanStalenessJson
    run_time: RunTimeJson
    cost: float | None = Field(description="US dollars of the run, null if a GPU has no known price.")
    synchronous_period: float | None = Field(
        description="Mean period if all GPUs first sample and then train, null if that is not possible."
    )
    speedup: float | None = Field(description="Synchronous over asynchronous period: below 1 synchronous is faster.")
    bottleneck: str = Field(description="samplers, trainers or balanced.")
    confidence: float | None = Field(
        description="Relative error of the calibrated model; null until something was measured."
    )
    candidates: tuple[CandidateJson, ...] = Field(description="Feasible ones first, the best first.")
    neighbours: tuple[CandidateJson, ...] = Field(description="One trainer replica fewer, and one more.")
    length_sweep: tuple[SweepJson, ...]
    elasticity: ElasticityJson | None
