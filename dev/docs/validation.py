"""Writes ``docs/validation.md`` with its figures: every measured row, how far off the prediction is, and why where it misses.

The page is a view of what ``rljob validate`` computes; the words around the numbers are here, and a miss without an explanation stops the
generation, so that none can slip in unnoticed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from dev.docs import style
from dev.docs.example import ROOT
from dev.docs.page import GENERATED, number, percent, table
from rljob_planner.validation.cases import packaged
from rljob_planner.validation.rows import ABSOLUTE, Row
from rljob_planner.validation.validate import Group, Validation, mean, median, validate, worst

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PAGE = ROOT / "docs" / "validation.md"
MISS = 0.30
"""A step time further off than this is explained."""

MISSES = {
    "verl-fa-7b-64-sync": "Among the six runs of this table the synchronous one on 64 GPUs stands out: as fast as the one on 128 GPUs, and "
    "half the time of the one on 32. Runs differ in the lengths that they learned (the one on 32 GPUs doubled its step after 200 "
    "steps), which one law for the family cannot show.",
    "verl-fa-7b-128-64r64t": "The update takes 113 s on 64 trainer GPUs where half of the 157 s on 32 would be 79 s. The other rows of the "
    "family show clean scaling, so it is predicted here; the same run in the table of staleness windows has 95 to 113 s.",
    "verl-fa-7b-128-rb-1": "The table varies how many mini-batches are handed over at once, and update times vary by a factor of 1.9 with it, "
    "mostly because the runs learned other lengths, says the source's own note.",
    "verl-fa-7b-128-rb-4": "As the row before: the fastest of three runs that differ in learned lengths, predicted from the two slower ones.",
    "verl-fa-7b-16-a": "The label is probably wrong in the source: a synchronous run without any time for old log-probabilities, with the "
    "numbers of the asynchronous row below it. Predicted as labelled.",
    "verl-fa-7b-16-8r8t": "Its only relative is the row with the doubtful label, from which its lengths are taken.",
    "nemo-v06-gb200-qwen3-30b-a3b-16g-1off": "Twice the GPUs make the same job 2.2 times as fast (301 s and 136 s), and the synchronous run on these "
    "16 GPUs is faster than the asynchronous one. The recipe's parallelism (EP 16) does not fit on 8 trainer GPUs, so the split is "
    "probably not the even one that the row assumes.",
    "nemo-v06-gb200-deepseekv3-256g-1off": "Predicted from two synchronous rows alone, from which one cannot tell slow samplers from a slow "
    "trainer or a slow refit of 1.3 TB of weights; only the last two hide behind sampling.",
    "nemo-v06-h100fp8-deepseekv3-512g-1off": "One row, so no factors, and the same as its bf16 family without them: trainers and refits of a model of "
    "671 B parameters over short sequences (700 tokens) are far from any MFU that was measured elsewhere.",
    "nemo-v05-h100fp8-llama31-8b-16g-1off": "One row, so no factors. Megatron trains an 8B on H100 about twice as fast as the FSDP trainers "
    "that the constants come from, and fp8 training is counted as bf16.",
    "nemo-v04-h100-qwen3-30b-a3b-32g-1off": "An older version of the software: 244 s where two later ones need 152 s and 154 s for the same run.",
    "areal-1.5b-async": "Predicted from two synchronous runs of two other frameworks, whose time is the tail of one batch, which says little of "
    "throughput.",
    "areal-7b-async": "As the row of the 1.5B.",
}
"""Why a step time is off, by row."""

WRONG_SIDES: dict[str, str] = {}
"""Why a bound side is wrong, by row."""

KIND_NAMES = {
    "serving": "Decode step (TPOT)",
    "training": "Trainer alone",
    "step_time": "RL step time",
    "throughput": "RL throughput",
    "bottleneck": "Bound side",
    "staleness": "Mean staleness",
    "weight_sync": "Weight transfer",
    "sync_tail": "Tail of a synchronous batch",
    "speedup": "Speed-up of asynchrony",
}


def generate() -> None:
    """Write the page and its figures."""
    found = validate(packaged())
    for name, figure in figures(found).items():
        style.save(figure, ROOT / "docs" / "img" / f"validation-{name}.svg")
    PAGE.write_text(text(found), encoding="utf-8")
    print(PAGE.relative_to(ROOT))


def text(found: Validation) -> str:
    """The page."""
    return (
        "\n\n".join(
            (
                GENERATED,
                "# Predictions against measurements",
                _opening(found),
                "## In short",
                _kinds(found),
                _aims(found),
                "## Method",
                METHOD,
                "## Decode steps",
                _figure(
                    "serving",
                    "Milliseconds per token, predicted against measured",
                    "Each point is a row of a serving curve",
                ),
                SERVING,
                _families(found, "serving"),
                "## RL step times",
                _figure(
                    "step_time",
                    "Seconds of an RL step, before and after the factors of the other rows",
                    "Grey bands: 15 % and 30 %",
                ),
                STEPS,
                _families(found, "step_time"),
                _rows(found, "step_time"),
                "### What misses, and why",
                _misses(found),
                "## Bound sides",
                SIDES,
                _strictness(found),
                _sides(found),
                "## Staleness",
                STALENESS,
                _rows(found, "staleness"),
                "## Throughput against allowed staleness",
                THROUGHPUT,
                _rows(found, "throughput"),
                "## Trainers alone",
                _figure("training", "Tokens a second of trainers alone", "17 runs of one trainer, 0.6B to 106B"),
                TRAINERS,
                _families(found, "training"),
                _rows(found, "training"),
                "## Weight transfers",
                TRANSFERS,
                _rows(found, "weight_sync"),
                "## Other rows",
                _rows(found, "sync_tail"),
                "## Rows that cannot be predicted",
                UNPREDICTED,
                _unpredicted(found),
            )
        )
        + "\n"
    )


def _opening(found: Validation) -> str:
    predicted = sum(r.covered for r in found.rows)
    return (
        f"`rljob validate` predicts {predicted:,} of {len(found.rows):,} published measurements and says how far off each prediction is. "
        "`rljob validate FILE -o json` does the same for any file with the fields of `planner/rljob_planner/data/validation-cases.yaml` "
        "(under `cases`) and of `latency-curves.yaml` (under `serving_points`)."
    )


def _kinds(found: Validation) -> str:
    return table(
        ("", "predicted", "median error", "mean", "worst", "calibrated", "median error", "mean", "worst", "side right"),
        [_group_row(KIND_NAMES.get(g.kind, g.kind), g) for g in found.kinds],
    )


def _families(found: Validation, kind: str) -> str:
    return table(
        (
            "family",
            "predicted",
            "median error",
            "mean",
            "worst",
            "calibrated",
            "median error",
            "mean",
            "worst",
            "side right",
        ),
        [_group_row(g.name, g) for g in found.families if g.kind == kind],
    )


def _group_row(name: str, g: Group) -> tuple[str, ...]:
    def shown(errors: Sequence[float]) -> list[str]:
        return [_error(f(errors), g.error_kind) for f in (median, mean, worst)]

    return (
        name,
        f"{g.predicted} of {g.rows}",
        *shown(g.errors),
        str(len(g.calibrated_errors) or ""),
        *shown(g.calibrated_errors),
        f"{g.correct} of {g.sides}" if g.sides else "",
    )


def _error(value: float | None, kind: str) -> str:
    if value is None:
        return ""
    return number(value, 2) if kind == ABSOLUTE else percent(value, 1 if value < 0.1 else 0)


def _aims(found: Validation) -> str:
    steps = next(g for g in found.kinds if g.kind == "step_time")
    staleness = next(g for g in found.kinds if g.kind == "staleness")
    above = sum(e > MISS for e in steps.calibrated_errors)
    sides = [g for g in found.kinds if g.sides]
    right, stated = sum(g.correct for g in sides), sum(g.sides for g in sides)
    serving = [
        g for g in found.families if g.kind == "serving" and "vllm" in g.name and ("h100" in g.name or "h200" in g.name)
    ]
    before = [e for g in serving for e in g.errors]
    after = [e for g in serving for e in g.calibrated_errors]
    rows = [
        ("Decode step, vLLM on H100 and H200: mean error with defaults", "10 %", _error(mean(before), "")),
        ("… after a factor per model", "5 %", _error(mean(after), "")),
        ("RL step times after calibration: median", "15 %", _error(median(steps.calibrated_errors), "")),
        (
            "… worst",
            "30 %",
            f"{_error(worst(steps.calibrated_errors), '')} ({above} of {len(steps.calibrated_errors)} above 30 %)",
        ),
        ("Bound side right", "every row that states it", f"{right} of {stated}"),
        ("Mean staleness, by simulation", "within 0.35", f"within {_error(worst(staleness.errors), ABSOLUTE)}"),
    ]
    return table(("aim", "at most", "reached"), rows)


def _figure(name: str, title: str, caption: str) -> str:
    return f"![{title}](img/validation-{name}.svg)\n\n*{title}. {caption}.*"


def _rows(found: Validation, kind: str) -> str:
    rows = []
    for r in found.rows:
        if r.kind != kind or not r.covered:
            continue
        rows.append(
            (
                r.id,
                _value(r.measured),
                _value(r.predicted),
                _signed(r, r.predicted),
                _value(r.calibrated),
                _signed(r, r.calibrated),
                "" if r.judged else "not judged",
            )
        )
    unit = next((r.unit for r in found.rows if r.kind == kind), "")
    return table(
        (f"row ({unit})" if unit else "row", "measured", "predicted", "error", "calibrated", "error", ""), rows
    )


def _value(value: float | str | None) -> str:
    return "" if value is None else value if isinstance(value, str) else number(value, 3)


def _signed(r: Row, said: float | str | None) -> str:
    if not isinstance(said, float) or not isinstance(r.measured, int | float):
        return ""
    if r.error_kind == ABSOLUTE:
        return f"{said - r.measured:+.2f}".replace("-", "−")
    return f"{100 * (said / r.measured - 1):+.0f} %".replace("-", "−")


def _misses(found: Validation) -> str:
    rows = []
    for r in found.rows:
        best = r.calibrated_error if r.calibrated_error is not None else r.error
        if r.kind != "step_time" or best is None or best <= MISS:
            continue
        if r.id not in MISSES:
            raise AssertionError(f"{r.id} is {best:.0%} off and dev/docs/validation.py does not say why")
        said = r.calibrated if r.calibrated is not None else r.predicted
        how = "after calibration" if r.calibrated is not None else "without factors"
        rows.append((r.id, f"{_value(r.measured)} s", f"{_value(said)} s", f"{_signed(r, said)} {how}", MISSES[r.id]))
    return table(("row", "measured", "predicted", "off by", "why"), rows)


def _sides(found: Validation) -> str:
    rows = []
    for r in found.rows:
        if r.correct is None:
            continue
        if not r.correct and r.id not in WRONG_SIDES:
            raise AssertionError(f"the bound side of {r.id} is wrong and dev/docs/validation.py does not say why")
        measured = r.stated_side or ""
        predicted = r.said_side or ""
        wrong = f"**wrong.** {WRONG_SIDES[r.id]}" if not r.correct else "" if r.strictly_correct else "within the band"
        rows.append(
            (r.id, measured, _share(r.measured_wait), predicted, _share(r.predicted_wait), r.plain_side or "", wrong)
        )
    return table(("row", "measured", "wait", "predicted", "wait", "without other rows", ""), rows)


def _strictness(found: Validation) -> str:
    stated = [r for r in found.rows if r.correct is not None]
    right = sum(bool(r.correct) for r in stated)
    strict = sum(bool(r.strictly_correct) for r in stated)
    plain = sum(r.plain_side == r.stated_side for r in stated)
    return (
        f"Of the {len(stated)} stated sides {strict} are named strictly, {right - strict} more are right only within that band, and "
        f"{len(stated) - right or 'none'} wrong. Without anything from the family's other rows {plain} would be named strictly."
    )


def _share(wait: float | None) -> str:
    return "" if wait is None else percent(wait)


def _unpredicted(found: Validation) -> str:
    return table(
        ("row", "kind", "why"),
        [(r.id, KIND_NAMES.get(r.kind, r.kind), r.reason or "") for r in found.rows if not r.covered],
    )


def figures(found: Validation) -> dict[str, Figure]:
    """Predicted against measured, a figure for each kind that has enough rows."""
    return {kind: _scatter(found, kind) for kind in ("serving", "step_time", "training")}


def _scatter(found: Validation, kind: str) -> Figure:
    rows = [r for r in found.rows if r.kind == kind and r.judged and isinstance(r.predicted, float)]
    drawn, panels = style.new_figure(1, 2, height=4.4, sharex=True, sharey=True)
    families = sorted({r.family.split("/")[0] for r in rows})
    colours = [style.BLUE, style.ORANGE, style.GREEN, style.RED, style.SKY, style.PURPLE, style.GREY, style.INK]
    values = [float(v) for r in rows for v in (r.measured, r.predicted) if isinstance(v, int | float)]
    low, high = min(values) / 1.3, max(values) * 1.3
    for axes, name in zip(panels, ("predicted", "calibrated"), strict=True):
        for band, shade in ((1.30, 0.35), (1.15, 0.7)):
            axes.fill_between(
                [low, high],
                [low / band, high / band],
                [low * band, high * band],
                color=style.PALE,
                alpha=shade,
                linewidth=0,
            )
        axes.plot([low, high], [low, high], color=style.GREY, linewidth=0.8)
        for i, family in enumerate(families):
            points = [r for r in rows if r.family.split("/")[0] == family and isinstance(getattr(r, name), float)]
            axes.plot(
                [r.measured for r in points],
                [getattr(r, name) for r in points],
                linestyle="",
                marker="osv^D"[i // len(colours) % 5],
                markersize=4,
                color=colours[i % len(colours)],
                alpha=0.8,
                label=family,
            )
        axes.set(xscale="log", yscale="log", xlim=(low, high), ylim=(low, high), xlabel=f"measured ({rows[0].unit})")
        axes.set_title("from data sheets and constants" if name == "predicted" else "after the other rows' factors")
        axes.set_aspect("equal")
    panels[0].set_ylabel(f"predicted ({rows[0].unit})")
    columns = max(1, math.ceil(len(families) / 6))
    drawn.legend(
        *panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=min(4, max(columns, 3)), fontsize=7
    )
    return drawn


METHOD = """\
Everything that a prediction may know of a row is what describes the run: model, GPU type and counts, placement, batch, lengths, staleness
rule, parallelism. What was measured is kept apart and read only when *another* row is predicted, and for the comparison.

