"""A move that a person asks for: how it is asked, when it can't be, and what is remembered of it. Pure.

Whoever may edit an RLJob may ask for a move of it, by an annotation: no further right is needed, and none beyond that one is given.
The operator may read an RLJob and write its status alone, so an annotation stays after it was answered. That makes three dangers.
One that was answered is seen again in every pass, and after every restart: its id stands in the status, and the id is answered once. One that
nobody answered may lie there for days, or be applied anew with a manifest that somebody saved: it says when it was made, and is refused once
that is a while ago, or a move has ended since. One may come with a copy of a job to another cluster: it may name the uid of the job that it is for.

A move by hand takes the same way as any other. What a person may decide is where to: neither the gain nor the mode is asked. What the spec says,
what nodes hold and what the planner knows to be impossible hold for people too.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import Field, ValidationError, field_validator

from rljob_operator import planning
from rljob_operator.inventory import QuotaRoom
from rljob_operator.observation import epoch_s, timestamp
from rljob_operator.phases import with_replicas
from rljob_planner.api.base import ApiModel
from rljob_planner.api.requests import MoveRequestStatus, RequestOutcome
from rljob_planner.api.spec import Resize, RLJobSpec
from rljob_planner.api.status import DecisionCode, MoveHistory, Phase, RLJobStatus
from rljob_planner.split import Split

ANNOTATION = "rljob.dev/move"
"""The annotation that asks for a move; its value is a ``MoveRequest`` as JSON."""

LASTS_S = 600.0
"""Seconds after which a request that nobody has answered is no longer carried out."""

KEPT = 5
"""How many requests the status remembers, besides one whose move is under way."""

MOST = 100_000
"""Replicas of a side that a request may name: far more than any budget, and few enough for every counter."""

HOW = "ask with rljob move NAME --samplers N --trainers M"
"""What to write instead of a request that can't be read."""


class MoveRequest(ApiModel):
    """What the annotation says."""

    id: str = Field(pattern=r"^[A-Za-z0-9_.-]{1,64}$")
    """Name of the request: one that was answered is not carried out again."""
    samplers: int = Field(ge=1, le=MOST)
    """Sampler replicas."""
    trainers: int = Field(ge=1, le=MOST)
    """Trainer replicas."""
    at: str
    """When it was made (RFC 3339)."""
    by: str = Field(default="", max_length=200)
    """Who made it, as he says; it is shown in terminals, so only printable characters may be in it."""
    uid: str = ""
    """The RLJob that it is for; empty: whichever it stands on."""

    @field_validator("at")
    @classmethod
    def _is_a_time(cls, value: str) -> str:
        try:
            epoch_s(value)
        except (ValueError, OverflowError, OSError) as error:
            raise ValueError("this is no time, such as 2026-01-31T12:00:00Z") from error
        return value

    @field_validator("by")
    @classmethod
    def _is_printable(cls, value: str) -> str:
        if not value.isprintable():
            raise ValueError("a character in this can't be shown: use letters, digits and signs")
        return value


@dataclass(frozen=True)
class Unreadable:
    """A request that can't be read."""

    id: str
    """Made from its text, so that it is refused once."""
    why: str


def asked(metadata: Mapping[str, Any]) -> str:
    """The text of the request on an RLJob; empty if there is none."""
    return str((metadata.get("annotations") or {}).get(ANNOTATION) or "")


def read(metadata: Mapping[str, Any]) -> MoveRequest | Unreadable | None:
    """The request on an RLJob, None if there is none."""
    text = asked(metadata)
    if not text:
        return None
    unreadable = f"text-{hashlib.sha256(text.encode()).hexdigest()[:12]}"
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return Unreadable(unreadable, f"the annotation {ANNOTATION} holds no JSON: {HOW}")
    try:
        return MoveRequest.model_validate(value)
    except ValidationError as error:
        first = error.errors()[0]
        # What somebody wrote there goes into a status and an event, which have bounds, and from there to terminals.
        at = ".".join(str(part) for part in first["loc"])[:60] or "it"
        what = "".join(c if c.isprintable() else " " for c in f"{at}: {first['msg'].lower()}")
        return Unreadable(
            unreadable,
            f"the annotation {ANNOTATION} can't be read ({what}): {HOW}, with an rljob of the operator's version",
        )


def answer_to(history: MoveHistory, request_id: str) -> MoveRequestStatus | None:
    """What was answered to a request, None if nothing was."""
    return next((found for found in reversed(history.requests) if found.id == request_id), None)


def wished(split: Split, request: MoveRequest) -> Split:
    """The split that is asked for, with the cap and the widths of the one in force."""
    return with_replicas(split, request.samplers, request.trainers)


