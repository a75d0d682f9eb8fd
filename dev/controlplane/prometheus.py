"""A real Prometheus that discovers the jobs' pods and scrapes what stands in for their containers.

Discovery, labels, staleness and outages are Prometheus's own. What differs from a cluster is where the scrapes go: KWOK
pods run no code, so one process serves the metrics of all of them, each under its pod's path.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import signal
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import yaml

from dev.controlplane import paths
from dev.controlplane.build import binary, ensure_built
from dev.controlplane.plane import ControlPlane
from dev.controlplane.ports import free_ports
from dev.controlplane.processes import ComponentError, Supervisor, remove_stale_runs

NAME = "prometheus"
READY_TIMEOUT_S = 60.0

NAMESPACE = "rljob-dev-monitoring"
"""Namespace of the service account that Prometheus uses."""

_ACCESS = f"""
apiVersion: v1
kind: Namespace
metadata: {{name: {NAMESPACE}}}
---
apiVersion: v1
kind: ServiceAccount
metadata: {{name: prometheus, namespace: {NAMESPACE}}}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {{name: {NAMESPACE}}}
rules:
- apiGroups: [""]
  resources: [pods]
  verbs: [list, watch]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {{name: {NAMESPACE}}}
roleRef: {{apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: {NAMESPACE}}}
subjects:
- {{kind: ServiceAccount, name: prometheus, namespace: {NAMESPACE}}}
"""


def prometheus_token_file(plane: ControlPlane) -> Path:
    """Create the service account for Prometheus, which may list and watch pods alone, and return a file with its token."""
    plane.apply(_ACCESS)
    path = plane.data_dir / "prometheus.token"
    path.touch(mode=0o600)
    path.write_text(plane.service_account_token(NAMESPACE, "prometheus"))
    return path


def pods_scrape_config(*, server: str, ca_file: Path, token_file: Path, exporter_address: str) -> str:
    """Return ``scrape_configs`` (YAML) for every running pod that carries the label ``rljob.dev/name``.

    Each pod's metrics are fetched from ``http://<exporter_address>/pods/<namespace>/<pod>/metrics`` and get the labels
    ``namespace``, ``pod``, ``rljob_dev_name``, ``rljob_dev_role`` and ``rljob_dev_uid``.
    """

    def copy(source: str, target: str) -> dict[str, Any]:
        return {"source_labels": [f"__meta_kubernetes_{source}"], "target_label": target}

    pod = ["__meta_kubernetes_namespace", "__meta_kubernetes_pod_name"]
    job = {
        "job_name": "rljob-pods",
        "kubernetes_sd_configs": [
            {
                "role": "pod",
                "api_server": server,
                "tls_config": {"ca_file": str(ca_file)},
                "authorization": {"credentials_file": str(token_file)},
                "selectors": [{"role": "pod", "label": "rljob.dev/name"}],
            }
        ],
        "relabel_configs": [
            {"source_labels": ["__meta_kubernetes_pod_phase"], "regex": "Running", "action": "keep"},
            {"source_labels": ["__meta_kubernetes_pod_container_init"], "regex": "true", "action": "drop"},
            copy("namespace", "namespace"),
            copy("pod_name", "pod"),
            copy("pod_label_rljob_dev_name", "rljob_dev_name"),
            copy("pod_label_rljob_dev_role", "rljob_dev_role"),
            copy("pod_label_rljob_dev_uid", "rljob_dev_uid"),
            # A pod is one target however many containers and ports it declares: equal targets are scraped once.
            {"source_labels": pod, "separator": "/", "target_label": "instance"},
            {
                "source_labels": pod,
                "separator": "/",
                "regex": "(.+)",
                "replacement": "/pods/$1/metrics",
                "target_label": "__metrics_path__",
            },
            {"replacement": exporter_address, "target_label": "__address__"},
        ],
    }
    return yaml.safe_dump([job], sort_keys=False)


def operator_scrape_config(address: str, namespace: str) -> str:
    """Return ``scrape_configs`` (YAML) for the operator, whose metrics are at ``address`` (host:port); joins on to those of pods.

    The target gets the labels that the chart's monitors give it: ``job`` is ``rljob-operator``, and ``namespace`` that of the release.
    """
    job = {
        "job_name": "rljob-operator",
        "static_configs": [{"targets": [address], "labels": {"namespace": namespace}}],
    }
    return yaml.safe_dump([job], sort_keys=False)


class Prometheus:
    """A running Prometheus. Make one with ``start``; it ends with this process, as a plane does."""

    def __init__(self, supervisor: Supervisor, port: int, *, own_supervisor: bool) -> None:
        """Wrap a configured Prometheus; use ``start``."""
        self._supervisor = supervisor
        self._own_supervisor = own_supervisor
        self._port = port
        self._directory = supervisor.data_dir / NAME
        self._running = False

    @classmethod
    def start(
        cls,
        plane_or_data_dir: ControlPlane | Path | None = None,
        *,
        config: str,
        scrape_interval_s: float = 1.0,
        rule_files: Sequence[Path] = (),
    ) -> Self:
        """Start Prometheus beside a plane (and with its life), or on its own in a data directory.

        ``config`` is the value of ``scrape_configs`` as YAML; ``rule_files`` are recording and alerting rules. Without a plane or a directory
        it lives in a temporary one. Raises ComponentError, with the log's last lines, if it does not get ready.
        """
        ensure_built()
        if isinstance(plane_or_data_dir, ControlPlane):
            supervisor, own = plane_or_data_dir.supervisor, False
        else:
            remove_stale_runs()
            supervisor, own = cls._own(plane_or_data_dir), True
        prometheus = cls(supervisor, free_ports(1)[0], own_supervisor=own)
        try:
            prometheus._configure(config, scrape_interval_s, rule_files)
            prometheus.start_again()
        except BaseException:
            prometheus.close()
            raise
        return prometheus

    @staticmethod
    def _own(data_dir: Path | None) -> Supervisor:
        if data_dir is not None:
            return Supervisor(data_dir.absolute(), remove=False)
        paths.run_dir().mkdir(parents=True, exist_ok=True, mode=0o700)
        return Supervisor(Path(tempfile.mkdtemp(dir=paths.run_dir(), prefix="prometheus-")), remove=True)

    def _configure(self, config: str, scrape_interval_s: float, rule_files: Sequence[Path]) -> None:
        interval = f"{round(scrape_interval_s * 1000)}ms"
        document = {
            "global": {"scrape_interval": interval, "scrape_timeout": interval, "evaluation_interval": interval},
            "rule_files": [str(file.absolute()) for file in rule_files],
            "scrape_configs": yaml.safe_load(config),
        }
        self._directory.mkdir(parents=True, exist_ok=True)
        self.config_file.write_text(yaml.safe_dump(document, sort_keys=False))

    @property
    def config_file(self) -> Path:
        """The whole configuration."""
        return self._directory / "prometheus.yaml"

    @property
    def url(self) -> str:
        """Base URL, the same before and after ``stop`` and ``start_again``."""
        return f"http://127.0.0.1:{self._port}"

    def start_again(self) -> None:
        """Start after ``stop`` (or for the first time), on the same port and data, and wait until it answers."""
        self._supervisor.start(
            NAME,
            [
                binary(NAME),
                f"--config.file={self.config_file}",
                f"--storage.tsdb.path={self._directory / 'data'}",
                "--storage.tsdb.retention.time=2d",
                f"--web.listen-address=127.0.0.1:{self._port}",
                "--log.level=warn",
            ],
        )
        self._running = True
        deadline = time.monotonic() + READY_TIMEOUT_S
        while True:
            try:
                with urllib.request.urlopen(f"{self.url}/-/ready", timeout=5.0):
                    return
            except OSError:
                self._supervisor.check()
            if time.monotonic() > deadline:
                raise ComponentError(
                    f"{NAME} is not ready after {READY_TIMEOUT_S:.0f} s\n{self._supervisor.log_tail(NAME)}"
                )
            time.sleep(0.05)

    def stop(self) -> None:
        """Stop answering and keep the data, as an outage does; ``start_again`` ends it. Harmless if done before."""
        if self._running:
            self._running = False
            self._supervisor.stop(NAME, number=signal.SIGTERM, timeout_s=10.0)

    def close(self) -> None:
        """End Prometheus for good and remove its temporary data; harmless if done before."""
        if self._own_supervisor:
            self._supervisor.close()
            return
        # A plane that has gone before has taken Prometheus with it.
        with contextlib.suppress(ComponentError):
            self.stop()
        shutil.rmtree(self._directory, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def query(self, expr: str) -> list[dict[str, Any]]:
        """Evaluate PromQL now; returns ``[{"metric": labels, "value": [time_s, "text"]}, ...]``.

        Raises ValueError with Prometheus's message for a bad expression, OSError while it does not run.
        """
        url = f"{self.url}/api/v1/query?{urllib.parse.urlencode({'query': expr})}"
        try:
            with urllib.request.urlopen(url, timeout=30.0) as response:
                answer = json.load(response)
        except urllib.error.HTTPError as error:
            raise ValueError(f"{expr}: {error.read().decode(errors='replace')}") from error
        data = answer["data"]
        if data["resultType"] in ("scalar", "string"):
            return [{"metric": {}, "value": data["result"]}]
        result: list[dict[str, Any]] = data["result"]
        return result
