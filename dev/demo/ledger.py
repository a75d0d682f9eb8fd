"""How many GPUs a job's pods hold, at every event of the watch.

A budget that holds between two looks proves nothing, so this counts at each event: every pod that is bound or ungated, from
then until it is gone, whether it runs, ends or hangs.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

Json = Mapping[str, Any]


def holds_gpus(pod: Json) -> bool:
    """Whether a pod is bound, or free to be bound at any moment."""
    spec = pod["spec"]
    return spec.get("nodeName") is not None or not spec.get("schedulingGates")


def gpus_of(pod: Json, resource: str) -> int:
    """GPUs that a pod's containers ask for."""
    containers = pod["spec"].get("containers") or ()
    return sum(int(((c.get("resources") or {}).get("requests") or {}).get(resource, 0)) for c in containers)


class PodLedger:
    """Follows all pods of a namespace; a taker for ``dev.emulator.follow``."""

    def __init__(self, resource: str = "nvidia.com/gpu") -> None:
        """Count GPUs of this resource."""
        self._resource = resource
        self._held: dict[str, int] = {}
        self.peak = 0
        """Most GPUs that were held at any event."""
        self.history: list[tuple[float, int]] = []
        """Epoch seconds and GPUs held, one for each change."""

    @property
    def held(self) -> int:
        """GPUs held now."""
        return sum(self._held.values())

    def reset(self, objects: list[Json]) -> None:
        """A new list: what is not in it is gone."""
        self._held = {}
        for pod in objects:
            self._take(pod)
        self._count()

    def event(self, kind: str, obj: Json) -> None:
        """One event of the watch."""
        if kind == "DELETED":
            self._held.pop(obj["metadata"]["uid"], None)
        else:
            self._take(obj)
        self._count()

    def _take(self, pod: Json) -> None:
        self._held[pod["metadata"]["uid"]] = gpus_of(pod, self._resource) if holds_gpus(pod) else 0

    def _count(self) -> None:
        held = self.held
        self.peak = max(self.peak, held)
        if not self.history or self.history[-1][1] != held:
            self.history.append((time.time(), held))
