"""What KWOK does in place of kubelets: the life of nodes and pods, as KWOK ``Stage`` documents.

Unlike KWOK's stock stages these hold no chance. A test that drains a pod needs to know when it is gone, so every
time is counted from a timestamp that the API server keeps (never from the moment KWOK happens to look, which each
update of the pod would postpone) and adjusted by annotations on the pod:

- ``dev.rljob.dev/start-delay``: from bound to Running and Ready (default 1 s);
- ``dev.rljob.dev/stop-delay``: from the request to delete until the containers have ended (default 1 s, and never
  beyond the grace period);
- ``dev.rljob.dev/hang-terminating: "true"``: stays Terminating until the annotation goes or the deletion is forced;
- ``dev.rljob.dev/complete-after``: from Running to Succeeded (default: runs for ever).

Durations are written as in Go: ``3s``, ``1m30s``, ``500ms``. API timestamps have whole seconds, so times hold to about
half a second.

As a kubelet does, a stage reports the address and the waiting containers first, then readiness; on termination first
the ended containers with a final phase, then the deletion.
"""

from __future__ import annotations

from typing import Any

import yaml

START_DELAY = "dev.rljob.dev/start-delay"
STOP_DELAY = "dev.rljob.dev/stop-delay"
HANG_TERMINATING = "dev.rljob.dev/hang-terminating"
COMPLETE_AFTER = "dev.rljob.dev/complete-after"
MACHINE_LOST = "dev.rljob.dev/machine-lost"
"""Annotation of a node and its pods (value ``true``) whose machine does nothing more."""
FAKE_NODE = "kwok.x-k8s.io/node"
"""Annotation of the nodes that KWOK runs (value ``fake``)."""

_FOREVER_MS = 30 * 24 * 3600 * 1000

# Turns a Go duration into seconds.
_SECONDS = 'def seconds: [scan("([0-9.]+)(h|ms|m|s)") | (.[0]|tonumber) * {"h":3600,"m":60,"s":1,"ms":0.001}[.[1]]] | add // 1;'
# Turns a point in time (seconds since 1970) into the delay from now, as a Go duration. A timestamp lost up to a second
# when it was written: half a second more is right on average.
_FROM_NOW = r'def from_now: [. + 0.5 - now, 0] | max | . * 1000 | floor | "\(.)ms";'


def _after(start: str, annotation: str, default: str) -> str:
    wanted = f'((.metadata.annotations["{annotation}"] // "{default}") | seconds)'
    return f"{_SECONDS} {_FROM_NOW} (({start}) + {wanted}) | from_now"


_START_AT = _after(".status.startTime | fromdate", START_DELAY, "1s")
_COMPLETE_AT = _after(".status.containerStatuses[0].state.running.startedAt | fromdate", COMPLETE_AFTER, "1s")
_STOP_AT = (
    f"{_SECONDS} {_FROM_NOW} (.metadata.deletionTimestamp | fromdate) as $end"
    " | ($end - (.metadata.deletionGracePeriodSeconds // 0)) as $asked"
    f' | ((.metadata.annotations["{STOP_DELAY}"] // "1s") | seconds) as $delay'
    " | [$asked + $delay, $end - 0.5] | min | from_now"
)


def _exists(key: str, *, exists: bool = True) -> dict[str, Any]:
    return {"key": key, "operator": "Exists" if exists else "DoesNotExist"}


def _in(key: str, *values: str, negate: bool = False) -> dict[str, Any]:
    return {"key": key, "operator": "NotIn" if negate else "In", "values": list(values)}


_DELETING = _exists(".metadata.deletionTimestamp")
_LIVING = _exists(".metadata.deletionTimestamp", exists=False)
_GOES_ON = _in(f'.metadata.annotations["{MACHINE_LOST}"]', "true", negate=True)
_HOLDS = (
    f'.metadata.annotations["{MACHINE_LOST}"] == "true" or '
    f'(.metadata.deletionTimestamp != null and .metadata.annotations["{HANG_TERMINATING}"] == "true")'
)
_NOT_HELD = _in(_HOLDS, "true", negate=True)
_PHASE = ".status.phase"
_READY = '.status.conditions.[] | select( .type == "Ready" ) | .status'


