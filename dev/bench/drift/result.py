"""What the bench prints: the table as JSON, with the aims that each trace met or missed."""

from __future__ import annotations

from enum import StrEnum

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel


class Part(BaseModel):
    """Base of all parts of the output."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, extra="forbid")


class PolicyName(StrEnum):
    """Who decides about the split."""

    RLJOB = "rljob"
    STATIC_BEST = "staticBest"
    STATIC_START = "staticStart"
    THRESHOLD = "threshold"
    CLAIRVOYANT = "clairvoyant"


class MoveJson(Part):
    """A move that was begun."""

    step: int = Field(description="Policy version at which it was begun.")
    samplers: int = Field(description="Sampler replicas that it led to.")
    trainers: int = Field(description="Trainer replicas that it led to.")


class PolicyJson(Part):
    """One policy on one trace."""

    policy: PolicyName = Field(description="rljob, staticBest, staticStart, threshold or clairvoyant.")
    total_seconds: float = Field(description="Simulated seconds until the last step.")
    ratio_to_clairvoyant: float = Field(description="totalSeconds over the clairvoyant's.")
    moves: int = Field(description="Moves that were begun.")
    gpu_hours: float = Field(description="GPU-hours held by the job's pods.")
    max_staleness: int = Field(description="Policy versions of the stalest sample that was trained.")
    mean_staleness: float = Field(description="Mean staleness of all trained samples.")
    worst_mean_staleness: float = Field(description="Largest mean staleness of ten steps in a row.")
    start: MoveJson = Field(description="The split of step 0.")
    end: MoveJson = Field(description="The split at the end.")
    move_steps: list[MoveJson] = Field(description="Each move, in order.")
    periods: list[tuple[int, float]] = Field(
        description="[[step, seconds], …]: mean period of the steps up to there, in blocks that are equally long."
    )


class AimJson(Part):
    """One aim on one trace."""

    aim: str = Field(description="What was aimed at.")
    met: bool = Field(description="Whether it was met.")
    value: float = Field(description="The number that was compared.")
    limit: float = Field(description="What it must not exceed.")


class TraceJson(Part):
    """One trace."""

    name: str
    effect: str = Field(description="What makes the best split move along the trace, by the model's laws.")
    policies: list[PolicyJson]
    steps: int
    aims: list[AimJson] = Field(description="The aims on the policy rljob.")
    decisions: dict[str, int] = Field(description="Decisions of the operator that said something new, by code.")


class DriftJson(Part):
    """The output of python -m dev.bench.drift -o json."""

    traces: list[TraceJson]
    seconds: float = Field(description="Wall time of the run.")
    version: str = Field(default="1", description="Version of this format.")
