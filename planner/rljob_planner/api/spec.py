"""What a user writes: one ``RLJob``.

A field stands here once it has an effect; a field that is absent is chosen by the planner or learned from the run, so ``None``
always means "not said" and never a number. Rules that can be checked when the object is applied are CEL rules in the CRD
(``crd``), generated from the constraints and the ``rules`` kept beside the fields here.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any, ClassVar

from pydantic import Field

from rljob_planner.api.base import ApiModel, Duration, Percent, duration_s, percent_fraction
from rljob_planner.api.status import RLJobStatus


class Rule(ApiModel):
    """A CEL rule of the CRD: the expression, and a message that says what to write instead."""

    rule: str
    message: str


class Objective(StrEnum):
    """What the best split minimises."""

    TIME = "time"
    COST = "cost"


class Bound(StrEnum):
    """The rule that the job's own framework enforces to keep staleness at or under its maximum."""

    NONE = "none"
    ADMISSION = "admission"
    HOLD = "hold"
    DROP = "drop"


class Overflow(StrEnum):
    """What happens to a queue at capacity."""

    DROP_OLDEST = "drop-oldest"
    BLOCK = "block"


class Precision(StrEnum):
    """A number format of weights or KV cache."""

    BF16 = "bf16"
    FP16 = "fp16"
    FP8 = "fp8"


class TrainerKind(StrEnum):
    """The workload that runs the trainer's pods."""

    DEPLOYMENT = "Deployment"
    STATEFUL_SET = "StatefulSet"


class Resize(StrEnum):
    """How a trainer follows a change of its replicas."""

    ELASTIC = "elastic"
    FIXED = "fixed"


class BatchRule(StrEnum):
    """Whether the trainer's replicas must divide the batch."""

    PADDED = "padded"
    STRICT = "strict"


class Recompute(StrEnum):
    """How much of the forward pass the trainer computes again in the backward pass."""

    FULL = "full"
    SELECTIVE = "selective"
    NONE = "none"


class ExtraForward(StrEnum):
    """A forward pass over the batch besides that of the training step."""

    OLD_LOGPROB = "oldLogprob"
    REFERENCE = "reference"


class RebalanceMode(StrEnum):
    """How much the operator may do: only say, plan once, or keep the split right."""

    RECOMMEND = "Recommend"
    INITIAL = "Initial"
    AUTO = "Auto"


class Toleration(ApiModel):
    """A toleration of a pod, as in the core API."""

    key: str | None = None
    operator: str | None = None
    value: str | None = None
    effect: str | None = None
    toleration_seconds: int | None = None


class Nodes(ApiModel):
    """The nodes that may run the job's pods."""

    selector: dict[str, str] = Field(default_factory=dict, description="Labels that a node must carry.")
    tolerations: tuple[Toleration, ...] = Field(default=(), description="Tolerations added to the pods.")
    gpu_resource: str = Field(default="nvidia.com/gpu", description="The extended resource that counts GPUs.")


class Model(ApiModel):
    """The model that is trained."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            rule="has(self.name) != has(self.config)",
            message="say which model: either model.name (such as Qwen/Qwen3-8B) or model.config (the fields of its config.json)",
        ),
    )

    name: str | None = Field(default=None, description="A known model, such as Qwen/Qwen3-30B-A3B.")
    config: dict[str, Any] | None = Field(
        default=None, description="The fields of the model's Hugging Face config.json, for a model that is not known by name."
    )
    weights: Precision = Field(default=Precision.BF16, description="Number format of the samplers' weights.")
    kv_cache: Precision = Field(default=Precision.BF16, description="Number format of the samplers' KV cache.")


class PromptTokens(ApiModel):
    """The length of prompts."""

    mean: int = Field(ge=1, le=1_000_000, description="Mean prompt length in tokens.")


class ResponseTokens(ApiModel):
    """The length distribution of responses at the start of the run; the operator learns how it moves."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            rule="(has(self.mean) ? 1 : 0) + (has(self.quantiles) ? 1 : 0) + (has(self.histogram) ? 1 : 0) == 1",
            message="describe response lengths in one way: mean (with cv), quantiles or histogram",
        ),
        Rule(
            rule="!has(self.mean) || self.mean <= self.max",
            message="responseTokens.mean is above responseTokens.max: raise max, the cap on a response, or lower mean",
        ),
    )

    mean: int | None = Field(default=None, ge=1, le=10_000_000, description="Mean response length in tokens.")
    cv: float = Field(default=1.0, ge=0.0, le=10.0, description="Standard deviation over mean, used with mean.")
    max: int = Field(ge=1, le=10_000_000, description="Cap on a response in tokens.")
    quantiles: dict[str, int] | None = Field(
        default=None, description="Tokens at quantiles, such as {'0.5': 800, '0.9': 3400}."
    )
    histogram: tuple[tuple[int, int], ...] | None = Field(
        default=None, description="Pairs of upper edge in tokens and count of samples."
    )


class Workload(ApiModel):
    """One training step's worth of work, and how many steps there are."""

    prompts_per_step: int = Field(ge=1, le=1_000_000, description="Groups that one training step consumes.")
    samples_per_prompt: int = Field(ge=1, le=10_000, description="Samples in a group.")
    steps: int = Field(ge=1, le=10_000_000, description="Training steps of the run.")
    prompt_tokens: PromptTokens
    response_tokens: ResponseTokens

    @property
    def samples_per_step(self) -> int:
        """The training batch in samples."""
        return self.prompts_per_step * self.samples_per_prompt


class Staleness(ApiModel):
    """The staleness that the method tolerates and how the job's framework keeps to it."""

    max: int = Field(ge=0, le=10_000, description="Largest tolerated staleness in policy versions.")
    bound: Bound = Field(default=Bound.ADMISSION, description="The rule that the job's framework enforces.")


