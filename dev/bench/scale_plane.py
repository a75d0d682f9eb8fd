"""The world of the scale benchmark: a plane that counts the operator's calls, watches from outside, and the operator's process."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import ssl
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from dev.controlplane import ControlPlane, NodeSpec
from dev.installed import RELEASE as ACCOUNT
from dev.installed import SYSTEM, WITHOUT_PODS, install, installed, start_operator

CHILD_KINDS = {
    "Deployment": "/apis/apps/v1/namespaces/{}/deployments",
    "StatefulSet": "/apis/apps/v1/namespaces/{}/statefulsets",
    "Service": "/api/v1/namespaces/{}/services",
    "ConfigMap": "/api/v1/namespaces/{}/configmaps",
}
"""What a job's children are, and where they are watched."""

_ONLY_METADATA = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
_NAME_LABEL = "rljob.dev/name"

_COUNTED = f"""
apiVersion: flowcontrol.apiserver.k8s.io/v1
kind: FlowSchema
metadata: {{name: {ACCOUNT}}}
spec:
  priorityLevelConfiguration: {{name: workload-low}}
  matchingPrecedence: 1000
  distinguisherMethod: {{type: ByUser}}
  rules:
  - subjects: [{{kind: ServiceAccount, serviceAccount: {{name: {ACCOUNT}, namespace: {SYSTEM}}}}}]
    resourceRules: [{{verbs: ["*"], apiGroups: ["*"], resources: ["*"], namespaces: ["*"], clusterScope: true}}]
    nonResourceRules: [{{verbs: ["*"], nonResourceURLs: ["*"]}}]
"""
"""A FlowSchema that treats the operator's account as service accounts are treated, and counts it apart."""

Json = dict[str, Any]


@contextlib.contextmanager
def scale_plane(nodes: NodeSpec, namespace: str) -> Iterator[ControlPlane]:
    """A plane with nodes, the chart and a namespace for jobs; gone afterwards."""
    with ControlPlane.start(nodes=nodes, log=lambda text: print(text, file=sys.stderr, flush=True)) as plane:
        install(plane, WITHOUT_PODS)
        plane.apply(_COUNTED)
        plane.create_namespace(namespace)
        yield plane


class Watched(Enum):
    """What the watcher counts."""

    PODS = "pods"
    """Pods of jobs that exist."""
    READY_JOBS = "ready jobs"
    """RLJobs in the phase Running."""


