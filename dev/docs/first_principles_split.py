"""The second half of docs/first-principles.md: finding the split, what it is worth, and how far to trust the answer."""

from __future__ import annotations

from dev.docs import activity, example, tradeoffs
from dev.docs.page import figure, number, percent, require, table
from rljob_planner.training import training_efficiency


def split() -> str:
    """§6: every split of the budget."""
    points = tradeoffs.splits()
    rows = [
        (
            example.label(p.split),
            number(p.free.rho, 2),
            f"{number(p.free.period.mean, 3)} s",
            percent(1.0 - p.free.trainer_utilization),
            f"+{number(p.queue_growth, 2)}" if p.queue_growth > 0 else "none",
            f"{number(p.limited.period.mean, 3)} s",
            number(p.limited.staleness.mean, 2),
        )
        for p in points
    ]
    best = min(points, key=lambda p: p.limited.period.mean)
    at = points.index(best)
    first, last = points[0], points[-1]
    require(
        first.free.rho > 1.5 and last.free.rho < 0.6,
        "the two ends of the sweep are a growing queue and a starved trainer",
    )
    return f"""## 6. The split

{figure("split-sweep", "Figure 7: every split of the budget", "Left: both ends are more than twice as slow as the best. Right: with too many samplers the queue grows for ever; near balance it empties and fills.")}

Let ρ be the rate at which samplers produce over the rate at which the trainer consumes, each at full load. The sweep goes through every split that holds the model (a trainer of 2 GPUs alone does not), first without any bound and with {best.split.in_flight} samples in flight, then under the job's own staleness limit with the cap that suits each:

{table(("sampler + trainer GPUs", "ρ", "period, no bound", "trainer idle", "queue per step, groups", f"period, limit {example.spec().staleness.max}", "staleness"), rows)}

- **ρ far below 1: the starved trainer.** With {example.label(last.split)} the trainer is idle {percent(1.0 - last.free.trainer_utilization)} of the time. Its GPUs are fast, and have nothing to do.
- **ρ far above 1: the growing queue.** With {example.label(first.split)} the trainer never waits, and it is alone: each step the queue grows by {number(first.queue_growth, 2)} groups more than a step takes. By the end of {example.STEPS} steps a sample is {number(first.free.staleness.mean, 2)} versions old on average. A bound
  stops the queue, by idling samplers; it does not give their GPUs to the trainer.
- **In between** the period has a minimum, at {example.label(best.split)} with ρ = {number(best.free.rho, 2)}.

Two things are easy to get wrong here. The minimum is not where both sides have the same number of GPUs, nor exactly where ρ = 1: near balance both sides wait for each other's fluctuations, now the one, now the other. And the split is a whole number of replicas. The neighbours
({_neighbour(points, at - 1)}{_neighbour(points, at + 1, "; ")}) are what one really chooses between; `rljob plan` always prints them."""


def _neighbour(points: tuple[tradeoffs.SplitPoint, ...], at: int, before: str = "") -> str:
    if not 0 <= at < len(points):
        return ""
    point = points[at]
    best = min(p.limited.period.mean for p in points)
    return f"{before}{example.label(point.split)}: {number(point.limited.period.mean, 3)} s, {percent(point.limited.period.mean / best - 1.0)} more"


def lengths() -> str:
    """§7: how the best split moves with lengths."""
    points = tradeoffs.length_points()
    own = next(p for p in points if p.factor == 1.0)
    rows = []
    for p in points:
        kept = next(e for e in p.splits if e.split.same_shape(own.best.split))
        rows.append(
            (
                f"×{p.factor:g}",
                number(p.lengths.mean(), 3),
                example.label(p.best.split),
                f"{number(p.best.period_s, 3)} s",
                f"{number(kept.period_s, 3)} s",
                f"+{percent(kept.period_s / p.best.period_s - 1.0)}" if kept is not p.best else "",
            )
        )
    samplers = [p.best.split.samplers.gpus for p in points]
    require(
        samplers == sorted(samplers) and samplers[0] < samplers[-1], "the best split moves to samplers as lengths grow"
    )
    last = points[-1]
    kept = next(e for e in last.splits if e.split.same_shape(own.best.split))
    return f"""## 7. Lengths grow, and the best split moves

{figure("length-shift", "Figure 8: the best split at other lengths", "Each curve is the sweep of the split at one length, relative to its own best (large dot). From short to long the best walks from trainers to samplers.")}

Policies learn to think longer. Training costs per token, with attention over long sequences on top. Sampling costs per token, and each token costs more: longer contexts take longer to read, and fewer of them fit in the KV cache (§5).
So sampling grows faster, and the best split moves towards samplers.

{table(("lengths", "mean tokens", "best split", "its period", f"staying at {example.label(own.best.split)}", "costs"), rows)}

(All lengths are multiplied, the longest possible one too; one simulation for each split, with the cap that the formulas choose.) Whoever chooses {example.label(own.best.split)} on the first day and keeps it pays {percent(kept.period_s / last.best.period_s - 1.0)} more for every step once responses are 8 times as long. That is why the operator watches lengths
and moves GPUs, and why it moves them rarely: a move costs minutes, and the curves are flat near their minimum."""


