"""The scenario file: a job described by measured curves instead of hardware.

Whoever has measured their own decode and training curves needs no model of a GPU, and a scenario small enough to work out by
hand is how the simulator is checked. The file says all that the simulation uses; nothing is taken from elsewhere. Errors name
the key, say what is wrong and what to write instead, because the file is written by hand.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterator
from enum import StrEnum
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args

from pydantic import BaseModel, Field, ValidationError, model_validator

from rljob_planner._checks import MOST_BYTES, MOST_SAMPLES
from rljob_planner._state import MAX_SLOTS, size_bytes
from rljob_planner.documents import InvalidDocumentError, parse_documents
from rljob_planner.lengths import MAX_TOKENS
from rljob_planner.scenario_lengths import Above0, ResponseTokens, Section

if TYPE_CHECKING:
    from rljob_planner.simulate import SimulationInput


class ScenarioError(ValueError):
    """A scenario that cannot be simulated; the message says where, why and what to write instead, one problem a line."""


class Mode(StrEnum):
    """How sampling and training share the time."""

    SYNC = "sync"
    ONE_STEP_OFF = "one-step-off"
    ASYNC = "async"


class Bound(StrEnum):
    """The rule that keeps staleness at or under its maximum."""

    NONE = "none"
    ADMISSION = "admission"
    HOLD = "hold"
    DROP = "drop"


class Overflow(StrEnum):
    """What happens to a queue at capacity."""

    DROP_OLDEST = "drop-oldest"
    BLOCK = "block"


Seconds = Annotated[float, Field(ge=0, strict=True, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1, le=1_000_000_000, strict=True)]


class Decode(Section):
    """Seconds of one iteration of a replica: perStep + perSample·running + perContextToken·resident tokens."""

    per_step: Seconds = Field(description="Seconds of an iteration whatever runs.")
    per_sample: Seconds = Field(default=0.0, description="Seconds of an iteration for each running sample.")
    per_context_token: Seconds = Field(
        default=0.0, description="Seconds of an iteration for each resident token, prompt or generated."
    )

    @model_validator(mode="after")
    def _takes_time(self) -> Decode:
        if self.per_step + self.per_sample + self.per_context_token <= 0:
            raise ValueError("an iteration takes no time at all: give perStep, perSample or perContextToken above 0")
        return self


class Samplers(Section):
    """The replicas that generate."""

    replicas: Count = Field(description="Sampler replicas.")
    max_running: Count = Field(description="Most running samples of one replica.")
    kv_tokens: Count = Field(description="Tokens, prompts included, that the KV cache of one replica holds.")
    decode: Decode = Field(description="Seconds of one iteration.")


class Trainer(Section):
    """Seconds of one training step: perStep + perToken·(prompt and response tokens of the batch)."""

    per_step: Seconds = Field(description="Seconds of a step whatever its batch.")
    per_token: Seconds = Field(
        default=0.0, description="Seconds of a step for each prompt or response token of its batch."
    )


class Environment(Section):
    """What a sample does between its decode turns: tool calls, a sandbox. It holds no decode slot meanwhile."""

    turns: Annotated[int, Field(ge=1, le=100_000, strict=True)] = Field(
        description="Decode turns of a sample; its tokens are shared out over them evenly."
    )
    seconds_per_turn: Seconds = Field(description="Mean seconds in the environment between two turns.")
    cv: Annotated[float, Field(ge=0, le=20, strict=True, allow_inf_nan=False)] = Field(
        default=0.0, description="Standard deviation over mean of these seconds, which are lognormal."
    )
    sandboxes: Count | None = Field(
        default=None, description="Environments that may run at once; turns wait for one. Omit for no limit."
    )


class Workload(Section):
    """What is sampled and trained."""

    prompts_per_step: Count = Field(description="Groups of one training step.")
    samples_per_prompt: Count = Field(description="Samples of one group.")
    prompt_tokens: Annotated[int, Field(ge=0, le=MAX_TOKENS, strict=True)] = Field(
        default=0, description="Length of every prompt in tokens."
    )
    response_tokens: ResponseTokens = Field(description="Lengths of responses.")
    group_correlation: Annotated[float, Field(ge=0, le=1, strict=True)] | None = Field(
        default=None,
        description="Correlation of ln(length) among the samples of one prompt; default: that of a trace, otherwise 0.",
    )
    drift: tuple[tuple[Annotated[int, Field(ge=0, strict=True)], Above0], ...] = Field(
        default=(),
        description="[[policy version, factor], …]: factor of the lengths of samples that start at that version, linear "
        "between the points; they are still cut at max.",
    )
    environment: Environment | None = Field(default=None, description="For agentic jobs: what happens between turns.")

    @model_validator(mode="after")
    def _drift_rises(self) -> Workload:
        versions = [version for version, _ in self.drift]
        if any(b <= a for a, b in pairwise(versions)):
            raise ValueError("drift: the policy versions must rise, as in [[0, 1.0], [200, 2.5]]")
        return self

    def longest_tokens(self) -> int:
        """The longest response that may occur."""
        lengths = self.response_tokens.distribution()
        longest = int(lengths.support_tokens[-1])
        factor = max((factor for _, factor in self.drift), default=1.0)
        return min(lengths.cap_tokens, max(longest, math.ceil(longest * factor)))


class Staleness(Section):
    """The rule that bounds staleness."""

    bound: Bound = Field(default=Bound.NONE, description="none, admission, hold or drop.")
    max: Annotated[int, Field(ge=0, le=1_000_000, strict=True)] | None = Field(
        default=None, description="Policy versions; needed by every bound but none."
    )

    @model_validator(mode="after")
    def _has_max(self) -> Staleness:
        if self.bound is not Bound.NONE and self.max is None:
            raise ValueError(
                f"bound {self.bound} needs max: write the policy versions that a sample may lag, such as max: 4"
            )
        return self


class Queue(Section):
    """The queue of complete groups."""

    capacity: Count | None = Field(default=None, description="Groups that it holds; omit for no limit.")
    overflow: Overflow = Field(
        default=Overflow.DROP_OLDEST,
        description="drop-oldest: a completed group that overflows the queue pushes the oldest out; "
        "block: no group starts while the queue is at capacity.",
    )


class Scenario(Section):
    """A scenario file."""

    mode: Mode = Field(default=Mode.ASYNC, description="sync, one-step-off or async.")
    samplers: Samplers = Field(description="The sampler side.")
    trainer: Trainer = Field(description="The trainer side.")
    weight_sync: Seconds = Field(
        default=0.0,
        description="Seconds that each replica pauses per version; in sync and one-step-off they add to the period.",
    )
    workload: Workload = Field(description="What is sampled and trained.")
    staleness: Staleness = Field(default_factory=Staleness, description="The bound of staleness (async).")
    queue: Queue = Field(default_factory=Queue, description="The queue of complete groups.")
    in_flight: Count | None = Field(
        default=None,
        description="Most samples submitted and not finished. Omitted: a group is admitted when nothing waits and a "
        "replica has a slot and KV room for its first sample.",
    )
    steps: Annotated[int, Field(ge=1, le=10_000_000, strict=True)] = Field(
        default=300, description="Training steps to simulate, warm-up included."
    )
    warmup: Annotated[int, Field(ge=0, strict=True)] | None = Field(
        default=None, description="First steps, left out of the statistics; default: 50, at most a fifth of steps."
    )
    seed: Annotated[int, Field(ge=0, lt=1 << 63, strict=True)] = Field(default=0, description="Seed of the lengths.")

    @property
    def warmup_steps(self) -> int:
        """Steps left out of the statistics."""
        return min(50, self.steps // 5) if self.warmup is None else self.warmup

    @model_validator(mode="after")
    def _fits_together(self) -> Scenario:
        work, samplers = self.workload, self.samplers
        problems = []
        if self.in_flight is not None and self.in_flight < work.samples_per_prompt:
            problems.append(
                f"inFlight: no group of {work.samples_per_prompt} samples fits under a cap of {self.in_flight}, so nothing "
                f"would ever start: write at least samplesPerPrompt ({work.samples_per_prompt})"
            )
        if self.queue.capacity is not None and self.queue.capacity < work.prompts_per_step:
            problems.append(
                f"queue.capacity: a queue of {self.queue.capacity} groups never holds a batch of {work.prompts_per_step}, so "
                f"no step would ever start: write at least promptsPerStep ({work.prompts_per_step})"
            )
        longest = work.longest_tokens()
        if work.prompt_tokens + longest > samplers.kv_tokens:
            problems.append(
                f"samplers.kvTokens: a prompt of {work.prompt_tokens} and a response of {longest} tokens do not fit in "
                f"{samplers.kv_tokens} tokens even alone, so such a sample could never finish: write at least "
                f"{work.prompt_tokens + longest}, or shorten the responses"
            )
        if self.mode is Mode.ONE_STEP_OFF and self.staleness.bound is not Bound.NONE and self.staleness.max == 0:
            problems.append(
                "staleness.max: one-step-off trains samples that are one version old: write 1, or mode: sync"
            )
        if self.warmup is not None and self.warmup >= self.steps:
            problems.append(
                f"warmup: {self.warmup} of {self.steps} steps are left out, which leaves none to report: "
                f"write a number below steps"
            )
        problems = problems or self._too_large()
        if problems:
            raise ValueError("\n".join(problems))
        return self

    def _too_large(self) -> list[str]:
        work, slots = self.workload, self.samplers.replicas * self.slots
        share = (
            "describe a share of the job: divide replicas, promptsPerStep, queue.capacity and inFlight by one number"
        )
        if slots > MAX_SLOTS:
            return [
                f"samplers: {self.samplers.replicas} replicas × {self.slots} running samples are more than {MAX_SLOTS} decode "
                f"slots: write a smaller maxRunning, or {share}"
            ]
        batch = work.prompts_per_step * work.samples_per_prompt
        if batch * self.steps > MOST_SAMPLES:
            fewer = MOST_SAMPLES // batch
            remedy = f"write at most steps: {fewer}" if fewer > 10 else f"a step is {batch} samples: {share}"
            return [f"steps: {self.steps} steps are {batch * self.steps:.3g} samples, which takes too long: {remedy}"]
        environment = work.environment is not None
        size = size_bytes(
            slots, work.prompts_per_step, work.samples_per_prompt, self.steps, self.samplers.replicas, environment
        )
        if size > MOST_BYTES:
            return [f"workload: {slots} decode slots and batches of {batch} samples need {size / 1e9:.1f} GB: {share}"]
        return []

    @property
    def slots(self) -> int:
        """Decode slots of one replica that can ever be taken, whatever ``samplers.maxRunning`` allows beyond them."""
        slots = min(self.samplers.max_running, self.samplers.kv_tokens // (self.workload.prompt_tokens + 1))
        return slots if self.in_flight is None else min(slots, self.in_flight)


def load_scenario(path: str | Path) -> Scenario:
    """Read a scenario file.

    Raises ``ScenarioError`` for a file that is not a scenario and ``OSError`` for one that cannot be read.
    """
    text = Path(path).read_text(encoding="utf-8")
    return parse_scenario(text, str(path))


def parse_scenario(text: str, source: str = "scenario") -> Scenario:
    """The scenario in a YAML (or JSON) text; ``source`` names it in messages, and a trace is looked for beside it."""
    try:
        documents = parse_documents(text, source)
    except InvalidDocumentError as error:
        raise ScenarioError(str(error)) from None
    document = documents[0] if documents else None
    if len(documents) > 1:
        raise ScenarioError(f"{source}: a scenario file holds one scenario, this one has {len(documents)} documents")
    if not isinstance(document, dict):
        raise ScenarioError(f"{source}: a scenario is a mapping of keys such as samplers, trainer and workload")
    try:
        return Scenario.model_validate(document, context={"folder": Path(source).parent})
    except ValidationError as error:
        lines = [line for item in error.errors() for line in _explain(dict(item))]
        raise ScenarioError("\n".join(f"{source}: {line}" for line in lines)) from None


def compile(scenario: Scenario) -> SimulationInput:  # noqa: A001
    """The simulation that a scenario asks for."""
    import numpy as np

    from rljob_planner.simulate import DecodeCost, SimulationInput, TrainCost

    samplers, work, decode = scenario.samplers, scenario.workload, scenario.samplers.decode
    environment, slots = work.environment, scenario.slots
    correlation = work.group_correlation
    n = np.arange(slots + 1, dtype=np.float64)
    cost = DecodeCost(
        fixed_s=np.full(slots + 1, decode.per_step),
        memory_s=decode.per_sample * n,
        compute_s=np.zeros(slots + 1),
        memory_s_per_token=decode.per_context_token,
        compute_s_per_token=0.0,
    )
    return SimulationInput(
        mode=scenario.mode.value,
        replicas=samplers.replicas,
        max_running=slots,
        kv_tokens=samplers.kv_tokens,
        decode=cost,
        train=TrainCost(scenario.trainer.per_step, scenario.trainer.per_token),
        weight_sync_s=scenario.weight_sync,
        prompts_per_step=work.prompts_per_step,
        samples_per_prompt=work.samples_per_prompt,
        prompt_tokens=work.prompt_tokens,
        lengths=work.response_tokens.distribution(),
        bound=scenario.staleness.bound.value,
        max_staleness=scenario.staleness.max or 0,
        queue_capacity=scenario.queue.capacity,
        overflow=scenario.queue.overflow.value,
        in_flight_cap=scenario.in_flight,
        steps=scenario.steps,
        warmup=scenario.warmup_steps,
        seed=scenario.seed,
        turns=1 if environment is None else environment.turns,
        turn_s=0.0 if environment is None else environment.seconds_per_turn,
        turn_cv=0.0 if environment is None else environment.cv,
        sandboxes=None if environment is None else environment.sandboxes,
        group_correlation=work.response_tokens.group_correlation() if correlation is None else correlation,
        drift=work.drift,
    )


def _explain(error: dict[str, Any]) -> Iterator[str]:
    """What is wrong at which key and what to write, from one of pydantic's errors."""
    path = tuple(error["loc"])
    where = ".".join(str(part) for part in path)
    kind, value = error["type"], error.get("input")
    if kind == "extra_forbidden":
        known = _keys_at(path[:-1])
        near = difflib.get_close_matches(str(path[-1]), known, n=3, cutoff=0.5)
        hint = f"did you mean {' or '.join(near)}?" if near else f"known keys here: {', '.join(known)}"
        yield f"{where}: unknown key; {hint}"
    elif kind == "missing":
        yield f"{where}: missing; {_description(path)}"
    elif kind == "value_error":
        for line in str(error["ctx"]["error"]).splitlines():
            yield f"{where}: {line}" if where else line
    elif kind == "enum":
        yield f"{where}: {value!r} is not one of {error['ctx']['expected']}"
    else:
        yield f"{where}: {error['msg'].replace('Input should be', 'must be')}, but this is {value!r}"


def _model_at(path: tuple[Any, ...]) -> type[BaseModel] | None:
    model: type[BaseModel] | None = Scenario
    for part in path:
        if model is None:
            return None
        if isinstance(part, int):  # an entry of a list of models
            continue
        field = next((f for name, f in model.model_fields.items() if part in (name, f.alias)), None)
        model = _model_in(field.annotation) if field is not None else None
    return model


def _model_in(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((model for part in get_args(annotation) if (model := _model_in(part)) is not None), None)


def _keys_at(path: tuple[Any, ...]) -> list[str]:
    model = _model_at(path)
    return [f.alias or name for name, f in model.model_fields.items()] if model is not None else []


def _description(path: tuple[Any, ...]) -> str:
    model = _model_at(path[:-1])
    if model is None:
        return "it is required"
    field = next((f for name, f in model.model_fields.items() if path[-1] in (name, f.alias)), None)
    return f"it is required: {field.description}" if field is not None else "it is required"