class Watcher:
    """Notes when each child of each job was first seen, and counts pods and ready jobs."""

    def __init__(self, plane: ControlPlane, namespace: str, stop: threading.Event) -> None:
        """Follows the namespace until ``stop`` is set."""
        self._server = plane.server.removeprefix("https://")
        self._context = ssl.create_default_context(cafile=str(plane.ca_file))
        pki = plane.data_dir / "pki"
        self._context.load_cert_chain(pki / "admin.crt", pki / "admin.key")
        self._stop = stop
        self._children: dict[str, dict[tuple[str, str], float]] = {}
        self._alive: dict[Watched, set[str]] = {kind: set() for kind in Watched}
        self._pods: dict[str, dict[str, str]] = {}
        for kind, path in CHILD_KINDS.items():
            self._follow(path.format(namespace), lambda event, obj, kind=kind: self._child(kind, event, obj))
        self._follow(f"/api/v1/namespaces/{namespace}/pods", self._pod)
        self._follow(f"/apis/rljob.dev/v1alpha1/namespaces/{namespace}/rljobs", self._job, whole=True)

    def complete_at(self, job: str) -> float:
        """When the last of a job's children was first seen, by the monotonic clock; raises KeyError if there is none."""
        return max(self._children[job].values())

    def counted(self, kind: Watched) -> int:
        """How many there are now."""
        return len(self._alive[kind])

    def pods_of(self, uid: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Names of the sampler and the trainer pods of the job with ``uid``."""
        found = tuple(self._pods.get(uid, {}).items())
        return tuple(n for n, role in found if role == "sampler"), tuple(n for n, role in found if role == "trainer")

    def _child(self, kind: str, event: str, obj: Json) -> None:
        meta = obj["metadata"]
        job = (meta.get("labels") or {}).get(_NAME_LABEL)
        if event == "ADDED" and job is not None:
            self._children.setdefault(job, {}).setdefault((kind, meta["name"]), time.monotonic())

    def _pod(self, event: str, obj: Json) -> None:
        labels = obj["metadata"].get("labels") or {}
        if _NAME_LABEL in labels:
            self._mark(Watched.PODS, obj["metadata"]["name"], event != "DELETED")
            pods = self._pods.setdefault(labels["rljob.dev/uid"], {})
            if event == "DELETED":
                pods.pop(obj["metadata"]["name"], None)
            else:
                pods[obj["metadata"]["name"]] = labels["rljob.dev/role"]

    def _job(self, event: str, obj: Json) -> None:
        running = event != "DELETED" and (obj.get("status") or {}).get("phase") == "Running"
        self._mark(Watched.READY_JOBS, obj["metadata"]["name"], running)

    def _mark(self, kind: Watched, name: str, alive: bool) -> None:
        (self._alive[kind].add if alive else self._alive[kind].discard)(name)

    def _follow(self, path: str, take: Any, *, whole: bool = False) -> None:
        def run() -> None:
            version = ""
            while not self._stop.is_set():
                # A watch that ends is taken up where it ended; what it could have missed is given again as ADDED.
                with contextlib.suppress(OSError, http.client.HTTPException, ValueError):
                    version = self._stream(path, version, take, whole=whole)

        threading.Thread(target=run, daemon=True).start()

    def _stream(self, path: str, version: str, take: Any, *, whole: bool) -> str:
        connection = http.client.HTTPSConnection(self._server, context=self._context, timeout=60)
        try:
            query = f"watch=true&allowWatchBookmarks=true&timeoutSeconds=3000&resourceVersion={version}"
            accept = "application/json" if whole else _ONLY_METADATA
            connection.request("GET", f"{path}?{query}", headers={"Accept": accept})
            response = connection.getresponse()
            while not self._stop.is_set():
                line = response.readline()
                if not line:
                    return version
                event = json.loads(line)
                if event["type"] == "ERROR":
                    return ""
                version = event["object"]["metadata"]["resourceVersion"]
                if event["type"] != "BOOKMARK":
                    take(event["type"], event["object"])
        finally:
            connection.close()
        return version


@dataclass(frozen=True)
class Passes:
    """A histogram of the times of passes: cumulative counts by upper edge in seconds."""

    buckets: dict[float, float]

    @property
    def count(self) -> float:
        """Passes."""
        return self.buckets.get(float("inf"), 0.0)

    @property
    def p99_s(self) -> float:
        """The 99th percentile in seconds, linear inside a bucket; 0 without a pass."""
        target, low, below = 0.99 * self.count, 0.0, 0.0
        for upper, count in sorted(self.buckets.items()):
            if count >= target and count > below:
                return low if upper == float("inf") else low + (upper - low) * (target - below) / (count - below)
            low, below = upper, count
        return low

    def __sub__(self, earlier: Passes) -> Passes:
        return Passes({edge: count - earlier.buckets.get(edge, 0.0) for edge, count in self.buckets.items()})


class OperatorProcess:
    """The operator as a process: what it says of its passes, and what the kernel and the API server say of it."""

    def __init__(self, plane: ControlPlane, pid: int, metrics_url: str) -> None:
        self._plane, self._pid, self._metrics_url = plane, pid, metrics_url

    @classmethod
    def start(cls, plane: ControlPlane, log: Path, prometheus_url: str) -> OperatorProcess:
        """Starts it under its service account and waits until it answers."""
        chart = installed(plane)
        ports = chart.local_ports()
        asked = {name: value for name, value in os.environ.items() if name.startswith("RLJOB_OPERATOR_")}
        pid = start_operator(plane, chart, ports, log, {"RLJOB_OPERATOR_PROMETHEUS_URL": prometheus_url, **asked})
        return cls(plane, pid, f"http://127.0.0.1:{ports['metrics']}/metrics")

    def passes(self) -> Passes:
        """The times of all passes until now."""
        found: dict[float, float] = {}
        with urllib.request.urlopen(self._metrics_url, timeout=30) as answer:
            for line in answer.read().decode().splitlines():
                match = re.fullmatch(r'rljob_operator_reconcile_seconds_bucket\{le="([^"]+)"\} (\S+)', line)
                if match:
                    edge = float(match[1].replace("+Inf", "inf"))
                    found[edge] = found.get(edge, 0.0) + float(match[2])
        return Passes(found)

    def calls(self) -> int:
        """Requests of the operator that the API server has let in, watches included."""
        text = self._plane.api.text("GET", "/metrics")
        name = "apiserver_flowcontrol_dispatched_requests_total"
        rows = re.findall(rf'^{name}\{{[^}}]*flow_schema="{ACCOUNT}"[^}}]*\}} (\S+)$', text, re.MULTILINE)
        return round(sum(float(value) for value in rows))

    def rss_mib(self) -> float:
        """Resident memory in MiB."""
        text = Path(f"/proc/{self._pid}/status").read_text()
        match = re.search(r"^VmRSS:\s+(\d+) kB$", text, re.MULTILINE)
        assert match is not None
        return int(match[1]) / 1024

    def cpu_s(self) -> float:
        """CPU time used, in seconds, user and system, all threads."""
        fields = Path(f"/proc/{self._pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
