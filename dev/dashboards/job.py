"""One job: why the last move was made, how fast it runs, how stale its samples are, and whether anything is wrong."""

from __future__ import annotations

from dev.dashboards.board import Annotation, Board, Section, Variable, Window
from dev.dashboards.panels import (
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    PURPLE,
    RED,
    SAMPLERS,
    TEAL,
    TRAINERS,
    YELLOW,
    Column,
    Graph,
    Query,
    Series,
    Stat,
    Table,
    mapped,
)
from dev.dashboards.words import OUTCOMES, TRUTH, decisions, move_phases, phases

OF = 'rljob_namespace="$namespace",rljob_name="$job"'
"""Selects the operator's series of the job."""

PODS = 'namespace="$namespace",rljob_dev_name="$job"'
"""Selects the series that the job's pods export."""

RATE, WINDOW = "[$__rate_interval]", "[$window]"
"""Over what is counted all the time, such as tokens, and over what is counted once a step."""

MEAN = ',stat="mean"'
PREDICTED, MEASURED = ',kind="predicted"', ',kind="measured"'
"""More of a selector."""

MOVES = (
    f'max by (from, to, outcome) (rljob_operator_last_move_info{{{OF},outcome!="UnderWay"}}) '
    f"* on () group_left () (max(rljob_operator_last_move_timestamp_seconds{{{OF}}}) * 1000)"
)
"""When the last move ended, in milliseconds, with its splits."""

JOB_VARIABLES = (
    Variable("namespace", "Namespace", "label_values(rljob_operator_budget_gpus, rljob_namespace)"),
    Variable("job", "RLJob", 'label_values(rljob_operator_budget_gpus{rljob_namespace="$namespace"}, rljob_name)'),
)

MOVE_MARKS = Annotation("Moves", MOVES, "Move {{outcome}}", "{{from}} → {{to}}")


def own(name: str, more: str = "") -> str:
    """One of the operator's gauges of the job; one replica has it, and another one only while it takes over."""
    return f"max(rljob_operator_{name}{{{OF}{more}}})"


def by(label: str, name: str, more: str = "") -> str:
    """One of the operator's gauges of the job, by a label."""
    return f"max by ({label}) (rljob_operator_{name}{{{OF}{more}}})"


def grown(counter: str) -> str:
    """By how much one of the operator's counters of the job has grown in the time shown."""
    return f"sum(increase(rljob_operator_{counter}{{{OF}}}[$__range]))"


def mean(histogram: str, over: str = WINDOW) -> str:
    """The mean of a histogram that the job's pods export."""
    return f"sum(rate({histogram}_sum{{{PODS}}}{over})) / sum(rate({histogram}_count{{{PODS}}}{over}))"


def quantile(q: float, histogram: str, over: str = WINDOW) -> str:
    """A quantile of a histogram that the job's pods export."""
    return f"histogram_quantile({q}, sum by (le) (rate({histogram}_bucket{{{PODS}}}{over})))"


def a_step(seconds: str) -> str:
    """What of a total in seconds falls on a training step, on average."""
    return f"sum(rate({seconds}{{{PODS}}}{WINDOW})) / sum(rate(rljob_train_step_seconds_count{{{PODS}}}{WINDOW}))"


NOW = Section(
    "Now",
    (
        Stat(
            "Phase",
            "Where the job stands in its life: status.phase.",
            [Query(f"{by('phase', 'phase')} == 1", "{{phase}}")],
            4,
            names=True,
            series=phases(),
        ),
        Stat(
            "Last decision",
            "The reason code of the newest decision. Blue acts, green is content, yellow waits, purple may not, red needs a look; "
            "docs/operations.md says what each asks for.",
            [Query(f"{by('code', 'decision_code')} == 1", "{{code}}")],
            5,
            names=True,
            series=decisions(),
        ),
        Stat(
            "Split in force (GPUs)",
            "GPUs of the samplers and of the trainers. During a move it is still the split before it.",
            [Query(by("side", "split_gpus"), "{{side}}")],
            4,
            both=True,
            plain=True,
            series=[Series("samplers", color=SAMPLERS), Series("trainers", color=TRAINERS)],
        ),
        Stat(
            "Period now",
            "Seconds between two published policy versions: measured, and as the planner predicts it.",
            [Query(own("observed_period_seconds"), "measured"), Query(own("predicted_period_seconds"), "predicted")],
            5,
            unit="s",
            decimals=2,
            both=True,
            plain=True,
            series=[Series("measured", color=GREEN), Series("predicted", color=GREY)],
            empty="not measured yet",
        ),
        Stat(
            "Staleness, of its limit",
            "Mean staleness of trained samples as a share of spec.staleness.max. Under the bound admission a job that waits for samples sits "
            "at 100 %, which is right; clearly above it the operator lowers the in-flight cap.",
            [Query(f"{own('observed_staleness_versions', MEAN)} / {own('staleness_limit_versions')}")],
            3,
            unit="percentunit",
            decimals=0,
            thresholds=((None, GREEN), (1.05, RED)),
            empty="not measured yet",
        ),
        Stat(
            "Run",
            "Steps that are made, as a share of spec.workload.steps.",
            [Query(f"{own('policy_version')} / {own('steps')}")],
            3,
            unit="percentunit",
            decimals=1,
            color=BLUE,
            plain=True,
            empty="not measured yet",
        ),
    ),
)

