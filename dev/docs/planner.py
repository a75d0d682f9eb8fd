"""docs/planner.md: the model in formulas with their sources, what it answers for the sample jobs and why, and its limits."""

from __future__ import annotations

from dev.docs import samples, tradeoffs
from dev.docs.example import ROOT
from dev.docs.page import number, page, percent, table
from rljob_planner.evaluation import SLICE_SAMPLES
from rljob_planner.hardware import gpu, memory_constants, routing_skew, training_constants
from rljob_planner.outcome import RATIO_VARIANCE
from rljob_planner.race import QUICK_MARGIN, SCREEN_MARGIN, UNSURE_MARGIN
from rljob_planner.search import UNCALIBRATED_ERROR
from rljob_planner.training import training_efficiency

GIB = 1024.0**3

MODULES = "../planner/rljob_planner"


def text() -> str:
    """The page."""
    return page(
        _beginning(),
        _decode(),
        _memory(),
        _training(),
        _asynchrony(),
        _closed_form(),
        _search(),
        "## What it answers for the sample jobs",
        """Each answer below is what `rljob plan` prints for the file today, with nothing measured. What is argued is checked when this page is written: a sentence that the
numbers no longer carry stops it.""",
        *(samples.section(sample) for sample in samples.samples()),
        _limits(),
    )


def _beginning() -> str:
    return f"""# The planner

From an `RLJob` to a split: what is computed, by which formula, from which source. The ideas behind it are in [first-principles.md](first-principles.md), its commands in [cli.md](cli.md), its truth
in [validation.md](validation.md).

1. Names become shapes: the model's layers and heads ([models.py]({MODULES}/models.py)), the GPU's data sheet and efficiencies ([hardware.py]({MODULES}/hardware.py)), the lengths a distribution
   ([lengths.py]({MODULES}/lengths.py)).
2. Each side gets a speed: a decode step ([steptime.py]({MODULES}/steptime.py)), a training step ([training.py]({MODULES}/training.py)), and what fits in memory ([memory.py]({MODULES}/memory.py)).
3. A simulation runs the two sides against each other ([simulate.py]({MODULES}/simulate.py)); formulas say the same in a millisecond ([closedform.py]({MODULES}/closedform.py)).
4. A search goes through the splits that fit on the nodes ([search.py]({MODULES}/search.py)), and looks around the best."""


def _decode() -> str:
    rows = []
    for name, whom in (
        ("h100-sxm-80gb", "Hopper"),
        ("b200-sxm-180gb", "Blackwell"),
        ("a100-sxm-80gb", "Ampere"),
        ("l40s", "others"),
    ):
        e, k = gpu(name).decode, gpu(name).kernels
        rows.append(
            (
                whom,
                number(e.mbu, 2),
                number(e.mfu, 2),
                f"{number(1e6 * e.layer_s, 2)} µs",
                f"{number(1e3 * e.step_s, 2)} ms",
                f"{number(1e6 * e.request_s, 2)} µs",
                f"{number(1e6 * k.sample_layer_s, 2)} µs",
                f"{number(1e6 * k.expert_layer_s, 2)} µs",
                number(k.activation_passes, 2),
                number(k.expert_mfu, 2),
            )
        )
    return f"""## A decode step

One forward pass of one sampler replica with b running samples of mean context c, and with p tokens of prompts that are prefilled along with them, T = b + p. On each GPU of its tensor-parallel group:

> t = Σ max( W/(MBU·BW), 2·N·T/(MFU·peak) ) over dense layers, experts and output head
>
> + KV·b·c/(MBU·BW) + attention of the prompts
>
> + 2·L·t_allreduce + passes·L·T·hidden·2/BW + L·(c_layer + c_expert) + c_step + b·(c_req + L·c_sample)

- **W**, the bytes of weights that are read, and **N**, the parameters that work per token. Each kind of product is bound by memory or by arithmetic on its own. Of a mixture of experts only those are read that some token visits, Σ 1 − (1 − pᵢ)^T in expectation, where the popularity p of an expert falls with the power {number(routing_skew(), 1)} of its rank.
- **KV**, the bytes of a token in the cache, from KV heads, or from the latent of MLA; layers with a sliding window hold at most the window.
- **Prefill**: each prompt once a group, since a prefix cache serves the others.
- **The last line** is what a roofline forgets: all-reduces, norms and residuals between the products, kernel launches per layer, routing in a layer with experts, scheduling and sampling per step and per sample. Without it a small model comes out nearly twice too fast.

{table(("", "MBU", "MFU", "c_layer", "c_step", "c_req", "c_sample", "c_expert", "passes", "MFU of experts"), rows)}

They stand with their sources in [hardware.yaml]({MODULES}/data/hardware.yaml), fitted to published vLLM curves over many models and widths at once, never to one case. `rljob calibrate` replaces them by those of your engine.
For a given b everything is linear in the resident tokens b·c. That is what lets the simulation jump over thousands of iterations without an error."""


