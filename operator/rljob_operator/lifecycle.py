"""How many pods a job should have, over its whole life: started, moved, suspended, complete. Pure.

A job that stops (suspended, or complete) first drains its samplers, then gives up all GPUs. Whether it has drained is read from the
metrics, so it could seem otherwise again later; the workloads that were scaled to zero are the memory that it had.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from rljob_operator import gate, rebalance
from rljob_operator.readings import Telemetry
from rljob_operator.rebalance import Targets
from rljob_planner.api.spec import RLJobSpec
from rljob_planner.api.status import Phase, RLJobStatus

Workloads = tuple[Mapping[str, Any] | None, Mapping[str, Any] | None]
"""The samplers' and the trainers' workload as the API server shows them."""

NOTHING = Targets(0, 0)


def stopping(spec: RLJobSpec, status: RLJobStatus) -> bool:
    """Whether the job should give up its GPUs."""
    return spec.suspend or status.phase is Phase.COMPLETE


def targets_of(
    spec: RLJobSpec,
    status: RLJobStatus,
    pods: Iterable[gate.Pod],
    telemetry: Telemetry | None,
    workloads: Workloads,
    now_s: float,
) -> Targets | None:
    """The replicas that both workloads should have now; None while there is no split to make them from."""
    if status.split is None:
        return None
    if not stopping(spec, status):
        return rebalance.targets(status.split, status.rebalance)
    samplers, trainers = (None if each is None else int(each["spec"].get("replicas", 1)) for each in workloads)
    if not samplers and not trainers:
        return NOTHING
    if has_drained(spec, status, pods, telemetry, now_s):
        return NOTHING
    return Targets(samplers or 0, trainers or 0)


def has_drained(
    spec: RLJobSpec, status: RLJobStatus, pods: Iterable[gate.Pod], telemetry: Telemetry | None, now_s: float
) -> bool:
    """Whether a stopping job's samplers run nothing any more, or have had their drain timeout.

    Only metrics read after the stop count: before it the framework was still submitting.
    """
    if status.stopping_since is None:
        return False
    since_s = rebalance.epoch_s(status.stopping_since)
    if now_s > since_s + spec.sampler.drain_timeout_s:
        return True
    names = [gate.name_of(pod) for pod in pods if gate.role_of(pod) == gate.SAMPLER and gate.is_ready(pod)]
    if not names:
        return True
    if telemetry is None or telemetry.at <= since_s:
        return False
    running = telemetry.running_by_pod
    return all(name in running and running[name].value == 0 for name in names)
