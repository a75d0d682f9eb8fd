"""What a container's command and environment come to, as a kubelet would resolve them.

Pure but for the one function that is given to look up ConfigMaps and Secrets. Paths of mounts are not yet those of this machine.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

Json = Mapping[str, Any]

Lookup = Callable[[str, str, bool], Awaitable[Mapping[str, str]]]
"""``(kind, name, optional)`` → the values of a ConfigMap (``configmaps``) or Secret (``secrets``); raises ConfigError if it is not there."""

_REFERENCE = re.compile(r"\$(\$|\(([^)\s]*)\))")
_KEYED = re.compile(r"metadata\.(labels|annotations)\['([^']+)'\]")


class ConfigError(ValueError):
    """A container that can't be made as it is written; the message says what is wrong with it."""


def expand(text: str, values: Mapping[str, str]) -> str:
    """``$(NAME)`` replaced where the name is known and left where it is not; ``$$`` stands for ``$``."""
    return _REFERENCE.sub(lambda m: "$" if m[1] == "$" else values.get(m[2], m[0]), text)


async def environment(pod: Json, container: Json, lookup: Lookup) -> dict[str, str]:
    """The variables that a container declares; each sees those before it. Raises ConfigError."""
    found: dict[str, str] = {}
    for source in container.get("envFrom") or ():
        kind, reference = (
            ("secrets", source["secretRef"]) if "secretRef" in source else ("configmaps", source["configMapRef"])
        )
        values = await lookup(kind, reference["name"], bool(reference.get("optional")))
        found |= {source.get("prefix", "") + key: value for key, value in values.items()}
    for variable in container.get("env") or ():
        if "valueFrom" in variable:
            value = await _referenced(pod, variable, lookup)
            if value is not None:
                found[variable["name"]] = value
        else:
            found[variable["name"]] = expand(variable.get("value") or "", found)
    return found


async def _referenced(pod: Json, variable: Json, lookup: Lookup) -> str | None:
    source = variable["valueFrom"]
    if "fieldRef" in source:
        return field(pod, source["fieldRef"]["fieldPath"])
    for key, kind in (("configMapKeyRef", "configmaps"), ("secretKeyRef", "secrets")):
        if key in source:
            reference, optional = source[key], bool(source[key].get("optional"))
            values = await lookup(kind, reference["name"], optional)
            if reference["key"] not in values and not optional:
                raise ConfigError(
                    f"variable {variable['name']}: {kind[:-1]} {reference['name']} has no key {reference['key']}"
                )
            return values.get(reference["key"])
    raise ConfigError(f"variable {variable['name']}: this node knows no {', '.join(source)}")


def field(pod: Json, path: str) -> str:
    """A field of the pod by the path that the downward API gives it; raises ConfigError for one that it does not have."""
    metadata, spec, status = pod["metadata"], pod["spec"], pod.get("status") or {}
    if found := _KEYED.fullmatch(path):
        return str((metadata.get(found[1]) or {}).get(found[2], ""))
    fields = {
        "metadata.name": metadata["name"],
        "metadata.namespace": metadata["namespace"],
        "metadata.uid": metadata["uid"],
        "spec.nodeName": spec.get("nodeName", ""),
        "spec.serviceAccountName": spec.get("serviceAccountName", "default"),
        "status.hostIP": status.get("hostIP", ""),
        "status.hostIPs": status.get("hostIP", ""),
        "status.podIP": status.get("podIP", ""),
        "status.podIPs": status.get("podIP", ""),
    }
    if path not in fields:
        raise ConfigError(
            f"this node knows no field {path}: known are {', '.join(fields)}, labels and annotations by key"
        )
    return str(fields[path])


def command_of(container: Json, values: Mapping[str, str]) -> list[str]:
    """Command and arguments, expanded; raises ConfigError without a command, since there is no image with an entry point."""
    if not container.get("command"):
        raise ConfigError(
            "no command: this node runs no images, so there is no entry point; write the container's command"
        )
    return [expand(word, values) for word in (*container["command"], *(container.get("args") or ()))]


def moved(text: str, mounts: Sequence[tuple[str, str]]) -> str:
    """The text with paths below mounts replaced by those on this machine; ``mounts`` are (path in the container, path here)."""
    here = {inside.rstrip("/"): outside for inside, outside in mounts}
    if not here:
        return text
    # The longest first, so that a mount inside of another is found; in one pass, so that nothing is replaced twice.
    longest = "|".join(re.escape(path) for path in sorted(here, key=len, reverse=True))
    return re.sub(rf"(?<![\w./-])(?:{longest})(?![\w.-])", lambda found: here[found[0]], text)
