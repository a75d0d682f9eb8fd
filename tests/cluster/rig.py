"""The whole loop around one job, for tests: the operator under its own service account, Prometheus, the job emulator.

The operator runs as a process of its own, so that it can be killed as a node failure would kill it, and connects with the
rights that an installation has. A recorder follows the pods from the first moment: what must hold at every instant is asserted
over the watch history, never over the final state.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml
from kubernetes import client, config, watch

from dev import installed as chart
from dev.controlplane import ApiError, ControlPlane, Prometheus, pods_scrape_config, prometheus_token_file
from dev.controlplane.ports import free_ports
from dev.installed import SYSTEM, WITHOUT_PODS, Installed
from tests.audited import RIGHTS_SUFFIX

ROOT = Path(__file__).resolve().parents[2]
GPU = "nvidia.com/gpu"

ELECTED = {
    "RLJOB_OPERATOR_LEADER_ELECTION": "true",
    "RLJOB_OPERATOR_LEASE_NAMESPACE": SYSTEM,
    "RLJOB_OPERATOR_LEASE_DURATION": "5s",
    "RLJOB_OPERATOR_RENEW_DEADLINE": "4s",
    "RLJOB_OPERATOR_RENEW_PERIOD": "500ms",
    "RLJOB_OPERATOR_ACKNOWLEDGE_DEADLINE": "1s",
}
"""The environment of an operator that takes part in an election, in a test's time."""

Json = dict[str, Any]

_ROOTS = {
    **dict.fromkeys(("pods", "services", "configmaps", "events"), "/api/v1"),
    **dict.fromkeys(("deployments", "statefulsets", "replicasets"), "/apis/apps/v1"),
    "networkpolicies": "/apis/networking.k8s.io/v1",
    **dict.fromkeys(("rljobs", "rljobprofiles"), "/apis/rljob.dev/v1alpha1"),
}
"""Where the API serves the kinds that tests look at, by their plural."""


VALUES: dict[str, Any] = {
    # The Role of the election as well. Whether a process takes part is for each test to say.
    "replicas": 2,
    **WITHOUT_PODS,
}
"""Values of the chart that the tests' operator is installed with."""

_releases: weakref.WeakKeyDictionary[ControlPlane, Installed] = weakref.WeakKeyDictionary()


def release(plane: ControlPlane) -> Installed:
    """The chart as it is installed on a plane, once for all tests."""
    if plane not in _releases:
        # Some tests need no more than the CRD, and apply it by hand.
        found = chart.install(plane, VALUES, take_ownership=True)
        if plane.audit_log is not None:
            rights = [right.as_json() for right in sorted(found.rights)]
            record = {"user": found.user, "rights": rights, "log": str(plane.audit_log)}
            plane.audit_log.with_suffix(RIGHTS_SUFFIX).write_text(json.dumps(record, indent=1))
        _releases[plane] = found
    return _releases[plane]


def install(plane: ControlPlane) -> Path:
    """Installs the chart; returns the kubeconfig of the operator's account."""
    return release(plane).kubeconfig