def objection(
    spec: RLJobSpec,
    status: RLJobStatus,
    request: MoveRequest,
    *,
    uid: str,
    now_s: float,
    quota: QuotaRoom | None = None,
) -> str | None:
    """Why a request can't be carried out, with what to do instead; None if spec and status say nothing against it.

    ``uid`` is the RLJob's. Nodes and planner are asked elsewhere, since that takes more than a look.
    """
    age_s = now_s - epoch_s(request.at)
    if request.uid and request.uid != uid:
        return "it was made for an RLJob that is gone, of the same name: ask again"
    if abs(age_s) > LASTS_S:
        when = f"{age_s:.0f} s ago" if age_s > 0 else f"{-age_s:.0f} s ahead"
        return f"it was made {when} by the clock of whoever asked, and is good for {LASTS_S:.0f} s: ask again, and set that clock if it is wrong"
    ended = status.moves.last_ended_at
    if ended is not None and epoch_s(ended) > epoch_s(request.at):
        return f"a move has ended at {ended[:19]}Z, after it was made: see what runs now (rljob status NAME), then ask again"
    if spec.adopts:
        return "the job adopts its workloads (targetRef), and nothing of them is touched: scale them with kubectl scale"
    if status.phase is Phase.COMPLETE:
        return "the run is complete: raise spec.workload.steps to go on with it first"
    if spec.suspend:
        return "the job is suspended and has no pods to move: resume it first (rljob resume NAME), then move"
    if status.split is None:
        return "no split is in force yet: wait for the first plan (kubectl wait --for=condition=Planned)"
    if status.rebalance is not None:
        return f"a move to {status.rebalance.to_split.label()} is under way: wait until it has ended (rljob status NAME -w), then ask again"
    split = status.split
    if request.trainers != split.trainers.replicas and spec.trainer.resize is Resize.FIXED:
        return (
            f"trainer.resize is fixed, so that trainers stay {split.trainers.replicas}: ask for other samplers only, or set it to elastic or "
            "restart if the trainer can follow"
        )
    broken = planning.violations(spec, wished(split, request), quota)
    return f"{broken[0]}{_instead(spec, split, request, quota)}" if broken else None


def _instead(spec: RLJobSpec, split: Split, request: MoveRequest, quota: QuotaRoom | None) -> str:
    """What to ask for in place of too much or too little."""
    budget = spec.gpus if quota is None or quota.keeps is None else min(spec.gpus, quota.keeps)
    width, trainer_width = split.samplers.gpus_per_replica, split.trainers.gpus_per_replica
    most = (budget - request.trainers * trainer_width) // width
    if spec.sampler.max_replicas is not None:
        most = min(most, spec.sampler.max_replicas)
    if request.samplers > most >= spec.sampler.min_replicas:
        plural = "" if request.trainers == 1 else "s"
        return f": with {request.trainers} trainer{plural} ask for {most} samplers at most, or change the spec"
    return ": ask for another split, or change the spec"


def remembered(history: MoveHistory, answer: MoveRequestStatus) -> MoveHistory:
    """The history with an answer; another one to the same request takes its place.

    An accepted one stays however many were refused since: its end is still to be written, and somebody may wait for it.
    """
    requests = (*(found for found in history.requests if found.id != answer.id), answer)
    over = [found.id for found in requests if found.outcome is not RequestOutcome.ACCEPTED]
    dropped = frozenset(over[:-KEPT])
    return history.model_copy(update={"requests": tuple(found for found in requests if found.id not in dropped)})


def answered(
    request: MoveRequest | Unreadable, outcome: RequestOutcome, message: str, now_s: float
) -> MoveRequestStatus:
    """An answer to a request that was not answered before."""
    now = timestamp(now_s)
    ended = None if outcome is RequestOutcome.ACCEPTED else now
    if isinstance(request, Unreadable):
        return MoveRequestStatus(id=request.id, at=now, outcome=outcome, message=message, ended_at=ended)
    return MoveRequestStatus(
        id=request.id,
        samplers=request.samplers,
        trainers=request.trainers,
        by=request.by,
        at=now,
        outcome=outcome,
        message=message,
        ended_at=ended,
    )


def concluded(status: RLJobStatus, now_s: float, why: str = "") -> MoveHistory:
    """The history with the end of a move by hand that is no longer under way; ``why`` is used where no decision says it."""
    history, move = status.moves, status.rebalance
    for found in history.requests:
        if found.outcome is not RequestOutcome.ACCEPTED or (move is not None and move.request == found.id):
            continue
        split = status.split
        done = split is not None and (split.samplers.replicas, split.trainers.replicas) == (
            found.samplers,
            found.trainers,
        )
        ends = (DecisionCode.MOVE_COMMITTED, DecisionCode.MOVE_ROLLED_BACK)
        end = next(
            (d for d in reversed(status.decisions) if d.code in ends and epoch_s(d.at) >= epoch_s(found.at)), None
        )
        message = end.message if end is not None else why or "the move was ended before it was done"
        outcome = RequestOutcome.DONE if done else RequestOutcome.ROLLED_BACK
        update = {"outcome": outcome, "message": message, "ended_at": timestamp(now_s)}
        history = remembered(history, found.model_copy(update=update))
    return history


def left_by_hand(history: MoveHistory) -> Split | None:
    """The split that the last move left, if it was made by hand and committed; None for other moves."""
    last = next((r for r in reversed(history.requests) if r.outcome is RequestOutcome.DONE), None)
    if last is None or last.ended_at != history.last_ended_at or history.measured is None:
        return None
    return history.measured.left
