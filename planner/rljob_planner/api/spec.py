"""What a user writes: one ``RLJob``.

A field stands here once it has an effect; a field that is absent is chosen by the planner or learned from the run, so ``None``
always means "not said" and never a number. What can be known to be wrong when the object is applied is said by the
constraints of the fields and by the ``rules`` beside them; ``crd`` turns both into the CRD. Rules that span several parts of
the spec stand in ``rules``, those of one part beside its fields.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any, ClassVar, Literal

from pydantic import Field

from rljob_planner.api import rules
from rljob_planner.api.base import ApiModel, Bool, Duration, Int, Percent, Rule, duration_s, percent_fraction
from rljob_planner.api.companions import Driver, Sandbox, SandboxNetwork
from rljob_planner.api.nodes import Nodes, Toleration
from rljob_planner.api.pools import MOST_POOLS, POOL_RULES, Pools, SamplerPool
from rljob_planner.api.status import RLJobStatus
from rljob_planner.api.targets import TargetRef, described_once
from rljob_planner.api.template import Template
from rljob_planner.api.workload import (
    Bound,
    Environment,
    Overflow,
    PromptTokens,
    Queue,
    ResponseTokens,
    Staleness,
    Workload,
)

__all__ = [
    "BatchRule",
    "Bound",
    "CalibrationSource",
    "Driver",
    "EngineName",
    "Environment",
    "ExtraForward",
    "Metrics",
    "Model",
    "Nodes",
    "Objective",
    "Overflow",
    "Precision",
    "PromptTokens",
    "Queue",
    "RLJob",
    "RLJobSpec",
    "Rebalance",
    "RebalanceMode",
    "Recompute",
    "Resize",
    "ResponseTokens",
    "Rule",
    "Sampler",
    "SamplerPool",
    "Sandbox",
    "SandboxNetwork",
    "Staleness",
    "TargetRef",
    "Toleration",
    "Trainer",
    "TrainerKind",
    "WeightPrecision",
    "Workload",
]


class Objective(StrEnum):
    """What the best split minimises."""

    TIME = "time"
    COST = "cost"


class Precision(StrEnum):
    """A number format of the KV cache."""

    BF16 = "bf16"
    FP16 = "fp16"
    FP8 = "fp8"


class WeightPrecision(StrEnum):
    """A number format of samplers' weights; ``rljob_planner.precision`` says what a weight of it takes."""

    BF16 = "bf16"
    FP16 = "fp16"
    FP8 = "fp8"
    FP8_BLOCK = "fp8_block"
    MXFP4 = "mxfp4"
    NVFP4 = "nvfp4"


class EngineName(StrEnum):
    """The inference engine that serves in a sampler's first container."""

    VLLM = "vllm"
    SGLANG = "sglang"


class TrainerKind(StrEnum):
    """The workload that runs the trainer's pods."""

    DEPLOYMENT = "Deployment"
    STATEFUL_SET = "StatefulSet"


class Resize(StrEnum):
    """How a trainer follows a change of its replicas."""

    ELASTIC = "elastic"
    RESTART = "restart"
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


