"""Measured rows of RL systems as the files hold them: read once, checked once, typed from there on.

The schema is that of ``data/validation-cases.yaml``: facts about the run, then ``measured``. What a source does not state is
null (or absent) and stays None here; nothing is guessed at this level. What was measured is kept apart from what describes
the run, so that a prediction cannot look at it by accident: everything that predicts takes a ``Case`` and never reads
``measured``, which only the fit on other rows and the comparison do.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from rljob_planner.errors import PlanningError
from rljob_planner.validation.stated import check_shape

SECTIONS = ("cases", "serving_points", "training_throughput", "weight_sync")
"""Parts of a file that hold rows."""


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
    except yaml.YAMLError as error:
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
    cases = tuple(_case(row, f"{name}: cases[{i}]") for i, row in enumerate(rows))
    seen: set[str] = set()
    for case in cases:
        if case.id in seen:
            raise PlanningError("InvalidCases", f"{name}: two rows have the id {case.id!r}: give each its own")
        seen.add(case.id)
    return Document(name, cases, raw)


def packaged() -> tuple[Document, ...]:
    """The files that come with the planner."""
    data = Path(__file__).parent.parent / "data"
    return tuple(load(data / n) for n in ("latency-curves.yaml", "validation-cases.yaml") if (data / n).exists())


class _Fields:
    """Reads typed fields of a mapping, or says where one is wrong."""

    def __init__(self, fields: object, where: str) -> None:
        if fields is None:
            fields = {}
        if not isinstance(fields, Mapping):
            raise PlanningError("InvalidCases", f"{where} must be a mapping of fields, not {fields!r}")
        self.fields, self.where = fields, where

    def text(self, name: str) -> str | None:
        value = self.fields.get(name)
        if value is None:
            return None
        if not isinstance(value, str | int | float):
            raise PlanningError("InvalidCases", f"{self.where}.{name} must be text, not {value!r}")
        return str(value)

    def number(self, name: str) -> float | None:
        value = self.fields.get(name)
        if value is None:
            return None
        if isinstance(value, str) and value.strip().lower() in ("inf", ".inf", "infinity"):
            return math.inf
        if isinstance(value, bool) or not isinstance(value, int | float) or math.isnan(value) or value < 0:
            raise PlanningError("InvalidCases", f"{self.where}.{name} must be a number of at least 0, not {value!r}")
        return float(value)

    def whole(self, name: str) -> int | None:
        value = self.number(name)
        if value is None:
            return None
        if not math.isfinite(value) or value != int(value) or value < 1:
            raise PlanningError("InvalidCases", f"{self.where}.{name} must be a whole number from 1, not {value!r}")
        return int(value)

    def whole_or(self, names: Iterable[str], default: int) -> int:
        return next((v for v in (self.whole(n) for n in names) if v is not None), default)

    def flag(self, name: str, default: bool) -> bool:
        value = self.fields.get(name)
        return default if value is None else bool(value)

    def part(self, name: str) -> _Fields:
        return _Fields(self.fields.get(name), f"{self.where}.{name}")


def _case(row: object, where: str) -> Case:
    f = _Fields(row, where)
    for name in ("id", "kind"):
        if not f.text(name):
            raise PlanningError("InvalidCases", f"{where} has no {name}: every row needs an id and a kind")
    where = f.where = f"{where} ({f.text('id')})"
    lengths, staleness = f.part("lengths"), f.part("staleness")
    measured = f.fields.get("measured") or {}
    if not isinstance(measured, Mapping):
        raise PlanningError("InvalidCases", f"{where}.measured must be a mapping, not {measured!r}")
    prompts, group, samples = (f.whole(n) for n in ("prompts_per_step", "group_size", "samples_per_step"))
    if samples is not None and prompts is not None and group is None and samples % prompts == 0:
        group = samples // prompts
    if samples is not None and group is not None and prompts is None and samples % group == 0:
        prompts = samples // group
    return Case(
        id=str(f.text("id")),
        kind=str(f.text("kind")),
        family=f.text("family") or str(f.text("kind")),
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
        concurrency=f.number("concurrency_C"),
        batch_samples=f.number("batch_samples_B"),
        rho=f.number("rho"),
        workers=f.whole("generation_workers"),
        optimizer_samples=f.whole("train_gbs_samples"),
        notes=f.text("notes") or "",
        source=f.text("source") or "",
        measured=measured,
    )


def _lengths(f: _Fields) -> Lengths:
    return Lengths(
        mean_response=f.number("mean_response"),
        max_response=f.whole("max_response"),
        mean_prompt=f.number("mean_prompt"),
        max_prompt=f.whole("max_prompt"),
        mean_total_seq=f.number("mean_total_seq"),
        max_total_seq=f.whole("max_total_seq"),
        tail_multiplier=f.number("tailness_multiplier_M"),
        task=f.text("task") or "",
    )


def _rule(f: _Fields) -> StalenessRule:
    return StalenessRule(
        knob=(f.text("knob") or f.text("policy") or "").lower(),
        value=f.number("value"),
        syncs_every=f.whole_or(("trigger_parameter_sync_step", "sync_every"), 1),
        streamed=f.whole("trigger_parameter_sync_step") is not None,
        partial=f.flag("partial_rollout", True),
        mini_batch=f.whole("ppo_mini_batch_prompts"),
        batches_at_once=f.whole("require_batches") or 1,
        queue_factor=f.number("queue_factor_q"),
    )
