"""What the planner answers for the jobs in crds/samples, and why that answer is right.

A plan that is not argued for is not followed. Facts are printed as the planner gives them; the argument of each sample is written by
hand, with the facts that it rests on checked, so that it cannot outlive them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np

from dev.docs.example import ROOT
from dev.docs.page import number, percent, require, table
from rljob_planner.api.reading import read_job
from rljob_planner.api.spec import RLJobSpec
from rljob_planner.documents import parse_documents
from rljob_planner.job import Job
from rljob_planner.outcome import Candidate, Evaluation, Plan
from rljob_planner.placement import default_rooms
from rljob_planner.pools import rooms_for
from rljob_planner.report import effects
from rljob_planner.search import plan
from rljob_planner.split import Split

DIRECTORY = ROOT / "crds" / "samples"

_EQUAL = 0.05
"""Share of the period by which two splits may differ and still be called equally good: the operator's own default for a move."""


@dataclass(frozen=True)
class Sample:
    """A sample job with its plan."""

    name: str
    spec: RLJobSpec
    job: Job
    plan: Plan

    @property
    def best(self) -> Evaluation:
        """The split that is argued for."""
        return self.plan.evaluation

    @property
    def fewer(self) -> Candidate | None:
        """The neighbour with a trainer fewer."""
        return self._neighbour(-1)

    @property
    def more(self) -> Candidate | None:
        """The neighbour with a trainer more."""
        return self._neighbour(1)

    def _neighbour(self, change: int) -> Candidate | None:
        wanted = self.plan.split.trainers.replicas + change
        return next((n for n in self.plan.neighbours if n.split.trainers.replicas == wanted), None)

    def loss(self, candidate: Candidate | None) -> float:
        """Share by which a candidate's period is longer than the best; infinite where it is not possible."""
        if candidate is None or candidate.period_s is None or not candidate.feasible:
            return float("inf")
        return candidate.period_s / self.plan.period.mean - 1.0

    def other_width(self) -> Candidate | None:
        """The best candidate with as many trainers and samplers of another width."""
        own = self.plan.split
        others = [
            c
            for c in self.plan.candidates
            if c.feasible
            and c.period_s is not None
            and c.split.trainers.replicas == own.trainers.replicas
            and c.split.samplers.gpus_per_replica != own.samplers.gpus_per_replica
        ]
        return min(others, key=lambda c: c.period_s or 0.0, default=None)


@cache
def samples() -> tuple[Sample, ...]:
    """All sample jobs, by name of their file."""
    found = []
    for path in sorted(DIRECTORY.glob("*.yaml")):
        spec = read_job(parse_documents(path.read_text(encoding="utf-8"), path.name)[0]).spec
        rooms = rooms_for(spec)
        found.append(Sample(path.stem, spec, Job.of(spec, rooms), plan(spec, rooms)))
    return tuple(found)


def section(sample: Sample) -> str:
    """What the planner answers for a sample, and the argument for it."""
    if sample.name not in ARGUMENTS:
        raise LookupError(
            f"crds/samples/{sample.name}.yaml has no argument for its plan: write one in dev/docs/samples.py"
        )
    argument = ARGUMENTS[sample.name](sample)
    return f"""### {sample.name}

{_job(sample)}

{_facts(sample)}

{argument}

{_changes(sample)}"""


def _job(s: Sample) -> str:
    work, staleness = s.spec.workload, s.spec.staleness
    return (
        f"[{s.name}.yaml](../crds/samples/{s.name}.yaml): {s.spec.gpus} {s.job.accelerators.sampler.name}, "
        f"{s.job.model.name if s.spec.model.name else 'a dense model given by its config.json'}, {work.prompts_per_step} × {work.samples_per_prompt} samples a step with a mean of "
        f"{number(s.job.lengths.mean(), 2)} tokens and at most {s.job.lengths.cap_tokens:,} (M = {number(s.job.lengths.tail_multiplier(s.job.group), 2)}), "
        f"staleness at most {staleness.max} under `{staleness.bound.value}`."
    )


def name_of(split: Split) -> str:
    """A split as samplers + trainers, replicas × GPUs."""
    s, t = split.samplers, split.trainers
    return f"{s.replicas}×{s.gpus_per_replica} + {t.replicas}×{t.gpus_per_replica}"


def _facts(s: Sample) -> str:
    p, e = s.plan, s.best
    rows = [
        (
            "**" + name_of(p.split) + "**",
            f"**{number(p.period.mean, 3)} s**",
            f"trainer busy {percent(e.trainer_utilization)}, staleness {number(p.staleness.mean, 2)}",
        ),
    ]
    for what, candidate in (
        ("a trainer fewer", s.fewer),
        ("a trainer more", s.more),
        ("samplers of another width", s.other_width()),
    ):
        if candidate is None:
            rows.append((what, "", "not possible"))
        elif candidate.period_s is None or not candidate.feasible:
            rows.append((f"{what}: {name_of(candidate.split)}", "", candidate.reason))
        else:
            rows.append(
                (
                    f"{what}: {name_of(candidate.split)}",
                    f"{number(candidate.period_s, 3)} s",
                    _longer(s.loss(candidate)),
                )
            )
    if p.synchronous_period is not None:
        rows.append(
            ("synchronous", f"{number(p.synchronous_period, 3)} s", f"{number(p.speedup or 0.0, 2)} times as long")
        )
    return table(("samplers + trainers, replicas × GPUs", "period", ""), rows)


