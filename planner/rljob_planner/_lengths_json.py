"""The JSON that ``rljob lengths`` prints: the source of its schema and of its keys."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from rljob_planner._simulation_json import Part

if TYPE_CHECKING:
    from rljob_planner.traces import FittedLengths


class SeenJson(Part):
    """The responses of the log, before any law."""

    mean: float = Field(description="Tokens.")
    cv: float = Field(description="Standard deviation over mean.")
    longest: int = Field(description="Tokens.")


class GrowthJson(Part):
    """How the mean length moved over the steps of the log."""

    factor: float = Field(description="Mean length at the end over that at the beginning.")
    points: list[tuple[float, float]] = Field(description="[step, mean length there over the mean of all].")


class FitJson(Part):
    """A law that was tried."""

    law: str
    bic: float = Field(description="Schwarz's criterion; lower is better.")
    ks: float = Field(description="Largest distance of the cumulative distributions, 0..1.")


class LengthsJson(Part):
    """What a log of response lengths says, by a law, and what it does not say."""

    samples: int = Field(description="Responses in the log.")
    law: str = Field(
        description="lognormal, two lognormals (each perhaps 'and a share at the cap'), histogram or one length."
    )
    ks: float = Field(description="Largest distance of the cumulative distributions of law and log, 0..1.")
    mean: float = Field(description="Tokens, by the law.")
    cv: float = Field(description="Standard deviation over mean, by the law.")
    p50: int = Field(description="Tokens, by the law.")
    p90: int = Field(description="Tokens, by the law.")
    p99: int = Field(description="Tokens, by the law.")
    max: int = Field(description="The cap in tokens.")
    max_from: Literal["told", "flags", "pile", "longest"] = Field(
        description="Whether the cap was told, follows from what the log says was cut, from a pile of equal longest responses, "
        "or is the longest response because no cap is to be seen."
    )
    cap_share: float = Field(description="Share of the responses that the cap cut, 0..1.")
    seen: SeenJson
    group_size: int | None = Field(description="Samples of a prompt; null where the log does not say.")
    group_correlation: float | None = Field(
        description="Of ln(length) in a group, 0..1; null where the log does not say."
    )
    growth: GrowthJson | None = Field(description="Null where the log does not say.")
    fits: list[FitJson] = Field(description="All laws that were tried, the best first.")
    response_tokens: dict[str, Any] = Field(description="spec.workload.responseTokens of an RLJob with these lengths.")
    scenario: dict[str, Any] = Field(description="Keys of a scenario's workload with these lengths.")
    notes: list[str]
    warnings: list[str] = Field(description="What the log does not support.")


def lengths_json(found: FittedLengths) -> dict[str, Any]:
    """A fit as JSON."""
    from rljob_planner.length_blocks import job_block, scenario_block

    lengths, growth = found.distribution, found.growth
    return LengthsJson(
        samples=found.samples,
        law=found.law,
        ks=found.ks,
        mean=lengths.mean(),
        cv=lengths.cv(),
        p50=lengths.quantile(0.5),
        p90=lengths.quantile(0.9),
        p99=lengths.quantile(0.99),
        max=found.cap_tokens,
        max_from=found.cap_from,
        cap_share=found.cap_share,
        seen=SeenJson(mean=found.seen_mean, cv=found.seen_cv, longest=found.longest),
        group_size=found.group_size,
        group_correlation=found.group_correlation,
        growth=None if growth is None else GrowthJson(factor=growth.factor, points=list(growth.points)),
        fits=[FitJson(law=fit.name, bic=fit.bic, ks=fit.ks) for fit in found.fits],
        response_tokens=job_block(found),
        scenario=scenario_block(found),
        notes=list(found.notes),
        warnings=list(found.warnings),
    ).model_dump(by_alias=True, mode="json")
