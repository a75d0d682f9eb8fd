"""What a job's status says, as series: enough that a dashboard tells why the last move was made without asking the API server.

They repeat the status and nothing else, so that a graph and ``kubectl describe`` can't contradict each other. A quantity that is unknown has
no series. Of the states that exclude each other (phases, the last move) only the one that holds has a series: an old one would have to be
told from a true one by its value, and a reader of a graph sees names before values.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from prometheus_client import CollectorRegistry, Gauge

from rljob_operator.last_move import LastMove, last_move
from rljob_planner.api.spec import RLJobSpec
from rljob_planner.api.status import RLJobStatus

JOB = ("rljob_namespace", "rljob_name")

Key = tuple[str, str]
Labels = tuple[str, ...]
Values = Mapping[Labels, float | None]

ALONE: Labels = ()
"""The labels of a series that is the job's only one under its name."""


class JobSeries:
    """Registers and feeds the series of all jobs that repeat their status; jobs are named by namespace and name."""

    def __init__(self, registry: CollectorRegistry) -> None:
        """Register in ``registry``."""

        def gauge(name: str, text: str, *labels: str) -> Gauge:
            return Gauge(f"rljob_operator_{name}", text, (*JOB, *labels), registry=registry)

        self._gauges = {
            "phase": gauge("phase", "1 for the phase that the job is in; the others have no series", "phase"),
            "split_replicas": gauge("split_replicas", "Replicas of the split in force", "side"),
            "split_gpus": gauge("split_gpus", "GPUs of the split in force", "side"),
            "cap": gauge("inflight_cap_samples", "Cap on samples in flight that the split in force has"),
            "placeable": gauge("placeable_gpus", "GPUs of the budget that the nodes could hold when it was planned last"),
            "steps": gauge("steps", "Steps of the whole run, as the spec says"),
            "version": gauge("policy_version", "Policy version published last"),
            "limit": gauge("staleness_limit_versions", "Largest staleness that the spec allows, in policy versions"),
            "staleness": gauge(
                "observed_staleness_versions", "Staleness of trained samples, in policy versions", "stat"
            ),
            "expected_staleness": gauge(
                "predicted_staleness_versions",
                "Staleness that the planner predicts for the plan in force, in policy versions",
                "stat",
            ),
            "expected_period": gauge(
                "predicted_period_quantile_seconds",
                "Quantiles of the period that the planner predicts for the plan in force",
                "quantile",
            ),
            "tokens": gauge(
                "observed_response_tokens", "Mean response length, corrected for the samples that still run"
            ),
            "residual": gauge(
                "calibration_residual_ratio", "Relative error that is left after calibration: how far to trust the plan"
            ),
            "move": gauge(
                "last_move_info",
                "1; the labels say from where to where the last move led, what for, how it ended and why it was made",
                "from",
                "to",
                "cause",
                "outcome",
                "reason",
            ),
            "move_time": gauge(
                "last_move_timestamp_seconds",
                "When the last move ended, or began if it is under way, in seconds since the epoch",
            ),
            "move_gain": gauge(
                "last_move_gain_ratio",
                "Fraction of the period that the last move was to save (predicted) and has saved (measured)",
                "kind",
            ),
            "move_saving": gauge(
                "last_move_saving_seconds", "What the last move was to save over the steps that remained"
            ),
            "move_cost": gauge(
                "last_move_cost_seconds",
                "Lost progress that the last move was to cost (predicted) and has cost (measured)",
                "kind",
            ),
        }
        self._shown: dict[Key, dict[str, set[Labels]]] = {}

    def report(self, namespace: str, name: str, spec: RLJobSpec, status: RLJobStatus) -> None:
        """Brings the series of a job up to its status."""
        key = (namespace, name)
        for which, values in _of_status(spec, status).items():
            self._show(key, which, values)
        move = last_move(status)
        # A status keeps ten decisions: what they have pushed out stays as it was told.
        if move is not None:
            for which, values in _of_move(move).items():
                self._show(key, which, values)

    def forget(self, namespace: str, name: str) -> None:
        """Remove every series of a job that is gone."""
        key = (namespace, name)
        for which, shown in self._shown.pop(key, {}).items():
            for labels in shown:
                self._gauges[which].remove(*key, *labels)

    def _show(self, key: Key, which: str, values: Values) -> None:
        gauge, shown = self._gauges[which], self._shown.setdefault(key, {}).setdefault(which, set())
        known = {labels: value for labels, value in values.items() if value is not None}
        for labels in shown - known.keys():
            gauge.remove(*key, *labels)
        for labels, value in known.items():
            gauge.labels(*key, *labels).set(value)
        shown.clear()
        shown.update(known)


def _of_status(spec: RLJobSpec, status: RLJobStatus) -> dict[str, Values]:
    split, plan, observed = status.split, status.plan, status.observed
    return {
        "phase": {(status.phase.value,): 1.0},
        "split_replicas": _sides(split and split.samplers.replicas, split and split.trainers.replicas),
        "split_gpus": _sides(split and split.samplers.gpus, split and split.trainers.gpus),
        "cap": {ALONE: None if split is None else split.in_flight},
        "placeable": {ALONE: None if plan is None else plan.placeable_gpus},
        "steps": {ALONE: spec.workload.steps},
        "version": {ALONE: None if observed is None else observed.policy_version},
        "limit": {ALONE: spec.staleness.max},
        "staleness": _named(
            [("mean", observed and observed.staleness_mean), ("max", observed and observed.staleness_max)]
        ),
        "expected_staleness": _named(
            [
                ("mean", plan and plan.staleness.mean),
                ("p95", plan and plan.staleness.p95),
                ("max", plan and plan.staleness.max),
            ]
        ),
        "expected_period": _named([("0.1", plan and plan.period.p10), ("0.9", plan and plan.period.p90)]),
        "tokens": {ALONE: None if observed is None else observed.response_tokens_mean},
        "residual": {ALONE: None if status.calibration is None else status.calibration.residual},
    }


def _of_move(move: LastMove) -> dict[str, Values]:
    return {
        "move": {(move.left, move.to, move.cause, move.outcome, move.reason): 1.0},
        "move_time": {ALONE: move.at_s},
        "move_gain": _named([("predicted", move.predicted_gain), ("measured", move.measured_gain)]),
        "move_saving": {ALONE: move.saving_s},
        "move_cost": _named([("predicted", move.predicted_cost_s), ("measured", move.measured_cost_s)]),
    }


def _sides(samplers: int | None, trainers: int | None) -> Values:
    return _named([("samplers", samplers), ("trainers", trainers)])


def _named(values: Iterable[tuple[str, float | None]]) -> Values:
    return {(name,): value for name, value in values}