def _longer(loss: float) -> str:
    return "as fast" if abs(loss) < 0.005 else f"{percent(loss)} longer"


def _changes(s: Sample) -> str:
    p = s.plan
    helps = [] if p.elasticity is None else effects(p.elasticity)
    most = f"What helps most: {helps[0][0]} ({percent(helps[0][1], 1)})." if helps else ""
    moved = [point for point in p.length_sweep if point.split.trainers.replicas != p.split.trainers.replicas]
    where = (
        "At lengths ×0.5 to ×8 it stays the best number of trainers."
        if not moved
        else "The number of trainers changes at "
        + " and ".join(f"lengths ×{point.factor:g} ({name_of(point.split)})" for point in moved)
        + "."
    )
    hours = p.run_time.p50 / 3600.0
    cost = "" if p.cost is None else f", about ${number(p.cost, 2)}"
    return f"**What would change it.** {where} {most} The run takes {number(p.run_time.p10 / 3600.0, 2)} to {number(p.run_time.p90 / 3600.0, 2)} h (p10 to p90, median {number(hours, 2)} h){cost}."


def _against(s: Sample, candidate: Candidate | None, what: str, binds: str) -> str:
    """How a neighbour compares, and what binds it."""
    loss = s.loss(candidate)
    if candidate is None:
        return f"{what} is not possible."
    if loss == float("inf"):
        return f"{what} breaks a limit: {candidate.reason}."
    if loss < _EQUAL:
        gain = (s.spec.rebalance.min_gain or "1%").replace("%", " %")
        return f"{what} is within {percent(max(loss, 0.0), 1)}, less than the {gain} that a move has to gain: either is a good answer."
    return f"{what} takes {percent(loss)} longer: {binds}."


def _math_short(s: Sample) -> str:
    require(
        len({c.split.trainers.replicas for c in s.plan.candidates}) == 3,
        "math-short: there are three numbers of trainers",
    )
    other_width = _against(
        s,
        s.other_width(),
        "The other width of samplers",
        "narrow engines make more tokens in all, wide ones finish a sample sooner",
    )
    open_for = s.best.mean_in_flight * s.job.lengths.tail_multiplier(s.job.group) / s.job.batch
    looser = s.spec.staleness.model_copy(update={"max": 2 * s.spec.staleness.max})
    other = plan(s.spec.model_copy(update={"staleness": looser}), default_rooms(s.spec.gpus), detail=False)
    require(other.period.mean < s.plan.period.mean, "math-short: a looser limit is faster")
    return f"""**Why.** Trainers come in fours, so there are three numbers of them to choose from. {_against(s, s.fewer, "A trainer fewer", "training binds")} {_against(s, s.more, "A trainer more", "too few GPUs are left to generate")} {other_width}
What binds is the limit of {s.spec.staleness.max} versions. A group stays open for about C·M/B = {number(open_for, 2)} periods, since its longest answer may have {s.job.lengths.cap_tokens:,} tokens; admission lets no more groups start meanwhile, and the trainer is busy {percent(s.best.trainer_utilization)} of the time. With a limit of {looser.max} the step would take {number(other.period.mean, 3)} s."""


def _qwen3_30b_a3b(s: Sample) -> str:
    require(s.plan.split.samplers.gpus >= 40, "qwen3-30b-a3b: most GPUs sample")
    active = s.job.model.active_parameters / 1e9
    one = s.fewer.split.trainers if s.fewer is not None else s.plan.split.trainers
    step_s = s.job.train_cost(one, 1.0).step_s(s.job.batch, s.job.prompt_tokens, s.job.lengths)
    return f"""**Why.** A mixture of experts trains like a model of {number(active, 2)}B and decodes more like one of 30B, since a batch visits nearly all experts and their weights are read. So decoding is the expensive side, and {percent(s.plan.split.samplers.gpus / s.spec.gpus)} of the GPUs belong to it. {_against(s, s.fewer, "A trainer fewer", f"its step alone takes {number(step_s, 2)} s")} {_against(s, s.more, "A trainer more", "its GPUs are missed by the samplers")}
Samplers are two GPUs wide because the file says so: 61 GB of weights would leave little KV cache on one. Weight sync counts here ({number(s.job.weight_sync_s, 2)} s per version): all 30B travel, though only {number(active, 2)}B work per token."""


