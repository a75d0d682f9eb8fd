"""What the last move really gained: the best evidence there is on the split that it left behind.

Lengths may have drifted while a move was under way, so the period after it is compared with what the split left behind would take
now: its own measured period, carried over by the planner from the lengths of then to those of now. Where lengths have hardly moved, the
period before the move itself is compared.

A model that was wrong about the split it moved to would, standing on that split, be wrong about the way back as well, and might move to
and fro. So what the move showed counts beside what the model says of the way back, each by how certain it is.
"""

from __future__ import annotations

import math
from dataclasses import replace

from rljob_operator.measured import turnover_s
from rljob_operator.outlook import Gain, Outlook
from rljob_operator.situation import Planner, Situation
from rljob_planner.api.evidence import MeasuredMove
from rljob_planner.api.status import DecisionCode, DecisionStatus
from rljob_planner.errors import PlanningError
from rljob_planner.evidence import SPREAD_PRIOR
from rljob_planner.split import Split

SAME_LENGTHS = 0.03
"""|ln| of two mean lengths up to which a period before a move is compared as it is."""

FULL_WINDOW_STEPS = 8.0
"""Steps of a window over which one reading is taken."""

FADES = 0.5
"""Standard error that a measured gain gains for each unit of ln(mean length) that it is carried over."""


def measured_move(s: Situation, planner: Planner) -> MeasuredMove | None:
    """The last move with its gain, as soon as enough steps have ended on the new split; as it was before, unless that is new."""
    move, telemetry = s.moves.measured, s.telemetry
    steps, period_s = telemetry.steps_in_window.value, telemetry.period_s.value
    lengths, iteration_s = telemetry.response_lengths.value, telemetry.iteration_s.value
    if move is None or move.gain is not None or s.in_move or s.split.same_shape(move.left):
        return move
    if steps is None or period_s is None or lengths is None or iteration_s is None or telemetry.since_s is None:
        return move
    if steps < max(s.settle_steps, int(FULL_WINDOW_STEPS / 2)) or telemetry.since_s < turnover_s(lengths, iteration_s):
        return move
    then = None if move.left_at is None else move.left_at.finished_tokens_mean
    forecast_s, drift = move.left_period_seconds, 0.0
    if then is not None and telemetry.response_trend.known:
        drift = math.log(lengths.mean_tokens / then)
        if abs(drift) > SAME_LENGTHS:
            try:
                outlook = Outlook(replace(s, remembered=None), planner)
                forecast_s = outlook.forecast_s(move.left, move.left_period_seconds, then)
            except PlanningError:
                return move
    ratio = period_s / forecast_s
    noise = _period_noise(s)
    error = ratio * math.hypot(noise, noise * math.sqrt(FULL_WINDOW_STEPS / min(steps, FULL_WINDOW_STEPS)), 0.1 * drift)
    return move.model_copy(
        update={
            "gain": float(f"{1.0 - ratio:.3g}"),
            "uncertainty": float(f"{error:.3g}"),
            "finished_tokens_mean": float(f"{lengths.mean_tokens:.4g}"),
        }
    )


def _period_noise(s: Situation) -> float:
    """Standard deviation of ln(period of a window), by what the sides' speeds vary and what a mean length is uncertain."""
    known = [e.spread for e in (s.calibration.sampler_evidence, s.calibration.trainer_evidence) if e is not None]
    lengths = SPREAD_PRIOR if s.lengths is None else s.lengths.spread
    return math.hypot(max(known, default=SPREAD_PRIOR), lengths)


def with_measured_gain(decisions: tuple[DecisionStatus, ...], move: MeasuredMove | None) -> tuple[DecisionStatus, ...]:
    """The decisions with the measured gain of the last committed move, and what it compares with."""
    if move is None or move.gain is None:
        return decisions
    then = None if move.left_at is None else move.left_at.finished_tokens_mean
    now = move.finished_tokens_mean
    against = "the period before the move"
    if then is not None and now is not None and abs(math.log(now / then)) > SAME_LENGTHS:
        against = f"what {move.left.label()} would take with responses of {now:.0f} tokens, as they are now"
    for index in reversed(range(len(decisions))):
        decision = decisions[index]
        if decision.code is not DecisionCode.MOVE_COMMITTED:
            continue
        if decision.measured_gain is not None:
            return decisions
        update = {"measured_gain": move.gain, "measured_against": against}
        return (*decisions[:index], decision.model_copy(update=update), *decisions[index + 1 :])
    return decisions


def with_hindsight(s: Situation, outlook: Outlook, target: Split, gain: Gain) -> Gain:
    """The gain of a move back to the split left behind, with what the last move showed; any other gain as it is."""
    move = s.moves.measured
    if move is None or move.gain is None or move.uncertainty is None or not target.same_shape(move.left):
        return gain
    ratio = max(0.05, 1.0 - move.gain)
    shown, error = 1.0 - 1.0 / ratio, move.uncertainty / ratio**2
    if move.finished_tokens_mean is not None:
        error = math.hypot(error, FADES * math.log(outlook.finished.mean_tokens / move.finished_tokens_mean))
    if gain.error <= 0.0 or error <= 0.0:
        return gain
    weight, other = gain.error**-2, error**-2
    mean = (weight * gain.mean + other * shown) / (weight + other)
    return Gain(mean, (weight + other) ** -0.5, gain.learnable)
