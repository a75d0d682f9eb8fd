"""The node of processes under a real API server, scheduler and controllers: what pods do there and what is said of them."""

from __future__ import annotations

import json
import os
import signal
import sys
import textwrap
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dev.controlplane import ControlPlane
from dev.processes.local import LocalNode

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="pods run as processes on Linux alone")

LABEL = "dev.rljob.dev/test"

SERVER = """
    import http.server, os, signal, sys, time
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            body = open(sys.argv[1]).read().encode()
            self.send_response(200); self.end_headers(); self.wfile.write(body)
        def log_message(self, *_): pass
    def end(*_):
        print("terminated", flush=True); time.sleep(1); os._exit(0)
    signal.signal(signal.SIGTERM, end)
    http.server.ThreadingHTTPServer((os.environ["POD_IP"], 8000), Handler).serve_forever()
"""


@pytest.fixture
def node(plane: ControlPlane, namespace: str, tmp_path: Path) -> Iterator[LocalNode]:
    started = LocalNode.start(
        plane, gpus=3, name=f"{namespace}-node", labels={LABEL: namespace}, logs=tmp_path / "logs"
    )
    yield started
    plane.api.request("DELETE", f"/api/v1/namespaces/{namespace}")
    path = f"/api/v1/pods?fieldSelector=spec.nodeName%3D{started.name}"
    plane.wait_until("the pods to be gone", lambda: not plane.api.request("GET", path)["items"])
    started.stop()
    plane.remove_nodes([started.name])


def deployment(namespace: str, replicas: int, **fields: Any) -> dict[str, Any]:
    pod = {
        "nodeSelector": {LABEL: namespace},
        "terminationGracePeriodSeconds": 30,
        "volumes": [{"name": "layout", "configMap": {"name": "page"}}],
        "containers": [
            {
                "name": "server",
                "image": "none",
                "command": [sys.executable, "-c", textwrap.dedent(SERVER)],
                "args": ["/etc/rljob/page"],
                "env": [{"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}],
                "ports": [{"name": "http", "containerPort": 8000}],
                "readinessProbe": {"httpGet": {"path": "/", "port": "http"}, "periodSeconds": 1, "timeoutSeconds": 5},
                "resources": {"limits": {"nvidia.com/gpu": 1}},
                "volumeMounts": [{"name": "layout", "mountPath": "/etc/rljob"}],
                **fields,
            }
        ],
    }
    return {
        "metadata": {"name": "servers"},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": {"app": "server"}},
            "template": {"metadata": {"labels": {"app": "server"}}, "spec": pod},
        },
    }


def pods(plane: ControlPlane, namespace: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = plane.api.request("GET", f"/api/v1/namespaces/{namespace}/pods")["items"]
    return found


def ready(pod: dict[str, Any]) -> bool:
    return any(c["type"] == "Ready" and c["status"] == "True" for c in pod["status"].get("conditions") or ())


def fetch(pod: dict[str, Any]) -> str:
    with urllib.request.urlopen(f"http://{pod['status']['podIP']}:8000/", timeout=10) as answer:
        return str(answer.read().decode())


def run(plane: ControlPlane, namespace: str, replicas: int, **fields: Any) -> list[dict[str, Any]]:
    """A Deployment of servers; returns its pods once all are ready."""
    page = {"metadata": {"name": "page"}, "data": {"page": "first"}}
    plane.api.request("POST", f"/api/v1/namespaces/{namespace}/configmaps", page)
    wanted = deployment(namespace, replicas, **fields)
    plane.api.request("POST", f"/apis/apps/v1/namespaces/{namespace}/deployments", wanted)

    def all_ready() -> bool:
        found = pods(plane, namespace)
        return len(found) == replicas and all(map(ready, found))

    plane.wait_until("the servers to be ready", all_ready)
    return pods(plane, namespace)


def test_pods_run_answer_at_their_address_and_follow_their_config_map(
    plane: ControlPlane, namespace: str, node: LocalNode
) -> None:
    running = run(plane, namespace, 2)
    assert {pod["spec"]["nodeName"] for pod in running} == {node.name}
    assert len({pod["status"]["podIP"] for pod in running}) == 2
    assert [fetch(pod) for pod in running] == ["first", "first"]
    plane.kubectl("patch", "configmap", "page", "-n", namespace, "--type=merge", "-p", '{"data": {"page": "second"}}')
    plane.wait_until("the new page", lambda: all(fetch(pod) == "second" for pod in running))


def test_only_as_many_pods_are_bound_as_there_are_gpus(plane: ControlPlane, namespace: str, node: LocalNode) -> None:
    run(plane, namespace, 3)
    plane.kubectl("scale", "deployment", "servers", "-n", namespace, "--replicas=4")

    def one_waits() -> bool:
        found = [pod for pod in pods(plane, namespace) if not pod["spec"].get("nodeName")]
        reasons = [c.get("message", "") for pod in found for c in pod["status"].get("conditions") or ()]
        return len(found) == 1 and any("Insufficient nvidia.com/gpu" in reason for reason in reasons)

    plane.wait_until("one pod to wait for a GPU", one_waits)


def test_a_killed_server_is_restarted_in_its_pod(plane: ControlPlane, namespace: str, node: LocalNode) -> None:
    (pod,) = run(plane, namespace, 1)
    name = pod["metadata"]["name"]
    pid = node.pid(namespace, name)
    assert pid is not None
    os.kill(pid, signal.SIGKILL)

    def again() -> bool:
        (now,) = pods(plane, namespace)
        (container,) = now["status"]["containerStatuses"]
        return bool(container["restartCount"] == 1 and ready(now))

    plane.wait_until("the server to run again", again)
    assert node.pid(namespace, name) != pid
    events = plane.kubectl("get", "events", "-n", namespace, "-o", "json").stdout
    assert [e for e in json.loads(events)["items"] if e["reason"] == "Started" and e["involvedObject"]["name"] == name]


def test_an_evicted_pod_gets_its_hook_and_its_time(plane: ControlPlane, namespace: str, node: LocalNode) -> None:
    hook = {"preStop": {"exec": {"command": [sys.executable, "-c", "print('hook', flush=True)"]}}}
    (pod,) = run(plane, namespace, 1, lifecycle=hook)
    name = pod["metadata"]["name"]
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name, "namespace": namespace}}
    plane.api.request("POST", f"/api/v1/namespaces/{namespace}/pods/{name}/eviction", eviction)
    plane.wait_until("the pod to be gone", lambda: all(p["metadata"]["name"] != name for p in pods(plane, namespace)))
    assert node.log(namespace, name, "server").read_text().split() == ["hook", "terminated"]


def test_all_ends_with_the_node(plane: ControlPlane, namespace: str, node: LocalNode) -> None:
    (pod,) = run(plane, namespace, 1)
    pid = node.pid(namespace, pod["metadata"]["name"])
    node.stop()
    plane.wait_until("the server to be gone", lambda: not Path(f"/proc/{pid}").exists())
    with pytest.raises(urllib.error.URLError):
        fetch(pod)
    # So that the fixture can end what it has started.
    again = LocalNode.start(plane, gpus=3, name=node.name, labels={LABEL: namespace}, logs=node.logs)
    assert again.name == node.name
