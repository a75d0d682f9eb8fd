"""The queries that the dashboards of a job share: what the operator says of it, and what its pods export."""

from __future__ import annotations

from dev.dashboards.board import Annotation, Variable

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


def once(series: str, function: str = "", over: str = "", more: str = "") -> str:
    """What each of the job's pods exports, once, however many of its ports are scraped; of a sampler, each of its engines.

    ``function`` over the window ``over``, such as a rate, is taken of the series first; ``more`` are further labels that stay.
    """
    apart = ", engine" if series.startswith("vllm:") else ""
    selected = f"{series}{{{PODS}}}{over}"
    return f"max by (pod{apart}{more}) ({f'{function}({selected})' if function else selected})"


def total(series: str, function: str = "", over: str = "") -> str:
    """The sum over all pods of the job of what each exports."""
    return f"sum({once(series, function, over)})"


def mean(histogram: str, over: str = WINDOW) -> str:
    """The mean of a histogram that the job's pods export."""
    return f"{total(f'{histogram}_sum', 'rate', over)} / {total(f'{histogram}_count', 'rate', over)}"


def quantile(q: float, histogram: str, over: str = WINDOW) -> str:
    """A quantile of a histogram that the job's pods export."""
    return f"histogram_quantile({q}, sum by (le) ({once(f'{histogram}_bucket', 'rate', over, ', le')}))"


def a_step(seconds: str) -> str:
    """What of a total in seconds falls on a training step, on average."""
    return f"{total(seconds, 'rate', WINDOW)} / {total('rljob_train_step_seconds_count', 'rate', WINDOW)}"
