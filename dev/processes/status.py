"""The status of a pod from the states of its containers; pure."""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Json = Mapping[str, Any]


def now() -> str:
    """The time as the API writes it."""
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


@dataclass
class ContainerState:
    """What is known of one container."""

    name: str
    image: str
    sidecar: bool = False
    """Whether it is an init container that goes on running (``restartPolicy: Always``)."""
    waiting: tuple[str, str] | None = ("PodInitializing", "")
    """Reason and message while it does not run and has not ended for good."""
    pid: int | None = None
    """Process id of its first process while it runs."""
    started_at: str | None = None
    exit_code: int | None = None
    """Exit code once it has ended for good."""
    reason: str = ""
    """Why it ended."""
    finished_at: str | None = None
    started: bool = False
    """Whether its startup probe has succeeded."""
    ready: bool = False
    restarts: int = 0
    last: dict[str, Any] = field(default_factory=dict)
    """The end before, as the API has it."""

    @property
    def running(self) -> bool:
        """Whether it runs now."""
        return self.pid is not None

    @property
    def ended(self) -> bool:
        """Whether it has ended for good."""
        return self.exit_code is not None and not self.running and self.waiting is None

    def to_api(self) -> dict[str, Any]:
        """The entry of ``containerStatuses``."""
        state: dict[str, Any]
        if self.running:
            state = {"running": {"startedAt": self.started_at}}
        elif self.waiting is not None:
            reason, message = self.waiting
            state = {"waiting": {"reason": reason, **({"message": message} if message else {})}}
        else:
            state = self.end()
        entry = {
            "name": self.name,
            "image": self.image,
            "imageID": "",
            "state": state,
            "lastState": self.last,
            "ready": self.ready,
            "started": self.started,
            "restartCount": self.restarts,
        }
        if self.pid is not None:
            entry["containerID"] = f"process://{self.pid}"
        return entry

    def end(self) -> dict[str, Any]:
        """Its end as the API has it."""
        ended = {
            "exitCode": self.exit_code,
            "reason": self.reason,
            "startedAt": self.started_at,
            "finishedAt": self.finished_at,
        }
        return {"terminated": ended}


def pod_phase(init: Sequence[ContainerState], main: Sequence[ContainerState]) -> str:
    """The pod's phase (``Pending``, ``Running``, ``Succeeded`` or ``Failed``)."""
    if any(c.ended and c.exit_code != 0 for c in init if not c.sidecar):
        return "Failed"
    if all(c.ended for c in main):
        return "Succeeded" if all(c.exit_code == 0 for c in main) else "Failed"
    if any(c.running or c.ended or c.restarts for c in main):
        return "Running"
    return "Pending"


def pod_status(
    pod: Json, init: Sequence[ContainerState], main: Sequence[ContainerState], address: str, started_at: str
) -> dict[str, Any]:
    """The part of ``status`` that a kubelet owns, its conditions with the times of those that have not changed."""
    status = pod.get("status") or {}
    phase = pod_phase(init, main)
    done = phase in ("Succeeded", "Failed")
    initialized = all((c.started if c.sidecar else c.exit_code == 0) for c in init)
    unready = [c.name for c in [*(c for c in init if c.sidecar), *main] if not c.ready]
    gates = [gate["conditionType"] for gate in pod["spec"].get("readinessGates") or ()]
    given = {c["type"]: c for c in status.get("conditions") or ()}
    closed = [gate for gate in gates if given.get(gate, {}).get("status") != "True"]
    not_ready = ("PodCompleted", "") if done else ("ContainersNotReady", f"containers with unready status: {unready}")
    containers_ready = not unready and not done
    wanted = {
        "PodReadyToStartContainers": (True, "", ""),
        "Initialized": (initialized or done, "ContainersNotInitialized", ""),
        "ContainersReady": (containers_ready, *not_ready),
        "Ready": (
            containers_ready and not closed,
            *(("ReadinessGatesNotReady", f"gates that are not open: {closed}") if containers_ready else not_ready),
        ),
    }
    return {
        "phase": phase,
        "hostIP": "127.0.0.1",
        "hostIPs": [{"ip": "127.0.0.1"}],
        "podIP": address,
        # Without the directive it would be added to an address that the pod had before.
        "podIPs": [{"$patch": "replace"}, {"ip": address}],
        "startTime": started_at,
        "qosClass": status.get("qosClass", "BestEffort"),
        "conditions": [_condition(given.get(kind), kind, *said) for kind, said in wanted.items()],
        "initContainerStatuses": [c.to_api() for c in init],
        "containerStatuses": [c.to_api() for c in main],
    }


def _condition(old: Json | None, kind: str, true: bool, reason: str, message: str) -> dict[str, Any]:
    value = "True" if true else "False"
    same = old is not None and old["status"] == value
    return {
        "type": kind,
        "status": value,
        # Null takes the words of an earlier state away.
        "reason": None if true else reason,
        "message": None if true else message,
        "lastTransitionTime": old["lastTransitionTime"] if same and old is not None else now(),
        "lastProbeTime": None,
    }
