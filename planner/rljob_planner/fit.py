"""Fits the constants of a decode step to measured rows: as many of them as the rows can tell apart, and no more.

A handful of rows does not determine six constants, and least squares would answer all the same, with a bandwidth of 300 % that
a launch cost below zero makes up for. So the fit is a compromise between the rows and the packaged constants (maximum a posteriori:
each constant has a stated prior width, in its logarithm, and limits that no engine passes):

- rows at one batch size say how fast the engine is, and nothing more: one factor on everything;
- several batch sizes tell the cost of a step from that of each of its samples;
- several contexts tell memory bandwidth from both; several shares of prefill tell arithmetic too.

What the rows do not tell keeps its packaged value. How far the result can be trusted is said by each row's error under a fit to
the *other* rows. That fit is not run row by row: at the optimum, leaving row i out changes its residual r to r/(1 − h), h being the
row's leverage (exact for a linear model; here linear in the logarithms).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from rljob_planner.calibrate import LEAST_FACTOR, MOST_FACTOR, MOST_SHARED_ERROR
from rljob_planner.errors import PlanningError
from rljob_planner.hardware import DecodeEfficiency
from rljob_planner.steptime import Engine, Prefill, decode_step_s

FloatArray = NDArray[np.float64]
Residuals = Callable[[FloatArray], FloatArray]
Slopes = Callable[[FloatArray, FloatArray], FloatArray]

MODEL_ERROR = 0.05
"""Relative error of a row that the model would have with the right constants, before the rows themselves tell."""
LEAST_ERROR, MOST_ERROR = 0.02, 0.15
"""Limits to the error that the rows tell: few rows can be met by chance, and what is off by more is no fit."""

SPREAD = 1.5
"""Ratio of the largest to the smallest from which batch sizes, or contexts, count as several."""
PREFILL_SPREAD = 0.05
"""Difference in the share of a step that is prefill, from which rows tell arithmetic from the rest."""
OUTLIER = 2.5
"""Residuals beyond so many standard errors count by their size and no longer by its square."""
UNLIKELY_RATIO = 1.6
"""Steps longer, or shorter, by this than the packaged constants say are no matter of versions and kernels."""
WIDE_RUNNING = 64.0
"""Running samples that rows should reach, since samplers of RL jobs run that many and more."""

_ROUNDS, _REFITS, _NUDGE, _CLOSE = 40, 3, 1e-4, 1e-7


class RowKind(StrEnum):
    """What a row measured."""

    SERVED = "served"
    """Time per output token of a served request: whole steps, with the prefill of the requests that start meanwhile."""
    FORWARD = "forward"
    """A forward pass of an exact batch, without sampling and scheduling."""
    PREFILL = "prefill"
    """A step that prefills one prompt and runs nothing beside it."""


@dataclass(frozen=True)
class MeasuredStep:
    """One measured row: the mean decode step of one load."""

    source: str
    """Where it is from, for messages."""
    kind: RowKind
    running: float
    """Mean running samples."""
    prompt_tokens: float
    """Mean of a request."""
    response_tokens: float
    """Mean of a request; 0 where a batch was measured and no request."""
    context_tokens: float
    """Mean resident tokens of a running sample."""
    prefills_per_step: float
    """Prompts that are prefilled in a mean step."""
    measured_s: float
    tensor_parallel: int | None = None
    """Width of the engine where a sweep varied it; None: that of the fit."""


@dataclass(frozen=True)
class FittedConstant:
    """One constant after the fit."""

    name: str
    default: float
    value: float
    uncertainty: float
    """Relative standard deviation left."""
    prior: float
    """Relative standard deviation assumed before."""


@dataclass(frozen=True)
class FittedRow:
    """One row and what the model says of it."""

    row: MeasuredStep
    default_s: float | None
    """By the packaged constants; None: there are none of this accelerator."""
    predicted_s: float
    left_out_s: float | None
    """By a fit to the other rows; None if there are none."""

    @property
    def error(self) -> float:
        """Predicted over measured, less 1."""
        return self.predicted_s / self.row.measured_s - 1.0

    @property
    def default_error(self) -> float | None:
        """The same by the packaged constants."""
        return None if self.default_s is None else self.default_s / self.row.measured_s - 1.0

    @property
    def left_out_error(self) -> float | None:
        """The same by a fit to the other rows."""
        return None if self.left_out_s is None else self.left_out_s / self.row.measured_s - 1.0


@dataclass(frozen=True)
class Fit:
    """What the rows taught."""

    engine: Engine
    """The engine with its packaged constants."""
    factor: float
    """Measured over predicted speed, on top of the constants; 1 where the constants hold all of it."""
    decode: DecodeEfficiency | None
    """The fitted constants; None where the rows tell one factor only."""
    fitted: tuple[str, ...]
    constants: tuple[FittedConstant, ...]
    rows: tuple[FittedRow, ...]
    pegged: bool
    """Whether something stands at its limit: rows, model or GPU are not what they are said to be."""
    warnings: tuple[str, ...]

    @property
    def residual(self) -> float | None:
        """Mean |error| of a row under a fit to the others: what a new row may be off by. None below two rows."""
        return mean_left_out(self.rows)

    def step_s(self, row: MeasuredStep) -> float:
        """What the fit predicts for a row, measured or not, in seconds."""
        return predicted_s(with_constants(self.engine, self.decode), row) / self.factor


@dataclass(frozen=True)
class _Knob:
    """Something that a fit may turn: a factor on some constants, in its logarithm."""

    name: str
    fields: tuple[str, ...]
    """Fields of DecodeEfficiency; none for the factor on everything."""
    prior: float
    """Standard deviation of the logarithm."""
    least: float
    """Limits of the factor."""
    most: float


def _knobs(engine: Engine, rows: Sequence[MeasuredStep]) -> list[_Knob]:
    """What these rows can tell apart.

    Prior widths: packaged constants are off by 6 % in the mean on GPUs that they were fitted to and by about 20 % on others;
    between models, bandwidth varies least and the costs of steps and samples most. What an architecture's kernels are like stays as it
    is packaged (``hardware.Kernels``): it is no matter of one engine, and freeing it predicts rows left out no better.
    """
    factor = _Knob("factor", (), 0.30, LEAST_FACTOR, MOST_FACTOR)
    if not _several([r.running for r in rows]):
        return [factor]
    c = engine.gpu.decode
    if {r.kind for r in rows} == {RowKind.FORWARD}:
        costs = [_Knob("layerSeconds", ("layer_s",), 0.4, 0.2, 5.0)]
    elif RowKind.FORWARD in {r.kind for r in rows}:
        costs = [
            _Knob("layerSeconds", ("layer_s",), 0.4, 0.2, 5.0),
            _Knob("stepSeconds", ("step_s",), 0.5, 0.2, 5.0),
            _Knob("requestSeconds", ("request_s",), 0.8, 0.1, 10.0),
        ]
    else:
        # Of one model's rows nobody can say which part of a step's cost is its layers'; both scale alike.
        costs = [
            _Knob("stepSeconds", ("layer_s", "step_s"), 0.4, 0.2, 5.0),
            _Knob("requestSeconds", ("request_s",), 0.8, 0.1, 10.0),
        ]
    if len(rows) < 3 or not _several([r.context_tokens for r in rows]):
        return [factor, *costs]
    knobs = [_Knob("mbu", ("mbu",), 0.15, 0.2 / c.mbu, 0.98 / c.mbu), *costs]
    shares = [_prefill_share(engine, r) for r in rows]
    if len(rows) > 3 and max(shares) - min(shares) >= PREFILL_SPREAD:
        knobs.append(_Knob("mfu", ("mfu",), 0.30, 0.05 / c.mfu, 0.95 / c.mfu))
    return knobs


def fit(engine: Engine, rows: Sequence[MeasuredStep]) -> Fit:
    """Fits what the rows can tell about this engine, which carries the packaged constants.

    Raises PlanningError ``NothingMeasured`` if there are no rows.
    """
    rows = [r for r in rows if math.isfinite(r.measured_s) and r.measured_s > 0 and r.kind is not RowKind.PREFILL]
    rows = [r for r in rows if r.running > 0]
    if not rows:
        raise PlanningError("NothingMeasured", "there is no measured row to fit: nothing is known about this engine")
    knobs = _knobs(engine, rows)
    least = np.log([k.least for k in knobs])
    most = np.log([k.most for k in knobs])
    precision = np.diag([1.0 / k.prior**2 for k in knobs])
    measured = np.log([r.measured_s for r in rows])

    def residuals(at: FloatArray) -> FloatArray:
        factor, constants = _turned(engine, knobs, at)
        changed = with_constants(engine, constants)
        return np.log([predicted_s(changed, r) / factor for r in rows]) - measured

    def slopes(at: FloatArray, here: FloatArray) -> FloatArray:
        return np.stack([(residuals(at + _NUDGE * unit) - here) / _NUDGE for unit in np.eye(len(knobs))], axis=1)

    at = np.zeros(len(knobs))
    error = MODEL_ERROR
    for _ in range(_REFITS):
        at, here, slope, weights = _optimum(at, residuals, slopes, precision, error, least, most)
        information = (slope.T * weights) @ slope
        covariance = np.linalg.inv(information + precision)
        told = float(np.trace(information @ covariance))
        seen = math.sqrt(float(weights @ here**2) * error**2 / max(len(rows) - told, 1.0))
        error = min(MOST_ERROR, max(LEAST_ERROR, seen)) if len(rows) > len(knobs) else MODEL_ERROR
    leverage = weights * np.einsum("ij,jk,ik->i", slope, covariance, slope)
    left_out = here / np.maximum(1.0 - leverage, 1e-3)
    factor, constants = _turned(engine, knobs, at)
    pegged = tuple(k.name for k, x, a, b in zip(knobs, at, least, most, strict=True) if not a + 1e-6 < x < b - 1e-6)
    fitted_rows = tuple(
        FittedRow(
            row,
            default_s=predicted_s(engine, row),
            predicted_s=row.measured_s * math.exp(r),
            left_out_s=row.measured_s * math.exp(out) if len(rows) > 1 else None,
        )
        for row, r, out in zip(rows, here, left_out, strict=True)
    )
    names = tuple(k.name for k in knobs)
    return Fit(
        engine=engine,
        factor=factor,
        decode=None if all(not k.fields for k in knobs) else constants,
        fitted=names,
        constants=_constants(engine.gpu.decode, constants, factor, knobs, np.sqrt(np.diag(covariance))),
        rows=fitted_rows,
        pegged=_beyond_belief(fitted_rows, pegged),
        warnings=tuple(_warnings(fitted_rows, names, pegged)),
    )


def mean_left_out(rows: Sequence[FittedRow]) -> float | None:
    """Mean |error| of rows by fits to the others, None if there are none."""
    errors = [abs(out) for r in rows if (out := r.left_out_error) is not None]
    return math.fsum(errors) / len(errors) if errors else None


def predicted_s(engine: Engine, row: MeasuredStep) -> float:
    """Seconds of the step that a row measured, by the engine's constants."""
    if row.tensor_parallel is not None and row.tensor_parallel != engine.tensor_parallel:
        engine = replace(engine, tensor_parallel=row.tensor_parallel)
    if row.kind is RowKind.FORWARD:
        running, prefill = np.array([row.running]), None
        if row.prefills_per_step:
            prefill = Prefill(row.prefills_per_step * row.prompt_tokens, row.prefills_per_step, row.prompt_tokens)
        step = float(engine.step_s(running, row.context_tokens, prefill)[0])
        return step - engine.gpu.decode.step_s - row.running * engine.gpu.decode.request_s
    return decode_step_s(
        engine,
        row.running,
        row.context_tokens,
        prefill_tokens=row.prefills_per_step * row.prompt_tokens,
        prompt_tokens=row.prompt_tokens,
    )


