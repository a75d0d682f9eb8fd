"""What the dashboards say by colour: decision codes, phases of a job and of a move, conditions.

The same state has the same colour on every panel. Codes that belong together share a hue: blue acts, green is content, yellow waits,
purple may not, red needs a look.
"""

from __future__ import annotations

from collections.abc import Mapping

from dev.dashboards.panels import GREEN, GREY, RED, Json, Series, mapped
from rljob_planner.api.status import DecisionCode, MovePhase, Phase

DECISIONS: Mapping[DecisionCode, str] = {
    DecisionCode.INITIAL_PLAN: "#9fc5e8",
    DecisionCode.MOVE: "#1f60c4",
    DecisionCode.MOVE_COMMITTED: "#3d85c6",
    DecisionCode.SPEC_CHANGED: "#6fa8dc",
    DecisionCode.BUDGET_RAISED: "#5794f2",
    DecisionCode.MOVE_BY_HAND: "#0b3d91",
    DecisionCode.LOWER_CAP: "#2fa8a0",
    DecisionCode.RAISE_CAP: "#6ecfc8",
    DecisionCode.AT_OPTIMUM: "#4caf6e",
    DecisionCode.GAIN_TOO_SMALL: "#86c99b",
    DecisionCode.NOT_WORTH_COST: "#b7dfc2",
    DecisionCode.NOT_PERSISTED: "#f2cc0c",
    DecisionCode.UNCERTAIN: "#d4b106",
    DecisionCode.COOLDOWN: "#e0c65c",
    DecisionCode.SETTLING: "#f3e3a1",
    DecisionCode.NOT_READY: "#c9a227",
    DecisionCode.RECOMMEND_ONLY: "#9b72cf",
    DecisionCode.INITIAL_ONLY: "#b99be0",
    DecisionCode.TRAINER_FIXED: "#d3c1ec",
    DecisionCode.BACK_OFF: "#f2a19f",
    DecisionCode.METRICS_UNKNOWN: "#d9534f",
    DecisionCode.SIDE_BROKEN: "#a61c1c",
    DecisionCode.NOTHING_PLACEABLE: "#e8776f",
    DecisionCode.POOL_LOST: "#c0392b",
    DecisionCode.MOVE_ROLLED_BACK: "#ff7383",
}
"""The colour of each code."""

PHASES: Mapping[Phase, str] = {
    Phase.PENDING: "#d4b106",
    Phase.PLANNED: "#9fc5e8",
    Phase.STARTING: "#6ecfc8",
    Phase.RUNNING: GREEN,
    Phase.REBALANCING: "#1f60c4",
    Phase.SUSPENDED: GREY,
    Phase.COMPLETE: "#5a8f69",
    Phase.FAILED: RED,
}
"""The colour of each phase of a job."""

MOVE_PHASES: Mapping[MovePhase, str] = {
    MovePhase.ANNOUNCE: "#9fc5e8",
    MovePhase.DRAIN: "#f2cc0c",
    MovePhase.CHECKPOINT: "#9b72cf",
    MovePhase.SHRINK: "#e69138",
    MovePhase.GROW: "#4caf6e",
    MovePhase.VERIFY: "#1f60c4",
}
"""The colour of each phase of a move, in their order."""


def decisions() -> list[Series]:
    """Series named by a decision code, in its colour."""
    return [Series(code.value, color=color) for code, color in DECISIONS.items()]


def phases() -> list[Series]:
    """Series named by a phase of a job, in its colour."""
    return [Series(phase.value, color=color) for phase, color in PHASES.items()]


def move_phases() -> list[Series]:
    """Series named by a phase of a move, in its colour."""
    return [Series(phase.value, color=color) for phase, color in MOVE_PHASES.items()]


PHASE_NAMES = mapped({phase.value: (phase.value, color) for phase, color in PHASES.items()})
"""Phases of a job in a table's cell."""

CODE_NAMES = mapped({code.value: (code.value, color) for code, color in DECISIONS.items()})
"""Decision codes in a table's cell."""

OUTCOMES = mapped(
    {"Committed": ("Committed", GREEN), "RolledBack": ("RolledBack", RED), "UnderWay": ("Under way", "#1f60c4")}
)
"""Outcomes of a move in a table's cell."""

TRUTH: Json = mapped({"1": ("True", "text"), "0": ("False", "text"), "-1": ("Unknown", GREY)})
"""The status of a condition."""
