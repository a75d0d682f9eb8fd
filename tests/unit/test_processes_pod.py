"""A pod on the node of processes, without an API server: real processes, started, probed, drained and killed."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from dev.controlplane import ApiError
from dev.processes.environment import ConfigError
from dev.processes.pod import PodWorker
from tests.unit.real_processes import alive, python, until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="orphans are adopted by a call of Linux alone")


class Node:
    """Takes down what a pod tells its node."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.maps: dict[str, dict[str, str]] = {}
        self.statuses: list[Mapping[str, Any]] = []
        self.events: list[tuple[str, str]] = []
        self.removed: list[str] = []
        self.workers: list[PodWorker] = []

    def run(self, spec: Mapping[str, Any]) -> PodWorker:
        pod = {"metadata": {"name": "p", "namespace": "n", "uid": "u"}, "spec": spec}
        self.worker = PodWorker(pod, "127.77.0.2", self.folder / "pod", self.folder / "logs", self, volume_lag_s=0.02)
        self.workers.append(self.worker)
        return self.worker

    def delete(self, grace_s: int) -> None:
        metadata = {**self.worker.pod["metadata"], "deletionTimestamp": "now", "deletionGracePeriodSeconds": grace_s}
        self.worker.update({**self.worker.pod, "metadata": metadata})

    @property
    def status(self) -> Mapping[str, Any]:
        return self.statuses[-1] if self.statuses else {}

    @property
    def ready(self) -> bool:
        return any(c["type"] == "Ready" and c["status"] == "True" for c in self.status.get("conditions") or ())

    def container(self, index: int = 0) -> dict[str, Any]:
        found = self.status.get("containerStatuses") or ()
        return dict(found[index]) if found else {"state": {}, "restartCount": -1}

    def log(self, name: str = "c") -> str:
        path = self.folder / "logs" / f"{name}.log"
        return path.read_text() if path.exists() else ""

    async def values(self, namespace: str, kind: str, name: str, optional: bool) -> Mapping[str, str]:
        if name not in self.maps:
            raise ConfigError(f"{kind[:-1]} {name} is not there")
        return self.maps[name]

    async def token(self, pod: Mapping[str, Any], source: Mapping[str, Any]) -> str:
        raise ApiError("POST", "/token", 404, "the account is gone")

    async def report(self, pod: Mapping[str, Any], status: Mapping[str, Any]) -> None:
        self.statuses.append(status)

    async def remove(self, pod: Mapping[str, Any]) -> None:
        self.removed.append(pod["metadata"]["uid"])

    def event(self, pod: Mapping[str, Any], kind: str, reason: str, message: str) -> None:
        self.events.append((reason, message))

    def environment(self) -> Mapping[str, str]:
        return {"PYTHONPATH": "/site"}


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    made = Node(tmp_path)
    yield made
    for worker in made.workers:
        worker.vanish()
        await worker.task


def container(code: str, name: str = "c", **fields: Any) -> dict[str, Any]:
    return {"name": name, "image": "none", "command": python(code), **fields}


SERVER = """
    import http.server, os, signal, sys
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            ok = os.path.exists(os.environ["HOME"] + self.path)
            self.send_response(200 if ok else 503); self.end_headers()
        def log_message(self, *_): pass
    print("up", os.environ.get("PYTHONPATH"))
    http.server.ThreadingHTTPServer((os.environ["POD_IP"], 8000), Handler).serve_forever()
"""
POD_IP = {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}
PORTS = [{"name": "http", "containerPort": 8000}]


def probe(path: str, **fields: Any) -> dict[str, Any]:
    # The shortest period that the API allows is a second; what is under test has no such limit.
    return {"httpGet": {"path": path, "port": "http"}, "periodSeconds": 0.02, "failureThreshold": 3, **fields}


