"""docs/first-principles.md: why a split, and how one finds it, worked through on one job by the simulator itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from dev.docs import activity, example, figures, figures_activity, tradeoffs
from dev.docs.page import figure, number, page, percent, require, table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FIGURES: dict[str, Callable[[], Figure]] = {
    "two-fleets": figures_activity.two_fleets,
    "synchronous-step": figures_activity.synchronous_step,
    "gpu-activity": figures_activity.gpu_activity,
    "stale-tokens": figures_activity.stale_tokens,
    "staleness-limit": figures.staleness_limit,
    "decode-step": figures.decode_step,
    "split-sweep": figures.split_sweep,
    "length-shift": figures.length_shift,
    "speed-up": figures.speedup,
    "targets": figures.targets,
    "formulas": figures.formulas,
}
"""Figures of the page by the name of their file in docs/img."""


def text() -> str:
    """The page."""
    return page(
        _beginning(),
        _why_a_split(),
        _synchronous_step(),
        _activity(),
        _limits(),
        _decode_step(),
        _split(),
        _lengths(),
        _speedup(),
        _targets(),
        _formulas(),
    )


def _beginning() -> str:
    job, spec = example.job(), example.spec()
    work = spec.workload
    best = example.best().split
    step_s = job.train_cost(best.trainers, 1.0).step_s(job.batch, job.prompt_tokens, job.lengths)
    rows = [
        ("GPUs", f"{spec.gpus} × {job.accelerators.sampler.name}", "stated"),
        ("model", job.model.name, "stated"),
        ("a step", f"{work.prompts_per_step} prompts × {work.samples_per_prompt} samples = {job.batch:,}", "stated"),
        ("prompt", f"{job.prompt_tokens} tokens", "stated"),
        (
            "responses",
            f"median {job.lengths.quantile(0.5):,}, 1 in 100 over {job.lengths.quantile(0.99):,}, 1 in 1000 over "
            f"{job.lengths.quantile(0.999):,}, at most {job.lengths.cap_tokens:,}; mean {number(job.lengths.mean(), 3)}",
            "stated",
        ),
        (
            "staleness limit",
            f"{spec.staleness.max} versions, bound `{spec.staleness.bound.value}`",
            "stated",
        ),
        (
            f"a decode step with {activity.full_batch()} samples on a GPU",
            f"{number(1e3 * tradeoffs.decode_step().at(activity.full_batch()), 2)} ms",
            "modelled (§5)",
        ),
        (f"a training step on {best.trainers.gpus} GPUs", f"{number(step_s, 2)} s", "modelled"),
        ("weights reach the samplers in", f"{number(job.weight_sync_s, 2)} s", "modelled"),
    ]
    return f"""# From first principles

Why a reinforcement-learning job for an LLM wants two fleets of GPUs, what goes wrong between them, and how a simulation finds the split.
You need to know what a policy update is; you need not know this code.

One job goes through the whole page. It is [first-principles.yaml](first-principles.yaml), and every number and figure below was
computed from it by the planner's own simulator in the run that wrote this page. Nothing was measured on this job; §10 says how far to trust it.

{table(("input", "value", ""), rows)}