def speedup() -> str:
    """§8: asynchronous against synchronous."""
    points = tradeoffs.tail_points()
    best = example.best()
    sync_s = activity.shares(activity.SYNC).period_s
    one = tradeoffs.one_node_plan()
    job = tradeoffs.one_node_job()
    rows = [
        (
            f"{p.cv:g}",
            number(p.lengths.max_mean(example.job().batch) / p.lengths.mean(), 2),
            f"{number(p.synchronous_s, 3)} s",
            f"{example.label(p.plan.split)}: {number(p.plan.period.mean, 3)} s",
            f"{number(p.speedup, 2)}×",
        )
        for p in points
    ]
    near = min(points, key=lambda p: abs(p.speedup - 1.6))
    require(points[0].speedup < 0.5 * max(p.speedup for p in points), "most of the gain is the tail")
    require(one.mode == "sync" and (one.speedup or 1.0) < 0.9, "the one-node job is better left synchronous")
    return f"""## 8. How much is it worth, and when is it not

{figure("speed-up", "Figure 9: the gain is the tail", "The same mean length with more and more spread. The synchronous step waits for the longest of the batch, the asynchronous one does not. The cross is a job that should stay synchronous.")}

For the job of this page: {number(sync_s, 3)} s a step synchronously, {number(best.period.mean, 3)} s with {example.label(best.split)}, {number(sync_s / best.period.mean, 2)} times as fast. (Here GPUs change their role at no cost. In published runs a training step on GPUs that also hold an engine is {number(training_efficiency().colocated_slowdown, 2)} times as long; counted, as a plan does, the step takes {number(best.synchronous_period or 0.0, 3)} s.) Don't remember that number; remember what it is made of. Here is the same job with lengths
of the same mean and another spread (log-normal, cut at {example.job().lengths.cap_tokens:,}):

{table(("spread", "longest of the batch / mean", "synchronous", "best asynchronous split", "speed-up"), rows)}

Where all responses are equally long, dividing the GPUs by itself buys {number(points[0].speedup, 2)}×: weights load while the trainer goes on, and fuller batches make better use of the samplers. The rest is the tail. The talk reports "about 60 %" in simulation; a spread of about {near.cv:g} gives {number(near.speedup, 2)}× here.
We did not look for the inputs that give 1.6, and the talk's are not public: its number and ours are of one kind, not one number.

And sometimes the answer is no. One node of {job.gpus} GPUs, trainers of {job.trainer.gpus_per_replica}, prompts of {job.workload.prompt_tokens.mean:,} tokens and short, even answers of {number(job.workload.response_tokens.mean or 0.0, 2)}: nearly all the work is training, there is no tail, and the only split there is takes half of the trainer's GPUs away. The
best asynchronous split takes {number(one.period.mean, 3)} s a step, staying synchronous {number(one.synchronous_period or 0.0, 3)} s. `rljob plan` then says `mode: sync`, and both periods."""