def _stage(
    name: str,
    kind: str,
    selector: list[dict[str, Any]],
    *,
    status: str | None = None,
    delete: bool = False,
    delay: dict[str, Any] | None = None,
) -> dict[str, Any]:
    following: dict[str, Any] = {}
    if status is not None:
        following["statusTemplate"] = status
    if delete:
        following["delete"] = True
    spec: dict[str, Any] = {
        "resourceRef": {"apiGroup": "v1", "kind": kind},
        "selector": {"matchExpressions": selector},
        "next": following,
    }
    if delay is not None:
        spec["delay"] = delay
    return {"apiVersion": "kwok.x-k8s.io/v1alpha1", "kind": "Stage", "metadata": {"name": name}, "spec": spec}


def _hold(name: str, kind: str, condition: dict[str, Any]) -> dict[str, Any]:
    """Return a stage that does nothing: it takes the place of what was under way when its condition came true."""
    return _stage(name, kind, [condition], delay={"durationMilliseconds": _FOREVER_MS})


def _at(expression: str) -> dict[str, Any]:
    # The fixed number is what an annotation that is no duration falls back to.
    return {"durationMilliseconds": 1000, "durationFrom": {"expressionFrom": expression}}


_NODE_STATUS = """
{{ $now := Now }}
conditions:
{{ range NodeConditions }}
- lastHeartbeatTime: {{ $now | Quote }}
  lastTransitionTime: {{ %s | Quote }}
  message: {{ .message | Quote }}
  reason: {{ .reason | Quote }}
  status: {{ .status | Quote }}
  type: {{ .type | Quote }}
{{ end }}
addresses:
- address: {{ NodeIP | Quote }}
  type: InternalIP
- address: {{ .metadata.name | Quote }}
  type: Hostname
nodeInfo:
  architecture: amd64
  bootID: ""
  containerRuntimeVersion: kwok://{{ Version }}
  kernelVersion: kwok-{{ Version }}
  kubeProxyVersion: ""
  kubeletVersion: kwok-{{ Version }}
  machineID: ""
  operatingSystem: linux
  osImage: kwok
  systemUUID: ""
phase: Running
"""

_POD_STARTING = """
{{ $now := Now }}
conditions:
- lastTransitionTime: {{ $now | Quote }}
  status: "True"
  type: PodReadyToStartContainers
- lastTransitionTime: {{ $now | Quote }}
  status: "True"
  type: Initialized
{{ range $type := list "Ready" "ContainersReady" }}
- lastTransitionTime: {{ $now | Quote }}
  message: 'containers with unready status: [{{ range $.spec.containers }}{{ .name }} {{ end }}]'
  reason: ContainersNotReady
  status: "False"
  type: {{ $type }}
{{ end }}
containerStatuses:
{{ range .spec.containers }}
- image: {{ .image | Quote }}
  imageID: ""
  name: {{ .name | Quote }}
  ready: false
  restartCount: 0
  started: false
  state:
    waiting:
      reason: ContainerCreating
{{ end }}
hostIP: {{ NodeIPWith .spec.nodeName | Quote }}
podIP: {{ PodIPWith .spec.nodeName ( or .spec.hostNetwork false ) ( or .metadata.uid "" ) ( or .metadata.name "" ) ( or .metadata.namespace "" ) | Quote }}
phase: Pending
startTime: {{ $now | Quote }}
"""

