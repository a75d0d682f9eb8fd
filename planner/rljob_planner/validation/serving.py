"""Serving measurements: predicted against measured milliseconds per token.

Curves state engine, model, GPU, number format, tensor parallelism and lengths, so all of them can be predicted. A family is a
model on a GPU type under one engine and format: its factor is that of the other rows, since an engine's version and flags shift
all of its rows alike. What is excluded stays in the table with its reason and counts neither way.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from importlib import resources
from typing import Any

import yaml

from rljob_planner.errors import PlanningError
from rljob_planner.hardware import gpu
from rljob_planner.models import model
from rljob_planner.serving import kv_format_of, served, weight_format_of
from rljob_planner.steptime import Engine
from rljob_planner.validation.rows import Row
from rljob_planner.validation.served_tables import KIND, table_rows

LEAST_OTHERS = 2
"""Rows besides the own one from which a family has a factor."""


@dataclass(frozen=True)
class MeasuredPoint:
    """One row of a curve."""

    batch: int
    ttft_ms: float
    tpot_ms: float
    excluded: str | None
    """Why it is not judged."""


@dataclass(frozen=True)
class Curve:
    """A serving curve of the data file: one engine, one pair of lengths, several concurrencies."""

    model_name: str
    gpu_name: str
    engine_name: str
    engine_version: str
    precision: str | None
    kv: str | None
    """Number format of the KV cache; None: what the engine takes by itself."""
    tensor_parallel: int
    isl: int
    osl: int
    held_out: bool
    rows: tuple[MeasuredPoint, ...]

    @cached_property
    def engine(self) -> Engine:
        """The engine as the planner knows it; raises PlanningError if a name is not known."""
        shape = model(self.model_name)
        weights = weight_format_of(self.precision, shape)
        kv = self.kv or kv_format_of(weights)
        return Engine(shape, gpu(self.gpu_name), self.tensor_parallel, weights.name, kv)

    @property
    def vllm(self) -> bool:
        """Whether the constants of the package are those of its engine."""
        return self.engine_name == "vllm"

    @property
    def short_model(self) -> str:
        """The model's name as ids have it."""
        return self.model_name.rsplit("/", 1)[-1].lower()

    @property
    def family(self) -> str:
        """Rows that share a factor."""
        return f"{self.short_model}/{self.gpu_name}/{self.engine_name}/{self.short_precision}"

    @property
    def short_precision(self) -> str:
        """The first word of the number format."""
        return (self.precision or "native").split(" ", 1)[0].split(",", 1)[0]

    def row_id(self, row: MeasuredPoint) -> str:
        """Such as ``qwen3-32b/h100_sxm/vllm/tp2/1024x128/bs8``."""
        lengths = f"{self.isl}x{self.osl}"
        return f"{self.short_model}/{self.gpu_name}/{self.engine_name}/tp{self.tensor_parallel}/{lengths}/bs{row.batch}"


@cache
def packaged_document() -> Mapping[str, Any]:
    """The packaged curves."""
    text = resources.files("rljob_planner").joinpath("data/latency-curves.yaml").read_text(encoding="utf-8")
    document: Mapping[str, Any] = yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    return document


def packaged_curves() -> tuple[Curve, ...]:
    """The packaged serving curves."""
    return tuple(curves(packaged_document()))


def curves(document: Mapping[str, Any]) -> Iterator[Curve]:
    """The serving curves of a document in the schema of the packaged file, with the exclusions that the package knows of."""
    exclusions = [*packaged_document()["exclusions"], *document.get("exclusions", ())]
    for c in document.get("serving_points") or ():
        yield Curve(
            model_name=str(c["model"]),
            gpu_name=str(c["gpu"]),
            engine_name=str(c.get("engine") or "vllm").lower(),
            engine_version=str(c.get("engine_version") or "unknown"),
            precision=None if c.get("precision") is None else str(c["precision"]),
            kv=None if c.get("kv") is None else str(c["kv"]),
            tensor_parallel=int(c.get("tp") or 1),
            isl=int(c["isl"]),
            osl=int(c["osl"]),
            held_out=bool(c.get("held_out")),
            rows=tuple(
                MeasuredPoint(int(b), float(ttft), float(tpot), _excluded(c, float(ttft), exclusions))
                for b, ttft, tpot in c["rows_bs_ttft_tpot"]
            ),
        )


