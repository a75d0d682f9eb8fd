"""NeMo-RL: asynchronous GRPO, in its older loop and under the single controller, both through NeMo-RL's own ``Logger``.

A step of ours is a step of theirs: weights are synchronised after each, before it is logged, and it is logged under the number of
steps done, which is the version.

Staleness. The older loop logs ``avg_trajectory_age``: the trainer's version less the version that the group's generation was started
under, as a mean over groups of equal size. That is our mean and our unit; the largest is not logged. The single controller prints the
age of the oldest sample and logs none.

``performance/training_worker_idle_time_ratio`` is not read: it is 0 whenever the trainer waited for more than a tenth of a second.
"""

from __future__ import annotations

from collections.abc import Mapping

from rljob_runtime.bridges.dialect import Dialect, Framework, Logged, Tap, Values
from rljob_runtime.bridges.rules import (
    counted,
    dropped,
    in_flight_groups,
    queue,
    staleness_mean,
    synced,
    train_seconds,
    trained_by_mean,
    version_is_step,
    waited,
)
from rljob_runtime.bridges.sink import Sink

_GRPO = "nemo_rl/algorithms/grpo.py, async_grpo_train()"
_CONTROLLER = "nemo_rl/algorithms/single_controller.py, _train_pump()"

_LAST = "timing/train"
"""The prefix under which a step is logged last."""

_PHASES = (
    "timing/train/policy_and_reference_logprobs",
    "timing/train/logprob_inference_prep",
    "timing/train/training_prep",
    "timing/train/advantage_calculation",
    "timing/train/reward_calculation",
    "timing/train/data_processing",
)
"""What a step computes besides the update of the policy; which of them exist depends on loop and algorithm."""

_RATE, _DURATION_S, _LENGTH = (
    "performance/samples_per_sec",
    "timing/train/total_step_time",
    "train/mean_gen_tokens_per_sample",
)


def _read(arguments: Mapping[str, object]) -> Logged | None:
    """One of the calls that a step is logged in, or what a monitor logs beside the steps, under a clock of its own."""
    metrics, prefix = arguments.get("metrics"), arguments.get("prefix")
    if not isinstance(metrics, Mapping):
        return None
    named = {f"{prefix}/{key}": value for key, value in metrics.items()} if prefix else metrics
    if arguments.get("step_metric") is not None:
        return Logged(named)
    return Logged(named, arguments.get("step"), closed=prefix == _LAST)


def _samples(_: Sink, values: Values) -> float:
    """The samples of a step: NeMo-RL logs them over the step's duration."""
    return float(round(values[_RATE] * values[_DURATION_S]))


def _length(values: Values) -> float:
    return values[_LENGTH]


ASYNC_GRPO = Dialect(
    name="NeMo-RL async GRPO",
    version="002cdc27",
    marks=("train/avg_trajectory_age", "train/buffer_size"),
    rules=(
        version_is_step("timing/train/weight_sync", _GRPO),
        staleness_mean(
            "train/avg_trajectory_age", f"{_GRPO}; nemo_rl/algorithms/async_utils/replay_buffer.py, sample()"
        ),
        queue("train/buffer_size", _GRPO),
        waited("timing/train/exposed_generation", source=_GRPO),
        train_seconds("timing/train/policy_training", optional=_PHASES, source=_GRPO),
        synced("timing/train/weight_sync", source=_GRPO),
        *counted(
            (_RATE, _DURATION_S, _LENGTH),
            _length,
            _samples,
            f"{_GRPO}; nemo_rl/algorithms/utils.py, print_performance_metrics()",
        ),
    ),
)

SINGLE_CONTROLLER = Dialect(
    name="NeMo-RL single controller",
    version="00420a15",
    marks=("train/evicted_stale_prompt_groups", "timing/train/exposed_generation"),
    rules=(
        version_is_step("timing/train/weight_sync", _CONTROLLER),
        waited("timing/train/exposed_generation", source=_CONTROLLER),
        train_seconds("timing/train/policy_training", optional=_PHASES, source=_CONTROLLER),
        synced("timing/train/weight_sync", source=_CONTROLLER),
        dropped("train/evicted_stale_prompt_groups", _CONTROLLER, always=True),
        # Logged by the watchdog, at its own interval.
        in_flight_groups(
            "rollout/inflight", "nemo_rl/algorithms/single_controller.py, _stall_watchdog_pump()", always=False
        ),
        *trained_by_mean(_LENGTH, _CONTROLLER),
    ),
)

NEMO_RL = Framework(
    name="nemo-rl",
    dialects=(ASYNC_GRPO, SINGLE_CONTROLLER),
    taps=(Tap("nemo_rl.utils.logger", "Logger.log_metrics", _read),),
)
"""Read from NVIDIA-NeMo/RL at the commits that the dialects state."""
