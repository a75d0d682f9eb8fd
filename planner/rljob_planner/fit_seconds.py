"""Fits a line to measured steps, where no data sheet says what they should take: seconds a step, a sample, a token.

Of a mixture of experts a step reads those that its tokens visit: nearly all at once with a few dozen samples, and hardly more with hundreds. No line
in samples follows that, so there the share that is visited, which the model's shape tells, has seconds of its own.

Least squares of relative errors, with nothing below zero: a cost that comes out negative is left out and the others are fitted again.
What the rows cannot tell apart is left at zero and said: contexts that are all alike, prompts whose prefill was not timed alone. Then the
line holds for loads like those measured, and that is what its warnings say.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rljob_planner.calibrate import MOST_SHARED_ERROR
from rljob_planner.errors import PlanningError
from rljob_planner.fit import FittedRow, MeasuredStep, RowKind, mean_left_out
from rljob_planner.measured_costs import DecodeSeconds
from rljob_planner.models import ModelShape
from rljob_planner.steptime import visited_share

FloatArray = NDArray[np.float64]

OWN = 0.2
"""Share of a cost's variation that the others don't explain, from which rows tell it from them."""

_NAMES = ("stepSeconds", "sampleSeconds", "contextTokenSeconds", "promptTokenSeconds", "expertsSeconds")
_STEP, _SAMPLE, _CONTEXT, _PROMPT, _EXPERTS = range(len(_NAMES))
_ORDER = (_STEP, _EXPERTS, _SAMPLE, _CONTEXT, _PROMPT)
"""Which cost has the first say where rows can't tell two apart: experts outweigh all that a sample costs besides."""


@dataclass(frozen=True)
class SecondsFit:
    """What the rows taught."""

    seconds: DecodeSeconds
    fitted: tuple[str, ...]
    """What the rows could tell apart, by its name in the calibration file."""
    rows: tuple[FittedRow, ...]
    warnings: tuple[str, ...]
    model: ModelShape | None = None
    """The model that was measured, whose experts the line counts; None where it is not known."""

    @property
    def values(self) -> tuple[tuple[str, float], ...]:
        """Every cost that was fitted, by its name in the calibration file, in seconds."""
        return tuple((n, v) for n, v in zip(_NAMES, _values(self.seconds), strict=True) if n in self.fitted)

    @property
    def residual(self) -> float | None:
        """Mean |error| of a row under a line through the others: what a new row may be off by. None below three rows."""
        return mean_left_out(self.rows)

    def step_s(self, row: MeasuredStep) -> float:
        """What the line predicts for a row, measured or not, in seconds."""
        return step_seconds(self.seconds, row, self.model)


def fit_seconds(rows: Sequence[MeasuredStep], model: ModelShape | None = None) -> SecondsFit:
    """The line through these rows, of which ``model`` was run.

    Raises PlanningError ``NothingMeasured`` if there are no steps of running samples, or if they are of engines of several widths, of which a
    line knows nothing.
    """
    rows = [r for r in rows if math.isfinite(r.measured_s) and r.measured_s > 0 and r.kind is not RowKind.FORWARD]
    served = [r for r in rows if r.kind is RowKind.SERVED]
    if not served:
        raise PlanningError(
            "NothingMeasured",
            "there is no measured step with sampling and scheduling in it: without a data sheet, nothing is known about this engine",
        )
    if len({r.tensor_parallel for r in served}) > 1:
        raise PlanningError(
            "NothingMeasured",
            "these rows are of engines of several widths, and nothing carries one over to another without a data sheet: name the GPU, "
            "or measure one width alone",
        )
    columns = _columns(rows, model)
    found = _line(rows, columns, model)
    fitted_rows = tuple(
        FittedRow(row, None, step_seconds(found, row, model), _without(rows, row, columns, model)) for row in rows
    )
    costs = [c for c, value in enumerate(_values(found)) if value > 0.0]
    # What came out at 0 was told from the others as well; experts at 0 are in them.
    told = {*costs, *columns} - ({_EXPERTS} - set(costs))
    names = tuple(_NAMES[c] for c in costs)
    return SecondsFit(found, names, fitted_rows, tuple(_warnings(fitted_rows, told, model)), model)


def step_seconds(seconds: DecodeSeconds, row: MeasuredStep, model: ModelShape | None = None) -> float:
    """Seconds of a row's step by the line."""
    return float(_terms(row, model) @ np.array(_values(seconds)))


def _values(seconds: DecodeSeconds) -> tuple[float, ...]:
    return (seconds.step_s, seconds.sample_s, seconds.context_token_s, seconds.prompt_token_s, seconds.experts_s)


