"""The planner against the truth: whether what it predicts of a job is what is then measured."""

from __future__ import annotations

from dev.dashboards.board import Board, Section
from dev.dashboards.job_queries import JOB_VARIABLES, MEAN, MEASURED, MOVE_MARKS, PREDICTED, by, own
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
    Graph,
    Query,
    Series,
    Stat,
    mapped,
)

ERROR = f"{own('observed_period_seconds')} / {own('predicted_period_seconds')} - 1"

NOW = Section(
    "How good the plan is now",
    (
        Stat(
            "Error of the model",
            "Relative error that the calibrated model was left with when it was compared with the latest readings: what it is off by now. The "
            "operator counts it into the doubt of every gain.",
            [Query(own("calibration_residual_ratio"))],
            5,
            unit="percentunit",
            decimals=1,
            thresholds=((None, GREEN), (0.15, YELLOW), (0.3, RED)),
            empty="not measured yet",
        ),
        Stat(
            "Measured period, against the plan",
            "How much longer (+) or shorter (−) the measured period is than the plan's. A plan is of the steps to come, so with growing responses "
            "it is ahead; in a job that stays as it is this is near 0.",
            [Query(ERROR)],
            5,
            unit="percentunit",
            decimals=1,
            color=BLUE,
            plain=True,
            empty="not measured yet",
        ),
        Stat(
            "Model fits",
            "No if a calibration factor stands at its limit: check model, accelerator and the engine's arguments in the spec.",
            [Query(own("calibration_pegged"))],
            4,
            unit="none",
            mappings=[mapped({"0": ("yes", GREEN), "1": ("no", RED)})],
            thresholds=((None, GREEN), (1, RED)),
            empty="not measured yet",
        ),
        Stat(
            "Gain of the last move",
            "Share of the period that the last move was to save, and has saved.",
            [
                Query(own("last_move_gain_ratio", PREDICTED), "predicted"),
                Query(own("last_move_gain_ratio", MEASURED), "measured"),
            ],
            5,
            unit="percentunit",
            decimals=1,
            both=True,
            plain=True,
            series=(Series("predicted", color=GREY), Series("measured", color=GREEN)),
            empty="no move yet",
        ),
        Stat(
            "Cost of the last move",
            "Lost progress that the last move was to cost, and has cost.",
            [
                Query(own("last_move_cost_seconds", PREDICTED), "predicted"),
                Query(own("last_move_cost_seconds", MEASURED), "measured"),
            ],
            5,
            unit="s",
            decimals=1,
            both=True,
            plain=True,
            series=(Series("predicted", color=GREY), Series("measured", color=ORANGE)),
            empty="no move yet",
        ),
    ),
)

PERIOD = Section(
    "Period and staleness",
    (
        Graph(
            "Period",
            "Measured, and predicted with the range in which eight of ten periods lie. A prediction is of the steps to come: while responses grow "
            "it runs ahead of the measured period by as much as they are expected to grow.",
            [
                Query(own("observed_period_seconds"), "measured"),
                Query(own("predicted_period_seconds"), "predicted"),
                Query(own("predicted_period_quantile_seconds", ',at="0.9"'), "predicted, p90"),
                Query(own("predicted_period_quantile_seconds", ',at="0.1"'), "predicted, p10"),
            ],
            12,
            9,
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
            "Measured period, over the plan's",
            "Measured over predicted, less one. The lines are at ±15 %: beyond them a plan should be read with care. It grows between two plans "
            "of a job whose responses grow, since the older plan knew shorter ones, and falls below zero where a plan expects more growth than "
            "there is yet.",
            [Query(ERROR, "error")],
            12,
            9,
            unit="percentunit",
            fill=0,
            thresholds=((None, "transparent"), (-0.15, YELLOW), (0.15, YELLOW)),
            limit_lines=True,
            series=(Series("error", color=BLUE, width=3),),
            empty="not measured yet",
        ),
        Graph(
            "Staleness",
            "Mean and largest staleness as measured, beside what was predicted for the plan, and the limit.",
            [
                Query(own("observed_staleness_versions", MEAN), "measured, mean"),
                Query(own("observed_staleness_versions", ',stat="max"'), "measured, max"),
                Query(own("predicted_staleness_versions", MEAN), "predicted, mean"),
                Query(own("predicted_staleness_versions", ',stat="max"'), "predicted, max"),
                Query(own("staleness_limit_versions"), "limit"),
            ],
            12,
            unit="none",
            axis="policy versions",
            minimum=0,
            fill=0,
            series=(
                Series("measured, mean", color=BLUE, width=3),
                Series("measured, max", color=TEAL),
                Series("predicted, mean", color=GREY, dashed=True),
                Series("predicted, max", color=GREY, dashed=True, width=1),
                Series("limit", color=RED, dashed=True),
            ),
        ),
        Graph(
            "Response length",
            "The estimate that predictions rest on, corrected for the samples that still run.",
            [Query(own("observed_response_tokens"), "estimate")],
            12,
            unit="none",
            axis="tokens",
            minimum=0,
            series=(Series("estimate", color=PURPLE, width=3),),
            empty="not measured yet",
        ),
    ),
)

