"""How many pods a job should have, over its whole life: started, moved, suspended, complete. Pure.

A job that stops (suspended, or complete) first drains its samplers, then gives up all GPUs. Whether it has drained is read from the
metrics, so it could seem otherwise again later; the workloads that were scaled to zero are the memory that it had.

A job that is suspended is then asked for a checkpoint, since it will go on; not before, since what is trained after a checkpoint is
lost. Both are waited for only as long as there is something to wait for: where no metric tells what runs, that is the time that
the stalest sample is expected to take, and not the drain timeout.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from rljob_operator import gate, planning, rebalance
from rljob_operator.observation import epoch_s, some, timestamp
from rljob_operator.readings import Telemetry
from rljob_operator.rebalance import Targets
from rljob_operator.waits import LAYOUT_LAG_S
from rljob_planner.api.spec import RLJobSpec
from rljob_planner.api.status import Phase, RLJobStatus

Workloads = tuple[Mapping[str, Any] | None, Mapping[str, Any] | None]
"""The samplers' and the trainers' workload as the API server shows them."""

NOTHING = Targets(0, 0)

CHECKPOINT_S = 300.0
"""Longest time that a suspended job's checkpoint is waited for."""


def stopping(spec: RLJobSpec, status: RLJobStatus) -> bool:
    """Whether the job should give up its GPUs."""
    return spec.suspend or status.phase is Phase.COMPLETE


def wants_checkpoint(spec: RLJobSpec, status: RLJobStatus) -> bool:
    """Whether the layout of a job that stops asks for a checkpoint: one that is complete has none to come back to."""
    return spec.suspend and status.phase is not Phase.COMPLETE and status.drained_since is not None


def resumes(spec: RLJobSpec, status: RLJobStatus) -> bool:
    """Whether a complete job has to go on, because its steps were raised above those that it made.

    Of a job that completed under an earlier version of the operator nobody knows how many those are: it stays complete.
    """
    done = status.completed_version
    return status.phase is Phase.COMPLETE and done is not None and spec.workload.steps > done


def targets_of(
    spec: RLJobSpec,
    status: RLJobStatus,
    pods: Iterable[gate.Pod],
    telemetry: Telemetry | None,
    workloads: Workloads,
    now_s: float,
) -> Targets | None:
    """The replicas that both workloads should have now; None while there is no split to make them from, or none that the spec allows."""
    pods = tuple(pods)
    if status.split is None or _outdated(spec, status, pods, workloads):
        return None
    if not stopping(spec, status):
        return _above_minima(spec, status, rebalance.targets(status.split, status.rebalance), workloads)
    samplers, trainers = (None if each is None else int(each["spec"].get("replicas", 1)) for each in workloads)
    if not samplers and not trainers:
        return NOTHING
    if has_drained(spec, status, pods, telemetry, now_s):
        return NOTHING
    return Targets(samplers or 0, trainers or 0)


def _outdated(spec: RLJobSpec, status: RLJobStatus, pods: tuple[gate.Pod, ...], workloads: Workloads) -> bool:
    """Whether the spec was edited after the first plan and before anything was made of it, so that the split breaks it.

    Then nothing of that split is made: there is nothing to move yet, and another plan costs nothing. Later the split in force stays
    until a move has left it.
    """
    started = status.phase not in (Phase.PENDING, Phase.PLANNED, Phase.STARTING) or status.rebalance is not None
    if started or stopping(spec, status) or status.split is None or pods or any(workloads):
        return False
    return bool(planning.violations(spec, status.split))


def _above_minima(spec: RLJobSpec, status: RLJobStatus, wished: Targets, workloads: Workloads) -> Targets:
    """The replicas wished, without a scale-down below a minimum.

    A pass acts on what is persisted before it looks, and a minimum may have been raised since: what is there then stays until the look
    has taken a new way. Trainers that restart all go before any comes again.
    """
    restarts = status.rebalance is not None and status.rebalance.restart
    samplers, trainers = (0 if each is None else int(each["spec"].get("replicas", 1)) for each in workloads)
    return Targets(
        max(wished.samplers, min(samplers, spec.sampler.min_replicas)),
        wished.trainers if restarts else max(wished.trainers, min(trainers, spec.trainer.min_replicas)),
    )


@dataclass(frozen=True)
class Stop:
    """How far a job that stops has come."""

    done: bool
    """Whether its pods may go."""
    words: str = ""
    """What it waits for and until when; empty if it is done."""


DONE = Stop(done=True)


def has_drained(
    spec: RLJobSpec, status: RLJobStatus, pods: Iterable[gate.Pod], telemetry: Telemetry | None, now_s: float
) -> bool:
    """Whether a stopping job's samplers run nothing any more, or have had their time."""
    return stop_of(spec, status, pods, telemetry, now_s).done


