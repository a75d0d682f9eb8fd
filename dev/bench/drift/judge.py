"""Outcomes made comparable: rows of the table, and the aims that the operator met or missed on a trace."""

from __future__ import annotations

import numpy as np

from dev.bench.drift.result import AimJson, MoveJson, PolicyJson, PolicyName
from dev.bench.drift.site import Counts
from dev.bench.drift.stage import HOUR_S, Outcome

OF_CLAIRVOYANT = 1.03
GAINS = 0.02
"""Gain of the clairvoyant over the split of step 0 from which on the operator must beat it and the autoscaler."""
ELSEWHERE = 1.01
"""Total over that of the simple policies that is tolerated where there is less to gain, and over the best static split anywhere."""
STATIONARY_MOVES, STATIONARY_STEP = 2, 50
"""How many moves a stationary trace may see, and the step before which all of them are made."""
TEN = 10
BLOCKS = 100
"""Points of a period's curve."""


def row(name: PolicyName, outcome: Outcome, clairvoyant: Outcome) -> PolicyJson:
    """One policy's row."""
    means = outcome.mean_staleness()
    ten = np.convolve(means, np.ones(TEN) / TEN, mode="valid") if len(means) >= TEN else means
    end = outcome.moves[-1] if outcome.moves else (0, outcome.start)
    return PolicyJson(
        policy=name,
        total_seconds=round(outcome.total_s, 1),
        ratio_to_clairvoyant=round(outcome.total_s / clairvoyant.total_s, 4),
        moves=len(outcome.moves),
        gpu_hours=round(outcome.gpu_s / HOUR_S, 1),
        max_staleness=outcome.max_staleness(),
        mean_staleness=round(float(means.mean()), 3),
        worst_mean_staleness=round(float(ten.max()), 3),
        start=_move(0, outcome.start),
        end=_move(*end),
        move_steps=[_move(step, counts) for step, counts in outcome.moves],
        periods=[
            (int(block[-1]) + 1, round(float(outcome.record.periods_s[block].mean()), 2))
            for block in np.array_split(np.arange(outcome.steps), min(BLOCKS, outcome.steps))
        ],
    )


def _move(step: int, counts: Counts) -> MoveJson:
    return MoveJson(step=step, samplers=counts.samplers, trainers=counts.trainers)


def aims(rows: dict[PolicyName, PolicyJson], *, stationary: bool, first_is_best: bool) -> list[AimJson]:
    """The aims of a trace, met or not."""
    total = {name: found.total_seconds for name, found in rows.items()}
    ours, clairvoyant = total[PolicyName.RLJOB], total[PolicyName.CLAIRVOYANT]
    found = [_aim("within 3 % of the clairvoyant", ours / clairvoyant, OF_CLAIRVOYANT)]
    gain = 1.0 - clairvoyant / total[PolicyName.STATIC_START]
    if gain > GAINS:
        found.append(_aim("better than the split of step 0", ours / total[PolicyName.STATIC_START], 1.0, below=True))
        found.append(
            _aim("better than the queue-depth autoscaler", ours / total[PolicyName.THRESHOLD], 1.0, below=True)
        )
    else:
        found.append(_aim("within 1 % of the split of step 0", ours / total[PolicyName.STATIC_START], ELSEWHERE))
        found.append(_aim("within 1 % of the queue-depth autoscaler", ours / total[PolicyName.THRESHOLD], ELSEWHERE))
    found.append(
        _aim("within 1 % of the best static split in hindsight", ours / total[PolicyName.STATIC_BEST], ELSEWHERE)
    )
    if stationary:
        moves = rows[PolicyName.RLJOB]
        late = max((move.step for move in moves.move_steps), default=0)
        if first_is_best:
            found.append(_aim("no move, since the first split is the best", moves.moves, 0))
        else:
            found.append(_aim("at most two moves", moves.moves, STATIONARY_MOVES))
            found.append(_aim("no move from step 50 on", late, STATIONARY_STEP, below=True))
    return found


def _aim(aim: str, value: float, limit: float, *, below: bool = False) -> AimJson:
    met = value < limit if below else value <= limit
    return AimJson(aim=aim, met=bool(met), value=round(float(value), 4), limit=float(limit))
