"""One job: why the last move was made, before anything else."""

from __future__ import annotations

from dev.dashboards.board import Board, Section, Window
from dev.dashboards.job_details import ASYNC, HEALTH, SPEED
from dev.dashboards.job_queries import (
    JOB_VARIABLES,
    MEAN,
    MEASURED,
    MOVE_MARKS,
    OF,
    PODS,
    PREDICTED,
    WINDOW,
    by,
    mean,
    own,
    quantile,
)
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
    Column,
    Graph,
    Query,
    Series,
    Stat,
    Table,
)
from dev.dashboards.words import OUTCOMES, decisions, move_phases, phases

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
                    f"max(rate(rljob_trainer_wait_seconds_total{{{PODS}}}{WINDOW}))",
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

BOARD = Board(
    uid="rljob-job",
    title="RLJob / One job",
    description="Why the last move of an RLJob was made, how fast it runs, how stale its samples are, and whether anything is wrong.",
    sections=(NOW, WHY, SPEED, ASYNC, HEALTH),
    variables=(*JOB_VARIABLES, Window("window", "Averaged over", ("1m", "2m", "5m", "15m", "30m", "1h"), "5m")),
    annotations=(MOVE_MARKS,),
    since="now-6h",
)
