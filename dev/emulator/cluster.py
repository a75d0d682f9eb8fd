"""What the emulated containers can know of their cluster: which pods are ready, and their layout file.

Two threads list and watch with plain JSON (the client's models would cost more time than the whole emulation). The layout file
lags behind its ConfigMap as a mounted volume does: up to a minute and more, unless the operator touches an annotation of a pod, which makes
its kubelet look at once.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import urllib3
from kubernetes import client, config

from rljob_runtime import Layout, LayoutError

_log = logging.getLogger(__name__)

TOUCHED = "rljob.dev/layout-generation"
"""Annotation by which the operator hastens the volume."""

Json = Mapping[str, Any]


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
    _touched_at: float | None = None
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


class Cluster:
    """The job's pods and layout, followed in threads."""

    def __init__(self, kubeconfig: str, namespace: str, job: str) -> None:
        """Connect with a kubeconfig."""
        configuration = client.Configuration()
        config.load_kube_config(config_file=kubeconfig, client_configuration=configuration)
        self._api = client.ApiClient(configuration)
        self._core = client.CoreV1Api(self._api)
        self._namespace, self._job = namespace, job
        self._lock = threading.Lock()
        self._pods: dict[str, PodState] = {}
        self._layout_text: str | None = None

    def start(self) -> None:
        """Follow from now on, in daemon threads."""
        pods = {"label_selector": f"rljob.dev/name={self._job}"}
        layout = {"field_selector": f"metadata.name={self._job}-layout"}
        for name, call, selector, take in (
            ("pods", self._core.list_namespaced_pod, pods, self._take_pods),
            ("layout", self._core.list_namespaced_config_map, layout, self._take_layout),
        ):
            threading.Thread(
                target=self._follow, args=(call, selector, take), name=f"emulator-{name}", daemon=True
            ).start()

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

    def _follow(
        self, call: Callable[..., Any], selector: Mapping[str, str], take: Callable[[list[Json]], None]
    ) -> None:
        while True:
            try:
                answer = json.loads(call(self._namespace, **selector, _preload_content=False).data)
                objects: dict[str, Json] = {o["metadata"]["name"]: o for o in answer["items"]}
                take(list(objects.values()))
                stream = call(
                    self._namespace,
                    **selector,
                    watch=True,
                    resource_version=answer["metadata"]["resourceVersion"],
                    timeout_seconds=300,
                    _preload_content=False,
                )
                for line in _lines(stream):
                    event = json.loads(line)
                    if event["type"] == "ERROR":
                        break
                    name = event["object"]["metadata"]["name"]
                    if event["type"] == "DELETED":
                        objects.pop(name, None)
                    else:
                        objects[name] = event["object"]
                    take(list(objects.values()))
            except (client.ApiException, urllib3.exceptions.HTTPError, OSError, ValueError) as error:
                _log.warning("watching again in a second: %s", error)
                time.sleep(1.0)

    def _take_pods(self, objects: list[Json]) -> None:
        pods = {o["metadata"]["name"]: pod_state(o) for o in objects}
        with self._lock:
            self._pods = pods

    def _take_layout(self, objects: list[Json]) -> None:
        text = next((o.get("data", {}).get("layout.json") for o in objects), None)
        with self._lock:
            self._layout_text = text


def _lines(stream: Any) -> Any:
    pending = b""
    for chunk in stream.stream(amt=None, decode_content=False):
        *lines, pending = (pending + chunk).split(b"\n")
        yield from (line for line in lines if line.strip())
