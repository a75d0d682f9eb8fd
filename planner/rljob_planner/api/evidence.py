"""What a run teaches, as it is kept in the status: how sure the factors are, how lengths move, and what a decision rested on.

A mean without its uncertainty can't say whether a gain is real. So beside every number that is learned stands what is needed to
know how far it may be off, and to go on learning after a restart: how many independent readings are behind it, how they spread,
and the reading before.
"""

from __future__ import annotations

from pydantic import Field

from rljob_planner.api.base import ApiModel
from rljob_planner.split import Split


class EvidenceStatus(ApiModel):
    """What is behind one side's factor."""

    readings: float
    """Windows that the factor rests on, each counted as far as it was new."""
    spread: float
    """Standard deviation of ln(one reading), from readings some windows apart."""
    scatter: float
    """The same, from what readings deviate from the factor."""
    recent: float
    """Natural logarithm of the factor that the latest readings show by themselves."""
    mark: float
    """Natural logarithm of the reading that one some windows later is compared with."""
    mark_at: str
    """When that was read."""
    at: str
    """When the last one was read."""


class LengthTrendStatus(ApiModel):
    """Mean response length as it was followed over the run."""

    step: float
    """Policy version at which it was brought up to date."""
    log_mean: float
    """Natural logarithm of the mean length in tokens of samples that started then."""
    per_step: float
    """Change of it a step: positive while responses grow."""
    variance: float
    """Variance of ``logMean``."""
    covariance: float
    """Covariance of ``logMean`` and ``perStep``."""
    rate_variance: float
    """Variance of ``perStep``."""
    spread: float
    """Standard deviation of ln(mean length of one window), without what drifts."""
    mark: float
    """Natural logarithm of the mean length of the window that one some windows later is compared with."""
    mark_step: float
    """Policy version at which that was read."""


class DecisionInputs(ApiModel):
    """What a decision rested on; uncertainties are standard errors of natural logarithms, so 0.02 is about 2 %."""

    sampler_factor: float
    """Measured over predicted speed of the samplers."""
    sampler_uncertainty: float
    """How far it may be off."""
    trainer_factor: float
    """Measured over predicted speed of the trainers."""
    trainer_uncertainty: float
    """How far it may be off."""
    remaining_steps: int | None = None
    """Steps to go."""
    response_tokens_mean: float
    """Mean response length in tokens that was planned for: that of the steps that follow."""
    response_tokens_uncertainty: float
    """How far it may be off."""
    finished_tokens_mean: float | None = Field(
        default=None,
        description="Mean length in tokens of the responses that finished in the window: those of the measured period.",
    )
    growth_per_step: float = Field(description="Change of the mean response length a step, as a fraction.")
    environment_seconds_per_turn: float | None = Field(
        default=None,
        description="Mean seconds of a turn in the environment that were planned for; absent unless agentic.",
    )


class PhaseSeconds(ApiModel):
    """What the phases of a move took, in seconds, averaged over the moves of this job."""

    announce: float | None = None
    """Until the trainer had acknowledged the announcement at a step boundary."""
    drain: float | None = None
    """Until the leaving samplers had finished; absent where none left."""
    checkpoint: float | None = None
    """Until the trainers had written a checkpoint; absent unless they restart to be resized."""
    shrink: float | None = None
    """Until the leaving pods were gone."""
    grow: float | None = None
    """Until new pods were ready, weights loaded."""
    verify: float | None = None
    """Until the trainer had regrouped and acknowledged the new layout."""


class MeasuredMove(ApiModel):
    """What the last committed move gained, as measured: better evidence on the split left behind than any model."""

    left: Split
    """The split left behind."""
    left_period_seconds: float = Field(description="Its period as measured last, in seconds.")
    left_at: DecisionInputs | None = Field(default=None, description="What was known when it was left.")
    at: str
    """When the move was committed."""
    gain: float | None = Field(
        default=None,
        description="Measured gain as a fraction of the period, against the forecast of the split left behind at the same lengths.",
    )
    uncertainty: float | None = Field(default=None, description="Standard error of the gain.")
    finished_tokens_mean: float | None = Field(
        default=None, description="Mean length in tokens of the responses that finished while it was measured."
    )