async def test_probes_say_when_a_pod_has_started_and_is_ready(node: Node, tmp_path: Path) -> None:
    node.run({"containers": [container(
        SERVER, env=[POD_IP, {"name": "PYTHONPATH", "value": "/mine"}], ports=PORTS,
        startupProbe=probe("/started", failureThreshold=100_000), readinessProbe=probe("/ready", failureThreshold=1),
    )]})  # fmt: skip
    await until(lambda: "running" in node.container()["state"])
    assert node.status["podIP"] == "127.77.0.2"
    (tmp_path / "pod" / "ready").touch()
    await until(lambda: any(reason == "Unhealthy" for reason, _ in node.events))
    assert not node.container()["started"], "readiness is not asked for before the start is over"
    (tmp_path / "pod" / "started").touch()
    await until(lambda: node.ready)
    assert node.container()["started"]
    (tmp_path / "pod" / "ready").unlink()
    await until(lambda: not node.ready)
    assert "up /site:/mine" in node.log()


async def test_a_container_that_fails_its_liveness_probe_is_restarted(node: Node, tmp_path: Path) -> None:
    node.run(
        {
            "containers": [
                container(SERVER, env=[POD_IP], ports=PORTS, livenessProbe=probe("/alive", failureThreshold=1))
            ]
        }
    )
    (tmp_path / "pod").mkdir(exist_ok=True)
    await until(lambda: node.container()["restartCount"] == 1)
    assert any("livenessProbe" in message for reason, message in node.events if reason == "Killing")


async def test_a_killed_container_starts_again_and_then_backs_off(node: Node) -> None:
    node.run({"containers": [container("import time; time.sleep(600)")]})
    for restarts in (0, 1):
        running = await until(
            lambda n=restarts: (
                node.container()["restartCount"] == n and node.container()["state"].get("running") and node.container()
            )
        )
        os.kill(int(running["containerID"].removeprefix("process://")), signal.SIGKILL)
    waiting = await until(
        lambda: node.container()["state"].get("waiting") if node.container()["restartCount"] == 2 else None
    )
    assert waiting["reason"] == "CrashLoopBackOff"
    assert node.container()["lastState"]["terminated"]["exitCode"] == 137


DRAINS = """
    import signal, sys, time
    def end(*_):
        print("terminated"); sys.exit(0)
    signal.signal(signal.SIGTERM, end)
    print("runs")
    while True: time.sleep(600)
"""


async def test_a_deleted_pod_is_drained_by_its_hook_first_and_reported_before_it_goes(node: Node) -> None:
    hook = {"exec": {"command": python("print('hook')")}}
    node.run({"containers": [container(DRAINS, lifecycle={"preStop": hook})]})
    await until(lambda: "runs" in node.log())
    node.delete(60)
    await node.worker.task
    assert node.log().split() == ["runs", "hook", "terminated"]
    assert node.removed == ["u"]
    assert node.status["phase"] == "Succeeded"
    assert node.container()["state"]["terminated"]["exitCode"] == 0
    assert not (node.folder / "pod").exists()


STUBBORN = """
    import signal, time
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    print("runs")
    while True: time.sleep(600)
"""


async def test_what_ignores_sigterm_is_killed_when_its_time_is_over(node: Node) -> None:
    node.run({"containers": [container(STUBBORN)]})
    await until(lambda: "runs" in node.log())
    node.delete(1)
    await node.worker.task
    assert node.container()["state"]["terminated"]["exitCode"] == 137
    assert node.status["phase"] == "Failed"


async def test_a_second_deletion_shortens_the_first(node: Node) -> None:
    node.run({"containers": [container(STUBBORN, lifecycle={"preStop": {"sleep": {"seconds": 100_000}}})]})
    await until(lambda: "runs" in node.log())
    node.delete(100_000)
    await until(lambda: any(reason == "Killing" for reason, _ in node.events))
    node.delete(0)
    await node.worker.task
    assert node.removed == ["u"]


async def test_a_pod_whose_object_is_gone_is_killed_and_not_reported(node: Node) -> None:
    worker = node.run({"containers": [container(STUBBORN)]})
    await until(lambda: "runs" in node.log() and node.container()["state"].get("running"))
    pid = int(node.container()["containerID"].removeprefix("process://"))
    worker.vanish()
    await worker.task
    assert not alive(pid)
    assert node.removed == []


