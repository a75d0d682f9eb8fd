"""What finished runs measured, kept for the next run of the same model, accelerators and workload: ``RLJobProfile``.

A job's status dies with the job, and with it what hours of running have shown: how much faster or slower its engine is than the
model, how its responses grow, what a move costs. A profile outlives the jobs, is written once when a run completes, and keeps the
last runs side by side rather than an average of them, so that the next run sees how far they agree.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from rljob_planner.api.base import ApiModel
from rljob_planner.api.evidence import PhaseSeconds
from rljob_planner.api.status import LengthPoint

PROFILE_KIND = "RLJobProfile"
PROFILE_PLURAL = "rljobprofiles"

MOST_RUNS = 5
"""Runs that a profile keeps: engines and recipes change, so old ones teach little."""


class ProfileSubject(ApiModel):
    """What a profile is of: two jobs that agree in all of it may expect the same speeds and the same growth."""

    model: str
    """The model's name, or a hash of its config where it has none."""
    weights: str
    """Number format of the samplers' weights."""
    kv_cache: str
    """Number format of the samplers' KV cache."""
    engine: str
    """The samplers' engine."""
    sampler_accelerator: str
    """GPU of the samplers."""
    trainer_accelerator: str
    """GPU of the trainers."""
    prompts_per_step: int
    """Groups that a training step consumes."""
    samples_per_prompt: int
    """Samples in a group."""
    prompt_tokens: int
    """Mean prompt length in tokens."""
    max_response_tokens: int
    """Cap on a response in tokens."""
    turns: int = Field(default=1, description="Turns of a sample; 1 where there is no environment.")
    training: str = Field(
        default="", description="What else a training step consists of: recomputation, forward passes, MFU."
    )
    constants: str = Field(default="", description="Hash of measured decode constants; empty for the planner's own.")


class ProfileRun(ApiModel):
    """What one finished run measured."""

    job: str
    """Name of the RLJob."""
    uid: str
    """Its uid: a run is kept once."""
    ended_at: str
    """When it was complete."""
    steps: int
    """Steps that it made."""
    split: str
    """The split that it ended with."""
    sampler_gpus_per_replica: int
    """Width of its sampler replicas: factors of another width are worth less."""
    sampler_factor: float | None = Field(
        default=None, description="Measured over predicted speed of the samplers; absent where it stood at its limit."
    )
    trainer_factor: float | None = Field(
        default=None, description="Measured over predicted speed of the trainers; absent where it stood at its limit."
    )
    residual: float | None = Field(default=None, description="Relative error that the calibrated model was left with.")
    observations: int
    """Measurements that the factors rest on."""
    moves: int = 0
    """Moves that it made."""
    move_cost_seconds: float | None = Field(default=None, description="What a move cost, in seconds of lost progress.")
    phases: PhaseSeconds = Field(default_factory=PhaseSeconds)
    """What the phases of its moves took."""
    period_seconds: float | None = Field(default=None, description="Its last period in seconds.")
    lengths: tuple[LengthPoint, ...] = Field(default=(), description="Response lengths over the run.")


class RLJobProfileSpec(ApiModel):
    """What was measured, and of what."""

    subject: ProfileSubject = Field(description="What the profile is of.")
    runs: tuple[ProfileRun, ...] = Field(
        default=(), max_length=MOST_RUNS, description="The last runs, the newest last."
    )


class RLJobProfile(ApiModel):
    """What finished runs measured, for the next run of the same model, accelerators and workload; delete it to forget."""

    api_version: Literal["rljob.dev/v1alpha1"] = Field(
        default="rljob.dev/v1alpha1", description="Version of the API: rljob.dev/v1alpha1."
    )
    kind: Literal["RLJobProfile"] = Field(default="RLJobProfile", description="Kind of the object: RLJobProfile.")
    metadata: dict[str, Any] = Field(default_factory=dict, description="Standard object metadata.")
    spec: RLJobProfileSpec = Field(description="What was measured, and of what.")
