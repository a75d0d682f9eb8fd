"""What the sections about limits, the decode step, the split, lengths and gains compute from the example job."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache

import numpy as np
from numpy.typing import NDArray

from dev.docs import example
from rljob_planner.api.spec import RLJobSpec
from rljob_planner.closedform import predict
from rljob_planner.layouts import Space
from rljob_planner.lengths import LengthDistribution
from rljob_planner.outcome import RATIO_VARIANCE, Evaluation, Plan, ratio_variance
from rljob_planner.placement import default_rooms
from rljob_planner.screen import screened
from rljob_planner.search import evaluate, plan
from rljob_planner.simulate import SimulationInput, SimulationResult, simulate
from rljob_planner.split import Split

FloatArray = NDArray[np.float64]

LIMITS = (0, 1, 2, 4, 8)
"""Staleness limits that are compared."""
FACTORS = (0.5, 1.0, 2.0, 4.0, 8.0)
"""Response lengths that are compared, relative to the job's."""
SPREADS = (0.0, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0)
"""Coefficients of variation of the lengths that are compared, at the job's mean."""
CAPACITIES = (1, 2, 4)
"""Queue capacities, in batches, at which formulas and simulation are compared."""
RHOS = (0.5, 0.65, 0.8, 0.9, 1.0, 1.05, 1.1, 1.2, 1.35, 1.6, 2.0)


@dataclass(frozen=True)
class Limited:
    """The job under one staleness limit."""

    limit: int
    split: Split
    result: SimulationResult
    best: Plan | None
    """The best of all splits under this limit; None where it was not asked for."""

    @property
    def running_per_gpu(self) -> float:
        """Samples that run on each sampler GPU."""
        return self.result.mean_running / self.split.samplers.gpus

    @property
    def ratio_variance(self) -> float:
        """Variance of the importance ratio of what was trained."""
        return ratio_variance(self.result.staleness.histogram, RATIO_VARIANCE)


@cache
def limits(bound: str = "admission") -> tuple[Limited, ...]:
    """The split of the plan under other staleness limits, each with the in-flight cap that suits it."""
    split, found = example.best().split, []
    for limit in LIMITS:
        best = None
        if bound == "admission":
            of = example.with_staleness(limit, bound)
            split = example.planned(of, trainers=split.trainers.replicas).split
            best = example.planned(of)
        elif limit == 0:
            continue
        result = simulate(example.inputs(split, bound=bound, max_staleness=limit), rho=1.0)
        found.append(Limited(limit, split, result, best))
    return tuple(found)


@dataclass(frozen=True)
class DecodeStep:
    """The parts of a decode step by running samples at the job's mean context, seconds; prefill left out."""

    running: FloatArray
    fixed_s: FloatArray
    """Launches, sampling, scheduling, and what moves between the matrix products."""
    weights_s: FloatArray
    """Reading the weights."""
    products_s: FloatArray
    """The matrix products: reading the weights, or their arithmetic where that takes longer."""
    kv_s: FloatArray
    compute_s: FloatArray
    """The arithmetic of the products alone."""
    step_s: FloatArray
    room: float
    """Running samples of mean context that the KV cache of one replica holds."""
    context_tokens: float

    @property
    def rate(self) -> FloatArray:
        """Tokens per second."""
        return np.asarray(self.running / self.step_s)

    def at(self, running: int) -> float:
        """Seconds of a step with so many running samples."""
        return float(self.step_s[running - 1])


@cache
def decode_step(factor: float = 1.0) -> DecodeStep:
    """One replica's decode step, with responses ``factor`` times as long."""
    job = example.job() if factor == 1.0 else example.job().with_lengths(example.job().lengths.scaled(factor))
    engine, context = job.engine(1), job.context_tokens
    n = np.arange(1, job.engine_max_running() + 1, dtype=np.float64)
    gpu = engine.gpu
    weights = engine.weight_bytes_read(n) / (gpu.decode.mbu * gpu.memory_bytes_per_s)
    return DecodeStep(
        running=n,
        fixed_s=engine.fixed_s(n),
        weights_s=weights,
        products_s=engine.products_s(n),
        kv_s=engine.context_s(n, context) + engine.context_s_per_token * n * context,
        compute_s=2.0 * job.model.active_parameters * n / (gpu.decode.mfu * gpu.peak_bf16),
        step_s=engine.step_s(n, context),
        room=job.kv_tokens(1) / context,
        context_tokens=context,
    )