async def test_init_containers_run_in_turn_and_sidecars_outlive_the_others(node: Node) -> None:
    log = node.folder / "order"
    say = f"""
        import signal, sys, time
        def note(word):
            with open({str(log)!r}, "a") as handle: handle.write(word + "\\n")
        def end(*_):
            note(sys.argv[1] + " ends"); sys.exit(0)
        signal.signal(signal.SIGTERM, end)
        note(sys.argv[1])
        if sys.argv[2] == "stays":
            while True: time.sleep(600)
    """

    def says(name: str, what: str, **fields: Any) -> dict[str, Any]:
        return {"name": name, "image": "none", "command": [*python(say), name, what], **fields}

    node.run({
        "initContainers": [says("first", "goes"), says("sidecar", "stays", restartPolicy="Always"), says("second", "goes")],
        "containers": [says("main", "stays")],
    })  # fmt: skip
    await until(lambda: log.exists() and "main" in log.read_text().split() and "sidecar" in log.read_text().split())
    node.delete(60)
    await node.worker.task
    order = log.read_text().splitlines()
    assert order[0] == "first"
    assert order.index("second") < order.index("main")
    assert order[-2:] == ["main ends", "sidecar ends"]


async def test_a_failed_init_container_of_a_pod_that_is_not_restarted_ends_it(node: Node) -> None:
    node.run({
        "restartPolicy": "Never",
        "initContainers": [container("raise SystemExit(3)", "init")],
        "containers": [container("pass")],
    })  # fmt: skip
    await until(lambda: node.status.get("phase") == "Failed")
    assert "waiting" in node.container()["state"]


async def test_a_pod_that_is_done_stays_until_it_is_deleted(node: Node) -> None:
    node.run({"restartPolicy": "OnFailure", "containers": [container("print('done')")]})
    await until(lambda: node.status.get("phase") == "Succeeded")
    assert not node.removed
    node.delete(30)
    await node.worker.task
    assert node.removed == ["u"]


async def test_a_container_waits_for_what_is_missing_and_says_so(node: Node) -> None:
    node.run({
        "volumes": [{"name": "layout", "configMap": {"name": "m"}}],
        "containers": [container(
            "import sys, time; print(open(sys.argv[1]).read()); time.sleep(600)",
            volumeMounts=[{"name": "layout", "mountPath": "/etc/rljob"}], args=["/etc/rljob/layout.json"],
        )],
    })  # fmt: skip
    waiting = await until(lambda: node.container()["state"].get("waiting"))
    await until(lambda: node.container()["state"]["waiting"]["reason"] == "CreateContainerConfigError")
    assert "configmap m is not there" in node.container()["state"]["waiting"]["message"], waiting
    node.maps["m"] = {"layout.json": "hello"}
    await until(lambda: "hello" in node.log())
    node.maps["m"] = {"layout.json": "changed"}
    mounted = node.folder / "pod" / "volumes" / "layout" / "layout.json"
    await until(lambda: mounted.read_text() == "changed")


async def test_a_deleted_pod_that_never_ran_goes_at_once(node: Node) -> None:
    node.run({"containers": [{"name": "c", "image": "vllm"}]})
    await until(lambda: "no command" in str(node.container()["state"]))
    node.delete(100_000)
    await node.worker.task
    assert node.removed == ["u"]


async def test_files_of_a_pod_that_ends_change_no_more(node: Node) -> None:
    node.maps["m"] = {"layout.json": "last"}
    node.run({
        "volumes": [{"name": "layout", "configMap": {"name": "m"}}],
        "containers": [container(STUBBORN, volumeMounts=[{"name": "layout", "mountPath": "/etc/rljob"}])],
    })  # fmt: skip
    await until(lambda: "runs" in node.log())
    node.delete(100_000)
    await until(lambda: any(reason == "Killing" for reason, _ in node.events))
    node.maps["m"] = {"layout.json": "too late"}
    mounted = node.folder / "pod" / "volumes" / "layout" / "layout.json"
    await until(lambda: all(task.get_name() != "volumes of p" for task in asyncio.all_tasks()))
    assert mounted.read_text() == "last"
    node.delete(0)
    await node.worker.task


async def test_a_pod_ends_although_the_api_server_refuses_what_it_needs(node: Node) -> None:
    token = {"name": "token", "projected": {"sources": [{"serviceAccountToken": {"path": "token"}}]}}
    node.run({"volumes": [token], "containers": [container("pass")]})
    await until(lambda: "the account is gone" in str(node.container()["state"]))
    node.delete(100_000)
    await node.worker.task
    assert node.removed == ["u"]