def _long_reasoning(s: Sample) -> str:
    require(s.spec.staleness.bound.value == "drop", "long-reasoning drops what is too old")
    share = float(s.job.lengths.survival(np.array([32768.0]))[0])
    wasted = percent(s.best.wasted_fraction)
    if s.best.wasted_fraction < 0.01:
        waste = (
            f"Next to nothing is thrown away: with {s.plan.split.in_flight} samples in flight, about {number(s.plan.split.in_flight / s.job.batch, 2)} "
            "batches, even the longest answers get through"
        )
    elif s.plan.bottleneck == "trainers":
        waste = f"{wasted} of the generated tokens are thrown away: samplers outrun the trainer, and what it cannot take grows too old or is pushed out of the full queue"
    else:
        waste = f"{wasted} of the generated tokens are thrown away, since long answers take too many versions; with fewer samples in flight it would be less, and the trainer would wait for longer"
    return f"""**Why.** One answer in {round(1.0 / share)} is longer than 32k tokens, and a group of {s.job.group} waits for its longest. Under `drop` a group has {s.spec.staleness.max} versions to get through. {waste}.
{_against(s, s.more, "A trainer more", "samplers bind, and what they make is older when it is done")} {_against(s, s.fewer, "A trainer fewer", "32B dense parameters with full recomputation and two extra forward passes are heavy to train, and then training binds")} {_against(s, s.other_width(), "The next best width of samplers", "wider ones finish a long answer sooner, narrower ones make more tokens in all, and here the sum is worse")}"""


def _recommend_only(s: Sample) -> str:
    require(s.spec.staleness.bound.value == "hold", "recommend-only holds")
    require(s.plan.split.in_flight < s.job.batch, "recommend-only keeps less than a batch in flight")
    return f"""**Why.** Under `hold` the trainer may not publish while that would make a running sample staler than {s.spec.staleness.max} versions. More in flight does not help then: the more samples run, the longer the longest of them, and publication waits for it. So the plan keeps {s.plan.split.in_flight} samples in flight, fewer than the {s.job.batch} of a step, on {s.plan.split.samplers.gpus} GPUs ({s.plan.split.samplers.replicas} engines of {s.plan.split.samplers.gpus_per_replica}), where the way of a sample is short.
{_against(s, s.fewer, "A trainer fewer", "training binds")} {_against(s, s.more, "A trainer more", "generation binds")}"""


def _agentic_sandboxes(s: Sample) -> str:
    work, found = s.spec.workload, s.plan.sandboxes
    environment = work.environment
    require(environment is not None and found is not None and found.wait < 0.1, "agentic-sandboxes: sandboxes suffice")
    assert environment is not None
    assert found is not None
    away_s = (environment.turns - 1) * environment.seconds_per_turn
    little = work.samples_per_step * away_s / s.plan.period.mean
    require(abs(little - found.needed) < 0.05 * little, "agentic-sandboxes: Little's law gives the sandboxes")
    return (
        f"**Why this is right.** A sample is in its environment for {number(away_s, 2)} s of its life, in which it holds no decode slot. "
        f"By Little's law {work.samples_per_step} samples in {number(s.plan.period.mean, 3)} s keep {number(little, 2)} environments "
        f"busy, far fewer than the {found.limit} that the fleet may run, so that no sample waits for one. "
        f"{_against(s, s.fewer, 'A trainer fewer', 'the trainer')} {_against(s, s.more, 'A trainer more', 'samplers')}"
    )


def _two_pools(s: Sample) -> str:
    pools = {pool.name: pool.replicas for pool in s.plan.split.samplers.pools or ()}
    near, spot = (s.job.of_pool(name).accelerators.sampler.name for name in ("near", "spot"))
    require(pools["near"] == 16, "two-pools: the faster pool is full")
    return (
        f"**Why this is right.** A GPU of the pool near ({near}) makes more tokens than one of the pool spot ({spot}), so near is filled first, up to "
        f"its `maxGPUs` of 16; {pools['spot']} samplers are left for spot. "
        f"{_against(s, s.fewer, 'A trainer fewer', 'the GPU that it gives up becomes samplers on spot')} "
        f"{_against(s, s.more, 'A trainer more', 'it costs samplers')}"
    )


def _adopt_existing(s: Sample) -> str:
    require(s.spec.adopts, "adopt-existing has no templates of its own")
    return (
        "**Why this is right.** Without a cluster the workloads that run already are not known, so the planner is free in the shape of both sides; beside a "
        "cluster it keeps the shape of their pods, and says what another number of them would gain. "
        f"{_against(s, s.fewer, 'A trainer fewer', 'training binds')} {_against(s, s.more, 'A trainer more', 'too few GPUs are left to generate')}"
    )


ARGUMENTS: dict[str, Callable[[Sample], str]] = {
    "math-short": _math_short,
    "qwen3-30b-a3b": _qwen3_30b_a3b,
    "long-reasoning": _long_reasoning,
    "recommend-only": _recommend_only,
    "agentic-sandboxes": _agentic_sandboxes,
    "two-pools": _two_pools,
    "adopt-existing": _adopt_existing,
}
"""The argument of each sample by the name of its file."""
