"""The calibration file: what ``rljob calibrate`` writes and ``rljob plan --calibration`` reads, and the source of its schema.

A file says what it was measured on and how well the fit describes its rows, since constants without both are only numbers. Every
constant is bounded to what an engine can be: a file that was edited by hand, or fitted to nonsense, is refused where it is read.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, ValidationError, model_validator

from rljob_planner._simulation_json import Part
from rljob_planner.errors import PlanningError
from rljob_planner.measured_costs import LEAST_S

if TYPE_CHECKING:
    from rljob_planner.fit import Fit, FittedRow
    from rljob_planner.fit_seconds import SecondsFit

MAP_KEY = "calibration.yaml"
"""Key of a ConfigMap that holds a calibration."""

MOST_ERROR = 10.0
"""Relative error from which it does not matter how large it is."""

Number = Annotated[float, Field(strict=True, allow_inf_nan=False)]
"""A number, and no text or truth value that could be read as one."""
Whole = Annotated[int, Field(strict=True)]


class MeasuredOnJson(Part):
    """The engine that was measured."""

    model: str
    gpu: str | None = Field(
        default=None, description="Name in the packaged hardware file; null: an accelerator without a data sheet."
    )
    tensor_parallel: Whole = Field(ge=1)
    parameters: Number | None = Field(
        default=None, gt=0, description="Parameters of the model, which its name may not tell; null: not said."
    )
    weights: str = Field(description="Number format of the weights.")
    kv_cache: str = Field(description="Number format of the KV cache.")


class DecodeConstantsJson(Part):
    """Constants of a decode step; they replace the packaged ones of the GPU."""

    mbu: Number = Field(gt=0, le=1, description="Share of memory bandwidth that is reached.")
    mfu: Number = Field(gt=0, le=1, description="Share of peak FLOP/s that is reached.")
    layer_seconds: Number = Field(ge=0, le=0.1, description="A layer, whatever its size.")
    step_seconds: Number = Field(ge=0, le=10, description="A step, whatever the model.")
    request_seconds: Number = Field(ge=0, le=1, description="Each running sample of a step.")


class DecodeSecondsJson(Part):
    """Seconds of an iteration that were measured, whatever the accelerator: the sum of these lines."""

    step_seconds: Number = Field(ge=0, le=100, description="An iteration, whatever it runs.")
    sample_seconds: Number = Field(default=0.0, ge=0, le=10, description="Each running sample of it.")
    context_token_seconds: Number = Field(
        default=0.0, ge=0, le=0.1, description="Each resident token of those samples."
    )
    prompt_token_seconds: Number = Field(
        default=0.0, ge=0, le=1, description="Each prompt token that is prefilled in it."
    )
    experts_seconds: Number = Field(
        default=0.0,
        ge=0,
        le=100,
        description="All routed experts of a mixture; of it, the share that its tokens visit.",
    )

    @model_validator(mode="after")
    def _takes_time(self) -> DecodeSecondsJson:
        if not self.step_seconds + self.sample_seconds + self.experts_seconds >= LEAST_S:
            raise ValueError("an iteration takes time: write stepSeconds, sampleSeconds or expertsSeconds above 0")
        return self


class TrainSecondsJson(Part):
    """Seconds of a training step that were measured, whatever the accelerator: the sum of these lines."""

    step_seconds: Number = Field(default=0.0, ge=0, le=100_000, description="A step, with any number of GPUs.")
    token_seconds: Number = Field(
        default=0.0, ge=0, le=1000, description="Each prompt or response token of the batch, over the trainers' GPUs."
    )
    error: Number | None = Field(
        default=None, ge=0, le=10, description="Relative error that these seconds may have; null: not known."
    )

    @model_validator(mode="after")
    def _takes_time(self) -> TrainSecondsJson:
        if not self.step_seconds + self.token_seconds >= LEAST_S:
            raise ValueError("a training step takes time: write stepSeconds or tokenSeconds above 0")
        return self


class SamplersCalibrationJson(Part):
    """The sampler side."""

    factor: Number = Field(
        default=1.0, ge=0.1, le=10, description="Measured over predicted speed, beyond the constants."
    )
    decode: DecodeConstantsJson | None = Field(default=None, description="null: the packaged constants hold.")
    measured: DecodeSecondsJson | None = Field(
        default=None, description="Seconds that rest on no data sheet; null: bytes, arithmetic and constants hold."
    )
    efficiency: Number | None = Field(
        default=None,
        gt=0,
        le=2,
        description="Speed in a running job over the engine's alone, until the job shows it; null: as published runs show it.",
    )
    kv_tokens: Whole | None = Field(
        default=None, gt=0, description="Tokens in the KV cache of a replica as its engine reports; null: computed."
    )

    @model_validator(mode="after")
    def _one_account(self) -> SamplersCalibrationJson:
        if self.decode is not None and self.measured is not None:
            raise ValueError("decode and measured both say what an iteration takes: keep one of them")
        return self


class TrainersCalibrationJson(Part):
    """The trainer side."""

    factor: Number = Field(default=1.0, ge=0.1, le=10, description="Measured over predicted speed.")
    measured: TrainSecondsJson | None = Field(
        default=None, description="Seconds that rest on no data sheet; null: FLOPs at the trainer's MFU hold."
    )


class ConstantJson(Part):
    """One fitted constant."""

    name: str
    default: float | None = Field(default=None, description="Its packaged value; null: there is none.")
    value: float
    uncertainty: float | None = Field(
        default=None, description="Relative standard deviation that rows and prior leave; null: there was no prior."
    )
    prior: float | None = Field(
        default=None, description="Relative standard deviation that was assumed before the rows; null: there was none."
    )


class FitRowJson(Part):
    """One measured row, and what the model says of it."""

    source: str
    kind: Literal["served", "forward", "prefill"]
    running: float = Field(description="Mean running samples.")
    prompt_tokens: float
    response_tokens: float
    context_tokens: float = Field(description="Mean resident tokens of a running sample.")
    measured_ms: float
    default_ms: float | None = Field(
        default=None, description="By the packaged constants; null: there are none of this accelerator."
    )
    predicted_ms: float = Field(description="By the fit.")
    error: float = Field(description="Predicted over measured, less 1.")
    left_out_error: float | None = Field(
        default=None, description="The same by a fit to the other rows; null if there are none."
    )


class SkippedJson(Part):
    """A measurement that was not used."""

    source: str
    reason: str


class ErrorsJson(Part):
    """Mean, median and largest |predicted/measured − 1| over the rows."""

    mean: float
    median: float
    worst: float


class RangeJson(Part):
    """Smallest and largest of the rows."""

    least: float
    most: float


class FitJson(Part):
    """How the constants came about and how well they describe the rows."""

    fitted: list[str] = Field(description="What the rows could tell apart; everything else kept its packaged value.")
    constants: list[ConstantJson]
    default_error: ErrorsJson | None = Field(
        default=None, description="Of the packaged constants; null: there are none of this accelerator."
    )
    error: ErrorsJson = Field(description="Of the fit, on the rows it was fitted to.")
    left_out_error: ErrorsJson | None = Field(
        default=None, description="Of each row by a fit to the others; null below two rows."
    )
    running: RangeJson
    context_tokens: RangeJson
    rows: list[FitRowJson]
    skipped: list[SkippedJson]
    warnings: list[str]


class CalibrationJson(Part):
    """A calibration: how fast this model runs on this engine."""

    version: Literal[1] = Field(default=1, alias="rljobCalibration", description="Version of this format.")
    measured_on: MeasuredOnJson | None = None
    samplers: SamplersCalibrationJson = Field(default_factory=SamplersCalibrationJson)
    trainers: TrainersCalibrationJson = Field(default_factory=TrainersCalibrationJson)
    residual: Number | None = Field(
        default=None, ge=0, le=MOST_ERROR, description="Relative error that is to be expected; null: not known."
    )
    pegged: bool = Field(default=False, description="Whether a factor or constant stands at its limit.")
    observations: Whole = Field(default=0, ge=0, description="Rows or readings behind it.")
    fit: FitJson | None = None

    def to_json(self) -> dict[str, Any]:
        """What is printed or written."""
        return self.model_dump(mode="json", by_alias=True)


def parsed(text: str, source: str) -> CalibrationJson:
    """A calibration file, or the ConfigMap around one; raises PlanningError ``InvalidCalibration``."""
    from rljob_planner.documents import InvalidDocumentError, parse_documents

    try:
        documents = parse_documents(text, source)
    except InvalidDocumentError as error:
        raise PlanningError("InvalidCalibration", str(error)) from None
    document = documents[0] if documents else None
    if isinstance(document, dict) and document.get("kind") == "ConfigMap":
        inner = (document.get("data") or {}).get(MAP_KEY)
        if not isinstance(inner, str):
            raise PlanningError("InvalidCalibration", f"{source}: this ConfigMap has no key {MAP_KEY} in its data")
        return parsed(inner, f"{source}, {MAP_KEY}")
    return checked(document, source)


def checked(document: Any, source: str) -> CalibrationJson:
    """A calibration that was read already; raises PlanningError ``InvalidCalibration``."""
    if not isinstance(document, dict) or "rljobCalibration" not in document:
        raise PlanningError(
            "InvalidCalibration",
            f"{source}: this is no calibration (it would begin with rljobCalibration: 1): write one with rljob calibrate",
        )
    try:
        return CalibrationJson.model_validate(document)
    except ValidationError as error:
        problems = "\n".join(
            f"{source}: {'.'.join(str(part) for part in problem['loc'])}: {problem['msg'].lower()}"
            for problem in error.errors(include_url=False)
        )
        raise PlanningError("InvalidCalibration", problems) from None


def calibration_of(
    fit: Fit, kv_tokens: int | None = None, skipped: Sequence[tuple[str, str]] = (), efficiency: float | None = None
) -> CalibrationJson:
    """The calibration file of this fit; ``skipped`` are sources that were left out, with reasons.

    ``efficiency``: speed of samplers in a running job over their engine's alone, where somebody says it.
    """
    e = fit.engine
    d = fit.decode
    return CalibrationJson(
        measured_on=MeasuredOnJson(
            model=e.model.name,
            gpu=e.gpu.name,
            parameters=e.model.parameters,
            tensor_parallel=e.tensor_parallel,
            weights=e.weights,
            kv_cache=e.kv,
        ),
        samplers=SamplersCalibrationJson(
            factor=fit.factor,
            decode=None
            if d is None
            else DecodeConstantsJson(
                mbu=d.mbu, mfu=d.mfu, layer_seconds=d.layer_s, step_seconds=d.step_s, request_seconds=d.request_s
            ),
            kv_tokens=kv_tokens,
            efficiency=efficiency,
        ),
        residual=None if fit.residual is None else min(fit.residual, MOST_ERROR),
        pegged=fit.pegged,
        observations=len(fit.rows),
        fit=FitJson(
            fitted=list(fit.fitted),
            constants=[ConstantJson(**vars(c)) for c in fit.constants],
            default_error=_errors([off for r in fit.rows if (off := r.default_error) is not None]),
            error=_errors([r.error for r in fit.rows]),
            left_out_error=None
            if len(fit.rows) < 2
            else _errors([out for r in fit.rows if (out := r.left_out_error) is not None]),
            running=_range([r.row.running for r in fit.rows]),
            context_tokens=_range([r.row.context_tokens for r in fit.rows]),
            rows=[_row_json(r) for r in fit.rows],
            skipped=[SkippedJson(source=source, reason=reason) for source, reason in skipped],
            warnings=list(fit.warnings),
        ),
    )


def calibration_of_seconds(
    fit: SecondsFit,
    measured_on: MeasuredOnJson,
    kv_tokens: int | None = None,
    skipped: Sequence[tuple[str, str]] = (),
    efficiency: float | None = None,
) -> CalibrationJson:
    """The calibration file of an engine on an accelerator without a data sheet; otherwise as ``calibration_of``."""
    seconds = fit.seconds
    left_out = [out for r in fit.rows if (out := r.left_out_error) is not None]
    served = [r.row for r in fit.rows if r.row.kind.value == "served"]
    return CalibrationJson(
        measured_on=measured_on,
        samplers=SamplersCalibrationJson(
            measured=DecodeSecondsJson(
                step_seconds=seconds.step_s,
                sample_seconds=seconds.sample_s,
                context_token_seconds=seconds.context_token_s,
                prompt_token_seconds=seconds.prompt_token_s,
                experts_seconds=seconds.experts_s,
            ),
            kv_tokens=kv_tokens,
            efficiency=efficiency,
        ),
        residual=None if fit.residual is None else min(fit.residual, MOST_ERROR),
        observations=len(fit.rows),
        fit=FitJson(
            fitted=list(fit.fitted),
            constants=[ConstantJson(name=name, value=value) for name, value in fit.values],
            error=_errors([r.error for r in fit.rows]),
            left_out_error=_errors(left_out) if left_out else None,
            running=_range([row.running for row in served]),
            context_tokens=_range([row.context_tokens for row in served]),
            rows=[_row_json(r) for r in fit.rows],
            skipped=[SkippedJson(source=source, reason=reason) for source, reason in skipped],
            warnings=list(fit.warnings),
        ),
    )


def _errors(errors: Sequence[float]) -> ErrorsJson:
    sizes = [abs(e) for e in errors]
    return ErrorsJson(mean=math.fsum(sizes) / len(sizes), median=median(sizes), worst=max(sizes))


def _range(values: Sequence[float]) -> RangeJson:
    return RangeJson(least=min(values), most=max(values))


def _row_json(fitted: FittedRow) -> FitRowJson:
    row = fitted.row
    return FitRowJson(
        source=row.source,
        kind=row.kind.value,
        running=row.running,
        prompt_tokens=row.prompt_tokens,
        response_tokens=row.response_tokens,
        context_tokens=row.context_tokens,
        measured_ms=row.measured_s * 1e3,
        default_ms=None if fitted.default_s is None else fitted.default_s * 1e3,
        predicted_ms=fitted.predicted_s * 1e3,
        error=fitted.error,
        left_out_error=fitted.left_out_error,
    )