class Queue(ApiModel):
    """The queue of complete groups between samplers and trainer."""

    capacity: int = Field(ge=1, description="Capacity in groups.")
    overflow: Overflow = Field(default=Overflow.DROP_OLDEST, description="What happens to a group that does not fit.")


class Sampler(ApiModel):
    """The fleet that generates rollouts."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            rule="!has(self.maxReplicas) || self.minReplicas <= self.maxReplicas",
            message="sampler.minReplicas is above sampler.maxReplicas: lower minReplicas or raise maxReplicas",
        ),
    )

    engine: str = Field(default="vllm", pattern="^vllm$", description="Inference engine.")
    gpus_per_replica: int | None = Field(default=None, ge=1, le=64, description="GPUs of a sampler pod; chosen by the planner if absent.")
    min_replicas: int = Field(default=1, ge=1, description="Fewest sampler pods.")
    max_replicas: int | None = Field(default=None, ge=1, description="Most sampler pods.")
    max_running: int | None = Field(default=None, ge=1, le=65536, description="Most running samples of a replica (max_num_seqs); chosen by the planner if absent.")
    drain_timeout: Duration = Field(default="15m", description="How long a sampler that leaves may finish its samples.")
    nodes: Nodes | None = Field(default=None, description="Overrides spec.nodes for samplers.")
    template: dict[str, Any] = Field(description="A PodTemplateSpec; the first container gets the GPUs.")

    @property
    def drain_timeout_s(self) -> float:
        """The drain timeout in seconds."""
        return duration_s(self.drain_timeout)


class Trainer(ApiModel):
    """The fleet that consumes samples and publishes policy versions."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            rule="!has(self.maxReplicas) || self.minReplicas <= self.maxReplicas",
            message="trainer.minReplicas is above trainer.maxReplicas: lower minReplicas or raise maxReplicas",
        ),
    )

    gpus_per_replica: int = Field(default=8, ge=1, le=64, description="GPUs of a trainer pod.")
    min_replicas: int = Field(default=1, ge=1, description="Fewest trainer pods.")
    max_replicas: int | None = Field(default=None, ge=1, description="Most trainer pods.")
    kind: TrainerKind = Field(default=TrainerKind.DEPLOYMENT, description="The workload that runs the trainer's pods.")
    resize: Resize = Field(default=Resize.ELASTIC, description="How the trainer follows a change of its replicas.")
    batch: BatchRule = Field(default=BatchRule.PADDED, description="Whether replicas must divide the batch.")
    mfu: Percent | None = Field(default=None, description="Model FLOPs utilisation; a default by model kind if absent, then learned.")
    recompute: Recompute = Field(default=Recompute.FULL, description="Activation recomputation.")
    extra_forwards: tuple[ExtraForward, ...] = Field(default=(), description="Forward passes besides that of the training step.")
    nodes: Nodes | None = Field(default=None, description="Overrides spec.nodes for trainers.")
    template: dict[str, Any] = Field(description="A PodTemplateSpec; the first container gets the GPUs.")

    @property
    def mfu_fraction(self) -> float | None:
        """The stated MFU as a fraction, None if it is not stated."""
        return None if self.mfu is None else percent_fraction(self.mfu)


class Rebalance(ApiModel):
    """What the operator may do to the split, and how calm it must be."""

    mode: RebalanceMode = Field(default=RebalanceMode.AUTO, description="Recommend says, Initial plans once, Auto keeps the split right.")
    interval: Duration = Field(default="60s", description="Time between two decisions.")
    min_gain: Percent = Field(default="5%", description="Smallest gain in the period that is worth a move.")
    persistence: int = Field(default=3, ge=1, le=100, description="Decisions in a row that must agree before a move.")
    cooldown: Duration = Field(default="15m", description="Time after a move in which none starts.")
    max_step_gpus: int | None = Field(default=None, alias="maxStepGPUs", ge=1, description="Most GPUs that one move takes from a side; the wider replica's GPUs if absent.")

    @property
    def interval_s(self) -> float:
        """The interval in seconds."""
        return duration_s(self.interval)

    @property
    def min_gain_fraction(self) -> float:
        """The smallest gain as a fraction of the period."""
        return percent_fraction(self.min_gain)

    @property
    def cooldown_s(self) -> float:
        """The cooldown in seconds."""
        return duration_s(self.cooldown)


class Metrics(ApiModel):
    """Where the job's metrics are read."""

    prometheus: str | None = Field(default=None, pattern="^https?://", description="URL of the Prometheus that scrapes the job; one that the operator's configuration allows. Its default if absent.")


class RLJobSpec(ApiModel):
    """The spec of an RLJob."""

    suspend: bool = Field(default=False, description="Free all GPUs and keep the object.")
    gpus: int = Field(ge=2, le=1_000_000, description="The budget in GPUs, never exceeded at any instant.")
    objective: Objective = Field(default=Objective.TIME, description="What the best split minimises.")
    nodes: Nodes = Field(default_factory=Nodes)
    accelerator: str | None = Field(default=None, description="The GPU's name, such as H100-SXM; read from the nodes' nvidia.com/gpu.product if absent.")
    model: Model
    workload: Workload
    staleness: Staleness
    queue: Queue | None = None
    sampler: Sampler
    trainer: Trainer
    rebalance: Rebalance = Field(default_factory=Rebalance)
    metrics: Metrics = Field(default_factory=Metrics)


class RLJob(ApiModel):
    """One RL post-training job: the object that users apply."""

    api_version: str = "rljob.dev/v1alpha1"
    kind: str = "RLJob"
    metadata: dict[str, Any] = Field(default_factory=dict)
    spec: RLJobSpec
    status: RLJobStatus | None = None
