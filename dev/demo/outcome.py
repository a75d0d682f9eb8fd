"""What the demo has shown: the figures of ``result.json`` and whether they say what the demo claims.

Two plants ran under the same trace, seed and noise, so their last periods differ by the splits alone. They are noisy still: the claim
is that the difference exceeds two standard errors.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dev.demo.history import Move

Json = Mapping[str, Any]

LAST = 10
"""Periods that a mean is taken over."""

ENOUGH = 12
"""Periods after the last move that the demo waits for."""


@dataclass(frozen=True)
class Step:
    """One published version, as the emulator logged it."""

    t: float
    """Seconds since the start of the loop."""
    version: int
    period: float | None
    """Seconds since the version before."""
    staleness: Mapping[int, int]
    """Samples by staleness in policy versions."""
    queue: int
    """Groups that were left in the queue."""
    mean_length: float
    """Mean response of the step in tokens."""
    length_now: float
    """Mean response that starts now, in tokens."""
    samplers: int
    trainers: int
    in_flight: int

    @property
    def staleness_mean(self) -> float:
        """Mean staleness of the step."""
        return sum(s * n for s, n in self.staleness.items()) / sum(self.staleness.values())


class StepLog:
    """Reads the emulator's log as it grows."""

    def __init__(self, path: Path) -> None:
        """Read from ``path``, which need not be there yet."""
        self._path = path
        self._offset = 0
        self.live: list[Step] = []
        """Steps of the plant that the operator steers."""
        self.shadow: list[Step] = []
        """Steps of the plant that keeps the first split."""

    def poll(self) -> None:
        """Take in the lines that are complete."""
        if not self._path.exists():
            return
        with self._path.open("rb") as handle:
            handle.seek(self._offset)
            data = handle.read()
        whole = data[: data.rfind(b"\n") + 1]
        self._offset += len(whole)
        for line in whole.splitlines():
            entry = json.loads(line)
            step = Step(
                t=entry["t"],
                version=entry["version"],
                period=entry["period"],
                staleness={int(s): n for s, n in entry["staleness"].items()},
                queue=entry["queue"],
                mean_length=entry["mean_length"],
                length_now=entry["length_now"],
                samplers=entry["samplers"],
                trainers=entry["trainers"],
                in_flight=entry["in_flight"],
            )
            (self.live if entry["plant"] == "live" else self.shadow).append(step)


def periods(steps: Sequence[Step], since: float = -math.inf, until: float = math.inf) -> list[float]:
    """Periods that lie wholly between two instants, in seconds."""
    return [s.period for s in steps if s.period is not None and s.t - s.period >= since and s.t <= until]


def mean(values: Sequence[float]) -> float | None:
    """The mean, None of nothing."""
    return math.fsum(values) / len(values) if values else None


def standard_error(values: Sequence[float]) -> float:
    """Standard error of a mean; infinite for fewer than two values."""
    if len(values) < 2:
        return math.inf
    m = math.fsum(values) / len(values)
    return math.sqrt(math.fsum((v - m) ** 2 for v in values) / (len(values) - 1) / len(values))


def staleness_summary(steps: Sequence[Step]) -> dict[str, float] | None:
    """Mean, 95th percentile and maximum over all trained samples, None if there are none."""
    counts: dict[int, int] = {}
    for step in steps:
        for s, n in step.staleness.items():
            counts[s] = counts.get(s, 0) + n
    total = sum(counts.values())
    if not total:
        return None
    seen, p95 = 0, 0
    for s in sorted(counts):
        seen += counts[s]
        if seen >= 0.95 * total:
            p95 = s
            break
    return {"mean": sum(s * n for s, n in counts.items()) / total, "p95": float(p95), "max": float(max(counts))}


def staleness_held(bound: str, summary: Mapping[str, float] | None, limit: int) -> bool:
    """Whether what the bound promises was kept: ``drop`` the maximum, the others the mean."""
    if summary is None:
        return False
    return summary["max" if bound == "drop" else "mean"] <= limit


