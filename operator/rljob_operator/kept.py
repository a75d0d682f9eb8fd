"""What the operator keeps of the objects that it watches: enough to decide, and each distinct part once.

All pods of the cluster are watched, since any of them may hold GPUs; whole objects of tens of thousands of pods would not fit a small
operator. What is left of a pod is mostly the same for all pods of a workload: labels, containers, annotations. Equal parts are therefore kept
once and shared, so a further pod costs a few strings. Nobody may change what is kept.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import Any

from rljob_operator.gate import UID_LABEL

Json = Mapping[str, Any]

_MOST_PARTS = 20_000
_parts: dict[str, Any] = {}

_META = ("name", "namespace", "uid", "resourceVersion", "creationTimestamp", "deletionTimestamp")
_SPEC = ("nodeName", "schedulingGates", "priorityClassName", "activeDeadlineSeconds", "resourceClaims", "overhead")
_STATUS = ("phase", "podIP", "reason")
_CONTAINER = ("name", "resources", "ports", "restartPolicy")
_OTHERS_CONTAINER = ("resources", "restartPolicy")
_CONDITION = ("type", "status", "reason", "message")
_CONDITIONS = ("Ready", "PodScheduled", "DisruptionTarget")
_NODE_META = ("name", "uid", "labels", "deletionTimestamp")
_NODE_SPEC = ("unschedulable", "taints")


def pod(body: Json) -> dict[str, Any]:
    """Of a pod: what counts its GPUs, shows its readiness, and builds the layout."""
    meta, spec, status = body["metadata"], body.get("spec", {}), body.get("status", {})
    kept_meta = _some(meta, _META)
    ours = UID_LABEL in (meta.get("labels") or {})
    if ours:
        kept_meta["labels"] = shared(meta["labels"])
        told = {key: value for key, value in (meta.get("annotations") or {}).items() if _is_read(key)}
        kept_meta["annotations"] = shared(told)
    kept_spec = {key: shared(value) for key, value in _some(spec, _SPEC).items()}
    keys = _CONTAINER if ours else _OTHERS_CONTAINER
    for key in ("containers", "initContainers"):
        kept_spec[key] = shared([_some(container, keys) for container in spec.get(key) or ()])
    kept_status: dict[str, Any] = _some(status, _STATUS)
    if not ours:
        return {"metadata": kept_meta, "spec": kept_spec, "status": _some(kept_status, ("phase",))}
    if "conditions" in status:
        known = (c for c in status["conditions"] or () if c.get("type") in _CONDITIONS)
        kept_status["conditions"] = [_condition(condition) for condition in known]
    if "containerStatuses" in status:
        states = (_container_status(c) for c in status["containerStatuses"] or ())
        kept_status["containerStatuses"] = shared(list(states))
    return {"metadata": kept_meta, "spec": kept_spec, "status": kept_status}


def node(body: Json) -> dict[str, Any]:
    """Of a node: what pods it takes, and what it offers them."""
    status = body.get("status", {})
    about = ("type", "status", "reason", "lastTransitionTime")
    ready = [_some(c, about) for c in status.get("conditions") or () if c.get("type") == "Ready"]
    offers = {key: shared(dict(status[key])) for key in ("allocatable", "capacity") if key in status}
    return {
        "metadata": _some(body["metadata"], _NODE_META),
        "spec": {key: shared(value) for key, value in _some(body.get("spec", {}), _NODE_SPEC).items()},
        "status": {**offers, "conditions": shared(ready)},
    }


def whole(body: Json) -> dict[str, Any]:
    """Of an object that is needed as it is: all but the record of who wrote which field."""
    found = dict(body)
    found["metadata"] = {key: value for key, value in body["metadata"].items() if key != "managedFields"}
    return found


def shared(value: Any) -> Any:
    """The one copy of a part that is kept, equal to ``value``."""
    if isinstance(value, str):
        return sys.intern(str(value))
    if not isinstance(value, (Mapping, list)):
        return value
    key = json.dumps(value, sort_keys=True)
    found = _parts.get(key)
    if found is None:
        if len(_parts) >= _MOST_PARTS:
            # Whoever holds a part keeps it; only later ones no longer find it.
            _parts.clear()
        found = _parts[key] = json.loads(key, object_hook=_interned)
    return found


def _is_read(annotation: str) -> bool:
    """Whether the operator reads an annotation of a pod: its own ones, and what a shrink is steered by."""
    return "rljob.dev/" in annotation or annotation == "controller.kubernetes.io/pod-deletion-cost"


def _interned(part: dict[str, Any]) -> dict[str, Any]:
    return {sys.intern(key): sys.intern(value) if isinstance(value, str) else value for key, value in part.items()}


def _some(part: Json, keys: tuple[str, ...]) -> dict[str, Any]:
    return {key: part[key] for key in keys if key in part}


def _condition(condition: Json) -> Json:
    """A condition of a pod, shared but where its time is read: since when it is ready."""
    known: Json = shared(_some(condition, _CONDITION))
    if condition.get("type") != "Ready" or condition.get("status") != "True":
        return known
    return {**known, **_some(condition, ("lastTransitionTime",))}


def _container_status(status: Json) -> dict[str, Any]:
    """Why a container waits, and how often it was started."""
    found: dict[str, Any] = _some(status, ("name", "ready", "restartCount"))
    state = status.get("state") or {}
    found["state"] = {kind: _some(state[kind] or {}, ("reason", "exitCode")) for kind in state}
    last = (status.get("lastState") or {}).get("terminated")
    if last:
        found["lastState"] = {"terminated": _some(last, ("reason", "exitCode"))}
    return found
