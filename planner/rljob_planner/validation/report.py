"""What ``rljob validate`` prints: the JSON and, through it, its schema."""

from __future__ import annotations

from pydantic import Field

from rljob_planner._simulation_json import Part
from rljob_planner.validation.rows import Row
from rljob_planner.validation.validate import Group, Validation, mean, median, worst


class RowJson(Part):
    """A measured row and its prediction."""

    id: str
    kind: str = Field(
        description="serving, training, step_time, throughput, bottleneck, staleness, weight_sync, sync_tail or speedup."
    )
    family: str = Field(description="Rows comparable with each other; factors are fitted on the other rows of it.")
    unit: str = Field(description="s, ms, versions, tokens/s or ratio; empty for a side.")
    predicted: float | str | None = Field(
        description="A number from data sheets and packaged constants; a side with what the family's other rows teach besides. null: see reason."
    )
    measured: float | str | None
    error: float | None = Field(
        ge=0, description="|predicted/measured − 1|, or the absolute difference where errorKind says so."
    )
    error_kind: str = Field(description="relative or absolute.")
    calibrated: float | str | None = Field(
        description="After a factor per side fitted on the other rows of the family."
    )
    calibrated_error: float | None = Field(ge=0)
    measured_side: str | None = Field(description="rollout, train or matched, where a row with a number states it.")
    predicted_side: str | None = Field(
        description="Beside a number, with what the family's other rows teach; null: both sides work in turn, or the kind has none."
    )
    plain_side: str | None = Field(description="The side from data sheets and packaged constants alone.")
    measured_wait: float | None = Field(
        description="Trainer's wait for samples over the period, where the row states it."
    )
    predicted_wait: float | None
    correct: bool | None = Field(
        description="Whether the predicted side (predicted, or predictedSide beside a number) is the measured one; null: the row states none."
    )
    calibrated_correct: bool | None = Field(
        description="As correct, of the side after the other rows' factors; null: there were too few of them."
    )
    covered: bool = Field(description="Whether the row was predicted.")
    judged: bool = Field(description="False: shown, but left out of the means for the reason in note.")
    reason: str | None = Field(description="Why there is no prediction: the field that is null in the file, or wrong.")
    note: str | None = Field(description="What was assumed, and what to know of the row.")


class GroupJson(Part):
    """What the rows of a family, or of a kind, add up to."""

    kind: str
    rows: int
    predicted: int
    coverage: float = Field(ge=0, le=1, description="Rows predicted of rows there.")
    error_kind: str
    judged: int = Field(description="Rows whose errors are in the means.")
    mean_error: float | None
    median_error: float | None
    worst_error: float | None
    calibrated: int = Field(description="Judged rows with a calibrated prediction.")
    mean_calibrated_error: float | None
    median_calibrated_error: float | None
    worst_calibrated_error: float | None
    sides: int = Field(description="Rows that state a bound side and were predicted.")
    correct: int


class FamilyJson(GroupJson):
    """A family of one kind."""

    family: str


class SummaryJson(Part):
    """Over all documents."""

    rows: int
    predicted: int
    coverage: float = Field(ge=0, le=1)
    kinds: list[GroupJson]


class ValidationJson(Part):
    """Measured rows with their predictions, and what they add up to."""

    rows: list[RowJson]
    families: list[FamilyJson]
    summary: SummaryJson


def validation_json(found: Validation) -> ValidationJson:
    """The printed form of a validation."""
    predicted = sum(r.covered for r in found.rows)
    return ValidationJson(
        rows=[_row(r) for r in found.rows],
        families=[FamilyJson(family=g.name, **_group(g)) for g in found.families],
        summary=SummaryJson(
            rows=len(found.rows),
            predicted=predicted,
            coverage=predicted / max(1, len(found.rows)),
            kinds=[GroupJson(**_group(g)) for g in found.kinds],
        ),
    )


def _row(r: Row) -> RowJson:
    return RowJson(
        id=r.id,
        kind=r.kind,
        family=r.family,
        unit=r.unit,
        predicted=r.predicted,
        measured=r.measured,
        error=r.error,
        error_kind=r.error_kind,
        calibrated=r.calibrated,
        calibrated_error=r.calibrated_error,
        measured_side=r.measured_side,
        predicted_side=r.predicted_side,
        plain_side=r.plain_side,
        measured_wait=r.measured_wait,
        predicted_wait=r.predicted_wait,
        correct=r.correct,
        calibrated_correct=r.calibrated_correct,
        covered=r.covered,
        judged=r.judged,
        reason=r.reason,
        note=r.note,
    )


def _group(g: Group) -> dict[str, object]:
    return {
        "kind": g.kind,
        "rows": g.rows,
        "predicted": g.predicted,
        "coverage": g.coverage,
        "error_kind": g.error_kind,
        "judged": len(g.errors),
        "mean_error": mean(g.errors),
        "median_error": median(g.errors),
        "worst_error": worst(g.errors),
        "calibrated": len(g.calibrated_errors),
        "mean_calibrated_error": mean(g.calibrated_errors),
        "median_calibrated_error": median(g.calibrated_errors),
        "worst_calibrated_error": worst(g.calibrated_errors),
        "sides": g.sides,
        "correct": g.correct,
    }
