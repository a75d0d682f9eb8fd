"""Measured rows of RL systems as the files hold them: read once, checked once, typed from there on.

The schema is that of ``data/validation-cases.yaml``: facts about the run, then ``measured``. What a source does not state is
null (or absent) and stays None here; nothing is guessed at this level. What was measured is kept apart from what describes
the run, so that a prediction cannot look at it by accident: everything that predicts takes a ``Case`` and never reads
``measured``, which only the fit on other rows and the comparison do.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml

from rljob_planner.errors import PlanningError
from rljob_planner.validation.fields import MOST_TOKENS, Fields, measurements, shown
from rljob_planner.validation.stated import check_shape

SECTIONS = ("cases", "serving_points", "training_throughput", "weight_sync")
"""Parts of a file that hold rows."""
_MOST_SYNC_STEPS = 1000


@dataclass(frozen=True)
class Lengths:
    """What a row says of its lengths, in tokens; prompts are part of ``*_total_seq``."""

    mean_response: float | None = None
    max_response: int | None = None
    mean_prompt: float | None = None
    max_prompt: int | None = None
    mean_total_seq: float | None = None
    max_total_seq: int | None = None
    tail_multiplier: float | None = None
    task: str = ""

    @property
    def known(self) -> bool:
        """Whether a mean is stated; a cap alone says little."""
        return self.mean_response is not None or self.mean_total_seq is not None

    @property
    def cap(self) -> int | None:
        """Longest response that the row allows, prompts still included where only a total is given."""
        return self.max_response if self.max_response is not None else self.max_total_seq


@dataclass(frozen=True)
class StalenessRule:
    """The knob that bounds staleness, in the words of the system that has it."""

    knob: str = ""
    value: float | None = None
    """As the system counts it; infinite for no bound."""
    syncs_every: int = 1
    """Batches of the trainer per weight synchronisation (``trigger_parameter_sync_step``, ``sync_every``)."""
    streamed: bool = False
    """Whether the trainer takes its batch in parts while the rest is still being generated."""
    partial: bool = True
    """Whether samples go on over a weight update instead of being waited for."""
    mini_batch: int | None = None
    """Prompts of one optimizer step (``ppo_mini_batch_prompts``)."""
    batches_at_once: int = 1
    """Mini-batches that a streaming trainer takes over together (``require_batches``)."""
    queue_factor: float | None = None
    """Queue capacity in batches."""


@dataclass(frozen=True)
class Case:
    """One row: what was run. ``measured`` is for fits on other rows and for the comparison alone."""

    id: str
    kind: str
    family: str
    model: str | None = None
    gpu: str | None = None
    n_gpus: int | None = None
    rollout_gpus: int | None = None
    train_gpus: int | None = None
    placement: str | None = None
    prompts_per_step: int | None = None
    group_size: int | None = None
    samples_per_step: int | None = None
    lengths: Lengths = Lengths()
    staleness: StalenessRule = StalenessRule()
    parallelism: str = ""
    concurrency: float | None = None
    batch_samples: float | None = None
    rho: float | None = None
    workers: int | None = None
    optimizer_samples: int | None = None
    """Samples of one optimizer step (``train_gbs_samples``)."""
    notes: str = ""
    source: str = ""
    measured: Mapping[str, Any] = field(default_factory=dict, compare=False)
    fault: str | None = None
    """Which field holds no value that it can hold, and what it may be: such a row is not predicted."""
    remarks: tuple[str, ...] = field(default=(), compare=False)
    """Measurements that cannot be ones (negative, not a number) and were left out; they hinder no prediction."""

    def value(self, *names: str) -> float | None:
        """The first of these measurements that is a number."""
        for name in names:
            found = self.measured.get(name)
            if isinstance(found, int | float) and not isinstance(found, bool):
                return float(found)
        return None


@dataclass(frozen=True)
class Document:
    """A file of measurements."""

    name: str
    cases: tuple[Case, ...]
    raw: Mapping[str, Any]


def load(path: Path) -> Document:
    """Read a YAML or JSON file; raises PlanningError ``InvalidCases`` with what is wrong where."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise PlanningError("InvalidCases", f"{path}: cannot be read: {error}") from error
    return parse(text, str(path))


