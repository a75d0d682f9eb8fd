"""The edge towards other autoscalers: an index of the HorizontalPodAutoscalers, whose changes wake the jobs of their namespace."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import kopf

from rljob_operator.cluster import Json


def watch(found: kopf.OperatorRegistry, wake: Callable[[str], None]) -> None:
    """Registers the index ``autoscalers`` and the events; ``wake`` wakes the jobs of a namespace."""

    @kopf.index("autoscaling/v2", "horizontalpodautoscalers", id="autoscalers", registry=found)
    def autoscalers(body: kopf.Body, name: str, namespace: str | None, **_: Any) -> dict[str, Json]:
        target = dict((body.get("spec") or {}).get("scaleTargetRef") or {})
        return {namespace or "": {"metadata": {"name": name}, "spec": {"scaleTargetRef": target}}}

    @kopf.on.event("autoscaling/v2", "horizontalpodautoscalers", registry=found)
    async def on_autoscaler(event: Any, namespace: str | None, **_: Any) -> None:
        # An autoscaler writes its status every few seconds; which workload it scales hardly ever changes.
        if event.get("type") != "MODIFIED":
            wake(namespace or "")
