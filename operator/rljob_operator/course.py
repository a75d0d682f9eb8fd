"""How response lengths went over a run, in a few points: what a status can hold and a later run can learn from. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rljob_operator.readings import Telemetry
from rljob_operator.status import rounded
from rljob_planner.api.status import LengthPoint

MOST_POINTS = 32
"""Points of response lengths that a status keeps."""


def lengths_so_far(points: Sequence[LengthPoint], steps: int, telemetry: Telemetry) -> tuple[LengthPoint, ...]:
    """The response lengths over the run with what ``telemetry`` shows, at most ``MOST_POINTS``, evenly over its ``steps``."""
    version, mean = telemetry.policy_version.value, telemetry.response_tokens_mean.value
    if version is None or mean is None or not (math.isfinite(mean) and mean > 0):
        return tuple(points)
    # A version falls where a trainer goes back to a checkpoint: what came after it is made anew.
    kept = [point for point in points if point.step <= version]
    apart = math.ceil(steps / (MOST_POINTS - 1))
    if kept and (version - kept[-1].step < apart or len(kept) >= MOST_POINTS):
        return tuple(kept)
    environment_s = telemetry.environment_turn_s.value
    return (
        *kept,
        LengthPoint(step=version, mean=rounded(mean, 4) or mean, environment_seconds=rounded(environment_s, 4)),
    )
