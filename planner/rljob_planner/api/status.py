"""What the operator reports on an ``RLJob``, and the only memory it has.

Everything that must survive a restart of the operator stands here: the split in force, the transaction that may be under
way, the calibration and the last decisions. Times are RFC 3339 strings in UTC, as elsewhere in Kubernetes. ``None`` means
unknown, never zero.
"""

from __future__ import annotations

from enum import StrEnum

from pydantic import Field

from rljob_planner.api.base import ApiModel
from rljob_planner.api.evidence import DecisionInputs, EvidenceStatus, LengthTrendStatus, MeasuredMove, PhaseSeconds
from rljob_planner.api.fleets import SandboxStatus
from rljob_planner.api.requests import MoveRequestStatus
from rljob_planner.split import Split


class Phase(StrEnum):
    """Where an RLJob stands in its life."""

    PENDING = "Pending"
    PLANNED = "Planned"
    STARTING = "Starting"
    RUNNING = "Running"
    REBALANCING = "Rebalancing"
    SUSPENDED = "Suspended"
    COMPLETE = "Complete"
    FAILED = "Failed"


class ConditionType(StrEnum):
    """The conditions of an RLJob, each usable with ``kubectl wait``."""

    READY = "Ready"
    PLANNED = "Planned"
    SCHEDULED = "Scheduled"
    METRICS_AVAILABLE = "MetricsAvailable"
    WITHIN_STALENESS = "WithinStaleness"
    REBALANCING = "Rebalancing"
    DEGRADED = "Degraded"


class Condition(ApiModel):
    """A condition as in ``metav1``: its message says what to do when the status is not the wished one."""

    type: ConditionType
    """Type of the condition."""
    status: str = Field(pattern="^(True|False|Unknown)$")
    """True, False or Unknown."""
    reason: str
    """Why, in one word for programs."""
    message: str
    """Why, and what to do, for people."""
    last_transition_time: str
    """When the status changed last."""
    observed_generation: int
    """Generation of the spec that the condition speaks of."""


class Spread(ApiModel):
    """A duration with its spread, in seconds."""

    mean: float
    """Mean in seconds."""
    p10: float
    """10th percentile in seconds."""
    p50: float
    """Median in seconds."""
    p90: float
    """90th percentile in seconds."""


class StalenessSummary(ApiModel):
    """Staleness of trained samples, in policy versions."""

    mean: float
    """Mean in policy versions."""
    p95: float
    """95th percentile in policy versions."""
    max: float
    """Largest in policy versions."""


class RunTime(ApiModel):
    """Expected time of the run, in seconds."""

    p10: float
    """10th percentile in seconds."""
    p50: float
    """Median in seconds."""
    p90: float
    """90th percentile in seconds."""


class PlanStatus(ApiModel):
    """The plan that the split in force came from, or that the operator recommends."""

    split: Split
    """The planned split."""
    period: Spread
    """Expected time between two published policy versions."""
    staleness: StalenessSummary
    """Expected staleness of trained samples."""
    run_time: RunTime
    """Expected time of the whole run."""
    synchronous_period: float | None = Field(
        default=None, description="Period of the best synchronous layout in seconds."
    )
    bottleneck: str = Field(description="Which side bounds the period: samplers, trainers or balanced.")
    confidence: float | None = Field(
        default=None, description="Relative residual of the calibrated model; absent until something is measured."
    )
    placeable_gpus: int = Field(description="GPUs of the budget that the nodes can really hold.")
    planned_at: str
    """When the plan was made."""
    sources: tuple[str, ...] = Field(
        default=(),
        description="What the plan rests on besides the spec: benchmarks, earlier runs, and what this run measured.",
    )


class ObservedStatus(ApiModel):
    """What the metrics and the API server showed last."""

    at: str
    """When it was read."""
    policy_version: int | None = None
    """Policy version published last."""
    period_seconds: float | None = None
    """Seconds between two published policy versions."""
    staleness_mean: float | None = None
    """Mean staleness of trained samples in policy versions."""
    staleness_max: float | None = None
    """Largest staleness of trained samples in policy versions."""
    queue_groups: float | None = None
    """Complete groups that wait for the trainer."""
    in_flight_samples: float | None = None
    """Samples submitted and not finished."""
    response_tokens_mean: float | None = None
    """Mean response length in tokens, corrected for samples that still run."""
    kv_usage: float | None = Field(default=None, description="Mean share of the samplers' KV room in use, 0 to 1.")
    gpus_held: int = Field(default=0, description="GPUs of pods that are bound or ungated and not yet gone.")
    layout_generation: int | None = Field(
        default=None, description="Smallest layout generation that the trainer pods acknowledged."
    )
    stand_ins: tuple[str, ...] | None = Field(
        default=None,
        description="What of it the samplers tell in the job's place, such as response lengths, and why; absent if nothing.",
    )


