"""What the metrics of a job showed, as values: the vocabulary between whoever collects them and the diagnosis.

Every quantity carries the metric that it is from, since an explanation that can't be checked is an opinion; and one that was not
measured is None, since nothing else is as easily taken for an idle fleet as a zero.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Seen:
    """A quantity that was measured, and by what."""

    value: float
    metric: str
    """The expression behind it, in names of metrics."""


@dataclass(frozen=True)
class Observation:
    """What the metrics of a job showed over a window; None: not measured. Times are seconds, means are over the window."""

    window_s: float | None = None
    """Length of the window; None where scrapes have no times."""
    scrapes: int = 0
    period_s: Seen | None = None
    """Between two published versions."""
    train_s: Seen | None = None
    """Training of a step."""
    wait_s: Seen | None = None
    """The trainer's waiting for samples, a step."""
    sync_s: Seen | None = None
    """Pause of a sampler for new weights."""
    environment_s: Seen | None = None
    """Of a sample in its environment, over all its turns."""
    decode_s: Seen | None = None
    """Of a sample on a sampler."""
    busy: Seen | None = None
    """Share of time in which samplers have something to run, pauses included, 0..1."""
    queue_groups: Seen | None = None
    """Complete groups that wait for the trainer."""
    queue_growth_groups: Seen | None = None
    """Change of the queue over the window."""
    in_flight: Seen | None = None
    """Samples."""
    running: Seen | None = None
    """Samples that decode, over all samplers."""
    waiting: Seen | None = None
    """Samples that wait for a slot or for KV room, over all samplers."""
    kv_usage: Seen | None = None
    """Share of the KV room in use, 0..1."""
    preemptions: Seen | None = None
    """Over the window."""
    iteration_s: Seen | None = None
    """Between two tokens of a sample."""
    tokens_per_s: Seen | None = None
    """Generated."""
    response_tokens: Seen | None = None
    """Of a finished response."""
    samples_per_step: Seen | None = None
    samples_per_s: Seen | None = None
    """Trained."""
    staleness: Seen | None = None
    """Mean, in policy versions."""
    dropped_groups: Seen | None = None
    """Over the window."""
    samplers: int | None = None
    """Sampler pods that report."""
    restarts: tuple[str, ...] = ()
    """Metrics whose counter started anew in the window: their processes did."""
    notes: tuple[str, ...] = ()
    """What the reader should know of how this was measured."""
