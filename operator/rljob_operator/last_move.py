"""The last move as one value: from where to where, why, and what it was to gain and gained.

A status tells it in three places: the move under way, the decision that ended a move, and the decision before it that says why. Whoever
looks at a graph of the split needs it in one.
"""

from __future__ import annotations

from dataclasses import dataclass

from rljob_operator import story
from rljob_operator.rebalance import epoch_s
from rljob_planner.api.status import DecisionCode, DecisionStatus, MoveCause, RLJobStatus

LONGEST_REASON = 300
"""Letters of a reason that are kept: it becomes a label, and a label is kept by Prometheus in memory."""

UNDER_WAY, COMMITTED, ROLLED_BACK = "UnderWay", "Committed", "RolledBack"
"""Outcomes of a move."""

_CAUSES = {
    DecisionCode.MOVE: MoveCause.DECISION,
    DecisionCode.SPEC_CHANGED: MoveCause.SPEC_CHANGE,
    DecisionCode.BUDGET_RAISED: MoveCause.GROWTH,
    DecisionCode.MOVE_BY_HAND: MoveCause.BY_HAND,
}
"""What a move was started for, by the decision that started it."""


@dataclass(frozen=True)
class LastMove:
    """A move that is under way or has ended."""

    left: str
    """The split that it leaves."""
    to: str
    """The split that it leads to; for one that was rolled back, the split that it came back to."""
    cause: str
    """A MoveCause, empty if the decision that started it is no longer kept."""
    outcome: str
    """UnderWay, Committed or RolledBack."""
    reason: str
    """Why it was started, in words; empty if that is no longer kept."""
    at_s: float
    """When it ended, or when it began if it is under way, in seconds since the epoch."""
    predicted_gain: float | None = None
    """Fraction of the period that it was to save; None where the spec asked for it."""
    measured_gain: float | None = None
    """Fraction of the period that it has saved; None until that is measured."""
    saving_s: float | None = None
    """What it was to save over the remaining steps, in seconds."""
    predicted_cost_s: float | None = None
    """What it was to cost, in seconds of lost progress."""
    measured_cost_s: float | None = None
    """What it has cost, in seconds of lost progress; None until it has ended."""


def last_move(status: RLJobStatus) -> LastMove | None:
    """The newest move that the status knows of, None if it knows none."""
    move = status.rebalance
    if move is not None:
        start = _start(status, move.started_at)
        return LastMove(
            left=move.from_split.label(),
            to=move.to_split.label(),
            cause=move.cause.value,
            outcome=UNDER_WAY,
            reason=_short(move.reason),
            at_s=epoch_s(move.started_at),
            predicted_gain=move.predicted_gain if start is None else start.predicted_gain,
            saving_s=None if start is None else start.saving_seconds,
            predicted_cost_s=None if start is None else start.cost_seconds,
        )
    end = story.last_move(status)
    if end is None or end.from_split is None or end.to_split is None:
        return None
    start = _start(status, end.at)
    committed = end.code is DecisionCode.MOVE_COMMITTED
    return LastMove(
        left=end.from_split.label(),
        to=end.to_split.label(),
        cause="" if start is None else _CAUSES[start.code].value,
        outcome=COMMITTED if committed else ROLLED_BACK,
        reason=_short(end.message if not committed else "" if start is None else start.message),
        at_s=epoch_s(end.at),
        predicted_gain=end.predicted_gain if start is None else start.predicted_gain,
        measured_gain=end.measured_gain,
        saving_s=None if start is None else start.saving_seconds,
        predicted_cost_s=None if start is None else start.cost_seconds,
        measured_cost_s=end.cost_seconds,
    )


def _start(status: RLJobStatus, until: str) -> DecisionStatus | None:
    """The newest decision to move that is not after a time; its own clock may be a moment ahead of the move's."""
    limit_s = epoch_s(until) + 1.0
    return next((d for d in reversed(status.decisions) if d.code in _CAUSES and epoch_s(d.at) <= limit_s), None)


def _short(words: str) -> str:
    return words if len(words) <= LONGEST_REASON else words[: LONGEST_REASON - 1] + "…"
