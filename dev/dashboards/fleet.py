"""All jobs at a glance, and the operator itself: where to look first."""

from __future__ import annotations

from dev.dashboards.board import Board, Section, Variable
from dev.dashboards.panels import (
    BLUE,
    GREEN,
    GREY,
    ORANGE,
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
)
from dev.dashboards.words import CODE_NAMES, PHASE_NAMES, decisions, phases

OF = 'rljob_namespace=~"$namespace"'
RATE = "[$__rate_interval]"
MEAN, MOVING = ',stat="mean"', ',phase="Rebalancing"'
"""More of a selector."""

JOB_LINK = "/d/rljob-job/?var-namespace=${__data.fields.Namespace}&var-job=${__data.fields.RLJob}&${datasource:queryparam}&${__url_time_range}"


def each(name: str, more: str = "", labels: str = "") -> str:
    """One of the operator's gauges, a series a job."""
    return f"max by (rljob_namespace, rljob_name{labels}) (rljob_operator_{name}{{{OF}{more}}})"


def operators(name: str, of: str = "") -> str:
    """What Prometheus has of the operator's process, which is known by the series that only it has."""
    return f"{name}{of} and on (instance, job) rljob_operator_leader"


NOW = Section(
    "Now",
    (
        Stat(
            "RLJobs",
            "RLJobs that the operator knows, in all namespaces.",
            [Query("max(rljob_operator_jobs)")],
            3,
            unit="none",
            color=BLUE,
            plain=True,
        ),
        Stat(
            "GPUs held",
            "GPUs that pods of RLJobs hold now, and what the jobs may hold together.",
            [Query(f"sum({each('held_gpus')})", "held"), Query(f"sum({each('budget_gpus')})", "budget")],
            5,
            unit="none",
            both=True,
            plain=True,
            series=(Series("held", color=GREEN), Series("budget", color=GREY)),
        ),
        Stat(
            "In a move",
            "Jobs whose split is being changed now.",
            [Query(f"count({each('phase', MOVING)}) or vector(0)")],
            3,
            unit="none",
            color=BLUE,
            plain=True,
        ),
        Stat(
            "Wait",
            "Jobs that wait for GPUs, or for those before them to plan.",
            [Query("max(rljob_operator_waiting_jobs)")],
            3,
            unit="none",
            thresholds=((None, GREEN), (1, YELLOW)),
        ),
        Stat(
            "Without metrics",
            "Jobs of which something is unknown that decisions need: nothing is resized there.",
            [Query(f"count({each('metrics_available')} == 0) or vector(0)")],
            3,
            unit="none",
            thresholds=((None, GREEN), (1, YELLOW)),
        ),
        Stat(
            "Over their staleness",
            "Jobs whose staleness is clearly above spec.staleness.max: their condition WithinStaleness is False.",
            [
                Query(
                    f'count(max by (rljob_namespace, rljob_name) (rljob_operator_condition{{{OF},condition="WithinStaleness"}}) == 0) '
                    "or vector(0)"
                )
            ],
            4,
            unit="none",
            thresholds=((None, GREEN), (1, RED)),
        ),
        Stat(
            "Over budget, ever",
            "Times that a job's pods were seen to hold more GPUs than its budget, since the operator started. It must be 0.",
            [Query(f"sum(rljob_operator_budget_violations_total{{{OF}}}) or vector(0)")],
            3,
            unit="none",
            thresholds=((None, GREEN), (1, RED)),
        ),
    ),
)

