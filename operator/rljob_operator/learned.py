"""What was known before a run, in the job's status and back: every later plan of the run rests on the same.

It is read once, from a calibration and from earlier runs; what the run itself shows comes on top.
"""

from __future__ import annotations

from dataclasses import replace

from rljob_operator.profiles import Lesson
from rljob_operator.status import rounded
from rljob_planner.api.status import DecodeConstants, LearnedStatus, MeasuredSeconds
from rljob_planner.calibrate import Calibration
from rljob_planner.hardware import DecodeEfficiency
from rljob_planner.measured_costs import DecodeSeconds, TrainSeconds


def learned_status(lesson: Lesson | None, config_map: str | None, measured: Calibration | None) -> LearnedStatus | None:
    """What was known before the run, for its status; None if nothing was."""
    if lesson is None and measured is None:
        return None
    decode = None if measured is None or measured.decode is None else measured.decode
    on = None if measured is None else measured.measured_on
    return LearnedStatus(
        profile=None if lesson is None else lesson.profile,
        runs=0 if lesson is None else len(lesson.jobs),
        uncertainty=None if lesson is None else rounded(max(lesson.sampler_error, lesson.trainer_error), 2),
        move_cost_seconds=None if lesson is None else lesson.move_cost_s,
        response_tokens_mean=None if lesson is None else rounded(lesson.start_tokens),
        config_map=config_map,
        decode=None
        if decode is None
        else DecodeConstants(
            mbu=decode.mbu,
            mfu=decode.mfu,
            layer_seconds=decode.layer_s,
            step_seconds=decode.step_s,
            request_seconds=decode.request_s,
        ),
        seconds=_seconds(measured),
        sampler_efficiency=None if measured is None else measured.sampler_efficiency,
        kv_tokens=None if measured is None else measured.kv_tokens,
        tensor_parallel=None if on is None else on.tensor_parallel,
    )


def _seconds(measured: Calibration | None) -> MeasuredSeconds | None:
    """The measured seconds of a calibration, for the status; None if it has none."""
    line, step = (None, None) if measured is None else (measured.decode_seconds, measured.train_seconds)
    if line is None and step is None:
        return None
    return MeasuredSeconds(
        iteration=None if line is None else line.step_s,
        sample=None if line is None else line.sample_s,
        context_token=None if line is None else line.context_token_s,
        prompt_token=None if line is None else line.prompt_token_s,
        experts=(line.experts_s or None) if line is not None else None,
        train_step=None if step is None else step.step_s,
        train_token=None if step is None else step.token_s,
    )


def with_constants(calibration: Calibration, learned: LearnedStatus | None, tensor_parallel: int) -> Calibration:
    """A live calibration with what was measured before the run; KV room and seconds of engines only where the width is the same."""
    known = () if learned is None else (learned.decode, learned.seconds, learned.kv_tokens, learned.sampler_efficiency)
    if learned is None or not any(value is not None for value in known):
        return calibration
    decode, seconds = learned.decode, learned.seconds or MeasuredSeconds()
    same_width = learned.tensor_parallel in (None, tensor_parallel)
    return replace(
        calibration,
        decode=None
        if decode is None
        else DecodeEfficiency(
            mbu=decode.mbu,
            mfu=decode.mfu,
            layer_s=decode.layer_seconds,
            step_s=decode.step_seconds,
            request_s=decode.request_seconds,
        ),
        kv_tokens=learned.kv_tokens if same_width else None,
        decode_seconds=None
        if seconds.iteration is None or not same_width
        else DecodeSeconds(
            seconds.iteration,
            seconds.sample or 0.0,
            seconds.context_token or 0.0,
            seconds.prompt_token or 0.0,
            seconds.experts or 0.0,
        ),
        train_seconds=None
        if seconds.train_step is None
        else TrainSeconds(seconds.train_step, seconds.train_token or 0.0),
        sampler_efficiency=learned.sampler_efficiency,
    )