_POD_READY = """
{{ $now := Now }}
conditions:
{{ range $type := list "Ready" "ContainersReady" }}
- lastTransitionTime: {{ $now | Quote }}
  message: ""
  reason: ""
  status: "True"
  type: {{ $type }}
{{ end }}
{{ if .spec.initContainers }}
initContainerStatuses:
{{ range .spec.initContainers }}
- image: {{ .image | Quote }}
  imageID: ""
  name: {{ .name | Quote }}
  ready: true
  restartCount: 0
  started: {{ eq (or .restartPolicy "") "Always" }}
  state:
  {{ if eq (or .restartPolicy "") "Always" }}
    running:
      startedAt: {{ $now | Quote }}
  {{ else }}
    terminated:
      exitCode: 0
      finishedAt: {{ $now | Quote }}
      reason: Completed
      startedAt: {{ $now | Quote }}
  {{ end }}
{{ end }}
{{ end }}
containerStatuses:
{{ range .spec.containers }}
- image: {{ .image | Quote }}
  imageID: ""
  name: {{ .name | Quote }}
  ready: true
  restartCount: 0
  started: true
  state:
    running:
      startedAt: {{ $now | Quote }}
{{ end }}
phase: Running
"""

_POD_ENDED = """
{{ $now := Now }}
conditions:
{{ range $type := list "Ready" "ContainersReady" }}
- lastTransitionTime: {{ $now | Quote }}
  message: ""
  reason: PodCompleted
  status: "False"
  type: {{ $type }}
{{ end }}
containerStatuses:
{{ range .spec.containers }}
- image: {{ .image | Quote }}
  imageID: ""
  name: {{ .name | Quote }}
  ready: false
  restartCount: 0
  started: false
  state:
    terminated:
      exitCode: 0
      finishedAt: {{ $now | Quote }}
      reason: Completed
      startedAt: {{ or $.status.startTime $now | Quote }}
{{ end }}
phase: Succeeded
"""


def stages() -> list[dict[str, Any]]:
    """Return the Stage documents, nodes first."""
    return [
        _stage(
            "node-up",
            "Node",
            [_GOES_ON, _in(_READY, "True", negate=True)],
            status=_NODE_STATUS % "or .metadata.creationTimestamp $now",
        ),
        # The lease that KWOK renews is what counts; this only keeps the conditions' heartbeat from looking ancient.
        _stage(
            "node-heartbeat",
            "Node",
            [_GOES_ON, _in(_PHASE, "Running"), _in(_READY, "True")],
            status=_NODE_STATUS % "or .metadata.creationTimestamp $now",
            delay={"durationMilliseconds": 300_000},
        ),
        _hold("node-hold", "Node", _in(f'.metadata.annotations["{MACHINE_LOST}"]', "true")),
        _hold("pod-hold", "Pod", _in(_HOLDS, "true")),
        _stage(
            "pod-starting",
            "Pod",
            [_NOT_HELD, _LIVING, _exists(".status.startTime", exists=False)],
            status=_POD_STARTING,
        ),
        _stage(
            "pod-ready",
            "Pod",
            [_NOT_HELD, _LIVING, _exists(".status.startTime"), _in(_PHASE, "Pending")],
            status=_POD_READY,
            delay=_at(_START_AT),
        ),
        _stage(
            "pod-complete",
            "Pod",
            [_NOT_HELD, _LIVING, _in(_PHASE, "Running"), _exists(f'.metadata.annotations["{COMPLETE_AFTER}"]')],
            status=_POD_ENDED,
            delay=_at(_COMPLETE_AT),
        ),
        _stage(
            "pod-stop",
            "Pod",
            [_NOT_HELD, _DELETING, _in(_PHASE, "Running")],
            status=_POD_ENDED,
            delay=_at(_STOP_AT),
        ),
        _stage(
            "pod-delete",
            "Pod",
            [_NOT_HELD, _DELETING, _in(_PHASE, "Running", negate=True)],
            delete=True,
            delay=_at(_STOP_AT),
        ),
    ]


def kwok_config() -> str:
    """Return the file that KWOK's ``--config`` takes."""
    return yaml.safe_dump_all(stages(), sort_keys=False, width=10_000)