WHY = Section(
    "Why the last move was made",
    (
        Table(
            "The last move",
            "From where to where it led, how it ended, and the reason in the operator's words. What a move was made for: Decision (it saves "
            "time), SpecChange (an edited spec asked for it), Growth (a raised budget) or ByHand (somebody did).",
            [
                Query(
                    f"max by (from, to, cause, outcome, reason) (rljob_operator_last_move_info{{{OF}}}) "
                    f"* on () group_left () (max(rljob_operator_last_move_timestamp_seconds{{{OF}}}) * 1000)",
                    instant=True,
                )
            ],
            24,
            4,
            columns=(
                Column("When", "Value", unit="dateTimeAsIso", width=180),
                Column("From", "from", width=250),
                Column("To", "to", width=250),
                Column("Outcome", "outcome", width=110, mappings=[OUTCOMES], coloured=True),
                Column("For", "cause", width=100),
                Column("Why", "reason", wrap=True),
            ),
            cell_height="lg",
            empty="No move yet",
        ),
        Stat(
            "Predicted gain",
            "Share of the period that the last move was to save.",
            [Query(own("last_move_gain_ratio", PREDICTED))],
            5,
            3,
            unit="percentunit",
            decimals=1,
            color=GREY,
            plain=True,
            empty="no move yet",
        ),
        Stat(
            "Measured gain",
            "Share of the period that the last move has saved, against the forecast of the split left behind at the same response lengths. "
            "It is known once the new split has settled.",
            [Query(own("last_move_gain_ratio", MEASURED))],
            5,
            3,
            unit="percentunit",
            decimals=1,
            thresholds=((None, RED), (0.0, GREEN)),
            plain=True,
            empty="not measured yet",
        ),
        Stat(
            "Saves over the run",
            "What the last move was to save over the steps that remained.",
            [Query(own("last_move_saving_seconds"))],
            4,
            3,
            unit="s",
            decimals=0,
            color=GREEN,
            plain=True,
            empty="no move yet",
        ),
        Stat(
            "Cost, predicted",
            "Lost progress that the last move was to cost: drain, start, load, regroup.",
            [Query(own("last_move_cost_seconds", PREDICTED))],
            5,
            3,
            unit="s",
            decimals=1,
            color=GREY,
            plain=True,
            empty="no move yet",
        ),
        Stat(
            "Cost, measured",
            "Lost progress that the last move has cost.",
            [Query(own("last_move_cost_seconds", MEASURED))],
            5,
            3,
            unit="s",
            decimals=1,
            color=ORANGE,
            plain=True,
            empty="not ended yet",
        ),
        Graph(
            "Split",
            "GPUs of samplers and trainers, one on the other, below the budget, and what pods hold at each moment: in a move less, since no side "
            "grows before the other's pods are gone.",
            [
                Query(by("side", "split_gpus"), "{{side}}"),
                Query(own("budget_gpus"), "budget"),
                Query(own("held_gpus"), "held by pods"),
            ],
            12,
            steps=True,
            stacked=True,
            fill=55,
            minimum=0,
            unit="none",
            axis="GPUs",
            series=(
                Series("samplers", color=SAMPLERS),
                Series("trainers", color=TRAINERS),
                Series("budget", color=RED, dashed=True, fill=0, stacked=False),
                Series("held by pods", color="#444444", fill=0, width=1, stacked=False),
            ),
        ),
        Graph(
            "Response length",
            "Longer responses need more samplers, shorter ones more trainers: this is what drives most moves. The operator decides by its own "
            "estimate, which counts the samples that still run: finished ones alone are too short while lengths grow.",
            [
                Query(own("observed_response_tokens"), "estimate"),
                Query(mean("rljob_response_tokens"), "finished, mean"),
                Query(quantile(0.95, "rljob_response_tokens"), "finished, p95"),
            ],
            12,
            unit="none",
            axis="tokens",
            minimum=0,
            series=(
                Series("estimate", color=PURPLE, width=3),
                Series("finished, mean", color=TEAL),
                Series("finished, p95", color=GREY, dashed=True, width=1),
            ),
        ),
        Graph(
            "Decisions by reason",
            "The reason code of the newest decision at each moment; the operator decides every spec.rebalance.interval. Blue acts, green is "
            "content, yellow waits, purple may not, red needs a look.",
            [Query(f"{by('code', 'decision_code')} == 1", "{{code}}")],
            12,
            unit="none",
            bars=True,
            stacked=True,
            minimum=0,
            maximum=1,
            hide_axis=True,
            legend_values=(),
            series=decisions(),
        ),
        Graph(
            "Gain of another split",
            "Share of the period that the best other split would save, and what the last move was to gain and gained. A move needs more than "
            "minGain where that is set, and a saving that exceeds its cost and its doubt.",
            [
                Query(own("predicted_gain_ratio"), "of the wished split"),
                Query(by("kind", "last_move_gain_ratio"), "last move, {{kind}}"),
            ],
            12,
            unit="percentunit",
            series=(
                Series("of the wished split", color=BLUE, fill=15),
                Series("last move, predicted", color=GREY, dashed=True, fill=0),
                Series("last move, measured", color=GREEN, fill=0),
            ),
            empty="no other split is better",
        ),
        Graph(
            "Phases of a move",
            "Announce → Drain → (Checkpoint) → Shrink → Grow → Verify. One that stays is where a move waits; status.rebalance.waitingFor says "
            "for what.",
            [Query(f"{by('phase', 'move_phase')} == 1", "{{phase}}")],
            12,
            6,
            unit="none",
            bars=True,
            stacked=True,
            minimum=0,
            maximum=1,
            hide_axis=True,
            legend_values=(),
            series=move_phases(),
            empty="No move",
        ),
        Graph(
            "Which side waits",
            "Where the trainer waits for samples, samplers are too few; where complete groups queue, trainers are.",
            [
                Query(
                    f"sum(rate(rljob_trainer_wait_seconds_total{{{PODS}}}{WINDOW}))",
                    "trainer waits (share of time)",
                ),
                Query(f"max(rljob_queue_depth_groups{{{PODS}}})", "groups that wait"),
            ],
            12,
            6,
            unit="percentunit",
            minimum=0,
            series=(
                Series("trainer waits (share of time)", color=TRAINERS, fill=20),
                Series("groups that wait", color=SAMPLERS, unit="none", fill=0),
            ),
        ),
    ),
)