JOBS = Section(
    "Jobs",
    (
        Table(
            "All jobs",
            "One line a job; its name leads to its own dashboard. Gain is what the best other split would save of the period, empty if none is "
            "better.",
            [
                Query(each("phase", labels=", phase"), instant=True),
                Query(f"{each('decision_code', labels=', code')} == 1", instant=True),
                Query(each("held_gpus"), instant=True),
                Query(each("budget_gpus"), instant=True),
                Query(each("split_gpus", ',side="samplers"'), instant=True),
                Query(each("split_gpus", ',side="trainers"'), instant=True),
                Query(each("observed_period_seconds"), instant=True),
                Query(each("predicted_period_seconds"), instant=True),
                Query(
                    f"{each('observed_staleness_versions', MEAN)} / {each('staleness_limit_versions')}", instant=True
                ),
                Query(each("predicted_gain_ratio"), instant=True),
                Query(f"{each('policy_version')} / {each('steps')}", instant=True),
            ],
            24,
            7,
            columns=(
                Column("Namespace", "rljob_namespace", width=130),
                Column("RLJob", "rljob_name", width=150, link=("This job", JOB_LINK)),
                Column("Phase", "phase", width=120, mappings=[PHASE_NAMES], coloured=True),
                Column("Last decision", "code", width=150, mappings=[CODE_NAMES], coloured=True),
                Column("GPUs held", "Value #C", unit="none", width=100),
                Column("Budget", "Value #D", unit="none", width=90),
                Column("Samplers", "Value #E", unit="none", width=95),
                Column("Trainers", "Value #F", unit="none", width=95),
                Column("Period", "Value #G", unit="s", decimals=2, width=100),
                Column("Predicted", "Value #H", unit="s", decimals=2, width=100),
                Column(
                    "Staleness of limit",
                    "Value #I",
                    unit="percentunit",
                    decimals=0,
                    width=140,
                    thresholds=((None, GREEN), (1.05, RED)),
                ),
                Column("Gain", "Value #J", unit="percentunit", decimals=1, width=90),
                Column("Run", "Value #K", unit="percentunit", decimals=1),
            ),
            sort_by="RLJob",
        ),
        Graph(
            "GPUs",
            "What the jobs' pods hold, a job on the other, below the sum of the budgets and what nodes could hold of them.",
            [
                Query(each("held_gpus"), "{{rljob_namespace}}/{{rljob_name}}"),
                Query(f"sum({each('budget_gpus')})", "budgets"),
                Query(f"sum({each('placeable_gpus')})", "placeable"),
            ],
            12,
            unit="none",
            axis="GPUs",
            minimum=0,
            steps=True,
            stacked=True,
            fill=45,
            series=(
                Series("budgets", color=RED, dashed=True, fill=0, stacked=False),
                Series("placeable", color=GREY, dashed=True, fill=0, width=1, stacked=False),
            ),
        ),
        Graph(
            "Split",
            "GPUs of the samplers and of the trainers of all jobs.",
            [Query(f"sum by (side) ({each('split_gpus', labels=', side')})", "{{side}}")],
            12,
            unit="none",
            axis="GPUs",
            minimum=0,
            steps=True,
            stacked=True,
            fill=55,
            series=(Series("samplers", color=SAMPLERS), Series("trainers", color=TRAINERS)),
        ),
        Graph(
            "Jobs by phase",
            "How many jobs are in which phase of their life.",
            [Query(f"count by (phase) ({each('phase', labels=', phase')})", "{{phase}}")],
            8,
            unit="none",
            decimals=0,
            minimum=0,
            bars=True,
            stacked=True,
            legend_values=(),
            series=phases(),
        ),
        Graph(
            "Jobs by their last decision",
            "Which reason code the newest decision of how many jobs has. Blue acts, green is content, yellow waits, purple may not, red needs a "
            "look.",
            [Query(f"count by (code) ({each('decision_code', labels=', code')} == 1)", "{{code}}")],
            8,
            unit="none",
            decimals=0,
            minimum=0,
            bars=True,
            stacked=True,
            legend_values=(),
            series=decisions(),
        ),
        Graph(
            "Moves",
            "Moves that have ended, since the operator started, by outcome. Many that are rolled back mean pods that don't come, or trainers that "
            "don't acknowledge.",
            [Query(f"sum by (outcome) (rljob_operator_moves_total{{{OF}}})", "{{outcome}}")],
            8,
            unit="none",
            decimals=0,
            minimum=0,
            steps=True,
            series=(Series("Committed", color=GREEN, fill=20), Series("RolledBack", color=RED, fill=20)),
        ),
        Graph(
            "Period of each job",
            "Seconds between two policy versions, as measured.",
            [Query(each("observed_period_seconds"), "{{rljob_namespace}}/{{rljob_name}}")],
            8,
            unit="s",
            minimum=0,
        ),
        Graph(
            "Gain that each job could have",
            "Share of the period that the best other split would save. One that stays high is a job that may not move: see its last decision.",
            [Query(each("predicted_gain_ratio"), "{{rljob_namespace}}/{{rljob_name}}")],
            8,
            unit="percentunit",
            minimum=0,
            empty="no job has a better split",
        ),
        Graph(
            "Staleness, of its limit",
            "Mean staleness of trained samples as a share of spec.staleness.max.",
            [
                Query(
                    f"{each('observed_staleness_versions', MEAN)} / {each('staleness_limit_versions')}",
                    "{{rljob_namespace}}/{{rljob_name}}",
                )
            ],
            8,
            unit="percentunit",
            minimum=0,
            thresholds=((None, "transparent"), (1.0, RED)),
            limit_lines=True,
        ),
    ),
)

