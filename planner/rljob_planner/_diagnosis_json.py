"""The JSON that a diagnosis is reported as: the source of its schema and of its keys."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from rljob_planner._simulation_json import Part

if TYPE_CHECKING:
    from rljob_planner.diagnose import Diagnosis


class TermJson(Part):
    """One part of the period."""

    name: str = Field(description="train, wait and other; generate, sync and idle; sandbox.")
    clock: Literal["trainer", "samplers", "sample"] = Field(description="Whose time the share is of.")
    seconds: float | None = Field(description="Of a period, or of a sample's life; null: unknown, which is not zero.")
    share: float | None = Field(description="Of the clock's whole, 0..1; null: unknown.")
    evidence: list[str]
    unknown: str = Field(description="What would have to be measured; empty if nothing.")


class AdviceJson(Part):
    """Something to change."""

    change: str
    because: str
    at_most: float | None = Field(
        description="Share by which the period could shorten at most; null: it can't be said."
    )


class ComparedJson(Part):
    """One quantity beside what the model says of it."""

    name: str
    predicted: float
    measured: float
    ratio: float | None = Field(description="Measured over predicted.")
    meaning: str = Field(description="Empty where both agree.")


class DiagnosisJson(Part):
    """Where the period goes, and what bounds it."""

    period: float | None = Field(description="Seconds; null: unknown.")
    bound: Literal["samplers", "trainers", "sandboxes", "weight-sync", "balanced", "handover", "unknown"]
    sure: bool = Field(description="Whether both sides and the queue say so.")
    why: list[str]
    terms: list[TermJson]
    advice: list[AdviceJson]
    compared: list[ComparedJson]
    unknown: list[str] = Field(description="What could not be said, and what would have to be measured.")
    notes: list[str]


def diagnosis_json(found: Diagnosis) -> dict[str, Any]:
    """What is printed."""
    return DiagnosisJson(
        period=found.period_s,
        bound=found.bound.value,
        sure=found.sure,
        why=list(found.why),
        terms=[
            TermJson(
                name=t.name,
                clock=t.clock.value,
                seconds=t.seconds,
                share=t.share,
                evidence=list(t.evidence),
                unknown=t.unknown,
            )
            for t in found.terms
        ],
        advice=[AdviceJson(change=a.change, because=a.because, at_most=a.at_most) for a in found.advice],
        compared=[
            ComparedJson(name=c.name, predicted=c.predicted, measured=c.measured, ratio=c.ratio, meaning=c.meaning)
            for c in found.compared
        ],
        unknown=list(found.unknown),
        notes=list(found.notes),
    ).model_dump(mode="json", by_alias=True)