def _memory() -> str:
    m = memory_constants()
    return f"""## KV room

> tokens = (memory·{m.utilization:g} − weights/TP − activation peak − non-torch) / KV bytes of a token, in whole blocks of {m.block_tokens}

The activation peak is {number(m.activation_bytes["dense"] / GIB, 2)} GiB for dense models and {number(m.activation_bytes["moe"] / GIB, 2)} GiB for mixtures of experts, as measured at 8192 batched tokens. Running samples are at most the engine's `max_num_seqs`, the in-flight cap, and what fits.
What a running sample holds on average is **not** half the mean length: a long response is seen running for longer, so the mean of what is generated and resident is E[L²]/(2·E[L]). A group's prompt is held once as long as its slowest sample runs. When the cache overflows,
the newest samples are preempted and recomputed later, as vLLM does it."""


def _training() -> str:
    t, e = training_constants(), training_efficiency()
    return f"""## A training step

> FLOPs = 6·N_active·T + 6·L·H·d·Σlen² (×8/6 with full recomputation) + (2·N_active·T + 2·L·H·d·Σlen²) for each extra forward pass
>
> time = ( FLOPs/(share·peak) + passes·T·L·hidden·t_element ) / GPUs · padding · pipeline bubble + optimizer + exposed communication

T are all tokens of the batch, prompts included; Σlen² is attention over whole sequences, causal. Extra passes are old log-probabilities and a reference model. Padding is the batch rounded up to whole samples per data-parallel rank; the bubble of a pipeline of depth p over m micro-batches is (p − 1)/m.
The optimizer reads and writes its state once from memory. Communication is what sticks out behind computation: gathering weights and scattering gradients over the slowest link.

Matrix kernels reach {percent(e.arithmetic_share)} of peak. What is not arithmetic (norms, activations, routing, copies) costs {number(1e9 * e.element_s, 3)} ns per token, layer and hidden unit on a GPU with {number(e.element_bytes_per_s / 1e12, 3)} TB/s: little in a large dense model, most of the step in a small mixture of experts. Both were fitted to published trainers
([training.yaml]({MODULES}/data/training.yaml)). `trainer.mfu` replaces them: it is MFU as frameworks print it, model FLOPs over time and peak, recomputation not counted. Memory must hold {number(t.state_bytes_per_parameter, 2)} bytes per parameter, sharded over all GPUs, and the activations of one sequence; the plainest division that fits is
taken: FSDP first, then tensor parallelism inside a pod, then a pipeline.

**Weight sync** is a term of its own: weight bytes over {number(t.weight_sync_bytes_per_s / 1e9, 3)} GB/s end to end, measured by verl's checkpoint engine between nodes. In `async` each sampler pauses for it once per version; in the other modes it is added to the period."""


def _asynchrony() -> str:
    e = training_efficiency()
    return f"""## From engine and trainer to a running job

Inside a running RL system neither side is as fast as alone: routing, rewards, logging and stragglers cost samplers, while trainers of published runs beat the ones that the constants were fitted to. Over the families of [validation.md](validation.md) samplers reach {number(e.sampler_efficiency, 2)} of the model's speed and trainers {number(e.trainer_efficiency, 2)} of it in the mean. A plan counts
both as long as nothing of the job itself is measured; then the job's own factors take their place, one a side.

## Two sides at once

The simulation is exact in its own rules, and these are they.

- An iteration of a replica takes what the step model says for its running samples; each of them gains a token. A finished sample's slot is refilled at once: the first waiting sample goes to the replica with the fewest running.
- A group is admitted when all its samples fit under the in-flight cap. Complete groups queue, oldest first. The trainer takes the oldest `promptsPerStep`, and at the end of its step publishes a version, which each replica loads in flight.
- A sample belongs to the version of its first token. Its staleness is the version that trains it less that one. Queue time counts.

Modes: `sync` (all GPUs sample a batch, then all train it), `one-step-off` (batch k + 1 is generated while batch k trains), `async`. Bounds of staleness:

| bound | rule | what it promises | its price |
|:--|:--|:--|:--|
| `none` | | nothing | samplers that outrun the trainer pile up a queue without end |
| `admission` | a group starts only while started − dropped < (version + max + 1)·promptsPerStep | the **mean** keeps to max; single slow samples exceed it | samplers idle at the limit; nothing is wasted |
| `hold` | a version is not published while that would make an unfinished sample staler than max | no unfinished sample exceeds it | the trainer waits for the longest |
| `drop` | a group whose oldest sample is over max is thrown away at dequeue | no **trained** sample exceeds it | tokens, and a bias to short responses |

Agentic samples alternate between decoding and their environment, where they hold no decode slot; environments that may run at once are limited by sandboxes.

Importance-ratio variance: mean of e^(σ²·s) − 1 over the staleness of what was trained, as for a log-normal ratio of mean 1; σ² is what a version adds to the variance of the log ratio, stated in the job or assumed as {RATIO_VARIANCE:g}.

Random numbers are common: the length of sample j of group i depends on (seed, i, j) alone. Two splits then see the same prompts with the same responses, and their difference is much surer than either. Very large jobs are simulated as a slice of about {number(SLICE_SAMPLES, 4)} samples per batch, with replicas, cap and queue in proportion."""


