"""What a job works on: lengths, batch, and how stale its samples may get."""

from __future__ import annotations

import re
from enum import StrEnum
from itertools import pairwise
from typing import Annotated, ClassVar

from pydantic import Field

from rljob_planner.api.base import ApiModel, Int, Number, Rule

_QUANTILE = r"^0?\.[0-9]{1,6}$"


class Bound(StrEnum):
    """The rule that the job's own framework enforces to keep staleness at or under its maximum."""

    NONE = "none"
    ADMISSION = "admission"
    HOLD = "hold"
    DROP = "drop"


class Overflow(StrEnum):
    """What happens to a queue at capacity."""

    DROP_OLDEST = "drop-oldest"
    BLOCK = "block"


class PromptTokens(ApiModel):
    """The length of prompts."""

    mean: Int = Field(ge=1, le=1_000_000, description="Mean prompt length in tokens.")


class ResponseTokens(ApiModel):
    """The length distribution of responses at the start of the run: mean (with cv), quantiles or histogram. The operator learns how it moves."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            rule="(has(self.mean) ? 1 : 0) + (has(self.quantiles) ? 1 : 0) + (has(self.histogram) ? 1 : 0) == 1",
            message="describe response lengths in one way: mean (with cv), quantiles or histogram",
            holds=lambda r: (r.mean is not None) + (r.quantiles is not None) + (r.histogram is not None) == 1,
        ),
        Rule(
            rule="!has(self.mean) || self.mean <= self.max",
            message="responseTokens.mean is above responseTokens.max: raise max, the cap on a response, or lower mean",
            holds=lambda r: r.mean is None or r.mean <= r.max,
            field="mean",
        ),
        Rule(
            # A cap leaves room for no more spread than cv² = max/mean − 1, all samples being 0 or max long.
            rule=(
                "!has(self.mean) || self.mean > self.max || self.cv < 0.000001 || "
                "self.cv * self.cv < 0.98 * (double(self.max) / double(self.mean) - 1.0)"
            ),
            message=(
                "lengths up to responseTokens.max can't have so large a cv (1.0 if it is left out) around this mean: "
                "write a cv with cv² below max/mean - 1, or raise max"
            ),
            holds=lambda r: (
                r.mean is None or r.mean > r.max or r.cv < 1e-6 or r.cv * r.cv < 0.98 * (r.max / r.mean - 1.0)
            ),
            field="cv",
        ),
        Rule(
            rule=f"!has(self.quantiles) || self.quantiles.all(q, q.matches('{_QUANTILE}') && double(q) > 0.0)".replace(
                "\\", "\\\\"
            ),
            message="write the keys of responseTokens.quantiles as shares between 0 and 1 in quotes, such as '0.5' and '0.95'",
            holds=lambda r: (
                r.quantiles is None or all(re.fullmatch(_QUANTILE, q) and float(q) > 0 for q in r.quantiles)
            ),
            field="quantiles",
        ),
        Rule(
            rule=(
                "!has(self.quantiles) || self.quantiles.all(p, self.quantiles.all(q, "
                f"!p.matches('{_QUANTILE}') || !q.matches('{_QUANTILE}') || "
                "p == q || double(p) > double(q) || self.quantiles[p] < self.quantiles[q]))"
            ).replace("\\", "\\\\"),
            message="a higher quantile must have more tokens: let the values of responseTokens.quantiles rise with their keys",
            holds=lambda r: r.quantiles is None or _rising(r.quantiles),
            field="quantiles",
        ),
        Rule(
            rule="!has(self.quantiles) || self.quantiles.all(q, self.quantiles[q] <= self.max)",
            message="a quantile is above responseTokens.max: raise max, the cap on a response, or lower the quantile",
            holds=lambda r: r.quantiles is None or all(tokens <= r.max for tokens in r.quantiles.values()),
            field="quantiles",
        ),
        Rule(
            rule=(
                "!has(self.histogram) || (self.histogram[0][0] > 0 && self.histogram.map(b, b[0]).isSorted() && "
                "self.histogram.all(a, self.histogram.exists_one(b, a[0] == b[0])))"
            ),
            message="let the upper edges of responseTokens.histogram rise from above 0, as in [[512, 40], [1024, 90]]",
            holds=lambda r: (
                r.histogram is None or (r.histogram[0][0] > 0 and all(a[0] < b[0] for a, b in pairwise(r.histogram)))
            ),
            field="histogram",
        ),
        Rule(
            rule="!has(self.histogram) || self.histogram.exists(b, b[1] > 0)",
            message="all counts of responseTokens.histogram are 0: give at least one bin a count, as in [[512, 40], [1024, 90]]",
            holds=lambda r: r.histogram is None or any(count > 0 for _, count in r.histogram),
            field="histogram",
        ),
    )

    mean: Int | None = Field(default=None, ge=1, le=10_000_000, description="Mean response length in tokens.")
    cv: Number = Field(default=1.0, ge=0.0, le=10.0, description="Standard deviation over mean, used with mean.")
    max: Int = Field(ge=1, le=10_000_000, description="Cap on a response in tokens.")
    quantiles: dict[str, Annotated[int, Field(strict=True, ge=1, le=10_000_000)]] | None = Field(
        default=None,
        min_length=2,
        max_length=32,
        description="Tokens at two or more quantiles, such as {'0.5': 800, '0.9': 3400}.",
    )
    histogram: (
        tuple[
            tuple[
                Annotated[int, Field(strict=True, ge=0, le=1_000_000_000_000)],
                Annotated[int, Field(strict=True, ge=0, le=1_000_000_000_000)],
            ],
            ...,
        ]
        | None
    ) = Field(
        default=None,
        min_length=1,
        max_length=256,
        description="Pairs of upper edge in tokens and count of samples, uniform inside a bin; the first bin begins at 0.",
    )
    growth: Number | None = Field(
        default=None,
        ge=0.05,
        le=100.0,
        description=(
            "How many times as long as at its start responses are expected to be at the end of the run, such as 2.5, under the "
            "same max. Expected run time and cost follow it; the split is that of the start, and the operator learns the rest."
        ),
    )


def _rising(quantiles: dict[str, int]) -> bool:
    points = [(q, float(q), tokens) for q, tokens in quantiles.items() if re.fullmatch(_QUANTILE, q)]
    # Two spellings of one quantile ('0.5', '0.50') can't both be below the other, so they break the rule as they should.
    return all(p == q or a > b or x < y for p, a, x in points for q, b, y in points)


class Environment(ApiModel):
    """What a sample does between its turns, in an agentic job: it leaves its decode slot and waits for its environment."""

    seconds_per_turn: Number = Field(
        ge=0.0,
        le=86_400.0,
        description="Mean seconds that a sample is in its environment between two turns, such as 2.5.",
    )
    turns: Int = Field(ge=2, le=1_000, description="Turns of a sample; its response tokens are those of all of them.")
    cv: Number = Field(
        default=0.0, ge=0.0, le=10.0, description="Standard deviation over mean of the seconds in the environment."
    )


class Workload(ApiModel):
    """One training step's worth of work, and how many steps there are."""

    prompts_per_step: Int = Field(ge=1, le=1_000_000, description="Groups that one training step consumes.")
    samples_per_prompt: Int = Field(ge=1, le=10_000, description="Samples in a group; it can't change in a run.")
    steps: Int = Field(ge=1, le=10_000_000, description="Training steps of the run.")
    prompt_tokens: PromptTokens = Field(description="The length of prompts.")
    response_tokens: ResponseTokens = Field(
        description=(
            "The length distribution of responses at the start of the run: mean (with cv), quantiles or histogram. "
            "The operator learns how it moves."
        )
    )
    environment: Environment | None = Field(
        default=None, description="What samples do between turns, in an agentic job; absent: one turn, no environment."
    )

    @property
    def samples_per_step(self) -> int:
        """The training batch in samples."""
        return self.prompts_per_step * self.samples_per_prompt