class CalibrationStatus(ApiModel):
    """Measured over predicted speed, one factor a side, and how well the calibrated model fits."""

    sampler_factor: float = 1.0
    """Measured over predicted speed of the samplers."""
    trainer_factor: float = 1.0
    """Measured over predicted speed of the trainers."""
    residual: float | None = None
    """Relative error that is left after calibration; absent until measured."""
    pegged: bool = False
    """Whether a factor sits at its limit: the model or the hardware is not what the spec says."""
    observations: int = 0
    """Measurements that the factors rest on."""
    sampler_evidence: EvidenceStatus | None = None
    """What is behind the samplers' factor; absent until they were measured."""
    trainer_evidence: EvidenceStatus | None = None
    """What is behind the trainers' factor; absent until they were measured."""
    lengths: LengthTrendStatus | None = None
    """How response lengths move; absent until they were measured."""


class MovePhase(StrEnum):
    """The phases of a move, in order; a move that rolls back walks through them again, towards the split before it."""

    ANNOUNCE = "Announce"
    DRAIN = "Drain"
    CHECKPOINT = "Checkpoint"
    SHRINK = "Shrink"
    GROW = "Grow"
    VERIFY = "Verify"


class MoveCause(StrEnum):
    """What a move was started for."""

    DECISION = "Decision"
    """It saves time (or cost) over the run."""
    SPEC_CHANGE = "SpecChange"
    """The split in force no longer kept an edited spec."""
    GROWTH = "Growth"
    """The split in force left a raised budget unused, and nothing was measured that could say more."""
    BY_HAND = "ByHand"
    """Somebody asked for it."""


class KeptPod(ApiModel):
    """A pod of a side that shrinks which is to stay."""

    pod: str
    """Name of the pod."""
    running: int | None = Field(
        default=None, description="Samples that ran on it when the shrink began; absent if unknown."
    )


class MoveStatus(ApiModel):
    """A move under way: everything that is needed to go on after a restart."""

    id: str
    """Name of the move, unique within the job."""
    phase: MovePhase
    """The phase that the move is in."""
    from_split: Split = Field(alias="from")
    """The split before the move."""
    to_split: Split = Field(alias="to")
    """The split that the move leads to."""
    reason: str
    """Why the move was started."""
    predicted_gain: float = Field(description="Predicted gain as a fraction of the period.")
    generation: int = Field(description="Layout generation that the current phase published.")
    started_at: str
    """When the move started."""
    phase_since: str
    """When the current phase began."""
    deadline: str = Field(description="When the current phase gives up.")
    victims: tuple[str, ...] = Field(default=(), description="Pods that the move removes.")
    waiting_for: str = Field(default="", description="What the current phase waits for, and what a person can do.")
    rolling_back: bool = Field(default=False, description="Whether the move leads back to the split before it.")
    cause: MoveCause = Field(default=MoveCause.DECISION, description="Decision, SpecChange, Growth or ByHand.")
    request: str | None = Field(default=None, description="The request that the move follows; absent for other causes.")
    restart: bool = Field(
        default=False,
        description="Whether all trainer pods go, after a checkpoint, and come again in their new number.",
    )
    unmeasured: bool = Field(
        default=False,
        description="Whether no acknowledgement could be read when the move started, so that none is insisted on.",
    )
    drained: tuple[str, ...] = Field(
        default=(), description="Victims that run nothing and go at once, because the job holds more than its budget."
    )
    kept: tuple[KeptPod, ...] = Field(
        default=(), description="Pods of the side that shrinks which are to stay, as they were when the shrink began."
    )
    held_since: str | None = Field(
        default=None, description="Since when the move stands still because another autoscaler scales a child."
    )
    policy_version_at_start: int | None = Field(default=None, description="Policy version when the move started.")
    period_at_start: float | None = Field(default=None, description="Observed period before the move, in seconds.")
    inputs: DecisionInputs | None = None
    """What the decision to move rested on; absent where the spec demanded the move."""
    phases: PhaseSeconds = Field(default_factory=PhaseSeconds)
    """What the phases that are over took."""