@dataclass(frozen=True)
class SplitPoint:
    """One split of the job without a staleness bound, and its best under the job's own limit."""

    split: Split
    free: SimulationResult
    limited: Plan

    @property
    def queue_growth(self) -> float:
        """Groups by which the queue grows in a period."""
        return max(0.0, self.free.rho - 1.0) * example.spec().workload.prompts_per_step


@cache
def splits() -> tuple[SplitPoint, ...]:
    """Every split of the job, few trainers first."""
    cap = example.best().split.in_flight
    found = []
    for count in example.trainer_counts():
        split = example.split(count, cap)
        free = simulate(example.inputs(split, bound="none"))
        found.append(SplitPoint(split, free, example.planned(trainers=count)))
    return tuple(found)


@cache
def queue_over_time(trainers: int) -> tuple[FloatArray, FloatArray]:
    """Seconds and groups in the queue, without a bound, from the start of a run of 40 steps."""
    split = example.split(trainers, example.best().split.in_flight)
    timeline = simulate(example.inputs(split, steps=40, warmup=0, bound="none"), rho=1.0, record=True).timeline
    if timeline is None:
        raise LookupError("a run of 40 steps can be recorded")
    queue = timeline.queue
    return np.append(0.0, queue["time_s"]), np.append(0.0, queue["groups"].astype(np.float64))


@dataclass(frozen=True)
class LengthPoint:
    """The job with longer or shorter responses: every split of it."""

    factor: float
    lengths: LengthDistribution
    splits: tuple[Evaluation, ...]

    @property
    def best(self) -> Evaluation:
        """The fastest of them."""
        return min(self.splits, key=lambda e: e.period_s)


@cache
def length_points() -> tuple[LengthPoint, ...]:
    """The sweep of the split at each of ``FACTORS``; the longest possible response moves with the lengths."""
    spec, found = example.spec(), []
    for factor in FACTORS:
        lengths = example.job().lengths.scaled(factor, scale_cap=True)
        job = example.job().with_lengths(lengths)
        space = Space(job, example.rooms())
        layouts = [layout for count in space.trainer_counts(1) if (layout := space.layout(1, count)) is not None]
        splits = [screened(job, layout, example.UNMEASURED, spec.workload.steps).split for layout in layouts]
        evaluations = tuple(
            evaluate(spec, split, example.rooms(), calibration=example.UNMEASURED, lengths=lengths, steps=48)
            for split in splits
        )
        found.append(LengthPoint(factor, lengths, evaluations))
    return tuple(found)


@dataclass(frozen=True)
class TailPoint:
    """The job with lengths of another spread at the same mean."""

    cv: float
    lengths: LengthDistribution
    plan: Plan
    synchronous_s: float
    """Period of the synchronous mode."""

    @property
    def speedup(self) -> float:
        """Synchronous over asynchronous period."""
        return self.synchronous_s / self.plan.period.mean


@cache
def tail_points() -> tuple[TailPoint, ...]:
    """Best asynchronous split and synchronous step at each of ``SPREADS``."""
    mean, cap = example.job().lengths.mean(), example.job().lengths.cap_tokens
    found = []
    for cv in SPREADS:
        lengths = LengthDistribution.from_mean_cv(mean, cv, cap)
        job = example.job().with_lengths(lengths)
        split = example.synchronous_split()
        sync = job.simulation_input(split, example.UNMEASURED, steps=200, warmup=0)
        found.append(TailPoint(cv, lengths, example.planned(lengths=lengths), simulate(sync, rho=1.0).period.mean))
    return tuple(found)


