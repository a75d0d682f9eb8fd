"""Response lengths in a scenario file: one of several ways to say what is known of them.

A law for those who think in laws, quantiles or a histogram for those who read a dashboard, values for what is worked out by
hand, a trace for those who have a log. All of them become the same ``LengthDistribution``.
"""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator, model_validator
from pydantic.alias_generators import to_camel

from rljob_planner.laws import LognormalLaw
from rljob_planner.lengths import MAX_TOKENS, LengthDistribution

if TYPE_CHECKING:
    from rljob_planner.traces import FittedLengths


class Section(BaseModel):
    """Base of every part of a scenario file: camelCase, nothing beyond its fields."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, extra="forbid", frozen=True)


Number = Annotated[float, Field(strict=True, allow_inf_nan=False)]
Above0 = Annotated[float, Field(gt=0, strict=True, allow_inf_nan=False)]
Sigma = Annotated[float, Field(ge=0, le=20, allow_inf_nan=False, strict=True)]
Probability = Annotated[float, Field(gt=0, lt=1, allow_inf_nan=False)]
Cap = Annotated[int, Field(ge=1, le=MAX_TOKENS, strict=True)]


class Lognormal(Section):
    """ln(length) is normal; lengths are clipped at max."""

    median: Above0 = Field(description="Median length in tokens, before clipping.")
    sigma: Sigma = Field(description="Standard deviation of ln(length).")
    max: Cap = Field(description="Longest response in tokens; longer ones are cut here.")
    cap_mass: Annotated[float, Field(ge=0, le=1, strict=True)] = Field(
        default=0.0,
        description="Share of responses that never end by themselves, besides those that are longer than max.",
    )


class Peak(Section):
    """One of the lognormal laws of a mixture."""

    weight: Above0 = Field(description="Its share of the responses, relative to the other weights.")
    median: Above0 = Field(description="Median length in tokens, before clipping.")
    sigma: Sigma = Field(description="Standard deviation of ln(length).")


_WAYS = ("lognormal", "bimodal", "quantiles", "histogram", "values", "trace")


class ResponseTokens(Section):
    """Response lengths in tokens, described in one way: lognormal, bimodal, quantiles, histogram, values or trace."""

    lognormal: Lognormal | None = Field(default=None, description="A lognormal law, clipped.")
    bimodal: tuple[Peak, ...] | None = Field(
        default=None, description="[{weight, median, sigma}, …]: lognormal laws, such as short answers and long ones."
    )
    quantiles: dict[Probability, Above0] | None = Field(
        default=None, description="{0.5: tokens, 0.99: tokens, …}: lognormal between and beyond them."
    )
    histogram: tuple[tuple[Number, Number], ...] | None = Field(
        default=None, description="[[upper edge, count], …]: uniform inside a bin; the first begins at 0."
    )
    values: tuple[Number, ...] | None = Field(default=None, description="Lengths, each equally likely.")
    trace: Path | None = Field(
        default=None, description="A JSONL file of response lengths, whose law is fitted; beside the scenario file."
    )
    max: Cap | None = Field(
        default=None,
        description="Longest response in tokens, where longer ones are cut. bimodal and quantiles need it; otherwise the "
        "longest that is given.",
    )

    @field_validator("trace")
    @classmethod
    def _beside_the_file(cls, trace: Path | None, info: ValidationInfo) -> Path | None:
        folder = (info.context or {}).get("folder")
        return trace if trace is None or folder is None else Path(folder) / trace

    @model_validator(mode="after")
    def _one_way(self) -> ResponseTokens:
        given = [name for name in _WAYS if getattr(self, name) is not None]
        ways = f"{', '.join(_WAYS[:-1])} or {_WAYS[-1]}"
        if len(given) != 1:
            said = " and ".join(given) if given else "none of them"
            raise ValueError(f"describe lengths in one way, {ways}; this has {said}")
        if self.max is None and given[0] in ("bimodal", "quantiles"):
            raise ValueError(f"{given[0]} needs max: write the tokens at which responses are cut, such as max: 16384")
        if self.max is not None and self.lognormal is not None:
            raise ValueError("max stands inside lognormal: write {lognormal: {median: …, sigma: …, max: …}}")
        self.distribution()
        return self

    @cached_property
    def _distribution(self) -> LengthDistribution:
        if self.lognormal is not None:
            law = self.lognormal
            return LengthDistribution.lognormal(law.median, law.sigma, law.max, law.cap_mass)
        if self.trace is not None:
            return self._fitted.distribution
        if self.max is not None and self.bimodal is not None:
            peaks: list[tuple[float, Any]] = [
                (
                    p.weight,
                    LognormalLaw(p.median, p.sigma) if p.sigma > 0 else LengthDistribution.from_values([p.median]),
                )
                for p in self.bimodal
            ]
            return LengthDistribution.mixture(peaks, self.max)
        if self.max is not None and self.quantiles is not None:
            return LengthDistribution.from_quantiles(self.quantiles, self.max)
        if self.histogram is not None:
            return LengthDistribution.from_histogram(self.histogram, self.max)
        return LengthDistribution.from_values(self.values or (), self.max)

    @cached_property
    def _fitted(self) -> FittedLengths:
        from rljob_planner.traces import fitted, read_lengths

        if self.trace is None:
            raise ValueError("there is no trace")
        return fitted(read_lengths(self.trace), self.max)

    def distribution(self) -> LengthDistribution:
        """The lengths as a distribution."""
        return self._distribution

    def group_correlation(self) -> float:
        """What a trace says of the correlation of the lengths of one prompt's samples; 0 where it says nothing."""
        found = self._fitted.group_correlation if self.trace is not None else None
        return 0.0 if found is None else min(1.0, max(0.0, found))