The step is the one that Applied Compute showed in [their talk](https://www.youtube.com/watch?v=o15AaYl7Wu0) on this subject:
a Qwen model of 30B, 40 arithmetic problems × 32 samples, of which 99 % were done after about 40 s while the last 1 % took 80 s more.
The ideas of this page are theirs, too. Their GPU count and lengths are not public, so we take a smaller model, and lengths that give the same
curve on our GPUs. Nothing else was chosen to match anything.

A few words, used everywhere in this project: a **sample** is one response to one prompt. A **group** is a prompt with all its samples. A **step** is one
optimizer step of the trainer; it consumes a batch of complete groups and publishes the next **policy version**. The **period** is the wall time
between two versions. The **staleness** of a sample is the trainer's version when a step takes it, less the version that generated its first token."""


def _why_a_split() -> str:
    d, n = tradeoffs.decode_step(), activity.full_batch()
    return f"""## 1. Why a split at all

{figure("two-fleets", "Figure 1: the loop", "Samplers turn prompts into samples, complete groups queue, the trainer consumes a batch and hands new weights back.")}

Generating and training are different work on the same weights.

- A **sampler** makes one token per running sample and decode step. For that it reads all weights and all cached keys and values from memory. With
  {n} running samples a step takes {number(1e3 * d.at(n), 2)} ms; its arithmetic alone would take {number(1e3 * float(d.compute_s[n - 1]), 2)} ms. Memory and overheads set the pace.
- A **trainer** sees whole sequences at once. Every weight that it reads is used for thousands of tokens, so arithmetic sets the pace.

The two want different engines (vLLM here, FSDP or Megatron there), different parallelism and different batch sizes. You can still give both the same GPUs and let them take turns.
That is the **synchronous** mode, and §2 and §3 show its price. Or you divide the GPUs: some only sample, some only train. Now both work at once, and a new question appears:
**how many of each?** Too many samplers, and groups queue up and grow stale. Too many trainers, and they starve. The answer depends on the model, the GPUs and
the lengths, and lengths change during the run."""


def _synchronous_step() -> str:
    step = activity.synchronous_step()
    n = example.job().batch
    third = step.most_s / step.all_s
    require(0.27 < third < 0.4, "99 % of the synchronous batch is done in about a third of its time")
    return f"""## 2. The synchronous step, and its tail

{figure("synchronous-step", "Figure 2: one synchronous step", "Left: how long responses get. Right: how many of the step's samples still run. All GPUs sample, and then all of them wait for a handful of samples.")}

All {example.spec().gpus} GPUs sample the {n:,} responses. Only then can all of them train, since a step needs its whole batch. Over {activity.STEPS_RECORDED} simulated steps,

- half of the samples are done after {number(step.half_s, 2)} s,
- 99 % after {number(step.most_s, 2)} s,
- the last one after {number(step.all_s, 3)} s.

So 99 % finish in a third of the time ({percent(third)}), and the other two thirds go to the last {n // 100} samples. This is no accident of one step. The time of a batch is that of its **longest** response, and among {n:,} draws there is nearly
always one from the far end of the distribution: the mean length is {number(example.job().lengths.mean(), 2)} tokens, the mean of the longest of {n:,} is {number(example.job().lengths.max_mean(n), 2)}. More GPUs don't help: the last sample makes one token a step, whoever is idle beside it."""


def _activity() -> str:
    found = [activity.shares(mode) for mode in (activity.SYNC, activity.ONE_STEP_OFF, activity.ASYNC)]
    names = {activity.SYNC: "synchronous", activity.ONE_STEP_OFF: "one step off", activity.ASYNC: "asynchronous"}
    rows = [
        (
            names[s.mode],
            f"{number(s.period_s, 3)} s",
            percent(s.sampling),
            percent(s.slacking),
            percent(s.waiting),
            percent(s.training),
            percent(s.loading),
        )
        for s in found
    ]
    sync, _, free = found
    ages = activity.ages()
    d = tradeoffs.decode_step()
    few, full = activity.slack_samples(), activity.full_batch()
    split = example.best().split
    require(
        free.wasted < 0.1 and sync.wasted > 0.5,
        "the asynchronous run leaves next to nothing idle, the synchronous most",
    )
    require(found[1].period_s > 0.75 * sync.period_s, "one step off hardly helps here")
    return f"""## 3. What the GPUs do meanwhile

{figure("gpu-activity", "Figure 3: what each GPU does", "A row is a GPU, dashed lines are published versions. Hatched is slack, white is idle: in the first two modes that is most of the picture, in the last one next to nothing.")}

A GPU that runs a few samples is busy by every dashboard, and nearly useless. A decode step with {few} running samples takes {number(1e3 * d.at(few), 2)} ms, one with {full} takes {number(1e3 * d.at(full), 2)} ms: {percent(d.at(few) / d.at(full))} of the time for {percent(few / full)} of the tokens.
So we count a GPU with fewer than {few} running samples as **slacking**.

{table(("mode", "period", "samples", "slacks", "idle", "trains", "loads weights"), rows)}

- **Synchronous.** {percent(sync.wasted)} of all GPU time is slack or idle.
- **One step off.** The GPUs are divided ({example.label(split)}: sampler GPUs first). While the trainer works on one batch, the samplers generate the next, and at the end of both they swap. Training is hidden now, but each batch still waits for its own longest
  response, now on fewer GPUs. With a tail like this one it hardly helps.
- **Asynchronous**, also called pipeline RL. Nobody waits for a batch. A slot whose sample ends takes the next sample at once; complete groups go into a queue; the trainer takes the oldest {example.spec().workload.prompts_per_step}. When a
  version is published, every sampler loads it *in flight*: it pauses, swaps weights, and goes on with the samples that it was generating. The long responses are still long, but now others run beside them.

The price is staleness.

{figure("stale-tokens", "Figure 4: samples grow stale", "Left: bars are samples in the slots of one GPU; dashed lines are versions, and a bar darkens with every version that passes while it runs. Right: where the staleness of trained samples comes from.")}

A sample that is caught by a new version goes on under new weights: {percent(ages.older_tokens)} of all tokens here are generated by a version newer than the one that began their sample. But most of the age of a sample comes later. Of the mean of
{number(ages.decoding + ages.group + ages.queue, 2)} versions, {number(ages.decoding, 2)} pass while it decodes, {number(ages.group, 2)} while it waits for the **longest sample of its group**, and {number(ages.queue, 2)} in the queue. The tail has not gone away: it was time lost, and it is staleness now. That is
why one number about lengths counts most, the group tail multiplier M: mean of the longest in a group over the mean length, here {number(example.job().lengths.tail_multiplier(example.job().group), 2)}."""


def _limits() -> str:
    found = tradeoffs.limits()
    drops = tradeoffs.limits("drop")
    mean = example.job().lengths.mean()
    rows = [
        (
            str(one.limit),
            f"{number(one.result.period.mean, 3)} s",
            percent(1.0 - one.result.trainer_utilization),
            number(one.running_per_gpu, 2),
            number(one.result.staleness.mean, 2),
            str(one.result.staleness.max),
            f"{one.ratio_variance:.2f}",
            "" if one.best is None else f"{example.label(one.best.split)}: {number(one.best.period.mean, 3)} s",
        )
        for one in found
    ]
    drop_rows = [
        (
            str(one.limit),
            f"{number(one.result.period.mean, 3)} s",
            percent(tradeoffs.wasted(one.result)),
            number(one.result.staleness.mean, 2),
            str(one.result.staleness.max),
            number(one.result.trained_mean_length, 3),
        )
        for one in drops
    ]
    by = {one.limit: one for one in found}
    require(
        by[1].result.period.mean > 1.5 * by[4].result.period.mean
        and by[8].result.period.mean > 0.95 * by[4].result.period.mean,
        "the limit buys speed up to 4, and nothing beyond",
    )
    require(
        drops[0].result.trained_mean_length < 0.95 * mean < drops[-1].result.trained_mean_length,
        "a tight drop biases lengths, a loose one hardly",
    )
    return f"""## 4. The staleness limit: speed against variance

{figure("staleness-limit", "Figure 5: what a staleness limit costs and buys", "Up to 4, every version of allowance is idle time that becomes work. Beyond, it buys nothing, and the variance goes on growing.")}

Off-policy samples are corrected by importance ratios, and the variance of a ratio grows with the distance between the two policies. If one version adds σ² to the variance of the log ratio,
a sample that is *s* versions stale has a ratio of variance e^(σ²·s) − 1. We assume σ² = {tradeoffs.RATIO_VARIANCE} (yours will differ: measure it) and average over the staleness of what was trained.

So a method has a limit, and a framework a rule to keep to it. Under **admission** a group may start only while fewer than (version + limit + 1) batches were started in all. Nothing is ever
thrown away. If samplers run into that limit they idle, and then so does the trainer. The split {example.label(found[0].split)} under other limits, and what the best split would be:

{table(("limit", "period", "trainer idle", "running per sampler GPU", "mean staleness", "max", "ratio variance", "best split"), rows)}

- At 0 the job is synchronous, with the GPUs divided: the worst of both.
- From 1 to 2 to {found[3].limit} the period falls from {number(by[1].result.period.mean, 2)} to {number(by[2].result.period.mean, 2)} to {number(by[4].result.period.mean, 2)} s, because a larger batch is in the air and the trainer waits less.
- At 8 the trainer has nothing left to win: it never waited at 4. Staleness doubles for nothing. **A limit is a budget, not a goal.**
- The mean sits exactly at the limit. That is no accident: admission keeps (limit + 1) batches started and not yet trained, one leaves with each step, so each stays for limit + 1 periods (Little's law).
- The best split moves with the limit, too. A tight limit starves the trainer, so some of its GPUs are better used elsewhere.
- Admission bounds the mean and not each sample. A group that started in time may have one response that takes very long; the column *max* shows it.

The other way is to start everything and **drop** what got too old before it is trained:

{table(("limit", "period", "tokens wasted", "mean staleness", "max", "trained mean length"), drop_rows)}

No trained sample is over the limit now. But tokens are thrown away ({percent(tradeoffs.wasted(drops[0].result))} at limit 1), and not just any tokens: the groups that get too old are those with long responses. The mean length trained at limit 1 is {number(drops[0].result.trained_mean_length, 3)} instead of {number(mean, 3)}
({percent(drops[0].result.trained_mean_length / mean - 1.0)}). What is trained is shorter than what the policy says: long answers are punished for being late."""


def _decode_step() -> str:
    d = tradeoffs.decode_step()
    job = example.job()
    gpu = job.accelerators.sampler
    e = gpu.decode
    rooms = {f: tradeoffs.decode_step(f).room for f in tradeoffs.FACTORS}
    many, full = 256, activity.full_batch()
    return f"""## 5. The decode step: why the number of running samples matters

{figure("decode-step", "Figure 6: a decode step", "Left: most of a step with few samples is paid whether few or many run. Right: so tokens per second rise steeply at first, and flatten when each further sample costs its full share. Red: how many samples of mean context fit in the KV cache.")}

What samplers deliver is *b*/τ(*b*): running samples over the time of one step. The model of τ is a roofline with the overheads that a bare roofline forgets:

> τ(b) = max( (weights + KV·b·c) / (MBU·bandwidth), arithmetic / (MFU·peak) ) + layers·c_layer + c_step + b·c_req + all-reduce

with c the mean context of a running sample. For {gpu.name}: MBU {e.mbu:g}, MFU {e.mfu:g}, c_layer {number(1e6 * e.layer_s, 3)} µs, c_step {number(1e3 * e.step_s, 3)} ms, c_req {number(1e6 * e.request_s, 3)} µs, fitted to published vLLM runs and kept with their
source in [hardware.yaml](../planner/rljob_planner/data/hardware.yaml). The context is not mean length / 2: a long response is seen running for longer, so the mean of what is resident is E[L²]/(2·E[L]), here {number(d.context_tokens, 3)} tokens with the prompt.

| running samples | 1 | {full} | {many} |
|:--|--:|--:|--:|
| a step | {number(1e3 * d.at(1), 2)} ms | {number(1e3 * d.at(full), 2)} ms | {number(1e3 * d.at(many), 2)} ms |
| tokens a second | {number(1 / d.at(1), 2)} | {number(full / d.at(full), 2)} | {number(many / d.at(many), 2)} |

{many} samples instead of one make a step {number(d.at(many) / d.at(1), 2)} times as long and the GPU {number(many * d.at(1) / d.at(many), 2)} times as productive. That is the case for few samplers with many samples each. Three things stop it: the in-flight cap (more in flight is more staleness), the engine's slots, and **KV room**. A GPU holds about
{number(rooms[1.0], 2)} samples of this job at once; with responses 8 times as long only {number(rooms[8.0], 2)}, and then samplers get slower exactly when they have more to do."""


def _split() -> str:
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


def _lengths() -> str:
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

Policies learn to think longer. Training costs per token, and a little more for attention over long sequences. Sampling costs per token, and each token costs more: longer contexts take longer to read, and fewer of them fit in the KV cache (§5).
So sampling grows faster, and the best split moves towards samplers.

{table(("lengths", "mean tokens", "best split", "its period", f"staying at {example.label(own.best.split)}", "costs"), rows)}

(All lengths are multiplied, the longest possible one too; one simulation for each split, with the cap that the formulas choose.) Whoever chooses {example.label(own.best.split)} on the first day and keeps it pays {percent(kept.period_s / last.best.period_s - 1.0)} more for every step once responses are 8 times as long. That is why the operator watches lengths
and moves GPUs, and why it moves them rarely: a move costs minutes, and the curves are flat near their minimum."""


def _speedup() -> str:
    points = tradeoffs.tail_points()
    best = example.best()
    one = tradeoffs.one_node_plan()
    job = tradeoffs.one_node_job()
    rows = [
        (
            f"{p.cv:g}",
            number(p.lengths.max_mean(example.job().batch) / p.lengths.mean(), 2),
            f"{number(p.plan.synchronous_period or 0.0, 3)} s",
            f"{example.label(p.plan.split)}: {number(p.plan.period.mean, 3)} s",
            f"{number(p.plan.speedup or 0.0, 2)}×",
        )
        for p in points
    ]
    near = min(points, key=lambda p: abs((p.plan.speedup or 0.0) - 1.6))
    require((points[0].plan.speedup or 9.0) < 1.35, "without a tail there is little to gain")
    require(one.mode == "sync" and (one.speedup or 1.0) < 0.9, "the one-node job is better left synchronous")
    return f"""## 8. How much is it worth, and when is it not

{figure("speed-up", "Figure 9: the gain is the tail", "The same mean length with more and more spread. The synchronous step waits for the longest of the batch, the asynchronous one does not. The cross is a job that should stay synchronous.")}

For the job of this page: {number(best.synchronous_period or 0.0, 3)} s a step synchronously, {number(best.period.mean, 3)} s with {example.label(best.split)}, {number(best.speedup or 0.0, 2)} times as fast. Don't remember that number; remember what it is made of. Here is the same job with lengths
of the same mean and another spread (log-normal, cut at {example.job().lengths.cap_tokens:,}):

{table(("spread", "longest of the batch / mean", "synchronous", "best asynchronous split", "speed-up"), rows)}

Where all responses are equally long, dividing the GPUs by itself buys little ({number(points[0].plan.speedup or 0.0, 2)}×): the fleets overlap, and fuller batches make better use of the samplers. The rest is the tail. The talk reports "about 60 %" in simulation; a spread of about {near.cv:g} gives {number(near.plan.speedup or 0.0, 2)}× here.
We did not look for the inputs that give 1.6, and the talk's are not public: its number and ours are of one kind, not one number.

And sometimes the answer is no. One node of {job.gpus} GPUs, trainers of {job.trainer.gpus_per_replica}, prompts of {job.workload.prompt_tokens.mean:,} tokens and short, even answers of {number(job.workload.response_tokens.mean or 0.0, 2)}: nearly all the work is training, there is no tail, and the only split there is takes half of the trainer's GPUs away. The
best asynchronous split takes {number(one.period.mean, 3)} s a step, staying synchronous {number(one.synchronous_period or 0.0, 3)} s. `rljob plan` then says `mode: sync`, and both periods."""


def _targets() -> str:
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


def _formulas() -> str:
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
- **The formula is wrong near ρ = 1.** There the queue is now empty and now full, and a formula knows only one of them: it is off by {number(abs(near.formula_staleness - near.staleness), 1)} versions at ρ = {near.rho:g} with a queue of {near.capacity}, and by {percent(abs(slowest.formula_period_s / slowest.period_s - 1.0))} in the period at ρ = {slowest.rho:g} with a queue of {slowest.capacity}.
  It also sees the jump too sharply: a queue of four batches is worth three versions of staleness more than a queue of one, gained or lost within a few percent of ρ.
- **The simulation is wrong wherever its inputs are.** It is exact in its own rules, and reality has more: engines that pause, routers that don't balance, noisy neighbours, frameworks that hold a lock. Decode and training speeds come from data sheets and public benchmarks until something is measured;
  [validation.md](validation.md) compares them with published measurements, misses included, and `rljob calibrate` replaces them with yours.
- **Both compare splits better than they predict times.** An error that makes everything 10 % slower moves no minimum.

## Where to read on

- [simulate.py](../planner/rljob_planner/simulate.py): the rules of the simulation. [_kernel.py](../planner/rljob_planner/_kernel.py) says why it may jump from one finish to the next and still be exact, [_loop.py](../planner/rljob_planner/_loop.py) holds trainer and loop.
- [closedform.py](../planner/rljob_planner/closedform.py): the formulas. [steptime.py](../planner/rljob_planner/steptime.py) and [training.py](../planner/rljob_planner/training.py): the two sides' speeds.
- [search.py](../planner/rljob_planner/search.py): how the best split is found, from screening to neighbours.
- [planner.md](planner.md): the whole model in formulas, and what it answers for the sample jobs. [validation.md](validation.md): how true it is."""
