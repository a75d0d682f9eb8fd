"""What the operator remembers of the sandbox fleet: its wish, what it rests on, and since when fewer would do."""

from __future__ import annotations

from enum import StrEnum

from pydantic import Field

from rljob_planner.api.base import ApiModel


class SandboxSource(StrEnum):
    """What the number of sandboxes rests on."""

    PLANNED = "Planned"
    MEASURED = "Measured"


class SandboxStatus(ApiModel):
    """The sandbox fleet."""

    replicas: int = Field(description="Sandbox pods that are wished.")
    ready: int = Field(default=0, description="Sandbox pods that are ready.")
    busy: float | None = Field(
        default=None,
        description="Environments in use at the mean, by Little's law from live metrics; absent if unknown.",
    )
    source: SandboxSource = Field(
        description="Planned: from the spec and the plan; Measured: from live environment time."
    )
    reason: str = Field(description="Why there are so many, with the numbers.")
    changed_at: str = Field(description="When the wish changed last.")
    low_since: str | None = Field(default=None, description="Since when fewer would do; absent if none fewer would.")
    low_peak: int | None = Field(default=None, description="Most that were needed since then.")