class Model(ApiModel):
    """The model that is trained."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            rule="has(self.name) != has(self.config)",
            message="say which model: either model.name (such as Qwen/Qwen3-8B) or model.config (the fields of its config.json)",
            holds=lambda m: (m.name is None) != (m.config is None),
        ),
    )

    name: str | None = Field(
        default=None,
        min_length=1,
        max_length=256,
        description="A known model, such as Qwen/Qwen3-30B-A3B; it can't change in a run.",
    )
    config: dict[str, Any] | None = Field(
        default=None,
        description="The fields of the model's Hugging Face config.json, for a model that is not known by name.",
    )
    weights: WeightPrecision = Field(
        default=WeightPrecision.BF16,
        description="Number format of the samplers' weights; fp8_block has a scale for each block of a weight, as DeepSeek's has.",
    )
    kv_cache: Precision = Field(default=Precision.BF16, description="Number format of the samplers' KV cache.")


class Sampler(ApiModel):
    """The fleet that generates rollouts."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            rule="!has(self.maxReplicas) || self.minReplicas <= self.maxReplicas",
            message="sampler.minReplicas is above sampler.maxReplicas: lower minReplicas or raise maxReplicas",
            holds=lambda s: s.max_replicas is None or s.min_replicas <= s.max_replicas,
            field="minReplicas",
        ),
        described_once("sampler"),
        *POOL_RULES,
    )

    engine: EngineName = Field(
        default=EngineName.VLLM,
        description="The inference engine of the first container: whose metrics are read, and whose defaults the pods get.",
    )
    engine_defaults: Bool = Field(
        default=True,
        description=(
            "Whether what the engine needs in a pod (probes, a port, time and arguments to end its samples, annotations for a scrape) is "
            "added where the template leaves it out and visibly starts the engine's server; false leaves the template as it is."
        ),
    )
    gpus_per_replica: Int | None = Field(
        default=None,
        ge=1,
        le=64,
        description="GPUs of a sampler pod, all on one node; chosen by the planner if absent.",
    )
    min_replicas: Int = Field(default=1, ge=1, le=100_000, description="Fewest sampler pods.")
    max_replicas: Int | None = Field(
        default=None, ge=1, le=100_000, description="Most sampler pods; as many as the budget allows if absent."
    )
    max_running: Int | None = Field(
        default=None,
        ge=1,
        le=65536,
        description="Most running samples of a replica (vLLM's max_num_seqs); chosen by the planner if absent.",
    )
    drain_timeout: Duration = Field(
        default="15m",
        description="How long a sampler that leaves may finish its samples, as a duration such as 90s or 15m.",
    )
    nodes: Nodes | None = Field(default=None, description="The nodes for samplers, instead of spec.nodes.")
    pools: Pools = Field(
        default=(),
        max_length=MOST_POOLS,
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]},
        description="Node pools that samplers may span, instead of nodes; the fastest are filled first.",
    )
    target_ref: TargetRef | None = Field(
        default=None,
        description="Samplers that run already, instead of a template: they are watched and never touched, in mode Recommend.",
    )
    template: Template = Field(
        default_factory=dict,
        description=(
            "A PodTemplateSpec for sampler pods. The operator sets the GPUs of the first container, its RLJOB_ environment "
            "and the layout volume; write $(RLJOB_TENSOR_PARALLEL) and $(RLJOB_MAX_RUNNING) where the engine needs them."
        ),
    )

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
            holds=lambda t: t.max_replicas is None or t.min_replicas <= t.max_replicas,
            field="minReplicas",
        ),
        Rule(
            # A value that breaks the pattern has its own error; evaluating it here would only hide that one.
            rule=(
                "!has(self.mfu) || !self.mfu.matches('^[0-9]+([.][0-9]+)?%$') || "
                "(double(self.mfu.replace('%', '')) > 0.0 && double(self.mfu.replace('%', '')) <= 100.0)"
            ),
            message="trainer.mfu is a share of the peak: write a percent above 0% and up to 100%, such as 35%",
            holds=lambda t: t.mfu_fraction is None or 0.0 < t.mfu_fraction <= 1.0,
            field="mfu",
        ),
        described_once("trainer"),
    )

    gpus_per_replica: Int = Field(default=8, ge=1, le=64, description="GPUs of a trainer pod, all on one node.")
    min_replicas: Int = Field(default=1, ge=1, le=100_000, description="Fewest trainer pods.")
    max_replicas: Int | None = Field(
        default=None, ge=1, le=100_000, description="Most trainer pods; as many as the budget allows if absent."
    )
    kind: TrainerKind = Field(
        default=TrainerKind.DEPLOYMENT,
        description="The workload that runs the trainer's pods; it can't change in a run.",
    )
    resize: Resize = Field(
        default=Resize.ELASTIC,
        description=(
            "elastic: replicas may change at a step boundary; restart: a checkpoint is asked for, then all trainer pods go and "
            "come again in their new number; fixed: they never change once the job runs."
        ),
    )
    batch: BatchRule = Field(
        default=BatchRule.PADDED,
        description="padded: the last micro-batch is padded; strict: the trainer's data-parallel width must divide the batch.",
    )
    mfu: Percent | None = Field(
        default=None,
        description="Model FLOPs utilisation in percent, such as 35%; a default by model kind if absent, then learned.",
    )
    recompute: Recompute = Field(
        default=Recompute.FULL, description="How much of the forward pass is computed again in the backward pass."
    )
    extra_forwards: tuple[ExtraForward, ...] = Field(
        default=(), max_length=8, description="Forward passes over the batch besides that of the training step."
    )
    nodes: Nodes | None = Field(default=None, description="The nodes for trainers, instead of spec.nodes.")
    target_ref: TargetRef | None = Field(
        default=None,
        description="Trainers that run already, instead of a template: they are watched and never touched, in mode Recommend.",
    )
    template: Template = Field(
        default_factory=dict,
        description=(
            "A PodTemplateSpec for trainer pods. The operator sets the GPUs of the first container, its RLJOB_ environment "
            "and the layout volume."
        ),
    )

    @property
    def mfu_fraction(self) -> float | None:
        """The stated MFU as a fraction, None if it is not stated."""
        return None if self.mfu is None else percent_fraction(self.mfu)