class MoveHistory(ApiModel):
    """What earlier moves left behind: cool-down, back-off and the measured cost of a move."""

    last_ended_at: str | None = None
    """When the last move ended."""
    last_outcome: str | None = Field(default=None, description="Committed or RolledBack.")
    failures: int = Field(default=0, description="Roll-backs in a row.")
    not_before: str | None = Field(default=None, description="No move starts before this time.")
    cost_seconds: float | None = Field(default=None, description="Measured cost of a move in seconds of lost progress.")
    moves: int = 0
    """Moves that were committed."""
    lost_samples: int = Field(
        default=0,
        description="Samples that ran on pods which went in a shrink though they were to stay, as far as known.",
    )
    phases: PhaseSeconds = Field(default_factory=PhaseSeconds)
    """What the phases of a move take in this job."""
    measured: MeasuredMove | None = None
    """What the last committed move gained."""
    requests: tuple[MoveRequestStatus, ...] = Field(
        default=(), description="The last five moves that people asked for, the newest last."
    )


class DecisionCode(StrEnum):
    """Why the operator moved, or did not."""

    INITIAL_PLAN = "InitialPlan"
    MOVE = "Move"
    MOVE_COMMITTED = "MoveCommitted"
    MOVE_ROLLED_BACK = "MoveRolledBack"
    SPEC_CHANGED = "SpecChanged"
    POOL_LOST = "PoolLost"
    BUDGET_RAISED = "BudgetRaised"
    MOVE_BY_HAND = "MoveByHand"
    LOWER_CAP = "LowerCap"
    RAISE_CAP = "RaiseCap"
    AT_OPTIMUM = "AtOptimum"
    GAIN_TOO_SMALL = "GainTooSmall"
    NOT_WORTH_COST = "NotWorthCost"
    UNCERTAIN = "Uncertain"
    NOT_PERSISTED = "NotPersisted"
    COOLDOWN = "Cooldown"
    BACK_OFF = "BackOff"
    METRICS_UNKNOWN = "MetricsUnknown"
    NOT_READY = "NotReady"
    SETTLING = "Settling"
    RECOMMEND_ONLY = "RecommendOnly"
    INITIAL_ONLY = "InitialOnly"
    TRAINER_FIXED = "TrainerFixed"
    SIDE_BROKEN = "SideBroken"
    NOTHING_PLACEABLE = "NothingPlaceable"


class DecisionStatus(ApiModel):
    """One decision, with what it rested on."""

    at: str
    """When it was taken, or last repeated."""
    code: DecisionCode
    """Why, in one word for programs."""
    message: str
    """Why, with the numbers, for people."""
    from_split: Split | None = Field(default=None, alias="from")
    """The split at the time."""
    to_split: Split | None = Field(default=None, alias="to")
    """The split that was wished."""
    predicted_gain: float | None = None
    """Predicted gain as a fraction of the period."""
    uncertainty: float | None = Field(default=None, description="Standard error of the predicted gain.")
    measured_gain: float | None = None
    """Measured gain as a fraction of the period, once a move has ended."""
    measured_against: str | None = Field(
        default=None,
        description="What the measured gain compares with: the period before the move, or its forecast for later lengths.",
    )
    saving_seconds: float | None = None
    """Predicted saving over the remaining steps, in seconds."""
    cost_seconds: float | None = None
    """Cost of the move in seconds of lost progress."""
    response_tokens_mean: float | None = None
    """Mean response length in tokens at the time."""
    period_seconds: float | None = None
    """Observed period in seconds at the time."""
    inputs: DecisionInputs | None = None
    """What it rested on; absent where nothing was planned."""
    count: int = Field(default=1, description="How often the same decision was taken in a row.")


class LengthPoint(ApiModel):
    """How long responses were at a step of the run."""

    step: int
    """Policy version at which it was measured."""
    mean: float
    """Mean response length in tokens."""
    environment_seconds: float | None = Field(
        default=None, description="Mean seconds of a turn in the environment, in an agentic job."
    )


class DecodeConstants(ApiModel):
    """Constants of a decode step that were measured on the job's engine; they replace those of the GPU."""

    mbu: float
    """Share of the memory bandwidth that is reached."""
    mfu: float
    """Share of the peak FLOPs that is reached."""
    layer_seconds: float
    """Seconds a layer adds to a step."""
    step_seconds: float
    """Seconds a step takes besides its layers."""
    request_seconds: float
    """Seconds a running sample adds to a step."""


