"""What a run goes through: lengths, environment times and faults by policy version, and the job that lives through it.

A trace is a YAML file that a person can write in a minute from what a past run showed. It says what the world does; what the user
told the operator stands in its ``job``. Everything a trace leaves out has a default, and what contradicts the job is
refused with words that say what to write, before minutes are spent on simulating it.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import resources
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic.alias_generators import to_camel

from rljob_planner.api.spec import RLJobSpec
from rljob_planner.documents import InvalidDocumentError, parse_documents

FOLDER = "traces"
NAMES = (
    "growth-x4",
    "u-shape",
    "step-x2.5",
    "verl-growth",
    "x8-then-shrink",
    "stationary-noise",
    "agentic-environment-x2",
    "slow-sampler",
)
"""The packaged traces, in the order in which they are run."""

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
StepNumber = Annotated[int, Field(ge=0)]
Points = tuple[tuple[StepNumber, Positive], ...]
TEMPLATE: dict[str, Any] = {"spec": {"containers": [{"name": "main", "image": "example.com/image"}]}}
"""Pod template of a job that states none: this bench starts no containers."""


class TraceError(ValueError):
    """A trace that cannot be run; the message says where, why and what to write instead, one problem a line."""


class Section(BaseModel):
    """Base of the parts of a trace: camelCase, nothing beyond its fields."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, extra="forbid", frozen=True)


class TruthFactors(Section):
    """How much faster the real thing is than the planner expects before it has measured anything."""

    sampler: Annotated[float, Field(ge=0.5, le=2.0)] = Field(default=0.75, description="Speed of decoding.")
    trainer: Annotated[float, Field(ge=0.5, le=2.0)] = Field(default=1.2, description="Speed of training.")


class MoveCosts(Section):
    """What the cluster and the job take for a move, in seconds; draining comes from what runs."""

    sampler_start: NotNegative = Field(default=150.0, description="From a sampler pod's creation to a loaded engine.")
    trainer_start: NotNegative = Field(default=90.0, description="From a trainer pod's creation to its readiness.")
    gone: NotNegative = Field(default=10.0, description="From a pod's deletion until its GPUs are free.")
    regroup: NotNegative = Field(default=30.0, description="The job stands still while its trainers form groups anew.")


class Trace(Section):
    """A trace file."""

    steps: Annotated[int, Field(ge=1, le=1_000_000)] = Field(description="Training steps of the run.")
    mean_tokens: Points = Field(
        min_length=1, description="[[step, tokens], …]: mean response that starts at a step; linear between."
    )
    cv: Annotated[float, Field(ge=0, le=10)] | None = Field(
        default=None, description="Standard deviation over mean of responses; default: the job's, else 1."
    )
    max: Annotated[int, Field(ge=1, le=10_000_000)] | None = Field(
        default=None, description="Cap on a response in tokens; default: the job's."
    )
    environment_seconds: tuple[tuple[StepNumber, NotNegative], ...] = Field(
        default=(),
        description="[[step, seconds], …]: mean stay in an environment between two turns; default: the job's.",
    )
    sampler_slowdown: tuple[tuple[StepNumber, Positive], ...] = Field(
        default=(),
        description="[[step, factor], …]: how much longer an iteration of ONE sampler replica (the oldest) takes: a fault.",
    )
    noise: Annotated[float, Field(ge=0, le=1)] = Field(
        default=0.05, description="Log standard deviation of what is measured in a window."
    )
    step_noise: Annotated[float, Field(ge=0, le=1)] = Field(
        default=0.03, description="Log standard deviation of a training step's true seconds."
    )
    group_correlation: Annotated[float, Field(ge=0, le=1)] = Field(
        default=0.25, description="Correlation of ln(length) among the samples of one prompt."
    )
    truth: TruthFactors = Field(
        default_factory=TruthFactors, description="Hidden speeds over those that the planner expects."
    )
    costs: MoveCosts = Field(default_factory=MoveCosts, description="Seconds of a move.")
    hours: Positive | None = Field(default=None, description="End after so many simulated hours even if steps remain.")
    seed: Annotated[int, Field(ge=0, lt=1 << 62)] = Field(default=1, description="Seed of lengths and noise.")
    description: str = Field(default="", description="What the trace stands for, and where it comes from.")
    job: dict[str, Any] = Field(description="The RLJob to run (with or without templates), or its spec alone.")

    @model_validator(mode="after")
    def _rising(self) -> Trace:
        for name, points in (
            ("meanTokens", self.mean_tokens),
            ("environmentSeconds", self.environment_seconds),
            ("samplerSlowdown", self.sampler_slowdown),
        ):
            if any(b[0] <= a[0] for a, b in pairwise(points)):
                raise ValueError(f"{name}: the steps must rise, as in [[0, 1500], [400, 6000]]")
        return self


def _by_step(points: Sequence[tuple[int, float]], steps: int, default: float) -> NDArray[np.float64]:
    """The value at each step 0 … steps, linear between the points and constant outside."""
    if not points:
        return np.full(steps + 1, default)
    at, values = zip(*points, strict=True)
    return np.asarray(np.interp(np.arange(steps + 1), at, values))