class Rebalance(ApiModel):
    """What the operator may do to the split, and how calm it must be."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            # The default of the whole object, {}, is checked before the defaults inside are filled in.
            rule="!has(self.interval) || duration(self.interval) >= duration('1s')",
            message="rebalance.interval is below one second, faster than any metric is scraped: write 15s or more, such as 60s",
            holds=lambda r: r.interval_s >= 1.0,
            field="interval",
        ),
    )

    mode: RebalanceMode = Field(
        default=RebalanceMode.AUTO,
        description=(
            "Recommend: only say what the split should be; Initial: plan once and keep that split; "
            "Auto: keep the split right from live metrics."
        ),
    )
    interval: Duration = Field(default="60s", description="Time between two decisions, as a duration such as 60s.")
    min_gain: Percent | None = Field(
        default=None,
        description=(
            "Smallest gain in the period that is worth a move, in percent such as 5%. If absent, a gain has to exceed what is "
            "uncertain about it, and to pay for the move over the remaining steps."
        ),
    )
    persistence: Int | None = Field(
        default=None,
        ge=1,
        le=100,
        description=(
            "Decisions in a row that must agree before a move. If absent, a move waits as long as another reading is worth more "
            "than the time that it takes."
        ),
    )
    cooldown: Duration | None = Field(
        default=None,
        description=(
            "Time after a move in which none starts, as a duration such as 15m. If absent, until the new layout is measured, and "
            "for a move back until the last one could pay for itself."
        ),
    )
    max_step_gpus: Int | None = Field(
        default=None,
        alias="maxStepGPUs",
        ge=1,
        le=1_000_000,
        description=(
            "Most GPUs that one move takes from a side, rounded up to whole sampler replicas; the wider replica's GPUs if absent."
        ),
    )

    @property
    def interval_s(self) -> float:
        """The interval in seconds."""
        return duration_s(self.interval)

    @property
    def min_gain_fraction(self) -> float | None:
        """The smallest gain as a fraction of the period, None if it is derived from uncertainty."""
        return None if self.min_gain is None else percent_fraction(self.min_gain)

    @property
    def cooldown_s(self) -> float | None:
        """The cooldown in seconds, None if it is derived from what a move costs."""
        return None if self.cooldown is None else duration_s(self.cooldown)


class Metrics(ApiModel):
    """Where the job's metrics are read."""

    prometheus: str | None = Field(
        default=None,
        pattern="^https?://",
        max_length=2048,
        description=(
            "URL of the Prometheus that scrapes the job; one that the operator's configuration allows. "
            "The operator's default if absent."
        ),
    )