SPEED = Section(
    "What was learned, and what follows from it",
    (
        Graph(
            "Speed, measured over predicted",
            "How much faster each side runs than the model says. A plan is corrected by it, so what matters is that it is steady: a jump is a "
            "change of the hardware or of the job.",
            [Query(by("side", "calibration_factor"), "{{side}}")],
            12,
            unit="none",
            decimals=2,
            minimum=0,
            thresholds=((None, "transparent"), (1.0, GREY)),
            limit_lines=True,
            series=(Series("samplers", color=SAMPLERS), Series("trainers", color=TRAINERS)),
            empty="not measured yet",
        ),
        Graph(
            "Error of the model over time",
            "Relative error of the calibrated model, compared with the latest readings. It is large while speeds or lengths change, and small in a job "
            "that stays as it is.",
            [Query(own("calibration_residual_ratio"), "residual")],
            12,
            unit="percentunit",
            minimum=0,
            series=(Series("residual", color=ORANGE, fill=20),),
            empty="not measured yet",
        ),
        Graph(
            "Recommended split",
            "GPUs of the split that the operator would choose now (dashed) against the one in force. They part while a better split waits for "
            "its proof, its cool-down, or a person.",
            [
                Query(by("side", "split_gpus"), "{{side}}"),
                Query(by("side", "recommended_gpus"), "{{side}}, recommended"),
            ],
            12,
            unit="none",
            axis="GPUs",
            minimum=0,
            steps=True,
            fill=0,
            series=(
                Series("samplers", color=SAMPLERS, width=3),
                Series("trainers", color=TRAINERS, width=3),
                Series("samplers, recommended", color=SAMPLERS, dashed=True),
                Series("trainers, recommended", color=TRAINERS, dashed=True),
            ),
        ),
        Graph(
            "Gain, predicted and measured",
            "What the best other split would save of the period, and what the last move was to save and has saved. Moves that gain less than "
            "predicted again and again mean a model that flatters one side.",
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
    ),
)

ALL = Section(
    "All jobs",
    (
        Graph(
            "Measured period, over the plan's, all jobs",
            "Measured over predicted, less one, of every job. One job that is off has a spec that does not describe it; all jobs off mean "
            "that the accelerator's defaults are.",
            [
                Query(
                    "max by (rljob_namespace, rljob_name) (rljob_operator_observed_period_seconds) "
                    "/ max by (rljob_namespace, rljob_name) (rljob_operator_predicted_period_seconds) - 1",
                    "{{rljob_namespace}}/{{rljob_name}}",
                )
            ],
            12,
            unit="percentunit",
            fill=0,
            thresholds=((None, "transparent"), (-0.15, YELLOW), (0.15, YELLOW)),
            limit_lines=True,
        ),
        Graph(
            "Time of a question to the planner",
            "Median and 99th percentile of what the planner is asked, over all jobs.",
            [
                Query(
                    f"histogram_quantile({q}, sum by (le) (rate(rljob_operator_plan_seconds_bucket[$__rate_interval])))",
                    name,
                )
                for q, name in ((0.5, "median"), (0.99, "p99"))
            ],
            6,
            unit="s",
            minimum=0,
            series=(Series("median", color=BLUE), Series("p99", color=ORANGE)),
            empty="no question",
        ),
        Graph(
            "How busy the planner is",
            "Share of time in which the planner works. It has one thread: near 100 % decisions queue.",
            [Query("sum(rate(rljob_operator_plan_seconds_sum[$__rate_interval]))", "busy")],
            6,
            unit="percentunit",
            minimum=0,
            maximum=1,
            thresholds=((None, "transparent"), (0.8, RED)),
            limit_lines=True,
            series=(Series("busy", color=BLUE, fill=25),),
        ),
    ),
)

BOARD = Board(
    uid="rljob-planner",
    title="RLJob / Planner truth",
    description="Whether what the planner predicts of a job is what is then measured: period, staleness, gain and cost of moves.",
    sections=(NOW, PERIOD, SPEED, ALL),
    variables=JOB_VARIABLES,
    annotations=(MOVE_MARKS,),
)