OPERATOR = Section(
    "The operator",
    (
        Graph(
            "Time of a pass",
            "Median and 99th percentile of the time that a pass over a job takes. Above 2 s the API server or the operator is too slow.",
            [
                Query(
                    f"histogram_quantile({q}, sum by (le) (rate(rljob_operator_reconcile_seconds_bucket{RATE})))", name
                )
                for q, name in ((0.5, "median"), (0.99, "p99"))
            ],
            8,
            unit="s",
            minimum=0,
            thresholds=((None, "transparent"), (2.0, RED)),
            limit_lines=True,
            series=(Series("median", color=BLUE), Series("p99", color=ORANGE)),
        ),
        Graph(
            "Passes and what waits for one",
            "Passes a second, and the jobs that something has happened to and whose pass has not begun. If those stay high, passes don't keep up.",
            [
                Query(f"sum(rate(rljob_operator_reconcile_seconds_count{RATE}))", "passes/s"),
                Query(f"sum(rate(rljob_operator_reconcile_errors_total{{{OF}}}{RATE})) or vector(0)", "failed/s"),
                Query("max(rljob_operator_woken_jobs)", "jobs that wait"),
            ],
            8,
            unit="none",
            decimals=1,
            minimum=0,
            series=(
                Series("passes/s", color=BLUE),
                Series("failed/s", color=RED),
                Series("jobs that wait", color=YELLOW),
            ),
        ),
        Graph(
            "How busy the planner is",
            "Share of time in which the planner works. It has one thread: near 100 % decisions queue.",
            [Query(f"sum(rate(rljob_operator_plan_seconds_sum{RATE}))", "busy")],
            8,
            unit="percentunit",
            minimum=0,
            maximum=1,
            thresholds=((None, "transparent"), (0.8, RED)),
            limit_lines=True,
            series=(Series("busy", color=BLUE, fill=25),),
        ),
        Graph(
            "Requests to the API server",
            "Requests a second by HTTP status; 0 means that no answer came. 409 is ordinary now and then, 429 and 5xx are not.",
            [Query(f"sum by (code) (rate(rljob_operator_api_requests_total{RATE}))", "{{code}}")],
            8,
            unit="reqps",
            minimum=0,
            fill=15,
            series=(
                Series("/^2/", color=GREEN),
                Series("/^409$/", color=YELLOW),
                Series("/^404$/", color=TEAL),
                Series("/^(0|429|5..)$/", color=RED),
            ),
        ),
        Graph(
            "Memory and processor",
            "What the operator's process takes: resident memory, and cores at the right.",
            [
                Query(operators("process_resident_memory_bytes"), "memory"),
                Query(f"rate(process_cpu_seconds_total{RATE}) and on (instance, job) rljob_operator_leader", "cores"),
            ],
            8,
            unit="bytes",
            minimum=0,
            series=(Series("/memory/", color=BLUE, fill=15), Series("/cores/", color=ORANGE, unit="none", fill=0)),
        ),
        Graph(
            "Replicas that lead",
            "It must be 1: with 0 nobody decides, with 2 they get in each other's way, though the budget holds.",
            [
                Query("sum(rljob_operator_leader)", "leaders"),
                Query("sum(rljob_operator_takeovers_total)", "take-overs"),
            ],
            8,
            unit="none",
            decimals=0,
            minimum=0,
            steps=True,
            series=(Series("leaders", color=GREEN, fill=15), Series("take-overs", color=ORANGE)),
        ),
    ),
)

BOARD = Board(
    uid="rljob-fleet",
    title="RLJob / Fleet",
    description="All RLJobs at a glance, and the operator itself: where to look first.",
    sections=(NOW, JOBS, OPERATOR),
    variables=(
        Variable("namespace", "Namespace", "label_values(rljob_operator_budget_gpus, rljob_namespace)", several=True),
    ),
)