SPEED = Section(
    "Speed",
    (
        Graph(
            "Period",
            "Seconds between two policy versions: measured, and predicted with the range in which eight of ten periods lie.",
            [
                Query(own("observed_period_seconds"), "measured"),
                Query(own("predicted_period_seconds"), "predicted"),
                Query(own("predicted_period_quantile_seconds", ',quantile="0.9"'), "predicted, p90"),
                Query(own("predicted_period_quantile_seconds", ',quantile="0.1"'), "predicted, p10"),
            ],
            12,
            unit="s",
            minimum=0,
            fill=0,
            series=(
                Series("measured", color=GREEN, width=3),
                Series("predicted", color=GREY, dashed=True),
                Series(
                    "predicted, p90", color=GREY, width=0, fill=15, below_to="predicted, p10", hidden_in_legend=True
                ),
                Series("predicted, p10", color=GREY, width=0, hidden_in_legend=True),
            ),
        ),
        Graph(
            "A step of the trainer",
            "What a step is made of: training, waiting for samples, and samplers' pause for new weights (which overlaps with training).",
            [
                Query(a_step("rljob_train_step_seconds_sum"), "trains"),
                Query(a_step("rljob_trainer_wait_seconds_total"), "waits for samples"),
                Query(mean("rljob_weight_sync_seconds"), "weight sync"),
            ],
            12,
            unit="s",
            minimum=0,
            stacked=True,
            fill=45,
            series=(
                Series("trains", color=TRAINERS),
                Series("waits for samples", color=YELLOW),
                Series("weight sync", color=PURPLE, fill=0, stacked=False),
            ),
        ),
        Graph(
            "Tokens per second",
            "Response tokens that samplers generate and that trainers take. Over a few minutes the two must agree; what samplers make beyond is "
            "queued or dropped.",
            [
                Query(f"sum(rate(vllm:generation_tokens_total{{{PODS}}}{RATE}))", "generated"),
                Query(f"sum(rate(rljob_trained_tokens_total{{{PODS}}}{WINDOW}))", "trained"),
            ],
            8,
            unit="short",
            minimum=0,
            axis="tokens/s",
            series=(Series("generated", color=SAMPLERS), Series("trained", color=TRAINERS)),
        ),
        Graph(
            "Time of a token",
            "Time between two tokens of a sample, over all samplers. It grows with the batch and with the context.",
            [
                Query(mean("vllm:inter_token_latency_seconds", RATE), "mean"),
                Query(quantile(0.95, "vllm:inter_token_latency_seconds", RATE), "p95"),
            ],
            8,
            unit="s",
            minimum=0,
            series=(Series("mean", color=SAMPLERS), Series("p95", color=GREY, dashed=True)),
        ),
        Graph(
            "Speed, measured over predicted",
            "How much faster each side runs than the model says. The plan is corrected by it, so it need not be 1; a factor at its limit (see "
            "the planner's dashboard) means that the spec does not describe the hardware.",
            [Query(by("side", "calibration_factor"), "{{side}}")],
            8,
            unit="none",
            decimals=2,
            minimum=0,
            thresholds=((None, "transparent"), (1.0, GREY)),
            limit_lines=True,
            series=(Series("samplers", color=SAMPLERS), Series("trainers", color=TRAINERS)),
            empty="not measured yet",
        ),
    ),
)

