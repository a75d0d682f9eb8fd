"""What the search answers: one split simulated (``Evaluation``), and the whole plan around the best of them (``Plan``).

Values only. A number that is not known is None and stays null in JSON: a GPU without a price has no cost, an uncalibrated plan no
confidence.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rljob_planner.split import Split


@dataclass(frozen=True)
class Period:
    """Seconds between two published versions, over the steps of the simulation."""

    mean: float
    p10: float
    p50: float
    p90: float


@dataclass(frozen=True)
class Staleness:
    """Staleness of trained samples in policy versions."""

    mean: float
    p95: float
    max: float


@dataclass(frozen=True)
class RunTime:
    """Expected seconds of the steps that remain, with the spread that simulation and model error give them."""

    p10: float
    p50: float
    p90: float


@dataclass(frozen=True)
class Evaluation:
    """One split, simulated."""

    split: Split
    period: Period
    period_error: float
    """Standard error of the mean period, relative."""
    staleness: Staleness
    rho: float
    bottleneck: str
    """``samplers``, ``trainers`` or ``balanced``."""
    sampler_utilization: float
    trainer_utilization: float
    mean_running: float
    mean_in_flight: float
    queue_groups: float
    kv_utilization: float
    wasted_fraction: float
    """Share of generated response tokens that no step consumed because their groups were dropped."""
    tokens_per_second: float
    within_staleness: bool
    """Whether what the bound promises holds: max ≤ limit for ``drop``, mean ≤ limit otherwise."""
    reason: str = ""
    """Why it is not feasible; empty if it is."""

    @property
    def period_s(self) -> float:
        """Mean period in seconds."""
        return self.period.mean


@dataclass(frozen=True)
class Candidate:
    """A split that was looked at: by formulas, or by simulation."""

    split: Split
    period_s: float | None
    """None if it was rejected before its period was worked out."""
    staleness_mean: float | None
    feasible: bool
    reason: str
    """Why it was rejected, or what it loses against the best; empty for the best."""
    simulated: bool = False

    def to_json(self) -> dict[str, Any]:
        """As in ``rljob plan -o json``."""
        return {
            "split": split_json(self.split),
            "period": self.period_s,
            "staleness": self.staleness_mean,
            "feasible": self.feasible,
            "reason": self.reason,
        }


@dataclass(frozen=True)
class SweepPoint:
    """The best split at another mean response length."""

    factor: float
    split: Split
    period_s: float


@dataclass(frozen=True)
class Elasticity:
    """d ln period / d ln x at the best split: −0.8 for decode means 10 % faster decode shortens the period by about 8 %.

    None where x cannot be varied.
    """

    decode: float | None
    """x: decode speed."""
    train: float | None
    """x: training speed."""
    sync: float | None
    """x: seconds of weight synchronisation."""
    tail: float | None
    """x: cv of response lengths at the same mean."""


@dataclass(frozen=True)
class Plan:
    """The best split and what speaks for it."""

    split: Split
    """The best asynchronous split."""
    mode: str
    """``async``, or ``sync`` if time-sharing all GPUs is faster."""
    period: Period
    staleness: Staleness
    run_time: RunTime
    """Of the best asynchronous split, seconds."""
    cost: float | None
    """US dollars for the remaining steps, None if a GPU has no known price."""
    synchronous_period: float | None
    """Mean period in seconds if all GPUs first sample and then train; None if that is not possible."""
    synchronous_split: Split | None
    synchronous_run_time: RunTime | None
    synchronous_cost: float | None
    speedup: float | None
    """Synchronous over asynchronous period: below 1 staying synchronous is faster."""
    bottleneck: str
    """``samplers``, ``trainers`` or ``balanced``."""
    confidence: float | None
    """Relative residual of the calibrated model; None until something was measured."""
    candidates: tuple[Candidate, ...]
    """Feasible ones first, fastest (or cheapest) first."""
    neighbours: tuple[Candidate, ...]
    """The splits with one trainer replica fewer and one more."""
    length_sweep: tuple[SweepPoint, ...]
    elasticity: Elasticity | None
    placeable_gpus: int
    """GPUs of the budget that the nodes can hold in replicas of these sizes."""
    rho: float
    evaluation: Evaluation
    notes: tuple[str, ...] = ()
    """What the reader should know besides, in sentences."""

    def to_json(self) -> dict[str, Any]:
        """The object of ``rljob plan -o json``; times in seconds."""
        sync = self.mode == "sync" and self.synchronous_split is not None and self.synchronous_period is not None
        period: dict[str, Any] = _fields(self.period, ("mean", "p10", "p50", "p90"))
        staleness = _fields(self.staleness, ("mean", "p95", "max"))
        run_time, cost, split = self.run_time, self.cost, self.split
        if sync and self.synchronous_split is not None and self.synchronous_run_time is not None:
            split, run_time, cost = self.synchronous_split, self.synchronous_run_time, self.synchronous_cost
            period = {"mean": self.synchronous_period, "p10": None, "p50": None, "p90": None}
            staleness = {"mean": 0.0, "p95": 0.0, "max": 0.0}
        return {
            "split": split_json(split),
            "period": period,
            "staleness": staleness,
            "runTime": _fields(run_time, ("p10", "p50", "p90")),
            "cost": cost,
            "synchronousPeriod": self.synchronous_period,
            "speedup": self.speedup,
            "bottleneck": self.bottleneck,
            "confidence": self.confidence,
            "candidates": [candidate.to_json() for candidate in self.candidates],
            "neighbours": [candidate.to_json() for candidate in self.neighbours],
            "lengthSweep": [
                {"factor": point.factor, "split": split_json(point.split), "period": point.period_s}
                for point in self.length_sweep
            ],
            "elasticity": None
            if self.elasticity is None
            else _fields(self.elasticity, ("decode", "train", "sync", "tail")),
        }


def split_json(split: Split) -> dict[str, Any]:
    """A split as in ``rljob plan -o json``."""
    s, t = split.samplers, split.trainers
    return {
        "mode": split.mode,
        "samplers": {"replicas": s.replicas, "gpusPerReplica": s.gpus_per_replica, "tensorParallel": s.tensor_parallel},
        "trainers": {
            "replicas": t.replicas,
            "gpusPerReplica": t.gpus_per_replica,
            "dp": t.dp,
            "tp": t.tp,
            "pp": t.pp,
            "ep": t.ep,
        },
        "inFlight": split.in_flight,
    }


def _fields(value: object, names: Sequence[str]) -> dict[str, Any]:
    return {name: getattr(value, name) for name in names}
