"""The lower half of a job's dashboard: how fast it runs, how stale its samples are, and whether anything is wrong."""

from __future__ import annotations

from dev.dashboards.board import Section
from dev.dashboards.job_queries import PODS, RATE, WINDOW, a_step, by, grown, mean, own, quantile, total
from dev.dashboards.panels import (
    BLUE,
    GREEN,
    GREY,
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
from dev.dashboards.words import TRUTH

SPEED = Section(
    "Speed",
    (
        Graph(
            "Period",
            "Seconds between two policy versions: measured, and predicted with the range in which eight of ten periods lie.",
            [
                Query(own("observed_period_seconds"), "measured"),
                Query(own("predicted_period_seconds"), "predicted"),
                Query(own("predicted_period_quantile_seconds", ',at="0.9"'), "predicted, p90"),
                Query(own("predicted_period_quantile_seconds", ',at="0.1"'), "predicted, p10"),
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
                Query(total("vllm:generation_tokens_total", "rate", RATE), "generated"),
                Query(total("rljob_trained_tokens_total", "rate", WINDOW), "trained"),
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
                Query(total("vllm:num_requests_running"), "running"),
                Query(total("vllm:num_requests_waiting"), "waiting for a slot"),
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
                Query(total("rljob_dropped_groups_total", "increase", WINDOW), "dropped"),
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
                Query(f'avg(max by (pod, engine) ({{__name__=~"vllm:(kv|gpu)_cache_usage_perc",{PODS}}}))', "mean"),
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
            [Query(total("vllm:num_preemptions_total", "rate", RATE), "preemptions")],
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
