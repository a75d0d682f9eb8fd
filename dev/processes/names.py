"""Which addresses the names of Services stand for; pure. ``inside/sitecustomize.py`` answers them in the containers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

Json = Mapping[str, Any]

INSIDE = Path(__file__).with_name("inside")
"""Folder that goes on ``PYTHONPATH`` of every container."""

VARIABLE = "RLJOB_DEV_NAMES"
"""Environment variable that names the file with the table."""


def table(services: Iterable[Json], pods: Iterable[Json]) -> dict[str, list[str]]:
    """``<service>.<namespace>`` → addresses of its pods, and ``<pod>.<service>.<namespace>`` for pods with a hostname of their own."""
    known = list(pods)
    found: dict[str, list[str]] = {}
    for service in services:
        metadata, spec = service["metadata"], service["spec"]
        if not spec.get("selector"):
            continue
        name = f"{metadata['name']}.{metadata['namespace']}"
        found[name] = []
        for pod in known:
            if not _belongs(pod, metadata["namespace"], spec):
                continue
            address = pod["status"]["podIP"]
            found[name].append(address)
            if pod["spec"].get("subdomain") == metadata["name"] and pod["spec"].get("hostname"):
                found[f"{pod['spec']['hostname']}.{name}"] = [address]
        found[name].sort()
    return found


def _belongs(pod: Json, namespace: str, spec: Json) -> bool:
    status = pod.get("status") or {}
    labels = pod["metadata"].get("labels") or {}
    if (
        pod["metadata"]["namespace"] != namespace
        or not status.get("podIP")
        or status.get("phase") in ("Succeeded", "Failed")
    ):
        return False
    if any(labels.get(key) != value for key, value in spec["selector"].items()):
        return False
    ready = any(c["type"] == "Ready" and c["status"] == "True" for c in status.get("conditions") or ())
    leaving = bool(pod["metadata"].get("deletionTimestamp"))
    return bool(spec.get("publishNotReadyAddresses")) or (ready and not leaving)