def _excluded(curve: Mapping[str, Any], ttft_ms: float, exclusions: Sequence[Mapping[str, Any]]) -> str | None:
    return next((str(rule["reason"]) for rule in exclusions if _applies(rule, curve, ttft_ms)), None)


def _applies(rule: Mapping[str, Any], curve: Mapping[str, Any], ttft_ms: float) -> bool:
    if "max_ttft_ms" in rule and ttft_ms <= float(rule["max_ttft_ms"]):
        return False
    if "model" in rule and not _same_model(str(rule["model"]), str(curve["model"])):
        return False
    if "engine_version" in rule and not str(curve.get("engine_version")).startswith(str(rule["engine_version"])):
        return False
    return all(rule[k] == curve.get(k) for k in ("engine", "precision", "gpu") if k in rule)


def _same_model(ours: str, theirs: str) -> bool:
    try:
        return model(ours) == model(theirs)
    except PlanningError:
        return False


def serving_rows(document: Mapping[str, Any]) -> list[Row]:
    """The rows of a document's serving curves and of its other tables of measured decode steps."""
    names: dict[str, int] = {}
    rows = [row for curve in curves(document) for row in _curve_rows(curve, names)]
    return calibrated([*rows, *table_rows(document)])


def _unique(curve: Curve, row: MeasuredPoint, names: dict[str, int]) -> str:
    """The row's id; the second of a name says its number format too, and further ones count."""
    name = curve.row_id(row)
    if name in names:
        name = f"{name}/{curve.short_precision}"
    names[name] = names.get(name, 0) + 1
    return name if names[name] == 1 else f"{name}/{names[name]}"


def _curve_rows(curve: Curve, names: dict[str, int]) -> Iterator[Row]:
    try:
        points = served(curve.engine, curve.isl, curve.osl, [r.batch for r in curve.rows])
        predicted: Sequence[float | None] = [p.tpot_s * 1e3 for p in points]
        reason = None
    except PlanningError as error:
        predicted, reason = [None] * len(curve.rows), str(error)
    for row, ms in zip(curve.rows, predicted, strict=True):
        notes = list(_notes(curve, row))
        yield Row(
            id=_unique(curve, row, names),
            kind=KIND,
            family=curve.family,
            measured=row.tpot_ms,
            unit="ms",
            predicted=ms,
            reason=reason,
            note="; ".join(notes) or None,
            judged=row.excluded is None,
        )


def _notes(curve: Curve, row: MeasuredPoint) -> Iterator[str]:
    if row.excluded:
        yield row.excluded
    if curve.held_out:
        yield "no constant was fitted to this curve"
    if not curve.vllm:
        yield "the packaged constants are those of vLLM"
    larger = [r for r in curve.rows if r.batch > row.batch and r.excluded is None]
    if row.excluded is None and any(r.tpot_ms < row.tpot_ms for r in larger):
        yield "measured slower than with more requests on the same curve"


def calibrated(rows: Sequence[Row]) -> list[Row]:
    """The rows with the prediction after one factor, the median of the ratios of the family's other judged rows.

    The median, since it leaves the least mean error, and since a published row that is off for a reason of its own should not move
    the predictions of the others.
    """
    ratios: dict[str, list[tuple[int, float]]] = {}
    for i, row in enumerate(rows):
        ratio = _ratio(row)
        if ratio is not None and row.judged:
            ratios.setdefault(row.family, []).append((i, math.log(ratio)))
    return [_calibrated(i, row, ratios.get(row.family, ())) for i, row in enumerate(rows)]


def _ratio(row: Row) -> float | None:
    if isinstance(row.measured, int | float) and isinstance(row.predicted, int | float) and row.predicted > 0:
        return row.measured / row.predicted
    return None


def _calibrated(index: int, row: Row, family: Iterable[tuple[int, float]]) -> Row:
    others = [x for i, x in family if i != index]
    if len(others) < LEAST_OTHERS or not isinstance(row.predicted, int | float):
        return row
    return replace(row, calibrated=row.predicted * math.exp(statistics.median(others)))
