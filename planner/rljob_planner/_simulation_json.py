"""The JSON that a simulation is reported as: the source of its schema and of its keys."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel


class Part(BaseModel):
    """Base of what is printed as JSON: camelCase, nothing beyond its fields."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, extra="forbid", frozen=True)


class PeriodJson(Part):
    """Seconds between two published versions, over the steps after the warm-up."""

    mean: float
    p10: float
    p50: float
    p90: float


class StalenessJson(Part):
    """Staleness in policy versions of the samples that were trained."""

    mean: float
    p95: float
    max: int


class QueueJson(Part):
    """Complete groups that wait for the trainer."""

    mean: float = Field(description="Over time.")
    max: int


class SimulationJson(Part):
    """What a simulation showed after its warm-up."""

    period: PeriodJson
    staleness: StalenessJson
    rho: float = Field(
        description="Rollout rate over train rate, each side alone; below 1 the job is rollout-bound. "
        "In sync and one-step-off: training time of a batch over its sampling time."
    )
    sampler_utilization: float = Field(
        ge=0, le=1, description="Share of time in which a replica runs at least one sample, mean over replicas."
    )
    trainer_utilization: float = Field(ge=0, le=1, description="Share of time spent in training steps.")
    mean_running: float = Field(description="Samples that hold a decode slot, all replicas together, mean over time.")
    mean_in_flight: float = Field(description="Samples submitted and not finished, mean over time.")
    queue_groups: QueueJson
    tokens_per_second: float = Field(description="Trained response tokens per second.")
    dropped_groups: int = Field(description="Complete groups pushed out of the queue or discarded as too stale.")
    wasted_tokens: int = Field(description="Response tokens of the dropped groups.")
    trained_mean_length: float = Field(description="Mean response tokens of the samples that were trained.")
    environment_samples: float | None = Field(
        default=None, description="Samples in their environment, mean over time; absent without an environment."
    )
    sandbox_wait: float | None = Field(
        default=None, description="Mean seconds that a turn waits for a sandbox; absent without an environment."
    )
