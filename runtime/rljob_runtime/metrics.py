"""The metrics of a job, by name: the contract with the operator.

The buckets are part of it: a quantile is only as exact as its bucket is narrow.
"""

from __future__ import annotations

from rljob_runtime.ledger import Across, Definition, Distribution

RESPONSE_TOKENS_BUCKETS: tuple[float, ...] = tuple(
    sorted({*(m * 10**e for e in range(5) for m in (1, 2, 5)), 100_000, 4096, 8192, 16384, 32768, 65536, 131072})
)
"""Upper edges in tokens: 1-2-5 up to 100 000, and the caps that responses are commonly given."""

STALENESS_BUCKETS: tuple[float, ...] = (0, 1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 16, 24, 32, 48, 64)
"""Upper edges in policy versions; exact where limits usually are."""

SECONDS_BUCKETS: tuple[float, ...] = (
    0.05, 0.1, 0.2, 0.5, 1, 2, 3, 5, 7.5, 10, 15, 20, 30, 45, 60, 90, 120, 180, 300, 600, 1200, 1800, 3600,
)  # fmt: skip
"""Upper edges in seconds, for anything between a weight sync inside a node and the step of a very large model."""

GENERATION = Across(
    "rljob_layout_generation", "Layout generation that this trainer process acknowledged", across="livemin"
)
VERSION = Across("rljob_policy_version", "Policy version published last")
QUEUE = Across("rljob_queue_depth_groups", "Complete groups that wait for the trainer")
IN_FLIGHT = Across("rljob_inflight_samples", "Samples submitted and not finished", across="livesum")
STALENESS_MAX = Across("rljob_sample_staleness_max_versions", "Largest staleness in the training step started last")

STALENESS = Distribution(
    "rljob_sample_staleness_versions",
    "Staleness of trained samples: version at the start of the step less version of the first token",
    STALENESS_BUCKETS,
)
ENVIRONMENT = Distribution(
    "rljob_environment_seconds", "Time that a sample spent in its environment, over all of its turns", SECONDS_BUCKETS
)
TRAIN_STEP = Distribution(
    "rljob_train_step_seconds",
    "Time of a training step without waiting for samples and without weight sync",
    SECONDS_BUCKETS,
)
WEIGHT_SYNC = Distribution(
    "rljob_weight_sync_seconds", "Time that samplers pause to take a policy version", SECONDS_BUCKETS
)
RESPONSE = Distribution("rljob_response_tokens", "Length of finished responses", RESPONSE_TOKENS_BUCKETS)

WAIT = Definition("rljob_trainer_wait_seconds_total", "Time that the trainer waited for samples")
SAMPLES = Definition("rljob_trained_samples_total", "Samples trained on")
TOKENS = Definition("rljob_trained_tokens_total", "Response tokens trained on")
DROPPED = Definition("rljob_dropped_groups_total", "Complete groups discarded for their staleness or for want of room")

GAUGES = (GENERATION, VERSION, QUEUE, IN_FLIGHT, STALENESS_MAX)
"""Absent until their first value."""

DISTRIBUTIONS = (STALENESS, ENVIRONMENT, TRAIN_STEP, WEIGHT_SYNC, RESPONSE)
"""Histograms; summaries where only means are known."""

COUNTERS = (WAIT, SAMPLES, TOKENS, DROPPED)
"""They start at zero with the process."""