def _terms(row: MeasuredStep, model: ModelShape | None) -> FloatArray:
    context, prompts = row.running * row.context_tokens, row.prefills_per_step * row.prompt_tokens
    return np.array([1.0, row.running, context, prompts, 0.0 if model is None else _visited(row, model)])


def _visited(row: MeasuredStep, model: ModelShape) -> float:
    """Mean share of the experts that a row's steps visit: some prefill prompts, the others none."""
    prefills = min(1.0, row.prefills_per_step)
    alone, beside = visited_share(model, np.array([row.running, row.running + row.prompt_tokens]))
    return float((1.0 - prefills) * alone + prefills * beside)


def _columns(rows: Sequence[MeasuredStep], model: ModelShape | None, without: Collection[int] = ()) -> list[int]:
    """The costs that these rows can tell apart: each varies in a way of its own, and not as those before it do."""
    terms = np.stack([_terms(r, model) / r.measured_s for r in rows])
    columns: list[int] = []
    for column in (c for c in _ORDER if c not in without):
        size = float(np.linalg.norm(terms[:, column]))
        if len(columns) >= len(rows) or size == 0.0:
            continue
        own = terms[:, column] / size
        if columns:
            others = terms[:, columns] / np.linalg.norm(terms[:, columns], axis=0)
            own = own - others @ np.linalg.lstsq(others, own, rcond=None)[0]
        if float(np.linalg.norm(own)) >= OWN:
            columns.append(column)
    return sorted(columns)


def _line(rows: Sequence[MeasuredStep], columns: Sequence[int], model: ModelShape | None) -> DecodeSeconds:
    """Least squares of relative errors, no cost below 0. One that would be is left out, and those that it kept out may come in."""
    terms = np.stack([_terms(r, model) / r.measured_s for r in rows])
    left, gone = list(columns), set[int]()
    while True:
        found = np.linalg.lstsq(terms[:, left], np.ones(len(rows)), rcond=None)[0]
        worst = int(np.argmin(found))
        if found[worst] >= 0.0 or len(left) == 1:
            break
        gone.add(left[worst])
        left = _columns(rows, model, gone)
    values = np.zeros(len(_NAMES))
    values[left] = np.maximum(found, 0.0)
    return DecodeSeconds(*(float(v) for v in values))


def _without(
    rows: Sequence[MeasuredStep], row: MeasuredStep, columns: Sequence[int], model: ModelShape | None
) -> float | None:
    """What a line through the other rows says of this one; None where they cannot tell what it costs."""
    others = [r for r in rows if r is not row]
    if not others or not set(columns) <= set(_columns(others, model)):
        return None
    return step_seconds(_line(others, columns, model), row, model)


def _warnings(rows: Sequence[FittedRow], columns: Collection[int], model: ModelShape | None) -> list[str]:
    """What somebody should know who plans with the result."""
    found = []
    served = [r for r in rows if r.row.kind is RowKind.SERVED]
    off = math.fsum(abs(r.error) for r in rows) / len(rows)
    if off > MOST_SHARED_ERROR:
        found.append(
            f"a line describes these steps only to {off:.0%}: look at the rows with the largest errors, measure while nothing else runs, "
            "or name a GPU whose data sheet explains them (--gpu)"
        )
    top = max(r.row.running for r in served)
    experts = model is not None and model.experts > 0
    if experts and _EXPERTS not in columns:
        found.append(
            "what the model's experts cost is in the other costs, so loads between the measured ones may be far off: measure at more "
            "concurrencies, such as 1, 8, 32 and 128"
        )
    if _SAMPLE not in columns and not (experts and _EXPERTS in columns):
        found.append(
            f"all rows have about {top:.0f} running samples, so that what each of them costs is not known: measure at several "
            "concurrencies, such as 1, 8, 64 and 256"
        )
    else:
        found.append(
            f"the line ends at {top:.0f} running samples: steps of more are an extrapolation; measure where the job will run"
        )
    if _CONTEXT not in columns:
        tokens = served[0].row.context_tokens
        found.append(
            f"all rows have contexts of about {tokens:.0f} tokens, so that longer ones are taken to cost the same: measure prompts of "
            "several lengths (--prompt-tokens) as long as the job's contexts"
        )
    if _PROMPT not in columns:
        found.append(
            "what a prompt costs is in what a sample costs: the line holds for prompts and responses of these lengths"
        )
    return found


def prefill_row(source: str, prompt_tokens: float, measured_s: float) -> MeasuredStep:
    """The row of a step that prefilled one prompt and ran nothing beside it: the sample runs from its prefill on."""
    return MeasuredStep(source, RowKind.PREFILL, 1.0, prompt_tokens, 0.0, 0.0, 1.0, measured_s)
