"""What somebody else changed in a child.

A live object holds more than was applied: defaults of the API server, and fields that other controllers own. So only what we
set is compared, and as the API server compares it: quantities by value, lists of named things by their key, an empty value
the same as none.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from rljob_operator.quantity import QuantityError, quantity

APPLIED_ANNOTATION = "rljob.dev/applied"
"""Digest of the desired state that an object was last applied from."""

_KEYS: dict[str, tuple[str, ...]] = {
    "containers": ("name",),
    "initContainers": ("name",),
    "env": ("name",),
    "volumes": ("name",),
    "volumeMounts": ("mountPath",),
    "volumeDevices": ("devicePath",),
    "schedulingGates": ("name",),
    "imagePullSecrets": ("name",),
    "hostAliases": ("ip",),
    "topologySpreadConstraints": ("topologyKey", "whenUnsatisfiable"),
    "ownerReferences": ("uid",),
}
"""Lists that the API server merges by a key: order and further entries don't matter in them."""

_QUANTITIES = ("requests", "limits")


def stamped(desired: Mapping[str, Any]) -> dict[str, Any]:
    """A desired object with the digest of itself as an annotation, for ``edited_fields``."""
    digest = hashlib.sha256(json.dumps(desired, sort_keys=True).encode()).hexdigest()[:16]
    metadata = desired["metadata"]
    annotations = {**(metadata.get("annotations") or {}), APPLIED_ANNOTATION: digest}
    return {**desired, "metadata": {**metadata, "annotations": annotations}}


def workload_differs(live: Mapping[str, Any], desired: Mapping[str, Any]) -> tuple[str, ...]:
    """Paths of the fields that we set and that the live object has otherwise, such as ``spec.replicas``.

    Named things stand in brackets: ``spec.template.spec.containers[engine].image``. Empty if the live object is as desired;
    what the API server or others added does not show.
    """
    return tuple(_differences(live, desired, "", ""))


def edited_fields(live: Mapping[str, Any], desired: Mapping[str, Any]) -> tuple[str, ...]:
    """``workload_differs`` where it can only be somebody else's doing: ``live`` was applied from this same ``desired``.

    If the desired state itself has changed since, the difference is ours and nothing is reported.
    """
    applied = _annotation(live)
    if applied is None or applied != _annotation(desired):
        return ()
    return workload_differs(live, desired)


def _annotation(obj: Mapping[str, Any]) -> str | None:
    return ((obj.get("metadata") or {}).get("annotations") or {}).get(APPLIED_ANNOTATION)


def _differences(live: Any, desired: Any, path: str, field: str, quantities: bool = False) -> list[str]:
    if _is_empty(desired) and _is_empty(live):
        return []
    if isinstance(desired, Mapping):
        if not isinstance(live, Mapping):
            return [path]
        return [
            difference
            for key, value in desired.items()
            for difference in _differences(
                live.get(key), value, f"{path}.{key}" if path else str(key), str(key), field in _QUANTITIES
            )
        ]
    if isinstance(desired, Sequence) and not isinstance(desired, str):
        if not isinstance(live, Sequence) or isinstance(live, str):
            return [path]
        return _list_differences(live, desired, path, field)
    if quantities or field == "sizeLimit":
        return [] if _same_quantity(live, desired) else [path]
    return [] if live == desired else [path]


def _list_differences(live: Sequence[Any], desired: Sequence[Any], path: str, field: str) -> list[str]:
    keys = _KEYS.get(field)
    if field == "ports":
        keys = ("containerPort",) if any("containerPort" in entry for entry in desired) else ("port",)
    if keys is None:
        if len(live) != len(desired):
            return [path]
        pairs = [(str(i), have, want) for i, (have, want) in enumerate(zip(live, desired, strict=True))]
    else:
        found = {_key(entry, keys): entry for entry in live if isinstance(entry, Mapping)}
        pairs = [("/".join(_key(want, keys)), found.get(_key(want, keys)), want) for want in desired]
    return [d for name, have, want in pairs for d in _differences(have, want, f"{path}[{name}]", "")]


def _key(entry: Mapping[str, Any], keys: tuple[str, ...]) -> tuple[str, ...]:
    protocol = (str(entry.get("protocol") or "TCP"),) if keys[0] in ("containerPort", "port") else ()
    return tuple(str(entry.get(key)) for key in keys) + protocol


def _is_empty(value: Any) -> bool:
    if isinstance(value, Mapping):
        return all(_is_empty(v) for v in value.values())
    return value is None or value is False or value == 0 or value == "" or value == []


def _same_quantity(live: Any, desired: Any) -> bool:
    try:
        return quantity(live) == quantity(desired)
    except QuantityError:
        return bool(live == desired)