def stop_of(
    spec: RLJobSpec, status: RLJobStatus, pods: Iterable[gate.Pod], telemetry: Telemetry | None, now_s: float
) -> Stop:
    """How far a stopping job has come: its samplers drain, then its checkpoint is written, then it is done.

    Only metrics read after the stop count: before it the framework was still submitting.
    """
    if status.stopping_since is None:
        return Stop(False, "the stop to be written down")
    pods = tuple(pods)
    fresh = telemetry if telemetry is not None and _after(telemetry, status.stopping_since) else None
    return _samplers(spec, status, pods, fresh, now_s) or _checkpoint(spec, status, pods, fresh, now_s) or DONE


def drained_since(
    spec: RLJobSpec, status: RLJobStatus, pods: Iterable[gate.Pod], telemetry: Telemetry | None, now_s: float
) -> str | None:
    """Since when a stopping job's samplers run nothing, as it should stand in the status."""
    if status.drained_since is not None or status.stopping_since is None:
        return status.drained_since
    fresh = telemetry if telemetry is not None and _after(telemetry, status.stopping_since) else None
    return timestamp(now_s) if _samplers(spec, status, tuple(pods), fresh, now_s) is None else None


def _samplers(
    spec: RLJobSpec, status: RLJobStatus, pods: tuple[gate.Pod, ...], telemetry: Telemetry | None, now_s: float
) -> Stop | None:
    """The wait for samplers that run something or may; None if there is none."""
    if status.drained_since is not None:
        return None
    assert status.stopping_since is not None
    since_s = epoch_s(status.stopping_since)
    if now_s > since_s + spec.sampler.drain_timeout_s:
        return None
    names = _ready(pods, gate.SAMPLER)
    running = {} if telemetry is None else {name: r.value for name, r in telemetry.running_by_pod.items()}
    busy = [f"{name} ({running[name]:.0f} running)" for name in names if (running.get(name) or 0) > 0]
    if busy:
        end = timestamp(since_s + spec.sampler.drain_timeout_s)
        return Stop(
            False,
            f"samplers to finish their samples: {some(busy)}; at {end} (sampler.drainTimeout {spec.sampler.drain_timeout}) they go "
            "all the same. If a count does not fall, check that the framework gives draining pods nothing new",
        )
    unknown = [name for name in names if running.get(name) is None]
    blind_s = since_s + blind_drain_s(spec, status)
    if not unknown or now_s > blind_s:
        return None
    return Stop(
        False,
        f"samplers to finish what no metric shows: {some(unknown)}; they go at {timestamp(blind_s)}, by when the stalest sample should "
        "have ended. With metrics they would go as soon as they run nothing: see the condition MetricsAvailable",
    )


def _checkpoint(
    spec: RLJobSpec, status: RLJobStatus, pods: tuple[gate.Pod, ...], telemetry: Telemetry | None, now_s: float
) -> Stop | None:
    """The wait for a checkpoint; None if none is wanted, it is written, or it has had its time."""
    if not spec.suspend or status.phase is Phase.COMPLETE or not _ready(pods, gate.TRAINER):
        return None
    if status.drained_since is None:
        return Stop(False, "the drain to be written down")
    got = None if telemetry is None else telemetry.layout_generation.value
    since_s = epoch_s(status.drained_since)
    # The layout that asks for it comes after the one that drained.
    asked = telemetry is not None and _after(telemetry, status.drained_since) and got is not None
    blind_s = min(spec.sampler.drain_timeout_s, LAYOUT_LAG_S + (_period_s(status) or 0.0))
    end_s = since_s + (CHECKPOINT_S if got is not None else min(CHECKPOINT_S, blind_s))
    if (asked and got is not None and got >= status.layout_generation) or now_s > end_s:
        return None
    seen = "which no metric shows" if got is None else f"it is at {got}"
    return Stop(
        False,
        f"the trainer to write a checkpoint and then acknowledge layout generation {status.layout_generation} ({seen}); "
        f"at {timestamp(end_s)} it goes all the same",
    )


def _after(telemetry: Telemetry, since: str) -> bool:
    """Whether metrics were read after a moment; not in the same pass, whose time is written to the microsecond."""
    return telemetry.at > epoch_s(since) + 0.001


def blind_drain_s(spec: RLJobSpec, status: RLJobStatus) -> float:
    """How long a drain takes at most where no metric shows it, in seconds, never over the drain timeout.

    The stalest sample lives for as many periods as it is stale, and the one in which it is trained; before that the job has to see
    its layout.
    """
    longest_s = spec.sampler.drain_timeout_s
    if status.plan is None:
        return longest_s
    return min(longest_s, LAYOUT_LAG_S + (1.0 + status.plan.staleness.max) * (_period_s(status) or 0.0))


def _period_s(status: RLJobStatus) -> float | None:
    """The period as measured last, else a long one of the plan."""
    seen = None if status.observed is None else status.observed.period_seconds
    return status.plan.period.p90 if seen is None and status.plan is not None else seen


def _ready(pods: Iterable[gate.Pod], role: str) -> list[str]:
    return [gate.name_of(pod) for pod in pods if gate.role_of(pod) == role and gate.is_ready(pod)]
