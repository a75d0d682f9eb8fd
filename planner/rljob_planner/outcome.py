"""What the search answers: one split simulated (``Evaluation``), and the whole plan around the best of them (``Plan``).

Values only. A number that is not known is None and stays null in JSON: a GPU without a price has no cost, an uncalibrated plan no
confidence.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rljob_planner.split import Split

if TYPE_CHECKING:
    from rljob_planner.sandboxes import Sandboxes


_MOSTLY_AWAY, _ROOMY_KV = 0.5, 0.5


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
    ratio_variance: float
    """Variance of the importance ratios of trained samples: mean of e^(σ²·s) − 1 over their staleness s (``ratio_variance``)."""


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
    """``samplers``, ``trainers``, ``balanced``, or ``sandboxes`` where too few environments gate the samplers."""
    sampler_utilization: float
    trainer_utilization: float
    mean_running: float
    mean_in_flight: float
    queue_groups: float
    kv_utilization: float
    wasted_fraction: float
    """Share of generated response tokens that no step consumed because their groups were dropped."""
    tokens_per_second: float
    environment_samples: float
    """Mean samples in their environment: sandboxes in use."""
    sandbox_wait_s: float
    """Mean seconds that a sample waits for a sandbox, each time that it needs one."""
    within_staleness: bool
    """Whether what the bound promises holds: max ≤ limit for ``drop``, mean ≤ limit otherwise."""
    reason: str = ""
    """Why it is not feasible; empty if it is."""

    @property
    def period_s(self) -> float:
        """Mean period in seconds."""
        return self.period.mean

    @property
    def environment_share(self) -> float:
        """Of the samples in flight, the share that is in its environment at the mean, 0..1."""
        return self.environment_samples / self.mean_in_flight if self.mean_in_flight > 0.0 else 0.0

    @property
    def environments_dominate(self) -> bool:
        """Whether samples spend most of their life in environments while samplers have room to spare."""
        return self.environment_share >= _MOSTLY_AWAY and self.kv_utilization < _ROOMY_KV


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
    ratio_variance: float | None = None
    """Variance of importance ratios; None if it was not simulated."""


@dataclass(frozen=True)
class Run:
    """The whole run with a split."""

    evaluation: Evaluation
    """The split at the start of the run."""
    run_time: RunTime
    cost: float | None
    """US dollars, None if a GPU has no known price."""
    period_s: float
    """Mean period over the run; that of its start unless lengths are expected to grow."""


@dataclass(frozen=True)
class ParetoPoint:
    """A split that no other beats in both period and staleness."""

    split: Split
    period_s: float
    staleness_mean: float
    ratio_variance: float


@dataclass(frozen=True)
class SweepPoint:
    """The best split at another mean response length."""

    factor: float
    split: Split
    period_s: float
    mean_tokens: float
    """Mean response length there; less than the factor says where the cap cuts."""


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
    """The best way to run: ``async``; ``sync`` if time-sharing all GPUs is better; ``one-step-off``."""
    period: Period
    staleness: Staleness
    run_time: RunTime
    """Of the best asynchronous split, seconds."""
    cost: float | None
    """US dollars for the remaining steps, None if a GPU has no known price."""
    lock_steps: Mapping[str, Run]
    """By mode, ``sync`` and ``one-step-off``: the best of each; one that is impossible or was not asked for is not there."""
    bottleneck: str
    """``samplers``, ``trainers``, ``sandboxes`` or ``balanced``."""
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
    pareto: tuple[ParetoPoint, ...] = ()
    """What fresher samples cost: the freshest first, each faster than those before it."""
    sandboxes: Sandboxes | None = None
    """What environments need; None for a job without them."""

    @property
    def synchronous(self) -> Evaluation | None:
        """All GPUs first sample and then train; None if that is not possible or was not asked for."""
        return self._lock_step("sync")

    @property
    def one_step_off(self) -> Evaluation | None:
        """Samplers make the next batch while the trainer takes the last one; None if it was not asked for."""
        return self._lock_step("one-step-off")

    def _lock_step(self, mode: str) -> Evaluation | None:
        found = self.lock_steps.get(mode)
        return None if found is None else found.evaluation

    @property
    def synchronous_period(self) -> float | None:
        """Mean period in seconds if all GPUs first sample and then train; None if that is not possible or was not asked for."""
        return None if self.synchronous is None else self.synchronous.period.mean

    @property
    def one_step_off_period(self) -> float | None:
        """Mean period in seconds if the trainer always takes the batch of the version before; None if it was not asked for."""
        return None if self.one_step_off is None else self.one_step_off.period.mean

    @property
    def speedup(self) -> float | None:
        """Synchronous over asynchronous period: below 1 staying synchronous is faster."""
        return None if self.synchronous is None else self.synchronous.period.mean / self.period.mean

    def to_json(self) -> dict[str, Any]:
        """The object of ``rljob plan -o json``; times in seconds. In a lock-step mode its split is that mode's."""
        from rljob_planner._plan_json import plan_json

        return plan_json(self)


RATIO_VARIANCE = 0.05
"""Variance σ² of the log importance ratio of a sample that one policy version adds, where nobody has measured it: an assumption."""


def ratio_variance(histogram: Sequence[int], per_version: float = RATIO_VARIANCE, further: float = 0.0) -> float:
    """Variance of importance ratios: mean of e^(σ²·s) − 1 over a histogram of staleness s, ln ratio normal with variance σ²·s.

    ``further`` versions are added to every sample's staleness.
    """
    total = sum(histogram)
    powers = (count * math.expm1(min(500.0, per_version * (s + further))) for s, count in enumerate(histogram))
    return sum(powers) / total if total else math.nan


def two_digits(fraction: float) -> str:
    """A relative difference with its sign and two significant digits, such as ``+8.1%`` or ``+140%``: it is no surer than that."""
    percent = 100.0 * fraction
    if percent == 0.0 or not math.isfinite(percent):
        return f"{percent:+.0f}%"
    digits = max(0, 1 - math.floor(math.log10(abs(percent))))
    return f"{round(percent, 1 - math.floor(math.log10(abs(percent)))):+.{digits}f}%"
