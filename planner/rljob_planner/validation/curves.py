"""Serving curves as files hold them: what was run, and what a client measured at each concurrency.

A curve that lacks a field, or a row of it, is read as far as it goes (``StatedCurve``), since it belongs into the table with its
reason; what fits constants takes only whole ones (``Curve``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from importlib import resources
from typing import Any

import yaml

from rljob_planner.errors import PlanningError
from rljob_planner.hardware import gpu
from rljob_planner.models import model
from rljob_planner.precision import kv_format
from rljob_planner.serving import MOST_REQUESTS, MOST_TOKENS, kv_format_of, weight_format_of
from rljob_planner.steptime import Engine
from rljob_planner.validation.stated import POINTS, Stated, cell_fields, check_shape

_COLUMNS = ("batch", "ttft", "tpot")
_MOST_GPUS = 100_000
_UNSTATED = "?"


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
    precision: str
    kv: str | None
    """Number format of the KV cache; None: what the engine takes by itself."""
    tensor_parallel: int
    isl: int
    osl: int
    held_out: bool
    rows: tuple[MeasuredPoint, ...]
    """Those that state all three numbers."""

    @cached_property
    def engine(self) -> Engine:
        """The engine as the planner knows it; raises PlanningError if a name is not known."""
        shape = model(self.model_name)
        weights = weight_format_of(self.precision, shape)
        kv = kv_format(self.kv) if self.kv else kv_format_of(weights)
        return Engine(shape, gpu(self.gpu_name), self.tensor_parallel, weights.name, kv)

    @property
    def vllm(self) -> bool:
        """Whether the constants of the package are those of its engine."""
        return self.engine_name == "vllm"


@dataclass(frozen=True)
class StatedRow:
    """A row of a curve as far as the file goes."""

    batch: int | None
    ttft_ms: float | None
    tpot_ms: float | None
    excluded: str | None
    """Why it is not judged."""
    reason: str | None
    """Which of its fields are null or wrong; a time that is null hinders no prediction."""


@dataclass(frozen=True)
class StatedCurve:
    """A curve as far as the file goes: names for its rows, and the curve where it is whole."""

    prefix: str
    """Such as ``qwen3-32b/h100_sxm/vllm/tp2/1024x128``, with ``?`` for what is not there."""
    family: str
    """Rows that share a factor: model, GPU, engine and number format."""
    short_precision: str
    reason: str | None
    """Which of its fields are null or wrong."""
    rows: tuple[StatedRow, ...]
    curve: Curve | None
    """None where there is a reason."""


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
    """The whole curves of a document in the schema of the packaged file."""
    return (stated.curve for stated in stated_curves(document) if stated.curve is not None)


def stated_curves(document: Mapping[str, Any]) -> Iterator[StatedCurve]:
    """All curves of a document, with the exclusions that the package knows of.

    Raises PlanningError ``InvalidCases`` with key and row where the document is no list of curves.
    """
    check_shape(document, "the file")
    exclusions = [*packaged_document()["exclusions"], *(document.get("exclusions") or ())]
    for fields in document.get("serving_points") or ():
        yield _stated(fields, exclusions)


def _stated(fields: Mapping[str, Any], exclusions: Sequence[Mapping[str, Any]]) -> StatedCurve:
    read = Stated(fields)
    name, card, engine, precision = (read.text(k) for k in ("model", "gpu", "engine", "precision"))
    width = read.whole("tp", _MOST_GPUS)
    isl, osl = read.whole("isl", MOST_TOKENS), read.whole("osl", MOST_TOKENS)
    kv = read.text_or_none("kv")
    rows = tuple(_row(row, fields, exclusions) for row in fields.get(POINTS) or [None])
    curve = None
    # each of them by name, for the type checker; a wrong kv leaves only a reason
    if name and card and engine and precision and width and isl and osl and read.reason is None:
        curve = Curve(
            model_name=name,
            gpu_name=card,
            engine_name=engine.lower(),
            engine_version=str(fields.get("engine_version") or "unknown"),
            precision=precision,
            kv=kv,
            tensor_parallel=width,
            isl=isl,
            osl=osl,
            held_out=bool(fields.get("held_out")),
            rows=tuple(
                MeasuredPoint(r.batch, r.ttft_ms, r.tpot_ms, r.excluded)
                for r in rows
                if r.batch is not None and r.ttft_ms is not None and r.tpot_ms is not None
            ),
        )
    short = (precision or _UNSTATED).split(" ", 1)[0].split(",", 1)[0]
    who = f"{_short_model(name or _UNSTATED)}/{card or _UNSTATED}/{(engine or _UNSTATED).lower()}"
    return StatedCurve(
        prefix=f"{who}/tp{width or _UNSTATED}/{isl or _UNSTATED}x{osl or _UNSTATED}",
        family=f"{who}/{short}",
        short_precision=short,
        reason=read.reason,
        rows=rows,
        curve=curve,
    )


def _row(row: list[Any] | None, curve: Mapping[str, Any], exclusions: Sequence[Mapping[str, Any]]) -> StatedRow:
    if row is None:
        return StatedRow(None, None, None, None, f"null in the file: {POINTS}")
    read = Stated(cell_fields(_COLUMNS, row))
    batch = read.whole("batch", MOST_REQUESTS)
    ttft_ms, tpot_ms = read.milliseconds_or_none("ttft"), read.milliseconds_or_none("tpot")
    reason = read.reason
    if len(row) > len(_COLUMNS):
        reason = f"{len(row)} numbers in a row of {', '.join(_COLUMNS)}"
    return StatedRow(batch, ttft_ms, tpot_ms, _excluded(curve, ttft_ms, exclusions), reason)


def _short_model(name: str) -> str:
    return name.rsplit("/", 1)[-1].lower()


def _excluded(curve: Mapping[str, Any], ttft_ms: float | None, exclusions: Sequence[Mapping[str, Any]]) -> str | None:
    return next((str(rule["reason"]) for rule in exclusions if _applies(rule, curve, ttft_ms)), None)


def _applies(rule: Mapping[str, Any], curve: Mapping[str, Any], ttft_ms: float | None) -> bool:
    if "max_ttft_ms" in rule and (ttft_ms is None or ttft_ms <= float(rule["max_ttft_ms"])):
        return False
    if "model" in rule and not _same_model(str(rule["model"]), str(curve.get("model"))):
        return False
    if "engine_version" in rule and not str(curve.get("engine_version")).startswith(str(rule["engine_version"])):
        return False
    return all(rule[k] == curve.get(k) for k in ("engine", "precision", "gpu") if k in rule)


def _same_model(ours: str, theirs: str) -> bool:
    try:
        return model(ours) == model(theirs)
    except PlanningError:
        return False