def _closed_form() -> str:
    return f"""## In formulas

> mean staleness = C·M / (B·max(1, ρ)) + (ρ if ρ < 1, else (2q + ρ − 1)/(2ρ))
>
> period ∝ (1/min(1, ρ)) · (1/c_T + ρ/c_R)

C samples in flight (realised, not configured), B samples a step, q queue capacity in batches, M the mean of the longest in a group over the mean length, c throughput per GPU of each side; from Applied Compute, [Predicting and controlling staleness in fully asynchronous RL training](https://www.appliedcompute.com/research/staleness-in-fully-async-rl).
Staleness does not depend on the mean length, since generation time and period scale together: only the tail counts.

What a bound does is derived in [renewal.py]({MODULES}/renewal.py) from a cycle that repeats with every version. All running samples gain a token at once, so the clock is the token: a sample of L tokens lives for L of them, a group for as many as its longest, and a period is K tokens. What was started k periods ago is as much as what is started now, only k·K
tokens older. Then counting gives the rest: which groups are open w tokens after a publication (`admission`, `drop`), and how long the longest that is left takes (`hold`). Nothing is fitted. Where two limits lie within a quarter of each other, each counts now and then, which no formula here knows; it says so (`contested`), and first-principles §10 shows it near ρ = 1."""


def _search() -> str:
    return f"""## The search

1. **Layouts**: all numbers of trainers and widths of samplers that the spec allows, memory holds, and the nodes can really *pack*: a replica of 8 GPUs needs 8 free on one node. What falls out keeps its reason.
2. **Screening** by formulas: each layout gets the smallest in-flight cap that costs next to no time. Who trails the best by more than {percent(SCREEN_MARGIN)} is not simulated ({percent(UNSURE_MARGIN)} under `none` and `hold`, where the cap itself rests on a formula for staleness).
3. **Racing**: the front runners are simulated briefly, with the same random numbers; who is within {percent(QUICK_MARGIN)} (or twice the noise) of the best is simulated in full, and its cap tuned. Who breaks its staleness limit gets a lower cap or falls out.
4. **Around the best**: the two neighbours, staying synchronous or one step off, what fresher samples would cost, the best at lengths ×0.5 to ×8, and elasticities d ln period / d ln x.

The run time's spread is the noise of the simulation, averaged over the run's steps, and the error of the model, which does not average out: the residual of the calibration, or {percent(UNCALIBRATED_ERROR)} while nothing is measured."""


def _measured(kind: str) -> dict[str, str]:
    """What docs/validation.md says in short of one kind of measurement."""
    path = ROOT / "docs" / "validation.md"
    names = [
        "predicted",
        "median",
        "mean",
        "worst",
        "calibrated",
        "calibrated median",
        "calibrated mean",
        "calibrated worst",
    ]
    for line in path.read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if cells[0] == kind and len(cells) > len(names):
            return dict(zip(names, cells[1:], strict=False))
    raise LookupError(f"docs/validation.md has no row {kind!r} under 'In short'")


def _limits() -> str:
    worst = max(tradeoffs.formula_points(), key=lambda p: abs(p.formula_staleness - p.staleness))
    decode, trainer, steps = (_measured(kind) for kind in ("Decode step (TPOT)", "Trainer alone", "RL step time"))
    staleness = _measured("Mean staleness")
    return f"""## What it does not know

- **Absolute times before calibration.** Against published measurements ([validation.md](validation.md), misses included) decode steps are off by {decode["median"]} in the median and {decode["worst"]} at worst, a trainer alone by {trainer["median"]} and {trainer["worst"]}. Whole RL steps are off by {steps["median"]} ({steps["worst"]}) with
  nothing calibrated, and by {steps["calibrated median"]} ({steps["calibrated worst"]}) once each side has one factor from other rows of the same system: frameworks reach only a part of what engine and trainer reach alone, each its own. Mean staleness, which needs no speeds, is met within {staleness["worst"]} versions. Splits compare better than times: an error that both splits share cancels.
- **Training efficiency** is the least certain input. It depends on packing, kernels and network in ways that no data sheet shows; two frameworks on the same GPUs differ by a factor of two. State `trainer.mfu`, or let the run correct it.
- **Routing.** Samples go to the replica with the fewest running, as a good router does it. A router that doesn't leaves replicas idle, and the planner does not see it.
- **Interference.** Weight transfer, checkpointing, evaluation and logging take time from both sides; only weight sync is modelled.
- **Sharing GPUs.** In the synchronous mode a training step is taken to be {number(training_efficiency().colocated_slowdown, 2)} times as long as on GPUs of its own, and the optimizer's state to leave the GPUs and come back once a step: the mean of published runs, from which single frameworks differ widely.
- **Prompts** all have their mean length, and each group's prompt is prefilled once.
- **The policy.** Whether training at a staleness of 4 learns as well as at 1 is not a question of time, and not answered. The variance of the importance ratio is a hint, under an assumed σ².
- **The formulas** near ρ = 1: off by up to {number(abs(worst.formula_staleness - worst.staleness), 1)} versions of staleness in the example of first-principles. The search therefore never decides by them alone."""
