"""What the status page shows of a job: the same values for the pages and for ``/api/jobs``.

Times are RFC 3339 in UTC, as in the RLJob. What is unknown is absent, never zero.
"""

from __future__ import annotations

from pydantic import Field

from rljob_planner.api.base import ApiModel

UNREADABLE = "Unreadable"
"""Phase that is shown of a job whose status this version can't read."""


class FleetJson(ApiModel):
    """One side of a split."""

    replicas: int
    """Pods."""
    gpus_per_replica: int
    """GPUs of a pod."""
    gpus: int
    """GPUs of all its pods."""


class SplitJson(ApiModel):
    """A split, as far as the page shows it."""

    samplers: FleetJson
    """The pods that generate."""
    trainers: FleetJson
    """The pods that train."""
    in_flight: int
    """The cap on samples submitted and not finished."""
    label: str
    """The split in a few words, as everywhere else."""


class MoveJson(ApiModel):
    """A move that was seen: under way, or over."""

    id: str
    """Name of the move, unique within the job."""
    from_split: SplitJson = Field(alias="from")
    """The split before it."""
    to_split: SplitJson = Field(alias="to")
    """The split that it led to."""
    reason: str
    """Why it was started."""
    started_at: str
    """When it was started."""
    ended_at: str | None = Field(default=None, description="When it ended; absent while it is under way.")
    outcome: str | None = Field(default=None, description="Committed or RolledBack; absent while it is under way.")
    phase: str | None = Field(default=None, description="The phase that it is in; absent once it is over.")
    waiting_for: str | None = Field(default=None, description="What its phase waits for; absent once it is over.")
    rolling_back: bool = Field(default=False, description="Whether it leads back to the split before it.")
    predicted_gain: float = Field(description="Fraction of the period that it was to save.")


class DecisionJson(ApiModel):
    """A decision that was seen."""

    at: str
    """When it was taken, or last repeated."""
    code: str
    """Why, in one word for programs."""
    message: str
    """Why, with the numbers, for people."""
    count: int
    """How often the same decision was taken in a row."""
    from_split: str | None = Field(default=None, alias="from", description="The split at the time, in a few words.")
    to_split: str | None = Field(default=None, alias="to", description="The split that was wished, in a few words.")
    predicted_gain: float | None = Field(default=None, description="Fraction of the period that a move would save.")
    uncertainty: float | None = Field(default=None, description="Standard error of the predicted gain.")
    measured_gain: float | None = Field(default=None, description="Fraction of the period that a move did save.")
    saving_seconds: float | None = Field(default=None, description="Predicted saving over the remaining steps.")
    cost_seconds: float | None = Field(default=None, description="Cost of the move in seconds of lost progress.")


class ConditionJson(ApiModel):
    """A condition of the job."""

    type: str
    """Type of the condition."""
    status: str
    """True, False or Unknown."""
    reason: str
    """Why, in one word for programs."""
    message: str
    """Why, and what to do, for people."""
    good: bool
    """Whether nothing is to be done."""


class PointJson(ApiModel):
    """What was known of a job at one time."""

    at: str
    """When."""
    sampler_gpus: int | None = Field(default=None, description="GPUs of the samplers by the split in force.")
    trainer_gpus: int | None = Field(default=None, description="GPUs of the trainers by the split in force.")
    gpus_held: int | None = Field(default=None, description="GPUs of pods that are bound or ungated and not yet gone.")
    policy_version: int | None = Field(default=None, description="Policy version published last.")
    period_seconds: float | None = Field(default=None, description="Measured seconds between two policy versions.")
    predicted_period_seconds: float | None = Field(default=None, description="The same as the planner predicts it.")
    staleness_mean: float | None = Field(default=None, description="Mean staleness in policy versions.")
    staleness_max: float | None = Field(default=None, description="Largest staleness in policy versions.")
    queue_groups: float | None = Field(default=None, description="Complete groups that wait for the trainer.")
    in_flight_samples: float | None = Field(default=None, description="Samples submitted and not finished.")
    in_flight_cap: int | None = Field(default=None, description="The cap on them by the split in force.")
    response_tokens_mean: float | None = Field(default=None, description="Mean response length in tokens.")


class JobJson(ApiModel):
    """A job as it is now."""

    namespace: str
    """Namespace of the RLJob."""
    name: str
    """Name of the RLJob."""
    uid: str
    """Uid of the RLJob."""
    created_at: str | None = Field(default=None, description="When the RLJob was created.")
    phase: str
    """Where it stands in its life; Unreadable if another version wrote its status."""
    mode: str
    """Recommend, Initial or Auto."""
    model: str | None = Field(default=None, description="Name of the model; absent for a config of its own.")
    gpus: int | None = Field(default=None, description="The budget.")
    steps: int | None = Field(default=None, description="Steps of the run.")
    staleness_limit: int | None = Field(default=None, description="spec.staleness.max in policy versions.")
    bound: str | None = Field(default=None, description="spec.staleness.bound, which says what the limit promises.")
    samplers: str | None = Field(default=None, description="Ready and wished sampler pods, such as 6/8.")
    trainers: str | None = Field(default=None, description="Ready and wished trainer pods, such as 2/2.")
    split: SplitJson | None = Field(default=None, description="The split in force.")
    now: PointJson
    """What is known now."""
    summary: str | None = Field(default=None, description="What the job does and what was done to it.")
    next: str | None = Field(default=None, description="What comes next, and what it waits for.")
    conditions: tuple[ConditionJson, ...] = ()
    """Its conditions."""
    move: MoveJson | None = Field(default=None, description="The move under way.")
    last_decision: DecisionJson | None = Field(default=None, description="The decision that was taken last.")

    @property
    def bad(self) -> tuple[ConditionJson, ...]:
        """The conditions that ask for something or wait for it."""
        return tuple(c for c in self.conditions if not c.good)


class JobHistoryJson(JobJson):
    """A job with what was seen of it since the process began."""

    history: tuple[PointJson, ...] = ()
    """What was known over time, thinned out where it gets long."""
    moves: tuple[MoveJson, ...] = ()
    """The moves that were seen, the newest last."""
    decisions: tuple[DecisionJson, ...] = ()
    """The decisions that were seen, the newest last."""


class StatusPageJson(ApiModel):
    """All jobs, as ``/api/jobs`` answers."""

    version: str
    """Version of the operator."""
    recorded_since: str
    """When the process began, and with it everything that is shown over time."""
    at: str
    """When this was written."""
    leading: bool
    """Whether this replica leads; what a replica shows does not depend on it."""
    jobs: tuple[JobJson, ...]
    """The jobs, by namespace and name."""


class JobPageJson(ApiModel):
    """One job, as ``/api/jobs/<namespace>/<name>`` answers."""

    version: str
    """Version of the operator."""
    recorded_since: str
    """When the process began, and with it everything that is shown over time."""
    at: str
    """When this was written."""
    leading: bool
    """Whether this replica leads; what a replica shows does not depend on it."""
    job: JobHistoryJson
    """The job."""