def parse(text: str, name: str) -> Document:
    """The document that a text holds; ``name`` stands in its errors."""
    try:
        raw = yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise PlanningError("InvalidCases", f"{name}: is not YAML: {error}") from error
    if isinstance(raw, list):
        raw = {"cases": raw}
    if not isinstance(raw, dict) or not any(raw.get(s) for s in SECTIONS):
        raise PlanningError(
            "InvalidCases", f"{name}: holds no measurements: write a list under {' or '.join(SECTIONS[:2])}"
        )
    check_shape(raw, name)
    rows = raw.get("cases") or []
    if not isinstance(rows, list):
        raise PlanningError("InvalidCases", f"{name}: cases must be a list of rows, not {type(rows).__name__}")
    cases: list[Case] = []
    seen: set[str] = set()
    for i, row in enumerate(rows):
        if not isinstance(row, Mapping):
            raise PlanningError("InvalidCases", f"{name}: cases[{i}] must be a mapping of fields, not {shown(row)}")
        case = _case(row, i)
        if case.id in seen:
            why = f"another row before it has the id {case.id!r}: give each row its own"
            case = replace(case, id=f"{case.id} (cases[{i}])", fault="; ".join(x for x in (case.fault, why) if x))
        seen.add(case.id)
        cases.append(case)
    return Document(name, tuple(cases), raw)


def packaged() -> tuple[Document, ...]:
    """The files that come with the planner."""
    data = Path(__file__).parent.parent / "data"
    return tuple(load(data / n) for n in ("latency-curves.yaml", "validation-cases.yaml") if (data / n).exists())


def _case(row: Mapping[Any, Any], index: int) -> Case:
    f = Fields(row)
    lengths, staleness = f.part("lengths"), f.part("staleness")
    measured, remarks = measurements(f.fields.get("measured"))
    prompts, group, samples = (f.whole(n) for n in ("prompts_per_step", "group_size", "samples_per_step"))
    if samples is not None and prompts is not None and group is None and samples % prompts == 0:
        group = samples // prompts
    if samples is not None and group is not None and prompts is None and samples % group == 0:
        prompts = samples // group
    name, kind = f.text("id"), f.text("kind")
    f.faults.extend(
        f"{n} is missing: every row needs an id and a kind" for n, v in (("id", name), ("kind", kind)) if not v
    )
    found = Case(
        id=name or f"cases[{index}]",
        kind=kind or "unstated",
        family=f.text("family") or kind or "unstated",
        model=f.text("model"),
        gpu=f.text("gpu"),
        n_gpus=f.whole("n_gpus"),
        rollout_gpus=f.whole("rollout_gpus"),
        train_gpus=f.whole("train_gpus"),
        placement=f.text("placement"),
        prompts_per_step=prompts,
        group_size=group,
        samples_per_step=samples,
        lengths=_lengths(lengths),
        staleness=_rule(staleness),
        parallelism=f.text("parallelism") or "",
        concurrency=f.number("concurrency_C", 1.0),
        batch_samples=f.number("batch_samples_B", 1.0),
        rho=f.number("rho", above=True),
        workers=f.whole("generation_workers"),
        optimizer_samples=f.whole("train_gbs_samples"),
        notes=f.text("notes") or "",
        source=f.text("source") or "",
        measured=measured,
        remarks=remarks,
    )
    return replace(found, fault="; ".join(f.faults) or None)


def _lengths(f: Fields) -> Lengths:
    return Lengths(
        mean_response=f.tokens("mean_response"),
        max_response=f.whole("max_response", MOST_TOKENS),
        mean_prompt=f.tokens("mean_prompt"),
        max_prompt=f.whole("max_prompt", MOST_TOKENS),
        mean_total_seq=f.tokens("mean_total_seq"),
        max_total_seq=f.whole("max_total_seq", MOST_TOKENS),
        tail_multiplier=f.number("tailness_multiplier_M", 1.0),
        task=f.text("task") or "",
    )


def _rule(f: Fields) -> StalenessRule:
    return StalenessRule(
        knob=(f.text("knob") or f.text("policy") or "").lower(),
        value=f.number("value", infinite=True),
        syncs_every=f.whole_or(("trigger_parameter_sync_step", "sync_every"), 1, _MOST_SYNC_STEPS),
        streamed=f.fields.get("trigger_parameter_sync_step") is not None,
        partial=f.flag("partial_rollout", True),
        mini_batch=f.whole("ppo_mini_batch_prompts"),
        batches_at_once=f.whole("require_batches") or 1,
        queue_factor=f.number("queue_factor_q", above=True),
    )
