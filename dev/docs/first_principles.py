"""docs/first-principles.md: why a split, and how one finds it, worked through on one job by the simulator itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from dev.docs import activity, example, figures, figures_activity, first_principles_split, tradeoffs
from dev.docs.page import figure, number, page, percent, require, table
from rljob_planner.outcome import RATIO_VARIANCE

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
        first_principles_split.split(),
        first_principles_split.lengths(),
        first_principles_split.speedup(),
        first_principles_split.targets(),
        first_principles_split.formulas(),
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
        (
            f"a training step on {best.trainers.gpus} GPUs",
            f"{number(step_s, 2)} s",
            f"MFU {percent(spec.trainer.mfu_fraction or 0.0)} stated",
        ),
        ("weights reach the samplers in", f"{number(job.weight_sync_s, 2)} s", "modelled"),
    ]
    return f"""# From first principles

Why a reinforcement-learning job for an LLM wants two fleets of GPUs, what goes wrong between them, and how a simulation finds the split.
You need to know what a policy update is; you need not know this code.

One job goes through the whole page. It is [first-principles.yaml](first-principles.yaml), and every number and figure below was
computed from it by the planner's own simulator in the run that wrote this page. Nothing was measured on this job. Engine and trainer run at the speed that they reach alone; `rljob plan` also counts what running RL systems lose around them, so its periods are longer. §10 says how far to trust either.

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
    own = example.best().split
    elsewhere = [one for one in found if one.best is not None and not one.best.split.same_shape(own)]
    moves = (
        f"- The best split can move with the limit, too: at {' and '.join(str(one.limit) for one in elsewhere)} it is another one than "
        f"{example.label(own)}. A tight limit starves the trainer, and some of its GPUs are better used elsewhere."
        if elsewhere
        else "- The best split is the same at every limit here. That need not be so: a tight limit starves the trainer, and some of its GPUs may be better used elsewhere."
    )
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
a sample that is *s* versions stale has a ratio of variance e^(σ²·s) − 1. We assume σ² = {RATIO_VARIANCE} (yours will differ: measure it) and average over the staleness of what was trained.

So a method has a limit, and a framework a rule to keep to it. Under **admission** a group may start only while fewer than (version + limit + 1) batches were started in all. Nothing is ever
thrown away. If samplers run into that limit they idle, and then so does the trainer. The split {example.label(found[0].split)} under other limits, and what the best split would be:

{table(("limit", "period", "trainer idle", "running per sampler GPU", "mean staleness", "max", "ratio variance", "best split"), rows)}

- At 0 the job is synchronous, with the GPUs divided: the worst of both.
- From 1 to 2 to {found[3].limit} the period falls from {number(by[1].result.period.mean, 2)} to {number(by[2].result.period.mean, 2)} to {number(by[4].result.period.mean, 2)} s, because a larger batch is in the air and the trainer waits less.
- At 8 the trainer has nothing left to win: it never waited at 4. Staleness doubles for nothing. **A limit is a budget, not a goal.**
- The mean sits exactly at the limit. That is no accident: admission keeps (limit + 1) batches started and not yet trained, one leaves with each step, so each stays for limit + 1 periods (Little's law).
{moves}
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

> τ(b) = max( weights / (MBU·bandwidth), 2·N·b / (MFU·peak) ) + KV·b·c / (MBU·bandwidth) + L·c_layer + c_step + b·c_sample + what moves between the products

with N parameters, L layers and c the mean context of a running sample. For {gpu.name}: MBU {number(e.mbu, 2)}, MFU {number(e.mfu, 2)}, c_layer {number(1e6 * e.layer_s, 2)} µs, c_step {number(1e3 * e.step_s, 2)} ms, c_sample {number(1e6 * (e.request_s + job.model.layers * gpu.kernels.sample_layer_s), 2)} µs, fitted to published vLLM runs and kept with their
source in [hardware.yaml](../planner/rljob_planner/data/hardware.yaml). The context is not mean length / 2: a long response is seen running for longer, so the mean of what is resident is E[L²]/(2·E[L]), here {number(d.context_tokens, 3)} tokens with the prompt.

| running samples | 1 | {full} | {many} |
|:--|--:|--:|--:|
| a step | {number(1e3 * d.at(1), 2)} ms | {number(1e3 * d.at(full), 2)} ms | {number(1e3 * d.at(many), 2)} ms |
| tokens a second | {number(1 / d.at(1), 2)} | {number(full / d.at(full), 2)} | {number(many / d.at(many), 2)} |

{many} samples instead of one make a step {number(d.at(many) / d.at(1), 2)} times as long and the GPU {number(many * d.at(1) / d.at(many), 2)} times as productive. That is the case for few samplers with many samples each. Three things stop it: the in-flight cap (more in flight is more staleness), the engine's slots, and **KV room**. A GPU holds about
{number(rooms[1.0], 2)} samples of this job at once; with responses 8 times as long only {number(rooms[8.0], 2)}, and then samplers get slower exactly when they have more to do."""