def targets() -> str:
    """§9: what 10 % of what is worth."""
    found = tradeoffs.targets()
    best = example.best()
    rows = [
        (
            t.name,
            percent(t.saved, 1),
            f"{number(60.0 * t.hours, 2)} min",
            "" if t.dollars is None else f"${t.dollars:.2f}",
        )
        for t in found
    ]
    return f"""## 9. Performance targets

{figure("targets", "Figure 10: which 10 % is worth what", "The same effort is worth very different things, and what it is worth changes with the split.")}

Someone on the team can make decoding 10 % faster, someone else the training step, a third one the weight transfer. Which first? Nudge one input of the simulation by 10 % each way, keep the random numbers, and read the slope.
For the best split of this job, a run of {example.spec().workload.steps} steps ({number(best.run_time.p50 / 3600.0, 2)} h{"" if best.cost is None else f", ${number(best.cost, 3)}"}):

{table(("10 % better", "shorter period", "of the run", ""), rows)}

The two sides share the gain between them, since at a good split both are nearly the bottleneck. That also means that either alone soon stops paying: after one of them gets faster, the split should move, and then the other one counts. These slopes are the `elasticity` of `rljob plan -o json`, and they turn
"make it faster" into a target with a price."""


def formulas() -> str:
    """§10: formulas beside simulation, and where to read on."""
    points = tradeoffs.formula_points()
    near = max(points, key=lambda p: abs(p.formula_staleness - p.staleness))
    away = [p for p in points if not 0.85 <= p.rho <= 1.15]
    worst_away = max(abs(p.formula_staleness - p.staleness) for p in away)
    period_away = max(abs(p.formula_period_s / p.period_s - 1.0) for p in away)
    slowest = max(points, key=lambda p: abs(p.formula_period_s / p.period_s - 1.0))
    return f"""## 10. Formulas beside simulation, and where each is wrong

{figure("formulas", "Figure 11: two models of the same job", "Lines are formulas, dots are simulations that share no reasoning with them. Away from balance they agree; at balance, each queue shows where the formula ends.")}

There is a second model, in formulas, that takes a fraction of a millisecond. With C samples in flight, B samples in a step, q batches of room in the queue and M from §3,

> mean staleness = C·M / (B·max(1, ρ)) + (ρ if ρ < 1, else (2q + ρ − 1)/(2ρ))
>
> period ∝ (1/min(1, ρ)) · (1/c_T + ρ/c_R)

The first part is the way through the samplers, the second the queue (Applied Compute, [Predicting and controlling staleness](https://www.appliedcompute.com/research/staleness-in-fully-async-rl)). It screens candidates, and it checks the simulator: two models that agree without sharing code are hard to get wrong in the same way.

- Over ρ below 0.85 and above 1.15 they differ by at most {number(worst_away, 1)} versions in staleness and {percent(period_away, 1)} in the period.
- **The formula is wrong near ρ = 1.** There the queue is now empty and now full, and a formula knows only one of them: it is off by {number(abs(near.formula_staleness - near.staleness), 1)} versions at ρ = {near.rho:g} with a queue of {near.capacity} batches, and by {percent(abs(slowest.formula_period_s / slowest.period_s - 1.0))} in the period at ρ = {slowest.rho:g} with a queue of {slowest.capacity} {"batch" if slowest.capacity == 1 else "batches"}.
  It also sees the jump too sharply: a queue of four batches is worth three versions of staleness more than a queue of one, gained or lost within a few percent of ρ. (The jump lies a little above 1, since here ρ leaves out the time that samplers spend loading weights.)
- **The simulation is wrong wherever its inputs are.** It is exact in its own rules, and reality has more: engines that pause, routers that don't balance, noisy neighbours, frameworks that hold a lock. Decode and training speeds come from data sheets and public benchmarks until something is measured;
  [validation.md](validation.md) compares them with published measurements, misses included, and `rljob calibrate` replaces them with yours.
- **Both compare splits better than they predict times.** An error that makes everything 10 % slower moves no minimum.

## Where to read on

- [simulate.py](../planner/rljob_planner/simulate.py): the rules of the simulation. [_replica.py](../planner/rljob_planner/_replica.py) says why it may jump from one finish to the next and still be exact, [_loop.py](../planner/rljob_planner/_loop.py) holds the trainer and the loop.
- [closedform.py](../planner/rljob_planner/closedform.py) and [renewal.py](../planner/rljob_planner/renewal.py): the formulas, without and with a bound. [steptime.py](../planner/rljob_planner/steptime.py) and [training.py](../planner/rljob_planner/training.py): the two sides' speeds.
- [search.py](../planner/rljob_planner/search.py): how the best split is found; [race.py](../planner/rljob_planner/race.py) simulates what could win.
- [planner.md](planner.md): the whole model in formulas, and what it answers for the sample jobs. [validation.md](validation.md): how true it is."""