1. **Predicted**: shapes from `models.yaml`, data sheets and engine constants from `hardware.yaml`, trainer constants from `training.yaml`, each with
   its source. Where a row leaves a choice open (tensor parallelism, prompt length), the planner's own default is taken and the row's note
   says so. RL systems run below what engine and trainer reach alone; the packaged efficiencies of both sides are averages over all families.
2. **Calibrated**: one factor for the samplers and one for the trainer, fitted by least squares on the logarithms of the *other* rows of
   the family, with a prior that holds them near the average. Where other rows break their step down (update, old log-probabilities, wait), these
   parts count as well. A run whose step time drifted, as its summed times
   show, counts less. A family needs three rows.
3. **Lengths**: where rows state no mean, all rows of the family share one lognormal law that each row's own cap cuts; its median is one more
   unknown, again from the other rows.
4. The final numbers of asynchronous rows come from the simulator; fits use the closed form, which answers in a millisecond. A trainer that
   takes its batch in parts (verl's streaming) has a formula of its own: it needs neither a whole batch to begin nor its slowest samples to end.

What the runs need beside the planner's own model is in `planner/rljob_planner/validation/`: a prompt's samples stay on one engine in lock-step
modes (a hard prompt then makes one engine run a whole group to the end), a colocated trainer is slower by a third and moves its optimizer
state out and in, weights travel in buckets, a rank with the longest sample makes the others wait, and a trainer that collects its batch from a
queue spends 3 ms a sample on it.

A GPU or model that is not known has no substitute: its row is left without prediction and lists the names that come near, unless the source itself
says that the type is not stated (then H100, with a note) or the name has both sizes of a mixture of experts. A run that cannot exist, since its
weights do not fit into its GPUs, and a row that contradicts itself are predicted and say so in `note`. A value that a field cannot hold costs its own
row, with a reason; a measurement that cannot be one (negative, zero seconds, not a number) costs that row its error alone."""

SERVING = """\
Curves of vLLM and SGLang; a family is a model on a GPU type under one engine and number format. Rows whose requests queued for KV room (time
to first token above 4 s) and two curves with known defects are shown by `rljob validate` and left out of the means."""

STEPS = """\
The families are tables of verl, NeMo-RL, AReaL, miles, Marin and vime. Synchronous rows and asynchronous rows of a table often ran different
software paths, and lengths drift while a model learns, by a factor of two within one run of the first family; both are in the errors."""

SIDES = """\
The trainer's wait for samples over the period decides, measured and predicted alike: from 20 % on samplers hold the run up, up to 5 % the
trainer does, between them they match. Rows that name the side are believed. What a streaming trainer spends on collecting its batch is no
wait. The predicted side is what the planner says with all that it may use: physics, and the factors that the family's *other* rows teach,
beside a step time and alone; `plainSide` has it without those. For rows that state nothing but the side, what they leave open is assumed (`validation/bottleneck.py` lists it), and the stated side of even one
other row of the family counts. Next to balance, where measured or predicted side is "matched", waits that are no more than a fifth of a period apart count as the same."""

STALENESS = """\
Six runs of Applied Compute. A scenario with the stated concurrency, batch, queue, tail and balance is simulated; the concurrency that is realised
comes out of it, a few samples below the configured one, since groups are admitted whole."""

THROUGHPUT = """\
AReaL on one split, with the allowed staleness η from 0 to no limit. Bars were read off a figure. Lengths are unknown, so only the shape is tested:
a steep rise until 2, then hardly any."""

TRAINERS = """\
Seconds of a step are FLOPs at 0.6 of peak, plus 1.35 ns for each token, layer and hidden unit (on an H100's memory), plus the optimizer in host
memory where a trainer keeps it there. Three numbers, fitted to these 17 rows, which therefore test their form and not their values;
the calibrated column leaves each row out."""

TRANSFERS = """\
By number of tensors, size and path. The constants come from the rows of verl in this table, so these show the law's form; those of other sources
are tests of it."""

UNPREDICTED = """\
Only for want of a field that is null in the file."""
