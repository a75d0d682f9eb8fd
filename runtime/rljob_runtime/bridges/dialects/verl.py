"""verl: the fully asynchronous recipe and the V1 trainers, both through verl's own ``Tracking``.

A step of ours is what verl trains between two weight synchronisations, so ``promptsPerStep`` is ``require_batches`` ×
``ppo_mini_batch_size`` × ``trigger_parameter_sync_step`` in the recipe, and ``data.train_batch_size`` in V1. Both add timings up over it.

Staleness. V1 logs the lag behind the policy of the oldest token of a trajectory, in model versions, which is our unit. The recipe
logs how many trajectories had a last token of an older version, and how many versions one trajectory spanned: neither the mean nor
the maximum of our staleness follows from them, so it is not reported.
"""

from __future__ import annotations

from rljob_runtime.bridges.dialect import Dialect, Framework, Tap
from rljob_runtime.bridges.rules import (
    dropped,
    dropped_so_far,
    in_flight_groups,
    queue,
    staleness_max,
    staleness_mean,
    synced,
    train_seconds,
    trained_by_means,
    version,
    version_is_step,
    waited,
)
from rljob_runtime.bridges.taps import mapping

_ASYNC = "verl/experimental/fully_async_policy"
_V1 = "verl/trainer/ppo/v1"
_METRICS = "verl/trainer/ppo/metric_utils.py"

_PHASES = (
    "timing_s/reward",
    "timing_s/old_log_prob",
    "timing_s/ref",
    "timing_s/values",
    "timing_s/adv",
    "timing_s/update_critic",
)
"""What a step computes besides the update of the actor; which of them exist depends on the algorithm."""

FULLY_ASYNC = Dialect(
    name="verl fully_async",
    version="0.9.1",
    marks=("fully_async/rollouter/version_time",),
    rules=(
        # Logged right after the synchronisation, under the version that it published.
        version_is_step("fully_async/rollouter/version_time", f"{_ASYNC}/fully_async_trainer.py:783"),
        waited("timing_s/gen", source=f"{_ASYNC}/fully_async_trainer.py:646"),
        train_seconds(
            "timing_s/update_actor",
            optional=_PHASES,
            source=f"{_ASYNC}/fully_async_trainer.py:611 (the framework's own sum)",
        ),
        # The timer's name holds the prefix that all timings get once more.
        synced("timing_s/timing_s/param_sync", source=f"{_ASYNC}/fully_async_trainer.py:729, {_METRICS}:645"),
        queue("dynamic_resource/mq_size", f"{_ASYNC}/fully_async_trainer.py:908"),
        in_flight_groups(
            "fully_async/monitor/active_tasks_size", f"{_ASYNC}/fully_async_rollouter.py:1171, detach_utils.py:113"
        ),
        dropped_so_far("fully_async/count/dropped_stale_samples", f"{_ASYNC}/fully_async_rollouter.py:1014"),
        *trained_by_means(
            "perf/total_num_tokens", "prompt_length/mean", "response_length/mean", f"{_METRICS}:573, 589, 685"
        ),
    ),
)

V1 = Dialect(
    name="verl V1",
    version="0.9.1",
    marks=("training/off_policy/trajectory_staleness_worst/max",),
    step_key="training/global_step",
    rules=(
        # One synchronisation for each global step, made before the step is logged.
        version("training/global_step", f"{_V1}/trainer_base.py:1935"),
        staleness_mean("training/off_policy/trajectory_staleness_worst/mean", f"{_V1}/trainer_base.py:1980"),
        staleness_max("training/off_policy/trajectory_staleness_worst/max", f"{_V1}/trainer_base.py:1980"),
        waited(
            "timing_s/gen",
            optional=("timing_s/switch_wait",),
            source=f"{_V1}/trainer_base.py:565, {_V1}/trainer_separate_async.py:283",
        ),
        train_seconds("timing_s/update_actor", optional=_PHASES, source=f"{_V1}/trainer_base.py:578-609"),
        synced("timing_s/update_weights", source=f"{_V1}/trainer_separate_async.py:380"),
        # Only where trainer GPUs are lent to rollouts (hybrid_rollout.enable_switch).
        queue("separate_async/decision/sampleable_count", f"{_V1}/trainer_separate_async.py:363", always=False),
        dropped("training/off_policy/evicted_samples", f"{_V1}/replay_buffer.py:367"),
        *trained_by_means(
            "perf/total_num_tokens", "prompt_length/mean", "response_length/mean", f"{_METRICS}:573, 589, 685"
        ),
    ),
)

VERL = Framework(
    name="verl",
    dialects=(FULLY_ASYNC, V1),
    taps=(Tap("verl.utils.tracking", "Tracking.log", mapping("data", "step")),),
)
"""Read from the wheel of verl 0.9.1."""