class Run(BaseModel):
    """A trace made definite: the job as the operator sees it, and what happens to it by step."""

    model_config = ConfigDict(frozen=True, arbitrary_types_allowed=True)

    name: str
    trace: Trace
    metadata: dict[str, Any]
    spec: RLJobSpec
    """As the user wrote it: the lengths of step 0 unless the job says otherwise."""
    raw_spec: dict[str, Any]
    """The same as it stands in the API server."""
    mean_tokens: NDArray[np.float64]
    """Mean response that starts at each step."""
    cv: float
    cap_tokens: int
    turns: int
    turn_s: NDArray[np.float64]
    turn_cv: float
    slowdown: NDArray[np.float64]

    @property
    def steps(self) -> int:
        """Steps of the run."""
        return self.trace.steps

    def shortened(self, factor: float) -> Run:
        """The same trace over fewer steps."""
        steps = max(40, round(self.steps * factor))
        scale = steps / self.steps

        def scaled(points: Any) -> Any:
            found: list[list[float]] = []
            for step, value in points:
                # Points that fall together stay apart: a jump from one step to the next remains one.
                least = found[-1][0] + 1 if found else 0
                found.append([max(least, round(step * scale)), value])
            return found

        raw = self.trace.model_dump(by_alias=True)
        raw |= {"steps": steps} | {
            key: scaled(raw[key]) for key in ("meanTokens", "environmentSeconds", "samplerSlowdown")
        }
        if self.trace.hours is not None:
            raw["hours"] = self.trace.hours * scale
        return run_of(Trace.model_validate(raw), self.name)


def run_of(trace: Trace, name: str) -> Run:
    """The run of a trace; raises ``TraceError``."""
    job = trace.job
    spec = dict(job["spec"] if isinstance(job.get("spec"), dict) else {k: v for k, v in job.items() if k not in _KINDS})
    workload = dict(spec.get("workload") or {})
    stated = dict(workload.get("responseTokens") or {})
    cap = trace.max if trace.max is not None else stated.get("max")
    if cap is None:
        raise TraceError(f"{name}: max is missing: write the cap on a response in tokens, such as max: 32768")
    cv = trace.cv if trace.cv is not None else float(stated.get("cv", 1.0))
    means = _by_step(trace.mean_tokens, trace.steps, 1.0)
    if means.max() >= cap:
        raise TraceError(
            f"{name}: meanTokens reaches {means.max():g} tokens, but responses are cut at max {cap}: raise max or lower meanTokens"
        )
    if not any(key in stated for key in ("mean", "quantiles", "histogram")):
        stated |= {"mean": round(float(means[0])), "cv": min(cv, round(0.9 * (cap / means[0] - 1.0) ** 0.5, 3))}
    workload |= {"steps": trace.steps, "responseTokens": stated | {"max": cap}}
    environment = workload.get("environment")
    if trace.environment_seconds and environment is None:
        raise TraceError(
            f"{name}: environmentSeconds needs turns: write job.workload.environment: {{turns: 8}} beside it"
        )
    if environment is not None:
        seconds = environment.get(
            "secondsPerTurn", trace.environment_seconds[0][1] if trace.environment_seconds else None
        )
        if seconds is None:
            raise TraceError(f"{name}: job.workload.environment needs secondsPerTurn, or the trace environmentSeconds")
        workload["environment"] = dict(environment) | {"secondsPerTurn": seconds}
    spec["workload"] = workload
    for role in ("sampler", "trainer"):
        spec[role] = {"template": TEMPLATE} | dict(spec.get(role) or {})
    try:
        parsed = RLJobSpec.model_validate(spec)
    except ValidationError as error:
        raise TraceError("\n".join(f"{name}: job.{line}" for line in _lines(error))) from None
    away = parsed.workload.environment
    return Run(
        name=name,
        trace=trace,
        metadata={"name": "drift", "namespace": "default"} | dict(job.get("metadata") or {}),
        spec=parsed,
        raw_spec=spec,
        mean_tokens=means,
        cv=cv,
        cap_tokens=int(cap),
        turns=1 if away is None else away.turns,
        turn_s=_by_step(trace.environment_seconds, trace.steps, 0.0 if away is None else away.seconds_per_turn),
        turn_cv=0.0 if away is None else away.cv,
        slowdown=_by_step(trace.sampler_slowdown, trace.steps, 1.0),
    )


_KINDS = ("apiVersion", "kind", "metadata", "status")


def _lines(error: ValidationError) -> list[str]:
    return [f"{'.'.join(str(part) for part in item['loc']) or 'spec'}: {item['msg']}" for item in error.errors()]


def parse_trace(text: str, source: str) -> Run:
    """The run in a YAML text; ``source`` names it in messages, its stem the run."""
    name = Path(source).stem if Path(source).suffix in (".yaml", ".yml", ".json") else source
    try:
        documents = parse_documents(text, source)
    except InvalidDocumentError as error:
        raise TraceError(str(error)) from None
    if len(documents) != 1 or not isinstance(documents[0], dict):
        raise TraceError(f"{source}: a trace file holds one mapping with steps, meanTokens and job")
    try:
        return run_of(Trace.model_validate(documents[0]), name)
    except ValidationError as error:
        raise TraceError("\n".join(f"{source}: {line}" for line in _lines(error))) from None


def load(path: str | Path) -> Run:
    """The run in a file; raises ``TraceError``, also for a file that cannot be read."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise TraceError(f"{path}: cannot be read: {error.strerror}") from None
    return parse_trace(text, str(path))


def packaged(name: str) -> Run:
    """One of ``NAMES``."""
    if name not in NAMES:
        raise TraceError(f"no trace is called {name}: write one of {', '.join(NAMES)}, or --trace FILE")
    return parse_trace(
        resources.files("dev.bench.drift").joinpath(FOLDER, f"{name}.yaml").read_text(encoding="utf-8"), f"{name}.yaml"
    )