class CalibrationSource(ApiModel):
    """Measured speeds from before the run."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            rule="has(self.configMap) != has(self.inline)",
            message="say where the calibration is: calibration.configMap names a ConfigMap, or calibration.inline holds it",
            holds=lambda c: (c.config_map is None) != (c.inline is None),
        ),
    )

    config_map: str | None = Field(
        default=None,
        min_length=1,
        max_length=253,
        pattern="^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$",
        description=(
            "A ConfigMap of the job's namespace whose key calibration.yaml holds what `rljob calibrate` wrote; read when the job "
            "is planned first."
        ),
    )
    inline: dict[str, Any] | None = Field(
        default=None,
        description="What `rljob calibrate` wrote, itself; read when the job is planned first, as the ConfigMap is.",
    )


class RLJobSpec(ApiModel):
    """What the job is, how many GPUs it may use, and how its pods look."""

    rules: ClassVar[tuple[Rule, ...]] = rules.SPEC_RULES

    suspend: Bool = Field(
        default=False,
        description="Let samplers finish what they run, for sampler.drainTimeout at most, then free all GPUs; keep the object.",
    )
    priority: Int = Field(
        default=0,
        ge=-1_000_000,
        le=1_000_000,
        description="Who plans first where RLJobs compete for nodes: the higher one, then the older one; nobody's running pods are taken.",
    )
    gpus: Int = Field(
        ge=2, le=1_000_000, description="The budget in GPUs, never exceeded at any instant, terminating pods included."
    )
    objective: Objective = Field(default=Objective.TIME, description="What the best split minimises.")
    nodes: Nodes = Field(
        default_factory=Nodes,
        description="The nodes that may run the job's pods; sampler.nodes and trainer.nodes override it.",
    )
    accelerator: str | None = Field(
        default=None,
        min_length=1,
        max_length=64,
        description="The GPU's name, such as H100-SXM, for nodes without the label nvidia.com/gpu.product; a known label counts more.",
    )
    model: Model = Field(description="The model that is trained: a known name, or the fields of its config.json.")
    workload: Workload = Field(description="One training step's worth of work, and how many steps there are.")
    staleness: Staleness = Field(
        description="The staleness that the method tolerates and how the job's framework keeps to it."
    )
    queue: Queue | None = Field(
        default=None,
        description="The queue of complete groups between samplers and trainer; without a capacity if absent.",
    )
    sampler: Sampler = Field(description="The fleet that generates rollouts.")
    trainer: Trainer = Field(description="The fleet that consumes samples and publishes policy versions.")
    driver: Driver | None = Field(
        default=None, description="The orchestrator's pod, for frameworks that have one; none if absent."
    )
    sandbox: Sandbox | None = Field(
        default=None, description="The fleet of sandboxes that environments run in; without a limit if absent."
    )
    rebalance: Rebalance = Field(
        default_factory=Rebalance, description="What the operator may do to the split, and how calm it must be."
    )
    calibration: CalibrationSource | None = Field(
        default=None, description="Measured speeds from before the run; the planner's own constants if absent."
    )
    metrics: Metrics = Field(default_factory=Metrics, description="Where the job's metrics are read.")

    @property
    def adopts(self) -> bool:
        """Whether the job's workloads are somebody else's, to be watched and not touched."""
        return self.sampler.target_ref is not None and self.trainer.target_ref is not None


class RLJob(ApiModel):
    """An LLM reinforcement-learning job whose split between samplers and trainers is planned and kept right."""

    rules: ClassVar[tuple[Rule, ...]] = rules.JOB_RULES

    api_version: Literal["rljob.dev/v1alpha1"] = Field(
        default="rljob.dev/v1alpha1", description="Version of the API: rljob.dev/v1alpha1."
    )
    kind: Literal["RLJob"] = Field(default="RLJob", description="Kind of the object: RLJob.")
    metadata: dict[str, Any] = Field(default_factory=dict, description="Standard object metadata.")
    spec: RLJobSpec = Field(description="What the job is, how many GPUs it may use, and how its pods look.")
    status: RLJobStatus | None = Field(
        default=None, description="What the operator reports; it is written by the operator alone."
    )
