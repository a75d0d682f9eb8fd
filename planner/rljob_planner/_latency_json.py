"""What ``rljob latency`` prints as JSON, and through it its schema."""

from __future__ import annotations

from collections.abc import Iterable

from pydantic import BaseModel, ConfigDict, Field, RootModel

from rljob_planner.serving import ServingPoint


class LatencyRow(BaseModel):
    """A concurrency and what it does to the time per token."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    batch: int = Field(ge=1, description="Requests that the client keeps in flight.")
    tpot_ms: float = Field(
        gt=0, description="Mean milliseconds per output token after the first, the prefill of other requests included."
    )


class LatencyJson(RootModel[list[LatencyRow]]):
    """One row for each concurrency that was asked for, in that order."""

    @classmethod
    def of(cls, points: Iterable[ServingPoint]) -> LatencyJson:
        """The JSON of these points."""
        return cls([LatencyRow(batch=p.batch, tpot_ms=p.tpot_s * 1e3) for p in points])
