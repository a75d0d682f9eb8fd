"""Everything that runs, from nothing to nothing: plane, node, Prometheus, the installed operator, the job.

All processes belong to the plane's keeper, so they end with this one however it ends. The operator is what ``helm install`` makes of the
chart, with the rights of its service account; the job is applied by a member of the team, who has no others.
"""

from __future__ import annotations

import re
import threading
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from dev.controlplane import ApiError, ControlPlane, Prometheus, operator_scrape_config, prometheus_token_file
from dev.controlplane.ports import free_ports
from dev.controlplane.prometheus import NAME as PROMETHEUS
from dev.e2e.job import CALIBRATION, NAME
from dev.e2e.nodes import Node
from dev.e2e.scrape import scrape_config
from dev.emulator.follow import Taker
from dev.installed import OPERATOR, SYSTEM, WITHOUT_PODS, Installed, install, start_operator
from dev.team import Member
from rljob_planner._calibration_json import MAP_KEY

Json = dict[str, Any]

TEAM = "rl-team"
SCRAPE_S = 2.0
"""Seconds between two scrapes; a busy server has been seen to take one for an answer."""

OPERATOR_VALUES: Json = {
    "operator": {"moveTick": "1s", "idleTick": "5s", "metricsWindow": "30s"},
    "prometheus": {"scrapeInterval": f"{SCRAPE_S:g}s"},
}
"""Values of the chart for a job whose steps take seconds instead of minutes; Prometheus's address is added."""


class World:
    """What runs; a context manager that takes all of it away."""

    def __init__(self, plane: ControlPlane, node: Node, output: Path) -> None:
        """Use ``start``."""
        self.plane, self.node = plane, node
        self._output = output
        self._ports = dict(zip(("health", "metrics"), free_ports(2), strict=True))
        self._stop = threading.Event()
        self._prometheus: Prometheus | None = None
        self._installed: Installed | None = None
        self._member: Member | None = None

    @classmethod
    def start(cls, node: Node, gpus: int, output: Path, say: Callable[[str], None]) -> World:
        """Bring up plane and node; the rest follows by the methods below."""
        plane = ControlPlane.start(log=say)
        try:
            node.start(plane, gpus, output / "pods")
        except BaseException:
            plane.stop()
            raise
        return cls(plane, node, output)

    def __enter__(self) -> World:
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        try:
            self.node.close()
        finally:
            self.plane.stop()

    def begin(self) -> None:
        """Prometheus, the chart by helm, the team's account, and the operator as the chart starts it."""
        plane = self.plane
        config = scrape_config(server=plane.server, ca_file=plane.ca_file, token_file=prometheus_token_file(plane))
        own = operator_scrape_config(f"127.0.0.1:{self._ports['metrics']}", SYSTEM)
        self._prometheus = Prometheus.start(plane, config=config + own, scrape_interval_s=SCRAPE_S)
        prometheus = {**OPERATOR_VALUES["prometheus"], "url": self._prometheus.url}
        self._installed = install(plane, {**OPERATOR_VALUES, **WITHOUT_PODS, "prometheus": prometheus})
        self._member = Member(plane, TEAM)
        self.start_operator()

    # The operator and Prometheus

    @property
    def prometheus(self) -> Prometheus:
        """Prometheus, once ``begin`` has started it."""
        assert self._prometheus is not None
        return self._prometheus

    @property
    def member(self) -> Member:
        """The member of the team, once ``begin`` has made the account."""
        assert self._member is not None
        return self._member

    def start_operator(self) -> None:
        """Start it under its service account; returns when it answers its liveness probe."""
        assert self._installed is not None
        start_operator(self.plane, self._installed, self._ports, self._output / "operator.log")

    def kill_operator(self) -> None:
        """SIGKILL."""
        self.plane.supervisor.kill(OPERATOR)

    def operator_metric(self, name: str) -> float | None:
        """The sum over all series of one of the operator's own metrics, None if it has none; OSError while it does not answer."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self._ports['metrics']}/metrics", timeout=5) as answer:
            text = answer.read().decode()
        found = re.findall(rf"^{re.escape(name)}(?:\{{[^}}]*\}})? (\S+)", text, re.MULTILINE)
        return sum(map(float, found)) if found else None

    def kill_prometheus(self) -> None:
        """SIGKILL."""
        self.plane.supervisor.kill(PROMETHEUS)

    # The job

    def apply(self, job: Json, calibration: Json) -> None:
        """Apply the calibration and the RLJob as a member of the team would."""
        data = {MAP_KEY: yaml.safe_dump(calibration, sort_keys=False)}
        known = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": CALIBRATION}, "data": data}
        text = yaml.safe_dump_all([known, job], sort_keys=False)
        (self._output / "job.yaml").write_text(yaml.safe_dump(job, sort_keys=False), encoding="utf-8")
        self.member.apply(text)

    def move(self, samplers: int, trainers: int) -> str:
        """Ask for a move by hand, as a member of the team would, and wait for its end; RuntimeError with the command's words if it fails."""
        split = ("--samplers", str(samplers), "--trainers", str(trainers))
        return self.member.rljob("move", NAME, "--timeout", "5m", *split)

    def follow_pods(self, taker: Taker) -> None:
        """Every event of the team's pods from now on."""
        self.member.follow_pods(taker, self._stop)

    def follow_job(self, taker: Taker) -> None:
        """Every version of the RLJob from now on."""
        self.member.follow_job(NAME, taker, self._stop)

    def described(self) -> str:
        """What ``kubectl describe`` tells a member of the team of the job, events included."""
        return self.member.described(NAME)

    def pods(self, role: str) -> list[Json]:
        """The job's pods of a role."""
        path = f"/api/v1/namespaces/{TEAM}/pods?labelSelector=rljob.dev%2Frole%3D{role}"
        found: list[Json] = self.plane.api.request("GET", path)["items"]
        return found

    def evict(self, pod: str) -> None:
        """Ask for a pod's eviction, as a drain of its node does."""
        eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod, "namespace": TEAM}}
        self.plane.api.request("POST", f"/api/v1/namespaces/{TEAM}/pods/{pod}/eviction", eviction)

    def delete(self, pod: str) -> None:
        """Delete a pod, as somebody by hand does."""
        self.plane.api.request("DELETE", f"/api/v1/namespaces/{TEAM}/pods/{pod}")

    def is_gone(self, pod: Json) -> bool:
        """Whether a pod, by its uid, is there no more."""
        try:
            found = self.plane.api.request("GET", f"/api/v1/namespaces/{TEAM}/pods/{pod['metadata']['name']}")
        except ApiError as error:
            if error.status == 404:
                return True
            raise
        return bool(found["metadata"]["uid"] != pod["metadata"]["uid"])


def is_ready(pod: Json) -> bool:
    """Whether a pod is Ready and not on its way out."""
    conditions = pod["status"].get("conditions") or ()
    ready = any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)
    return ready and not pod["metadata"].get("deletionTimestamp")
