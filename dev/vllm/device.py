"""A stand-in for a GPU's time: each iteration of a vLLM on this machine lasts as long as one would on a device of its own.

An iteration of a small model on the CPU is Python and little else, with a core busy all the while. Replicas on one machine fight for its cores, so a
second one adds nothing, and a job's split could not be seen to matter. With a pace, an iteration lasts ``step_s + per_sample_s · running`` seconds, most of
which the process sleeps, and as many replicas as the cores can carry sample side by side. Everything else is vLLM: scheduling, KV cache, metrics,
HTTP, and the tokens.

A pace that the machine can't keep is no pace: an iteration that takes longer by itself is not made longer. One of a tiny model takes some 10 ms of a core, so
with ``n`` replicas on ``c`` cores a step shorter than ``10 ms · n / c`` can't hold.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

PLUGIN = Path(__file__).parent / "plugin"
"""What has to be on the PYTHONPATH of a server."""


def environment(
    step_s: float = 0.0,
    per_sample_s: float = 0.0,
    *,
    curve: Mapping[int, float] | None = None,
    base: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """The variables that give a server a pace: seconds of an iteration, and seconds more for each running sample.

    ``curve``, running samples → seconds of an iteration, comes on top: such as was measured of a real device. Between two of its rows the line
    through them holds, beyond the ends that end. PYTHONPATH is that of ``base`` (default: this process's) with the plugin before it.
    Raises ValueError for times that are no pace.
    """
    rows = sorted((curve or {}).items())
    if not (
        min([step_s, per_sample_s, *(row for pair in rows for row in pair)]) >= 0
        and (step_s + per_sample_s > 0 or rows)
    ):
        raise ValueError(
            f"{step_s} s, {per_sample_s} s a sample and {dict(rows)} are no pace: none may be negative, and one has to be positive"
        )
    path = (os.environ if base is None else base).get("PYTHONPATH", "")
    found = {
        "PYTHONPATH": os.pathsep.join([str(PLUGIN), *([path] if path else [])]),
        "RLJOB_DEV_STEP_S": repr(float(step_s)),
        "RLJOB_DEV_STEP_PER_SAMPLE_S": repr(float(per_sample_s)),
    }
    return {**found, "RLJOB_DEV_STEP_CURVE_S": ",".join(f"{n}:{s!r}" for n, s in rows)} if rows else found
