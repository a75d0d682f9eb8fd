"""What the emulated containers can know of their cluster: which pods are ready, and their layout file.

The layout file lags behind its ConfigMap as a mounted volume does: up to a minute and more, unless the operator touches
an annotation of a pod, which makes its kubelet look at once.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from kubernetes import client

from dev.emulator.follow import Json, api_client, follow
from rljob_runtime import Layout, LayoutError

_log = logging.getLogger(__name__)

TOUCHED = "rljob.dev/layout-generation"
"""Annotation by which the operator hastens the volume."""


@dataclass(frozen=True)
class PodState:
    """What matters of a pod."""

    role: str
    ready: bool
    """Ready and not terminating: containers get SIGTERM when the deletion begins."""
    touched: int
    """Layout generation in its annotation, -1 if there is none."""


def pod_state(pod: Json) -> PodState:
    """Read a pod object."""
    meta, status = pod["metadata"], pod.get("status", {})
    ready = any(c["type"] == "Ready" and c["status"] == "True" for c in status.get("conditions") or ())
    touched = str((meta.get("annotations") or {}).get(TOUCHED, "-1"))
    return PodState(
        role=meta.get("labels", {}).get("rljob.dev/role", ""),
        ready=ready and meta.get("deletionTimestamp") is None,
        touched=int(touched) if touched.lstrip("-").isdigit() else -1,
    )


@dataclass
class LayoutVolume:
    """A ConfigMap seen through a mounted volume: late."""

    lag_s: float
    """Lag after a touched annotation, in seconds."""
    untouched_lag_s: float
    """Lag without one, in seconds."""
    forced_lag_s: float | None = None
    """A lag that no annotation shortens, in seconds; a fault."""
    _coming: list[tuple[float, Layout]] = field(default_factory=list)
    _last: Layout | None = None

    def wrote(self, text: str, now: float) -> None:
        """The ConfigMap holds ``text`` since ``now``."""
        try:
            layout = Layout.parse(text)
        except LayoutError as error:
            _log.warning("the layout ConfigMap cannot be followed: %s", error)
            return
        self._coming.append((now, layout))

    def poll(self, touched: int, now: float) -> Layout | None:
        """The newest layout that arrived in the volume since the last call; ``touched``: generation in the pods' annotations."""
        due: int | None = None
        for i, (at, layout) in enumerate(self._coming):
            if self.forced_lag_s is not None:
                lag = self.forced_lag_s
            elif self._last is None or touched >= layout.generation:
                # A volume is mounted with the newest content when its pod starts.
                lag = self.lag_s
            else:
                lag = self.untouched_lag_s
            if now >= at + lag:
                due = i
        if due is None:
            return None
        # What was written before it is never seen any more.
        self._last = self._coming[due][1]
        del self._coming[: due + 1]
        return self._last


class _Objects:
    """What is there, by name."""

    def __init__(self, changed: Callable[[list[Json]], None]) -> None:
        self._changed = changed
        self._objects: dict[str, Json] = {}

    def reset(self, objects: list[Json]) -> None:
        self._objects = {obj["metadata"]["name"]: obj for obj in objects}
        self._changed(list(self._objects.values()))

    def event(self, kind: str, obj: Json) -> None:
        if kind == "DELETED":
            self._objects.pop(obj["metadata"]["name"], None)
        else:
            self._objects[obj["metadata"]["name"]] = obj
        self._changed(list(self._objects.values()))


class Cluster:
    """The job's pods and layout, followed in threads."""

    def __init__(self, kubeconfig: str, namespace: str, job: str) -> None:
        """Connect with a kubeconfig."""
        self._api = api_client(kubeconfig)
        self._namespace, self._job = namespace, job
        self._lock = threading.Lock()
        self._pods: dict[str, PodState] = {}
        self._layout_text: str | None = None
        self._stop = threading.Event()

    def start(self) -> None:
        """Follow from now on, in daemon threads."""
        core, job = client.CoreV1Api(self._api), self._job
        for call, taker, selector in (
            (core.list_namespaced_pod, _Objects(self._take_pods), {"label_selector": f"rljob.dev/name={job}"}),
            (
                core.list_namespaced_config_map,
                _Objects(self._take_layout),
                {"field_selector": f"metadata.name={job}-layout"},
            ),
        ):
            follow(call, taker, self._stop, namespace=self._namespace, **selector)

    def stop(self) -> None:
        """Follow no more."""
        self._stop.set()

    def rljob(self) -> Json:
        """The RLJob object; raises ApiException if it is not there."""
        found: Json = client.CustomObjectsApi(self._api).get_namespaced_custom_object(
            "rljob.dev", "v1alpha1", self._namespace, "rljobs", self._job
        )
        return found

    @property
    def pods(self) -> dict[str, PodState]:
        """The job's pods by name."""
        with self._lock:
            return dict(self._pods)

    @property
    def layout_text(self) -> str | None:
        """``layout.json`` as the ConfigMap holds it, None if there is none."""
        with self._lock:
            return self._layout_text

    def _take_pods(self, objects: list[Json]) -> None:
        pods = {o["metadata"]["name"]: pod_state(o) for o in objects}
        with self._lock:
            self._pods = pods

    def _take_layout(self, objects: list[Json]) -> None:
        text = next((o.get("data", {}).get("layout.json") for o in objects), None)
        with self._lock:
            self._layout_text = text