class MeasuredSeconds(ApiModel):
    """What steps were measured to take, whatever the accelerator; it replaces what data sheets say."""

    iteration: float | None = Field(
        default=None, description="Seconds an iteration of a sampler takes, whatever it runs."
    )
    sample: float | None = Field(default=None, description="Seconds a running sample adds to an iteration.")
    context_token: float | None = Field(default=None, description="Seconds a resident token adds to an iteration.")
    prompt_token: float | None = Field(
        default=None, description="Seconds a prompt token adds to the iteration that prefills it."
    )
    experts: float | None = Field(
        default=None, description="Seconds that all routed experts add to an iteration, which visits a share of them."
    )
    train_step: float | None = Field(default=None, description="Seconds a training step takes, whatever it trains on.")
    train_token: float | None = Field(
        default=None, description="Seconds a token of the batch adds to a training step, over the trainers' GPUs."
    )


class LearnedStatus(ApiModel):
    """What was known before the run: read once, when the job was planned first, so that later plans rest on the same."""

    profile: str | None = Field(default=None, description="The RLJobProfile that earlier runs left.")
    runs: int = Field(default=0, description="Earlier runs that it rests on.")
    uncertainty: float | None = Field(
        default=None, description="Relative error that the speeds of earlier runs may have in this one."
    )
    move_cost_seconds: float | None = Field(
        default=None, description="What a move cost in earlier runs, in seconds of lost progress."
    )
    response_tokens_mean: float | None = Field(
        default=None, description="Mean response length in tokens at the start of earlier runs."
    )
    config_map: str | None = Field(default=None, description="The ConfigMap with measured speeds that was read.")
    decode: DecodeConstants | None = None
    """Constants of a decode step from the ConfigMap."""
    seconds: MeasuredSeconds | None = None
    """Measured seconds of steps from the ConfigMap."""
    sampler_efficiency: float | None = Field(
        default=None, description="Stated speed of samplers in a running job over their engine's alone."
    )
    kv_tokens: int | None = Field(
        default=None, description="KV room of a replica in tokens, as its engine reported it."
    )
    tensor_parallel: int | None = Field(
        default=None, description="Width of the engine that the constants and the KV room were measured on."
    )


class RLJobStatus(ApiModel):
    """What the operator reports; nobody else writes it."""

    phase: Phase = Phase.PENDING
    """Where the job stands in its life."""
    summary: str | None = Field(
        default=None,
        description="What the job does, what was done to its split, why, and what it gained: a sentence or two.",
    )
    next: str | None = Field(default=None, description="What comes next, and what it waits for.")
    observed_generation: int = 0
    """Generation of the spec that the status speaks of."""
    conditions: tuple[Condition, ...] = Field(
        default=(),
        description="Conditions for kubectl wait; each message says what to do.",
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]},
    )
    samplers: str | None = Field(default=None, description="Ready and wished sampler pods, such as 6/8.")
    trainers: str | None = Field(default=None, description="Ready and wished trainer pods, such as 2/2.")
    plan: PlanStatus | None = None
    """The plan that the split in force came from, or that the operator recommends."""
    split: Split | None = Field(
        default=None, description="The split in force: what the children are made from outside of a move."
    )
    layout_generation: int = Field(default=0, description="Generation of the layout published last.")
    holder: str | None = Field(
        default=None,
        description="The operator that leads, with the count of changes, as it took the job over; absent without leader election.",
    )
    grants: tuple[str, ...] = Field(
        default=(),
        description="Uids of pods whose budget gate is about to be lifted: written before, so that no GPU is given twice.",
    )
    stopping_since: str | None = Field(
        default=None, description="When the job began to give up its GPUs, because it is suspended or complete."
    )
    drained_since: str | None = Field(
        default=None,
        description="Since when a stopping job's samplers run nothing: only then is a checkpoint asked for.",
    )
    completed_version: int | None = Field(
        default=None,
        description="Policy version at which the run was complete; a spec.workload.steps above it resumes the run.",
    )
    observed: ObservedStatus | None = None
    """What the metrics and the API server showed last."""
    sandboxes: SandboxStatus | None = None
    """The sandbox fleet; absent where the job has none of its own."""
    calibration: CalibrationStatus | None = None
    """Measured over predicted speed, one factor a side."""
    rebalance: MoveStatus | None = None
    """The move under way; absent outside of a move."""
    moves: MoveHistory = Field(default_factory=MoveHistory)
    """What earlier moves left behind: cool-down, back-off and the measured cost of a move."""
    decisions: tuple[DecisionStatus, ...] = Field(default=(), description="The last ten decisions, the newest last.")
    lengths: tuple[LengthPoint, ...] = Field(
        default=(), description="Response lengths over the run, at most 32 points; they end in the run's RLJobProfile."
    )
    learned: LearnedStatus | None = None
    """What was known before the run; absent if nothing was."""