@dataclass(frozen=True)
class Outcome:
    """The result and the verdict on it."""

    result: Json
    """``result.json``."""
    failures: tuple[str, ...]
    """What the demo did not show, in words; empty if it showed all."""
    gain: float | None
    """Fraction of the period that moving saved, against never moving."""
    standard_errors: float | None
    """The same in standard errors of the difference."""


def outcome(
    *,
    live: Sequence[Step],
    shadow: Sequence[Step],
    moves: Sequence[Move],
    started_s: float,
    plan: Json | None,
    best_at_start: Json | None,
    best_at_end: Json | None,
    gpu_budget: int,
    gpu_peak: int,
    bound: str,
    staleness_limit: int,
) -> Outcome:
    """Put the result together; ``started_s`` is the loop's start in epoch seconds."""
    committed = [m for m in moves if m.committed]
    first = committed[0].started_s - started_s if committed else math.inf
    last = max((m.ended_s or math.inf for m in moves), default=-math.inf) - started_s if committed else math.inf
    after = periods(live, since=last)[-LAST:]
    never = periods(shadow)[-LAST:]
    summary = staleness_summary(live)
    result: dict[str, Any] = {
        "plan": plan,
        "bestAtStart": best_at_start,
        "bestAtEnd": best_at_end,
        "moves": [
            {
                "t": round(move.started_s - started_s, 3),
                "from": move.before,
                "to": move.after,
                "reason": move.reason,
                "predictedGain": move.predicted_gain,
                "measuredCostSeconds": move.cost_s if move.cost_s is not None else cost_s(live, move, started_s),
            }
            for move in committed
        ],
        "gpuBudget": gpu_budget,
        "gpuPeak": gpu_peak,
        "periodStart": mean(periods(live, until=first)[:LAST]),
        "periodBeforeMove": mean(periods(live, until=first)[-LAST:]) if committed else None,
        "periodAfterMove": mean(after),
        "periodIfNeverMoved": mean(never),
        "staleness": summary,
        "stalenessLimit": staleness_limit,
        "stalenessHeld": staleness_held(bound, summary, staleness_limit),
    }
    gain, errors = compare(after, never)
    result["saved"] = gain
    result["savedInStandardErrors"] = errors if errors is not None and math.isfinite(errors) else None
    failures: list[str] = []
    if not committed:
        failures.append("no move was committed")
    if gpu_peak > gpu_budget:
        failures.append(f"pods held {gpu_peak} GPUs at once, the budget is {gpu_budget}")
    if not result["stalenessHeld"]:
        failures.append(f"staleness {summary} against a limit of {staleness_limit} under the bound {bound}")
    if committed and (errors is None or errors <= 2.0):
        failures.append(
            "the period after the move is not shorter than without it by more than two standard errors "
            f"({_seconds(mean(after))} against {_seconds(mean(never))})"
        )
    return Outcome(result, tuple(failures), gain, errors)


def compare(after: Sequence[float], never: Sequence[float]) -> tuple[float | None, float | None]:
    """What moving saved, as a fraction of the period without it and in standard errors; None if there is too little."""
    a, n = mean(after), mean(never)
    if a is None or n is None or len(after) < 2 or len(never) < 2:
        return None, None
    error = math.hypot(standard_error(after), standard_error(never))
    return 1.0 - a / n, (n - a) / error if error else math.copysign(math.inf, n - a)


def cost_s(live: Sequence[Step], move: Move, started_s: float) -> float | None:
    """Seconds of progress that a move cost: its time less that of its steps at the pace before it; None if unknown."""
    start = move.started_s - started_s
    end = (move.ended_s or math.inf) - started_s
    pace = mean(periods(live, until=start)[-LAST:])
    before = [s for s in live if s.t <= start]
    done = [s for s in live if s.t >= end]
    if pace is None or not before or not done:
        return None
    took, steps = done[0].t - before[-1].t, done[0].version - before[-1].version
    return max(0.0, took - steps * pace)


def _seconds(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.2f} s"
