"""A plugin of vLLM that lets each iteration last at least as long as the environment says, by sleeping.

Loaded by vLLM in each of its processes, from the entry point beside this file. ``dev.vllm.device`` says what for.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import Any

STEP = "RLJOB_DEV_STEP_S"
PER_SAMPLE = "RLJOB_DEV_STEP_PER_SAMPLE_S"
CURVE = "RLJOB_DEV_STEP_CURVE_S"
LOOK_AGAIN_MS = 10


class Pace:
    """When the next iteration may end."""

    def __init__(self, step_s: float, per_sample_s: float, curve: Sequence[tuple[int, float]] = ()) -> None:
        """Seconds of an iteration with ``running`` samples: ``step_s + per_sample_s · running``, and what ``curve`` says of so many.

        ``curve`` has rows of running samples and seconds, in order; between two rows the line through them holds, beyond the ends that end.
        """
        self._step_s = step_s
        self._per_sample_s = per_sample_s
        self._curve = curve
        self._due = 0.0

    def lasts(self, running: int) -> float:
        """Seconds of one iteration."""
        return self._step_s + self._per_sample_s * running + self._on_curve(running)

    def _on_curve(self, running: int) -> float:
        for (n0, s0), (n1, s1) in zip(self._curve, self._curve[1:], strict=False):
            if running < n1:
                return s0 + (s1 - s0) * max(0, running - n0) / (n1 - n0)
        return self._curve[-1][1] if self._curve else 0.0

    def due(self, now: float, running: int, *, follows: bool) -> float:
        """The time, in seconds of the monotonic clock, until which an iteration with ``running`` samples that begins ``now`` lasts.

        One that ``follows`` another (samples of that one go on) is counted from the end of that one: on a GPU the scheduler
        works while the device does, so what it takes is no part of the time. But no delay is made up for by more than one iteration.
        """
        lasts = self.lasts(running)
        begin = max(self._due, now - lasts) if follows else now
        self._due = begin + lasts
        return self._due


def load() -> None:
    """Give vLLM's worker for the CPU a pace, unless the environment names none."""
    step_s, per_sample_s = float(os.environ.get(STEP) or 0), float(os.environ.get(PER_SAMPLE) or 0)
    rows = [row.split(":") for row in os.environ.get(CURVE, "").split(",") if row]
    curve = [(int(running), float(seconds)) for running, seconds in rows]
    if step_s <= 0 and per_sample_s <= 0 and not curve:
        return
    _pace_worker(Pace(step_s, per_sample_s, curve))
    _wait_without_spinning()


def _pace_worker(pace: Pace) -> None:
    from vllm.v1.worker.cpu_worker import CPUWorker  # type: ignore[import-not-found]

    execute_model = CPUWorker.execute_model

    def paced(self: Any, scheduler_output: Any) -> Any:
        begin = time.monotonic()
        result = execute_model(self, scheduler_output)
        if scheduler_output.total_num_scheduled_tokens:
            follows = bool(scheduler_output.scheduled_cached_reqs.req_ids)
            due = pace.due(begin, len(scheduler_output.num_scheduled_tokens), follows=follows)
            time.sleep(max(0.0, due - time.monotonic()))
        return result

    CPUWorker.execute_model = paced


def _wait_without_spinning() -> None:
    # Engine and worker look for each other's messages in a loop, for up to a second. For the length of a paced iteration that would take a whole core
    # from the other replicas of this machine; a message also comes with a notification, for which one can wait.
    from vllm.distributed.device_communicators.shm_broadcast import SpinCondition  # type: ignore[import-not-found]

    make, wait = SpinCondition.__init__, SpinCondition.wait

    def patient(self: Any, *arguments: Any, **named: Any) -> None:
        make(self, *arguments, **named)
        self.busy_loop_s = -1.0

    def wait_a_while(self: Any, timeout_ms: int | None = None) -> None:
        # The caller looks again whenever this returns. A notification that was lost costs this long and no more.
        wait(self, LOOK_AGAIN_MS if timeout_ms is None else min(timeout_ms, LOOK_AGAIN_MS))

    SpinCondition.__init__, SpinCondition.wait = patient, wait_a_while
