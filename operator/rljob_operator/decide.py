"""Whether to change the split or the in-flight cap now, and why (signatures; bodies follow)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rljob_operator.readings import Telemetry
from rljob_planner.api.spec import RLJobSpec
from rljob_planner.api.status import DecisionCode, DecisionStatus, MoveHistory
from rljob_planner.placement import Room
from rljob_planner.split import Split


@dataclass(frozen=True)
class StalenessCheck:
    """What the bound promises about staleness, against what was measured."""

    statistic: str
    """``mean`` (bounds none, admission, hold) or ``max`` (bound drop)."""
    observed: float | None
    """In policy versions; None if unknown."""
    limit: float
    """``spec.staleness.max``."""
    within: bool | None
    """None if unknown."""


def staleness_check(spec: RLJobSpec, telemetry: Telemetry) -> StalenessCheck:
    """Compare measured staleness with what the bound promises; the source of ``WithinStaleness``."""
    raise NotImplementedError


@dataclass(frozen=True)
class Situation:
    """Everything that one decision rests on."""

    spec: RLJobSpec
    split: Split
    """The split in force; its ``in_flight`` is the cap in force."""
    rooms: Sequence[Room]
    """What the nodes can give to this job: free GPUs plus those that the job's own pods hold."""
    telemetry: Telemetry
    calibration: Any
    now_s: float
    moves: MoveHistory
    decisions: tuple[DecisionStatus, ...]
    """The decisions before this one, the newest last."""
    pods_ready: bool
    not_ready: str = ""
    """What is not ready, in words, if ``pods_ready`` is false."""
    in_move: bool = False
    remaining_steps: int | None = None
    """Steps to go; from the policy version if None."""
    move_cost_prior_s: float | None = None
    """Cost of a move in seconds of lost progress while none was measured; estimated if None."""
    seed: int = 0


@dataclass(frozen=True)
class Decision:
    """What to do now, and why."""

    code: DecisionCode
    message: str
    """One sentence with the numbers."""
    split: Split | None = None
    """The wished split: the target of MOVE; of RECOMMEND_ONLY, INITIAL_ONLY, TRAINER_FIXED and of the codes that wait, the wish."""
    in_flight: int | None = None
    """The new in-flight cap of LOWER_CAP and RAISE_CAP, in samples."""
    predicted_gain: float | None = None
    """Fraction of the period that the wished split saves."""
    saving_s: float | None = None
    """Seconds saved over the remaining steps."""
    cost_s: float | None = None
    """Seconds of progress that the move is expected to cost."""
    plan: Any | None = None
    """The planner's whole answer where it was asked."""
    response_tokens_mean: float | None = None
    """Mean response length that the plan was made for: corrected for growth."""


def decide(situation: Situation) -> Decision:
    """Decide, without side effects."""
    raise NotImplementedError


def calibrated(previous: Any, telemetry: Telemetry, spec: RLJobSpec, split: Split, rooms: Sequence[Room]) -> Any:
    """The calibration after this observation; ``previous`` unchanged where a side's readings are unknown."""
    raise NotImplementedError


def recorded(decisions: tuple[DecisionStatus, ...], decision: Decision, situation: Situation, at: str) -> tuple[DecisionStatus, ...]:
    """The last ten decisions with this one: repeated (same code, same direction of the wish) ones are counted, not listed."""
    raise NotImplementedError