def median_row(rows: Sequence[MeasuredStep]) -> MeasuredStep:
    """The row of median time among repeated measurements of one load; of an even number, the mean of the middle two."""
    ordered = sorted(rows, key=lambda r: r.measured_s)
    middle = ordered[(len(ordered) - 1) // 2 : len(ordered) // 2 + 1]

    def mean(value: Callable[[MeasuredStep], float]) -> float:
        return math.fsum(map(value, middle)) / len(middle)

    return replace(
        middle[0],
        running=mean(lambda r: r.running),
        prompt_tokens=mean(lambda r: r.prompt_tokens),
        response_tokens=mean(lambda r: r.response_tokens),
        context_tokens=mean(lambda r: r.context_tokens),
        prefills_per_step=mean(lambda r: r.prefills_per_step),
        measured_s=mean(lambda r: r.measured_s),
    )


def with_constants(engine: Engine, constants: DecodeEfficiency | None) -> Engine:
    """The engine with other constants than its GPU's; as it is if there are none."""
    return engine if constants is None else replace(engine, gpu=replace(engine.gpu, decode=constants))


def _optimum(
    at: FloatArray,
    residuals: Residuals,
    slopes: Slopes,
    precision: FloatArray,
    error: float,
    least: FloatArray,
    most: FloatArray,
) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
    """Gauss-Newton with step halving, outliers weighted down: where it ends, residuals, slopes and weights there."""

    def cost(x: FloatArray, r: FloatArray) -> float:
        size = np.abs(r) / error
        return float(np.sum(np.where(size <= OUTLIER, size**2, OUTLIER * (2 * size - OUTLIER))) + x @ precision @ x)

    here = residuals(at)
    for _ in range(_ROUNDS):
        slope = slopes(at, here)
        weights = _weights(here, error)
        step = -np.linalg.solve((slope.T * weights) @ slope + precision, (slope.T * weights) @ here + precision @ at)
        before, scale = cost(at, here), 1.0
        while scale > _CLOSE:
            further = np.clip(at + scale * step, least, most)
            there = residuals(further)
            if cost(further, there) <= before:
                break
            scale /= 2.0
        else:
            break
        moved = float(np.max(np.abs(further - at)))
        at, here = further, there
        if moved < _CLOSE:
            break
    return at, here, slopes(at, here), _weights(here, error)


def _weights(r: FloatArray, error: float) -> FloatArray:
    return np.minimum(1.0, OUTLIER * error / np.maximum(np.abs(r), 1e-12)) / error**2


def _turned(engine: Engine, knobs: Sequence[_Knob], at: FloatArray) -> tuple[float, DecodeEfficiency]:
    """The factor on everything and the constants, with the knobs turned so far."""
    factor, constants = 1.0, engine.gpu.decode
    for knob, x in zip(knobs, np.exp(at), strict=True):
        if not knob.fields:
            factor *= float(x)
        constants = replace(constants, **{f: getattr(constants, f) * float(x) for f in knob.fields})
    return factor, constants


def _several(values: Sequence[float]) -> bool:
    return len(values) > 1 and max(values) >= SPREAD * max(min(values), 1e-12)


def _prefill_share(engine: Engine, row: MeasuredStep) -> float:
    whole = predicted_s(engine, row)
    return 1.0 - predicted_s(engine, replace(row, prefills_per_step=0.0)) / whole


_CONSTANTS = (
    ("mbu", "mbu"),
    ("mfu", "mfu"),
    ("layerSeconds", "layer_s"),
    ("stepSeconds", "step_s"),
    ("requestSeconds", "request_s"),
)


def _constants(
    default: DecodeEfficiency,
    found: DecodeEfficiency,
    factor: float,
    knobs: Sequence[_Knob],
    deviation: FloatArray,
) -> tuple[FittedConstant, ...]:
    """Every constant that was fitted, with what is left of its uncertainty."""
    by_field = {f: (k, float(d)) for k, d in zip(knobs, deviation, strict=True) for f in k.fields or ("factor",)}
    rows = []
    if "factor" in by_field:
        knob, left = by_field["factor"]
        rows.append(FittedConstant("factor", 1.0, factor, left, knob.prior))
    for name, field in _CONSTANTS:
        if field in by_field:
            knob, left = by_field[field]
            rows.append(FittedConstant(name, getattr(default, field), getattr(found, field), left, knob.prior))
    return tuple(rows)


def _mean_ratio(rows: Sequence[FittedRow]) -> float:
    """Geometric mean of measured over packaged."""
    known = [r.row.measured_s / r.default_s for r in rows if r.default_s is not None]
    return math.exp(math.fsum(map(math.log, known)) / len(known))


def _beyond_belief(rows: Sequence[FittedRow], pegged: Sequence[str]) -> bool:
    """Whether a limit that was reached means that something is wrong.

    A constant at its limit may only say that it explains little (a bandwidth of 98 %); with steps that are far from what was
    expected, or a fit that describes nothing, it says that the rows are of another engine.
    """
    off = math.fsum(abs(r.error) for r in rows) / len(rows)
    unlikely = not 1.0 / UNLIKELY_RATIO < _mean_ratio(rows) < UNLIKELY_RATIO
    return bool(pegged) and ("factor" in pegged or unlikely or off > MOST_SHARED_ERROR)


def _warnings(rows: Sequence[FittedRow], fitted: Sequence[str], pegged: Sequence[str]) -> list[str]:
    """What somebody should know who plans with the result."""
    found = []
    off = math.fsum(abs(r.error) for r in rows) / len(rows)
    if pegged and _beyond_belief(rows, pegged):
        found.append(
            f"{', '.join(pegged)} at its limit, with steps {_mean_ratio(rows):.2g} times as long as the packaged constants say: "
            "check --model, --gpu, --tp and --precision, and that nothing else used the GPUs"
        )
    elif off > MOST_SHARED_ERROR:
        found.append(f"the model describes these rows only to {off:.0%}: look at the rows with the largest errors")
    top = max(r.row.running for r in rows)
    if tuple(fitted) == ("factor",):
        found.append(
            f"all rows have about {top:.0f} running samples, so that one factor was fitted to everything: "
            "measure at several concurrencies, such as 1, 8, 64 and 256"
        )
    elif top < WIDE_RUNNING:
        found.append(
            f"the rows end at {top:.0f} running samples: steps of more are an extrapolation; measure where the job will run"
        )
    contexts = [r.row.context_tokens for r in rows]
    if not _several(contexts):
        found.append(
            f"all rows have contexts of about {contexts[0]:.0f} tokens: longer ones are an extrapolation by the packaged bandwidth"
        )
    return found
