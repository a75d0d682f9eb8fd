"""What a job's status says, as series: enough that a dashboard tells why the last move was made without asking the API server.

They repeat the status and nothing else, so that a graph and ``kubectl describe`` can't contradict each other. A quantity that is unknown has
no series. Of the states that exclude each other (phases, the last move) only the one that holds has a series: an old one would have to be
told from a true one by its value, and a reader of a graph sees names before values.
"""

from __future__ import annotations

from collections.abc import Mapping

from prometheus_client import CollectorRegistry, Gauge

from rljob_operator.last_move import LastMove, last_move
from rljob_planner.api.spec import RLJobSpec
from rljob_planner.api.status import ObservedStatus, PlanStatus, RLJobStatus
from rljob_planner.split import Split

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
            "placeable": gauge(
                "placeable_gpus", "GPUs of the budget that the nodes could hold when it was planned last"
            ),
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
                "at",
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
    residual = None if status.calibration is None else status.calibration.residual
    return {
        "phase": {(status.phase.value,): 1.0},
        "steps": {ALONE: spec.workload.steps},
        "limit": {ALONE: spec.staleness.max},
        "residual": {ALONE: residual},
        **_of_split(status.split),
        **_of_plan(status.plan),
        **_of_observed(status.observed),
    }


def _of_split(split: Split | None) -> dict[str, Values]:
    if split is None:
        return {"split_replicas": {}, "split_gpus": {}, "cap": {}}
    samplers, trainers = split.samplers, split.trainers
    return {
        "split_replicas": {("samplers",): samplers.replicas, ("trainers",): trainers.replicas},
        "split_gpus": {("samplers",): samplers.gpus, ("trainers",): trainers.gpus},
        "cap": {ALONE: split.in_flight},
    }


def _of_plan(plan: PlanStatus | None) -> dict[str, Values]:
    if plan is None:
        return {"placeable": {}, "expected_staleness": {}, "expected_period": {}}
    staleness = plan.staleness
    return {
        "placeable": {ALONE: plan.placeable_gpus},
        "expected_staleness": {("mean",): staleness.mean, ("p95",): staleness.p95, ("max",): staleness.max},
        "expected_period": {("0.1",): plan.period.p10, ("0.9",): plan.period.p90},
    }


def _of_observed(observed: ObservedStatus | None) -> dict[str, Values]:
    if observed is None:
        return {"version": {}, "staleness": {}, "tokens": {}}
    return {
        "version": {ALONE: observed.policy_version},
        "staleness": {("mean",): observed.staleness_mean, ("max",): observed.staleness_max},
        "tokens": {ALONE: observed.response_tokens_mean},
    }


def _of_move(move: LastMove) -> dict[str, Values]:
    return {
        "move": {(move.left, move.to, move.cause, move.outcome, move.reason): 1.0},
        "move_time": {ALONE: move.at_s},
        "move_gain": {("predicted",): move.predicted_gain, ("measured",): move.measured_gain},
        "move_saving": {ALONE: move.saving_s},
        "move_cost": {("predicted",): move.predicted_cost_s, ("measured",): move.measured_cost_s},
    }