ASYNC = Section(
    "Staleness, queue and memory",
    (
        Graph(
            "Staleness",
            "Staleness of trained samples against spec.staleness.max. The bound drop keeps the maximum below it, admission the mean.",
            [
                Query(mean("rljob_sample_staleness_versions"), "mean"),
                Query(quantile(0.95, "rljob_sample_staleness_versions"), "p95"),
                Query(f"max(rljob_sample_staleness_max_versions{{{PODS}}})", "max of a step"),
                Query(own("staleness_limit_versions"), "limit"),
            ],
            12,
            unit="none",
            axis="policy versions",
            minimum=0,
            fill=0,
            series=(
                Series("mean", color=BLUE, width=3),
                Series("p95", color=TEAL),
                Series("max of a step", color=GREY, width=1),
                Series("limit", color=RED, dashed=True),
            ),
        ),
        Graph(
            "In flight",
            "Samples submitted and not finished, below the cap of the split in force; and those of them that samplers run, and that wait for a "
            "slot or for KV room.",
            [
                Query(f"max(rljob_inflight_samples{{{PODS}}})", "in flight"),
                Query(own("inflight_cap_samples"), "cap"),
                Query(f"sum(vllm:num_requests_running{{{PODS}}})", "running"),
                Query(f"sum(vllm:num_requests_waiting{{{PODS}}})", "waiting for a slot"),
            ],
            12,
            unit="none",
            axis="samples",
            minimum=0,
            fill=0,
            series=(
                Series("in flight", color=BLUE),
                Series("cap", color=RED, dashed=True),
                Series("running", color=TEAL),
                Series("waiting for a slot", color=YELLOW, fill=20),
            ),
        ),
        Graph(
            "Queue",
            "Complete groups that wait for the trainer. A queue that grows without end means too few trainers, or too many samples in flight.",
            [
                Query(f"max(rljob_queue_depth_groups{{{PODS}}})", "waiting"),
                Query(f"sum(increase(rljob_dropped_groups_total{{{PODS}}}{WINDOW}))", "dropped"),
            ],
            8,
            unit="none",
            axis="groups",
            minimum=0,
            series=(Series("waiting", color=SAMPLERS, fill=20), Series("dropped", color=RED)),
        ),
        Graph(
            "KV cache in use",
            "Share of the samplers' KV room that is taken. A full cache preempts: samples are computed again.",
            [
                Query(f'avg({{__name__=~"vllm:(kv|gpu)_cache_usage_perc",{PODS}}})', "mean"),
                Query(f'max({{__name__=~"vllm:(kv|gpu)_cache_usage_perc",{PODS}}})', "fullest sampler"),
            ],
            8,
            unit="percentunit",
            minimum=0,
            maximum=1,
            thresholds=((None, "transparent"), (0.95, RED)),
            limit_lines=True,
            series=(Series("mean", color=SAMPLERS, fill=20), Series("fullest sampler", color=GREY)),
        ),
        Graph(
            "Preemptions",
            "Samples a second that were put back for want of KV room. More than a few mean that the in-flight cap or maxRunning is too high.",
            [Query(f"sum(rate(vllm:num_preemptions_total{{{PODS}}}{RATE}))", "preemptions")],
            8,
            unit="none",
            axis="samples/s",
            minimum=0,
            at_least=1,
            series=(Series("preemptions", color=RED, fill=20),),
        ),
    ),
)