class Staleness(ApiModel):
    """The staleness that the method tolerates and how the job's framework keeps to it."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            rule="self.bound != 'none' || self.max > 0",
            message=(
                "staleness.max 0 is only kept by a bound: set staleness.bound to admission, hold or drop "
                "(what the job's framework enforces), or allow max 1 or more"
            ),
            holds=lambda s: s.bound is not Bound.NONE or s.max > 0,
            field="bound",
        ),
    )

    max: Int = Field(ge=0, le=10_000, description="Largest tolerated staleness in policy versions.")
    bound: Bound = Field(
        default=Bound.ADMISSION,
        description=(
            "The rule that the job's framework enforces. none: nothing; admission: a group starts only while its mean "
            "staleness stays within max; hold: the trainer waits before it publishes; drop: groups over max are discarded."
        ),
    )

    ratio_variance: Number | None = Field(
        default=None,
        ge=0.0,
        le=10.0,
        description=(
            "Variance of a sample's log importance ratio that one policy version adds, as measured; 0.05 is assumed if absent. "
            "It is reported on and does not change the split."
        ),
    )

    @property
    def mean_limit(self) -> float:
        """The mean staleness of trained samples that the bound promises, in policy versions.

        ``hold`` promises that no unfinished sample is over ``max`` when a version is published; a trained one is older by its
        time in the queue, which is one version if it waits for no more than the rest of its batch.
        """
        return self.max + (1.0 if self.bound is Bound.HOLD else 0.0)


class Queue(ApiModel):
    """The queue of complete groups between samplers and trainer; without a capacity if absent."""

    capacity: Int = Field(ge=1, le=100_000_000, description="Capacity in groups, at least workload.promptsPerStep.")
    overflow: Overflow = Field(
        default=Overflow.DROP_OLDEST,
        description="At capacity, drop-oldest pushes the oldest group out; block lets no group start.",
    )