class Operator:
    """The operator as a process."""

    def __init__(self, installed: Installed, kubeconfig: Path, log: Path, env: dict[str, str]) -> None:
        self._installed = installed
        self._kubeconfig = kubeconfig
        self._log = log
        self._env = env
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Starts it and waits until it answers its liveness probe."""
        ports = self._installed.local_ports()
        env = {
            **{name: value for name, value in os.environ.items() if not name.startswith("RLJOB_OPERATOR_")},
            **self._installed.local_env(ports),
            "KUBECONFIG": str(self._kubeconfig),
            **self._env,
        }
        port = ports["health"]
        with self._log.open("ab") as out:
            self._process = subprocess.Popen(self._installed.local_command, env=env, stdout=out, stderr=out, cwd=ROOT)
        process = self._process

        def answers() -> bool:
            if process.poll() is not None:
                raise AssertionError(f"the operator ended with {process.returncode}:\n{self.log()}")
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz", timeout=1):
                    return True
            except (urllib.error.URLError, OSError):
                return False

        eventually(answers, "the operator answers", timeout_s=60)

    def kill(self) -> None:
        """Kills it as a node failure would."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def pause(self) -> None:
        """Stops it where it stands, as a machine that swaps or is moved does; ``resume`` lets it go on."""
        self._send(signal.SIGSTOP)

    def resume(self) -> None:
        """Lets it go on."""
        self._send(signal.SIGCONT)

    def terminate(self) -> int:
        """Asks it to stop and waits for that; returns its exit code."""
        self._send(signal.SIGTERM)
        assert self._process is not None
        return self._process.wait(timeout=30)

    def _send(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def stop(self) -> None:
        """Stops it in order."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            self._process.send_signal(signal.SIGCONT)
            try:
                self._process.wait(timeout=15)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()

    def log(self) -> str:
        """The end of its log."""
        return self._log.read_text(errors="replace")[-6000:]


class Recorder:
    """Follows all pods of a namespace and keeps the largest number of GPUs that were held at any watch event."""

    def __init__(self, kubeconfig: Path, namespace: str) -> None:
        self._api = client.CoreV1Api(config.new_client_from_config(str(kubeconfig)))
        self._namespace = namespace
        self._pods: dict[str, Json] = {}
        self._stop = threading.Event()
        self.peak = 0
        """GPUs of pods bound or ungated and not yet gone, at the worst moment."""
        self.peaks: Counter[str] = Counter()
        """The same of each job, by its name."""
        self.history: list[tuple[float, int]] = []
        self._thread = threading.Thread(target=self._follow, daemon=True)
        self._thread.start()

    def _follow(self) -> None:
        version = None
        while not self._stop.is_set():
            try:
                if version is None:
                    # What went unseen must not be counted for ever.
                    found = self._api.list_namespaced_pod(self._namespace, _preload_content=False)
                    listing = json.loads(found.data)
                    self._pods = {p["metadata"]["uid"]: p for p in listing["items"]}
                    self._note()
                    version = listing["metadata"]["resourceVersion"]
                stream = watch.Watch()
                for event in stream.stream(
                    self._api.list_namespaced_pod, self._namespace, resource_version=version, timeout_seconds=5
                ):
                    self._see(event["type"], event["raw_object"])
                version = stream.resource_version
            except Exception:
                version = None

    def _see(self, kind: str, pod: Json) -> None:
        uid = pod["metadata"]["uid"]
        if kind == "DELETED":
            self._pods.pop(uid, None)
        else:
            self._pods[uid] = pod
        self._note()

    def _note(self) -> None:
        of_job: Counter[str] = Counter()
        for pod in self._pods.values():
            if _held(pod):
                of_job[pod["metadata"].get("labels", {}).get("rljob.dev/name", "")] += _gpus(pod)
        self.peaks |= of_job
        held = of_job.total()
        self.peak = max(self.peak, held)
        self.history.append((time.time(), held))

    def stop(self) -> None:
        """Ends the watch; its thread goes with the next answer of the server."""
        self._stop.set()


def _gpus(pod: Json) -> int:
    return sum(int((c.get("resources", {}).get("requests") or {}).get(GPU, 0)) for c in pod["spec"]["containers"])


def _held(pod: Json) -> bool:
    gated = any(g["name"] == "rljob.dev/budget" for g in pod["spec"].get("schedulingGates") or ())
    terminating = pod["metadata"].get("deletionTimestamp") is not None
    ended = pod.get("status", {}).get("phase") in ("Succeeded", "Failed") and not terminating
    return (pod["spec"].get("nodeName") is not None or not gated) and not ended


def eventually(holds: Callable[[], Any], what: str, *, timeout_s: float = 60.0, every_s: float = 0.2) -> Any:
    """Waits until ``holds`` returns something true, and returns it; AssertionError names ``what`` did not happen."""
    deadline = time.monotonic() + timeout_s
    while True:
        found = holds()
        if found:
            return found
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {timeout_s:.0f} s: {what}")
        threading.Event().wait(every_s)


class Rig:
    """One test's world: nodes, operator, and if asked for Prometheus and emulator, around one job."""

    def __init__(self, plane: ControlPlane, namespace: str, kubeconfig: Path, folder: Path) -> None:
        self.plane = plane
        self.namespace = namespace
        self._folder = folder
        self._kubeconfig = kubeconfig
        self._stack = contextlib.ExitStack()
        self._emulator_port = free_ports(1)[0]
        self.prometheus: Prometheus | None = None
        self.operator: Operator | None = None
        self.recorder = Recorder(plane.kubeconfig, namespace)
        self._stack.callback(self.recorder.stop)

    def start_prometheus(self, *, scrapes: str = "", rule_files: Sequence[Path] = ()) -> Prometheus:
        """A real Prometheus that scrapes the emulator for the pods' metrics; ``scrapes`` is YAML of more that it scrapes."""
        scrape = pods_scrape_config(
            server=self.plane.server,
            ca_file=self.plane.ca_file,
            token_file=prometheus_token_file(self.plane),
            exporter_address=f"127.0.0.1:{self._emulator_port}",
        )
        found = Prometheus.start(
            self._folder / "prometheus", config=scrape + scrapes, scrape_interval_s=1.0, rule_files=rule_files
        )
        self._stack.callback(found.close)
        self.prometheus = found
        return found

    def start_operator(self, name: str = "operator", kubeconfig: Path | None = None, **env: str) -> Operator:
        """The operator, with deadlines and ticks that suit a test; one of several goes by its ``name``."""
        quick = {
            "RLJOB_OPERATOR_MOVE_TICK": "500ms",
            "RLJOB_OPERATOR_IDLE_TICK": "2s",
            "RLJOB_OPERATOR_SCRAPE_INTERVAL": "1s",
            "RLJOB_OPERATOR_METRICS_WINDOW": "12s",
            "RLJOB_OPERATOR_ACKNOWLEDGE_DEADLINE": "60s",
            "RLJOB_OPERATOR_GONE_DEADLINE": "60s",
            "RLJOB_OPERATOR_READY_DEADLINE": "60s",
            # The chart is installed for two replicas, and most tests start one.
            "RLJOB_OPERATOR_LEADER_ELECTION": "false",
        }
        if self.prometheus is not None:
            quick["RLJOB_OPERATOR_PROMETHEUS_URL"] = self.prometheus.url
        log = self._folder / f"{name}.log"
        self.operator = Operator(release(self.plane), kubeconfig or self._kubeconfig, log, {**quick, **env})
        self._stack.callback(self.operator.stop)
        self.operator.start()
        return self.operator

    def start_emulator(self, job: str, emulation: Json) -> None:
        """The job emulator for one job."""
        path = self._folder / "emulator.yaml"
        path.write_text(yaml.safe_dump(emulation))
        out = self._stack.enter_context((self._folder / "emulator.log").open("wb"))
        process = subprocess.Popen(
            [
                sys.executable, "-m", "dev.emulator", "--kubeconfig", str(self.plane.kubeconfig), "--namespace", self.namespace,
                "--job", job, "--config", str(path), "--port", str(self._emulator_port),
                "--steps", str(self._folder / "steps.jsonl"),
            ],
            stdout=out,
            stderr=out,
            cwd=ROOT,
        )  # fmt: skip

        def stop() -> None:
            process.terminate()
            process.wait(timeout=15)

        self._stack.callback(stop)

    def set_faults(self, **faults: Any) -> None:
        """Changes the emulator's faults."""
        request = urllib.request.Request(
            f"http://127.0.0.1:{self._emulator_port}/faults",
            data=json.dumps(faults).encode(),
            headers={"Content-Type": "application/json"},
            method="POST",
        )
        with urllib.request.urlopen(request, timeout=5):
            pass

    def apply(self, job: Json) -> None:
        """Applies an RLJob as a user would."""
        self.plane.kubectl("apply", "--server-side", "-f", "-", input=yaml.safe_dump(job))

    def get(self, kind: str, name: str) -> Json | None:
        """One object of the namespace, None if there is none."""
        try:
            return self.plane.api.request("GET", f"{self._path(kind)}/{name}")
        except ApiError as error:
            if error.status == 404:
                return None
            raise

    def objects(self, kind: str, selector: str = "") -> list[Json]:
        """The objects of a kind in the namespace."""
        query = f"?labelSelector={urllib.parse.quote(selector)}" if selector else ""
        found = self.plane.api.request("GET", f"{self._path(kind)}{query}")
        head = {"apiVersion": found["apiVersion"], "kind": found["kind"].removesuffix("List")}
        return [{**head, **item} for item in found["items"]]

    def _path(self, kind: str) -> str:
        """Where a kind is, in the plural or the singular; asked of the API server itself, since tests wait by asking often."""
        plural = kind if kind.endswith("s") else f"{kind.removesuffix('y')}ies" if kind.endswith("y") else f"{kind}s"
        return f"{_ROOTS[plural]}/namespaces/{self.namespace}/{plural}"

    def status(self, name: str) -> Json:
        """The status of an RLJob, empty if there is none yet."""
        job = self.get("rljob", name)
        return {} if job is None else dict(job.get("status") or {})

    def condition(self, name: str, kind: str) -> Json | None:
        """A condition of an RLJob."""
        return next((c for c in self.status(name).get("conditions", ()) if c["type"] == kind), None)

    def wait_condition(
        self, name: str, kind: str, status: str, reason: str | None = None, *, timeout_s: float = 60.0
    ) -> Json:
        """Waits for a condition and returns it."""

        def holds() -> Json | None:
            found = self.condition(name, kind)
            fits = found is not None and found["status"] == status and reason in (None, found["reason"])
            return found if fits else None

        try:
            return dict(eventually(holds, f"{kind}={status} ({reason or 'any reason'})", timeout_s=timeout_s))
        except AssertionError as error:
            raise AssertionError(f"{error}; it is {self.condition(name, kind)}\n{self._tail()}") from error

    def wait_phase(self, name: str, phase: str, *, timeout_s: float = 60.0) -> Json:
        """Waits for a phase and returns the status."""
        try:
            eventually(lambda: self.status(name).get("phase") == phase, f"phase {phase}", timeout_s=timeout_s)
        except AssertionError as error:
            raise AssertionError(f"{error}; it is {self.status(name).get('phase')}\n{self._tail()}") from error
        return self.status(name)

    def events(self, name: str) -> list[Json]:
        """The events on an RLJob."""
        return [
            e
            for e in self.objects("events")
            if e["involvedObject"]["name"] == name and e["involvedObject"]["kind"] == "RLJob"
        ]

    def _tail(self) -> str:
        return "" if self.operator is None else self.operator.log()

    def close(self) -> None:
        """Ends everything that was started, the last first."""
        self._stack.close()


def holder(rig: Rig) -> str:
    """The identity that the leader was started with, as the Lease names it; the empty string for none."""
    try:
        lease = rig.plane.api.request("GET", f"/apis/coordination.k8s.io/v1/namespaces/{SYSTEM}/leases/rljob-operator")
    except ApiError as error:
        if error.status == 404:
            return ""
        raise
    return str(lease["spec"].get("holderIdentity") or "").partition("_")[0]


def rig_of(plane: ControlPlane, namespace: str, kubeconfig: Path, folder: Path) -> Iterator[Rig]:
    """A rig that is torn down with its jobs gone."""
    rig = Rig(plane, namespace, kubeconfig, folder)
    try:
        yield rig
    finally:
        plane.kubectl("delete", "rljobs", "--all", "-n", namespace, "--wait=false", check=False)
        rig.close()