HEALTH = Section(
    "Health",
    (
        *(
            Stat(title, told, [Query(expr)], 4, 3, unit="none", mappings=mappings, thresholds=thresholds, empty=empty)
            for title, told, expr, mappings, thresholds, empty in (
                (
                    "Metrics known",
                    "Whether everything that decisions need is known. If not, nothing is resized.",
                    own("metrics_available"),
                    [mapped({"1": ("yes", GREEN), "0": ("no", RED)})],
                    ((None, RED), (1, GREEN)),
                    "",
                ),
                (
                    "Model fits",
                    "No if a calibration factor stands at its limit, so that the model does not describe the job.",
                    own("calibration_pegged"),
                    [mapped({"0": ("yes", GREEN), "1": ("no", RED)})],
                    ((None, GREEN), (1, RED)),
                    "not measured yet",
                ),
                (
                    "Failed passes",
                    "Passes over the job that failed in the time shown; the condition and the operator's log say why.",
                    grown("reconcile_errors_total"),
                    (),
                    ((None, GREEN), (1, RED)),
                    "",
                ),
                (
                    "Lost samples",
                    "Samples that were cut off in the time shown: they ran on pods that went in a shrink though they were to stay.",
                    grown("lost_samples_total"),
                    (),
                    ((None, GREEN), (1, RED)),
                    "",
                ),
                (
                    "Drains timed out",
                    "Drains in the time shown that ended by sampler.drainTimeout while samples still ran.",
                    grown("drain_timeouts_total"),
                    (),
                    ((None, GREEN), (1, RED)),
                    "",
                ),
                (
                    "Over budget",
                    "Times in the time shown that pods held more GPUs than the budget. It must be 0, ever.",
                    grown("budget_violations_total"),
                    (),
                    ((None, GREEN), (1, RED)),
                    "",
                ),
            )
        ),
        Table(
            "Conditions",
            "The job's conditions. All are True when all is well, but for Rebalancing and Degraded, which are False; docs/operations.md says "
            "what each reason asks for.",
            [Query(by("condition, reason", "condition"), instant=True)],
            12,
            9,
            unit="none",
            columns=(
                Column("Condition", "condition", width=170),
                Column("Status", "Value", width=90, mappings=[TRUTH]),
                Column("Reason", "reason"),
            ),
            sort_by="Condition",
        ),
        Graph(
            "Layout generation",
            "The generation that the trainer follows, which lags behind while a move waits for a step boundary.",
            [Query(f"min(rljob_layout_generation{{{PODS}}})", "acknowledged by all trainer pods")],
            12,
            9,
            unit="none",
            decimals=0,
            steps=True,
            series=(Series("acknowledged by all trainer pods", color=BLUE),),
        ),
    ),
)

BOARD = Board(
    uid="rljob-job",
    title="RLJob / One job",
    description="Why the last move of an RLJob was made, how fast it runs, how stale its samples are, and whether anything is wrong.",
    sections=(NOW, WHY, SPEED, ASYNC, HEALTH),
    variables=(*JOB_VARIABLES, Window("window", "Averaged over", ("1m", "2m", "5m", "15m", "30m", "1h"), "5m")),
    annotations=(MOVE_MARKS,),
    since="now-6h",
)
