"""Everything that the demo runs, from nothing to nothing.

All processes belong to the control plane's keeper, so they end with this one however it ends. Logs are written straight to the
output folder and stay there. Whoever acts has the rights of its role: the operator those that the chart gives its service account, the
user those of a team member, the emulator those to look; the admin's are used to install and to start the rest.

The operator is what ``helm install`` makes of the chart, with its default values but for those that the demo has to set: its clocks, where
Prometheus is, and the status page.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from dev.controlplane import (
    ControlPlane,
    NodeSpec,
    Prometheus,
    operator_scrape_config,
    pods_scrape_config,
    prometheus_token_file,
)
from dev.controlplane.ports import free_ports
from dev.emulator.follow import Taker
from dev.installed import SYSTEM, Installed, install, start_operator
from dev.team import Member

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent
TEAM = "rl-team"

OPERATOR_VALUES: dict[str, Any] = {
    "operator": {"moveTick": "1s", "idleTick": "5s", "metricsWindow": "30s"},
    "prometheus": {"scrapeInterval": "1s"},
    "statusPage": {"enabled": True},
}
"""Values of the chart for a job whose steps take seconds instead of minutes, with the page to look at; Prometheus's address is added."""

_EMULATOR = f"""
apiVersion: v1
kind: ServiceAccount
metadata: {{name: emulator, namespace: {TEAM}}}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {{name: emulator, namespace: {TEAM}}}
rules:
- {{apiGroups: [rljob.dev], resources: [rljobs], verbs: [get, list, watch]}}
- {{apiGroups: [""], resources: [pods, configmaps, events], verbs: [get, list, watch]}}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {{name: emulator, namespace: {TEAM}}}
roleRef: {{apiGroup: rbac.authorization.k8s.io, kind: Role, name: emulator}}
subjects: [{{kind: ServiceAccount, name: emulator, namespace: {TEAM}}}]
"""


class World:
    """A plane with nodes, operator, Prometheus and emulator; a context manager."""

    def __init__(self, plane: ControlPlane, output: Path, job_file: Path, emulator_file: Path) -> None:
        """Use ``start``."""
        self.plane = plane
        self.output = output
        self._job_file, self._emulator_file = job_file, emulator_file
        self.job: dict[str, Any] = yaml.safe_load(job_file.read_text())
        """The RLJob that is applied."""
        self._port = free_ports(1)[0]
        self._operator_ports = dict(zip(("health", "metrics"), free_ports(2), strict=True))
        self._prometheus: Prometheus | None = None
        self._installed: Installed | None = None
        self._member: Member | None = None
        self._stop = threading.Event()

    @classmethod
    def start(
        cls, output: Path, nodes: NodeSpec, job_file: Path, emulator_file: Path, say: Callable[[str], None]
    ) -> World:
        """Bring up the plane; everything else follows by the methods below."""
        return cls(ControlPlane.start(nodes=nodes, log=say), output, job_file, emulator_file)

    def __enter__(self) -> World:
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self.plane.stop()

    @property
    def status_page_url(self) -> str:
        """Where the operator shows its status page."""
        return f"http://127.0.0.1:{self._operator_ports['metrics']}"

    @property
    def name(self) -> str:
        """The RLJob's name."""
        return str(self.job["metadata"]["name"])

    @property
    def prometheus_url(self) -> str:
        """Base URL of Prometheus, which has to be started."""
        assert self._prometheus is not None
        return self._prometheus.url

    @property
    def steps_file(self) -> Path:
        """The emulator's log of steps."""
        return self.output / "steps.jsonl"

    def install(self) -> None:
        """The chart, by helm, and the team's namespace and accounts."""
        assert self._prometheus is not None
        plane = self.plane
        prometheus = {**OPERATOR_VALUES["prometheus"], "url": self._prometheus.url}
        self._installed = install(plane, {**OPERATOR_VALUES, "prometheus": prometheus})
        self._member = Member(plane, TEAM)
        plane.apply(_EMULATOR)

    def start_prometheus(self) -> None:
        """Prometheus, scraping the emulator for each pod, and the operator."""
        plane = self.plane
        self._prometheus = Prometheus.start(
            plane,
            config=pods_scrape_config(
                server=plane.server,
                ca_file=plane.ca_file,
                token_file=prometheus_token_file(plane),
                exporter_address=f"127.0.0.1:{self._port}",
            )
            + operator_scrape_config(f"127.0.0.1:{self._operator_ports['metrics']}", SYSTEM),
        )

    def start_emulator(self) -> None:
        """The emulator; it waits for the job."""
        kubeconfig = self.plane.service_account_kubeconfig(TEAM, "emulator")
        command = [
            *(sys.executable, "-m", "dev.emulator", "--kubeconfig", str(kubeconfig), "--namespace", TEAM, "--shadow"),
            *("--job", self.name, "--config", str(self._emulator_file), "--port", str(self._port)),
            *("--steps", str(self.steps_file)),
        ]
        env = {"PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1", "PATH": os.environ.get("PATH", "")}
        self.plane.supervisor.start("emulator", command, env, log=self.output / "emulator.log")

    def start_operator(self) -> None:
        """The operator as the chart has it, under its service account; returns when it answers its liveness probe."""
        assert self._installed is not None
        start_operator(self.plane, self._installed, self._operator_ports, self.output / "operator.log")

    @property
    def member(self) -> Member:
        """The member of the team, once ``install`` has made the account."""
        assert self._member is not None
        return self._member

    def apply_job(self) -> None:
        """Apply the RLJob as a member of the team would."""
        self.member.apply(self._job_file.read_text(encoding="utf-8"))

    def described(self) -> str:
        """What ``kubectl describe`` tells a member of the team of the job, events included."""
        return self.member.described(self.name)

    def follow_pods(self, taker: Taker) -> None:
        """Every event of the team's pods from now on."""
        self.member.follow_pods(taker, self._stop)

    def follow_job(self, taker: Taker) -> None:
        """Every version of the RLJob from now on."""
        self.member.follow_job(self.name, taker, self._stop)

    def emulator_state(self) -> dict[str, Any]:
        """What the emulator says of itself; empty while it does not answer."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self._port}/state", timeout=5) as response:
                state: dict[str, Any] = json.load(response)
                return state
        except (urllib.error.URLError, OSError, ValueError):
            return {}

    def check(self) -> None:
        """Raise ComponentError if anything that should run has ended."""
        self.plane.supervisor.check()

    def stop(self, name: str) -> None:
        """End ``operator`` or ``emulator``."""
        self.plane.supervisor.stop(name)
