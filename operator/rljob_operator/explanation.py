"""What ``rljob explain`` says, as values: the source of its JSON and of the schema."""

from __future__ import annotations

from enum import StrEnum

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from rljob_planner.api.spec import RebalanceMode
from rljob_planner.api.status import Phase


class Limit(StrEnum):
    """What may hold a job at its present split."""

    OPERATOR = "Operator"
    SPEC = "Spec"
    STOPPED = "Stopped"
    START = "Start"
    MOVE = "Move"
    BROKEN_SIDE = "BrokenSide"
    AUTOSCALER = "Autoscaler"
    OTHER_JOB = "OtherJob"
    PLACEMENT = "Placement"
    METRICS = "Metrics"
    MODE = "Mode"
    STALENESS = "Staleness"
    KV_ROOM = "KvRoom"
    MINIMA = "Minima"
    COOLDOWN = "Cooldown"
    UNCERTAINTY = "Uncertainty"
    COST = "Cost"
    BALANCE = "Balance"


class _Json(BaseModel):
    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, extra="forbid", frozen=True)


class LimitJson(_Json):
    """One limit."""

    limit: Limit = Field(description="Its name.")
    binds: bool = Field(
        description="Whether it is what keeps the split as it is now; others only shape what may be chosen."
    )
    why: str = Field(description="What holds, with the numbers.")
    unblock: str | None = Field(description="What a person can do about it; null: nothing needs to be done.")


class OutlookJson(_Json):
    """The move that the operator has in mind."""

    from_split: str | None = Field(alias="from", description="The split in force.")
    to_split: str = Field(alias="to", description="The split that is wished.")
    gain: float | None = Field(description="Predicted gain as a fraction of the period.")
    gain_uncertainty: float | None = Field(description="Its standard error.")
    saving_seconds: float | None = Field(description="What it saves over the steps that remain, in seconds.")
    cost_seconds: float | None = Field(description="What the move costs, in seconds of lost progress.")
    pays_back_steps: int | None = Field(description="Steps after which it has paid for itself.")
    needs: list[str] = Field(description="What has to happen before it starts, or in it.")


class PastMoveJson(_Json):
    """A move that ended."""

    at: str = Field(description="When it ended.")
    from_split: str | None = Field(alias="from", description="The split before.")
    to_split: str | None = Field(alias="to", description="The split after.")
    committed: bool = Field(description="Whether it was committed; false: it was rolled back.")
    why: str | None = Field(description="Why it was started, or rolled back.")
    predicted_gain: float | None = Field(description="Predicted gain as a fraction of the period.")
    measured_gain: float | None = Field(description="Measured gain as a fraction of the period.")
    cost_seconds: float | None = Field(description="What it cost, in seconds of lost progress.")


class KnownJson(_Json):
    """What decisions rest on."""

    sampler_factor: float | None = Field(
        description="Measured over predicted speed of the samplers; null: not measured."
    )
    trainer_factor: float | None = Field(
        description="Measured over predicted speed of the trainers; null: not measured."
    )
    sampler_uncertainty: float | None = Field(description="How far the samplers' factor may be off, as a fraction.")
    trainer_uncertainty: float | None = Field(description="How far the trainers' factor may be off, as a fraction.")
    residual: float | None = Field(description="Relative error that the calibrated model is left with.")
    response_tokens_mean: float | None = Field(description="Mean response length in tokens.")
    growth_per_step: float | None = Field(description="Change of the mean response length a step, as a fraction.")
    steps_made: int | None = Field(description="Policy version published last.")
    steps_total: int = Field(description="Steps of the run.")
    period_seconds: float | None = Field(description="Measured period.")
    planned_period_seconds: float | None = Field(
        description="Planned period of the split in force, or of the one recommended."
    )
    sources: list[str] = Field(
        description="What the plan rests on besides the spec, and what the samplers tell in the job's place."
    )


class ExplanationJson(_Json):
    """Why a job's split is what it is."""

    name: str = Field(description="Name of the RLJob.")
    namespace: str | None = Field(description="Its namespace.")
    phase: Phase = Field(description="Where it stands in its life.")
    mode: RebalanceMode = Field(description="What the operator may do to the split.")
    split: str | None = Field(description="The split in force; null: there is none.")
    summary: str = Field(description="What the job does, and what was done to its split.")
    next: str = Field(description="What comes next.")
    limits: list[LimitJson] = Field(description="What holds the split, the binding one first.")
    move: OutlookJson | None = Field(description="The move that the operator has in mind; null: none.")
    moves: list[PastMoveJson] = Field(description="Moves that ended, as far as the status keeps them, the newest last.")
    known: KnownJson = Field(description="What decisions rest on.")
