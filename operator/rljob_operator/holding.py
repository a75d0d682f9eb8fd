"""Why nothing can be decided now: what is unknown, what is broken, what is not whole, what has not settled.

Each of these makes every number that a split would be judged by a number about something else.
"""

from __future__ import annotations

from rljob_operator.measured import turnover_s
from rljob_operator.situation import Decision, Situation, unknown_in_window, unknown_now
from rljob_planner.api.status import DecisionCode


def held(s: Situation) -> Decision | None:
    """Why nothing can be decided now, None if it can."""
    unknown = unknown_now(s.telemetry)
    if unknown:
        return _metrics_unknown(s, unknown)
    if not s.pods_ready:
        return broken(s) or Decision(
            DecisionCode.NOT_READY, f"pods are not ready, so the split is left alone: {s.not_ready or 'see Ready'}"
        )
    settling = _settling(s)
    if settling is not None:
        return broken(s) or Decision(DecisionCode.SETTLING, settling)
    unknown = unknown_in_window(s.telemetry)
    return _metrics_unknown(s, unknown) if unknown else _in_turnover(s)


def broken(s: Situation) -> Decision | None:
    """What is said of a side that is broken, None if none is."""
    if not s.faults:
        return None
    return Decision(
        DecisionCode.SIDE_BROKEN, f"no split cures a side that is broken, so nothing is moved: {s.faults[0]}"
    )


def _metrics_unknown(s: Situation, unknown: tuple[str, ...]) -> Decision:
    remedy = f": {s.telemetry.missing[0]}" if s.telemetry.missing else ""
    return Decision(DecisionCode.METRICS_UNKNOWN, f"nothing is resized while {', '.join(unknown)} are unknown{remedy}")


def _settling(s: Situation) -> str | None:
    telemetry = s.telemetry
    if s.in_move:
        return "a move is under way"
    if telemetry.since_s is None or telemetry.window_s <= 0:
        return "the present layout was acknowledged too short a while ago to measure anything"
    steps = telemetry.steps_in_window.value
    if steps is not None and steps < s.settle_steps:
        if telemetry.since_s > telemetry.window_s + 1.0:
            return f"only {steps} steps ended in the last {telemetry.window_s:.0f} s: if steps are not that long, see the trainer's log"
        return f"{steps} steps ended since the present layout was acknowledged, {s.settle_steps} are needed"
    return None


def _in_turnover(s: Situation) -> Decision | None:
    """Settling, until the samples that started with the layout have ended: before, short ones alone have finished."""
    lengths, iteration_s = s.telemetry.response_lengths.value, s.telemetry.iteration_s.value
    if lengths is None or iteration_s is None or s.telemetry.since_s is None:
        return None
    needed_s = turnover_s(lengths, iteration_s)
    if s.telemetry.since_s >= needed_s:
        return None
    return Decision(
        DecisionCode.SETTLING,
        f"the layout is {s.telemetry.since_s:.0f} s old, and 95 % of the responses that started with it end within {needed_s:.0f} s",
    )
