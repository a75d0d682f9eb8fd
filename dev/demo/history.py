"""What the job's status said over time: phases, moves, decisions.

The status holds the present and the last ten decisions; the whole story is put together here from every version of it that the watch
shows.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rljob_operator.rebalance import epoch_s

Json = Mapping[str, Any]

MARKED = ("InitialPlan", "Move", "MoveCommitted", "MoveRolledBack", "LowerCap", "RaiseCap")
"""Codes of decisions that change something."""


def label(split: Json | None) -> str:
    """A split for people."""
    if not split:
        return "–"
    s, t = split["samplers"], split["trainers"]
    return f"{s['replicas']}×{s['gpusPerReplica']} samplers + {t['replicas']}×{t['gpusPerReplica']} trainers"


@dataclass
class Move:
    """One move, from its first phase to its end."""

    id: str
    before: Json
    after: Json
    reason: str
    predicted_gain: float
    started_s: float
    """Epoch seconds."""
    phases: list[str] = field(default_factory=list)
    rolled_back: bool = False
    ended_s: float | None = None
    """Epoch seconds; None while it goes on."""
    cost_s: float | None = None
    """What the operator measured, in seconds of lost progress."""

    @property
    def committed(self) -> bool:
        """Whether it ended with its split in force."""
        return self.ended_s is not None and not self.rolled_back


class JobHistory:
    """Collects the versions of one RLJob; a taker for ``dev.emulator.follow``."""

    def __init__(self) -> None:
        """Know nothing."""
        self._lock = threading.RLock()
        self._job: Json = {}
        self._moves: dict[str, Move] = {}
        self._marks: dict[tuple[str, str], Json] = {}
        self.plan: Json | None = None
        """The first plan."""
        self.phases: list[str] = []
        """Phases in the order in which they were seen."""

    def reset(self, objects: list[Json]) -> None:
        """A new list."""
        for obj in objects:
            self.event("ADDED", obj)

    def event(self, kind: str, obj: Json) -> None:
        """One event of the watch."""
        if kind == "DELETED":
            return
        with self._lock:
            self._job = obj
            self._see(obj.get("status") or {})

    def _see(self, status: Json) -> None:
        phase = status.get("phase")
        if phase and (not self.phases or self.phases[-1] != phase):
            self.phases.append(phase)
        if self.plan is None and status.get("plan"):
            self.plan = status["plan"]
        for decision in status.get("decisions") or ():
            if decision["code"] in MARKED:
                self._marks[decision["code"], decision["at"]] = decision
        self._see_move(status)

    def _see_move(self, status: Json) -> None:
        current = status.get("rebalance")
        if current:
            move = self._moves.get(current["id"])
            if move is None:
                move = self._moves[current["id"]] = Move(
                    id=current["id"],
                    before=current["from"],
                    after=current["to"],
                    reason=current["reason"],
                    predicted_gain=float(current["predictedGain"]),
                    started_s=epoch_s(current["startedAt"]),
                )
            move.rolled_back = move.rolled_back or bool(current.get("rollingBack"))
            phase = ("back: " if current.get("rollingBack") else "") + current["phase"]
            if not move.phases or move.phases[-1] != phase:
                move.phases.append(phase)
        ended = (status.get("moves") or {}).get("lastEndedAt")
        for move in self._moves.values():
            if (
                move.ended_s is None
                and ended
                and (not current or current["id"] != move.id)
                and epoch_s(ended) >= move.started_s
            ):
                move.ended_s = epoch_s(ended)
                move.cost_s = next(
                    (
                        d.get("costSeconds")
                        for d in reversed(status.get("decisions") or ())
                        if d["code"] == "MoveCommitted" and epoch_s(d["at"]) >= move.started_s
                    ),
                    None,
                )

    @property
    def status(self) -> Json:
        """The newest status."""
        with self._lock:
            return self._job.get("status") or {}

    @property
    def moves(self) -> list[Move]:
        """All moves, in order."""
        with self._lock:
            return sorted(self._moves.values(), key=lambda move: move.started_s)

    @property
    def marks(self) -> list[Json]:
        """Decisions that changed something, in order."""
        with self._lock:
            return sorted(self._marks.values(), key=lambda d: epoch_s(d["at"]))

    @property
    def moving(self) -> bool:
        """Whether a move is under way."""
        return bool(self.status.get("rebalance"))
