"""prime-rl: its trainer and its orchestrator, two processes that log apart, each with a dialect of its own.

Staleness is logged by the orchestrator for the batch that it ships: the version that the batch trains on (its step less one) less the
version that generated an episode at its start, time in queues included, in policy versions. That is our unit and our definition;
an episode of several turns counts from its first.

Both processes are needed: the trainer says the version and its times, the orchestrator the rest. In one pod they need two ports.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from rljob_runtime.bridges.dialect import Dialect, Framework, Logged, Tap
from rljob_runtime.bridges.rules import (
    counted,
    dropped_samples,
    in_flight,
    staleness_max,
    staleness_mean,
    synced,
    train_seconds,
    version,
    waited,
)

_TRAIN = "src/prime_rl/trainer/rl/train.py, train()"
_SHIPPER = "src/prime_rl/orchestrator/shipper.py, Shipper.step_metrics()"
_EACH = "train/agg/effective/num_output_tokens/mean"
"""Response tokens of an episode, over those that are shipped."""

TRAINER = Dialect(
    name="prime-rl trainer",
    version="004274ec",
    marks=("time/wait_for_batch", "time/forward_backward"),
    step_key="step",
    rules=(
        version("step", _TRAIN),
        waited("time/wait_for_batch", source=_TRAIN),
        train_seconds("time/load_data", "time/forward_backward", source=_TRAIN),
        # How long the trainer gives its weights away; the servers' own pause is not logged.
        synced("time/broadcast_weights", source=_TRAIN),
    ),
)

ORCHESTRATOR = Dialect(
    name="prime-rl orchestrator",
    version="b0d45203",
    marks=("off_policy/mean", "off_policy/max", "time/wait_for_policy"),
    step_key="step",
    rules=(
        staleness_mean("off_policy/mean", f"{_SHIPPER}; src/prime_rl/orchestrator/utils.py, episode_staleness()"),
        staleness_max("off_policy/max", f"{_SHIPPER}; src/prime_rl/orchestrator/utils.py, episode_staleness()"),
        dropped_samples("off_policy/dropped", _SHIPPER, always=True),
        # Of the batch that is shipped. The number of its episodes is not logged (progress/rollouts is of all that arrived), but it is
        # the quotient of its tokens and their mean, which are of the same traces.
        *counted(
            ("progress/output_tokens", _EACH),
            lambda values: values[_EACH],
            lambda _, values: round(values["progress/output_tokens"] / values[_EACH]) if values[_EACH] > 0 else 0,
            f"{_SHIPPER}; src/prime_rl/orchestrator/metrics.py, EpisodeMetrics._episode_stat()",
        ),
        in_flight("dispatcher/inflight/train", "src/prime_rl/orchestrator/dispatcher.py, Dispatcher.gauges()"),
    ),
)


def _monitored(arguments: Mapping[str, object]) -> Logged | None:
    """``log`` takes the metrics of a step, those of a moment without a step, and whole episodes, which are not for us.

    Every process of the trainer calls it, and monitors are set up on the first rank alone: src/prime_rl/monitors/__init__.py, setup().
    """
    if int(os.environ.get("RANK", os.environ.get("DP_RANK", "0"))) != 0:
        return None
    first = next(iter(arguments.values()), None)
    return Logged(first, arguments.get("step")) if isinstance(first, Mapping) else None


PRIME_RL = Framework(
    name="prime-rl",
    dialects=(TRAINER, ORCHESTRATOR),
    taps=(Tap("prime_rl.monitors", "log", _monitored),),
)
"""Read in PrimeIntellect-ai/prime-rl at the commits that the dialects state; versions before ``prime_rl.monitors`` are heard through W&B."""