def one_node_job() -> RLJobSpec:
    """A job that is better left synchronous: one node, long prompts, short answers of even length, wide trainers."""
    base = example.spec()
    workload = base.workload
    return base.model_copy(
        update={
            "gpus": 8,
            "trainer": base.trainer.model_copy(update={"gpus_per_replica": 4}),
            "workload": workload.model_copy(
                update={
                    "prompt_tokens": workload.prompt_tokens.model_copy(update={"mean": 3000}),
                    "response_tokens": type(workload.response_tokens)(mean=150, cv=0.3, max=512),
                }
            ),
        }
    )


@cache
def one_node_plan() -> Plan:
    """The plan of ``one_node_job``."""
    job = one_node_job()
    return plan(job, default_rooms(job.gpus, job.accelerator), calibration=example.UNMEASURED, detail=False)


@dataclass(frozen=True)
class FormulaPoint:
    """The closed form and the simulation of one case."""

    rho: float
    capacity: int
    formula_period_s: float
    formula_staleness: float
    period_s: float
    staleness: float


@cache
def _formula_base() -> SimulationInput:
    of = example.best().split.model_copy(update={"in_flight": example.job().batch // 2})
    return example.inputs(of, bound="none", steps=240, warmup=40)


def _formula_case(rho: float, capacity: int) -> SimulationInput:
    """The plan's split with a trainer so slow that ρ comes out; a full queue drops its oldest groups."""
    base = _formula_base()
    slower = rho / predict(base).rho
    train = replace(
        base.train,
        per_step_s=base.train.per_step_s * slower,
        per_token_s=base.train.per_token_s * slower,
        per_token_squared_s=base.train.per_token_squared_s * slower,
    )
    return replace(base, train=train, queue_capacity=capacity * base.prompts_per_step)


@cache
def formula_points() -> tuple[FormulaPoint, ...]:
    """Formulas beside simulation at each of ``RHOS`` and ``CAPACITIES``."""
    found = []
    for capacity in CAPACITIES:
        for rho in RHOS:
            case = _formula_case(rho, capacity)
            formula, run = predict(case), simulate(case, rho=rho)
            found.append(
                FormulaPoint(
                    rho, capacity, formula.period_s, formula.mean_staleness, run.period.mean, run.staleness.mean
                )
            )
    return tuple(found)


@cache
def formula_line(capacity: int) -> tuple[FloatArray, FloatArray]:
    """Mean staleness by the closed form, finely by rho."""
    rhos = np.concatenate([np.linspace(0.5, 0.999, 40), np.linspace(1.001, 2.0, 60)])
    return rhos, np.array([predict(_formula_case(float(rho), capacity)).mean_staleness for rho in rhos])


def wasted(result: SimulationResult) -> float:
    """Share of the generated response tokens that was thrown away."""
    trained = result.tokens_per_second * result.elapsed_s
    return result.wasted_tokens / (result.wasted_tokens + trained)


@dataclass(frozen=True)
class Target:
    """Something that could be improved by 10 %, and what that is worth."""

    key: str
    name: str
    saved: float
    """Share by which the period gets shorter."""
    hours: float
    """Of the whole run."""
    dollars: float | None


def targets() -> tuple[Target, ...]:
    """What 10 % of each thing is worth at the best split, the most first."""
    best = example.best()
    if best.elasticity is None:
        raise LookupError("the plan of the example job has elasticities")
    asked = {
        "decode": ("10 % faster decoding", best.elasticity.decode, 1.1),
        "train": ("10 % faster training", best.elasticity.train, 1.1),
        "tail": ("10 % less spread of lengths", best.elasticity.tail, 1.0 / 1.1),
        "sync": ("10 % faster weight loading", best.elasticity.sync, 1.0 / 1.1),
    }
    found = []
    for key, (name, slope, factor) in asked.items():
        if slope is not None:
            saved = max(0.0, 1.0 - factor**slope)
            hours = saved * best.run_time.p50 / 3600.0
            found.append(Target(key, name, saved, hours, None if best.cost is None else saved * best.cost))
    return tuple(sorted(found, key=lambda t: -t.saved))
