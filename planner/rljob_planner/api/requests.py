"""What became of the moves that people asked for, as the status keeps it.

A request comes as an annotation, which the operator may read and never write, so all that it has to say about one stands here. What was
answered once is known by its id and is never carried out again, however often the annotation is seen.
"""

from __future__ import annotations

from enum import StrEnum

from pydantic import Field

from rljob_planner.api.base import ApiModel


class RequestOutcome(StrEnum):
    """What became of a request."""

    ACCEPTED = "Accepted"
    """Its move is under way."""
    DONE = "Done"
    """The split that was asked for is in force."""
    ROLLED_BACK = "RolledBack"
    """Its move was started and ended with another split."""
    REFUSED = "Refused"
    """No move was started for it."""


class MoveRequestStatus(ApiModel):
    """One move that somebody asked for."""

    id: str
    """Name of the request, unique within the job."""
    samplers: int | None = Field(default=None, description="Sampler replicas asked for; absent if it can't be read.")
    trainers: int | None = Field(default=None, description="Trainer replicas asked for; absent if it can't be read.")
    by: str = Field(default="", description="Who asked, as the request says; the API server's audit log knows.")
    at: str
    """When the operator first saw it."""
    outcome: RequestOutcome
    """Accepted, Done, RolledBack or Refused."""
    message: str = Field(description="What became of it and why; if it was refused, what to write instead.")
    ended_at: str | None = Field(default=None, description="When its move ended; absent while it is under way.")
