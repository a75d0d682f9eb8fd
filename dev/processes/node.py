"""The node: its object and its lease, the pods that are bound to it, and what those ask of it."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import random
import secrets
import socket
import urllib.parse
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dev.controlplane.rest import ApiError
from dev.processes import names
from dev.processes.api import Api
from dev.processes.pod import PodWorker
from dev.processes.status import now

Json = Mapping[str, Any]

_log = logging.getLogger(__name__)

LEASE_S = 40
LEASE_RENEWAL_S = 10.0
"""A kubelet's: after 40 s without a renewal nobody counts on the node."""


@dataclass(frozen=True)
class NodeDescription:
    """What the node says of itself."""

    name: str
    resources: Mapping[str, str]
    """Capacity, as Kubernetes quantities."""
    labels: Mapping[str, str] = field(default_factory=dict)
    """Further labels."""
    volume_lag_s: float = 1.0
    """After how many seconds at most a change of a ConfigMap is in the files of the pods that mount it."""


class ProcessesNode:
    """One node; ``run`` is its life."""

    def __init__(self, description: NodeDescription, api: Api, folder: Path, logs: Path) -> None:
        """Files of pods go below ``folder`` while they live; the output of containers goes to ``logs`` and stays."""
        self._description = description
        self._api = api
        self._folder, self._logs = folder.absolute(), logs.absolute()
        self._names_file = self._folder / "names.json"
        self._workers: dict[str, PodWorker] = {}
        self._services: dict[str, Json] = {}
        self._addresses = addresses()
        self._told: dict[tuple[str, str], str] = {}
        self._background: set[asyncio.Task[Any]] = set()

    async def run(self) -> None:
        """Join the cluster and run pods for ever."""
        self._folder.mkdir(parents=True, exist_ok=True)
        await self._join()
        async with asyncio.TaskGroup() as group:
            group.create_task(self._keep_lease())
            group.create_task(self._follow_services())
            group.create_task(self._follow_pods())

    # The node's own objects

    async def _join(self) -> None:
        about = self._description
        labels = {
            "kubernetes.io/hostname": about.name,
            "kubernetes.io/os": "linux",
            "kubernetes.io/arch": "arm64" if os.uname().machine == "aarch64" else "amd64",
            **about.labels,
        }
        node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": about.name, "labels": labels}}
        try:
            await self._api.request("POST", "/api/v1/nodes", node)
        except ApiError as error:
            if error.status != 409:
                raise
        conditions = [
            _node_condition("Ready", "True", "ProcessesReady", "pods run as processes of this machine"),
            *(_node_condition(kind, "False", "Fine", "") for kind in ("MemoryPressure", "DiskPressure", "PIDPressure")),
        ]
        status = {
            "capacity": dict(about.resources),
            "allocatable": dict(about.resources),
            "conditions": conditions,
            "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}, {"type": "Hostname", "address": about.name}],
        }
        await self._api.patch_status(f"/api/v1/nodes/{about.name}", status)

    async def _keep_lease(self) -> None:
        path = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
        name = self._description.name
        while True:
            spec = {
                "holderIdentity": name,
                "leaseDurationSeconds": LEASE_S,
                "renewTime": now().replace("Z", ".000000Z"),
            }
            try:
                try:
                    await self._api.merge(f"{path}/{name}", {"spec": spec})
                except ApiError as error:
                    if error.status != 404:
                        raise
                    await self._api.request("POST", path, {"metadata": {"name": name}, "spec": spec})
            except (ApiError, OSError) as error:
                _log.warning("the node's lease: %s", error)
            await asyncio.sleep(LEASE_RENEWAL_S)

    async def _follow_services(self) -> None:
        async for event, found in self._api.follow("/api/v1/services", ""):
            if event == "LIST":
                self._services = {service["metadata"]["uid"]: service for service in found}
            elif event == "DELETED":
                self._services.pop(found["metadata"]["uid"], None)
            else:
                self._services[found["metadata"]["uid"]] = found
            self._write_names()

    def _write_names(self) -> None:
        text = json.dumps(names.table(self._services.values(), [w.pod for w in self._workers.values()]), indent=1)
        new = self._names_file.with_suffix(".new")
        new.write_text(text, encoding="utf-8")
        new.replace(self._names_file)

    # Pods

    async def _follow_pods(self) -> None:
        selector = urllib.parse.quote(f"spec.nodeName={self._description.name}")
        async for event, found in self._api.follow("/api/v1/pods", selector):
            if event == "LIST":
                there = {pod["metadata"]["uid"] for pod in found}
                for uid, worker in self._workers.items():
                    if uid not in there:
                        worker.vanish()
                for pod in found:
                    self._take(pod)
            elif event == "DELETED":
                if gone := self._workers.get(found["metadata"]["uid"]):
                    gone.vanish()
            else:
                self._take(found)
            self._write_names()

    def _take(self, pod: Json) -> None:
        uid = pod["metadata"]["uid"]
        if worker := self._workers.get(uid):
            worker.update(pod)
            return
        if (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed"):
            if pod["metadata"].get("deletionTimestamp"):
                self._in_background(self.remove(pod))
            return
        metadata = pod["metadata"]
        name = f"{metadata['namespace']}_{metadata['name']}"
        worker = PodWorker(
            pod, next(self._addresses), self._folder / "pods" / uid, self._logs / name, self,
            volume_lag_s=self._description.volume_lag_s,
        )  # fmt: skip
        self._workers[uid] = worker
        worker.task.add_done_callback(lambda task: self._done(uid, task))

    def _done(self, uid: str, task: asyncio.Task[None]) -> None:
        worker = self._workers.pop(uid)
        name = worker.pod["metadata"]["name"]
        self._told = {key: said for key, said in self._told.items() if key[0] != uid}
        if not task.cancelled() and task.exception() is not None:
            _log.error("pod %s", name, exc_info=task.exception())

    def _in_background(self, work: Any) -> None:
        task = asyncio.ensure_future(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    # What pods ask for

    async def values(self, namespace: str, kind: str, name: str, optional: bool) -> Mapping[str, str]:
        """What a ConfigMap or Secret holds; raises ConfigError if it is not there."""
        return await self._api.values(namespace, kind, name, optional)

    async def token(self, pod: Json, source: Json) -> str:
        """A token of the pod's service account, bound to the pod."""
        metadata = pod["metadata"]
        account = pod["spec"].get("serviceAccountName", "default")
        request = {
            "spec": {
                "audiences": [source["audience"]] if source.get("audience") else [],
                "expirationSeconds": source.get("expirationSeconds", 3600),
                "boundObjectRef": {"kind": "Pod", "apiVersion": "v1", "name": metadata["name"], "uid": metadata["uid"]},
            }
        }
        path = f"/api/v1/namespaces/{metadata['namespace']}/serviceaccounts/{account}/token"
        return str((await self._api.request("POST", path, request))["status"]["token"])

    async def report(self, pod: Json, status: Json) -> None:
        """Write the pod's status; one that is gone needs none."""
        try:
            await self._api.patch_status(_path(pod), status)
        except ApiError as error:
            if error.status != 404:
                raise

    async def remove(self, pod: Json) -> None:
        """Let the pod's object go: it and no other of its name."""
        uid = pod["metadata"]["uid"]
        while True:
            try:
                options = {"gracePeriodSeconds": 0, "preconditions": {"uid": uid}}
                await self._api.request("DELETE", _path(pod), options)
                return
            except ApiError as error:
                if error.status in (404, 409):
                    return
                _log.warning("removing %s: %s", pod["metadata"]["name"], error)
            except OSError as error:
                _log.warning("removing %s: %s", pod["metadata"]["name"], error)
            await asyncio.sleep(1.0)

    def environment(self) -> Mapping[str, str]:
        """Where the API server is, and how to look up Services."""
        server = urllib.parse.urlsplit(self._api.server)
        return {
            "KUBERNETES_SERVICE_HOST": server.hostname or "",
            "KUBERNETES_SERVICE_PORT": str(server.port or 443),
            "PYTHONPATH": str(names.INSIDE),
            names.VARIABLE: str(self._names_file),
        }

    def event(self, pod: Json, kind: str, reason: str, message: str) -> None:
        """Tell of something that happened to the pod; what was told of it before is not told again."""
        metadata = pod["metadata"]
        if self._told.get((metadata["uid"], reason)) == message:
            return
        self._told[metadata["uid"], reason] = message
        _log.info("%s: %s: %s", metadata["name"], reason, message)
        self._in_background(self._send_event(metadata, kind, reason, message))

    async def _send_event(self, metadata: Json, kind: str, reason: str, message: str) -> None:
        event = {
            "metadata": {"name": f"{metadata['name']}.{secrets.token_hex(8)}", "namespace": metadata["namespace"]},
            "involvedObject": {
                "apiVersion": "v1", "kind": "Pod", "name": metadata["name"], "namespace": metadata["namespace"], "uid": metadata["uid"],
            },
            "type": kind,
            "reason": reason,
            "message": message[:1000],
            "source": {"component": "processes", "host": self._description.name},
            "firstTimestamp": now(),
            "lastTimestamp": now(),
            "count": 1,
        }  # fmt: skip
        try:
            await self._api.request("POST", f"/api/v1/namespaces/{metadata['namespace']}/events", event)
        except (ApiError, OSError) as error:
            # Of a namespace that is going away, for example.
            _log.debug("event of %s: %s", metadata["name"], error)


def addresses() -> Iterator[str]:
    """Loopback addresses that are free, one after another; each node begins at another place."""
    # 127.0.0.0/16 is left to everybody else.
    high, low = random.SystemRandom().randrange(1, 255), 1
    while True:
        low = low + 1 if low < 65_000 else 2
        address = f"127.{high}.{low // 250}.{low % 250 + 2}"
        with socket.socket() as probe:
            try:
                probe.bind((address, 0))
            except OSError:
                continue
        yield address


def _path(pod: Json) -> str:
    return f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods/{pod['metadata']['name']}"


def _node_condition(kind: str, status: str, reason: str, message: str) -> dict[str, str]:
    return {
        "type": kind, "status": status, "reason": reason, "message": message,
        "lastHeartbeatTime": now(), "lastTransitionTime": now(),
    }  # fmt: skip
