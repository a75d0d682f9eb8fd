"""What to change first once it is known what bounds a job, and where it differs from the model.

Advice follows the bound: what would speed up the side that is waited for comes first, with the most that it could gain. A gain beyond
the wait itself is never promised, since then the other side would be the slower one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from enum import StrEnum

from rljob_planner.observation import Observation, Seen

HEAVY_SYNC = 0.15
"""Share of the period from which pauses for new weights are worth shortening."""
FULL_KV = 0.90
ROOMY_KV = 0.70
UNEXPLAINED = 0.10
OFF = 0.20
"""Relative difference from the model that is worth a word."""


class Bound(StrEnum):
    """What the period waits for."""

    SAMPLERS = "samplers"
    TRAINERS = "trainers"
    SANDBOXES = "sandboxes"
    WEIGHT_SYNC = "weight-sync"
    BALANCED = "balanced"
    HANDOVER = "handover"
    """Groups are ready and the trainer waits all the same: something between the two."""
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Advice:
    """Something to change."""

    change: str
    because: str
    at_most: float | None = None
    """Share by which the period could shorten at most, None where it can't be said."""


@dataclass(frozen=True)
class Expected:
    """What the model says of the same job and split; None: it does not say. Units as in Observation."""

    period_s: float | None = None
    train_s: float | None = None
    wait_s: float | None = None
    sync_s: float | None = None
    environment_s: float | None = None
    iteration_s: float | None = None
    staleness: float | None = None


@dataclass(frozen=True)
class Compared:
    """One quantity beside what the model says of it."""

    name: str
    predicted: float
    measured: float
    meaning: str
    """Empty where both agree."""

    @property
    def ratio(self) -> float | None:
        """Measured over predicted, None where nothing was predicted to be there."""
        return self.measured / self.predicted if self.predicted else None


def line(what: str, seen: Seen, unit: str = "") -> str:
    """A quantity with its metric, as evidence."""
    value = f"{seen.value:,.0f}" if abs(seen.value) >= 1000 else f"{seen.value:.3g}"
    return f"{what} {value}{unit} ({seen.metric})"


def advice(seen: Observation, bound: Bound, shares: Mapping[str, float | None]) -> list[Advice]:
    """What to change, first things first."""
    wait, sync = shares["wait"], shares["sync"]
    found: list[Advice] = []
    if bound is Bound.SAMPLERS:
        found += _sampler_advice(seen, wait)
    elif bound is Bound.TRAINERS:
        found.append(
            Advice(
                "give the trainer more GPUs, or make its step cheaper (packing, less recomputation, fewer extra forward passes)",
                "it never waits, and what samplers finish only ages in the queue",
            )
        )
    elif bound is Bound.SANDBOXES:
        found.append(
            Advice(
                "run more environments at once, or shorten a turn's environment time",
                "samples wait in and for their environments while decode slots are free",
                wait,
            )
        )
    elif bound is Bound.HANDOVER:
        found.append(
            Advice(
                "look between the queue and the trainer: data loading, collation, a barrier over ranks, or a bound that holds publication",
                "groups are ready, and it waits",
                wait,
            )
        )
    if sync is not None and (bound is Bound.WEIGHT_SYNC or sync >= HEAVY_SYNC):
        found.append(
            Advice(
                "shorten the weight sync: a faster path (NCCL, RDMA), buckets, or fewer bytes (fp8, only what changed)",
                f"samplers pause for it in {sync:.0%} of the period",
                sync if bound in (Bound.WEIGHT_SYNC, Bound.SAMPLERS) else None,
            )
        )
    other = shares["other"]
    if other is not None and other >= UNEXPLAINED and bound is not Bound.WEIGHT_SYNC:
        found.append(
            Advice(
                "find out what the trainer does besides training and waiting: checkpoints, evaluation, log-probabilities, weight sync",
                f"it takes {other:.0%} of the period, and no metric tells what it is",
                other,
            )
        )
    if seen.dropped_groups is not None and seen.dropped_groups.value > 0:
        found.append(
            Advice(
                "lower the in-flight cap",
                f"{seen.dropped_groups.value:.0f} complete groups were thrown away in the window (rljob_dropped_groups_total)",
            )
        )
    return found


def _sampler_advice(seen: Observation, wait: float | None) -> list[Advice]:
    kv, waiting, in_flight, running = seen.kv_usage, seen.waiting, seen.in_flight, seen.running
    found = []
    if (kv is not None and kv.value >= FULL_KV) or (seen.preemptions is not None and seen.preemptions.value > 0):
        parts = [line("KV cache full to a share of", kv)] if kv is not None else []
        if seen.preemptions is not None:
            parts.append(line("preemptions", seen.preemptions))
        found.append(
            Advice(
                "give samplers more KV room: wider replicas, fp8 KV, or fewer running samples each",
                "; ".join(parts),
                wait,
            )
        )
    elif waiting is not None and waiting.value < 1 and kv is not None and kv.value < ROOMY_KV:
        of = (
            ""
            if in_flight is None or running is None
            else f", {running.value:.0f} of {in_flight.value:.0f} samples in flight run"
        )
        found.append(
            Advice(
                "raise the in-flight cap, as far as staleness allows",
                f"samplers have room: nothing waits for a slot, the KV cache is {kv.value:.0%} full{of}",
                wait,
            )
        )
    found.append(Advice("move GPUs from the trainer to samplers", "the trainer waits for them", wait))
    return found


_NAMES = {
    "period_s": "period",
    "train_s": "training of a step",
    "wait_s": "waiting of a step",
    "sync_s": "weight sync",
    "environment_s": "environment of a sample",
    "iteration_s": "decode step",
    "staleness": "mean staleness",
}
_SLOW = {
    "train_s": "the trainer is slower than its FLOPs and MFU say: measure its MFU and state it (trainer.mfu), or find what it does besides",
    "sync_s": "the weights take longer to reach samplers than their bytes and path say",
    "environment_s": "environments are slower than the spec says, or wait for a sandbox: state what they take (secondsPerTurn)",
    "iteration_s": "samplers are slower than data sheets say: rljob calibrate fits the constants to this engine",
    "wait_s": "the trainer waits longer than the model says: look at what the rollout does besides decoding",
}


def compared(seen: Observation, expected: Expected) -> list[Compared]:
    """What was measured beside what the model says, where both are known."""
    found = []
    for field in fields(expected):
        predicted, measured = getattr(expected, field.name), getattr(seen, field.name)
        if predicted is None or measured is None:
            continue
        off = measured.value - predicted
        meaning = ""
        if abs(off) > OFF * max(predicted, 1e-12):
            meaning = _SLOW.get(field.name, "") if off > 0 else "lower than the model says"
        found.append(Compared(_NAMES[field.name], predicted, measured.value, meaning))
    return found
